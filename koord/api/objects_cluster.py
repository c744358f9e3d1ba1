"""Projections of Kubernetes' own objects other than pods. See ``koord.api.objects`` for the conventions."""

from __future__ import annotations

from msgspec import field

from koord.api.objects_meta import Condition, IntOrString, LabelSelector, Object, Projection, ResourceList


class Taint(Projection):
    """core/v1 Taint; effects NoSchedule, PreferNoSchedule, NoExecute."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Projection):
    """core/v1 NodeSpec."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(Projection):
    """An address; types Hostname, InternalIP, ExternalIP, InternalDNS, ExternalDNS."""

    type: str = ""
    address: str = ""


class ContainerImage(Projection):
    """An image that the node holds, with its size in bytes."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeSystemInfo(Projection):
    """core/v1 NodeSystemInfo."""

    machine_id: str = field(default="", name="machineID")
    system_uuid: str = field(default="", name="systemUUID")
    boot_id: str = field(default="", name="bootID")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    operating_system: str = ""
    architecture: str = ""


class DaemonEndpoint(Projection):
    """A port of a node daemon (the field is spelled with a capital on the wire)."""

    port: int = field(default=0, name="Port")


class NodeDaemonEndpoints(Projection):
    """Where the kubelet listens."""

    kubelet_endpoint: DaemonEndpoint = DaemonEndpoint()


class NodeStatus(Projection):
    """core/v1 NodeStatus."""

    capacity: ResourceList = {}
    allocatable: ResourceList = {}
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    images: tuple[ContainerImage, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()
    daemon_endpoints: NodeDaemonEndpoints = NodeDaemonEndpoints()
    declared_features: tuple[str, ...] = ()

    def address(self, address_type: str = "InternalIP") -> str:
        """The first address of a type, or ""."""
        for found in self.addresses:
            if found.type == address_type:
                return found.address
        return ""


class Node(Object):
    """core/v1 Node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceStatus(Projection):
    """core/v1 NamespaceStatus."""

    phase: str = ""


class Namespace(Object):
    """core/v1 Namespace."""

    status: NamespaceStatus = NamespaceStatus()


class ConfigMap(Object):
    """core/v1 ConfigMap."""

    data: dict[str, str] = {}


class PriorityClassObject(Object):
    """scheduling.k8s.io/v1 PriorityClass."""

    value: int = 0
    description: str = ""
    preemption_policy: str | None = None


class PodDisruptionBudgetSpec(Projection):
    """policy/v1 PodDisruptionBudgetSpec. A nil selector matches nothing, an empty one everything in the namespace."""

    min_available: IntOrString | None = None
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(Projection):
    """policy/v1 PodDisruptionBudgetStatus."""

    observed_generation: int = 0
    disrupted_pods: dict[str, str] = {}
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    conditions: tuple[Condition, ...] = ()


class PodDisruptionBudget(Object):
    """policy/v1 PodDisruptionBudget."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
