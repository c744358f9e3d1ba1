"""The scheduler, with the configuration of the scenario or the profile that koord is installed with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from roles.sandbox import profile

if TYPE_CHECKING:
    from roles.sandbox.compose import Sandbox


def config_file(sandbox: Sandbox) -> str:
    """The user's own file, or the scenario's configuration, written into the run's scratch directory."""
    if sandbox.scheduler_config is not None:
        return sandbox.scheduler_config
    path = sandbox.scratch / "scheduler.yaml"
    given = sandbox.scenario.scheduler.configuration
    # JSON is YAML: what the scenario has as a mapping is read like any other file.
    path.write_bytes(orjson.dumps(profile.configuration(profile.plugin_config()) if given is None else given))
    return str(path)


async def start(sandbox: Sandbox) -> None:
    """Build the App on the sandbox's client and cache and let it live. Raises InvalidConfig or ConfigurationError."""
    from koord.config.scheduler import load
    from koord.process.errors import ConfigurationError
    from roles.scheduler.app import App
    from roles.scheduler.framework.registry import PluginError
    from roles.scheduler.options import Options

    ops = sandbox.endpoint("scheduler")
    settings = sandbox.scenario.scheduler
    options = Options(load(config_file(sandbox)), network_topology=settings.network_topology, plugin_paths=tuple(settings.plugin_paths))
    try:
        app = App(options, client=sandbox.client, informers=sandbox.informers, recorder=sandbox.recorders["scheduler"], ops=ops)
    except PluginError as error:
        raise ConfigurationError(f"scheduler: {error}") from error
    await sandbox.serve("scheduler", app)


def sources(sandbox: Sandbox) -> list[str]:
    """The user's own configuration, and files and folders with plugins of their own."""
    return [*sandbox.scenario.scheduler.plugin_paths, *([] if sandbox.scheduler_config is None else [sandbox.scheduler_config])]


def arguments(sandbox: Sandbox) -> list[str]:
    """The same configuration as flags."""
    flags = [f"--config={config_file(sandbox)}", "--address=127.0.0.1", f"--port={sandbox.port('scheduler')}"]
    flags += [f"--plugin-path={path}" for path in sandbox.scenario.scheduler.plugin_paths]
    return [*flags, "--enable-network-topology-manager"] if sandbox.scenario.scheduler.network_topology else flags
