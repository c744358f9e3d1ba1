"""The cluster of the training scenario: racks of simulated nodes, and the profile that koord is installed with (pure)."""

from __future__ import annotations

from typing import Any

from koord.api.kinds import CLUSTERNETWORKTOPOLOGIES
from roles.sandbox import profile
from roles.sandbox.builders import obj
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


def plugin_config() -> Obj:
    """Arguments by plugin: as shipped, and lent quota is taken back after seconds instead of never."""
    shipped = profile.plugin_config()
    return {**shipped, "ElasticQuota": {**shipped["ElasticQuota"], "monitorAllQuotas": True, "delayEvictTime": f"{REVOKE_SECONDS:g}s"}}


def configuration() -> Obj:
    """The scheduler's configuration."""
    return profile.configuration(plugin_config())


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
    return obj(CLUSTERNETWORKTOPOLOGIES, "default", spec={"networkTopologySpec": layers})
