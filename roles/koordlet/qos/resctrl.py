"""Last-level cache and memory bandwidth by class: the resctrl groups LSR, LS and BE (KA-RDT-01)."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from koord.api.names import ANNOTATION_RESCTRL
from koord.api.qos import QoSClass
from roles.koordlet.actuation.writes import About, Batch, Kind, Write, sequence
from roles.koordlet.host import parse
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.proc import cpuinfo
from roles.koordlet.qos import view
from roles.koordlet.qos.outcome import Outcome, Strategy
from roles.koordlet.qos.resctrl_math import ResctrlError, cache_ids, l3_mask, mba_value, schemata_line, ways
from roles.koordlet.states.model import HostState, PodState, Snapshot
from roles.koordlet.states.slo import SLO, ResctrlQOS

GROUPS = ("LSR", "LS", "BE")
NEEDED_FLAGS = frozenset({"cat_l3", "mba"})
_GROUP_OF = {QoSClass.LSE: "LSR", QoSClass.LSR: "LSR", QoSClass.LS: "LS", QoSClass.BE: "BE"}


@dataclass(frozen=True, slots=True)
class ResctrlState:
    """What was found out once. ``supported`` None: not asked yet."""

    supported: bool | None = None
    vendor: str = ""
    l3_caches: tuple[int, ...] = ()
    mb_caches: tuple[int, ...] = ()


def text_of(host: HostState, path: str) -> str | None:
    """Content of a file, None when it cannot be read."""
    try:
        return host.files.text(path)
    except HostError:
        return None


def probe(host: HostState, state: ResctrlState) -> ResctrlState:
    """Whether the CPU can do it, and whose CPU it is; asked until cpuinfo can be read."""
    if state.supported is not None:
        return state
    text = text_of(host, host.root.proc_path("cpuinfo"))
    if text is None:
        return state
    model = cpuinfo(text.encode())
    return ResctrlState(model.flags >= NEEDED_FLAGS, model.vendor)


def group_of(pod: PodState) -> str | None:
    """The group of a pod's class; None for SYSTEM pods and for pods that have a group of their own."""
    return None if ANNOTATION_RESCTRL in pod.annotations else _GROUP_OF.get(pod.qos)


def threads(host: HostState, pod: PodState) -> list[int]:
    """Thread ids of a pod's containers and of its sandbox, ascending."""
    containers = {c.cgroup_dir for c in pod.all_containers() if c.cgroup_dir}
    directories = sorted(containers)
    # not made yet, or not to be told from a container that the kubelet has not listed yet
    with suppress(HostError):
        directories.append(host.cgroups.sandbox_dir(pod.cgroup_dir, containers))
    return sorted({tid for directory in directories for tid in view.ids(host, "tasks", directory)})


class RdtResctrl(Strategy[ResctrlState]):
    """See the module. A disabled class keeps its group, with all of the cache and the bandwidth."""

    name: ClassVar[str] = "RdtResctrl"
    features: ClassVar[tuple[str, ...]] = ("KA-RDT-01",)

    @property
    def enabled(self) -> bool:
        return self.gate("RdtResctrl")

    @property
    def interval(self) -> float:
        return self.options.reconcile_interval_seconds

    def initial(self) -> ResctrlState:
        return ResctrlState()

    def decide(self, snapshot: Snapshot, slo: SLO, state: ResctrlState, now: float) -> Outcome[ResctrlState]:
        host = snapshot.host
        state = probe(host, state)
        if not state.supported:
            return Outcome(state)
        cbm = text_of(host, host.root.resctrl_path("info", "L3", "cbm_mask"))
        if cbm is None:
            mount = Write("resctrl", host.root.resctrl_path(), "", kind=Kind.MOUNT, cached=False, reason="UpdateResctrl")
            return Outcome(state, batches=(sequence(mount),))
        if not state.l3_caches:
            root = text_of(host, host.root.resctrl_path("schemata")) or ""
            state = ResctrlState(True, state.vendor, tuple(cache_ids(root, "L3")), tuple(cache_ids(root, "MB")))
        batches = [self._groups(host)]
        for group, body in zip(GROUPS, (slo.qos.lsr.resctrl, slo.qos.ls.resctrl, slo.qos.be.resctrl), strict=True):
            batches.append(self._schemata(host, group, body, cbm, state))
        batches += self._tasks(snapshot, slo)
        return Outcome(state, batches=tuple(b for b in batches if b))

    def _groups(self, host: HostState) -> Batch:
        return sequence(*(Write("group", host.root.resctrl_path(g), "", kind=Kind.DIRECTORY, reason="CreateCATGroup") for g in GROUPS))

    def _schemata(self, host: HostState, group: str, body: ResctrlQOS, cbm: str, state: ResctrlState) -> Batch:
        path = host.root.resctrl_path(group, "schemata")
        lines: list[Write] = []
        try:
            mask = l3_mask(ways(cbm), body.cat_range_start_percent, body.cat_range_end_percent)
        except ResctrlError:
            mask = None
        if mask is not None and state.l3_caches:
            lines.append(self._line(path, "L3", dict.fromkeys(state.l3_caches, mask)))
        bandwidth = mba_value(state.vendor, body.mba_percent)
        if bandwidth is not None and state.mb_caches:
            lines.append(self._line(path, "MB", dict.fromkeys(state.mb_caches, bandwidth)))
        return sequence(*lines)

    def _line(self, path: str, resource: str, values: dict[int, int]) -> Write:
        return Write("schemata", path, schemata_line(resource, values), kind=Kind.LINE, device=resource, reason="UpdateResctrl")

    def _tasks(self, snapshot: Snapshot, slo: SLO) -> list[Batch]:
        """Threads that are not in their class's group yet. The kernel moves a thread at a write of its id."""
        host = snapshot.host
        enabled = {"LSR": slo.qos.lsr.resctrl.enable, "LS": slo.qos.ls.resctrl.enable, "BE": slo.qos.be.resctrl.enable}
        inside: dict[str, set[int]] = {}
        batches: list[Batch] = []
        for pod in snapshot.pods:
            group = group_of(pod)
            if group is None or not pod.active or not enabled[group]:
                continue
            path = os.path.join(host.root.resctrl_path(group), "tasks")
            if group not in inside:
                inside[group] = set(_ids(host, path))
            about = About("pod", pod.namespace, pod.name, "", pod.uid)
            moves = [
                Write("tasks", path, str(tid), kind=Kind.LINE, cached=False, about=about, device=str(tid), reason="UpdateResctrl")
                for tid in threads(host, pod)
                if tid not in inside[group]
            ]
            if moves:
                batches.append(sequence(*moves))
        return batches


def _ids(host: HostState, path: str) -> list[int]:
    try:
        return parse.ids(path, host.files.read(path))
    except HostError:
        return []
