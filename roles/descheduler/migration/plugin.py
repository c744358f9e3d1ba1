"""MigrationController as an Evict and Filter plugin of a profile: pods leave by PodMigrationJobs (DS-MC-01)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from koord import seams
from koord.api import kinds, names
from koord.api.objects import Pod
from koord.api.times import format_duration
from roles.descheduler.fitting import OtherNodes
from roles.descheduler.framework.evicting import Controller, EvictOptions, EvictResult, Setup
from roles.descheduler.migration import template
from roles.descheduler.migration.args import MigrationControllerArgs
from roles.descheduler.migration.controller import Migrations
from roles.descheduler.migration.words import Mode
from roles.descheduler.picture import NodeView

log = logging.getLogger(__name__)


class MigrationController:
    """Filter: which pods may migrate now. Evict: make a job for the pod. The controller carries all jobs out."""

    name = "MigrationController"

    def __init__(self, args: MigrationControllerArgs, setup: Setup) -> None:
        self._setup = setup
        self._migrations = setup.once(self.name, lambda: Migrations(setup))
        self._instance = setup.once("MigrationController instance", seams.uid)
        self._policy = self._migrations.join(setup.profile, args, setup)
        effective = self._policy.args
        self._nodes = OtherNodes(setup.world, effective.node_selector) if effective.node_fit else None

    async def prepare(self, pods: Iterable[Pod]) -> None:
        """Know the workloads of the pods, and all jobs."""
        await self._migrations.wait_synced()
        self._migrations.ledger.forget_assumed()
        await self._setup.workloads.refresh(pods)
        if self._nodes is not None:
            self._nodes.begin()

    async def see(self, nodes: Sequence[NodeView]) -> None:
        """With nodeFit, the nodes where pods may fit."""
        if self._nodes is not None:
            await self._nodes.see(nodes)

    def filter(self, pod: Pod) -> str:
        """Why no job may be made for the pod now, "" when one may."""
        refusal = self._policy.refuse(pod, self._migrations.ledger)
        return refusal.message if refusal is not None else ""

    def pre_eviction_filter(self, pod: Pod) -> str:
        """With nodeFit, why no other node would take the pod."""
        return self._nodes.refuse(pod) if self._nodes is not None else ""

    def leaving(self, pod: Pod) -> bool:
        """Whether a job for the pod has not ended."""
        return self._migrations.ledger.real().has(pod)

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        """Make a job. Raises ApiError."""
        args = self._policy.args
        if args.dry_run:
            self.assume(pod)
            log.info("%s would make a PodMigrationJob for pod %s: %s", self._setup.profile, pod.key, options.reason)
            return EvictResult(True, "a PodMigrationJob would be made; dryRun of MigrationController is on", listed=True)
        if why := self.filter(pod) or self._limited(pod):
            return EvictResult(False, why)
        job = await self._migrations.writing.create_job(self._job(pod, options))
        return EvictResult(True, f"PodMigrationJob {job.metadata.name} is made")

    def assume(self, pod: Pod) -> Callable[[], None]:
        """Count the job that a dry run would make for the pod."""
        return self._migrations.ledger.assume(pod)

    def successor(self, pod: Pod) -> Pod:
        """With a reservation first, the pod as it is asked for: not on the node where it is."""
        if self._policy.args.default_job_mode != Mode.RESERVATION_FIRST or not pod.spec.node_name:
            return pod
        return template.elsewhere(pod)

    def _limited(self, pod: Pod) -> str:
        """Why an object limiter lets no further pod go, "" when it does."""
        owner = pod.metadata.controller
        hold = self._policy.limiters.hold(owner.uid if owner is not None else "", pod.metadata.namespace, self._setup.clock())
        return hold.reason if hold is not None else ""

    def _job(self, pod: Pod, options: EvictOptions) -> dict[str, Any]:
        args, meta = self._policy.args, pod.metadata
        spec: dict[str, Any] = {
            "podRef": {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid},
            "mode": args.default_job_mode,
            "ttl": format_duration(args.default_job_ttl),
        }
        if delete_options := options.delete_options or args.delete_options:
            spec["deleteOptions"] = delete_options
        annotations = {
            names.ANNOTATION_EVICT_REASON: options.reason,
            names.ANNOTATION_EVICT_TRIGGER: options.plugin,
            names.ANNOTATION_JOB_CREATED_BY: self._instance,
            names.ANNOTATION_MIGRATION_PROFILE: self._policy.profile,
        }
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
