"""Kubernetes events: queued, deduplicated, rate limited; never in the way of what they tell about."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from koord import seams
from koord.api.kinds import EVENTS
from koord.api.times import format_micro_time
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.ratelimit import Priority, TokenBucket
from koord.kube.references import ObjectRef, reference

log = logging.getLogger("koord.kube.events")

QUEUE = 5000  # events that wait for the server
WRITERS = 16  # events that are written at once: 1,000 a second with 10 ms an event, and some to spare
BURST = 25  # events of one object and reason at once …
QPS = 1.0 / 300.0  # … and then one in five minutes
SERIES_WINDOW = 600.0  # seconds within which an equal event counts up an earlier one
REMEMBERED = 4096  # objects and events whose history is kept
NOTE_LIMIT = 1024  # bytes of a note that the API accepts
ATTEMPTS = 3


@dataclass(slots=True)
class _Told:
    """An event that the server has."""

    name: str
    namespace: str
    count: int
    at: float


class _Event(NamedTuple):
    about: ObjectRef
    type: str
    reason: str
    note: str
    action: str
    time: float

    @property
    def key(self) -> tuple[str, ...]:
        about = self.about
        return (about.kind, about.namespace, about.name, about.uid, self.type, self.reason, self.note)


class _Line:
    """Events that wait, Warnings first. When it is full, a Warning takes the place of the oldest Normal."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._warnings: deque[_Event] = deque()
        self._normals: deque[_Event] = deque()

    def __len__(self) -> int:
        return len(self._warnings) + len(self._normals)

    def put(self, event: _Event) -> bool:
        """Append an event; False if one was dropped for want of room, this one or a Normal."""
        fits = len(self) < self._size
        urgent = event.type == "Warning"
        if not fits and urgent and self._normals:
            self._normals.popleft()
        elif not fits:
            return False
        (self._warnings if urgent else self._normals).append(event)
        return fits

    def take(self) -> _Event:
        """The next event. Raises IndexError if there is none."""
        return self._warnings.popleft() if self._warnings else self._normals.popleft()


class EventRecorder:
    """Writes events of one component.

    `event` only queues; up to 16 are written at once, Warnings before Normals. An event equal to one of the last ten minutes
    counts that one up (`series`); what is told of an object too often, for one reason, is limited; when too many wait, Normals are
    dropped first. What is dropped is counted by reason (`drops`). Call it on the event loop, and `stop` in the end.
    """

    def __init__(
        self,
        client: Client,
        component: str,
        host: str | None = None,
        *,
        clock: Callable[[], float] = seams.monotonic,
    ) -> None:
        self.client = client.ranked(Priority.BULK) if isinstance(client, Client) else client
        self.component = component
        self.host = host if host is not None else seams.hostname()
        self.drops: Counter[str] = Counter()
        self.sent = 0
        self._clock = clock
        self._line = _Line(QUEUE)
        self._busy: dict[tuple[str, ...], deque[_Event]] = {}
        self._writers: set[asyncio.Task[None]] = set()
        self._next: asyncio.Task[None] | None = None  # the writer that has not begun yet
        self._name = f"events of {component}"
        self._idle = asyncio.Event()
        self._idle.set()
        self._told: OrderedDict[tuple[str, ...], _Told] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, ...], TokenBucket] = OrderedDict()
        self._complained = float("-inf")

    @property
    def dropped(self) -> int:
        """How many events were dropped, for whatever reason."""
        return self.drops.total()

    def start(self) -> None:
        """Write what waits. Calling it again does nothing."""
        if self._next is None and len(self._line) and len(self._writers) < WRITERS:
            self._idle.clear()
            self._next = asyncio.get_running_loop().create_task(self._write_all(), name=self._name)
            self._writers.add(self._next)
            self._next.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writers.discard(task)
        if task is self._next:
            self._next = None
        if not task.cancelled():
            self.start()  # what came after its last look, when it counted as one that writes
        if not self._writers:
            self._idle.set()

    def event(
        self,
        about: ObjectRef | dict[str, Any] | Any,
        type: str,
        reason: str,
        message: str,
        *,
        action: str = "",
    ) -> None:
        """Tell about an object: `type` is Normal or Warning, `reason` a CamelCase word. Never blocks, never raises."""
        try:
            ref = about if isinstance(about, ObjectRef) else reference(about)
            note = message if len(message) <= NOTE_LIMIT // 4 else message.encode()[:NOTE_LIMIT].decode("utf-8", "ignore")
            event = _Event(ref, type, reason, note, action or reason, seams.now())
            if not self._allowed(event):
                self._drop("too_many", "too many events %s about %s %s/%s", reason, ref.kind, ref.namespace, ref.name)
                return
            if not self._line.put(event):
                self._drop("queue_full", "%d wait for the API server", QUEUE)
            self.start()
        except Exception:  # an event is never worth a failure
            self._drop("unusable", "an event could not be made")
            log.debug("event %s", reason, exc_info=True)

    def _drop(self, reason: str, why: str, *arguments: object) -> None:
        self.drops[reason] += 1
        now = self._clock()
        if now - self._complained > 60.0:
            self._complained = now
            log.warning("events are dropped (%d so far): " + why, self.dropped, *arguments)

    def _allowed(self, event: _Event) -> bool:
        key = event.key[:-1]  # whatever the note: what is told again and again hides nothing else about the object
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(QPS, BURST)
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket.take(self._clock())

    async def flush(self, seconds: float = 1.0) -> None:
        """Wait until all is written, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            log.debug("%d events were not written in time", len(self._line) + len(self._writers))

    async def stop(self) -> None:
        """Write what waits (for a second at most) and end."""
        await self.flush()
        writers = list(self._writers)
        for task in writers:
            task.cancel()
        if writers:
            await asyncio.wait(writers)

    async def _write_all(self) -> None:
        """Write one event after the other until none waits."""
        self._next = None
        while len(self._line):
            event = self._line.take()
            key = event.key
            before = self._busy.get(key)
            if before is not None:  # an equal one is being written, and whoever does it counts this one up
                before.append(event)
                continue
            self.start()  # what waits behind this one need not wait for its answer
            equal = self._busy[key] = deque([event])
            try:
                while equal:
                    await self._write_safely(equal.popleft())
            finally:
                del self._busy[key]

    async def _write_safely(self, event: _Event) -> None:
        try:
            await self._write(event)
        except Exception:
            self._drop("failed", "an event could not be written")
            log.debug("event %s", event.reason, exc_info=True)

    async def _write(self, event: _Event) -> None:
        # the same at every try: one whose answer was lost may have been written
        name = f"{event.about.name[:200].rstrip('-.')}.{int(event.time * 1e9):x}{seams.token_hex(2)}"
        for attempt in range(ATTEMPTS):
            try:
                if not await self._count_up(event):
                    await self._create(event, name)
                self.sent += 1
                return
            except errors.Unreachable:
                if attempt == ATTEMPTS - 1:
                    self._drop("unreachable", "the API server cannot be reached")
                    return
                await seams.sleep(1.0)
            except errors.NotLeading:
                self._drop("not_leading", "this process does not lead any more")
                return
            except errors.ApiError as error:  # a namespace that is going away, say: trying again would not help
                self._drop("refused", "refused: %s", error)
                return

    async def _count_up(self, event: _Event) -> bool:
        """Patch the series of an equal event that the server has; False if it has none."""
        told = self._told.get(event.key)
        if told is None or self._clock() - told.at > SERIES_WINDOW:
            return False
        count = told.count + 1
        series = {"count": count, "lastObservedTime": format_micro_time(event.time)}
        try:
            await self.client.patch(EVENTS, told.name, {"series": series}, told.namespace, type="merge", field_manager=self.component)
        except errors.NotFound:  # expired on the server
            self._told.pop(event.key, None)
            return False
        told.count, told.at = count, self._clock()
        self._told[event.key] = told  # it may have been forgotten meanwhile
        self._told.move_to_end(event.key)
        return True

    async def _create(self, event: _Event, name: str) -> None:
        namespace = event.about.namespace or "default"
        body: dict[str, Any] = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": format_micro_time(event.time),
            "reportingController": self.component,
            "reportingInstance": f"{self.component}-{self.host}"[:128],
            "action": event.action[:128],
            "reason": event.reason[:128],
            "regarding": event.about.wire(),
            "note": event.note,
            "type": event.type,
        }
        with suppress(errors.AlreadyExists):  # by an earlier try
            await self.client.create(EVENTS, body, namespace)
        self._told[event.key] = _Told(name, namespace, 1, self._clock())
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
