"""Profiles made from a checked configuration: plugins, doors, limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from koord.config.selectors import compile_selector
from roles.descheduler import registry
from roles.descheduler.config import DeschedulerConfiguration, ResolvedProfile, resolve
from roles.descheduler.framework.evicting import Controller, Evicting, Setup
from roles.descheduler.framework.limits import Limits
from roles.descheduler.framework.plugin import Plugin
from roles.descheduler.framework.round import Profile, Rounds
from roles.descheduler.placement import SchedulerFlags

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


def rounds(options: Options, setup_of: SetupOf) -> Rounds:
    """Everything that runs in rounds. `setup_of(profile)` gives the doors of a profile what they need."""
    config = options.config
    selector = compile_selector(config.node_selector) if config.node_selector is not None else None
    limits = Limits(
        config.max_no_of_pods_to_evict_per_node, config.max_no_of_pods_to_evict_per_namespace, config.max_no_of_pods_to_evict_total
    )
    profiles = [_profile(profile, config.descheduling_interval, setup_of(profile.name)) for profile in options.profiles]
    grace = config.grace_period_seconds
    return Rounds(profiles, selector=selector, limits=limits, dry_run=config.dry_run, grace_period=grace)


def _profile(profile: ResolvedProfile, interval: float, setup: Setup) -> Profile:
    doors: dict[str, Evicting] = {}
    for name in (*profile.plugins["evict"], *profile.plugins["filter"]):
        if name not in doors:
            doors[name] = registry.EVICTOR_TYPES[name].make(profile.args[name], setup)
    plugins: dict[str, list[Plugin]] = {
        point: [registry.PLUGIN_TYPES[name].make(profile.args[name], interval) for name in profile.plugins[point]]
        for point in ("deschedule", "balance")
    }
    selector = compile_selector(profile.node_selector) if profile.node_selector is not None else None
    filters = [doors[name] for name in profile.plugins["filter"]]
    return Profile(profile.name, selector, doors[profile.plugins["evict"][0]], filters, plugins, profile.observe)


def controllers(profiles: Sequence[Profile]) -> list[Controller]:
    """What runs beside the rounds; one that several doors share counts once."""
    found: dict[int, Controller] = {}
    for profile in profiles:
        for door in profile.doors():
            for controller in door.controllers():
                found[id(controller)] = controller
    return list(found.values())


def lists_only(options: Options) -> bool:
    """Whether anything is only listed: the whole configuration, or a plugin by its own arguments."""
    enabled = {name for profile in options.profiles for names in profile.plugins.values() for name in names}
    dry = (getattr(args, "dry_run", False) for profile in options.profiles for name, args in profile.args.items() if name in enabled)
    observed = any(profile.observe for profile in options.profiles)
    return options.config.dry_run or observed or any(dry)
