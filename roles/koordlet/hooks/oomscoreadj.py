"""OOMScoreAdj: ``oom_score_adj`` of a container's processes by annotation (KA-HK-10).

Taking the annotation away leaves the processes as they are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import ClassVar

from koord.api import trust
from koord.api.annotations import AnnotationError, parse_oom_score_adj, parse_oom_score_adj_spec
from koord.api.qos import QoSClass
from roles.koordlet.actuation.writes import About, Kind, Write
from roles.koordlet.hooks.context import ContainerContext, PodContext
from roles.koordlet.hooks.hook import Hook, Pods
from roles.koordlet.qos import view
from roles.koordlet.qos.outcome import Sample
from roles.koordlet.states.model import Snapshot

log = logging.getLogger(__name__)


class OOMScoreAdj(Hook[None]):
    """See the module."""

    name: ClassVar[str] = "OOMScoreAdj"
    walks_always: ClassVar[bool] = True

    def walk(self, snapshot: Snapshot, rule: None, pods: Pods) -> Iterator[Write]:
        for _, containers in pods.values():
            for container in containers:
                score = score_of(container)
                if score is None:
                    continue
                pod = container.pod
                about = About.of(pod, container.name)
                for pid in view.ids_within(snapshot.host, "cgroup.procs", container.cgroup_dir):
                    path = snapshot.host.root.proc_path(str(pid), "oom_score_adj")
                    if os.path.exists(path):  # processes end at any time
                        yield Write("oom_score_adj", path, str(score), kind=Kind.FILE, cached=False, reason=self.name, about=about)

    def samples(self, rule: None, pods: Pods) -> Iterator[Sample]:
        for pod, containers in pods.values():
            for container in containers:
                score = score_of(container)
                if score is not None:
                    yield Sample("oom_score_adj", score, (pod.name, pod.namespace, pod.uid, container.name))


def _bounds(pod: PodContext) -> trust.Bounds:
    return trust.BEST_EFFORT_OOM_SCORE_BOUNDS if pod.claimant.qos is QoSClass.BE else trust.OOM_SCORE_BOUNDS


def score_of(container: ContainerContext) -> int | None:
    """The score that the annotations give a container; None for none, or for one that cannot be used."""
    annotations = container.pod.annotations
    try:
        spec = parse_oom_score_adj_spec(annotations)
    except AnnotationError as error:
        log.debug("pod %s: %s", container.pod.key, error)
        spec = None
    if spec and container.name in spec:
        return _bounds(container.pod).clamp(spec[container.name])
    try:
        score = parse_oom_score_adj(annotations)
        return None if score is None else _bounds(container.pod).clamp(score)
    except AnnotationError as error:
        log.debug("pod %s: %s", container.pod.key, error)
        return None
