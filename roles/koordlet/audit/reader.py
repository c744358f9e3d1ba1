"""`GET /events`: the audit log backwards, page by page (KLO-AUD-02)."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import orjson

from koord import seams
from koord.process.requests import Request, Response
from roles.koordlet.audit.log import log_files

_BLOCK = 1 << 16
IDLE_SECONDS = 600.0


class BadRequestError(ValueError):
    """The query cannot be served; HTTP 400."""


class TokenGoneError(LookupError):
    """The page token is unknown or has expired; HTTP 409."""


def lines_backwards(path: str) -> Iterator[bytes]:
    """Lines of a file, last first, of any length. A file that vanishes meanwhile ends the iteration."""
    try:
        with open(path, "rb") as file:
            position = file.seek(0, os.SEEK_END)
            tail = b""
            while position > 0:
                step = min(_BLOCK, position)
                position -= step
                file.seek(position)
                tail = file.read(step) + tail
                head, *whole = tail.split(b"\n")
                yield from (line for line in reversed(whole) if line)
                tail = head
            if tail:
                yield tail
    except OSError:
        return


class Reader:
    """One client's way through the log, newest first, across rotated files."""

    def __init__(self, directory: str) -> None:
        # opened files follow a rename, so that a rotation between two pages neither repeats nor skips events
        self._lines = (line for path in reversed(log_files(directory)) for line in lines_backwards(path))
        self._ahead: list[dict[str, Any]] = []
        self._at_end = False

    def _next(self) -> dict[str, Any] | None:
        for line in self._lines:
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, dict):
                return event
        self._at_end = True
        return None

    def page(self, size: int) -> tuple[list[dict[str, Any]], bool]:
        """Up to ``size`` events, and whether more follow."""
        events, self._ahead = self._ahead[:size], self._ahead[size:]
        while len(events) < size and not self._at_end:
            event = self._next()
            if event is not None:
                events.append(event)
        if not self._ahead and not self._at_end:
            event = self._next()
            if event is not None:
                self._ahead.append(event)
        return events, bool(self._ahead)


class Readers:
    """Open readers by token; the oldest is closed when there are too many, idle ones expire."""

    def __init__(self, directory: str, *, max_readers: int = 4, max_events: int = 2048, default_events: int = 256) -> None:
        self._directory = directory
        self._max_readers = max(max_readers, 1)
        self._max_events = max_events
        self._default_events = min(default_events, max_events)
        self._open: OrderedDict[str, tuple[float, Reader]] = OrderedDict()

    def size_of(self, text: str | None) -> int:
        """The ``size`` parameter: not a number means the default; negative or above the limit is :class:`BadRequestError`."""
        try:
            size = int(text) if text else self._default_events
        except ValueError:
            return self._default_events
        if size < 0 or size > self._max_events:
            raise BadRequestError(f"size {size} is not within 0..{self._max_events}")
        return size or self._default_events

    def page(self, token: str | None, size: int, mono: float) -> tuple[list[dict[str, Any]], str]:
        """Events and the token of the next page ("" at the end). Raises :class:`TokenGoneError`."""
        self.expire(mono)
        if token:
            if token not in self._open:
                raise TokenGoneError(f"page token {token[:64]!r} is unknown or has expired; start again without one")
            _, reader = self._open[token]
        else:
            token, reader = seams.uid(), Reader(self._directory)
            while len(self._open) >= self._max_readers:
                self._open.popitem(last=False)
        events, more = reader.page(size)
        if more:
            # a refreshed reader keeps its place in the order: the oldest opened one goes first
            self._open[token] = (mono, reader)
            return events, token
        self._open.pop(token, None)
        return events, ""

    def expire(self, mono: float) -> None:
        """Close readers that were not used for ten minutes."""
        for token in [t for t, (used, _) in self._open.items() if mono - used > IDLE_SECONDS]:
            del self._open[token]


def _wants_json(accept: str) -> bool:
    """Whether JSON is among the accepted types; ``*/*`` alone gets text lines, as a terminal expects them."""
    return any(part.split(";")[0].strip() == "application/json" for part in accept.split(","))


class EventsHandler:
    """Serves events newest first; ``readers`` None means that auditing is off: an empty 200."""

    def __init__(self, readers: Readers | None) -> None:
        self._readers = readers

    async def __call__(self, request: Request) -> Response:
        if self._readers is None:
            return Response(text="")
        query = request.query
        try:
            size = self._readers.size_of(query.get("size"))
            events, token = self._readers.page(query.get("pageToken"), size, seams.monotonic())
        except BadRequestError as error:
            return Response(status=400, text=f"{error}\n")
        except TokenGoneError as error:
            return Response(status=409, text=f"{error}\n")
        if _wants_json(request.headers.get("Accept", "")):
            body = orjson.dumps({"NextPageToken": token, "Events": events})
            return Response(body=body, content_type="application/json")
        headers = {"Next-Page-Token": token} if token else {}
        text = b"".join(orjson.dumps(e) + b"\n" for e in events)
        return Response(body=text, content_type="text/plain", charset="utf-8", headers=headers)
