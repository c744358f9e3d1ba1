"""The feature gates of each role and what they do; which are on by default is in `koord.config.gates`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NOTHING: Final = "Accepted; nothing to switch: "
_ONLY_SCHEDULER: Final = _NOTHING + "only the scheduler changes pods when it takes them in."

_TRANSFORMERS: Final = {
    "PriorityTransformer": "A pod without a priority gets that of its priority class when it is taken in.",
    "PreemptionPolicyTransformer": "A pod's preemption policy is that of its label `preemption-policy`, Never where it names none.",
    "ReplaceResourcesTransformer": "Pods are counted by what the annotation `replace-resources` makes of their requests.",
}

_QUOTAS: Final = {
    "MultiQuotaTree": "Quotas with label `tree-id` form trees of their own, each with its own total.",
    "ElasticQuotaIgnorePodOverhead": "Quotas count pods without their overhead.",
    "ElasticQuotaGuaranteeUsage": "What a quota uses is kept for it: guarantees follow allocation.",
    "DisableDefaultQuota": "A pod without a quota label belongs to no quota at all.",
}

SCHEDULER: Final[Mapping[str, str]] = {
    **_TRANSFORMERS,
    **_QUOTAS,
    "DynamicSchedulerCheck": "Before a pod is bound it is read again; one that changed scheduler, is being deleted or is gone is let go.",
    "GangPendingPodsConditionPatch": "When a gang fails, the condition of its members that were not tried says so too.",
    "EnableBatchScheduleNodeSnapshot": _NOTHING + "every member of a batch sees one consistent snapshot.",
    "CSIStorageCapacity": _NOTHING + "CSIStorageCapacity objects are honoured where the API server serves them.",
    "GenericEphemeralVolume": _NOTHING + "generic ephemeral volumes are always understood.",
    "PodDisruptionBudget": "Preemption looks at PodDisruptionBudgets.",
    "ElasticQuotaIgnoreTerminatingPod": "Terminating pods stop counting once their grace period is over.",
    "ElasticQuotaImmediateIgnoreTerminatingPod": "Terminating pods stop counting at once.",
    "SupportParentQuotaSubmitPod": _NOTHING + "the scheduler never refuses pods of parent quotas; the manager's gate of this name decides.",
    "ElasticQuotaEnableUpdateResourceKey": _NOTHING + "quotas are checked by the manager's webhook; its gate of this name decides.",
    "ResizePod": "Plugins may change a pod's requests once a node is chosen; Reservations show the device amounts that they got.",
    "LazyReservationRestore": _NOTHING + "what reservations hold is given back only for the nodes and pods that need it.",
    "OmitNodeLabelsForReservation": "Selectors of a reservation affinity look at labels of Reservations only, not at those of their nodes.",
    "SkipReservationFitsNode": "Owners are checked against the reservation alone, not against the node as well.",
    "DevicePluginAdaption": "The annotations and labels of vendors' device plugins are written too, under their node locks.",
    "CleanExpiredReservationAllocated": "When a Reservation is deleted, the annotation that names it leaves its pods.",
    "SkipFilterWithNominatedPods": _NOTHING + "a node is checked once, with the pods that are nominated to it.",
    "SyncBarrier": "A new leader waits until its cache has everything that the old one wrote.",
    "CrossSchedulerNomination": "Pods of other schedulers that are nominated to a node count there if their priority is higher.",
    "EnableInlineBatchSchedule": "A gang with a full plan is placed whole in one cycle, or not at all.",
    "CompatibleCSIStorageCapacity": _NOTHING + "versions that the API server does not serve are not asked for.",
    "DisableCSIStorageCapacityInformer": _NOTHING + "kinds that the API server does not serve are not asked for.",
    "InPlacePodVerticalScalingSchedulerPreemption": "Pods of lower priority leave a node for a resize that its kubelet has deferred.",
    "StorageCapacityScoring": "VolumeBinding prefers nodes with more free storage, or what its `shape` says.",
    "SchedulerPopFromBackoffQ": "With nothing else to do a pod that failed once need not sit its backoff out.",
    "CompatiblePodDisruptionBudget": _NOTHING + "versions that the API server does not serve are not asked for.",
    "DisablePodDisruptionBudgetInformer": _NOTHING + "kinds that the API server does not serve are not asked for.",
    "DisableDynamicResourceAllocationInformer": _NOTHING + "kinds that the API server does not serve are not asked for.",
}

MANAGER: Final[Mapping[str, str]] = {
    **_QUOTAS,
    "PriorityTransformer": _ONLY_SCHEDULER,
    "PreemptionPolicyTransformer": _ONLY_SCHEDULER,
    "ReplaceResourcesTransformer": "Quota admission counts pods by `replace-resources`; needs ElasticQuotaEvaluationTransformPod.",
    "WebhookFramework": "Serve and register webhooks at all.",
    "PodMutatingWebhook": "Webhook for new pods: profiles, resource translation, device requests.",
    "PodValidatingWebhook": "Webhook that refuses pods whose QoS, priority, quota or annotations do not fit together.",
    "ElasticMutatingWebhook": "Webhook that fills in defaults of ElasticQuotas.",
    "ElasticValidatingWebhook": "Webhook that keeps quota trees sound.",
    "NodeMutatingWebhook": "Webhook that amplifies a node's allocatable by its ratio.",
    "NodeValidatingWebhook": "Webhook that refuses node labels which would match two entries of slo-controller-config.",
    "ConfigMapValidatingWebhook": "Webhook that refuses a wrong slo-controller-config.",
    "ReservationMutatingWebhook": "Webhook that applies profiles to Reservations.",
    "ColocationProfileSkipMutatingResources": "Profiles do not turn cpu and memory into batch or mid resources.",
    "ColocationProfileSkipValidatingPriority": "A pod's sub-priority label may change.",
    "ElasticQuotaEnableUpdateResourceKey": "A quota may have fewer resources in max than its parent.",
    "ElasticQuotaEvaluationTransformPod": "Quota admission transforms pods before it counts them; needs ReplaceResourcesTransformer.",
    "SupportParentQuotaSubmitPod": "Pods may belong to a parent quota.",
    "EnableQuotaAdmission": "New pods are refused when their quota has no room.",
    "EnableQuotaAdmissionOnUpdate": "Pods that change their quota too; needs EnableQuotaAdmission.",
    "EnableSyncGPUSharedResource": "Nodes offer `koordinator.sh/gpu.shared`: 100 for each healthy card.",
    "ColocationProfileController": "Profiles are applied to pods that wait already.",
    "ValidatePodDeviceResource": "Device requests that make no sense are refused.",
    "EnablePodEnhancedValidator": "Pods must carry the labels that the ConfigMap pod-enhanced-validator-config demands.",
    "DisableExtendedResourceSpec": "The annotation `extended-resource-spec` is not written.",
    "DisableDeviceResourceSpec": "Device requests are left as the user wrote them.",
    "BindingAdmissionWebhook": "Only the named users may bind pods.",
    "DisablePVCReservation": _NOTHING + "the manager makes no Reservations.",
    "BatchCountPodsWithoutMetric": "Policy maxUsageRequest counts the requests of pods that have no metric yet.",
    "Recommender": "Recommendations are computed; needs ClusterRole koord-manager-recommender.",
    "AbnormalNodes": "Nodes in trouble are found, marked, and offer less.",
    "DeviceResourceSlices": "Devices of nodes are published as ResourceSlices; needs ClusterRole koord-manager-resource-slices.",
}

KOORDLET: Final[Mapping[str, str]] = {
    "BECPUSuppress": "CPU of the best-effort tier follows what the others leave.",
    "CPUBurst": "Latency-sensitive containers may exceed their CPU limit for moments.",
    "RdtResctrl": "Last-level cache and memory bandwidth by class (resctrl).",
    "NodeTopologyReport": "Report the NodeResourceTopology.",
    "GroupIdentity": "Hook: group identity (`cpu.bvt_warp_ns`) of classes and pods.",
    "CPUSetAllocator": "Hook: CPU sets of pods as the scheduler allocated them.",
    "BatchResource": "Hook: limits of batch resources.",
    "AuditEvents": "Write an audit log of what is done on the node.",
    "AuditEventsHTTPHandler": "Serve the audit log.",
    "BECPUManager": "The best-effort tier gets its whole CPU set; containers that the scheduler placed keep their CPUs.",
    "BECPUEvict": "Evict best-effort pods that get too little CPU.",
    "BEMemoryEvict": "Evict best-effort pods when the node's memory is full.",
    "CPUEvict": "Evict opted-in pods when the node's CPU is full.",
    "MemoryEvict": "Evict opted-in pods when the node's memory is full.",
    "CPUAllocatableEvict": "Evict opted-in pods when requests exceed the batch and mid CPU that the node offers.",
    "MemoryAllocatableEvict": "Evict opted-in pods when requests exceed the batch and mid memory that the node offers.",
    "SystemConfig": "Kernel settings of systemStrategy.",
    "CgroupReconcile": "Memory protection and limits by class and pod (memoryQOS).",
    "Accelerators": "Collect and report GPUs and other accelerators.",
    "RDMADevices": "Report RDMA network cards.",
    "CPICollector": "Collect cycles per instruction of containers.",
    "Libpfm4": _NOTHING + "the CPI collector names its counters itself.",
    "PSICollector": "Collect pressure (PSI) of pods and containers.",
    "ResctrlCollector": "Collect cache occupancy and memory bandwidth.",
    "ColdPageCollector": "Collect cold memory (kidled).",
    "HugePageReport": "Report huge pages of NUMA nodes in the NodeResourceTopology.",
    "DRAPlugin": "Prepare claims of published devices for the kubelet; needs ClusterRole koordlet-resource-claims.",
    "PodResourcesProxy": "Serve the kubelet's PodResources API with the devices that the scheduler allocated.",
    "HamiCoreVGPUMonitor": "Mount what HAMi-core's monitor needs into GPU containers.",
    "PerCPUMetric": "Export a series for each CPU of the share pools.",
    "NodeMetricPromMetrics": "Export what NodeMetric reports as metrics too.",
    "BlkIOReconcile": "Disk limits, weights and latency targets (blkioQOS).",
    "InterferenceDetection": "Call out pods that others slow down, and by whom; in mode enforce squeeze, throttle, move or evict these.",
    "ResourceTuning": "Burst, quota, memory protection and OOM scores of services by what their containers suffer; enforced by name only.",
    "MemoryOffloading": "Asks idle memory of pods back (memory.reclaim) while their memory pressure is low; cgroup v2, never LSE and LSR.",
    "GPUEnvInject": "Hook: environment of GPU containers.",
    "RDMADeviceInject": "Hook: RDMA device nodes; needs NRI.",
    "CPUNormalization": "Hook: CFS quota by the node's CPU normalization ratio.",
    "CoreSched": "Hook: core scheduling cookies and idle classes.",
    "TerwayQoS": "Hook: network bandwidth by Terway.",
    "TCNetworkQoS": "Hook: network bandwidth by tc.",
    "Resctrl": "Hook: a resctrl group of a pod's own.",
    "OOMScoreAdj": "Hook: `oom_score_adj` of containers.",
}

DESCHEDULER: Final[Mapping[str, str]] = {
    **dict.fromkeys(_TRANSFORMERS, _ONLY_SCHEDULER),
    "DisablePVCReservation": "The Reservation of a migration leaves the pod's claims out.",
    "EvictionsInBackground": "Evictors take 429 `Eviction triggered` for pods annotated `request-evict-only` as accepted.",
}

TEXTS: Final[Mapping[str, Mapping[str, str]]] = {
    "scheduler": SCHEDULER, "manager": MANAGER, "koordlet": KOORDLET, "descheduler": DESCHEDULER, "runtime-proxy": {},
}  # fmt: skip


def text_of(role: str, gate: str) -> str:
    """What a gate does in a role; "" for one that nobody described."""
    return TEXTS[role].get(gate, "")
