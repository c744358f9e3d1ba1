"""Reservations on nodes and who uses them, as columns that follow the cluster (SCH-RSV-04, 05, 06, 08, 14).

Everything follows from pods that count on nodes: a reserve pod makes its reservation hold resources, a pod that carries the annotation
`reservation-allocated` (or for which Reserve has said so) is an owner. The reserve pod counts with what owners have not taken yet, at
least with what it keeps for itself, so that every amount counts once; what an owner takes beyond that it takes from the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from koord.accounting.resources import ResourceVector, add_into
from koord.api import names
from koord.api.annotations import parse_reservation_allocated, parse_reservation_current_owner
from koord.api.objects import Reservation
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns
from roles.scheduler.cluster.podinfo import PodInfo, PodShape, with_amounts
from roles.scheduler.framework.restoring import RestoredReservation
from roles.scheduler.plugins.reservation.forms import as_held
from roles.scheduler.plugins.reservation.owners import OwnerIndex, Owners, OwnersError
from roles.scheduler.plugins.reservation.selector_index import SelectorIndex
from roles.scheduler.plugins.reservation.terms import Terms, of_pod

_FULL = "Reservation/full"  # memo of a shape with other amounts: the shape that it was made of


class Orphan(NamedTuple):
    """A pod whose annotation `reservation-allocated` is to go. `running`: also if the pod has a node by now."""

    pod: PodInfo
    reservation: str
    running: bool = False


@dataclass(slots=True, eq=False)
class Held:
    """A reservation that holds resources, or will once its reserve pod counts. `slot` is -1 while that does not."""

    terms: Terms
    pod: PodInfo  # with all that is reserved
    rest: PodShape  # with what it counts with
    slot: int = -1
    counted_at: int = -1  # the slot that owners were last counted for
    owner_key: Owners | None = None
    owners: dict[str, PodInfo] = field(default_factory=dict)
    taken: ResourceVector = field(default_factory=dict)  # by owners, of whatever is reserved
    allocated: ResourceVector = field(default_factory=dict)  # of that the names that count in it
    consumed: bool = False  # once it had an owner that is bound
    announced: bool = False  # of an operating pod: that it is available
    dirty: bool = False  # owners changed while it did not count
    view: RestoredReservation | None = None
    ignored_view: RestoredReservation | None = None

    @property
    def matchable(self) -> bool:
        """Whether a new owner may come."""
        terms = self.terms
        if self.slot < 0 or not terms.available or terms.problems or self.owner_key is None:
            return False
        # A Reservation ends with its first owner, an operating pod goes on and takes the next one.
        return not (terms.allocate_once and (self.owners or (self.consumed and terms.kind != "Pod")))

    def counted(self, resource: str) -> int:
        """With how much of a resource the reserve pod counts on its node: what owners have not taken."""
        return self.rest.amounts.get(resource, 0)

    def left(self, resource: str) -> int:
        """How much of that a new owner may take: not what the reservation keeps for itself."""
        return max(0, self.counted(resource) - self.terms.inner.get(resource, 0))

    def restricted_left(self, resource: str) -> int:
        """How much of a restricted resource a Restricted reservation still gives."""
        terms = self.terms
        return terms.allocatable.get(resource, 0) - terms.inner.get(resource, 0) - self.allocated.get(resource, 0)

    def shown(self, *, ignored: bool = False) -> RestoredReservation:
        """As plugins see it; the same object until something changes."""
        if self.view is None:
            terms = self.terms
            self.view = RestoredReservation(
                terms.name, terms.uid, self.pod, tuple(self.owners), terms.policy, terms.allocatable, self.allocated, terms.restricted
            )
        if not ignored:
            return self.view
        if self.ignored_view is None:
            self.ignored_view = replace(self.view, ignored=True)
        return self.ignored_view

    def changed(self) -> None:
        """What was shown is out of date."""
        self.view = self.ignored_view = None


class Ledger(Columns):
    """All reservations that hold something. `kind` marks rows whose reservations changed."""

    def __init__(self, index: SelectorIndex) -> None:
        self.held: dict[str, Held] = {}
        self.owners = OwnerIndex()
        self.index = index
        self.touched: dict[str, None] = {}  # reservations that the controller should look at, by UID
        self.stirred = asyncio.Event()  # set when there is one
        self.objects: dict[str, Reservation] = {}  # as the API server shows them, by UID
        self.shown = 0  # moves when any of them changes
        self.given: dict[str, PodInfo] = {}  # reserve pods in queue or cluster, by UID
        self.orphans: list[Orphan] = []
        self.handed: dict[str, tuple[PodInfo, ...]] = {}  # running pods that Reserve has given to a reservation, by its UID
        self.taking: dict[str, None] = {}  # reservations, by UID, that wait for a place and may take running pods over
        self.opened: Callable[[Held], None] = lambda held: None
        self.offered: Callable[[], None] = lambda: None  # a pod may be taken over by now, which no event tells
        self._on: dict[int, dict[str, Held]] = {}
        self._assumed: dict[str, str] = {}  # pod UID -> reservation UID, said by Reserve
        self._claims: dict[str, dict[str, tuple[int, PodInfo]]] = {}  # reservation UID -> pods that use it, with their slots
        self._claimed: dict[str, str] = {}  # pod UID -> reservation UID
        self._current: dict[str, str] = {}  # pod UID -> operating pod that names it as its owner

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def touch(self, uid: str) -> None:
        """The controller should look at this reservation."""
        self.touched[uid] = None
        self.stirred.set()

    # ---------------------------------------------------------------- what plugins ask

    def on(self, slot: int) -> tuple[RestoredReservation, ...]:
        """Reservations that count on a slot (`Holdings`)."""
        return tuple(held.shown() for held in self._on.get(slot, {}).values())

    def reservation_of(self, pod_uid: str) -> str:
        """UID of the reservation that a pod on a node uses (`Holdings`)."""
        return self._claimed.get(pod_uid, "")

    def here(self, slot: int) -> Iterator[Held]:
        """Reservations that count on a slot, in the order they came."""
        return iter(self._on.get(slot, {}).values())

    def slots(self) -> Iterator[int]:
        """Slots with reservations."""
        return iter(self._on)

    # ---------------------------------------------------------------- reservations come, change and go

    def enter(self, terms: Terms, pod: PodInfo) -> Held:
        """Know a reservation, before its reserve pod counts anywhere, or as it is now."""
        held = self.held.get(terms.uid)
        if held is None:
            held = self.held[terms.uid] = Held(terms, pod, pod.shape)
        same_owners = held.owner_key is not None and held.terms.owners == terms.owners
        old, held.terms, held.pod = held.terms, terms, pod
        if not same_owners:
            self._leave_owners(held)
            self._enter_owners(held)
        if old.labels != terms.labels or held.terms is old:
            self.index.leave(terms.uid)
            self.index.enter(terms.uid, terms.labels)
        if terms.pre_allocation and not terms.active:
            self.taking[terms.uid] = None
        else:
            self.taking.pop(terms.uid, None)
        self._recount(held)
        held.changed()
        self.touch(terms.uid)
        if held.slot >= 0:
            self.cluster.changes.note(held.slot, self.kind)
        return held

    def leave(self, uid: str) -> None:
        """Forget a reservation whose reserve pod does not count any more."""
        held = self.held.pop(uid, None)
        self.taking.pop(uid, None)
        if held is not None:
            self._leave_owners(held)
            self.index.leave(uid)
            self._uncount(held)
        self.touch(uid)

    def _enter_owners(self, held: Held) -> None:
        terms = held.terms
        if not terms.problems:
            try:
                held.owner_key = self.owners.enter(terms.owners, terms.uid, held)
            except OwnersError as error:
                terms.problems = (*terms.problems, str(error))

    def _leave_owners(self, held: Held) -> None:
        if held.owner_key is not None:
            self.owners.leave(held.owner_key, held.terms.uid)
            held.owner_key = None

    # ---------------------------------------------------------------- owners

    def assume(self, pod: PodInfo, uid: str) -> None:
        """A pod that counts on a node will use a reservation (Reserve); until its annotation says so this does."""
        self._assumed[pod.uid] = uid
        slot = self.cluster.slot_of_pod(pod.uid)
        if slot >= 0:
            self._unclaim(pod.uid)
            self._claim(pod, uid, slot)

    def release(self, pod_uid: str) -> str:
        """Take it back (Unreserve); returns the reservation's UID, "" when nothing was assumed."""
        uid = self._assumed.pop(pod_uid, "")
        if uid and self._claimed.get(pod_uid) == uid:
            pod = self.cluster.pod(pod_uid)
            if pod is None or annotated(pod) != uid:
                self._unclaim(pod_uid)
        return uid

    def gone(self, pod_uid: str) -> None:
        """The API server has the pod no more: nothing said about it holds."""
        self.handed.pop(pod_uid, None)
        self._assumed.pop(pod_uid, None)
        self._current.pop(pod_uid, None)
        self._retire(pod_uid)

    def owners_of(self, uid: str) -> dict[str, PodInfo]:
        """All pods on nodes that use a reservation, wherever they are."""
        return {pod_uid: pod for pod_uid, (_, pod) in self._claims.get(uid, {}).items()}

    def _claim(self, pod: PodInfo, uid: str, slot: int) -> None:
        self._claims.setdefault(uid, {})[pod.uid] = (slot, pod)
        self._claimed[pod.uid] = uid
        self.cluster.changes.note(slot, self.kind)
        self._owners_changed(uid)

    def _unclaim(self, pod_uid: str) -> None:
        uid = self._claimed.pop(pod_uid, None)
        if uid is None:
            return
        members = self._claims[uid]
        slot, _ = members.pop(pod_uid)
        self.cluster.changes.note(slot, self.kind)
        if not members:
            del self._claims[uid]
        self._owners_changed(uid)

    def _owners_changed(self, uid: str) -> None:
        """Count the owners anew, and let the reserve pod count with what is left."""
        held = self.held.get(uid)
        if held is None:
            return
        self.touch(uid)
        if held.slot < 0:
            held.dirty = True
            return
        if self._recount(held):
            self.cluster.swap_pod(PodInfo(held.pod.pod, held.rest, held.pod.reservation))
        else:
            self.cluster.changes.note(held.slot, self.kind)

    def _recount(self, held: Held) -> bool:
        """Owners and what they take; returns whether the reserve pod counts with another amount now."""
        terms, slot = held.terms, held.slot if held.slot >= 0 else held.counted_at
        held.owners = {uid: pod for uid, (where, pod) in self._claims.get(terms.uid, {}).items() if where == slot}
        allocated: ResourceVector = {}
        for pod in held.owners.values():
            taken = as_held(pod.shape.amounts, terms.allocatable)
            add_into(allocated, {name: amount for name, amount in taken.items() if name in terms.allocatable})
        held.taken = allocated
        held.allocated = {name: amount for name, amount in allocated.items() if name in terms.restricted}
        held.consumed = held.consumed or (terms.available and any(pod.node_name for pod in held.owners.values()))
        held.dirty = False
        held.changed()
        before = held.rest
        rest = {
            name: max(0, min(amount, terms.inner.get(name, 0)), amount - allocated.get(name, 0))
            for name, amount in held.pod.shape.amounts.items()
        }
        base = before.memo.get(_FULL, before)
        if base is not held.pod.shape or before.amounts != rest:
            held.rest = held.pod.shape
            if rest != held.pod.shape.amounts:
                held.rest = with_amounts(held.pod, rest, self.cluster.vocabulary).shape
                held.rest.memo[_FULL] = held.pod.shape
        return held.rest is not before

    # ---------------------------------------------------------------- following the cluster

    def sized(self, slot: int, pod: PodInfo) -> PodInfo:
        if pod.shape.labels.get(names.LABEL_POD_OPERATING_MODE) == names.OPERATING_MODE_RESERVATION:
            self._operating(pod)
        else:
            self._retire(pod.uid)
        held = self.held.get(pod.uid)
        if held is None:
            return pod
        full = pod.shape.memo.get(_FULL, pod.shape)
        if full is pod.shape and full is not held.pod.shape:
            held.pod = pod
        if held.dirty or held.counted_at != slot or held.rest.memo.get(_FULL, held.rest) is not held.pod.shape:
            held.counted_at = slot if held.slot < 0 else held.slot
            self._recount(held)
        if pod.shape is held.rest:
            return pod
        if pod.shape.amounts == held.rest.amounts and full is held.pod.shape:
            held.rest = pod.shape
            return pod
        return PodInfo(pod.pod, held.rest, pod.reservation)

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        held = self.held.get(pod.uid)
        if held is not None:
            held.slot = held.counted_at = slot
            self._on.setdefault(slot, {})[pod.uid] = held
            self.cluster.changes.note(slot, self.kind)
            self._announce(held)
            return
        if not pod.reservation:
            self._pod_seen(slot, pod)

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        held = self.held.get(pod.uid)
        if held is not None:
            self._uncount(held)
            return
        self._unclaim(pod.uid)

    def pod_replaced(self, slot: int, old: PodInfo, new: PodInfo) -> None:
        held = self.held.get(new.uid)
        if held is None:
            if not new.reservation:
                before = self.reservation_of(new.uid)
                self._pod_seen(slot, new)
                if self.taking and (before, *_candidacy(old)) != (self.reservation_of(new.uid), *_candidacy(new)):
                    self.cluster.changes.note(slot, self.kind)
                    self.offered()
            return
        held.changed()
        self.cluster.changes.note(slot, self.kind)
        self._announce(held)

    def _announce(self, held: Held) -> None:
        """An operating pod became available, which no event of a pod tells: those that wait for it are to be tried again."""
        if held.terms.kind == "Pod" and held.announced != held.terms.available:
            held.announced = held.terms.available
            if held.matchable:
                self.opened(held)

    def _pod_seen(self, slot: int, pod: PodInfo) -> None:
        """A pod counts on a node: whose owner is it?"""
        uid = annotated(pod) if pod.node_name else ""  # before it is bound, the annotation is of an attempt that failed
        if uid:
            self._assumed.pop(pod.uid, None)
        uid = uid or self._assumed.get(pod.uid, "") or self._current.get(pod.uid, "")
        before = self._claims.get(self._claimed.get(pod.uid, ""), {}).get(pod.uid)
        if before is not None and self._claimed[pod.uid] == uid and before[0] == slot and before[1].shape is pod.shape:
            bound = bool(pod.node_name) and not before[1].node_name
            self._claims[uid][pod.uid] = (slot, pod)
            held = self.held.get(uid)
            if held is not None and pod.uid in held.owners:
                held.owners[pod.uid] = pod
                held.consumed = held.consumed or (held.terms.available and bool(pod.node_name))
            if bound:
                self.touch(uid)
            return
        self._unclaim(pod.uid)
        if uid:
            self._claim(pod, uid, slot)

    def _uncount(self, held: Held) -> None:
        if held.slot >= 0:
            here = self._on[held.slot]
            del here[held.terms.uid]
            if not here:
                del self._on[held.slot]
            self.cluster.changes.note(held.slot, self.kind)
            held.slot = -1

    # ---------------------------------------------------------------- pods in operating mode Reservation

    def _operating(self, pod: PodInfo) -> None:
        """A real pod that is a reservation comes or changes."""
        known = self.held.get(pod.uid)
        if known is not None and known.pod.pod is pod.pod:
            return
        full = pod.shape.memo.get(_FULL, pod.shape)
        whole = pod if full is pod.shape else PodInfo(pod.pod, full, pod.reservation)
        terms = of_pod(pod.pod, {name: amount for name, amount in full.amounts.items() if amount > 0})
        owner = _current_owner(pod)
        if owner is not None:
            self._name(pod.uid, owner)
        self.enter(terms, whole)

    def _retire(self, uid: str) -> None:
        """If a pod was a reservation, it is none any more."""
        held = self.held.get(uid)
        if held is not None and held.terms.kind == "Pod":
            self.leave(uid)
            self.touched.pop(uid, None)  # the API server has no Reservation of it
            self._name(uid, "")

    def _name(self, uid: str, owner: str) -> None:
        """An operating pod names a pod as its current owner, or none ("")."""
        former = [pod_uid for pod_uid, named in self._current.items() if named == uid and pod_uid != owner]
        for pod_uid in former:
            del self._current[pod_uid]
        if owner:
            self._current[owner] = uid
        for pod_uid in (*former, owner):  # whose they are now
            pod = self.cluster.pod(pod_uid)
            if pod is not None and pod_uid not in self.held:
                self._pod_seen(self.cluster.slot_of_pod(pod_uid), pod)


def _candidacy(pod: PodInfo) -> tuple[object, ...]:
    """What decides, beside its shape and the reservation that it uses, whether a pod may be taken over (preallocation.py)."""
    return (bool(pod.node_name), pod.deleting, pod.labels, pod.pod.metadata.owner_references)


def annotated(pod: PodInfo) -> str:
    """UID of the reservation that a pod's annotation names; an annotation that cannot be read names none."""
    annotations = pod.pod.metadata.annotations
    if names.ANNOTATION_RESERVATION_ALLOCATED not in annotations:
        return ""
    try:
        allocated = parse_reservation_allocated(annotations)
    except ValueError:
        return ""
    return allocated.uid if allocated is not None else ""


def _current_owner(pod: PodInfo) -> str | None:
    """UID of the pod that an operating pod's annotation names, "" for none; None where it cannot be read."""
    try:
        owner = parse_reservation_current_owner(pod.pod.metadata.annotations)
    except ValueError:
        return None
    return owner.uid if owner is not None else ""
