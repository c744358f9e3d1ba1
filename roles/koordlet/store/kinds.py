"""Kinds of series and their properties (KLO-TSDB-01). A sample sets every property of its kind and no other."""

from __future__ import annotations

NODE_CPU = "node_cpu_usage"
NODE_MEMORY = "node_memory_usage"
NODE_MEMORY_WITH_PAGE_CACHE = "node_memory_usage_with_page_cache"
NODE_NUMA_CPU = "node_numa_cpu_usage"
NODE_NUMA_MEMORY = "node_numa_memory_usage"
SYS_CPU = "sys_cpu_usage"
SYS_MEMORY = "sys_memory_usage"
SYS_NUMA_CPU = "sys_numa_cpu_usage"
SYS_NUMA_MEMORY = "sys_numa_memory_usage"
NODE_BE = "node_be"
POD_CPU = "pod_cpu_usage"
POD_MEMORY = "pod_memory_usage"
POD_MEMORY_WITH_PAGE_CACHE = "pod_memory_usage_with_page_cache"
POD_CPU_THROTTLED = "pod_cpu_throttled"
CONTAINER_CPU = "container_cpu_usage"
CONTAINER_MEMORY = "container_memory_usage"
CONTAINER_MEMORY_WITH_PAGE_CACHE = "container_memory_usage_with_page_cache"
CONTAINER_CPU_THROTTLED = "container_cpu_throttled"
HOST_APP_CPU = "host_application_cpu_usage"
HOST_APP_MEMORY = "host_application_memory_usage"
HOST_APP_MEMORY_WITH_PAGE_CACHE = "host_application_memory_usage_with_page_cache"
NODE_GPU_CORE = "node_gpu_core_usage"
NODE_GPU_MEMORY = "node_gpu_memory_usage"
NODE_GPU_MEMORY_TOTAL = "node_gpu_memory_total"
POD_GPU_CORE = "pod_gpu_core_usage"
POD_GPU_MEMORY = "pod_gpu_memory_usage"
CONTAINER_GPU_CORE = "container_gpu_core_usage"
CONTAINER_GPU_MEMORY = "container_gpu_memory_usage"
CONTAINER_CPI = "container_cpi"
CONTAINER_PSI = "container_psi"
POD_PSI = "pod_psi"
CONTAINER_PSI_CPU_FULL_SUPPORTED = "container_psi_cpu_full_supported"
POD_PSI_CPU_FULL_SUPPORTED = "pod_psi_cpu_full_supported"
POD_NETWORK = "pod_network"
POD_DISK = "pod_disk_bytes"
RESCTRL_LLC = "resctrl_resource_llc"
RESCTRL_MB = "resctrl_resource_mb"
NODE_MEMORY_WITH_HOT_PAGE = "node_memory_with_hot_page_usage"
NODE_MEMORY_COLD_PAGE = "node_memory_cold_page_size"
POD_MEMORY_WITH_HOT_PAGE = "pod_memory_with_hot_page_usage"
POD_MEMORY_COLD_PAGE = "pod_memory_cold_page_size"
CONTAINER_MEMORY_WITH_HOT_PAGE = "container_memory_with_hot_page_usage"
CONTAINER_MEMORY_COLD_PAGE = "container_memory_cold_page_size"
HOST_APP_MEMORY_WITH_HOT_PAGE = "host_application_memory_with_hot_page_usage"
HOST_APP_MEMORY_COLD_PAGE = "host_application_memory_cold_page_size"

_NONE: tuple[str, ...] = ()
_NUMA = ("numa_node_id",)
_POD = ("pod_uid",)
_CONTAINER = ("container_id",)
_APP = ("host_app_name",)
_GPU = ("gpu_minor", "gpu_device_uuid")
_PSI = ("psi_resource", "psi_precision", "psi_degree")
#: Precision of the time waited since the last round, beside the kernel's own averages.
PSI_RECENT = "interval"

SCHEMAS: dict[str, tuple[str, ...]] = {
    NODE_CPU: _NONE,
    NODE_MEMORY: _NONE,
    NODE_MEMORY_WITH_PAGE_CACHE: _NONE,
    NODE_NUMA_CPU: _NUMA,
    NODE_NUMA_MEMORY: _NUMA,
    SYS_CPU: _NONE,
    SYS_MEMORY: _NONE,
    SYS_NUMA_CPU: _NUMA,
    SYS_NUMA_MEMORY: _NUMA,
    NODE_BE: ("be_resource", "be_allocation"),
    POD_CPU: _POD,
    POD_MEMORY: _POD,
    POD_MEMORY_WITH_PAGE_CACHE: _POD,
    POD_CPU_THROTTLED: _POD,
    CONTAINER_CPU: _CONTAINER,
    CONTAINER_MEMORY: _CONTAINER,
    CONTAINER_MEMORY_WITH_PAGE_CACHE: _CONTAINER,
    CONTAINER_CPU_THROTTLED: _CONTAINER,
    HOST_APP_CPU: _APP,
    HOST_APP_MEMORY: _APP,
    HOST_APP_MEMORY_WITH_PAGE_CACHE: _APP,
    NODE_GPU_CORE: _GPU,
    NODE_GPU_MEMORY: _GPU,
    NODE_GPU_MEMORY_TOTAL: _GPU,
    POD_GPU_CORE: (*_POD, *_GPU),
    POD_GPU_MEMORY: (*_POD, *_GPU),
    CONTAINER_GPU_CORE: (*_CONTAINER, *_GPU),
    CONTAINER_GPU_MEMORY: (*_CONTAINER, *_GPU),
    CONTAINER_CPI: ("pod_uid", "container_id", "cpi_resource"),
    CONTAINER_PSI: ("pod_uid", "container_id", *_PSI),
    POD_PSI: ("pod_uid", *_PSI),
    CONTAINER_PSI_CPU_FULL_SUPPORTED: ("pod_uid", "container_id"),
    POD_PSI_CPU_FULL_SUPPORTED: _POD,
    POD_NETWORK: (*_POD, "network_counter"),
    POD_DISK: _POD,
    RESCTRL_LLC: ("qos", "cache_id"),
    RESCTRL_MB: ("qos", "cache_id", "resctrl_mb_type"),
    NODE_MEMORY_WITH_HOT_PAGE: _NONE,
    NODE_MEMORY_COLD_PAGE: _NONE,
    POD_MEMORY_WITH_HOT_PAGE: _POD,
    POD_MEMORY_COLD_PAGE: _POD,
    CONTAINER_MEMORY_WITH_HOT_PAGE: _CONTAINER,
    CONTAINER_MEMORY_COLD_PAGE: _CONTAINER,
    HOST_APP_MEMORY_WITH_HOT_PAGE: _APP,
    HOST_APP_MEMORY_COLD_PAGE: _APP,
}

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
