"""Whose answers may be kept. Pods of one shape share what plugins say, which is right as long as a plugin looks at the shape and at what it
declared (`shape_key`, `reads`, stamps). A plugin that is found to look at more is asked anew for each pod from then on: slower, and right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.answers import check
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.interfaces import Filter, Plugin, PreFilter, PreScore, Score

log = logging.getLogger(__name__)

R = TypeVar("R")

# What tells pods of one shape apart. Labels do so where a pod has some of its own (`PodInfo.unique_labels`).
_OWN = frozenset({"deleting", "key", "metadata", "name", "node_name", "nominated", "pod", "reservation", "terminated", "uid"})
BUILT_IN = "roles.scheduler.plugins."


class WatchedPod(PodInfo):
    """A pod that remembers what of it was looked at beyond its shape."""

    __slots__ = ("looked_at",)

    def __init__(self, pod: PodInfo) -> None:
        for name in PodInfo.__slots__:
            setattr(self, name, getattr(pod, name))
        self.looked_at: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in _OWN or (name == "labels" and value is not object.__getattribute__(self, "shape").labels):
            object.__getattribute__(self, "looked_at").add(name)
        return value


class Trust:
    """The plugins of one profile that are asked anew for each pod, with the reason (`unkept`), those of them whose preFilter comes before
    all filters for each pod (`early`), and those whom we watch (`watched`). `told` hears of each find: the plugin's name and what it
    did."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        foreign = [plugin for plugin in plugins if not type(plugin).__module__.startswith(BUILT_IN)]
        self.foreign = bool(foreign)  # whether there are plugins of others
        self.watched = frozenset(plugin.name for plugin in foreign)
        # What a preFilter that is asked in each cycle leaves for the plugin's later steps is another thing for each pod.
        early = [p for p in foreign if isinstance(p, PreFilter) and p.per_pod and isinstance(p, (Filter, PreScore, Score))]
        self.early = frozenset(plugin.name for plugin in early)
        self.unkept: dict[str, str] = dict.fromkeys(self.early, "its preFilter is asked for each pod")
        self.told: Callable[[str, str], None] = _nobody
        # Whether a step before filters and scores is among them: then nothing at all is kept.
        self.unshared = any(isinstance(plugin, PreScore) for plugin in early)

    def ask(self, plugin: Plugin, point: str, step: Callable[..., R], ctx: CycleContext, *args: Any) -> R:
        """Ask for an answer that all pods of the shape will share. Those of users' plugins are checked, and what they look at in the pod
        is watched."""
        if plugin.name not in self.watched:
            return step(ctx, *args)
        answer = step(ctx, *args) if plugin.name in self.unkept else self._watch(plugin, step, ctx, *args)
        check(plugin, point, answer, ctx, *args)
        return answer

    def _watch(self, plugin: Plugin, step: Callable[..., R], ctx: CycleContext, *args: Any) -> R:
        pod, watched = ctx.pod, WatchedPod(ctx.pod)
        ctx.pod = watched
        try:
            return step(ctx, *args)
        finally:
            ctx.pod = pod
            if watched.looked_at and not _declares(plugin, pod):
                names = ", ".join(f"pod.{name}" for name in sorted(watched.looked_at))
                advice = "say so in shape_key, or with per_pod in preFilter"
                self.withdraw(plugin, f"it looks at {names}, in which pods of one shape differ; {advice}")

    def withdraw(self, plugin: Plugin, why: str) -> None:
        """Keep no answer of a plugin from now on."""
        self.told(plugin.name, why)
        if plugin.name not in self.unkept:
            log.error("plugin %s is evaluated for each pod from now on: %s", plugin.name, why)
            self.unkept[plugin.name] = why
            self.unshared = self.unshared or isinstance(plugin, PreScore) or (isinstance(plugin, PreFilter) and not plugin.per_pod)


def _declares(plugin: Plugin, pod: PodInfo) -> bool:
    """Whether a plugin's `shape_key` looks at more than the shape, too."""
    watched = WatchedPod(pod)
    plugin.shape_key(watched)
    return bool(watched.looked_at)


def _nobody(plugin: str, why: str) -> None:
    """Outside a live scheduler nobody counts."""
