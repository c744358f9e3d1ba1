"""PATCH: JSON patch, merge patch, strategic merge patch; server-side apply is in `ssa/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from koord import seams
from koord.apiserver.errors import STALE, StatusError, bad_request, conflict, invalid, invalid_value, plain_error, unsupported_media_type
from koord.apiserver.rest.context import check_identity, check_seen, check_version
from koord.apiserver.rest.write import commit, decode, stored_form, undecodable
from koord.apiserver.ssa.apply import apply as server_side_apply
from koord.apiserver.store import Entry, Obj
from koord.kube.errors import PatchError
from koord.kube.patch import apply_json_patch, apply_merge_patch
from koord.kube.strategic import apply_strategic_patch

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.context import Options


JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_ALL = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
_CUSTOM = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)
_RETRIES = 5
_MAX_OPERATIONS = 10_000
_QUICK_YAML = 64 * 1024  # bytes, some 50 ms


async def parse(resource: Resource, content_type: str, body: bytes) -> Any:
    """The patch document. Raises 415 for an unknown type, 400 for what is no JSON (or YAML, for apply)."""
    accepted = _CUSTOM if resource.custom else _ALL
    if content_type not in accepted:
        raise unsupported_media_type(accepted)
    if content_type == APPLY_PATCH:
        return await parse_any_yaml(body)
    try:
        patch = orjson.loads(body)
    except orjson.JSONDecodeError as err:
        raise bad_request(f"error decoding patch: {err}") from err
    if content_type == JSON_PATCH:
        if not isinstance(patch, list):
            raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
        if len(patch) > _MAX_OPERATIONS:
            message = f"The allowed maximum operations in a JSON patch is {_MAX_OPERATIONS}, got {len(patch)}"
            raise StatusError(413, "RequestEntityTooLarge", message)
    elif not isinstance(patch, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}")
    return patch


def parse_yaml(body: bytes) -> Any:
    """YAML, of which JSON is a part. Raises 400."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        import yaml  # only what is written by hand needs it

        from koord.config import plainyaml

        try:
            loaded = plainyaml.load(body)
        except yaml.YAMLError as err:
            raise bad_request(f"error decoding YAML: {err}") from err
        return orjson.loads(orjson.dumps(loaded))  # what aliases share is changed in one place only


async def parse_any_yaml(body: bytes) -> Any:
    """`parse_yaml`; what takes long is read in a thread, and leaves the loop to others."""
    return parse_yaml(body) if len(body) <= _QUICK_YAML else await seams.to_thread(parse_yaml, body)


def apply(resource: Resource, obj: Obj, content_type: str, patch: Any) -> Obj:
    """The object after the patch. `obj` may be reused. Raises StatusError as kube-apiserver does."""
    name = obj["metadata"].get("name") or ""
    try:
        if content_type == JSON_PATCH:
            out = apply_json_patch(obj, patch, lenient=True)
        elif content_type == MERGE_PATCH:
            out = apply_merge_patch(obj, patch)
        else:  # what kind it is has been said by the path
            named = {key: obj[key] for key in ("kind", "apiVersion") if key in obj}
            out = {**apply_strategic_patch(obj, patch, resource.kind), **named}
    except PatchError as err:
        if content_type == JSON_PATCH:
            raise StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {}) from err
        raise plain_error(str(err)) from err
    if not isinstance(out, dict):
        raise invalid(resource.kind, resource.group, name, [])
    if not resource.custom and not out.get("apiVersion"):
        raise bad_request("the patch leaves no apiVersion in the object")
    out.setdefault("kind", resource.kind)
    out.setdefault("apiVersion", resource.api_version)
    return out


def _decode_patched(resource: Resource, obj: Obj, namespace: str, name: str, options: Options) -> None:
    """Decode what a patch made. What is no object of its kind any more is the patch's fault, so a 422."""
    shown = orjson.dumps(obj).decode()
    try:
        if obj.get("kind") != resource.kind or obj.get("apiVersion") != resource.api_version:
            raise undecodable(resource, f"the patch makes it a {obj.get('kind')} of {obj.get('apiVersion')}")
        decode(resource, obj, options)
    except StatusError as err:
        if err.code != 400:
            raise
        why = err.message.partition(f" cannot be handled as a {resource.kind}: ")[2] or err.message
        raise invalid("", "", "", [invalid_value("patch", shown, why)]) from err
    check_identity(resource, obj, namespace, name)


async def patch_object(
    core: Core, resource: Resource, namespace: str, name: str, content_type: str, patch: Any, options: Options, subresource: str = ""
) -> tuple[Entry, bool]:
    """Apply a patch to the stored object, again when it changes meanwhile. Returns the entry and whether it was created."""
    if content_type == APPLY_PATCH:
        return await server_side_apply(core, resource, namespace, name, patch, options, subresource)
    for _ in range(_RETRIES):
        old = core.entry(resource, namespace, name)
        obj = apply(resource, resource.obj(old), content_type, patch)
        _decode_patched(resource, obj, namespace, name, options)
        check_version(resource, name, obj["metadata"], old.obj["metadata"], patched=True)
        check_seen(resource, name, obj["metadata"])  # it is gone where the patch takes it off
        entry = await commit(core, resource, old, stored_form(resource, obj), options, subresource)
        if entry is not None:
            return entry, False
    raise conflict(resource.plural, resource.group, name, STALE)
