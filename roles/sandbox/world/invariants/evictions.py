"""Pods that are asked to leave: why, how often, and for whom."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roles.sandbox.world.history import LEASE
from roles.sandbox.world.invariants.base import (
    BUDGET,
    EVENTS,
    GANG,
    NODE,
    POD,
    RESERVATION,
    WORLD,
    Invariant,
    Obj,
    annotations_of,
    bound_by,
    deaf_until,
    free,
    is_ready,
    leaves,
    node_of,
    picky,
    requests,
    role_of,
)
from roles.scheduler.planner.evictions import SLACK

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History

_DECIDED = 3.0  # seconds from a decision to its event, at most


class EvictedOnce(Invariant):
    """No pod is asked to leave twice, nor one that has ended, nor by anybody who gives no reason."""

    hears = frozenset({POD})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._asked: dict[str, str] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or role_of(entry.author) not in ("scheduler", "descheduler", "manager"):
            return
        if not (entry.verb == "DELETED" or leaves(entry)):
            return
        uid = entry.obj["metadata"]["uid"]
        if uid in self._asked:
            yield f"{entry.key} was asked to leave by {self._asked[uid]} and again by {entry.author}"
        self._asked[uid] = entry.author
        conditions = (entry.obj.get("status") or {}).get("conditions") or ()
        if role_of(entry.author) == "scheduler" and not any(c["type"] == "DisruptionTarget" for c in conditions):
            yield f"{entry.key} was removed by {entry.author} without a reason"


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod was asked to leave for another. `stood`: nodes on which members of its gang stood; `behind`: when a scheduler was last known to
    read late; `heard`: when who asked had been told of nodes last."""

    time: float
    preemptor: str
    victim: str
    node: str
    stood: frozenset[str]
    behind: float
    heard: float


class OneNodeMakesRoom(Invariant):
    """For one pod that needs room, pods of one node are asked to leave, and the gangs of these; for a gang, of a node a member at most.

    By one leader: a successor that finds half of a plan carried out makes its own, as kube-scheduler's does. And at a time: when all
    who were asked are gone and the room is not enough (others were first, or exclusive CPUs lie apart), another node may be asked, and
    so it may when they are overdue, or when the scheduler has learnt since that the node was cordoned, tainted or labelled anew: it may
    be of no use to the pod any more.
    Events tell for whom a pod was asked; when it was asked the pod itself shows: events may come late.
    """

    hears = frozenset({POD, NODE, LEASE, *EVENTS})
    unread = 20.0  # seconds: how old news may be to a scheduler that reads slowly

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._terms: list[float] = []  # when a scheduler took the lease
        self._asks: list[Ask] = []
        self._left: dict[str, float] = {}  # when pods began to leave
        self._heard: dict[str, float] = {}  # when who asked them to leave had been told of nodes last
        self._gone: dict[str, float] = {}
        self._gangs: dict[str, str] = {}  # by the uid of a pod, also of one that is gone: a leader may not have heard of that yet
        self._stood: dict[str, set[str]] = defaultdict(set)  # nodes that members of a gang were bound to, by gang
        self._changed: dict[str, list[float]] = defaultdict(list)  # when it changed who may use a node

    def see(self, entry: Entry) -> Iterator[str]:
        if leaves(entry):
            uid = entry.obj["metadata"]["uid"]
            self._left[uid], self._heard[uid] = entry.time, self._told_of_nodes(entry)
        if entry.bucket == "pod" and entry.verb == "DELETED":
            self._gone[entry.obj["metadata"]["uid"]] = entry.time
        if entry.bucket == "pod" and entry.verb == "ADDED" and (gang := annotations_of(entry.obj).get(GANG, "")):
            self._gangs[entry.obj["metadata"]["uid"]] = gang
        if bound_by(entry) and (gang := self._gangs.get(entry.obj["metadata"]["uid"], "")):
            self._stood[gang].add(node_of(entry.new))
        if entry.bucket == NODE and _open_to(entry.old) != _open_to(entry.new):
            self._changed[entry.key].append(entry.time)
        if entry.bucket == LEASE and role_of(entry.author) == "scheduler":
            old, new = ((obj or {}).get("spec") or {} for obj in (entry.old, entry.new))
            if old.get("acquireTime") != new.get("acquireTime"):
                self._terms.append(entry.time)
        if entry.bucket in ("event", "event.events.k8s.io") and entry.verb == "ADDED" and entry.obj.get("reason") == "Preempted":
            self._hear(entry)
        yield from ()

    def _hear(self, entry: Entry) -> None:
        note = str(entry.obj.get("note") or entry.obj.get("message") or "")
        regarding = entry.obj.get("regarding") or entry.obj.get("involvedObject") or {}
        preemptor = note.partition("Preempted by ")[2].partition(" on node ")[0]
        node = note.partition(" on node ")[2].split(" ")[0].rstrip(".")
        if preemptor.startswith("pod ") and node:
            victim = str(regarding.get("uid"))
            # where members of its gang stood: who could not be asked, or whose event was lost, counts too
            stood = frozenset(self._stood.get(self._gangs.get(victim, ""), ()))
            time = self._left.get(victim, entry.time)
            heard = self._heard.get(victim, self._told_of_nodes(entry))
            self._asks.append(Ask(time, preemptor, victim, node, stood, last_behind(self.history), heard))

    def _told_of_nodes(self, entry: Entry) -> float:
        return self.history.heard.get((entry.author, "nodes"), entry.time)

    def end(self) -> Iterator[str]:
        asks: dict[tuple[str, int], list[Ask]] = defaultdict(list)
        for ask in sorted(self._asks, key=lambda ask: ask.time):
            asks[ask.preemptor, bisect_right(self._terms, ask.time)].append(ask)
        for (preemptor, _), told in asks.items():
            for asked in self._at_a_time(told):
                nodes = sorted({ask.node for ask in asked})
                # the nodes that must have been meant: others may have lost members of a gang that had one there
                fewest = min(len({ask.node for ask in asked if ask.node != meant and meant not in ask.stood}) + 1 for meant in nodes)
                if fewest > self._together(preemptor.removeprefix("pod ")):
                    yield f"for {preemptor} pods of {', '.join(nodes)} were removed"

    def _at_a_time(self, asks: Iterable[Ask]) -> Iterator[list[Ask]]:
        """Those who were asked while others had yet to go, each time."""
        asked: list[Ask] = []
        for ask in asks:
            if asked and self._may_ask_again(asked, ask):
                yield asked
                asked = []
            asked.append(ask)
        yield asked

    def _may_ask_again(self, asked: list[Ask], ask: Ask) -> bool:
        before = asked[-1].time
        news = before - self.unread if ask.behind >= before - _DECIDED else before
        changed = all(any(min(news, other.heard) <= time <= ask.time for time in self._changed[other.node]) for other in asked)
        gone = all(self._gone.get(other.victim, ask.time) < ask.time for other in asked)
        return changed or gone or ask.time - before > SLACK - 5

    def _together(self, uid: str) -> int:
        """How many pods make room for themselves together with this one."""
        gang = self._gangs.get(uid)
        return sum(other == gang for other in self._gangs.values()) if gang else 1


def last_behind(history: History) -> float:
    """When a scheduler was last known to read late."""
    return max((at for (name, _), at in history.behind.items() if role_of(name) == "scheduler"), default=float("-inf"))


def reads_late(history: History, time: float) -> bool:
    """Whether a scheduler that reads slowly may have decided then on things as they were."""
    return last_behind(history) >= time - _DECIDED


def _open_to(node: Obj | None) -> tuple[object, ...]:
    """What decides who may use a node, whatever room it has."""
    spec, labels = (node or {}).get("spec") or {}, ((node or {}).get("metadata") or {}).get("labels")
    return node is not None, spec.get("unschedulable", False), spec.get("taints") or [], labels or {}


class BudgetsAreKept(Invariant):
    """Who evicts a pod leaves as many of its like serving as their disruption budget asks for. (Preemption may go below it, and no budget
    is asked about a pod that has not begun to run.)"""

    hears = frozenset({POD})

    def see(self, entry: Entry) -> Iterator[str]:
        if not leaves(entry) or role_of(entry.author) not in ("descheduler", "manager"):
            return
        if (entry.obj.get("status") or {}).get("phase") not in ("Running", "Unknown"):
            return
        for budget in self.history.of(BUDGET).values():
            spec, meta = budget.get("spec") or {}, budget["metadata"]
            wanted = (spec.get("selector") or {}).get("matchLabels") or {}
            least = spec.get("minAvailable")
            if not isinstance(least, int) or not _matches(entry.obj, wanted, meta["namespace"]):
                continue
            pods = [pod for pod in self.history.of("pod").values() if _matches(pod, wanted, meta["namespace"])]
            serving = sum(1 for pod in pods if is_ready(pod) and not pod["metadata"].get("deletionTimestamp"))
            if serving < least:
                yield f"{entry.author} evicted {entry.key}: {serving} of {meta['name']} serve, its budget asks for {least}"


def _matches(pod: Obj, labels: dict[str, str], namespace: str) -> bool:
    own = pod["metadata"].get("labels") or {}
    return pod["metadata"].get("namespace") == namespace and all(own.get(name) == value for name, value in labels.items())


def offers(node: Obj | None) -> object:
    """What decides whether pods may come to a node."""
    spec, status = (node or {}).get("spec") or {}, (node or {}).get("status") or {}
    return spec.get("unschedulable"), spec.get("taints"), status.get("allocatable")


@dataclass(slots=True)
class Preemption:
    """What was seen of one: for whom, where, and who had to go."""

    node: str
    victims: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)  # nodes that victims left: a gang goes as a whole, from wherever it is
    fitted: set[str] = field(default_factory=set)  # nodes that had room for it when the first one was asked


class Preemptions(Invariant):
    """Follows preemptions by what is told of them. `preempted` is asked at each victim, `bound` when the preemptor gets a node."""

    hears = frozenset({POD, NODE, *EVENTS})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._of: dict[str, Preemption] = {}
        self._gone: dict[str, float] = {}
        self._freed: dict[str, float] = {}  # node -> when a pod left it last
        self._opened: dict[str, float] = {}  # node -> when it was changed last, by its taints, say
        self._scheduler = ""  # who told of a preemption last
        self._chosen_at = 0.0  # when that victim was chosen: it is told of when it was asked to leave

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == NODE:
            if offers(entry.old) != offers(entry.new):
                self._opened[entry.key] = entry.time
        elif entry.bucket == "pod":
            uid = entry.obj["metadata"]["uid"]
            if entry.verb == "DELETED":
                self._gone[uid] = self._freed[node_of(entry.old)] = entry.time
            elif uid in self._of and bound_by(entry):
                yield from self.bound(entry, self._of.pop(uid))
        elif entry.verb == "ADDED" and entry.bucket in ("event", "event.events.k8s.io") and entry.obj.get("reason") == "Preempted":
            note = str(entry.obj.get("note") or entry.obj.get("message") or "")
            preemptor = note.partition("Preempted by pod ")[2].partition(" on node ")[0]
            node = note.partition(" on node ")[2].split(" ")[0].rstrip(".")
            regarding = entry.obj.get("regarding") or entry.obj.get("involvedObject") or {}
            if preemptor and node:
                self._scheduler, self._chosen_at = entry.author, self.recorded(str(regarding.get("name")), "Preempted", entry.time)
                plan = self._of.setdefault(preemptor, Preemption(node))
                plan.victims.add(str(regarding.get("uid")))
                plan.left.add(node)
                yield from self.preempted(preemptor, str(regarding.get("uid")))

    def preempted(self, preemptor: str, victim: str) -> Iterator[str]:
        """A victim was asked to leave."""
        return iter(())

    def bound(self, entry: Entry, plan: Preemption) -> Iterator[str]:
        """The preemptor got a node."""
        return iter(())

    def recorded(self, name: str, verdict: str, otherwise: float) -> float:
        """When a scheduler decided so about a pod last: requests that are delayed or sent again are seen much later."""
        for time, _, record in reversed(self.history.records):
            if record.verdict == verdict and record.subject.name == name and record.role == "scheduler":
                return time
        return otherwise

    def pod(self, uid: str) -> Obj | None:
        """A pod by its UID."""
        return next((pod for pod in self.history.of("pod").values() if pod["metadata"]["uid"] == uid), None)


class VictimsAreLower(Preemptions):
    """A pod makes room only for one of higher priority."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._priorities: dict[str, tuple[str, int]] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == "pod" and entry.verb == "ADDED":
            self._priorities[entry.obj["metadata"]["uid"]] = (entry.key, int(entry.obj["spec"].get("priority") or 0))
        yield from super().see(entry)

    def preempted(self, preemptor: str, victim: str) -> Iterator[str]:
        if preemptor in self._priorities and victim in self._priorities:
            (higher, most), (lower, least) = self._priorities[preemptor], self._priorities[victim]
            if least >= most:
                yield f"{lower} of priority {least} made room for {higher} of priority {most}"


class RoomIsUsed(Preemptions):
    """No pod leaves for one that lands elsewhere without need: where there was room when others were asked to leave, or although they
    have left."""

    hears = Preemptions.hears | {WORLD}
    settled = 1.5  # seconds after the last victim has gone, from which the scheduler must have known
    unheard = 30.0  # seconds for which it may not have, after its watches were refused
    under_way = 60.0  # seconds that a binding may be on its way

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._deaf = float("-inf")  # until when a scheduler's watches are refused

    def see(self, entry: Entry) -> Iterator[str]:
        if (deaf := deaf_until(entry)) and role_of(deaf[0]) == "scheduler":
            self._deaf = max(self._deaf, deaf[1])
        yield from super().see(entry)

    def preempted(self, preemptor: str, victim: str) -> Iterator[str]:
        plan, pod = self._of[preemptor], self.pod(preemptor)
        if len(plan.victims) == 1 and pod is not None and not reads_late(self.history, self._chosen_at):
            # room that has only just come, or of which the scheduler has not been told, was not there when it was decided
            freed, opened = self._told("pods"), self._told("nodes")
            known = [name for name in self.history.of(NODE) if self._opened.get(name, opened) <= opened]
            plan.fitted = self._fitting(pod, [name for name in known if self._freed.get(name, freed) <= freed])
        return iter(())

    def _told(self, collection: str) -> float:
        """Until when the scheduler knew what happened when it decided."""
        return min(self._chosen_at - self.settled, self.history.heard.get((self._scheduler, collection), float("inf")))

    def _fitting(self, pod: Obj, names: Iterable[str]) -> set[str]:
        """Those of the nodes that have room for a pod that nobody else was promised."""
        if picky(pod):
            return set()
        held = {(one.get("status") or {}).get("nodeName") for one in self.history.of(RESERVATION).values()}
        promised: dict[str, list[Obj]] = defaultdict(list)
        chosen = self._chosen()
        for other in self.history.of("pod").values():
            if other is pod or node_of(other):
                continue
            if name := (other.get("status") or {}).get("nominatedNodeName") or chosen.get(other["metadata"]["name"], ""):
                promised[name].append(other)
        wants, found = requests(pod), set()
        for name in names:
            node = self.history.of("node").get(name)
            spec = (node or {}).get("spec") or {}
            if node is None or spec.get("unschedulable") or spec.get("taints") or name in held:
                continue
            room = free(self, name)
            for other in promised.get(name, ()):
                for resource, amount in requests(other).items():
                    room[resource] = room.get(resource, 0) - amount
            if all(room.get(resource, 0) >= amount for resource, amount in wants.items()):
                found.add(name)
        return found

    def _chosen(self) -> dict[str, str]:
        """The nodes that were found for pods of late: where a binding is sent again, as its answer was lost, the room is taken."""
        since, found = self.history.clock() - self.under_way, dict[str, str]()
        for time, _, record in reversed(self.history.records):
            if time < since:
                break
            if record.role == "scheduler":
                found.setdefault(record.subject.name, record.message.rpartition(" ")[2] if record.verdict == "Scheduled" else "")
        return found

    @staticmethod
    def _nominated(entry: Entry) -> str:
        """The node that was promised: another leader knows it only when it was written down."""
        return str(((entry.old or {}).get("status") or {}).get("nominatedNodeName") or "")

    def bound(self, entry: Entry, plan: Preemption) -> Iterator[str]:
        landed, pod = node_of(entry.new), entry.obj
        pinned = (pod["metadata"].get("labels") or {}).get("koordinator.sh/qosClass") in ("LSR", "LSE")
        by_card = any("gpu" in name for name in requests(pod)) or bool(pod["spec"].get("resourceClaims"))
        if landed in plan.left or pinned or annotations_of(pod).get(GANG) or by_card:
            return
        gone, decided = [self._gone.get(uid) for uid in plan.victims], self.recorded(pod["metadata"]["name"], "Scheduled", float("-inf"))
        gone.append(self._freed.get(plan.node))  # who is promised room there may wait for more than its own victims
        knew = decided > self._deaf + self.unheard and not reads_late(self.history, decided)
        told = min(decided - self.settled, self.history.heard.get((entry.author, "pods"), decided))
        left = knew and all(at is not None and at <= told for at in gone)
        if landed in plan.fitted:
            yield f"{entry.key} landed on {landed}, which had room for it when {len(plan.victims)} pods were asked to leave {plan.node}"
        elif left and self._nominated(entry) == plan.node and self._fitting(pod, [plan.node]):
            yield f"{entry.key} landed on {landed}; {len(plan.victims)} pods had left {plan.node} for it, where it fits"
