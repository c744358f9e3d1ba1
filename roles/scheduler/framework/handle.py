"""What a plugin may use of the process it lives in. In a what-if there is no API server: `client` is None and nothing is activated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from koord.decisions.record import Record
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.podinfo import PodInfo, PodParser
from roles.scheduler.framework.context import State
from roles.scheduler.gate import Gate

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from koord.kube.client import Client
    from roles.scheduler.binding.waiting import WaitingPods


def _nothing(*_: Any, **__: Any) -> None:
    """Activation and reports outside a live scheduler."""


class PodEvents(Protocol):
    """Where reserve pods come in, as if the API server showed them (pods that stand for Reservations are not in its list of pods)."""

    def pod_added(self, info: PodInfo) -> None:
        """It appeared: with a node it counts there, without one it waits to be scheduled."""

    def pod_updated(self, old: PodInfo, info: PodInfo) -> None:
        """It changed."""

    def pod_deleted(self, pod: PodInfo) -> None:
        """It is gone, or counts no more."""


class ClusterPods:
    """Hears of pods outside a live scheduler: those with a node count on it, nobody waits."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def pod_added(self, info: PodInfo) -> None:
        """Count it on its node."""
        if info.node_name:
            self._cluster.add_pod(info, info.node_name)

    def pod_updated(self, old: PodInfo, info: PodInfo) -> None:
        """Count it as it is now."""
        self.pod_added(info)

    def pod_deleted(self, pod: PodInfo) -> None:
        """Count it no more."""
        self._cluster.remove_pod(pod.uid)


@dataclass(slots=True)
class Handle:
    """Doors of a plugin. `activate` moves pending pods to the active queue; `gates` are the role's feature gates by name;
    `network_topology` is --enable-network-topology-manager."""

    state: State
    parser: PodParser
    profile: str
    client: Client | None = None
    activate: Callable[[Iterable[PodInfo]], None] = _nothing
    waiting: WaitingPods | None = None
    lookup: Callable[[str, str], Any] | None = None
    gates: dict[str, bool] = field(default_factory=dict)
    network_topology: bool = False
    extended: frozenset[str] = frozenset()  # resources that only HTTP extenders look at
    all_candidates: bool = False  # an extender chooses among the nodes where preemption may take place
    metrics: CollectorRegistry | None = None  # the process's
    may_write: Callable[[], bool] = bool  # False in a what-if and on a standby
    may_evict: Callable[[], bool] = bool  # False, too, while a watch is silent: what would make evictions needless may have happened
    report: Callable[[PodInfo, str], None] = _nothing  # shows on a pod that is not being tried why it waits (condition PodScheduled)
    record: Callable[[Record], None] = _nothing  # keeps a decision record
    audit: Callable[[str, str], None] = _nothing  # tells the workload auditor of a job: its id and what happened
    event: Callable[..., None] = _nothing  # about an object: its reference, type, reason and note; `action` when it is not the reason
    frameworks: dict[str, Any] = field(default_factory=dict)  # the Framework of each profile, by scheduler name
    released: Callable[[str], None] = _nothing  # a pod, by its UID, has none of the devices any more that it had when it went
    pods: PodEvents = field(init=False)
    wake: Callable[[Callable[[PodInfo], bool], bool], None] = _nothing  # see SchedulingQueue.wake
    gate: Gate = field(default_factory=Gate)  # background work waits here after every pause, before it looks at the state
    shared: dict[str, Any] = field(default_factory=dict)  # what plugins of the profile have in common, by a name they agree on

    def __post_init__(self) -> None:
        self.pods = ClusterPods(self.state.cluster)

    @property
    def api(self) -> Client:
        """The client, for those who act. Raises RuntimeError where there is no API server."""
        if self.client is None:
            raise RuntimeError("a what-if writes nothing")
        return self.client

    @property
    def cluster(self) -> Cluster:
        """The columns."""
        return self.state.cluster
