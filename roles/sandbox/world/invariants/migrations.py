"""Pods that are moved by a migration."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koord.api.quantity import parse_milli
from roles.sandbox.world.configuration import HIGH, LOW
from roles.sandbox.world.invariants.base import (
    LEASES,
    MIGRATION_JOB,
    NODE_METRIC,
    POD,
    RESERVATION,
    WORLD,
    Invariant,
    Obj,
    bound_by,
    finished,
    free,
    is_ready,
    leaves,
    node_of,
    owner_of,
    picky,
    requests,
    reservation_of,
    role_of,
)
from roles.sandbox.world.invariants.community import is_tended, migrates, tainted
from roles.sandbox.world.invariants.overcommit import BATCH_CPU

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History


class MoveHasAPlace(Invariant):
    """A pod is moved only when a place for it is held (reservation first), or the job says that it needs none."""

    hears = frozenset({POD})

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or role_of(entry.author) != "descheduler" or "/eviction" not in entry.request:
            return
        uid = entry.obj["metadata"]["uid"]
        for job in self.history.of(MIGRATION_JOB).values():
            spec, status = job.get("spec") or {}, job.get("status") or {}
            ended = status.get("phase") in ("Failed", "Succeeded")
            if (spec.get("podRef") or {}).get("uid") != uid or spec.get("mode") == "EvictDirectly" or ended:
                continue
            name = (spec.get("reservationOptions") or {}).get("reservationRef", {}).get("name") or status.get("reservationName")
            held = self.history.of(RESERVATION).get(str(name))
            if held is None or (held.get("status") or {}).get("phase") not in ("Available", "Succeeded"):
                yield f"{entry.key} was evicted and its reservation {name} is {(held or {}).get('status', {}).get('phase', 'not there')}"


SILENT = 45.0
"""Seconds without a report after which a node's load is not known."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a node reported: CPU in use in all and by pod ("namespace/name"), in milli-CPU.

    Both are means of the last minute, and `used` has in it pods that left within it, while a pod that came within it counts there for a
    part of the time only. `now` goes by the system and the pods that are reported, each by the time for which it was there."""

    time: float
    used: int
    now: int
    pods: dict[str, int]


def load_of(metric: Obj, now: float) -> Load | None:
    """A node's report; None if it says nothing yet."""
    status = metric.get("status") or {}
    whole, system = (
        (((status.get("nodeMetric") or {}).get(name) or {}).get("resources") or {}).get("cpu") for name in ("nodeUsage", "systemUsage")
    )
    if whole is None:
        return None
    pods = {
        f"{item.get('namespace')}/{item.get('name')}": parse_milli(((item.get("podUsage") or {}).get("resources") or {}).get("cpu", "0"))
        for item in status.get("podsMetric") or ()
    }
    used = parse_milli(whole)
    return Load(now, used, used if system is None else parse_milli(system) + sum(pods.values()), pods)


class Loads(Invariant):
    """Follows what nodes report."""

    hears = frozenset({NODE_METRIC, POD})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.reports: dict[str, list[Load]] = {}
        self.heard: dict[str, float] = {}  # when a node reported last, if only the same again

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == NODE_METRIC and entry.new is not None and (load := load_of(entry.new, entry.time)) is not None:
            reports = self.reports.setdefault(entry.key, [])
            if role_of(entry.author) in ("kubelet", "koordlet"):
                self.heard[entry.key] = entry.time
            if not reports or reports[-1] != replace(load, time=reports[-1].time):
                reports.append(load)
        return iter(())

    def lately(self, node: str, seconds: float) -> list[Load]:
        """What was known at some moment of the last seconds."""
        since = self.history.clock() - seconds * self.history.pace
        reports = self.reports.get(node, [])
        return [*[load for load in reports if load.time < since][-1:], *[load for load in reports if load.time >= since]]

    def known(self, node: str, seconds: float) -> bool:
        """Whether a node has reported for so long, and still does."""
        reports, now = self.reports.get(node, []), self.history.clock()
        silent = now - self.heard.get(node, float("-inf")) > SILENT * self.history.pace
        return bool(reports) and not silent and now - reports[0].time >= seconds * self.history.pace

    def used(self, node: str, seconds: float) -> list[int]:
        """The CPU in use that was known then."""
        return [load.used for load in self.lately(node, seconds)]

    def stays(self, node: str, load: Load) -> int:
        """Of a report, what is used by others than pods that have ended or left by now, or were told to leave."""
        objects, gone = self.history.of("pod"), 0
        for key, used in load.pods.items():
            pod = objects.get(key)
            left = pod is None or node_of(pod) != node or finished(pod) or pod["metadata"].get("deletionTimestamp")
            gone += used if left else 0
        return min(load.used, load.now) - gone

    def capacity(self, node: str) -> int:
        """Milli-CPU of a node."""
        status = (self.history.of("node").get(node) or {}).get("status") or {}
        return parse_milli((status.get("capacity") or {}).get("cpu", "0"))

    def usage(self, node: str, key: str, seconds: float = 0.0) -> int:
        """The least that a pod used by the reports of its node, in milli-CPU."""
        return min((load.pods[key] for load in self.lately(node, seconds) if key in load.pods), default=0)


def moves(history: History, entry: Entry) -> bool:
    """Whether a descheduler moves a pod. Where it runs the community's plugins, too, that is one with a migration."""
    if not leaves(entry) or role_of(entry.author) != "descheduler":
        return False
    return not is_tended(history) or migrates(history, entry.obj["metadata"]["uid"])


class OnlyHotNodesAreRelieved(Loads):
    """A pod leaves for load only from a node that was hot by one of its reports of the last minutes."""

    seconds = 150.0  # a round, a reservation, an eviction that budgets and limits hold back

    def see(self, entry: Entry) -> Iterator[str]:
        yield from super().see(entry)
        node = node_of(entry.old)
        if not moves(self.history, entry):
            return
        most = max((max(load.used, load.now) for load in self.lately(node, self.seconds)), default=0)
        if most * 100 <= HIGH * self.capacity(node):
            yield f"{entry.key} left {node}, which used {most} milli-CPU at most"


class TargetsStayCool(Loads):
    """A pod leaves for load only if the node that waits for it is not hot, and does not become hot with it and those that left for it
    before and are in none of its reports. Who has lost the place that was held may come anywhere."""

    hears = frozenset({NODE_METRIC, POD, RESERVATION})
    lag = 25.0  # seconds for a report to reach who decides
    measured = 60.0  # seconds since what the pod uses was looked at

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._sent: dict[str, list[tuple[float, int, str, str]]] = defaultdict(list)  # by target: when, what it used, place, job

    def see(self, entry: Entry) -> Iterator[str]:
        yield from super().see(entry)
        if entry.bucket == POD and (leaves(entry) or entry.verb == "DELETED") and (place := reservation_of(entry.obj)):
            self._forget(node_of(entry.obj), place)  # who came has left again
        elif entry.bucket == RESERVATION and (entry.obj.get("status") or {}).get("phase") == "Failed":
            for node in self._sent:
                self._forget(node, entry.key)
        if not moves(self.history, entry):
            return
        uid = entry.obj["metadata"]["uid"]
        for name, job in self.history.of(MIGRATION_JOB).items():
            spec, status = job.get("spec") or {}, job.get("status") or {}
            target = str(status.get("nodeName") or "")
            if (spec.get("podRef") or {}).get("uid") != uid or status.get("phase") != "Running" or not target:
                continue
            place = (spec.get("reservationOptions") or {}).get("reservationRef", {}).get("name") or status.get("reservationName") or uid
            used = min((self.stays(target, load) + self._coming(target, load.time) for load in self.lately(target, self.lag)), default=0)
            brings = self.usage(node_of(entry.old), entry.key, self.measured)
            self._sent[target].append((entry.time, brings, str(place), name))
            if used and (used + brings) * 100 > HIGH * self.capacity(target):
                yield f"{entry.key} uses {brings} milli-CPU and moves to {target}, which used {used} already"

    def _forget(self, node: str, place: str) -> None:
        self._sent[node] = [sent for sent in self._sent[node] if sent[2] != place]

    def _coming(self, target: str, since: float) -> int:
        """What pods use that left for a node after one of its reports, but so lately that they are sure to be on their way."""
        recent = max(since, self.history.clock() - self.lag)
        return sum(used for at, used, _, job in self._sent[target] if at >= recent and self._leads_to(job, target))

    def _leads_to(self, name: str, target: str) -> bool:
        """Whether a migration still has its place there: two may have exchanged theirs."""
        job = self.history.of(MIGRATION_JOB).get(name)
        return job is None or (job.get("status") or {}).get("nodeName") == target


@dataclass(slots=True)
class Moved:
    """A pod that was moved, and how many of its workload had a node then."""

    key: str
    had: int


class MovesLoseNothing(Invariant):
    """When all is calm a workload of which a pod was moved has as many pods on nodes as before, unless others took their room.

    Batch pods are left out: what nodes offer them shrinks by itself. So are pods that their quota refuses: what it may use shrinks while
    pods outside of it start. More than the workload asks for nobody replaces: a controller with an old snapshot makes some twice, and a
    workload that its user has deleted asks for none.
    """

    hears = frozenset({WORLD, POD})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._moved: dict[str, Moved] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "wiped":
            self._moved.clear()
        elif entry.bucket == "pod" and BATCH_CPU not in requests(entry.obj) and (owner := owner_of(entry.obj)):
            if moves(self.history, entry):
                had = sum(1 for pod in self.pods() if owner_of(pod) == owner)
                self._moved[owner] = Moved(entry.key, max(had, self._moved[owner].had if owner in self._moved else 0))
            elif leaves(entry) and node_of(entry.old):  # preempted, revoked, deleted by its user
                self._moved.pop(owner, None)
        return iter(())

    def end(self) -> Iterator[str]:
        asked = {sets["metadata"]["uid"]: sets["spec"]["replicas"] for sets in self.history.of("replicaset.apps").values()}
        for owner, moved in self._moved.items():
            had = min(moved.had, asked.get(owner, 0))
            has = sum(1 for pod in self.pods() if owner_of(pod) == owner)
            done = sum(1 for pod in self.history.of("pod").values() if owner_of(pod) == owner and (finished(pod) or _over_quota(pod)))
            if has + done < had:
                yield f"{has} pods of the workload of {moved.key} have a node, {had} had when it was moved"


def _over_quota(pod: Obj) -> bool:
    """Whether a pod waits as its quota has no room for it."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return not node_of(pod) and any("Insufficient quotas" in (condition.get("message") or "") for condition in conditions)


class HotIsRelieved(Loads):
    """When all is calm no node stays hot from which a pod could go to a node that is cool and stays so. One to which others have come in
    the place of two that were moved away may be left alone, as the descheduler then says. Both may come before the second has left. The
    time begins anew with each leader."""

    hears = frozenset({WORLD, NODE_METRIC, POD})
    seconds = 50.0  # in which it was hot, the other one cool, and no pod left it
    turn = 20.0  # for which a workload is spared after one of its pods has left, wherever that was
    in_vain = 2  # moves whose room others have taken

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._left: dict[str, float] = {}
        self._spared: dict[str, float] = {}  # by workload: when a descheduler took one of its pods away last
        self._away: Counter[str] = Counter()  # by node: pods that were moved away
        self._came: Counter[str] = Counter()  # by node: pods that have come since the first of these
        self._wrong: set[str] = set()  # whose clock is: reports of such a node look old, and those of all nodes to such a descheduler

    def see(self, entry: Entry) -> Iterator[str]:
        yield from super().see(entry)
        if entry.bucket == "pod" and (leaves(entry) or entry.verb == "DELETED"):
            self._left[node_of(entry.old)] = entry.time
            if role_of(entry.author) == "descheduler":
                self._spared[owner_of(entry.obj)] = entry.time
                self._away[node_of(entry.old)] += moves(self.history, entry)
        elif entry.bucket == "pod" and bound_by(entry) and self._away[node := node_of(entry.new)]:
            self._came[node] += 1
        elif entry.verb == "fault" and entry.key == "clock":
            self._wrong.add(entry.text.partition(" of ")[2].partition(" ")[0])

    def end(self) -> Iterator[str]:
        return self._hot(self.seconds)

    def open(self) -> bool:
        return any(True for _ in self._hot(0.0))

    def _hot(self, seconds: float) -> Iterator[str]:
        relieved = any(role_of(program) == "descheduler" for program in self.history.programs) and self.history.profiles != "community"
        relieved = relieved and not any(role_of(program) == "descheduler" for program in self._wrong)
        led = self.history.led.get(LEASES["descheduler"], float("-inf"))
        for hot in sorted(self.history.of("node")) if relieved else ():
            if f"koordlet-{hot}" in self._wrong or f"kubelet-{hot}" in self._wrong:
                continue
            known = self.used(hot, seconds)
            over = min(known, default=0) * 100 > (HIGH + 5) * self.capacity(hot)
            at = max(led, self._left.get(hot, float("-inf")))
            if not over or not self.known(hot, seconds) or self.history.clock() - at < seconds * self.history.pace:
                continue
            if min(self._away[hot], self._came[hot]) >= self.in_vain and self._left_alone(hot):
                continue
            for pod in self.pods_of(hot):
                key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                if self._may_leave(pod) and (cool := self._takes(pod, self.usage(hot, key), hot, seconds)):
                    yield f"{hot} used {min(known)} milli-CPU or more for {seconds:.0f} s; {key} could go to {cool}"
                    break

    def _left_alone(self, node: str) -> bool:
        """Whether the descheduler has said last that moves away from a node do not help."""
        told = (record for _, _, record in reversed(self.history.records) if record.subject.kind == "Node" and record.subject.name == node)
        return next((record.message.startswith("left alone") for record in told if record.verdict == "Relieved"), False)

    def _may_leave(self, pod: Obj) -> bool:
        """A pod that is replaced and of a workload that can spare one: its like all serve, no budget covers it, none has just left another
        node, and no move has failed, after which the next one waits."""
        wanted = {sets["metadata"]["uid"]: sets["spec"].get("replicas", 1) for sets in self.history.of("replicaset.apps").values()}
        spared = self.history.clock() - self._spared.get(owner_of(pod), float("-inf")) < self.turn * self.history.pace
        if spared or owner_of(pod) not in wanted:
            return False
        labels, annotations = pod["metadata"].get("labels") or {}, pod["metadata"].get("annotations") or {}
        plain = labels.get("koordinator.sh/qosClass") == "LS" and not any("gang" in name for name in annotations) and not picky(pod)
        guarded = any(budget["metadata"]["name"] == labels.get("app") for budget in self.history.of("poddisruptionbudget.policy").values())
        if not plain or guarded:
            return False
        like = [other for other in self.history.of("pod").values() if owner_of(other) == owner_of(pod)]
        jobs = [job for job in self.history.of(MIGRATION_JOB).values() if (job.get("status") or {}).get("phase") == "Failed"]
        failed = {(job["spec"].get("podRef") or {}).get("uid") for job in jobs}
        serve = all(is_ready(other) and other["metadata"]["uid"] not in failed for other in like)
        return serve and len(like) == wanted[owner_of(pod)] >= 4

    def _takes(self, pod: Obj, brings: int, hot: str, seconds: float) -> str:
        """A node that is cool, has room, and stays cool with the pod."""
        for name in sorted(self.history.of("node")):
            known = [max(load.used, load.now) for load in self.lately(name, seconds)]
            if name == hot or tainted(self.history.of("node").get(name)):
                continue
            if f"koordlet-{name}" in self._wrong or f"kubelet-{name}" in self._wrong:
                continue
            if not self.known(name, seconds) or any(used * 100 > LOW * self.capacity(name) for used in known):
                continue
            room = free(self, name)
            fits = all(room.get(resource, 0) >= amount for resource, amount in requests(pod).items())
            if brings and fits and (max(known) + brings) * 100 < (HIGH - 10) * self.capacity(name):
                return name
        return ""
