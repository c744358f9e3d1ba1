"""DeviceShare at the extension points (SCH-DEV-01..17)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.api import names
from koord.api.kinds import CONFIGMAPS, DEVICES, RESERVATIONS, RESOURCECLAIMS
from koord.api.objects import ConfigMap, Device
from koord.config.errors import ConfigError
from koord.decisions.record import Term
from roles.scheduler.cluster.changes import NODE, PODS
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.codes import StatusCodes
from roles.scheduler.framework.context import BindDraft, CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.events import NODE as NODE_EVENTS
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.normalize import FINE, PROPORTIONAL, Normalizer
from roles.scheduler.framework.restoring import RestoredReservation
from roles.scheduler.framework.status import SKIP, SUCCESS, Status, unresolvable
from roles.scheduler.plugins.device_share.amounts import GPU, InvalidRequest
from roles.scheduler.plugins.device_share.args import DeviceShareArgs
from roles.scheduler.plugins.device_share.binding import Writer
from roles.scheduler.plugins.device_share.choice import NO_TEMPLATE, Rules
from roles.scheduler.plugins.device_share.chooser import Chooser, designated
from roles.scheduler.plugins.device_share.columns import DeviceColumns, holding_of
from roles.scheduler.plugins.device_share.endpoints import given, node_summary, summaries
from roles.scheduler.plugins.device_share.fragmentation import STEPS
from roles.scheduler.plugins.device_share.holdings import Holding
from roles.scheduler.plugins.device_share.metrics import PlanMetric
from roles.scheduler.plugins.device_share.node import NodeDevices
from roles.scheduler.plugins.device_share.numa import DeviceHints
from roles.scheduler.plugins.device_share.request import DeviceRequest, request_for
from roles.scheduler.plugins.device_share.scoring import Scorer
from roles.scheduler.plugins.device_share.stranding import Stranding
from roles.scheduler.plugins.device_share.templates import DATA_KEY, Templates
from roles.scheduler.plugins.device_share.vectors import REFUSED, coarse, nearest, node_scores
from roles.scheduler.plugins.dynamic_resources.claims import Claims
from roles.scheduler.plugins.dynamic_resources.hints import claim_helps
from roles.scheduler.plugins.reservation.observing import offers_anew
from roles.scheduler.plugins.topology_manager.manager import NO_RESTRICTION, Admission, TopologyManager

log = logging.getLogger(__name__)

_KEPT_REQUESTS, _KEPT_CODES = 256, 1 << 13
_ANY_CHANGE = Action.ADD | Action.UPDATE | Action.DELETE
_DEVICES_CHANGE = (
    Subscription(DEVICES.kind, _ANY_CHANGE),
    Subscription(CONFIGMAPS.kind, _ANY_CHANGE),
    Subscription(RESOURCECLAIMS.kind, Action.UPDATE | Action.DELETE, claim_helps),
)
_FEW = 64  # rows about which columns are asked without looking which are alike


class DeviceShare(api.PreFilter, api.Filter, api.Score, api.Reserve, api.PreBind, api.ReservationFilter, api.PodObserver):
    """Gives pods devices. Who holds what is one set of columns for all profiles; scoring and templates are each profile's own."""

    name = "DeviceShare"
    Args = DeviceShareArgs
    row_wise = True
    normalizer = PROPORTIONAL

    def __init__(self, args: DeviceShareArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        fresh = DeviceColumns()
        self.columns = handle.cluster.register(self.name, fresh)
        self._keeper = self.columns is fresh
        self.reads = self.score_reads = NODE | self.columns.kind
        self._config = args.gpu_shared_resource_templates_config
        self._scorer = Scorer.of(args.scoring_strategy)
        unshared = frozenset((model.vendor, model.model) for model in args.gpu_share_unsupported_models)
        templates = Templates(frozenset(self._config.matched_resources))
        self._topology = TopologyManager.of(handle)
        self.chooser = Chooser(self.columns, self._topology, Rules(self._scorer, templates, unshared))
        self._refusals: dict[Hashable, dict[int, int]] = {}  # by request, and by content of the node
        self._writer = Writer(handle, self.columns)
        self._planned: PlanMetric | None = None
        self._codes = StatusCodes(first=REFUSED + 1)
        self._topology.add_asker(self)
        self._aligned = not args.disable_device_numa_topology_alignment
        if self._aligned:
            self._topology.add_provider(self.name, DeviceHints(self.chooser), self.columns.kind, _DEVICES_CHANGE)
        if self._keeper:
            self.columns.guess = self._guess
            self.columns.beside(handle.cluster.register("DynamicResources", Claims()))
        self._stranding: Stranding | None = None
        if args.scoring_strategy.type == "LeastStranded":
            self._stranding = Stranding(
                handle.cluster, self.columns, args.scoring_strategy.typical_pods, self._topology if self._aligned else None
            )
            self.score_reads |= PODS

    # ---------------------------------------------------------------- what it is told

    def feeds(self) -> Sequence[api.Feed]:
        devices = (api.Feed(DEVICES, Device, self._device),) if self._keeper else ()
        config = self._config
        selector = f"metadata.name={config.config_map_name}"
        templates = api.Feed(CONFIGMAPS, ConfigMap, self._templates, namespace=config.config_map_namespace, field_selector=selector)
        return (*devices, templates)

    def _device(self, old: Device | None, new: Device | None) -> bool:
        changed = self.columns.device_set(old, new)
        if self._planned is None and self.handle.metrics is not None:
            self._planned = PlanMetric(self.handle.metrics)
        if self._planned is not None:
            self._planned.follow(old, new)
        return changed

    def _templates(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """The templates appeared, changed or went. Malformed ones are logged and the last good ones stay."""
        present = new or old
        assert present is not None
        if (present.metadata.namespace, present.metadata.name) != (self._config.config_map_namespace, self._config.config_map_name):
            return
        rules = self.chooser.rules
        try:
            templates = rules.templates.read(new.data.get(DATA_KEY, "") if new is not None else "")
        except ConfigError as error:
            log.error(
                "ConfigMap %s/%s: %s; the last good templates stay", self._config.config_map_namespace, self._config.config_map_name, error
            )
            return
        self.chooser.set_rules(replace(rules, templates=templates))
        self._refusals.clear()
        self.handle.cluster.changes.resized()  # what was answered about any pod may be another now

    def pod_seen(self, pod: PodInfo) -> None:
        """Columns are told of pods on nodes by themselves; what pods ask for is learnt."""
        if self._stranding is not None and self._stranding.seen(pod):
            self._worth_changed(self._stranding)

    def _worth_changed(self, stranding: Stranding) -> None:
        assert stranding.tables is not None
        worth = tuple(int(value) for value in np.rint(stranding.tables.card * STEPS).tolist())
        self._scorer = replace(self._scorer, worth=worth)
        self.chooser.set_rules(replace(self.chooser.rules, scorer=self._scorer))
        self._topology.version += 1  # other cards are the best ones

    def pod_gone(self, uid: str) -> None:
        if self._stranding is not None:
            self._stranding.mix.gone(uid)
        self.columns.pod_gone(uid)
        self._writer.forget(uid)

    def _guess(self, node: NodeDevices, pod: PodInfo) -> Holding | None:
        request = request_for(pod.shape)
        return self.chooser.guess(node, pod, request, self._leaving) if isinstance(request, DeviceRequest) else None

    def _leaving(self, uid: str) -> bool:
        """Whether a holder of devices is on its way out: a pod, or all pods of a claim."""
        state, pods = self.handle.state, [self.handle.cluster.pod(one) for one in self.columns.holders(uid)]
        return bool(pods) and all(pod is not None and state.leaving(pod) for pod in pods)

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            *_DEVICES_CHANGE,
            Subscription(ASSIGNED_POD, Action.DELETE, _held_devices),
            Subscription(RESERVATIONS.kind, _ANY_CHANGE, offers_anew),
            Subscription(NODE_EVENTS, Action.ADD | Action.UPDATE_LABELS),
            Subscription(UNSCHEDULED_POD, Action.ALL),  # it may ask for other devices by now
        )

    def endpoints(self) -> Sequence[api.Endpoint]:
        return (
            api.Endpoint("nodeDeviceSummaries", lambda query: summaries(self.columns)),
            api.Endpoint("nodeDeviceSummaries/{name}", lambda query: node_summary(self.columns, query["name"])),
        )

    def explain(self, ctx: CycleContext) -> Sequence[Term]:
        request = request_for(ctx.pod.shape)
        return nearest(self.columns, request) if isinstance(request, DeviceRequest) else ()

    def placed(self, ctx: CycleContext, slot: int) -> Sequence[Term]:
        holding = self.columns.taken(ctx.pod.uid)
        inventory = self.columns.node(slot).inventory if holding is not None else None
        if holding is None or inventory is None:
            return ()
        stranded = self._stranding.terms(slot) if self._stranding is not None else ()
        return (*given(holding.allocation, inventory), *stranded)

    # ---------------------------------------------------------------- filter

    def shape_key(self, pod: PodInfo) -> Hashable:
        return designated(pod)

    def pre_filter(self, ctx: CycleContext) -> Status | api.NodeSet:
        request = request_for(ctx.pod.shape)
        if request is None:
            return SKIP
        if isinstance(request, InvalidRequest):
            return unresolvable(str(request))
        gpu, templates = request.of(GPU), self.chooser.rules.templates
        if gpu is not None and templates.applies(gpu) and not templates.known(gpu):
            return NO_TEMPLATE
        return SUCCESS

    def filter(self, ctx: CycleContext, rows: Rows) -> api.Codes | None:
        request = request_for(ctx.pod.shape)
        if not isinstance(request, DeviceRequest):
            return None
        slots = ctx.cluster.slots[rows]
        if designated(ctx.pod) is not None:
            return np.fromiter((self._try(ctx, request, slot) for slot in slots.tolist()), np.int32, len(slots))
        restored = ctx.may_use(slots)
        decisive = self._counting_decides(request)
        codes = self._told(rows, slots, lambda some: coarse(self.columns, request, some, decisive=decisive))
        for index in np.flatnonzero(restored).tolist():
            codes[index] = self._try(ctx, request, slots.item(index))
        undecided = np.flatnonzero((codes == api.ASK) & ~restored)
        codes[undecided] = self._plain_codes(request, slots[undecided])
        return codes

    def _plain_codes(self, request: DeviceRequest, slots: NDArray[np.intp]) -> NDArray[Any]:
        """0 or why nodes without reservations refuse; kept by what is on a node, which answers for all that are like it."""
        known = self._refusals.setdefault(request.key, {})
        first, alike = self.columns.alike(slots)
        ones = slots[first]
        contents = self.columns.content[ones].tolist()
        for index, content in enumerate(contents):
            if content not in known:
                found = self.chooser.plain(self.columns.node(ones.item(index)), request)
                known[content] = self._codes.code(found) if isinstance(found, Status) else 0
        codes = np.array([known[content] for content in contents], dtype=np.int32)[alike]
        if len(self._refusals) > _KEPT_REQUESTS or len(known) > _KEPT_CODES:
            self._refusals.clear()
        return codes

    def _told(self, rows: Rows, slots: NDArray[np.intp], tell: Callable[[Rows], NDArray[Any]]) -> NDArray[Any]:
        """What columns tell of `rows`, whose slots are these: worked out once for all nodes that are alike where that is less work."""
        if len(slots) > _FEW:
            first, alike = self.columns.alike(rows)
            if 2 * len(first) < len(slots):
                told: NDArray[Any] = tell(slots[first])[alike]
                return told
        return tell(rows)

    def _each(self, slots: NDArray[np.intp], ask: Callable[[int], float]) -> NDArray[Any]:
        """Answers for slots, asking once for all nodes that are alike."""
        if not len(slots):
            return np.zeros(0)
        first, alike = self.columns.alike(slots)
        return np.array([ask(int(slots[index])) for index in first.tolist()])[alike]

    def _counting_decides(self, request: DeviceRequest) -> bool:
        if not request.plain:
            return False
        gpu, rules = request.of(GPU), self.chooser.rules
        return gpu is None or not gpu.shared or not (rules.unshared or rules.templates.applies(gpu))

    def _try(self, ctx: CycleContext, request: DeviceRequest, slot: int) -> int:
        """The code that choosing devices on a node gives."""
        found = self.chooser.outcome(ctx, slot, request)
        if not isinstance(found, Status):
            return 0
        said = self._topology.at_filter(ctx, slot).status if self._aligned else SUCCESS
        return self._codes.code(found if said.ok else said)

    def refine(self, ctx: CycleContext, slots: NDArray[np.intp], codes: api.Codes) -> api.Codes:
        request = request_for(ctx.pod.shape)
        assert isinstance(request, DeviceRequest)
        refined = np.array(codes, dtype=np.int32)
        alone = ctx.may_use(slots) | (designated(ctx.pod) is not None)
        aligned = self._topology.aligned_rows(ctx, slots) if self._aligned else None
        if aligned is not None:
            alone |= aligned
        asked = codes == REFUSED
        for index in np.flatnonzero(asked & alone).tolist():
            refined[index] = self._try(ctx, request, slots.item(index)) or REFUSED
        alike = np.flatnonzero(asked & ~alone)
        plain = self._plain_codes(request, slots[alike])
        refined[alike] = np.where(plain == 0, REFUSED, plain)
        return refined

    def rejection(self, ctx: CycleContext, code: int) -> api.Rejection:
        return api.Rejection(("Insufficient devices",)) if code == REFUSED else self._codes.rejection(code)

    def fits_reservation(self, ctx: CycleContext, slot: int, reservation: RestoredReservation) -> tuple[str, ...]:
        request = request_for(ctx.pod.shape)
        if not isinstance(request, DeviceRequest):
            return ()
        said = self._agreed(ctx, slot, reservation)
        found = self.chooser.with_reservation(ctx, slot, request, reservation, said.affinity) if said.status.ok else said.status
        return tuple(f"Reservation(s) {reason}" for reason in found.reasons) if isinstance(found, Status) else ()

    def fits_alone(self, ctx: CycleContext, slot: int) -> tuple[str, ...]:
        request = request_for(ctx.pod.shape)
        if not isinstance(request, DeviceRequest):
            return ()
        said = self._agreed(ctx, slot, None)
        found = self.chooser.alone(ctx, slot, request, said.affinity) if said.status.ok else said.status
        return found.reasons if isinstance(found, Status) else ()

    def _agreed(self, ctx: CycleContext, slot: int, reservation: RestoredReservation | None) -> Admission:
        return self._topology.with_only(ctx, slot, reservation) if self._aligned else NO_RESTRICTION

    # ---------------------------------------------------------------- score

    def normalizer_of(self, ctx: CycleContext) -> Normalizer | None:
        return FINE if self._stranding is not None else self.normalizer

    def score_stamp(self, ctx: CycleContext) -> object:
        return self._stranding.version if self._stranding is not None else None

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        stranding, request = self._stranding, request_for(ctx.pod.shape)
        if stranding is not None and not stranding.known:
            return 0.0
        if stranding is not None and not isinstance(request, InvalidRequest):
            return -stranding.losses(ctx, request, rows, lambda slot: self._cards(ctx, slot, request))
        if not isinstance(request, DeviceRequest):
            return 0.0
        slots = ctx.cluster.slots[rows]
        aligned = self._topology.aligned_rows(ctx, rows)
        apart = ctx.may_use(slots)
        if aligned is not None:
            apart |= aligned
        asked = ctx.feasible[slots] & self.columns.known[slots]
        if request.hints:
            scores, here = np.zeros(len(slots)), np.flatnonzero(asked & ~apart)
            scores[here] = self._each(slots[here], lambda slot: self.chooser.plain_score(self.columns.node(slot), request))
        else:
            scores = self._told(rows, slots, lambda some: node_scores(self.columns, request, self._scorer, some))
        for index in np.flatnonzero(asked & apart).tolist():
            slot = slots.item(index)
            scores[index] = self.chooser.score(ctx, slot, request, self._topology.at_filter(ctx, slot).affinity)
        return scores

    def _cards(self, ctx: CycleContext, slot: int, request: DeviceRequest | None) -> frozenset[int] | None:
        """Minors of the GPUs that the pod would get on a node that it fits; None for one that it does not."""
        if request is None or not ctx.feasible[slot]:
            return None
        affinity = self._topology.at_filter(ctx, slot).affinity if self._aligned else None
        found = self.chooser.outcome(ctx, slot, request, affinity)
        return None if isinstance(found, Status) else frozenset(share.minor for share in found if share.type == GPU)

    # ---------------------------------------------------------------- reserve and bind

    def reserve(self, ctx: CycleContext, slot: int) -> Status:
        request = request_for(ctx.pod.shape)
        if not isinstance(request, DeviceRequest):
            return SUCCESS
        admission = self._topology.at_reserve(ctx, slot)
        if not admission.status.ok:
            self.columns.take_nothing(slot, ctx.pod.uid)
            return admission.status
        found = self.chooser.outcome(ctx, slot, request, admission.affinity if self._aligned else None)
        if isinstance(found, Status) or not found:
            self.columns.take_nothing(slot, ctx.pod.uid)
            return found if isinstance(found, Status) else SUCCESS
        owner_of = ctx.reservation.uid if ctx.reservation is not None else ""
        self.columns.take(slot, ctx.pod.uid, holding_of(ctx.pod, found, owner_of))
        return SUCCESS

    def unreserve(self, ctx: CycleContext, slot: int) -> None:
        self.columns.give_back(ctx.node, ctx.pod.uid)
        self._writer.give_up(ctx.pod.uid)

    def waits(self, ctx: CycleContext) -> bool:
        return self._writer.waits(ctx)

    async def pre_bind(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        holding = self.columns.taken(ctx.pod.uid)
        if holding is None:
            if names.ANNOTATION_DEVICE_ALLOCATED in (ctx.pod.metadata.annotations or {}):
                draft.annotations[names.ANNOTATION_DEVICE_ALLOCATED] = None  # left over from a binding that failed
            return SUCCESS
        return await self._writer.draft(ctx, node, holding, draft)


def _held_devices(pod: PodInfo, event: ClusterEvent) -> bool:
    """Whether a pod that left may have had devices, or may have been about to get some."""
    left = event.old
    if left is None or left.reservation:
        return True
    return request_for(left.shape) is not None or names.ANNOTATION_DEVICE_ALLOCATED in (left.pod.metadata.annotations or {})
