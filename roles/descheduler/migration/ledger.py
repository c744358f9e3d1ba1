"""Who migrates now: jobs, pods and workloads brought together for the limits (DS-ARB-03)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from koord.api.objects import Pod, PodMigrationJob
from roles.descheduler.cluster import ClusterState
from roles.descheduler.migration import status
from roles.descheduler.migration.arbitration import migrating_by_job_controller
from roles.descheduler.migration.jobs import Jobs
from roles.descheduler.migration.limits import Migrating, Migration, Owner, dead, leaving
from roles.descheduler.workloads import Workload, WorkloadError, Workloads

REMEMBERED = 200_000  # controllers whose workloads are known


class Ledger:
    """Counts are kept until a job or a pod changes: filters ask for every pod of the cluster."""

    def __init__(self, jobs: Jobs, cluster: ClusterState, workloads: Workloads) -> None:
        self._jobs = jobs
        self._cluster = cluster
        self._workloads = workloads
        self.passing: set[str] = set()  # jobs whose passing is being written
        self._pods_changed = 0
        self._unfinished: tuple[tuple[int, int], Migrating] | None = None
        self._assumed: list[Migration] = []  # of a dry run
        self._with_assumed: tuple[Migrating, Migrating] | None = None
        self._owners: dict[str, tuple[Workload, Owner]] = {}
        self._workload_of: dict[str, str] = {}
        cluster.pods.add_handler(on_add=self._changed, on_update=self._updated, on_delete=self._changed)

    # ---------------------------------------------------------------- what migrates

    def unfinished(self) -> Migrating:
        """Every job that has not ended: what counts before another one is made. In a dry run, also those that would have been made."""
        if not self._assumed:
            return self.real()
        if self._with_assumed is None or self._with_assumed[0] is not self.real():
            migrating = self._migrating(lambda job: not status.finished(job))
            for migration in self._assumed:
                migrating.add(migration)
            self._with_assumed = (self.real(), migrating)
        return self._with_assumed[1]

    def real(self) -> Migrating:
        """Every job that has not ended."""
        version = (self._jobs.version, self._pods_changed)
        if self._unfinished is None or self._unfinished[0] != version:
            self._unfinished = (version, self._migrating(lambda job: not status.finished(job)))
        return self._unfinished[1]

    def assume(self, pod: Pod) -> Callable[[], None]:
        """Count a job that a dry run would have made, until the next round or until what is returned is called."""
        meta = pod.metadata
        job = f"dry run of {pod.key}"
        made = Migration(job, meta.namespace, meta.name, meta.uid, pod.spec.node_name, self._workload_uid(pod), counts=not dead(pod))
        self._assumed.append(made)
        self._with_assumed = None

        def take_back() -> None:
            self._assumed = [each for each in self._assumed if each is not made]
            self._with_assumed = None

        return take_back

    def forget_assumed(self) -> None:
        """A new round: nothing has been made."""
        self._assumed, self._with_assumed = [], None

    def started(self) -> Migrating:
        """The jobs that arbitration has let through: what counts when it lets through more."""
        return self._migrating(lambda job: not status.finished(job) and self._has_started(job))

    def others_leaving(self, pod: Pod) -> dict[str, Migration]:
        """The migrations of other pods of the pod's workload whose eviction was asked for, by pod, until the successor is ready."""
        workload = self._known(pod)
        jobs = self._jobs.of_workload(workload.owner_uids) if workload is not None else ()
        found = (self.migration(job) for job in jobs if not status.finished(job) and status.eviction_begun(job))
        return {each.pod: each for each in found if each.pod_uid != pod.metadata.uid and each.counts}

    def is_leaving(self, pod: Pod) -> bool:
        """Whether a job has asked for the pod's eviction."""
        jobs = (job for name in self._jobs.concerned(pod.key) if (job := self._jobs.get(name)) is not None)
        begun = (job for job in jobs if not status.finished(job) and status.eviction_begun(job))
        return any(status.pod_uid(job) == pod.metadata.uid for job in begun)

    def of_pod(self, pod: Pod) -> list[PodMigrationJob]:
        """The jobs about this very pod that have not ended."""
        return [job for name in sorted(self.real().of_pod(pod)) if (job := self._jobs.get(name)) is not None]

    def going(self, namespace: str) -> list[Pod]:
        """The pods of a namespace that jobs will evict, and have not yet."""
        found = []
        for name in self.real().namespaces.get(namespace, ()):
            job = self._jobs.get(name)
            if job is not None and not status.accepted(job) and (pod := self.its_pod(job)) is not None:
                found.append(pod)
        return found

    def keys(self, pod: Pod) -> tuple[str, str]:
        """What failures of the pod's migration are remembered by: the pod, and its workload ("" without one)."""
        return pod.metadata.uid, self._workload_uid(pod)

    def migrating_of_jobs(self) -> Counter[str]:
        """How many pods of each batch Job migrate already, by the Job's uid."""
        started = (job for job in self._jobs.list() if not status.finished(job) and self._has_started(job))
        return migrating_by_job_controller(pod for job in started if (pod := self.its_pod(job)) is not None)

    def _has_started(self, job: PodMigrationJob) -> bool:
        return status.passed(job) or job.metadata.name in self.passing

    def _migrating(self, counts: Callable[[PodMigrationJob], bool]) -> Migrating:
        return Migrating.of(self.migration(job) for job in self._jobs.list() if counts(job) and status.pod_key(job))

    def migration(self, job: PodMigrationJob) -> Migration:
        """How a job counts. A pod that has come in the place of the one that left counts for it. Nobody misses a pod that has ended, and
        what is paused before it has begun takes nobody away."""
        waits = job.spec.paused and not self._has_started(job)
        namespace, _, name = status.pod_key(job).partition("/")
        pod = self.its_pod(job)
        if pod is not None:
            workload = self._workload_uid(pod) or self._remembered(job)
            counts = not (waits or dead(pod))
            return Migration(job.metadata.name, namespace, name, pod.metadata.uid, pod.spec.node_name, workload, counts=counts)
        new = job.status.pod_ref
        if new is not None and new.uid:
            return Migration(job.metadata.name, namespace, new.name, new.uid, "", self._remembered(job))
        uid = status.pod_uid(job)
        return Migration(job.metadata.name, namespace, name, uid, "", self._remembered(job), gone=True, counts=not waits)

    def its_pod(self, job: PodMigrationJob) -> Pod | None:
        """The pod that the job moves, as long as it is there."""
        pod = self._cluster.pods.get(status.pod_key(job))
        uid = status.pod_uid(job)
        return pod if pod is not None and (not uid or pod.metadata.uid == uid) else None

    # ---------------------------------------------------------------- workloads

    def owner(self, pod: Pod) -> Owner | None:
        """The pod's workload with the state of its pods; None without a controller. One that does not exist has 0 replicas.

        Raises WorkloadError where it cannot be told.
        """
        controller = pod.metadata.controller
        if controller is None:
            return None
        try:
            workload = self._workloads.of(pod)
        except WorkloadError as error:
            if not error.missing:
                raise
            return Owner(controller.kind, controller.name, controller.uid, 0, lost=str(error))
        if workload is None:
            return None
        if len(self._workload_of) > REMEMBERED:  # ReplicaSets that are long gone
            self._owners.clear()
            self._workload_of.clear()
        known = self._owners.get(workload.uid)
        if known is None or (known[0] is not workload and known[0] != workload):
            made = Owner.of(
                workload.kind, workload.name, workload.uid, workload.replicas, self._workloads.pods_of(workload), watched=workload.observed
            )
            known = self._owners[workload.uid] = (workload, made)
            self._workload_of |= dict.fromkeys(workload.owner_uids, workload.uid)
        return known[1]

    def replicas(self, pod: Pod) -> int | None:
        """How many replicas the pod's workload wants, None if that is not known."""
        workload = self._known(pod)
        return workload.replicas if workload is not None else None

    def _known(self, pod: Pod) -> Workload | None:
        """The pod's workload, None where it has none, or it is not known."""
        try:
            return self._workloads.of(pod)
        except WorkloadError:
            return None

    def _workload_uid(self, pod: Pod) -> str:
        workload = self._known(pod)
        if workload is not None:
            return workload.uid
        controller = pod.metadata.controller
        return controller.uid if controller is not None else ""

    def _remembered(self, job: PodMigrationJob) -> str:
        workload = self.behind(job)
        return workload.uid if workload is not None else status.controller_uid(job)

    def behind(self, job: PodMigrationJob) -> Workload | None:
        """The workload that the job's pod belonged to, as far as it is still there."""
        reference = status.workload_reference(job)
        namespace = status.pod_key(job).partition("/")[0]
        try:
            return self._workloads.behind(reference, namespace) if reference is not None else None
        except WorkloadError:
            return None

    def settled(self, job: PodMigrationJob) -> list[Pod] | None:
        """The pods of the workload that the job's pod belonged to, if its controller is at work and all that it wants have a node.

        Then nobody is on the way to a place any more. None while somebody may be.
        """
        workload = self.behind(job)
        if workload is None or not workload.observed:
            return None
        pods = [pod for pod in self._workloads.pods_of(workload) if not leaving(pod)]
        return pods if len(pods) >= workload.replicas and all(pod.spec.node_name for pod in pods) else None

    # ---------------------------------------------------------------- events

    def _updated(self, old: Pod, pod: Pod) -> None:
        self._changed(old)  # a workload may have let it go
        self._changed(pod)

    def _changed(self, pod: Pod) -> None:
        if self._jobs.concerned(pod.key):
            self._pods_changed += 1
        for owner in pod.metadata.owner_references:
            self._owners.pop(self._workload_of.get(owner.uid, ""), None)
