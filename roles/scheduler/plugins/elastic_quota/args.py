"""Arguments of ElasticQuota (SCH-CFG-01)."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from koord.accounting.resources import parse
from koord.config.errors import ConfigError
from koord.config.model import ConfigModel, Seconds
from roles.scheduler.config.args import PluginArgs

_UNLIMITED = str((2**63 - 1) // 5)


def _unlimited() -> dict[str, str | int | float]:
    return {"cpu": _UNLIMITED, "memory": _UNLIMITED}


class HookPluginArgs(ConfigModel):
    """A quota hook: `factoryKey` names the entry point (group `koord.scheduler.quota_hooks`), `key` the instance."""

    key: str = Field(min_length=1)
    """Name of this instance; stands in refusals and metrics."""
    factory_key: str = Field(min_length=1)
    """Entry point of group `koord.scheduler.quota_hooks` that makes it."""
    factory_args: Any = None
    """Arguments for the factory."""


class ElasticQuotaArgs(PluginArgs):
    """ElasticQuota. Durations in seconds. Queueing hints look at the cache as it is, never at an older snapshot:
    `quotaSnapshotUpdateInterval` is the age that upstream allows, and is always kept."""

    delay_evict_time: Seconds = 120.0
    """How long a quota may use more than its runtime before pods are evicted. At least 0."""
    revoke_pod_interval: Seconds = 1.0
    """How often that is looked at. At least 0."""
    default_quota_group_max: dict[str, str | int | float] = Field(default_factory=_unlimited)
    """Maximum of the quota for pods without one, by resource."""
    system_quota_group_max: dict[str, str | int | float] = Field(default_factory=_unlimited)
    """Maximum of the quota of kube-system's pods, by resource."""
    quota_group_namespace: str = Field(default="koordinator-system", min_length=1)
    """Namespace in which the default, system and root quota are made."""
    monitor_all_quotas: bool = False
    """Evict from every quota that uses more than its runtime. Off: only what another quota wants back by preemption."""
    enable_check_parent_quota: bool = False
    """Check the limits of all ancestors, not only the pod's own quota."""
    enable_runtime_quota: bool = True
    """Limit by runtime (what a quota may use now, with what others lend). Off: by max."""
    enable_min_quota_scale: bool = True
    """Shrink min in proportion where the tree's total does not cover all of them."""
    disable_default_quota_preemption: bool = True
    """Pods of the default quota do not preempt."""
    enable_queue_hint: bool = False
    """Try refused pods again only on events that can help their quota."""
    quota_snapshot_update_interval: Seconds = 120.0
    """Age of the cache that hints may look at; it is always fresh here."""
    hook_plugins: list[HookPluginArgs] = Field(default_factory=list)
    """Quota hooks, in the order of their calls."""

    @model_validator(mode="after")
    def _limits(self) -> ElasticQuotaArgs:
        for key, value in (("delayEvictTime", self.delay_evict_time), ("revokePodInterval", self.revoke_pod_interval)):
            if value < 0:
                raise ConfigError(key, "must not be negative")
        for key, amounts in (("defaultQuotaGroupMax", self.default_quota_group_max), ("systemQuotaGroupMax", self.system_quota_group_max)):
            try:
                vector = parse(amounts)
            except ValueError as error:
                raise ConfigError(key, str(error)) from error
            for name, amount in vector.items():
                if amount < 0:
                    raise ConfigError(f"{key}.{name}", "must not be negative")
        keys = [hook.key for hook in self.hook_plugins]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise ConfigError(f"hookPlugins[{index}].key", f"{key!r} is used twice")
        return self
