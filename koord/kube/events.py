"""Kubernetes events: queued, deduplicated, rate limited; never in the way of what they tell about."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from koord import seams
from koord.api.kinds import EVENTS, Kind
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.ratelimit import TokenBucket

log = logging.getLogger("koord.kube.events")

QUEUE = 1000  # events that wait for the server
BURST = 25  # events of one object at once …
QPS = 1.0 / 300.0  # … and then one in five minutes
SERIES_WINDOW = 600.0  # seconds within which an equal event counts up an earlier one
REMEMBERED = 4096  # objects and events whose history is kept
NOTE_LIMIT = 1024  # bytes of a note that the API accepts
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """What an event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"
    resource_version: str = ""

    def wire(self) -> dict[str, str]:
        """A core/v1 ObjectReference."""
        pairs = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
        }
        return {key: value for key, value in pairs.items() if value}


def reference(obj: Any, kind: Kind | None = None) -> ObjectRef:
    """The reference of a dict or of a projection; objects of a list do not say their kind, so `kind` does."""
    if isinstance(obj, dict):
        meta = obj.get("metadata") or {}
        name, namespace, uid = meta.get("name", ""), meta.get("namespace", ""), meta.get("uid", "")
        its_kind, version = obj.get("kind", ""), obj.get("apiVersion", "")
    else:
        meta = obj.metadata
        name, namespace, uid = meta.name, meta.namespace, meta.uid
        its_kind, version = getattr(obj, "kind", ""), getattr(obj, "api_version", "")
    if kind is not None:
        its_kind, version = kind.kind, kind.api_version
    return ObjectRef(its_kind, name, namespace, uid, version or "v1")


@dataclass(slots=True)
class _Told:
    """An event that the server has."""

    name: str
    namespace: str
    count: int
    at: float


@dataclass(frozen=True, slots=True)
class _Event:
    about: ObjectRef
    type: str
    reason: str
    note: str
    action: str
    related: ObjectRef | None
    time: float

    @property
    def key(self) -> tuple[str, ...]:
        about = self.about
        return (about.kind, about.namespace, about.name, about.uid, self.type, self.reason, self.note)


class EventRecorder:
    """Writes events of one component.

    `event` only queues; one task writes. An event equal to one of the last ten minutes counts that one up (`series`); an
    object that is written about too often is limited; when the queue is full the new event is dropped. What is dropped is
    counted (`dropped`). Call it on the event loop; `start` when the loop runs, `stop` in the end.
    """

    def __init__(
        self,
        client: Client,
        component: str,
        host: str | None = None,
        *,
        clock: Callable[[], float] = seams.monotonic,
        wall_clock: Callable[[], float] = seams.now,
    ) -> None:
        self.client = client
        self.component = component
        self.host = host if host is not None else seams.hostname()
        self.dropped = 0
        self.sent = 0
        self._clock = clock
        self._wall_clock = wall_clock
        self._queue: asyncio.Queue[_Event] = asyncio.Queue(QUEUE)
        self._told: OrderedDict[tuple[str, ...], _Told] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, str, str], TokenBucket] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._complained = float("-inf")

    def start(self) -> None:
        """Begin to write. Calling it again does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all(), name=f"events of {self.component}")

    def event(
        self,
        about: ObjectRef | dict[str, Any] | Any,
        type: str,
        reason: str,
        message: str,
        *,
        action: str = "",
        related: ObjectRef | None = None,
    ) -> None:
        """Tell about an object: `type` is Normal or Warning, `reason` a CamelCase word. Never blocks, never raises."""
        try:
            ref = about if isinstance(about, ObjectRef) else reference(about)
            note = message.encode()[:NOTE_LIMIT].decode("utf-8", "ignore")
            event = _Event(ref, type, reason, note, action or reason, related, self._wall_clock())
            if not self._allowed(ref):
                self._drop("too many events about %s %s/%s", ref.kind, ref.namespace, ref.name)
                return
            self._queue.put_nowait(event)
            self.start()
        except asyncio.QueueFull:
            self._drop("the queue is full")
        except Exception:  # an event is never worth a failure
            self._drop("an event could not be made")
            log.debug("event %s", reason, exc_info=True)

    def _drop(self, why: str, *arguments: object) -> None:
        self.dropped += 1
        now = self._clock()
        if now - self._complained > 60.0:
            self._complained = now
            log.warning("events are dropped (%d so far): " + why, self.dropped, *arguments)

    def _allowed(self, ref: ObjectRef) -> bool:
        key = (ref.kind, ref.namespace, ref.name)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(QPS, BURST)
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket.take(self._clock())

    async def flush(self, seconds: float = 1.0) -> None:
        """Wait until the queue is written, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._queue.join()
        except TimeoutError:
            log.debug("%d events were not written in time", self._queue.qsize())

    async def stop(self) -> None:
        """Write what waits (for a second at most) and end."""
        task, self._task = self._task, None
        if task is None:
            return
        await self.flush()
        task.cancel()
        await asyncio.wait({task})

    async def _write_all(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except Exception:
                self._drop("an event could not be written")
                log.debug("event %s", event.reason, exc_info=True)
            finally:
                self._queue.task_done()

    async def _write(self, event: _Event) -> None:
        for attempt in range(ATTEMPTS):
            try:
                if not await self._count_up(event):
                    await self._create(event)
                self.sent += 1
                return
            except errors.Unreachable:
                if attempt == ATTEMPTS - 1:
                    self._drop("the API server cannot be reached")
                    return
                await seams.sleep(1.0)
            except errors.ApiError as error:  # a namespace that is going away, say: trying again would not help
                self._drop("refused: %s", error)
                return

    async def _count_up(self, event: _Event) -> bool:
        """Patch the series of an equal event that the server has; False if it has none."""
        told = self._told.get(event.key)
        if told is None or self._clock() - told.at > SERIES_WINDOW:
            return False
        told.count += 1
        series = {"count": told.count, "lastObservedTime": _micro_time(event.time)}
        try:
            await self.client.patch(EVENTS, told.name, {"series": series}, told.namespace, type="merge", field_manager=self.component)
        except errors.NotFound:  # expired on the server
            del self._told[event.key]
            return False
        told.at = self._clock()
        self._told.move_to_end(event.key)
        return True

    async def _create(self, event: _Event) -> None:
        namespace = event.about.namespace or "default"
        name = f"{event.about.name[:200]}.{int(event.time * 1e9):x}{seams.token_hex(2)}"
        body: dict[str, Any] = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": _micro_time(event.time),
            "reportingController": self.component,
            "reportingInstance": f"{self.component}-{self.host}"[:128],
            "action": event.action[:128],
            "reason": event.reason[:128],
            "regarding": event.about.wire(),
            "note": event.note,
            "type": event.type,
        }
        if event.related is not None:
            body["related"] = event.related.wire()
        await self.client.create(EVENTS, body, namespace)
        self._told[event.key] = _Told(name, namespace, 1, self._clock())
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)


def _micro_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
