"""Arguments of MigrationController (DS-CFG-01): strict decoding, defaults, validation."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field, field_validator, model_validator

from koord.api.selectors import SelectorError, parse_label_selector
from koord.config.errors import ConfigError, did_you_mean
from koord.config.model import ConfigModel, Seconds, wire
from roles.descheduler.protection import CRITICAL_PRIORITY, PriorityThreshold
from roles.descheduler.selection import Namespaces, optional_selector

EVICTORS = ("Eviction", "Delete", "SoftEviction")
JOB_MODES = ("ReservationFirst", "EvictDirectly")
GATES = (
    "MaxMigratingGlobally", "MaxMigratingPerNode", "MaxMigratingPerNamespace", "MaxMigratingPerWorkload", "MaxUnavailablePerWorkload",
    "ExpectedReplicas", "PVC", "BarePods", "LocalStorage", "SystemCritical", "PriorityThreshold", "LabelSelector", "Namespaces", "NodeFit",
)  # fmt: skip
WORKLOAD, NAMESPACE = "workload", "namespace"
DEFAULT_LIMITER_SECONDS = 300.0
DEFAULT_SCHEDULERS = ("koord-scheduler",)
# what a gate in skipEvictionGates sets; the limits of a workload have no value that means "no limit" and are asked for by name
_SKIPPED: dict[str, dict[str, Any]] = {
    "MaxMigratingGlobally": {"max_migrating_globally": None},
    "MaxMigratingPerNode": {"max_migrating_per_node": None},
    "MaxMigratingPerNamespace": {"max_migrating_per_namespace": None},
    "ExpectedReplicas": {"skip_check_expected_replicas": True},
    "PVC": {"ignore_pvc_pods": False},
    "BarePods": {"evict_all_bare_pods": True},
    "LocalStorage": {"evict_local_storage_pods": True},
    "SystemCritical": {"evict_system_critical_pods": True},
    "PriorityThreshold": {"priority_threshold": None},
    "LabelSelector": {"label_selector": None},
    "Namespaces": {"namespaces": None},
    "NodeFit": {"node_fit": False},
}


class ObjectLimiter(ConfigModel):
    """How many migrations of one workload or namespace may start in a window."""

    duration: Seconds = 0.0
    """Length of the window; 0: no limit."""
    max_migrating: int | str | None = None
    """Migrations that may start in the window, a number or a percentage of the replicas; unset: maxMigratingPerWorkload."""
    burst: int = Field(0, ge=0)
    """Migrations that may start at once; 0 counts as 1."""

    @model_validator(mode="after")
    def _accepted(self) -> ObjectLimiter:
        if self.duration < 0:
            raise ConfigError("duration", "must be 0 or more")
        check_share("maxMigrating", self.max_migrating)
        return self


class Preconditions(ConfigModel):
    """What must hold for a pod to be deleted."""

    uid: str | None = None
    """Its uid."""
    resource_version: str | None = None
    """Its resourceVersion."""


class DeleteOptions(ConfigModel):
    """metav1.DeleteOptions, handed on to the API server."""

    api_version: str | None = None
    """Version of the options."""
    kind: str | None = None
    """Kind of the options."""
    grace_period_seconds: int | None = Field(None, ge=0)
    """Seconds that the pod gets to end; 0: at once, unset: what the pod says."""
    preconditions: Preconditions | None = None
    """What must hold."""
    orphan_dependents: bool | None = None
    """Older form of propagationPolicy."""
    propagation_policy: str | None = None
    """What becomes of dependents."""
    dry_run: list[str] | None = None
    """`All`: nothing is changed."""
    ignore_store_read_error_with_cluster_breaking_potential: bool | None = None
    """Delete also what cannot be read from the store."""


class ArbitrationArgs(ConfigModel):
    """How often, in seconds, waiting migrations are arbitrated. `enabled` is read for compatibility; arbitration is always on."""

    enabled: bool = True
    """Accepted and left alone: jobs are always arbitrated."""
    interval: Seconds = Field(0.5, ge=0)
    """How often waiting jobs are arbitrated."""


class MigrationControllerArgs(ConfigModel):
    """MigrationController: which pods may be moved, how many at once, and how."""

    dry_run: bool = False
    """Make jobs for nothing: decide and record only."""
    max_concurrent_reconciles: int = Field(1, ge=1)
    """Jobs that are worked on at the same time."""
    evict_failed_bare_pods: bool = False
    """Pods without owner may leave once they have failed."""
    evict_all_bare_pods: bool = False
    """Pods without owner may leave."""
    evict_local_storage_pods: bool = False
    """Pods with local storage may leave."""
    evict_system_critical_pods: bool = False
    """Pods with a system-critical priority may leave."""
    ignore_pvc_pods: bool = False
    """Pods with claims stay."""
    priority_threshold: PriorityThreshold | None = None
    """Pods at or above this priority stay."""
    label_selector: dict[str, Any] | None = None
    """Only pods that match may leave."""
    namespaces: Namespaces | None = None
    """Only pods of these namespaces may leave."""
    node_fit: bool = False
    """A pod may leave only if another node would take it."""
    node_selector: str = ""
    """Nodes that count for nodeFit, as a selector text ("a=b,c")."""
    skip_eviction_gates: list[str] = []
    """Checks of arbitration that are left out."""
    max_migrating_globally: int | None = Field(None, ge=0)
    """Jobs at work in the cluster at most; unset or 0: no limit."""
    max_migrating_per_node: int | None = Field(2, ge=0)
    """Jobs at work on one node at most; 0: no limit."""
    max_migrating_per_namespace: int | None = Field(None, ge=0)
    """Jobs at work in one namespace at most; unset or 0: no limit."""
    max_migrating_per_workload: int | str | None = None
    """Pods of a workload that may be on the move, a number or a percentage; unset: by its size."""
    max_unavailable_per_workload: int | str | None = None
    """Pods of a workload that may be unavailable, a number or a percentage; unset: by its size."""
    skip_check_expected_replicas: bool | None = None
    """Do not spare workloads with as many replicas as may be on the move; unset: spare them."""
    object_limiters: dict[str, ObjectLimiter] = Field({}, validate_default=True)
    """How many migrations may start in a window, by `workload` and `namespace`; unset: workload, 5m."""
    default_job_mode: str = "ReservationFirst"
    """`ReservationFirst`: a place first, then the eviction; `EvictDirectly`: no place."""
    migrate_whole_gangs: bool = False
    """A gang that has nobody to spare may move as a whole: all members get a place first, then all leave, or none."""
    default_job_ttl: Seconds = Field(300.0, alias="defaultJobTTL")
    """How long a job may take; 0: for ever."""
    scheduler_names: list[str] = list(DEFAULT_SCHEDULERS)
    """Schedulers that understand Reservations; with defaultJobMode ReservationFirst pods of others stay, unless they have ended or have
    no owner."""
    evict_qps: float | int | str = Field(10, alias="evictQPS")
    """Evictions a second. A number above 0, or its text."""
    evict_burst: int = Field(1, gt=0)
    """Evictions at once beyond evictQPS."""
    eviction_policy: str = "Eviction"
    """`Eviction` (Eviction API), `Delete`, or `SoftEviction` (an annotation for others to act on)."""
    default_delete_options: DeleteOptions | None = None
    """DeleteOptions of evictions that bring none of their own."""
    arbitration_args: ArbitrationArgs = ArbitrationArgs()
    """Arbitration of waiting jobs."""

    @field_validator("object_limiters")
    @classmethod
    def _default_limiter(cls, limiters: dict[str, ObjectLimiter]) -> dict[str, ObjectLimiter]:
        for name in limiters:
            if name not in (WORKLOAD, NAMESPACE):
                raise ConfigError(name, f"is not known; accepted: {WORKLOAD}, {NAMESPACE}")
        return limiters or {WORKLOAD: ObjectLimiter(duration=DEFAULT_LIMITER_SECONDS)}

    @model_validator(mode="after")
    def _accepted(self) -> MigrationControllerArgs:
        self.default_job_mode = self.default_job_mode or JOB_MODES[0]  # empty texts and lists are fields that were left out
        self.eviction_policy = self.eviction_policy or EVICTORS[0]
        self.scheduler_names = self.scheduler_names or list(DEFAULT_SCHEDULERS)
        _one_of("defaultJobMode", self.default_job_mode, JOB_MODES)
        _one_of("evictionPolicy", self.eviction_policy, EVICTORS)
        for index, gate in enumerate(self.skip_eviction_gates):
            _one_of(f"skipEvictionGates[{index}]", gate, GATES)
        if self.default_job_ttl < 0:
            raise ConfigError("defaultJobTTL", "must be 0 or more")
        if not 0 < self.evictions_a_second < math.inf:
            raise ConfigError("evictQPS", "must be a number above 0")
        threshold = self.priority_threshold
        if threshold is not None and threshold.value is not None and threshold.value > CRITICAL_PRIORITY:
            raise ConfigError("priorityThreshold.value", f"must be at most {CRITICAL_PRIORITY}")
        check_share("maxMigratingPerWorkload", self.max_migrating_per_workload)
        check_share("maxUnavailablePerWorkload", self.max_unavailable_per_workload)
        optional_selector(self.label_selector, "labelSelector")
        if self.node_selector:
            try:
                parse_label_selector(self.node_selector)
            except SelectorError as error:
                raise ConfigError("nodeSelector", str(error)) from None
        return self

    @property
    def evictions_a_second(self) -> float:
        """evictQPS as a number; a text that is none counts as 0."""
        try:
            return float(self.evict_qps)
        except ValueError:
            return 0.0

    @property
    def delete_options(self) -> dict[str, Any]:
        """defaultDeleteOptions on the wire."""
        return wire(self.default_delete_options) if self.default_delete_options is not None else {}

    def effective(self) -> MigrationControllerArgs:
        """These arguments with what skipEvictionGates overrides (DS-ARB-04)."""
        changes: dict[str, Any] = {}
        for gate in self.skip_eviction_gates:
            changes |= _SKIPPED.get(gate, {})
        return self.model_copy(update=changes)


def _one_of(path: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise ConfigError(path, f"{value!r} is not known{did_you_mean(value, accepted)}; accepted: {', '.join(accepted)}")


def check_share(path: str, value: int | str | None) -> None:
    """A part of a workload is a whole number or a percentage. Raises ConfigError."""
    good = value is None or (
        value >= 0 if isinstance(value, int) else value.endswith("%") and value[:-1].isascii() and value[:-1].isdigit()
    )
    if not good:
        raise ConfigError(path, f'{value!r} must be a whole number or a percentage like "10%"')
