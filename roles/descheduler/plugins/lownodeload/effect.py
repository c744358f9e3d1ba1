"""Whether moves help: what a node used before pods left, what was expected of their leaving, and what it uses since (DS-LNL-06). Pure.

A node that does not get cooler though pods leave it is left alone for a while: each of them was restarted for nothing. Where a resource
was used up, nobody can tell: those who stay take what they were short of. Nor is it a move's fault what pods use that were there already
when it was decided, but in no report yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from koord.accounting import resources
from koord.api.times import format_time
from roles.descheduler.arrivals import reported_at
from roles.descheduler.percentile import usage_of
from roles.descheduler.snapshot import NodeView, PodView, Vector, measured

ENOUGH = 0.25  # of what was expected; less than that is no help
FULL = 0.95  # of what a node has
TRIES = 2  # in a row without help, after which the node is left alone
FIRST, LONGEST = 600.0, 3600.0  # seconds


@dataclass(slots=True)
class Move:
    """Pods that were told to leave a node in one round, by uid, with what each used of the resources of `before`, the node's usage then.

    `full` are resources that were used up before, `new` the uids of pods of which `before` tells nothing though they were there. `gone`:
    when all of its pods were seen to have left, in seconds since the epoch."""

    pods: dict[str, Vector]
    before: Vector
    full: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()
    gone: float | None = None

    @property
    def expected(self) -> Vector:
        """What the node uses without the pods."""
        return {name: value - sum(use.get(name, 0) for use in self.pods.values()) for name, value in self.before.items()}

    def uncounted(self, counted: Collection[str]) -> Vector:
        """What those of its pods use of which a node's usage tells nothing any more."""
        gone = [use for uid, use in self.pods.items() if uid not in counted]
        return {name: sum(use.get(name, 0) for use in gone) for name in self.before}

    def begin_at(self, view: NodeView, usage: Vector) -> None:
        """What was before is this: what other moves have brought is theirs."""
        self.full, self.new = used_up(view), self.new & unreported(view)
        self.before |= {name: usage[name] for name in self.before if name in usage}

    def split(self, here: Mapping[str, PodView], now: float) -> Iterator[Move]:
        """Apart: the pods that have left, and those that are here still and do not leave now, whose eviction was refused or has failed.
        As it is while somebody is on the way."""
        stay = {uid: use for uid, use in self.pods.items() if uid in here}
        if self.gone is not None or len(stay) == len(self.pods) or any(here[uid].leaving for uid in stay):
            yield self
            return
        yield replace(self, pods={uid: use for uid, use in self.pods.items() if uid not in stay}, before=dict(self.before), gone=now)
        if stay:
            yield replace(self, pods=stay)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a move has done, by the first report after it."""

    pods: tuple[str, ...]
    before: Vector
    expected: Vector
    after: Vector
    full: bool = False
    """Whether a resource that was to come down was used up, so that its use says nothing."""

    @property
    def helped(self) -> bool:
        """Whether a resource came down by a fair part of what was expected."""
        wanted = {name: self.before[name] - value for name, value in self.expected.items() if self.before[name] > value}
        return any(self.before[name] - self.after.get(name, 0) >= ENOUGH * value for name, value in wanted.items())

    def message(self, node: str) -> str:
        """In words, with base units."""
        parts = (
            f"{name} {self.before[name]} before, {value} expected, {self.after.get(name, 0)} now"
            for name, value in sorted(self.expected.items())
        )
        said = f"node {node} after {len(self.pods)} pods have left: {'; '.join(parts)}"
        return f"{said}; it was full, and those who stay take what is left to them" if self.full and not self.helped else said


def used_up(view: NodeView) -> frozenset[str]:
    """The resources that are used up by the node's report, whoever has left since."""
    status = view.metric.status if view.metric is not None else None
    if status is None or status.node_metric is None:
        return frozenset()
    parts = (status.node_metric.system_usage.resources, *(each.pod_usage.resources for each in status.pods_metric))
    whole = resources.sum_(measured(part) for part in parts)
    return frozenset(name for name, value in view.capacity.items() if 0 < FULL * value <= whole.get(name, 0))


def unreported(view: NodeView) -> frozenset[str]:
    """The uids of the node's pods of which its report does not tell."""
    return frozenset(pod.pod.metadata.uid for pod in view.pods if pod.usage is None)


@dataclass(slots=True)
class _Node:
    moves: list[Move] = field(default_factory=list)
    in_vain: int = 0
    until: float = 0.0
    why: int = 0  # how often it was in vain when `until` was set; what is told later of earlier moves does not end it
    hot_since: float | None = None


def _as_one(moves: Sequence[Move]) -> Move:
    """Moves of several rounds that the same report tells of: what the node came down by is the work of all of them, once."""
    before: Vector = {}
    for move in moves:
        before |= {name: max(before.get(name, 0), value) for name, value in move.before.items()}
    return Move(
        {uid: use for move in moves for uid, use in move.pods.items()},
        before,
        frozenset[str]().union(*(move.full for move in moves)),
        moves[0].new.intersection(*(move.new for move in moves)),
    )


class Effects:
    """Of all nodes, from round to round."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def observe(self, view: NodeView, now: float, shift: Vector | None = None) -> list[Measured]:
        """Look at a node; the moves whose effect can be told now."""
        node = self._nodes.get(view.name)
        if node is None or view.usage is None:
            return []
        here = {pod.pod.metadata.uid: pod for pod in view.pods}
        reported = reported_at(view) or 0.0
        done, left = [], []
        for move in [part for each in node.moves for part in each.split(here, now)]:
            if move.gone is None or reported <= move.gone:
                left.append(move)
                continue
            done.append(move)
        node.moves = left
        if not done:
            return []
        move = _as_one(done)
        usage = dict(usage_of(view, shift, prod=False))
        counted = {pod.pod.metadata.uid for pod in view.pods if not pod.accepted}
        for each in left:  # the report may be without their pods already, but that is not the work of those that are told now
            resources.add_into(usage, {name: value for name, value in each.uncounted(counted).items() if name in usage})
        for each in left:
            each.begin_at(view, usage)
        for pod in view.pods:
            if pod.pod.metadata.uid in move.new and not pod.accepted:
                resources.sub_into(usage, pod.usage or {})
        expected = move.expected
        after = {name: usage.get(name, 0) for name in expected}
        full = any(name in move.full for name, value in expected.items() if move.before.get(name, 0) > value)
        measured = Measured(tuple(move.pods), move.before, expected, after, full)
        self._judge(node, measured, now)
        return [measured]

    @staticmethod
    def _judge(node: _Node, measured: Measured, now: float) -> None:
        if measured.full and not measured.helped:
            return
        node.in_vain = 0 if measured.helped else node.in_vain + 1
        if node.in_vain >= TRIES:
            node.why = node.in_vain
            node.until = now + min(FIRST * 2.0 ** (node.in_vain - TRIES), LONGEST)

    def moved(
        self,
        name: str,
        pods: Mapping[str, Vector],
        before: Vector,
        *,
        full: frozenset[str] = frozenset(),
        new: frozenset[str] = frozenset(),
    ) -> None:
        """Pods were told to leave; see `Move`. One that was told before, and stayed, counts once."""
        node = self._nodes.setdefault(name, _Node())
        for move in node.moves:
            for uid in pods.keys() & move.pods.keys():
                del move.pods[uid]
        node.moves = [*(move for move in node.moves if move.pods), Move(dict(pods), before, full, new)]

    def moves(self, name: str) -> Sequence[Move]:
        """Those of a node whose effect cannot be told yet."""
        node = self._nodes.get(name)
        return node.moves if node is not None else ()

    def why_not(self, name: str, now: float) -> str:
        """Why the node is left alone, "" when it is not."""
        node = self._nodes.get(name)
        if node is None or now >= node.until:
            return ""
        return f"left alone until {format_time(node.until)}: {node.why} times in a row pods have left, and it did not get cooler"

    def hot_for(self, name: str, now: float) -> float:
        """A node is hot; for how many seconds it has been so in every round."""
        node = self._nodes.setdefault(name, _Node())
        node.hot_since = now if node.hot_since is None else node.hot_since
        return now - node.hot_since

    def not_hot(self, names: Mapping[str, object] | set[str]) -> None:
        """These nodes are not hot: what was before does not count."""
        for name in names:
            node = self._nodes.get(name)
            if node is not None:
                node.hot_since, node.in_vain, node.until = None, 0, 0.0
                if not node.moves:
                    del self._nodes[name]

    def only(self, names: set[str]) -> None:
        """Forget nodes that are gone."""
        for name in self._nodes.keys() - names:
            del self._nodes[name]
