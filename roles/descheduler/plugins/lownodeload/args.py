"""Arguments of LowNodeLoad and their inheritance by node pools (DS-LNL-05)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from koord.config.errors import ConfigError
from koord.config.model import ConfigModel, Seconds
from roles.descheduler.percentile import Percentile
from roles.descheduler.reading import MEASURED
from roles.descheduler.selection import Namespaces, PodChoice, PodSelector, optional_selector

Percentages = dict[str, float | int]
_IN_ORDER = (
    ("lowThresholds", "highThresholds"),
    ("prodLowThresholds", "prodHighThresholds"),
    ("prodHighThresholds", "highThresholds"),
)
DEFAULT_TIMEOUT = 60.0
DEFAULT_ABNORMALITIES = 5
DEFAULT_NORMALITIES = 3


class AnomalyCondition(ConfigModel):
    """When a hot node counts as abnormal. Each field has its default alone; a timeout of 0 means 60 s."""

    timeout: Seconds = Field(DEFAULT_TIMEOUT, ge=0)
    """How long a node stays abnormal at most before it is judged afresh; 0 means 1m."""
    consecutive_abnormalities: int = Field(DEFAULT_ABNORMALITIES, ge=0)
    """A node is abnormal after more than so many hot rounds in a row; 1: at once."""
    consecutive_normalities: int = Field(DEFAULT_NORMALITIES, ge=0)
    """It is normal again after more than so many normal rounds in a row."""

    @model_validator(mode="after")
    def _default(self) -> AnomalyCondition:
        self.timeout = self.timeout or DEFAULT_TIMEOUT
        self.consecutive_abnormalities = self.consecutive_abnormalities or DEFAULT_ABNORMALITIES
        self.consecutive_normalities = self.consecutive_normalities or DEFAULT_NORMALITIES
        return self


class PoolAnomalyCondition(ConfigModel):
    """The same of one pool: what is left out, or 0, comes from the top level."""

    timeout: Seconds = Field(0.0, ge=0)
    """As above; 0: the top level's."""
    consecutive_abnormalities: int = Field(0, ge=0)
    """As above; 0: the top level's."""
    consecutive_normalities: int = Field(0, ge=0)
    """As above; 0: the top level's."""

    def over(self, base: AnomalyCondition) -> AnomalyCondition:
        """This one with what it leaves out."""
        return AnomalyCondition(
            timeout=self.timeout or base.timeout,
            consecutive_abnormalities=self.consecutive_abnormalities or base.consecutive_abnormalities,
            consecutive_normalities=self.consecutive_normalities or base.consecutive_normalities,
        )


class Aggregated(ConfigModel):
    """Which usage of a node counts: a percentile over a window. The fields are those of LoadAwareScheduling."""

    usage_aggregation_type: Literal["avg", "p50", "p90", "p95", "p99"]
    """Which aggregate of the NodeMetric is looked at."""
    usage_aggregated_duration: Seconds = Field(0.0, ge=0)
    """Window of that aggregate; 0: the longest that is reported."""


class Thresholds(ConfigModel):
    """The part that the top level and node pools share. Percent of allocatable; None in a pool inherits."""

    node_selector: dict[str, Any] | None = None
    """LabelSelector of the nodes; unset: all."""
    use_deviation_thresholds: bool = False
    """Thresholds are distances from the average usage."""
    low_thresholds: Percentages | None = None
    """Percent of allocatable by resource; a node below all of them takes pods."""
    high_thresholds: Percentages | None = None
    """Percent of allocatable by resource; a node above any of them is hot. At least the low one."""
    prod_low_thresholds: Percentages | None = None
    """The same for usage of Prod pods."""
    prod_high_thresholds: Percentages | None = None
    """The same for usage of Prod pods."""
    resource_weights: dict[str, int] | None = None
    """Weight by resource when nodes and pods are ordered; unset: 1."""

    @model_validator(mode="after")
    def _ordered(self) -> Thresholds:
        for name, values in self._named():
            for resource, percent in values.items():
                if percent < 0:
                    raise ConfigError(f"{name}.{resource}", f"{percent} must be 0 or more")
        self.check_order(self)
        optional_selector(self.node_selector)
        return self

    def check_order(self, base: Thresholds, path: str = "") -> None:
        """No low threshold may be above its high one, also where one of them comes from `base`. Raises ConfigError at `path`."""
        own, inherited = dict(self._named()), dict(base._named())
        for low_name, high_name in _IN_ORDER:
            low, high = own[low_name] or inherited[low_name], own[high_name] or inherited[high_name]
            for resource, percent in low.items():
                if resource in high and percent > high[resource]:
                    whose, above = ("" if each else " from the top level" for each in (own[low_name], own[high_name]))
                    wanted = f"{percent}{whose} must not be above {high_name}.{resource}, {high[resource]}{above}"
                    raise ConfigError(f"{path}{low_name}.{resource}", wanted)

    def _named(self) -> list[tuple[str, Percentages]]:
        return [
            ("lowThresholds", self.low_thresholds or {}),
            ("highThresholds", self.high_thresholds or {}),
            ("prodLowThresholds", self.prod_low_thresholds or {}),
            ("prodHighThresholds", self.prod_high_thresholds or {}),
        ]


class NodePool(Thresholds):
    """Nodes with thresholds of their own; what is missing comes from the top level."""

    name: str = ""
    """Name of the pool; stands in records."""
    anomaly_condition: PoolAnomalyCondition | None = None
    """When a hot node of this pool is abnormal."""


class LowNodeLoadArgs(Thresholds):
    """LowNodeLoad (DS-LNL-01..08)."""

    anomaly_condition: AnomalyCondition | None = None
    """When a hot node is abnormal, so that pods leave."""

    paused: bool = False
    """Do nothing."""
    dry_run: bool = False
    """Decide and record, evict nothing."""
    number_of_nodes: int = Field(0, ge=0)
    """Pods leave only if more than so many nodes are below the low thresholds."""
    node_metric_expiration_seconds: int = Field(180, gt=0)
    """Age in seconds from which a NodeMetric is too old: such a node is left out."""
    aggregated: Aggregated | None = None
    """Judge nodes by a percentile of their usage where they report one; unset: by their average usage. Not known upstream."""
    evictable_namespaces: Namespaces | None = None
    """Namespaces whose pods may leave."""
    pod_selectors: list[PodSelector] = []
    """Pods that may leave; one matching selector is enough. Empty: all."""
    node_fit: bool = True
    """A pod may leave only if another node would take it."""
    detector_cache_timeout: Seconds = Field(300.0, ge=0)
    """How long what was observed of a node is kept."""
    node_pools: list[NodePool] = []
    """Groups of nodes with thresholds of their own; each takes the matching nodes that were not found hot by one before it."""

    @model_validator(mode="after")
    def _selectors(self) -> LowNodeLoadArgs:
        PodChoice(self.evictable_namespaces, self.pod_selectors)
        for index, pool in enumerate(self.node_pools):
            pool.check_order(self, f"nodePools[{index}].")
        return self

    @property
    def percentile(self) -> Percentile | None:
        """What counts as used on a node; None: the average."""
        by = self.aggregated
        return Percentile(by.usage_aggregation_type, by.usage_aggregated_duration) if by is not None else None

    def pools(self) -> list[Pool]:
        """The implicit first pool of the top-level fields, then the configured ones."""
        return [Pool("__default_node_pool__", self, self), *(Pool(pool.name, pool, self) for pool in self.node_pools)]


class Pool:
    """Thresholds of one pool with everything inherited, for the resources that they name and memory."""

    def __init__(self, name: str, own: Thresholds, base: LowNodeLoadArgs) -> None:
        self.name = name
        self.deviation = own.use_deviation_thresholds
        self.selector = optional_selector(own.node_selector)
        filler = 0.0 if self.deviation else 100.0
        low, high = _inherit(own.low_thresholds, base.low_thresholds), _inherit(own.high_thresholds, base.high_thresholds)
        prod_low = _inherit(own.prod_low_thresholds, base.prod_low_thresholds)
        prod_high = _inherit(own.prod_high_thresholds, base.prod_high_thresholds)
        self.lopsided = sorted(low.keys() ^ high.keys()) + sorted(f"prod {name}" for name in prod_low.keys() ^ prod_high.keys())
        named = low.keys() | high.keys() | prod_low.keys() | prod_high.keys()
        self.resources: tuple[str, ...] = tuple(sorted(named | {"memory"}))
        self.known = MEASURED & named
        """What a node's report must tell of."""
        self.low, self.high = _completed(self.resources, low, high, filler)
        self.prod_low, self.prod_high = _completed(self.resources, prod_low, prod_high, filler)
        self.prod_enabled = bool(prod_low or prod_high)
        self.anomaly = base.anomaly_condition or AnomalyCondition()
        if isinstance(own, NodePool) and own.anomaly_condition is not None:
            self.anomaly = own.anomaly_condition.over(self.anomaly)
        weights = dict(own.resource_weights or base.resource_weights or {})
        for resource in ("cpu", "memory", *low, *high):
            if weights.get(resource, 0) <= 0:
                weights[resource] = 1
        self.weights = weights


def _inherit(own: Percentages | None, base: Percentages | None) -> dict[str, float]:
    return {name: float(value) for name, value in (own or base or {}).items()}


def _completed(
    resources: tuple[str, ...], low: dict[str, float], high: dict[str, float], filler: float
) -> tuple[dict[str, float], dict[str, float]]:
    """A resource that `low` does not name is filled on both sides, and so ignored (DS-LNL-02).

    One that only `low` names makes no node hot. Upstream would take its missing high threshold for 0, and evict from every node."""
    full_low = {name: low.get(name, filler) for name in resources}
    return full_low, {name: (high.get(name, 100.0) if name in low else filler) for name in resources}
