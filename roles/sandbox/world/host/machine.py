"""A modelled machine: its kernel as a directory of files, the pods that run on it, and the processes that look at it.

Processes read the files as they are; what they write passes the machine's kernel. Each write is told to the history.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from roles.sandbox.nodes import fleet
from roles.sandbox.world.host import hardware
from roles.sandbox.world.host.kernel import CPUS, IDLE, SHARES, Group, Kernel, Refused
from roles.sandbox.world.host.layout import BESTEFFORT, LEVELS, Layout, container_group, cpu_list, cpu_text, pod_group
from roles.sandbox.world.host.usage import Use, limit, share

if TYPE_CHECKING:
    from roles.sandbox.world.history import History

Obj = dict[str, Any]
SYSTEM_MILLI = fleet.IDLE_MILLI
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
SUMMARY = 2.0
"""Seconds between two summaries of a machine in the history."""
_LINKS = {"cpu": "cpu,cpuacct", "cpuacct": "cpu,cpuacct"}
DAY = 600.0
"""Seconds of a simulated day."""


@dataclass(slots=True)
class Resident:
    """A pod on the machine: its groups, and the pod as it is."""

    pod: Obj
    kube_qos: str
    group: str
    containers: dict[str, str] = field(default_factory=dict)  # name -> group


class Machine:
    """One host. `root` is a directory that does not exist yet; `clock` is seconds since the beginning of the world."""

    def __init__(
        self, node: str, root: Path, *, cpus: int, memory: int, layout: Layout, history: History, clock: Callable[[], float]
    ) -> None:
        self.node = node
        self.root = root
        self.layout = layout
        self.memory = memory
        self.history = history
        self.residents: dict[str, Resident] = {}
        self.steps_to_live = 0  # of the agent's process: so many changes until it dies in one; 0 for ever
        self.disk_full = False
        self.touched: dict[tuple[str, str], None] = {}  # groups and knobs that the agent has set
        self.failing = ""  # part of the paths that cannot be read
        self.looked = -1e9  # when the agent last read the node's CPU time
        self.wall: Callable[[], float] = clock
        self.undisturbed: Callable[[], float] = lambda: 0.0  # seconds for which nothing has been in the agent's way
        self._clock = clock
        self._roots: tuple[str, ...] = (f"{root}/",)
        self._shown: dict[str, str] = {}
        self._advanced = clock()
        self._summed = -1e9
        self._ticks = 0.0
        self._idle = 0.0
        root.mkdir(parents=True)
        hardware.lay(root, cpus, memory)
        for name in ("var/lib/kubelet", "var/run/koordlet", "run", "etc/runtime/hookserver.d", "var/lib/koordlet", "var/log/koordlet"):
            (root / name).mkdir(parents=True)
        self._mount()
        self.kernel = Kernel(layout, cpus, self._told)
        for name in ("", *LEVELS.values()):
            self.make(name)
        self._show()

    # -- files ---------------------------------------------------------------------------------------------------------------

    def _mount(self) -> None:
        base = self.root / "sys/fs/cgroup"
        base.mkdir(parents=True)
        for directory in self.layout.directories(""):
            (self.root / directory).mkdir(exist_ok=True)
        if self.layout.version == 2:
            self.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids")
        else:
            for name, target in _LINKS.items():
                os.symlink(target, base / name)

    def put(self, path: str, text: str) -> None:
        """Let a file of the kernel show a text; nothing happens where it does already."""
        if self._shown.get(path) == text:
            return
        self._shown[path] = text
        fd = os.open(f"{self.root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.write(fd, text.encode() + b"\n")
        os.close(fd)

    def mounted_at(self, root: str) -> None:
        """The machine's files are seen under another path, too."""
        self._roots = (*self._roots, f"{root}/")

    def path_of(self, path: str) -> str:
        """A path of a process, relative to the machine's root; "" for one that is not on this machine."""
        for root in self._roots:
            if path.startswith(root):
                found = path[len(root) :]
                if found.startswith("sys/fs/cgroup/"):
                    head, _, rest = found[len("sys/fs/cgroup/") :].partition("/")
                    return f"sys/fs/cgroup/{_LINKS.get(head, head)}/{rest}" if rest else found
                return found
        return ""

    def is_kernels(self, path: str) -> bool:
        """Whether a file belongs to the kernel, and not to a disk."""
        return self.path_of(path).startswith(("sys/", "proc/"))

    def reading(self, path: str) -> None:
        """A process reads a file. Raises OSError where that fails now."""
        if self.failing and self.failing in path:
            raise OSError(5, "Input/output error", path)
        if path.endswith("/proc/stat"):
            self.looked = self._clock()

    def _told(self, group: Group, knob: str) -> None:
        if group.name or knob == CPUS:
            if group.name or self.layout.version == 1:
                directory = f"{self.root}/{os.path.dirname(self.layout.file(knob, group.name))}"
                if not os.path.isdir(directory):
                    os.makedirs(directory)
                self.put(self.layout.file(knob, group.name), self.kernel.show(group, knob))
            if knob == CPUS and self.layout.version == 2:
                self.put(f"{self.layout.directory('', group.name)}/cpuset.cpus.effective", cpu_text(self.kernel.effective(group)))

    # -- writes --------------------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes, author: str, cause: str) -> None:
        """A write by a process. Raises OSError for what the kernel refuses."""
        name = self.path_of(path)
        text = data.decode(errors="replace").strip()
        found = self.kernel.knob(name)
        if found is None:
            before = self._shown.get(name, "")
            self.put(name, text)
            self._tell(name, author, cause, before, text)
            return
        group, knob = found
        before = self.kernel.show(group, knob)
        other = self.kernel.show(group, SHARES) if knob == IDLE else None
        try:
            self.kernel.write(group, knob, text)
        except Refused as error:
            self._tell(name, author, cause, before, before, f"refused {text!r}: {error.strerror}")
            raise
        self._tell(name, author, cause, before, self.kernel.show(group, knob))
        if author.startswith("koordlet-"):
            self.touched.setdefault((group.name, knob))
        if other is not None and (now := self.kernel.show(group, SHARES)) != other:
            self._tell(self.layout.file(SHARES, group.name), author, cause, other, now)

    def _tell(self, name: str, author: str, cause: str, before: str, after: str, refused: str = "") -> None:
        age = round(min(self._clock() - self.looked, 999.0), 3)
        self.history.file(self.node, name, author, cause, before, after, age=age, full=self.disk_full, refused=refused)

    def set(self, group: str, knob: str, value: object, author: str, cause: str) -> bool:
        """As `write`, by knob, and only where it changes something; whether the kernel took it."""
        known = self.kernel.groups.get(group)
        if known is None or self.kernel.show(known, knob) == str(value):
            return known is not None
        try:
            self.write(f"{self.root}/{self.layout.file(knob, group)}", str(value).encode(), author, cause)
        except OSError:
            return False
        return True

    # -- groups --------------------------------------------------------------------------------------------------------------

    def make(self, name: str) -> Group:
        """A new group with all its files."""
        for directory in self.layout.directories(name):
            os.makedirs(f"{self.root}/{directory}", exist_ok=True)
        group = self.kernel.make(name)
        for file in ("cgroup.procs", "tasks" if self.layout.version == 1 else "cgroup.threads"):
            self.put(f"{self.layout.directory('cpu,cpuacct', name)}/{file}", "")
        self._count(group)
        return group

    def remove(self, name: str) -> None:
        """A group goes, with those below it."""
        for group in list(self.kernel.groups[name].walk())[::-1]:
            for directory in self.layout.directories(group.name):
                whole = f"{self.root}/{directory}"
                for file in sorted(os.listdir(whole)):
                    os.unlink(f"{whole}/{file}")
                    self._shown.pop(f"{directory}/{file}", None)
                os.rmdir(whole)
        self.kernel.remove(name)
        self.history.gone(self.node, name)

    # -- pods ----------------------------------------------------------------------------------------------------------------

    def admit(self, pod: Obj, kube_qos: str) -> Resident:
        """A pod's group; the one that it has if it was admitted before."""
        uid = pod["metadata"]["uid"]
        known = self.residents.get(uid)
        if known is None:
            group = pod_group(kube_qos, uid)
            self.make(group)
            known = self.residents[uid] = Resident(pod, kube_qos, group)
            sandbox = container_group(group, f"{uid.replace('-', '')}")
            self.make(sandbox).tasks = 1
        known.pod = pod
        return known

    def run(self, uid: str, name: str, container_id: str) -> str:
        """A container's group, with a task in it."""
        resident = self.residents[uid]
        group = container_group(resident.group, container_id)
        if group not in self.kernel.groups:
            self.make(group).tasks = 1
            resident.containers[name] = group
        return group

    def stop(self, uid: str) -> None:
        """A pod and all that is in its group are gone."""
        resident = self.residents.pop(uid, None)
        if resident is not None:
            self.remove(resident.group)

    # -- time ----------------------------------------------------------------------------------------------------------------

    def uses(self) -> list[Use]:
        """What each container wants and gets at this moment."""
        found: list[Use] = []
        for resident in self.residents.values():
            if not resident.containers:
                continue
            wanted = fleet.usage(resident.pod, self.wall(), DAY)
            for name in resident.containers.values():
                group = self.kernel.groups[name]
                found.append(Use(group, resident.kube_qos == BESTEFFORT, wanted.cpu / 1000 / len(resident.containers)))
                group.memory = min(wanted.memory // len(resident.containers), group.limit)
        share(self.kernel, found, SYSTEM_MILLI / 1000)
        return found

    def advance(self) -> None:
        """Let the time pass that has passed: counters go on, files show it."""
        now = self._clock()
        seconds, self._advanced = now - self._advanced, now
        uses = self.uses()
        for use in uses:
            spent = int(use.got * seconds * 1e9)
            at: Group | None = use.group
            while at is not None:
                at.cpu_ns += spent
                at = at.parent
            if use.group.quota >= 0:
                passed = round(seconds * 10)
                use.group.periods += passed
                own = use.group.quota / use.group.period
                if use.wanted > own:
                    use.group.throttled += int(passed * (1 - own / use.wanted))
        root = self.kernel.groups[""]
        self._sum(root)
        for group in root.walk():
            self._count(group)
        busy = sum(use.got for use in uses) + SYSTEM_MILLI / 1000
        self._ticks += busy * seconds * 100
        self._idle += max(len(self.kernel.online) - busy, 0.0) * seconds * 100
        self._show()
        if now - self._summed >= SUMMARY:
            self._summed = now
            self.history.tell("host", self.node, "", self._summary(uses))

    @property
    def exclusive(self) -> int:
        """How many CPUs pods of class LSE have for themselves."""
        held: set[int] = set()
        for one in self.residents.values():
            meta = one.pod["metadata"]
            if (meta.get("labels") or {}).get("koordinator.sh/qosClass") == "LSE":
                status = orjson.loads((meta.get("annotations") or {}).get(RESOURCE_STATUS, "{}"))
                held |= cpu_list(str(status.get("cpuset", "")))
        return len(held)

    def _show(self) -> None:
        taken = self.kernel.groups[""].memory + fleet.IDLE_BYTES
        hardware.show(self.put, len(self.kernel.online), int(self._ticks), int(self._idle), self.memory, taken)

    def _sum(self, group: Group) -> None:
        """The memory of a group with children is theirs together."""
        for child in group.children.values():
            self._sum(child)
        if group.children:
            group.memory = sum(child.memory for child in group.children.values())

    def _summary(self, uses: list[Use]) -> Obj:
        """In milli-CPU, memory in percent. `others`: used beside the best-effort level; `lost`: what services wanted and did not get."""
        services = [use for use in uses if not use.best_effort]
        return {
            "others": round(sum(use.got for use in services) * 1000) + SYSTEM_MILLI,
            "tier": round(sum(use.got for use in uses if use.best_effort) * 1000),
            "room": round(limit(self.kernel, self.kernel.groups[LEVELS[BESTEFFORT]]) * 1000),
            "lost": round(sum(use.allowed - use.got for use in services) * 1000),
            "memory": (self.kernel.groups[""].memory + fleet.IDLE_BYTES) * 100 // self.memory,
            "tier_asked": sum(fleet.requested(one.pod).cpu for one in self.residents.values() if one.kube_qos == BESTEFFORT),
            "capacity": len(self.kernel.online) * 1000,
            "free": (len(self.kernel.online) - self.exclusive) * 1000,
            "tier_pods": sum(1 for one in self.residents.values() if one.kube_qos == BESTEFFORT),
            "undisturbed": round(self.undisturbed(), 3),
        }

    def _count(self, group: Group) -> None:
        """What a group's counters show."""
        v2 = self.layout.version == 2
        cpu, memory = self.layout.directory("cpu,cpuacct", group.name), self.layout.directory("memory", group.name)
        rows = {"inactive_anon": group.memory, "active_anon": 0, "unevictable": 0, "inactive_file": 0, "active_file": 0}
        if v2:
            micro = group.cpu_ns // 1000
            head = f"usage_usec {micro}\nuser_usec {micro}\nsystem_usec 0"
            if group.name:
                head += f"\nnr_periods {group.periods}\nnr_throttled {group.throttled}\nthrottled_usec {group.throttled * 50_000}"
                self.put(f"{memory}/memory.current", str(group.memory))
            self.put(f"{cpu}/cpu.stat", head)
            lines = [f"anon {group.memory}", "file 0", *(f"{name} {value}" for name, value in rows.items())]
        else:
            self.put(f"{cpu}/cpuacct.usage", str(group.cpu_ns))
            self.put(
                f"{cpu}/cpu.stat",
                f"nr_periods {group.periods}\nnr_throttled {group.throttled}\nthrottled_time {group.throttled * 50_000_000}",
            )
            self.put(f"{memory}/memory.usage_in_bytes", str(group.memory))
            lines = ["total_cache 0", f"total_rss {group.memory}", *(f"total_{name} {value}" for name, value in rows.items())]
        self.put(f"{memory}/memory.stat", "\n".join(lines))
