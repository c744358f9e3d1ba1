"""An edit of slo-controller-config reaches the nodes at a bounded pace, previewed first, and shrinking before growing. Pure.

Until it is a node's turn, the configuration of before counts for it, with what is measured now: nothing that is hot has to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koord.config.slo import SLOConfig

AT_ONCE = 10
"""Nodes that an edit reaches at once in any case, and the least that it reaches in a minute."""
FIRST = 0.25
"""Of a minute's nodes that go ahead of all others, so that trouble shows on few."""


class Move(NamedTuple):
    """What an edit does to a node: milli-cores of batch before and after, and pods whose requests would exceed what is left."""

    before: int
    after: int
    pods: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Shrinking before growing, much before little."""
        moved = self.after - self.before
        return (0, moved) if moved < 0 else (1, -moved)


@dataclass(slots=True)
class Preview:
    """What an edit would do, over all nodes that it concerns."""

    nodes: int = 0
    shrinking: int = 0
    growing: int = 0
    before: int = 0
    after: int = 0
    crowded: int = 0
    pods: int = 0

    def __str__(self) -> str:
        cores = (
            f"batch-cpu of {self.before / 1000:g} cores becomes {self.after / 1000:g} ({self.shrinking} nodes shrink, {self.growing} grow)"
        )
        crowd = (
            f"; on {self.crowded} nodes more is requested than is left then, by {self.pods} pods, which may be evicted" if self.pods else ""
        )
        return f"{self.nodes} nodes change: {cores}{crowd}"


class Spread:
    """The edit that is under way. `per_minute` is the share of the cluster's nodes that it reaches in a minute, 0 for all at once."""

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self._former: dict[str, SLOConfig] = {}
        self._moves: dict[str, Move] = {}
        self._unseen: set[str] = set()
        self._nodes = 0
        self._ahead = True
        self._credit = 0.0
        self._at: float | None = None

    def begin(self, nodes: Iterable[str], former: SLOConfig) -> None:
        """The configuration has changed; `former` is the one before. A node that waits for an earlier edit keeps what it has."""
        self._former = {name: self._former.get(name, former) for name in nodes} if self.per_minute > 0 else {}
        self._unseen, self._moves, self._at = set(self._former), {}, None
        self._nodes = len(self._former)
        self._ahead, self._credit = True, 0.0

    def resume(self, waiting: Mapping[str, SLOConfig], nodes: int) -> None:
        """Go on with an edit that was under way before this process: `waiting` of so many nodes. Nobody goes ahead a second time."""
        self._former = dict(waiting) if self.per_minute > 0 else {}
        self._unseen, self._moves, self._at = set(self._former), {}, None
        self._nodes, self._ahead, self._credit = nodes, False, 0.0

    def formers(self) -> list[SLOConfig]:
        """The configurations that still count for some node."""
        return list({id(config): config for config in self._former.values()}.values())

    def former(self, node: str) -> SLOConfig | None:
        """The configuration that still counts for a node, None for the present one."""
        return self._former.get(node)

    @property
    def active(self) -> bool:
        """Whether nodes wait."""
        return bool(self._former)

    @property
    def waiting(self) -> int:
        """How many."""
        return len(self._former)

    def unseen(self) -> list[str]:
        """Nodes of which it is not known what the edit does to them."""
        return sorted(self._unseen)

    def found(self, node: str, move: Move | None) -> None:
        """What the edit does to a node; None for nothing, which needs no waiting."""
        self._unseen.discard(node)
        if node not in self._former:
            return
        if move is None:
            del self._former[node]
        else:
            self._moves[node] = move

    def forget(self, node: str) -> None:
        """A node is gone."""
        self._unseen.discard(node)
        self._former.pop(node, None)
        self._moves.pop(node, None)

    def preview(self) -> Preview:
        """What the edit does to the nodes that wait."""
        total = Preview()
        for move in self._moves.values():
            total.nodes += 1
            total.shrinking += move.after < move.before
            total.growing += move.after > move.before
            total.before += move.before
            total.after += move.after
            total.crowded += move.pods > 0
            total.pods += move.pods
        return total

    def release(self, now: float, *, held: bool = False) -> list[str]:
        """Nodes whose turn it is; none while something is `held`. Nodes are let go only when all are previewed."""
        if self._unseen or not self._former:
            return []
        each_minute = max(self.per_minute * self._nodes, float(AT_ONCE))
        if len(self._former) <= AT_ONCE:
            return self._let_go(len(self._former)) if not held else []
        if self._at is None:
            self._credit, self._at = max(each_minute * FIRST, 1.0) if self._ahead else 0.0, now
        elif held:
            self._at = now  # what passes meanwhile is not made up for
            return []
        self._credit += each_minute * max(now - self._at, 0.0) / 60
        self._at = now
        count = min(int(self._credit), len(self._former))
        self._credit -= count
        return self._let_go(count)

    def _let_go(self, count: int) -> list[str]:
        turn = sorted(self._former, key=lambda name: (self._moves[name].rank, name))[:count]
        for name in turn:
            self.forget(name)
        return turn
