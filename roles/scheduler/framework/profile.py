"""Which plugins run where: kube-scheduler's merge order of defaults and profile (SCH-FW-01)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from koord.config.scheduler import Plugin as PluginEntry
from koord.config.scheduler import Plugins, PluginSet
from koord.config.scheduler import Profile as ProfileConfig
from roles.scheduler.framework.interfaces import Plugin, Point
from roles.scheduler.framework.registry import PluginError, profile_path

PRE_BIND_PATCH = "DefaultPreBind"
_EVERYTHING = "*"
# Fields of a profile's plugins that are no extension point here.
_OTHER_FIELDS = {"multi_point": "multiPoint", "placement_generate": "placementGenerate", "placement_score": "placementScore"}


class Enabled(NamedTuple):
    """A plugin at an extension point with its score weight."""

    name: str
    weight: int


class DefaultPlugin(NamedTuple):
    """A row of the default MultiPoint list; weight 0 means 1."""

    name: str
    weight: int = 0


# In this order; a default that this build does not have is left out by `expand`.
MULTI_POINT = (
    DefaultPlugin("SchedulingGates"),
    DefaultPlugin("PrioritySort"),
    DefaultPlugin("NodeUnschedulable"),
    DefaultPlugin("NodeName"),
    DefaultPlugin("TaintToleration", 3),
    DefaultPlugin("NodeAffinity", 2),
    DefaultPlugin("NodePorts"),
    DefaultPlugin("NodeResourcesFit", 1),
    DefaultPlugin("VolumeRestrictions"),
    DefaultPlugin("NodeVolumeLimits"),
    DefaultPlugin("VolumeBinding"),
    DefaultPlugin("VolumeZone"),
    DefaultPlugin("PodTopologySpread", 2),
    DefaultPlugin("InterPodAffinity", 2),
    DefaultPlugin("DynamicResources", 2),
    DefaultPlugin("DefaultPreemption"),
    DefaultPlugin("NodeResourcesBalancedAllocation", 1),
    DefaultPlugin("ImageLocality", 1),
    DefaultPlugin("DefaultBinder"),
    DefaultPlugin("NodeDeclaredFeatures"),
)

# Up to Koordinator 1.6 Coscheduling sorted the queue so that the pods of a gang followed one another; its rounds see to that now.
_MOVED = {(Point.QUEUE_SORT, "Coscheduling"): "PrioritySort"}

Layout = dict[Point, list[Enabled]]


def expand(profile: ProfileConfig, registry: Mapping[str, type[Plugin]]) -> Layout:
    """The plugins of every extension point in the order they run.

    Raises PluginError for an unknown name and for a plugin at a point that it does not implement.
    """
    plugins = profile.plugins or Plugins()
    _check_names(profile, plugins, registry)
    multi = [entry for entry in _merge_multi_point(plugins.multi_point) if entry.name in registry]
    layout: Layout = {}
    for point in Point:
        configured: PluginSet = getattr(plugins, point.name.lower())
        enabled = [
            entry.model_copy(update={"name": _MOVED.get((point, entry.name), entry.name)})
            for entry in configured.enabled
            if entry.name in registry
        ]
        layout[point] = _expand_point(point, enabled, {entry.name for entry in configured.disabled}, multi, registry)
    _append_patch(profile, plugins, layout, registry)
    _check_layout(profile, layout)
    return layout


def _check_names(profile: ProfileConfig, plugins: Plugins, registry: Mapping[str, type[Plugin]]) -> None:
    for field in type(plugins).model_fields:
        point = next((p for p in Point if p.name.lower() == field), None)
        for entry in getattr(plugins, field).enabled:
            wire = point.wire if point else _OTHER_FIELDS[field]
            where = f"profile {profile.scheduler_name!r}, {wire}"
            path = f"{profile_path(profile.scheduler_name)}.plugins.{wire}.enabled[name={entry.name}]"
            if entry.name not in registry:
                raise PluginError(f"{where}: plugin {entry.name!r} does not exist; known: {', '.join(sorted(registry))}", path)
            if point is not None and (point, entry.name) in _MOVED:
                continue
            if field != "multi_point" and (point is None or not point.implemented_by(registry[entry.name])):
                raise PluginError(f"{where}: plugin {entry.name!r} does not implement {wire}", path)


def _merge_multi_point(custom: PluginSet) -> list[Enabled]:
    disabled = {entry.name for entry in custom.disabled}
    own = {entry.name: entry for entry in custom.enabled}
    result: list[Enabled] = []
    if _EVERYTHING not in disabled:
        for default in MULTI_POINT:
            if default.name in own:
                entry = own.pop(default.name)
                result.append(Enabled(entry.name, entry.weight or default.weight))
            elif default.name not in disabled:
                result.append(Enabled(default.name, default.weight))
    result.extend(Enabled(entry.name, entry.weight) for entry in custom.enabled if entry.name in own)
    return result


def _expand_point(
    point: Point, configured: list[PluginEntry], disabled: set[str], multi: list[Enabled], registry: Mapping[str, type[Plugin]]
) -> list[Enabled]:
    if _EVERYTHING in disabled:
        return [Enabled(entry.name, entry.weight or 1) for entry in configured]
    names = {entry.name for entry in configured}
    defaults = {entry.name: entry for entry in multi}
    first = [Enabled(e.name, e.weight or defaults[e.name].weight or 1) for e in configured if e.name in defaults]
    middle = [
        Enabled(entry.name, entry.weight or 1)
        for entry in multi
        if entry.name not in names and entry.name not in disabled and point.implemented_by(registry[entry.name])
    ]
    last = [Enabled(entry.name, entry.weight or 1) for entry in configured if entry.name not in defaults]
    return first + middle + last


def _append_patch(profile: ProfileConfig, plugins: Plugins, layout: Layout, registry: Mapping[str, type[Plugin]]) -> None:
    """DefaultPreBind joins preBind of every profile with a `plugins` block that neither lists nor disables it."""
    if profile.plugins is None or PRE_BIND_PATCH not in registry:
        return
    disabled = {entry.name for entry in plugins.pre_bind.disabled}
    listed = {entry.name for entry in layout[Point.PRE_BIND]}
    if PRE_BIND_PATCH not in listed and PRE_BIND_PATCH not in disabled and _EVERYTHING not in disabled:
        layout[Point.PRE_BIND].append(Enabled(PRE_BIND_PATCH, 1))


def _check_layout(profile: ProfileConfig, layout: Layout) -> None:
    sorts = [entry.name for entry in layout[Point.QUEUE_SORT]]
    if len(sorts) != 1:
        told = f"profile {profile.scheduler_name!r}: one queueSort plugin is needed, got {', '.join(sorts) or 'none'}"
        raise PluginError(told, f"{profile_path(profile.scheduler_name)}.plugins.queueSort")
    if not layout[Point.BIND]:
        told = f"profile {profile.scheduler_name!r}: at least one bind plugin is needed"
        raise PluginError(told, f"{profile_path(profile.scheduler_name)}.plugins.bind")


def names_of(layout: Layout) -> list[str]:
    """Every plugin of a layout once, in order of first appearance."""
    seen: dict[str, Any] = {}
    for entries in layout.values():
        seen.update(dict.fromkeys(entry.name for entry in entries))
    return list(seen)
