"""Who may write the keys of a pod that change a host or an allocation, and within which bounds (BEY-SEC-03).

One table for all who enforce it: the pod webhook of koord-manager, the ValidatingAdmissionPolicy of ``configs/install``, the clamps
of koordlet, ``koord lint`` and the reference page. Constants and pure functions only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from koord.api import annotations_agent as agent
from koord.api import names
from koord.api.annotations_core import AnnotationError, Annotations, read_json

SCHEDULER_ACCOUNT: Final = "koord-scheduler"
GROUP_PREFIX: Final = "group:"


class Writer(StrEnum):
    """Who may set, change or take off a key. An owner is whoever may write the pod."""

    SCHEDULER = "scheduler"
    NOBODY = "nobody"
    """The scheduler keeps such pods in its memory and never writes them."""
    SPEC = "manager"
    """koord-manager writes it at admission, and it has to say what the pod's spec says."""
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Smallest and largest accepted whole number."""

    low: int
    high: int

    def clamp(self, value: int) -> int:
        return min(max(value, self.low), self.high)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Rule:
    """One key. ``bounds`` are those of the members of its JSON object, by name; ``words`` those that a member may hold."""

    key: str
    writer: Writer
    effect: str
    """What it changes."""
    cap: str = ""
    """What koordlet allows on its node, whoever wrote it."""
    bounds: Mapping[str, Bounds] | None = None
    words: Mapping[str, tuple[str, ...]] | None = None
    label: bool = False


PERCENT: Final = Bounds(0, 100)
SWITCH: Final = Bounds(0, 1)
BURST_POLICIES: Final = ("none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto")
MEMORY_POLICIES: Final = ("", "default", "none", "auto")
CPU_BURST_BOUNDS: Final[Mapping[str, Bounds]] = {
    "cpuBurstPercent": Bounds(0, 10_000),
    "cfsQuotaBurstPercent": Bounds(100, 10_000),
    "cfsQuotaBurstPeriodSeconds": Bounds(-1, 86_400),
}
MEMORY_QOS_BOUNDS: Final[Mapping[str, Bounds]] = {
    "minLimitPercent": PERCENT,
    "lowLimitPercent": PERCENT,
    "throttlingPercent": PERCENT,
    "wmarkRatio": PERCENT,
    "wmarkScalePermill": Bounds(1, 1000),
    "wmarkMinAdj": Bounds(-25, 50),
    "priorityEnable": SWITCH,
    "priority": Bounds(0, 12),
    "oomKillGroup": SWITCH,
    "pageCacheLimitPercent": PERCENT,
    "pageCacheLimitSize": Bounds(0, 2**63 - 1),
}
IO_BOUNDS: Final[Mapping[str, Bounds]] = {
    **dict.fromkeys(("readIOPS", "writeIOPS", "readBPS", "writeBPS"), Bounds(0, 2**63 - 1)),
    "ioWeightPercent": Bounds(1, 100),
}
#: Lower scores than that of a Guaranteed pod would outlive the kubelet and the container runtime.
OOM_SCORE_BOUNDS: Final = Bounds(-997, 1000)
BEST_EFFORT_OOM_SCORE_BOUNDS: Final = Bounds(0, 1000)
#: Evictions that protect the node itself: no owner's list keeps a best-effort pod out of them.
NODE_PROTECTION: Final = frozenset({"BEMemoryEvict", "MemoryEvict", "MemoryAllocatableEvict"})
_TOLD: Final = 80  # characters of a value in a message


def _scheduler(effect: str, cap: str, *keys: str) -> tuple[Rule, ...]:
    return tuple(Rule(key, Writer.SCHEDULER, effect, cap) for key in keys)


TABLE: Final[tuple[Rule, ...]] = (
    *_scheduler(
        "CPUs and NUMA nodes of the pod.",
        "Obeyed for pods that ask for whole CPUs of their own (class LSE or LSR, or a node that binds all), never more than they request, "
        "on CPUs that the node has and the kubelet has not given away.",
        names.ANNOTATION_RESOURCE_STATUS,
    ),
    *_scheduler(
        "GPUs, RDMA devices and other devices of the pod.",
        "Obeyed for device types and amounts that the pod requests.",
        names.ANNOTATION_DEVICE_ALLOCATED,
    ),
    *_scheduler("Cards of the pod, for device plugins.", "", names.ANNOTATION_GPU_MINORS, names.ANNOTATION_BIND_TIMESTAMP),
    *_scheduler(
        "Reserved resources that the pod uses.",
        "",
        names.ANNOTATION_RESERVATION_ALLOCATED,
        names.ANNOTATION_RESERVATION_CURRENT_OWNER,
        names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE,
    ),
    *_scheduler(
        "Gang that the pod was bound with.",
        "",
        names.ANNOTATION_BIND_GANG_GROUP_ID,
        names.ANNOTATION_BIND_GANG_GROUP_ID_DEPRECATED,
        names.ANNOTATION_BIND_GANG_MEMBER_COUNT,
        names.ANNOTATION_BIND_GANG_MEMBER_COUNT_DEPRECATED,
    ),
    *(
        Rule(key, Writer.NOBODY, "Mark of a reserve pod, which exists in the scheduler's memory only.")
        for key in (
            names.ANNOTATION_RESERVE_POD,
            names.ANNOTATION_RESERVATION_NAME,
            names.ANNOTATION_RESERVATION_NODE,
            names.ANNOTATION_IS_PRE_ALLOCATION,
        )
    ),
    Rule(
        names.ANNOTATION_EXTENDED_RESOURCE_SPEC,
        Writer.SPEC,
        "Shares, CPU quota and memory limit of best-effort pods.",
        "The pod's spec counts where the kubelet lists it.",
    ),
    Rule(
        names.ANNOTATION_CPU_BURST,
        Writer.OWNER,
        "Burst buffer and CFS quota of the pod.",
        "Percentages and period up to the node's; quota burst only where the node's policy has it (or --allow-pod-quota-burst).",
        CPU_BURST_BOUNDS,
        {"policy": BURST_POLICIES},
    ),
    Rule(
        names.ANNOTATION_MEMORY_QOS,
        Writer.OWNER,
        "Protection, throttling and OOM order of the pod's memory.",
        "Protection up to the pod's own request; best-effort pods get no better watermark and OOM priority than their class.",
        MEMORY_QOS_BOUNDS,
        {"policy": MEMORY_POLICIES},
    ),
    Rule(
        names.ANNOTATION_CPU_QOS,
        Writer.OWNER,
        "Group identity of an LS pod.",
        "Only where group identity is on for the class, and not above the node's value for LS.",
        {"groupIdentity": Bounds(*agent.GROUP_IDENTITY_RANGE)},
    ),
    Rule(
        names.ANNOTATION_BLKIO_QOS,
        Writer.OWNER,
        "Limits and weight of the pod's disks.",
        "Weights and limits of the pod's own group only.",
        IO_BOUNDS,
    ),
    Rule(
        names.ANNOTATION_NETWORK_QOS,
        Writer.OWNER,
        "Bandwidth of the pod.",
        "Up to the limit of the pod's class and to the node's total.",
    ),
    Rule(
        names.ANNOTATION_RESCTRL,
        Writer.OWNER,
        "Cache and memory bandwidth of the pod.",
        "Best-effort pods stay within their class.",
    ),
    Rule(
        names.ANNOTATION_OOM_SCORE_ADJ,
        Writer.OWNER,
        "OOM score of the pod's processes.",
        f"{OOM_SCORE_BOUNDS.low} to {OOM_SCORE_BOUNDS.high}; best-effort pods from {BEST_EFFORT_OOM_SCORE_BOUNDS.low}.",
    ),
    Rule(
        names.ANNOTATION_OOM_SCORE_ADJ_SPEC,
        Writer.OWNER,
        "The same for single containers.",
        f"{OOM_SCORE_BOUNDS.low} to {OOM_SCORE_BOUNDS.high}; best-effort pods from {BEST_EFFORT_OOM_SCORE_BOUNDS.low}.",
    ),
    Rule(
        names.ANNOTATION_EVICTION_POLICY,
        Writer.OWNER,
        "Which evictions may take the pod.",
        "Best-effort pods that a list keeps out of memory evictions come last in them, but they come.",
    ),
    Rule(
        names.LABEL_CORE_SCHED_GROUP_ID,
        Writer.OWNER,
        "Pods that may share a core.",
        "A group is of one namespace.",
        label=True,
    ),
)

RULES: Final[Mapping[str, Rule]] = {rule.key: rule for rule in TABLE}
RESERVED: Final[tuple[str, ...]] = tuple(rule.key for rule in TABLE if rule.writer is Writer.SCHEDULER)
OWNED: Final[tuple[str, ...]] = tuple(rule.key for rule in TABLE if rule.writer is Writer.OWNER and not rule.label)
"""Annotations of owners."""
FORBIDDEN: Final[tuple[str, ...]] = tuple(rule.key for rule in TABLE if rule.writer is Writer.NOBODY)


def unplaced(annotations: Mapping[str, str]) -> dict[str, str]:
    """A pod's annotations as its successor will have them: without what the scheduler gave to it on its node."""
    return {key: value for key, value in annotations.items() if key not in RESERVED}


def default_writers(namespace: str) -> tuple[str, ...]:
    """Users and groups that write allocations where nothing else is configured; ``namespace`` is that of koord's own roles."""
    return (
        f"system:serviceaccount:{namespace}:{SCHEDULER_ACCOUNT}",
        "system:kube-scheduler",
        f"{GROUP_PREFIX}system:masters",
    )


def is_writer(username: str, groups: Iterable[str], writers: Iterable[str]) -> bool:
    """Whether a user is one of ``writers``: names of users, or ``group:NAME``."""
    accepted = frozenset(writers)
    return username in accepted or any(f"{GROUP_PREFIX}{group}" in accepted for group in groups)


def changed(keys: Iterable[str], new: Annotations, old: Annotations) -> list[str]:
    """Keys that a write sets, changes or takes off; without ``old`` those that are there."""
    before, after = old or {}, new or {}
    if not before and not after:
        return []
    return [key for key in keys if before.get(key) != after.get(key)]


def out_of_bounds(key: str, annotations: Annotations) -> Iterator[str]:
    """What is wrong with the value of an owner's annotation: not readable, or beyond its bounds. Nothing where it is absent."""
    if key not in OWNED or key not in (annotations or {}):
        return
    rule = RULES[key]
    try:
        found = _READERS[key](annotations)
    except AnnotationError as error:
        yield str(error)
        return
    yield from _beyond(rule, found)


def readable(key: str, annotations: Annotations) -> bool:
    """Whether an owner's annotation can be read at all; one that cannot counts as absent."""
    try:
        _READERS[key](annotations)
    except AnnotationError:
        return False
    return True


def _beyond(rule: Rule, found: Any) -> Iterator[str]:
    blocks = [found] if isinstance(found, dict) else []
    if rule.key == names.ANNOTATION_BLKIO_QOS:
        blocks = [entry.get("ioCfg") for entry in (found or {}).get("blocks") or ()]
    for block in blocks:
        if not isinstance(block, dict):
            continue
        for member, bounds in (rule.bounds or {}).items():
            value = block.get(member)
            if value is not None and value not in bounds:
                yield f'metadata.annotations["{rule.key}"]: {member}: {_shown(value)} is not in {bounds.low}..{bounds.high}'
        for member, words in (rule.words or {}).items():
            value = block.get(member)
            if value is not None and value not in words:
                accepted = ", ".join(word for word in words if word)
                yield f'metadata.annotations["{rule.key}"]: {member}: {_shown(value)} is not known; accepted: {accepted}'


def _shown(value: Any) -> str:
    """As much of a value as is worth telling: who is told may not be who wrote it."""
    text = repr(value)
    return text if len(text) <= _TOLD else f"{text[:_TOLD]}…"


def _eviction_policies(annotations: Annotations) -> None:
    read_json(annotations, names.ANNOTATION_EVICTION_POLICY, tuple[str, ...])


_READERS: Final = {
    names.ANNOTATION_CPU_BURST: agent.parse_cpu_burst,
    names.ANNOTATION_MEMORY_QOS: agent.parse_memory_qos,
    names.ANNOTATION_CPU_QOS: agent.parse_cpu_qos,
    names.ANNOTATION_BLKIO_QOS: agent.parse_blkio_qos,
    names.ANNOTATION_NETWORK_QOS: agent.parse_network_qos,
    names.ANNOTATION_RESCTRL: agent.parse_resctrl,
    names.ANNOTATION_OOM_SCORE_ADJ: agent.parse_oom_score_adj,
    names.ANNOTATION_OOM_SCORE_ADJ_SPEC: agent.parse_oom_score_adj_spec,
    names.ANNOTATION_EVICTION_POLICY: _eviction_policies,
}


def bounded(key: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """The members of an owner's JSON object with their numbers drawn into the bounds."""
    bounds = RULES[key].bounds or {}
    return {name: bounds[name].clamp(value) if name in bounds and isinstance(value, int) else value for name, value in block.items()}
