"""The devices of a node as one pod may use them. Pure.

A view is narrowed by NUMA nodes and by a reservation before anything is chosen from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from koord.accounting.resources import ResourceVector
from koord.api import names
from roles.scheduler.plugins.device_share.amounts import Wanted, filled
from roles.scheduler.plugins.device_share.holdings import Allocation, Place, Use
from roles.scheduler.plugins.device_share.inventory import UNKNOWN_NUMA, Card, Inventory, VirtualFunction
from roles.scheduler.plugins.device_share.request import Hint


@dataclass(slots=True, eq=False)
class Unit:
    """A card with what is left of it. `busy`: something runs on it; `functions` are its free virtual functions by group, ascending."""

    card: Card
    free: ResourceVector
    busy: bool
    functions: tuple[tuple[Mapping[str, str], tuple[VirtualFunction, ...]], ...] = ()

    @property
    def minor(self) -> int:
        """The card's minor."""
        return self.card.minor

    def has(self, wanted: Wanted) -> bool:
        """Whether enough is left. A name that the card lacks is missing, unless the pod did not ask for it itself."""
        if not self.card.healthy:
            return False
        free = self.free
        for name, amount in self.takes(wanted):
            left = free.get(name)
            if left is None:
                if name not in wanted.implied and wanted.of(name):
                    return False
            elif left < amount:
                return False
        return True

    def takes(self, wanted: Wanted) -> tuple[tuple[str, int], ...]:
        """What one unit of the request takes of this card."""
        return filled(wanted, self.card.amounts.get(names.RESOURCE_GPU_MEMORY, 0))

    def function(self, hint: Hint) -> VirtualFunction | None:
        """The free virtual function with the lowest address of the groups that the pod wants."""
        if hint.functions is None:
            return None
        fitting = [group[0] for labels, group in self.functions if group and hint.functions.matches(labels)]
        return min(fitting, key=lambda function: function.bus_id, default=None)


@dataclass(slots=True, eq=False)
class View:
    """Units by type, ascending by minor. `inventory` is of all devices, `use` of all holdings that count against the pod; `preferred`
    are places to be taken first, `forced` those that must be among the chosen ones; `switches_taken` are PCIe switches of a type that
    another pod has for itself."""

    inventory: Inventory
    labels: Mapping[str, str]
    use: Use
    units: Mapping[str, tuple[Unit, ...]]
    preferred: frozenset[Place] = frozenset()
    switches_taken: frozenset[tuple[str, str]] = frozenset()
    forced: frozenset[Place] = frozenset()

    def busy(self, kind: str) -> frozenset[int]:
        """Minors of a type that something runs on, in view or not."""
        return frozenset(card.minor for card in self.inventory.cards.get(kind, ()) if self.use.busy((kind, card.minor)))

    def narrowed(self, kind: str, units: Iterable[Unit]) -> View:
        """The view with these units of a type only."""
        return replace(self, units={**self.units, kind: tuple(units)})

    def within(self, mask: int) -> View:
        """The view of the NUMA nodes of a mask: devices whose NUMA node is not known count to all, those without topology to none."""
        units = {kind: tuple(unit for unit in found if on_numa(unit.card, mask)) for kind, found in self.units.items()}
        return replace(self, units=units)

    def limited(self, rest: Allocation, kinds: frozenset[str]) -> View:
        """The view in which of these types there is what a reservation has left, and nothing else."""
        shares = {share.place: share for share in rest}
        units: dict[str, tuple[Unit, ...]] = {}
        for kind, found in self.units.items():
            if kind not in kinds:
                units[kind] = found
                continue
            kept = []
            for unit in found:
                share = shares.get((kind, unit.minor))
                if share is not None:
                    amounts = dict(share.amounts)
                    free = {name: min(left, amounts.get(name, 0)) for name, left in unit.free.items()}
                    addresses = {function.bus_id for function in share.functions}
                    functions = tuple((labels, tuple(f for f in group if f.bus_id in addresses)) for labels, group in unit.functions)
                    kept.append(Unit(unit.card, free, unit.busy, functions if addresses else unit.functions))
            units[kind] = tuple(kept)
        return replace(self, units=units)

    def preferring(self, places: Iterable[Place]) -> View:
        """The view in which these places are taken first."""
        return replace(self, preferred=frozenset(places))

    def forcing(self, places: frozenset[Place]) -> View:
        """The view in which these places must be taken."""
        return replace(self, preferred=places, forced=places)

    def forced_of(self, kind: str) -> frozenset[int]:
        """Minors of a type that must be taken."""
        return frozenset(minor for of, minor in self.forced if of == kind)

    def only(self, places: frozenset[Place]) -> View:
        """The view of these places."""
        units = {kind: tuple(unit for unit in found if (kind, unit.minor) in places) for kind, found in self.units.items()}
        return replace(self, units=units)


def on_numa(card: Card, mask: int) -> bool:
    """Whether a card counts to the NUMA nodes of a mask."""
    if card.numa is None:
        return False
    return card.numa == UNKNOWN_NUMA or bool(mask >> card.numa & 1)


def view_of(inventory: Inventory, labels: Mapping[str, str], use: Use, alone: Iterable[Place] = ()) -> View:
    """All devices of a node with what the use leaves of them. `alone` are places whose switch somebody has for himself."""
    units = {kind: tuple(_unit(card, use) for card in cards) for kind, cards in inventory.cards.items()}
    taken = set()
    for kind, minor in alone:
        card = inventory.card(kind, minor)
        if card is not None and card.pcie is not None:
            taken.add((kind, card.pcie))
    return View(inventory, labels, use, units, frozenset(), frozenset(taken))


def _unit(card: Card, use: Use) -> Unit:
    place = (card.type, card.minor)
    used = use.of(place)
    free = {name: max(0, amount - used.get(name, 0)) for name, amount in card.amounts.items()}
    functions: tuple[tuple[Mapping[str, str], tuple[VirtualFunction, ...]], ...] = ()
    if card.groups:
        taken = use.functions.get(place, frozenset())
        functions = tuple((group.labels, tuple(f for f in group.functions if f.bus_id not in taken)) for group in card.groups)
    return Unit(card, free, use.busy(place), functions)
