"""Every plugin, by the name that a configuration uses. One row a plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koord.config.model import ConfigModel
from roles.descheduler.framework.evicting import Evicting, Setup
from roles.descheduler.framework.plugin import PluginType
from roles.descheduler.migration.args import MigrationControllerArgs
from roles.descheduler.migration.plugin import MigrationController
from roles.descheduler.plugins import custompriority, fragmentationaware, interferingpods, scaledownbinpack
from roles.descheduler.plugins.community import (
    antiaffinity,
    duplicates,
    failedpods,
    highnodeutilization,
    lownodeutilization,
    nodeaffinity,
    nodetaints,
    podlifetime,
    toomanyrestarts,
    topologyspread,
)
from roles.descheduler.plugins.defaultevictor.args import DefaultEvictorArgs
from roles.descheduler.plugins.defaultevictor.plugin import DefaultEvictor
from roles.descheduler.plugins.lownodeload import plugin as lownodeload
from roles.descheduler.plugins.lownodeload.args import LowNodeLoadArgs


@dataclass(frozen=True, slots=True)
class EvictorType:
    """A plugin that says which pods may leave (filter) and takes them away (evict). `make(args, setup)` makes it for one profile."""

    name: str
    args: type[ConfigModel]
    make: Callable[[Any, Setup], Evicting]
    lenient: bool = False


def _row(plugin: Any, args: type[ConfigModel], *, lenient: bool = False) -> PluginType:
    return PluginType(plugin.name, plugin.point, args, plugin, lenient)


EVICTORS: tuple[EvictorType, ...] = (
    EvictorType(MigrationController.name, MigrationControllerArgs, MigrationController),
    EvictorType(DefaultEvictor.name, DefaultEvictorArgs, DefaultEvictor, lenient=True),
)

PLUGINS: tuple[PluginType, ...] = (
    _row(lownodeload.LowNodeLoad, LowNodeLoadArgs),
    _row(custompriority.CustomPriority, custompriority.CustomPriorityArgs),
    _row(fragmentationaware.FragmentationAware, fragmentationaware.FragmentationAwareArgs),
    _row(interferingpods.RemoveInterferingPods, interferingpods.RemoveInterferingPodsArgs),
    _row(scaledownbinpack.ScaleDownBinPack, scaledownbinpack.ScaleDownBinPackArgs),
    # adapted from the community: their arguments are read leniently
    _row(antiaffinity.RemovePodsViolatingInterPodAntiAffinity, antiaffinity.RemovePodsViolatingInterPodAntiAffinityArgs, lenient=True),
    _row(duplicates.RemoveDuplicates, duplicates.RemoveDuplicatesArgs, lenient=True),
    _row(failedpods.RemoveFailedPods, failedpods.RemoveFailedPodsArgs, lenient=True),
    _row(highnodeutilization.HighNodeUtilization, highnodeutilization.HighNodeUtilizationArgs, lenient=True),
    _row(lownodeutilization.LowNodeUtilization, lownodeutilization.LowNodeUtilizationArgs, lenient=True),
    _row(nodeaffinity.RemovePodsViolatingNodeAffinity, nodeaffinity.RemovePodsViolatingNodeAffinityArgs, lenient=True),
    _row(nodetaints.RemovePodsViolatingNodeTaints, nodetaints.RemovePodsViolatingNodeTaintsArgs, lenient=True),
    _row(podlifetime.PodLifeTime, podlifetime.PodLifeTimeArgs, lenient=True),
    _row(toomanyrestarts.RemovePodsHavingTooManyRestarts, toomanyrestarts.RemovePodsHavingTooManyRestartsArgs, lenient=True),
    _row(
        topologyspread.RemovePodsViolatingTopologySpreadConstraint,
        topologyspread.RemovePodsViolatingTopologySpreadConstraintArgs,
        lenient=True,
    ),
)

EVICTOR_TYPES: dict[str, EvictorType] = {row.name: row for row in EVICTORS}
PLUGIN_TYPES: dict[str, PluginType] = {row.name: row for row in PLUGINS}
POINTS: dict[str, frozenset[str]] = {
    **{row.name: frozenset({"evict", "filter"}) for row in EVICTORS},
    **{row.name: frozenset({row.point}) for row in PLUGINS},
}
ARGS: dict[str, type[ConfigModel]] = {row.name: row.args for row in EVICTORS} | {row.name: row.args for row in PLUGINS}
LENIENT = frozenset(row.name for row in EVICTORS if row.lenient) | frozenset(row.name for row in PLUGINS if row.lenient)
