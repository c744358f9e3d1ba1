"""Which jobs and reservations belong together, from the caches: what `pairing.py` decides on."""

from __future__ import annotations

from koord.api.objects import Pod, PodMigrationJob, Reservation
from koord.kube.informers import Informer
from roles.descheduler.cluster import ClusterState
from roles.descheduler.migration import pairing, status
from roles.descheduler.migration.jobs import Jobs
from roles.descheduler.migration.ledger import Ledger
from roles.descheduler.migration.pairing import Pairing, Peer, Pool
from roles.descheduler.migration.words import Kind
from roles.descheduler.workloads import WorkloadError


class Pools:
    """Finds reservations by the jobs that they were made for, by the pods that may use them, and by those that do."""

    def __init__(self, jobs: Jobs, reservations: Informer[Reservation], cluster: ClusterState, ledger: Ledger) -> None:
        self._jobs = jobs
        self._reservations = reservations
        self._cluster = cluster
        self._ledger = ledger
        reservations.index("made for", pairing.made_for)
        reservations.index("uid", lambda reservation: reservation.metadata.uid)
        reservations.index("owners", pairing.owners_key)
        cluster.pods.index("reservation", pairing.allocated)

    def made_for(self, uid: str) -> list[Reservation]:
        """The reservations that a job, by its uid, has to answer for."""
        return self._reservations.by_index("made for", uid)

    def shown(self, reservation: Reservation) -> Reservation:
        """The reservation with the pods that are bound to it, also where its status does not tell of them yet."""
        return pairing.with_users(reservation, self._cluster.pods.by_index("reservation", reservation.metadata.uid))

    def concerned(self, reservation: Reservation) -> set[str]:
        """Names of the jobs that a change of the reservation may matter to."""
        found = self._jobs.of_reservation(reservation.metadata.name)
        found |= {job.metadata.name for uid in pairing.made_for(reservation) if (job := self._jobs.by_uid(uid)) is not None}
        for each in self._together(reservation):
            found |= self._jobs.of_reservation(each.metadata.name)
        return found

    def pairing(self, job: PodMigrationJob, reservation: Reservation | None) -> Pairing:
        """What the other jobs' reservations mean for a job that names this one (None: it is gone)."""
        if reservation is None:
            spare = (each for each in self.made_for(job.metadata.uid) if not self._jobs.of_reservation(each.metadata.name))
            return Pairing(spare=next(spare, None))
        return self._pool(reservation, job).pairing(job)

    # ---------------------------------------------------------------- the pool

    def _together(self, reservation: Reservation) -> list[Reservation]:
        key = pairing.owners_key(reservation)
        return self._reservations.by_index("owners", key) if key is not None else [reservation]

    def _pool(self, reservation: Reservation, job: PodMigrationJob) -> Pool:
        reservations = [self.shown(each) for each in self._together(reservation)]
        if not any(each.metadata.uid == reservation.metadata.uid for each in reservations):
            reservations.append(reservation)
        peers, users = [], {}
        for each in reservations:
            for name in self._jobs.of_reservation(each.metadata.name):
                peer = self._jobs.get(name)
                if peer is not None and _names(peer, each):
                    peers.append(Peer(peer, each, self._node_of(peer)))
            for owner in each.status.current_owners:
                pod = self._cluster.pods.get(f"{owner.namespace}/{owner.name}")
                if pod is not None and pod.metadata.uid == owner.uid:
                    users[owner.uid] = pod
        homeless = self._homeless(reservation, users) if users and len(reservations) > 1 else 0
        settled = self._ledger.settled(job) if status.running(job) and status.holds(job, Kind.EVICTION) else None
        if settled is not None:
            settled = [pod for pod in settled if not self._jobs.has_part_for(pod)]
        return Pool(peers, reservations, users, homeless, self._cluster.nodes, settled)

    def _node_of(self, job: PodMigrationJob) -> str:
        pod = self._cluster.pods.get(status.pod_key(job))
        uid = status.pod_uid(job)
        return pod.spec.node_name if pod is not None and uid in ("", pod.metadata.uid) else ""

    def _homeless(self, reservation: Reservation, users: dict[str, Pod]) -> int:
        """Pods of the workload without a node, and those that its controller has still to make."""
        controllers = {
            (owner.controller.uid, owner.controller.namespace) for owner in reservation.spec.owners if owner.controller is not None
        }
        controllers |= {(found.uid, pod.metadata.namespace) for pod in users.values() if (found := pod.metadata.controller) is not None}
        waiting = {
            pod.metadata.uid
            for uid, namespace in controllers
            for pod in self._cluster.pods_of_owner(uid, namespace)
            if not pod.spec.node_name and not pod.metadata.deletion_timestamp and pod.status.phase in ("", "Pending")
        }
        return len(waiting) + max((self._missing(pod) for pod in users.values()), default=0)

    def _missing(self, pod: Pod) -> int:
        try:
            owner = self._ledger.owner(pod)
        except WorkloadError:
            return 0
        return owner.missing if owner is not None else 0


def _names(job: PodMigrationJob, reservation: Reservation) -> bool:
    ref = status.reservation_ref(job)
    return ref is not None and ref.name == reservation.metadata.name and ref.uid in ("", reservation.metadata.uid)
