"""Squeezing and throttling a best-effort pod that slows services down: which of its files, and to what (BEY-INT-01). Pure.

The files are held, so that hooks which keep them in order wait, and given back when the services have recovered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from roles.koordlet.actuation.disklines import IO_MAX, by_disk
from roles.koordlet.actuation.writes import About, Batch, Hold, Write, sequence
from roles.koordlet.host import parse
from roles.koordlet.host.cgroup_files import CFS_PERIOD_US, MIN_SHARES, milli_to_quota, quota_of
from roles.koordlet.host.errors import HostError
from roles.koordlet.qos import view
from roles.koordlet.qos.blkio_lines import READ_BPS, WRITE_BPS
from roles.koordlet.qos.restarts import awaited_milli
from roles.koordlet.states.model import HostState, PodState, Snapshot
from roles.koordlet.states.slo import SLO, InterferenceStrategy
from roles.koordlet.store import kinds

SQUEEZE, THROTTLE = "squeeze", "throttle"
#: Never less than this is left to a squeezed pod (µs of a period) and to a throttled one (bytes a second and disk).
LEAST_QUOTA_US, LEAST_BPS = 5_000, 1 << 20
#: Newer kernels count the bytes of cgroup v1 only where a limit is set: this one holds nobody up.
COUNTING_BPS = 1 << 50
SHARES, QUOTA = "cpu.shares", "cpu.cfs_quota_us"
CFS_QUOTA_POLICY = "cfsQuota"

#: (resource, cgroup directory, disk)
File = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes read and written by (cgroup directory, disk), and when that was (Unix seconds)."""

    read: dict[tuple[str, str], int] = field(default_factory=dict)
    written: dict[tuple[str, str], int] = field(default_factory=dict)
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """What was done to one pod: the values of its held files, and the disk use that limits came from."""

    namespace: str
    name: str
    uid: str
    files: dict[File, str] = field(default_factory=dict)
    disks: DiskUse = field(default_factory=DiskUse)

    @property
    def actions(self) -> tuple[str, ...]:
        limits = [key[0] for key, value in self.files.items() if not _counts(value)]
        return tuple(sorted({SQUEEZE if resource in (SHARES, QUOTA) else THROTTLE for resource in limits}))


def _counts(value: str) -> bool:
    """Whether a limit is only there so that the kernel counts."""
    return value.endswith(f" {COUNTING_BPS}")


def squeezed(snapshot: Snapshot, slo: SLO, pod: PodState, held: Held, config: InterferenceStrategy) -> dict[File, str]:
    """The least weight, and a quota of a share of what the pod used when it was found.

    Where suppression works by the tier's quota the pod gets none of its own: on cgroup v1 the kernel would not let the tier's fall
    below it. A group of ``cpu.idle`` has the least weight already, and the kernel refuses another. While a container is to start with the
    quota of its limit, on cgroup v1 the pod has its own back: only what runs in it is squeezed.
    """
    files: dict[File, str] = {}
    directory = pod.cgroup_dir
    if view.raw(snapshot.host, SHARES, directory) and not view.idle(snapshot.host, directory):
        files[SHARES, directory, ""] = str(MIN_SHARES)
    if slo.threshold.enable and slo.threshold.cpu_suppress_policy == CFS_QUOTA_POLICY:
        return files
    key, period = (QUOTA, directory, ""), view.cpu_period(snapshot.host, directory)
    known = {file: value for file, value in held.files.items() if file[0] == QUOTA}
    if known:
        sizes = {file: int(value) * CFS_PERIOD_US // view.cpu_period(snapshot.host, file[1]) for file, value in known.items()}
        wanted = sizes[key] if key in sizes else min(sizes.values())
    else:
        used = snapshot.metrics.last(kinds.POD_CPU, pod_uid=pod.uid)
        if used is None:
            return files
        wanted = max(int(used * CFS_PERIOD_US * config.squeeze_percent / 100), LEAST_QUOTA_US)
        current = view.usual_quota(snapshot.host, directory)
        if current is None or 0 < current <= wanted:
            return files
    room_needed = not snapshot.host.cgroups.v2 and milli_to_quota(awaited_milli(pod)) > wanted
    # what is inside first, also what was made since: on cgroup v1 none may have more than its pod, nor may a hook ask for more
    for inside in _groups(snapshot.host, pod):
        own = view.usual_quota(snapshot.host, inside)
        if own is not None and (own >= wanted or (room_needed and own < 0)):
            files[QUOTA, inside, ""] = str(quota_of(wanted, view.cpu_period(snapshot.host, inside)))
    if room_needed:
        known.pop(key, None)
        return files | known
    return files | {key: str(quota_of(wanted, period))} | known


def _groups(host: HostState, pod: PodState) -> list[str]:
    """Directories of a pod's containers; on cgroup v1 behind what these made in them (systemd, Docker), the innermost first."""
    found: list[str] = []
    for container in pod.all_containers():
        if container.cgroup_dir:
            found += [container.cgroup_dir] if host.cgroups.v2 else reversed(view.within(host, container.cgroup_dir))
    return found


def throttled(snapshot: Snapshot, pod: PodState, held: Held, config: InterferenceStrategy, now: float) -> tuple[dict[File, str], DiskUse]:
    """Limits of a share of what the pod reads and writes on each disk. Needs two looks: the first one only counts."""
    known = {key: value for key, value in held.files.items() if key[0] not in (SHARES, QUOTA)}
    if any(not _counts(value) for value in known.values()):
        return known, held.disks
    use = disk_use(snapshot.host, pod, now)
    if not use.read and not use.written and not snapshot.host.cgroups.v2:
        return known or _counting(snapshot.host, pod), DiskUse()
    passed = use.at - held.disks.at
    if not held.disks.at or passed <= 0:
        return known, use
    rates: dict[tuple[str, str], dict[str, int]] = {}
    for way, counters, before in (("r", use.read, held.disks.read), ("w", use.written, held.disks.written)):
        for where, count in counters.items():
            moved = (count - before.get(where, count)) / passed
            if moved > LEAST_BPS:
                rates.setdefault(where, {})[way] = max(int(moved * config.throttle_percent / 100), LEAST_BPS)
    return _limits(snapshot.host, rates) or known, use


def _counting(host: HostState, pod: PodState) -> dict[File, str]:
    """Limits beyond any disk, for every whole disk of the machine that is in use. Where there is a limit the kernel counts already."""
    try:
        path = host.root.proc_path("diskstats")
        disks = parse.whole_disks(host.files.read(path))
    except (HostError, ValueError):
        return {}
    texts = {directory: view.raw(host, READ_BPS, directory) or b"" for directory in _groups(host, pod)}
    limited = {where: by_disk(text.decode("ascii", "replace")) for where, text in texts.items()}
    return _limits(host, {(where, disk): {"r": COUNTING_BPS} for where, there in limited.items() for disk in disks if disk not in there})


def _limits(host: HostState, rates: dict[tuple[str, str], dict[str, int]]) -> dict[File, str]:
    files: dict[File, str] = {}
    for (directory, disk), ways in sorted(rates.items()):
        if host.cgroups.v2:
            files[IO_MAX, directory, disk] = f"{disk} {' '.join(f'{way}bps={rate}' for way, rate in ways.items())}"
        else:
            for way, rate in ways.items():
                files[READ_BPS if way == "r" else WRITE_BPS, directory, disk] = f"{disk} {rate}"
    return {key: line for key, line in files.items() if host.cgroups.supported(key[0], key[1])}


def disk_use(host: HostState, pod: PodState, now: float) -> DiskUse:
    """What a pod has read and written; nothing where it cannot be read.

    On cgroup v1 a limit holds for the processes of its very directory, so containers, and what they made in them, are looked at and
    limited one by one.
    """
    directories = [pod.cgroup_dir] if host.cgroups.v2 else _groups(host, pod)
    use = DiskUse(at=now)
    for directory in directories:
        try:
            path = host.cgroups.file("blkio.throttle.io_service_bytes", directory)
            read, written = parse.disk_bytes(host.files.read(path), v2=host.cgroups.v2)
        except (HostError, ValueError):
            continue
        use.read.update({(directory, disk): count for disk, count in read.items()})
        use.written.update({(directory, disk): count for disk, count in written.items()})
    return use


def batches(before: Iterable[Held], after: Iterable[Held]) -> Iterator[Batch]:
    """Writes that hold what is held now and give back what no longer is."""
    now = {held.uid: held for held in after}
    for held in now.values():
        yield sequence(*(_write(file, value, Hold.TAKE, held) for file, value in held.files.items()))
    for held in before:
        kept = now[held.uid].files if held.uid in now else {}
        gone = [_write(file, "", Hold.RELEASE, held) for file in reversed(held.files) if file not in kept]
        if gone:
            yield sequence(*gone)


def _write(file: File, value: str, hold: Hold, held: Held) -> Write:
    resource, directory, disk = file
    return Write(resource, directory, value, device=disk, about=About.of(held), reason="InterferenceDetection", hold=hold)
