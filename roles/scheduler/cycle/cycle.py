"""The scheduling cycle: one pod in, one Decision out. Pure: it changes nothing but its own caches; what
plugins want changed with a decision happens in `Decision.take_effect`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.advice import Advice, Refusals
from roles.scheduler.cycle.decision import ERROR, NO_NODES, SCHEDULED, UNSCHEDULABLE, Decision, FitFailure
from roles.scheduler.cycle.evaluation import Evaluation
from roles.scheduler.cycle.judgement import INFEASIBLE
from roles.scheduler.cycle.nominated import NOBODY, Blocked
from roles.scheduler.cycle.verifying import differences
from roles.scheduler.framework.context import CycleContext, State
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.interfaces import FindOneNode, NodeMask, NodeSet, Rejection
from roles.scheduler.framework.status import SKIP, SUCCESS, Code, PostFilterResult, Status, error, unresolvable
from roles.scheduler.framework.steps import Steps, at_once, begun, in_steps

_CACHE_BYTES = 48 << 20
_VECTORS_PER_SHAPE = 8
_BESIDES = 16 << 10  # bytes of an evaluation that do not grow with the cluster
_MIN_WANTED = 100

Mask = NDArray[np.bool_]


class Restriction:
    """Nodes to which preFilter plugins restrict a pod."""

    __slots__ = ("mask", "plugins")

    def __init__(self) -> None:
        self.mask: Mask | None = None
        self.plugins: list[str] = []

    def add(self, plugin: str, names: frozenset[str], state: State) -> None:
        """Keep only these nodes of those still allowed."""
        cluster = state.cluster
        allowed = np.zeros(cluster.capacity, dtype=np.bool_)
        slots = [slot for slot in (cluster.slot_of(name) for name in names) if slot >= 0]
        allowed[slots] = True
        self.keep(plugin, allowed & cluster.alive)

    def keep(self, plugin: str, allowed: Mask) -> None:
        """Keep only these slots of those still allowed."""
        self.mask = allowed if self.mask is None else self.mask & allowed
        self.plugins.append(plugin)


@dataclass(slots=True)
class Survey:
    """Where a pod could be, without a choice: the slots in `mask`, or the refusal of a preFilter plugin."""

    ctx: CycleContext
    evaluation: Evaluation
    mask: Mask
    refusal: Status | None = None
    restriction: Restriction = field(default_factory=Restriction)
    blocked: dict[int, tuple[str, Rejection]] = field(default_factory=dict)

    def failure(self) -> FitFailure:
        """Why no node was left, as `Cycle.decide` would tell it."""
        plugins = tuple(self.restriction.plugins)
        return FitFailure(self.ctx, self.evaluation, self.refusal, plugins, self.restriction.mask, self.blocked)

    def refusing(self) -> Iterable[str]:
        """Plugins that keep the pod from a node, told at less cost than who was the first."""
        if self.refusal is not None:
            return (self.refusal.plugin,)
        return (*self.evaluation.refusing(), *self.restriction.plugins, *(name for name, _ in self.blocked.values()))

    def refuses_now(self, slot: int) -> str:
        """The plugin that keeps the pod from a slot as that is now (inside a what-if), "" for none. Nominated pods are left out."""
        if self.refusal is not None:
            return self.refusal.plugin
        if self.restriction.mask is not None and not self.restriction.mask[slot]:
            return self.restriction.plugins[-1]
        found = self.evaluation.check_row(self.ctx, slot)
        return found[0] if found is not None else ""


class Cycle:
    """Decides pods against a State with the frameworks of all profiles, keeping the evaluations of recent shapes.

    `percentages` are percentageOfNodesToScore by profile; 0 scores every feasible node, which is the default. Every `verify`-th use of kept
    vectors they are compared with fresh ones, which count; 0 for never.
    """

    VERIFY: ClassVar[int] = 0  # where nothing else is said; tests set it

    def __init__(
        self, frameworks: Mapping[str, Framework], state: State, *, percentages: Mapping[str, int] | None = None, verify: int | None = None
    ) -> None:
        self.frameworks = frameworks
        self.state = state
        self.verify = self.VERIFY if verify is None else verify
        self._uses = 0
        self._percentages = percentages or {}
        self._evaluations: OrderedDict[Hashable, Evaluation] = OrderedDict()

    def decide(self, pod: PodInfo, advice: Advice | None = None) -> Decision:
        """Find a node for a pod, with what extenders said. Raises KeyError when no profile has the pod's scheduler name."""
        found = self.begin(pod, advice)
        return found if isinstance(found, Decision) else at_once(found)

    def begin(self, pod: PodInfo, advice: Advice | None = None) -> Decision | Steps[Decision]:
        """As `decide`; where plugins have long work to do for it, that comes in steps."""
        ctx = CycleContext(self.state, pod)
        found: Decision | Steps[Decision] | None = None
        try:
            found = self._decide(ctx, self.frameworks[pod.shape.scheduler_name], advice)
        finally:
            if found is None or isinstance(found, Decision):
                ctx.end()
        return found if isinstance(found, Decision) else _ending(ctx, found)

    def _decide(self, ctx: CycleContext, framework: Framework, advice: Advice | None) -> Decision | Steps[Decision]:
        cluster = self.state.cluster
        if not cluster.live:
            return Decision(UNSCHEDULABLE, ctx, framework, status=unresolvable(NO_NODES))
        refusal = self._transform(ctx, framework)
        if refusal is not None:
            return self._refused(ctx, self.evaluation(framework, ctx), refusal)
        evaluation = self.evaluation(framework, ctx)
        restriction = Restriction()
        refusal = self._pre_filter(ctx, evaluation, restriction)
        if refusal is not None:
            return self._refused(ctx, evaluation, refusal)
        finder = framework.find_one_node
        if finder is not None:
            answer = framework.ask(finder, "FindOneNodePlugin", finder.find_one_node, ctx, self._allowed(restriction))
            if not isinstance(answer, tuple):
                return begun(self._planned_later(ctx, evaluation, restriction, advice, answer))
            refusal = self._planned(finder, restriction, *answer)
            if refusal is not None:
                return self._refused(ctx, evaluation, refusal)
        return self._choose(ctx, evaluation, restriction, advice)

    def must_fit(self, pod: PodInfo) -> frozenset[int]:
        """Resources (by id) of which a node must have what the pod asks for; none where no filter of its profile says so."""
        found: set[int] = set()
        for plugin in self.frameworks[pod.shape.scheduler_name].filters:
            found.update(plugin.must_fit(pod))
        return frozenset(found)

    def survey(self, pod: PodInfo, *, without: str = "") -> Survey:
        """Where a pod could be as things are (in a what-if, say). Nobody plans or preempts, and the steps of the plugin `without` around
        preFilter are left out. Use a cycle of your own: looking keeps vectors, and decisions under way count on theirs."""
        ctx = CycleContext(self.state, pod)
        try:
            return self._survey(ctx, self.frameworks[pod.shape.scheduler_name], without)
        finally:
            ctx.end()

    def _survey(self, ctx: CycleContext, framework: Framework, without: str) -> Survey:
        refusal = self._transform(ctx, framework, without)
        evaluation, restriction = self.evaluation(framework, ctx), Restriction()
        refusal = refusal or self._pre_filter(ctx, evaluation, restriction, without)
        if refusal is not None:
            return Survey(ctx, evaluation, np.zeros(self.state.cluster.capacity, dtype=np.bool_), refusal, restriction)
        mask = evaluation.feasible if restriction.mask is None else evaluation.feasible & restriction.mask
        blocked = at_once(self._blocked(ctx, evaluation))
        if blocked.mask is not None:
            mask = mask & ~blocked.mask
        return Survey(ctx, evaluation, mask, None, restriction, blocked.among(evaluation.feasible))

    def _transform(self, ctx: CycleContext, framework: Framework, without: str = "") -> Status | None:
        """The steps before preFilter; they may replace the pod."""
        for transformer in framework.before_pre_filters:
            if transformer.name == without:
                continue
            status, replaced = framework.ask(transformer, "BeforePreFilter", transformer.before_pre_filter, ctx)
            if not status.ok:
                return status.by(transformer.name)
            if replaced is not None:
                ctx.pod = replaced
        return None

    def evaluation(self, framework: Framework, ctx: CycleContext) -> Evaluation:
        """The current evaluation of the pod's shape."""
        pod = ctx.pod
        key: Hashable = (framework.name, pod.shape.digest)
        if framework.keyed:
            key = (key, *[plugin.shape_key(pod) for plugin in framework.keyed])
        found = self._evaluations.get(key)
        if found is None:
            found = self._evaluations[key] = Evaluation(framework, self.state.cluster)
            limit = max(8, _CACHE_BYTES // (self.state.cluster.capacity * 8 * _VECTORS_PER_SHAPE + _BESIDES))
            while len(self._evaluations) > limit:
                self._evaluations.popitem(last=False)
        else:
            self._evaluations.move_to_end(key)
        found.update(ctx)
        self._uses += 1
        if self.verify and not self._uses % self.verify:
            found = self._verified(ctx, key, found)
        ctx.data = found.data
        return found

    def _verified(self, ctx: CycleContext, key: Hashable, kept: Evaluation) -> Evaluation:
        """The evaluation, or a fresh one where plugins say something else when they are asked anew: then nothing kept is trusted."""
        fresh = Evaluation(kept.framework, self.state.cluster)
        again = CycleContext(self.state, ctx.pod)
        fresh.update(again)
        differing = list(differences(kept, fresh))
        if not differing:
            return kept
        for plugin, what in differing:
            kept.framework.trust.withdraw(plugin, f"pod {ctx.pod.key}: {what}")
        self._evaluations.clear()
        self._evaluations[key] = fresh
        ctx.restored, ctx.feasible = again.restored, again.feasible
        return fresh

    # ---------------------------------------------------------------- steps

    def _pre_filter(self, ctx: CycleContext, evaluation: Evaluation, restriction: Restriction, without: str = "") -> Status | None:
        """Restrictions and refusals of the preFilter plugins, and the steps after it."""
        framework, answers = evaluation.framework, evaluation.pre_filter
        if answers or framework.per_pod_pre_filters:
            for plugin in framework.pre_filters if answers else framework.per_pod_pre_filters:
                late = plugin.per_pod and plugin.name not in framework.trust.early
                answer = framework.ask(plugin, "PreFilter", plugin.pre_filter, ctx) if late else answers.get(plugin.name)
                if answer is None or answer is SUCCESS or answer is SKIP:
                    continue
                if isinstance(answer, (NodeSet, NodeMask)):
                    if isinstance(answer, NodeSet):
                        restriction.add(plugin.name, answer.names, self.state)
                    else:
                        restriction.keep(plugin.name, answer.mask)
                    if restriction.mask is not None and not restriction.mask.any():
                        return unresolvable(
                            f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(restriction.plugins))}] simultaneously"
                        ).by(plugin.name)
                elif isinstance(answer, Status) and not answer.ok and answer.code is not Code.SKIP:
                    return answer.by(plugin.name)
        for transformer in framework.after_pre_filters:
            if transformer.name == without:
                continue
            status = framework.ask(transformer, "AfterPreFilter", transformer.after_pre_filter, ctx)
            if not status.ok:
                return status.by(transformer.name)
        return None

    def _planned(self, finder: FindOneNode, restriction: Restriction, status: Status, node: str) -> Status | None:
        """What a planning plugin says of the pod's node."""
        if status.ok and not node:
            return error(f"{finder.name} planned no node").by(finder.name)
        if status.ok:
            restriction.add(finder.name, frozenset((node,)), self.state)
        elif status.code is not Code.SKIP:
            return status.by(finder.name)
        return None

    def _planned_later(
        self, ctx: CycleContext, evaluation: Evaluation, restriction: Restriction, advice: Advice | None, plan: Steps[tuple[Status, str]]
    ) -> Steps[Decision]:
        """The rest of a cycle that waits for a plan."""
        finder = evaluation.framework.find_one_node
        assert finder is not None
        status, node = yield from plan
        refusal = self._planned(finder, restriction, status, node)
        if refusal is not None:
            return (yield from in_steps(self._refused(ctx, evaluation, refusal)))
        return (yield from in_steps(self._choose(ctx, evaluation, restriction, advice)))

    def _allowed(self, restriction: Restriction) -> Mask:
        return self.state.cluster.alive if restriction.mask is None else restriction.mask

    def _choose(
        self, ctx: CycleContext, evaluation: Evaluation, restriction: Restriction, advice: Advice | None
    ) -> Decision | Steps[Decision]:
        """Pick the best of the feasible nodes, once it is known where nominated pods leave no room."""
        blocked = begun(self._blocked(ctx, evaluation)) if len(self.state.nominations) else NOBODY
        if isinstance(blocked, Blocked):
            return self._pick(ctx, evaluation, restriction, advice, blocked)
        return begun(self._chosen_later(ctx, evaluation, restriction, advice, blocked))

    def _chosen_later(
        self, ctx: CycleContext, evaluation: Evaluation, restriction: Restriction, advice: Advice | None, looking: Steps[Blocked]
    ) -> Steps[Decision]:
        """The rest of a cycle that looks at many nominated nodes."""
        blocked = yield from looking
        return (yield from in_steps(self._pick(ctx, evaluation, restriction, advice, blocked)))

    def _pick(
        self, ctx: CycleContext, evaluation: Evaluation, restriction: Restriction, advice: Advice | None, blocked: Blocked
    ) -> Decision | Steps[Decision]:
        cluster, framework = self.state.cluster, evaluation.framework
        decision = Decision(SCHEDULED, ctx, framework, evaluated=cluster.live, evaluation=evaluation, feasible=evaluation.count)
        refused: Refusals = {}
        totals = evaluation.totals
        if evaluation.count and (restriction.mask is not None or blocked.mask is not None):
            totals = totals.copy()
            if restriction.mask is not None:
                np.putmask(totals, ~restriction.mask, INFEASIBLE)
            if blocked.mask is not None:
                np.putmask(totals, blocked.mask, INFEASIBLE)
            decision.feasible = int(np.count_nonzero(totals != INFEASIBLE))
        if advice is not None and decision.feasible:
            totals, refused = advice.apply(totals, cluster.name_of)
            decision.feasible -= len(refused)
        if not decision.feasible:
            closed = {**blocked.among(evaluation.feasible), **refused}
            failure = FitFailure(ctx, evaluation, None, tuple(restriction.plugins), restriction.mask, closed)
            return begun(self._failed(decision, failure))
        slot = self._preferred(ctx, framework, totals, restriction)
        if slot < 0:
            slot = self._best(decision, totals)
        decision.slot = slot
        decision.node = cluster.name_of(slot)
        decision.total = float(totals[slot])
        decision.advised = advice.scores.get(slot, 0.0) if advice is not None else 0.0
        if framework.restorer is not None and slot in ctx.restored:
            ctx.reservation = framework.restorer.nominate(ctx, slot)
        return decision

    def _preferred(self, ctx: CycleContext, framework: Framework, totals: Vector, restriction: Restriction) -> int:
        """The pod's nominated node, or the first feasible of a plugin's list; -1 for neither."""
        cluster = self.state.cluster
        nominated = self.state.nominations.node_of(ctx.pod.uid) or ctx.pod.nominated
        if nominated:
            slot = cluster.slot_of(nominated)
            if slot >= 0 and totals[slot] != INFEASIBLE:
                return slot
        plugin = framework.prefer_nodes
        if plugin is not None:
            status, names = framework.ask(plugin, "PreferNodesPlugin", plugin.prefer_nodes, ctx, self._allowed(restriction))
            for name in names if status.ok else ():
                slot = cluster.slot_of(name)
                if slot >= 0 and totals[slot] != INFEASIBLE:
                    return slot
        return -1

    def _best(self, decision: Decision, totals: Vector) -> int:
        """The node with the highest total; one of several at random."""
        percentage = self._percentages.get(decision.framework.name, 0)
        evaluation = decision.evaluation
        best: Sequence[int] | NDArray[np.intp]
        if 0 < percentage < 100:
            slots = self._sample(decision.ctx, totals, percentage)
            values = totals[slots]
            best = slots[values == values.max()]
        elif evaluation is not None and totals is evaluation.totals:
            best = evaluation.best()
        else:
            best = (totals == totals[totals.argmax()]).nonzero()[0]
        decision.ties = len(best)
        return int(best[0]) if len(best) == 1 else int(best[self.state.random.randrange(len(best))])

    def _sample(self, ctx: CycleContext, totals: Vector, percentage: int) -> NDArray[np.intp]:
        """Feasible slots, so many as percentageOfNodesToScore wants, going on where the last cycle ended."""
        slots = np.flatnonzero(totals != INFEASIBLE)
        live = self.state.cluster.live
        wanted = live if live < _MIN_WANTED else max(_MIN_WANTED, live * percentage // 100)
        if len(slots) <= wanted:
            return slots
        start = int(np.searchsorted(slots, self.state.next_start))
        chosen = np.roll(slots, -start)[:wanted]
        ctx.effects.append(lambda: self.state.go_on_at(int(chosen[-1]) + 1))
        return chosen

    def _blocked(self, ctx: CycleContext, evaluation: Evaluation) -> Steps[Blocked]:
        """Nodes that are closed once the pods nominated to them, of this pod's priority or higher, are counted."""
        return evaluation.nominated.blocked(ctx, self._job_of)

    def _job_of(self, pod: PodInfo) -> Hashable:
        """What a pod is placed together with: their nominations do not stand in one another's way."""
        framework = self.frameworks.get(pod.shape.scheduler_name)
        return framework.job_of(pod) if framework is not None else None

    # ---------------------------------------------------------------- failures

    def _refused(self, ctx: CycleContext, evaluation: Evaluation, status: Status) -> Decision | Steps[Decision]:
        decision = Decision(UNSCHEDULABLE, ctx, evaluation.framework, evaluated=self.state.cluster.live, evaluation=evaluation)
        if not status.rejected:
            decision.verdict, decision.status = ERROR, status
            return decision
        return begun(self._failed(decision, FitFailure(ctx, evaluation, pre_filter=status)))

    def _failed(self, decision: Decision, failure: FitFailure) -> Steps[Decision]:
        """Ask the postFilter plugins in order: success, error and unresolvable end; the last nomination wins."""
        ctx = decision.ctx
        decision.verdict = UNSCHEDULABLE
        decision.failure = failure
        decision.feasible = 0
        decision.status = failure.pre_filter or Status(Code.UNSCHEDULABLE)
        decision.rejected_by = failure.plugins()
        messages: list[str] = []
        result = PostFilterResult(SUCCESS)
        for plugin in decision.framework.post_filters:
            result = yield from decision.framework.ask_in_steps(plugin, "PostFilter", plugin.post_filter, ctx, failure)
            if result.node is not None:
                decision.nominate, decision.victims = result.node, result.victims
                decision.candidates, decision.others = result.candidates, result.others
                decision.recheck = result.recheck
            if result.status.ok:
                messages = []
                break
            if result.status.message:
                messages.append(result.status.message)
            if result.status.code in (Code.ERROR, Code.UNRESOLVABLE):
                break
        decision.post_filter_message = ", ".join(messages)
        for plugin in decision.framework.post_filters:
            yield from decision.framework.ask_in_steps(plugin, "AfterPostFilter", plugin.after_post_filter, ctx, failure, result)
        return decision


def _ending(ctx: CycleContext, steps: Steps[Decision]) -> Steps[Decision]:
    """The rest of a cycle; what was done for its sake only is undone when it ends, however it does."""
    try:
        return (yield from steps)
    finally:
        ctx.end()
