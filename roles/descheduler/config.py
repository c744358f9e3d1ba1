"""DeschedulerConfiguration descheduler/v1alpha2 (DS-CFG-01): strict decoding, defaults, validation, plugin sets."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from koord.config.errors import ConfigError, InvalidConfig, did_you_mean
from koord.config.loader import check_shape, decode, validate, validate_model
from koord.config.model import ConfigModel, Seconds
from koord.config.model import wire as on_the_wire
from koord.config.urls import is_http_url
from roles.descheduler import registry
from roles.descheduler.migration.plugin import MigrationController
from roles.descheduler.reading import PROMETHEUS
from roles.descheduler.selection import optional_selector

log = logging.getLogger(__name__)

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
    """Whether replicas elect one that works. Off: this process works at once."""
    lease_duration: Seconds = 15.0
    """How long other replicas wait after the last renewal that they saw. Longer than renewDeadline."""
    renew_deadline: Seconds = 10.0
    """How long the leader tries to renew before it gives up. Longer than 1.2 × retryPeriod."""
    retry_period: Seconds = 2.0
    """Pause between tries to get or renew the lease. Above 0."""
    resource_lock: str = "leases"
    """Kind of object that is the lock; only `leases` is known."""
    resource_namespace: str = "koordinator-system"
    """Namespace of the Lease."""
    resource_name: str = "koord-descheduler"
    """Name of the Lease."""

    @model_validator(mode="after")
    def _ordered(self) -> LeaderElection:
        for name in ("resource_lock", "resource_namespace", "resource_name"):  # empty texts are fields that were left out
            setattr(self, name, getattr(self, name) or type(self).model_fields[name].default)
        if self.resource_lock != "leases":
            raise ConfigError("resourceLock", f"{self.resource_lock!r} is not known; accepted: leases")
        if self.retry_period <= 0:
            raise ConfigError("retryPeriod", "must be more than 0")
        if self.renew_deadline <= 1.2 * self.retry_period:
            raise ConfigError("renewDeadline", "must be more than 1.2 times retryPeriod")
        if self.lease_duration <= self.renew_deadline:
            raise ConfigError("leaseDuration", "must be more than renewDeadline")
        return self


class ClientConnection(ConfigModel):
    """How the API server is reached; 0 for qps and burst means the default. Content types are accepted: JSON is spoken, whichever is asked
    for."""

    kubeconfig: str = ""
    """File that says how to reach the API server; it goes before the flag --kubeconfig. Both empty: the pod's service account."""
    content_type: str = "application/vnd.kubernetes.protobuf"
    """Accepted and left alone: JSON is spoken."""
    accept_content_types: str = "application/vnd.kubernetes.protobuf,application/json"
    """Accepted and left alone: JSON is spoken."""
    qps: float = 50.0
    """Requests a second in the long run; 0 means 50."""
    burst: int = 100
    """Requests that may go at once beyond qps; 0 means 100."""


class SecretReference(ConfigModel):
    """A Secret of the cluster."""

    namespace: str = Field(min_length=1)
    """Its namespace."""
    name: str = Field(min_length=1)
    """Its name; the token is the value of key `prometheusAuthToken`."""


class AuthToken(ConfigModel):
    """Where the token for Prometheus is."""

    secret_reference: SecretReference
    """The Secret that has it. The descheduler needs the right to get it."""


class PrometheusProvider(ConfigModel):
    """How Prometheus is reached."""

    url: str
    """Its URL; `https://` where a token is sent."""
    auth_token: AuthToken | None = None
    """The token to send; unset: none, upstream would send its own service account's."""

    @model_validator(mode="after")
    def _accepted(self) -> PrometheusProvider:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError("url", f"{self.url!r} must begin with http:// or https://")
        if not is_http_url(self.url):
            raise ConfigError("url", f"{self.url!r} must be http://host[:port] or https://host[:port]")
        if self.auth_token is not None and not self.url.startswith("https://"):
            raise ConfigError("url", "must begin with https:// if authToken is set, to protect the token")
        return self


class MetricsProvider(ConfigModel):
    """A source of real usage."""

    source: Literal["KubernetesMetrics", "Prometheus"]
    """`KubernetesMetrics` (NodeMetrics of koordlet, and the metrics server where they are missing) or `Prometheus`."""
    prometheus: PrometheusProvider | None = None
    """With source Prometheus: how it is reached."""

    @model_validator(mode="after")
    def _accepted(self) -> MetricsProvider:
        if self.source == PROMETHEUS and self.prometheus is None:
            raise ConfigError("prometheus", "is required with source Prometheus")
        return self


class PluginName(ConfigModel):
    """One entry of a plugin set."""

    name: str = Field(min_length=1)
    """Name of the plugin."""


class PluginSet(ConfigModel):
    """What is switched on and off at one extension point."""

    enabled: list[PluginName] = []
    """Plugins that run at this point, after the default ones, in this order."""
    disabled: list[PluginName] = []
    """Default plugins that do not run; the name `*` stands for all of them."""

    def merged(self, defaults: tuple[str, ...]) -> list[str]:
        """Defaults that stay, in their order, then the rest of what is enabled. Duplicates stay and are refused later."""
        off = {entry.name for entry in self.disabled}
        kept = [] if "*" in off else [name for name in defaults if name not in off]
        last = {entry.name: index for index, entry in enumerate(self.enabled)}
        taken = {last[name] for name in kept if name in last}  # these stand in their default's place
        return kept + [entry.name for index, entry in enumerate(self.enabled) if index not in taken]


class Plugins(ConfigModel):
    """The plugin sets of one profile."""

    deschedule: PluginSet = PluginSet()
    """Plugins that take single pods away."""
    balance: PluginSet = PluginSet()
    """Plugins that even out nodes."""
    evict: PluginSet = PluginSet()
    """The one plugin that carries evictions out."""
    filter: PluginSet = PluginSet()
    """Plugins that say which pods may leave."""


class PluginConfig(ConfigModel):
    """Arguments of one plugin, decoded by the plugin's own model."""

    name: str = Field(min_length=1)
    """Name of the plugin."""
    args: dict[str, Any] = {}
    """Its arguments; see the kinds `<Plugin>Args` below."""


class Profile(ConfigModel):
    """Plugins with their arguments, on the nodes of a selector."""

    name: str = ""
    """Name of the profile; stands in events and jobs. Unique; required where there are several."""
    node_selector: dict[str, Any] | None = None
    """LabelSelector of the nodes that this profile looks at, besides the file's."""
    plugins: Plugins = Plugins()
    """Plugins to switch on and off against the defaults."""
    plugin_config: list[PluginConfig] = []
    """Arguments of plugins, one entry a plugin."""
    observe: list[str] | None = None
    """Deschedule and Balance plugins of this profile that decide and list, but evict, cordon and annotate nothing. Not known upstream."""


class DeschedulerConfiguration(ConfigModel):
    """The whole file. Times are seconds; unset limits are None."""

    api_version: str = API_VERSION
    """Version of the file's kind."""
    kind: str = KIND
    """Kind of the file."""
    leader_election: LeaderElection = LeaderElection()
    """How replicas elect one that works."""
    client_connection: ClientConnection = ClientConnection()
    """How to reach the API server."""
    enable_profiling: bool = False
    """Whether /debug/pprof and /debug/flags are served."""
    enable_contention_profiling: bool = True
    """Accepted and left alone: there are no locks to contend for."""
    healthz_bind_address: str = f"0.0.0.0:{DEFAULT_PORT}"
    """Address of /healthz."""
    metrics_bind_address: str = f"0.0.0.0:{DEFAULT_PORT}"
    """Address of /metrics; the same as the other one or its own."""
    descheduling_interval: Seconds = Field(0.0, ge=0)
    """Time from the start of a round to the next; 0: one round only, while the process stays and goes on with migrations."""
    dry_run: bool = False
    """Decide and record, evict nothing."""
    node_selector: dict[str, Any] | None = None
    """LabelSelector of the nodes that are looked at; unset: all."""
    max_no_of_pods_to_evict_per_node: int | None = Field(None, ge=0)
    """Evictions of a round from one node at most; unset: no limit, 0: none leaves."""
    max_no_of_pods_to_evict_per_namespace: int | None = Field(None, ge=0)
    """Evictions of a round from one namespace at most; unset: no limit, 0: none leaves."""
    max_no_of_pods_to_evict_total: int | None = Field(None, ge=0)
    """Evictions of a round at most; unset: no limit, 0: none leaves."""
    grace_period_seconds: int | None = Field(None, ge=0)
    """Seconds that evicted pods get to end; unset: what the pod says. MigrationController's defaultDeleteOptions go before it."""
    metrics_providers: list[MetricsProvider] = []
    """Sources of real usage beside koordlet, for `metricsUtilization` of LowNodeUtilization. KubernetesMetrics needs no entry."""
    profiles: list[Profile] = []
    """Sets of plugins; one named koord-descheduler if there is none."""

    @model_validator(mode="after")
    def _complete(self) -> DeschedulerConfiguration:
        if not self.profiles:
            self.profiles = [Profile(name=DEFAULT_PROFILE)]
        if len(self.profiles) == 1 and not self.profiles[0].name:
            self.profiles[0].name = DEFAULT_PROFILE
        sources = [provider.source for provider in self.metrics_providers]
        if len(set(sources)) < len(sources):
            raise ConfigError("metricsProviders", "has a source twice")
        names: set[str] = set()
        for index, profile in enumerate(self.profiles):
            if not profile.name:
                raise ConfigError(f"profiles[{index}].name", "is required when there are several profiles")
            if profile.name in names:
                raise ConfigError(f"profiles[{index}].name", f"{profile.name!r} is already used; names must be unique")
            names.add(profile.name)
        optional_selector(self.node_selector)
        for index, profile in enumerate(self.profiles):
            optional_selector(profile.node_selector, f"profiles[{index}].nodeSelector")
        self.healthz_bind_address = _address("healthzBindAddress", self.healthz_bind_address)
        self.metrics_bind_address = _address("metricsBindAddress", self.metrics_bind_address)
        return self


def _address(field: str, text: str) -> str:
    """host:port with what may be left out: a bare IP gets the default port, an empty host means all addresses."""
    host, colon, port = text.rpartition(":")
    if _is_ip(text):
        host, port = text, str(DEFAULT_PORT)
    elif not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(field, f"{text!r} must be host:port or an IP address")
    host = host.removeprefix("[").removesuffix("]") or "0.0.0.0"
    if not _is_ip(host):
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            raise ConfigError(field, f"host {host!r} is no IP address and cannot be resolved") from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class ResolvedProfile:
    """A profile with its plugin lists merged and its arguments decoded; `profile` is completed with both."""

    def __init__(self, profile: Profile, index: int, source: str) -> None:
        self.name = profile.name
        self.node_selector = profile.node_selector
        sets = profile.plugins
        self.plugins: dict[str, list[str]] = {point: getattr(sets, point).merged(DEFAULT_PLUGINS[point]) for point in POINTS}
        self.observe = frozenset(profile.observe or ())
        self.args: dict[str, Any] = {}
        wrong: list[ConfigError] = []
        acting = dict.fromkeys([*self.plugins["deschedule"], *self.plugins["balance"]])
        for number, name in enumerate(profile.observe or ()):
            if name not in acting:
                accepted = ", ".join(acting) or "none is enabled"
                message = f"{name!r} is no enabled Deschedule or Balance plugin of this profile; accepted: {accepted}"
                wrong.append(ConfigError(f"profiles[{index}].observe[{number}]", message))
        for number, entry in enumerate(profile.plugin_config):
            where = f"profiles[{index}].pluginConfig[{number}]"
            if entry.name in self.args:
                wrong.append(ConfigError(where, f"arguments of {entry.name} are given twice"))
                continue
            enabled = any(entry.name in names for names in self.plugins.values())
            try:
                self.args[entry.name] = _decode_args(entry, f"{where}.args", source, enabled=enabled)
            except InvalidConfig as error:
                self.args[entry.name] = None
                wrong += error.errors
        if wrong:
            raise InvalidConfig(source, wrong)
        for name in dict.fromkeys(name for names in self.plugins.values() for name in names):
            if name not in self.args and (model := registry.ARGS.get(name)):
                self.args[name] = validate_model({}, model, source, f"profiles[{index}].pluginConfig: arguments of {name}")
        self._complete(profile)

    def _complete(self, profile: Profile) -> None:
        """What `--write-config-to` and `/configz` show."""
        for point in POINTS:
            getattr(profile.plugins, point).enabled = [PluginName(name=name) for name in self.plugins[point]]
        profile.plugin_config = [
            PluginConfig(name=name, args=on_the_wire(args) if isinstance(args, ConfigModel) else args) for name, args in self.args.items()
        ]


def _decode_args(entry: PluginConfig, where: str, source: str, *, enabled: bool) -> Any:
    model = registry.ARGS.get(entry.name)
    if model is None or (entry.name in registry.LENIENT and not enabled):
        return dict(entry.args)  # nobody's, or of an adapted plugin that does not run
    args = dict(entry.args)
    if entry.name in registry.LENIENT:
        args = _known_only(args, model, entry.name, where)
    else:
        version, kind = args.pop("apiVersion", API_VERSION), args.pop("kind", f"{entry.name}Args")
        if (version, kind) != (API_VERSION, f"{entry.name}Args"):
            message = f"{version} {kind} does not belong here; accepted: {API_VERSION} {entry.name}Args"
            raise InvalidConfig(source, [ConfigError(where, message)])
        if not enabled and entry.name != MigrationController.name:
            return _unused(args, model, source, where)
    return validate_model(args, model, source, where)


def _unused(args: dict[str, Any], model: type[ConfigModel], source: str, where: str) -> Any:
    """Arguments of a plugin that does not run: they must be ones of that plugin, but nobody judges their values."""
    try:
        return validate_model(args, model, source, where)
    except InvalidConfig as error:
        check_shape(args, model, source, where)
        log.warning("%s; it would be refused if the plugin were enabled", error)
        return args


def _known_only(args: Mapping[str, Any], model: type[ConfigModel], name: str, where: str) -> dict[str, Any]:
    """Arguments of an adapted community plugin: a field that it does not know is left out, as upstream does, but not in silence."""
    known = [field.alias or key for key, field in model.model_fields.items()]
    for key in args:
        if key not in known and key not in ("apiVersion", "kind"):
            log.warning("%s.%s: %s does not know this argument%s; it is ignored", where, key, name, did_you_mean(key, known))
    return {key: value for key, value in args.items() if key in known}


def parse_configuration(text: str, source: str) -> DeschedulerConfiguration:
    """Decode, default and validate a configuration file's text, but for the arguments of plugins. Raises InvalidConfig with every path."""
    return parse_data(decode(text, source), source)


def parse_data(data: Any, source: str) -> DeschedulerConfiguration:
    """The same for decoded data."""
    return validate(_without_nulls(data), {(API_VERSION, KIND): DeschedulerConfiguration}, source)


def resolve(config: DeschedulerConfiguration, source: str) -> list[ResolvedProfile]:
    """The profiles with everything decoded, every plugin known and one that evicts. Raises InvalidConfig with all mistakes."""
    profiles: list[ResolvedProfile] = []
    wrong: list[ConfigError] = []
    for index, profile in enumerate(config.profiles):
        try:
            profiles.append(ResolvedProfile(profile, index, source))
            _check_plugins(profiles[-1], index, source)
        except InvalidConfig as error:
            wrong += error.errors
    if wrong:
        raise InvalidConfig(source, wrong)
    return profiles


def _without_nulls(value: Any) -> Any:
    """A null is a field that was left out."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _check_plugins(profile: ResolvedProfile, index: int, source: str) -> None:
    """Refuse plugins that do not exist, do not implement the point, or stand there twice; require exactly one Evict plugin."""
    for point, names in profile.plugins.items():
        for name in names:
            if problem := _plugin_problem(name, point, names):
                raise InvalidConfig(source, [ConfigError(f"profiles[{index}].plugins.{point}.enabled", problem)])
    if (count := len(profile.plugins["evict"])) != 1:
        message = f"exactly one plugin must be enabled, found {count}"
        raise InvalidConfig(source, [ConfigError(f"profiles[{index}].plugins.evict", message)])


def _plugin_problem(name: str, point: str, names: list[str]) -> str:
    registered = registry.POINTS
    if name not in registered:
        return f"plugin {name!r} does not exist{did_you_mean(name, registered)}; accepted: {', '.join(sorted(registered))}"
    if point not in registered[name]:
        return f"plugin {name} does not implement {point}; it implements {', '.join(sorted(registered[name]))}"
    return f"plugin {name} is already registered" if names.count(name) > 1 else ""
