"""Last-level cache and memory bandwidth by class: the resctrl groups LSR, LS and BE (KA-RDT-01)."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from koord.api.names import ANNOTATION_RESCTRL
from koord.api.qos import QoSClass
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.writes import NODE, About, Batch, Kind, Write, sequence
from roles.koordlet.host.proc import cpuinfo
from roles.koordlet.qos import view
from roles.koordlet.qos.outcome import Outcome, Strategy
from roles.koordlet.qos.resctrl_units import ResctrlError, Units, present_units
from roles.koordlet.states.model import HostState, PodState, Snapshot
from roles.koordlet.states.slo import SLO, ResctrlQOS

GROUPS = ("LSR", "LS", "BE")
#: Groups of single pods are named so, with the pod's uid.
OWN_GROUP = "koordlet-"
NEEDED_FLAGS = frozenset({"cat_l3", "mba"})
_GROUP_OF = {QoSClass.LSE: "LSR", QoSClass.LSR: "LSR", QoSClass.LS: "LS", QoSClass.BE: "BE"}


@dataclass(frozen=True, slots=True)
class ResctrlState:
    """What was found out once. ``supported`` None: not asked yet."""

    supported: bool | None = None
    vendor: str = ""
    units: Units | None = None
    told: frozenset[str] = frozenset()
    """What cannot be brought about here, and was recorded."""


def probe(host: HostState, state: ResctrlState) -> ResctrlState:
    """Whether the CPU can do it, and whose CPU it is; asked until cpuinfo can be read."""
    if state.supported is not None:
        return state
    text = view.text(host, host.root.proc_path, "cpuinfo")
    if text is None:
        return state
    model = cpuinfo(text.encode())
    return ResctrlState(model.flags >= NEEDED_FLAGS, model.vendor)


def group_of(pod: PodState, *, made: bool = False) -> str | None:
    """The group of a pod's class; None for SYSTEM pods and for pods that have a group of their own.

    A best-effort pod leaves its class's group only for one that is there (``made``), not for the mere annotation.
    """
    if ANNOTATION_RESCTRL in pod.annotations and (made or pod.qos is not QoSClass.BE):
        return None
    return _GROUP_OF.get(pod.qos)


def threads(host: HostState, pod: PodState) -> list[int]:
    """Thread ids of a pod's containers and of its sandbox, ascending."""
    return sorted({tid for directory in view.container_dirs(host, pod) for tid in view.ids_within(host, "tasks", directory)})


def schemata(path: str, lines: Iterable[tuple[str, str]], about: About = NODE) -> Iterator[Write]:
    """Writes of (resource, line) to a group's file."""
    for resource, line in lines:
        yield Write("schemata", path, line, kind=Kind.LINE, device=resource, reason="UpdateResctrl", about=about)


def moves(path: str, tids: Iterable[int], inside: Container[int], about: About) -> Iterator[Write]:
    """Writes that move threads to a group, by its file of tasks; those that are inside stay."""
    for tid in tids:
        if tid not in inside:
            yield Write("tasks", path, str(tid), kind=Kind.LINE, cached=False, about=about, device=str(tid), reason="UpdateResctrl")


class RdtResctrl(Strategy[ResctrlState]):
    """See the module. A disabled class keeps its group, with all of the cache and the bandwidth."""

    name: ClassVar[str] = "RdtResctrl"
    features: ClassVar[tuple[str, ...]] = ("KA-RDT-01",)

    def initial(self) -> ResctrlState:
        return ResctrlState()

    def decide(self, snapshot: Snapshot, slo: SLO, state: ResctrlState, now: float) -> Outcome[ResctrlState]:
        host = snapshot.host
        state = probe(host, state)
        if not state.supported:
            return Outcome(state)
        try:
            units = present_units(host, state.vendor, state.units)
        except ResctrlError as error:
            return self._outcome(snapshot, state, {str(error)}, ())
        if units is None:
            mount = Write("resctrl", host.root.resctrl_path(), "", kind=Kind.MOUNT, cached=False, reason="UpdateResctrl")
            return Outcome(replace(state, units=None), batches=(sequence(mount),))
        state = replace(state, units=units if units.cache_ids or units.mb_ids else None)
        batches, problems = [self._groups(host)], set()
        for group, body in zip(GROUPS, (slo.qos.lsr.resctrl, slo.qos.ls.resctrl, slo.qos.be.resctrl), strict=True):
            batches.append(self._schemata(host, group, body, units))
            problems |= {f"group {group}: {why}" for why in (units.unsaid(body.mba_percent),) if why}
        if 0 < units.groups <= len(GROUPS):
            problems.add(f"the hardware has {units.groups} groups, and {len(GROUPS) + 1} are needed")
        batches += self._tasks(snapshot, slo)
        return self._outcome(snapshot, state, problems, tuple(b for b in batches if b))

    def _outcome(self, snapshot: Snapshot, state: ResctrlState, problems: set[str], batches: tuple[Batch, ...]) -> Outcome[ResctrlState]:
        """With a record for each problem that is new."""
        subject = Subject("Node", name=snapshot.node_name)
        records = tuple(
            Record("koordlet", subject, snapshot.time, "Skipped", rule=self.name, message=text, features=self.features)
            for text in sorted(problems - state.told)
        )
        return Outcome(replace(state, told=frozenset(problems)), batches=batches, records=records)

    def _groups(self, host: HostState) -> Batch:
        return sequence(*(Write("group", host.root.resctrl_path(g), "", kind=Kind.DIRECTORY, reason="CreateCATGroup") for g in GROUPS))

    def _schemata(self, host: HostState, group: str, body: ResctrlQOS, units: Units) -> Batch:
        path = host.root.resctrl_path(group, "schemata")
        mask = units.mask(body.cat_range_start_percent, body.cat_range_end_percent)
        bandwidth = units.bandwidth(body.mba_percent)
        lines = units.cache_lines(dict.fromkeys(units.cache_ids, mask)) if mask is not None else []
        if bandwidth is not None:
            lines += units.bandwidth_line(dict.fromkeys(units.mb_ids, bandwidth))
        return sequence(*schemata(path, lines))

    def _tasks(self, snapshot: Snapshot, slo: SLO) -> list[Batch]:
        """Threads that are not in their class's group yet. The kernel moves a thread at a write of its id."""
        host = snapshot.host
        enabled = {"LSR": slo.qos.lsr.resctrl.enable, "LS": slo.qos.ls.resctrl.enable, "BE": slo.qos.be.resctrl.enable}
        inside: dict[str, set[int]] = {}
        batches: list[Batch] = []
        for pod in snapshot.pods:
            group = group_of(pod, made=os.path.isdir(host.root.resctrl_path(f"{OWN_GROUP}{pod.uid}")))
            if group is None or not pod.active or not enabled[group]:
                continue
            path = os.path.join(host.root.resctrl_path(group), "tasks")
            if group not in inside:
                inside[group] = set(view.ids_in(host, path))
            about = About.of(pod)
            batches.append(sequence(*moves(path, threads(host, pod), inside[group], about)))
        return batches
