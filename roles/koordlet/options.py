"""Every option of koordlet with its default and meaning: the one source of the command line (KLO-CFG-01).

A field's name is the flag's in snake case; durations are seconds. ``NOTED`` options are accepted because manifests carry them
and have nothing to act on here; each says why.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from koord.process.flags import Duration, flag, gates_option, parse_host_port
from roles.koordlet.host.root import PATH_FLAGS, HostRoot, rooted

SECTIONS = {
    "host-root": "This machine",
    "addr": "Ports",
    "lock-file": "This machine",
    "kube-api-qps": "API server",
    "feature-gates": "Features",
    "containerd-endpoint": "Container runtimes",
    "hami-core-library-directory-path": "Devices",
    "kubelet-preferred-address-type": "Kubelet and reports",
    "collect-res-used-interval": "Collecting",
    "tsdb-path": "Store of series",
    "prediction-checkpoint-filepath": "Prediction",
    "audit-log-dir": "Audit",
    "mode": "What may be done, and putting it back",
    "reconcile-interval-seconds": "Quality of service",
    "runtime-hooks-network": "Runtime hooks",
    "enable-pod-taskids": "Accepted for old manifests",
    "validate-config": "Other",
}
"""Sections of the help, by the first flag of each."""


@dataclass(slots=True)
class Options:
    # -- this machine ------------------------------------------------------------------------------------------------------
    host_root: str = flag("", "Directory under which the machine's /proc, /sys and so on are found; / or empty: the machine itself.")
    node_name: str = flag("", "Name of this node; default: environment variable NODE_NAME.")
    cgroup_root_dir: str = flag("", "Root of the cgroup file systems.")
    sys_root_dir: str = flag("", "The machine's /sys.")
    sys_fs_root_dir: str = flag("", "The machine's /sys/fs (resctrl lives below it).")
    proc_root_dir: str = flag("", "The machine's /proc.")
    var_run_root_dir: str = flag("", "The machine's /var/run.")
    run_root_dir: str = flag("", "The machine's /run.")
    var_lib_kubelet_dir: str = flag("", "The machine's /var/lib/kubelet.")
    addr: str = flag(":9316", "Address of the HTTP server (health, metrics, audit, decisions).")
    enable_pprof: bool = flag(False, "Serve the profiling endpoints at --pprof-addr.")
    tls_cert_file: str = flag("", "Certificate of these ports; without it one is made.")
    tls_private_key_file: str = flag("", "Its key.")
    authorization_always_allow_paths: str = flag(
        "/healthz,/readyz,/livez", "Paths open to everybody, by plain HTTP too; /x/* stands for all below /x, /* for everything."
    )
    pprof_addr: str = flag(":9317", "Address of the profiling endpoints.")
    lock_file: str = flag("", "Lock that keeps a second koordlet off this node; default: koordlet.lock below --var-run-root-dir/koordlet.")
    # -- Kubernetes --------------------------------------------------------------------------------------------------------
    kube_api_qps: float = flag(20.0, "Requests a second to the API server.")
    kube_api_burst: int = flag(30, "Requests at once to the API server.")
    feature_gates: str = flag("", "Feature gates, Name=true|false separated by commas.", option=gates_option)
    # -- container runtimes ------------------------------------------------------------------------------------------------
    containerd_endpoint: str = flag("", "Socket of containerd; empty: the well-known places.")
    docker_endpoint: str = flag("", "Socket of docker; empty: the well-known places.")
    pouch_endpoint: str = flag("", "Socket of pouch; empty: the well-known places.")
    default_runtime_type: str = flag("containerd", "Runtime of a container id without a scheme.")
    hami_core_library_directory_path: str = flag("/usr/local/vgpu/libvgpu.so", "HAMi core library on the host.")
    pod_resources_proxy_path: str = flag("/var/run/koordlet/pod-resources", "Directory of the PodResources proxy's kubelet.sock.")
    xpu_device_infos_dir: str = flag("/var/run/koordlet/xpu-device-infos/", "Directory of accelerator inventory files.")
    xpu_enforce_collect_from_device_infos: bool = flag(False, "Take accelerators from the files only, never from NVML.")
    # -- kubelet -----------------------------------------------------------------------------------------------------------
    kubelet_preferred_address_type: str = flag("InternalIP", "Address type of the Node under which its kubelet is reached.")
    kubelet_sync_interval: float = flag(10.0, "Period of listing pods from the kubelet; 0 turns it off.", type=Duration)
    kubelet_sync_timeout: float = flag(3.0, "Time limit of a request to the kubelet.", type=Duration)
    kubelet_ca_file: str = flag(
        "",
        "Authorities that sign the kubelet's serving certificate (PEM); default: the certificate in the kubelet's own directory, "
        "and the cluster's authority.",
    )
    kubelet_insecure_tls: bool = flag(False, "Ask the kubelet's read-only port by plain HTTP.")
    kubelet_read_only_port: int = flag(10255, "The kubelet's read-only port.")
    node_topology_sync_interval: float = flag(3.0, "Period of reporting topology and devices; 0 turns topology off.", type=Duration)
    disable_query_kubelet_config: bool = flag(False, "Do not ask the kubelet for its configuration (/configz).")
    enable_node_metric_report: bool = flag(True, "Report NodeMetric.")
    # -- collecting --------------------------------------------------------------------------------------------------------
    collect_res_used_interval: float = flag(1.0, "Period of the node, pod, BE, host application and system collectors.", type=Duration)
    collect_sys_metric_outdated_interval: float = flag(10.0, "Age beyond which an input of system usage is stale.", type=Duration)
    collect_node_cpu_info_interval: float = flag(60.0, "Period of reading CPU topology and NUMA nodes.", type=Duration)
    collect_node_storage_info_interval: float = flag(1.0, "Period of reading local storage.", type=Duration)
    cpi_collector_interval: float = flag(60.0, "Period of the CPI collector.", type=Duration)
    collect_cpi_timewindow: float = flag(10.0, "Window of a CPI reading.", type=Duration)
    psi_collector_interval: float = flag(10.0, "Period of the PSI collector.", type=Duration)
    coldpage_collector_interval: float = flag(5.0, "Period of the cold memory collector.", type=Duration)
    resctrl_collector_interval: float = flag(10.0, "Period of the resctrl collector.", type=Duration)
    enable_pagecache_collector: bool = flag(False, "Collect memory with page cache even if no NodeMetric policy asks for it.")
    enable_resctrl_collector: bool = flag(False, "Collect cache and bandwidth use by resctrl.")
    collect_terminated_pods: bool = flag(False, "Also read the cgroups of Succeeded and Failed pods.")
    # -- store -------------------------------------------------------------------------------------------------------------
    tsdb_path: str = flag("/metric-data/", "Directory in which series survive a restart.")
    tsdb_retention_duration: float = flag(12 * 3600.0, "Longest time that a series is kept; 0: as long as it is used.", type=Duration)
    tsdb_max_bytes: int = flag(100 << 20, "Most memory for series, bytes; 0: no limit.")
    tsdb_enable_prometheus_metric: bool = flag(True, "Export the store's own metrics.")
    # -- prediction --------------------------------------------------------------------------------------------------------
    prediction_checkpoint_filepath: str = flag("/prediction-checkpoints", "Directory of prediction checkpoints.")
    prediction_cold_start_duration: float = flag(24 * 3600.0, "Age until which a pod counts with its request.", type=Duration)
    prediction_safety_margin_percent: int = flag(10, "Percent on top of a predicted peak.")
    prediction_memory_histogram_decay_halflife: float = flag(24 * 3600.0, "Half-life of memory samples.", type=Duration)
    prediction_cpu_histogram_decay_halflife: float = flag(12 * 3600.0, "Half-life of CPU samples.", type=Duration)
    prediction_training_interval: float = flag(60.0, "Period of training, and its look-back.", type=Duration)
    prediction_model_expiration_duration: float = flag(1800.0, "Time after which an unused model is dropped.", type=Duration)
    prediction_model_checkpoint_interval: float = flag(600.0, "Period of a model's checkpoints.", type=Duration)
    prediction_model_checkpoint_max_per_step: int = flag(12, "Most checkpoints a minute.")
    # -- audit -------------------------------------------------------------------------------------------------------------
    audit_log_dir: str = flag("/var/log/koordlet", "Directory of the audit log.")
    audit_verbose: int = flag(3, "Events of a higher verbosity are dropped; 0 keeps all.")
    audit_max_disk_space_mb: int = flag(16, "Most disk space of the audit log, MiB.")
    audit_max_concurrent_readers: int = flag(4, "Most readers of the audit API at a time.")
    audit_max_events_limit: int = flag(2048, "Most events in one answer of the audit API.")
    # -- QoS ---------------------------------------------------------------------------------------------------------------
    mode: str = flag("enforce", "What strategies may do: enforce, or observe (decide and explain, write nothing).")
    strategy_modes: str = flag("", "Mode of single strategies, Name=observe|enforce separated by commas.")
    observe_only: bool = flag(
        False, "Only look and report: everything observes, and nothing of the machine is written, mounted or listened on. Needs no root."
    )
    restore: bool = flag(False, "Put back every value that koordlet changed on this node, from its journal, and exit.")
    clean: bool = flag(
        False, "With --restore: remove koordlet's own files too, once everything is put back (journal, lock, series, checkpoints)."
    )
    guard: bool = flag(
        False,
        "Run as the guard of this node's koordlet instead: --guard-action for best-effort pods when it is gone for --guard-timeout.",
    )
    guard_timeout: float = flag(120.0, "How long koordlet may be gone before its guard acts.", type=Duration)
    guard_action: str = flag(
        "release", "What the guard does: release (give best-effort pods back what suppression took) or hold (at --guard-cpu-percent)."
    )
    guard_cpu_percent: int = flag(10, "Share of the node's CPU at which the guard holds best-effort pods, percent.")
    reconcile_interval_seconds: int = flag(1, "Period of the reconciling strategies; 0 turns them off.")
    cpu_suppress_interval_seconds: int = flag(1, "Period of CPU suppress; 0 turns it off.")
    cpu_evict_interval_seconds: int = flag(1, "Period of CPU eviction; 0 turns it off.")
    memory_evict_interval_seconds: int = flag(1, "Period of memory eviction; 0 turns it off.")
    resource_tuning_interval_seconds: int = flag(5, "Period of resource tuning; 0 turns it off.")
    memory_offload_interval_seconds: int = flag(5, "Period of memory offloading; 0 turns it off.")
    memory_evict_cool_time_seconds: int = flag(4, "Pause after a memory eviction.")
    cpu_evict_cool_time_seconds: int = flag(20, "Pause after a CPU eviction.")
    only_evict_by_api: bool = flag(False, "Evict through the Eviction API only.")
    pressure_triggers: bool = flag(True, "Let kernel pressure (PSI) start suppress and eviction between ticks.")
    pressure_tick_distance: float = flag(0.25, "Least time between two ticks, however much pressure there is.", type=Duration)
    qos_extension_plugins: str = flag("", "Gates of QoS extension plugins, Name=true|false separated by commas.")
    plugin_path: str = flag("", "Python files with extensions of your own, separated by commas.")
    allow_pod_quota_burst: bool = flag(False, "Let pods switch on quota burst by annotation where the NodeSLO does not.")
    resource_force_update_seconds: int = flag(60, "Age after which an unchanged value is written again.")
    # -- runtime hooks -----------------------------------------------------------------------------------------------------
    runtime_hooks_network: str = flag("unix", "Network of the hook server.")
    runtime_hooks_addr: str = flag("/host-var-run-koordlet/koordlet.sock", "Address of the hook server.")
    runtime_hooks_host_endpoint: str = flag("/var/run/koordlet/koordlet.sock", "The hook server's address as the runtime proxy sees it.")
    runtime_hooks_failure_policy: str = flag("Ignore", "What the runtime proxy does when the hook server fails: Ignore or Fail.")
    runtime_hooks_plugin_failure_policy: str = flag("Ignore", "What a failing hook does to the request: Ignore or Fail.")
    runtime_hooks_config_path: str = flag("", "Directory in which the hook server is registered.")
    runtime_hooks_disable_stages: str = flag("", "Stages that run no hooks, separated by commas.")
    runtime_hooks_reconcile_interval: float = flag(10.0, "Period of the hook reconciler.", type=Duration)
    enable_nri_runtime_hook: bool = flag(True, "Run hooks as an NRI plugin where the socket exists.")
    runtime_hooks_nri_connect_timeout: float = flag(6.0, "Time for NRI to become connected.", type=Duration)
    runtime_hooks_nri_backoff_duration: float = flag(1.0, "First pause before NRI is connected again.", type=Duration)
    runtime_hooks_nri_backoff_cap: float = flag((1 << 62) / 1e9, "Longest pause before NRI is connected again.", type=Duration)
    runtime_hooks_nri_backoff_steps: int = flag((1 << 31) - 1, "Most attempts to connect NRI again.")
    runtime_hooks_nri_backoff_factor: float = flag(2.0, "Growth of the pause.")
    runtime_hooks_nri_socket_path: str = flag("nri/nri.sock", "NRI socket below --var-run-root-dir.")
    runtime_hooks_nri_plugin_name: str = flag("koordlet_nri", "Name of the NRI plugin.")
    runtime_hooks_nri_plugin_index: str = flag("00", "Index of the NRI plugin.")
    disable_unset_cpu_quota: bool = flag(False, "Do not change the CPU quota of pods with a cpuset.")
    # -- accepted, nothing to act on ---------------------------------------------------------------------------------------
    enable_pod_taskids: bool = flag(False, "Accepted for old manifests: task ids are read when something needs them.")
    report_interval: float = flag(0.0, "Accepted for old manifests: NodeMetric itself says how often to report.", type=Duration)
    configmap_name: str = flag("koordlet-config", "Accepted for old manifests: koordlet has no ConfigMap of its own.")
    configmap_namespace: str = flag("koordinator-system", "Accepted for old manifests: koordlet has no ConfigMap of its own.")
    metric_gc_interval_seconds: int = flag(300, "Accepted for old manifests: series expire by themselves.")
    metric_expire_seconds: int = flag(1800, "Accepted for old manifests: series are kept as long as they are used.")
    tsdb_stripe_size: int = flag(16384, "Accepted for old manifests: the store has no stripes.")
    tsdb_wal_segment_size: int = flag(1 << 20, "Accepted for old manifests: the store has no write-ahead log.")
    tsdb_max_block_chunk_segment_size: int = flag(5 << 20, "Accepted for old manifests: the store has no blocks.")
    tsdb_min_block_duration: float = flag(600.0, "Accepted for old manifests: the store has no blocks.", type=Duration)
    tsdb_max_block_duration: float = flag(600.0, "Accepted for old manifests: the store has no blocks.", type=Duration)
    tsdb_head_chunks_write_buffer_size: int = flag(1 << 20, "Accepted for old manifests: the store has no chunk files.")


def host_root(options: Options, environ: dict[str, str] | None = None) -> HostRoot:
    """The machine's directories by ``--host-root``, the path flags, and ``agent_mode``."""
    environ = dict(os.environ) if environ is None else environ
    overrides = {flag: str(getattr(options, flag.replace("-", "_"))) for flag, *_ in PATH_FLAGS}
    daemonset = not options.host_root and environ.get("agent_mode") != "hostMode"
    return HostRoot.at(options.host_root or "/", {k: v for k, v in overrides.items() if v}, daemonset=daemonset)


def on_host(options: Options, attribute: str, root: HostRoot) -> str:
    """A directory that others on the machine use too: where the flag says, its default below the machine's root."""
    value: str = getattr(options, attribute)
    return rooted(root.root, value) if value == getattr(Options(), attribute) and root.root != "/" else value


MODES = ("enforce", "observe")
FAILURE_POLICIES = ("Ignore", "Fail")
_MAX_PORT = 65_535
_WHOLE = 100


class OptionError(ValueError):
    """A value on the command line or in the environment cannot be used."""

    def __init__(self, flag: str, detail: str) -> None:
        super().__init__(f"--{flag}: {detail}")


def parse_modes(text: str) -> dict[str, str]:
    """``Name=observe,Other=enforce`` as a dictionary. Raises :class:`OptionError`."""
    out: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, mode = part.partition("=")
        if mode not in MODES:
            raise OptionError("strategy-modes", f"{part!r} is not Name={'|'.join(MODES)}")
        out[name.strip()] = mode
    return out


#: What flags accept whose type does not say it.
_CHOICES = {
    "mode": MODES,
    "guard-action": ("release", "hold"),
    "runtime-hooks-failure-policy": FAILURE_POLICIES,
    "runtime-hooks-plugin-failure-policy": FAILURE_POLICIES,
    "runtime-hooks-network": ("unix", "tcp"),
}
_POSITIVE = (
    "guard-timeout",
    "collect-sys-metric-outdated-interval",
    "collect-node-cpu-info-interval",
    "kubelet-sync-timeout",
    "prediction-training-interval",
    "pressure-tick-distance",
    "runtime-hooks-reconcile-interval",
    "runtime-hooks-nri-backoff-duration",
    "prediction-cpu-histogram-decay-halflife",
    "prediction-memory-histogram-decay-halflife",
)


def check(options: Options) -> None:
    """What a single flag's type cannot say. Raises :class:`OptionError`."""

    def value(name: str) -> Any:
        return getattr(options, name.replace("-", "_"))

    if not options.node_name and not (options.restore or options.guard):  # the journal is the machine's, whatever its Node is called
        raise OptionError("node-name", "the name of this node is needed: set the environment variable NODE_NAME or this flag")
    for name, accepted in _CHOICES.items():
        if value(name) not in accepted:
            raise OptionError(name, f"{value(name)!r} is not one of {', '.join(accepted)}")
    modes = parse_modes(options.strategy_modes)
    if options.guard and (options.restore or options.observe_only):
        raise OptionError("guard", "cannot be had with --restore or --observe-only")
    if not 1 <= options.guard_cpu_percent <= _WHOLE:
        raise OptionError("guard-cpu-percent", f"{options.guard_cpu_percent} is no share: 1 to {_WHOLE}")
    if options.clean and not options.restore:
        raise OptionError("clean", "requires --restore: it removes only files that restoring no longer needs")
    if options.observe_only and options.restore:
        raise OptionError("observe-only", "cannot be had with --restore, which writes")
    if options.observe_only and (enforced := [name for name, mode in modes.items() if mode == "enforce"]):
        raise OptionError("observe-only", f"cannot be had with --strategy-modes that enforce: {', '.join(enforced)}")
    if not 0 <= options.kubelet_read_only_port <= _MAX_PORT:
        raise OptionError("kubelet-read-only-port", f"{options.kubelet_read_only_port} is no port: 0 to {_MAX_PORT}")
    for name in ("addr", "pprof-addr"):
        try:
            parse_host_port(value(name))
        except ValueError as error:
            raise OptionError(name, str(error)) from None
    for name in _POSITIVE:
        if value(name) <= 0:
            raise OptionError(name, "must be positive")


def settled(options: Options) -> Options:
    """What ``--observe-only`` means for the other options (BEY-MODE-01).

    Directories of the agent's own are used only where they were named; the defaults are there for a DaemonSet that may write.
    """
    if not options.observe_only:
        return options
    default = Options()
    series, checkpoints = options.tsdb_path, options.prediction_checkpoint_filepath
    return replace(
        options,
        mode="observe",
        strategy_modes="",
        only_evict_by_api=True,
        enable_nri_runtime_hook=False,
        pressure_triggers=False,  # a trigger is written into the pressure file
        tsdb_path="" if series == default.tsdb_path else series,
        prediction_checkpoint_filepath="" if checkpoints == default.prediction_checkpoint_filepath else checkpoints,
    )
