"""AdmissionReview in and out: decoding what the API server sends, encoding what it gets back; pure (MGR-WH-01)."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from koord.api.objects import ElasticQuota, Node, Object, Pod, Reservation, convert

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")


_KINDS: dict[type, str] = {dict: "an object", str: "a string", list: "a list"}
_REASONS = {403: "Denied", 409: "AlreadyExists", 500: "InternalError"}


class BadReview(ValueError):
    """A body that is no AdmissionReview; answered with 400."""


class Refusal(Exception):
    """A request that is not admitted. `code` goes into the answer's status; 0 is the webhook's own (400 validating, 500 mutating)."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class Request:
    """One admission request. `object` and `old_object` are plain dicts, None when the operation has none."""

    uid: str
    operation: str
    group: str
    resource: str
    sub_resource: str
    namespace: str
    name: str
    object: dict[str, Any] | None
    old_object: dict[str, Any] | None
    username: str = ""
    groups: tuple[str, ...] = ()
    dry_run: bool = False
    api_version: str = VERSIONS[0]
    notes: list[str] = field(default_factory=list)
    """What handlers found worth telling, for the decision record."""
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What the API server knows of the user beside the name: of a pod's token the node, among others."""
    warnings: list[str] = field(default_factory=list)
    """What the user is told although the request is admitted."""


@dataclass(slots=True)
class Answer:
    """What the handler decided. `patch` is a list of JSON patch operations, empty for no change."""

    allowed: bool = True
    code: int = 200
    message: str = ""
    patch: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def decode(body: bytes) -> Request:
    """The request of an AdmissionReview. Raises BadReview naming what is missing or of the wrong type."""
    if not body:
        raise BadReview("the body is empty; an AdmissionReview is expected")
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReview(f"the body is not valid JSON: {error}") from None
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise BadReview("the body is no AdmissionReview")
    version = review.get("apiVersion")
    if version not in VERSIONS:
        raise BadReview(f"apiVersion {version!r} is not known; accepted: {', '.join(VERSIONS)}")
    request = review.get("request")
    if not isinstance(request, dict):
        raise BadReview("request is missing")
    resource = _member(request, "resource", dict, {})
    user = _member(request, "userInfo", dict, {})
    operation = _member(request, "operation", str, "")
    if operation not in ("CREATE", "UPDATE", "DELETE", "CONNECT"):
        raise BadReview(f"request.operation {operation!r} is not known; accepted: CREATE, UPDATE, DELETE, CONNECT")
    return Request(
        uid=_member(request, "uid", str, ""),
        operation=operation,
        group=_member(resource, "group", str, ""),
        resource=_member(resource, "resource", str, ""),
        sub_resource=_member(request, "subResource", str, ""),
        namespace=_member(request, "namespace", str, ""),
        name=_member(request, "name", str, ""),
        object=_object(request, "object"),
        old_object=_object(request, "oldObject"),
        username=_member(user, "username", str, ""),
        groups=_texts(user, "groups"),
        dry_run=bool(request.get("dryRun")),
        api_version=version,
        extra=_extra(user),
    )


def _member(parent: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = parent.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise BadReview(f"request.{name} must be {_KINDS[kind]}")
    return value


def _texts(parent: dict[str, Any], name: str) -> tuple[str, ...]:
    texts: list[Any] = _member(parent, name, list, [])
    if not all(isinstance(text, str) for text in texts):
        raise BadReview(f"request.userInfo.{name} must be a list of strings")
    return tuple(texts)


def _extra(user: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    extra = _member(user, "extra", dict, {})
    if not all(isinstance(values, list) and all(isinstance(value, str) for value in values) for values in extra.values()):
        raise BadReview("request.userInfo.extra must hold lists of strings")
    return {key: tuple(values) for key, values in extra.items()}


def _object(request: dict[str, Any], name: str) -> dict[str, Any] | None:
    value: dict[str, Any] | None = _member(request, name, dict, None)
    if value is None:
        return None
    metadata = value.get("metadata")
    if metadata is None:
        value.pop("metadata", None)  # null says nothing
    if metadata is not None and not isinstance(metadata, dict):
        raise BadReview(f"request.{name}.metadata must be an object")
    for key in ("labels", "annotations"):
        texts = (metadata or {}).get(key)
        if texts is not None and not (isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values())):
            raise BadReview(f"request.{name}.metadata.{key} must be an object of strings")
    return value


_PROJECTIONS: dict[str, type[Object]] = {"pods": Pod, "elasticquotas": ElasticQuota, "nodes": Node, "reservations": Reservation}


def null_members(request: Request) -> str:
    """The place of a container that is no object, "" if there is none: a null there passes for an empty struct."""
    for obj in (request.object, request.old_object) if request.resource == "pods" else ():
        spec = obj.get("spec") if obj is not None else None
        if not isinstance(spec, dict):
            continue
        for member in ("containers", "initContainers"):
            found = spec.get(member)
            for index, item in enumerate(found if isinstance(found, list) else ()):
                if not isinstance(item, dict):
                    return f"spec.{member}[{index}]: must be an object"
    return ""


def malformed(request: Request) -> str:
    """What is wrong with the shape of a request's objects, with the place; "" when they can be read."""
    projection = _PROJECTIONS.get(request.resource)
    for obj in (request.object, request.old_object):
        if projection is None or obj is None:
            continue
        try:
            convert(obj, projection)
        except msgspec.ValidationError as error:
            return f"the object cannot be read: {error}"
    return ""


def encode(answer: Answer, *, uid: str, api_version: str = VERSIONS[0]) -> bytes:
    """The AdmissionReview to send back, in the version that was asked in."""
    response: dict[str, Any] = {"uid": uid, "allowed": answer.allowed}
    if answer.message or not answer.allowed:
        status: dict[str, Any] = {"metadata": {}, "code": answer.code, "message": answer.message}
        if not answer.allowed:
            status |= {
                "status": "Failure",
                "reason": _REASONS.get(answer.code, "Invalid"),
            }
        response["status"] = status
    if answer.allowed and answer.patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(answer.patch)).decode()}
    if answer.warnings:
        response["warnings"] = answer.warnings
    return orjson.dumps({"apiVersion": api_version, "kind": "AdmissionReview", "response": response})
