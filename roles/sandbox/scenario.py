"""Scenario files of `koord sandbox`: what the simulated nodes, the service, the load, the batch jobs and the phases are.

Strict: an unknown field or a wrong type is one clear error with its path. Every field has a default, and the defaults are the demo.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import orjson
from pydantic import Field, field_validator, model_validator

from koord.api.quantity import parse_milli
from koord.config import slo
from koord.config.errors import ConfigError
from koord.config.gates import MANAGER, FeatureGates
from koord.config.loader import load_component_config
from koord.config.model import ConfigModel

API_VERSION = "sandbox.koordinator.sh/v1alpha1"
KIND = "Scenario"

PhaseKind = Literal["alone", "koord", "shares", "unmanaged"]


class Nodes(ConfigModel):
    """The simulated nodes."""

    count: int = Field(4, ge=0, le=5000)
    """How many; `--nodes` overrides it."""
    cpus: int = Field(32, ge=1, le=1024)
    """CPUs of each."""
    memory_gib: int = Field(128, ge=1, le=65536)
    """Memory of each in GiB."""
    pods_per_node: int = Field(3, ge=0, le=100)
    """Latency-sensitive pods already on each; their curves go round steady, diurnal and bursty."""
    batch_pods: int = Field(8, ge=0, le=50_000)
    """Batch pods created for the simulated nodes, through the same profile as those of this machine."""
    period_seconds: float = Field(600.0, gt=0)
    """Length of a simulated day."""


class Service(ConfigModel):
    """The latency-sensitive HTTP service on this machine."""

    namespace: str = "shop"
    """Namespace of the service."""
    cpu_milliseconds_per_request: float = Field(1.5, gt=0, le=1000)
    """CPU work of one request, calibrated on this machine before the start."""
    workers: int = Field(2, ge=1, le=64)
    """Processes that share the service's port."""
    cpu_request: str = "1200m"
    """What the service asks for: sized for its peak, so mostly idle, which is what is offered again."""
    memory_request: str = "256Mi"
    """Memory request of the service."""


class LoadStep(ConfigModel):
    """A constant arrival rate for some time."""

    rate: float = Field(gt=0, le=100_000)
    """Requests per second."""
    seconds: float = Field(gt=0, le=3600)
    """How long the step lasts, in seconds."""


class Load(ConfigModel):
    """The open-loop load generator."""

    cpu_request: str = "200m"
    """CPU request of the load generator."""
    steps: list[LoadStep] = Field(
        default_factory=lambda: [
            LoadStep(rate=40, seconds=7),
            LoadStep(rate=400, seconds=9),
            LoadStep(rate=40, seconds=7),
            LoadStep(rate=400, seconds=9),
        ],
        min_length=1,
    )
    """The steps of one phase, the same in every phase."""


class Batch(ConfigModel):
    """The batch jobs."""

    namespace: str = "batch"
    """Namespace whose label a ClusterColocationProfile selects: its pods become BE and use batch resources."""
    unmanaged_namespace: str = "batch-unmanaged"
    """Namespace without the label: the same jobs as ordinary pods."""
    cpu_burners: int = Field(3, ge=0, le=256)
    """Pods that burn CPU."""
    cpu_request: str = ""
    """CPU request of a burner, the same in every phase; the profile turns it into batch-cpu. Empty: what fits into koord's offer."""
    memory_burners: int = Field(1, ge=0, le=64)
    """Pods that hold memory."""
    memory_mib: int = Field(192, ge=1, le=65536)
    """Memory that each of those holds, in MiB."""
    memory_request: str = "256Mi"
    """Memory request of each batch pod."""

    @field_validator("cpu_request")
    @classmethod
    def _check_request(cls, value: str) -> str:
        if value and parse_milli(value) < 1:
            raise ValueError("must be a CPU quantity above 0, for example 100m, or empty")
        return value


class Phase(ConfigModel):
    """One phase of the demo."""

    kind: PhaseKind
    """alone: no batch; unmanaged: batch as ordinary pods, shares: as BestEffort pods, koord's strategies off; koord: through koord."""


class NodeAgent(ConfigModel):
    """The settings of koordlet on this machine."""

    feature_gates: str = ""
    """As in `--feature-gates`."""
    pressure_triggers: bool = True
    """Whether kernel pressure may start suppression between ticks (`--pressure-triggers`)."""


class Scheduler(ConfigModel):
    """The scheduler's settings."""

    configuration: dict[str, Any] | None = None
    """A KubeSchedulerConfiguration as a mapping; without it the profile that koord is installed with, koord-scheduler."""
    plugin_paths: list[str] = Field(default_factory=list)
    """Files and folders with plugins of your own (`--plugin-path`)."""
    network_topology: bool = False
    """Whether it reads ClusterNetworkTopology/default (`--enable-network-topology-manager`)."""


class Manager(ConfigModel):
    """The manager's settings."""

    feature_gates: str = ""
    """As in `--feature-gates`."""

    @field_validator("feature_gates")
    @classmethod
    def _check_gates(cls, value: str) -> str:
        try:
            FeatureGates(MANAGER).set_from_flag(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value


def _default_slo() -> dict[str, dict[str, Any]]:
    return {
        "colocation-config": {
            "enable": True,
            "metricAggregateDurationSeconds": 60,
            "metricReportIntervalSeconds": 30,
            "cpuReclaimThresholdPercent": 95,
            "memoryReclaimThresholdPercent": 80,
            "updateTimeThresholdSeconds": 30,
            "resourceDiffThreshold": 0.05,
        },
        "resource-threshold-config": {
            "clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cfsQuota"},
        },
    }


def _default_descheduler() -> dict[str, Any]:
    return {"dryRun": True, "deschedulingInterval": "30s"}


class Scenario(ConfigModel):
    """A scenario file."""

    api_version: Literal["sandbox.koordinator.sh/v1alpha1"] = "sandbox.koordinator.sh/v1alpha1"
    """Version of the file's kind."""
    kind: Literal["Scenario"] = "Scenario"
    """Kind of the file."""
    title: str = "A service and batch jobs on one node"
    """Title of the report."""
    nodes: Nodes = Field(default_factory=Nodes)
    """Simulated nodes."""
    service: Service = Field(default_factory=Service)
    """The latency-sensitive service."""
    load: Load = Field(default_factory=Load)
    """What the service is asked."""
    batch: Batch = Field(default_factory=Batch)
    """The batch jobs."""
    scheduler: Scheduler = Field(default_factory=Scheduler)
    """The scheduler's settings."""
    manager: Manager = Field(default_factory=Manager)
    """The manager's settings."""
    node_agent: NodeAgent = Field(default_factory=NodeAgent)
    """The node agent's settings."""
    phases: list[Phase] = Field(default_factory=lambda: [Phase(kind="alone"), Phase(kind="koord"), Phase(kind="unmanaged")], min_length=1)
    """In the order in which they run. `koord` needs a NodeMetric report, which the agent first makes after 30 s."""
    repeats: int = Field(2, ge=0, le=10)
    """How often a phase is measured again that something else on this machine disturbed."""
    activity: bool = False
    """Whether jobs come and go, pods wait and a node gets hot while `koord sandbox up` runs; it does so without a scenario file."""
    slo_controller_config: dict[str, dict[str, Any]] = Field(default_factory=_default_slo)
    """The keys of the ConfigMap slo-controller-config, as mappings."""
    descheduler_configuration: dict[str, Any] = Field(default_factory=_default_descheduler)
    """A DeschedulerConfiguration without its head and addresses. The default only lists what it would evict."""

    @model_validator(mode="after")
    def _check_slo(self) -> Scenario:
        result = slo.parse(self.config_data(), previous=None)
        if result.errors:
            raise ValueError("sloControllerConfig: " + "; ".join(str(e) for e in result.errors))
        kinds = [p.kind for p in self.phases]
        if len(set(kinds)) != len(kinds):
            raise ValueError("phases: each kind may occur once")
        return self

    def config_data(self, *, strategies: bool = True) -> dict[str, str]:
        """`data` of slo-controller-config. Without `strategies` co-location and suppression are off, as with no koord at all."""
        data = {key: orjson.dumps(value).decode() for key, value in self.slo_controller_config.items()}
        if not strategies:
            data["colocation-config"] = orjson.dumps({**self.slo_controller_config.get("colocation-config", {}), "enable": False}).decode()
            data["resource-threshold-config"] = orjson.dumps({"clusterStrategy": {"enable": False}}).decode()
            if "resource-qos-config" in data:
                data["resource-qos-config"] = orjson.dumps({"clusterStrategy": {}}).decode()
        return data

    def suppress_threshold(self) -> int:
        """Percent of the node below which best effort is held."""
        strategy = self.slo_controller_config.get("resource-threshold-config", {}).get("clusterStrategy", {})
        return int(strategy.get("cpuSuppressThresholdPercent", 65))

    def phase_seconds(self) -> float:
        """Length of the load of one phase."""
        return sum(step.seconds for step in self.load.steps)

    def stretched(self, seconds: float) -> Scenario:
        """The same scenario with the load of all phases taking `seconds` together; the steps keep their proportions."""
        factor = seconds / (self.phase_seconds() * len(self.phases))
        steps = [step.model_copy(update={"seconds": step.seconds * factor}) for step in self.load.steps]
        return self.model_copy(update={"load": self.load.model_copy(update={"steps": steps})})


def load(path: str | os.PathLike[str] | None) -> Scenario:
    """Read a scenario file; None gives the demo. Raises `koord.config.errors.InvalidConfig`."""
    if path is None:
        return Scenario()
    return load_component_config(path, {(API_VERSION, KIND): Scenario})
