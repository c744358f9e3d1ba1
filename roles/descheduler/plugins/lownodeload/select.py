"""Which pods leave hot nodes, until the nodes are cool or the low nodes are full (DS-LNL-06, DS-LNL-07). Pure but for `evict`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from koord.accounting.resources import add_into, sub_into
from roles.descheduler.nodefit import unfit
from roles.descheduler.picture import PodView, Vector, restrict
from roles.descheduler.plugins.lownodeload.args import Pool
from roles.descheduler.plugins.lownodeload.classify import Placed, over
from roles.descheduler.plugins.lownodeload.order import hottest_first, leaving_order


@dataclass(slots=True)
class Candidate:
    """One pod that is to leave, why, and where it would fit."""

    pod: PodView
    source: Placed
    reason: str
    target: str
    numbers: dict[str, float | int | str]


@dataclass(slots=True)
class Pass:
    """One pass over hot (or prod-hot) nodes with the low nodes that may take their pods."""

    pool: Pool
    prod: bool
    sources: list[Placed]
    targets: list[Placed]
    budget: Vector
    expected: dict[str, Vector] = field(default_factory=dict)  # target node -> usage of pods sent there in thought
    placed: dict[str, Vector] = field(default_factory=dict)  # target node -> their requests

    def usage(self, node: Placed) -> Vector:
        return (node.view.prod_usage if self.prod else node.view.usage) or {}

    def high(self, node: Placed) -> Vector:
        return node.bounds.prod_high if self.prod else node.bounds.high


def headroom(nodes: Iterable[Placed], *, prod: bool) -> Vector:
    """What the nodes can take before they are hot, per resource; a node above its threshold counts against the others."""
    total: Vector = {}
    for node in nodes:
        usage = (node.view.prod_usage if prod else node.view.usage) or {}
        high = node.bounds.prod_high if prod else node.bounds.high
        add_into(total, {name: bound - usage.get(name, 0) for name, bound in high.items()})
    return total


def find_target(candidate: PodView, run: Pass) -> str | None:
    """The target that keeps the most room after taking the pod; the pod's usage and requests are then kept there. None: fits nowhere."""
    if candidate.usage is None:
        return None
    best: tuple[float, str] | None = None
    for target in run.targets:
        if unfit(candidate, target.view, run.placed.get(target.view.name)):
            continue
        room = _room_after(candidate, target, run)
        if room is not None and (best is None or (-room, target.view.name) < best):
            best = (-room, target.view.name)
    if best is None:
        return None
    name = best[1]
    add_into(run.expected.setdefault(name, {}), candidate.usage)
    add_into(run.placed.setdefault(name, {}), candidate.requests)
    return name


def _room_after(candidate: PodView, target: Placed, run: Pass) -> float | None:
    """The smallest share of a threshold that is left after the pod, None when one is passed."""
    usage, expected = run.usage(target), run.expected.get(target.view.name, {})
    room = 1.0
    for name, bound in run.high(target).items():
        after = usage.get(name, 0) + expected.get(name, 0) + (candidate.usage or {}).get(name, 0)
        if after > bound:
            return None
        if bound:
            room = min(room, (bound - after) / bound)
    return room


Refuse = Callable[[PodView], str]
Evict = Callable[[Candidate], bool]


def relieve(run: Pass, refuse: Refuse, evict: Evict, *, node_fit: bool) -> dict[str, str]:
    """Evict from each source, hottest first, until it is cool or the budget is spent. Returns why each source was left."""
    outcome: dict[str, str] = {}
    if not run.targets:
        return {node.view.name: "no node can take its pods" for node in run.sources}
    by_name = {node.view.name: node for node in run.sources}
    for view in hottest_first([node.view for node in run.sources], run.pool.weights):
        outcome[view.name] = _relieve_node(by_name[view.name], run, refuse, evict, node_fit)
    return outcome


def _relieve_node(source: Placed, run: Pass, refuse: Refuse, evict: Evict, node_fit: bool) -> str:
    usage, high = run.usage(source), run.high(source)
    hot = over(usage, high)
    excess = {name: usage[name] - high[name] for name in hot}
    possible = [view for view in source.view.pods if (view.is_prod or not run.prod) and not refuse(view)]
    evicted = 0
    for view in leaving_order(possible, excess, run.pool.weights):
        if not over(usage, high):
            return f"cool after {evicted} evictions"
        if spent := [name for name, left in sorted(run.budget.items()) if left <= 0]:
            return f"the low nodes have no room left for {', '.join(spent)}"
        target = find_target(view, run) if node_fit else ""
        if target is None:
            continue
        reason, numbers = explain(source, run, hot)
        if not evict(Candidate(view, source, reason, target, numbers)):
            continue
        evicted += 1
        if view.usage is not None:
            gone = {**restrict(view.usage, run.pool.resources), "pods": 1}
            sub_into(usage, gone)
            if run.prod and source.view.usage is not None:
                sub_into(source.view.usage, gone)
            sub_into(run.budget, {name: value for name, value in gone.items() if name in run.budget})
    return (
        f"cool after {evicted} evictions"
        if not over(usage, high)
        else f"still hot after {evicted} evictions: no other pod may or can leave"
    )


def explain(source: Placed, run: Pass, hot: list[str]) -> tuple[str, dict[str, float | int | str]]:
    """The reason text and the numbers behind it: utilisation and threshold of each overused resource in percent."""
    usage, percents = run.usage(source), run.pool.prod_high if run.prod else run.pool.high
    scope = "prod" if run.prod else "node"
    parts: list[str] = []
    numbers: dict[str, float | int | str] = {}
    for name in hot:
        capacity = source.view.allocatable.get(name, 0)
        used = 100.0 * usage.get(name, 0) / capacity if capacity else 0.0
        parts.append(f"{scope} {name} usage({used:.2f}%)>threshold({percents[name]:.2f}%)")
        numbers[f"{scope}.{name}.usage"] = usage.get(name, 0)
        numbers[f"{scope}.{name}.threshold"] = run.high(source)[name]
        numbers[f"{scope}.{name}.allocatable"] = capacity
    return "node is overutilized, " + ", ".join(parts), numbers
