"""What the acting half sees: one immutable :class:`Snapshot` a tick.

Strategies are pure functions of a snapshot (and of the host files that they read through ``snapshot.host.files``, each at
most once a tick). Nothing in here does I/O by itself except through ``host``.

* CPU usage series are in **cores** (float), memory series in **bytes**, BE tier series in **milli-cores**.
* Cgroup directories are relative, without leading slash (``kubepods.slice/…``); absolute file paths come from
  ``snapshot.host.cgroups.file("cpu.cfs_quota_us", pod.cgroup_dir)``.
* Times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koord.api.qos import KUBERNETES_BEST_EFFORT, QoSClass
from roles.koordlet.states.nodecpus import NodeCPUs, node_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koord.api.objects import Container, ContainerStatus, Node, Pod
    from koord.api.priority import PriorityClass
    from roles.koordlet.host.cgroup import Cgroups
    from roles.koordlet.host.files import HostFiles
    from roles.koordlet.host.root import HostRoot
    from roles.koordlet.host.storage import LocalStorage
    from roles.koordlet.host.topology import CPUTopology
    from roles.koordlet.states.slo import SLO
    from roles.koordlet.store.view import MetricsView


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One container that the kubelet listed. ``cgroup_dir`` is "" while it has no id (not created yet) or a bad one."""

    name: str
    id: str
    """With scheme, ``containerd://…``; "" before creation."""
    cgroup_dir: str
    running: bool
    init: bool
    spec: Container | None
    """Its resources are those in force: while the kubelet has not begun a resize (Deferred, Infeasible) not those that are asked for."""
    status: ContainerStatus | None
    asked: Container | None = None
    """What is asked for meanwhile; None where no resize waits."""


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of the node with what everybody asks about it computed once."""

    pod: Pod
    uid: str
    namespace: str
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    phase: str
    kube_qos: str
    """Guaranteed, Burstable or BestEffort: ``status.qosClass``, else computed from requests and limits."""
    qos_label: QoSClass
    """Class of the label alone, NONE when it says nothing known."""
    qos: QoSClass
    """Class with the Kubernetes class as default (Guaranteed LSR, Burstable LS, BestEffort BE)."""
    priority_class: PriorityClass
    """With the QoS class as default."""
    cgroup_dir: str
    containers: tuple[ContainerState, ...]
    """Regular containers, in spec order."""
    init_containers: tuple[ContainerState, ...]
    ephemeral_containers: tuple[ContainerState, ...] = ()
    """Those of ``kubectl debug``; nobody asks for anything for them."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def terminated(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}

    @property
    def active(self) -> bool:
        """Pending or Running."""
        return self.phase in {"Pending", "Running"}

    @property
    def best_effort(self) -> bool:
        """Class BE, or without a class of its own on the BestEffort level."""
        return self.qos_label is QoSClass.BE or self.kube_qos == KUBERNETES_BEST_EFFORT

    def all_containers(self) -> tuple[ContainerState, ...]:
        """Init containers first."""
        return self.init_containers + self.containers + self.ephemeral_containers

    def side_by_side(self) -> tuple[tuple[ContainerState, ...], ...]:
        """What runs at the same time: the regular containers with all sidecars, then each init container with the sidecars that were
        started before it."""
        sidecars: list[ContainerState] = []
        starting: list[tuple[ContainerState, ...]] = []
        for container in self.init_containers:
            if container.spec is not None and container.spec.is_sidecar:
                sidecars.append(container)
            else:
                starting.append((*sidecars, container))
        return ((*self.containers, *sidecars), *starting)


@dataclass(frozen=True, slots=True)
class TopologyState:
    """Annotations of this node's NodeResourceTopology as last published or read; JSON texts, as they stand there."""

    annotations: dict[str, str]
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class HostState:
    """Where the machine is and how to read it."""

    root: HostRoot
    cgroups: Cgroups
    files: HostFiles


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known in one tick. None means "not known yet": a strategy then keeps what is set."""

    time: float
    node_name: str
    host: HostState
    node: Node | None
    slo: SLO | None
    """Effective NodeSLO with defaults; None until a NodeSLO of this node was seen."""
    pods: tuple[PodState, ...]
    topology: CPUTopology | None
    nrt: TopologyState | None
    metrics: MetricsView
    collect_interval: float
    """Seconds between two samples of the node and pod series."""
    pods_synced: bool
    """Whether the pods may be acted on: the kubelet named them, and was asked again if this process stood still since."""
    storage: LocalStorage | None = None
    """Disks and what lies on them; only with gate BlkIOReconcile."""
    volume_of_claim: Callable[[str, str], str] = lambda namespace, claim: ""
    """Name of the volume that a claim (namespace, name) is bound to, "" when it is not known."""
    holder: Callable[[str, str], str] = lambda resource, directory: ""
    """The strategy that has a cgroup file (resource, directory) for itself, "" for none."""

    changed: Callable[..., bool] = lambda resource, directory, device="": False
    """Whether this agent, or one before it, changed a cgroup file (resource, directory), or a disk's line of it, by the journal."""

    holds_ours: Callable[..., bool] = lambda resource, directory, device="": False
    """Whether such a file, or line, still says what the agent wrote: only that is taken back, what others set since stays."""

    leaving: Mapping[str, float] = field(default_factory=dict)
    """Pods that were told to leave: uid → seconds until their grace ends, below zero afterwards. By this agent's steady clock, since the
    API server's may be another."""

    others_cpu: float | None = None
    """In a tick that kernel pressure started because of a load that rose: CPU of the pods outside the best-effort level over the last
    tenths of a second, cores. Samples are means since the last tick and still know little of it."""

    @property
    def cpus(self) -> NodeCPUs:
        """The node's side of "which CPUs has this pod"."""
        return node_cpus(self.node, self.nrt.annotations if self.nrt is not None else {}, self.topology)

    def pod(self, uid: str) -> PodState | None:
        for pod in self.pods:
            if pod.uid == uid:
                return pod
        return None
