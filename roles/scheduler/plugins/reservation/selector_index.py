"""Reservations by their labels, for pods with a reservationSelector (SCH-RSV-16).

It narrows down which reservations are looked at and never decides: a pod gets the same answer without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from roles.scheduler.plugins.reservation.args import ReservationSelectorIndex

Counted = Callable[[str, int], None]


class SelectorIndex:
    """Buckets of reservation UIDs by (key, value) for the configured keys, by key for the configured prefixes.

    `counted(result, candidates)` is told of every query: "hit" with the number of nodes that are left, or "miss".
    """

    def __init__(self, config: ReservationSelectorIndex) -> None:
        self.active = config.active
        self.keys = frozenset(config.keys)
        self.prefixes = tuple(config.key_prefixes)
        self.counted: Counted = lambda result, candidates: None
        self._labels: dict[str, dict[str, str]] = {}
        self._exact: dict[tuple[str, str], dict[str, None]] = {}
        self._by_key: dict[str, dict[str, None]] = {}

    def enter(self, uid: str, labels: Mapping[str, str]) -> None:
        """Add a reservation."""
        if not self.active:
            return
        kept = {key: value for key, value in labels.items() if key in self.keys or key.startswith(self.prefixes or ("\0",))}
        self._labels[uid] = kept
        for key, value in kept.items():
            if key in self.keys:
                self._exact.setdefault((key, value), {})[uid] = None
            else:
                self._by_key.setdefault(key, {})[uid] = None

    def leave(self, uid: str) -> None:
        """Take a reservation out."""
        for key, value in self._labels.pop(uid, {}).items():
            bucket: Any = (key, value) if key in self.keys else key
            buckets: dict[Any, dict[str, None]] = self._exact if key in self.keys else self._by_key  # type: ignore[assignment]
            members = buckets[bucket]
            del members[uid]
            if not members:
                del buckets[bucket]

    def narrow(self, selector: Mapping[str, str], elsewhere: Callable[[str], bool]) -> Collection[str] | None:
        """UIDs of which only these can match a selector, None when the index cannot tell. Keys that `elsewhere` (on nodes, whose labels
        count too) says are in use are left out."""
        if not self.active or not selector:
            return None
        exact = [(key, value) for key, value in selector.items() if key in self.keys and not elsewhere(key)]
        prefixed = [key for key in selector if key not in self.keys and key.startswith(self.prefixes or ("\0",)) and not elsewhere(key)]
        found = [self._exact.get(pair, {}) for pair in exact] or [self._by_key.get(key, {}) for key in prefixed]
        return min(found, key=len).keys() if found else None

    def view(self, detail: bool) -> dict[str, Any]:
        """What is in it, for the debug page."""
        shown: dict[str, Any] = {
            "enabled": self.active,
            "keys": sorted(self.keys),
            "keyPrefixes": list(self.prefixes),
            "reservations": len(self._labels),
            "exactBuckets": len(self._exact),
            "prefixBuckets": len(self._by_key),
        }
        if detail:
            shown["exact"] = {f"{key}={value}": sorted(uids) for (key, value), uids in sorted(self._exact.items())}
            shown["prefix"] = {key: sorted(uids) for key, uids in sorted(self._by_key.items())}
        return shown
