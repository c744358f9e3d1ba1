"""The life of a pod between the queue and its node, as a machine without I/O (SCH-FW-06).

Inputs are what happened: a decision, what Reserve and Permit said, an answer of the API server or the lack of one, what was read back,
watch events, time, the loss of the lease. Outputs are effects, which the runner carries out in order (binding/carrier.py). A pod that is
not here is in the queue, bound, or gone.

    DECIDING -> RESERVING -> (WAITING ->) BINDING -> bound
                                            |  ^
                                            v  | again, on the same node
                                           UNKNOWN

Invariants, which a model checker explores in all orders of small worlds (tests/roles/scheduler/planner):

* What Reserve took is given back once, and never while a binding to that node may still take place without having been looked for.
* A pod that the API server shows on a node is never reported as a failure.
* Every placement ends: bound, failed (and queued again), or dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple

_PAUSES = (1.0, 2.0)  # seconds before the same binding is sent again after an answer was lost
_READ_PAUSES = (0.5, 1.0, 2.0, 5.0)  # seconds between readings that fail; the last one from then on
DEADLINE = 300.0
"""Seconds that a placement may take from its decision on, permit not counted, before it counts as stuck."""


class Stage(Enum):
    """How far a placement is."""

    DECIDING = "deciding"
    RESERVING = "reserving"  # counted on the node; Reserve and Permit are asked
    WAITING = "waiting on permit"
    BINDING = "binding"  # preBind, bind: requests may be under way
    UNKNOWN = "answer unknown"  # it may be bound; is being read, or is waiting to be read or bound again


class Do(StrEnum):
    """Effects."""

    ASSUME = "assume"  # count the pod on the node
    RESERVE = "reserve"  # answer with `reserved`
    PERMIT = "permit"  # answer with `permitted`
    HOLD = "hold"  # keep for the permit plugins; answer with `released`
    BIND = "bind"  # answer with `answered`
    READ = "read"  # look at the API server; answer with `found`
    LET_GO = "let go"  # hold it no longer
    TAKE_BACK = "take back"  # unreserve all plugins, stop counting it, tell who waits for room
    SETTLE = "settle"  # it is bound: postBind, event, metrics
    FAIL = "fail"  # tell the pod and queue it again
    DROP = "drop"  # the API server has another pod, or none, or one on another node: nothing is told


class Answer(Enum):
    """What came of a binding."""

    BOUND = "bound"
    REFUSED = "refused"  # for certain: a plugin said no before anything was sent, or the API server did
    OPEN = "open"  # failed, and only the API server knows in which state the pod is
    LOST = "lost"  # no answer, or one that the server was not able to finish: it may still take effect


class Found(Enum):
    """What a reading showed."""

    HERE = "here"  # on the node that was decided
    ELSEWHERE = "elsewhere"
    GONE = "gone"  # not there, another one of the name, or on its way out
    PENDING = "pending"
    UNREADABLE = "unreadable"


class Effect(NamedTuple):
    """One thing to do for a placement."""

    do: Do
    placement: Placement


@dataclass(slots=True, eq=False)
class Placement:
    """A pod on its way. `since` is when its time began to count, `limit` how long it may take (seconds), `seen` the node on which the API
    server shows it, `task` what the runner knows of it."""

    uid: str
    stage: Stage
    since: float
    node: str = ""
    seen: str = ""
    gone: bool = False
    again: bool = False  # an answer was lost: the same binding is sent again rather than given up
    sent: int = 0
    unread: int = 0
    at: float | None = None  # when a pause ends
    limit: float = DEADLINE
    task: Any = None


_NOTHING: list[Effect] = []


class Placements:
    """All placements under way, by pod UID. Each input returns the effects that follow from it; what no longer fits is ignored."""

    def __init__(self) -> None:
        self._of: dict[str, Placement] = {}
        self._pausing: dict[str, Placement] = {}
        self.leading = True

    # ---------------------------------------------------------------- looking in

    def get(self, uid: str) -> Placement | None:
        """The placement of a pod."""
        return self._of.get(uid)

    def __iter__(self) -> Iterator[Placement]:
        return iter(list(self._of.values()))

    def __len__(self) -> int:
        return len(self._of)

    def next_time(self) -> float | None:
        """When the next pause ends, None when nobody pauses."""
        return min((p.at for p in self._pausing.values() if p.at is not None), default=None)

    def stuck(self, now: float) -> Placement | None:
        """The placement that is over its limit for longest; None when all are in time."""
        late = (p for p in self._of.values() if p.stage is not Stage.WAITING and now - p.since > p.limit)
        return max(late, key=lambda p: now - p.since - p.limit, default=None)

    def lasting(self, since: float) -> Iterator[Placement]:
        """Those that have a node and wait for something outside since then or longer: on permit, or for volumes and the like."""
        waiting = (p for p in self._of.values() if p.stage is Stage.WAITING or (p.stage is Stage.BINDING and p.limit > DEADLINE))
        return (p for p in waiting if p.since <= since)

    # ---------------------------------------------------------------- deciding

    def begin(self, uid: str, now: float, task: Any = None) -> Placement:
        """A pod was taken from the queue. Raises ValueError when it is under way already."""
        if uid in self._of:
            raise ValueError(f"pod {uid} is under way already: {self._of[uid].stage.value}")
        placement = self._of[uid] = Placement(uid, Stage.DECIDING, now, task=task)
        return placement

    def decided(self, p: Placement, node: str) -> list[Effect]:
        """A node was found."""
        if not self._is(p, Stage.DECIDING):
            return _NOTHING
        p.node, p.stage = node, Stage.RESERVING
        return [Effect(Do.ASSUME, p), Effect(Do.RESERVE, p)]

    def undecided(self, p: Placement) -> list[Effect]:
        """No node was found, or the pod is not to be scheduled: what follows is the queue's."""
        if self._is(p, Stage.DECIDING):
            self._end(p)
        return _NOTHING

    def raised(self, p: Placement) -> list[Effect]:
        """Somebody raised while the pod was decided, reserved or permitted."""
        if self._of.get(p.uid) is not p:
            return _NOTHING
        if p.stage is Stage.DECIDING:
            return self._finish(p, Do.FAIL)
        if p.stage is Stage.RESERVING:
            return self._finish(p, Do.TAKE_BACK, Do.FAIL)
        return _NOTHING

    # ---------------------------------------------------------------- on the node, by our own count

    def reserved(self, p: Placement, ok: bool) -> list[Effect]:
        """What the Reserve plugins said."""
        if not self._is(p, Stage.RESERVING):
            return _NOTHING
        return [Effect(Do.PERMIT, p)] if ok else self._finish(p, Do.TAKE_BACK, Do.FAIL)

    def permitted(self, p: Placement, ok: bool, *, waits: bool = False) -> list[Effect]:
        """What the Permit plugins said; `waits`: they hold the pod."""
        if not self._is(p, Stage.RESERVING):
            return _NOTHING
        if waits:
            p.stage = Stage.WAITING
            return [Effect(Do.HOLD, p)]
        return self._bind(p) if ok else self._finish(p, Do.TAKE_BACK, Do.FAIL)

    def released(self, p: Placement, ok: bool, now: float) -> list[Effect]:
        """A held pod was let go or refused."""
        if not self._is(p, Stage.WAITING):
            return _NOTHING
        p.since = now
        return self._bind(p) if ok else self._finish(p, Do.TAKE_BACK, Do.FAIL)

    # ---------------------------------------------------------------- at the API server

    def answered(self, p: Placement, answer: Answer) -> list[Effect]:
        """The binding came to an end, with an answer or without one."""
        if not self._is(p, Stage.BINDING):
            return _NOTHING
        if p.seen or p.gone:
            return self._by_watch(p)
        if answer is Answer.BOUND:
            return self._finish(p, Do.SETTLE)
        # A binding that was sent before and never answered may have taken place whatever this one came to.
        if answer is Answer.REFUSED and not p.again:
            return self._finish(p, Do.TAKE_BACK, Do.FAIL)
        p.stage = Stage.UNKNOWN
        p.again = p.again or answer is Answer.LOST
        p.unread = 0
        return [Effect(Do.READ, p)]

    def found(self, p: Placement, found: Found, now: float) -> list[Effect]:
        """What was read of a pod of which no answer told."""
        if not self._is(p, Stage.UNKNOWN) or p.at is not None:
            return _NOTHING
        if p.seen or p.gone:
            return self._by_watch(p)
        if found is Found.HERE:
            return self._finish(p, Do.SETTLE)
        if found in (Found.ELSEWHERE, Found.GONE):
            return self._finish(p, Do.TAKE_BACK, Do.DROP)
        if found is Found.UNREADABLE:
            pause = _READ_PAUSES[min(p.unread, len(_READ_PAUSES) - 1)]
            p.unread += 1
            self._pause(p, now + pause)
        elif p.again and p.sent <= len(_PAUSES) and self.leading:
            p.unread = 0
            self._pause(p, now + _PAUSES[p.sent - 1])
        else:
            return self._finish(p, Do.TAKE_BACK, Do.FAIL if self.leading else Do.DROP)
        return _NOTHING

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: what paused goes on."""
        effects: list[Effect] = []
        for p in [p for p in self._pausing.values() if p.at is not None and p.at <= now]:
            del self._pausing[p.uid]
            p.at = None
            if p.unread:
                effects.append(Effect(Do.READ, p))
            else:
                effects += self._bind(p)
        return effects

    # ---------------------------------------------------------------- watch events

    def seen(self, uid: str, node: str) -> list[Effect]:
        """The API server shows the pod on a node."""
        p = self._of.get(uid)
        if p is None:
            return _NOTHING
        p.seen = node
        return self._looked(p)

    def leaving(self, uid: str) -> list[Effect]:
        """The API server shows the pod on its way out: it waits for nothing any more. One that is being bound is looked at before it is."""
        p = self._of.get(uid)
        if p is None or p.stage is not Stage.WAITING:
            return _NOTHING
        return self._finish(p, Do.LET_GO, Do.TAKE_BACK, Do.DROP)

    def vanished(self, uid: str) -> list[Effect]:
        """The pod is gone, or has ended."""
        p = self._of.get(uid)
        if p is None:
            return _NOTHING
        p.gone = True
        return self._looked(p)

    def lease_lost(self) -> list[Effect]:
        """Nothing is written any more. Requests under way come to their end."""
        self.leading = False
        return _NOTHING

    # ---------------------------------------------------------------- inside

    def _looked(self, p: Placement) -> list[Effect]:
        if p.stage is Stage.DECIDING:
            self._end(p)
            return _NOTHING
        if p.stage is Stage.WAITING:
            return self._finish(p, Do.LET_GO, Do.TAKE_BACK, Do.DROP)
        if p.stage is Stage.UNKNOWN:
            return self._by_watch(p)
        return _NOTHING  # what is asked or sent comes back first

    def _by_watch(self, p: Placement) -> list[Effect]:
        """The watch has told already how it ended."""
        if p.seen == p.node and not p.gone:
            return self._finish(p, Do.SETTLE)
        return self._finish(p, Do.TAKE_BACK, Do.DROP)

    def _bind(self, p: Placement) -> list[Effect]:
        if p.seen or p.gone:
            return self._finish(p, Do.TAKE_BACK, Do.DROP)
        if not self.leading:
            return self._finish(p, Do.TAKE_BACK, Do.DROP)
        p.stage = Stage.BINDING
        p.sent += 1
        return [Effect(Do.BIND, p)]

    def _pause(self, p: Placement, until: float) -> None:
        p.at = until
        self._pausing[p.uid] = p

    def _is(self, p: Placement, stage: Stage) -> bool:
        return p.stage is stage and self._of.get(p.uid) is p

    def _end(self, p: Placement) -> None:
        del self._of[p.uid]
        self._pausing.pop(p.uid, None)

    def _finish(self, p: Placement, *effects: Do) -> list[Effect]:
        self._end(p)
        return [Effect(do, p) for do in effects]
