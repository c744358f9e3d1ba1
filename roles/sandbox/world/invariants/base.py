"""What an invariant is, and what invariants look at in objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from koord.api.quantity import parse_milli, parse_value
from roles.sandbox.world.configuration import LOUD
from roles.sandbox.world.history import LEASE

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History

Obj = dict[str, Any]

# buckets of entries
WORLD = ""  # what the world did
POD = "pod"
NODE = "node"
EVENTS = ("event", "event.events.k8s.io")
NODE_METRIC = "nodemetric.slo.koordinator.sh"
RESERVATION = "reservation.scheduling.koordinator.sh"
QUOTA = "elasticquota.scheduling.sigs.k8s.io"
DEVICE = "device.scheduling.koordinator.sh"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
GANG = "gang.scheduling.koordinator.sh/name"
GANG_MIN = "gang.scheduling.koordinator.sh/min-available"
MIGRATION_JOB = "podmigrationjob.scheduling.koordinator.sh"
BUDGET = "poddisruptionbudget.policy"
CLAIM = "resourceclaim.resource.k8s.io"
QUOTA_LABEL = "quota.scheduling.koordinator.sh/name"

# the lease of each role, and what a replica that does not lead may write
LEASES = {"scheduler": "koord-scheduler", "manager": "koordinator-manager", "descheduler": "koord-descheduler"}
ANYBODYS = frozenset(
    {
        LEASE,
        *EVENTS,
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


@lru_cache(maxsize=4096)
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


def written_in(obj: Obj | None, annotation: str) -> Obj:
    """The object that an annotation holds; an empty one where it cannot be read, as the roles take it: a tenant may have written it."""
    try:
        found = orjson.loads(annotations_of(obj).get(annotation) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def reservation_of(pod: Obj) -> str:
    """The name of the reservation that a pod came into, or ""."""
    return str(written_in(pod, ALLOCATED).get("name", ""))


def bound_by(entry: Entry) -> bool:
    """Whether this entry assigned a pod to a node."""
    return entry.bucket == "pod" and bool(node_of(entry.new)) and not node_of(entry.old)


def deaf_until(entry: Entry) -> tuple[str, float] | None:
    """Whose watches are refused from now on, and until when; it may take half a minute longer until it has heard of everything."""
    if entry.verb != "fault" or entry.key != "resume" or " of " not in entry.text:
        return None
    name, _, seconds = entry.text.partition(" of ")[2].partition(" for ")
    return name, entry.time + float(seconds.partition("s")[0])


def leaves(entry: Entry) -> bool:
    """Whether this entry asks a pod to leave, or removes it at once."""
    if entry.bucket != "pod":
        return False
    if entry.verb == "DELETED":
        return not ((entry.old or {}).get("metadata") or {}).get("deletionTimestamp")
    now, before = ((obj or {}).get("metadata") or {} for obj in (entry.new, entry.old))
    return bool(now.get("deletionTimestamp")) and not before.get("deletionTimestamp")


def owner_of(pod: Obj) -> str:
    """The UID of the workload that a pod belongs to, or ""."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return str(owners[0]["uid"]) if owners else ""


def picky(pod: Obj) -> bool:
    """Whether a pod asks for more of a node than room: some nodes only, other pods elsewhere, its like spread; or others shun it."""
    affinity = pod["spec"].get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    bound = any(required in (affinity.get(kind) or {}) for kind in ("nodeAffinity", "podAntiAffinity"))
    return bound or LOUD in (pod["metadata"].get("labels") or {}) or bool(pod["spec"].get("topologySpreadConstraints"))


def is_ready(pod: Obj) -> bool:
    """Whether a pod serves."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


class Invariant:
    """One rule. `see` is told each entry after the objects of the history follow it, of the buckets in `hears` if there are any; `end` is
    asked in the end."""

    hears: ClassVar[frozenset[str] | None] = None

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

    def open(self) -> bool:
        """Whether more time may still break or mend it in the end. A rule that gives time says so before that is over."""
        return any(True for _ in self.end())

    def pods(self) -> Iterator[Obj]:
        """Pods that hold what they request on a node."""
        return (pod for pod in self.history.of("pod").values() if node_of(pod) and not finished(pod))

    def pods_of(self, node: str) -> Iterator[Obj]:
        """Those of one node."""
        return iter(self.history.placed.get(node, {}).values())


def free(invariant: Invariant, name: str) -> dict[str, int]:
    """What the pods of a node leave of its allocatable; cpu in milli-CPU."""
    node = invariant.history.of("node").get(name) or {}
    room = {
        key: parse_milli(value) if key == "cpu" else parse_value(value)
        for key, value in ((node.get("status") or {}).get("allocatable") or {}).items()
    }
    for pod in invariant.pods_of(name):
        for resource, amount in requests(pod).items():
            if resource in room:
                room[resource] -= amount
    return room
