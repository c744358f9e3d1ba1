"""A brake for trouble that comes to all nodes at once: what was promised is not taken away from the whole cluster on a guess. Pure.

Reports that stop on one node say that the node is in trouble. Reports that stop on most nodes say that the reports are in trouble: a
rollout of agents, an API server that hiccups, a clock. Then the last values stand for a while, and people are told.
"""

from __future__ import annotations

from collections import deque

SHARE = 0.2
"""Of the cluster's batch-cpu that may be taken away within WINDOW where nothing was measured."""
ALWAYS = 3
"""Nodes of which it may be taken away in any case: in a small cluster one node is a large share."""
WINDOW = 600.0  # seconds


class Brake:
    """Counts what is promised, and what was taken back unmeasured. Amounts in milli-CPU, times in seconds of a clock that does not jump."""

    def __init__(self, share: float = SHARE, window: float = WINDOW) -> None:
        self._share, self._window = share, window
        self._promised: dict[str, int] = {}
        self._taken: deque[tuple[float, str, int]] = deque()
        self._without: set[str] = set()  # nodes that were seen to promise nothing
        self.held: set[str] = set()

    def promise(self, node: str, amount: int) -> None:
        """What stands on a node. One that promises something again has its reports back, and counts as taken no more."""
        if not amount:
            self._promised.pop(node, None)
            self._without.add(node)
            return
        self._promised[node] = amount
        if node in self._without:
            self._without.discard(node)
            self._taken = deque(entry for entry in self._taken if entry[1] != node)

    def forget(self, node: str) -> None:
        """A node is gone."""
        self._promised.pop(node, None)
        self._without.discard(node)
        self.held.discard(node)

    def holds(self, node: str, amount: int, now: float, *, take: bool) -> bool:
        """Whether an amount must stay on a node for now. `take`: it is about to be taken away, and counts if it is not held."""
        while self._taken and self._taken[0][0] <= now - self._window:
            self._taken.popleft()
        gone = {name: lost for _, name, lost in self._taken}
        if node in gone:
            self.held.discard(node)
            return False
        taken = sum(gone.values())
        everything = taken + sum(lost for name, lost in self._promised.items() if name not in gone)
        if len(gone) >= ALWAYS and taken + amount > self._share * everything:
            self.held.add(node)
            return True
        self.held.discard(node)
        if take:
            self._taken.append((now, node, amount))
        return False
