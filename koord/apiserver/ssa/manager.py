"""Field management: who set which field, and server-side apply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import orjson

from koord.apiserver.errors import STALE, Cause, StatusError, bad_request, conflict, invalid, not_found, plain_error, required
from koord.apiserver.rest.context import check_identity, check_version
from koord.apiserver.schema.builtin import Path_, now, path_text, schemas
from koord.apiserver.ssa import fields as sets
from koord.apiserver.ssa.fields import APPLY, UPDATE, CustomRoot, Fields, Place, Record, Shape, of_type
from koord.apiserver.store import Entry, Obj

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.context import Options
    from koord.apiserver.schema.structural import Structural


_RETRIES = 5
BEFORE_FIRST_APPLY = "before-first-apply"
# what nobody manages: the identity of an object, and metadata that belongs to the server
_UNMANAGED = frozenset({"f:apiVersion", "f:kind"})
_SERVER_META = frozenset(
    f"f:{key}"
    for key in (
        "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields", "name", "namespace",
        "resourceVersion", "selfLink", "uid",
    )
)  # fmt: skip
_FREE = Shape("map")
_BUSY = frozenset({"/pods", "/events", "coordination.k8s.io/leases"})


def strip(fields: Iterable[Place]) -> Fields:
    """Without what no manager owns."""
    return frozenset(p for p in fields if p[0] not in _UNMANAGED and not (p[0] == "f:metadata" and (len(p) == 1 or p[1] in _SERVER_META)))


class FieldManagement:
    """Keeps metadata.managedFields on every write, and applies."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._mode = core.config.managed_fields
        self._shapes: WeakKeyDictionary[Resource, Shape] = WeakKeyDictionary()

    def shape(self, resource: Resource) -> Shape:
        """How the objects of a resource merge."""
        source: Any = resource.structural or resource.type
        found = self._shapes.get(resource)
        if found is None:
            if resource.structural is not None:
                found = CustomRoot(resource.structural, schemas().type("V1ObjectMeta"))
            else:
                found = of_type(source) if source is not None else _FREE
            self._shapes[resource] = found
        return found

    # -- create and update -------------------------------------------------------------------------------------------------------

    def on_create(self, resource: Resource, obj: Obj, options: Options) -> None:
        """Whoever creates an object owns all that it says."""
        # objects of busy resources are tracked only once somebody applied them
        lazy = self._mode == "apply" or (self._mode == "auto" and resource.bucket in _BUSY)
        if options.applied is not None or lazy:
            if options.applied is not None:
                sets.write(obj["metadata"], options.applied)
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

    # -- apply -------------------------------------------------------------------------------------------------------------------

    async def apply(
        self, resource: Resource, namespace: str, name: str, patch: Any, options: Options, subresource: str
    ) -> tuple[Entry, bool]:
        """Server-side apply. Returns the entry and whether it was created. Raises 409 with one cause a conflict."""
        self._check(resource, patch, options)
        meta = patch.setdefault("metadata", {})
        if isinstance(meta, dict):
            meta.setdefault("name", name)
        check_identity(resource, patch, namespace, name)
        frozen = orjson.dumps(patch)
        for _ in range(_RETRIES):
            entry = await self._apply_once(resource, namespace, name, orjson.loads(frozen), options, subresource)
            if entry is not None:
                return entry
        raise conflict(resource.plural, resource.group, name, STALE)

    def _check(self, resource: Resource, patch: Any, options: Options) -> None:
        if not options.field_manager:
            cause = required("fieldManager", "is required for apply patch")
            raise invalid("PatchOptions", "meta.k8s.io", "", [cause])
        if not isinstance(patch, dict):
            raise bad_request("an apply patch must be an object")
        if not patch.get("kind") or not patch.get("apiVersion"):
            raise bad_request("Object 'Kind' and 'apiVersion' must be set in an apply patch")
        if isinstance(patch.get("metadata"), dict) and patch["metadata"].get("managedFields") is not None:
            raise bad_request("metadata.managedFields must be nil")

    async def _apply_once(
        self, resource: Resource, namespace: str, name: str, patch: Obj, options: Options, subresource: str
    ) -> tuple[Entry, bool] | None:
        from koord.apiserver.rest.write import commit, create, decode, stored_form

        shape = self.shape(resource)
        old = self.core.store.bucket(resource.bucket).get(namespace, name)
        # what is owned is what was written: decoding leaves out empty maps and lists, which are owned as well
        wanted = orjson.loads(orjson.dumps(_part(patch, resource, subresource)))
        decode_patch(resource, patch, options)
        patch = _part(patch, resource, subresource)
        owned = strip(sets.members(wanted, shape, applied=True))
        mine = Record(options.field_manager, APPLY, resource.api_version, subresource, owned, now())
        if old is None:
            if subresource:
                raise not_found(resource.plural, resource.group, name)
            if patch["metadata"].get("uid"):
                uid = patch["metadata"]["uid"]
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise conflict(resource.plural, resource.group, name, why)
            options.applied = [mine]
            try:
                return await create(self.core, resource, namespace, patch, options, name), True
            finally:
                options.applied = None
        live = resource.obj(old)
        check_version(resource, name, patch["metadata"], live["metadata"])
        managed = live["metadata"].get("managedFields") or ()
        current = sets.read(managed)
        if not managed:
            fields = strip(sets.members(live, shape, whole=True))
            current = [Record(BEFORE_FIRST_APPLY, UPDATE, resource.api_version, "", fields, now())]
        merged = sets.merge(live, patch, shape)
        changed, _ = sets.compare(live, merged, shape)
        others = self._settle(resource, name, strip(changed), current, mine, options)
        previous = next((r for r in current if r.key == mine.key), None)
        if previous is not None:
            merged = _pruned(merged, previous.fields, owned, others, shape)
            if previous.fields == owned and previous.api_version == mine.api_version:
                mine.time = previous.time
        merged = orjson.loads(orjson.dumps(merged))
        merged["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        decode(resource, merged, options)
        merged = stored_form(resource, merged)
        sets.write(merged["metadata"], [*others, mine])
        entry = await commit(self.core, resource, old, merged, options, subresource, applied=True)
        return None if entry is None else (entry, False)

    def _settle(
        self, resource: Resource, name: str, changed: Fields, current: list[Record], mine: Record, options: Options
    ) -> list[Record]:
        """The other managers after this apply. Raises 409 when it would change what they own, unless forced."""
        others = [r for r in current if r.key != mine.key]
        clashes = [(r, both) for r in others if (both := r.fields & changed)]
        if clashes and not options.force:
            raise _conflict_error(clashes)
        for record, both in clashes:
            record.fields -= both
        return others


def _pruned(merged: Obj, previous: Fields, wanted: Fields, others: list[Record], shape: Shape) -> Obj:
    """Remove what this manager applied before and no longer does, unless somebody else owns it or what is in it."""
    owned = wanted.union(*(record.fields for record in others))
    gone = previous - owned
    out: Obj = sets.remove(merged, gone - sets.containers(owned), shape) if gone else merged
    return out


def _part(patch: Obj, resource: Resource, subresource: str) -> Obj:
    """What an applied configuration says of the part that it goes to."""
    if subresource == "status":
        return {k: v for k, v in patch.items() if k in ("kind", "apiVersion", "metadata", "status")}
    return {k: v for k, v in patch.items() if k != "status" or not resource.status_subresource}


def decode_patch(resource: Resource, patch: Obj, options: Options) -> None:
    """Check and normalise an applied configuration without defaulting it."""
    from koord.apiserver.schema.builtin import clean

    unknown: list[str] = []
    patch.setdefault("metadata", {})
    if resource.structural is not None:
        clean(schemas().type("V1ObjectMeta"), patch["metadata"], (None, "metadata"), unknown)
        resource.structural.prune(patch, None, unknown, root=True)
    elif resource.type is not None:
        try:
            clean(resource.type, patch, None, unknown)
        except StatusError as err:
            raise _untyped(resource, patch, err.message) from err
    if unknown:
        # What the types do not have cannot be owned: fieldValidation does not matter here.
        raise _untyped(resource, patch, f"{min(unknown)}: field not declared in schema")
    wrong: list[Cause] = []
    if resource.structural is not None:
        # wrong types, items of a list of unique ones that come twice, and items without the keys that tell them apart
        resource.structural.validate({**patch, "metadata": {}}, None, wrong)
        wrong = [c for c in wrong if c.kind in ("FieldValueTypeInvalid", "FieldValueDuplicate")]
        wrong = wrong or _keyless(resource.structural, patch, None)
    if wrong:
        raise _untyped(resource, patch, f"{wrong[0].field}: {wrong[0].message}")


def _untyped(resource: Resource, patch: Obj, why: str) -> StatusError:
    """An applied configuration that does not fit its types: nobody could own its fields. kube-apiserver calls that a 500."""
    meta = patch["metadata"]
    what = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {resource.group}/{resource.version}, Kind={resource.kind}"
    return plain_error(f"failed to create typed patch object ({what}): .{why}")


def _keyless(node: Structural, value: Any, path: Path_) -> list[Cause]:
    found: list[Cause] = []
    keys = node.raw.get("x-kubernetes-list-map-keys") or ()
    for at, item, inner in node.inside(value):
        if keys and isinstance(item, dict) and not any(key in item or getattr(inner.props.get(key), "has_default", False) for key in keys):
            text = f"element {at}: associative list with keys has an element that omits all key fields"
            found.append(Cause("FieldValueRequired", path_text(path), text))
        found += _keyless(inner, item, (path, at))
    return found


def _conflict_error(clashes: list[tuple[Record, Fields]]) -> StatusError:
    causes = []
    groups = []
    for record, fields in sorted(clashes, key=lambda c: c[0].manager):
        found = sets.shown(fields)
        groups.append((record.text(), found))
        causes += [{"reason": "FieldManagerConflict", "message": f"conflict with {record.text()}", "field": path} for path in found]
    count = len(causes)
    if count == 1:
        text = f"conflict with {groups[0][0]}: {groups[0][1][0]}"
    else:
        text = "\n".join(f"conflicts with {who}:\n" + "\n".join(f"- {path}" for path in found) for who, found in groups)
    message = f"Apply failed with {count} conflict{'' if count == 1 else 's'}: {text}"
    return StatusError(409, "Conflict", message, {"causes": causes})
