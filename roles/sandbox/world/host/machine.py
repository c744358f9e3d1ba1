"""A modelled machine: its kernel as a directory of files, the pods that run on it, and the processes that look at it.

Processes read the files as they are; what they write passes the machine's kernel. Each write is told to the history.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roles.sandbox.world.host import hardware
from roles.sandbox.world.host.kernel import CPUS, IDLE, SHARES, Group, Kernel, Refused
from roles.sandbox.world.host.layout import LEVELS, Layout, container_group, cpu_text, pod_group
from roles.sandbox.world.host.load import Load

if TYPE_CHECKING:
    from roles.sandbox.world.history import History

Obj = dict[str, Any]
_LINKS = {"cpu": "cpu,cpuacct", "cpuacct": "cpu,cpuacct"}


@dataclass(slots=True)
class Resident:
    """A pod on the machine: its groups, and the pod as it is."""

    pod: Obj
    kube_qos: str
    group: str
    sandbox: str
    starting: float = 0.0  # CPU seconds that its start still takes
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
        self.write_errors = False  # the disk takes nothing any more (EIO), not even what it has room for
        self.killed: list[tuple[str, str]] = []  # containers (pod uid, name) that the kernel has ended
        self.ended: set[str] = set()  # groups of containers that have ended while their pod lived on
        self._writer = ""
        self.touched: dict[tuple[str, str], None] = {}  # groups and knobs that the agent has set
        self.reserved: frozenset[int] = frozenset()  # CPUs that no pod gets alone under the kubelet's static policy; empty: no policy
        self.pinned: dict[str, frozenset[int]] = {}  # CPUs by the uid of the pod that the kubelet gave them to
        self.failing = ""  # part of the paths that cannot be read
        self.looked = -1e9  # when the agent last read the node's CPU time
        self.wall: Callable[[], float] = clock
        self.undisturbed: Callable[[], float] = lambda: 0.0  # seconds for which nothing has been in the agent's way
        self._clock = clock
        self._roots: tuple[str, ...] = (f"{root}/",)
        self._shown: dict[str, str] = {}
        self._says: dict[str, Callable[[], str]] = {}  # counters, by path: what says what they say at this moment
        self._names: dict[str, str] = {}  # what `path_of` has found
        root.mkdir(parents=True)
        hardware.lay(root, cpus)
        for name in ("var/lib/kubelet", "var/run/koordlet", "run", "etc/runtime/hookserver.d", "var/lib/koordlet", "var/log/koordlet"):
            (root / name).mkdir(parents=True)
        self._mount()
        self.kernel = Kernel(layout, cpus, self._told, self._out_of_memory)
        self.load = Load(self, clock)
        for name in ("", *LEVELS.values()):
            self.make(name)
        self.load.lay()

    # -- files ---------------------------------------------------------------------------------------------------------------

    def _mount(self) -> None:
        base = self.root / "sys/fs/cgroup"
        base.mkdir(parents=True)
        if self.layout.pressure:
            (self.root / "proc/pressure").mkdir(parents=True)
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
        self._names.clear()

    def unmounted(self, root: str) -> None:
        """They are not seen there any more."""
        self._roots = tuple(one for one in self._roots if one != f"{root}/")
        self._names.clear()

    def path_of(self, path: str) -> str:
        """A path of a process, relative to the machine's root; "" for one that is not on this machine."""
        known = self._names.get(path)
        if known is None:
            known = self._names[path] = self._path_of(path)
        return known

    def _path_of(self, path: str) -> str:
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

    def count(self, says: dict[str, Callable[[], str]]) -> None:
        """Files that count, and what says what they say: they are on disk to be found there, and empty."""
        for path in says:
            self.put(path, "")
        self._says |= says

    def reading(self, path: str) -> bytes | None:
        """A process reads a file: what a counter says at this very moment, None for other files. Raises OSError where that fails now."""
        if self.failing and self.failing in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if path.endswith("/proc/stat"):
            self.looked = self._clock()
        name = self.path_of(path)
        says = self._says.get(name)
        if says is None:
            return None
        if name not in self._shown:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), path)  # open, and its group is gone
        self.load.settle()
        return says().encode() + b"\n"

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
        self.load.changes()
        self._writer = author
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
        self.history.file(self.node, name, author, cause, before, after, age=age, full=self.disk_full or self.write_errors, refused=refused)

    def set(self, group: str, knob: str, value: object, author: str, cause: str) -> bool:
        """As `write`, by knob, and only where it changes something or the agent has set it: its value is then another's, too.

        Whether the kernel took it.
        """
        known = self.kernel.groups.get(group)
        if known is None or (self.kernel.show(known, knob) == str(value) and (group, knob) not in self.touched):
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
        self.load.made(group)
        return group

    def remove(self, name: str) -> None:
        """A group goes, with those below it."""
        self.load.changes()
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
            sandbox = container_group(group, f"{uid.replace('-', '')}")
            known = self.residents[uid] = Resident(pod, kube_qos, group, sandbox)
            self.make(sandbox).tasks = 1
            self.load.changes()
        known.pod = pod
        return known

    def run(self, uid: str, name: str, container_id: str) -> str:
        """A container's group, with a task in it."""
        resident = self.residents[uid]
        group = container_group(resident.group, container_id)
        if group not in self.kernel.groups:
            self.load.changes()
            self.make(group).tasks = 1
            resident.containers[name] = group
        return group

    def exit(self, uid: str, name: str) -> None:
        """A container's processes end, and its group with them."""
        resident = self.residents.get(uid)
        if resident is not None and name in resident.containers:
            group = resident.containers.pop(name)
            self.ended.add(group)
            self.remove(group)

    def _out_of_memory(self, group: Group) -> None:
        """The kernel has ended the tasks of a group, because of a limit that somebody wrote."""
        for uid, resident in self.residents.items():
            for name, own in resident.containers.items():
                if own == group.name:
                    self.history.tell("oom", self.node, f"{self._writer} left container {name} of pod {uid} less memory than it uses")
                    self.killed.append((uid, name))

    def advance(self) -> None:
        """Let the time pass that has passed, and act on what the kernel did."""
        self.load.advance()
        for uid, name in self.killed:
            self.exit(uid, name)
        self.killed.clear()

    def stop(self, uid: str) -> None:
        """A pod and all that is in its group are gone."""
        resident = self.residents.pop(uid, None)
        if resident is not None:
            self.remove(resident.group)
