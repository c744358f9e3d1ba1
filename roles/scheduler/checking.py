"""What is wrong with a scheduler's configuration beyond its shape: plugins, their places and their arguments. Nothing is kept running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.config.errors import ConfigError, InvalidConfig
from koord.config.scheduler import KubeSchedulerConfiguration
from roles.scheduler.engine import Engine
from roles.scheduler.framework.framework import build_args
from roles.scheduler.framework.registry import PluginError, Registry


def mistakes(config: KubeSchedulerConfiguration, plugins: Registry, source: str) -> list[ConfigError]:
    """Every mistake in the arguments of plugins; when those are right, what keeps the engine from being built."""
    found: dict[ConfigError, None] = {}
    for profile in config.profiles:
        for entry in profile.plugin_config:
            plugin = plugins.get(entry.name)
            if plugin is not None:  # else told by the engine, which knows whether that matters
                found |= dict.fromkeys(_mistakes_of(build_args, plugin, profile, source))
    return list(found) or _mistakes_of(Engine, config, plugins, source=source)


def _mistakes_of(build: Callable[..., Any], *args: Any, **more: Any) -> list[ConfigError]:
    """What keeps something from being built."""
    try:
        build(*args, **more)
    except InvalidConfig as error:
        return list(dict.fromkeys(error.errors))
    except PluginError as error:
        return [ConfigError(error.path, str(error))]
    return []
