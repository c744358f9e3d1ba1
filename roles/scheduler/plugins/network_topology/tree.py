"""The network tree: places by layer, built from node labels (SCH-NT-01). Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.api.objects import NetworkTopologySpec
from koord.api.v1alpha1.clusternetworktopology import NODE_LAYER, ROOT_LAYER


class TreeError(ValueError):
    """Layers that make no tree; says which and why."""


class Layer(NamedTuple):
    """A layer and the node labels that tell the place in it; the first that is there and not empty counts."""

    name: str
    labels: tuple[str, ...] = ()

    def place_of(self, labels: Mapping[str, str]) -> str:
        """The place of a node, "" when its labels do not tell."""
        return next((labels[key] for key in self.labels if labels.get(key)), "")


def layers_of(entries: Iterable[NetworkTopologySpec]) -> tuple[Layer, ...]:
    """The layers from the nodes up to the root. Raises TreeError."""
    by_name: dict[str, NetworkTopologySpec] = {}
    for index, entry in enumerate(entries):
        if not entry.topology_layer:
            raise TreeError(f"networkTopologySpec[{index}].topologyLayer is empty")
        if entry.topology_layer in by_name:
            raise TreeError(f"networkTopologySpec[{index}]: duplicate layer {entry.topology_layer}")
        by_name[entry.topology_layer] = entry
    if NODE_LAYER not in by_name:
        raise TreeError(f"networkTopologySpec has no layer {NODE_LAYER}, with which the chain begins")
    count = len(by_name)
    found: list[Layer] = []
    name = NODE_LAYER
    while name in by_name:
        entry = by_name.pop(name)
        if name != ROOT_LAYER:
            found.append(Layer(name, tuple(entry.label_key or ())))
        name = entry.parent_topology_layer or ""
    if name not in ("", ROOT_LAYER):
        raise TreeError(f"parentTopologyLayer {name} of layer {found[-1].name} is no layer of its own, or is part of a circle")
    if by_name:
        raise TreeError(f"layer(s) {', '.join(sorted(by_name))} of {count} are no part of the chain that begins with {NODE_LAYER}")
    found.append(Layer(ROOT_LAYER))
    return tuple(found)


class Place:
    """A place in the tree. `depth` is 0 at the root; children are in the order of their names once the tree is built."""

    __slots__ = ("children", "depth", "index", "layer", "name", "parent")

    def __init__(self, index: int, layer: str, name: str, parent: Place | None) -> None:
        self.index = index
        self.layer = layer
        self.name = name
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: list[Place] = []

    def lineage(self) -> Iterator[Place]:
        """The place itself and all above it."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent


class Tree:
    """Places by (layer, name). The first parent that a place is seen under sticks.

    Places are numbered level by level, those with one parent one after another: what is known of all places is an array, a level is a slice
    of it and so are the children of a place. Nodes come last, in the order of `leaves`.
    """

    def __init__(self, layers: Sequence[Layer], nodes: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        self.layers = tuple(layers)
        self.places: list[Place] = []
        self._known: dict[tuple[str, str], Place] = {}
        self.root = self._place(ROOT_LAYER, "", None)
        self.leaves: dict[str, Place] = {}
        for name, labels in nodes:
            leaf = self._leaf(name, labels)
            if leaf is not None:
                self.leaves[name] = leaf
        self._number()
        self.levels = self._levels()
        above = [place.parent.index if place.parent is not None else 0 for place in self.places]
        self.parents: NDArray[np.intp] = np.array(above, dtype=np.intp)
        self.leaves = dict(sorted(self.leaves.items(), key=lambda item: item[1].index))
        by_name = sorted(self.places, key=lambda place: place.name)
        self.ranks: NDArray[np.intp] = np.empty(len(by_name), dtype=np.intp)  # of names, by place
        self.ranks[[place.index for place in by_name]] = np.arange(len(by_name))

    def _number(self) -> None:
        ordered = [self.root]
        for place in ordered:
            place.children.sort(key=lambda child: child.name)
            ordered.extend(place.children)
        for index, place in enumerate(ordered):
            place.index = index
        self.places = ordered

    def _levels(self) -> tuple[slice, ...]:
        """The places of each layer, from the root down."""
        ends = np.cumsum([0, *np.bincount([place.depth for place in self.places])]).tolist()
        return tuple(slice(start, end) for start, end in itertools.pairwise(ends))

    def children(self, place: Place) -> slice:
        """Where the children of a place are."""
        first = place.children[0].index
        return slice(first, first + len(place.children))

    def sums(self, of_nodes: Sequence[float] | NDArray[Any]) -> NDArray[Any]:
        """What the nodes below each place have together, by place; `of_nodes` in the order of `leaves`."""
        total = np.zeros(len(self.places), dtype=np.asarray(of_nodes).dtype)
        if len(self.levels) == len(self.layers):
            total[self.levels[-1]] = of_nodes
            self.add_up(total)
        return total

    def add_up(self, total: NDArray[Any], adjust: Callable[[int], None] = lambda level: None) -> None:
        """Sums from the level of nodes up; `adjust` is asked about each level, nodes first, before it is added to the one above."""
        for level in range(len(self.levels) - 1, 0, -1):
            adjust(level)
            above, here = self.levels[level - 1], self.levels[level]
            total[above] = np.bincount(self.parents[here] - above.start, total[here], above.stop - above.start)
        adjust(0)

    def _place(self, layer: str, name: str, parent: Place | None) -> Place:
        key = (layer, name)
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = Place(len(self.places), layer, name, parent)
            self.places.append(place)
            if parent is not None:
                parent.children.append(place)
        return place

    def _leaf(self, name: str, labels: Mapping[str, str]) -> Place | None:
        """The place of a node; None when its labels leave a layer above the lowest open."""
        between = self.layers[1:-1]
        names = [layer.place_of(labels) for layer in between]
        if names and not names[0]:
            names[0] = name  # a place of its own, named after the node
        if not all(names):
            return None
        place = self.root
        for layer, where in zip(reversed(between), reversed(names), strict=True):
            place = self._place(layer.name, where, place)
        return self._place(NODE_LAYER, name, place)

    def depth_of(self, layer: str) -> int:
        """How deep a layer lies below the root, -1 for an unknown one."""
        order = [entry.name for entry in reversed(self.layers)]
        return order.index(layer) if layer in order else -1


def detail_status(tree: Tree) -> list[dict[str, Any]]:
    """`status.detailStatus`: every place but the nodes, depth first."""
    counts = tree.sums(np.ones(len(tree.leaves), dtype=np.intp)).tolist()
    result: list[dict[str, Any]] = []

    def visit(place: Place) -> None:
        if place.layer == NODE_LAYER:
            return
        entry: dict[str, Any] = {"topologyInfo": {"topologyLayer": place.layer, "topologyName": place.name}}
        if place.parent is not None:
            entry["parentTopologyInfo"] = {"topologyLayer": place.parent.layer, "topologyName": place.parent.name}
        if place.children:
            entry["childTopologyLayer"] = place.children[0].layer
            if place.children[0].layer != NODE_LAYER:
                entry["childTopologyNames"] = [child.name for child in place.children]
        entry["nodeNum"] = counts[place.index]
        result.append(entry)
        for child in place.children:
            visit(child)

    visit(tree.root)
    return result
