"""Which reservations a pod may use, and where (SCH-RSV-02, 03, 06, 10)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.labels import ABSENT
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.restoring import RestoredReservation
from roles.scheduler.plugins.reservation.affinity import ReservationAffinity, affinity_of, objection
from roles.scheduler.plugins.reservation.ledger import Held, Ledger

Rows = dict[int, tuple[RestoredReservation, ...]]


class Matcher:
    """`omit_node_labels`: selectors look at labels of reservations only (gate OmitNodeLabelsForReservation)."""

    def __init__(self, ledger: Ledger, cluster: Cluster, *, omit_node_labels: bool) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._omit = omit_node_labels

    def key(self, pod: PodInfo) -> Hashable:
        """What tells pods of one shape apart: the owners they belong to. None for a pod that belongs to none."""
        owners = self._ledger.owners.match(pod)
        return tuple(found.number for found in owners) or None

    def rows(self, ctx: CycleContext) -> Rows | None:
        """Usable reservations by slot; None for pods that belong to no owners and ignore no reservation."""
        affinity = affinity_of(ctx.pod.shape)
        if affinity.ignored:
            return {slot: found for slot in list(self._ledger.slots()) if (found := self._ignored(slot))}
        owners = self._ledger.owners.match(ctx.pod)
        if not owners or affinity.error:
            return None
        narrowed = self._narrowed(affinity)
        rows: Rows = {}
        for one in owners:
            for uid, held in one.users.items():
                if (narrowed is None or uid in narrowed) and self.usable(ctx, affinity, held):
                    rows[held.slot] = (*rows.get(held.slot, ()), held.shown())
        return {slot: _by_name(found) if len(found) > 1 else found for slot, found in rows.items()}

    def row(self, ctx: CycleContext, slot: int) -> tuple[RestoredReservation, ...]:
        """Usable reservations of one slot."""
        affinity = affinity_of(ctx.pod.shape)
        if affinity.ignored:
            return self._ignored(slot)
        here = list(self._ledger.here(slot))
        if not here:
            return ()
        numbers = {found.number for found in self._ledger.owners.match(ctx.pod)}
        usable = (held for held in here if held.owner_key is not None and held.owner_key.number in numbers)
        return _by_name(held.shown() for held in usable if self.usable(ctx, affinity, held))

    def usable(self, ctx: CycleContext, affinity: ReservationAffinity, held: Held) -> bool:
        """Whether a pod of its owners may use a reservation."""
        return held.matchable and bool(self._cluster.alive[held.slot]) and not self.objection(ctx, affinity, held)

    def objection(self, ctx: CycleContext, affinity: ReservationAffinity, held: Held) -> str:
        """Why not, in the words of `affinity`."""
        return self.objection_on(held.slot, affinity, ctx.pod.shape.amounts, held)

    def objection_on(self, slot: int, affinity: ReservationAffinity, amounts: Mapping[str, int], held: Held) -> str:
        """The same for a reservation that is not on the slot yet."""
        labels: Mapping[str, str] = {}
        if affinity.by_labels and not self._omit:
            view = self._cluster.row(slot).view
            labels = view.labels if view is not None else {}
        return objection(affinity, amounts, held.terms, labels)

    def _ignored(self, slot: int) -> tuple[RestoredReservation, ...]:
        here = self._ledger.here(slot) if self._cluster.alive[slot] else ()
        return _by_name(held.shown(ignored=True) for held in here if held.matchable)

    def _narrowed(self, affinity: ReservationAffinity) -> Collection[str] | None:
        index = self._ledger.index
        if affinity.name or not affinity.selector or not index.active:
            return None
        found = index.narrow(affinity.selector, self._on_nodes)
        if found is None:
            index.counted("miss", 0)
        else:
            held = (self._ledger.held.get(uid) for uid in found)
            index.counted("hit", len({one.slot for one in held if one is not None and one.slot >= 0}))
        return found

    def _on_nodes(self, key: str) -> bool:
        """Whether nodes have the label too, so that a reservation without it may be selected."""
        return not self._omit and bool((self._cluster.labels.column(key).ids != ABSENT).any())


def _by_name(found: Iterable[RestoredReservation]) -> tuple[RestoredReservation, ...]:
    return tuple(sorted(found, key=lambda reservation: reservation.name))


def owned_by(ledger: Ledger, pod: PodInfo) -> Iterable[Held]:
    """Reservations on nodes whose owners a pod belongs to, whatever else speaks against them."""
    for owners in ledger.owners.match(pod):
        yield from (held for held in owners.users.values() if held.slot >= 0 and held.matchable)
