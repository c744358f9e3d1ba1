"""Which reservation stands for which job when several pods of one workload move at once (DS-MC-03). Pure.

A reservation is open to every pod of the workload, so a pod may come into the place that another job asked for. Jobs whose reservations
have the same owners are a pool, and in a pool only numbers count: as many places as pods that have left. So a job whose pod has left takes
over the reservation that its successor used, if the job that had asked for it still has its pod, and gives its own place, which nobody will
come for, to that job. Only then may the other pod leave.

Nothing but the jobs, the reservations and the pods is looked at, so that a new life of the process comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from koord.api import kinds, names
from koord.api.annotations import AnnotationError, parse_reservation_allocated
from koord.api.objects import ObjectReference, Pod, PodMigrationJob, Reservation
from roles.descheduler.migration import status
from roles.descheduler.migration.words import Kind, Phase
from roles.descheduler.snapshot import time_of

_HOLDING = frozenset({"Available", "Waiting"})


@dataclass(frozen=True, slots=True)
class Pairing:
    """What the pool means for one job.

    `taken`: the reservation of another job that this job's successor used; `heir`: the job that gets what is given up for it, None for
    nobody. `spare`: a place made for this job that no job needs. `unsettled`: somebody may still come into a place of the pool,
    so that who stands for whom will be known later. `shared`: another job names this job's reservation too; `claimed`: one whose pod leaves
    or has left. `elsewhere`: the successor, which did not come into any reservation of the pool. `unneeded`: there will be none, for the
    workload wants fewer pods by now.
    """

    taken: Reservation | None = None
    heir: PodMigrationJob | None = None
    spare: Reservation | None = None
    unsettled: bool = False
    shared: bool = False
    claimed: bool = False
    elsewhere: Pod | None = None
    unneeded: bool = False


ALONE = Pairing()


@dataclass(frozen=True, slots=True)
class Peer:
    """A job of the pool, the reservation that it names, and the node that its pod is on ("" when that has left)."""

    job: PodMigrationJob
    reservation: Reservation
    node: str = ""

    @property
    def open(self) -> bool:
        """Whether its pod leaves or has left, and nobody has come into its place."""
        came = status.holds(self.job, Kind.RESERVATION_BOUND)
        return status.running(self.job) and status.eviction_begun(self.job) and not came and free(self.reservation)

    @property
    def waits(self) -> bool:
        """Whether its pod has left, and nobody has come into its place."""
        return self.open and status.holds(self.job, Kind.EVICTION)

    @property
    def displaced(self) -> bool:
        """Whether its pod may leave any moment, and somebody came into its place before: whoever follows it needs another one."""
        leaves = status.running(self.job) and status.eviction_begun(self.job) and not status.holds(self.job, Kind.EVICTION)
        return leaves and not free(self.reservation)


class Names(Protocol):
    """Names that can be looked up."""

    def __contains__(self, name: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Pool:
    """Jobs and reservations with the same owners. `homeless`: pods of the workload that have no node yet, or are still to be made.

    `users` are the pods that use reservations, by uid. `nodes` are the names of the nodes that exist. `settled` are the pods of the
    workload that no job is about or names, when every pod that it wants has a node; else None.
    """

    peers: Sequence[Peer]
    reservations: Sequence[Reservation]
    users: Mapping[str, Pod] = field(default_factory=dict)
    homeless: int = 0
    nodes: Names = frozenset()
    settled: Sequence[Pod] | None = None
    # positions of the peers by the place that they name and by their job, so that a look costs as many steps as there are jobs
    _by_place: dict[tuple[str, str], list[int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _by_job: dict[str, list[int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for number, peer in enumerate(self.peers):
            self._by_place.setdefault(_place(peer.reservation), []).append(number)
            self._by_job.setdefault(peer.job.metadata.uid, []).append(number)

    def pairing(self, job: PodMigrationJob) -> Pairing:
        """What the pool means for a job of it."""
        spare = next((each for each in self.reservations if self._left_over(each, job)), None)
        me = next((peer for peer in self.peers if peer.job.metadata.uid == job.metadata.uid), None)
        if me is None:
            return Pairing(spare=spare)
        if me.waits:
            taken, heir = self._takings().get(job.metadata.uid, (None, None))
            unsettled = taken is None and (any(map(self._lost, self.reservations)) or any(peer.displaced for peer in self.peers))
            elsewhere = None if taken is not None or unsettled else self._elsewhere().get(job.metadata.uid)
            unneeded = taken is None and not unsettled and elsewhere is None and self.settled is not None
            return Pairing(taken, heir, spare, unsettled=unsettled, elsewhere=elsewhere, unneeded=unneeded)
        others = [peer for peer in self.peers if peer is not me]
        unsettled = any(peer.open and (status.finished(job) or self._suits(peer.reservation, me)) for peer in others)
        sharing = [peer for peer in others if _same(peer.reservation, me.reservation)]
        return Pairing(spare=spare, unsettled=unsettled, shared=bool(sharing), claimed=any(peer.open for peer in sharing))

    def _takings(self) -> dict[str, tuple[Reservation, PodMigrationJob | None]]:
        """By the uid of a job whose pod has left: the reservation that its successor used instead of its own, and who gets its own.

        Who has no node yet may still come into the places that are free: as many jobs keep them, those whose pods left last.
        """
        waiting = self._waiting()
        lost = sorted(filter(self._lost, self.reservations), key=lambda each: each.metadata.name)
        found: dict[str, tuple[Reservation, PodMigrationJob | None]] = {}
        for peer in waiting[: max(0, len(waiting) - self.homeless)]:
            for each in lost:
                heir = self._heir(each, peer)
                if self._came_after(each, peer.job) and (heir is not None or not self._askers(each)):
                    found[peer.job.metadata.uid] = each, heir
                    lost.remove(each)
                    break
        return found

    def _waiting(self) -> list[Peer]:
        """The jobs that nobody has come for, those whose pods left first in front."""
        return sorted((peer for peer in self.peers if peer.waits), key=lambda peer: (left_at(peer.job), peer.job.metadata.name))

    def _elsewhere(self) -> dict[str, Pod]:
        """By the uid of a job whose pod has left: a pod of the workload that stands for no job. The youngest ones, for they came last."""
        pods = sorted(
            (pod for pod in self.settled or () if pod.metadata.uid not in self.users),
            key=lambda pod: (_seconds(pod.metadata.creation_timestamp), pod.metadata.name),
            reverse=True,
        )
        found: dict[str, Pod] = {}
        for peer in self._waiting():
            pod = next((each for each in pods if _younger(each, peer.job)), None)
            if pod is not None:
                found[peer.job.metadata.uid] = pod
                pods.remove(pod)
        return found

    def _lost(self, reservation: Reservation) -> bool:
        """Whether a pod uses it though the pods of all jobs that it is for are still where they were."""
        if not used(reservation):
            return False
        named = [self.peers[number].job for number in self._by_place.get(_place(reservation), ())]
        if any(status.eviction_begun(job) or job.status.phase == Phase.SUCCEEDED for job in named):
            return False
        return bool(named or self._askers(reservation))

    def _askers(self, reservation: Reservation) -> list[Peer]:
        """The jobs that may count on a reservation and whose pods are still where they were, also when an exchange was cut short."""
        numbers = set(self._by_place.get(_place(reservation), ()))
        for uid in made_for(reservation):
            numbers.update(self._by_job.get(uid, ()))
        peers = [self.peers[number] for number in sorted(numbers)]
        return [peer for peer in peers if not status.finished(peer.job) and not status.eviction_begun(peer.job)]

    def _heir(self, taken: Reservation, me: Peer) -> PodMigrationJob | None:
        """The job that asked for the reservation that `me` takes over, if it can do with what `me` gives up."""
        return next((peer.job for peer in self._askers(taken) if self._suits(me.reservation, peer)), None)

    def _came_after(self, reservation: Reservation, job: PodMigrationJob) -> bool:
        """Whether the pod that uses it is known, and younger than the job: then it may have come for the pod that left."""
        user = self.users.get(reservation.status.current_owners[0].uid)
        return user is not None and _younger(user, job)

    def _suits(self, reservation: Reservation, peer: Peer) -> bool:
        """Whether the pod of a job could go there: another node, and as much room as was asked for it."""
        node, wanted = reservation.status.node_name, peer.reservation.status.allocatable
        return node != peer.node and node in self.nodes and (not wanted or reservation.status.allocatable == wanted)

    def _left_over(self, reservation: Reservation, job: PodMigrationJob) -> bool:
        """Whether a place was made for the job, is free, and no job names it."""
        named = _place(reservation) in self._by_place
        return job.metadata.uid in made_for(reservation) and not named and not reservation.status.current_owners


# ---------------------------------------------------------------- reservations


def free(reservation: Reservation) -> bool:
    """Whether it holds a place that nobody uses."""
    state = reservation.status
    return bool(state.node_name) and state.phase in _HOLDING and not state.current_owners


def used(reservation: Reservation) -> bool:
    """Whether a pod has used it up: nobody else can."""
    return reservation.status.phase == "Succeeded" and bool(reservation.status.current_owners)


def made_for(reservation: Reservation) -> set[str]:
    """The uids of the jobs that own the reservation."""
    return {owner.uid for owner in reservation.metadata.owner_references if owner.kind == kinds.PODMIGRATIONJOBS.kind}


def owners_key(reservation: Reservation) -> str | None:
    """What reservations have in common that the same pods may use; None if nobody may."""
    return msgspec.json.encode(reservation.spec.owners).decode() if reservation.spec.owners else None


def allocated(pod: Pod) -> str | None:
    """The uid of the reservation that a pod says it uses, None for none (or for words that cannot be read)."""
    if names.ANNOTATION_RESERVATION_ALLOCATED not in pod.metadata.annotations:
        return None
    try:
        found = parse_reservation_allocated(pod.metadata.annotations)
    except AnnotationError:
        return None
    return found.uid or None if found is not None else None


def with_users(reservation: Reservation, pods: Iterable[Pod]) -> Reservation:
    """The reservation with the pods that are bound to it, when its own status does not tell of them yet. Used once, it is used up."""
    state = reservation.status
    bound = [pod for pod in pods if pod.spec.node_name and pod.spec.node_name == state.node_name]
    if not bound:
        return reservation
    owners = tuple(ObjectReference(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid) for pod in bound)
    once = reservation.spec.allocate_once is not False and state.phase in _HOLDING
    shown = msgspec.structs.replace(state, current_owners=state.current_owners or owners, phase="Succeeded" if once else state.phase)
    return msgspec.structs.replace(reservation, status=shown)


def _place(reservation: Reservation) -> tuple[str, str]:
    return reservation.metadata.uid, reservation.metadata.name


def _same(one: Reservation, other: Reservation) -> bool:
    return _place(one) == _place(other)


def _younger(pod: Pod, job: PodMigrationJob) -> bool:
    return _seconds(pod.metadata.creation_timestamp) >= _seconds(job.metadata.creation_timestamp)


def left_at(job: PodMigrationJob) -> float:
    """When the job's pod was seen to have left, in seconds since the epoch; 0 if it was not."""
    condition = status.condition(job, Kind.EVICTION)
    return _seconds(condition.last_transition_time if condition is not None else None)


def _seconds(text: str | None) -> float:
    return time_of(text) or 0.0
