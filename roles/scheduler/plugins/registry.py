"""The scheduler's own plugins: one row each."""

from __future__ import annotations

from roles.scheduler.framework.interfaces import Plugin
from roles.scheduler.framework.registry import Registry
from roles.scheduler.plugins.basic import NodeName, NodeUnschedulable, PrioritySort, SchedulingGates
from roles.scheduler.plugins.coscheduling.plugin import Coscheduling
from roles.scheduler.plugins.declared_features import NodeDeclaredFeatures
from roles.scheduler.plugins.default_binder import DefaultBinder
from roles.scheduler.plugins.default_pre_bind import DefaultPreBind
from roles.scheduler.plugins.default_preemption import DefaultPreemption
from roles.scheduler.plugins.device_share.plugin import DeviceShare
from roles.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from roles.scheduler.plugins.elastic_quota.plugin import ElasticQuota
from roles.scheduler.plugins.fit_plus import NodeResourcesFitPlus
from roles.scheduler.plugins.image_locality import ImageLocality
from roles.scheduler.plugins.inter_pod_affinity import InterPodAffinity
from roles.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from roles.scheduler.plugins.node_affinity import NodeAffinity
from roles.scheduler.plugins.node_ports import NodePorts
from roles.scheduler.plugins.node_resources import NodeResourcesBalancedAllocation, NodeResourcesFit
from roles.scheduler.plugins.numa.plugin import NodeNUMAResource
from roles.scheduler.plugins.pod_topology_spread import PodTopologySpread
from roles.scheduler.plugins.reservation.plugin import Reservation
from roles.scheduler.plugins.scarce_resource_avoidance import ScarceResourceAvoidance
from roles.scheduler.plugins.scheduling_hint import SchedulingHint
from roles.scheduler.plugins.taint_toleration import TaintToleration
from roles.scheduler.plugins.volumes.binding import VolumeBinding
from roles.scheduler.plugins.volumes.filters import NodeVolumeLimits, VolumeRestrictions, VolumeZone

PLUGINS: tuple[type[Plugin], ...] = (
    SchedulingGates,
    PrioritySort,
    NodeUnschedulable,
    NodeName,
    DynamicResources,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    NodeResourcesBalancedAllocation,
    VolumeRestrictions,
    NodeVolumeLimits,
    VolumeBinding,
    VolumeZone,
    PodTopologySpread,
    InterPodAffinity,
    ImageLocality,
    DefaultBinder,
    NodeDeclaredFeatures,
    DefaultPreBind,
    LoadAwareScheduling,
    NodeNUMAResource,
    NodeResourcesFitPlus,
    ScarceResourceAvoidance,
    DefaultPreemption,
    ElasticQuota,
    SchedulingHint,
    Coscheduling,
    DeviceShare,
    Reservation,
)


def built_in() -> Registry:
    """A registry with the built-in plugins."""
    return Registry(PLUGINS)
