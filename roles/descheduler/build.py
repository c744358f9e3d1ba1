"""Profiles made from a checked configuration: plugins, evictors, limits."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from koord.api import kinds
from koord.config.errors import ConfigError, InvalidConfig
from koord.kube import errors
from koord.kube.client import Client
from roles.descheduler import registry
from roles.descheduler.config import DeschedulerConfiguration, ResolvedProfile, resolve
from roles.descheduler.framework.evicting import Controller, Evicting, Setup
from roles.descheduler.framework.limits import Limits
from roles.descheduler.framework.plugin import Plugin
from roles.descheduler.framework.round import Profile, Rounds
from roles.descheduler.placement import SchedulerFlags
from roles.descheduler.reading import PROMETHEUS
from roles.descheduler.selection import optional_selector
from roles.descheduler.usage import MetricsServer, Prometheus, SourceError, Sources

TOKEN_KEY = "prometheusAuthToken"
SetupOf = Callable[[str], Setup]


class Options:
    """A configuration that can run, and the feature gates. `scheduler` is how the cluster's scheduler is started. Raises InvalidConfig."""

    def __init__(
        self, config: DeschedulerConfiguration, source: str, gates: dict[str, bool] | None = None, scheduler: SchedulerFlags | None = None
    ) -> None:
        self.scheduler = scheduler
        self.config = config
        self.source = source
        self.gates = gates or {}
        self.profiles = resolve(config, source)
        providers = {each.source for each in config.metrics_providers}
        for index, profile in enumerate(self.profiles):
            for name, args in profile.args.items():
                metrics = getattr(args, "metrics_utilization", None)
                if metrics is not None and metrics.source == PROMETHEUS and PROMETHEUS not in providers:
                    where = f"profiles[{index}].pluginConfig: {name}.metricsUtilization.source"
                    raise InvalidConfig(source, [ConfigError(where, "Prometheus needs an entry in metricsProviders that says where it is")])


MakeEvictor = Callable[[str, str, Any], Evicting]
"""A profile's Evict or Filter plugin: profile, name and arguments."""


def rounds(options: Options, setup_of: SetupOf) -> Rounds:
    """Everything that runs in rounds. `setup_of(profile)` gives the evictors of a profile what they need."""
    setup = cache(setup_of)  # one a profile
    return rounds_with(options, lambda profile, name, args: registry.EVICTOR_TYPES[name].make(args, setup(profile)))


def rounds_with(options: Options, make: MakeEvictor) -> Rounds:
    """The same with evictors that somebody else makes."""
    config = options.config
    selector = optional_selector(config.node_selector)
    limits = Limits(
        config.max_no_of_pods_to_evict_per_node, config.max_no_of_pods_to_evict_per_namespace, config.max_no_of_pods_to_evict_total
    )
    profiles = [_profile(profile, config.descheduling_interval, make) for profile in options.profiles]
    grace = config.grace_period_seconds
    return Rounds(profiles, selector=selector, limits=limits, dry_run=config.dry_run, grace_period=grace)


def _profile(profile: ResolvedProfile, interval: float, make: MakeEvictor) -> Profile:
    evictors: dict[str, Evicting] = {}
    for name in (*profile.plugins["evict"], *profile.plugins["filter"]):
        if name not in evictors:
            evictors[name] = make(profile.name, name, profile.args[name])
    plugins: dict[str, list[Plugin]] = {
        point: [registry.PLUGIN_TYPES[name].make(profile.args[name], interval) for name in profile.plugins[point]]
        for point in ("deschedule", "balance")
    }
    selector = optional_selector(profile.node_selector)
    filters = [evictors[name] for name in profile.plugins["filter"]]
    return Profile(profile.name, selector, evictors[profile.plugins["evict"][0]], filters, plugins, profile.observe)


def sources(config: DeschedulerConfiguration, wanted: Iterable[str], client: Client) -> Sources:
    """The sources of usage that plugins read."""
    provider = next((each.prometheus for each in config.metrics_providers if each.source == PROMETHEUS), None)

    async def token() -> str:
        if provider is None or provider.auth_token is None:
            return ""
        where = provider.auth_token.secret_reference
        try:
            secret = await client.get(kinds.SECRETS, where.name, where.namespace)
            return base64.b64decode((secret.get("data") or {})[TOKEN_KEY]).decode().strip()
        except errors.ApiError as error:
            raise SourceError(f"the token in Secret {where.namespace}/{where.name} cannot be read: {error}") from None
        except (KeyError, ValueError):
            raise SourceError(f"Secret {where.namespace}/{where.name} has no readable {TOKEN_KEY}") from None

    found: dict[str, MetricsServer | Prometheus] = {}
    for key in wanted:
        source, _, query = key.partition(" ")
        if source != PROMETHEUS:
            found[key] = MetricsServer(client)
        elif provider is not None:
            found[key] = Prometheus(provider.url, query, token)
    return Sources(found)


def controllers(profiles: Sequence[Profile]) -> list[Controller]:
    """What runs beside the rounds; one that several evictors share counts once."""
    found: dict[int, Controller] = {}
    for profile in profiles:
        for evictor in profile.evictors():
            for controller in evictor.controllers():
                found[id(controller)] = controller
    return list(found.values())


def asks_scheduler(options: Options) -> bool:
    """Whether the scheduler is asked where pods would go: for what is only listed, before pods move for others, and before they leave
    for places that are held."""
    enabled = {(profile.name, name) for profile in options.profiles for names in profile.plugins.values() for name in names}
    args = (args for profile in options.profiles for name, args in profile.args.items() if (profile.name, name) in enabled)
    migrates = any("MigrationController" in profile.plugins["evict"] for profile in options.profiles)
    return migrates or lists_only(options) or any(getattr(each, "gpus", None) is not None for each in args)


def lists_only(options: Options) -> bool:
    """Whether anything is only listed: the whole configuration, or a plugin by its own arguments."""
    enabled = {name for profile in options.profiles for names in profile.plugins.values() for name in names}
    dry = (getattr(args, "dry_run", False) for profile in options.profiles for name, args in profile.args.items() if name in enabled)
    observed = any(profile.observe for profile in options.profiles)
    return options.config.dry_run or observed or any(dry)
