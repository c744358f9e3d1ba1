"""Coscheduling at the extension points (SCH-GANG-04..08, SCH-GANG-10)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.api import kinds, names
from koord.api.objects import ClusterNetworkTopology, Pod, PodGroup, SchedulingPodGroup, SchedulingWorkload
from koord.decisions.record import Term
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.context import BindDraft, CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.status import SKIP, SUCCESS, PostFilterResult, Status, pending, unresolvable, unschedulable, wait
from roles.scheduler.framework.steps import Steps
from roles.scheduler.plugins.budgets import DisruptionBudgets
from roles.scheduler.plugins.coscheduling.args import CoschedulingArgs
from roles.scheduler.plugins.coscheduling.cache import BOUND, PENDING, RELEASED, WAITING, Gang, GangCache
from roles.scheduler.plugins.coscheduling.groups import CachedGangs
from roles.scheduler.plugins.coscheduling.jobs import Jobs
from roles.scheduler.plugins.coscheduling.metrics import GangMetrics
from roles.scheduler.plugins.coscheduling.native import NativeGroups, as_v1alpha2, as_v1beta1
from roles.scheduler.plugins.coscheduling.notices import Notices
from roles.scheduler.plugins.coscheduling.placement import Placement
from roles.scheduler.plugins.coscheduling.podgroups import ENDED, PodGroups, ended_member
from roles.scheduler.plugins.coscheduling.rounds import Rounds, drafted
from roles.scheduler.plugins.coscheduling.spec import Defaults
from roles.scheduler.plugins.coscheduling.views import gang_list, one_gang
from roles.scheduler.plugins.network_topology.manager import NetworkManager
from roles.scheduler.plugins.network_topology.network import Network, selector_of
from roles.scheduler.plugins.network_topology.plan import MUST_GATHER

log = logging.getLogger(__name__)

BINDING_KEYS = (
    (names.ANNOTATION_BIND_GANG_GROUP_ID, names.ANNOTATION_BIND_GANG_MEMBER_COUNT),
    (names.ANNOTATION_BIND_GANG_GROUP_ID_DEPRECATED, names.ANNOTATION_BIND_GANG_MEMBER_COUNT_DEPRECATED),
)


class Coscheduling(
    api.PreEnqueue, api.Transformer, api.PreFilter, api.FindOneNode, api.PostFilter, api.PreScore, api.Score, api.NextPod, api.Reserve,
    api.Permit, api.PreBind, api.PostBind, api.PodObserver, api.Controllers,
):  # fmt: skip
    """Places the pods of a gang group together. The plugins of all profiles share one cache."""

    name = "Coscheduling"
    Args = CoschedulingArgs

    def __init__(self, args: CoschedulingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        defaults = Defaults(args.default_timeout, args.default_match_policy)
        fresh = GangCache(defaults)
        self.cache = handle.cluster.register(self.name, fresh)
        self._keeper = self.cache is fresh
        if self._keeper:
            fresh.activate = self._activate
        elif self.cache.defaults != defaults:
            log.warning("profile %s: gangs are kept by the arguments of the first profile with Coscheduling", handle.profile)
        self.network = handle.cluster.register("NetworkTopology", Network())
        self.placement = Placement(handle, self.cache, self.network, aware=args.aware_network_topology)
        self._budgets = DisruptionBudgets(handle)
        self.jobs = Jobs(handle, self.cache, self.placement, self._budgets, enabled=args.enable_preemption)
        self.rounds = Rounds(handle, self.cache, self.jobs.best)
        self._pod_groups = PodGroups(handle, self.cache, args.controller_workers)
        self._notices = Notices(handle, self.cache)
        self._native = NativeGroups(self.cache)
        if self._keeper:
            fresh.send_back, fresh.enough = self.rounds.send_back, self.rounds.release
            handle.state.gangs = CachedGangs(handle.state, self.cache, self.jobs)
            self.cache.listeners += [self._pod_groups.changed, self._notices.changed]

    def _activate(self, pods: Iterable[PodInfo]) -> None:
        self.handle.activate(pods)

    # ---------------------------------------------------------------- observing

    def feeds(self) -> Sequence[api.Feed]:
        budgets = self._budgets.feeds()
        if not self._keeper:
            return budgets
        ended = api.Feed(kinds.PODS, Pod, self._pod_groups.ended, ENDED, ended_member)
        topology = api.Feed(kinds.CLUSTERNETWORKTOPOLOGIES, ClusterNetworkTopology, self.network.observe)
        native = (
            api.Feed(kinds.SCHEDULING_PODGROUPS, SchedulingPodGroup, self._native.group_event, transform=as_v1beta1),
            api.Feed(kinds.SCHEDULING_PODGROUPS_V1ALPHA2, SchedulingPodGroup, self._native.group_event, transform=as_v1alpha2),
            api.Feed(kinds.SCHEDULING_WORKLOADS_V1ALPHA1, SchedulingWorkload, self._native.workload_event),
        )
        return (api.Feed(kinds.PODGROUPS, PodGroup, self.cache.pod_group_event), *native, ended, topology, *budgets)

    def subscriptions(self) -> Sequence[Subscription]:
        """For groups that had no plan. Others are brought back by what their members lack, or by the cache."""
        return (
            Subscription(NODE, Action.ADD | Action.UPDATE_LABELS | Action.UPDATE_ALLOCATABLE | Action.UPDATE_TAINTS, self._may_be_planned),
            Subscription(ASSIGNED_POD, Action.DELETE | Action.SCALE_DOWN, self._may_be_planned),
            Subscription(kinds.CLUSTERNETWORKTOPOLOGIES.kind, Action.ADD | Action.UPDATE, self._may_be_planned),
            Subscription(UNSCHEDULED_POD, Action.UPDATE_LABELS | Action.UPDATE),  # it may be of another gang by now, or of none
        )

    def _may_be_planned(self, pod: PodInfo, event: ClusterEvent) -> bool:
        gang = self.cache.gang_of(pod)
        return gang is not None and gang.group.unplanned

    def pod_seen(self, pod: PodInfo) -> None:
        if self._keeper:
            self.cache.pod_seen(pod)

    def pod_gone(self, uid: str) -> None:
        if self._keeper:
            self.cache.pod_gone(uid)

    def endpoints(self) -> Sequence[api.Endpoint]:
        return (
            api.Endpoint("gangs", lambda query: gang_list(self.cache)),
            api.Endpoint("gang/{namespace}/{name}", lambda query: one_gang(self.cache, f"{query['namespace']}/{query['name']}")),
        )

    def controllers(self) -> Iterable[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        if not self._keeper:
            return ()
        self.cache.metrics = GangMetrics(self.handle.metrics)
        work = [("PodGroups", self._pod_groups.run), ("notices", self._notices.run)]
        if self.handle.network_topology:
            work.append(("network topology", NetworkManager(self.handle, self.network).run))
        return work

    def job_of(self, pod: PodInfo) -> Hashable:
        gang = self.cache.gang_of(pod)
        return None if gang is None or self.cache.satisfied(gang) else gang.group.id

    def wording(self, pod: PodInfo, message: str) -> str:
        gang = self.cache.gang_of(pod)
        return message if gang is None else gang.group.wording(pod.uid, message)

    def diagnose(self, pod: PodInfo) -> dict[str, Any]:
        gang, current = self.cache.gang_of(pod), self.cache.round
        if gang is None:
            return {}
        layers = gang.spec.topology.gather_strategy if gang.spec is not None and gang.spec.topology is not None else ()
        mine = current is not None and current.group == gang.group.id
        return {
            "questionedKey": gang.group.id,
            "isRootCausePod": not mine or current is None or current.doomed in (None, pod),
            "topologyKeyToExplain": next((layer.layer for layer in layers if layer.strategy == MUST_GATHER), ""),
            "alreadyWaitForBound": len(self.cache.members(gang, WAITING)),
            "nodeOfferSlot": dict(current.offered) if current is not None and mine else {},
        }

    # ---------------------------------------------------------------- into the queue, and out of it

    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Of a group that did not come about yet one pod is let in, once there are enough of them. A pod that the cache does not know is
        one of a what-if."""
        gang = self.cache.gang_of(pod)
        if gang is None or pod.shape.gates or self.cache.satisfied(gang):
            return SUCCESS
        group = gang.group
        refusal = self._not_ready(gang)
        if refusal:
            group.stands_no_more(pod.uid)
            return unresolvable(refusal)
        current = self.cache.round
        if current is not None and current.group == group.id and pod.uid not in current.attempted:
            return pending(f"gang {gang.id}: the pod has not been attempted yet in the round that {current.first} began")
        if group.representative in ("", pod.uid) or self.cache.pod(group.representative) is None:
            group.representative = pod.uid
            return SUCCESS
        return pending(f"gang {gang.id}: another pod stands for it in the queue")

    def _not_ready(self, gang: Gang) -> str:
        if gang.spec is None:
            return f"gang {gang.id} has no PodGroup and no pod with a valid minimum"
        shortage = self.cache.shortage(gang)
        return f"gang {gang.id}: {shortage}" if shortage else ""

    def next_pod(self) -> PodInfo | Steps[None] | None:
        return self.rounds.next_pod() if self._keeper else None

    # ---------------------------------------------------------------- the cycle

    def before_pre_filter(self, ctx: CycleContext) -> tuple[Status, PodInfo | None]:
        gang = self.cache.gang_of(ctx.pod)
        if gang is None:
            return SUCCESS, None
        if gang.spec is None or not self.cache.satisfied(gang):
            refusal = self._not_ready(gang)
            if refusal:
                ctx.effects.append(lambda: gang.group.stands_no_more(ctx.pod.uid))
                return unresolvable(refusal), None
            self.rounds.draft(gang, ctx)
        return SUCCESS, None

    def pre_filter(self, ctx: CycleContext) -> Status:
        """What has to be said was said before."""
        return SKIP

    def find_one_node(self, ctx: CycleContext, candidates: NDArray[np.bool_]) -> tuple[Status, str] | Steps[tuple[Status, str]]:
        gang, current = self.cache.gang_of(ctx.pod), drafted(ctx)
        if gang is None or current is None or self.cache.satisfied(gang) or not self.placement.gathers(gang):
            return SKIP, ""
        return self.placement.find(ctx, gang, current, candidates)

    def post_filter(self, ctx: CycleContext, failure: FitFailure) -> Steps[PostFilterResult]:
        gang = self.cache.gang_of(ctx.pod)
        alone = gang is None or gang.spec is None or self.cache.satisfied(gang)
        return self.jobs.answer(ctx, failure, None if alone else gang)

    def after_post_filter(self, ctx: CycleContext, failure: FitFailure, result: PostFilterResult) -> Steps[None]:
        gang = self.cache.gang_of(ctx.pod)
        if gang is not None and gang.spec is not None and not self.cache.satisfied(gang):
            yield from self.rounds.failed(gang, ctx, failure, result)

    def explain(self, ctx: CycleContext) -> Sequence[Term]:
        gang = self.cache.gang_of(ctx.pod)
        return gang.group.terms if gang is not None else ()

    # ---------------------------------------------------------------- close to its like

    uses_feasible = True

    def pre_score(self, ctx: CycleContext) -> Status:
        return SUCCESS if selector_of(ctx.pod) else SKIP

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        tree = self.network.tree()
        return self.network.closeness(ctx, tree, selector_of(ctx.pod))[rows] if tree is not None else 0.0

    def score_stamp(self, ctx: CycleContext) -> Any:
        return (self.network.tree(), self.network.version)

    # ---------------------------------------------------------------- with a node

    def unreserve(self, ctx: CycleContext, slot: int) -> None:
        """The pod lost its place: in a strict gang that did not come about nobody keeps his."""
        pod = ctx.pod
        gang = self.cache.gang_of(pod)
        if gang is None or gang.stage_of(pod.uid) == BOUND:
            return
        if gang.stage_of(pod.uid) == RELEASED and self.handle.gates.get("EnableInlineBatchSchedule", False):
            self.rounds.lost_binding(gang, pod)
        gang.move(pod.uid, PENDING)
        self.cache.changed(gang)
        if gang.spec is not None and gang.spec.strict and not self.cache.satisfied(gang):
            self.rounds.give_up(gang, f"gang {gang.id}: pod {pod.key} lost its place on {ctx.node}")

    def permit(self, ctx: CycleContext, slot: int) -> Status:
        """Holds the pod until every gang of the group has its minimum, then lets all of them go."""
        pod = ctx.pod
        gang = self.cache.gang_of(pod)
        if gang is None or (gang.spec is not None and gang.spec.basic):
            return SUCCESS
        if gang.spec is None:
            return unschedulable(f"Gang not found: {gang.id}")
        released_before = pod.uid in gang.group.binding or self.cache.rejoins(gang, pod)
        gang.move(pod.uid, WAITING)
        self.cache.changed(gang)
        # One whose binding failed after its gang was let go completes that release.
        if not released_before and not self.cache.valid(gang):
            return wait(gang.spec.wait_time)
        self.rounds.release(gang, pod)
        return SUCCESS

    async def pre_bind(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        """Notes on the pod with whom it was let go (SCH-GANG-08); old notes, of a template say, are removed."""
        pod = ctx.pod
        gang = self.cache.gang_of(pod)
        group = gang.group if gang is not None else None
        together = group.rejoined.get(pod.uid) or len(group.binding.get(pod.uid, ())) if group is not None else 0
        if group is not None and together > 1:
            for group_key, count_key in BINDING_KEYS:
                draft.annotations[group_key] = group.id
                draft.annotations[count_key] = str(together)
            return SUCCESS
        present = pod.pod.metadata.annotations or {}
        for key in (key for pair in BINDING_KEYS for key in pair):
            if key in present:
                draft.annotations[key] = None
        return SUCCESS

    def post_bind(self, ctx: CycleContext, node: str) -> None:
        gang = self.cache.gang_of(ctx.pod)
        if gang is not None:
            gang.move(ctx.pod.uid, BOUND)
            self.cache.came_about(gang)
            self.cache.changed(gang)
            self.rounds.bound(gang)
