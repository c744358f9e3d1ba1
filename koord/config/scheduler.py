"""KubeSchedulerConfiguration v1: the file that `koord scheduler --config` reads (SCH-FW-01).

Plugin arguments stay raw here (`PluginConfig.args`): each scheduler plugin validates its own.
"""

from __future__ import annotations

import os
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from koord.config.errors import ConfigError, first_twice
from koord.config.extenders import Extender, check
from koord.config.loader import load_component_config, validate
from koord.config.model import ConfigModel, Seconds

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
KIND: Final = "KubeSchedulerConfiguration"


class LeaderElection(ConfigModel):
    """Leader election (component-base). Durations in seconds."""

    leader_elect: bool = True
    """Whether replicas elect one that works. Off: this process works at once."""
    lease_duration: Seconds = 15.0
    """How long other replicas wait after the last renewal that they saw. Longer than renewDeadline."""
    renew_deadline: Seconds = 10.0
    """How long the leader tries to renew before it gives up. Longer than 1.2 × retryPeriod."""
    retry_period: Seconds = 2.0
    """Pause between tries to get or renew the lease. Above 0."""
    resource_lock: str = "leases"
    """Kind of object that is the lock; only `leases` is known."""
    resource_name: str = "kube-scheduler"
    """Name of the Lease."""
    resource_namespace: str = "kube-system"
    """Namespace of the Lease."""

    @model_validator(mode="after")
    def _ordered(self) -> LeaderElection:
        if not self.leader_elect:
            return self
        if self.retry_period <= 0:
            raise ConfigError("retryPeriod", "must be greater than zero")
        if self.lease_duration <= self.renew_deadline:
            raise ConfigError("leaseDuration", "must be longer than renewDeadline")
        if self.renew_deadline <= 1.2 * self.retry_period:
            raise ConfigError("renewDeadline", "must be longer than 1.2 times retryPeriod")
        if self.resource_lock != "leases":
            raise ConfigError("resourceLock", f"{self.resource_lock!r} is not known; accepted: leases")
        for key, value in (("resourceName", self.resource_name), ("resourceNamespace", self.resource_namespace)):
            if not value:
                raise ConfigError(key, "must not be empty")
        return self


class ClientConnection(ConfigModel):
    """How to reach the API server. `qps` and `burst` limit requests; `content_type` is accepted and answered with JSON."""

    kubeconfig: str = ""
    """File that says how to reach the API server; the flag --kubeconfig goes before it. Empty: the pod's service account."""
    accept_content_types: str = ""
    """Accepted and left alone: JSON is spoken."""
    content_type: str = "application/vnd.kubernetes.protobuf"
    """Accepted and left alone: JSON is spoken."""
    qps: float = 50.0
    """Requests a second in the long run. Limits only where the file sets it."""
    burst: int = Field(default=100, ge=0)
    """Requests that may go at once beyond qps."""


class Plugin(ConfigModel):
    """A plugin at an extension point; `weight` counts at score only, 0 means the default of 1."""

    name: str = Field(min_length=1)
    """Name of the plugin, as `koord scheduler --validate-config` knows it."""
    weight: int = Field(default=0, ge=0)
    """What its scores are multiplied with at the point score; 0 means 1, also for a default plugin that is listed again."""


class PluginSet(ConfigModel):
    """What to enable and disable at one extension point; disabled name "*" switches all defaults off."""

    enabled: list[Plugin] = Field(default_factory=list)
    """Plugins that run at this point, after those that are enabled by default, in this order."""
    disabled: list[Plugin] = Field(default_factory=list)
    """Default plugins that do not run; the name `*` stands for all of them."""

    @model_validator(mode="after")
    def _once(self) -> PluginSet:
        if twice := first_twice(plugin.name for plugin in self.enabled):
            raise ConfigError(f"enabled[{twice[0]}].name", f"plugin {twice[1]!r} is already enabled at this extension point")
        return self


class Plugins(ConfigModel):
    """The plugins of a profile, one set per extension point; `multi_point` stands for every point that a plugin implements."""

    pre_enqueue: PluginSet = Field(default_factory=PluginSet)
    """Plugins that say whether a pod may enter the queue."""
    queue_sort: PluginSet = Field(default_factory=PluginSet)
    """The one plugin that orders the queue; the same in all profiles."""
    pre_filter: PluginSet = Field(default_factory=PluginSet)
    """Plugins that look at the pod before any node."""
    filter: PluginSet = Field(default_factory=PluginSet)
    """Plugins that refuse nodes."""
    post_filter: PluginSet = Field(default_factory=PluginSet)
    """Plugins that make room when no node is left."""
    pre_score: PluginSet = Field(default_factory=PluginSet)
    """Plugins that prepare scoring."""
    score: PluginSet = Field(default_factory=PluginSet)
    """Plugins that rate nodes, with their weights."""
    reserve: PluginSet = Field(default_factory=PluginSet)
    """Plugins that keep what the pod gets in their books."""
    permit: PluginSet = Field(default_factory=PluginSet)
    """Plugins that may hold a pod or send it back."""
    pre_bind: PluginSet = Field(default_factory=PluginSet)
    """Plugins that write what has to stand on the object before it is bound."""
    bind: PluginSet = Field(default_factory=PluginSet)
    """Plugins that bind; the first that takes the pod does it."""
    post_bind: PluginSet = Field(default_factory=PluginSet)
    """Plugins that are told of the binding."""
    placement_generate: PluginSet = Field(default_factory=PluginSet)
    """kube-scheduler's point for places of pod groups (1.36). Accepted without plugins: Coscheduling plans them."""
    placement_score: PluginSet = Field(default_factory=PluginSet)
    """As placementGenerate."""
    multi_point: PluginSet = Field(default_factory=PluginSet)
    """Plugins for every point that they implement."""


class PluginConfig(ConfigModel):
    """Arguments of one plugin, as they stand in the file."""

    name: str = Field(min_length=1)
    """Name of the plugin."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments; see the kinds `<Plugin>Args` below."""


class Profile(ConfigModel):
    """One scheduler by name: pods choose it with `spec.schedulerName`. `plugins` None means that the block is absent."""

    scheduler_name: str = "default-scheduler"
    """What pods write into spec.schedulerName to be placed by this profile. Unique."""
    percentage_of_nodes_to_score: int | None = Field(default=None, ge=0, le=100)
    """Share of nodes, in percent, at which the search for feasible nodes may stop; unset: the file's value. 0: all nodes."""
    plugins: Plugins | None = None
    """Plugins to switch on and off against the defaults; absent: the defaults."""
    plugin_config: list[PluginConfig] = Field(default_factory=list)
    """Arguments of plugins, one entry a plugin."""

    def args_of(self, plugin: str) -> dict[str, Any] | None:
        """Raw arguments of a plugin, None when the profile names none."""
        return next((entry.args for entry in self.plugin_config if entry.name == plugin), None)

    @model_validator(mode="after")
    def _valid(self) -> Profile:
        if not self.scheduler_name:
            raise ConfigError("schedulerName", "must not be empty")
        if twice := first_twice(entry.name for entry in self.plugin_config):
            raise ConfigError(f"pluginConfig[{twice[0]}].name", f"arguments of plugin {twice[1]!r} are already given in this profile")
        return self


class KubeSchedulerConfiguration(ConfigModel):
    """The whole file."""

    api_version: Literal["kubescheduler.config.k8s.io/v1"] = API_VERSION
    """Version of the file's kind."""
    kind: Literal["KubeSchedulerConfiguration"] = KIND
    """Kind of the file."""
    parallelism: int = Field(default=16, gt=0)
    """Workers of kube-scheduler. Read and checked; all nodes are looked at as columns, so there is nothing to divide."""
    leader_election: LeaderElection = Field(default_factory=LeaderElection)
    """How replicas elect one that schedules."""
    client_connection: ClientConnection = Field(default_factory=ClientConnection)
    """How to reach the API server."""
    enable_profiling: bool = False
    """Whether /debug/pprof and /debug/flags are served."""
    enable_contention_profiling: bool = True
    """Accepted and left alone: there are no locks to contend for."""
    percentage_of_nodes_to_score: int | None = Field(default=0, ge=0, le=100)
    """Share of nodes, in percent, at which the search for feasible nodes may stop. 0: all nodes are scored."""
    pod_initial_backoff_seconds: int = Field(default=1, gt=0)
    """Seconds that a pod waits after its first failed try."""
    pod_max_backoff_seconds: int = Field(default=10, gt=0)
    """Upper bound of that wait, which doubles with each try, in seconds. At least podInitialBackoffSeconds."""
    profiles: list[Profile] = Field(default_factory=list)
    """Schedulers by name; at least one, made if there is none."""
    extenders: list[Extender] = Field(default_factory=list)
    """Programs that are asked over HTTP."""
    delay_cache_until_active: bool = False
    """Whether caches are filled only once this replica leads."""

    @model_validator(mode="after")
    def _valid(self) -> KubeSchedulerConfiguration:
        check(self.extenders)
        if self.pod_max_backoff_seconds < self.pod_initial_backoff_seconds:
            raise ConfigError("podMaxBackoffSeconds", "must not be less than podInitialBackoffSeconds")
        if not self.profiles:
            self.profiles = [Profile()]
        if twice := first_twice(profile.scheduler_name for profile in self.profiles):
            raise ConfigError(f"profiles[{twice[0]}].schedulerName", f"{twice[1]!r} is already the name of another profile")
        self._same_queue_sort()
        return self

    def _same_queue_sort(self) -> None:
        """All profiles share one queue, so they must order it by the same plugin with the same arguments."""
        first: tuple[str, Any] | None = None
        for index, profile in enumerate(self.profiles):
            names = [plugin.name for plugin in profile.plugins.queue_sort.enabled] if profile.plugins else []
            if len(names) > 1:
                raise ConfigError(f"profiles[{index}].plugins.queueSort.enabled", f"one plugin may sort the queue, got {', '.join(names)}")
            name = names[0] if names else "PrioritySort"
            this = (name, profile.args_of(name))
            if first is not None and this != first:
                raise ConfigError(
                    f"profiles[{index}].plugins.queueSort", f"all profiles must sort the queue alike; the first one uses {first[0]}"
                )
            first = first or this


MODELS: dict[tuple[str, str], type[KubeSchedulerConfiguration]] = {(API_VERSION, KIND): KubeSchedulerConfiguration}


def load(path: str | os.PathLike[str]) -> KubeSchedulerConfiguration:
    """Read `--config`. Raises InvalidConfig with every mistake and its path."""
    return load_component_config(path, MODELS)


def parse(data: Any, source: str = "config") -> KubeSchedulerConfiguration:
    """The model of already decoded data. Raises InvalidConfig."""
    return validate(data, MODELS, source)
