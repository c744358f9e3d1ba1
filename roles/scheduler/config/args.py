"""Arguments of the scheduler's plugins: upstream's kinds, defaults and limits (SCH-CFG-01).

Strict: unknown fields are refused. `apiVersion` and `kind` may be left out; when given they must name the plugin's own kind.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from koord.api.names import RESOURCE_CPU, RESOURCE_MEMORY
from koord.api.selectors import validate_key
from koord.config.errors import ConfigError
from koord.config.model import ConfigModel, Seconds
from koord.config.scheduler import API_VERSION
from roles.scheduler.config.node_affinity import NodeAffinity

LabelKey = Annotated[str, AfterValidator(validate_key)]
Percent = Annotated[int, Field(ge=0, le=100)]
AggregationType = Literal["", "avg", "p50", "p90", "p95", "p99"]


class PluginArgs(ConfigModel):
    """Base: the two type fields. The kind is the class's name."""

    api_version: Literal["kubescheduler.config.k8s.io/v1"] = API_VERSION
    """May be left out; when given it is this one."""
    kind: str = ""
    """May be left out; when given it is the name of this kind."""

    @model_validator(mode="after")
    def _kind(self) -> PluginArgs:
        wanted = type(self).__name__
        if self.kind not in ("", wanted):
            raise ConfigError("kind", f"{self.kind!r} does not fit this plugin; accepted: {wanted}")
        return self


class ResourceWeight(ConfigModel):
    """A resource that counts in a score, with its weight."""

    name: str = Field(min_length=1)
    """Resource name."""
    weight: int = Field(default=1, ge=1, le=100)
    """How much it counts against the others."""


def _cpu_and_memory() -> list[ResourceWeight]:
    return [ResourceWeight(name=RESOURCE_CPU, weight=1), ResourceWeight(name=RESOURCE_MEMORY, weight=1)]


class UtilizationShapePoint(ConfigModel):
    """A point of the RequestedToCapacityRatio function: utilization in percent, score 0..10."""

    utilization: Percent
    """Share of the node that is used, 0 to 100 percent."""
    score: int = Field(ge=0, le=10)
    """Score at that utilization."""


def _rising(shape: list[UtilizationShapePoint]) -> None:
    for index in range(1, len(shape)):
        if shape[index].utilization <= shape[index - 1].utilization:
            raise ConfigError(f"shape[{index}].utilization", "must be higher than the one before")


class RequestedToCapacityRatioParam(ConfigModel):
    """The function of RequestedToCapacityRatio."""

    shape: list[UtilizationShapePoint] = Field(default_factory=list)
    """Points of the function, by rising utilization; between them it is a straight line. At least one."""

    @model_validator(mode="after")
    def _usable(self) -> RequestedToCapacityRatioParam:
        if not self.shape:
            raise ConfigError("shape", "needs at least one point")
        _rising(self.shape)
        return self


class ScoringStrategy(ConfigModel):
    """How NodeResourcesFit scores."""

    type: Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"] = "LeastAllocated"
    """`LeastAllocated` spreads, `MostAllocated` packs, `RequestedToCapacityRatio` follows a function."""
    resources: list[ResourceWeight] = Field(default_factory=_cpu_and_memory)
    """Resources that count, with their weights."""
    requested_to_capacity_ratio: RequestedToCapacityRatioParam | None = None
    """The function of RequestedToCapacityRatio; required there."""

    @model_validator(mode="after")
    def _complete(self) -> ScoringStrategy:
        if not self.resources:
            self.resources = _cpu_and_memory()
        if self.type == "RequestedToCapacityRatio" and self.requested_to_capacity_ratio is None:
            raise ConfigError("requestedToCapacityRatio", "is required by type RequestedToCapacityRatio")
        return self


class NodeResourcesFitArgs(PluginArgs):
    """NodeResourcesFit. Ignored resources are extended ones; groups are name prefixes before the slash."""

    ignored_resources: list[str] = Field(default_factory=list)
    """Extended resources that are not looked at. Others, such as cpu or kubernetes.io/batch-cpu, always are."""
    ignored_resource_groups: list[str] = Field(default_factory=list)
    """Domains (the part before the slash) of extended resources that are not looked at."""
    scoring_strategy: ScoringStrategy = Field(default_factory=ScoringStrategy)
    """How nodes are scored."""

    @model_validator(mode="after")
    def _groups(self) -> NodeResourcesFitArgs:
        for index, group in enumerate(self.ignored_resource_groups):
            if not group or "/" in group:
                raise ConfigError(f"ignoredResourceGroups[{index}]", f"{group!r} must be the part of a resource name before the slash")
        return self


class NodeResourcesBalancedAllocationArgs(PluginArgs):
    """NodeResourcesBalancedAllocation."""

    resources: list[ResourceWeight] = Field(default_factory=_cpu_and_memory)
    """Resources whose shares should be alike; weights must be 1."""

    @model_validator(mode="after")
    def _weights(self) -> NodeResourcesBalancedAllocationArgs:
        for index, entry in enumerate(self.resources):
            if entry.weight != 1:
                raise ConfigError(f"resources[{index}].weight", f"must be 1, got {entry.weight}")
        if not self.resources:
            self.resources = _cpu_and_memory()
        return self


class NodeAffinityArgs(PluginArgs):
    """NodeAffinity."""

    added_affinity: NodeAffinity | None = None
    """A NodeAffinity that every pod of the profile gets besides its own."""


class InterPodAffinityArgs(PluginArgs):
    """InterPodAffinity."""

    hard_pod_affinity_weight: Percent = 1
    """Weight of required terms of running pods that match the new pod, 0 to 100."""
    ignore_preferred_terms_of_existing_pods: bool = False
    """Score without the preferred terms of running pods."""


class TopologySpreadConstraint(ConfigModel):
    """A constraint as in a pod, without what selects the pods that count."""

    max_skew: int = Field(gt=0)
    """How many more matching pods a domain may have than the emptiest one."""
    topology_key: LabelKey
    """Node label whose values are the domains."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """`DoNotSchedule` refuses nodes, `ScheduleAnyway` scores them."""
    min_domains: int | None = Field(default=None, gt=0)
    """With fewer domains the emptiest one counts as having no pods. Only with DoNotSchedule; unset: 1."""
    node_affinity_policy: Literal["Honor", "Ignore"] = "Honor"
    """Whether nodes that the pod's node selector and node affinity rule out are left out of the count."""
    node_taints_policy: Literal["Honor", "Ignore"] = "Ignore"
    """Whether nodes with taints that the pod does not tolerate are left out of the count."""
    label_selector: dict[str, Any] | None = None
    """Must not be set: the selector is derived from the pod's Services and owner."""
    match_label_keys: list[str] | None = None
    """Must not be set, either; kube-scheduler accepts it here and ignores it."""

    @model_validator(mode="after")
    def _usable(self) -> TopologySpreadConstraint:
        for key, value in (("labelSelector", self.label_selector), ("matchLabelKeys", self.match_label_keys)):
            if value is not None:
                raise ConfigError(key, "must not be set: the selector is derived from the pod")
        if self.min_domains is not None and self.when_unsatisfiable != "DoNotSchedule":
            raise ConfigError("minDomains", "may only be set if whenUnsatisfiable is DoNotSchedule")
        return self


class PodTopologySpreadArgs(PluginArgs):
    """PodTopologySpread: constraints for pods that name none."""

    default_constraints: list[TopologySpreadConstraint] = Field(default_factory=list)
    """Constraints for pods that name none. Only with defaultingType List."""
    defaulting_type: Literal["System", "List"] = "System"
    """`System`: kube-scheduler's two soft constraints by host and zone; `List`: those of defaultConstraints."""

    @model_validator(mode="after")
    def _constraints(self) -> PodTopologySpreadArgs:
        if self.defaulting_type == "System" and self.default_constraints:
            raise ConfigError("defaultConstraints", "must be empty when defaultingType is System")
        seen: set[tuple[str, str]] = set()
        for index, one in enumerate(self.default_constraints):
            if (one.topology_key, one.when_unsatisfiable) in seen:
                told = f"there is already a constraint with topologyKey {one.topology_key} and {one.when_unsatisfiable}"
                raise ConfigError(f"defaultConstraints[{index}]", told)
            seen.add((one.topology_key, one.when_unsatisfiable))
        return self


class DynamicResourcesArgs(PluginArgs):
    """DynamicResources: limits of allocating claims."""

    filter_timeout: Seconds = Field(default=10.0, ge=0)
    """How long the search for an allocation on one node may take; 0s: as long as it takes. It ends after 20,000 tries in any case."""
    binding_timeout: Seconds = Field(default=600.0, ge=1)
    """How long a pod waits for the conditions of its devices before they are given back, 1s at least; from the allocation on."""
    device_order: Literal["AsListed", "Together"] = "AsListed"
    """Which devices of a node are tried first: as they are listed, like kube-scheduler, or so that a pod's devices share NUMA nodes and
    PCIe roots, and groups of devices and divided cards stay whole; nodes where that succeeds come first, too."""


class DefaultPreemptionArgs(PluginArgs):
    """DefaultPreemption: how many nodes are tried at least."""

    min_candidate_nodes_percentage: Percent = 10
    """Share of nodes that is tried at least, 0 to 100 percent; more are until one breaks no PodDisruptionBudget."""
    min_candidate_nodes_absolute: int = Field(default=100, ge=0)
    """Number of nodes that is tried at least. Not both 0."""

    @model_validator(mode="after")
    def _some(self) -> DefaultPreemptionArgs:
        if self.min_candidate_nodes_percentage == 0 and self.min_candidate_nodes_absolute == 0:
            raise ConfigError("minCandidateNodesPercentage", "must not be zero together with minCandidateNodesAbsolute")
        return self


class LoadAwareAggregated(ConfigModel):
    """Thresholds and scores on aggregated (percentile) usage. Durations in seconds; 0 is the longest recorded window."""

    usage_thresholds: dict[str, Percent] = Field(default_factory=dict)
    """Percent of allocatable by resource, 0 to 100, above which a node's aggregated usage refuses pods; replaces usageThresholds."""
    usage_aggregation_type: AggregationType = ""
    """Which aggregate the thresholds look at."""
    usage_aggregated_duration: Seconds = 0.0
    """Window of that aggregate; 0: the longest that is reported."""
    score_aggregation_type: AggregationType = ""
    """Which aggregate scores look at; empty: the latest usage."""
    score_aggregated_duration: Seconds = 0.0
    """Window of that aggregate; 0: the longest that is reported."""

    @model_validator(mode="after")
    def _durations(self) -> LoadAwareAggregated:
        for key, value in (
            ("usageAggregatedDuration", self.usage_aggregated_duration),
            ("scoreAggregatedDuration", self.score_aggregated_duration),
        ):
            if value < 0:
                raise ConfigError(key, "must not be negative")
        return self


class LoadAwareSchedulingArgs(PluginArgs):
    """LoadAwareScheduling. Thresholds and factors in percent."""

    filter_expired_node_metrics: bool = True
    """Whether a node whose NodeMetric is too old is refused."""
    enable_schedule_when_node_metrics_expired: bool = False
    """Let such a node pass unchecked instead. Only read where the field before is true."""
    node_metric_expiration_seconds: int = Field(default=180, gt=0)
    """Age in seconds from which a NodeMetric is too old."""
    resource_weights: dict[str, Annotated[int, Field(ge=1, le=100)]] = Field(default_factory=dict)
    """Weight of each resource in the score; empty with dominantResourceWeight 0: cpu 1, memory 1."""
    dominant_resource_weight: Percent = 0
    """Weight of the fullest resource's score, 0 to 100; 0: it does not count apart."""
    usage_thresholds: dict[str, Percent] = Field(default_factory=dict)
    """Percent of allocatable by resource, 0 to 100, above which a node refuses pods; 0 switches a resource off. Empty: cpu 65, memory
    95."""
    prod_usage_thresholds: dict[str, int] = Field(default_factory=dict)
    """The same for usage of Prod pods, looked at for Prod pods; replaces usageThresholds for them."""
    prod_usage_include_sys: bool = False
    """Count the system's usage as Prod usage too."""
    score_according_prod_usage: bool = False
    """Score Prod pods by usage of Prod pods instead of the whole node's."""
    estimator: str = ""
    """Name of the estimator; empty: defaultEstimator."""
    estimated_scaling_factors: dict[str, Annotated[int, Field(ge=1, le=100)]] = Field(default_factory=dict)
    """Percent of its request that a new pod is taken to use, by resource; cpu 85 and memory 70 where left out."""
    estimated_seconds_after_pod_scheduled: int | None = None
    """Seconds after scheduling for which the estimate counts rather than measured usage; unset or ≤ 0: off."""
    estimated_seconds_after_initialized: int | None = None
    """Seconds after a pod became initialized for which the estimate counts; unset or ≤ 0: off."""
    allow_customize_estimation: bool = False
    """Honour the pod annotations `load-estimated-*`."""
    aggregated: LoadAwareAggregated | None = None
    """Thresholds and scores by aggregated usage."""
    supported_resources: list[str] = Field(default_factory=list)
    """More resources that node annotations may set thresholds for."""

    @model_validator(mode="after")
    def _defaults(self) -> LoadAwareSchedulingArgs:
        if not self.resource_weights and self.dominant_resource_weight == 0:
            self.resource_weights = {RESOURCE_CPU: 1, RESOURCE_MEMORY: 1}
        if not self.usage_thresholds:
            self.usage_thresholds = {RESOURCE_CPU: 65, RESOURCE_MEMORY: 95}
        self.estimated_scaling_factors = {RESOURCE_CPU: 85, RESOURCE_MEMORY: 70, **self.estimated_scaling_factors}
        for name in self.resource_weights:
            if name not in self.estimated_scaling_factors:
                raise ConfigError(f"resourceWeights.{name}", "needs an entry in estimatedScalingFactors too")
        return self


class VolumeBindingArgs(PluginArgs):
    """VolumeBinding: seconds to wait for claims to be bound, 0 for no limit, and whether nodes are scored by their storage."""

    bind_timeout_seconds: int = Field(default=600, ge=0)
    """Seconds to wait for claims to be bound; 0: no limit."""
    shape: list[UtilizationShapePoint] = Field(default_factory=list)
    """Score of a node by the share of its storage that the pod's claims would use, by rising utilization. Empty: nodes are not scored, or,
    with gate StorageCapacityScoring, the emptier the better."""

    @model_validator(mode="after")
    def _usable(self) -> VolumeBindingArgs:
        _rising(self.shape)
        return self
