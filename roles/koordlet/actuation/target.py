"""One wanted value against one machine: where it goes, what stands there, what text would be written (KA-EXE-01).

Everything that is refused before the kernel is asked is refused here: unsupported files, values a file cannot hold, directories
that are gone, paths that leave their root.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from roles.koordlet.actuation import checkpoint, disklines, kernel
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.memsw import MEMSW, swap_limit
from roles.koordlet.actuation.places import PROCESS_FILE, identity
from roles.koordlet.actuation.systemfiles import FILES
from roles.koordlet.actuation.threeway import Undo, means, schemata
from roles.koordlet.actuation.values import merged, other_words, same
from roles.koordlet.actuation.writes import Kind, Write
from roles.koordlet.host.errors import CgroupGoneError, FileMissingError, HostError, ResourceUnsupportedError
from roles.koordlet.host.root import PathEscapeError
from roles.koordlet.states.model import HostState

_UNDO_BY_RESOURCE = {"schemata": Undo.LINES, "sched_features": Undo.WORDS}
#: Files that say where a task is: leaving the group is what puts it back.
_NEVER_JOURNALLED = frozenset({"tasks", "cgroup.procs"})
#: The file by which the runtime proxy knows this agent; one that is there already was made by a koordlet too.
REGISTRATION_FILE = "hook registration"
_REMOVALS = (Kind.ABSENT, Kind.NO_DIRECTORY)
#: The kernel gives an idle group the least weight and, when it is idle no more, the default one instead of the one it had.
RESETS = {"cpu.idle": "cpu.shares"}


@dataclass(slots=True)
class Target:
    """A write that passed the checks. ``current`` is what the file holds, raw; ``text`` is what would be written."""

    write: Write
    path: str
    text: str
    current: str = ""
    basis: str = ""
    """What merging and comparing look at: the current value, or the effective one of an unset v2 cpuset."""
    first_basis: str = ""
    native: str | None = None
    """``Write.native`` as a text of the file."""
    answered: str | None = None
    """``Write.answered`` likewise."""
    kubelet: str = ""
    """What a kubelet with the static policy gives the container."""
    first: bool = False
    """Whether this process has not brought the value about yet; then no limit is written in the words that were asked for."""

    def __post_init__(self) -> None:
        self.first_basis = self.basis

    @property
    def satisfied(self) -> bool:
        """Whether nothing has to be written."""
        kind = self.write.kind
        if kind in (Kind.DIRECTORY, Kind.CREATE):
            return self.current == self.text and os.path.lexists(self.path)
        if kind in _REMOVALS:
            return not os.path.lexists(self.path)
        if kind is Kind.TRIGGER:
            return False
        if kind is Kind.MOUNT:
            return kernel.is_mounted(self.path, self.write.resource)
        if kind is Kind.LINE:
            return _has_line(self.write.resource, self.current, self.text)
        if self.write.resource.startswith(disklines.PREFIXES):
            return disklines.says(self.write.resource, self.current, self.text)
        resource = self.write.resource
        return same(resource, self.basis, self.text) and not (self.first and other_words(resource, self.basis, self.text))

    @property
    def given(self) -> bool:
        """Whether the file holds a value that is not the runtime's own because a hook answered when the container was made."""
        if self.native is None or means(self.write.resource, self.current, self.native):
            return False
        return self.satisfied or (self.answered is not None and means(self.write.resource, self.current, self.answered))

    def looks_different(self) -> bool:
        """Read the file again: whether it holds another value than when it was resolved. That one counts from now on."""
        try:
            text = kernel.read(self.path)
        except WriteError:
            return False  # who writes it finds out
        if text == self.current:
            return False
        if self.basis == self.current:
            self.basis = self.first_basis = text
        self.current = text
        return True

    def merged_text(self) -> str | None:
        """What may be written on the way down; None to wait. Raises WriteError when the current value is no value."""
        try:
            return merged(self.write.merge, self.basis, self.text)
        except ValueError as error:
            raise WriteError(Trouble.INVALID, self.path, f"holds {self.basis[:60]!r}: {error}") from None

    def entry(self) -> Entry | None:
        """The journal line for this file; None when there is nothing to put back."""
        kind, resource = self.write.kind, self.write.resource
        if resource in _NEVER_JOURNALLED or kind in (*_REMOVALS, Kind.TRIGGER):
            return None
        if kind is Kind.MOUNT:
            return Entry(self.path, "", Undo.UNMOUNT, ours=())
        if kind is Kind.CREATE:
            if not os.path.lexists(self.path) or resource == REGISTRATION_FILE:
                return Entry(self.path, "", Undo.REMOVE, ours=(self.current,) if self.current else ())
            return Entry(self.path, self.current, Undo.REPLACE, ours=(), now=self.current)
        if kind is Kind.DIRECTORY:
            return None if os.path.isdir(self.path) else Entry(self.path, "", Undo.REMOVE_DIRECTORY, ours=())
        own = identity(self.path) if kind is Kind.CGROUP or resource == PROCESS_FILE else 0
        if resource == PROCESS_FILE and not own:
            return None  # its number may be another process's by the time things are put back
        undo = Undo.DEVICES if resource.startswith(disklines.PREFIXES) else _UNDO_BY_RESOURCE.get(resource, Undo.WRITE)
        container = (self.write.about.uid, self.write.about.container) if self.kubelet else None
        if self.write.origin:
            return Entry(self.path, self.write.origin, undo, resource, own, ours=(self.current,))  # inherited from what we wrote
        if self.given:
            return Entry(self.path, self.native or "", undo, resource, own, ours=(self.current,), kubelet=self.kubelet, container=container)
        return Entry(self.path, self.current, undo, resource, own, ours=(), now=self.current, kubelet=self.kubelet, container=container)

    def put(self, text: str) -> None:
        """Write to the kernel. Raises WriteError."""
        kind = self.write.kind
        if kind is Kind.LINE and self.write.resource == "sched_features":
            kernel.write(self.path, text + "\n")
        elif kind is Kind.LINE:
            kernel.append_line(self.path, text)
        elif kind is Kind.TRIGGER:
            try:
                kernel.write(self.path, text)
            except WriteError as error:
                if error.trouble is not Trouble.BUSY:  # less than was asked for: the next look sees how much
                    raise
        elif kind is Kind.CREATE:
            kernel.replace_file(self.path, text)
        elif kind is Kind.MOUNT:
            kernel.mount(self.write.resource, self.path)
        elif kind is Kind.DIRECTORY or kind in _REMOVALS:
            kernel.change_own(self.path, kind is Kind.DIRECTORY, directory=kind is not Kind.ABSENT)
        else:
            kernel.write(self.path, text)


def reset_by(target: Target, host: HostState) -> Entry | None:
    """The journal line of another file of the directory that the kernel sets anew when this one is written; None for most files."""
    other = RESETS.get(target.write.resource)
    if other is None or target.write.kind is not Kind.CGROUP:
        return None
    try:
        path = host.cgroups.file(other, target.write.target)
        current = host.files.read_fresh(path).decode("utf-8", "replace").rstrip("\n")
    except HostError:
        return None
    return Entry(path, current, Undo.WRITE, other, identity(path), ours=(), now=current)


def reset_to(target: Target, host: HostState) -> str:
    """What the kernel makes of the file of :func:`reset_by`: the weight of an idle group, or the default one."""
    idle = target.text.strip() == "1"
    if host.cgroups.v2:
        return "0" if idle else "100"
    return "3" if idle else "1024"


def limited_with(target: Target) -> Entry | None:
    """The journal line of the limit that has to change along with a memory limit; None for all other files."""
    other = swap_limit(target.path, target.text) if target.write.kind is Kind.CGROUP else None
    if other is None:
        return None
    return Entry(other.path, other.current, Undo.WRITE, MEMSW, identity(other.path), ours=(), now=other.current)


def key_of(write: Write) -> tuple[str, str, str]:
    """What the cache of written values is keyed by."""
    return (write.target, write.resource, write.device)


def resolve(write: Write, host: HostState, *, raw: str | None = None) -> Target:
    """Check a write and read what stands there; ``raw`` is a text of the file itself to write as it is. Raises WriteError."""
    try:
        if write.kind is Kind.TRIGGER:
            return Target(write, *_encoded(write, host))
        return _resolve_cgroup(write, host, raw) if write.kind is Kind.CGROUP else _resolve_file(write, host, raw)
    except ResourceUnsupportedError as error:
        raise WriteError(Trouble.UNSUPPORTED, write.target, str(error)) from None
    except (CgroupGoneError, FileMissingError) as error:
        raise WriteError(Trouble.GONE, error.path, error.detail) from None
    except PathEscapeError as error:
        raise WriteError(Trouble.INVALID, write.target, str(error)) from None
    except HostError as error:
        raise WriteError(Trouble.OTHER, write.target, str(error)) from None


def _resolve_cgroup(write: Write, host: HostState, raw: str | None) -> Target:
    path, text = _encoded(write, host, raw)
    current = host.files.read_fresh(path).decode("utf-8", "replace").rstrip("\n")
    basis = current
    if host.cgroups.v2:
        text = _whole_cpu_max(write.resource, text, current) if raw is None else raw
        if write.resource == "cpuset.cpus" and not current.strip():
            basis = _effective_cpus(write.target, host)
    if write.native is None:
        return Target(write, path, text, current, basis)
    kubelet = _by_kubelet(write, host) if write.resource == "cpuset.cpus" and not write.native else None
    native = _as_text(write, write.native, host, current) if kubelet is None else kubelet or None
    answered = _as_text(write, write.answered, host, current) if write.answered else None
    return Target(write, path, text, current, basis, native=native, answered=answered, kubelet=kubelet or "")


def _encoded(write: Write, host: HostState, raw: str | None = None) -> tuple[str, str]:
    """Path of a cgroup file, and what would be written to it."""
    cgroups = host.cgroups
    if not cgroups.supported(write.resource, write.target):
        raise WriteError(Trouble.UNSUPPORTED, f"{write.target}/{write.resource}", "is not offered by this kernel")
    path = cgroups.file(write.resource, write.target)
    try:
        return path, cgroups.spec(write.resource).encode(write.value) if raw is None else raw
    except ValueError as error:
        raise WriteError(Trouble.INVALID, path, str(error)) from None


def _as_text(write: Write, wanted: str, host: HostState, current: str) -> str | None:
    """A value that a container was made with as a text of the file; None where it cannot be told."""
    resource = write.resource
    try:
        if resource == "cpuset.cpus" and not wanted:
            around = host.cgroups.file(resource, os.path.dirname(write.target))
            return "" if host.cgroups.v2 else host.files.read_fresh(around).decode("utf-8", "replace").strip()
        text = host.cgroups.spec(resource).encode(wanted)
    except (HostError, ValueError):
        return None
    return _whole_cpu_max(resource, text, current) if host.cgroups.v2 else text


def _by_kubelet(write: Write, host: HostState) -> str | None:
    """The CPUs that a kubelet with the static policy gives a container; None without it, "" where its checkpoint cannot be read."""
    try:
        state = host.files.read(host.root.kubelet_path(checkpoint.CHECKPOINT))
    except (CgroupGoneError, FileMissingError):
        return None
    except (HostError, ValueError):
        return ""
    return checkpoint.given(state, write.about.uid, write.about.container)


def _whole_cpu_max(resource: str, text: str, current: str) -> str:
    """cpu.max takes quota and period together; the part that is not meant keeps what it has."""
    fields = current.split()
    if resource == "cpu.cfs_quota_us":
        return f"{text} {fields[1]}" if len(fields) == 2 else text
    if resource == "cpu.cfs_period_us":
        return f"{fields[0] if fields else 'max'} {text}"
    return text


def _effective_cpus(directory: str, host: HostState) -> str:
    """A v2 cpuset that was never set has its parent's CPUs."""
    try:
        return host.files.read_fresh(host.cgroups.file("cpuset.cpus.effective", directory)).decode("utf-8", "replace").strip()
    except (CgroupGoneError, FileMissingError):
        return ""


def _resolve_file(write: Write, host: HostState, raw: str | None) -> Target:
    path, value = write.target, write.value if raw is None else raw
    system = FILES.get(write.resource)
    if system is not None and (problem := system.validate(value)) is not None:
        raise WriteError(Trouble.INVALID, path, problem)
    if write.kind in (Kind.DIRECTORY, Kind.MOUNT, *_REMOVALS):
        return Target(write, path, "")
    if write.kind is Kind.CREATE:
        current = kernel.read(path) if os.path.exists(path) else ""
        return Target(write, path, value, current, current)
    current = "" if write.resource in _NEVER_JOURNALLED else _line_file(write, path)
    host.files.invalidate(path)
    return Target(write, path, value, current, current)


def _line_file(write: Write, path: str) -> str:
    """Content of a file. The kernel makes the files of a resctrl group with the group; where a plain directory stands in for it, the
    first line makes them."""
    try:
        return kernel.read(path)
    except WriteError as error:
        if error.trouble is Trouble.GONE and write.resource == "schemata" and os.path.isdir(os.path.dirname(path)):
            return ""
        raise


def _has_line(resource: str, current: str, line: str) -> bool:
    """Whether a file that is written line by line says so already."""
    if resource in _NEVER_JOURNALLED:
        return False
    if resource == "schemata":
        # only the domains that the line names count: the kernel merges, and cache ids need not start at 0
        wanted = schemata(line)
        return bool(wanted) and wanted.items() <= schemata(current).items()
    if resource == "sched_features":
        return line.strip() in current.split()
    return any(own.split() == line.split() for own in current.splitlines())
