"""What must hold in every history, whatever goes wrong: each a class with the rule that it stands for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from koord.api.quantity import parse_milli, parse_value

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History

Obj = dict[str, Any]

NODE_METRIC = "nodemetric.slo.koordinator.sh"
LEASE = "lease.coordination.k8s.io"
RESERVATION = "reservation.scheduling.koordinator.sh"
QUOTA = "elasticquota.scheduling.sigs.k8s.io"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
GANG = "gang.scheduling.koordinator.sh/name"
GANG_MIN = "gang.scheduling.koordinator.sh/min-available"
QUOTA_LABEL = "quota.scheduling.koordinator.sh/name"

# the lease of each role, and what a replica that does not lead may write
LEASES = {"scheduler": "koord-scheduler", "manager": "koordinator-manager", "descheduler": "koord-descheduler"}
_ANYBODYS = frozenset(
    {
        LEASE,
        "event",
        "event.events.k8s.io",
        "secret",
        "mutatingwebhookconfiguration.admissionregistration.k8s.io",
        "validatingwebhookconfiguration.admissionregistration.k8s.io",
    }
)


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken: when, by which entry of the history, and how."""

    time: float
    entry: int
    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.time:.3f}s {self.invariant}: {self.text}"


def role_of(author: str) -> str:
    """scheduler, manager, descheduler, kubelet …: what a process runs."""
    return author.rpartition("-")[0] if author.rpartition("-")[2] in ("a", "b") else author.split("-", 1)[0]


def finished(pod: Obj) -> bool:
    """Whether a pod has ended."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def node_of(pod: Obj | None) -> str:
    """The node that a pod is assigned to, or ""."""
    return str(((pod or {}).get("spec") or {}).get("nodeName") or "")


def requests(pod: Obj) -> dict[str, int]:
    """What a pod's containers request: cpu in milli-CPU, all else in units."""
    total: dict[str, int] = defaultdict(int)
    for container in pod["spec"].get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] += parse_milli(amount) if name == "cpu" else parse_value(amount)
    return total


def annotations_of(obj: Obj | None) -> dict[str, str]:
    """The annotations of an object."""
    return ((obj or {}).get("metadata") or {}).get("annotations") or {}


def bound_by(entry: Entry) -> bool:
    """Whether this entry assigned a pod to a node."""
    return entry.bucket == "pod" and bool(node_of(entry.new)) and not node_of(entry.old)


class Invariant:
    """One rule. `see` is told each entry after the objects of the history follow it; `end` is asked in the end."""

    def __init__(self, history: History) -> None:
        self.history = history

    @property
    def name(self) -> str:
        """The name of the rule."""
        return type(self).__name__

    def see(self, entry: Entry) -> Iterator[str]:
        """What this entry breaks."""
        return iter(())

    def end(self) -> Iterator[str]:
        """What is broken when everything should be well again."""
        return iter(())

    def pods(self) -> Iterator[Obj]:
        """Pods that hold what they request on a node."""
        return (pod for pod in self.history.of("pod").values() if node_of(pod) and not finished(pod))

    def pods_of(self, node: str) -> Iterator[Obj]:
        """Those of one node."""
        return (pod for pod in self.pods() if node_of(pod) == node)


class NodeNotOvercommitted(Invariant):
    """Pods are assigned to a node only while their requests fit into its CPU, memory and pod places."""

    def see(self, entry: Entry) -> Iterator[str]:
        if not bound_by(entry):
            return
        name = node_of(entry.new)
        node = self.history.of("node").get(name)
        if node is None:
            return
        room = (node.get("status") or {}).get("allocatable") or {}
        total: dict[str, int] = defaultdict(int)
        count = 0
        for pod in self.pods_of(name):
            count += 1
            for resource, amount in requests(pod).items():
                total[resource] += amount
        for resource, parse in (("cpu", parse_milli), ("memory", parse_value)):
            if total[resource] > parse(room.get(resource, "0")):
                yield f"{entry.key} on {name}: {resource} {total[resource]} of {parse(room.get(resource, '0'))}"
        if count > parse_value(room.get("pods", "110")):
            yield f"{entry.key} on {name}: {count} pods"


class DeviceOnce(Invariant):
    """No card is given away beyond its 100 %."""

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or DEVICE_ALLOCATED not in annotations_of(entry.new):
            return
        used: dict[tuple[str, str, int], int] = defaultdict(int)
        for pod in self.pods():
            text = annotations_of(pod).get(DEVICE_ALLOCATED)
            if not text:
                continue
            for kind, cards in orjson.loads(text).items():
                for card in cards:
                    amounts = card.get("resources") or {}
                    share = parse_value(amounts.get("koordinator.sh/gpu-core", amounts.get("koordinator.sh/rdma", "0")))
                    used[node_of(pod), kind, int(card.get("minor", 0))] += share
        for (node, kind, minor), share in used.items():
            if share > 100:
                yield f"{kind} {minor} of {node} is given away to {share} %"


class ExclusiveCpuOnce(Invariant):
    """No CPU is exclusive to two pods."""

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or RESOURCE_STATUS not in annotations_of(entry.new):
            return
        owner: dict[tuple[str, int], str] = {}
        for pod in self.pods():
            text = annotations_of(pod).get(RESOURCE_STATUS)
            if not text or (pod["metadata"].get("labels") or {}).get("koordinator.sh/qosClass") not in ("LSR", "LSE"):
                continue
            for cpu in _cpus(orjson.loads(text).get("cpuset", "")):
                other = owner.setdefault((node_of(pod), cpu), pod["metadata"]["name"])
                if other != pod["metadata"]["name"]:
                    yield f"CPU {cpu} of {node_of(pod)} is exclusive to {other} and {pod['metadata']['name']}"


def _cpus(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


class QuotaWithinMax(Invariant):
    """Pods of a quota are assigned only within its max."""

    def see(self, entry: Entry) -> Iterator[str]:
        if not bound_by(entry):
            return
        label = (entry.obj["metadata"].get("labels") or {}).get(QUOTA_LABEL)
        quota = next((q for q in self.history.of(QUOTA).values() if q["metadata"]["name"] == label), None)
        if quota is None:
            return
        most = (quota.get("spec") or {}).get("max") or {}
        total: dict[str, int] = defaultdict(int)
        for pod in self.pods():
            if (pod["metadata"].get("labels") or {}).get(QUOTA_LABEL) == label:
                for resource, amount in requests(pod).items():
                    total[resource] += amount
        for resource, limit in most.items():
            bound = parse_milli(limit) if resource == "cpu" else parse_value(limit)
            if total[resource] > bound:
                yield f"{entry.key}: quota {label} has {resource} {total[resource]} of {bound}"


class BoundOnce(Invariant):
    """A pod is assigned once and stays where it is."""

    def see(self, entry: Entry) -> Iterator[str]:
        old, new = entry.old, entry.new
        if entry.bucket != "pod" or old is None or new is None or not node_of(old) or node_of(new) == node_of(old):
            return
        if new["metadata"]["uid"] == old["metadata"]["uid"]:
            yield f"{entry.key} was on {node_of(old)} and is on {node_of(new)}"


class BoundIsScheduled(Invariant):
    """A pod that has a node is never told that it was not scheduled."""

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == "pod" and role_of(entry.author) == "scheduler" and node_of(entry.new):
            for condition in ((entry.new or {}).get("status") or {}).get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    yield f"{entry.key} is on {node_of(entry.new)} and was told {condition.get('reason')}"


class OneLeaderWrites(Invariant):
    """A process writes nothing for its role once another one holds the lease."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._holder: dict[str, str] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        role = role_of(entry.author)
        if entry.bucket == LEASE and entry.new is not None:
            name = entry.new["metadata"]["name"]
            if name in LEASES.values():
                holder = (entry.new.get("spec") or {}).get("holderIdentity") or ""
                self._holder[name] = entry.author if holder else ""
            return
        lease = LEASES.get(role)
        if lease is None or entry.bucket in _ANYBODYS:
            return
        holder = self._holder.get(lease)
        if holder and holder != entry.author:
            yield f"{entry.author} wrote {entry.request} while {holder} leads"


class EvictedOnce(Invariant):
    """No pod is asked to leave twice, nor one that has ended, nor by anybody who gives no reason."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._asked: dict[str, str] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or role_of(entry.author) not in ("scheduler", "descheduler", "manager"):
            return
        leaving = entry.verb == "DELETED" or (
            bool(((entry.new or {}).get("metadata") or {}).get("deletionTimestamp"))
            and not ((entry.old or {}).get("metadata") or {}).get("deletionTimestamp")
        )
        if not leaving:
            return
        uid = entry.obj["metadata"]["uid"]
        if uid in self._asked:
            yield f"{entry.key} was asked to leave by {self._asked[uid]} and again by {entry.author}"
        self._asked[uid] = entry.author
        conditions = (entry.obj.get("status") or {}).get("conditions") or ()
        if role_of(entry.author) == "scheduler" and not any(c["type"] == "DisruptionTarget" for c in conditions):
            yield f"{entry.key} was removed by {entry.author} without a reason"


class OneNodeMakesRoom(Invariant):
    """For one pod that needs room, pods of one node are asked to leave, and the gangs of these."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._nodes: dict[str, set[str]] = defaultdict(set)
        self._gangs: dict[str, set[str]] = defaultdict(set)

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket not in ("event", "event.events.k8s.io") or entry.verb != "ADDED" or entry.obj.get("reason") != "Preempted":
            return
        note = str(entry.obj.get("note") or entry.obj.get("message") or "")
        regarding = entry.obj.get("regarding") or entry.obj.get("involvedObject") or {}
        preemptor = note.partition("Preempted by ")[2].partition(" on node ")[0]
        node = note.partition(" on node ")[2].split(" ")[0].rstrip(".")
        victim = self.history.of("pod").get(f"{regarding.get('namespace')}/{regarding.get('name')}")
        gang = annotations_of(victim).get(GANG, "")
        if not preemptor.startswith("pod ") or not node:
            return
        nodes, gangs = self._nodes[preemptor], self._gangs[preemptor]
        if nodes and node not in nodes and not (gang and gang in gangs):
            yield f"for {preemptor} pods of {', '.join(sorted(nodes | {node}))} were removed (last {regarding.get('name')})"
        nodes.add(node)
        gangs.add(gang)


class MoveHasAPlace(Invariant):
    """A pod is moved only when a place for it is held (reservation first), or the job says that it needs none."""

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or role_of(entry.author) != "descheduler" or "/eviction" not in entry.request:
            return
        uid = entry.obj["metadata"]["uid"]
        for job in self.history.of("podmigrationjob.scheduling.koordinator.sh").values():
            spec, status = job.get("spec") or {}, job.get("status") or {}
            if (spec.get("podRef") or {}).get("uid") != uid or spec.get("mode") == "EvictDirectly":
                continue
            name = (spec.get("reservationOptions") or {}).get("reservationRef", {}).get("name") or status.get("reservationName")
            held = self.history.of(RESERVATION).get(str(name))
            if held is None or (held.get("status") or {}).get("phase") not in ("Available", "Succeeded"):
                yield f"{entry.key} was evicted and its reservation {name} is {(held or {}).get('status', {}).get('phase', 'not there')}"


class NoPromiseFromSilence(Invariant):
    """A node whose agent is silent for longer than the limit offers no batch resources."""

    limit = 150.0  # degradeTimeMinutes of the world's configuration, and the manager's time to see it

    def end(self) -> Iterator[str]:
        for name, node in sorted(self.history.of("node").items()):
            offered = ((node.get("status") or {}).get("allocatable") or {}).get("kubernetes.io/batch-cpu")
            if offered is None or parse_value(offered) == 0:
                continue
            last = max(
                (e.time for e in self.history.entries if e.bucket == NODE_METRIC and e.key == name and e.author.startswith("kubelet")),
                default=None,
            )
            if last is None or self.history.clock() - last > self.limit:
                yield f"{name} offers batch-cpu {offered}; its agent reported last at {last}"


@dataclass
class Gang:
    """What is known of one gang."""

    least: int
    members: set[str] = field(default_factory=set)


class GangWhole(Invariant):
    """When all is calm a gang has at least its minimum of members on nodes, or none that it never had whole."""

    def end(self) -> Iterator[str]:
        members: dict[str, list[Obj]] = defaultdict(list)
        for pod in self.history.of("pod").values():
            gang = annotations_of(pod).get(GANG)
            if gang and not pod["metadata"].get("deletionTimestamp"):
                members[gang].append(pod)
        for gang, pods in sorted(members.items()):
            least = int(annotations_of(pods[0]).get(GANG_MIN, "1"))
            placed = sum(1 for pod in pods if node_of(pod))
            ever = {e.obj["metadata"]["uid"] for e in self.history.entries if bound_by(e) and annotations_of(e.new).get(GANG) == gang}
            if 0 < placed < least and len(ever) < least:
                yield f"{gang}: {placed} of {len(pods)} members have a node, its minimum is {least}"


class WhatFitsIsBound(Invariant):
    """When all is calm no pod waits that fits onto a node by its plain requests."""

    def end(self) -> Iterator[str]:
        free: dict[str, dict[str, int]] = {}
        for name, node in self.history.of("node").items():
            room = (node.get("status") or {}).get("allocatable") or {}
            if (node.get("spec") or {}).get("unschedulable") or (node.get("spec") or {}).get("taints"):
                continue
            free[name] = {key: parse_milli(value) if key == "cpu" else parse_value(value) for key, value in room.items()}
        held = [r for r in self.history.of(RESERVATION).values() if (r.get("status") or {}).get("phase") == "Available"]
        for pod in self.pods():
            for resource, amount in requests(pod).items():
                if resource in free.get(node_of(pod), {}):
                    free[node_of(pod)][resource] -= amount
        for key, pod in sorted(self.history.of("pod").items()):
            if node_of(pod) or finished(pod) or pod["metadata"].get("deletionTimestamp") or annotations_of(pod).get(GANG) or held:
                continue
            if (pod["metadata"].get("labels") or {}).get(QUOTA_LABEL):
                continue
            wants = requests(pod)
            for place, left in sorted(free.items()):
                if all(left.get(resource, 0) >= amount for resource, amount in wants.items()):
                    yield f"{key} waits although {place} has room for {dict(wants)}"
                    break


class LeadersLead(Invariant):
    """When all is calm each role has a leader."""

    def end(self) -> Iterator[str]:
        for role, name in LEASES.items():
            if not any(seat for seat in self.history.seats if role_of(seat) == role):
                continue
            lease = self.history.of(LEASE).get(f"koordinator-system/{name}")
            renewals = [e.time for e in self.history.entries if e.bucket == LEASE and e.key.endswith(f"/{name}")]
            holder = ((lease or {}).get("spec") or {}).get("holderIdentity")
            if not holder or not renewals or self.history.clock() - renewals[-1] > 20:
                yield f"nobody renews {name}; the holder is {holder!r}"


class NobodyCrashes(Invariant):
    """A role ends because it is asked to or has lost its lease, and of nothing else."""

    allowed = ("lost", "lease", "ended", "the first webhook sync")

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "ended" and role_of(entry.key) in LEASES and not any(word in entry.text for word in self.allowed):
            yield f"{entry.key} ended: {entry.text}"


class ItSettles(Invariant):
    """When all is calm schedulers and deschedulers write nothing again and again.

    A pod may still be bound late: what a node offers to batch pods follows its use, which goes on changing.
    """

    seconds = 20.0
    most = 3  # writes of one object: annotations, the binding, a condition

    def end(self) -> Iterator[str]:
        since = self.history.clock() - self.seconds
        late: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        for entry in reversed(self.history.entries):
            if entry.time <= since:
                break
            if role_of(entry.author) in ("scheduler", "descheduler") and entry.bucket not in _ANYBODYS | {QUOTA}:
                late[entry.bucket, entry.key].append(entry)
        for (_, key), entries in sorted(late.items()):
            if len(entries) > self.most:
                yield f"{len(entries)} writes of {key} in the last {self.seconds:.0f} s, the last {entries[0].author} {entries[0].request}"


INVARIANTS: tuple[type[Invariant], ...] = (
    NodeNotOvercommitted,
    DeviceOnce,
    ExclusiveCpuOnce,
    QuotaWithinMax,
    BoundOnce,
    BoundIsScheduled,
    OneLeaderWrites,
    EvictedOnce,
    OneNodeMakesRoom,
    MoveHasAPlace,
    NoPromiseFromSilence,
    GangWhole,
    WhatFitsIsBound,
    LeadersLead,
    NobodyCrashes,
    ItSettles,
)


class Checker:
    """Holds all invariants against a history while it happens."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.invariants = [kind(history) for kind in INVARIANTS]
        self.violations: list[Violation] = []
        history.watchers.append(self.see)

    def see(self, entry: Entry) -> None:
        """One entry."""
        for invariant in self.invariants:
            for text in invariant.see(entry):
                self.violations.append(Violation(entry.time, entry.number, invariant.name, text))

    def end(self) -> None:
        """The world is calm: everything must be well."""
        for invariant in self.invariants:
            for text in invariant.end():
                self.violations.append(Violation(self.history.clock(), len(self.history.entries), invariant.name, text))
