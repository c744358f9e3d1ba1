"""Which usage thresholds hold on a node for which pods (SCH-LA-01..04)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from koord.api.annotations import AnnotationError, parse_usage_thresholds
from koord.api.times import parse_duration
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.config.args import LoadAwareSchedulingArgs

log = logging.getLogger(__name__)

Values = tuple[float, ...]


class Choice(NamedTuple):
    """The one group of thresholds that applies: percent by resource (0 = not checked), and the usage it looks at.

    `mode` is ("", 0) instantaneous, ("prod", 0), or (aggregation type, window in seconds).
    """

    values: Values
    mode: tuple[str, float] = ("", 0.0)
    aggregated: bool = False

    @property
    def active(self) -> bool:
        """Whether anything is checked at all."""
        return any(value > 0 for value in self.values)


class Thresholds(NamedTuple):
    """The three groups; prod and aggregated are None where there is no such group."""

    plain: Values
    prod: Values | None
    aggregated: Values | None
    aggregation: tuple[str, float]

    def choose(self, *, prod: bool) -> Choice:
        """Prod thresholds for prod pods, else aggregated ones, else the plain ones: one replaces the other."""
        if prod and self.prod is not None:
            return Choice(self.prod, ("prod", 0.0))
        if self.aggregated is not None:
            return Choice(self.aggregated, self.aggregation, aggregated=True)
        return Choice(self.plain)


def _values(group: Mapping[str, int], resources: Sequence[str]) -> Values:
    return tuple(float(group.get(name, 0)) for name in resources)


def _active(group: Mapping[str, int], resources: Sequence[str]) -> Values | None:
    values = _values(group, resources)
    return values if any(value > 0 for value in values) else None


def of_args(args: LoadAwareSchedulingArgs, resources: Sequence[str]) -> Thresholds:
    """The groups that the arguments give."""
    aggregated, aggregation = None, ("", 0.0)
    if args.aggregated is not None and args.aggregated.usage_thresholds and args.aggregated.usage_aggregation_type:
        aggregated = _values(args.aggregated.usage_thresholds, resources)
        aggregation = (args.aggregated.usage_aggregation_type, args.aggregated.usage_aggregated_duration)
    return Thresholds(_values(args.usage_thresholds, resources), _active(args.prod_usage_thresholds, resources), aggregated, aggregation)


def of_node(default: Thresholds, view: NodeView, resources: Sequence[str]) -> Thresholds:
    """The groups of a node: each that its annotation names replaces the default one as a whole; a bad annotation is ignored."""
    try:
        own = parse_usage_thresholds(view.annotations)
        if own is None:
            return default
        result = default
        if own.usage_thresholds:
            result = result._replace(plain=_values(own.usage_thresholds, resources))
        if own.prod_usage_thresholds:
            result = result._replace(prod=_active(own.prod_usage_thresholds, resources))
        group = own.aggregated_usage
        if group is not None and group.usage_thresholds and group.usage_aggregation_type:
            window = parse_duration(group.usage_aggregated_duration) if group.usage_aggregated_duration else 0.0
            result = result._replace(
                aggregated=_values(group.usage_thresholds, resources), aggregation=(group.usage_aggregation_type, window)
            )
    except (AnnotationError, ValueError) as error:
        log.warning("node %s: %s; it is ignored", view.name, error)
        return default
    return result
