"""The scheduling queue (SCH-FW-05): active, backoff, unschedulable and gated pods. Pure: time is an argument."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from koord.api.gangs import gang_id
from roles.scheduler.cluster.defects import DEFECTS
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.events import ASSIGNED_POD, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.status import Status
from roles.scheduler.framework.steps import Steps, at_once
from roles.scheduler.queue.entry import ACTIVE, BACKOFF, GATED, IN_FLIGHT, UNSCHEDULABLE, Entry
from roles.scheduler.queue.events import EventLog

log = logging.getLogger(__name__)

PreEnqueue = Callable[[PodInfo], Status]
SortKey = Callable[[PodInfo, float], tuple[Any, ...]]
Subscriptions = Mapping[str, Mapping[str, tuple[Subscription, ...]]]

_KNOWN = 1024  # kinds of pods that came back of which it is known whether anything helped them
_HUSKS = 64  # of pods that left a heap otherwise than by its head, beside those that are there
_TOGETHER = 1.0  # seconds
_AT_ONCE, _A_STEP = 64, 32  # pods of a crowd that come back in one piece: each asks the preEnqueue plugins

_Group = tuple[str, str, bytes, str, frozenset[str]]
_Heap = list[tuple[tuple[Any, ...], int, Entry]]


class SchedulingQueue:
    """Pods waiting for a cycle.

    `subscriptions` are those of every plugin by profile and plugin name; `initial_backoff` and `max_backoff` in seconds;
    `max_unschedulable` is how long a pod may lie there without an event before it is tried again. Backoff is a floor: no pod is tried
    before its rest since the last attempt is over, and of a job, whose pods are tried together, nobody before all have rested.
    `pop_from_backoff` (gate SchedulerPopFromBackoffQ): with nothing else to do a pod need not sit its first rest out.
    """

    def __init__(
        self,
        *,
        sort_key: SortKey,
        pre_enqueue: PreEnqueue,
        subscriptions: Subscriptions,
        initial_backoff: float = 1.0,
        max_backoff: float = 10.0,
        max_unschedulable: float = 300.0,
        job_of: Callable[[PodInfo], Hashable] = lambda pod: None,
        pop_from_backoff: bool = False,
    ) -> None:
        self._sort_key = sort_key
        self._pre_enqueue = pre_enqueue
        self._subscriptions = subscriptions
        self._initial_backoff = initial_backoff
        self._max_backoff = max_backoff
        self._max_unschedulable = max_unschedulable
        self.job_of = job_of
        self._pop_from_backoff = pop_from_backoff
        self._job_rests: dict[Hashable, float] = {}  # by job, until when those who were tried rest
        self._entries: dict[str, Entry] = {}
        self._active: _Heap = []
        self._backoff: _Heap = []
        self._error_backoff: _Heap = []
        self._heaps = {ACTIVE: (self._active,), BACKOFF: (self._backoff, self._error_backoff)}
        # Waiting pods by what decides an event for all of them alike: profile, shape, gang and the plugins that refused them.
        self._parked: dict[_Group, dict[str, Entry]] = {}
        # The groups that a plugin refused; under "" those that no plugin refused.
        self._groups_of: dict[str, dict[_Group, None]] = {}
        self._tickets = itertools.count(1)
        self._counts = dict.fromkeys((ACTIVE, BACKOFF, UNSCHEDULABLE, GATED, IN_FLIGHT), 0)
        self._log = EventLog()
        self._judged: dict[Hashable, tuple[int, bool]] = {}  # up to which event, and whether one helped
        self._asked, self._asked_at = 0, 0.0  # how often a hint was asked lately about what is kept
        self._interested: dict[tuple[str, Action], dict[str, list[Subscription]]] = {}
        # By UID, with when they were parked and what brings them back. Each once: while scheduling is held nobody asks for them.
        self._returning: OrderedDict[str, tuple[Entry, float, str]] = OrderedDict()
        self.incoming: Callable[[str, str], None] = lambda event, queue: None
        self.broken: Callable[[PodInfo, str, float], None] = lambda pod, message, now: None  # told of a preEnqueue plugin's defect
        self.admission: Callable[[PodInfo, bool], None] | None = None  # told whether preEnqueue let a pod in
        self.gated: Callable[[PodInfo, Status], None] = lambda pod, status: None  # told whom it keeps out, and why

    # ---------------------------------------------------------------- pods come, change and go

    def add(self, pod: PodInfo, now: float) -> None:
        """A pending pod appeared."""
        if pod.uid in self._entries:
            self.update(pod, (), now)
            return
        entry = self._entries[pod.uid] = Entry(pod, now)
        self._enter(entry, now, "PodAdd")

    def update(self, pod: PodInfo, events: Iterable[ClusterEvent], now: float) -> None:
        """A pending pod changed; `events` say how, none for a change of its status only."""
        entry = self._entries.get(pod.uid)
        if entry is None:
            self.add(pod, now)
            return
        changed = list(events)
        if entry.state == IN_FLIGHT:
            entry.pod = pod
            for event in changed:
                first = entry.changes.get(event.action)
                entry.changes[event.action] = event if first is None else event._replace(old=first.old)
            return
        if entry.state in (ACTIVE, BACKOFF):
            entry.pod = pod
            if changed:
                self._leave(entry)
                self._enter(entry, now, "PodUpdate")
            return
        gated = entry.state == GATED
        self._leave(entry)
        entry.pod = pod
        if changed and (gated or any(self._helps(entry, event) for event in changed)):
            self._enter(entry, now, "PodUpdate")
        else:
            self._park(entry, GATED if gated else UNSCHEDULABLE)

    def delete(self, uid: str) -> None:
        """A pod is gone, has a node, or belongs to another scheduler now."""
        entry = self._entries.pop(uid, None)
        self._returning.pop(uid, None)
        if entry is not None:
            self._leave(entry)

    # ---------------------------------------------------------------- attempts

    def pop(self, now: float) -> Entry | None:
        """The next pod to schedule, or None. It counts as in flight until `done` or `requeue`."""
        self.flush_backoff(now)
        entry = self._pop_heap(self._active, ACTIVE)
        if entry is None and self._pop_from_backoff:
            resting = self._head(self._backoff)
            entry = self._pop_heap(self._backoff, BACKOFF) if resting is not None and resting.failures <= 1 else None
        return None if entry is None else self._start(entry, now)

    def take(self, uid: str, now: float) -> Entry | None:
        """Take a named pod from wherever it waits (NextPod); None when it is not there or in flight already."""
        entry = self._entries.get(uid)
        if entry is None or entry.state == IN_FLIGHT:
            return None
        return self._start(entry, now)

    def _start(self, entry: Entry, now: float) -> Entry:
        self._leave(entry)
        self._set(entry, IN_FLIGHT)
        entry.attempts += 1
        if entry.first_attempt is None:
            entry.first_attempt = now
        if self._judged and not self._log.opened:
            self._judged.clear()  # those whom it was for have come back
        entry.since_event = self._log.open(entry.pod.uid)
        entry.changes = {}
        return entry

    def committed(self, uid: str) -> None:
        """A pod in flight is being bound, or is no longer in flight: no event is kept for it any more."""
        self._log.close(uid)
        if not self._log.opened:
            self._judged.clear()

    def done(self, uid: str) -> None:
        """The pod was bound (or dropped): forget it."""
        self.delete(uid)

    def requeue(
        self, uid: str, now: float, *, rejected_by: frozenset[str] = frozenset(), error: bool = False, pending: bool = False
    ) -> None:
        """An attempt failed. `rejected_by` are the plugins that refused; with none of them any event brings the pod back.

        `error` is an internal failure: the pod goes to backoff without waiting for an event. `pending` skips backoff.
        """
        entry = self._entries.get(uid)
        if entry is None or entry.state != IN_FLIGHT:
            return
        entry.rejected_by = rejected_by
        helped = error or self._was_helped(entry, now)
        self._leave(entry)
        entry.stopped = entry.entered = now
        entry.pending = pending
        entry.failures = 0 if error else entry.failures + 1
        entry.errors = entry.errors + 1 if error else 0
        entry.ready_at = now if pending else now + self.backoff(entry)
        job = self.job_of(entry.pod)
        if job is not None:
            self._job_rests[job] = max(self._job_rests.pop(job, 0.0), entry.ready_at)
        if helped:
            self._enter(entry, now, "ScheduleAttemptFailure")
        else:
            self.incoming("ScheduleAttemptFailure", UNSCHEDULABLE)
            self._park(entry, UNSCHEDULABLE)

    def _was_helped(self, entry: Entry, now: float) -> bool:
        """Whether something that happened during the attempt is worth another one. Pods that are alike are looked at once, and each event
        about once for all that come back together: beyond that hints are not asked."""
        if any(self._helps(entry, event) for event in entry.changes.values()):
            return True
        if not self._log.is_open(entry.pod.uid):  # while it was bound nobody kept events for it
            return any(s.resource != UNSCHEDULED_POD for s in self._watched(entry))
        if entry.since_event == self._log.position:
            return False  # nothing has happened, and there is nothing to remember
        if now - self._asked_at > _TOGETHER:
            self._asked, self._asked_at = 0, now
        if len(self._judged) > _KNOWN:
            self._judged.clear()
        key = (self._group(entry, IN_FLIGHT), entry.since_event)
        upto, known = self._judged.get(key, (entry.since_event, False))
        if not known and upto < self._log.position:
            subscriptions = None if not entry.rejected_by else self._watched(entry)
            most = _KNOWN + 2 * len(self._log)

            def helps(event: ClusterEvent, hints: bool) -> bool:
                self._asked += hints
                return self._helps(entry, event, hints=hints and self._asked <= most)

            known = any(
                kept.helps(entry.since_event, helps)
                for kept in self._log.since(upto, lambda event: subscriptions is None or any(s.covers(event) for s in subscriptions))
            )
            self._judged[key] = self._log.position, known
        return known

    def _watched(self, entry: Entry) -> list[Subscription]:
        """What the plugins that refused a pod subscribed to."""
        plugins = self._subscriptions.get(entry.pod.shape.scheduler_name, {})
        return [subscription for name in entry.rejected_by for subscription in plugins.get(name, ())]

    def backoff(self, entry: Entry) -> float:
        """How long a pod rests after its failures so far, in seconds."""
        times = entry.errors or entry.failures
        if not times:
            return 0.0
        return float(min(self._initial_backoff * 2.0 ** min(times - 1, 30), self._max_backoff))

    # ---------------------------------------------------------------- what brings pods back

    def on_event(self, event: ClusterEvent, now: float) -> int:
        """Something happened in the cluster; returns how many pods it brought back."""
        if not self._parked and not self._log.opened:
            return 0
        if self._log.opened:
            self._log.append(self._cut(event))
        if not self._parked:
            return 0
        interested = [name for name, found in self._plugins_for(event).items() if not all(s.helps_nobody(event) for s in found)]
        helped: dict[_Group, None] = {}
        for name in ("", *interested):
            for group in list(self._groups_of.get(name, ())):
                if group not in helped and self._helps(next(iter(self._parked[group].values())), event):
                    helped[group] = None
        return self._bring_back([entry for group in helped for entry in self._parked[group].values()], now, event.label)

    def room_given_up(self, pod: PodInfo, now: float) -> int:
        """What was kept on a node for a pod that is not there is free for others, but for its own job: as if it had left. Returns how many
        pods that brought back."""
        return self.on_event(ClusterEvent(ASSIGNED_POD, Action.DELETE, pod, None, self.job_of(pod)), now)

    def _bring_back(self, entries: Sequence[Entry], now: float, label: str) -> int:
        """Return parked pods; of a crowd the first ones now and the rest in `come_back`. Returns how many came, or will."""
        moved = sum([self._return(entry, now, label) for entry in entries[:_AT_ONCE]])
        self._returning.update((entry.pod.uid, (entry, entry.stopped, label)) for entry in entries[_AT_ONCE:])
        return moved + max(len(entries) - _AT_ONCE, 0)

    @property
    def returning(self) -> bool:
        """Whether pods of a crowd are still to be brought back, by `come_back`."""
        return bool(self._returning)

    def come_back(self, now: float) -> Steps[None]:
        """Bring back the rest of a crowd that something helped, a few a step."""
        number = 0
        while self._returning:
            _, (entry, stopped, label) = self._returning.popitem(last=False)
            if entry.state in (UNSCHEDULABLE, GATED) and entry.stopped == stopped:  # it was not tried since
                self._return(entry, now, label)
            number += 1
            if not number % _A_STEP:
                yield

    def _plugins_for(self, event: ClusterEvent) -> dict[str, list[Subscription]]:
        """Plugins, of whatever profile, that subscribed to such an event, and how. In the profiles' order: pods come back in it."""
        key = (event.resource, event.action)
        found = self._interested.get(key)
        if found is None:
            found = self._interested[key] = {}
            for plugins in self._subscriptions.values():
                for name, subscriptions in plugins.items():
                    covering = [subscription for subscription in subscriptions if subscription.covers(event)]
                    if covering:
                        found.setdefault(name, []).extend(covering)
        return found

    def _cut(self, event: ClusterEvent) -> ClusterEvent:
        """What is kept of an event: what the hints of those who subscribed read."""
        readers = [each for found in self._plugins_for(event).values() for each in found if each.hint is not None]
        if not readers:
            return event._replace(old=None, new=None)
        keep = readers[0].keep
        return readers[0].cut(event) if keep is not None and all(reader.keep == keep for reader in readers) else event

    def _return(self, entry: Entry, now: float, label: str) -> int:
        self._leave(entry)
        self._enter(entry, now, label)
        return int(entry.state in (ACTIVE, BACKOFF))

    def activate(self, pods: Iterable[PodInfo], now: float, *, rested: bool = False) -> None:
        """Bring waiting pods back, whatever refused them; others are left alone. `rested`: what they were refused for is over, and neither
        they nor their jobs need sit their rest out."""
        for pod in pods:
            entry = self._entries.get(pod.uid)
            if entry is not None and entry.state in (UNSCHEDULABLE, BACKOFF, GATED):
                for one in (entry, *self._resting_with(entry)) if rested else (entry,):
                    one.ready_at = now if rested else one.ready_at
                    self._leave(one)
                    self._enter(one, now, "ForceActivate")

    def _resting_with(self, entry: Entry) -> list[Entry]:
        """Others of a pod's job, which rests no more, that were in backoff."""
        job = self.job_of(entry.pod)
        if job is None or self._job_rests.pop(job, None) is None:
            return []
        resting = (other for _, ticket, other in (*self._backoff, *self._error_backoff) if other.ticket == ticket)
        return [other for other in resting if other is not entry and self.job_of(other.pod) == job]

    def wake(self, test: Callable[[PodInfo], bool], by_template: bool, now: float) -> None:
        """Bring back waiting pods of which a test holds, whichever plugin refused them. `by_template`: it holds for all pods of a
        template or for none."""
        woken: list[Entry] = []
        for members in list(self._parked.values()):
            if by_template and not test(next(iter(members.values())).pod):
                continue
            woken.extend(entry for entry in members.values() if entry.state == UNSCHEDULABLE and (by_template or test(entry.pod)))
        self._bring_back(woken, now, "ReservationAvailable")

    def flush_backoff(self, now: float) -> None:
        """Move pods whose backoff is over to the active queue, of a crowd the first ones, and whom else an event has brought back."""
        at_once(self.come_back(now))
        while self._job_rests and next(iter(self._job_rests.values())) <= now:
            del self._job_rests[next(iter(self._job_rests))]
        for heap in (self._backoff, self._error_backoff):
            for _ in range(_AT_ONCE):
                entry = self._head(heap)
                if entry is None or entry.ready_at > now:
                    break
                heapq.heappop(heap)
                self._leave(entry)
                self._enter(entry, now, "BackoffComplete")

    def flush_leftover(self, now: float) -> int:
        """Try pods again that lay unschedulable or gated for too long without an event; returns how many."""
        over = [entry for members in self._parked.values() for entry in members.values() if now - entry.stopped > self._max_unschedulable]
        for entry in over:
            entry.stopped = now
        self._bring_back(over, now, "UnschedulableTimeout")
        return len(over)

    def next_wake(self) -> float | None:
        """When the next backoff ends, None when nobody backs off."""
        heads = (self._head(self._backoff), self._head(self._error_backoff))
        return min((entry.ready_at for entry in heads if entry is not None), default=None)

    @staticmethod
    def _head(heap: _Heap) -> Entry | None:
        """The first of those that rest; husks before it are dropped."""
        while heap:
            _, ticket, entry = heap[0]
            if entry.ticket == ticket and entry.state == BACKOFF:
                return entry
            heapq.heappop(heap)
        return None

    # ---------------------------------------------------------------- looking in

    def get(self, uid: str) -> Entry | None:
        """The entry of a pod, wherever it is."""
        return self._entries.get(uid)

    def counts(self) -> dict[str, int]:
        """How many pods are in each part."""
        return dict(self._counts)

    def refused(self) -> Iterator[tuple[str, str, int]]:
        """(plugin, profile, pods that it refused and that wait for an event)."""
        for plugin, groups in self._groups_of.items():
            found: dict[str, int] = {}
            for group in groups if plugin else ():
                found[group[1]] = found.get(group[1], 0) + len(self._parked[group])
            for profile, number in found.items():
                yield plugin, profile, number

    def entries(self) -> Iterable[Entry]:
        """All entries."""
        return self._entries.values()

    def __len__(self) -> int:
        return len(self._entries)

    # ---------------------------------------------------------------- inside

    def _set(self, entry: Entry, state: str) -> None:
        entry.state = state
        self._counts[state] += 1

    def _enter(self, entry: Entry, now: float, label: str) -> None:
        """To backoff while it runs, else to the active queue, unless a preEnqueue plugin says no."""
        status = self._pre_enqueue(entry.pod)
        if self.admission is not None:
            self.admission(entry.pod, status.ok)
        if not status.ok and not status.rejected:  # a defect: it is asked again after a rest
            entry.errors += 1
            entry.ready_at = now + self.backoff(entry)
            self._rest(entry, label)
            self.broken(entry.pod, status.message, now)
            return
        if not status.ok:
            entry.gate = status.plugin
            entry.rejected_by = frozenset((status.plugin,)) if status.plugin else frozenset()
            entry.stopped = now
            self._park(entry, GATED)
            self.incoming(label, GATED)
            self.gated(entry.pod, status)
            return
        entry.gate = ""
        entry.ticket = next(self._tickets)
        try:
            entry.key = self._sort_key(entry.pod, entry.entered)
        except DEFECTS:
            log.exception("pod %s cannot be sorted; it goes first", entry.pod.key)
            entry.key = ()
        if self._job_rests:
            entry.ready_at = max(entry.ready_at, self._job_rests.get(self.job_of(entry.pod), 0.0))
        if entry.ready_at > now:
            self._rest(entry, label)
            return
        self._set(entry, ACTIVE)
        self._push(self._active, entry.key, entry)
        self.incoming(label, ACTIVE)

    def _rest(self, entry: Entry, label: str) -> None:
        """To backoff."""
        if not entry.ticket:
            entry.ticket = next(self._tickets)
        self._set(entry, BACKOFF)
        heap = self._error_backoff if entry.errors else self._backoff
        # Ordered by whole seconds: pods whose rest ends in the same second come back in sort order.
        self._push(heap, (math.floor(entry.ready_at), *entry.key), entry)
        self.incoming(label, BACKOFF)

    def _push(self, heap: _Heap, key: tuple[Any, ...], entry: Entry) -> None:
        """Add to a heap."""
        heapq.heappush(heap, (key, entry.ticket, entry))
        self._thin_out(heap, entry.state)

    def _thin_out(self, heap: _Heap, state: str) -> None:
        """Who stands by pops nothing: husks must not pile up, nor stay while nobody comes."""
        if len(heap) > 2 * self._counts[state] + _HUSKS:
            heap[:] = [item for item in heap if item[2].ticket == item[1]]
            heapq.heapify(heap)

    def _park(self, entry: Entry, state: str) -> None:
        self._set(entry, state)
        group = self._group(entry, state)
        members = self._parked.get(group)
        if members is None:
            members = self._parked[group] = {}
            for name in entry.rejected_by or ("",):
                self._groups_of.setdefault(name, {})[group] = None
        members[entry.pod.uid] = entry

    def _leave(self, entry: Entry) -> None:
        """Out of wherever it is; entries of heaps stay behind as husks with an old ticket."""
        state, entry.state = entry.state, ""
        if state:
            self._counts[state] -= 1
        if state in (UNSCHEDULABLE, GATED):
            self._unpark(entry, self._group(entry, state))
        elif state == IN_FLIGHT:
            self.committed(entry.pod.uid)
        entry.ticket = 0
        for heap in self._heaps.get(state, ()):
            self._thin_out(heap, state)

    def _unpark(self, entry: Entry, group: _Group) -> None:
        members = self._parked[group]
        del members[entry.pod.uid]
        if not members:
            del self._parked[group]
            for name in entry.rejected_by or ("",):
                del self._groups_of[name][group]

    @staticmethod
    def _group(entry: Entry, state: str) -> _Group:
        pod, shape = entry.pod.pod, entry.pod.shape
        # labels and annotations are part of the shape, but not the fields that name a gang
        gang = gang_id(pod) if pod.spec.scheduling_group is not None or pod.spec.workload_ref is not None else ""
        return (state, shape.scheduler_name, shape.digest, gang, entry.rejected_by)

    def _pop_heap(self, heap: _Heap, state: str) -> Entry | None:
        while heap:
            _, ticket, entry = heapq.heappop(heap)
            if entry.ticket == ticket and entry.state == state:
                return entry
        return None

    def _helps(self, entry: Entry, event: ClusterEvent, *, hints: bool = True) -> bool:
        """Whether a plugin that refused the pod subscribed to the event and its hint, if it is asked, does not rule it out."""
        if event.job is not None and self.job_of(entry.pod) == event.job:
            return False
        if not entry.rejected_by:
            return True
        plugins = self._subscriptions.get(entry.pod.shape.scheduler_name, {})
        for name in entry.rejected_by:
            for subscription in plugins.get(name, ()):
                if subscription.covers(event) and (not hints or subscription.helps(entry.pod, event)):
                    return True
        return False
