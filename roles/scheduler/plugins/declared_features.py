"""NodeDeclaredFeatures: pods that need a feature of the kubelet go to nodes that declare it (SCH-KS-13).

Kubelets name the features that they have switched on, of those that not every kubelet in support has, in `status.declaredFeatures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from koord.api.objects import PodSpec
from roles.scheduler.cluster.changes import NODE as NODE_CHANGED
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, grown
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import NODE, Action, ClusterEvent, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Filter, PreFilter, Rejection
from roles.scheduler.framework.status import SKIP, SUCCESS, Status

_REJECTION = Rejection(("node(s) didn't match Pod's required features",), resolvable=False)


def _restarts_all_containers(spec: PodSpec) -> bool:
    containers = (*spec.containers, *spec.init_containers)
    return any(rule.action == "RestartAllContainers" for container in containers for rule in container.restart_policy_rules)


def _own_users_on_the_host_network(spec: PodSpec) -> bool:
    return spec.host_network and spec.host_users is False


# What kube-scheduler 1.36 reads out of a pod. Its other declared features are about changes of running pods.
NEEDED_BY: Final[dict[str, Callable[[PodSpec], bool]]] = {
    "RestartAllContainersOnContainerExits": _restarts_all_containers,
    "UserNamespacesHostNetworkSupport": _own_users_on_the_host_network,
}
_BITS: Final = {feature: 1 << number for number, feature in enumerate(NEEDED_BY)}


class DeclaredFeatures(Columns):
    """By slot, a bit for each feature that the node declares and a pod can need."""

    def __init__(self) -> None:
        self.bits = np.zeros(0, dtype=np.int64)

    def attach(self, cluster: Cluster) -> None:
        self.grow(cluster.capacity)

    def grow(self, capacity: int) -> None:
        self.bits = grown(self.bits, capacity)

    def node_set(self, slot: int, old: NodeView | None, new: NodeView) -> None:
        self.bits[slot] = sum(bit for feature, bit in _BITS.items() if feature in new.declared_features)


class NodeDeclaredFeatures(PreFilter, Filter):
    """Refuses nodes that do not declare a feature that the pod needs."""

    name = "NodeDeclaredFeatures"
    reads = NODE_CHANGED

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._columns = handle.cluster.register(self.name, DeclaredFeatures())

    def pre_filter(self, ctx: CycleContext) -> Status:
        return SUCCESS if self._needed(ctx.pod) else SKIP

    def _needed(self, pod: PodInfo) -> int:
        known: int | None = pod.shape.memo.get(self.name)
        if known is None:
            spec = pod.shape.template.spec
            known = pod.shape.memo[self.name] = sum(_BITS[feature] for feature, needs in NEEDED_BY.items() if needs(spec))
        return known

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes:
        needed = self._needed(ctx.pod)
        return np.asarray((self._columns.bits[rows] & needed) != needed)

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return _REJECTION

    def subscriptions(self) -> Sequence[Subscription]:
        return (Subscription(NODE, Action.ADD | Action.UPDATE_DECLARED_FEATURES, self._declares_enough),)

    def _declares_enough(self, pod: PodInfo, event: ClusterEvent) -> bool:
        spec = pod.shape.template.spec
        return event.new is not None and all(f in event.new.declared_features for f, needs in NEEDED_BY.items() if needs(spec))
