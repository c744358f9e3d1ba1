"""Field management: who set which field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from koord.apiserver.schema.builtin import now, schemas
from koord.apiserver.ssa import fields as sets
from koord.apiserver.ssa.fields import FREE, UPDATE, CustomRoot, Fields, Place, Record, Shape, of_type
from koord.apiserver.store import Obj

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.context import Options


# what nobody manages: the identity of an object, and metadata that belongs to the server
_UNMANAGED = frozenset({"f:apiVersion", "f:kind"})
_SERVER_META = frozenset(
    f"f:{key}"
    for key in (
        "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields", "name", "namespace",
        "resourceVersion", "selfLink", "uid",
    )
)  # fmt: skip
_BUSY = frozenset({"/pods", "/events", "coordination.k8s.io/leases"})


def strip(fields: Iterable[Place]) -> Fields:
    """Without what no manager owns."""
    return frozenset(p for p in fields if p[0] not in _UNMANAGED and not (p[0] == "f:metadata" and (len(p) == 1 or p[1] in _SERVER_META)))


class FieldManagement:
    """Keeps metadata.managedFields on every write. `mode` is `ServerConfig.managed_fields`."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._shapes: WeakKeyDictionary[Resource, Shape] = WeakKeyDictionary()

    def shape(self, resource: Resource) -> Shape:
        """How the objects of a resource merge."""
        found = self._shapes.get(resource)
        if found is None:
            if resource.structural is not None:
                found = CustomRoot(resource.structural, schemas().type("V1ObjectMeta"))
            else:
                found = of_type(resource.type) if resource.type is not None else FREE
            self._shapes[resource] = found
        return found

    def on_create(self, resource: Resource, obj: Obj, options: Options) -> None:
        """Whoever creates an object owns all that it says."""
        # objects of busy resources are tracked only once somebody applied them
        lazy = self._mode == "apply" or (self._mode == "auto" and resource.bucket in _BUSY)
        if options.applied is not None:
            sets.write(obj["metadata"], options.applied)
            return
        if lazy:
            return
        # the server resets a status; the creator does not own it
        reset = resource.status_subresource and resource.kind != "Node"
        view = {key: value for key, value in obj.items() if not (reset and key == "status")}
        fields = strip(sets.members(view, self.shape(resource), whole=True))
        if fields:
            entry = Record(options.manager(), UPDATE, resource.api_version, "", fields, now())
            obj["metadata"]["managedFields"] = [entry.wire()]

    def on_update(self, resource: Resource, obj: Obj, stored: Obj, options: Options, subresource: str) -> None:
        """The fields that an update changes become the updater's; the fields that it removes nobody's."""
        meta, before = obj["metadata"], stored["metadata"]
        given, known = meta.get("managedFields"), before.get("managedFields")
        if given == [{}] or not (known if given is None else given):
            # an explicit reset; or an object without managers, which is tracked again from the next apply on
            meta.pop("managedFields", None)
            return
        current = sets.read(known if given is None else given)
        changed, removed = (strip(fields) for fields in sets.compare(stored, obj, self.shape(resource)))
        mine = Record(options.manager(), UPDATE, resource.api_version, subresource, frozenset())
        if changed or removed:
            mine = next((record for record in current if record.key == mine.key), mine)
            current = [record for record in current if record.key != mine.key]
            for record in current:
                record.fields = record.fields - changed - removed
            fields = (mine.fields | changed) - removed
            if fields != mine.fields:
                mine = Record(mine.manager, UPDATE, resource.api_version, subresource, fields, now())
            current.append(mine)
        sets.write(meta, current)
