"""MigrationController as an Evict and Filter plugin of a profile: pods leave by PodMigrationJobs (DS-MC-01)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from koord import seams
from koord.accounting.resources import max_, parse
from koord.api import kinds, names
from koord.api.gangs import gang_id
from koord.api.objects import Pod
from koord.api.times import format_duration
from koord.kube import errors
from roles.descheduler import background
from roles.descheduler.arrivals import Expected, estimate, is_prod
from roles.descheduler.fitting import OtherNodes
from roles.descheduler.framework.evicting import Controller, EvictOptions, EvictResult, Setup
from roles.descheduler.migration import evictors, limits, status, template
from roles.descheduler.migration.args import MigrationControllerArgs
from roles.descheduler.migration.controller import Migrations
from roles.descheduler.migration.policy import EVICTION
from roles.descheduler.migration.together import Move
from roles.descheduler.migration.words import Mode, Reason
from roles.descheduler.relief import TARGETS, Relief
from roles.descheduler.snapshot import NodeView, Vector

log = logging.getLogger(__name__)


class MigrationController:
    """Filter: which pods may migrate now. Evict: make a job for the pod. The controller carries all jobs out."""

    name = "MigrationController"

    def __init__(self, args: MigrationControllerArgs, setup: Setup) -> None:
        self._setup = setup
        self._migrations = setup.once(self.name, lambda: Migrations(setup))
        self._instance = setup.once("MigrationController instance", seams.uid)
        self._in_background = setup.gates.enabled(background.GATE)
        self._policy = self._migrations.join(setup.profile, args, setup)
        effective = self._policy.args
        self._nodes = OtherNodes(setup.cluster, effective.node_selector) if effective.node_fit else None

    async def prepare(self, pods: Iterable[Pod]) -> None:
        """Know the kinds of workloads of the pods, and all jobs."""
        await self._migrations.wait_synced()
        self._migrations.ledger.forget_assumed()
        await self._setup.workloads.learn(pods)
        if self._nodes is not None:
            self._nodes.begin()

    async def see(self, nodes: Sequence[NodeView]) -> None:
        """With nodeFit, the nodes where pods may fit."""
        if self._nodes is not None:
            await self._nodes.see(nodes)

    def filter(self, pod: Pod) -> str:
        """Why no job may be made for the pod now, "" when one may."""
        if self._in_background and background.goes_on(pod):
            return "its eviction in background is under way"
        refusal = self._policy.refuse(pod, self._migrations.ledger)
        return refusal.message if refusal is not None else ""

    def reasons(self, pod: Pod) -> list[str]:
        """Everything that keeps the pod, what `filter` tells in front."""
        return self._policy.reasons(pod, self._migrations.ledger)

    def waits_for(self, pod: Pod) -> str:
        """What the pod's job waits for: arbitration, a place, or the answer of the Eviction API."""
        return next((why for job in self._migrations.ledger.of_pod(pod) if (why := status.waits_for(job))), "")

    async def ask(self, pod: Pod) -> None:
        """Ask how many replicas the pod's workload wants."""
        await self._setup.workloads.refresh([pod])

    def pre_eviction_filter(self, pod: Pod) -> str:
        """With nodeFit, why no other node would take the pod."""
        return self._nodes.refuse(pod) if self._nodes is not None else ""

    def together(self, pod: Pod) -> Sequence[Pod]:
        """The other members of a gang that moves as one."""
        return [each for each in self._policy.unit(pod, self._migrations.ledger.unfinished()) if each.metadata.uid != pod.metadata.uid]

    def leaving(self, pod: Pod) -> bool:
        """Whether a job for the pod is on its way, and nothing has refused it, or somebody takes it away in background."""
        if self._in_background and background.goes_on(pod):
            return True
        now = self._setup.clock()
        return any(status.proceeds(job, now) for job in self._migrations.ledger.of_pod(pod))

    def holds(self, pod: Pod) -> str:
        """Whether a job for the pod has not ended, even one that waits."""
        jobs = self._migrations.ledger.of_pod(pod)
        return f"PodMigrationJob {jobs[0].metadata.name} is to move it" if jobs else ""

    def accepted(self, pod: Pod) -> bool:
        """Whether the pod was told to leave."""
        return self._migrations.accepted(pod)

    def expected(self) -> Sequence[Expected]:
        """The places that are held, or will be."""
        return self._migrations.expectations.all()

    def brought(self, pod: Pod) -> Vector | None:
        """What the pod used where a migration took it from."""
        return self._migrations.expectations.brought(pod)

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        """Make a job. Raises ApiError."""
        args = self._policy.args
        if args.dry_run:
            self.assume(pod)
            log.info("%s would make a PodMigrationJob for pod %s: %s", self._setup.profile, pod.key, options.reason)
            return EvictResult(True, "a PodMigrationJob would be made; dryRun of MigrationController is on", listed=True)
        if why := self.filter(pod) or self._limited(pod):
            return EvictResult(False, why)
        if why := await self._asked(pod, options):
            self._migrations.backoff.failed([pod.metadata.uid], Reason.FAILED_EVICT, self._setup.clock())
            return EvictResult(False, why)
        among = options.relief.nodes if options.relief is not None else None
        if self._policy.mode(pod) == Mode.RESERVATION_FIRST and (nodes := await self._migrations.targets.open_to(pod, among)) is not None:
            if not nodes:
                return EvictResult(False, "once it has left, its topology spread would let no other node have it")
            if options.relief is not None:
                options = replace(options, relief=options.relief.only(nodes[:TARGETS]))
        if others := self.together(pod):
            return await self._evict_all([pod, *others], options)
        job = await self._migrations.writing.create_job(self._job(pod, options))
        return EvictResult(True, f"PodMigrationJob {job.metadata.name} is made")

    async def _evict_all(self, pods: list[Pod], options: EvictOptions) -> EvictResult:
        """Jobs for a whole gang, or none. Raises ApiError."""
        for each in pods[1:]:
            if why := self.filter(each) or await self._asked(each, options):
                self._migrations.backoff.failed([pods[0].metadata.uid], Reason.FAILED_EVICT, self._setup.clock())
                return EvictResult(False, f"its gang moves as one, and pod {each.key} may not: {why}")
        move, made = Move(gang_id(pods[0]), len(pods), seams.uid()), list[str]()
        try:
            for each in pods:
                body = self._job(each, options if each is pods[0] else replace(options, relief=self._relief_of(each, options)))
                body["metadata"]["annotations"][names.ANNOTATION_MIGRATION_GANG] = move.write()
                made.append((await self._migrations.writing.create_job(body)).metadata.name)
        except errors.ApiError:
            for name in made:  # those that cannot be deleted now fail by themselves: their gang is not complete
                with contextlib.suppress(errors.ApiError):
                    await self._setup.client.delete(kinds.PODMIGRATIONJOBS, name)
            raise
        return EvictResult(True, f"{len(made)} PodMigrationJobs are made for gang {move.gang}, which moves as one")

    def _relief_of(self, pod: Pod, options: EvictOptions) -> Relief | None:
        """Where another member may go when the gang leaves for load: to the same nodes, with what it uses itself."""
        if options.relief is None:
            return None
        metric = self._setup.cluster.node_metrics.get(pod.spec.node_name)
        reported = metric.status.pods_metric if metric is not None else ()
        own = next(
            (each.pod_usage.resources for each in reported if (each.namespace, each.name) == (pod.metadata.namespace, pod.metadata.name)),
            {},
        )
        return replace(options.relief, usage=max_(estimate(pod), parse(own)), prod=is_prod(pod))

    async def remember(self, pods: Sequence[str], helped: bool, message: str) -> None:
        """Have it written on the jobs whether their moves have helped, as soon as they have ended."""
        self._migrations.reconciler.queue.add_all(self._migrations.outcomes.measured(pods, helped, message))

    def assume(self, pod: Pod) -> Callable[[], None]:
        """Count the job that a dry run would make for the pod."""
        return self._migrations.ledger.assume(pod)

    def successor(self, pod: Pod, relief: Relief | None) -> Pod:
        """With a reservation first, the pod as it is asked for: not on the node where it is, and for load only where it may go."""
        if self._policy.mode(pod) != Mode.RESERVATION_FIRST or not pod.spec.node_name:
            return pod
        return template.elsewhere(pod, tuple(relief.nodes) if relief is not None else None)

    async def _asked(self, pod: Pod, options: EvictOptions) -> str:
        """Why the API server would not let the pod go, "" when it would: asked before a place is held for nothing."""
        if self._policy.evictor(pod) != EVICTION:
            return ""
        try:
            await evictors.ask(self._setup.client, pod, {**(options.delete_options or {}), **self._policy.args.delete_options})
        except errors.ApiError as error:
            if self._in_background and background.triggered(pod, error):
                return ""
            return f"its eviction would be refused: {evictors.refusal(error)}"
        return ""

    def _limited(self, pod: Pod) -> str:
        """Why an object limiter lets no further pod go, "" when it does."""
        if limits.dead(pod):
            return ""
        owner = pod.metadata.controller
        hold = self._policy.limiters.hold(owner.uid if owner is not None else "", pod.metadata.namespace, self._setup.clock())
        return hold.message if hold is not None else ""

    def _job(self, pod: Pod, options: EvictOptions) -> dict[str, Any]:
        args, meta, mode = self._policy.args, pod.metadata, self._policy.mode(pod)
        spec: dict[str, Any] = {
            "podRef": {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid},
            "mode": mode,
            "ttl": format_duration(args.default_job_ttl),
        }
        if delete_options := {**(options.delete_options or {}), **args.delete_options}:
            spec["deleteOptions"] = delete_options
        annotations = {
            names.ANNOTATION_EVICT_REASON: options.reason,
            names.ANNOTATION_EVICT_TRIGGER: options.plugin,
            names.ANNOTATION_JOB_CREATED_BY: self._instance,
            names.ANNOTATION_MIGRATION_PROFILE: self._policy.profile,
        }
        if options.relief is not None and mode == Mode.RESERVATION_FIRST:
            annotations[names.ANNOTATION_MIGRATION_RELIEF] = options.relief.write()
        kind = kinds.PODMIGRATIONJOBS
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        return {**head, "metadata": {"name": seams.uid(), "annotations": annotations}, "spec": spec}

    def controllers(self) -> Sequence[Controller]:
        """One for the process, whichever profile is asked first."""
        key = "MigrationController runs"
        if key in self._setup.shared:
            return ()
        self._setup.shared[key] = True
        return (Controller("migration", self._migrations.run),)
