"""Pods that the community's plugins take away, through DefaultEvictor: for what their plugin says, not in vain, and within the limits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.api.times import parse_time
from roles.sandbox.world.configuration import AGED, HERE, LOUD, MOST, MOST_OF_NODE, OLD, POOL
from roles.sandbox.world.history import holds
from roles.sandbox.world.invariants.base import (
    BUDGET,
    GANG,
    LEASES,
    MIGRATION_JOB,
    NODE,
    POD,
    WORLD,
    Invariant,
    Obj,
    annotations_of,
    free,
    is_ready,
    leaves,
    node_of,
    owner_of,
    requests,
    role_of,
)
from roles.sandbox.world.process import EPOCH

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History

TAINTS, AFFINITY, APART = "RemovePodsViolatingNodeTaints", "RemovePodsViolatingNodeAffinity", "RemovePodsViolatingInterPodAntiAffinity"
SPREAD, DUPLICATES = "RemovePodsViolatingTopologySpreadConstraint", "RemoveDuplicates"
FAILED, AGE = "RemoveFailedPods", "PodLifeTime"
PLUGINS = (TAINTS, AFFINITY, APART, SPREAD, DUPLICATES, FAILED, AGE)
Wrong = tuple[str, str]  # the UID of a pod and the plugin that minds


def is_tended(history: History) -> bool:
    """Whether deschedulers run the community's plugins."""
    return history.profiles != "load"


def migrates(history: History, uid: str) -> bool:
    """Whether a migration of a pod is under way."""
    over = ("Failed", "Succeeded")
    jobs = history.of(MIGRATION_JOB).values()
    mine = (job for job in jobs if ((job.get("spec") or {}).get("podRef") or {}).get("uid") == uid)
    return any((job.get("status") or {}).get("phase") not in over for job in mine)


def tainted(node: Obj | None) -> bool:
    """Whether a node has taints; no pod of a world tolerates any."""
    return bool(((node or {}).get("spec") or {}).get("taints"))


class Tended(Invariant):
    """Is told of what deschedulers evict, where they run the community's plugins."""

    hears = frozenset({WORLD, POD, NODE})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.born: dict[str, float] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        if not is_tended(self.history):
            return
        if entry.bucket == POD:
            if entry.verb == "ADDED":
                self.born[entry.obj["metadata"]["uid"]] = entry.time
            if leaves(entry) and role_of(entry.author) == "descheduler":
                yield from self.evicted(entry)

    def evicted(self, entry: Entry) -> Iterator[str]:
        """A descheduler evicts a pod."""
        return iter(())


class Order(Tended):
    """Follows which pods are where they should not be, by which plugin, since when, and when they were last."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.since: dict[Wrong, float] = {}  # of those that are wrong now
        self.last: dict[Wrong, float] = {}
        self.stepped: set[str] = set()  # programs whose clock is wrong

    def see(self, entry: Entry) -> Iterator[str]:
        yield from super().see(entry)
        if not is_tended(self.history):
            return
        if entry.verb == "fault" and entry.key == "clock":
            self.stepped.add(entry.text.partition(" of ")[2].partition(" ")[0])
        elif entry.bucket in (POD, NODE):
            self._look(entry)

    def _look(self, entry: Entry) -> None:
        same = entry.old is not None and entry.new is not None and _looked_at(entry.old) == _looked_at(entry.new)
        found = self.since if same else set(wrong(self.history))  # most writes tell how something is, not where
        self.last.update(dict.fromkeys([*self.since, *found], entry.time))
        self.since = {one: self.since.get(one, entry.time) for one in found}


def _looked_at(obj: Obj) -> object:
    """What `wrong` looks at in a pod or a node."""
    meta, phase = obj["metadata"], (obj.get("status") or {}).get("phase")
    return obj.get("spec"), meta.get("labels"), meta.get("ownerReferences"), meta.get("deletionTimestamp"), phase, meta["uid"]


def wrong(history: History) -> Iterator[Wrong]:
    """Pods that violate what a plugin looks at, age aside."""
    evenly: dict[str, list[Obj]] = defaultdict(list)  # pods that are spread, by their app
    nodes = history.of("node")
    for name, placed in history.placed.items():
        node, alike = nodes.get(name) or {}, Counter(_workload(pod) for pod in placed.values())
        pool = ((node.get("metadata") or {}).get("labels") or {}).get(POOL)
        loud = any(LOUD in (pod["metadata"].get("labels") or {}) for pod in placed.values())
        for pod in placed.values():
            uid = pod["metadata"]["uid"]
            affinity = pod["spec"].get("affinity") or {}
            required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
            terms = required.get("nodeSelectorTerms") or ()
            if tainted(node):
                yield uid, TAINTS
            if terms and pool not in terms[0]["matchExpressions"][0]["values"]:
                yield uid, AFFINITY
            if loud and affinity.get("podAntiAffinity"):
                yield uid, APART
            if owner_of(pod) and alike[_workload(pod)] > 1:
                yield uid, DUPLICATES
            if pod["spec"].get("topologySpreadConstraints"):
                evenly[app_of(pod)].append(pod)
    for pods in evenly.values():
        for counted in (pods, [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]):  # who leaves counts, or does not
            there = Counter(node_of(pod) for pod in counted)
            least = min(there[name] for name in nodes) if nodes else 0
            for pod in counted:
                if there[node_of(pod)] - least > pod["spec"]["topologySpreadConstraints"][0]["maxSkew"]:
                    yield pod["metadata"]["uid"], SPREAD
    for pod in history.of("pod").values():
        if (pod.get("status") or {}).get("phase") == "Failed":
            yield pod["metadata"]["uid"], FAILED


def app_of(pod: Obj) -> str:
    """The label by which topology spread counts pods: two workloads may have the same."""
    return str((pod["metadata"].get("labels") or {}).get("app") or "")


def _workload(pod: Obj) -> str:
    """The name of a pod's workload: what the community's plugins know it by."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return str(owners[0]["name"]) if owners else ""


def _for_its_place(pod: Obj) -> bool:
    """Whether a pod that leaves does so for where it is, not for its age or because it has failed."""
    return (pod["metadata"].get("labels") or {}).get("app") != AGED and (pod.get("status") or {}).get("phase") != "Failed"


class EvictedForWhatIsWrong(Order):
    """A plugin takes away only pods that are as it says, or were within the last minute, and none whose migration is under way."""

    seconds = 60.0  # for which a snapshot may be old, and a round last
    lenient = 5.0  # seconds by which ages may differ: they are told in whole ones, and by clocks of others

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._was: dict[str, tuple[str, set[str], bool]] = {}  # by key: who evicted it, what was wrong with it, whether it was moved
        self._ruled: dict[str, float] = {}  # when a node's taints or pool changed: pods may be known before that is

    def see(self, entry: Entry) -> Iterator[str]:
        yield from super().see(entry)
        if entry.bucket == "node" and rules(entry.old) != rules(entry.new):
            self._ruled[entry.key] = entry.time

    def evicted(self, entry: Entry) -> Iterator[str]:
        """What was wrong with it is kept until its record says which plugin it was."""
        uid, now = entry.obj["metadata"]["uid"], entry.time
        since = now - self.seconds * self.history.pace
        reasons = {plugin for plugin in PLUGINS if self.last.get((uid, plugin), float("-inf")) >= since}
        aged = (entry.obj["metadata"].get("labels") or {}).get("app") == AGED
        # a pod is as old as the API server says, which then asks the webhooks: one that stands still keeps it from being seen for a while
        age = now - min(parse_time(entry.obj["metadata"]["creationTimestamp"]) - EPOCH, self.born.get(uid, float("inf")))
        if aged and (age >= OLD - self.lenient or self.stepped & {entry.author, "apiserver"}):
            reasons.add(AGE)
        if self._ruled.get(node_of(entry.old), float("-inf")) >= since:
            reasons |= {TAINTS, AFFINITY}
        moved = migrates(self.history, uid)
        self._was[entry.key] = entry.author, reasons, moved
        if not reasons and not moved:
            yield f"{entry.author} evicted {entry.key} from {node_of(entry.old)}, where nothing was wrong with it"

    def end(self) -> Iterator[str]:
        for _, name, record in self.history.records:
            subject = record.subject
            if role_of(name) != "descheduler" or record.verdict != "Evicted" or record.rule not in PLUGINS:
                continue
            author, reasons, moved = self._was.get(f"{subject.namespace}/{subject.name}", ("", set(), False))
            if author != name:
                continue
            if moved:
                yield f"{name} evicted {subject} by {record.rule} while its migration was under way"
            elif record.rule not in reasons:
                yield f"{name} evicted {subject} by {record.rule}; wrong with it was: {', '.join(sorted(reasons)) or 'nothing'}"

    def open(self) -> bool:
        return False


class EvictedWithAPlace(Tended):
    """No plugin takes a pod away from its place when no other node would take one like it, by taints, pool and topology spread. (Age and
    failure are no matter of place, and room comes and goes.)"""

    seconds = 1.5  # for which that must have been so: a snapshot is no older
    hurt = 40.0  # where a descheduler, or all, were hurt within the last two minutes

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._changed: dict[str, float] = {}  # when pods of a workload came or went last; "": when nodes changed
        self._hurt = float("-inf")

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "fault":
            target = entry.text.partition(" of ")[2]
            if target.startswith(("descheduler", "requests")) or not target:  # "30% of requests" are everybody's
                self._hurt = entry.time
        yield from super().see(entry)
        if entry.bucket == "node" and rules(entry.old) != rules(entry.new):
            self._changed[""] = entry.time
        elif entry.bucket == "pod" and (leaves(entry) or node_of(entry.old) != node_of(entry.new)):
            self._changed[owner_of(entry.obj)] = entry.time

    def evicted(self, entry: Entry) -> Iterator[str]:
        """Before it is told to leave all must have been as it is now."""
        pod = entry.obj
        hurt = entry.time - self._hurt < 120.0
        lately = entry.time - (self.hurt if hurt else self.seconds) * self.history.pace
        changed = max(self._changed.get(one, float("-inf")) for one in ("", owner_of(pod)))
        if changed > lately or not _for_its_place(pod) or migrates(self.history, pod["metadata"]["uid"]):
            return
        nodes = [name for name in self.history.of("node") if name != node_of(pod)]
        if not any(self._admits(name, pod) for name in nodes):
            yield f"{entry.key} left {node_of(pod)}, and no other node takes it by its taints, its pool and the pod's topology spread"

    def _admits(self, name: str, pod: Obj) -> bool:
        node, spec = self.history.of("node")[name], pod["spec"]
        required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        if tainted(node) or (required and (node["metadata"].get("labels") or {}).get(POOL) != HERE):
            return False
        constraints = spec.get("topologySpreadConstraints")
        if not constraints:
            return True
        alike = [one for one in self.pods() if app_of(one) == app_of(pod) and one["metadata"]["uid"] != pod["metadata"]["uid"]]
        there = Counter(node_of(one) for one in alike if not one["metadata"].get("deletionTimestamp"))
        return there[name] + 1 - min(there[each] for each in self.history.of("node")) <= int(constraints[0]["maxSkew"])


class NotEvictedInVain(Tended):
    """No plugin takes away the successors of pods that it took away from the same node, one after the other, while no node has changed:
    where they come back to it was for nothing. A new leader does not know of what the last one did."""

    most = 2

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._left: list[tuple[Entry, float] | None] = []  # evictions, each with the time at which its pod was made; None: all is new

    def see(self, entry: Entry) -> Iterator[str]:
        began = entry.verb == "started" and role_of(entry.key) == "descheduler"
        if began or entry.verb == "wiped" or (entry.bucket == "node" and rules(entry.old) != rules(entry.new)):
            self._left.append(None)
        yield from super().see(entry)

    def evicted(self, entry: Entry) -> Iterator[str]:
        """It is judged when its record says which plugin it was."""
        uid = entry.obj["metadata"]["uid"]
        if not migrates(self.history, uid) and _for_its_place(entry.obj):
            self._left.append((entry, self.born.get(uid, 0.0)))
        return iter(())

    def end(self) -> Iterator[str]:
        evicted = ((name, record) for _, name, record in self.history.records if record.verdict == "Evicted")
        by = {(name, f"{record.subject.namespace}/{record.subject.name}"): record.rule for name, record in evicted}
        chains: dict[tuple[str, str, str, str], tuple[int, float]] = {}  # how many, and when the last one
        for one in self._left:
            if one is None:
                chains.clear()
                continue
            entry, born = one
            place = entry.author, owner_of(entry.obj), node_of(entry.old), by.get((entry.author, entry.key), "")
            count, last = chains.get(place, (0, float("-inf")))
            if born <= last:
                continue  # it was there with the last one: it has not come back
            chains[place] = count + 1, entry.time
            if count >= self.most:
                before = f"{count} of its workload did so before, and their successors came back"
                yield f"{entry.key} left {place[2]} by {place[3]} in vain: {before}"

    def open(self) -> bool:
        return False


def rules(node: Obj | None) -> object:
    """What a node says about which pods it takes."""
    spec = (node or {}).get("spec") or {}
    return spec.get("taints"), spec.get("unschedulable"), ((node or {}).get("metadata") or {}).get("labels")


class WhatIsWrongLeaves(Order):
    """When all is calm no pod stays where its node's taints or its own affinity do not want it, if it may leave and another node has
    had room for it as long. One that is on its way out does not stay, and one whose workload the scheduler has put back to the node
    twice, like one that does not know yet what the node's labels are, waits for ten minutes. The time begins anew with each leader: one
    that was kept from its caches to the end of the faults must first read them, and see the old lease expire."""

    seconds = 50.0
    most, wait = 2, 600.0

    def __init__(self, history: History) -> None:
        super().__init__(history)
        # by plugin, workload and node: how many pods left one after the other, and when the last one
        self._left: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._freed: dict[str, float] = {}  # by node: when a pod was gone from it last

    def see(self, entry: Entry) -> Iterator[str]:
        yield from super().see(entry)
        if entry.bucket == POD and (node := holds(entry.old)) and not holds(entry.new):
            self._freed[node] = entry.time

    def evicted(self, entry: Entry) -> Iterator[str]:
        """Successors are counted that left for the same reason as those before them."""
        uid = entry.obj["metadata"]["uid"]
        for plugin in (TAINTS, AFFINITY):
            place = plugin, owner_of(entry.obj), node_of(entry.old)
            count, last = self._left.get(place, (0, float("-inf")))
            if (uid, plugin) in self.since and self.born.get(uid, 0.0) > last:
                self._left[place] = count + 1, entry.time
        return iter(())

    def end(self) -> Iterator[str]:
        return self._staying(self.seconds)

    def open(self) -> bool:
        return any(True for _ in self._staying(0.0))

    def _staying(self, seconds: float) -> Iterator[str]:
        if any(role_of(program) == "descheduler" for program in self.stepped):
            return  # its caches look old to it
        led = self.history.led.get(LEASES["descheduler"], 0.0)
        pods = {pod["metadata"]["uid"]: pod for pod in self.history.of("pod").values()}
        for (uid, plugin), since in sorted(self.since.items()):
            pod = pods.get(uid)
            lasted = self.history.clock() - max(since, led)
            if plugin not in (TAINTS, AFFINITY) or pod is None or lasted < seconds * self.history.pace:
                continue
            count, last = self._left.get((plugin, owner_of(pod), node_of(pod)), (0, 0.0))
            waits = count >= self.most and self.history.clock() - last < self.wait
            if not waits and self._may_leave(pod) and (room := self._takes(pod, seconds)):
                yield f"{pod['metadata']['name']} is on {node_of(pod)} against {plugin} for {seconds:.0f} s; {room} has room for it"

    def _may_leave(self, pod: Obj) -> bool:
        like = [other for other in self.history.of("pod").values() if owner_of(other) == owner_of(pod)]
        app = (pod["metadata"].get("labels") or {}).get("app")
        guarded = any(budget["metadata"]["name"] == app for budget in self.history.of(BUDGET).values())
        spec = pod["spec"]
        apart = (spec.get("affinity") or {}).get("podAntiAffinity")
        special = annotations_of(pod).get(GANG) or spec.get("topologySpreadConstraints") or apart
        plain = set(requests(pod)) <= {"cpu", "memory"} and not guarded and not special
        stays = not pod["metadata"].get("deletionTimestamp")
        return stays and bool(owner_of(pod)) and plain and all(is_ready(other) for other in like)

    def _takes(self, pod: Obj, seconds: float) -> str:
        affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
        bound = bool(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
        for name, node in sorted(self.history.of("node").items()):
            labels, room = node["metadata"].get("labels") or {}, free(self, name)
            if name == node_of(pod) or tainted(node) or (bound and labels.get(POOL) != HERE):
                continue
            if self.history.clock() - self._freed.get(name, float("-inf")) < seconds * self.history.pace:
                continue
            if all(room.get(resource, 0) >= amount for resource, amount in requests(pod).items()):
                return name
        return ""


class RoundsKeepLimits(Invariant):
    """A round takes away no more pods than the limits allow, over all profiles: evicted or to be moved."""

    def end(self) -> Iterator[str]:
        if not is_tended(self.history):
            return
        rounds: dict[tuple[str, float], list[tuple[str, str]]] = defaultdict(list)
        where: dict[str, str] = {}
        for entry in self.history.entries:
            if entry.bucket == "pod" and node_of(entry.new):
                where[entry.key] = node_of(entry.new)
        for _, name, record in self.history.records:
            if role_of(name) == "descheduler" and record.verdict == "Evicted":
                subject = f"{record.subject.namespace}/{record.subject.name}"
                rounds[name, record.time].append((subject, where.get(subject, "")))
        for (name, _), gone in sorted(rounds.items()):
            node, count = Counter(node for _, node in gone).most_common(1)[0]
            if len(gone) > MOST or count > MOST_OF_NODE:
                yield f"{name} took away {len(gone)} pods in one round, {count} of them from {node}; {MOST} and {MOST_OF_NODE} are allowed"
