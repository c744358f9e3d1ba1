"""Judging a node whose reservations a pod may use (SCH-RSV-04, 06, 10): which of them fit, or why none does. Called without the reserve
pods of these on the node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from koord.api import names
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.interfaces import ReservationFilter
from roles.scheduler.framework.status import SUCCESS, Status, unschedulable
from roles.scheduler.plugins.node_ports import clash
from roles.scheduler.plugins.reservation.affinity import ReservationAffinity, affinity_of
from roles.scheduler.plugins.reservation.args import ReservationArgs
from roles.scheduler.plugins.reservation.fit import by_node, lacking, refusals, uses
from roles.scheduler.plugins.reservation.ledger import Held, Ledger

NONE_FITS = "node(s) no reservation(s) to meet the requirements"
_PORTS = "node(s) didn't have free ports for the requested pod ports"
_TOO_MANY = "Too many pods"
_WANTED = "Reservation/wanted"


class Verdict(NamedTuple):
    """What came out for a node: the reservations that fit, or none of them and the reasons. `told` are the reasons by reservation."""

    status: Status
    fitting: tuple[Held, ...] = ()
    told: Mapping[str, tuple[str, ...]] = {}


class Judge:
    """`others` are the plugins that have a say on each reservation; `skip_node`: with one reservation only that is looked at. `extended`
    are resources that only HTTP extenders look at."""

    def __init__(self, args: ReservationArgs, ledger: Ledger, *, skip_node: bool, extended: frozenset[str] = frozenset()) -> None:
        self._ledger = ledger
        self._ignored = frozenset(args.ignored_resources) | extended | names.COUNTED_BY_CARD
        self._prefixes = tuple(f"{group}/" for group in args.ignored_resource_groups)
        self._skip_node = skip_node
        self.others: Sequence[ReservationFilter] = ()

    def wanted(self, ctx: CycleContext) -> dict[str, int]:
        """Positive requests that must fit, by resource."""
        shape = ctx.pod.shape
        found: dict[str, int] | None = shape.memo.get((_WANTED, self))
        if found is None:
            found = {name: amount for name, amount in shape.amounts.items() if amount > 0 and not self._ignores(name)}
            shape.memo[_WANTED, self] = found
        return found

    def _ignores(self, resource: str) -> bool:
        return resource in self._ignored or (bool(self._prefixes) and resource.startswith(self._prefixes))

    def verdict(self, ctx: CycleContext, slot: int) -> Verdict:
        """Judge one node."""
        affinity = affinity_of(ctx.pod.shape)
        if affinity.ignored:
            return Verdict(SUCCESS)
        matched = [held for held in (self._ledger.held.get(r.uid) for r in ctx.restored[slot]) if held is not None]
        wanted = self.wanted(ctx)
        free = self.free(ctx, slot, wanted, matched)
        fitting: list[Held] = []
        told: dict[str, tuple[str, ...]] = {}
        for held in matched:
            if not affinity.required and not uses(wanted, held):
                continue
            reasons = self._refusals(ctx, slot, affinity, held, matched, free)
            if reasons:
                told[held.terms.name] = reasons
            else:
                fitting.append(held)
        if fitting:
            return Verdict(SUCCESS, tuple(fitting), told)
        if affinity.required:
            every = dict.fromkeys(reason for reasons in told.values() for reason in reasons)
            return Verdict(unschedulable(*(every or (NONE_FITS,))), (), told)
        return Verdict(self._alone(ctx, slot, wanted, matched, free), (), told)

    def free(self, ctx: CycleContext, slot: int, wanted: Iterable[str], matched: Sequence[Held]) -> dict[str, float]:
        """What the node has beside all pods and all reservations, the matched ones included."""
        cluster = ctx.cluster
        find = cluster.vocabulary.resources.find
        result: dict[str, float] = {}
        for name in wanted:
            resource = find(name)
            room = cluster.free[resource].item(slot) if 0 <= resource < len(cluster.free) else 0.0
            result[name] = room - sum(held.counted(name) for held in matched)
        return result

    def _refusals(
        self, ctx: CycleContext, slot: int, affinity: ReservationAffinity, held: Held, matched: Sequence[Held], free: Mapping[str, float]
    ) -> tuple[str, ...]:
        node_too = not (self._skip_node and len(matched) == 1)
        reasons = refusals(self.wanted(ctx), held, free, named=bool(affinity.name), node_too=node_too)
        if any(clash(ctx.pod.shape, other.pod.shape) for other in matched if other is not held):
            reasons = (*reasons, _PORTS)
        for plugin in self.others:
            reasons = (*reasons, *plugin.fits_reservation(ctx, slot, held.shown()))
        return reasons

    def _alone(self, ctx: CycleContext, slot: int, wanted: Mapping[str, int], matched: Sequence[Held], free: Mapping[str, float]) -> Status:
        """Whether the pod fits beside the reservations that it does not use."""
        reasons = by_node(lacking(wanted, free))
        if ctx.cluster.pod_slots.item(slot) - len(matched) < 1.0:
            reasons = (_TOO_MANY, *reasons)
        if any(clash(ctx.pod.shape, held.pod.shape) for held in matched):
            reasons = (*reasons, _PORTS)
        for plugin in self.others:
            reasons = (*reasons, *plugin.fits_alone(ctx, slot))
        return unschedulable(*reasons) if reasons else SUCCESS
