"""Arguments of NodeNUMAResource."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from koord.api.names import RESOURCE_CPU, RESOURCE_MEMORY
from koord.config.model import ConfigModel
from roles.scheduler.config.args import PluginArgs, ResourceWeight


def _cpu_and_memory() -> list[ResourceWeight]:
    return [ResourceWeight(name=RESOURCE_CPU, weight=1), ResourceWeight(name=RESOURCE_MEMORY, weight=1)]


class NumaScoringStrategy(ConfigModel):
    """How nodes or NUMA nodes are scored: by what stays free or by what is used."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    """`LeastAllocated` spreads, `MostAllocated` packs."""
    resources: list[ResourceWeight] = Field(default_factory=_cpu_and_memory)
    """Resources that count, with weights 1 to 100."""

    @model_validator(mode="after")
    def _some(self) -> NumaScoringStrategy:
        if not self.resources:
            self.resources = _cpu_and_memory()
        return self


class NodeNUMAResourceArgs(PluginArgs):
    """NodeNUMAResource. An explicit empty `defaultCPUBindPolicy` binds only pods that ask for it; `numaScoringStrategy.type` is also the
    default order in which NUMA nodes are filled."""

    default_cpu_bind_policy: Literal["", "FullPCPUs", "SpreadByPCPUs"] = Field(default="FullPCPUs", alias="defaultCPUBindPolicy")
    """How CPUs are chosen for pods that are to be bound and do not say how: `FullPCPUs`, `SpreadByPCPUs`, or empty."""
    scoring_strategy: NumaScoringStrategy = Field(default_factory=NumaScoringStrategy)
    """How nodes are scored."""
    numa_scoring_strategy: NumaScoringStrategy = Field(default_factory=NumaScoringStrategy)
    """How NUMA nodes of a node are preferred."""
