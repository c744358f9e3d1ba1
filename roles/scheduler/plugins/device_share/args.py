"""Arguments of DeviceShare (SCH-CFG-01)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from koord.api import names
from koord.config.model import ConfigModel
from roles.scheduler.config.args import PluginArgs, ResourceWeight

_SCORED = (names.RESOURCE_GPU_MEMORY_RATIO, names.RESOURCE_GPU_MEMORY, names.RESOURCE_RDMA, names.RESOURCE_FPGA)


def _scored() -> list[ResourceWeight]:
    return [ResourceWeight(name=name, weight=1) for name in _SCORED]


class TypicalPod(ConfigModel):
    """A kind of pods that typically asks for GPUs."""

    requests: dict[str, str]
    """What each of them requests: GPUs, and CPU and memory with them."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes on which they run; any node by default."""
    weight: int = Field(default=1, ge=1)
    """How many of them come, compared with the others."""


class DeviceScoringStrategy(ConfigModel):
    """How nodes, and devices on a node, are preferred: the emptiest, the fullest, or those where least is stranded."""

    type: Literal["LeastAllocated", "MostAllocated", "LeastStranded"] = "LeastAllocated"
    """`LeastAllocated` prefers empty devices, `MostAllocated` full ones, `LeastStranded` the node and the card whose use leaves most of the
    GPUs usable by what typically asks; the latter looks at GPUs only, and at pods without devices, too."""
    typical_pods: list[TypicalPod] = Field(default_factory=list)
    """For LeastStranded: what typically asks. By default it is learnt from the last 4,096 pods that asked for GPUs."""
    resources: list[ResourceWeight] = Field(default_factory=_scored)
    """Device resources that count, with weights 1 to 100."""

    @model_validator(mode="after")
    def _sound(self) -> DeviceScoringStrategy:
        if self.typical_pods and self.type != "LeastStranded":
            raise ValueError(f"typicalPods is for type LeastStranded, not for {self.type}")
        if not self.resources:
            self.resources = _scored()
        return self


class TemplatesConfig(ConfigModel):
    """The ConfigMap with the templates of shared devices, and the resources whose requests must equal one of them."""

    config_map_namespace: str = Field(default="koordinator-system", min_length=1)
    """Namespace of the ConfigMap with templates."""
    config_map_name: str = Field(default="gpu-shared-resource-templates", min_length=1)
    """Name of that ConfigMap."""
    matched_resources: list[str] = Field(default_factory=lambda: [names.RESOURCE_HUAWEI_NPU_CORE])
    """Resources whose requests must equal a template."""


class GPUModel(ConfigModel):
    """A model of cards, as the node labels `gpu-vendor` and `gpu-model` name it."""

    vendor: str = ""
    """Value of the node label gpu-vendor."""
    model: str = ""
    """Value of the node label gpu-model."""


class DeviceShareArgs(PluginArgs):
    """DeviceShare. `allocator` chooses nothing: it is accepted because old configurations have it."""

    allocator: str = ""
    """Accepted and left alone, for old files."""
    scoring_strategy: DeviceScoringStrategy = Field(default_factory=DeviceScoringStrategy)
    """How nodes and devices are preferred."""
    disable_device_numa_topology_alignment: bool = Field(default=False, alias="disableDeviceNUMATopologyAlignment")
    """Do not align devices with NUMA nodes."""
    gpu_shared_resource_templates_config: TemplatesConfig = Field(default_factory=TemplatesConfig, alias="gpuSharedResourceTemplatesConfig")
    """Where the templates of shared devices are."""
    gpu_share_unsupported_models: list[GPUModel] = Field(default_factory=list)
    """Models whose cards are only given whole."""
