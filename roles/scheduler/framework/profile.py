"""Which plugins run where: kube-scheduler's merge order of defaults and profile (SCH-FW-01)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    weight: int = 1


# In this order; a default that this build does not have is left out by `expand`.
MULTI_POINT = (
    Enabled("SchedulingGates"),
    Enabled("PrioritySort"),
    Enabled("NodeUnschedulable"),
    Enabled("NodeName"),
    Enabled("TaintToleration", 3),
    Enabled("NodeAffinity", 2),
    Enabled("NodePorts"),
    Enabled("NodeResourcesFit"),
    Enabled("VolumeRestrictions"),
    Enabled("NodeVolumeLimits"),
    Enabled("VolumeBinding"),
    Enabled("VolumeZone"),
    Enabled("PodTopologySpread", 2),
    Enabled("InterPodAffinity", 2),
    Enabled("DynamicResources", 2),
    Enabled("DefaultPreemption"),
    Enabled("NodeResourcesBalancedAllocation"),
    Enabled("ImageLocality"),
    Enabled("DefaultBinder"),
    Enabled("NodeDeclaredFeatures"),
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
                known = ", ".join(sorted(registry))
                raise PluginError(f"{where}: plugin {entry.name!r} does not exist (--plugin-path loads others); known: {known}", path)
            if point is not None and (point, entry.name) in _MOVED:
                continue
            if field != "multi_point" and (point is None or not point.implemented_by(registry[entry.name])):
                raise PluginError(f"{where}: plugin {entry.name!r} does not implement {wire}", path)


def _merge_multi_point(custom: PluginSet) -> list[Enabled]:
    disabled = {entry.name for entry in custom.disabled}
    own = {entry.name: entry for entry in _weighed(custom.enabled)}
    result: list[Enabled] = []
    if _EVERYTHING not in disabled:
        for default in MULTI_POINT:
            if default.name not in disabled:
                result.append(own.pop(default.name, default))
    return [*result, *own.values()]


def _expand_point(
    point: Point, configured: list[PluginEntry], disabled: set[str], multi: list[Enabled], registry: Mapping[str, type[Plugin]]
) -> list[Enabled]:
    own = _weighed(configured)
    if _EVERYTHING in disabled:
        return own
    names = {entry.name for entry in own}
    defaults = {entry.name for entry in multi} - disabled
    first = [entry for entry in own if entry.name in defaults]
    middle = [entry for entry in multi if entry.name in defaults and entry.name not in names and point.implemented_by(registry[entry.name])]
    last = [entry for entry in own if entry.name not in defaults]
    return first + middle + last


def _weighed(listed: Iterable[PluginEntry]) -> list[Enabled]:
    """Entries with the weights that they write themselves: one that replaces a default does not inherit the default's."""
    return [Enabled(entry.name, entry.weight or 1) for entry in listed]


def _append_patch(profile: ProfileConfig, plugins: Plugins, layout: Layout, registry: Mapping[str, type[Plugin]]) -> None:
    """DefaultPreBind joins preBind of every profile with a `plugins` block that neither lists nor disables it."""
    if profile.plugins is None or PRE_BIND_PATCH not in registry:
        return
    disabled = {entry.name for entry in plugins.pre_bind.disabled}
    listed = {entry.name for entry in layout[Point.PRE_BIND]}
    if PRE_BIND_PATCH not in listed and PRE_BIND_PATCH not in disabled and _EVERYTHING not in disabled:
        layout[Point.PRE_BIND].append(Enabled(PRE_BIND_PATCH))


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
