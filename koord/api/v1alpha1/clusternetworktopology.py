"""ClusterNetworkTopology: the network tree that gangs are placed along."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import Int32, Model, Resource

ROOT_LAYER = "ClusterTopologyLayer"
NODE_LAYER = "NodeTopologyLayer"


class NetworkTopologySpec(Model):
    """A layer of the tree."""

    topology_layer: str = Field(description="Name of the layer; NodeTopologyLayer is the leaf.")
    parent_topology_layer: str | None = Field(None, description="Name of the layer above; ClusterTopologyLayer is the root.")
    label_key: list[str] | None = Field(None, description="Node labels that hold the place in this layer; the first that is there counts.")


class ClusterNetworkTopologySpec(Model):
    """Layers of the tree."""

    network_topology_spec: list[NetworkTopologySpec] = Field(description="The layers.")


class TopologyInfo(Model):
    """A place in the tree."""

    topology_layer: str = Field(description="Name of the layer.")
    topology_name: str = Field(description="Name of the place.")


class ClusterNetworkTopologyDetail(Model):
    """A place, its parent and its children."""

    topology_info: TopologyInfo = Field(description="The place.")
    parent_topology_info: TopologyInfo | None = Field(None, description="The place above.")
    child_topology_layer: str | None = Field(None, description="Layer of the places below.")
    child_topology_names: list[str] | None = Field(None, description="Names of the places below.")
    node_num: Int32 = Field(description="Nodes in the place.")


class ClusterNetworkTopologyStatus(Model):
    """The tree as found."""

    detail_status: list[ClusterNetworkTopologyDetail] | None = Field(None, description="Every place of the tree.")


class ClusterNetworkTopology(Resource):
    """The network tree of the cluster."""

    resource: ClassVar[kinds.Kind] = kinds.CLUSTERNETWORKTOPOLOGIES

    spec: ClusterNetworkTopologySpec | None = Field(None, description="Layers of the tree.")
    status: ClusterNetworkTopologyStatus | None = Field(None, description="The tree as found.")
