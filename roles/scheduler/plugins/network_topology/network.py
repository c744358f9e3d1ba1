"""The network of the cluster as it stands: the tree, kept current with nodes and the ClusterNetworkTopology, and how many pods of a kind
(annotation network-topology-selector) each node has."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from koord.api import names
from koord.api.objects import ClusterNetworkTopology
from koord.api.v1alpha1.clusternetworktopology import NODE_LAYER, ROOT_LAYER
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, Vector
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.plugins.network_topology.tree import Layer, Place, Tree, TreeError, layers_of

log = logging.getLogger(__name__)

OBJECT = "default"  # the only ClusterNetworkTopology that is read


def selector_of(pod: PodInfo) -> str:
    """The kind of a pod: those of one kind are placed close together."""
    return pod.shape.annotations.get(names.ANNOTATION_NETWORK_TOPOLOGY_SELECTOR, "")


class Network(Columns):
    """The tree is built when somebody asks and nodes changed since. Without a valid object the last one stays."""

    def __init__(self) -> None:
        self.topology: ClusterNetworkTopology | None = None
        self.problem = ""
        self.changed: Callable[[], None] = lambda: None
        self.version = 0  # moves with every change of the tree or of the counts
        self._layers: tuple[Layer, ...] = ()
        self._tree: Tree | None = None
        self._built_at = -1
        self._counts: dict[str, dict[int, int]] = {}
        self._domains: dict[str, Tree] = {}
        self._slots: dict[Tree, NDArray[np.intp]] = {}  # of the leaves of trees
        self._known_at = -1  # the nodes for which these two hold

    # ---------------------------------------------------------------- columns

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        kind = selector_of(pod)
        if kind:
            by_slot = self._counts.setdefault(kind, {})
            by_slot[slot] = by_slot.get(slot, 0) + 1
            self.version += 1

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        kind = selector_of(pod)
        if kind:
            by_slot = self._counts[kind]
            by_slot[slot] -= 1
            if not by_slot[slot]:
                del by_slot[slot]
            if not by_slot:
                del self._counts[kind]
            self.version += 1

    def counts(self, kind: str) -> dict[int, int]:
        """How many pods of a kind are where, by slot."""
        return self._counts.get(kind, {})

    # ---------------------------------------------------------------- the tree

    def observe(self, old: ClusterNetworkTopology | None, new: ClusterNetworkTopology | None) -> None:
        """A ClusterNetworkTopology appeared, changed or went."""
        present = new or old
        if present is None or present.metadata.name != OBJECT:
            return
        self.topology = new
        if new is None:
            return
        try:
            layers = layers_of(new.spec.network_topology_spec)
        except TreeError as error:
            self.problem = str(error)
            log.error("ClusterNetworkTopology %s keeps its last good tree: %s", OBJECT, error)
            self.changed()
            return
        self.problem = ""
        if layers != self._layers:
            self._layers, self._built_at = layers, -1
        self.changed()

    def tree(self) -> Tree | None:
        """The tree of the nodes as they are, None before there was a valid object."""
        if not self._layers:
            return None
        if self._tree is None or self._built_at != self.cluster.node_version:
            nodes = sorted((row.name, row.view.labels) for row in self.cluster.rows() if row.view is not None)
            self._tree = Tree(self._layers, nodes)
            self._built_at = self.cluster.node_version
            self.version += 1
        return self._tree

    def _keep_up(self) -> None:
        if self._known_at != self.cluster.node_version:
            self._domains, self._slots, self._known_at = {}, {}, self.cluster.node_version

    def slots_of(self, tree: Tree) -> NDArray[np.intp]:
        """The slot of each of a tree's leaves, -1 for a node that is gone."""
        self._keep_up()
        found = self._slots.get(tree)
        if found is None:
            found = self._slots[tree] = np.array([self.cluster.slot_of(name) for name in tree.leaves], dtype=np.intp)
        return found

    def domains(self, key: str) -> Tree:
        """The tree of the nodes that have a label, by its value: the layer between root and nodes is named after it."""
        self._keep_up()
        tree = self._domains.get(key)
        if tree is None:
            nodes = sorted((row.name, row.view.labels) for row in self.cluster.rows() if row.view is not None and row.view.labels.get(key))
            tree = self._domains[key] = Tree((Layer(NODE_LAYER), Layer(key, (key,)), Layer(ROOT_LAYER)), nodes)
        return tree

    def closeness(self, ctx: CycleContext, tree: Tree, kind: str) -> Vector:
        """How close nodes are to pods of a kind (SCH-NT-03): 0..100 by slot, 100 for the first: nodes with most of them, there and then in
        each place above; then those under places with fewer candidates; then by name. Nodes outside the tree get 0."""
        cluster = ctx.cluster
        leaves = [(cluster.slot_of(name), leaf) for name, leaf in tree.leaves.items()]
        candidates = [(slot, leaf) for slot, leaf in leaves if slot >= 0 and ctx.feasible[slot]]
        by_slot = self.counts(kind)
        existing = tree.sums([by_slot.get(slot, 0) for slot, _ in leaves]).tolist()
        slots = tree.sums([int(slot >= 0 and ctx.feasible[slot]) for slot, _ in leaves]).tolist()

        def rank(item: tuple[int, Place]) -> tuple[object, ...]:
            lineage = list(item[1].lineage())
            return (tuple(-existing[place.index] for place in lineage), tuple(slots[place.index] for place in lineage), item[1].name)

        candidates.sort(key=rank)
        result = np.zeros(cluster.capacity)
        last = max(len(candidates) - 1, 1)
        for number, (slot, _) in enumerate(candidates):
            result[slot] = 100 - number * 100 // last
        return result
