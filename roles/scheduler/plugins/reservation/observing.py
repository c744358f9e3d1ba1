"""Reservations as the API server shows them, turned into reserve pods for queue and cluster (SCH-RSV-01)."""

from __future__ import annotations

import logging
from typing import Any

from koord.api.objects import Reservation
from koord.api.v1alpha1.reservation import PHASE_PENDING
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.events import ClusterEvent
from roles.scheduler.framework.handle import Handle
from roles.scheduler.plugins.reservation import reserve_pod
from roles.scheduler.plugins.reservation.ledger import Held, Ledger, Orphan
from roles.scheduler.plugins.reservation.status import unscheduled

log = logging.getLogger(__name__)


class ReservationObserver:
    """Follows the Reservations. A change that cannot be read is reported and leaves the last good state in place."""

    def __init__(self, ledger: Ledger, handle: Handle) -> None:
        self.ledger = ledger
        self._handle = handle
        ledger.opened = self._wake
        ledger.offered = lambda: handle.activate([ledger.given[uid] for uid in ledger.taking])

    def observe(self, old: Reservation | None, new: Reservation | None) -> None:
        """A Reservation appeared, changed or went."""
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            self._gone(old)
        if new is not None:
            self._seen(new)

    def failure_status(self, pod: PodInfo, message: str, now: float) -> dict[str, Any] | None:
        """What a Reservation that was not placed is to show: it may have been, by another replica, since this version."""
        found, given = self.ledger.objects.get(pod.uid), self.ledger.given.get(pod.uid)
        if given is not None and given.shape.scheduler_name != pod.shape.scheduler_name:
            return None  # another scheduler has it now
        status = unscheduled(found, message, now) if found is not None else None
        if found is None or status is None:
            return None
        return {"metadata": {"uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version}, "status": status}

    def _seen(self, reservation: Reservation) -> None:
        uid, ledger = reservation.metadata.uid, self.ledger
        before, ledger.objects[uid] = ledger.objects.get(uid), reservation
        ledger.shown += 1
        if before is not None and uid in ledger.given and not is_another_offer(before, reservation):
            ledger.touch(uid)
            return  # mostly our own writes: who uses it, conditions
        terms, pod = reserve_pod.read(reservation, self._handle.parser)
        if terms.terminal:
            self._withdraw(uid)
            return
        if pod is None:
            kept = "; what was last good stays" if uid in ledger.given else ""
            log.warning("Reservation %s is not used: %s%s", terms.name, "; ".join(terms.problems), kept)
            return
        offer = _offer(ledger.held.get(uid))
        held = ledger.enter(terms, pod)
        self._hand_in(pod)
        if terms.problems:
            log.warning("Reservation %s gets no owners: %s", terms.name, "; ".join(terms.problems))
        if held.matchable and _offer(held) != offer:
            self._wake(held)

    def _hand_in(self, pod: PodInfo) -> None:
        """To queue or cluster, as a pod without or with a node."""
        given, pods = self.ledger.given, self._handle.pods
        before, given[pod.uid] = given.get(pod.uid), pod
        if before is None:
            pods.pod_added(pod)
        elif before.node_name and before.node_name != pod.node_name:
            pods.pod_deleted(before)
            pods.pod_added(pod)
        else:
            pods.pod_updated(before, pod)
            self._handle.activate((pod,))  # if it waits, it asks for something else now

    def _withdraw(self, uid: str) -> None:
        """It holds nothing any more."""
        before = self.ledger.given.pop(uid, None)
        if before is not None:
            self._handle.pods.pod_deleted(before)
        self.ledger.leave(uid)

    def _gone(self, reservation: Reservation) -> None:
        uid = reservation.metadata.uid
        self._withdraw(uid)
        self.ledger.objects.pop(uid, None)
        self.ledger.touched.pop(uid, None)  # only a leader looks, and clears what it has looked at
        self.ledger.shown += 1
        if self._handle.gates.get("CleanExpiredReservationAllocated"):
            self.ledger.orphans.extend(Orphan(pod, uid, running=True) for pod in self.ledger.owners_of(uid).values())

    def _wake(self, held: Held) -> None:
        """Pods that failed on full nodes may use it now, whichever plugin refused them."""
        owners = held.owner_key
        if owners is not None:
            self._handle.wake(owners.matches, owners.by_template)


def is_another_offer(old: Reservation, new: Reservation) -> bool:
    """Whether more changed than who uses a reservation and what its conditions say."""
    a, b, before, now = old.status, new.status, old.metadata, new.metadata
    return (
        old.spec != new.spec
        or (before.labels, before.annotations, before.deletion_timestamp) != (now.labels, now.annotations, now.deletion_timestamp)
        or (a.phase or PHASE_PENDING, a.node_name, a.allocatable) != (b.phase or PHASE_PENDING, b.node_name, b.allocatable)
    )


def offers_anew(pod: PodInfo, event: ClusterEvent) -> bool:
    """A queueing hint. What an owner gives back is told of by its own deletion."""
    return event.old is None or event.new is None or is_another_offer(event.old, event.new)


def _offer(held: Held | None) -> tuple[Any, ...]:
    """What decides who may use a reservation: when it changes, pods may have become owners."""
    if held is None or not held.matchable:
        return ()
    terms = held.terms
    return (terms.unschedulable, terms.taints, terms.labels, terms.owners, terms.allocatable, terms.policy, terms.restricted, terms.inner)
