"""Where a pod that leaves a node may go, and for load, up to where those nodes may be used (DS-LNL-07, DS-CP-01). Pure.

The plugin decides it, the migration keeps it: on the job, so that it outlives the process, in the node affinity of the reservation, and
as the question that is asked once more before the pod leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from roles.descheduler.percentile import Percentile, shift, usage_of
from roles.descheduler.snapshot import NodeView, Vector

TARGETS = 16  # nodes that a job names; more would only make its reservation longer
CANDIDATES = 1024  # of which those are taken that the pod's topology spread is open to


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What may be used on a node at most, in base units; above `high` it is hot, above `prod_high` it is hot for Prod pods."""

    high: Vector = field(default_factory=dict)
    prod_high: Vector = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Relief:
    """The nodes that may take the pod, the best one first, and what it uses ({} where nobody knows). `prod`: it counts as a Prod pod.

    `max_age` is the age in seconds from which a node's report says nothing any more; 0: reports do not age. `percentile`: what counts as
    used on a node that reports it, instead of the average."""

    usage: Vector
    nodes: dict[str, Ceiling]
    prod: bool = False
    max_age: float = 0.0
    percentile: Percentile | None = None

    @property
    def for_load(self) -> bool:
        """Whether its nodes must stay cool; else nothing is asked about their load."""
        return any(each.high or each.prod_high for each in self.nodes.values())

    def only(self, names: Iterable[str]) -> Relief:
        """The same, with these of its nodes."""
        return replace(self, nodes={name: self.nodes[name] for name in names})

    def write(self) -> str:
        """As it stands on a job."""
        nodes = {name: {"high": each.high, "prodHigh": each.prod_high} for name, each in self.nodes.items()}
        found: dict[str, Any] = {"usage": self.usage, "prod": self.prod, "maxAgeSeconds": self.max_age, "nodes": nodes}
        if self.percentile is not None:
            found["percentile"] = self.percentile
        return orjson.dumps(found).decode()

    @classmethod
    def read(cls, text: str | None) -> Relief | None:
        """What `write` has written; None if there is nothing that can be read."""
        if not text:
            return None
        try:
            found = orjson.loads(text)
            nodes = {
                str(name): Ceiling(_vector(each["high"]), _vector(each.get("prodHigh") or {})) for name, each in found["nodes"].items()
            }
            by = found.get("percentile")
            percentile = Percentile(str(by["aggregate"]), float(by["window"])) if by else None
            return cls(_vector(found["usage"]), nodes, bool(found.get("prod")), float(found.get("maxAgeSeconds") or 0), percentile)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
            return None

    def refuse(self, view: NodeView) -> str:
        """Why the node must not take the pod now, "" when it may: with what is on its way there and with the pod it must not be hot."""
        ceiling = self.nodes.get(view.name)
        if ceiling is None:
            return f'node "{view.name}" is none of those that were found to have room'
        if not self.for_load:
            return ""
        if view.usage is None:
            return f'node "{view.name}" does not report its load'
        if self.max_age and view.metric_age >= self.max_age:
            return f'node "{view.name}" has not reported its load for {view.metric_age:.0f} s'
        try:
            by = shift(view.metric, self.percentile)
        except ValueError:  # cannot be read: the average counts, as it does in rounds
            by = {}
        questions = [(ceiling.high, usage_of(view, by, prod=False), view.arriving, "")]
        if self.prod and ceiling.prod_high:
            questions.append((ceiling.prod_high, view.prod_usage or {}, view.prod_arriving, " by Prod pods"))
        for high, usage, arriving, whose in questions:
            for name, bound in sorted(high.items()):
                after = usage.get(name, 0) + arriving.get(name, 0) + pod_use(self.usage, name)
                if name in usage and after > bound:
                    return f'node "{view.name}" would use {after} of {name}{whose} with the pod, above {bound} it is hot'
        return ""


def pod_use(usage: Vector, name: str) -> int:
    """What a pod takes of a resource; of pods it takes one."""
    return 1 if name == "pods" else usage.get(name, 0)


def _vector(found: dict[str, int]) -> Vector:
    return {str(name): int(value) for name, value in found.items()}
