"""Choosing devices from a view (SCH-DEV-03..09). Pure: a request and a view in, shares or a refusal out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from koord.api import names
from roles.scheduler.framework.status import Status, unresolvable, unschedulable
from roles.scheduler.plugins.device_share.amounts import GPU, Wanted
from roles.scheduler.plugins.device_share.holdings import Allocation, Share
from roles.scheduler.plugins.device_share.partitions import choose_partition
from roles.scheduler.plugins.device_share.request import SCOPE_PCIE, DeviceRequest, Hint
from roles.scheduler.plugins.device_share.scoring import Scorer
from roles.scheduler.plugins.device_share.templates import Templates
from roles.scheduler.plugins.device_share.topology import by_switch, choose_scope, has_tree, scopes, together
from roles.scheduler.plugins.device_share.view import Unit, View

Outcome = Allocation | Status

NO_TEMPLATE = unresolvable("no matched GPU shared resource template")
_WRONG_PROVIDER = unresolvable("node(s) gpu-isolation-provider didn't match the pod's")
_NO_TREE = unresolvable("node(s) missing GPU Device Topology Tree")
_MULTI_SHARED = unresolvable("node(s) Unsupported Multi-Shared GPU")
_NOT_IN_SCOPE = unschedulable("Insufficient Topology Scoped GPU Devices")
_NO_GPUS = unschedulable("Insufficient GPU Devices")

_NOWHERE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rules:
    """What the arguments decide: scoring, templates, and (vendor, model) whose cards are not shared."""

    scorer: Scorer
    templates: Templates
    unshared: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Pick:
    """Devices chosen for one type."""

    wanted: Wanted
    units: tuple[Unit, ...]
    template: str = ""

    def shares(self, hint: Hint) -> Allocation:
        """What the pod gets of each, ascending by minor."""
        return tuple(self._share(unit, hint) for unit in sorted(self.units, key=lambda unit: unit.minor))

    def _share(self, unit: Unit, hint: Hint) -> Share:
        function = unit.function(hint)
        functions = (function,) if function is not None else ()
        return Share(self.wanted.type, unit.minor, unit.takes(self.wanted), functions, self.template)


def choose_alone(request: DeviceRequest, view: View, rules: Rules) -> Outcome:
    """Each type by itself. The first that cannot be had refuses the node."""
    shares: Allocation = ()
    for wanted in request.wanted:
        picked = pick(request, view, rules, wanted)
        if isinstance(picked, Status):
            return picked
        shares += picked.shares(request.hint(wanted.type))
    return shares


def pick(request: DeviceRequest, view: View, rules: Rules, wanted: Wanted, near: frozenset[str] = _NOWHERE, aim: int = 0) -> Pick | Status:
    """Devices of one type. With `near`, those on these PCIe switches come first, and up to `aim` are taken where there are as many."""
    hint = request.hint(wanted.type)
    if wanted.type == GPU:
        return _gpu(request, view, rules, wanted, hint, near, aim)
    fitting = candidates(view, wanted, hint)
    if isinstance(fitting, Status):
        return fitting
    if hint.for_all:
        wanted = replace(wanted, count=len(selected(view, wanted.type, hint)))
    return _plain(view, rules, wanted, hint, fitting, near, aim)


def candidates(view: View, wanted: Wanted, hint: Hint) -> Sequence[Unit] | Status:
    """Devices of which enough is left, with a virtual function where one is wanted."""
    kind = wanted.type
    if not view.inventory.cards.get(kind):
        return unresolvable(f"Insufficient {kind} devices")
    if hint.functions is not None and not any(card.groups for card in view.inventory.cards[kind]):
        return unresolvable(f"Insufficient {kind} VirtualFunctions")
    meant = selected(view, kind, hint)
    if hint.for_all and not meant:
        return unresolvable(f"Insufficient {kind} devices")
    fitting = [unit for unit in meant if unit.has(wanted) and _switch_is_ours(view, unit, hint)]
    return [unit for unit in fitting if unit.function(hint) is not None] if hint.functions is not None else fitting


def selected(view: View, kind: str, hint: Hint) -> Sequence[Unit]:
    """Devices of a type that the hint means."""
    units = view.units.get(kind, ())
    return units if hint.selector is None else [unit for unit in units if hint.selector.matches(unit.card.labels)]


def _switch_is_ours(view: View, unit: Unit, hint: Hint) -> bool:
    """PCIeLevel: nobody else uses devices of the type on the switch, neither now nor later."""
    switch = unit.card.pcie
    if switch is None:
        return True
    if (unit.card.type, switch) in view.switches_taken:
        return False
    if not hint.alone_on_switch:
        return True
    busy = view.busy(unit.card.type)
    return not any(card.minor in busy for card in view.inventory.cards[unit.card.type] if card.pcie == switch)


# ---------------------------------------------------------------- GPUs


def _gpu(request: DeviceRequest, view: View, rules: Rules, wanted: Wanted, hint: Hint, near: frozenset[str], aim: int) -> Pick | Status:
    refusal = _unshareable(request, view, rules, wanted)
    if refusal is not None:
        return refusal
    fitting = candidates(view, wanted, hint)
    if isinstance(fitting, Status):
        return fitting
    template = ""
    if rules.templates.applies(wanted):
        template = rules.templates.on(view.labels, wanted)
        if not template:
            return NO_TEMPLATE
    elif not wanted.shared:
        chosen = choose_partition(view.narrowed(GPU, fitting), wanted, request.partition, hint.scope, near)
        if isinstance(chosen, Status):
            return chosen
        if chosen is not None:
            return Pick(wanted, chosen)
    found = _scoped(view, rules, wanted, hint, fitting, near) if hint.scope or not near else None
    if found is None:
        found = _plain(view, rules, wanted, Hint(), fitting, near, aim)
    return found if isinstance(found, Status) or not template else Pick(wanted, found.units, template)


def _unshareable(request: DeviceRequest, view: View, rules: Rules, wanted: Wanted) -> Status | None:
    if not wanted.shared:
        return None
    labels = view.labels
    if request.provider and request.provider != labels.get(names.LABEL_GPU_ISOLATION_PROVIDER):
        return _WRONG_PROVIDER
    vendor, model = labels.get(names.LABEL_GPU_VENDOR, ""), labels.get(names.LABEL_GPU_MODEL, "")
    if (vendor, model) in rules.unshared:
        return unresolvable(f"model {model} of vendor {vendor} does not support GPU Share")
    return None


def _scoped(view: View, rules: Rules, wanted: Wanted, hint: Hint, fitting: Sequence[Unit], near: frozenset[str]) -> Pick | Status | None:
    """Cards near one another; None where the topology says nothing about such a request and nothing is required of it."""
    if wanted.shared and wanted.count > 1:
        return _MULTI_SHARED if hint.scope else None
    if not has_tree(view, GPU):
        return _NO_TREE if hint.scope else None
    scope = choose_scope(view, wanted, fitting, hint.scope, rules.scorer, near)
    if scope is None:
        return _NOT_IN_SCOPE if hint.scope else _NO_GPUS
    return Pick(wanted, tuple(_ordered(view, rules, wanted, scope.units)[: wanted.count]))


def _ordered(view: View, rules: Rules, wanted: Wanted, units: Sequence[Unit]) -> list[Unit]:
    """Devices to be preferred first, then (parts of devices) the best ones, then by minor."""

    def order(unit: Unit) -> tuple[bool, int, int]:
        score = rules.scorer.device(unit, wanted) if wanted.shared or wanted.type != GPU else 0
        return (wanted.type, unit.minor) not in view.preferred, -score, unit.minor

    return sorted(units, key=order)


# ---------------------------------------------------------------- any type


def _plain(view: View, rules: Rules, wanted: Wanted, hint: Hint, fitting: Sequence[Unit], near: frozenset[str], aim: int) -> Pick | Status:
    """The first of the ordered devices; of those within a scope where the hint requires one."""
    groups = [tuple(fitting)] if not hint.scope else [scope.units for scope in scopes(fitting, min(hint.scope, SCOPE_PCIE))]
    for group in groups:
        ordered = _ordered(view, rules, wanted, group)
        if near:
            rank = {id(unit): position for position, unit in enumerate(ordered)}
            ordered = by_switch(ordered, near, lambda unit, rank=rank: rank[id(unit)])  # type: ignore[misc]
        chosen = tuple(ordered[: max(aim, wanted.count)])
        if len(chosen) >= wanted.count and together(chosen, hint.scope):
            return Pick(wanted, chosen)
    return unschedulable(f"Insufficient {wanted.type} devices")
