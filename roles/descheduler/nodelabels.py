"""Labels of all nodes by column, so that a rule about labels looks at each value once and not at each node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from koord.api.selectors import NodeSelector, NodeSelectorTerm, Requirement
from roles.descheduler.snapshot import NodeView

Rows = Any  # numpy array of bool, one a node


@dataclass(slots=True)
class Column:
    """A label: its values in order, and of each node the number of the one that it has, -1 for none."""

    values: list[str]
    numbers: dict[str, int]
    codes: Any

    @classmethod
    def of(cls, found: Sequence[str | None]) -> Column:
        """From the value that each node has."""
        values = sorted({value for value in found if value is not None})
        numbers = {value: number for number, value in enumerate(values)}
        return cls(values, numbers, np.array([-1 if value is None else numbers[value] for value in found], dtype=np.int64))

    def holding(self, rule: Requirement) -> Rows:
        """The nodes whose value satisfies a condition on this label."""
        holds = np.zeros(len(self.values) + 1, dtype=bool)  # the last one is that of nodes without: -1 counts from the end
        if rule.operator in ("In", "NotIn"):
            holds[[number for value in rule.values if (number := self.numbers.get(value)) is not None]] = True
            if rule.operator == "NotIn":
                holds = ~holds
        else:
            holds[:-1] = [rule.holds({rule.key: value}) for value in self.values]
            holds[-1] = rule.holds({})
        return holds[self.codes]


class NodeLabels:
    """A column is made with the first question about its label."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        self._nodes = nodes
        self._columns: dict[str, Column] = {}
        self._names: Column | None = None

    def column(self, key: str) -> Column:
        """A label of all nodes."""
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = Column.of([node.node.metadata.labels.get(key) for node in self._nodes])
        return found

    def suited(self, selector: Mapping[str, str], affinity: NodeSelector | None) -> Rows:
        """The nodes that a node selector and a compiled node affinity (None: there is none) mean."""
        found = np.ones(len(self._nodes), dtype=bool)
        for key, value in selector.items():
            found &= self.column(key).holding(Requirement(key, "In", frozenset({value})))
        if affinity is None:
            return found
        return found & reduce(np.logical_or, map(self._term, affinity.terms), np.zeros(len(self._nodes), dtype=bool))

    def _term(self, term: NodeSelectorTerm) -> Rows:
        found = np.full(len(self._nodes), bool(term.expressions or term.fields))
        for rule in term.expressions:
            found &= self.column(rule.key).holding(rule)
        for rule in term.fields:
            if self._names is None:
                self._names = Column.of([node.name for node in self._nodes])
            found &= self._names.holding(rule)
        return found
