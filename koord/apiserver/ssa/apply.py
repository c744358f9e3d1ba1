"""Server-side apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from koord.apiserver.errors import STALE, Cause, StatusError, bad_request, conflict, invalid, not_found, plain_error, required
from koord.apiserver.rest.context import check_identity, check_version
from koord.apiserver.rest.write import commit, create, created_meanwhile, decode, stored_form
from koord.apiserver.schema.builtin import Path_, clean, now, path_text, schemas
from koord.apiserver.ssa import fields as sets
from koord.apiserver.ssa.fields import APPLY, UPDATE, Fields, Record, Shape
from koord.apiserver.ssa.manager import strip
from koord.apiserver.store import Entry, Obj

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.context import Options
    from koord.apiserver.schema.structural import Structural

_RETRIES = 5
BEFORE_FIRST_APPLY = "before-first-apply"


async def apply(
    core: Core, resource: Resource, namespace: str, name: str, patch: Any, options: Options, subresource: str
) -> tuple[Entry, bool]:
    """Server-side apply. Returns the entry and whether it was created. Raises 409 with one cause a conflict."""
    _check(patch, options)
    patch.setdefault("metadata", {"name": name})
    check_identity(resource, patch, namespace, name)
    frozen = orjson.dumps(patch)
    for _ in range(_RETRIES):
        entry = await _apply_once(core, resource, namespace, name, orjson.loads(frozen), options, subresource)
        if entry is not None:
            return entry
    raise conflict(resource.plural, resource.group, name, STALE)


def check_manager(options: Options) -> None:
    """Raise 422 when nobody says who applies."""
    if not options.field_manager:
        cause = required("fieldManager", "is required for apply patch")
        raise invalid("PatchOptions", "meta.k8s.io", "", [cause])


def _check(patch: Any, options: Options) -> None:
    check_manager(options)
    if not isinstance(patch, dict):
        raise bad_request("an apply patch must be an object")
    if not patch.get("kind") or not patch.get("apiVersion"):
        raise bad_request("Object 'Kind' and 'apiVersion' must be set in an apply patch")
    if isinstance(patch.get("metadata"), dict) and patch["metadata"].get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")


async def _apply_once(
    core: Core, resource: Resource, namespace: str, name: str, patch: Obj, options: Options, subresource: str
) -> tuple[Entry, bool] | None:
    shape = core.managed.shape(resource)
    bucket = core.store.bucket(resource.bucket)
    old = bucket.get(namespace, name)
    # what is owned is what was written: decoding leaves out empty maps and lists, which are owned as well
    wanted = orjson.loads(orjson.dumps(_part(patch, resource, subresource)))
    decode_patch(resource, patch, shape)
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
        patch["metadata"].pop("resourceVersion", None)  # as of a PUT that creates
        options.applied = [mine]
        try:
            return await create(core, resource, namespace, patch, options, name), True
        except StatusError as err:
            if not created_meanwhile(err, bucket, namespace, name):
                raise
            return None  # this is applied onto that
        finally:
            options.applied = None
    live = resource.obj(old)
    check_version(resource, name, patch["metadata"], live["metadata"], patched=True)
    managed = live["metadata"].get("managedFields") or ()
    current = sets.read(managed)
    if not managed:
        fields = strip(sets.members(live, shape, whole=True))
        current = [Record(BEFORE_FIRST_APPLY, UPDATE, resource.api_version, "", fields, now())]
    merged = sets.merge(live, patch, shape)
    changed, _ = sets.compare(live, merged, shape)
    others = _settle(strip(changed), current, mine, options)
    previous = next((r for r in current if r.key == mine.key), None)
    if previous is not None:
        merged = _pruned(merged, previous.fields, owned, others, shape)
        if previous.fields == owned and previous.api_version == mine.api_version:
            mine.time = previous.time
    merged = orjson.loads(orjson.dumps(merged))
    merged["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
    decode(resource, merged, options, applied=True)
    merged = stored_form(resource, merged)
    sets.write(merged["metadata"], [*others, mine])
    entry = await commit(core, resource, old, merged, options, subresource, applied=True)
    return None if entry is None else (entry, False)


def _settle(changed: Fields, current: list[Record], mine: Record, options: Options) -> list[Record]:
    """The other managers after this apply. Raises 409 when it would change what they own, unless forced."""
    others = [r for r in current if r.key != mine.key]
    clashes = [(r, both) for r in others if (both := r.fields & changed)]
    if clashes and not options.force:
        raise conflict_error(clashes)
    for record, both in clashes:
        record.fields -= both
    return others


def _pruned(merged: Obj, previous: Fields, wanted: Fields, others: list[Record], shape: Shape) -> Obj:
    """Remove what this manager applied before and no longer does, unless somebody else owns it or what is in it.

    A struct of which nobody says anything any more goes with all that is in it: defaults are nobody's, and would stay.
    """
    owned = wanted.union(*(record.fields for record in others))
    gone = previous - owned
    if not gone:
        return merged
    out: Obj = sets.remove(merged, strip(sets.with_structs(gone, shape) - owned - sets.containers(owned)), shape)
    return out


def _part(patch: Obj, resource: Resource, subresource: str) -> Obj:
    """What an applied configuration says of the part that it goes to."""
    if subresource == "status":
        return {k: v for k, v in patch.items() if k in ("kind", "apiVersion", "metadata", "status")}
    return {k: v for k, v in patch.items() if k != "status" or not resource.status_subresource}


def decode_patch(resource: Resource, patch: Obj, shape: Shape) -> None:
    """Check and normalise an applied configuration without defaulting it."""
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
    if again := sets.twice(patch, shape):
        raise _untyped(resource, patch, again.removeprefix("."))
    wrong: list[Cause] = []
    if resource.structural is not None:
        # wrong types, items of a list of unique ones that come twice, and items without the keys that tell them apart; null is of any type
        resource.structural.validate({**patch, "metadata": {}}, None, wrong)
        wrong = [c for c in wrong if c.kind in ("FieldValueTypeInvalid", "FieldValueDuplicate") and not c.message.endswith(': "null"')]
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


def conflict_error(clashes: list[tuple[Record, Fields]]) -> StatusError:
    """409 for fields that others own: one cause a field."""
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
