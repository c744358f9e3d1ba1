"""Building the deciding part from a configuration: one cluster, one state, a framework a profile, the cycle and the queue's rules."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from koord import seams
from koord.config.extenders import ignored_resources
from koord.config.scheduler import KubeSchedulerConfiguration
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.defects import DEFECTS
from roles.scheduler.cluster.podinfo import PodInfo, PodParser
from roles.scheduler.cluster.transform import transforms
from roles.scheduler.cluster.vocabulary import Vocabulary
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.framework.context import State
from roles.scheduler.framework.framework import Framework, told
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.registry import PluginError, Registry, load_entry_points, load_path
from roles.scheduler.framework.status import SUCCESS, Status, error, unresolvable
from roles.scheduler.plugins.registry import built_in

if TYPE_CHECKING:
    from koord.kube.client import Client
    from roles.scheduler.binding.waiting import WaitingPods

log = logging.getLogger(__name__)

EVICTING = "DefaultPreemption"
"""The gate of pods whose victims, or those of their job, are still being asked to leave."""


def registry(plugin_paths: Iterable[str] = (), *, entry_points: bool = True) -> Registry:
    """Built-in plugins, those of installed packages, and those of the given files and folders. Raises PluginError."""
    found = built_in()
    if entry_points:
        load_entry_points(found)
    for path in plugin_paths:
        load_path(found, path)
    return found


class Engine:
    """Everything that decides, without I/O. Raises PluginError or InvalidConfig for a configuration that cannot run."""

    def __init__(
        self,
        config: KubeSchedulerConfiguration,
        plugins: Registry,
        *,
        client: Client | None = None,
        waiting: WaitingPods | None = None,
        gates: dict[str, bool] | None = None,
        seed: int | None = None,
        source: str = "config",
        verify: int | None = None,
    ) -> None:
        self.config = config
        self.vocabulary = Vocabulary()
        self.cluster = Cluster(self.vocabulary)
        self.parser = PodParser(self.vocabulary, transforms(gates or {}))
        self.state = State(self.cluster, seed=seams.rng().getrandbits(64) if seed is None else seed)
        self.frameworks: dict[str, Framework] = {}
        self.handles: dict[str, Handle] = {}
        extended = ignored_resources(config.extenders)
        for profile in config.profiles:
            handle = Handle(self.state, self.parser, profile.scheduler_name, client=client, waiting=waiting, gates=dict(gates or {}))
            handle.extended = extended
            handle.all_candidates = any(extender.preempt_verb for extender in config.extenders)
            handle.frameworks = self.frameworks
            self.handles[profile.scheduler_name] = handle
            self.frameworks[profile.scheduler_name] = Framework(profile, plugins, handle, source=source)
        first = next(iter(self.frameworks.values()))
        for name, framework in self.frameworks.items():
            ours, theirs = framework.queue_sort, first.queue_sort
            if (ours.name, ours.args) != (theirs.name, theirs.args):  # by multiPoint, which the configuration alone does not show
                raise PluginError(f"profile {name!r}: all profiles share one queue, which {theirs.name} sorts and {ours.name} cannot")
        percentages = {
            profile.scheduler_name: config.percentage_of_nodes_to_score
            if profile.percentage_of_nodes_to_score is None
            else profile.percentage_of_nodes_to_score
            for profile in config.profiles
        }
        self.cycle = Cycle(
            self.frameworks, self.state, percentages={name: value or 0 for name, value in percentages.items()}, verify=verify
        )

    def pre_enqueue(self, pod: PodInfo) -> Status:
        """The preEnqueue plugins of the pod's profile."""
        if self.state.evictions.asking(pod.uid):
            return unresolvable("pods are being asked to make room for it").by(EVICTING)
        framework = self.frameworks.get(pod.shape.scheduler_name)
        if framework is None:
            return SUCCESS
        try:
            return framework.run_pre_enqueue(pod)
        except DEFECTS as failure:
            log.exception("preEnqueue of pod %s failed", pod.key)
            return error(told(failure))

    def job_of(self, pod: PodInfo) -> Hashable:
        """What a pod is placed together with; None for a pod by itself."""
        framework = self.frameworks.get(pod.shape.scheduler_name)
        if framework is None:
            return None
        try:
            return framework.job_of(pod)
        except DEFECTS:
            log.exception("profile %s: the job of pod %s is unknown; it counts as a single pod", framework.name, pod.key)
            return None
