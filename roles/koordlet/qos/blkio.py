"""Limits, weights and latency targets of disks: for best-effort pods as a whole, for single pods, for the machine (KA-BLK-01).

A target whose configuration names a disk that cannot be found is left as it is: half a configuration would be worse than none.

cgroup v1 holds back the processes of a group only, not those of the groups in it, where all processes of pods are. There each container
also gets the narrower of its tier's and its pod's limits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar

import msgspec

from koord.api import trust
from koord.api.annotations import AnnotationError, parse_blkio_qos
from koord.api.names import ANNOTATION_BLKIO_QOS
from koord.api.objects import convert
from koord.api.qos import QoSClass
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.disklines import COST_MODEL, COST_QOS, IO_MAX, WEIGHT, by_disk
from roles.koordlet.actuation.writes import NODE, About, Batch, Write, sequence
from roles.koordlet.host.cgroup import BESTEFFORT
from roles.koordlet.host.errors import CgroupGoneError, HostError
from roles.koordlet.host.storage import LocalStorage
from roles.koordlet.qos import view
from roles.koordlet.qos.blkio_lines import THROTTLES, UNLIMITED, group_lines, root_lines, root_off
from roles.koordlet.qos.outcome import Outcome, Strategy
from roles.koordlet.states.model import HostState, PodState, Snapshot
from roles.koordlet.states.slo import SLO, BlkIOQOS, BlockCfg, IOCfg

DEVICE, VOLUME_GROUP, POD_VOLUME = "device", "volumegroup", "podvolume"
TYPES = (DEVICE, VOLUME_GROUP, POD_VOLUME)
_GROUP_FILES = (*THROTTLES, IO_MAX, WEIGHT)
_ROOT_FILES = (COST_QOS, COST_MODEL)
_LIMITS = ("read_iops", "read_bps", "write_iops", "write_bps")

Lines = Callable[[str, IOCfg], list[tuple[str, str]]]
#: (file, disk) → limit, on cgroup v1.
Limits = Mapping[tuple[str, str], int]


class BlockError(ValueError):
    """A block cannot be brought about."""


@dataclass(frozen=True, slots=True)
class BlkIOState:
    """``configured``: pods by uid that had limits, their own or on cgroup v1 the tier's, so that what is taken from the configuration is
    taken from the disks. None: those that an agent before this one limited, by the journal."""

    configured: frozenset[str] | None = None
    told: frozenset[str] = frozenset()


def pod_blocks(pod: PodState) -> tuple[BlockCfg, ...] | None:
    """Blocks of a pod's annotation; None without one. Raises BlockError."""
    try:
        given = parse_blkio_qos(pod.annotations)
        config = convert(_bounded(given), BlkIOQOS) if given is not None else None
    except (AnnotationError, msgspec.ValidationError, RecursionError) as error:
        text = str(error)
        raise BlockError(text if ANNOTATION_BLKIO_QOS in text else f"annotation {ANNOTATION_BLKIO_QOS}: {text}") from None
    if config is None or given is None:
        return None
    return () if given.get("enable") is False else config.blocks


def _bounded(given: dict[str, Any]) -> dict[str, Any]:
    """The annotation with the numbers of its blocks within their bounds."""
    blocks = [
        {**block, "ioCfg": trust.bounded(ANNOTATION_BLKIO_QOS, block["ioCfg"])} if isinstance(block.get("ioCfg"), dict) else block
        for block in given.get("blocks") or ()
    ]
    return {**given, "blocks": blocks}


def disk_of(block: BlockCfg, pod: PodState | None, snapshot: Snapshot, storage: LocalStorage) -> str:
    """``major:minor`` of the disk that a block means. Raises BlockError."""
    if block.type == DEVICE:
        number = storage.number_of_device(block.name)
    elif block.type == VOLUME_GROUP:
        number = storage.number_of_group(block.name)
    elif block.type == POD_VOLUME:
        point = _mount_point(block.name, pod, snapshot)
        number = storage.number_of_mount(point) or storage.number_of_mount(snapshot.host.root.on_machine(point))
    else:
        raise BlockError(f"block {block.name!r}: type {block.type!r} is not one of {', '.join(TYPES)}")
    if number is None:
        raise BlockError(f"block {block.name!r}: no disk of this machine carries that {block.type}")
    return number


def _mount_point(name: str, pod: PodState | None, snapshot: Snapshot) -> str:
    if pod is None:
        raise BlockError(f"block {name!r}: {POD_VOLUME} is only for pods")
    volume = next((v for v in pod.pod.spec.volumes if v.name == name), None)
    if volume is None:
        raise BlockError(f"block {name!r}: the pod has no volume of that name")
    inside = name
    if volume.persistent_volume_claim is not None or volume.ephemeral is not None:
        claim = volume.persistent_volume_claim.claim_name if volume.persistent_volume_claim is not None else f"{pod.name}-{name}"
        inside = snapshot.volume_of_claim(pod.namespace, claim)
        if not inside:
            raise BlockError(f"block {name!r}: claim {pod.namespace}/{claim} is not bound to a volume that is known here")
    elif volume.csi is None:
        raise BlockError(f"block {name!r}: the volume is neither a claim nor a CSI volume")
    return snapshot.host.root.kubelet_path("pods", pod.uid, "volumes/kubernetes.io~csi", inside, "mount")


def present(host: HostState, files: Iterable[str], directory: str) -> dict[str, dict[str, str]]:
    """What the files of a directory say of disks, for each file that this kernel has. Raises HostError when one cannot be read."""
    found: dict[str, dict[str, str]] = {}
    for file in files:
        if host.cgroups.supported(file, directory):
            text = host.files.read(host.cgroups.file(file, directory)).decode("utf-8", "replace")
            found[file] = by_disk(text)
    return found


class BlkIOReconcile(Strategy[BlkIOState]):
    """See the module."""

    name: ClassVar[str] = "BlkIOReconcile"
    features: ClassVar[tuple[str, ...]] = ("KA-BLK-01",)

    def initial(self) -> BlkIOState:
        return BlkIOState()

    def decide(self, snapshot: Snapshot, slo: SLO, state: BlkIOState, now: float) -> Outcome[BlkIOState]:
        if snapshot.storage is None:
            return Outcome(state)
        batches: list[Batch] = []
        problems: dict[str, Record] = {}

        def attempt(about: About, build: Callable[[], tuple[list[Write], str]]) -> None:
            try:
                writes, problem = build()
                batches.append(sequence(*writes))
            except CgroupGoneError:
                # not made yet, or just removed
                return
            except (BlockError, HostError) as error:
                problem = str(error)
            if problem:
                who = Subject("Pod", about.namespace, about.name, about.uid) if about.uid else Subject("Node", name=snapshot.node_name)
                text = f"{about.name or 'node'}: {problem}"
                problems[text] = Record("koordlet", who, now, "Skipped", rule=self.name, message=problem, features=self.features)

        tier, root = _blocks(slo.qos.be.blkio), slo.qos.cgroup_root.blkio
        directory, v1 = snapshot.host.cgroups.qos_dir(BESTEFFORT), not snapshot.host.cgroups.v2
        attempt(About("group", name="besteffort"), lambda: self._group(snapshot, directory, tier, None, NODE))
        attempt(About("group", name="root"), lambda: self._root(snapshot, _blocks(root)))
        tier_limits = _limits(lambda: tier, None, snapshot)
        configured = set()
        for pod in snapshot.pods:
            if not pod.active or not pod.cgroup_dir:
                continue
            inherits = v1 and pod.cgroup_dir.startswith(f"{directory}/")
            asks = _asks(pod) or (inherits and bool(tier))
            if not asks and not (_formerly(snapshot, pod) if state.configured is None else pod.uid in state.configured):
                continue
            configured.add(pod.uid)
            about = About.of(pod)
            if pod.phase == "Running" and (_asks(pod) or _limited(snapshot, pod.cgroup_dir)):
                attempt(about, lambda pod=pod, about=about: self._group(snapshot, pod.cgroup_dir, _own(pod), pod, about))  # type: ignore[misc]
            if v1:
                own = _limits(partial(_own, pod), pod, snapshot)
                batches.append(sequence(*_inside(snapshot, pod, [own, tier_limits] if inherits else [own], about)))
        records = tuple(record for text, record in problems.items() if text not in state.told)
        return Outcome(BlkIOState(frozenset(configured), frozenset(problems)), batches=tuple(b for b in batches if b), records=records)

    # -- targets -------------------------------------------------------------------------------------------------------------

    def _group(
        self, snapshot: Snapshot, directory: str, blocks: tuple[BlockCfg, ...], pod: PodState | None, about: About
    ) -> tuple[list[Write], str]:
        """The writes, and what of the configuration the kernel has no file for."""
        files = present(snapshot.host, _GROUP_FILES, directory)
        wanted = _wanted(blocks, pod, snapshot, group_lines)
        ours = _ours(snapshot, files, directory, wanted)
        gone = {disk: group_lines(disk, UNLIMITED) for disk in sorted(set().union(*ours.values()))}
        writes = _writes(gone, ours, directory, about) + _writes(wanted, files, directory, about)
        limited = any(c.read_iops or c.write_iops or c.read_bps or c.write_bps for c in (block.io_cfg for block in blocks))
        weighed = any(block.io_cfg.io_weight_percent is not None for block in blocks)
        lacks = [
            *(["limits"] if limited and not files.keys() & {*THROTTLES, IO_MAX} else []),
            *(["ioWeightPercent"] if weighed and WEIGHT not in files else []),
        ]
        return writes, _told(snapshot.host, directory, lacks)

    def _root(self, snapshot: Snapshot, blocks: tuple[BlockCfg, ...]) -> tuple[list[Write], str]:
        files = present(snapshot.host, _ROOT_FILES, "")
        wanted = _wanted(blocks, None, snapshot, root_lines)
        ours = _ours(snapshot, files, "", wanted)
        gone = {disk: root_off(disk) for disk in sorted(ours.get(COST_QOS, set()))}
        writes = _writes(gone, ours, "", NODE) + _writes(wanted, files, "", NODE)
        modelled = any(block.io_cfg.enable_user_model for block in blocks)
        lacks = [
            *(["latency targets"] if blocks and COST_QOS not in files else []),
            *(["cost models"] if modelled and COST_MODEL not in files else []),
        ]
        return writes, _told(snapshot.host, "", lacks)


def _asks(pod: PodState) -> bool:
    return ANNOTATION_BLKIO_QOS in pod.annotations and pod.qos_label is not QoSClass.NONE


def _own(pod: PodState) -> tuple[BlockCfg, ...]:
    """Blocks that count for a pod alone. Raises BlockError."""
    return (pod_blocks(pod) or ()) if _asks(pod) else ()


def _limited(snapshot: Snapshot, *directories: str) -> bool:
    """Whether one of the groups still has what an agent limited it to."""
    return any(snapshot.holds_ours(file, directory) for directory in directories for file in _GROUP_FILES)


def _formerly(snapshot: Snapshot, pod: PodState) -> bool:
    """Whether an agent before this one limited the pod, or a container of it."""
    return _limited(snapshot, pod.cgroup_dir, *view.container_dirs(snapshot.host, pod))


def _limits(blocks: Callable[[], tuple[BlockCfg, ...]], pod: PodState | None, snapshot: Snapshot) -> Limits | None:
    """None: they cannot be told, as is said of the group itself."""
    try:
        lines = [line for lines in _wanted(blocks(), pod, snapshot, group_lines).values() for line in lines]
    except BlockError:
        return None
    return {(file, line.split()[0]): int(line.split()[1]) for file, line in lines if file in THROTTLES and not _free(line)}


def _inside(snapshot: Snapshot, pod: PodState, limits: Sequence[Limits | None], about: About) -> list[Write]:
    """The narrowest limits for each of a pod's containers. What others set there is not widened, nor is anything while some limits cannot
    be told."""
    wanted: dict[tuple[str, str], int] = {}
    for key, limit in (row for each in limits if each is not None for row in each.items()):
        wanted[key] = min(limit, wanted.get(key, limit))
    writes = []
    for directory, file in product(view.container_dirs(snapshot.host, pod), THROTTLES):
        here = {disk: limit for (name, disk), limit in wanted.items() if name == file}
        if not here and not snapshot.holds_ours(file, directory):
            continue
        try:
            there = present(snapshot.host, [file], directory).get(file)
        except HostError:
            continue  # not made yet, or just removed
        if there is None:
            continue
        ours = {disk for disk in there if snapshot.holds_ours(file, directory, disk)} if None not in limits else set()
        here = {disk: limit for disk, limit in here.items() if disk in ours or not _within(there.get(disk, ""), limit)}
        here |= dict.fromkeys(sorted(ours - {disk for name, disk in wanted if name == file}), 0)
        writes += [Write(file, directory, f"{disk} {limit}", about=about, device=disk) for disk, limit in here.items()]
    return writes


def _within(text: str, limit: int) -> bool:
    """Whether a limit that stands there holds back at least as much."""
    return text.isdecimal() and 0 < int(text) <= limit


def _told(host: HostState, directory: str, lacks: list[str]) -> str:
    """What is left out of a group that is there; "" for nothing."""
    if not lacks:
        return ""
    if not os.path.isdir(host.cgroups.subsystem_dir("blkio")):
        return f"{' and '.join(lacks)}: cgroup v1's hierarchy blkio is not mounted"
    if not os.path.isdir(host.cgroups.subsystem_dir("blkio", directory)):
        return ""
    where = directory or "the root group"
    return f"{' and '.join(lacks)}: {where} has no file for that; the kernel lacks it, or the io controller is not enabled there"


def _ours(snapshot: Snapshot, files: Mapping[str, Collection[str]], directory: str, wanted: Iterable[str]) -> dict[str, set[str]]:
    """Disks that files name because of koordlet, and that are not wanted any more: what an administrator set stays."""
    kept = set(wanted)
    return {file: {disk for disk in set(disks) - kept if snapshot.holds_ours(file, directory, disk)} for file, disks in files.items()}


def _blocks(config: BlkIOQOS) -> tuple[BlockCfg, ...]:
    return config.blocks if config.enable else ()


def _wanted(blocks: tuple[BlockCfg, ...], pod: PodState | None, snapshot: Snapshot, lines: Lines) -> dict[str, list[tuple[str, str]]]:
    """Lines by disk. Raises BlockError."""
    storage = snapshot.storage or LocalStorage()
    wanted: dict[str, IOCfg] = {}
    for block in blocks:
        disk = disk_of(block, pod, snapshot, storage)
        wanted[disk] = _together(wanted[disk], block, disk) if disk in wanted else block.io_cfg
    return {disk: lines(disk, config) for disk, config in wanted.items()}


def _together(before: IOCfg, block: BlockCfg, disk: str) -> IOCfg:
    """What a block adds to others of its disk: of limits the narrower one, of all else what one of them says. Raises BlockError."""
    both: dict[str, Any] = {}
    for field in msgspec.structs.fields(IOCfg):
        one, other = getattr(before, field.name), getattr(block.io_cfg, field.name)
        if field.name in _LIMITS:
            both[field.name] = min(filter(None, (one, other)), default=None)
        elif None in (one, other) or one == other:
            both[field.name] = other if one is None else one
        else:
            raise BlockError(f"block {block.name!r}: {field.encode_name} is {other}, and {one} in another block of disk {disk}")
    return IOCfg(**both)


def _writes(wanted: dict[str, list[tuple[str, str]]], files: Mapping[str, Collection[str]], directory: str, about: About) -> list[Write]:
    """What this kernel has a file for. What sets no limit is only written where a line would have to go."""
    return [
        Write(file, directory, line, about=about, device=disk)
        for disk, lines in wanted.items()
        for file, line in lines
        if file in files and (disk in files[file] or not _free(line))
    ]


def _free(line: str) -> bool:
    """Whether a line sets no limit."""
    _, *values = line.split()
    return values == ["0"] or all(value.endswith("=max") for value in values)
