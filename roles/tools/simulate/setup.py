"""The scheduler that is asked: one from flags, or the one that koord is installed with."""

from __future__ import annotations

from typing import Any

import yaml

from koord.config.errors import ConfigError
from koord.config.gates import SCHEDULER, FeatureGates
from koord.config.scheduler import load, parse
from koord.process.errors import ConfigurationError
from roles.descheduler.build import Options
from roles.descheduler.cli import read
from roles.descheduler.config import parse_data
from roles.scheduler.engine import registry
from roles.scheduler.framework.registry import PluginError
from roles.scheduler.whatif import Scheduler
from roles.tools import manifests
from roles.tools.kustomize import LOADER

_KIND = "KubeSchedulerConfiguration"


def scheduler_of(path: str, feature_gates: str, plugin_paths: tuple[str, ...]) -> Scheduler:
    """The scheduler of these flags; without a file the one that koord is installed with. Raises ConfigurationError, ConfigError."""
    gates = FeatureGates(SCHEDULER)
    gates.set_from_flag(feature_gates)
    try:
        config = load(path) if path else parse(_installed(), "the installed profile")
        return Scheduler(config, registry(plugin_paths), {name: gates.enabled(name) for name in SCHEDULER})
    except (PluginError, ValueError) as error:
        raise ConfigurationError(str(error)) from error


def descheduler_of(path: str) -> Options:
    """The descheduler of this file; without one the one that koord is installed with. Raises ConfigurationError."""
    try:
        if path:
            return read(path, {})
        source = "the installed configuration of the descheduler"
        return Options(parse_data(_installed("DeschedulerConfiguration"), source), source)
    except ConfigError as error:
        raise ConfigurationError(str(error)) from error


def _installed(kind: str = _KIND) -> Any:
    for document in manifests.documents("install"):
        if document["kind"] == "ConfigMap":
            for text in (document.get("data") or {}).values():
                if f"kind: {kind}" in text:
                    return yaml.load(text, LOADER)
    raise ConfigurationError(f"the manifests hold no {kind}")
