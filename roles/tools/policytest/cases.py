"""Cases in files: what is given, what happens then, and what must come of it (BEY-POL-01)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, model_validator

from koord.config import plainyaml
from koord.config.errors import ConfigError
from koord.config.loader import translate
from koord.config.model import ConfigModel
from koord.config.positions import Positions
from koord.process.errors import ConfigurationError
from roles.tools.folders import meant

LEVELS = ("Guaranteed", "Burstable", "BestEffort")


class Given(ConfigModel):
    """The cluster. `objects` are whole objects, `files` paths beside the file of the case."""

    objects: list[dict[str, Any]] = Field(default_factory=list)
    files: list[str] = Field(default_factory=list)
    scheduler_config: str = ""
    """KubeSchedulerConfiguration: a path; the installed one if it is empty."""
    feature_gates: str = ""
    """The scheduler's."""
    agent_feature_gates: str = ""
    """koordlet's: `BEMemoryEvict=true`, say."""


class Faults(ConfigModel):
    """What fails. Names of nodes."""

    down: list[str] = Field(default_factory=list)
    """Nodes that are not heard of any more."""
    silent: list[str] = Field(default_factory=list)
    """Nodes whose koordlet does not report any more."""


class When(ConfigModel):
    """What happens: see `koord simulate`."""

    add: list[dict[str, Any]] = Field(default_factory=list)
    files: list[str] = Field(default_factory=list)
    drain: list[str] = Field(default_factory=list)
    more: list[str] = Field(default_factory=list)
    fewer: list[str] = Field(default_factory=list)
    usage: float = Field(1.0, ge=0, le=100)
    after: str = "0s"
    """How long nobody has reported since (`20m`)."""
    pressure: dict[str, dict[str, str | int]] = Field(default_factory=dict)
    """What nodes use, by name and resource: an amount, or a share of what they have (`95%`)."""
    faults: Faults = Field(default_factory=Faults)


class Placed(ConfigModel):
    """A pod gets a node: this one, one of these, or any."""

    pod: str
    node: str | list[str] = ""


class Pending(ConfigModel):
    """A pod gets none, and the reason holds this text."""

    pod: str
    because: str = ""


class Admitted(ConfigModel):
    """A new pod passes admission and holds this much then; lists are compared item by item."""

    pod: str
    has: dict[str, Any] = Field(default_factory=dict)


class Offers(ConfigModel):
    """What a node offers, by resource; 0 also for a resource that it does not have."""

    node: str
    amounts: dict[str, str | int]


class SuppressedTo(ConfigModel):
    """On a node best-effort pods want more CPU than koordlet leaves them: so much, in cores (`1500m`)."""

    node: str
    to: str | int


class Files(ConfigModel):
    """Cgroup files that koordlet writes, as cgroup v1 spells them (`cpu.shares: 2048`): of a pod, of one of its containers, or of a
    node's level of Kubernetes QoS (Guaranteed, Burstable or BestEffort)."""

    pod: str = ""
    container: str = ""
    node: str = ""
    level: str = ""
    values: dict[str, str | int]

    @model_validator(mode="after")
    def _whose(self) -> Files:
        if bool(self.pod) == bool(self.node) or bool(self.node) != bool(self.level) or (self.container and not self.pod):
            raise ValueError("must name a pod (and a container), or a node and a level")
        if self.level and self.level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}")
        return self


class Expectation(ConfigModel):
    """One of them."""

    placed: Placed | None = None
    pending: Pending | None = None
    admitted: Admitted | None = None
    refused: Pending | None = None
    offers: Offers | None = None
    fits: bool | None = None
    victims: list[str] | None = None
    """Pods that would have to leave for others."""
    lost: list[str] | None = None
    hot: list[str] | None = None
    free: list[str] | None = None
    suppressed: SuppressedTo | None = None
    unsuppressed: list[str] | None = None
    """Nodes on which best-effort pods get what they want."""
    evicted: list[str] | None = None
    """Pods that koordlet evicts."""
    files: Files | None = None

    @model_validator(mode="after")
    def _one(self) -> Expectation:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"must hold one of {', '.join(field for field in type(self).model_fields)}")
        return self

    @property
    def kind(self) -> str:
        (name,) = self.model_fields_set
        return name


class Case(ConfigModel):
    """One case. Its `given` is laid over that of the file: objects replace those of their name."""

    name: str
    given: Given = Field(default_factory=Given)
    when: When = Field(default_factory=When)
    then: list[Expectation] = Field(min_length=1)


class CaseFile(ConfigModel):
    """A file of cases with what is given in all of them."""

    given: Given = Field(default_factory=Given)
    cases: list[Case] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file that was read."""

    path: Path
    content: CaseFile
    places: Positions

    def line(self, path: str) -> int:
        """The line of a field."""
        return self.places.of(path).line


def find(names: tuple[str, ...]) -> Iterator[Path]:
    """Files; of folders those that end with `_test.yaml` or `_test.yml`. Raises ConfigurationError."""
    for name in names:
        path = Path(name)
        found = sorted(filter(meant, path.rglob("*_test.y*ml"))) if path.is_dir() else [path]
        if not found:
            raise ConfigurationError(f"{name}: no *_test.yaml in this folder")
        yield from found


def load(path: Path) -> Loaded:
    """Read a file. Raises ConfigurationError: one line for each mistake, with its place."""
    try:
        text = path.read_text()
        node = yaml.compose(text, yaml.SafeLoader)
        data = plainyaml.load(text)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {' '.join(str(error).split())}") from error
    if node is None or not isinstance(data, dict):
        raise ConfigurationError(f"{path}: must be a mapping with `cases`")
    places = Positions(node, text)
    if wrong := mistakes(data):
        raise ConfigurationError("\n".join(f"{path}:{places.of(each.path).line}: {each}" for each in wrong))
    return Loaded(path, CaseFile.model_validate(data), places)


def schema() -> dict[str, Any]:
    """The JSON schema of a file (draft 2020-12)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **CaseFile.model_json_schema(by_alias=True)}


def mistakes(data: Any) -> list[ConfigError]:
    """What is wrong with the content of a file, with the path of each mistake."""
    try:
        CaseFile.model_validate(data)
    except ValidationError as error:
        return translate(error, CaseFile)
    return []
