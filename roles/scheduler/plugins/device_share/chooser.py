"""Which devices a pod would get on a node now: with reservations, within NUMA nodes, or exactly those that it names (SCH-DEV-16).

Answers are kept twice: with the node until its state moves, and by the state's content, so that nodes that are alike are worked out once.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from koord.api import names
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.restoring import RESTRICTED, TAKEN_OVER, RestoredReservation
from roles.scheduler.framework.status import Status, unschedulable
from roles.scheduler.plugins.device_share.amounts import types_of
from roles.scheduler.plugins.device_share.choice import Outcome, Rules, selected
from roles.scheduler.plugins.device_share.columns import DeviceColumns, holding_of
from roles.scheduler.plugins.device_share.holdings import Allocation, Holding, Share, Use, owners_of, read_allocation, remainder, use_of
from roles.scheduler.plugins.device_share.joint import choose
from roles.scheduler.plugins.device_share.node import NodeDevices
from roles.scheduler.plugins.device_share.request import DeviceRequest
from roles.scheduler.plugins.device_share.view import View, view_of
from roles.scheduler.plugins.scheduling_hint import extension_of
from roles.scheduler.plugins.topology_manager.manager import TopologyManager

T = TypeVar("T")

_NOT_ALL = unschedulable("node(s) devices of the pods to be taken over don't go with the reservation's")

_KEPT = 1 << 12
_NAME = "DeviceShare"


class Chooser:
    """Decides for one profile. `set_rules` forgets everything that was kept."""

    def __init__(self, columns: DeviceColumns, topology: TopologyManager, rules: Rules) -> None:
        self.columns = columns
        self._topology = topology
        self._numbers = itertools.count()
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self.set_rules(rules)

    def set_rules(self, rules: Rules) -> None:
        """Other templates, say."""
        self.rules = rules
        self._stamp = (id(self), next(self._numbers))
        self._kept.clear()

    def cached(self, node: NodeDevices, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` says of the node as it stands; it must not look at anything beyond the node's content and the key."""
        key = (self._stamp, key)
        found = node.results.get(key)
        if found is None:
            found = self._general((key, node.content), work)
            node.keep(key, found)
        answer: T = found
        return answer

    def _general(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` says, once for all nodes of which the key is equal."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = work()
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        answer: T = found
        return answer

    def _considered(self, node: NodeDevices, use: Use, what: Hashable, work: Callable[[View], T]) -> T:
        """What `work` says of a node's devices under a use of them; `what` is all else that it looks at."""
        inventory, alone = node.inventory, _alone(node.holdings)
        assert inventory is not None
        key = (self._stamp, inventory.shape, tuple(node.labels.items()), use.frozen(), tuple(alone), what)
        return self._general(key, lambda: work(view_of(inventory, node.labels, use, alone)))

    # ---------------------------------------------------------------- without reservations

    def plain(self, node: NodeDevices, request: DeviceRequest, mask: int | None = None) -> Outcome:
        """The devices of a node that are free, within the NUMA nodes of a mask. A node without a Device object gives none, and is fine."""
        inventory = node.inventory
        if inventory is None:
            return ()

        def work() -> Outcome:
            view = view_of(inventory, node.labels, node.use, _alone(node.holdings))
            return choose(request, view if mask is None else view.within(mask), self.rules)

        return self.cached(node, (request.key, mask), work)

    def guess(self, node: NodeDevices, pod: PodInfo, request: DeviceRequest, leaving: Callable[[str], bool]) -> Holding | None:
        """What a pod that is only supposed to be on a node would get. One that waits there for others to leave gets what they have, and
        where that is not enough what there is."""
        found = self.plain(node, request)
        if isinstance(found, Status) and (gone := [uid for uid in node.holdings if leaving(uid)]):
            found = self.plain(node.without(*gone), request)
        if isinstance(found, Status):
            assert node.inventory is not None
            view = view_of(node.inventory, node.labels, node.use)
            found = tuple(
                Share(wanted.type, unit.minor, unit.takes(wanted))
                for wanted in request.wanted
                for unit in [unit for unit in view.units.get(wanted.type, ()) if unit.has(wanted)][: wanted.count]
            )
        return holding_of(pod, found) if found else None

    # ---------------------------------------------------------------- in a cycle

    def outcome(self, ctx: CycleContext, slot: int, request: DeviceRequest, mask: int | None = None) -> Outcome:
        """What the pod of the cycle would get: with one of the reservations that it may use, else of what is free. When it is reserved,
        with the reservation that was nominated only."""
        node = self.node(ctx, slot)
        if node.inventory is None:
            return ()
        restored = ctx.restored.get(slot, ())
        if not restored and designated(ctx.pod) is None:
            return self.plain(node, request, mask)
        if ctx.pod.reservation:
            return self._taking_over(ctx, slot, request, restored, mask)
        if all(reservation.ignored for reservation in restored):
            return self.alone(ctx, slot, request, mask, restored)
        if ctx.reservation is not None:
            return self.with_reservation(ctx, slot, request, ctx.reservation, mask)
        if self.reserving(ctx, slot):
            return self.alone(ctx, slot, request, mask)
        reasons: dict[str, None] = {}
        for reservation in restored:
            found = self.with_reservation(ctx, slot, request, reservation, mask)
            if not isinstance(found, Status):
                return found
            reasons.update(dict.fromkeys(found.reasons))
        if names.ANNOTATION_RESERVATION_AFFINITY in ctx.pod.shape.annotations:
            return unschedulable(*(f"Reservation(s) {reason}" for reason in reasons))
        return self.alone(ctx, slot, request, mask)

    def alone(
        self, ctx: CycleContext, slot: int, request: DeviceRequest, mask: int | None = None, released: tuple[RestoredReservation, ...] = ()
    ) -> Outcome:
        """Without any reservation. Only owners use reserved devices: what is left for others is what nobody holds, and what the `released`
        ones have left."""
        node = self.node(ctx, slot)
        if node.inventory is None:
            return ()
        exact, use = designated(ctx.pod), self._use(ctx, slot, node, released)
        return self._considered(node, use, (request.key, mask, exact), lambda view: self._choice(request, _masked(view, mask), exact))

    def _choice(self, request: DeviceRequest, view: View, exact: Allocation | None) -> Outcome:
        """The devices of a view that are best for a request, or exactly those that its pod names."""
        return choose(request, view, self.rules) if exact is None else _exactly(view, exact)

    def with_reservation(
        self, ctx: CycleContext, slot: int, request: DeviceRequest, reservation: RestoredReservation, mask: int | None = None
    ) -> Outcome:
        """With what one reservation has left, which is used up before the node is; of some types a Restricted one gives nothing else."""
        node = self.node(ctx, slot)
        if node.inventory is None:
            return ()
        rest, kinds = self._rest(ctx, slot, node, reservation)
        strict, exact = reservation.policy == RESTRICTED, designated(ctx.pod)

        def work(view: View) -> Outcome:
            view = _masked(view, mask)
            if strict:
                view = view.limited(rest, kinds)
            places = frozenset(share.place for share in rest if any(amount for _, amount in share.amounts))
            found = self._choice(request, view.only(places), exact) if places else unschedulable()
            return self._choice(request, view.preferring(places), exact) if isinstance(found, Status) else found

        use = self._use(ctx, slot, node, (reservation,))
        return self._considered(node, use, (request.key, mask, strict, rest, kinds, exact), work)

    def _rest(self, ctx: CycleContext, slot: int, node: NodeDevices, reservation: RestoredReservation) -> tuple[Allocation, frozenset[str]]:
        """What a reservation has left, and the types of which a Restricted one gives nothing else."""
        holding = _reserved(ctx, slot, node).get(reservation.uid) or held_by(reservation.pod)
        kinds = types_of(reservation.restricted) & {share.type for share in holding.allocation}
        return remainder(holding, owners_of(reservation.uid, node.holdings)), kinds

    def _taking_over(
        self, ctx: CycleContext, slot: int, request: DeviceRequest, candidates: tuple[RestoredReservation, ...], mask: int | None
    ) -> Outcome:
        """A reserve pod that takes running pods over gets all their devices, and more if it wants more. Before it is known which pods it
        takes, any one or all of them will do."""
        node = self.node(ctx, slot)
        taken = taken_over(ctx, slot) if self.reserving(ctx, slot) else None
        if taken is not None:
            choices = [tuple(pod for pod in candidates if pod.uid in taken)]
        else:
            choices = [(), *((pod,) for pod in candidates), candidates]
        found: Outcome = ()
        for pods in choices:
            view = _masked(self._view(ctx, slot, node, pods), mask)
            places = frozenset(share.place for pod in pods for share in held_by(pod.pod).allocation)
            found = self._choice(request, view.forcing(places), designated(ctx.pod))
            if not isinstance(found, Status):
                if places <= {share.place for share in found}:
                    return found
                found = _NOT_ALL
        return found

    def score(self, ctx: CycleContext, slot: int, request: DeviceRequest, mask: int | None = None) -> int:
        """How good the node is for the pod: the sum over the types of what the devices in view are worth together."""
        node = self.node(ctx, slot)
        if node.inventory is None:
            return 0
        restored = ctx.restored.get(slot, ())
        nominated = ctx.reservation or next((r for r in restored if not r.ignored), None)
        strict = nominated is not None and nominated.policy == RESTRICTED
        rest, kinds = self._rest(ctx, slot, node, nominated) if strict and nominated is not None else ((), frozenset())

        def work(view: View) -> int:
            view = _masked(view, mask)
            return self._worth(view.limited(rest, kinds) if strict else view, request)

        use = self._use(ctx, slot, node, restored)
        return self._considered(node, use, ("score", request.key, mask, strict, rest, kinds), work)

    def plain_score(self, node: NodeDevices, request: DeviceRequest) -> int:
        """The same without reservations and NUMA nodes."""
        inventory = node.inventory
        return 0 if inventory is None else self._worth(view_of(inventory, node.labels, node.use), request)

    def _worth(self, view: View, request: DeviceRequest) -> int:
        total = 0
        for wanted in request.wanted:
            hint = request.hint(wanted.type)
            units = selected(view, wanted.type, hint)
            count = len(units) if hint.for_all else wanted.count
            total += self.rules.scorer.node(units, replace(wanted, count=count))
        return total

    def _use(self, ctx: CycleContext, slot: int, node: NodeDevices, released: tuple[RestoredReservation, ...] = ()) -> Use:
        """What is used of the node's devices when what the released reservations have left is free, and that of all others is not."""
        return use_of(node.holdings, _reserved(ctx, slot, node), frozenset(reservation.uid for reservation in released))

    def _view(self, ctx: CycleContext, slot: int, node: NodeDevices, released: tuple[RestoredReservation, ...]) -> View:
        assert node.inventory is not None
        return view_of(node.inventory, node.labels, self._use(ctx, slot, node, released), _alone(node.holdings))

    def node(self, ctx: CycleContext, slot: int) -> NodeDevices:
        """The node without the pod of the cycle."""
        node = self.columns.node(slot)
        return node.without(ctx.pod.uid) if ctx.pod.uid in node.holdings else node

    def reserving(self, ctx: CycleContext, slot: int) -> bool:
        """Whether the reservation is nominated, if the pod uses any: the pod counts on the node already, or is judged as if it did."""
        return self._topology.reserving or ctx.cluster.slot_of_pod(ctx.pod.uid) == slot


def designated(pod: PodInfo) -> Allocation | None:
    """Devices that a pod must get exactly: a scheduling hint for this plugin makes its own annotation an order."""
    if names.ANNOTATION_DEVICE_ALLOCATED not in (pod.metadata.annotations or {}):
        return None
    if extension_of(pod, _NAME) is None:
        return None
    try:
        return read_allocation(pod.metadata.annotations) or None
    except ValueError:
        return None


def _exactly(view: View, wanted: Allocation) -> Outcome:
    """The very devices that a pod names, if all of them are free."""
    for share in wanted:
        unit = next((unit for unit in view.units.get(share.type, ()) if unit.minor == share.minor), None)
        if unit is None or not unit.card.healthy or any(unit.free.get(name, 0) < amount for name, amount in share.amounts):
            return unschedulable(f"Insufficient {share.type} devices")
        left = {function.bus_id for _, group in unit.functions for function in group}
        if any(function.bus_id not in left for function in share.functions):
            return unschedulable(f"Insufficient {share.type} VirtualFunctions")
    return wanted


def taken_over(ctx: CycleContext, slot: int) -> frozenset[str] | None:
    """UIDs of the pods that the reserve pod of the cycle takes over on a node; None while that is not decided."""
    decided = ctx.data.get(TAKEN_OVER, {}).get(slot)
    return None if decided is None else frozenset(pod.uid for pod in decided)


def _masked(view: View, mask: int | None) -> View:
    return view if mask is None else view.within(mask)


def _alone(holdings: Mapping[str, Holding]) -> list[tuple[str, int]]:
    return [share.place for holding in holdings.values() if holding.alone for share in holding.allocation if share.type in holding.alone]


def _reserved(ctx: CycleContext, slot: int, node: NodeDevices) -> dict[str, Holding]:
    """Reservations on the node, those that the cycle has taken off included."""
    reserved = node.reserved()
    for reservation in ctx.restored.get(slot, ()):
        if reservation.uid not in reserved:
            reserved[reservation.uid] = held_by(reservation.pod)
    return reserved


def held_by(pod: PodInfo) -> Holding:
    """What a reserve pod's annotation says that it holds; nothing where it cannot be read."""
    try:
        return holding_of(pod, read_allocation(pod.metadata.annotations))
    except ValueError:
        return holding_of(pod, ())
