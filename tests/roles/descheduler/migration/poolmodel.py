"""Pods of one ReplicaSet that move at once, without a server: API objects, and everybody who writes them, one write at a time.

What a job does is decided by the state machine; its writes come one by one, on the version of the job that was decided on, so that anything
may happen between two of them: another job's writes, the scheduler's, or the end of the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from koord.api import names, objects
from koord.api.objects import ObjectReference, Pod, PodMigrationJob, Reservation
from koord.api.times import format_time
from roles.descheduler.migration import leaving, machine, pairing, status
from roles.descheduler.migration.pairing import ALONE, Peer, Pool
from roles.descheduler.migration.step import Act, Step, View
from roles.descheduler.migration.words import CREATED_BY

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}
NODES = ("n0", "n1", "n2", "n3")
replace = msgspec.structs.replace


class Model:
    """The API objects, and what they must never come to."""

    def __init__(self, replicas: int, moving: int) -> None:
        self.now = 1_000_000.0
        self.replicas = replicas
        self.pods: dict[str, Pod] = {}
        self.reservations: dict[str, Reservation] = {}
        self.jobs: dict[str, PodMigrationJob] = {}
        self.work: dict[str, Iterator[None]] = {}
        self.evicted: list[str] = []
        self.strangers = False  # somebody asked for places that no job counts on
        self._born = 0
        for number in range(replicas):
            self.create(NODES[number % 2])
        for uid in list(self.pods)[:moving]:
            self._job(uid)

    # ---------------------------------------------------------------- the rest of the cluster

    def create(self, node: str = "") -> None:
        """The controller makes a pod."""
        uid = f"p{self._born}"
        self._born += 1
        meta = {"name": uid, "namespace": "d", "uid": uid, "ownerReferences": [OWNER], "creationTimestamp": format_time(self.now)}
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}] if node else []
        plain = {
            "metadata": meta,
            "spec": {"nodeName": node},
            "status": {"phase": "Running" if node else "Pending", "conditions": conditions},
        }
        self.pods[uid] = objects.convert(plain, Pod)

    def _job(self, pod: str) -> None:
        meta: Any = {"name": f"j-{pod}", "uid": f"j-{pod}", "creationTimestamp": format_time(self.now), "resourceVersion": "1"}
        meta["annotations"] = {names.ANNOTATION_PASSED_ARBITRATION: "true"}
        spec = {"podRef": {"namespace": "d", "name": pod, "uid": pod}, "ttl": "1h"}
        job = objects.convert({"metadata": meta, "spec": spec, "status": {"phase": "Running"}}, PodMigrationJob)
        self.jobs[job.metadata.uid] = job

    def missing(self) -> int:
        return max(0, self.replicas - len(self.pods))

    def unbound(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if not pod.spec.node_name]

    def users(self, reservation: Reservation) -> list[Pod]:
        """Pods that the scheduler has put there, whether the status tells of them or not."""
        return [pod for pod in self.pods.values() if pairing.allocated(pod) == reservation.metadata.uid]

    def places(self) -> list[str]:
        """Reservations that a pod can still come into."""
        return [uid for uid, each in self.reservations.items() if pairing.free(each) and not self.users(each)]

    def bind(self, pod: str, reservation: str | None, node: str = "") -> None:
        """The scheduler puts a pod into a place, or elsewhere."""
        found = self.pods[pod]
        notes = {}
        if reservation is not None:
            node = self.reservations[reservation].status.node_name
            notes = {names.ANNOTATION_RESERVATION_ALLOCATED: f'{{"name": "{reservation}", "uid": "{reservation}"}}'}
        meta = replace(found.metadata, annotations=notes)
        self.pods[pod] = replace(found, metadata=meta, spec=replace(found.spec, node_name=node))

    def place(self, uid: str, node: str) -> None:
        """The scheduler finds a node for a reservation."""
        found = objects.convert(
            {"status": {"conditions": [{"type": "Scheduled", "status": "True", "reason": "Scheduled"}]}}, Reservation
        ).status
        self.reservations[uid] = replace(self.reservations[uid], status=replace(found, phase="Available", node_name=node))

    def sync(self, uid: str) -> None:
        """The scheduler's controller writes who uses a reservation."""
        each = self.reservations[uid]
        if (users := self.users(each)) and not each.status.current_owners:
            owners = tuple(ObjectReference(namespace="d", name=pod.metadata.name, uid=pod.metadata.uid) for pod in users)
            self.reservations[uid] = replace(each, status=replace(each.status, phase="Succeeded", current_owners=owners))

    def ready(self, pod: str) -> None:
        """The kubelet starts a pod."""
        found = self.pods[pod]
        up = objects.convert({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, Pod).status
        self.pods[pod] = replace(found, status=replace(up, phase="Running"))

    # ---------------------------------------------------------------- the descheduler

    def step(self, uid: str) -> bool:
        """The next write of a job. False if it rests."""
        going = self.work.get(uid)
        if going is None:
            going = self.work[uid] = self._reconcile(uid)
        try:
            next(going)
        except StopIteration:
            del self.work[uid]
            return False
        return True

    def crash(self) -> None:
        """The process ends where it is."""
        self.work.clear()

    def _reconcile(self, uid: str) -> Iterator[None]:
        while True:
            job = self.jobs[uid]
            view = self._look(job)
            step = machine.decide(view)
            if step.rests:
                return
            yield  # what was decided on may be old by now
            if step.status is not None:
                job = self._write(job, status=step.status)
                if job is None:
                    return
                yield
            yield from self._act(view, step)

    def _look(self, job: PodMigrationJob) -> View:
        ref = status.reservation_ref(job)
        reservation = self.reservations.get(ref.name) if ref is not None else None
        own = self.shown(reservation) if reservation is not None and not status.holds(job, status.Kind.EVICTION) else reservation
        owner = own.status.current_owners[0].uid if own is not None and own.status.current_owners else ""
        pod = self.pods.get(status.pod_uid(job))
        found = self._pool().pairing(job) if ref is not None else ALONE
        return View(job, self.now, pod, own, self.pods.get(owner), pairing=found)

    def shown(self, reservation: Reservation) -> Reservation:
        return pairing.with_users(reservation, self.users(reservation))

    def _pool(self) -> Pool:
        peers = []
        for job in self.jobs.values():
            ref = status.reservation_ref(job)
            if ref is not None and ref.name in self.reservations:
                pod = self.pods.get(status.pod_uid(job))
                peers.append(Peer(job, self.shown(self.reservations[ref.name]), pod.spec.node_name if pod is not None else ""))
        homeless = len(self.unbound()) + self.missing()
        stand = {job.status.pod_ref.uid for job in self.jobs.values() if job.status.pod_ref is not None}
        stand |= {status.pod_uid(job) for job in self.jobs.values()}
        settled = None if homeless else [pod for uid, pod in self.pods.items() if uid not in stand]
        shown = [self.shown(each) for each in self.reservations.values()]
        users = {owner.uid: self.pods[owner.uid] for each in shown for owner in each.status.current_owners if owner.uid in self.pods}
        return Pool(peers, shown, users, homeless, NODES, settled)

    def _write(self, decided: PodMigrationJob, **parts: Any) -> PodMigrationJob | None:
        """Write a job on the version that was decided on; None if there is a newer one."""
        now = self.jobs[decided.metadata.uid]
        if now.metadata.resource_version != decided.metadata.resource_version:
            return None
        meta = replace(now.metadata, resource_version=str(int(now.metadata.resource_version) + 1))
        self.jobs[decided.metadata.uid] = replace(now, metadata=meta, **parts)
        return self.jobs[decided.metadata.uid]

    def _name(self, job: PodMigrationJob, uid: str) -> PodMigrationJob | None:
        made = {"reservationOptions": {"reservationRef": {"name": uid, "uid": uid}}}
        options = objects.convert({"spec": made}, PodMigrationJob).spec.reservation_options
        return self._write(job, spec=replace(job.spec, reservation_options=options))

    def _act(self, view: View, step: Step) -> Iterator[None]:
        job, own = view.job, view.reservation
        if step.act is Act.RESERVE:
            self._reserve(job)
            yield
            self._name(job, f"r-{job.metadata.uid}")
        elif step.act is Act.EVICT:
            yield from self._evict(view)
        elif step.act is Act.RELEASE and own is not None:
            self.reservations.pop(own.metadata.uid, None)
        elif step.act is Act.RELEASE_SPARE and view.pairing.spare is not None:
            self.reservations.pop(view.pairing.spare.metadata.uid, None)
        elif step.act is Act.TAKE_OVER and view.pairing.taken is not None and own is not None:
            heir = view.pairing.heir
            if heir is not None:
                ref = status.reservation_ref(heir)
                if (ref is None or ref.name != own.metadata.uid) and self._name(heir, own.metadata.uid) is None:
                    return
                yield
                if heir_owns := pairing.made_for(own):
                    assert heir_owns == {job.metadata.uid} or heir_owns == {heir.metadata.uid}
                    self.reservations[own.metadata.uid] = self._owned(self.reservations[own.metadata.uid], heir.metadata.uid)
                yield
            self._name(job, view.pairing.taken.metadata.uid)
        yield

    def _reserve(self, job: PodMigrationJob) -> None:
        uid = f"r-{job.metadata.uid}"
        meta = {"name": uid, "uid": uid, "labels": {names.LABEL_CREATED_BY: CREATED_BY, names.LABEL_RESERVATION_ORDER: "1"}}
        made = objects.convert({"metadata": meta, "spec": {"owners": [{"controller": OWNER}], "allocateOnce": True}}, Reservation)
        self.reservations.setdefault(uid, self._owned(made, job.metadata.uid))

    @staticmethod
    def _owned(reservation: Reservation, job: str) -> Reservation:
        owner = {"kind": "PodMigrationJob", "name": job, "uid": job, "controller": True}
        owners = objects.convert({"metadata": {"ownerReferences": [owner]}}, Reservation).metadata.owner_references
        return replace(reservation, metadata=replace(reservation.metadata, owner_references=owners))

    def _evict(self, view: View) -> Iterator[None]:
        job = view.job
        pod, ref = self.pods.get(status.pod_uid(job)), status.reservation_ref(job)
        assert ref is not None
        place = self.reservations.get(ref.name)
        if pod is None or place is None or pairing.used(place):
            return  # not any more: the live look before the eviction
        self.check_room()
        intention = leaving.intention(view).status
        if intention is not None:
            written = self._write(job, status=intention)
            if written is None:
                return
            job = written
        yield
        if pod.metadata.uid in self.pods:
            assert pod.metadata.uid not in self.evicted
            self.evicted.append(pod.metadata.uid)
            del self.pods[pod.metadata.uid]
        yield
        done = leaving.evicted(replace_view(view, job), pod, "test").status
        if done is not None:
            self._write(job, status=done)

    def check_room(self) -> None:
        """Before a pod leaves, there is a place for it and for everybody who has none."""
        if not self.strangers:
            assert len(self.places()) > self.missing() + len(self.unbound())


def replace_view(view: View, job: PodMigrationJob) -> View:
    return View(job, view.now, view.pod, view.reservation, view.bound, pairing=view.pairing)
