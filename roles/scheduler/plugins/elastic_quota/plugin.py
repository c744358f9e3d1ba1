"""ElasticQuota at the extension points: admission, preemption within the quota, requeueing (SCH-EQ-02, 07, 08, 13)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from koord import seams
from koord.accounting.resources import ResourceVector, parse
from koord.api.kinds import ELASTICQUOTAS
from koord.api.objects import ElasticQuota as ElasticQuotaObject
from koord.decisions.record import Term
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.events import ASSIGNED_POD, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Controllers, Endpoint, Feed, NodeSet, PodObserver, PostFilter, PreFilter, Reserve
from roles.scheduler.framework.status import SKIP, SUCCESS, PostFilterResult, Status, error, unschedulable
from roles.scheduler.framework.steps import Steps
from roles.scheduler.plugins.elastic_quota.admission import chain, parent_refusal, refusal
from roles.scheduler.plugins.elastic_quota.args import ElasticQuotaArgs
from roles.scheduler.plugins.elastic_quota.cache import QuotaCache, Rules, is_preemptible
from roles.scheduler.plugins.elastic_quota.hooks import Hooks
from roles.scheduler.plugins.elastic_quota.model import spec_of
from roles.scheduler.plugins.elastic_quota.preemption import QuotaPreemption
from roles.scheduler.plugins.elastic_quota.tree import Quota, QuotaTree, negative
from roles.scheduler.plugins.elastic_quota.views import one_quota, quota_list

log = logging.getLogger(__name__)


class Case(NamedTuple):
    """What a cycle is about: the pod's quota and what it counts with there."""

    quota: Quota
    request: ResourceVector


def rules_of(args: ElasticQuotaArgs, gates: dict[str, bool]) -> Rules:
    """How the cache is kept under these arguments and feature gates."""
    return Rules(
        default_max=parse(args.default_quota_group_max),
        system_max=parse(args.system_quota_group_max),
        namespace=args.quota_group_namespace,
        scale_min=args.enable_min_quota_scale,
        guarantee=gates.get("ElasticQuotaGuaranteeUsage", False),
        trees=gates.get("MultiQuotaTree", False),
        label_only=gates.get("DisableDefaultQuota", False),
        ignore_overhead=gates.get("ElasticQuotaIgnorePodOverhead", False),
        drop_terminating=gates.get("ElasticQuotaImmediateIgnoreTerminatingPod", False),
        drop_overdue=gates.get("ElasticQuotaIgnoreTerminatingPod", False),
    )


class ElasticQuota(PreFilter, PostFilter, Reserve, PodObserver, Controllers):
    """Lets a pod in while its quota has room. The plugins of all profiles share one cache, kept by the first one's arguments.

    Reserve has nothing to do: the cache follows every pod that counts on a node, from when it is assumed until it is forgotten."""

    name = "ElasticQuota"
    Args = ElasticQuotaArgs
    per_pod = True

    def __init__(self, args: ElasticQuotaArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        rules = rules_of(args, handle.gates)
        fresh = QuotaCache(rules, lambda: handle.state.now, Hooks(args.hook_plugins))
        self.cache = handle.cluster.register(self.name, fresh)
        self._took: Callable[[str, float], None] = lambda operation, seconds: None
        self._compared: tuple[ClusterEvent, bool] | None = None
        self._keeper = self.cache is fresh
        if not self._keeper and self.cache.rules != rules:
            log.warning("profile %s: quotas are kept by the arguments of the first profile with ElasticQuota", handle.profile)
        self.preemption = QuotaPreemption(args, handle, self.cache, self.name, self._refuses)

    def feeds(self) -> Sequence[Feed]:
        quotas = (Feed(ELASTICQUOTAS, ElasticQuotaObject, self._quota),) if self._keeper else ()
        return (*quotas, *self.preemption.feeds())

    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("quotas", lambda query: quota_list(self.cache, query)),
            Endpoint("quotas/{name}", lambda query: one_quota(self.cache, query)),
        )

    def controllers(self) -> Iterable[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        if not self._keeper:
            return ()
        from roles.scheduler.plugins.elastic_quota.metrics import QuotaMetrics
        from roles.scheduler.plugins.elastic_quota.upkeep import Upkeep

        metrics = QuotaMetrics(self.handle.metrics)
        self._took, self.cache.hooks.took = metrics.took, metrics.hook_took
        upkeep = Upkeep(self.args, self.handle, self.cache, metrics)
        work = [("built-in quotas", upkeep.create_built_in), ("status", upkeep.keep_status)]
        if self.args.monitor_all_quotas and self.args.enable_runtime_quota:
            work.append(("revoke", upkeep.revoke))
        return work

    def _quota(self, old: ElasticQuotaObject | None, new: ElasticQuotaObject | None) -> None:
        started = seams.perf_counter()
        self.cache.quota_event(old, new)
        self._took("UpdateQuota" if new is not None else "DeleteQuota", seams.perf_counter() - started)

    def pod_seen(self, pod: PodInfo) -> None:
        if self._keeper:
            started = seams.perf_counter()
            known = self.cache.pod_seen(pod)
            self._took("OnPodUpdate" if known else "OnPodAdd", seams.perf_counter() - started)

    def pod_gone(self, uid: str) -> None:
        if self._keeper:
            started = seams.perf_counter()
            self.cache.pod_gone(uid)
            self._took("OnPodDelete", seams.perf_counter() - started)

    # ---------------------------------------------------------------- admission

    def pre_filter(self, ctx: CycleContext) -> Status | NodeSet:
        pod = ctx.pod
        self.cache.settle()
        name = self.cache.resolve(pod.shape)
        if not name:
            return SKIP
        found = self.cache.quota(name)
        if found is None:
            return error(f"quota {name} is not known")
        tree, quota = found
        self._refresh(ctx, tree, quota)
        ctx.data[self.name] = Case(quota, self.cache.amount(pod, quota))
        reason = self._refuses(ctx, quota)
        return unschedulable(reason) if reason else SUCCESS

    def _refresh(self, ctx: CycleContext, tree: QuotaTree, quota: Quota) -> None:
        """Bring the runtime up to date. It reckons with the pod's own request, also in a what-if about a pod that is not there: then for
        the time of the decision."""
        pod = ctx.pod
        if not self.args.enable_runtime_quota:
            return
        if self.cache.member(pod.uid) is None:
            request, preemptible = self.cache.amount(pod, quota), is_preemptible(pod)
            tree.charge_request(quota, request, preemptible=preemptible)

            def take_back() -> None:
                tree.charge_request(quota, negative(request), preemptible=preemptible)
                tree.refresh(quota)

            ctx.undo.append(take_back)
        tree.refresh(quota)

    def _refuses(self, ctx: CycleContext, quota: Quota) -> str:
        """Why the quota has no room for the pod with what is used now and the runtimes of this cycle, or will have none once the pods are
        through for which room is made."""
        reason = self._refusal(ctx, quota)
        if reason:
            return reason
        with self.cache.once_through(ctx, quota, parents=self.args.enable_check_parent_quota) as differs:
            return self._refusal(ctx, quota) if differs else ""

    def _refusal(self, ctx: CycleContext, quota: Quota) -> str:
        pod, runtime = ctx.pod, self.args.enable_runtime_quota
        request = self.cache.amount(pod, quota)
        reason = refusal(quota, request, preemptible=is_preemptible(pod), runtime=runtime)
        if not reason and self.cache.hooks:
            reason = self.cache.hooks.check(self.cache.tree_name(quota.name), quota, pod)
        if not reason and self.args.enable_check_parent_quota:
            reason = parent_refusal(quota, request, runtime=runtime)
        return reason

    def explain(self, ctx: CycleContext) -> Sequence[Term]:
        case = ctx.data.get(self.name)
        return chain(case.quota, case.request) if isinstance(case, Case) else ()

    # ---------------------------------------------------------------- preemption and accounting

    def post_filter(self, ctx: CycleContext, failure: FitFailure) -> PostFilterResult | Steps[PostFilterResult]:
        if not ctx.state.gangs.pending_members(ctx.pod) and not self.preemption.slots(ctx, failure):
            return PostFilterResult(unschedulable())
        return self.preemption.post_filter(ctx, failure)

    # ---------------------------------------------------------------- requeueing

    def subscriptions(self) -> Sequence[Subscription]:
        if self.args.enable_queue_hint:
            less, changes, change = self._less_helps, Action.UPDATE, self._change_helps
        else:
            less, changes, change = self._less_may_help, Action.ADD | Action.UPDATE | Action.DELETE, self._event_helps
        return (
            Subscription(UNSCHEDULED_POD, Action.ALL),  # it may be of another quota by now
            Subscription(ASSIGNED_POD, Action.DELETE | Action.SCALE_DOWN, less),
            Subscription(ELASTICQUOTAS.kind, changes, change),
        )

    def _less_may_help(self, pod: PodInfo, event: ClusterEvent) -> bool:
        return self._less_helps(pod, event) or self._fits_now(pod)

    def _event_helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """Any change of a quota does, but for one of its status only: that helps its own pods and those of quotas below, if there is room
        for them."""
        return self._spec_changed(event) or (event.new.metadata.name in self._path(pod) and self._fits_now(pod))

    def _less_helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A pod that went or shrank helps those of its quota and of the quotas above, where they are looked at those of all these."""
        mine, its = self._path(pod), self._path(event.old)
        if not mine or not its:
            return True
        return bool(set(mine) & set(its)) if self.args.enable_check_parent_quota else mine[0] in its

    def _change_helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A changed spec of the pod's quota or one above helps, and that of another one if there is room now; so does a status of the
        former."""
        mine, changed = event.new.metadata.name in self._path(pod), self._spec_changed(event)
        return (mine and changed) or ((mine or changed) and self._fits_now(pod))

    def _path(self, pod: PodInfo) -> list[str]:
        found = self.cache.quota(self.cache.resolve(pod.shape))
        return [quota.name for quota in found[1].path() if quota.parent is not None] if found is not None else []

    def _spec_changed(self, event: ClusterEvent) -> bool:
        """Asked about an event once for each shape of waiting pods."""
        if self._compared is None or self._compared[0] is not event:
            self._compared = (event, self._specs_differ(event))
        return self._compared[1]

    def _specs_differ(self, event: ClusterEvent) -> bool:
        if event.old is None or event.new is None:
            return True
        trees = self.cache.rules.trees
        try:
            return spec_of(event.old, trees=trees) != spec_of(event.new, trees=trees)
        except ValueError:
            return True

    def _fits_now(self, pod: PodInfo) -> bool:
        self.cache.settle()
        found = self.cache.quota(self.cache.resolve(pod.shape))
        if found is None:
            return True
        ctx = CycleContext(self.handle.state, pod)
        self._refresh(ctx, *found)
        fits = not self._refuses(ctx, found[1])
        ctx.end()
        return fits
