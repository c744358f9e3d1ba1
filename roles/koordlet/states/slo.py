"""The effective NodeSLO: received spec over built-in defaults, disabled classes made neutral (KLO-SI-03, KA-SLO-01).

Pure. :func:`effective_slo` takes the wire form and gives a :class:`SLO`, which is what strategies read: every field that has
a default is set, a feature that a class disables carries its neutral values, so actors may always apply the body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from koord.api import nodeslo_defaults
from koord.api.objects import convert

T = TypeVar("T")

# wire names that camel-casing cannot give are spelled with field(name=…)


class ThresholdStrategy(Struct, rename="camel", frozen=True, gc=False):
    """``resourceUsedThresholdWithBE``; percentages of the node, None where a field has no default."""

    enable: bool = False
    cpu_suppress_threshold_percent: int = 65
    cpu_suppress_min_percent: int | None = None
    cpu_suppress_policy: str = "cpuset"
    memory_evict_threshold_percent: int = 70
    memory_evict_lower_percent: int | None = None
    memory_allocatable_evict_threshold_percent: int | None = None
    memory_allocatable_evict_lower_percent: int | None = None
    cpu_evict_be_satisfaction_upper_percent: int | None = field(name="cpuEvictBESatisfactionUpperPercent", default=None)
    cpu_evict_be_satisfaction_lower_percent: int | None = field(name="cpuEvictBESatisfactionLowerPercent", default=None)
    cpu_evict_be_usage_threshold_percent: int | None = field(name="cpuEvictBEUsageThresholdPercent", default=None)
    cpu_evict_time_window_seconds: int | None = None
    cpu_evict_threshold_percent: int | None = None
    cpu_evict_lower_percent: int | None = None
    cpu_allocatable_evict_threshold_percent: int | None = None
    cpu_allocatable_evict_lower_percent: int | None = None
    cpu_evict_policy: str = "evictByRealLimit"
    evict_enabled_priority_threshold: int | None = None
    allocatable_evict_priority_threshold: int | None = None


class CPUBurstStrategy(Struct, rename="camel", frozen=True, gc=False):
    policy: str = "none"
    cpu_burst_percent: int = 1000
    cfs_quota_burst_percent: int = 300
    cfs_quota_burst_period_seconds: int = -1
    share_pool_threshold_percent: int = 50


class SystemStrategy(Struct, rename="camel", frozen=True, gc=False):
    min_free_kbytes_factor: int | None = None
    watermark_scale_factor: int | None = None
    memcg_reap_back_ground: int | None = None
    sched_group_identity_enabled: int | None = None
    sched_idle_saver_wmark: int | None = None
    sched_features: dict[str, bool] | None = None
    page_cache_limit_enabled: int | None = None
    total_network_bandwidth: str | int = "0"


class CPUQOS(Struct, rename="camel", frozen=True, gc=False):
    enable: bool = False
    group_identity: int = 0
    sched_idle: int = 0
    core_expeller: bool = False


class MemoryQOS(Struct, rename="camel", frozen=True, gc=False):
    enable: bool = False
    min_limit_percent: int | None = 0
    low_limit_percent: int | None = 0
    throttling_percent: int | None = 0
    wmark_ratio: int | None = 0
    wmark_scale_permill: int | None = 50
    wmark_min_adj: int | None = 0
    priority_enable: int | None = 0
    priority: int | None = 0
    oom_kill_group: int | None = 0
    page_cache_enable: bool | None = None
    page_cache_limit_percent: int | None = None
    page_cache_limit_size: int | None = None
    page_cache_reclaim_sync: bool | None = None


class ResctrlQOS(Struct, rename="camel", frozen=True, gc=False):
    enable: bool = False
    cat_range_start_percent: int = 0
    cat_range_end_percent: int = 100
    mba_percent: int = 100


class NetworkQOS(Struct, rename="camel", frozen=True, gc=False):
    """An int is a percentage of the total bandwidth, a string a quantity in bits per second."""

    enable: bool = False
    ingress_request: int | str = 0
    ingress_limit: int | str = 0
    egress_request: int | str = 0
    egress_limit: int | str = 0


class IOCfg(Struct, rename="camel", frozen=True, gc=False):
    read_iops: int | None = field(name="readIOPS", default=None)
    write_iops: int | None = field(name="writeIOPS", default=None)
    read_bps: int | None = field(name="readBPS", default=None)
    write_bps: int | None = field(name="writeBPS", default=None)
    io_weight_percent: int | None = None
    read_latency: int | None = None
    write_latency: int | None = None
    read_latency_percent: int | None = None
    write_latency_percent: int | None = None
    enable_user_model: bool | None = None
    model_read_bps: int | None = field(name="modelReadBPS", default=None)
    model_write_bps: int | None = field(name="modelWriteBPS", default=None)
    model_read_seq_iops: int | None = field(name="modelReadSeqIOPS", default=None)
    model_write_seq_iops: int | None = field(name="modelWriteSeqIOPS", default=None)
    model_read_rand_iops: int | None = field(name="modelReadRandIOPS", default=None)
    model_write_rand_iops: int | None = field(name="modelWriteRandIOPS", default=None)


class BlockCfg(Struct, rename="camel", frozen=True):
    name: str = ""
    type: str = ""
    io_cfg: IOCfg = IOCfg()


class BlkIOQOS(Struct, rename="camel", frozen=True):
    enable: bool = False
    blocks: tuple[BlockCfg, ...] = ()


class ResourceQOS(Struct, frozen=True):
    """One class; bodies of disabled features already hold the neutral values."""

    cpu: CPUQOS = field(name="cpuQOS", default=CPUQOS())
    memory: MemoryQOS = field(name="memoryQOS", default=MemoryQOS())
    blkio: BlkIOQOS = field(name="blkioQOS", default=BlkIOQOS())
    resctrl: ResctrlQOS = field(name="resctrlQOS", default=ResctrlQOS())
    network: NetworkQOS = field(name="networkQOS", default=NetworkQOS())


class QOSPolicies(Struct, frozen=True, gc=False):
    cpu_policy: str = field(name="cpuPolicy", default="groupIdentity")
    net_qos_policy: str = field(name="netQOSPolicy", default="tc")


class ResourceQOSStrategy(Struct, frozen=True):
    policies: QOSPolicies = QOSPolicies()
    lsr: ResourceQOS = field(name="lsrClass", default=ResourceQOS())
    ls: ResourceQOS = field(name="lsClass", default=ResourceQOS())
    be: ResourceQOS = field(name="beClass", default=ResourceQOS())
    system: ResourceQOS = field(name="systemClass", default=ResourceQOS())
    cgroup_root: ResourceQOS = field(name="cgroupRoot", default=ResourceQOS())


Percent = Annotated[int, Meta(ge=1, le=100)]
Seconds = Annotated[int, Meta(ge=1, le=86_400)]


class CPUTuning(Struct, rename="camel", frozen=True, gc=False, forbid_unknown_fields=True):
    """``extensions.resourceTuning.cpu``: percentages of CFS periods, of the container's own quota, and of the share pool."""

    enable: bool = True
    throttled_percent: Percent = 5
    max_burst_percent: Annotated[int, Meta(ge=0, le=100)] = 100
    max_quota_percent: Annotated[int, Meta(ge=100, le=1000)] = 200
    step_percent: Percent = 20
    share_pool_threshold_percent: Percent = 50
    calm_seconds: Seconds = 60


class MemoryTuning(Struct, rename="camel", frozen=True, gc=False, forbid_unknown_fields=True):
    """``extensions.resourceTuning.memory``: percentages of the container's limit and of waiting time."""

    enable: bool = True
    near_limit_percent: Percent = 90
    stall_percent: Percent = 5
    refaults_per_second: Annotated[int, Meta(ge=1)] = 100
    oom_score_step: Annotated[int, Meta(ge=0, le=1000)] = 200
    calm_seconds: Seconds = 60


class TuningStrategy(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """``extensions.resourceTuning`` (BEY-TUNE-01)."""

    cpu: CPUTuning = CPUTuning()
    memory: MemoryTuning = MemoryTuning()


class InterferenceStrategy(Struct, rename="camel", frozen=True, gc=False, forbid_unknown_fields=True):
    """``extensions.interference`` (BEY-INT-01): what is done to a pod that slows others down, and how soon (seconds)."""

    actions: tuple[Literal["squeeze", "throttle", "migrate", "evict"], ...] = ("squeeze", "throttle", "migrate", "evict")
    squeeze_percent: Percent = 50
    throttle_percent: Percent = 50
    migrate_after_seconds: Seconds = 60
    evict_after_seconds: Seconds = 180


class OffloadStrategy(Struct, rename="camel", frozen=True, gc=False, forbid_unknown_fields=True):
    """``extensions.memoryOffloading`` (BEY-OFF-01). A step is ``step_percent`` of a pod's memory, at most ``step_bytes``; at most
    ``most_percent`` of the most that it had is asked back in all."""

    enable: bool = False
    latency_sensitive: bool = False
    stall_per_mille: Annotated[int, Meta(ge=1, le=1000)] = 1
    refaults_per_second: Annotated[int, Meta(ge=1)] = 100
    step_percent: Annotated[int, Meta(ge=1, le=10)] = 2
    step_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 25)] = 16 << 20
    most_percent: Percent = 50


class HostAppCgroupPath(Struct, rename="camel", frozen=True, gc=False):
    base: str = ""
    parent_dir: str = ""
    relative_path: str = ""


class HostApp(Struct, rename="camel", frozen=True):
    name: str = ""
    priority: str = ""
    qos: str = ""
    cgroup_path: HostAppCgroupPath | None = None


class SLO(Struct, frozen=True):
    """The effective spec of this node's NodeSLO.

    ``received_sections`` are the sections that the object itself has: a strategy that must stay off without its section
    (``resourceUsedThresholdWithBE``) looks there. ``extensions`` has the keys that extensions registered.
    """

    threshold: ThresholdStrategy = ThresholdStrategy()
    qos: ResourceQOSStrategy = ResourceQOSStrategy()
    cpu_burst: CPUBurstStrategy = CPUBurstStrategy()
    system: SystemStrategy = SystemStrategy()
    host_applications: tuple[HostApp, ...] = ()
    tuning: TuningStrategy = TuningStrategy()
    interference: InterferenceStrategy = InterferenceStrategy()
    offload: OffloadStrategy = OffloadStrategy()
    extensions: dict[str, Any] = {}
    received_sections: frozenset[str] = frozenset()


class SLOError(ValueError):
    """A section of a NodeSLO cannot be read; ``section`` is its wire name, ``outcome`` what is done instead."""

    def __init__(self, section: str, detail: str, outcome: str = "the last good value stays") -> None:
        super().__init__(f"NodeSLO spec.{section}: {detail}")
        self.section = section
        self.outcome = outcome


_OFF = nodeslo_defaults.resource_qos("NONE")
#: What replaces the body of a feature that a class disables. Disks and network keep what is set.
_NEUTRAL = {feature: _OFF[feature] for feature in ("cpuQOS", "memoryQOS", "resctrlQOS")}


def merge(default: Any, given: Any) -> Any:
    """Fields present in ``given`` win; maps merge, lists and scalars replace; null counts as absent."""
    if given is None:
        return default
    if not isinstance(given, dict):
        return given
    out = dict(default) if isinstance(default, dict) else {}
    for key, value in given.items():
        if value is not None:
            out[key] = merge(out.get(key), value)
    return out


def _laid_over(section: str, default: Any, given: Any) -> Any:
    try:
        return merge(default, given)
    except RecursionError:
        raise SLOError(section, "is nested too deeply") from None


def _section(spec: dict[str, Any], name: str) -> dict[str, Any]:
    value = spec.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SLOError(name, f"is a {type(value).__name__}, wanted an object")
    return value


def _convert(name: str, value: Any, kind: type[T]) -> T:
    try:
        return convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise SLOError(name, str(error)) from None


def default_class_body(class_name: str) -> ResourceQOS:
    """Built-in body of ``lsrClass``, ``lsClass``, ``beClass`` or ``systemClass`` when it is enabled without values."""
    return msgspec.convert(nodeslo_defaults.recommended_resource_qos_strategy()[class_name], ResourceQOS)


def _qos_strategy(spec: dict[str, Any]) -> ResourceQOSStrategy:
    section = _section(spec, "resourceQOSStrategy")
    merged: dict[str, Any] = dict(_laid_over("resourceQOSStrategy", nodeslo_defaults.recommended_resource_qos_strategy(), section))
    for name in ("lsrClass", "lsClass", "beClass"):
        body = merged[name]
        if not isinstance(body, dict):
            raise SLOError(f"resourceQOSStrategy.{name}", "is not an object")
        merged[name] = {
            feature: _NEUTRAL[feature] if feature in _NEUTRAL and isinstance(value, dict) and value.get("enable") is False else value
            for feature, value in body.items()
        }
    return _convert("resourceQOSStrategy", merged, ResourceQOSStrategy)


def _extensions(spec: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Registered keys only: what nobody asked for goes nowhere."""
    given = _section(spec, "extensions")
    return {key: _laid_over(f"extensions.{key}", default, given.get(key)) for key, default in defaults.items()}


def _named_once(apps: tuple[HostApp, ...], errors: list[SLOError]) -> tuple[HostApp, ...]:
    """The first application of each name: usage is kept and reported by it."""
    by_name: dict[str, HostApp] = {}
    for at, app in enumerate(apps):
        if by_name.setdefault(app.name, app) is not app:
            errors.append(SLOError(f"hostApplications[{at}]", f"another application is named {app.name!r}, too", "it is left out"))
    return tuple(by_name.values())


def effective_slo(
    spec: dict[str, Any] | None, previous: SLO | None = None, extensions: Mapping[str, Any] | None = None
) -> tuple[SLO, list[SLOError]]:
    """Lay a received ``spec`` over the defaults; ``extensions`` are those of keys that somebody here asked for.

    A section that cannot be read keeps its value from ``previous`` (the defaults without one) and is reported; the other
    sections take effect. Of host applications with the same name the first one counts.
    """
    spec = spec or {}
    last = previous or SLO(qos=_qos_strategy({}))
    errors: list[SLOError] = []

    def attempt(build: Callable[[], T], fallback: T) -> T:
        try:
            return build()
        except SLOError as error:
            errors.append(error)
            return fallback

    def own(name: str, kind: Any) -> Any:
        given = _section(spec, "extensions").get(name)
        return _convert(f"extensions.{name}", {} if given is None else _laid_over(f"extensions.{name}", {}, given), kind)

    def plain(name: str, kind: Any) -> Any:
        return _convert(name, _laid_over(name, {}, _section(spec, name)), kind)

    return SLO(
        threshold=attempt(lambda: plain("resourceUsedThresholdWithBE", ThresholdStrategy), last.threshold),
        qos=attempt(lambda: _qos_strategy(spec), last.qos),
        cpu_burst=attempt(lambda: plain("cpuBurstStrategy", CPUBurstStrategy), last.cpu_burst),
        system=attempt(lambda: plain("systemStrategy", SystemStrategy), last.system),
        host_applications=attempt(
            lambda: _named_once(_convert("hostApplications", spec.get("hostApplications") or [], tuple[HostApp, ...]), errors),
            last.host_applications,
        ),
        tuning=attempt(lambda: own("resourceTuning", TuningStrategy), last.tuning),
        interference=attempt(lambda: own("interference", InterferenceStrategy), last.interference),
        offload=attempt(lambda: own("memoryOffloading", OffloadStrategy), last.offload),
        extensions=attempt(lambda: _extensions(spec, extensions or {}), last.extensions),
        received_sections=frozenset(k for k, v in spec.items() if v is not None),
    ), errors
