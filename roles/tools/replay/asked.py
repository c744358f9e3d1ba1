"""What `--with` names: a configuration of one of the roles, or another koord."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from koord.config import plainyaml, slo
from koord.config.errors import ConfigError
from koord.config.scheduler import KubeSchedulerConfiguration, load
from koord.config.slo import SLOConfig
from koord.process.errors import ConfigurationError
from roles.descheduler.build import Options
from roles.descheduler.cli import read
from roles.tools.replay.versions import executable_of


@dataclass(frozen=True, slots=True)
class Asked:
    """One of these, or none. `role` is whose configuration it is, "" for none."""

    role: str = ""
    program: str | None = None
    scheduler: KubeSchedulerConfiguration | None = None
    slo: SLOConfig | None = None
    descheduler: Options | None = None

    @classmethod
    def of(cls, other: str) -> Asked:
        """Read it. Raises ConfigurationError."""
        if not other:
            return cls()
        program = executable_of(other)
        if program is not None:
            return cls(program=program)
        document = _document(other)
        try:
            if document.get("kind") == "ConfigMap":
                return cls("manager", slo=_slo(other, document))
            if document.get("kind") == "DeschedulerConfiguration":
                return cls("descheduler", descheduler=read(other, {}))
            return cls("scheduler", scheduler=load(other))
        except ConfigError as error:
            raise ConfigurationError(str(error)) from error


def _document(path: str) -> dict[str, Any]:
    """The first object of a file; an empty one for what its reader is to complain of."""
    try:
        found = next(iter(plainyaml.load_all(Path(path).read_bytes())), None)
    except (OSError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _slo(path: str, document: dict[str, Any]) -> SLOConfig:
    result = slo.parse(document.get("data") or {}, previous=None)
    if result.errors:
        raise ConfigurationError("; ".join(f"{path}: {error}" for error in result.errors))
    return result.config
