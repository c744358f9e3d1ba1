"""DeschedulerConfiguration descheduler/v1alpha2 (DS-CFG-01): strict decoding, defaults, validation, plugin sets."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from koord.config.errors import ConfigError, InvalidConfig, did_you_mean
from koord.config.loader import decode, validate, validate_model
from koord.config.model import ConfigModel, Seconds
from roles.descheduler.migration.args import MigrationControllerArgs
from roles.descheduler.plugins.lownodeload.args import LowNodeLoadArgs

API_VERSION = "descheduler/v1alpha2"
KIND = "DeschedulerConfiguration"
DEFAULT_PROFILE = "koord-descheduler"
DEFAULT_PORT = 10251
POINTS = ("deschedule", "balance", "evict", "filter")
DEFAULT_PLUGINS: dict[str, tuple[str, ...]] = {
    "deschedule": (),
    "balance": (),
    "evict": ("MigrationController",),
    "filter": ("MigrationController",),
}


class LeaderElection(ConfigModel):
    """Lease parameters; a lease must outlive its renewal, and that several tries."""

    leader_elect: bool = True
    lease_duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    retry_period: Seconds = 2.0
    resource_lock: str = "leases"
    resource_namespace: str = "koordinator-system"
    resource_name: str = "koord-descheduler"

    @model_validator(mode="after")
    def _ordered(self) -> LeaderElection:
        if self.retry_period <= 0:
            raise ConfigError("retryPeriod", "must be more than 0")
        if self.renew_deadline <= 1.2 * self.retry_period:
            raise ConfigError("renewDeadline", "must be more than 1.2 times retryPeriod")
        if self.lease_duration <= self.renew_deadline:
            raise ConfigError("leaseDuration", "must be more than renewDeadline")
        return self


class ClientConnection(ConfigModel):
    """How the API server is reached; 0 for qps and burst means the default."""

    kubeconfig: str = ""
    content_type: str = ""
    accept_content_types: str = ""
    qps: float = 50.0
    burst: int = 100


class PluginName(ConfigModel):
    """One entry of a plugin set."""

    name: str = Field(min_length=1)


class PluginSet(ConfigModel):
    """What is switched on and off at one extension point."""

    enabled: list[PluginName] = []
    disabled: list[PluginName] = []

    def merged(self, defaults: tuple[str, ...]) -> list[str]:
        """Defaults that stay, in their order, then the rest of what is enabled. Duplicates stay and are refused later."""
        off = {entry.name for entry in self.disabled}
        kept = [] if "*" in off else [name for name in defaults if name not in off]
        return kept + [entry.name for entry in self.enabled if entry.name not in kept]


class Plugins(ConfigModel):
    """The plugin sets of one profile."""

    deschedule: PluginSet = PluginSet()
    balance: PluginSet = PluginSet()
    evict: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()


class PluginConfig(ConfigModel):
    """Arguments of one plugin, decoded by the plugin's own model."""

    name: str = Field(min_length=1)
    args: dict[str, Any] = {}


class Profile(ConfigModel):
    """Plugins with their arguments, on the nodes of a selector."""

    name: str = ""
    node_selector: dict[str, Any] | None = None
    plugins: Plugins = Plugins()
    plugin_config: list[PluginConfig] = []


class DeschedulerConfiguration(ConfigModel):
    """The whole file. Times are seconds; unset limits are None."""

    ARGS: ClassVar[dict[str, type[ConfigModel]]] = {"LowNodeLoad": LowNodeLoadArgs, "MigrationController": MigrationControllerArgs}

    api_version: str = API_VERSION
    kind: str = KIND
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    enable_profiling: bool = True
    enable_contention_profiling: bool = True
    healthz_bind_address: str = f"0.0.0.0:{DEFAULT_PORT}"
    metrics_bind_address: str = f"0.0.0.0:{DEFAULT_PORT}"
    descheduling_interval: Seconds = 0.0
    dry_run: bool = False
    node_selector: dict[str, Any] | None = None
    max_no_of_pods_to_evict_per_node: int | None = Field(None, ge=0)
    max_no_of_pods_to_evict_per_namespace: int | None = Field(None, ge=0)
    max_no_of_pods_to_evict_total: int | None = Field(None, ge=0)
    profiles: list[Profile] = []

    @model_validator(mode="after")
    def _complete(self) -> DeschedulerConfiguration:
        if not self.profiles:
            self.profiles = [Profile(name=DEFAULT_PROFILE)]
        if len(self.profiles) == 1 and not self.profiles[0].name:
            self.profiles[0].name = DEFAULT_PROFILE
        names: set[str] = set()
        for index, profile in enumerate(self.profiles):
            if not profile.name:
                raise ConfigError(f"profiles[{index}].name", "is required when there are several profiles")
            if profile.name in names:
                raise ConfigError(f"profiles[{index}].name", f"{profile.name!r} is already used; names must be unique")
            names.add(profile.name)
        self.healthz_bind_address = _address("healthzBindAddress", self.healthz_bind_address)
        self.metrics_bind_address = _address("metricsBindAddress", self.metrics_bind_address)
        return self


def _address(field: str, text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    if not text or not port.isdigit() or int(port) > 65535:
        raise ConfigError(field, f"{text!r} must be host:port or an address")
    return f"{host or '0.0.0.0'}:{port}"


class ResolvedProfile:
    """A profile with its plugin lists merged and its arguments decoded."""

    def __init__(self, profile: Profile, index: int, source: str) -> None:
        self.name = profile.name
        self.node_selector = profile.node_selector
        sets = profile.plugins
        self.plugins: dict[str, list[str]] = {point: getattr(sets, point).merged(DEFAULT_PLUGINS[point]) for point in POINTS}
        self.args: dict[str, Any] = {}
        for number, entry in enumerate(profile.plugin_config):
            where = f"profiles[{index}].pluginConfig[{number}]"
            if entry.name in self.args:
                raise InvalidConfig(source, [ConfigError(where, f"arguments of {entry.name} are given twice")])
            self.args[entry.name] = _decode_args(entry, f"{where}.args", source)
        for name in {name for names in self.plugins.values() for name in names}:
            if name not in self.args and (model := DeschedulerConfiguration.ARGS.get(name)):
                self.args[name] = model()


def _decode_args(entry: PluginConfig, where: str, source: str) -> Any:
    model = DeschedulerConfiguration.ARGS.get(entry.name)
    if model is None:
        return dict(entry.args)
    args = dict(entry.args)
    version, kind = args.pop("apiVersion", API_VERSION), args.pop("kind", f"{entry.name}Args")
    if (version, kind) != (API_VERSION, f"{entry.name}Args"):
        raise InvalidConfig(
            source, [ConfigError(where, f"{version} {kind} does not belong here; accepted: {API_VERSION} {entry.name}Args")]
        )
    return validate_model(args, model, source, where)


def parse(text: str, source: str) -> tuple[DeschedulerConfiguration, list[ResolvedProfile]]:
    """Decode, default and validate a configuration file's text. Raises InvalidConfig with every path."""
    config = validate(decode(text, source), {(API_VERSION, KIND): DeschedulerConfiguration}, source)
    return config, [ResolvedProfile(profile, index, source) for index, profile in enumerate(config.profiles)]


def check_plugins(profiles: list[ResolvedProfile], registered: dict[str, frozenset[str]], source: str) -> None:
    """Refuse plugins that do not exist, do not implement the point, or stand there twice; require exactly one Evict plugin."""
    for index, profile in enumerate(profiles):
        for point, names in profile.plugins.items():
            for name in names:
                if problem := _plugin_problem(name, point, names, registered):
                    raise InvalidConfig(source, [ConfigError(f"profiles[{index}].plugins.{point}.enabled", problem)])
        if (count := len(profile.plugins["evict"])) != 1:
            raise InvalidConfig(
                source, [ConfigError(f"profiles[{index}].plugins.evict", f"exactly one plugin must be enabled, found {count}")]
            )


def _plugin_problem(name: str, point: str, names: list[str], registered: dict[str, frozenset[str]]) -> str:
    if name not in registered:
        return f"plugin {name!r} does not exist{did_you_mean(name, registered)}; accepted: {', '.join(sorted(registered))}"
    if point not in registered[name]:
        return f"plugin {name} does not implement {point}; it implements {', '.join(sorted(registered[name]))}"
    return f"plugin {name} is already registered" if names.count(name) > 1 else ""
