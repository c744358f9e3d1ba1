"""Arguments of ElasticQuota (SCH-CFG-01, scheduler-job.md 3.4)."""

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
    factory_key: str = Field(min_length=1)
    factory_args: Any = None


class ElasticQuotaArgs(PluginArgs):
    """ElasticQuota. Durations in seconds. Queueing hints look at the books as they are, never at an older snapshot:
    `quotaSnapshotUpdateInterval` is the age that upstream allows, and is always kept."""

    delay_evict_time: Seconds = 120.0
    revoke_pod_interval: Seconds = 1.0
    default_quota_group_max: dict[str, str | int | float] = Field(default_factory=_unlimited)
    system_quota_group_max: dict[str, str | int | float] = Field(default_factory=_unlimited)
    quota_group_namespace: str = Field(default="koordinator-system", min_length=1)
    monitor_all_quotas: bool = False
    enable_check_parent_quota: bool = False
    enable_runtime_quota: bool = True
    enable_min_quota_scale: bool = True
    disable_default_quota_preemption: bool = True
    enable_queue_hint: bool = False
    quota_snapshot_update_interval: Seconds = 120.0
    hook_plugins: list[HookPluginArgs] = Field(default_factory=list)

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
