"""Resctrl: a cache and memory bandwidth group of its own for a pod that asks for it by annotation (KA-RDT-02).

The group is the directory ``koordlet-<pod uid>`` of the resctrl file system. What a pod with a group had in its class's group is
left behind there (KA-RDT-01 leaves such pods out).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from koord.api.annotations import AnnotationError, parse_resctrl
from koord.api.annotations_agent import ResctrlConfig, ResctrlResource
from koord.api.names import ANNOTATION_RESCTRL
from roles.koordlet.actuation.writes import NODE, About, Kind, Write
from roles.koordlet.hooks.context import Answer, ContainerContext, PodContext, Stage
from roles.koordlet.hooks.hook import Hook, Pods, RuleError
from roles.koordlet.host import parse
from roles.koordlet.host.errors import HostError
from roles.koordlet.options import Options
from roles.koordlet.qos.resctrl import ResctrlState, probe, text_of, threads
from roles.koordlet.qos.resctrl_math import ResctrlError, cache_ids, l3_mask, mba_value, schemata_line, ways
from roles.koordlet.states.model import HostState, Snapshot

log = logging.getLogger(__name__)

PREFIX = "koordlet-"
#: A group whose pod is not listed is left alone for so long (seconds): the pod may be about to be listed.
GRACE = 10.0


@dataclass(frozen=True, slots=True)
class CacheRule:
    """What the machine has. ``ways`` 0: no resctrl here (yet)."""

    probed: ResctrlState
    ways: int = 0
    l3: tuple[int, ...] = ()
    mb: tuple[int, ...] = ()


def _by_cache(resource: ResctrlResource) -> dict[int, tuple[tuple[int, ...], int | None]]:
    return {own.cache_id: (own.range, own.percent) for own in resource.schemata_per_cache}


def _l3(config: ResctrlConfig, rule: CacheRule) -> dict[int, int] | None:
    """Mask of each cache; None unless every cache has one."""
    if config.llc is None or not rule.l3:
        return None
    common = config.llc.schemata.range if config.llc.schemata is not None else ()
    own = _by_cache(config.llc)
    out: dict[int, int] = {}
    for cache in rule.l3:
        span = own[cache][0] if cache in own else common
        mask = l3_mask(rule.ways, span[0], span[1]) if len(span) == 2 else None
        if not mask:
            return None
        out[cache] = mask
    return out


def _mb(config: ResctrlConfig, rule: CacheRule) -> dict[int, int] | None:
    if config.mb is None or not rule.mb:
        return None
    common = config.mb.schemata.percent if config.mb.schemata is not None else None
    own = _by_cache(config.mb)
    out: dict[int, int] = {}
    for cache in rule.mb:
        percent = own[cache][1] if cache in own else common
        value = mba_value(rule.probed.vendor, percent) if percent is not None else None
        if not value:
            return None
        out[cache] = value
    return out


def lines(config: ResctrlConfig, rule: CacheRule) -> list[tuple[str, str]]:
    """(resource, schemata line) of the valid parts of an annotation."""
    parts = (("L3", _l3(config, rule)), ("MB", _mb(config, rule)))
    return [(resource, schemata_line(resource, values)) for resource, values in parts if values is not None]


class Resctrl(Hook[CacheRule]):
    """See the module."""

    name: ClassVar[str] = "Resctrl"
    features: ClassVar[tuple[str, ...]] = ("KA-RDT-02",)
    walks_always: ClassVar[bool] = True
    pod_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_RUN_POD_SANDBOX, Stage.PRE_REMOVE_POD_SANDBOX)
    container_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_CREATE_CONTAINER,)

    def __init__(self, options: Options, gate: Callable[[str], bool]) -> None:
        super().__init__(options, gate)
        self._told: dict[str, str] = {}
        self._about: dict[str, About] = {}

    def container(self, container: ContainerContext, rule: CacheRule | None) -> Answer | None:
        """The group's name, for runtimes that put containers into groups themselves."""
        pod = container.pod
        if pod.state is not None or rule is None or not rule.ways or ANNOTATION_RESCTRL not in pod.annotations:
            return None
        config = parse_resctrl(pod.annotations)
        return Answer(rdt_class=f"{PREFIX}{pod.uid}") if config is not None and lines(config, rule) else None

    def at_pod(self, stage: Stage, snapshot: Snapshot, pod: PodContext, rule: CacheRule | None) -> Iterator[Write]:
        if rule is None or not rule.ways or not pod.uid or ANNOTATION_RESCTRL not in pod.annotations:
            return
        path = snapshot.host.root.resctrl_path(f"{PREFIX}{pod.uid}")
        if stage is Stage.PRE_RUN_POD_SANDBOX:
            yield from self._group(snapshot.host, pod, rule)
        elif os.path.isdir(path):
            yield self._removal(path, pod.uid)

    def learn(self, snapshot: Snapshot, rule: CacheRule | None) -> CacheRule | None:
        host = snapshot.host
        probed = probe(host, rule.probed if rule is not None else ResctrlState())
        if not probed.supported:
            return CacheRule(probed)
        cbm = text_of(host, host.root.resctrl_path("info", "L3", "cbm_mask"))
        root = text_of(host, host.root.resctrl_path("schemata"))
        if cbm is None or root is None:
            return CacheRule(probed)
        try:
            return CacheRule(probed, ways(cbm), tuple(cache_ids(root, "L3")), tuple(cache_ids(root, "MB")))
        except ResctrlError as error:
            raise RuleError(str(error)) from None

    def walk(self, snapshot: Snapshot, rule: CacheRule | None, pods: Pods) -> Iterator[Write]:
        if rule is None or not rule.ways:
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
        about = About("pod", pod.namespace, pod.name, "", pod.uid)
        path = host.root.resctrl_path(f"{PREFIX}{pod.uid}")
        try:
            config = parse_resctrl(pod.annotations)
            schemata = lines(config, rule) if config is not None else []
            problem = "" if schemata else "no part of it is valid for every cache of this machine"
        except AnnotationError as error:
            schemata, problem = [], str(error)
        if problem and self._told.get(pod.uid) != problem:
            log.warning("pod %s, annotation %s: %s", pod.key, ANNOTATION_RESCTRL, problem)
        self._told[pod.uid] = problem
        if not schemata:
            return
        if not os.path.isdir(path):
            made = "Create Resctrl Group"
            yield Write("group", path, "", kind=Kind.DIRECTORY, cached=False, reason="CreateCATGroup", about=about, event=made)
        self._about[pod.uid] = about
        for resource, line in schemata:
            file = os.path.join(path, "schemata")
            yield Write("schemata", file, line, kind=Kind.LINE, device=resource, reason="UpdateResctrl", about=about)
        tasks = os.path.join(path, "tasks")
        inside = set(_ids(host, tasks))
        for tid in threads(host, pod.state) if pod.state is not None else ():
            if tid not in inside:
                yield Write("tasks", tasks, str(tid), kind=Kind.LINE, cached=False, about=about, device=str(tid), reason="UpdateResctrl")

    def _removals(self, snapshot: Snapshot, wanted: set[str]) -> Iterator[Write]:
        """Groups of pods that are gone, also of a former life of this agent."""
        self._told = {uid: text for uid, text in self._told.items() if f"{PREFIX}{uid}" in wanted}
        base = snapshot.host.root.resctrl_path()
        try:
            with os.scandir(base) as entries:
                found = [(e.name, e.stat().st_mtime) for e in entries if e.name.startswith(PREFIX) and e.is_dir(follow_symlinks=False)]
        except OSError:
            return
        for name, made in sorted(found):
            if name not in wanted and snapshot.time - made > GRACE:
                yield self._removal(os.path.join(base, name), name.removeprefix(PREFIX))

    def _removal(self, path: str, uid: str) -> Write:
        about = self._about.pop(uid, NODE)
        gone = "Remove Resctrl Group"
        return Write("group", path, "", kind=Kind.NO_DIRECTORY, cached=False, reason="RemoveCATGroup", about=about, event=gone)


def _ids(host: HostState, path: str) -> list[int]:
    try:
        return parse.ids(path, host.files.read_fresh(path))
    except HostError:
        return []
