"""Devices near one another: node, NUMA nodes, PCIe switches (SCH-DEV-05). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from roles.scheduler.plugins.device_share.amounts import Wanted
from roles.scheduler.plugins.device_share.inventory import Card
from roles.scheduler.plugins.device_share.request import SCOPE_DEVICE, SCOPE_NODE, SCOPE_PCIE
from roles.scheduler.plugins.device_share.scoring import Scorer
from roles.scheduler.plugins.device_share.view import Unit, View

_Path = tuple[int | str, ...]


class Scope(NamedTuple):
    """A part of the tree: the path to it below the node, and the units in it that suit the pod."""

    path: _Path
    units: tuple[Unit, ...]


def path_of(card: Card) -> _Path:
    """NUMA node and PCIe switch of a card."""
    return (card.numa if card.numa is not None else -1, card.pcie or "")


def together(units: Sequence[Unit], scope: int) -> bool:
    """Whether units share a scope of this rank (0 asks for nothing)."""
    if scope == SCOPE_DEVICE:
        return len(units) == 1
    length = max(0, scope - SCOPE_NODE)
    return len({path_of(unit.card)[:length] for unit in units}) <= 1


def scopes(suitable: Sequence[Unit], depth: int) -> list[Scope]:
    """The scopes of a depth (Node, NUMANode, PCIe), ordered by NUMA node and switch."""
    length = depth - SCOPE_NODE
    found: dict[_Path, list[Unit]] = {}
    for unit in suitable:
        found.setdefault(path_of(unit.card)[:length], []).append(unit)
    return [Scope(path, tuple(found[path])) for path in sorted(found, key=lambda path: (path[:1], str(path[1:])))]


def used_scopes(view: View, kind: str) -> frozenset[_Path]:
    """Paths of NUMA nodes and switches on which a device of the type is in use."""
    used: set[_Path] = set()
    for card in view.inventory.cards.get(kind, ()):
        if view.use.busy((kind, card.minor)):
            path = path_of(card)
            used.update((path[:1], path))
    return frozenset(used)


def choose_scope(
    view: View, wanted: Wanted, suitable: Sequence[Unit], required: int, scorer: Scorer, near: frozenset[str] = frozenset()
) -> Scope | None:
    """The deepest scope with enough suitable devices, no wider than required; among equals the one on paths that are in use already, then
    (shared requests) the one with the best device, then the first; where cards have a worth the device comes before the paths. Devices that
    are preferred or on the PCIe switches `near` come before all that. None when there is none."""
    if required == SCOPE_DEVICE and wanted.count > 1:
        return None
    used = used_scopes(view, wanted.type)

    forced = view.forced_of(wanted.type)

    def rank(scope: Scope) -> tuple[int, int, int]:
        liked = sum((wanted.type, unit.minor) in view.preferred or unit.card.pcie in near for unit in scope.units)
        on_path = sum(scope.path[:length] in used for length in range(1, len(scope.path) + 1))
        best = max(scorer.device(unit, wanted) for unit in scope.units) if wanted.shared else 0
        return (liked, best, on_path) if scorer.worth else (liked, on_path, best)

    for depth in range(SCOPE_PCIE, max(SCOPE_NODE, min(required, SCOPE_PCIE)) - 1, -1):
        enough = [scope for scope in scopes(suitable, depth) if len(scope.units) >= wanted.count]
        enough = [scope for scope in enough if forced.issubset(unit.minor for unit in scope.units)]
        if enough:
            return max(enough, key=rank)
    return None


def has_tree(view: View, kind: str) -> bool:
    """Whether the place of every device of the type is known."""
    return all(card.pcie is not None for card in view.inventory.cards.get(kind, ()))


def by_switch(units: Sequence[Unit], switches: frozenset[str], order: Callable[[Unit], object]) -> list[Unit]:
    """Units in order, but first one of each of these switches, then the second of each, and so on, the others last."""
    groups: dict[str, list[Unit]] = {}
    others: list[Unit] = []
    for unit in sorted(units, key=order):  # type: ignore[arg-type]
        if unit.card.pcie is not None and unit.card.pcie in switches:
            groups.setdefault(unit.card.pcie, []).append(unit)
        else:
            others.append(unit)
    turns = max((len(group) for group in groups.values()), default=0)
    return [groups[name][turn] for turn in range(turns) for name in sorted(groups) if turn < len(groups[name])] + others
