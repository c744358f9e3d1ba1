"""One node's devices as they stand: inventory, labels, holdings (SCH-DEV-01). Mutable; `version` names each state."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from typing import Any

from roles.scheduler.plugins.device_share.holdings import Holding, Place, Use, use_of
from roles.scheduler.plugins.device_share.inventory import Inventory

_versions = itertools.count(1)
_KEPT_RESULTS = 16
_NO_LABELS: Mapping[str, str] = {}


class NodeDevices:
    """What is known of a node. `inventory` None: there is (and was) no Device object."""

    __slots__ = ("_content", "_use", "holdings", "inventory", "labels", "name", "results", "told", "version")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.told: frozenset[Place] = frozenset()  # devices that are known to be in use by pods, where claims are allocated
        self.inventory: Inventory | None = None
        self.labels: Mapping[str, str] = _NO_LABELS
        self.holdings: dict[str, Holding] = {}
        self.version = next(_versions)
        self.results: dict[Hashable, Any] = {}  # what was worked out for this state
        self._use: Use | None = None
        self._content: Hashable = None

    def changed(self) -> None:
        """The inventory, the labels or the holdings are others now."""
        self.version = next(_versions)
        self._use = None
        self._content = None
        self.results = {}

    def without(self, *uids: str) -> NodeDevices:
        """A copy that lacks some holdings."""
        copy = NodeDevices()
        copy.inventory, copy.labels = self.inventory, self.labels
        copy.holdings = {key: holding for key, holding in self.holdings.items() if key not in uids}
        return copy

    def state(self) -> tuple[Any, ...]:
        """What `restore` wants once the holdings are these again."""
        return self.version, self._use, self._content, self.results

    def restore(self, state: tuple[Any, ...]) -> None:
        """The holdings are what they were when `state` was asked for."""
        self.version, self._use, self._content, self.results = state

    def keep(self, key: Hashable, result: Any) -> None:
        """Remember a result for as long as the state is this one."""
        if len(self.results) >= _KEPT_RESULTS:
            self.results.clear()
        self.results[key] = result

    def reserved(self) -> dict[str, Holding]:
        """Holdings of reservations that count here: reserve pods, and pods that others own shares of."""
        owned = {holding.owner_of for holding in self.holdings.values() if holding.owner_of}
        return {uid: holding for uid, holding in self.holdings.items() if holding.reserves or uid in owned}

    @property
    def use(self) -> Use:
        """What is used of each device."""
        if self._use is None:
            self._use = use_of(self.holdings, self.reserved())
        return self._use

    @property
    def content(self) -> Hashable:
        """All that choosing looks at: nodes with equal contents give equal answers, whatever they are called."""
        if self._content is None:
            inventory = self.inventory
            alone = tuple(sorted(share.place for h in self.holdings.values() for share in h.allocation if share.type in h.alone))
            labels = tuple(self.labels.items())
            self._content = (inventory.shape if inventory is not None else None, labels, self.use.frozen(), alone)
        return self._content
