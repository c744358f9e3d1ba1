"""What a request asks for beside its object."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.apiserver.errors import STALE, Cause, bad_request, conflict, field_forbidden, invalid, invalid_value, plain_error
from koord.apiserver.schema.builtin import now
from koord.apiserver.store import Obj
from koord.apiserver.users import ADMIN, User

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource


def flag(query: dict[str, str], key: str) -> bool:
    """A boolean parameter: given and neither "false" nor "0", as kube-apiserver reads it."""
    return key in query and query[key].lower() not in ("false", "0")


def whole_number(query: dict[str, str], key: str) -> int:
    """A number of a query, 0 for none. Raises 400."""
    text = query.get(key) or "0"
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text) is None:
        raise bad_request(f"{key}: {text[:40]!r} is not a number of at most 18 digits")
    return int(text)


@dataclass(slots=True)
class Options:
    """Options of a write."""

    user: User = field(default_factory=lambda: ADMIN)
    dry_run: bool = False
    # "Strict", "Warn" or "Ignore"
    field_validation: str = "Warn"
    field_manager: str = ""
    user_agent: str = ""
    # server-side apply: take fields over from other managers
    force: bool | None = None
    # the managers of an object that an apply creates
    applied: list[Any] | None = None
    # what else the user must be allowed, by its verb, on what the request names; raises 403
    authorize: Callable[[str], None] = lambda verb: None
    # as they were given, for webhooks and policies
    wire: Obj = field(default_factory=dict)
    # fields that the body has more than once
    twice: list[str] = field(default_factory=list)
    # texts for `Warning` headers
    warnings: list[str] = field(default_factory=list)

    def manager(self) -> str:
        """The field manager: as given, else the user agent up to its first slash, as kube-apiserver does."""
        return self.field_manager or self.user_agent.split("/", 1)[0][:128] or "unknown"


@dataclass(slots=True)
class DeleteOptions:
    """The body of a DELETE."""

    grace_period_seconds: int | None = None
    # "Background", "Foreground", "Orphan" or "" for the default of the resource
    propagation: str = ""
    precondition_uid: str = ""
    precondition_rv: str = ""
    dry_run: bool = False
    wire: Obj = field(default_factory=dict)


# no vowels and no look-alikes, as the names of Kubernetes' own generator
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_BASE = 58
_IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def generated_name(base: str) -> str:
    """`base` (cut to fit) with a suffix of five random characters."""
    noise = int(seams.token_hex(5), 16)
    suffix = ""
    for _ in range(5):
        noise, index = divmod(noise, len(_ALPHABET))
        suffix += _ALPHABET[index]
    return base[:_GENERATED_BASE] + suffix


def check_identity(resource: Resource, obj: Obj, namespace: str, name: str) -> None:
    """The object must be of the resource's kind and agree with the path. Fills in what the object leaves out."""
    kind, api_version = obj.get("kind"), obj.get("apiVersion")
    if not kind and resource.custom:
        raise bad_request("Object 'Kind' is missing in the request body")
    if resource.custom and kind != resource.kind and api_version == resource.api_version:
        raise invalid(str(kind), resource.group, name, [invalid_value("kind", kind, f"must be {resource.kind}")])
    if not resource.custom:  # what a built-in object leaves out is known from the path
        kind, api_version = kind or resource.kind, api_version or resource.api_version
    if kind != resource.kind or api_version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({api_version or ''}, Kind={kind or ''}) does not match the expected API version "
            f"({resource.api_version}, Kind={resource.kind})"
        )
    meta = obj.get("metadata")
    if meta is None:
        meta = obj["metadata"] = {}
    elif type(meta) is not dict:
        raise bad_request("metadata: must be an object")
    check_namespace(resource, meta, namespace)
    if name:
        check_name(meta, name)


def check_name(meta: Obj, name: str) -> None:
    """The object must have the name that the path says."""
    given = meta.get("name")
    if not given:
        raise bad_request(f"the name of the object ({name} based on URL) was undeterminable: name must be provided")
    if given != name:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")


def check_namespace(resource: Resource, meta: Obj, namespace: str) -> None:
    """The object must be of the request's namespace. Fills it in where it is left out, and drops it of what is in none."""
    if not resource.namespaced:
        meta.pop("namespace", None)
        return
    if meta.get("namespace") and meta["namespace"] != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    meta["namespace"] = namespace


def prepare_create(resource: Resource, meta: Obj) -> None:
    """Set what belongs to the server."""
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "generation"):
        meta.pop(key, None)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = generated_name(meta["generateName"])
    meta["uid"] = seams.uid()
    meta["creationTimestamp"] = now()
    if resource.has_generation and "z" not in resource.flags:
        meta["generation"] = 1


def check_preconditions(resource: Resource, name: str, stored: Obj, uid: str, rv: str) -> None:
    """409 when the stored metadata is not what the caller wants to delete."""
    for what, wanted, known, happened in (
        ("UID", uid, stored["uid"], "deleted and then recreated"),
        ("ResourceVersion", rv, stored["resourceVersion"], "modified"),
    ):
        if wanted and wanted != known:
            why = f"the {what} in the precondition ({wanted}) does not match the {what} in record ({known}). "
            raise conflict(resource.kind, resource.group, name, f"{why}The object might have been {happened}")


def expected_version(meta: Obj) -> str:
    """The resourceVersion that an update insists on; "" and "0" insist on none. Raises 500 for what is no number, like kube-apiserver."""
    given = meta.get("resourceVersion") or ""
    if given and not (given.isascii() and given.isdecimal()):
        raise plain_error(f'strconv.ParseUint: parsing "{given}": invalid syntax')
    return given if given.strip("0") else ""


def check_version(resource: Resource, name: str, meta: Obj, stored: Obj, *, patched: bool = False) -> None:
    """Optimistic concurrency of an update: the resourceVersion that the client saw must be the stored one.

    Another uid is a PUT to another object of the same name; in a patch it is the change of a field that may not change.
    """
    given = expected_version(meta)
    if given and given != stored["resourceVersion"]:
        raise conflict(resource.plural, resource.group, name, STALE)
    if not patched:
        check_stored(resource, name, meta.get("uid") or "", "", stored)


def check_seen(resource: Resource, name: str, meta: Obj) -> bool:
    """Whether the writer says which version it has seen. Raises 422 where it must."""
    seen = bool(expected_version(meta))
    if not seen and not resource.unconditional_update:
        cause = invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
        raise invalid(resource.plural, resource.group, name, [cause])
    return seen


def check_stored(resource: Resource, name: str, uid: str, version: str, stored: Obj) -> None:
    """409, in the words of the storage, when the stored object is not the one that was meant."""
    for what, wanted, known in (("UID", uid, stored["uid"]), ("ResourceVersion", version, stored["resourceVersion"])):
        if wanted and wanted != known:
            place = f"{stored['namespace']}/{name}" if "namespace" in stored else name
            detail = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {known}"
            key = f"/registry/{resource.plural}/{place}"
            why = f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {detail}"
            raise conflict(resource.plural, resource.group, name, why)


def carry_over(key: str, old: Obj, new: Obj) -> None:
    """Give `new` the member of `old`, or none where `old` has none."""
    if key in old:
        new[key] = old[key]
    else:
        new.pop(key, None)


def prepare_update(meta: Obj, old: Obj, causes: list[Cause]) -> None:
    """Carry over what an update cannot change; changes of immutable fields become causes."""
    meta.pop("selfLink", None)
    for key in _IMMUTABLE:
        before, after = old.get(key), meta.get(key)
        if after is None:
            if before is not None:
                meta[key] = before
        elif key == "creationTimestamp":
            meta[key] = before
        elif after != before:
            causes.append(invalid_value(f"metadata.{key}", after, "field is immutable"))
    if "generateName" in old:
        meta.setdefault("generateName", old["generateName"])
    carry_over("generation", old, meta)
    meta["resourceVersion"] = old["resourceVersion"]
    if old.get("deletionTimestamp"):
        added = sorted(set(meta.get("finalizers") or ()) - set(old.get("finalizers") or ()))
        if added:
            listed = "[]string{" + ", ".join(f'"{f}"' for f in added) + "}"
            text = f"no new finalizers can be added if the object is being deleted, found new finalizers {listed}"
            causes.append(field_forbidden("metadata.finalizers", text))
