"""What the leaving of a pod costs: what its owner says, and the work that would be done again (DS-LNL-06, DS-ARB-01). Pure."""

from __future__ import annotations

from math import log2

from koord.api import names
from koord.api.gangs import gang_id
from koord.api.objects import Pod
from roles.descheduler.snapshot import time_of

NEVER = 2**31 - 1
_INT32 = range(-(2**31), 2**31)


def canonical_int32(text: str | None) -> int | None:
    """A canonical decimal int32 ("-5", "0", "12"); None for everything else, "+1" and "007" too."""
    if not text:
        return None
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or (digits[0] == "0" and text != "0"):
        return None
    value = int(text)
    return value if value in _INT32 else None


def eviction_cost(pod: Pod) -> int:
    """Annotation scheduling.koordinator.sh/eviction-cost; an invalid value counts as 0, 2147483647 means never."""
    annotations = pod.metadata.annotations
    return (canonical_int32(annotations.get(names.ANNOTATION_EVICTION_COST)) or 0) if annotations else 0


def runs_to_its_end(pod: Pod) -> bool:
    """Whether the pod is a part of work that begins anew when it leaves: of a Job, of a gang, or one that says when it was last saved."""
    owner, annotations = pod.metadata.controller, pod.metadata.annotations
    of_a_job = owner is not None and owner.kind == "Job"
    return of_a_job or names.ANNOTATION_LAST_CHECKPOINT in annotations or bool(gang_id(pod))


def lost(pod: Pod, now: float) -> float:
    """Seconds of work that would be done again if the pod left now: since its last checkpoint (annotation, RFC 3339), else since it
    started. 0 for a pod that serves, and for one that has not started. `now` is in seconds since the epoch."""
    if not runs_to_its_end(pod):
        return 0.0
    found = [time_of(pod.status.start_time), time_of(pod.metadata.annotations.get(names.ANNOTATION_LAST_CHECKPOINT))]
    known = [at for at in found if at is not None and at <= now]  # a checkpoint from the future says nothing
    return now - max(known) if known and found[0] is not None else 0.0


def restart_cost(pod: Pod, now: float) -> int:
    """`lost` in steps that double from a minute on: pods of one step cost about the same, so that other things decide between them."""
    return int(log2(1.0 + lost(pod, now) / 60.0))
