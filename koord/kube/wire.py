"""What lists and watches look like on the wire, as far as mirroring them needs to know."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from koord.api.objects import RawList, decoder
from koord.kube import errors

T = TypeVar("T")

_DEEPEST = 12_000  # API servers take 10,000 levels
INITIAL_END = "k8s.io/initial-events-end"  # annotation of the bookmark that ends a streamed list


class Meta(msgspec.Struct, rename={"resource_version": "resourceVersion"}, gc=False):
    """What identifies an object and its version."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    uid: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` of a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Head(msgspec.Struct, gc=False):
    """An object without what only its projections read."""

    metadata: Meta = msgspec.field(default_factory=Meta)


class Event(msgspec.Struct, gc=False):
    """A line of a watch."""

    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


def deeply(read: Callable[[bytes | msgspec.Raw], T]) -> Callable[[bytes | msgspec.Raw], T]:
    """`read`, also of what is nested as deeply as API servers take it: one such object must not keep all others from being read."""

    def read_deeply(data: bytes | msgspec.Raw) -> T:
        try:
            return read(data)
        except RecursionError:
            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(limit + _DEEPEST)
            try:
                return read(data)
            except RecursionError as error:
                raise msgspec.DecodeError(str(error)) from None
            finally:
                sys.setrecursionlimit(limit)

    return read_deeply


decode_event = deeply(msgspec.json.Decoder(Event).decode)
decode_head = deeply(msgspec.json.Decoder(Head).decode)
decode_list = deeply(decoder(RawList))


class BrokenStream(errors.ApiError):
    """A watch sent what is no event."""

    def __init__(self, detail: str) -> None:
        super().__init__(0, "BrokenStream", detail)


class WentBack(errors.ApiError):
    """A watch told of a version from before those that it was opened at: another server answers, or the data were restored."""

    def __init__(self, detail: str) -> None:
        super().__init__(0, "WentBack", detail)


def read_event(line: bytes) -> Event:
    """A line of a watch. Raises BrokenStream, and the ApiError of an ERROR event."""
    try:
        event = decode_event(line)
    except msgspec.DecodeError as error:
        raise BrokenStream(f"a line of the watch cannot be read: {error}") from error
    if event.type == "ERROR":
        status = msgspec.json.decode(event.object)
        raise errors.from_status(status if isinstance(status, dict) else {})
    return event


def read_list(page: bytes) -> RawList:
    """A page of a list. Raises BrokenStream."""
    try:
        content: RawList = decode_list(page)
    except msgspec.DecodeError as error:
        raise BrokenStream(f"the list cannot be read: {error}") from error
    return content


def ends_initial(event: Event) -> bool:
    """Whether an event is the bookmark behind the last object of a streamed list."""
    return event.type == "BOOKMARK" and INITIAL_END.encode() in bytes(event.object)


def older(version: str, than: str) -> bool:
    """Whether a version is from before another; those that are no numbers cannot be compared."""
    return version.isdigit() and than.isdigit() and int(version) < int(than)


def too_large(error: errors.ApiError) -> bool:
    """Whether the server does not know the version yet (or any more: its data were restored)."""
    causes: Any = error.details.get("causes") or ()
    return any(isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes)


def must_list(error: errors.ApiError) -> bool:
    """Whether watching from the last version makes no sense any more."""
    return isinstance(error, (errors.Gone, errors.NotFound, errors.BadRequest, WentBack)) or too_large(error)
