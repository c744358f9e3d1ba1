"""Resctrl: a cache and memory bandwidth group of its own for a pod that asks for it by annotation (KA-RDT-02).

The group is the directory ``koordlet-<pod uid>`` of the resctrl file system. What a pod with a group had in its class's group is
left behind there (KA-RDT-01 leaves such pods out).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import ClassVar

from koord import seams
from koord.api.annotations import AnnotationError, parse_resctrl
from koord.api.annotations_agent import ResctrlConfig, ResctrlResource
from koord.api.names import ANNOTATION_RESCTRL
from koord.api.qos import QoSClass
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.actuation.writes import NODE, About, Kind, Write
from roles.koordlet.hooks.context import Answer, ContainerContext, PodContext, Stage
from roles.koordlet.hooks.hook import Hook, Pods, RuleError
from roles.koordlet.host.files import subdirectories
from roles.koordlet.options import Options
from roles.koordlet.qos import view
from roles.koordlet.qos.resctrl import OWN_GROUP, ResctrlState, moves, probe, schemata, threads
from roles.koordlet.qos.resctrl_units import MB, ResctrlError, Units, present_units
from roles.koordlet.states.model import HostState, Snapshot
from roles.koordlet.states.slo import ResctrlQOS

log = logging.getLogger(__name__)

PREFIX = OWN_GROUP
_NO_GROUPS = frozenset({"info", "mon_groups", "mon_data"})
#: A group whose pod is not listed is left alone for so long (seconds): the pod may be about to be listed.
GRACE = 10.0


_WHOLE = ResctrlQOS()


@dataclass(frozen=True, slots=True)
class CacheRule:
    """What the machine has. ``units`` None: no resctrl here (yet). ``be``: what best-effort pods have as a class."""

    probed: ResctrlState
    units: Units | None = None
    be: ResctrlQOS = _WHOLE


def _by_cache(resource: ResctrlResource) -> dict[int, tuple[tuple[int, ...], int | None]]:
    return {own.cache_id: (own.range, own.percent) for own in resource.schemata_per_cache}


def _l3(config: ResctrlConfig, units: Units, most: int | None) -> dict[int, int] | None:
    """Mask of each cache, within ``most`` (None: all ways); None unless every cache has one."""
    if config.llc is None or not units.cache_ids:
        return None
    common = config.llc.schemata.range if config.llc.schemata is not None else ()
    own = _by_cache(config.llc)
    out: dict[int, int] = {}
    for cache in units.cache_ids:
        span = own[cache][0] if cache in own else common
        mask = units.mask(span[0], span[1]) if len(span) == 2 else None
        if not mask:
            return None
        out[cache] = mask if most is None else mask & most or most
    return out


def _mb(config: ResctrlConfig, units: Units, most: int) -> dict[int, int] | None:
    if config.mb is None or not units.mb_ids:
        return None
    common = config.mb.schemata.percent if config.mb.schemata is not None else None
    own = _by_cache(config.mb)
    out: dict[int, int] = {}
    for cache in units.mb_ids:
        percent = own[cache][1] if cache in own else common
        value = units.bandwidth(min(percent, most)) if percent is not None and percent <= 100 else None
        if not value:
            return None
        out[cache] = value
    return out


def lines(config: ResctrlConfig, rule: CacheRule, qos: QoSClass, had: Container[str] = ()) -> list[tuple[str, str]]:
    """(resource, schemata line) of the valid parts of an annotation, and of those that it names no more, by the resources that its group
    ``had``. Best-effort pods stay within their class, in every part."""
    units = rule.units
    if units is None:
        return []
    bounds = rule.be if qos is QoSClass.BE else _WHOLE
    most, whole = units.mask(bounds.cat_range_start_percent, bounds.cat_range_end_percent), units.bandwidth(bounds.mba_percent)
    masks, values = _l3(config, units, most), _mb(config, units, bounds.mba_percent)
    bounded = qos is QoSClass.BE and not (masks is None and values is None)
    if masks is None and most is not None and (bounded or (config.llc is None and any(name in had for name in units.caches))):
        masks = dict.fromkeys(units.cache_ids, most)
    if values is None and whole is not None and (bounded or (config.mb is None and MB in had)):
        values = dict.fromkeys(units.mb_ids, whole)
    return units.cache_lines(masks or {}) + units.bandwidth_line(values or {})


class Resctrl(Hook[CacheRule]):
    """See the module."""

    name: ClassVar[str] = "Resctrl"
    walks_always: ClassVar[bool] = True
    pod_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_RUN_POD_SANDBOX, Stage.PRE_REMOVE_POD_SANDBOX)
    container_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_CREATE_CONTAINER,)

    def __init__(self, options: Options, gate: Callable[[str], bool]) -> None:
        super().__init__(options, gate)
        self._told: dict[str, str] = {}
        self._about: dict[str, About] = {}
        self._unlisted: dict[str, float] = {}
        """Groups whose pod is not listed, and since when (monotonic)."""

    def container(self, container: ContainerContext, rule: CacheRule | None) -> Answer | None:
        """The group's name, for runtimes that put containers into groups themselves."""
        pod = container.pod
        if pod.state is not None or rule is None or rule.units is None or ANNOTATION_RESCTRL not in pod.annotations:
            return None
        config = parse_resctrl(pod.annotations)
        return Answer(rdt_class=f"{PREFIX}{pod.uid}") if config is not None and lines(config, rule, pod.claimant.qos) else None

    def at_pod(self, stage: Stage, snapshot: Snapshot, pod: PodContext, rule: CacheRule | None) -> Iterator[Write]:
        if rule is None or rule.units is None or not pod.uid or ANNOTATION_RESCTRL not in pod.annotations:
            return
        path = snapshot.host.root.resctrl_path(f"{PREFIX}{pod.uid}")
        if stage is Stage.PRE_RUN_POD_SANDBOX:
            yield from self._group(snapshot.host, pod, rule)
        elif os.path.isdir(path) and not _lives(snapshot, pod.uid, path):
            yield self._removal(path, pod.uid)

    def learn(self, snapshot: Snapshot, rule: CacheRule | None) -> CacheRule | None:
        host = snapshot.host
        probed = probe(host, rule.probed if rule is not None else ResctrlState())
        be = snapshot.slo.qos.be.resctrl if snapshot.slo is not None else rule.be if rule is not None else _WHOLE
        if not probed.supported:
            return CacheRule(probed, be=be)
        try:
            units = present_units(host, probed.vendor, rule.units if rule is not None else None)
        except ResctrlError as error:
            raise RuleError(str(error)) from None
        return CacheRule(probed, units, be)

    def walk(self, snapshot: Snapshot, rule: CacheRule | None, pods: Pods) -> Iterator[Write]:
        if rule is None or rule.units is None:
            return
        host = snapshot.host
        wanted: set[str] = set()
        for pod, _ in pods.values():
            if ANNOTATION_RESCTRL not in pod.annotations or pod.state is None or not pod.state.active:
                continue
            wanted.add(f"{PREFIX}{pod.uid}")
            yield from self._group(host, pod, rule)
        yield from self._removals(snapshot, wanted)

    def _group(self, host: HostState, pod: PodContext, rule: CacheRule) -> Iterator[Write]:
        about = About.of(pod)
        path = host.root.resctrl_path(f"{PREFIX}{pod.uid}")
        try:
            config, there = parse_resctrl(pod.annotations) or ResctrlConfig(), os.path.isdir(path)
            wanted = lines(config, rule, pod.claimant.qos, self._had(path) if there else ())
            problem = "" if wanted else "no part of it is valid for every cache of this machine"
            if wanted and not there and self._full(host, rule):
                wanted, problem = [], f"the hardware has no more than {rule.units.groups if rule.units else 0} groups, and all are in use"
        except AnnotationError as error:
            wanted, problem = [], str(error)
        if problem and self._told.get(pod.uid) != problem:
            log.warning("pod %s, annotation %s: %s", pod.key, ANNOTATION_RESCTRL, problem)
        self._told[pod.uid] = problem
        if not wanted:
            return
        if not os.path.isdir(path):
            made = "Create Resctrl Group"
            yield Write("group", path, "", kind=Kind.DIRECTORY, cached=False, reason="CreateCATGroup", about=about, event=made)
        self._about[pod.uid] = about
        yield from schemata(os.path.join(path, "schemata"), wanted, about)
        tasks = os.path.join(path, "tasks")
        if pod.state is not None:
            yield from moves(tasks, threads(host, pod.state), set(view.ids_in(host, tasks, fresh=True)), about)

    def _had(self, path: str) -> frozenset[str]:
        """Resources of a group that this agent, or one before it, has set."""
        said = (entry.ours or () for entry in self.noted(Undo.LINES) if os.path.dirname(entry.path) == path)
        return frozenset(line.partition(":")[0] for ours in said for line in ours)

    @staticmethod
    def _full(host: HostState, rule: CacheRule) -> bool:
        """Whether all groups that the hardware has are made."""
        if rule.units is None or not rule.units.groups:
            return False
        try:
            made = sum(name not in _NO_GROUPS for name in subdirectories(host.root.resctrl_path()))
        except OSError:
            return False
        return made + 1 >= rule.units.groups

    def _removals(self, snapshot: Snapshot, wanted: set[str]) -> Iterator[Write]:
        """Groups of pods that are gone, also of a former life of this agent."""
        self._told = {uid: text for uid, text in self._told.items() if f"{PREFIX}{uid}" in wanted}
        base = snapshot.host.root.resctrl_path()
        try:
            found = [name for name in subdirectories(base) if name.startswith(PREFIX)]
        except OSError:
            return
        now = seams.monotonic()  # the age of a directory is by a clock that may be set
        self._unlisted = {name: self._unlisted.get(name, now) for name in found if name not in wanted}
        for name, since in self._unlisted.items():
            if now - since > GRACE:
                yield self._removal(os.path.join(base, name), name.removeprefix(PREFIX))

    def _removal(self, path: str, uid: str) -> Write:
        about = self._about.pop(uid, NODE)
        gone = "Remove Resctrl Group"
        return Write("group", path, "", kind=Kind.NO_DIRECTORY, cached=False, reason="RemoveCATGroup", about=about, event=gone)


def _lives(snapshot: Snapshot, uid: str, path: str) -> bool:
    """Whether a pod has another sandbox than the one that goes: those of earlier attempts are removed long after the next one is made.
    Once the kubelet no longer lists the pod, the walk removes its group."""
    state = snapshot.pod(uid)
    return (state is not None and state.active) or bool(view.ids_in(snapshot.host, os.path.join(path, "tasks"), fresh=True))
