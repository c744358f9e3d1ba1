"""Templates of shared devices (vNPU): a request must be one of them exactly (SCH-DEV-14). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from koord.accounting.resources import parse
from koord.api import names
from koord.api.objects import convert
from koord.config import plainyaml
from koord.config.errors import ConfigError
from roles.scheduler.plugins.device_share.amounts import Wanted

DATA_KEY = "data.yaml"

_Unit = tuple[tuple[str, int], ...]


class Templates:
    """Templates by model ("<vendor>-<model>"), and the resources whose requests need one. Immutable; a new ConfigMap makes a new one."""

    def __init__(self, matched: frozenset[str], table: Mapping[str, Mapping[str, _Unit]] | None = None) -> None:
        self._matched = matched
        self._table = table or {}

    def read(self, text: str) -> Templates:
        """The templates of a ConfigMap's text. Raises ConfigError with the path of what is wrong."""
        try:
            content = plainyaml.load(text)
        except yaml.YAMLError as error:
            raise ConfigError(DATA_KEY, f"not valid YAML: {error}") from error
        try:
            models = convert(content or {}, dict[str, dict[str, dict[str, str | int | float]]])
        except msgspec.ValidationError as error:
            raise ConfigError(DATA_KEY, f"{error}; accepted: model -> template -> resources") from error
        return Templates(
            self._matched,
            {model: {name: _unit(f"{model}.{name}", amounts) for name, amounts in of.items()} for model, of in models.items()},
        )

    def applies(self, wanted: Wanted) -> bool:
        """Whether a request needs a template: a shared one for a matched resource."""
        return wanted.shared and any(name in self._matched for name, _ in wanted.unit)

    def known(self, wanted: Wanted) -> bool:
        """Whether some model has a template for the request."""
        return any(wanted.unit in of.values() for of in self._table.values())

    def on(self, labels: Mapping[str, str], wanted: Wanted) -> str:
        """The template of the node's model that the request equals, the first by name of several; "" for none."""
        model = f"{labels.get(names.LABEL_GPU_VENDOR, '')}-{labels.get(names.LABEL_GPU_MODEL, '')}"
        return min((name for name, unit in self._table.get(model, {}).items() if unit == wanted.unit), default="")


def _unit(where: str, amounts: Mapping[str, Any]) -> _Unit:
    try:
        return tuple(sorted((name, amount) for name, amount in parse(amounts).items() if amount))
    except ValueError as error:
        raise ConfigError(f"{DATA_KEY}.{where}", str(error)) from error
