"""A brake for trouble that comes to all nodes at once: what was promised is not taken away from the whole cluster on a guess. Pure.

Reports that stop on one node say that the node is in trouble. Reports that stop on most nodes say that the reports are in trouble: a
rollout of agents, an API server that hiccups, a clock. Then the last values stand for a while, and people are told.
"""

from __future__ import annotations

SHARE = 0.2
"""Of the cluster's batch-cpu that may be taken away within WINDOW where nothing was measured."""
ALWAYS = 3
"""Nodes of which it may be taken away in any case: in a small cluster one node is a large share."""
WINDOW = 600.0  # seconds


class Brake:
    """Counts what is promised, and what was taken back unmeasured. Amounts in milli-CPU, times in seconds of a clock that does not jump.

    All nodes may be asked about at once, so that no answer looks at the others: sums are kept.
    """

    def __init__(self) -> None:
        self._promised: dict[str, int] = {}
        self._all = 0  # promised by all nodes
        self._taken: dict[str, tuple[float, int]] = {}  # when and how much, the oldest first
        self._lost = 0  # taken from all nodes
        self._doubtful = 0  # promised by nodes from which it was taken: on its way, or promised anew
        self._without: set[str] = set()  # nodes that were seen to promise nothing
        self.held: set[str] = set()

    def promise(self, node: str, amount: int) -> None:
        """What stands on a node. One that promises something again has its reports back, and counts as taken no more."""
        self._set(node, amount)
        if not amount:
            self._without.add(node)
        elif node in self._without:
            self._without.discard(node)
            self._give_back(node)

    def forget(self, node: str) -> None:
        """A node is gone."""
        self._set(node, 0)
        self._without.discard(node)
        self.held.discard(node)

    def holds(self, node: str, amount: int, now: float, *, take: bool) -> bool:
        """Whether an amount must stay on a node for now. `take`: it is about to be taken away, and counts if it is not held."""
        while (oldest := next(iter(self._taken), None)) is not None and self._taken[oldest][0] <= now - WINDOW:
            self._give_back(oldest)
        if node in self._taken:
            self.held.discard(node)
            return False
        everything = self._lost + self._all - self._doubtful
        if len(self._taken) >= ALWAYS and self._lost + amount > SHARE * everything:
            self.held.add(node)
            return True
        self.held.discard(node)
        if take:
            self._taken[node] = (now, amount)
            self._lost += amount
            self._doubtful += self._promised.get(node, 0)
        return False

    def _set(self, node: str, amount: int) -> None:
        if amount == self._promised.get(node, 0):
            return
        more = amount - self._promised.pop(node, 0)
        if amount:
            self._promised[node] = amount
        self._all += more
        if node in self._taken:
            self._doubtful += more

    def _give_back(self, node: str) -> None:
        if node in self._taken:
            self._lost -= self._taken.pop(node)[1]
            self._doubtful -= self._promised.get(node, 0)
