"""Priority classes: bands, defaults, resolution and the resource names they stand for (API-PRIO-01, API-RES-01)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from koord.api import names
from koord.api.qos import QoSClass, pod_qos

if TYPE_CHECKING:
    from koord.api.objects import Pod


class PriorityClass(StrEnum):
    """Koordinator's priority classes; NONE is anything else."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"
    NONE = ""


class PriorityError(ValueError):
    """A sub-priority label that is no int32."""


# inclusive ranges of spec.priority; the PriorityClass objects that are shipped have the lower end
BANDS: Final[dict[PriorityClass, tuple[int, int]]] = {
    PriorityClass.PROD: (9000, 9999),
    PriorityClass.MID: (7000, 7999),
    PriorityClass.BATCH: (5000, 5999),
    PriorityClass.FREE: (3000, 3999),
}
# what a pod of the class counts as when it has no value of its own
DEFAULT_VALUES: Final[dict[PriorityClass, int]] = {
    PriorityClass.PROD: 9500,
    PriorityClass.MID: 7500,
    PriorityClass.BATCH: 5500,
    PriorityClass.FREE: 3500,
    PriorityClass.NONE: 0,
}

_BY_TEXT = {str(member): member for member in PriorityClass}
_BY_QOS = {
    QoSClass.SYSTEM: PriorityClass.PROD,
    QoSClass.LSE: PriorityClass.PROD,
    QoSClass.LSR: PriorityClass.PROD,
    QoSClass.LS: PriorityClass.PROD,
    QoSClass.BE: PriorityClass.BATCH,
}

# class -> native name -> the name under which that class consumes it (batch-cpu and mid-cpu count milli-cores)
TRANSLATION: Final[dict[PriorityClass, dict[str, str]]] = {
    PriorityClass.BATCH: {names.RESOURCE_CPU: names.RESOURCE_BATCH_CPU, names.RESOURCE_MEMORY: names.RESOURCE_BATCH_MEMORY},
    PriorityClass.MID: {names.RESOURCE_CPU: names.RESOURCE_MID_CPU, names.RESOURCE_MEMORY: names.RESOURCE_MID_MEMORY},
}


def parse_class(text: str) -> PriorityClass:
    """The class of that name; NONE for any other text."""
    return _BY_TEXT.get(text, PriorityClass.NONE)


def class_of_value(priority: int | None) -> PriorityClass:
    """The class whose band holds the value."""
    if priority is not None:
        for priority_class, (low, high) in BANDS.items():
            if low <= priority <= high:
                return priority_class
    return PriorityClass.NONE


def priority_class_raw(labels: Mapping[str, str] | None, priority: int | None) -> PriorityClass:
    """The label ``koordinator.sh/priority-class`` decides alone if it is there (unknown text → NONE); else the band of the value."""
    if labels and (text := labels.get(names.LABEL_POD_PRIORITY_CLASS)) is not None:
        return parse_class(text)
    return class_of_value(priority)


def priority_class_with_default(labels: Mapping[str, str] | None, priority: int | None, qos: QoSClass) -> PriorityClass:
    """The raw class, else by QoS: SYSTEM, LSE, LSR, LS → prod, BE → batch. ``qos`` is the class *with default*."""
    raw = priority_class_raw(labels, priority)
    return raw if raw is not PriorityClass.NONE else _BY_QOS.get(qos, PriorityClass.NONE)


def priority_value_with_default(labels: Mapping[str, str] | None, priority: int | None, qos: QoSClass) -> int:
    """``spec.priority`` when set and not 0, else the default value of the class with default."""
    return priority if priority else DEFAULT_VALUES[priority_class_with_default(labels, priority, qos)]


def pod_priority_class_raw(pod: Pod) -> PriorityClass:
    """``priority_class_raw`` of a pod."""
    return priority_class_raw(pod.metadata.labels, pod.spec.priority)


def pod_priority_class(pod: Pod) -> PriorityClass:
    """``priority_class_with_default`` of a pod; QoS is only looked at when label and value do not decide."""
    raw = priority_class_raw(pod.metadata.labels, pod.spec.priority)
    return raw if raw is not PriorityClass.NONE else _BY_QOS.get(pod_qos(pod), PriorityClass.NONE)


def pod_priority_value(pod: Pod) -> int:
    """``priority_value_with_default`` of a pod."""
    return pod.spec.priority if pod.spec.priority else DEFAULT_VALUES[pod_priority_class(pod)]


_INTEGER = re.compile(
    r"([+-]?)(0[xX]_?[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*|0[bB]_?[01]+(?:_[01]+)*|0[oO]?_?[0-7]+(?:_[0-7]+)*|0|[1-9][0-9]*(?:_[0-9]+)*)",
    re.ASCII,
)


def sub_priority(labels: Mapping[str, str] | None) -> int:
    """The label ``koordinator.sh/priority`` as an int32; missing or empty is 0.

    The base is told by the prefix: ``0x``, ``0o``, ``0b``, and a leading zero means octal (``010`` is 8), so warn users of those.
    Raises PriorityError for anything else; callers then use 0.
    """
    text = labels.get(names.LABEL_POD_PRIORITY, "") if labels else ""
    if not text:
        return 0
    match = _INTEGER.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise PriorityError(f"label {names.LABEL_POD_PRIORITY}: {text[:64]!r} is not an integer")
    sign, digits = match.group(1), match.group(2).lower().replace("_", "")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xob":
        digits = "0o" + digits[1:]
    value = int(sign + digits, 0)
    if not -(1 << 31) <= value < 1 << 31:
        raise PriorityError(f"label {names.LABEL_POD_PRIORITY}: {text} is outside the range of int32")
    return value


def translate_resource_name(priority_class: PriorityClass, name: str) -> str:
    """The name under which a class consumes a resource; "" where the class has no such resource.

    Prod and none keep every name. Batch and mid know cpu and memory only. Free has no mapping at all.
    """
    if priority_class in (PriorityClass.PROD, PriorityClass.NONE):
        return name
    return TRANSLATION.get(priority_class, {}).get(name, "")
