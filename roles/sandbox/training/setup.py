"""The cluster of the training scenario: racks of simulated nodes, and the profile that koord is installed with (pure)."""

from __future__ import annotations

from typing import Any

from koord.api.kinds import CLUSTERNETWORKTOPOLOGIES
from roles.sandbox.objects import SCHEDULER
from roles.sandbox.scenario import Nodes, Scenario, Scheduler

Obj = dict[str, Any]

NODES_PER_RACK = 2
RACKS_PER_SPINE = 2
NODE_COUNT = 8
SEATS_PER_NODE = 2
"""Workers that a node takes. Memory is what they run short of."""
NODE_GIB = 128
WORKER_GIB = NODE_GIB // SEATS_PER_NODE
WORKER_CPUS = 4
SEATS = NODE_COUNT * SEATS_PER_NODE
RACK_SEATS = NODES_PER_RACK * SEATS_PER_NODE
RACK_LABEL = "sandbox.koordinator.sh/rack"
SPINE_LABEL = "sandbox.koordinator.sh/spine"
REVOKE_SECONDS = 3.0

_ENABLED: dict[str, tuple[str, ...]] = {
    "preEnqueue": ("Coscheduling",),
    "preFilter": ("SchedulingHint", "Coscheduling", "Reservation", "NodeNUMAResource", "DeviceShare", "ElasticQuota"),
    "filter": ("Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare"),
    "postFilter": ("Reservation", "Coscheduling", "ElasticQuota"),
    "preScore": ("Reservation", "Coscheduling"),
    "reserve": ("Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Coscheduling", "ElasticQuota"),
    "permit": ("Coscheduling",),
    "preBind": ("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"),
    "bind": ("Reservation", "DefaultBinder"),
    "postBind": ("Coscheduling",),
}
_INSTEAD = ("postFilter", "bind")
_WEIGHTS = {"LoadAwareScheduling": 1, "NodeNUMAResource": 1, "DeviceShare": 1, "Reservation": 5000, "Coscheduling": 1}


def plugins() -> Obj:
    """The `plugins` of the shipped profile (configs/install/30-config.yaml; a test holds the two together)."""
    made: Obj = {}
    for point, listed in _ENABLED.items():
        made[point] = {"enabled": [{"name": name} for name in listed]}
        if point in _INSTEAD:
            made[point]["disabled"] = [{"name": "*"}]
    made["score"] = {"enabled": [{"name": name, "weight": weight} for name, weight in _WEIGHTS.items()]}
    return made


def plugin_config() -> Obj:
    """Arguments by plugin: as shipped, and lent quota is taken back after seconds instead of never."""
    resources = ("cpu", "memory", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")
    fit = {"type": "LeastAllocated", "resources": [{"name": name, "weight": 1} for name in resources]}
    return {
        "NodeResourcesFit": {"scoringStrategy": fit},
        "LoadAwareScheduling": {
            "filterExpiredNodeMetrics": False,
            "nodeMetricExpirationSeconds": 300,
            "resourceWeights": {"cpu": 1, "memory": 1},
            "usageThresholds": {"cpu": 65, "memory": 95},
            "estimatedScalingFactors": {"cpu": 85, "memory": 70},
        },
        "ElasticQuota": {"quotaGroupNamespace": "koordinator-system", "monitorAllQuotas": True, "delayEvictTime": f"{REVOKE_SECONDS:g}s"},
        "Coscheduling": {"awareNetworkTopology": True, "enablePreemption": True},
    }


def configuration() -> Obj:
    """The scheduler's configuration."""
    arguments = [{"name": name, "args": args} for name, args in plugin_config().items()]
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": SCHEDULER, "plugins": plugins(), "pluginConfig": arguments}],
    }


def scenario() -> Scenario:
    """Empty simulated nodes under that scheduler."""
    nodes = Nodes(count=NODE_COUNT, cpus=32, memory_gib=NODE_GIB, pods_per_node=0, batch_pods=0)
    return Scenario(title="Training jobs", nodes=nodes, scheduler=Scheduler(configuration=configuration(), network_topology=True))


def labels(index: int) -> dict[str, str]:
    """Where the node of this index stands in the network."""
    rack = index // NODES_PER_RACK
    return {RACK_LABEL: f"rack-{rack}", SPINE_LABEL: f"spine-{rack // RACKS_PER_SPINE}"}


def topology() -> Obj:
    """The three layers: spine, rack, host."""
    layers = [
        {"topologyLayer": "SpineLayer", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": [SPINE_LABEL]},
        {"topologyLayer": "RackLayer", "parentTopologyLayer": "SpineLayer", "labelKey": [RACK_LABEL]},
        {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "RackLayer"},
    ]
    return {
        "apiVersion": CLUSTERNETWORKTOPOLOGIES.api_version,
        "kind": "ClusterNetworkTopology",
        "metadata": {"name": "default"},
        "spec": {"networkTopologySpec": layers},
    }
