"""DynamicResources: pods go where the devices are that their claims ask for, and claims are allocated before pods are bound (SCH-DRA)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from koord import seams
from koord.api import kinds
from koord.api.objects_resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from koord.decisions.record import Term
from roles.scheduler.cluster.changes import NODE as NODE_CHANGED
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.config.args import DynamicResourcesArgs
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.context import BindDraft, CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Feed, Rejection
from roles.scheduler.framework.normalize import Proportional
from roles.scheduler.framework.status import SKIP, SUCCESS, Code, PostFilterResult, Status, error, unresolvable, unschedulable
from roles.scheduler.framework.tally import FIXED, Tally
from roles.scheduler.plugins.dynamic_resources.allocator import Allocation, TookTooLong, allocate
from roles.scheduler.plugins.dynamic_resources.claims import Assumed, Claims, Lent, terms_of
from roles.scheduler.plugins.dynamic_resources.elsewhere import Coming, Elsewhere
from roles.scheduler.plugins.dynamic_resources.extended import Extended, extended
from roles.scheduler.plugins.dynamic_resources.hints import Devices, claim_helps, pod_helps
from roles.scheduler.plugins.dynamic_resources.inventory import Counted, Use
from roles.scheduler.plugins.dynamic_resources.plans import NOTHING, Plan, Waiting, backed_resources, claim_keys, plan, refused
from roles.scheduler.plugins.dynamic_resources.preferring import BEST_KEPT, InUse, kept
from roles.scheduler.plugins.dynamic_resources.readiness import Readiness
from roles.scheduler.plugins.dynamic_resources.requests import RequestError, Wanted
from roles.scheduler.plugins.dynamic_resources.results import node_selector, rendered, selector_of
from roles.scheduler.plugins.dynamic_resources.writing import Carried, Given, Releases, Writer, devices_of
from roles.scheduler.plugins.node_affinity import any_term

_FULL, _ELSEWHERE, _IN_USE, _TOLD = 1, 2, 3, 4
_REJECTIONS = {
    _IN_USE: Rejection(("cannot allocate all claims",), resolvable=True),
    _FULL: Rejection(("cannot allocate all claims",), resolvable=False),
    _ELSEWHERE: Rejection(("resourceclaim not available on the node",), resolvable=False),
}
_MOST_VERDICTS = 50_000
_MOST_REASONS = 200
_BEST_ALTERNATIVE = 8
Verdict = tuple[int, float]
"""(code, how much the alternatives that were chosen are preferred)"""


class DynamicResources(
    api.PodObserver, api.PreEnqueue, api.PreFilter, api.Filter, api.PostFilter, api.PreScore, api.Score, api.Reserve, api.PreBind,
    api.PostBind, api.Controllers,
):  # fmt: skip
    """Codes: 1 the node's devices are not enough, 2 an allocated claim cannot be used there, 3 they are not enough as claims have some of
    them, from 4 on reasons that are kept."""

    name = "DynamicResources"
    Args = DynamicResourcesArgs
    per_pod = True
    row_wise = True
    normalizer = Proportional()

    def __init__(self, args: DynamicResourcesArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.cache = handle.cluster.register("DynamicResources", Claims())
        self.reads = self.score_reads = NODE_CHANGED | self.cache.kind
        self._verdicts: dict[Hashable, Verdict] = {}
        self._reasons: list[str] = []
        self._last: tuple[PodInfo | None, int, Plan] = (None, 0, NOTHING)  # it is asked for in every step of a cycle
        self._nothing_elsewhere = Elsewhere(self.cache, {})
        self._known_elsewhere: tuple[Hashable, Elsewhere] = ((), self._nothing_elsewhere)
        self._known_coming: tuple[int, tuple[int, int], Mapping[str, Coming]] = (-1, (-1, -1), {})
        self._carried: dict[str, Carried] = self.cache.carried
        self._written = self.cache.written
        self._together = args.device_order == "Together"
        self._releases = self.cache.releases = self.cache.releases or Releases(handle, self.cache)
        self._writer = Writer(handle, self.cache)
        self._readiness = Readiness(handle, self.cache, args.binding_timeout)
        self.cache.supposed = self._supposedly_gets
        self.cache.released = self._released
        self.cache.now = lambda: handle.state.now
        handle.state.evictions.holding, handle.state.evictions.held = self.cache.holding, self.cache.held
        handle.shared["backed resources"] = self.cache.backed  # NodeResourcesFit leaves them to the devices of nodes without them

    def _released(self, uid: str) -> None:
        self.handle.released(uid)

    @property
    def _supposed(self) -> bool:
        """Whether this is a what-if: there is no API server, and nobody who makes claims."""
        return self.handle.client is None

    def feeds(self) -> Sequence[Feed]:
        found = (
            Feed(kinds.RESOURCECLAIMS, ResourceClaim, self.cache.claim_set),
            Feed(kinds.DEVICECLASSES, DeviceClass, self.cache.class_set),
            Feed(kinds.RESOURCESLICES, ResourceSlice, self.cache.slice_set),
            Feed(kinds.DEVICETAINTRULES, DeviceTaintRule, self.cache.rule_set),
            Feed(kinds.DEVICETAINTRULES_V1BETA2, DeviceTaintRule, self.cache.rule_set),
        )
        return (*found, Feed(kinds.RESOURCECLAIMTEMPLATES, ResourceClaimTemplate, self.cache.template_set)) if self._supposed else found

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(kinds.RESOURCECLAIMS.kind, Action.ADD | Action.UPDATE | Action.DELETE, claim_helps),
            Subscription(kinds.RESOURCESLICES.kind, Action.ADD | Action.UPDATE | Action.DELETE),
            Subscription(kinds.DEVICECLASSES.kind, Action.ADD | Action.UPDATE),
            Subscription(kinds.DEVICETAINTRULES.kind, Action.UPDATE | Action.DELETE),
            Subscription(NODE, Action.ADD | Action.UPDATE_LABELS),
            Subscription(ASSIGNED_POD, Action.DELETE, pod_helps),
            Subscription(UNSCHEDULED_POD, Action.UPDATE_GENERATED_CLAIMS),
        )

    # ---------------------------------------------------------------- before the queue

    def pod_seen(self, pod: PodInfo) -> None:
        """Claims follow from claims, not from pods."""

    def pod_gone(self, uid: str) -> None:
        self.cache.gone(uid)
        if uid in self._carried:
            self._readiness.ended.add(uid)
        if self._supposed:
            self._carried.pop(uid, None)
            self.cache.vacate(uid)

    def pre_enqueue(self, pod: PodInfo) -> Status:
        """A pod waits until the claims are there that are made for it. None is made for a reservation."""
        if pod.reservation or not pod.shape.template.spec.resource_claims or self._supposed:
            return SUCCESS
        try:
            self._planned(pod)
        except Waiting as waiting:
            if waiting.key:
                self.cache.awaited(waiting.key, pod, self.handle.activate)
            return unresolvable(str(waiting))
        return SUCCESS

    # ---------------------------------------------------------------- deciding

    def _plan(self, pod: PodInfo) -> Plan:
        """What the pod's claims want now."""
        if pod.reservation or not self._concerned(pod):
            return NOTHING  # claims are allocated for the pods that use a reservation
        known, version, found = self._last
        if known is not pod or version != self.cache.version or self.handle.state.now >= found.until:
            try:
                found = self._planned(pod)
            except Waiting as waiting:
                found = refused((), str(waiting))
            self._last = (pod, self.cache.version, found)
        return found

    def _planned(self, pod: PodInfo) -> Plan:
        return plan(
            pod, self.cache, supposed=self._supposed, now=self.handle.state.now, timeout=self.args.binding_timeout,
            together=partial(self._together_with, pod),
        )  # fmt: skip

    def _together_with(self, pod: PodInfo, uid: str) -> bool:
        """Whether a pod is of the same gang as one that has a place: the one is not bound without the other."""
        other = self.handle.cluster.pod(uid)
        return other is not None and self._same_gang(pod, other)

    def _same_gang(self, pod: PodInfo, other: PodInfo) -> bool:
        gangs = self.handle.state.gangs
        mine = gangs.of(pod)
        return bool(mine) and gangs.of(other) == mine

    def _concerned(self, pod: PodInfo) -> bool:
        return bool(pod.shape.template.spec.resource_claims or (self.cache.backed and backed_resources(pod, self.cache)))

    def shape_key(self, pod: PodInfo) -> Hashable:
        if not self._concerned(pod):
            return None
        elsewhere = self._elsewhere(pod)
        return (self._plan(pod).digest, elsewhere.key) if elsewhere.key else self._plan(pod).digest

    def pre_filter(self, ctx: CycleContext) -> Status:
        found = self._plan(ctx.pod)
        if found.refusal:
            left = self.cache.leftover.get(ctx.pod.uid)
            if left is not None and ctx.pod.uid not in self._carried:
                ctx.effects.append(partial(self._releases.delete, left, self.cache.claims[left].metadata.uid))
            if found.lapsed and not self._supposed:
                self._allocate_anew(ctx, found.lapsed)
            return Status(Code.PENDING, (found.refusal,)) if found.pending else unresolvable(found.refusal)
        return SUCCESS if found.keys or found.backed else SKIP

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        found = self._plan(ctx.pod)
        if not found.wanted and not found.terms and not found.backed:
            return None
        slots = ctx.cluster.slots[rows]
        codes = np.zeros(len(slots), dtype=np.int32)
        for terms in found.terms:
            codes[~any_term(ctx.cluster, terms, rows)] = _ELSEWHERE
        if found.wanted or found.backed:
            codes[(codes == 0) & (self.cache.free[slots] < found.least)] = _FULL
            for index in np.flatnonzero((codes == 0) & ctx.cluster.alive[slots]).tolist():
                codes[index] = self._verdict(ctx, found, slots.item(index))[0]
            codes[(codes == _FULL) & (self.cache.busy[slots] > 0)] = _IN_USE
        return codes

    def room(self, ctx: CycleContext) -> Vector | None:
        found = self._plan(ctx.pod)
        return None if found.keys or found.backed else np.full(ctx.cluster.capacity, np.inf)

    def tally(self, ctx: CycleContext) -> Tally | None:
        # What a node has of an extended resource is free at once, devices when claims are given back.
        found = self._plan(ctx.pod)
        return None if found.backed else Devices(partial(self.filter, ctx), self.cache) if found.wanted else FIXED

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        return self.tally(ctx) is not FIXED

    def _verdict(self, ctx: CycleContext, found: Plan, slot: int) -> Verdict:
        """Whether the claims can be allocated on a node; asked once for nodes that are alike."""
        inventory, used = self.cache.inventory(slot), self._elsewhere(ctx.pod).used(slot)
        lacking = self._lacking(found, slot)
        key = (found.digest, lacking, found.backed and ctx.pod.shape.digest, self.cache.signature(inventory, used))
        known = self._verdicts.get(key)
        if known is None:
            if len(self._verdicts) >= _MOST_VERDICTS:
                self._verdicts.clear()
            try:
                known = self._verdicts[key] = self._judged(ctx.pod, found, slot, used)
            except TookTooLong as late:  # it may be quicker next time
                ctx.effects.append(partial(ctx.cluster.changes.note, slot, self.cache.kind))
                return self._code(str(late)), 0.0
        return known

    def _lacking(self, found: Plan, slot: int) -> tuple[str, ...]:
        """Extended resources that a node has none of: devices stand for them."""
        cluster = self.handle.cluster
        return tuple(name for name in found.backed if not cluster.allocatable[cluster.vocabulary.resources.intern(name)][slot])

    def _wanted(self, pod: PodInfo, found: Plan, lacking: tuple[str, ...]) -> tuple[tuple[Wanted, ...], Extended | None]:
        """All that is to be allocated on a node. Raises RequestError."""
        if not lacking:
            return found.wanted, None
        key = ("devices", lacking, self.cache.class_version)
        known: Extended | None = pod.shape.memo.get(key)
        if known is None:
            classes = {name: self.cache.backed[name] for name in lacking}
            known = pod.shape.memo[key] = extended(pod.shape.template.spec, classes)
        return (*found.wanted, self.cache.wanted(known.spec)[1]), known

    def _judged(self, pod: PodInfo, found: Plan, slot: int, used: Counted) -> Verdict:
        try:
            wanted, _ = self._wanted(pod, found, self._lacking(found, slot))
            allocations = allocate(wanted, self.cache.inventory(slot).stock, used, self._clock(), together=self._together)
        except TookTooLong:
            raise
        except RequestError as failure:
            return self._code(str(failure)), 0.0
        if allocations is None:
            return _FULL, 0.0
        preference = _preference(found, allocations)
        if self._together:
            given = [one.device for allocation in allocations for one in allocation]
            use = InUse(self.cache.taken.__contains__, lambda device: self.cache.shared.get(device, {}), lambda pool: pool.counters)
            preference = preference * BEST_KEPT + kept(given, self.cache.inventory(slot).devices, use)
        return 0, preference

    def _supposedly_gets(self, slot: int, pod: PodInfo) -> Mapping[str, Lent]:
        """What the claims of a pod get that a what-if puts on a node: those that are placed there after it find it in use. One that waits
        there for others to leave gets what they have."""
        if pod.reservation or pod.uid in self._carried or not self._concerned(pod) or not self.handle.cluster.alive[slot]:
            return {}
        coming = self._coming(adding=pod).get(pod.uid)
        if coming is not None and coming.slot == slot:
            return {key: self.cache.lent.get(key, lent) for key, lent in coming.lent.items()}
        found = self._plan(pod)
        lent = {key: self.cache.lent[key] for key in found.keys if key in self.cache.lent}
        if not found.refusal:
            with suppress(RequestError):
                lent |= self._gets(pod, found, slot, self._elsewhere(pod).used(slot))
            return lent
        return {}

    def _gets(self, pod: PodInfo, found: Plan, slot: int, used: Counted) -> dict[str, Lent]:
        """What is allocated for a pod on a node, now or once those have left who are on their way out. Raises RequestError."""
        wanted, _ = self._wanted(pod, found, self._lacking(found, slot))
        stock, node = self.cache.inventory(slot).stock, self.handle.cluster.name_of(slot)
        allocations = allocate(wanted, stock, used, self._clock())
        if allocations is None and (left := self._left(slot)):
            rest = used.with_more(())
            rest.count(left, -1)
            allocations = allocate(wanted, stock, rest, self._clock())
        lent: dict[str, Lent] = {}
        for key, allocation in zip((*found.open, _own(pod)), allocations or (), strict=False):
            selector = node_selector(allocation, node)
            lent[key] = Lent(_uses(allocation), terms_of(selector_of({"nodeSelector": selector} if selector is not None else {})))
        return lent

    def _elsewhere(self, pod: PodInfo) -> Elsewhere:
        """What is expected on other nodes by nominated pods that come before one."""
        coming, cluster = self._coming(), self.handle.cluster
        if not coming:
            return self._nothing_elsewhere
        stamp = (pod.uid, self.cache.version, self.handle.state.nominations.position, cluster.changes.position)
        if self._known_elsewhere[0] != stamp:
            expected: dict[int, list[Use]] = {}
            for _, other in self.handle.state.nominations.all_ahead_of(pod):
                one = coming.get(other.uid)
                if one is None or not one.wide or other.uid == pod.uid or cluster.slot_of_pod(other.uid) >= 0:
                    continue
                if not self._same_gang(pod, other):
                    expected.setdefault(one.slot, []).extend(one.wide)
            self._known_elsewhere = (stamp, Elsewhere(self.cache, expected))
        return self._known_elsewhere[1]

    def _coming(self, adding: PodInfo | None = None) -> Mapping[str, Coming]:
        """What nominated pods are expected to get, by UID, each as if those that come before it had theirs; nothing where each device is
        one node's. In a what-if it is what was expected before it, or when the first pod was `adding`: each that is added would change
        what is expected of the rest."""
        nominations, cluster = self.handle.state.nominations, self.handle.cluster
        if not self.cache.any_wide or not len(nominations):
            return {}
        position, stamp = nominations.position, (self.cache.settled_version, cluster.settled_position)
        known, when, found = self._known_coming
        begins = not cluster.supposing or (adding is not None and not self.cache.any_guests)
        if known != position or (when != stamp and begins):
            found = self._expected_now(adding)
            self._known_coming = position, stamp, found
        return found

    def _expected_now(self, adding: PodInfo | None) -> dict[str, Coming]:
        nominations, cluster, used = self.handle.state.nominations, self.handle.cluster, self.cache.with_more(())
        nominated = [(node, pod) for node in nominations.nodes() for pod in nominations.on(node)]
        found: dict[str, Coming] = {}
        claims: set[str] = set()  # that several of them share
        for node, pod in sorted(nominated, key=lambda one: -one[1].priority):
            slot, counts = cluster.slot_of(node), pod is not adding and cluster.slot_of_pod(pod.uid) >= 0
            if slot < 0 or not cluster.alive[slot] or counts or not self._concerned(pod):
                continue
            with suppress(RequestError, Waiting):
                plan = self._planned(pod)
                lent = {} if plan.refusal else self._gets(pod, plan, slot, used)
                uses = [use for key, one in lent.items() if key not in claims for use in one.uses]
                used.count(uses, 1)
                claims.update(lent)
                found[pod.uid] = Coming(slot, lent, [use for use in uses if self.cache.is_wide(use.device)])
        return found

    def _left(self, slot: int) -> list[Use]:
        """What those have who are on their way out."""
        leaving = self.handle.state.leaving
        return self.cache.left_by(slot, [pod for pod in self.handle.cluster.row(slot).pods.values() if leaving(pod)])

    def _clock(self) -> Callable[[], bool] | None:
        """Tells whether a search that begins now has taken too long."""
        if not self.args.filter_timeout:
            return None
        end = seams.monotonic() + self.args.filter_timeout
        return lambda: seams.monotonic() > end

    def _code(self, reason: str) -> int:
        if reason not in self._reasons:
            if len(self._reasons) >= _MOST_REASONS:
                return _FULL
            self._reasons.append(reason)
        return _TOLD + self._reasons.index(reason)

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return _REJECTIONS[code] if code < _TOLD else Rejection((self._reasons[code - _TOLD],), resolvable=False)

    def post_filter(self, ctx: CycleContext, failure: Any) -> PostFilterResult:
        """A claim that is allocated where the pod cannot go, and that nobody else uses, is given back. Until then nobody has to leave for
        the pod: it may fit elsewhere."""
        for key in self._plan(ctx.pod).keys if not self._supposed and not ctx.pod.reservation else ():
            claim = self.cache.claims.get(key)
            if claim is None or claim.status.allocation is None or claim.status.allocation.node_selector is None:
                continue
            if self._allocate_anew(ctx, key):
                return PostFilterResult(unresolvable(f'resourceclaim "{claim.metadata.name}" is deallocated to be allocated elsewhere'))
        key = self._expected(ctx)
        if key:
            return PostFilterResult(unresolvable(f'resourceclaim "{key.partition("/")[2]}" is about to be allocated for a nominated pod'))
        return PostFilterResult(unschedulable())

    def _expected(self, ctx: CycleContext) -> str:
        """A claim of the pod that will be allocated for another one, once those have left whom that one waits for; the pod follows it."""
        shared = set(self._plan(ctx.pod).open)
        for _, other in ctx.state.nominations.all_ahead_of(ctx.pod) if shared else ():
            if other.uid == ctx.pod.uid or not other.shape.template.spec.resource_claims or ctx.cluster.slot_of_pod(other.uid) >= 0:
                continue
            keys = (key for key, own in claim_keys(other, supposed=True) if not own and key in shared)
            if (key := next(keys, "")) and not self._same_gang(ctx.pod, other):
                return key
        return ""

    def _allocate_anew(self, ctx: CycleContext, key: str) -> bool:
        """Have a claim given back that nobody else uses; whether that is so."""
        claim, uid = self.cache.claims[key], ctx.pod.uid
        if key in self.cache.assumed or any(consumer.uid != uid for consumer in claim.status.reserved_for):
            return False
        if any(key in other.keys for other in self._carried.values()):
            return False  # a pod is about to be bound with it
        ctx.effects.append(partial(self._releases.deallocate, key, claim.metadata.uid, uid, claim.metadata.resource_version))
        return True

    def explain(self, ctx: CycleContext) -> Sequence[Term]:
        found = self._plan(ctx.pod)
        if not found.wanted:
            return ()
        return (Term("devices wanted at least", found.least), Term("nodes with so many free", int((self.cache.free >= found.least).sum())))

    # ---------------------------------------------------------------- preferring

    def pre_score(self, ctx: CycleContext) -> Status:
        found = self._plan(ctx.pod)
        return SUCCESS if found.alternatives or (self._together and found.wanted) else SKIP

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        """Nodes on which requests get the alternative that they prefer come first; then those on which devices stay together and whole."""
        found, slots = self._plan(ctx.pod), ctx.cluster.slots[rows]
        scores = np.zeros(len(slots))
        for index in np.flatnonzero(ctx.feasible[slots]).tolist():
            scores[index] = self._verdict(ctx, found, slots.item(index))[1]
        return scores

    # ---------------------------------------------------------------- carrying out

    def reserve(self, ctx: CycleContext, slot: int) -> Status:
        """Choose the devices on the node, and count them before they are written."""
        pod = ctx.pod
        found = self._plan(pod)
        if found.refusal:
            return unschedulable(found.refusal)
        if not found.keys and not found.backed:
            return SUCCESS
        try:
            every, extra = self._wanted(pod, found, self._lacking(found, slot))
            used = self._elsewhere(pod).used(slot)
            allocations = allocate(every, self.cache.inventory(slot).stock, used, self._clock(), together=self._together)
        except RequestError as failure:
            return unschedulable(str(failure))
        if allocations is None:
            return unschedulable("cannot allocate all claims")
        own = _own(pod)
        names = (*found.open, own) if extra is not None else found.open
        self._carried[pod.uid] = Carried(pod.uid, pod.name, found.keys, (*names, *found.shared), own if extra is not None else "", extra)
        for key, wanted, allocation in zip(names, every, allocations, strict=True):
            status = rendered(wanted, allocation, self.cache.classes, ctx.cluster.name_of(slot), seams.uid)
            claim = self.cache.claims.get(key)
            uid = claim.metadata.uid if claim is not None else ""
            self.cache.assume(key, Assumed(uid, pod.uid, status, _uses(allocation), terms_of(selector_of(status))))
        self._carried[pod.uid] = self._carried[pod.uid]._replace(devices=dict(self._devices(found.keys)))
        return SUCCESS

    def _devices(self, keys: Iterable[str]) -> Iterator[tuple[str, Given]]:
        """The devices of claims as they count now."""
        for key in keys:
            mine, claim = self.cache.assumed.get(key), self.cache.claims.get(key)
            if mine is not None:
                yield key, devices_of(mine.status)
            elif claim is not None and claim.status.allocation is not None:
                results = claim.status.allocation.devices.results
                yield key, [(one.request, one.driver, one.pool, one.device, one.share_id) for one in results]

    def unreserve(self, ctx: CycleContext, slot: int) -> None:
        carried = self._carried.pop(ctx.pod.uid, None)
        self._readiness.ended.discard(ctx.pod.uid)
        if carried is None:
            return
        for key in carried.open:
            heir = next((other.uid for other in self._carried.values() if key in other.open), "")
            if heir:  # of its gang
                self.cache.hand_over(key, carried.uid, heir)
        if carried.uid not in self._written:
            for key in carried.open:
                self.cache.forget(key, carried.uid)
            return
        self._written.discard(carried.uid)
        self._releases.release(carried)  # what was written counts until it is given back

    def placed(self, ctx: CycleContext, slot: int) -> Sequence[Term]:
        carried = self._carried.get(ctx.pod.uid)
        if carried is None:
            return ()
        found = (self.cache.assumed.get(key) for key in carried.open)
        results = (result for one in found if one is not None for result in one.status["devices"]["results"])
        return tuple(Term(f"request {one['request']}", f"{one['driver']}/{one['pool']}/{one['device']}") for one in results)

    def waits(self, ctx: CycleContext) -> bool:
        """Devices with conditions take their time."""
        carried = self._carried.get(ctx.pod.uid)
        return carried is not None and self._readiness.concerns(carried)

    async def pre_bind(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        """Write allocations, and for whom the claims are reserved; then wait until the devices are ready."""
        carried = self._carried.get(ctx.pod.uid)
        if carried is None:
            return SUCCESS
        self._written.add(carried.uid)
        waits = self.waits(ctx)
        for key in carried.keys:
            failure = await self._writer.write(key, carried)
            if failure:
                return error(failure)
        if carried.extended is not None and "<" in carried.own:
            failure, made = await self._writer.make(ctx.pod, carried)
            if ctx.pod.uid in self._carried:
                self._carried[ctx.pod.uid] = made
            if failure:
                return error(failure)
            carried = made
        return await self._readiness.ready(ctx.pod, carried, node) if waits else SUCCESS

    def post_bind(self, ctx: CycleContext, node: str) -> None:
        if not self._supposed:  # a what-if takes pods back after they were bound
            self._carried.pop(ctx.pod.uid, None)
            self._written.discard(ctx.pod.uid)
            self._readiness.ended.discard(ctx.pod.uid)

    def controllers(self) -> Iterable[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        return (("releases", self._releases.run),)

    of_binding = frozenset({"releases"})


def _preference(found: Plan, allocations: tuple[Allocation, ...]) -> float:
    """More where the alternatives that were chosen stand further in front."""
    total = 0
    for wanted, allocation in zip(found.wanted, allocations, strict=False):
        used = {given.ask.label for given in allocation}
        for asks in wanted.requests:
            if len(asks) > 1:
                total += next((_BEST_ALTERNATIVE - at for at, ask in enumerate(asks) if ask.label in used), 0)
    return float(total)


def _own(pod: PodInfo) -> str:
    """The claim that stands for a pod's extended resources, until it is there."""
    return f"{pod.namespace}/<{pod.uid}>"


def _uses(allocation: Allocation) -> tuple[Use, ...]:
    return tuple(Use(given.device.id, given.consumed) for given in allocation if not given.ask.admin)
