"""What resource tuning reads of a container's memory, and the scores of its processes (BEY-TUNE-01)."""

from __future__ import annotations

from dataclasses import dataclass

from roles.koordlet.actuation.places import PROCESS_FILE
from roles.koordlet.actuation.writes import About, Hold, Kind, Write
from roles.koordlet.host import parse
from roles.koordlet.host.errors import HostError
from roles.koordlet.qos import view
from roles.koordlet.qos.tuning_steps import MemorySigns
from roles.koordlet.states.model import ContainerState, HostState, PodState, Snapshot
from roles.koordlet.store import kinds

#: Keys of memory.stat that count pages read back after they had been reclaimed; kernels without them count major faults.
_REFAULTS_V2 = (b"workingset_refault_anon", b"workingset_refault_file")
_REFAULT_OLD, _MAJOR = b"workingset_refault", b"pgmajfault"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the last look and when that was (Unix seconds); -1 where one could not be read."""

    refaults: int = -1
    kills: int = -1
    at: float = 0.0

    def since(self, before: Counters) -> tuple[float | None, int]:
        """Refaults a second and kills since an earlier look. A counter that was reset or not read says nothing."""
        passed = self.at - before.at
        rate = None
        if before.refaults >= 0 and self.refaults >= before.refaults and passed > 0:
            rate = (self.refaults - before.refaults) / passed
        return rate, max(self.kills - before.kills, 0) if before.kills >= 0 and self.kills >= 0 else 0


def refaults(found: dict[bytes, bytes], *, v2: bool) -> int:
    """Pages read back, from the fields of memory.stat; -1 where the kernel does not count them."""
    prefix = b"" if v2 else b"total_"
    for keys in (_REFAULTS_V2, (_REFAULT_OLD,), (_MAJOR,)):
        numbers = [_number(found.get(prefix + key)) for key in keys]
        if all(number >= 0 for number in numbers):
            return sum(numbers)
    return -1


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else -1


def kills(data: bytes) -> int:
    """Processes that the kernel killed for want of memory: ``oom_kill`` of memory.events (v2) or memory.oom_control (v1); -1: no count."""
    return _number(parse.key_values(data).get(b"oom_kill"))


def look(snapshot: Snapshot, pod: PodState, container: ContainerState, before: Counters, now: float) -> tuple[MemorySigns, Counters] | None:
    """Signs of a container and its counters; None where limit or use cannot be read, or there is no limit."""
    host, directory = snapshot.host, container.cgroup_dir
    limit, usage = _value(host, "memory.limit_in_bytes", directory), _value(host, "memory.usage_in_bytes", directory)
    if limit is None or usage is None or limit <= 0:
        return None
    v2 = host.cgroups.v2
    stat = parse.key_values(view.raw(host, "memory.stat", directory) or b"")
    counters = Counters(refaults(stat, v2=v2), kills(view.raw(host, "memory.events", directory) or b""), now)
    inactive = _number(stat.get(b"inactive_file" if v2 else b"total_inactive_file"))
    rate, killed = counters.since(before)
    stall = snapshot.metrics.last(
        kinds.CONTAINER_PSI,
        within=60.0,
        pod_uid=pod.uid,
        container_id=container.id,
        psi_resource="mem",
        psi_precision="10",
        psi_degree="some",
    )
    return MemorySigns(usage, limit, max(usage - max(inactive, 0), 0), stall, rate, killed), counters


def _value(host: HostState, resource: str, directory: str) -> int | None:
    """A limit or use in bytes, -1 for no limit."""
    data = view.raw(host, resource, directory)
    try:
        return None if data is None else parse.memory_limit(resource, data)
    except HostError:
        return None


# -- oom_score_adj -----------------------------------------------------------------------------------------------------------


def scores(snapshot: Snapshot, container: ContainerState) -> dict[int, int]:
    """``oom_score_adj`` of a container's processes by id; those that end meanwhile are left out."""
    host = snapshot.host
    out: dict[int, int] = {}
    for pid in view.ids_within(host, "cgroup.procs", container.cgroup_dir):
        try:
            path = host.root.proc_path(str(pid), PROCESS_FILE)
            out[pid] = parse.signed(path, host.files.read(path))
            host.files.close(path)  # processes come and go: nothing is to be kept of them
        except (HostError, ValueError):
            continue
    return out


def score_writes(snapshot: Snapshot, found: dict[int, int], base: int, before: int, target: int, about: About) -> list[Write]:
    """Writes for processes whose score is the base or what was set ``before``: those that have one of their own keep it."""
    hold = Hold.RELEASE if target == base else Hold.TAKE
    return [
        Write(
            PROCESS_FILE,
            snapshot.host.root.proc_path(str(pid), PROCESS_FILE),
            str(target),
            kind=Kind.FILE,
            cached=False,
            about=about,
            reason="ResourceTuning",
            hold=hold,
            origin=str(base),
        )
        for pid, score in found.items()
        if score in (base, before)
    ]
