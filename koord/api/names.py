"""Every label, annotation and resource name of the wire contract (API-LBL-01, API-ANN-01, API-RES-01).

Constants only. ``LABEL_*`` and ``ANNOTATION_*`` are full keys; ``PREFIX`` is the domain with its slash; ``RESOURCE_*`` are
names inside a ResourceList. A word after ``LABEL_``/``ANNOTATION_`` names the object that carries the key where the key alone does
not tell. Values that a key may take live beside the type that uses them (``koord.api.qos``, ``koord.api.priority``,
``koord.api.annotations``), except for the few short words at the end of each section.
"""

# ---------------------------------------------------------------- domains
DOMAIN = "koordinator.sh"
PREFIX = "koordinator.sh/"

# ---------------------------------------------------------------- resources
RESOURCE_CPU = "cpu"
RESOURCE_MEMORY = "memory"
RESOURCE_EPHEMERAL_STORAGE = "ephemeral-storage"
RESOURCE_STORAGE = "storage"
RESOURCE_PODS = "pods"
RESOURCE_HUGEPAGES_PREFIX = "hugepages-"
RESOURCE_ATTACHABLE_VOLUMES_PREFIX = "attachable-volumes-"

RESOURCE_BATCH_CPU = "kubernetes.io/batch-cpu"  # milli-cores, written as an integer
RESOURCE_BATCH_MEMORY = "kubernetes.io/batch-memory"  # bytes
RESOURCE_MID_CPU = "kubernetes.io/mid-cpu"  # milli-cores, written as an integer
RESOURCE_MID_MEMORY = "kubernetes.io/mid-memory"  # bytes

RESOURCE_GPU = "koordinator.sh/gpu"  # 100 = one card
RESOURCE_GPU_CORE = "koordinator.sh/gpu-core"  # 100 = one card
RESOURCE_GPU_MEMORY = "koordinator.sh/gpu-memory"  # bytes
RESOURCE_GPU_MEMORY_RATIO = "koordinator.sh/gpu-memory-ratio"  # 100 = one card
RESOURCE_GPU_SHARED = "koordinator.sh/gpu.shared"  # number of cards shared from
RESOURCE_RDMA = "koordinator.sh/rdma"  # 100 = one device
RESOURCE_FPGA = "koordinator.sh/fpga"  # 100 = one device

RESOURCE_NVIDIA_GPU = "nvidia.com/gpu"
RESOURCE_HYGON_DCU = "dcu.com/gpu"
RESOURCE_AMD_GPU = "amd.com/gpu"
RESOURCE_HUAWEI_NPU_CORE = "huawei.com/npu-core"
RESOURCE_HUAWEI_NPU_CPU = "huawei.com/npu-cpu"
RESOURCE_HUAWEI_NPU_DVPP = "huawei.com/npu-dvpp"

# Over how many cards a request is spread: the scheduler finds them in the node's Device. What a node offers of it is no amount that is
# used up, and only nodes of managers with a gate that is off by default offer it at all.
COUNTED_BY_CARD = frozenset({RESOURCE_GPU_SHARED})

BATCH_RESOURCES = (RESOURCE_BATCH_CPU, RESOURCE_BATCH_MEMORY)
MID_RESOURCES = (RESOURCE_MID_CPU, RESOURCE_MID_MEMORY)

# Spellings of former releases, accepted on input and rewritten in memory (API-RES-01): old name -> new name.
DEPRECATED_RESOURCES: dict[str, str] = {
    "koordinator.sh/batch-cpu": RESOURCE_BATCH_CPU,
    "koordinator.sh/batch-memory": RESOURCE_BATCH_MEMORY,
    "kubernetes.io/rdma": RESOURCE_RDMA,
    "kubernetes.io/fpga": RESOURCE_FPGA,
    "kubernetes.io/gpu": RESOURCE_GPU,
    "kubernetes.io/gpu-core": RESOURCE_GPU_CORE,
    "kubernetes.io/gpu-memory": RESOURCE_GPU_MEMORY,
    "kubernetes.io/gpu-memory-ratio": RESOURCE_GPU_MEMORY_RATIO,
}

DEVICE_TYPE_GPU = "gpu"
DEVICE_TYPE_FPGA = "fpga"
DEVICE_TYPE_RDMA = "rdma"

GPU_VENDOR_NVIDIA = "nvidia"
GPU_VENDOR_HUAWEI = "huawei"
GPU_VENDOR_CAMBRICON = "cambricon"
GPU_VENDOR_METAX = "metax"
GPU_VENDOR_BAIDU = "baidu"

# ---------------------------------------------------------------- pod labels
LABEL_POD_QOS = "koordinator.sh/qosClass"
LABEL_POD_PRIORITY = "koordinator.sh/priority"  # sub-priority, int32 text
LABEL_POD_PRIORITY_CLASS = "koordinator.sh/priority-class"
LABEL_POD_MUTATING_UPDATE = "pod.koordinator.sh/mutating-update"
LABEL_POD_EVICTION_ENABLED = "koordinator.sh/eviction-enabled"
LABEL_POD_SKIP_ENHANCED_VALIDATION = "pod.koordinator.sh/skip-enhanced-validation"
LABEL_POD_IS_PRE_ALLOCATABLE = "pod.koordinator.sh/is-pre-allocatable"
LABEL_POD_SCHEDULER_NAME = "scheduling.koordinator.sh/scheduler-name"
LABEL_POD_RESERVATION_IGNORED = "scheduling.koordinator.sh/reservation-ignored"
LABEL_POD_PREEMPTION_POLICY = "scheduling.koordinator.sh/preemption-policy"
LABEL_POD_DISABLE_PREEMPTIBLE = "scheduling.koordinator.sh/disable-preemptible"
LABEL_POD_OPERATING_MODE = "scheduling.koordinator.sh/operating-mode"
LABEL_QUESTIONED_OBJECT_KEY = "scheduling.koordinator.sh/questioned-object-key"
LABEL_TOPOLOGY_KEY_TO_EXPLAIN = "scheduling.koordinator.sh/topology-key-to-explain"
LABEL_QUOTA_NAME = "quota.scheduling.koordinator.sh/name"
LABEL_PREEMPTIBLE = "quota.scheduling.koordinator.sh/preemptible"
LABEL_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"  # PodGroup name, the first choice
LABEL_POD_GROUP_NAME_DEPRECATED = "pod-group.scheduling.sigs.k8s.io/name"
LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED = "pod-group.scheduling.sigs.k8s.io/min-available"
LABEL_GPU_ISOLATION_PROVIDER = "koordinator.sh/gpu-isolation-provider"  # pods and nodes
LABEL_HAMI_VGPU_NODE = "hami.io/vgpu-node"
LABEL_CORE_SCHED_GROUP_ID = "koordinator.sh/core-sched-group-id"
LABEL_CORE_SCHED_POLICY = "koordinator.sh/core-sched-policy"
LABEL_BINDING_ADMISSION_BYPASS = "koordinator.sh/binding-admission-bypass"
LABEL_EVICT_POLICY = "koordinator.sh/evict-policy"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_CREATED_BY = "app.kubernetes.io/created-by"

OPERATING_MODE_RUNNABLE = "Runnable"
OPERATING_MODE_RESERVATION = "Reservation"
GPU_ISOLATION_PROVIDER_HAMI_CORE = "HAMi-core"
CORE_SCHED_POLICY_DEFAULT = ""
CORE_SCHED_POLICY_NONE = "none"
CORE_SCHED_POLICY_EXCLUSIVE = "exclusive"
PREEMPTION_POLICY_NEVER = "Never"
PREEMPTION_POLICY_LOWER = "PreemptLowerPriority"

# ---------------------------------------------------------------- node labels
LABEL_NODE_CPU_RECLAIM_RATIO = "node.koordinator.sh/cpu-reclaim-ratio"
LABEL_NODE_MEMORY_RECLAIM_RATIO = "node.koordinator.sh/memory-reclaim-ratio"
LABEL_NODE_MID_STATIC_CPU_RESERVED_RATIO = "node.koordinator.sh/mid-static-cpu-reserved-ratio"
LABEL_NODE_MID_STATIC_MEMORY_RESERVED_RATIO = "node.koordinator.sh/mid-static-memory-reserved-ratio"
LABEL_NODE_CPU_NORMALIZATION_ENABLED = "node.koordinator.sh/cpu-normalization-enabled"
LABEL_NODE_CPU_BIND_POLICY = "node.koordinator.sh/cpu-bind-policy"
LABEL_NODE_NUMA_ALLOCATE_STRATEGY = "node.koordinator.sh/numa-allocate-strategy"
LABEL_NODE_NUMA_TOPOLOGY_POLICY = "node.koordinator.sh/numa-topology-policy"
LABEL_NODE_ENABLE_NUMA_RESERVATION = "node.koordinator.sh/enable-numa-reservation"
LABEL_NODE_GPU_PARTITION_POLICY = "node.koordinator.sh/gpu-partition-policy"
LABEL_GPU_VENDOR = "node.koordinator.sh/gpu-vendor"  # nodes and Devices
LABEL_GPU_MODEL = "node.koordinator.sh/gpu-model"
LABEL_GPU_DRIVER_VERSION = "node.koordinator.sh/gpu-driver-version"
LABEL_SECONDARY_DEVICE_WELL_PLANNED = "node.koordinator.sh/secondary-device-well-planned"  # Devices
LABEL_GPU_DRIVER_DEPRECATED = "kubernetes.io/gpu-driver"
LABEL_GPU_MODEL_DEPRECATED = "kubernetes.io/gpu-model"

NODE_CPU_BIND_NONE = "None"
NODE_CPU_BIND_FULL_PCPUS_ONLY = "FullPCPUsOnly"
NODE_CPU_BIND_SPREAD_BY_PCPUS = "SpreadByPCPUs"
NUMA_MOST_ALLOCATED = "MostAllocated"
NUMA_LEAST_ALLOCATED = "LeastAllocated"
NUMA_DISTRIBUTE_EVENLY = "DistributeEvenly"
NUMA_POLICY_NONE = ""
NUMA_POLICY_BEST_EFFORT = "BestEffort"
NUMA_POLICY_RESTRICTED = "Restricted"
NUMA_POLICY_SINGLE_NUMA_NODE = "SingleNUMANode"
GPU_PARTITION_POLICY_HONOR = "Honor"
GPU_PARTITION_POLICY_PREFER = "Prefer"

# Labels and taints of Kubernetes itself that the roles read.
LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_ZONE = "topology.kubernetes.io/zone"
LABEL_REGION = "topology.kubernetes.io/region"
LABEL_ZONE_DEPRECATED = "failure-domain.beta.kubernetes.io/zone"
LABEL_REGION_DEPRECATED = "failure-domain.beta.kubernetes.io/region"
LABEL_NAMESPACE_NAME = "kubernetes.io/metadata.name"
TAINT_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

# ---------------------------------------------------------------- reservation, profile, config
LABEL_RESERVATION_ORDER = "scheduling.koordinator.sh/reservation-order"
LABEL_PRE_ALLOCATION_REQUIRED = "scheduling.koordinator.sh/pre-allocation-required"
LABEL_CONTROLLER_MANAGED = "config.koordinator.sh/controller-managed"
ANNOTATION_SKIP_UPDATE_RESOURCES = "config.koordinator.sh/skip-update-resources"  # its presence counts
LABEL_CONFIGMAP_TYPE = "koordinator.sh/configmap-type"
CONFIGMAP_TYPE_SLO = "slo-controller-config"

# ---------------------------------------------------------------- ElasticQuota labels
LABEL_QUOTA_IS_PARENT = "quota.scheduling.koordinator.sh/is-parent"
LABEL_QUOTA_PARENT = "quota.scheduling.koordinator.sh/parent"
LABEL_QUOTA_ALLOW_LENT_RESOURCE = "quota.scheduling.koordinator.sh/allow-lent-resource"
LABEL_QUOTA_IS_ROOT = "quota.scheduling.koordinator.sh/is-root"
LABEL_QUOTA_TREE_ID = "quota.scheduling.koordinator.sh/tree-id"
LABEL_QUOTA_PROFILE = "quota.scheduling.koordinator.sh/profile"
LABEL_QUOTA_IGNORE_DEFAULT_TREE = "quota.scheduling.koordinator.sh/ignore-default-tree"
LABEL_QUOTA_ALLOW_FORCE_UPDATE = "quota.scheduling.koordinator.sh/allow-force-update"

QUOTA_ROOT = "koordinator-root-quota"
QUOTA_SYSTEM = "koordinator-system-quota"
QUOTA_DEFAULT = "koordinator-default-quota"
RESERVED_QUOTAS = frozenset({QUOTA_ROOT, QUOTA_SYSTEM, QUOTA_DEFAULT})

# ---------------------------------------------------------------- ElasticQuota annotations
ANNOTATION_QUOTA_SHARED_WEIGHT = "quota.scheduling.koordinator.sh/shared-weight"
ANNOTATION_QUOTA_RUNTIME = "quota.scheduling.koordinator.sh/runtime"
ANNOTATION_QUOTA_REQUEST = "quota.scheduling.koordinator.sh/request"
ANNOTATION_QUOTA_CHILD_REQUEST = "quota.scheduling.koordinator.sh/child-request"
ANNOTATION_QUOTA_MOVE = "quota.scheduling.koordinator.sh/move"
ANNOTATION_QUOTA_GUARANTEED = "quota.scheduling.koordinator.sh/guaranteed"
ANNOTATION_QUOTA_ALLOCATED = "quota.scheduling.koordinator.sh/allocated"
ANNOTATION_QUOTA_NON_PREEMPTIBLE_REQUEST = "quota.scheduling.koordinator.sh/non-preemptible-request"
ANNOTATION_QUOTA_NON_PREEMPTIBLE_USED = "quota.scheduling.koordinator.sh/non-preemptible-used"
ANNOTATION_QUOTA_ADMISSION = "quota.scheduling.koordinator.sh/admission"
ANNOTATION_QUOTA_TOTAL_RESOURCE = "quota.scheduling.koordinator.sh/total-resource"
ANNOTATION_QUOTA_UNSCHEDULABLE_RESOURCE = "quota.scheduling.koordinator.sh/unschedulable-resource"
ANNOTATION_QUOTA_NAMESPACES = "quota.scheduling.koordinator.sh/namespaces"
ANNOTATION_QUOTA_RESOURCE_KEYS = "quota.scheduling.koordinator.sh/resource-keys"
ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS = "quota.scheduling.koordinator.sh/max-strict-check-resource-keys"

# ---------------------------------------------------------------- pod annotations
ANNOTATION_EXTENDED_RESOURCE_SPEC = "node.koordinator.sh/extended-resource-spec"
ANNOTATION_RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
ANNOTATION_RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
ANNOTATION_NUMA_TOPOLOGY_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
ANNOTATION_DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
ANNOTATION_DEVICE_ALLOCATE_HINT = "scheduling.koordinator.sh/device-allocate-hint"
ANNOTATION_DEVICE_JOINT_ALLOCATE = "scheduling.koordinator.sh/device-joint-allocate"
ANNOTATION_GPU_PARTITION_SPEC = "scheduling.koordinator.sh/gpu-partition-spec"
ANNOTATION_RESERVATION_AFFINITY = "scheduling.koordinator.sh/reservation-affinity"
ANNOTATION_RESERVATION_ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
ANNOTATION_EXACT_MATCH_RESERVATION = "scheduling.koordinator.sh/exact-match-reservation"
ANNOTATION_RESERVATION_OWNERS = "scheduling.koordinator.sh/reservation-owners"
ANNOTATION_RESERVATION_CURRENT_OWNER = "scheduling.koordinator.sh/reservation-current-owner"
ANNOTATION_RESERVATION_RESTRICTED_OPTIONS = "scheduling.koordinator.sh/reservation-restricted-options"  # Reservations
ANNOTATION_RESERVE_POD = "scheduling.koordinator.sh/reserve-pod"
ANNOTATION_RESERVATION_NAME = "scheduling.koordinator.sh/reservation-name"
ANNOTATION_RESERVATION_NODE = "scheduling.koordinator.sh/reservation-node"
ANNOTATION_IS_PRE_ALLOCATION = "scheduling.koordinator.sh/is-pre-allocation"
ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE = "scheduling.koordinator.sh/reservation-resize-allocatable"
ANNOTATION_BIND_TIMESTAMP = "scheduling.koordinator.sh/bind-timestamp"
ANNOTATION_GPU_MINORS = "scheduling.koordinator.sh/gpu-minors"
ANNOTATION_EVICTION_COST = "scheduling.koordinator.sh/eviction-cost"
ANNOTATION_SOFT_EVICTION = "scheduling.koordinator.sh/soft-eviction"
ANNOTATION_LOAD_ESTIMATED_SCALING_FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"
ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
ANNOTATION_NETWORK_TOPOLOGY_SELECTOR = "scheduling.koordinator.sh/network-topology-selector"
ANNOTATION_SCHEDULING_HINT = "internal.scheduling.koordinator.sh/scheduling-hint"
ANNOTATION_SCHEDULING_HINT_DEPRECATED = "scheduling.koordinator.sh/scheduling-hint"
ANNOTATION_BIND_GANG_GROUP_ID = "internal.scheduling.koordinator.sh/bind-gang-group-id"
ANNOTATION_BIND_GANG_GROUP_ID_DEPRECATED = "scheduling.koordinator.sh/bind-gang-group-id"
ANNOTATION_BIND_GANG_MEMBER_COUNT = "internal.scheduling.koordinator.sh/bind-gang-member-count"
ANNOTATION_BIND_GANG_MEMBER_COUNT_DEPRECATED = "scheduling.koordinator.sh/bind-gang-member-count"
ANNOTATION_ORIGINAL_SCHEDULER_NAME = "internal.scheduling.koordinator.sh/original-scheduler-name"
ANNOTATION_REPLACE_RESOURCES = "pod.koordinator.sh/replace-resources"
ANNOTATION_PRE_ALLOCATABLE_PRIORITY = "pod.koordinator.sh/pre-allocatable-priority"
ANNOTATION_EVICTION_POLICY = "koordinator.sh/eviction-policy"
ANNOTATION_EVICTION_PRIORITY = "koordinator.sh/eviction-priority"
ANNOTATION_OOM_SCORE_ADJ = "koordinator.sh/oom-score-adj"
ANNOTATION_OOM_SCORE_ADJ_SPEC = "koordinator.sh/oom-score-adj-spec"
ANNOTATION_NETWORK_QOS = "koordinator.sh/networkQOS"
ANNOTATION_CPU_BURST = "koordinator.sh/cpuBurst"
ANNOTATION_CPU_QOS = "koordinator.sh/cpuQOS"
ANNOTATION_MEMORY_QOS = "koordinator.sh/memoryQOS"
ANNOTATION_BLKIO_QOS = "koordinator.sh/blkioQOS"
ANNOTATION_RESCTRL = "node.koordinator.sh/resctrl"
ANNOTATION_SKIP_HOOKSERVER = "runtimeproxy.koordinator.sh/skip-hookserver"
ANNOTATION_EVICT_REASON = "koordinator.sh/evict-reason"
ANNOTATION_EVICT_TRIGGER = "koordinator.sh/evict-trigger"
ANNOTATION_JOB_CREATED_BY = "koordinator.sh/job-created-by"
ANNOTATION_PASSED_ARBITRATION = "descheduler.koordinator.sh/passed-arbitration"
# koord's own: whose arguments a migration follows, which workload its pod belonged to, where a pod that moves for load may go, which
# nodes turned out to be no good for it, and how long the migration was paused
ANNOTATION_MIGRATION_PROFILE = "descheduler.koordinator.sh/profile"
ANNOTATION_MIGRATION_WORKLOAD = "descheduler.koordinator.sh/workload"
ANNOTATION_MIGRATION_RELIEF = "descheduler.koordinator.sh/relief"
ANNOTATION_LAST_CHECKPOINT = "descheduler.koordinator.sh/last-checkpoint"
ANNOTATION_DRAIN_CORDONED = "descheduler.koordinator.sh/cordoned"
ANNOTATION_MIGRATION_PAUSED = "descheduler.koordinator.sh/paused"
ANNOTATION_MIGRATION_GANG = "descheduler.koordinator.sh/gang-move"  # gang, members, uid of the move
ANNOTATION_MIGRATION_AVOID = "descheduler.koordinator.sh/avoid"
ANNOTATION_POD_ARBITRATING = "descheduler.koordinator.sh/pod-arbitrating"
ANNOTATION_RECOMMENDATION_BOUNDS = "analysis.koordinator.sh/bounds"  # Recommendations

# gangs
ANNOTATION_GANG_NAME = "gang.scheduling.koordinator.sh/name"
ANNOTATION_GANG_MIN_AVAILABLE = "gang.scheduling.koordinator.sh/min-available"
ANNOTATION_GANG_WAITING_TIME = "gang.scheduling.koordinator.sh/waiting-time"
ANNOTATION_GANG_TOTAL_NUMBER = "gang.scheduling.koordinator.sh/total-number"
ANNOTATION_GANG_MODE = "gang.scheduling.koordinator.sh/mode"
ANNOTATION_GANG_GROUPS = "gang.scheduling.koordinator.sh/groups"
ANNOTATION_GANG_TIMEOUT = "gang.scheduling.koordinator.sh/timeout"
ANNOTATION_GANG_MATCH_POLICY = "gang.scheduling.koordinator.sh/match-policy"
ANNOTATION_GANG_MATCH_POLICY_ALIAS = "pod-group.scheduling.sigs.k8s.io/match-policy"
ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX = "gang.scheduling.koordinator.sh/network-topology-index"
ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"

GANG_MODE_STRICT = "Strict"
GANG_MODE_NON_STRICT = "NonStrict"
GANG_MATCH_ONLY_WAITING = "only-waiting"
GANG_MATCH_WAITING_AND_RUNNING = "waiting-and-running"
GANG_MATCH_ONCE_SATISFIED = "once-satisfied"

# annotations of others that the roles honour
ANNOTATION_POD_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
ANNOTATION_DESCHEDULER_EVICT = "descheduler.alpha.kubernetes.io/evict"
ANNOTATION_DESCHEDULER_PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
ANNOTATION_REQUEST_EVICT_ONLY = "descheduler.alpha.kubernetes.io/request-evict-only"
ANNOTATION_EVICTION_IN_PROGRESS = "descheduler.alpha.kubernetes.io/eviction-in-progress"
ANNOTATION_CONFIG_SOURCE = "kubernetes.io/config.source"
ANNOTATION_CONFIG_MIRROR = "kubernetes.io/config.mirror"
ANNOTATION_API_APPROVED = "api-approved.kubernetes.io"

# ---------------------------------------------------------------- Node, NodeResourceTopology, Device annotations
ANNOTATION_NODE_COLOCATION_STRATEGY = "node.koordinator.sh/colocation-strategy"
ANNOTATION_NODE_RESERVATION = "node.koordinator.sh/reservation"
ANNOTATION_NODE_SYSTEM_QOS_RESOURCE = "node.koordinator.sh/system-qos-resource"
ANNOTATION_NODE_NETWORK_BANDWIDTH = "node.koordinator.sh/network-bandwidth"
ANNOTATION_NODE_CPU_NORMALIZATION_RATIO = "node.koordinator.sh/cpu-normalization-ratio"
ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO = "node.koordinator.sh/resource-amplification-ratio"
ANNOTATION_NODE_RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"
ANNOTATION_NODE_ORIGIN_EXTENDED_ALLOCATABLE = "node.koordinator.sh/originExtendedAllocatable"
ANNOTATION_NODE_THIRD_PARTY_ALLOCATIONS = "node.koordinator.sh/thirdPartyAllocations"
ANNOTATION_NODE_ABNORMAL = "node.koordinator.sh/abnormal"
ANNOTATION_NODE_USAGE_THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"
ANNOTATION_NRT_CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
ANNOTATION_NRT_POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
ANNOTATION_NRT_CPU_SHARED_POOLS = "node.koordinator.sh/cpu-shared-pools"
ANNOTATION_NRT_BE_CPU_SHARED_POOLS = "node.koordinator.sh/be-cpu-shared-pools"
ANNOTATION_NRT_CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"
ANNOTATION_KUBELET_CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
ANNOTATION_DEVICE_GPU_PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"

# ---------------------------------------------------------------- well-known object names
CONFIGMAP_SLO_CONTROLLER_CONFIG = "slo-controller-config"
