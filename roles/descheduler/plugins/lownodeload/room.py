"""How much room the targets of a pass have, asked of all of them at once (DS-LNL-07). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from koord.accounting.resources import add_into
from roles.descheduler.columns import Columns
from roles.descheduler.plugins.lownodeload.classify import Placed
from roles.descheduler.relief import pod_use
from roles.descheduler.snapshot import PodView, Vector

Expected = dict[str, list[tuple[PodView, Vector]]]
"""By node: the pods that were sent there in this turn, whatever the pool and the pass, each with what it will use."""


def used(node: Placed, name: str, *, prod: bool, expected: Expected) -> int:
    """What is used of a resource, with what is on its way."""
    view = node.view
    arriving = view.prod_arriving if prod else view.arriving
    sent = sum(pod_use(each, name) for pod, each in expected.get(view.name, ()) if pod.is_prod or not prod)
    return node.usage(prod=prod).get(name, 0) + arriving.get(name, 0) + sent


def headroom(nodes: Iterable[Placed], expected: Expected, *, prod: bool) -> Vector:
    """What the nodes can take before they are hot, per resource. A node that what is on its way will fill has none to give: what is too
    much there takes nothing from the others."""
    total: Vector = {}
    for node in nodes:
        left = {name: max(bound - used(node, name, prod=prod, expected=expected), 0) for name, bound in node.high(prod=prod).items()}
        add_into(total, left)
    return total


class Room:
    """How far each target is below its thresholds: a row a threshold, a column a target.

    The thresholds are those of the node, and where Prod pods have thresholds of their own, those too: a pod that is taken for the one must
    not make the node hot by the other. What was sent to a target earlier in the turn (`expected`) is used."""

    def __init__(
        self,
        targets: Iterable[Placed],
        resources: Sequence[str],
        columns: Columns,
        expected: Expected,
        *,
        with_prod: bool,
    ) -> None:
        self.targets = sorted(targets, key=lambda target: target.view.name)
        self._numbers = {target.view.name: number for number, target in enumerate(self.targets)}
        self._rows = [(name, prod) for prod in ((False, True) if with_prod else (False,)) for name in resources]
        self._columns = columns
        self._among = columns.rows([target.view for target in self.targets])
        self._place = np.array([columns.row(target.view.name) for target in self.targets], dtype=np.int64)
        high = [[target.high(prod=prod)[name] for target in self.targets] for name, prod in self._rows]
        self._high = np.array(high, dtype=np.float64)
        self._per_high = np.divide(1.0, self._high, out=np.zeros_like(self._high), where=self._high > 0)
        self._unbounded = (self._high <= 0).astype(np.float64)  # nothing may be used there, so it says nothing about who has most room
        taken = [[used(target, name, prod=prod, expected=expected) for target in self.targets] for name, prod in self._rows]
        self._left = self._high - np.array(taken, dtype=np.float64)
        self._expected = expected

    def _column(self, usage: Vector, is_prod: bool) -> Any:
        return np.array([0 if prod and not is_prod else pod_use(usage, name) for name, prod in self._rows], dtype=np.float64)

    def best(self, view: PodView, usage: Vector, count: int, *, node_fit: bool) -> list[Placed]:
        """Targets that stay at or below every threshold with the pod, and that it fits: the one that keeps the largest smallest share of
        its thresholds comes first, then by name. At most `count`."""
        if not self.targets:
            return []
        after = self._left - self._column(usage, view.is_prod)[:, None]
        share = (after * self._per_high + self._unbounded).min(axis=0)
        good = after.min(axis=0) >= 0
        good &= (self._columns.fitting(view, self._among) if node_fit else self._among)[self._place]
        numbers = np.flatnonzero(good)
        order = np.argsort(-share[numbers], kind="stable")[:count]
        return [self.targets[number] for number in numbers[order]]

    def nearest(self, view: PodView, usage: Vector, *, node_fit: bool) -> str:
        """Which target comes nearest to taking the pod, and what is missing there: something of a threshold, or what node fit says."""
        if not self.targets:
            return "no node is low"
        fit = self._columns.fitting(view, self._among)[self._place] if node_fit else np.ones(len(self.targets), dtype=bool)
        if not fit.any():
            reasons = self._columns.why_not(view, self._among, community=False)
            told = ", ".join(f"{count} x {why}" for why, count in sorted(reasons.items()))
            return f"of {len(self.targets)} low nodes: {told}"
        short = np.minimum(self._left - self._column(usage, view.is_prod)[:, None], 0.0)
        share = np.where(fit, (short * self._per_high).min(axis=0), -np.inf)
        number = int(share.argmax())
        lacks = [f"{int(-short[row, number])} of {name}" for row, (name, _) in enumerate(self._rows) if short[row, number] < 0]
        return f"{self.targets[number].view.name} would be above its threshold by {', '.join(dict.fromkeys(lacks))}"

    def take(self, target: Placed, view: PodView, usage: Vector) -> None:
        """Count a pod at a target for the rest of the turn."""
        self._left[:, self._numbers[target.view.name]] -= self._column(usage, view.is_prod)
        self._expected.setdefault(target.view.name, []).append((view, usage))
        self._columns.expect(target.view.name, view)
