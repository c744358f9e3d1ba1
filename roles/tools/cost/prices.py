"""The price file: what a node, a core and a gibibyte cost in an hour (BEY-COST-01)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from koord.api import names
from koord.config.errors import InvalidConfig
from koord.config.loader import decode, located, validate_model
from koord.config.model import ConfigModel
from koord.process.errors import ConfigurationError


class Rates(ConfigModel):
    """Money for an hour."""

    cpu: float = Field(ge=0)
    """Of a core."""
    memory: float = Field(ge=0)
    """Of a gibibyte."""


class NodePrice(ConfigModel):
    """What nodes of a kind cost as a whole."""

    match: dict[str, str] = {}
    """Labels that such a node has; none match every node."""
    hourly: float = Field(ge=0)
    """Money for an hour of the node."""


class Prices(ConfigModel):
    """A price file."""

    currency: str = "USD"
    """Shown beside amounts; nothing is converted."""
    cpu: float = Field(ge=0)
    """Of a core-hour, where no `nodes` entry matches; the ratio of `cpu` and `memory` divides the price of whole nodes."""
    memory: float = Field(ge=0)
    """Of a gibibyte-hour."""
    batch: Rates = Rates(cpu=0.0, memory=0.0)
    """What batch pods pay for what they request of reclaimed resources."""
    mid: Rates = Rates(cpu=0.0, memory=0.0)
    """What mid pods pay."""
    nodes: list[NodePrice] = []
    """Prices of whole nodes; the first that matches counts."""

    def of_node(self, labels: Mapping[str, str], cores: float, gibibytes: float) -> NodeRates:
        """What a core and a gibibyte of a node cost."""
        plain = self.cpu * cores + self.memory * gibibytes
        for price in self.nodes:
            if price.match.items() <= labels.items():
                if plain:
                    return NodeRates(self.cpu * price.hourly / plain, self.memory * price.hourly / plain)
                return NodeRates(price.hourly / cores if cores else 0.0, 0.0)
        return NodeRates(self.cpu, self.memory)


@dataclass(frozen=True, slots=True)
class NodeRates:
    """Money for an hour of a core and of a gibibyte of one node."""

    cpu: float
    memory: float


TIERS = {
    names.RESOURCE_BATCH_CPU: ("batch", "cpu"),
    names.RESOURCE_BATCH_MEMORY: ("batch", "memory"),
    names.RESOURCE_MID_CPU: ("mid", "cpu"),
    names.RESOURCE_MID_MEMORY: ("mid", "memory"),
}
"""Resources that are paid at rates of their own."""


def load(path: str) -> Prices:
    """Read a price file. Raises ConfigurationError with file, line and what is accepted."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--prices {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return validate_model(decode(text, path), Prices, path)
    except InvalidConfig as error:
        raise ConfigurationError(str(located(error, text))) from error
