"""What a gang is, read from a PodGroup or from a pod (SCH-GANG-01, SCH-GANG-02). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from koord.api import annotations as api
from koord.api import names
from koord.api.gangs import gang_id as gang_id_of
from koord.api.gangs import gang_name as gang_name_of
from koord.api.objects import PodGroup
from koord.api.times import parse_duration
from roles.scheduler.cluster.podinfo import PodInfo

FROM_POD_GROUP = "GangFromPodGroupCrd"
FROM_POD = "GangFromPodAnnotation"

_MODES = (names.GANG_MODE_STRICT, names.GANG_MODE_NON_STRICT)
_POLICIES = (names.GANG_MATCH_ONLY_WAITING, names.GANG_MATCH_WAITING_AND_RUNNING, names.GANG_MATCH_ONCE_SATISFIED)
_INT32 = 2**31
_NUMBER = re.compile(r"[+-]?[0-9]{1,12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a gang says nothing: `timeout` in seconds, and the match policy."""

    timeout: float = 600.0
    match_policy: str = names.GANG_MATCH_ONCE_SATISFIED


class Whole(Enum):
    """When the pods of a gang are preempted together."""

    BELOW_MINIMUM = "a gang below its minimum is of no use: above it pods go one by one"
    ALWAYS = "all of them or none"
    NEVER = "each by itself"


@dataclass(frozen=True, slots=True)
class GangSpec:
    """Parameters of a gang. `wait_time` in seconds; `groups` are the ids (namespace/name) of all gangs scheduled together with it, itself
    among them; `problems` tell what could not be taken as it was written."""

    min_number: int
    total: int
    mode: str
    match_policy: str
    wait_time: float
    groups: tuple[str, ...]
    topology: api.NetworkTopologyGatherSpec | None
    created: str
    origin: str
    problems: tuple[str, ...] = ()
    basic: bool = False  # pods of the group are scheduled each by itself, once the group is there
    domain: str = ""  # the label of nodes whose value all of its pods share
    whole: Whole = Whole.BELOW_MINIMUM
    priority: int | None = None  # what counts in preemption instead of the pods' own, None for those

    @property
    def strict(self) -> bool:
        """Whether all of its members are let go when one fails."""
        return self.mode != names.GANG_MODE_NON_STRICT

    @property
    def once_satisfied(self) -> bool:
        """Whether the minimum counts only until it was reached once; an unknown policy is taken for this one."""
        return self.match_policy not in (names.GANG_MATCH_ONLY_WAITING, names.GANG_MATCH_WAITING_AND_RUNNING)

    @property
    def group_id(self) -> str:
        """The identity of the gangs that are scheduled together."""
        return ",".join(sorted(self.groups))


def gang_name(pod: PodInfo) -> str:
    """The name of a pod's gang, "" for a pod without one."""
    return gang_name_of(pod.labels, pod.pod.metadata.annotations or {})


def gang_id(pod: PodInfo) -> str:
    """The id of a pod's gang, "" for a pod without one."""
    return gang_id_of(pod.pod)


def needs_pod_group(pod: PodInfo) -> bool:
    """Whether only an object can say what the pod's gang is."""
    return bool(pod.labels.get(names.LABEL_POD_GROUP)) or not gang_name(pod)


def from_pod_group(group: PodGroup, defaults: Defaults) -> GangSpec:
    """The gang of a PodGroup."""
    problems: list[str] = []
    minimum = group.spec.min_member
    if minimum < 0:
        problems.append(f"spec.minMember {minimum} is negative: taken for 0")
        minimum = 0
    seconds = group.spec.schedule_timeout_seconds
    if seconds is not None and seconds < 0:
        problems.append(f"spec.scheduleTimeoutSeconds {seconds} is negative: the default of {defaults.timeout:g} s holds")
    wait = float(seconds) if seconds is not None and seconds > 0 else defaults.timeout
    meta = group.metadata
    own = f"{meta.namespace}/{meta.name}"
    return _spec(own, meta.annotations or {}, minimum, wait, meta.creation_timestamp or "", FROM_POD_GROUP, defaults, problems)


def from_pod(pod: PodInfo, defaults: Defaults) -> GangSpec | None:
    """The gang that a pod describes; None when it has no valid minimum, so that it describes none."""
    annotations = pod.pod.metadata.annotations or {}
    text = minimum_text(pod)
    minimum = _int32(text)
    if minimum is None:
        return None
    problems: list[str] = []
    wait = _wait_time(annotations, defaults, problems)
    return _spec(gang_id(pod), annotations, minimum, wait, pod.pod.metadata.creation_timestamp or "", FROM_POD, defaults, problems)


def minimum_text(pod: PodInfo) -> str | None:
    """The minimum as the pod spells it, None without one."""
    label = pod.labels.get(names.LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED)
    return label or (pod.pod.metadata.annotations or {}).get(names.ANNOTATION_GANG_MIN_AVAILABLE)


def _spec(
    own: str, annotations: Mapping[str, str], minimum: int, wait: float, created: str, origin: str, defaults: Defaults, problems: list[str]
) -> GangSpec:
    return GangSpec(
        min_number=minimum,
        total=_total(annotations, minimum, problems),
        mode=_choice(annotations.get(names.ANNOTATION_GANG_MODE), _MODES, names.GANG_MODE_STRICT, names.ANNOTATION_GANG_MODE, problems),
        match_policy=_policy(annotations, defaults, problems),
        wait_time=wait,
        groups=_groups(own, annotations, problems),
        topology=_topology(annotations, problems),
        created=created,
        origin=origin,
        problems=tuple(problems),
    )


def _int32(text: str | None) -> int | None:
    """A whole number of 32 bits; None for anything else."""
    if not text or not _NUMBER.fullmatch(text):
        return None
    value = int(text)
    return value if -_INT32 <= value < _INT32 else None


def _total(annotations: Mapping[str, str], minimum: int, problems: list[str]) -> int:
    text = annotations.get(names.ANNOTATION_GANG_TOTAL_NUMBER)
    if not text:
        return minimum
    value = _int32(text)
    if value is None:
        problems.append(f"annotation {names.ANNOTATION_GANG_TOTAL_NUMBER}: {text[:64]!r} is no whole number: {minimum} (the minimum) holds")
    elif value < minimum:
        problems.append(f"annotation {names.ANNOTATION_GANG_TOTAL_NUMBER}: {value} is below the minimum {minimum}, which holds")
    return minimum if value is None or value < minimum else value


def _choice(text: str | None, accepted: tuple[str, ...], default: str, key: str, problems: list[str]) -> str:
    if not text or text in accepted:
        return text or default
    problems.append(f"annotation {key}: {text[:64]!r} is not known: {default} holds; accepted: {', '.join(accepted)}")
    return default


def _policy(annotations: Mapping[str, str], defaults: Defaults, problems: list[str]) -> str:
    default = defaults.match_policy or names.GANG_MATCH_ONCE_SATISFIED
    for key in (names.ANNOTATION_GANG_MATCH_POLICY, names.ANNOTATION_GANG_MATCH_POLICY_ALIAS):
        text = annotations.get(key)
        if text:
            return _choice(text, _POLICIES, default, key, problems)
    return default


def _wait_time(annotations: Mapping[str, str], defaults: Defaults, problems: list[str]) -> float:
    text = annotations.get(names.ANNOTATION_GANG_WAITING_TIME)
    if not text:
        return defaults.timeout
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        problems.append(f"annotation {names.ANNOTATION_GANG_WAITING_TIME}: {error}: the default of {defaults.timeout:g} s holds")
        return defaults.timeout
    if seconds <= 0:
        problems.append(f"annotation {names.ANNOTATION_GANG_WAITING_TIME}: {text[:64]!r} is not above 0: the default holds")
        return defaults.timeout
    return seconds


def _groups(own: str, annotations: Mapping[str, str], problems: list[str]) -> tuple[str, ...]:
    try:
        found = api.parse_gang_groups(annotations)
    except api.AnnotationError as error:
        problems.append(f"{error}: the gang is scheduled without its group")
        return (own,)
    if not found:
        return (own,)
    if own not in found:
        problems.append(f"annotation {names.ANNOTATION_GANG_GROUPS}: the gang itself, {own}, is not listed")
    return tuple(dict.fromkeys(found))


def _topology(annotations: Mapping[str, str], problems: list[str]) -> api.NetworkTopologyGatherSpec | None:
    try:
        return api.parse_gang_network_topology_spec(annotations)
    except api.AnnotationError as error:
        problems.append(f"{error}: the gang is placed without regard to the network")
        return None
