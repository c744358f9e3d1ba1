"""What passes on a modelled machine: what its pods use and wait for, and the counters that tell it.

Rates hold between two changes: of a file, of a group, of what a pod wants (looked at once a second). Counters follow from them at whichever
moment somebody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from roles.sandbox.nodes import fleet
from roles.sandbox.world.host import hardware
from roles.sandbox.world.host.layout import BESTEFFORT, UNLIMITED, allocated_cpus
from roles.sandbox.world.host.pressure import RESOURCES, Pressure, together
from roles.sandbox.world.host.usage import Use, level, share

if TYPE_CHECKING:
    from roles.sandbox.world.host.kernel import Group
    from roles.sandbox.world.host.layout import Layout

Obj = dict[str, Any]
SYSTEM_MILLI = fleet.IDLE_MILLI
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
SUMMARY = 2.0
"""Seconds between two summaries of a machine in the history."""
DAY = 600.0
"""Seconds of a simulated day."""
STARTERS = 1.0
"""Cores that the start of a pod's containers can use."""
SCARCE = 0.9
"""Part of the machine's memory from which on tasks wait for some."""
_NODE_PRESSURE = {f"proc/pressure/{resource}": resource for resource in RESOURCES}


class Load:
    """The load of one machine, the Machine that it is a part of. `clock` is seconds since the beginning of the world."""

    def __init__(self, machine: Any, clock: Callable[[], float]) -> None:
        self._machine = machine
        self._clock = clock
        self._at = clock()
        self._uses: list[Use] = []
        self._stale = True
        self._pressure = Pressure()
        self._summed = -1e9
        self._ticks = 0.0
        self._idle = 0.0

    # -- time ----------------------------------------------------------------------------------------------------------------

    def changes(self) -> None:
        """Before something changes: what has passed until now has passed as it was."""
        self.settle()
        self._stale = True

    def advance(self) -> None:
        """Let time pass, look at what pods want now, and sum up."""
        self.changes()
        if self._at - self._summed >= SUMMARY:
            self.sum_up()

    def sum_up(self) -> None:
        """A summary for the history: every so often, and when a pod's containers begin, which others may act on before the next one."""
        self._summed = self._clock()
        self._machine.history.tell("host", self._machine.node, "", self._summary(self.uses()))

    def began(self) -> None:
        """Containers of a pod have begun: they use what they use from now on."""
        self.changes()
        self._look()
        self.sum_up()

    def uses(self) -> list[Use]:
        """What each container and each start wants and gets at this moment."""
        found: list[Use] = []
        machine = self._machine
        for resident in machine.residents.values():
            best_effort = resident.kube_qos == BESTEFFORT
            if resident.starting > 0:
                found.append(Use(machine.kernel.groups[resident.sandbox], best_effort, STARTERS))
            if not resident.containers:
                continue
            wanted = fleet.usage(resident.pod, machine.wall(), DAY)
            count = len(resident.containers)
            for name in resident.containers.values():
                found.append(Use(machine.kernel.groups[name], best_effort, wanted.cpu / 1000 / count, wanted.memory // count))
        share(machine.kernel, found, SYSTEM_MILLI / 1000)
        return found

    def settle(self) -> None:
        """Counters go on up to now."""
        now = self._clock()
        seconds = now - self._at
        if seconds <= 0:
            return
        if self._stale:
            self._look()
        self._at = now
        kernel = self._machine.kernel
        for use in self._uses:
            at: Group | None = use.group
            while at is not None:
                at.cpu_ns += use.got * seconds * 1e9
                at = at.parent
            if use.group.quota >= 0:
                passed = seconds * 1e6 / use.group.period
                use.group.periods += passed
                own = use.group.quota / use.group.period
                if use.wanted > own:
                    use.group.throttled += passed * (1 - own / use.wanted)
        for resident in self._machine.residents.values():
            if resident.starting > 0:
                got = sum(use.got for use in self._uses if use.group.name == resident.sandbox)
                resident.starting = max(resident.starting - got * seconds, 0.0)
                self._stale = self._stale or not resident.starting
        busy = sum(use.got for use in self._uses) + SYSTEM_MILLI / 1000
        self._ticks += busy * seconds * 100
        self._idle += max(len(kernel.online) - busy, 0.0) * seconds * 100

    def _look(self) -> None:
        """The rates from now on."""
        kernel, self._stale = self._machine.kernel, False
        self._uses = self.uses()
        for use in self._uses:
            use.group.memory = min(use.memory, use.group.limit)
        self._sum(kernel.groups[""])
        if self._machine.layout.pressure:
            self._stall()

    def _sum(self, group: Group) -> None:
        """The memory of a group with children is theirs together."""
        for child in group.children.values():
            self._sum(child)
        if group.children:
            group.memory = sum(child.memory for child in group.children.values())

    def _stall(self) -> None:
        """Who waits from now on. The machine as a whole never waits for CPUs: somebody has them."""
        groups = self._machine.kernel.groups
        for pressure in (self._pressure, *(group.pressure for group in groups.values())):
            pressure.go_on(self._at)
        below: dict[str, list[Use]] = {name: [] for name in groups}
        for use in self._uses:
            at: Group | None = use.group
            while at is not None:
                below[at.name].append(use)
                at = at.parent
        for name, uses in below.items():
            groups[name].pressure.now("cpu", *together([use.waits for use in uses]))
            groups[name].pressure.now("memory", *together([self._reclaims(use) for use in uses]))
        used = self._taken / self._machine.memory
        self._pressure.now("cpu", together([use.waits for use in self._uses])[0], 0.0)
        some, full = together([self._reclaims(use) for use in self._uses])
        self._pressure.now("memory", max(some, (used - SCARCE) / (1 - SCARCE)), full)

    @staticmethod
    def _reclaims(use: Use) -> float:
        """For what share of the time a task waits for memory: it wants more than its groups may have."""
        most, at = UNLIMITED, use.group
        while at.parent is not None:
            most = min(most, at.high, at.limit)
            at = at.parent
        return min(max(use.memory - most, 0) / most, 1.0) if most > 0 else 1.0

    # -- what is shown -------------------------------------------------------------------------------------------------------

    def made(self, group: Group) -> None:
        """A group is new: its counters."""
        group.pressure.at = self._at
        self._machine.count(self._of(group))

    def lay(self) -> None:
        """The counters of the machine as a whole."""
        machine = self._machine
        cpus, memory = len(machine.kernel.online), machine.memory
        machine.count(
            {
                "proc/stat": lambda: hardware.ticks(cpus, int(self._ticks), int(self._idle)),
                "proc/meminfo": lambda: hardware.meminfo(memory, self._taken),
                "sys/bus/node/devices/node0/meminfo": lambda: hardware.numa_meminfo(memory, self._taken),
            }
        )
        if machine.layout.pressure:
            machine.count({path: partial(self._pressing, self._pressure, resource) for path, resource in _NODE_PRESSURE.items()})

    def _pressing(self, pressure: Pressure, resource: str) -> str:
        pressure.go_on(self._at)
        return pressure.show(resource)

    @property
    def _taken(self) -> int:
        return int(self._machine.kernel.groups[""].memory) + fleet.IDLE_BYTES

    def _of(self, group: Group) -> dict[str, Callable[[], str]]:
        """The files that count for a group, and what says them."""
        layout = self._machine.layout
        cpu, memory = layout.directory("cpu,cpuacct", group.name), layout.directory("memory", group.name)
        found: dict[str, Callable[[], str]] = {f"{memory}/memory.stat": partial(_memory_stat, layout, group)}
        if layout.version == 2:
            found[f"{cpu}/cpu.stat"] = partial(_cpu_stat, group)
            if group.name:
                found[f"{memory}/memory.current"] = lambda: str(group.memory)
        else:
            found[f"{cpu}/cpuacct.usage"] = lambda: str(int(group.cpu_ns))
            found[f"{cpu}/cpu.stat"] = lambda: f"{_periods(group)}\nthrottled_time {int(group.throttled * 50_000_000)}"
            found[f"{memory}/memory.usage_in_bytes"] = lambda: str(group.memory)
        if layout.pressure and group.name:
            found |= {layout.pressure_file(name, group.name): partial(self._pressing, group.pressure, name) for name in RESOURCES}
        return found

    # -- summaries -----------------------------------------------------------------------------------------------------------

    @property
    def _exclusive(self) -> int:
        """How many CPUs best-effort pods may not have: those of pods of class LSE, and what the kubelet has pinned."""
        held: set[int] = set().union(*self._machine.pinned.values())
        for one in self._machine.residents.values():
            meta = one.pod["metadata"]
            if (meta.get("labels") or {}).get("koordinator.sh/qosClass") == "LSE":
                held |= allocated_cpus((meta.get("annotations") or {}).get(RESOURCE_STATUS, ""))
        return len(held)

    def _summary(self, uses: list[Use]) -> Obj:
        """In milli-CPU, memory and `held_up` in percent. `others`: used beside the best-effort level; `lost`: what services wanted and did
        not get; `held_up`: how much longer the work of the worst off takes than alone."""
        machine = self._machine
        kernel = machine.kernel
        tier = [one for one in machine.residents.values() if one.kube_qos == BESTEFFORT]
        services = [use for use in uses if not use.best_effort]
        return {
            "others": round(sum(use.got for use in services) * 1000) + SYSTEM_MILLI,
            "wanted": round(sum(use.allowed for use in services) * 1000) + SYSTEM_MILLI,
            "tier": round(sum(use.got for use in uses if use.best_effort) * 1000),
            "room": round(level(kernel, [kernel.groups[name] for one in tier for name in one.containers.values()]) * 1000),
            "lost": round(sum(use.allowed - use.got for use in services) * 1000),
            "held_up": round(100 * max((use.held_up for use in services), default=1.0)) - 100,
            "memory": self._taken * 100 // machine.memory,
            "tier_asked": sum(fleet.requested(one.pod).cpu for one in tier),
            "capacity": len(kernel.online) * 1000,
            "free": (len(kernel.online) - self._exclusive) * 1000,
            "tier_pods": len(tier),
            "undisturbed": round(machine.undisturbed(), 3),
        }


def _periods(group: Group) -> str:
    return f"nr_periods {int(group.periods)}\nnr_throttled {int(group.throttled)}"


def _cpu_stat(group: Group) -> str:
    micro = int(group.cpu_ns / 1000)
    head = f"usage_usec {micro}\nuser_usec {micro}\nsystem_usec 0"
    return f"{head}\n{_periods(group)}\nthrottled_usec {int(group.throttled * 50_000)}" if group.name else head


def _memory_stat(layout: Layout, group: Group) -> str:
    rows = {"inactive_anon": group.memory, "active_anon": 0, "unevictable": 0, "inactive_file": 0, "active_file": 0}
    if layout.version == 2:
        return "\n".join([f"anon {group.memory}", "file 0", *(f"{name} {value}" for name, value in rows.items())])
    return "\n".join(["total_cache 0", f"total_rss {group.memory}", *(f"total_{name} {value}" for name, value in rows.items())])
