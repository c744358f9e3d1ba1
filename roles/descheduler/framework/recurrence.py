"""Pods that come back: a plugin that takes pods away and finds their successors in the same place again waits (DS-FW-03).

Where nobody holds a place for the successor (DefaultEvictor), the scheduler may put it back: no other node is better by its rules. Then
one more eviction is one more restart for nothing. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from koord.api.times import format_time

FREE = 2  # times that a successor may come back before others of its workload are left there
FIRST = 600.0  # seconds
LONGEST = 3600.0
FORGET = 7200.0  # seconds after the last eviction

Key = tuple[str, str, str]  # plugin, uid of the workload, node


@dataclass(slots=True)
class _Chain:
    """What a plugin took away from a node: how many times in a row, when last, and the pods of the workload that were there the first time
    of this row."""

    times: int
    at: float
    there: frozenset[str]


class Recurrence:
    """What came of evictions, by plugin, workload and node."""

    def __init__(self) -> None:
        self._chains: dict[Key, _Chain] = {}

    def refuse(self, key: Key, uid: str, now: float) -> str:
        """Why a pod (its uid) is left where it is, "" when it may be taken away."""
        chain = self._chains.get(key)
        if chain is None or uid in chain.there or chain.times < FREE:
            return ""
        until = chain.at + min(FIRST * 2.0 ** (chain.times - FREE), LONGEST)
        if now >= until:
            return ""
        back = f"{chain.times} times in a row a pod of its workload was put back to node {key[2]}"
        return f"{back}; the next one leaves after {format_time(until)}"

    def left(self, key: Key, uid: str, there: Iterable[str], now: float) -> None:
        """A pod was taken away; `there` are the pods of its workload on the node, itself among them, by uid."""
        chain = self._chains.get(key)
        if chain is None or now >= chain.at + FORGET:
            self._chains[key] = _Chain(1, now, frozenset(there))
        elif uid in chain.there:  # who has come meanwhile has come back
            chain.at = now
        else:
            self._chains[key] = _Chain(chain.times + 1, now, frozenset(there))

    def forget(self, now: float) -> None:
        """Drop what is long over."""
        for key in [key for key, chain in self._chains.items() if now >= chain.at + FORGET]:
            del self._chains[key]
