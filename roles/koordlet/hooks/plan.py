"""From answers to writes, ordered by cgroup level. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from roles.koordlet.actuation.writes import NODE, About, Batch, Merge, Write
from roles.koordlet.hooks.asking import Answers
from roles.koordlet.host.cgroup_files import CFS_PERIOD_US, quota_of


@dataclass(frozen=True, slots=True)
class Target:
    """A field of an answer that is a cgroup file."""

    resource: str
    merge: Merge = Merge.NONE


def _usual(directory: str) -> int:
    return CFS_PERIOD_US


#: Answer field -> file. The order is that of writing within a directory.
TARGETS: dict[str, Target] = {
    "cpuset": Target("cpuset.cpus"),
    "cpu_shares": Target("cpu.shares"),
    "cpu_quota": Target("cpu.cfs_quota_us", Merge.LARGER_QUOTA),
    "memory_limit": Target("memory.limit_in_bytes", Merge.LARGER),
    "bvt": Target("cpu.bvt_warp_ns"),
    "cpu_idle": Target("cpu.idle"),
    "net_classid": Target("net_cls.classid"),
}


def writes(
    answers: Answers,
    directory: str,
    about: About = NODE,
    period: Callable[[str], int] = _usual,
    native: Mapping[str, int | str] = MappingProxyType({}),
    answered: Mapping[str, int | str] = MappingProxyType({}),
) -> list[tuple[str, Write]]:
    """What answers mean for a directory, each with the hook that wants it. ``period`` is a directory's CFS period in µs; ``native`` what
    the runtime would have set by itself, and ``answered`` what it was told instead, by the answer's field."""
    out: list[tuple[str, Write]] = []
    for name, target in TARGETS.items():
        value = getattr(answers.answer, name)
        # an empty cpuset erases that of a request; an existing directory keeps its CPUs
        if value is None or value == "":
            continue
        if name == "cpu_quota":
            value = quota_of(value, period(directory))
        own, told = (_text(name, values.get(name), period(directory)) for values in (native, answered))
        write = Write(target.resource, directory, str(value), merge=target.merge, about=about, native=own, answered=told)
        out.append((answers.owners[name], write))
    return out


def _text(name: str, value: int | str | None, period: int) -> str | None:
    """A container's value as :class:`Write` has it."""
    if value is None:
        return None
    return str(quota_of(int(value), period) if name == "cpu_quota" else value)


@dataclass(frozen=True, slots=True)
class Job:
    """A batch with the hook that wants it."""

    hook: str
    batch: Batch


def jobs(levels: Sequence[Sequence[tuple[str, Write]]]) -> tuple[Job, ...]:
    """Batches by hook, each with all levels (outermost first), so that a limit never passes its parent's."""
    hooks = dict.fromkeys(hook for level in levels for hook, _ in level)
    return tuple(Job(hook, Batch(tuple(tuple(w for owner, w in level if owner == hook) for level in levels))) for hook in hooks)
