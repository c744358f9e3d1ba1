"""What is wrong with a scheduler's configuration beyond its shape: plugins, their places and their arguments. Nothing is kept running."""

from __future__ import annotations

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
            if plugin is None:
                continue  # told by the engine, which knows whether that matters
            try:
                build_args(plugin, profile, source)
            except InvalidConfig as error:
                found |= dict.fromkeys(error.errors)
            except PluginError as error:
                found[ConfigError(error.path, str(error))] = None
    if not found:
        try:
            Engine(config, plugins, source=source)
        except InvalidConfig as error:
            found |= dict.fromkeys(error.errors)
        except PluginError as error:
            found[ConfigError(error.path, str(error))] = None
    return list(found)
