"""A profile made ready to run: its plugins built once, sorted by extension point."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from koord.api.kinds import Kind
from koord.config.errors import InvalidConfig, did_you_mean
from koord.config.loader import validate_model
from koord.config.scheduler import Profile as ProfileConfig
from koord.process.errors import told as told_of
from koord.seams import perf_counter
from roles.scheduler.cluster.columns import Columns
from roles.scheduler.cluster.defects import DEFECTS
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.answers import AnswerError, status_of
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.events import Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Feed, Plugin, Point
from roles.scheduler.framework.profile import Layout, expand, names_of
from roles.scheduler.framework.registry import PluginError, profile_path
from roles.scheduler.framework.status import SUCCESS, Code, Status
from roles.scheduler.framework.steps import Steps, in_steps
from roles.scheduler.framework.trust import BUILT_IN, Trust

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
Timer = Callable[[str, str, Status, float], None]
"""Told of a plugin, the extension point, what came out and how many seconds it took."""


class Framework:
    """The plugins of one profile by extension point. Raises PluginError or InvalidConfig when the profile cannot be built."""

    def __init__(
        self,
        profile: ProfileConfig,
        registry: Mapping[str, type[Plugin]],
        handle: Handle,
        *,
        source: str = "config",
    ) -> None:
        self.profile = profile
        self.name = profile.scheduler_name
        self.handle = handle
        self.timer: Timer | None = None  # set while an attempt is measured
        self.layout: Layout = expand(profile, registry)
        self.plugins: dict[str, Plugin] = {
            name: _build(registry[name], profile, handle, source) for name in _with_configured(self.layout, profile, registry)
        }
        self.trust = Trust(self.plugins.values())
        handle.parser.all_annotations |= self.trust.foreign  # what they read of a pod is their own affair
        self.pre_enqueues = self._at(Point.PRE_ENQUEUE, api.PreEnqueue)
        self.queue_sort = self._at(Point.QUEUE_SORT, api.QueueSort)[0]
        self.pre_filters = self._at(Point.PRE_FILTER, api.PreFilter)
        self.per_pod_pre_filters = [plugin for plugin in self.pre_filters if plugin.per_pod and plugin.name not in self.trust.early]
        self.early_pre_filters = [plugin for plugin in self.pre_filters if plugin.name in self.trust.early]
        self.filters = self._at(Point.FILTER, api.Filter)
        self.post_filters = self._at(Point.POST_FILTER, api.PostFilter)
        self.pre_scores = self._at(Point.PRE_SCORE, api.PreScore)
        weights = {entry.name: entry.weight for entry in self.layout[Point.SCORE]}
        self.scores = [(plugin, float(weights[plugin.name])) for plugin in self._at(Point.SCORE, api.Score)]
        self.reserves = self._at(Point.RESERVE, api.Reserve)
        self._reserving = _with_own(self.reserves, api.Reserve, "reserve")
        self.permits = self._at(Point.PERMIT, api.Permit)
        self.pre_binds = [p for p in self._all_at(Point.PRE_BIND) if isinstance(p, api.PreBind)]
        self.patchers = [p for p in self._all_at(Point.PRE_BIND) if isinstance(p, api.PreBindPatch)]
        self.waiting = _with_own(self.pre_binds, api.PreBind, "waits")
        self.binds = self._at(Point.BIND, api.Bind)
        self.post_binds = self._at(Point.POST_BIND, api.PostBind)
        transformers = [p for p in self.plugins.values() if isinstance(p, api.Transformer)]
        self.before_pre_filters = _with_own(transformers, api.Transformer, "before_pre_filter")
        self.after_pre_filters = _with_own(transformers, api.Transformer, "after_pre_filter")
        self.find_one_node = next((p for p in self.plugins.values() if isinstance(p, api.FindOneNode)), None)
        self.prefer_nodes = next((p for p in self.plugins.values() if isinstance(p, api.PreferNodes)), None)
        self.next_pod = next((p for p in self.plugins.values() if isinstance(p, api.NextPod)), None)
        self.resizers = [p for p in self.plugins.values() if isinstance(p, api.ResizePod)]
        self.forgets = [p for p in self.plugins.values() if isinstance(p, api.Forget)]
        self.restorer = next((p for p in self.plugins.values() if isinstance(p, api.Restorer)), None)
        self.reserve_failure = next((p for p in self.plugins.values() if isinstance(p, api.ReserveFailure)), None)
        self.reservation_filters = [p for p in self.plugins.values() if isinstance(p, api.ReservationFilter)]
        if self.restorer is not None:
            self.restorer.connect(self.reservation_filters)
        self.givers = [p for p in self.plugins.values() if type(p).placed is not Plugin.placed]
        self.keyed = [p for p in self.plugins.values() if type(p).shape_key is not Plugin.shape_key]
        self.subscriptions: dict[str, tuple[Subscription, ...]] = {
            name: tuple(plugin.subscriptions()) for name, plugin in self.plugins.items()
        }

    def _all_at(self, point: Point) -> list[Plugin]:
        return [self.plugins[entry.name] for entry in self.layout[point]]

    def _at(self, point: Point, kind: type[T]) -> list[T]:
        return [plugin for plugin in self._all_at(point) if isinstance(plugin, kind)]

    def controllers(self, wanted: Callable[[str], bool]) -> list[tuple[str, str, Callable[[], Coroutine[Any, Any, None]]]]:
        """(plugin, name, coroutine function) of the background work of the `wanted` plugins, and of what belongs to binding."""
        plugins = [plugin for plugin in self.plugins.values() if isinstance(plugin, api.Controllers)]
        found = [(plugin, name, run) for plugin in plugins for name, run in plugin.controllers()]
        return [(plugin.name, name, run) for plugin, name, run in found if name in plugin.of_binding or wanted(plugin.name)]

    # ---------------------------------------------------------------- running

    def ask(self, plugin: Plugin, point: str, step: Callable[..., R], *args: Any) -> R:
        """Run a plugin's step, and tell how long it took if this attempt is one of those that are measured."""
        timer = self.timer
        if timer is None:
            return step(*args)
        began = perf_counter()
        answer = step(*args)
        timer(plugin.name, point, _status_of(answer), perf_counter() - began)
        return answer

    def ask_in_steps(self, plugin: Plugin, point: str, step: Callable[..., R | Steps[R]], *args: Any) -> Steps[R]:
        """As `ask`, of a step that may be long."""
        timer, began = self.timer, perf_counter()
        answer = yield from in_steps(step(*args))
        if timer is not None:
            timer(plugin.name, point, _status_of(answer), perf_counter() - began)
        return answer

    def ask_for_all(self, plugin: Plugin, point: str, step: Callable[..., R], ctx: CycleContext, *args: Any) -> R:
        """As `ask`, for answers that all pods of the shape share."""
        if self.timer is None and plugin.name not in self.trust.watched:
            return step(ctx, *args)
        answer: R = self.ask(plugin, point, self.trust.ask, plugin, point, step, ctx, *args)
        return answer

    def run_pre_enqueue(self, pod: PodInfo) -> Status:
        """The first preEnqueue plugin that does not let the pod in, or success."""
        for plugin in self.pre_enqueues:
            status = plugin.pre_enqueue(pod)
            if status is not SUCCESS and not status_of(plugin, "pre_enqueue", status).ok:
                return status.by(plugin.name)
        return SUCCESS

    def run_pre_score(self, ctx: CycleContext) -> frozenset[str]:
        """Run preScore; returns the plugins whose score is left out."""
        answers = ((plugin.name, self.ask_for_all(plugin, "PreScore", plugin.pre_score, ctx)) for plugin in self.pre_scores)
        return frozenset(name for name, status in answers if status.code is Code.SKIP)

    def run_resize(self, ctx: CycleContext, slot: int) -> None:
        """Let ResizePod plugins replace the pod by one with other requests, before it is counted on the node (gate ResizePod)."""
        if self.handle.gates.get("ResizePod"):
            for plugin in self.resizers:
                resized = self.ask(plugin, "ResizePod", plugin.resize, ctx, slot)
                if resized is not None:
                    ctx.pod = resized

    def run_reserve(self, ctx: CycleContext, slot: int) -> Status:
        """Reserve in order, up to the first that refuses; the caller unreserves. What is chosen (devices, CPUs) is nothing that pods need
        which are nominated to the node and come before this one: filters have counted them, and let the pod have the rest."""
        ctx.node = self.handle.cluster.name_of(slot)
        ahead = self._nominated_before(ctx)
        if not ahead:
            return self._reserve(ctx, slot)
        with ctx.state.suppose() as supposed:
            pod = supposed.remove(ctx.pod.uid)  # it comes after them
            for other in ahead if pod is None else (*ahead, pod):
                supposed.add(other, slot)
            return self._reserve(ctx, slot)

    def _nominated_before(self, ctx: CycleContext) -> list[PodInfo]:
        """Pods that are nominated to the chosen node, count nowhere yet, and come before this one; not those of its own job."""
        nominations, cluster = ctx.state.nominations, ctx.cluster
        if not nominations.any_on(ctx.node):
            return []
        mine = self.job_of(ctx.pod)
        found = [other for other in nominations.ahead_of(ctx.pod, ctx.node) if cluster.slot_of_pod(other.uid) < 0]
        return [other for other in found if mine is None or self.job_of(other) != mine]

    def job_of(self, pod: PodInfo) -> Hashable:
        """What a pod is placed together with; None for a pod by itself."""
        return self.next_pod.job_of(pod) if self.next_pod is not None else None

    def _reserve(self, ctx: CycleContext, slot: int) -> Status:
        timed = self.timer is not None
        for plugin in self.reserves if timed else self._reserving:
            status = self.ask(plugin, "Reserve", plugin.reserve, ctx, slot) if timed else plugin.reserve(ctx, slot)
            if status is not SUCCESS and not status_of(plugin, "reserve", status).ok:
                return status.by(plugin.name)
        return SUCCESS

    def run_unreserve(self, ctx: CycleContext, slot: int) -> None:
        """Unreserve in reverse order. All plugins are asked, also after one that raised: that is logged."""
        for plugin in reversed(self.reserves):
            try:
                plugin.unreserve(ctx, slot)
            except DEFECTS:
                log.exception("plugin %s: unreserve of pod %s on node %s failed", plugin.name, ctx.pod.key, ctx.node)

    def run_post_bind(self, ctx: CycleContext, node: str) -> None:
        """Tell all postBind plugins. The pod is bound whatever they make of it: one that raises is logged."""
        for plugin in self.post_binds:
            try:
                plugin.post_bind(ctx, node)
            except DEFECTS:
                log.exception("plugin %s: postBind of pod %s on node %s failed", plugin.name, ctx.pod.key, node)

    def run_forget(self, pod: PodInfo) -> None:
        """Tell all plugins that an assumed pod was taken back."""
        for plugin in self.forgets:
            try:
                plugin.forget(pod)
            except DEFECTS:
                log.exception("plugin %s: forgetting pod %s failed", plugin.name, pod.key)

    def run_permit(self, ctx: CycleContext, slot: int) -> tuple[Status, dict[str, float]]:
        """Permit; returns success, a refusal, or WAIT with the time each waiting plugin grants (seconds)."""
        waits: dict[str, float] = {}
        for plugin in self.permits:
            status = self.ask(plugin, "Permit", plugin.permit, ctx, slot)
            if status is SUCCESS:
                continue
            if status_of(plugin, "permit", status).code is Code.WAIT:
                waits[plugin.name] = status.timeout
            elif not status.ok:
                return status.by(plugin.name), {}
        return (Status(Code.WAIT), waits) if waits else (SUCCESS, {})


def plugins_of(frameworks: Mapping[str, Framework]) -> Iterator[Plugin]:
    """The plugins of all profiles."""
    return (plugin for framework in frameworks.values() for plugin in framework.plugins.values())


def feeds_of(frameworks: Mapping[str, Framework]) -> list[Feed]:
    """What plugins observe, each once: those of several profiles may share their columns."""
    found: dict[tuple[Kind, Callable[..., object]], Feed] = {}
    for plugin in plugins_of(frameworks):
        for feed in plugin.feeds():
            found.setdefault((feed.kind, feed.observe), feed)
    return list(found.values())


def _with_own(plugins: Iterable[T], kind: type[Any], step: str) -> list[T]:
    """Those that have a step of their own; the one of the interface does nothing."""
    return [plugin for plugin in plugins if getattr(type(plugin), step) is not getattr(kind, step)]


def told(failure: BaseException) -> str:
    """An exception as users read it: the innermost plugin that was running, or its columns, the step, and what was raised."""
    if isinstance(failure, AnswerError):
        return str(failure)
    where, last = "", None
    trace = failure.__traceback__
    while trace is not None:
        plugin = trace.tb_frame.f_locals.get("self")
        if isinstance(plugin, (Plugin, Columns)) and plugin is not last:
            whose = f"plugin {plugin.name}" if isinstance(plugin, Plugin) else f"columns {type(plugin).__name__}"
            where, last = f"{whose} ({trace.tb_frame.f_code.co_name}): ", plugin
        trace = trace.tb_next
    return f"{where}{type(failure).__name__}: {failure}"


def _status_of(answer: Any) -> Status:
    """The status in what a plugin's step answers; one that only gives nodes or numbers has succeeded."""
    if answer is None or isinstance(answer, (float, int, np.ndarray)):
        return SUCCESS
    first = answer[0] if isinstance(answer, tuple) and answer else answer
    return first if isinstance(first, Status) else getattr(answer, "status", SUCCESS)


def _with_configured(layout: Layout, profile: ProfileConfig, registry: Mapping[str, type[Plugin]]) -> list[str]:
    """Enabled plugins; arguments for a plugin that does not exist are an error, arguments for a disabled one are only checked."""
    for index, entry in enumerate(profile.plugin_config):
        if entry.name not in registry:
            hint = did_you_mean(entry.name, registry)
            told = f"profile {profile.scheduler_name!r}, pluginConfig[{index}]: plugin {entry.name!r} does not exist{hint}"
            raise PluginError(told, f"{profile_path(profile.scheduler_name)}.pluginConfig[{index}].name")
    return names_of(layout)


def build_args(plugin: type[Plugin], profile: ProfileConfig, source: str) -> Any:
    """The validated arguments of a plugin. Raises InvalidConfig with the path in the file."""
    raw = profile.args_of(plugin.name)
    path = _args_path(plugin.name, profile)
    if plugin.Args is None:
        if raw:
            raise PluginError(f"profile {profile.scheduler_name!r}: plugin {plugin.name!r} takes no arguments", path)
        return None
    return validate_model(raw or {}, plugin.Args, source, path)


def _args_path(name: str, profile: ProfileConfig) -> str:
    index = next((i for i, entry in enumerate(profile.plugin_config) if entry.name == name), 0)
    return f"{profile_path(profile.scheduler_name)}.pluginConfig[{index}].args"


def _build(plugin: type[Plugin], profile: ProfileConfig, handle: Handle, source: str) -> Plugin:
    try:
        return plugin(build_args(plugin, profile, source), handle)
    except (PluginError, InvalidConfig):
        raise
    except ValueError as error:
        told = f"profile {profile.scheduler_name!r}: plugin {plugin.name!r} cannot start: {error}"
        raise PluginError(told, _args_path(plugin.name, profile)) from error
    except (Exception, SystemExit) as error:
        if plugin.__module__.startswith(BUILT_IN):
            raise  # a defect of ours: the whole story is wanted
        file = getattr(sys.modules.get(plugin.__module__), "__file__", "") or ""
        raise PluginError(f"profile {profile.scheduler_name!r}: plugin {plugin.name!r} cannot start: {told_of(error, file)}") from error
