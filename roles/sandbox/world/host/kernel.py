"""The kernel of a modelled machine: its cgroups, what it takes and what it refuses (pure but for telling what changed).

The rules are those of the documentation of cgroup v1 and v2. Values are kept as numbers and shown as the kernel shows them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from roles.sandbox.world.host.layout import (
    BURST,
    BVT,
    CPUS,
    HIGH,
    IDLE,
    LIMIT,
    LOW,
    MEMSW,
    MIN,
    PERIOD,
    PERIOD_US,
    QUOTA,
    SHARES,
    UNLIMITED,
    Layout,
    cpu_list,
    cpu_text,
)
from roles.sandbox.world.host.pressure import Pressure

_PAGE = 4096
_BYTES = (LIMIT, MEMSW, MIN, LOW, HIGH)


class Refused(OSError):
    """The kernel does not take a value."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, f"{errno.errorcode[number]}: {why}")


@dataclass(slots=True)
class Group:
    """One cgroup. CPU in µs a period, -1 is no quota; memory in bytes, UNLIMITED is no limit; `cpus` None is not set (v2)."""

    name: str
    parent: Group | None
    shares: int = 1024  # v2: weight 100
    quota: int = -1
    period: int = PERIOD_US
    burst: int = 0
    idle: int = 0
    bvt: int = 0
    cpus: frozenset[int] | None = None
    limit: int = UNLIMITED
    memsw: int = UNLIMITED
    min: int = 0
    low: int = 0
    high: int = UNLIMITED
    tasks: int = 0
    children: dict[str, Group] = field(default_factory=dict)
    cpu_ns: float = 0.0
    periods: float = 0.0
    throttled: float = 0.0
    memory: int = 0  # bytes in use, children included
    pressure: Pressure = field(default_factory=Pressure)

    def walk(self) -> Iterator[Group]:
        """This group and all below it, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()


Told = Callable[[Group, str], None]


class Kernel:
    """The groups of one machine. `told` hears of every knob that shows something else than before, `killed` of groups whose tasks the
    kernel ended because they have more memory than they may."""

    def __init__(self, layout: Layout, cpus: int, told: Told, killed: Callable[[Group], None] = lambda group: None) -> None:
        self.layout = layout
        self.online = frozenset(range(cpus))
        self.groups: dict[str, Group] = {}
        self._told = told
        self._killed = killed
        self._by_file: dict[str, tuple[Group, str]] = {}

    # -- groups --------------------------------------------------------------------------------------------------------------

    def make(self, name: str) -> Group:
        """A new group; a v1 cpuset begins as its parent's, as runtimes and systemd see to it."""
        parent = self.groups[name.rpartition("/")[0]] if name else None
        group = Group(name, parent, shares=1024 if self.layout.version == 1 else 100)
        if self.layout.version == 1:
            group.cpus = parent.cpus if parent is not None else self.online
        if parent is not None:
            parent.children[name] = group
        self.groups[name] = group
        for knob in self.layout.knobs:
            if name or (knob == CPUS and self.layout.version == 1):
                self._by_file[self.layout.file(knob, name)] = (group, knob)
                self._told(group, knob)
        return group

    def remove(self, name: str) -> None:
        """A group goes with its children."""
        for group in list(self.groups[name].walk())[::-1]:
            del self.groups[group.name]
            for knob in self.layout.knobs:
                self._by_file.pop(self.layout.file(knob, group.name), None)
        parent = self.groups[name.rpartition("/")[0]]
        del parent.children[name]

    def knob(self, file: str) -> tuple[Group, str] | None:
        """What a file sets, None for others."""
        return self._by_file.get(file)

    # -- what is shown -------------------------------------------------------------------------------------------------------

    def show(self, group: Group, knob: str) -> str:
        """What a file holds, without the newline at its end."""
        v2 = self.layout.version == 2
        if knob == CPUS:
            return cpu_text(group.cpus) if group.cpus is not None else ""
        if knob == QUOTA and v2:
            return f"{'max' if group.quota < 0 else group.quota} {group.period}"
        if knob in _BYTES:
            value: int = getattr(group, knob)
            return "max" if v2 and value >= UNLIMITED else str(min(value, UNLIMITED))
        if knob == SHARES and group.idle:
            return "0" if v2 else "3"
        return str(getattr(group, knob))

    def effective(self, group: Group) -> frozenset[int]:
        """The CPUs that a group may run on."""
        above = self.effective(group.parent) if group.parent is not None else self.online
        if group.cpus is None:
            return above
        return (group.cpus & above) or above

    # -- what is written -----------------------------------------------------------------------------------------------------

    def write(self, group: Group, knob: str, text: str) -> None:
        """Set a knob. Raises Refused, and then nothing changed."""
        getattr(self, f"_write_{knob}")(group, text.strip())
        self._told(group, knob)
        if knob == IDLE:
            self._told(group, SHARES)

    def _number(self, text: str, low: int, high: int, number: int = errno.EINVAL) -> int:
        try:
            value = int(text)
        except ValueError:
            raise Refused(errno.EINVAL, f"{text!r} is no number") from None
        if not low <= value <= high:
            raise Refused(number, f"{value} is outside of {low} to {high}")
        return value

    def _write_shares(self, group: Group, text: str) -> None:
        if group.idle:
            raise Refused(errno.EINVAL, "an idle group has no weight of its own")
        if self.layout.version == 2:
            group.shares = self._number(text, 1, 10_000, errno.ERANGE)
        else:
            group.shares = max(2, min(262_144, self._number(text, 0, 1 << 62)))

    def _write_idle(self, group: Group, text: str) -> None:
        idle = self._number(text, 0, 1)
        if group.idle and not idle:
            group.shares = 1024 if self.layout.version == 1 else 100
        group.idle = idle

    def _write_bvt(self, group: Group, text: str) -> None:
        group.bvt = self._number(text, -1, 2)

    def _write_burst(self, group: Group, text: str) -> None:
        burst = self._number(text, 0, 1 << 60)
        if group.quota >= 0 and burst > group.quota:
            raise Refused(errno.EINVAL, "more burst than quota")
        group.burst = burst

    def _write_period(self, group: Group, text: str) -> None:
        self._bandwidth(group, group.quota, self._number(text, 1000, 1_000_000))

    def _write_quota(self, group: Group, text: str) -> None:
        period = group.period
        if self.layout.version == 2:
            words = text.split()
            if not 1 <= len(words) <= 2:
                raise Refused(errno.EINVAL, f"{text!r} is no maximum")
            if len(words) == 2:
                period = self._number(words[1], 1000, 1_000_000)
            quota = -1 if words[0] == "max" else self._number(words[0], 1000, 1 << 44)
        else:
            quota = self._number(text, -(1 << 62), 1 << 44)
            quota = -1 if quota < 0 else quota
            if 0 <= quota < 1000:
                raise Refused(errno.EINVAL, "less than 1 ms")
        self._bandwidth(group, quota, period)

    def _bandwidth(self, group: Group, quota: int, period: int) -> None:
        if quota >= 0 and group.burst > quota:
            raise Refused(errno.EINVAL, "less quota than burst")
        before = group.quota, group.period
        group.quota, group.period = quota, period
        if self.layout.version == 1 and not self._schedulable(self.groups[""], None):
            group.quota, group.period = before
            raise Refused(errno.EINVAL, "a group may not have more than the one above it")

    def _schedulable(self, group: Group, above: float | None) -> bool:
        """cgroup v1: no group has a larger share of time than one above it; without a quota it has that one's."""
        own = group.quota / group.period if group.quota >= 0 else None
        if own is None:
            own = above
        elif above is not None and own > above:
            return False
        return all(self._schedulable(child, own) for child in group.children.values())

    def _write_cpus(self, group: Group, text: str) -> None:
        try:
            cpus = cpu_list(text)
        except ValueError:
            raise Refused(errno.EINVAL, f"{text!r} is no list of CPUs") from None
        if not cpus <= self.online:
            raise Refused(errno.EINVAL, "a CPU that is not there")
        if self.layout.version == 2:
            group.cpus = cpus or None
            for below in group.walk():
                self._told(below, CPUS)
            return
        if group.parent is not None and not cpus <= (group.parent.cpus or frozenset()):
            raise Refused(errno.EACCES, "a CPU that the group above does not have")
        if any(child.cpus is not None and not child.cpus <= cpus for child in group.children.values()):
            raise Refused(errno.EBUSY, "a group below has a CPU that this one would not have")
        if not cpus and group.tasks:
            raise Refused(errno.ENOSPC, "tasks would have no CPU")
        group.cpus = cpus

    def _bytes(self, text: str) -> int:
        if text in ("-1", "max"):
            return UNLIMITED
        return min(self._number(text, 0, 1 << 63) // _PAGE * _PAGE, UNLIMITED)

    def _write_limit(self, group: Group, text: str) -> None:
        limit = self._bytes(text)
        if self.layout.version == 1:
            if MEMSW in self.layout.extras and limit > group.memsw:
                raise Refused(errno.EINVAL, "more memory than memory and swap together")
            if limit < group.memory:
                raise Refused(errno.EBUSY, f"{group.memory} bytes are in use")
        group.limit = limit
        if limit < group.memory:  # v2 takes any limit, and makes it true
            for below in [one for one in group.walk() if one.tasks and one.memory]:
                if limit < group.memory:
                    group.memory -= below.memory if below is not group else group.memory - limit
                    self._killed(below)

    def _write_min(self, group: Group, text: str) -> None:
        group.min = self._bytes(text)

    def _write_low(self, group: Group, text: str) -> None:
        group.low = self._bytes(text)

    def _write_high(self, group: Group, text: str) -> None:
        group.high = self._bytes(text)

    def _write_memsw(self, group: Group, text: str) -> None:
        limit = self._bytes(text)
        if limit < group.limit:
            raise Refused(errno.EINVAL, "less memory and swap together than memory")
        if limit < group.memory:
            raise Refused(errno.EBUSY, f"{group.memory} bytes are in use")
        group.memsw = limit


__all__ = ["BURST", "BVT", "CPUS", "IDLE", "LIMIT", "MEMSW", "PERIOD", "QUOTA", "SHARES", "Group", "Kernel", "Refused"]
