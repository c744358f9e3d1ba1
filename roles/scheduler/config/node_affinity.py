"""A NodeAffinity in a configuration file (SCH-CFG-01): as in a pod, but what would silently match nothing is refused."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from koord.api.selectors import node_selector_term
from koord.config.errors import ConfigError
from koord.config.model import ConfigModel


class NodeSelectorRequirement(ConfigModel):
    """A condition on one label or field."""

    key: str
    """Label key; in matchFields `metadata.name`."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the node's value is compared; in matchFields `In` or `NotIn`."""
    values: list[str] = Field(default_factory=list)
    """Values to compare with: none with Exists and DoesNotExist, one integer with Gt and Lt, one name in matchFields."""


class NodeSelectorTerm(ConfigModel):
    """Conditions that must all hold; at least one."""

    match_expressions: list[NodeSelectorRequirement] = Field(default_factory=list)
    """Conditions on the node's labels."""
    match_fields: list[NodeSelectorRequirement] = Field(default_factory=list)
    """Conditions on the node's name."""

    @model_validator(mode="after")
    def _usable(self) -> NodeSelectorTerm:
        if not self.match_expressions and not self.match_fields:
            raise ConfigError("", "needs matchExpressions or matchFields: an empty term matches no node")
        node_selector_term(self)
        return self


class NodeSelector(ConfigModel):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] = Field(default_factory=list)
    """Terms of which one must hold; at least one, and none of them empty. kube-scheduler accepts both, and then no node matches."""

    @model_validator(mode="after")
    def _usable(self) -> NodeSelector:
        if not self.node_selector_terms:
            raise ConfigError("nodeSelectorTerms", "needs at least one term: without any, no node matches")
        return self


class PreferredSchedulingTerm(ConfigModel):
    """A term that nodes should meet."""

    weight: int = Field(ge=1, le=100)
    """How much the term counts against the others."""
    preference: NodeSelectorTerm
    """The term; not empty."""


class NodeAffinity(ConfigModel):
    """core/v1 NodeAffinity."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """What nodes must meet."""
    preferred_during_scheduling_ignored_during_execution: list[PreferredSchedulingTerm] = Field(default_factory=list)
    """What nodes should meet."""
