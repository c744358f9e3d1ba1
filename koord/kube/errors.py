"""What the API server (or the way to it) refused, as exceptions that a caller can tell apart."""

from __future__ import annotations

from typing import Any

import orjson


class ApiError(Exception):
    """A request that failed.

    `status` is the HTTP status (0 when no answer came), `reason` the machine-readable word of the Status object
    (`NotFound`), `message` its text, `details` its details object ({} if none). `retry_after` is in seconds, None if
    the server did not ask for a pause. `answered`: the server itself said so in a Status object, and no proxy before it.
    """

    answered = False

    def __init__(
        self, status: int, reason: str = "", message: str = "", details: dict[str, Any] | None = None, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message or reason or f"HTTP status {status}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.retry_after = retry_after

    def __str__(self) -> str:
        what = self.message or "no message"
        return f"{what} ({self.reason or 'no reason'}, HTTP {self.status})" if self.status else what


class BadRequest(ApiError):
    """400: the server does not understand the request."""


class NotLeading(ApiError):
    """The write was not sent: this process does not hold its lease (any more)."""

    def __init__(self, what: str) -> None:
        super().__init__(0, "NotLeading", f"{what}: not sent, the lease is not held")


class Unauthorized(ApiError):
    """401: the credentials are missing, wrong or outdated."""

    def __str__(self) -> str:
        bare = self.message in ("", "Unauthorized")  # what kube-apiserver says helps nobody
        return "the credentials are not accepted, they may have expired (HTTP 401)" if bare else super().__str__()


class Forbidden(ApiError):
    """403: the credentials do not allow it, or an admission plugin refused it."""


class NotFound(ApiError):
    """404: no such object, or no such kind."""


class Conflict(ApiError):
    """409: the object has changed meanwhile (or, as AlreadyExists, is there)."""


class AlreadyExists(Conflict):
    """409 AlreadyExists: an object of this name is there."""


class Gone(ApiError):
    """410: the resource version is too old (list again)."""


class Invalid(ApiError):
    """422: the object does not validate; `details["causes"]` has one entry a field."""


class TooManyRequests(ApiError):
    """429: throttled, or an eviction that a disruption budget does not allow now."""


class ServerError(ApiError):
    """5xx: the server failed or is overloaded."""


class Unreachable(ApiError):
    """No answer: connection refused or lost, TLS failed, or the time was up. Whether a write took place is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


_BY_REASON: dict[str, type[ApiError]] = {"AlreadyExists": AlreadyExists, "Expired": Gone, "Gone": Gone}
_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def from_status(status: dict[str, Any], *, code: int = 0, retry_after: float | None = None) -> ApiError:
    """The error of a `Status` object (also the object of a watch's ERROR event)."""
    number = status.get("code")
    code = number if isinstance(number, int) and number else code
    reason, message, details = status.get("reason"), status.get("message"), status.get("details")
    reason = reason if isinstance(reason, str) else ""
    cls = _BY_REASON.get(reason) or _BY_STATUS.get(code) or (ServerError if code >= 500 else ApiError)
    error = cls(
        code,
        reason,
        message if isinstance(message, str) else "",
        details if isinstance(details, dict) else None,
        retry_after=retry_after,
    )
    error.answered = status.get("kind") == "Status"
    return error


def from_response(code: int, body: bytes, *, retry_after: float | None = None) -> ApiError:
    """The error of an HTTP answer; a body that is no Status object becomes the message (its first 300 characters)."""
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"message": body[:300].decode("utf-8", "replace").strip()}
    status = {**status, "code": code}
    return from_status(status, code=code, retry_after=retry_after)


class PatchError(ValueError):
    """A patch that cannot be applied: malformed, or it does not fit the document. The text says where and what is accepted."""


class PatchTestFailed(PatchError):
    """A JSON Patch `test` operation whose value differs from the document's."""
