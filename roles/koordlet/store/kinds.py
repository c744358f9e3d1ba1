"""Kinds of series and their properties (KLO-TSDB-01). A sample sets every property of its kind and no other.

Units: CPU is in cores, memory in bytes; the comments name the others, and the gates without which there are no samples.
"""

from __future__ import annotations

#: Properties by kind.
SCHEMAS: dict[str, tuple[str, ...]] = {}


def _kind(name: str, *properties: str) -> str:
    SCHEMAS[name] = properties
    return name


_NUMA = "numa_node_id"
_POD = "pod_uid"
_CONTAINER = "container_id"  # with its scheme, as ContainerState.id
_APP = "host_app_name"
_GPU = ("gpu_minor", "gpu_device_uuid")
_PSI = ("psi_resource", "psi_precision", "psi_degree")
#: Precision of the time waited since the last round, beside the kernel's own averages.
PSI_RECENT = "interval"

NODE_CPU = _kind("node_cpu_usage")
NODE_MEMORY = _kind("node_memory_usage")
NODE_MEMORY_WITH_PAGE_CACHE = _kind("node_memory_usage_with_page_cache")
NODE_NUMA_CPU = _kind("node_numa_cpu_usage", _NUMA)
NODE_NUMA_MEMORY = _kind("node_numa_memory_usage", _NUMA)
SYS_CPU = _kind("sys_cpu_usage")
SYS_MEMORY = _kind("sys_memory_usage")
SYS_NUMA_CPU = _kind("sys_numa_cpu_usage", _NUMA)
SYS_NUMA_MEMORY = _kind("sys_numa_memory_usage", _NUMA)
NODE_BE = _kind("node_be", "be_resource", "be_allocation")  # ("cpu", "usage" / "real-limit" / "request"), milli-cores
POD_CPU = _kind("pod_cpu_usage", _POD)
POD_MEMORY = _kind("pod_memory_usage", _POD)
POD_MEMORY_WITH_PAGE_CACHE = _kind("pod_memory_usage_with_page_cache", _POD)
POD_CPU_THROTTLED = _kind("pod_cpu_throttled", _POD)  # share of the CFS periods since the last sample, 0 to 1
CONTAINER_CPU = _kind("container_cpu_usage", _CONTAINER)
CONTAINER_MEMORY = _kind("container_memory_usage", _CONTAINER)
CONTAINER_MEMORY_WITH_PAGE_CACHE = _kind("container_memory_usage_with_page_cache", _CONTAINER)
CONTAINER_CPU_THROTTLED = _kind("container_cpu_throttled", _CONTAINER)  # the same
HOST_APP_CPU = _kind("host_application_cpu_usage", _APP)
HOST_APP_MEMORY = _kind("host_application_memory_usage", _APP)
HOST_APP_MEMORY_WITH_PAGE_CACHE = _kind("host_application_memory_usage_with_page_cache", _APP)
NODE_GPU_CORE = _kind("node_gpu_core_usage", *_GPU)  # percent of a GPU (gate Accelerators)
NODE_GPU_MEMORY = _kind("node_gpu_memory_usage", *_GPU)
NODE_GPU_MEMORY_TOTAL = _kind("node_gpu_memory_total", *_GPU)
POD_GPU_CORE = _kind("pod_gpu_core_usage", _POD, *_GPU)  # percent of a GPU
POD_GPU_MEMORY = _kind("pod_gpu_memory_usage", _POD, *_GPU)
CONTAINER_GPU_CORE = _kind("container_gpu_core_usage", _CONTAINER, *_GPU)  # percent of a GPU
CONTAINER_GPU_MEMORY = _kind("container_gpu_memory_usage", _CONTAINER, *_GPU)
CONTAINER_CPI = _kind("container_cpi", _POD, _CONTAINER, "cpi_resource")  # "cycle" and "instruction", counts (gate CPICollector)
CONTAINER_PSI = _kind("container_psi", _POD, _CONTAINER, *_PSI)  # percent of the time (gate PSICollector)
POD_PSI = _kind("pod_psi", _POD, *_PSI)  # percent of the time
CONTAINER_PSI_CPU_FULL_SUPPORTED = _kind("container_psi_cpu_full_supported", _POD, _CONTAINER)  # 1 or 0
POD_PSI_CPU_FULL_SUPPORTED = _kind("pod_psi_cpu_full_supported", _POD)  # 1 or 0
POD_NETWORK = _kind("pod_network", _POD, "network_counter")  # "retransmits", "drops": percent; "bytes" a second (same gate as POD_DISK)
POD_DISK = _kind("pod_disk_bytes", _POD)  # bytes a second, of best-effort pods (gate InterferenceDetection)
RESCTRL_LLC = _kind("resctrl_resource_llc", "qos", "cache_id")  # bytes (--enable-resctrl-collector)
RESCTRL_MB = _kind("resctrl_resource_mb", "qos", "cache_id", "resctrl_mb_type")  # bytes so far
NODE_MEMORY_WITH_HOT_PAGE = _kind("node_memory_with_hot_page_usage")
NODE_MEMORY_COLD_PAGE = _kind("node_memory_cold_page_size")  # bytes (gate ColdPageCollector)
POD_MEMORY_WITH_HOT_PAGE = _kind("pod_memory_with_hot_page_usage", _POD)
POD_MEMORY_COLD_PAGE = _kind("pod_memory_cold_page_size", _POD)
CONTAINER_MEMORY_WITH_HOT_PAGE = _kind("container_memory_with_hot_page_usage", _CONTAINER)
CONTAINER_MEMORY_COLD_PAGE = _kind("container_memory_cold_page_size", _CONTAINER)
HOST_APP_MEMORY_WITH_HOT_PAGE = _kind("host_application_memory_with_hot_page_usage", _APP)
HOST_APP_MEMORY_COLD_PAGE = _kind("host_application_memory_cold_page_size", _APP)

#: Kinds kept as long as the longest node aggregation or eviction window; the others follow the aggregate duration of pods.
NODE_LEVEL = frozenset(
    {
        NODE_CPU,
        NODE_MEMORY,
        NODE_MEMORY_WITH_PAGE_CACHE,
        SYS_CPU,
        SYS_MEMORY,
        NODE_BE,
        NODE_MEMORY_WITH_HOT_PAGE,
        NODE_GPU_CORE,
        NODE_GPU_MEMORY,
        NODE_GPU_MEMORY_TOTAL,
    }
)
