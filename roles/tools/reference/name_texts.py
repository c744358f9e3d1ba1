"""Who writes and who reads each label, annotation and resource of `koord.api.names`, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Name(NamedTuple):
    """The objects that carry it, who writes and who reads it, what its value is and does."""

    on: str
    writer: str
    reader: str
    text: str


def _table(text: str) -> Mapping[str, Name]:
    """Rows of `CONSTANT; on; written by; read by; meaning`."""
    rows = (line.strip().split("; ", 4) for line in text.strip().splitlines() if line.strip())
    return {row[0]: Name(*row[1:]) for row in rows}


LABELS = _table("""
LABEL_POD_QOS; Pod, Reservation; user, profile; all; QoS class: LSE, LSR, LS, BE or SYSTEM.
LABEL_POD_PRIORITY; Pod, Reservation; user, profile; scheduler, koordlet, manager; Sub-priority within the class, an int32.
LABEL_POD_PRIORITY_CLASS; Pod; user, profile; all; Priority class koord-prod, -mid, -batch or -free, over what spec.priority says.
LABEL_POD_MUTATING_UPDATE; Pod; user; manager (webhook selector); "true": profiles apply to updates of the pod too.
LABEL_POD_EVICTION_ENABLED; Pod; user; koordlet; "true": the pod may be evicted for usage or requests (opted in).
LABEL_POD_SKIP_ENHANCED_VALIDATION; Pod; user; manager; "true": the enhanced validator does not look at the pod.
LABEL_POD_IS_PRE_ALLOCATABLE; Pod; user; scheduler; "true": a Reservation in mode Cluster may take the pod over.
LABEL_POD_SCHEDULER_NAME; Pod; user, profile; scheduler; Scheduler that places the pod, over spec.schedulerName.
LABEL_POD_RESERVATION_IGNORED; Pod; user; scheduler; "true": the pod does not look at reservations.
LABEL_POD_PREEMPTION_POLICY; Pod; user; scheduler; Never or PreemptLowerPriority (gate PreemptionPolicyTransformer).
LABEL_POD_DISABLE_PREEMPTIBLE; Pod; user; scheduler; "true": the pod is no victim of preemption.
LABEL_POD_OPERATING_MODE; Pod; user; scheduler; Runnable, or Reservation: the pod is a reservation for others.
LABEL_QUESTIONED_OBJECT_KEY; ScheduleExplanation; user; scheduler; Object that is asked about.
LABEL_TOPOLOGY_KEY_TO_EXPLAIN; ScheduleExplanation; user; scheduler; Topology key that is asked about.
LABEL_QUOTA_NAME; Pod; user; scheduler, manager; Quota that the pod counts in.
LABEL_PREEMPTIBLE; Pod; user; scheduler, manager; "false": not preemptible in its quota; may not change.
LABEL_POD_GROUP; Pod; user; scheduler; PodGroup that the pod is a member of.
LABEL_POD_GROUP_NAME_DEPRECATED; Pod; user; scheduler; Former form of the gang's name.
LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED; Pod; user; scheduler; Former form of the gang's minimum.
LABEL_GPU_ISOLATION_PROVIDER; Pod, Node; user, administrator; scheduler, koordlet; HAMi-core: shared cards are isolated by it.
LABEL_HAMI_VGPU_NODE; Pod; scheduler; HAMi-core; Node of a pod with shared cards.
LABEL_CORE_SCHED_GROUP_ID; Pod; user; koordlet; Pods of one group may share a core.
LABEL_CORE_SCHED_POLICY; Pod; user; koordlet; Empty, none or exclusive.
LABEL_BINDING_ADMISSION_BYPASS; Pod; user; manager; Any value: the binding webhook lets the pod pass.
LABEL_EVICT_POLICY; Pod, PodMigrationJob; user; descheduler; Eviction, Delete or SoftEviction for this pod.
LABEL_MANAGED_BY; NodeResourceTopology; koordlet; others; Who writes the object.
LABEL_CREATED_BY; Reservation; descheduler; descheduler; Who made the object.
LABEL_NODE_CPU_RECLAIM_RATIO; Node; administrator; manager; Replaces cpuReclaimThresholdPercent: a ratio, 0.6 is 60 percent.
LABEL_NODE_MEMORY_RECLAIM_RATIO; Node; administrator; manager; Replaces memoryReclaimThresholdPercent.
LABEL_NODE_MID_STATIC_CPU_RESERVED_RATIO; Node; administrator; manager; Replaces midStaticCPUReservedPercent.
LABEL_NODE_MID_STATIC_MEMORY_RESERVED_RATIO; Node; administrator; manager; Replaces midStaticMemoryReservedPercent.
LABEL_NODE_CPU_NORMALIZATION_ENABLED; Node; administrator; manager; true or false, over the configuration.
LABEL_NODE_CPU_BIND_POLICY; Node; administrator; scheduler; None, FullPCPUsOnly or SpreadByPCPUs.
LABEL_NODE_NUMA_ALLOCATE_STRATEGY; Node; administrator; scheduler; MostAllocated, LeastAllocated or DistributeEvenly.
LABEL_NODE_NUMA_TOPOLOGY_POLICY; Node; administrator; scheduler; Empty, BestEffort, Restricted or SingleNUMANode.
LABEL_NODE_ENABLE_NUMA_RESERVATION; Node; administrator; koordlet; true: the node's reservation is taken off its NUMA zones.
LABEL_NODE_GPU_PARTITION_POLICY; Node, Device; administrator, koordlet; scheduler, koordlet; Honor or Prefer partitions of cards.
LABEL_GPU_VENDOR; Node, Device; koordlet, manager; scheduler; Vendor of the cards.
LABEL_GPU_MODEL; Node, Device; koordlet, manager; scheduler; Model of the cards.
LABEL_GPU_DRIVER_VERSION; Node, Device; koordlet, manager; users; Driver of the cards.
LABEL_SECONDARY_DEVICE_WELL_PLANNED; Device; administrator; scheduler; "false" shows in a metric.
LABEL_GPU_DRIVER_DEPRECATED; Node; –; –; Former name of the driver's label; nothing reads it.
LABEL_GPU_MODEL_DEPRECATED; Node; –; –; Former name of the model's label; nothing reads it.
LABEL_HOSTNAME; Node; kubelet; scheduler; Name of the host.
LABEL_ZONE; Node; cloud; scheduler; Zone of the node.
LABEL_REGION; Node; cloud; scheduler; Region of the node.
LABEL_ZONE_DEPRECATED; Node; cloud; scheduler; Former name of the zone's label.
LABEL_REGION_DEPRECATED; Node; cloud; scheduler; Former name of the region's label.
LABEL_NAMESPACE_NAME; Namespace; API server; all; Name of the namespace.
LABEL_RESERVATION_ORDER; Reservation; user, descheduler; scheduler; Which is used first: lower first, 0 or absent by score.
LABEL_PRE_ALLOCATION_REQUIRED; Reservation; user; scheduler; "true": only where a running pod can be taken over.
LABEL_CONTROLLER_MANAGED; ClusterColocationProfile; user; manager; "true": the controller applies the profile to waiting pods.
LABEL_CONFIGMAP_TYPE; ConfigMap; installer; manager (webhook selector); slo-controller-config on the manager's ConfigMap.
LABEL_QUOTA_IS_PARENT; ElasticQuota; user, manager; scheduler, manager; "true": the quota has children and no pods.
LABEL_QUOTA_PARENT; ElasticQuota; user, manager; scheduler, manager; Name of the parent; empty: the root.
LABEL_QUOTA_ALLOW_LENT_RESOURCE; ElasticQuota; user; scheduler; "false": what it does not use is not lent.
LABEL_QUOTA_IS_ROOT; ElasticQuota; user, manager; scheduler, manager; "true": root of a tree.
LABEL_QUOTA_TREE_ID; ElasticQuota, ElasticQuotaProfile; user, manager; scheduler, manager; Tree that the quota is part of.
LABEL_QUOTA_PROFILE; ElasticQuota; manager; others; Profile that the quota was made from.
LABEL_QUOTA_IGNORE_DEFAULT_TREE; ElasticQuota; user; scheduler; "true": the tree's total is not taken off the default tree.
LABEL_QUOTA_ALLOW_FORCE_UPDATE; ElasticQuota; user; manager; "true": the guarantee is not checked on update.
""")

ANNOTATIONS = _table("""
ANNOTATION_SKIP_UPDATE_RESOURCES; ClusterColocationProfile; user; manager; Its presence: cpu and memory are not translated.
ANNOTATION_QUOTA_SHARED_WEIGHT; ElasticQuota; user, manager; scheduler; Weight when spare resources are shared; max where it is unset.
ANNOTATION_QUOTA_RUNTIME; ElasticQuota; scheduler; users; What the quota may use now.
ANNOTATION_QUOTA_REQUEST; ElasticQuota; scheduler; users; What is requested in it, limited by max.
ANNOTATION_QUOTA_CHILD_REQUEST; ElasticQuota; scheduler, manager; manager; What pods and children request.
ANNOTATION_QUOTA_MOVE; ElasticQuota; manager; manager; Which quota moved below this one last: two moves at once are noticed by it.
ANNOTATION_QUOTA_GUARANTEED; ElasticQuota; scheduler; manager; What is kept for it (gate ElasticQuotaGuaranteeUsage).
ANNOTATION_QUOTA_ALLOCATED; ElasticQuota; scheduler; users; What it and its children were given.
ANNOTATION_QUOTA_NON_PREEMPTIBLE_REQUEST; ElasticQuota; scheduler; users; What its non-preemptible pods request.
ANNOTATION_QUOTA_NON_PREEMPTIBLE_USED; ElasticQuota; scheduler; users; What its non-preemptible pods use.
ANNOTATION_QUOTA_ADMISSION; ElasticQuota; user; manager; Limit of quota admission where it is not max.
ANNOTATION_QUOTA_TOTAL_RESOURCE; ElasticQuota; manager, user; scheduler; Total of the tree, on its root.
ANNOTATION_QUOTA_UNSCHEDULABLE_RESOURCE; ElasticQuota; manager; scheduler; The part of it on nodes that take no pods.
ANNOTATION_QUOTA_NAMESPACES; ElasticQuota; user; scheduler, manager; Namespaces whose pods belong to the quota, a JSON list.
ANNOTATION_QUOTA_RESOURCE_KEYS; ElasticQuotaProfile; user; manager; Resources that the quota counts, a JSON list.
ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS; ElasticQuota; user; manager; Resources of which the children's max must fit in, JSON.
ANNOTATION_EXTENDED_RESOURCE_SPEC; Pod; manager; koordlet; Batch and mid resources of each container, where only the pod is at hand.
ANNOTATION_RESOURCE_SPEC; Pod; user; scheduler; How CPUs are bound: required, preferred and exclusive policy, JSON.
ANNOTATION_RESOURCE_STATUS; Pod; scheduler; koordlet, manager; What was allocated: cpuset, numaNodeResources.
ANNOTATION_NUMA_TOPOLOGY_SPEC; Pod; user; scheduler; numaTopologyPolicy, singleNUMANodeExclusive.
ANNOTATION_DEVICE_ALLOCATED; Pod, Reservation; scheduler; koordlet; Devices that were allocated, by type.
ANNOTATION_DEVICE_ALLOCATE_HINT; Pod; user; scheduler; Which devices are wanted: selector, scope, exclusive use.
ANNOTATION_DEVICE_JOINT_ALLOCATE; Pod; user; scheduler; Types of devices that belong together.
ANNOTATION_GPU_PARTITION_SPEC; Pod; user; scheduler; Partition of cards that is wanted.
ANNOTATION_RESERVATION_AFFINITY; Pod; user; scheduler; Reservations that the pod must use.
ANNOTATION_RESERVATION_ALLOCATED; Pod; scheduler; scheduler, users; Reservation that the pod uses.
ANNOTATION_EXACT_MATCH_RESERVATION; Pod; user; scheduler; Resources in which pod and reservation must be equal.
ANNOTATION_RESERVATION_OWNERS; Pod; user; scheduler; Who may use a pod that is a reservation.
ANNOTATION_RESERVATION_CURRENT_OWNER; Pod; scheduler; others; Who uses it.
ANNOTATION_RESERVATION_RESTRICTED_OPTIONS; Reservation; user; scheduler; Resources that policy Restricted is about.
ANNOTATION_RESERVE_POD; Pod; scheduler (in memory); scheduler; Mark of a Reservation that is placed as a pod; refused on users' pods.
ANNOTATION_RESERVATION_NAME; Pod; scheduler (in memory); scheduler; Name of that Reservation.
ANNOTATION_RESERVATION_NODE; Pod; scheduler (in memory); scheduler; Node that it must have.
ANNOTATION_IS_PRE_ALLOCATION; Pod; scheduler (in memory); scheduler; Whether it takes over running pods.
ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE; Reservation; scheduler; scheduler; What it got, where that differs from what it asked for.
ANNOTATION_BIND_TIMESTAMP; Pod; scheduler; device plugins; When the pod was bound (gate DevicePluginAdaption).
ANNOTATION_GPU_MINORS; Pod; scheduler; device plugins; Cards of the pod (gate DevicePluginAdaption).
ANNOTATION_EVICTION_COST; Pod; user; descheduler; Lower leaves first, an int32; 2147483647: never.
ANNOTATION_SOFT_EVICTION; Pod; descheduler; others; Asks whoever owns the pod to move it.
ANNOTATION_LOAD_ESTIMATED_SCALING_FACTORS; Pod; user, manager; scheduler; Percent of its request that the pod is likely to use, by resource.
ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED; Pod; user; scheduler; Seconds for which the estimate counts after scheduling.
ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED; Pod; user; scheduler; Seconds for which the estimate counts once initialized.
ANNOTATION_NETWORK_TOPOLOGY_SELECTOR; Pod; user; scheduler; ClusterNetworkTopology that the gang is placed along.
ANNOTATION_SCHEDULING_HINT; Pod; user, other controllers; scheduler; Nodes that are tried first, and designated allocations.
ANNOTATION_SCHEDULING_HINT_DEPRECATED; Pod; user; scheduler; Former name of the hint.
ANNOTATION_BIND_GANG_GROUP_ID; Pod; scheduler; scheduler; Gang group with which the pod was bound.
ANNOTATION_BIND_GANG_GROUP_ID_DEPRECATED; Pod; –; scheduler; Former name of the group.
ANNOTATION_BIND_GANG_MEMBER_COUNT; Pod; scheduler; scheduler; Members that were bound with it.
ANNOTATION_BIND_GANG_MEMBER_COUNT_DEPRECATED; Pod; –; scheduler; Former name of the count.
ANNOTATION_ORIGINAL_SCHEDULER_NAME; Pod; others; –; Kept for programs that hand pods from one scheduler to another.
ANNOTATION_REPLACE_RESOURCES; Pod; user; scheduler, manager; Resources under another name: `a:b,c:d,e:` (gate of that name).
ANNOTATION_PRE_ALLOCATABLE_PRIORITY; Pod; user; scheduler; Order in which pods are taken over, higher first.
ANNOTATION_EVICTION_POLICY; Pod; user; koordlet; Gates that may evict the pod, a JSON list; one that cannot be read allows none.
ANNOTATION_EVICTION_PRIORITY; Pod; user; koordlet; Lower is evicted first, an int32.
ANNOTATION_OOM_SCORE_ADJ; Pod; user; koordlet; oom_score_adj of all containers, -1000 to 1000.
ANNOTATION_OOM_SCORE_ADJ_SPEC; Pod; user; koordlet; The same by container, JSON.
ANNOTATION_NETWORK_QOS; Pod; user; koordlet; ingressLimit and egressLimit, quantities in bits a second.
ANNOTATION_CPU_BURST; Pod; user; koordlet; Overlays the node's cpuBurstStrategy, JSON.
ANNOTATION_CPU_QOS; Pod; user; koordlet; Overlays the class's cpuQOS, JSON.
ANNOTATION_MEMORY_QOS; Pod; user; koordlet; Overlays the class's memoryQOS, JSON; policy default, none or auto.
ANNOTATION_BLKIO_QOS; Pod; user; koordlet; Limits of disks for the pod, JSON.
ANNOTATION_RESCTRL; Pod; user; koordlet; Cache and memory bandwidth of a group of the pod's own, JSON.
ANNOTATION_SKIP_HOOKSERVER; Pod (label); user; runtime-proxy; "true": hooks are not asked about the pod.
ANNOTATION_EVICT_REASON; PodMigrationJob, Pod; descheduler; users; Why the pod leaves.
ANNOTATION_EVICT_TRIGGER; PodMigrationJob, Pod; descheduler; descheduler; Plugin that asked for it.
ANNOTATION_JOB_CREATED_BY; PodMigrationJob; descheduler; descheduler; Who made the job.
ANNOTATION_PASSED_ARBITRATION; PodMigrationJob; descheduler; descheduler; The job may begin.
ANNOTATION_MIGRATION_PROFILE; PodMigrationJob; descheduler; descheduler; Profile whose arguments the job follows.
ANNOTATION_MIGRATION_WORKLOAD; PodMigrationJob; descheduler; descheduler; Workload of the pod.
ANNOTATION_MIGRATION_RELIEF; PodMigrationJob; descheduler; descheduler; Nodes where a pod that moves for load may go, and its use.
ANNOTATION_MIGRATION_GANG; PodMigrationJob; descheduler; descheduler; The gang that moves as one, how many members, and the uid of the move.
ANNOTATION_MIGRATION_AVOID; PodMigrationJob; descheduler; descheduler; Nodes, by comma, whose place was given back.
ANNOTATION_LAST_CHECKPOINT; Pod; user; descheduler; When the pod last saved its work (RFC 3339); its leaving costs what was done since.
ANNOTATION_DRAIN_CORDONED; Node; descheduler; descheduler; The node was cordoned for a drain; who gives the drain up takes the cordon back.
ANNOTATION_MIGRATION_PAUSED; PodMigrationJob; descheduler; descheduler; Seconds for which the job was paused, and since when it is.
ANNOTATION_POD_ARBITRATING; Pod; –; –; Known for compatibility; nothing reads it.
ANNOTATION_RECOMMENDATION_BOUNDS; Recommendation; manager; users; Lower and upper bound by container.
ANNOTATION_GANG_NAME; Pod; user; scheduler; Name of the gang.
ANNOTATION_GANG_MIN_AVAILABLE; Pod; user; scheduler; Members that must be placed together.
ANNOTATION_GANG_WAITING_TIME; Pod; user; scheduler; How long members wait for one another, a duration.
ANNOTATION_GANG_TOTAL_NUMBER; Pod; user; scheduler; Members in all; at least the minimum.
ANNOTATION_GANG_MODE; Pod, PodGroup; user; scheduler; Strict or NonStrict.
ANNOTATION_GANG_GROUPS; Pod, PodGroup; user; scheduler; Gangs that are placed together, a JSON list of namespace/name.
ANNOTATION_GANG_TIMEOUT; PodGroup; –; –; Known for compatibility; nothing reads it.
ANNOTATION_GANG_MATCH_POLICY; Pod, PodGroup; user; scheduler; only-waiting, waiting-and-running or once-satisfied.
ANNOTATION_GANG_MATCH_POLICY_ALIAS; Pod, PodGroup; user; scheduler; Another spelling of the match policy.
ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX; Pod; user; scheduler; Place of the pod along the network.
ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC; Pod, PodGroup; user; scheduler; Layers within which members must or should stay together, JSON.
ANNOTATION_POD_DELETION_COST; Pod; user, descheduler; ReplicaSet controller, descheduler; Lower is deleted first when a workload shrinks.
ANNOTATION_DESCHEDULER_EVICT; Pod; user; descheduler; Its presence: the pod may always leave.
ANNOTATION_DESCHEDULER_PREFER_NO_EVICTION; Pod; user; descheduler; Its presence: the pod leaves last, or not at all.
ANNOTATION_REQUEST_EVICT_ONLY; Pod; user; descheduler; Somebody else moves it when it is to be evicted (gate EvictionsInBackground).
ANNOTATION_EVICTION_IN_PROGRESS; Pod; who moves the pod; descheduler; That goes on; nobody asks again (gate EvictionsInBackground).
ANNOTATION_CONFIG_SOURCE; Pod; kubelet; descheduler, koordlet; Where the kubelet has the pod from.
ANNOTATION_CONFIG_MIRROR; Pod; kubelet; descheduler; Mark of static pods.
ANNOTATION_API_APPROVED; CustomResourceDefinition; installer; API server; Approval that kinds of Kubernetes' groups must carry.
ANNOTATION_NODE_COLOCATION_STRATEGY; Node; administrator; manager; colocation-config for this node, JSON.
ANNOTATION_NODE_RESERVATION; Node; administrator; scheduler, manager, koordlet; Resources and CPUs that are kept from pods, JSON.
ANNOTATION_NODE_SYSTEM_QOS_RESOURCE; Node; administrator; scheduler, koordlet; CPUs of class SYSTEM: cpuset, cpusetExclusive.
ANNOTATION_NODE_NETWORK_BANDWIDTH; Node; administrator; manager; Bandwidth of the node in bits a second.
ANNOTATION_NODE_CPU_NORMALIZATION_RATIO; Node; manager; scheduler, koordlet; How much a CPU of this node does, 1.00 to 5.00.
ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO; Node; manager; scheduler, manager; Ratio by which allocatable is amplified, JSON.
ANNOTATION_NODE_RAW_ALLOCATABLE; Node; manager; scheduler, koordlet, descheduler; Allocatable before amplification.
ANNOTATION_NODE_ORIGIN_EXTENDED_ALLOCATABLE; Node; manager; others; Batch and mid resources before third parties and normalization.
ANNOTATION_NODE_THIRD_PARTY_ALLOCATIONS; Node; others; manager; What other programs hold of batch and mid resources.
ANNOTATION_NODE_ABNORMAL; Node; manager; manager, scheduler; By how many percent the node is trusted less, and why.
ANNOTATION_NODE_USAGE_THRESHOLDS; Node; administrator; scheduler; LoadAwareScheduling's thresholds for this node, JSON.
ANNOTATION_NRT_CPU_TOPOLOGY; NodeResourceTopology; koordlet; scheduler; CPUs with core, socket and NUMA node.
ANNOTATION_NRT_POD_CPU_ALLOCS; NodeResourceTopology; koordlet; scheduler; CPUs that the kubelet gave to pods.
ANNOTATION_NRT_CPU_SHARED_POOLS; NodeResourceTopology; koordlet; koordlet, others; CPUs of the share pool by NUMA node.
ANNOTATION_NRT_BE_CPU_SHARED_POOLS; NodeResourceTopology; koordlet; koordlet, others; CPUs of the best-effort pool by NUMA node.
ANNOTATION_NRT_CPU_BASIC_INFO; NodeResourceTopology; koordlet; manager; CPU model, hyper-threading, turbo.
ANNOTATION_KUBELET_CPU_MANAGER_POLICY; NodeResourceTopology; koordlet; scheduler; The kubelet's CPU manager policy and its options.
ANNOTATION_DEVICE_GPU_PARTITIONS; Device; koordlet; scheduler; Partitions of cards, JSON.
""")

RESOURCES = _table("""
RESOURCE_BATCH_CPU; Node, Pod; manager; scheduler, koordlet; CPU for batch pods, in milli-cores written as a whole number.
RESOURCE_BATCH_MEMORY; Node, Pod; manager; scheduler, koordlet; Memory for batch pods, in bytes.
RESOURCE_MID_CPU; Node, Pod; manager; scheduler, koordlet; CPU for mid pods, in milli-cores written as a whole number.
RESOURCE_MID_MEMORY; Node, Pod; manager; scheduler, koordlet; Memory for mid pods, in bytes.
RESOURCE_GPU; Node, Pod; manager, user; scheduler; Core and memory of cards at once; 100 is one card.
RESOURCE_GPU_CORE; Node, Pod; manager, user; scheduler; Computing power; 100 is one card.
RESOURCE_GPU_MEMORY; Node, Pod; manager, user; scheduler; Memory of cards, in bytes.
RESOURCE_GPU_MEMORY_RATIO; Node, Pod; manager, user; scheduler; Memory of cards; 100 is one card.
RESOURCE_GPU_SHARED; Node, Pod; manager, user; scheduler; Number of cards that are shared from.
RESOURCE_RDMA; Node, Pod; manager, user; scheduler; Network cards; 100 is one.
RESOURCE_FPGA; Node, Pod; user; scheduler; FPGAs; 100 is one.
RESOURCE_NVIDIA_GPU; Pod; user; scheduler; Whole NVIDIA cards.
RESOURCE_HYGON_DCU; Pod; user; scheduler; Whole Hygon cards.
RESOURCE_AMD_GPU; Pod; user; scheduler; Whole AMD cards.
RESOURCE_HUAWEI_NPU_CORE; Node, Pod; manager, user; scheduler; Cores of Huawei NPUs.
RESOURCE_HUAWEI_NPU_CPU; Node, Pod; manager, user; scheduler; CPUs of Huawei NPUs.
RESOURCE_HUAWEI_NPU_DVPP; Node, Pod; manager, user; scheduler; Media units of Huawei NPUs, 100 is one card.
""")
