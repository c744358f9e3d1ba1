"""What the node-resource plugins read and what they answer; pure data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from koord.api.objects import Device, Node, NodeMetric, NodeResourceTopology
from koord.api.priority import PriorityClass
from koord.api.qos import QoSClass
from koord.config.colocation import ColocationStrategy
from koord.decisions.record import Term


class PluginError(ValueError):
    """A plugin that cannot decide: it contributes nothing, what stands on the node stays."""


class PodInput(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds resources of the node (phase Running or Pending). cpu in milli, memory in bytes; classes *with default*."""

    key: str
    priority_class: PriorityClass
    qos: QoSClass
    cpu: int
    memory: int
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything about one node at one moment. `now` is Unix time in seconds."""

    node: Node
    strategy: ColocationStrategy
    now: float
    pods: Sequence[PodInput] = ()
    metric: NodeMetric | None = None
    topology: NodeResourceTopology | None = None
    device: Device | None = None
    device_gone: bool = False
    """There was a Device, and it was deleted."""
    normalization: Mapping[str, Any] = field(default_factory=dict)
    amplification: Mapping[str, Any] = field(default_factory=dict)
    count_pods_without_metric: bool = False
    sync_gpu_shared: bool = False
    lower_abnormal: bool = False
    raw_is_kept: bool = True
    """Whether the node webhook keeps the annotation raw-allocatable."""
    smoothing: float = 0.0
    """Half-life in seconds of the way to a new amount of Batch and Mid; 0 is at once."""


ZoneAmounts = Mapping[str, Mapping[str, int]]
"""zone name -> resource name -> amount."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """A plugin's answer. Names in `resources` are set, names in `removed` taken away, everything else is left alone.

    Annotation and label values of None are removed. `ratio` is the fresh CPU normalization ratio (None: not decided).
    """

    plugin: str
    message: str
    resources: Mapping[str, int] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    zones: ZoneAmounts = field(default_factory=dict)
    clear_zones: bool = False
    ratio: float | None = None
    degraded: bool = False
    reasons: Callable[[], tuple[Term, ...]] = tuple
    """Puts the terms together; most decisions are like the last one, and nobody asks."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """What made the answer."""
        return self.reasons()
