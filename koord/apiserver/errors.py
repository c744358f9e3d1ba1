"""API errors as Kubernetes `Status` objects: the same codes, reasons, messages and details as kube-apiserver gives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson


class StatusError(Exception):
    """An HTTP error with a Kubernetes reason. `details` is the wire form of `StatusDetails`."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        # the Status' own list metadata, such as a continue token
        self.metadata: dict[str, Any] = {}

    def status(self) -> dict[str, Any]:
        """The `Status` object, as a dict."""
        said = {"reason": self.reason, "details": self.details}
        return {
            **{"kind": "Status", "apiVersion": "v1", "metadata": self.metadata, "status": "Failure", "message": self.message},
            **{key: value for key, value in said.items() if value},
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class Cause:
    """One field error. `kind` is the long reason of the API ("FieldValueInvalid", …)."""

    kind: str
    field: str
    message: str

    def text(self) -> str:
        return f"{self.field}: {self.message}"

    def wire(self) -> dict[str, str]:
        return {"reason": self.kind, "message": self.message, "field": self.field}


def _show(value: object) -> str:
    """A value as kube-apiserver prints it inside a field error."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if number else orjson.dumps(value).decode()


def required(field: str, detail: str = "") -> Cause:
    return Cause("FieldValueRequired", field, f"Required value: {detail}" if detail else "Required value")


def invalid_value(field: str, value: object, detail: str) -> Cause:
    return Cause("FieldValueInvalid", field, f"Invalid value: {_show(value)}: {detail}")


def type_invalid(field: str, value: object, detail: str) -> Cause:
    return Cause("FieldValueTypeInvalid", field, f"Invalid value: {_show(value)}: {detail}")


def not_supported(field: str, value: object, accepted: tuple[str, ...] | list[str]) -> Cause:
    listed = ", ".join(f'"{a}"' for a in accepted)
    return Cause("FieldValueNotSupported", field, f"Unsupported value: {_show(value)}: supported values: {listed}")


def duplicate(field: str, value: object) -> Cause:
    return Cause("FieldValueDuplicate", field, f"Duplicate value: {_show(value)}")


def too_many(field: str, found: int, most: int) -> Cause:
    return Cause("FieldValueTooMany", field, f"Too many: {found}: must have at most {most} items")


def too_long(field: str, most: int) -> Cause:
    return Cause("FieldValueTooLong", field, f"Too long: may not be more than {most} bytes")


def field_forbidden(field: str, detail: str) -> Cause:
    return Cause("FieldValueForbidden", field, f"Forbidden: {detail}")


def _qualified(word: str, group: str) -> str:
    return f"{word}.{group}" if group else word


def _details(name: str, group: str, kind: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value} | more


def not_found(plural: str, group: str, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{_qualified(plural, group)} "{name}" not found', _details(name, group, plural))


ALREADY_EXISTS = "AlreadyExists"


def already_exists(plural: str, group: str, name: str) -> StatusError:
    return StatusError(409, ALREADY_EXISTS, f'{_qualified(plural, group)} "{name}" already exists', _details(name, group, plural))


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(name, group, plural))


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def invalid(kind: str, group: str, name: str, causes: list[Cause]) -> StatusError:
    """422 with one cause a field error; the message lists them as kube-apiserver does."""
    shown = list(dict.fromkeys(c.text() for c in causes))
    text = shown[0] if len(shown) == 1 else "[" + ", ".join(shown) + "]"
    message = f'{_qualified(kind, group)} "{name}" is invalid: {text}'
    return StatusError(422, "Invalid", message, _details(name, group, kind, causes=[c.wire() for c in causes]))


def forbidden(plural: str, group: str, name: str, why: str, details: dict[str, Any] | None = None) -> StatusError:
    target = f'{_qualified(plural, group)} "{name}"' if name else _qualified(plural, group)
    return StatusError(
        403, "Forbidden", f"{target} is forbidden: {why}" if plural else f"forbidden: {why}", details or _details(name, group, plural)
    )


def internal(message: str) -> StatusError:
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


# (message): `plain_error` carries no reason, as some of kube-apiserver's own errors
plain_error = partial(StatusError, 500, "")
bad_request = partial(StatusError, 400, "BadRequest")
expired = partial(StatusError, 410, "Expired")
path_not_found = partial(StatusError, 404, "NotFound", "the server could not find the requested resource", {})
method_not_allowed = partial(StatusError, 405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})
unauthorized = partial(StatusError, 401, "Unauthorized", "Unauthorized")


def too_large(why: str) -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: {why}")


def unsupported_media_type(accepted: tuple[str, ...]) -> StatusError:
    listed = ", ".join(accepted)
    message = f"the body of the request was in an unknown format - accepted media types include: {listed}"
    return StatusError(415, "UnsupportedMediaType", message)


def not_acceptable(accepted: tuple[str, ...]) -> StatusError:
    message = f"only the following media types are accepted: {', '.join(accepted)}"
    return StatusError(406, "NotAcceptable", message)


def too_large_resource_version(wanted: int, current: int) -> StatusError:
    """The server is behind the version that the client asks for; the client should retry in a second."""
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}], "retryAfterSeconds": 1}
    return StatusError(504, "Timeout", f"Timeout: Too large resource version: {wanted}, current: {current}", details)
