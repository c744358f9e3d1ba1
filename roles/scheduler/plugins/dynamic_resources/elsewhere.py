"""Devices that several nodes may use, and that nominated pods wait for on one of them: pods on the others leave them alone (SCH-DRA-18).
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from roles.scheduler.plugins.dynamic_resources.claims import Lent
from roles.scheduler.plugins.dynamic_resources.inventory import Counted, Use


class Coming(NamedTuple):
    """What a nominated pod is expected to get on the slot of its node: its claims, and what it takes of devices that several nodes may use
    (nothing of a claim that is expected for a pod before it)."""

    slot: int
    lent: Mapping[str, Lent]
    wide: Sequence[Use]


class Elsewhere:
    """What pods nominated to each slot are expected to get of such devices. `key` is equal when it is the same."""

    def __init__(self, now: Counted, expected: Mapping[int, Sequence[Use]]) -> None:
        self._now = now
        self._expected = expected
        self._used: dict[int, Counted] = {}
        self.key = tuple(
            (slot, device, None if amounts is None else tuple(sorted(amounts.items())))
            for slot, uses in expected.items()
            for device, amounts in uses
        )

    def used(self, slot: int) -> Counted:
        """What is in use for a pod on a slot. Those nominated to it are not counted: they are put there where they matter."""
        if not self.key:
            return self._now
        which = slot if slot in self._expected else -1
        found = self._used.get(which)
        if found is None:
            others = [use for at, uses in self._expected.items() if at != slot for use in uses]
            found = self._used[which] = self._now.with_more(others)
        return found
