"""What was seen of a machine and of a cluster: plain values, so that what is made of them can be tried on any. None: not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roles.tools.doctor.rights import Question

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Socket:
    """A CRI socket: what answered, or why nothing did."""

    runtime: str
    path: str
    answer: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class HookSocket:
    """A registration with the runtime proxy. `binding`: pods wait for it; `problem`: why it cannot be asked, "" when it can."""

    source: str
    endpoint: str
    binding: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One machine. `live`: it is the one that this process runs on, so that the kernel itself could be asked."""

    live: bool = True
    superuser: bool = True
    kernel: str = ""
    cgroup_version: int | None = None
    cgroup_error: str = ""
    cgroup_writable: bool | None = None
    controllers: frozenset[str] = frozenset()
    driver_of_tree: str | None = None
    driver_of_kubelet: str | None = None
    files: Mapping[str, bool] = field(default_factory=dict)
    """Kernel features by the cgroup file that shows them: cfs_burst, cpu_idle, bvt, memcg_wmark; empty: no cgroup to look at."""
    core_scheduling: bool | None = None
    pressure: Mapping[str, str] = field(default_factory=dict)
    """Resource -> "" when /proc/pressure can be read, else why not."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """Feature gate of koordlet -> what it lacks on this machine, as seen from here."""
    cgroup_pressure: bool | None = None
    pressure_trigger: bool | None = None
    trigger_error: str = ""
    """Why the kernel took no trigger."""
    cpu_flags: frozenset[str] = frozenset()
    resctrl_known: bool | None = None
    resctrl_mounted: bool = False
    resctrl_features: frozenset[str] = frozenset()
    sockets: tuple[Socket, ...] = ()
    runtime_proxy: Socket | None = None
    hook_sockets: tuple[HookSocket, ...] = ()
    kubelet_listens: bool | None = None
    kubelet_pods: str | None = None
    """"" when the kubelet lists its pods to us, else why not; None when it was not asked."""


@dataclass(frozen=True, slots=True)
class WebhookFacts:
    """One entry of a webhook configuration. `ready`: endpoints of its Service; `tls`: "" when it answered with a good certificate."""

    configuration: str
    name: str
    failure_policy: str
    target: str
    ca: str = ""
    ca_expires: float | None = None
    ready: int | None = None
    tls: str | None = None
    unreachable: str = ""


@dataclass(frozen=True, slots=True)
class RightsFacts:
    """What a role needs and may not do. `asked_as`: in whose name; `error`: why it could not be asked."""

    role: str
    asked: int = 0
    denied: tuple[str, ...] = ()
    asked_as: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the kubelet of a node says about itself."""

    name: str
    driver: str = ""
    cpu_manager: str = ""
    error: str = ""
    forbidden: bool = False


@dataclass(slots=True)
class ClusterFacts:
    """One cluster. Problems say, by what was asked for, why it could not be read."""

    server: str = ""
    namespace: str = "koordinator-system"
    version: str = ""
    user: str = ""
    now: float = 0.0
    skew: float | None = None
    """Seconds that this machine's clock is ahead of the server's."""
    skew_error: float = 1.0
    """How far `skew` may be off: half of the round trip, and that the server tells whole seconds."""
    problems: dict[str, str] = field(default_factory=dict)
    expected_crds: list[Obj] = field(default_factory=list)
    crds: dict[str, Obj] = field(default_factory=dict)
    expected_classes: dict[str, int] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    webhook_configurations: dict[str, bool] = field(default_factory=dict)
    webhooks: list[WebhookFacts] = field(default_factory=list)
    workloads: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Deployment or DaemonSet -> (wanted, ready)."""
    leases: dict[str, Obj | None] = field(default_factory=dict)
    node_names: list[str] = field(default_factory=list)
    node_metrics: dict[str, Obj] = field(default_factory=dict)
    offered: frozenset[str] = frozenset()
    """Resources of which some node has something."""
    by_class: frozenset[str | None] = frozenset()
    """Resources that a DeviceClass stands for."""
    requested: dict[str, list[str]] = field(default_factory=dict)
    """Extended resource -> pods without a node that request it, as namespace/name."""
    slo_data: dict[str, str] | None = None
    accounts: frozenset[str] | None = None
    """Names of the ServiceAccounts in koord's namespace; None where they may not be listed."""
    rights: list[RightsFacts] = field(default_factory=list)
    nodes: list[NodeFacts] = field(default_factory=list)
    own_node_policy: bool | None = None
    sandbox: bool = False
    """A sandbox of this user: its roles need no leases, its API server lets everybody do everything, and most nodes have no kubelet."""
    unguarded: bool = False
    """The API server lets an account that does not exist do what only administrators may."""
    powers: dict[str, tuple[tuple[Question, ...], str]] = field(default_factory=dict)
    """Role -> what its token may do of what it should not, and why that could not be asked."""
    installed: list[Obj] | None = None
    """Deployments and the DaemonSet as they are; None: nobody wants to know."""
    fenced: list[str] = field(default_factory=list)
    """Names of NetworkPolicies."""
