"""NodeNUMAResource: CPU sets and NUMA amounts (SCH-NUMA-01..14). Nearly all nodes are decided by columns; allocations are tried on nodes
with a strict NUMA policy or a reservation that the pod may use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from koord.api import names
from koord.api.kinds import NODERESOURCETOPOLOGIES
from koord.api.objects import NodeResourceTopology
from koord.decisions.record import Term
from roles.scheduler.cluster.arithmetic import AnyRows, several
from roles.scheduler.cluster.changes import NODE, PODS
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.codes import StatusCodes
from roles.scheduler.framework.context import BindDraft, CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.events import NODE as NODE_EVENTS
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.restoring import RestoredReservation
from roles.scheduler.framework.status import SKIP, SUCCESS, Code, Status
from roles.scheduler.framework.tally import FIXED, Tally
from roles.scheduler.plugins.node_resources import Scored
from roles.scheduler.plugins.numa import checks
from roles.scheduler.plugins.numa.allocator import Binding, Pool, enough_on, hints_of, masks_to_try, wide_masks
from roles.scheduler.plugins.numa.args import NodeNUMAResourceArgs
from roles.scheduler.plugins.numa.columns import POLICY_CODES, NumaColumns
from roles.scheduler.plugins.numa.records import Record, write_record
from roles.scheduler.plugins.numa.request import Request, request_of
from roles.scheduler.plugins.numa.scoring import Scorer, summed
from roles.scheduler.plugins.numa.trials import NAME, Trials, designation
from roles.scheduler.plugins.numa.view import node_page
from roles.scheduler.plugins.topology_manager.hints import Hint, Hints, Policy, bits_of, violates_exclusivity
from roles.scheduler.plugins.topology_manager.manager import HintProvider, PolicySource, TopologyManager, Wanted

_SCOPE = "reservation NUMA scope is incompatible with the best topology hint"
_DEFAULT = "Default"
_OPEN = ("", _DEFAULT)
_REQUIRED_POLICY, _PREFERRED_POLICY = "requiredCPUBindPolicy", "preferredCPUBindPolicy"
_SCORED = "NodeNUMAResource/scored"
_HOME_SCORE = 101  # NUMA nodes of a reservation that the pod may use come before emptier ones, which score up to 100
_HAD = Record()  # stands for whatever a pod gets on NUMA nodes that have enough


class NodeNUMAResource(
    api.PreFilter, api.Filter, api.ReservationFilter, api.Score, api.Reserve, api.PreBind, api.PodObserver, HintProvider, PolicySource,
):  # fmt: skip
    """Codes below `checks.FIRST_DYNAMIC` are those of `checks`, the others stand for what an allocation said."""

    name = NAME
    Args = NodeNUMAResourceArgs
    row_wise = True
    takes_slot = True

    def __init__(self, args: NodeNUMAResourceArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        fresh = NumaColumns(handle.state)
        self.columns = handle.cluster.register(NAME, fresh)
        self.reads = self.score_reads = NODE | PODS | self.columns.kind
        self.topology = TopologyManager.of(handle)
        self.topology.source = self
        self.topology.add_provider(NAME, self, self.columns.kind)
        self.topology.add_asker(self)
        self._trials = Trials(self.columns)
        self._scorer = Scorer(args.scoring_strategy)
        self._numa_scorer = Scorer(args.numa_scoring_strategy)
        self._codes = StatusCodes(checks.FIRST_DYNAMIC)
        if self.columns is fresh:
            self.columns.guess = self._guess

    # ---------------------------------------------------------------- what it follows

    def feeds(self) -> Sequence[api.Feed]:
        return (api.Feed(NODERESOURCETOPOLOGIES, NodeResourceTopology, self.columns.topology_set),)

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(ASSIGNED_POD, Action.DELETE),
            Subscription(ASSIGNED_POD, Action.SCALE_DOWN, self._shrinking_helps),
            Subscription(NODERESOURCETOPOLOGIES.kind, Action.ADD | Action.UPDATE | Action.DELETE),
            Subscription(NODE_EVENTS, Action.ADD | Action.UPDATE_ALLOCATABLE | Action.UPDATE_LABELS | Action.UPDATE_ANNOTATIONS),
            Subscription(UNSCHEDULED_POD, Action.ALL),  # it may ask for other CPUs or NUMA nodes by now
            *self.topology.subscriptions,
        )

    def _shrinking_helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """A pod was resized in place: what pods request of a whole node counts here where its CPU is amplified."""
        slot = self.handle.cluster.slot_of(event.old.node_name)
        return slot >= 0 and self.columns.at(slot).facts.ratio != 1.0

    def pod_seen(self, pod: PodInfo) -> None:
        """Records follow the pods that count on nodes, not the events."""

    def pod_gone(self, uid: str) -> None:
        self.columns.gone(uid)

    def endpoints(self) -> Sequence[api.Endpoint]:
        return (api.Endpoint("nodes/{name}", self._page),)

    def _page(self, match: dict[str, str]) -> dict[str, Any]:
        slot = self.handle.cluster.slot_of(match["name"])
        state = self.columns.at(slot) if slot >= 0 else None
        if state is None or not state.facts.machine.valid:
            raise api.PageError(f"node {match['name']} is not known or has no valid CPU topology")
        return node_page(match["name"], state, self.columns.usage(slot))

    def shape_key(self, pod: PodInfo) -> Hashable:
        return designation(pod) and (pod.pod.metadata.annotations or {})[names.ANNOTATION_RESOURCE_STATUS]

    # ---------------------------------------------------------------- what a pod asks

    def _request(self, ctx: CycleContext) -> Request:
        return request_of(ctx.pod.shape, self.args.default_cpu_bind_policy)

    def _binding(self, request: Request, slot: int) -> Binding | None:
        facts = self.columns.at(slot).facts
        most = facts.strategy == names.NUMA_MOST_ALLOCATED if facts.strategy else self._numa_scorer.most
        return checks.binding_of(request, facts, most=most)

    def _guess(self, slot: int, pod: PodInfo) -> Record | None:
        """What a pod that is only supposed to be on a node would get there."""
        wanted = designation(pod)
        if wanted is not None:
            return wanted
        request, facts = request_of(pod.shape, self.args.default_cpu_bind_policy), self.columns.at(slot).facts
        policy = checks.effective_policy(request, facts) if facts.zones else Policy.NONE
        if policy is None or not request.status.ok:
            return None
        return self._trials.expected(slot, pod, request, self._binding(request, slot), policy)

    def pre_filter(self, ctx: CycleContext) -> Status:
        request = self._request(ctx)
        if not request.amounts:
            return SKIP
        return request.status

    # ---------------------------------------------------------------- filter

    def filter(self, ctx: CycleContext, rows: AnyRows) -> api.Codes | None:
        request = self._request(ctx)
        self.columns.current()
        if not checks.concerns(request, self.columns):
            return None
        rows = several(rows)
        slots = ctx.cluster.slots[rows]
        restored = ctx.may_use(slots) if designation(ctx.pod) is None else np.ones(len(slots), dtype=np.bool_)
        codes = checks.codes_of(
            request, self.columns, ctx.cluster, rows, self._codes.code, restored, alone=self._alone(ctx)
        )  # fmt: skip
        for index in np.flatnonzero(codes == api.ASK).tolist():
            codes[index] = self._try(ctx, request, slots.item(index))
        return codes

    def tally(self, ctx: CycleContext) -> Tally | None:
        request = self._request(ctx)
        self.columns.current()
        if not checks.concerns(request, self.columns):
            return FIXED
        return None if request.numa_policy or request.binds else checks.PlainNodes(self.columns)

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        self.columns.current()
        return checks.concerns(self._request(ctx), self.columns)

    def _alone(self, ctx: CycleContext) -> bool:
        """Whether the columns of this plugin are all that strict policies have to look at."""
        return self.topology.concerns_only(NAME, ctx)

    def _try(self, ctx: CycleContext, request: Request, slot: int) -> int:
        """The code that an allocation on a node gives."""
        admission = self.topology.at_filter(ctx, slot)
        if not admission.status.ok:
            return self._codes.code(admission.status)
        if admission.affinity is not None:
            return 0  # the providers have tried it
        facts = self.columns.at(slot).facts
        # BestEffort restricts nothing yet, but what all NUMA nodes together do not hold would only fail at Reserve.
        loose = checks.effective_policy(request, facts) is Policy.BEST_EFFORT
        nodes = list(facts.zones) if loose else None
        tried = self._trials.attempts(ctx, slot, request, self._binding(request, slot)).on(nodes, pick=False)
        if isinstance(tried, Record):
            return 0
        return checks.ZONES_SHORT if loose and slot not in ctx.restored else self._codes.code(tried)

    def rejection(self, ctx: CycleContext, code: int) -> api.Rejection:
        if code < checks.FIRST_DYNAMIC:
            status = checks.STATUSES[code]
            return api.Rejection(status.reasons, status.code is not Code.UNRESOLVABLE)
        return self._codes.rejection(code)

    def explain(self, ctx: CycleContext) -> Sequence[Term]:
        request, columns = self._request(ctx), self.columns
        columns.current()
        if not request.amounts or not ctx.cluster.live:
            return ()
        policy = request.required or request.preferred if request.binds else "not bound by itself"
        most = [int(column[ctx.cluster.alive].max()) for column in columns.free]
        return (
            Term("CPUs wanted", request.milli / 1000, f"{policy}{', required' if request.required else ''}", "cpus"),
            Term("most free CPUs on a node", most[0], "", "cpus"),
            Term("most free in whole cores", most[1], "FullPCPUs", "cpus"),
            Term("most free cores", most[2], "SpreadByPCPUs", "cpus"),
            Term("nodes with a NUMA policy", int((columns.policy[ctx.cluster.alive] > 0).sum()), str(request.numa_policy), "nodes"),
        )

    def fits_reservation(self, ctx: CycleContext, slot: int, reservation: RestoredReservation) -> tuple[str, ...]:
        request = self._request(ctx)
        admission = self.topology.with_only(ctx, slot, reservation)
        if not request.amounts or not admission.status.ok:
            return admission.status.reasons if request.amounts else ()
        binding, nodes = self._binding(request, slot), _nodes(admission.affinity)
        if binding is None and nodes is None:
            return ()
        tried = self._trials.attempt_in(ctx, slot, request, binding, nodes, reservation)
        if not isinstance(tried, Status):
            return ()
        return (_SCOPE,) if nodes is not None else tuple(f"Reservation(s) {reason}" for reason in tried.reasons)

    def fits_alone(self, ctx: CycleContext, slot: int) -> tuple[str, ...]:
        request, facts = self._request(ctx), self.columns.at(slot).facts
        policy = checks.effective_policy(request, facts) or Policy.NONE
        binding, strict = self._binding(request, slot), POLICY_CODES[policy] >= checks.STRICT
        if not request.amounts or (binding is None and not strict):
            return ()
        masks = masks_to_try(facts, policy, facts.zones) if strict else (None,)
        tried = self._trials.attempt_alone(ctx, slot, request, binding, [_nodes(mask) for mask in masks])
        return tried.reasons if isinstance(tried, Status) else ()

    # ---------------------------------------------------------------- NUMA policy and hints

    def numa_policy(self, ctx: CycleContext, slot: int) -> Wanted | Status | None:
        request, facts = self._request(ctx), self.columns.at(slot).facts
        policy = checks.effective_policy(request, facts)
        if policy is None:
            return checks.STATUSES[checks.MISMATCH]
        if not policy or not request.amounts:
            return None
        if not facts.zones:
            return checks.STATUSES[checks.NO_ZONES]
        usage = self.columns.usage(slot)
        use = usage.use if request.exclusive_of_all else usage.bound_use
        return Wanted(policy, facts.zone_mask, use if request.exclusive_use else None)

    def aligned_rows(self, ctx: CycleContext, rows: Rows) -> NDArray[np.bool_] | None:
        own = POLICY_CODES[self._request(ctx).numa_policy]
        self.columns.current()
        if not self.columns.special and not own:
            return None
        return np.asarray(np.maximum(self.columns.policy[rows], own) >= checks.STRICT)

    def strict_rows(self, rows: Rows) -> NDArray[np.int8] | None:
        self.columns.current()
        if not self.columns.special:
            return None
        policy = self.columns.policy[rows]
        single = policy == POLICY_CODES[Policy.SINGLE_NUMA_NODE]
        return np.where(single, 2, policy >= checks.STRICT).astype(np.int8)

    def hints(self, ctx: CycleContext, slot: int) -> Hints | Status:
        request, facts = self._request(ctx), self.columns.at(slot).facts
        policy = checks.effective_policy(request, facts) or Policy.NONE
        binding = self._binding(request, slot)
        attempts = self._trials.attempts(ctx, slot, request, binding, reserving=self.topology.reserving)
        pool, recorded = attempts.pool, self.columns.usage(slot).recorded
        # Without reservations the sums of what is left decide: alone, if no CPUs are to be bound, and else where there is too little.
        by_sums, enough = not ctx.restored.get(slot) and designation(ctx.pod) is None, enough_on(facts, request.amounts, pool.amounts)
        settles = self._settling(ctx, slot, pool) if policy is not Policy.SINGLE_NUMA_NODE else None
        feasible: dict[int, int] = {}
        last: Record | Status | None = None
        narrow = 0  # on so many NUMA nodes there is one that all agree on
        for mask in masks_to_try(facts, policy, pool.amounts):
            if narrow and mask.bit_count() > narrow:
                break
            nodes = bits_of(mask)
            if by_sums and not enough(nodes):
                continue
            last = _HAD if by_sums and binding is None else attempts.on(nodes, pick=False)
            if isinstance(last, Record):
                score = self._numa_scorer.score(request.amounts, summed(nodes, facts.zones), summed(nodes, recorded))
                feasible[mask] = score + (_HOME_SCORE if mask & attempts.home else 0)
                least = policy is Policy.RESTRICTED or mask.bit_count() == next(iter(feasible)).bit_count()
                if least and settles is not None and settles(mask):
                    narrow = mask.bit_count()
        if not feasible and isinstance(last, Status) and ctx.restored.get(slot) and last.message.startswith("Reservation(s)"):
            return last
        if not feasible and policy is Policy.SINGLE_NUMA_NODE:
            return {
                name: [Hint(mask, True)] if isinstance(attempts.on(bits_of(mask), pick=False), Record) else []
                for name, mask in wide_masks(facts, request.amounts, pool.amounts).items()
            }
        return hints_of(facts, policy, request.amounts, pool.amounts, feasible)

    def _settling(self, ctx: CycleContext, slot: int, pool: Pool) -> Callable[[int], bool] | None:
        """Tells of a mask on which the pod can be had whether nobody has anything against it. If so of one of the narrowest, no wider one
        is agreed on, and with many NUMA nodes those are hundreds; under Restricted, which prefers all masks, of any. None where other
        providers have a say."""
        if not self.topology.concerns_only(NAME, ctx):
            return None
        facts, wanted = self.columns.at(slot).facts, self.numa_policy(ctx, slot)
        use = wanted.use if isinstance(wanted, Wanted) else None
        common = facts.zone_mask  # NUMA nodes that have something left of everything
        for nodes in wide_masks(facts, self._request(ctx).amounts, pool.amounts).values():
            common &= nodes
        return lambda mask: not mask & ~common and not (use is not None and violates_exclusivity(mask, use))

    def allocate_check(self, ctx: CycleContext, slot: int, affinity: int | None) -> Status:
        request = self._request(ctx)
        binding, nodes = self._binding(request, slot), _nodes(affinity)
        if binding is None and nodes is None:
            return SUCCESS
        tried = self._trials.attempts(ctx, slot, request, binding, reserving=self.topology.reserving).on(nodes, pick=False)
        return tried if isinstance(tried, Status) else SUCCESS

    def version(self, slot: int) -> Hashable:
        return self.columns.at(slot).version

    # ---------------------------------------------------------------- score

    def score_stamp(self, ctx: CycleContext) -> int:
        return 0 if self.topology.concerns_only(NAME, ctx) else self.topology.version

    def score(self, ctx: CycleContext, rows: AnyRows) -> Any:
        request, columns = self._request(ctx), self.columns
        if not request.amounts:
            return 0.0
        columns.current()
        wanted = POLICY_CODES[request.numa_policy]
        if not columns.amplified and not columns.special and not wanted:
            return self._scorer.nodes(ctx.cluster, self._scored(ctx, request), rows, None)
        rows = several(rows)
        bound = checks.bound_rows(request, columns, rows)
        own: Any = 0.0  # what amplification adds to the pod's CPUs
        more: Any = 0.0  # and to those that are held
        if columns.amplified:
            ratio = np.maximum(np.nan_to_num(columns.ratio[rows], nan=1.0), 1.0)
            own = np.where(bound, np.ceil(request.milli * ratio) - request.milli, 0.0)
            more = columns.extra[rows]
        scores: Vector = self._scorer.nodes(ctx.cluster, self._scored(ctx, request), rows, more + own)
        if columns.special or wanted:
            self._score_strict(ctx, rows, np.maximum(columns.policy[rows], wanted), bound, own, scores)
        return scores

    def _scored(self, ctx: CycleContext, request: Request) -> Scored:
        """The resources that count on whole nodes."""
        known: Scored | None = ctx.data.get(_SCORED)
        if known is None:
            known = ctx.data[_SCORED] = self._scorer.scored(ctx.cluster, request.amounts)
        return known

    def _score_strict(self, ctx: CycleContext, rows: Rows, policy: Any, bound: Any, own: Any, scores: Vector) -> None:
        """Rows under strict policies: the score of the NUMA nodes that the pod would get. Where that is one, columns tell."""
        request, zones = self._request(ctx), self.columns.zones
        strict = (policy >= checks.STRICT) & ctx.feasible[rows]
        if not strict.any():
            return
        holds = checks.single_nodes(request, self.columns, rows, bound)
        slots = ctx.cluster.slots[rows]
        known = np.zeros_like(strict)
        if self._alone(ctx) and designation(ctx.pod) is None:
            known = holds.any(axis=0) & strict & ~ctx.may_use(slots)
        # Alone on its machine a NUMA node is no restriction under SingleNUMANode: the node's score stands.
        whole = known & (zones.count[rows] == 1) & (policy == POLICY_CODES[Policy.SINGLE_NUMA_NODE])
        if known.any():
            added: dict[str, Any] = {name: float(amount) for name, amount in request.amounts.items()}
            if names.RESOURCE_CPU in added:
                added[names.RESOURCE_CPU] = added[names.RESOURCE_CPU] + own
            before, after = zones.scores(self._numa_scorer, request.amounts, rows, added)
            best = np.where(holds, before, -1.0).argmax(axis=0)
            chosen = np.take_along_axis(after, best[None, :], axis=0)[0]
            np.copyto(scores, chosen, where=known & ~whole)
        for index in np.flatnonzero(strict & ~known).tolist():
            score = self._score_of(ctx, request, slots.item(index))
            if score is not None:
                scores[index] = score

    def _score_of(self, ctx: CycleContext, request: Request, slot: int) -> float | None:
        """The score of the NUMA nodes that an allocation on a node would take; None where it is not tied to any."""
        admission = self.topology.at_filter(ctx, slot)
        if not admission.status.ok:
            return 0.0
        if admission.affinity is None:
            return None
        tried = self._trials.attempts(ctx, slot, request, self._binding(request, slot)).on(bits_of(admission.affinity), pick=False)
        if isinstance(tried, Status):
            return 0.0
        facts = self.columns.at(slot).facts
        if not tried.amounts:
            return None
        recorded = self.columns.usage(slot).recorded
        return float(self._numa_scorer.numa(facts, request.amounts, tried.amounts, recorded, bound=checks.binds(request, facts)))

    # ---------------------------------------------------------------- reserve

    def reserve(self, ctx: CycleContext, slot: int) -> Status:
        request, pod = self._request(ctx), ctx.pod
        self.columns.take_nothing(slot, pod.uid)
        self.columns.current()
        if not request.amounts or not checks.concerns(request, self.columns):
            return SUCCESS
        admission = self.topology.at_reserve(ctx, slot)
        if not admission.status.ok:
            return admission.status
        binding, nodes = self._binding(request, slot), _nodes(admission.affinity)
        if binding is None and nodes is None:
            return SUCCESS
        with ctx.restoring(slot):
            tried = self._trials.attempts(ctx, slot, request, binding, reserving=True).on(nodes)
        if isinstance(tried, Status):
            return tried
        self.columns.reserve(slot, pod, replace(tried, key=pod.key))
        return SUCCESS

    def unreserve(self, ctx: CycleContext, slot: int) -> None:
        self.columns.release(slot, ctx.pod.uid)
        self.topology.forget(ctx, slot)

    async def pre_bind(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        record = self.columns.decided(ctx.pod.uid)
        annotations = ctx.pod.pod.metadata.annotations or {}
        if record is None or not record:
            if names.ANNOTATION_RESOURCE_STATUS in annotations:
                draft.annotations[names.ANNOTATION_RESOURCE_STATUS] = None  # left from an attempt on another node
            return SUCCESS
        draft.annotations[names.ANNOTATION_RESOURCE_STATUS] = write_record(record)
        request, slot = self._request(ctx), ctx.cluster.slot_of(node)
        binding = self._binding(request, slot) if slot >= 0 else None
        if binding is not None and record.cpus:
            before = annotations.get(names.ANNOTATION_RESOURCE_SPEC, "")
            spec = _filled_in(before, binding)
            # A Reservation shows what its pod template says, for those who read the object alone.
            if spec is not None or ctx.pod.reservation:
                draft.annotations[names.ANNOTATION_RESOURCE_SPEC] = spec or before
        return SUCCESS


def _nodes(affinity: int | None) -> list[int] | None:
    return None if affinity is None else bits_of(affinity)


def _filled_in(text: str, binding: Binding) -> str | None:
    """The resource-spec with the policy that was used, for the node agent; everything else in it stays. None where it says so already."""
    found = orjson.loads(text) if text.strip() else None
    spec: dict[str, Any] = dict(found) if isinstance(found, dict) else {}
    if spec.get(_REQUIRED_POLICY, "") in _OPEN:
        if binding.required:
            spec[_REQUIRED_POLICY] = binding.required
        if spec.get(_PREFERRED_POLICY, "") in (_OPEN if not binding.required else (_DEFAULT,)):
            spec[_PREFERRED_POLICY] = binding.policy
    return None if spec == found else orjson.dumps(spec).decode()
