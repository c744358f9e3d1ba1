"""DeviceShare's part in the agreement on NUMA nodes (SCH-DEV-12)."""

from __future__ import annotations

from collections.abc import Hashable

from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.status import SUCCESS, Status, unschedulable
from roles.scheduler.plugins.device_share.amounts import GPU
from roles.scheduler.plugins.device_share.choice import Outcome
from roles.scheduler.plugins.device_share.chooser import Chooser, designated
from roles.scheduler.plugins.device_share.inventory import UNKNOWN_NUMA, Inventory
from roles.scheduler.plugins.device_share.request import DeviceRequest, request_for
from roles.scheduler.plugins.device_share.view import on_numa
from roles.scheduler.plugins.topology_manager.hints import Hint, Hints, mask_of, subsets_to_try
from roles.scheduler.plugins.topology_manager.manager import HintProvider

_TOO_FEW = unschedulable("Insufficient NUMA Scoped Devices")
_PREFERRED_SCORE = 500  # more than CPU scores, which end at 100


class DeviceHints(HintProvider):
    """Every set of NUMA nodes on which a trial allocation succeeds, for each requested type; the smallest ones are preferred."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser

    def hints(self, ctx: CycleContext, slot: int) -> Hints | Status:
        request = request_for(ctx.pod.shape)
        node = self._chooser.node(ctx, slot)
        if not isinstance(request, DeviceRequest) or node.inventory is None:
            return {}
        inventory = node.inventory
        if ctx.restored.get(slot) or designated(ctx.pod) is not None:
            return self._hints(ctx, slot, request, inventory)
        return self._chooser.cached(node, ("hints", request.key), lambda: self._hints(ctx, slot, request, inventory))

    def _hints(self, ctx: CycleContext, slot: int, request: DeviceRequest, inventory: Inventory) -> Hints | Status:
        numas = sorted({card.numa for cards in inventory.cards.values() for card in cards if card.numa not in (None, UNKNOWN_NUMA)})
        known = [numa for numa in numas if numa is not None]
        if known and not _enough(request, inventory, mask_of(known)):
            return _TOO_FEW
        free_choice = self._chooser.outcome(ctx, slot, request)
        if isinstance(free_choice, Status):
            return free_choice
        if not known:
            return {}
        favourite = _gpus(free_choice)
        feasible: list[tuple[int, int]] = []
        refusal = _TOO_FEW
        for mask in subsets_to_try(known, (known,)):
            found: Outcome = self._chooser.outcome(ctx, slot, request, mask) if _enough(request, inventory, mask) else _TOO_FEW
            if isinstance(found, Status):
                refusal = found
            else:
                feasible.append((mask, _PREFERRED_SCORE if favourite and _gpus(found) == favourite else 0))
        if not feasible:
            return refusal  # that of the widest set, which is tried last
        smallest = min(mask.bit_count() for mask, _ in feasible)
        hints = [Hint(mask, mask.bit_count() == smallest, score) for mask, score in feasible]
        return {wanted.type: hints for wanted in request.wanted}

    def allocate_check(self, ctx: CycleContext, slot: int, affinity: int | None) -> Status:
        request = request_for(ctx.pod.shape)
        if not isinstance(request, DeviceRequest):
            return SUCCESS
        found = self._chooser.outcome(ctx, slot, request, affinity)
        return found if isinstance(found, Status) else SUCCESS

    def indifferent(self, ctx: CycleContext) -> bool:
        return not isinstance(request_for(ctx.pod.shape), DeviceRequest)

    def version(self, slot: int) -> Hashable:
        return self._chooser.columns.node(slot).version


def _gpus(found: Outcome) -> frozenset[int]:
    return frozenset(share.minor for share in found if share.type == GPU) if not isinstance(found, Status) else frozenset()


def _enough(request: DeviceRequest, inventory: Inventory, mask: int) -> bool:
    """Whether there are as many devices as are wanted, used or not: that is quicker found out than whether they are free."""
    for wanted in request.wanted:
        there = sum(on_numa(card, mask) for card in inventory.cards.get(wanted.type, ()))
        if there < wanted.count and not request.hint(wanted.type).for_all:
            return False
    return True
