"""Columns that plugins register: arrays by node slot that follow the cluster's rows and pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from roles.scheduler.cluster.nodeview import NodeView
    from roles.scheduler.cluster.podinfo import PodInfo

Vector = NDArray[np.float64]


class Columns:
    """A plugin's columns. Override what you need: a hook that is not overridden costs nothing.

    `kind` is the bit under which changes of these columns are noted in the change log. Hooks must be exact inverses
    (`pod_removed` undoes `pod_added`), because what-ifs add and remove pods on the real columns and take it back.
    """

    kind: int = 0

    def attach(self, cluster: Any) -> None:
        """Called once with the Cluster, which lies above this module, before any other hook. Existing rows and pods are replayed
        afterwards."""

    def grow(self, capacity: int) -> None:
        """Lengthen the arrays to `capacity`."""

    def node_set(self, slot: int, old: NodeView | None, new: NodeView) -> None:
        """A node appeared in the slot or changed."""

    def node_removed(self, slot: int, old: NodeView) -> None:
        """The node went; pods may still be in the row."""

    def sized(self, slot: int, pod: PodInfo) -> PodInfo:
        """The pod with the amounts with which it counts on the slot: the pod itself unless the columns know better. Asked before it is
        counted; must return what it is given when that is right already."""
        return pod

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        """A pod now counts on the node."""

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        """A pod no longer counts on the node."""

    def pod_replaced(self, slot: int, old: PodInfo, new: PodInfo) -> None:
        """A pod of the node changed without changing its shape (status, results in annotations)."""

    def quiet_begins(self) -> None:
        """Until `quiet_ends` pods are taken off and put back exactly. What tells versions apart may come back as well."""

    def quiet_ends(self) -> None:
        """Everything is as it was at `quiet_begins`."""

    def namespace_changed(self, name: str) -> None:
        """The labels of a namespace changed, or it appeared or went."""


def grown(array: NDArray[Any], capacity: int, fill: float = 0) -> NDArray[Any]:
    """A longer copy of an array (of each line, where it has several), the new part filled."""
    longer = np.full((*array.shape[:-1], capacity), fill, dtype=array.dtype)
    longer[..., : array.shape[-1]] = array
    return longer
