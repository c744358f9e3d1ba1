"""Which places are held for pods, and by which migrations: what targets of load must count (DS-LNL-07)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from koord.accounting.pods import pod_requests
from koord.accounting.resources import max_, parse, sub
from koord.api.objects import Pod, PodMigrationJob, Reservation
from koord.api.quantity import QuantityError
from koord.kube.informers import Informer
from roles.descheduler.arrivals import Expected, estimate, is_prod
from roles.descheduler.cluster import ClusterState
from roles.descheduler.migration import pairing, status
from roles.descheduler.migration.jobs import Jobs
from roles.descheduler.migration.pools import Pools
from roles.descheduler.relief import Relief
from roles.descheduler.snapshot import Vector

Order = tuple[str, str]


class Expectations:
    """Reads jobs and reservations from the caches."""

    def __init__(
        self, jobs: Jobs, reservations: Informer[Reservation], pools: Pools, cluster: ClusterState, clock: Callable[[], float]
    ) -> None:
        self._jobs = jobs
        self._reservations = reservations
        self._pools = pools
        self._cluster = cluster
        self._clock = clock
        reservations.index("node", lambda reservation: reservation.status.node_name or None)

    def all(self) -> list[Expected]:
        """Every place that is held, and for jobs that have none yet the node that they prefer."""
        found = [place for reservation in self._reservations.list() if (place := self._place(reservation)) is not None]
        return [*found, *self._to_come()]

    def on(self, node: str, job: PodMigrationJob) -> list[Expected]:
        """The places that are held on a node and have the right of way before a job: two that find the last room there must not both
        give it up, nor both take it."""
        mine = order(job)
        found = (self._place(reservation) for reservation in self._reservations.by_index("node", node))
        return [place for place in found if place is not None and place.job != job.metadata.name and self._goes_first(place, mine)]

    def held_before(self, job: PodMigrationJob | None) -> Iterator[tuple[str, Pod, PodMigrationJob | None]]:
        """The nodes where places are held that have the right of way before a job (None: one that is still to be made), each with the pod
        that is to come, and the job that asked for it, if one did."""
        for reservation in self._reservations.list():
            place = self._place(reservation) if reservation.status.node_name else None
            if place is None or (job is not None and (place.job == job.metadata.name or not self._goes_first(place, order(job)))):
                continue
            yield place.node, _pod_of(reservation), self._jobs.get(place.job) if place.job else None

    def _goes_first(self, place: Expected, mine: Order) -> bool:
        job = self._jobs.get(place.job) if place.job else None
        return job is None or place.order < mine or status.eviction_begun(job)

    def brought(self, pod: Pod) -> Vector | None:
        """What a pod that came by a migration for load used where it came from; None if it did not."""
        jobs = set(self._jobs.concerned(pod.key))
        if (uid := pairing.allocated(pod)) is not None:
            for reservation in self._reservations.by_index("uid", uid):
                jobs |= self._jobs.of_reservation(reservation.metadata.name)
        for name in sorted(jobs):
            job = self._jobs.get(name)
            relief = status.relief(job) if job is not None and status.pod_uid(job) != pod.metadata.uid else None
            if relief is not None:
                return relief.usage
        return None

    # ---------------------------------------------------------------- one place

    def _place(self, reservation: Reservation) -> Expected | None:
        if not pairing.free(shown := self._pools.shown(reservation)):
            return None
        job = next((job for name in sorted(self._jobs.of_reservation(reservation.metadata.name)) if (job := self._jobs.get(name))), None)
        relief = status.relief(job) if job is not None else None
        pod = _pod_of(shown)
        try:
            requests = (
                sub(parse(shown.status.allocatable), parse(shown.status.allocated)) if shown.status.allocatable else pod_requests(pod)
            )
        except QuantityError:
            requests = {}
        usage = max_(estimate(pod), relief.usage if relief is not None else {})
        where = shown.status.node_name
        return Expected(
            where, requests, usage, is_prod(pod), job.metadata.name if job is not None else "", order(job) if job is not None else ("", "")
        )

    def _to_come(self) -> Iterator[Expected]:
        now = self._clock()
        for job in self._jobs.list():
            if not status.proceeds(job, now) or status.accepted(job):
                continue
            relief, pod = status.relief(job), self._cluster.pods.get(status.pod_key(job))
            ref = status.reservation_ref(job)
            held = self._reservations.get(ref.name) if ref is not None else None
            if relief is None or pod is None or (held is not None and held.status.node_name):
                continue
            if where := next((name for name in relief.nodes if name not in status.avoided(job)), ""):
                yield self._wanted(where, job, pod, relief)

    @staticmethod
    def _wanted(where: str, job: PodMigrationJob, pod: Pod, relief: Relief) -> Expected:
        try:
            requests = pod_requests(pod)
        except QuantityError:
            requests = {}
        return Expected(where, requests, relief.usage or estimate(pod), relief.prod, job.metadata.name, order(job))


def order(job: PodMigrationJob) -> Order:
    """Older jobs go first."""
    return job.metadata.creation_timestamp or "", job.metadata.name


def _pod_of(reservation: Reservation) -> Pod:
    template = reservation.spec.template
    return Pod(metadata=template.metadata, spec=template.spec) if template is not None else Pod()
