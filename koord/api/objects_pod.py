"""Projections of pods and of what a pod's spec is made of. See ``koord.api.objects`` for the conventions."""

from __future__ import annotations

from msgspec import field

from koord.api.objects_meta import (
    Condition,
    LabelSelector,
    LabelSelectorRequirement,
    Object,
    ObjectMeta,
    Projection,
    ResourceList,
)


class Toleration(Projection):
    """core/v1 Toleration; an empty operator means Equal, an empty effect all effects."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorRequirement(LabelSelectorRequirement):
    """One expression over node labels or fields; operators In, NotIn, Exists, DoesNotExist, Gt, Lt."""


class NodeSelectorTerm(Projection):
    """Expressions that must all hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Projection):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Projection):
    """A node selector term with a weight of 1..100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Projection):
    """core/v1 NodeAffinity."""

    required: NodeSelector | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[PreferredSchedulingTerm, ...] = field(default=(), name="preferredDuringSchedulingIgnoredDuringExecution")


class PodAffinityTerm(Projection):
    """core/v1 PodAffinityTerm."""

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    topology_key: str = ""
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Projection):
    """A pod affinity term with a weight of 1..100."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Projection):
    """core/v1 PodAffinity and PodAntiAffinity (one shape)."""

    required: tuple[PodAffinityTerm, ...] = field(default=(), name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[WeightedPodAffinityTerm, ...] = field(default=(), name="preferredDuringSchedulingIgnoredDuringExecution")


class Affinity(Projection):
    """core/v1 Affinity."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Projection):
    """core/v1 TopologySpreadConstraint."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class ResourceClaimName(Projection):
    """A container's or pod's reference to a resource claim."""

    name: str = ""
    request: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class ResourceRequirements(Projection):
    """Requests and limits of a container, a pod or a volume claim."""

    requests: ResourceList = {}
    limits: ResourceList = {}
    claims: tuple[ResourceClaimName, ...] = ()


class ContainerPort(Projection):
    """core/v1 ContainerPort; an empty protocol means TCP."""

    name: str = ""
    host_port: int = 0
    container_port: int = 0
    protocol: str = ""
    host_ip: str = field(default="", name="hostIP")


class ContainerResizePolicy(Projection):
    """What a resize of one resource asks of a running container: NotRequired or RestartContainer."""

    resource_name: str = ""
    restart_policy: str = ""


class ContainerRestartRule(Projection):
    """What happens when a container ends in a certain way: Restart or RestartAllContainers."""

    action: str = ""


class Container(Projection):
    """A container as schedulers and controllers see it (not what runs in it)."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str | None = None
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()
    resize_policy: tuple[ContainerResizePolicy, ...] = ()

    @property
    def is_sidecar(self) -> bool:
        """Whether this init container keeps running beside the main ones."""
        return self.restart_policy == "Always"


class ClaimVolumeSource(Projection):
    """A volume that is a PersistentVolumeClaim."""

    claim_name: str = ""
    read_only: bool = False


class PersistentVolumeClaimSpec(Projection):
    """core/v1 PersistentVolumeClaimSpec."""

    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: ResourceRequirements = ResourceRequirements()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimTemplate(Projection):
    """The template inside an ephemeral volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralVolumeSource(Projection):
    """A volume whose claim is made for the pod; the claim is named ``<pod>-<volume>``."""

    volume_claim_template: PersistentVolumeClaimTemplate | None = None


class CSIVolumeSource(Projection):
    """An inline CSI volume."""

    driver: str = ""
    read_only: bool | None = None
    fs_type: str | None = None
    volume_attributes: dict[str, str] = {}


class DiskVolumeSource(Projection):
    """What conflict checks need of GCE PD, AWS EBS, Azure disk, RBD and iSCSI sources, of pods and of volumes."""

    pd_name: str = ""
    volume_id: str = field(default="", name="volumeID")
    disk_name: str = ""
    read_only: bool = False
    monitors: tuple[str, ...] = ()
    pool: str = ""
    image: str = ""
    iqn: str = ""
    target_portal: str = ""
    lun: int = 0


class HostPathVolumeSource(Projection):
    """A directory or file of the node."""

    path: str = ""
    type: str | None = None


class EmptyDirVolumeSource(Projection):
    """Scratch space."""

    medium: str = ""
    size_limit: str | int | float | None = None


class Volume(Projection):
    """A pod's volume: the sources that decide placement."""

    name: str = ""
    persistent_volume_claim: ClaimVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    gce_persistent_disk: DiskVolumeSource | None = None
    aws_elastic_block_store: DiskVolumeSource | None = None
    azure_disk: DiskVolumeSource | None = None
    rbd: DiskVolumeSource | None = None
    iscsi: DiskVolumeSource | None = None


class PodSchedulingGroup(Projection):
    """The PodGroup of scheduling.k8s.io that a pod belongs to (1.36 and later)."""

    pod_group_name: str = ""


class PodWorkloadReference(Projection):
    """The pod group of a Workload that a pod belongs to, and which replica of it (1.35)."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class PodSchedulingGate(Projection):
    """A gate that must go before the pod is scheduled."""

    name: str = ""


class PodReadinessGate(Projection):
    """A condition that counts for readiness."""

    condition_type: str = ""


class PodSpec(Projection):
    """core/v1 PodSpec as schedulers and controllers see it."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: ResourceList = {}
    resources: ResourceRequirements | None = None
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    volumes: tuple[Volume, ...] = ()
    resource_claims: tuple[ResourceClaimName, ...] = ()
    scheduling_group: PodSchedulingGroup | None = None
    workload_ref: PodWorkloadReference | None = None
    host_network: bool = False
    host_pid: bool = field(default=False, name="hostPID")
    host_users: bool | None = None
    restart_policy: str = ""
    runtime_class_name: str | None = None
    service_account_name: str = ""
    hostname: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None


class ContainerStateRunning(Projection):
    """A running container."""

    started_at: str | None = None


class ContainerStateWaiting(Projection):
    """A container that is not started yet."""

    reason: str = ""
    message: str = ""


class ContainerStateTerminated(Projection):
    """A container that ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = field(default="", name="containerID")


class ContainerState(Projection):
    """Exactly one of the three is set; none means waiting."""

    running: ContainerStateRunning | None = None
    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Projection):
    """core/v1 ContainerStatus. ``container_id`` is ``<runtime>://<id>``."""

    name: str = ""
    container_id: str = field(default="", name="containerID")
    image: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    allocated_resources: ResourceList = {}
    resources: ResourceRequirements | None = None


class PodIP(Projection):
    """One address."""

    ip: str = ""


class PodResourceClaimStatus(Projection):
    """Which claim was made for an entry of spec.resourceClaims; None when the pod needs none."""

    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(Projection):
    """core/v1 PodStatus."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    host_ip: str = field(default="", name="hostIP")
    pod_ip: str = field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = field(default=(), name="podIPs")
    start_time: str | None = None
    qos_class: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    resize: str = ""
    allocated_resources: ResourceList = {}
    resources: ResourceRequirements | None = None
    observed_generation: int = 0
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


class Pod(Object):
    """core/v1 Pod, lean: what is asked for, where it is, how it is."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_terminal(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion has been asked for."""
        return self.metadata.deletion_timestamp is not None


class PodTemplateSpec(Projection):
    """A pod to be made: metadata and spec."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
