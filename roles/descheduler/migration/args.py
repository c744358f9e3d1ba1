"""Arguments of MigrationController (DS-CFG-01, section 2.4): strict decoding, defaults, validation."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from koord.config.errors import ConfigError
from koord.config.model import ConfigModel, Seconds
from roles.descheduler.selection import Namespaces

CRITICAL_PRIORITY = 2_000_000_000
EVICTORS = ("Eviction", "Delete", "SoftEviction")
JOB_MODES = ("ReservationFirst", "EvictDirectly")


class ObjectLimiter(ConfigModel):
    """How many migrations of one workload or namespace may start in a window."""

    duration: Seconds = 0.0
    max_migrating: int | str | None = None
    burst: int = 0


class PriorityThreshold(ConfigModel):
    """Pods at or above it are left alone; by value or by the name of a PriorityClass."""

    value: int | None = None
    name: str = ""


class ArbitrationArgs(ConfigModel):
    """How often waiting migrations are arbitrated."""

    enabled: bool = True
    interval: Seconds = 0.5


class MigrationControllerArgs(ConfigModel):
    """MigrationController: which pods may be moved, how many at once, and how."""

    dry_run: bool = False
    max_concurrent_reconciles: int = Field(1, ge=1)
    evict_failed_bare_pods: bool = False
    evict_all_bare_pods: bool = False
    evict_local_storage_pods: bool = False
    evict_system_critical_pods: bool = False
    ignore_pvc_pods: bool = False
    priority_threshold: PriorityThreshold | None = None
    label_selector: dict[str, Any] | None = None
    namespaces: Namespaces | None = None
    node_fit: bool = False
    node_selector: str = ""
    skip_eviction_gates: list[str] = []
    max_migrating_globally: int | None = Field(None, ge=0)
    max_migrating_per_node: int | None = Field(2, ge=0)
    max_migrating_per_namespace: int | None = Field(None, ge=0)
    max_migrating_per_workload: int | str | None = None
    max_unavailable_per_workload: int | str | None = None
    skip_check_expected_replicas: bool | None = None
    object_limiters: dict[str, ObjectLimiter] = {}
    default_job_mode: str = "ReservationFirst"
    default_job_ttl: Seconds = Field(300.0, alias="defaultJobTTL")
    scheduler_names: list[str] = ["koord-scheduler"]
    evict_qps: float | int | str = Field(10, alias="evictQPS")
    evict_burst: int = Field(1, gt=0)
    eviction_policy: str = "Eviction"
    default_delete_options: dict[str, Any] | None = None
    arbitration_args: ArbitrationArgs = ArbitrationArgs()

    @model_validator(mode="after")
    def _accepted(self) -> MigrationControllerArgs:
        if self.default_job_mode not in JOB_MODES:
            raise ConfigError("defaultJobMode", f"{self.default_job_mode!r} is not known; accepted: {', '.join(JOB_MODES)}")
        if self.eviction_policy not in EVICTORS:
            raise ConfigError("evictionPolicy", f"{self.eviction_policy!r} is not known; accepted: {', '.join(EVICTORS)}")
        if self.default_job_ttl < 0:
            raise ConfigError("defaultJobTTL", "must be 0 or more")
        if _number(self.evict_qps) <= 0:
            raise ConfigError("evictQPS", "must be a number above 0")
        threshold = self.priority_threshold
        if threshold is not None and threshold.value is not None and threshold.value > CRITICAL_PRIORITY:
            raise ConfigError("priorityThreshold.value", f"must be at most {CRITICAL_PRIORITY}")
        for name, value in (
            ("maxMigratingPerWorkload", self.max_migrating_per_workload),
            ("maxUnavailablePerWorkload", self.max_unavailable_per_workload),
        ):
            if isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
                raise ConfigError(name, f'{value!r} must be a whole number or a percentage like "10%"')
        return self


def _number(value: float | int | str) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0
