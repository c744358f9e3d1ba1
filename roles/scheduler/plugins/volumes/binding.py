"""VolumeBinding: pods go where their volumes are or can be, and unbound claims are bound before the pod is (SCH-KS-09)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from koord import seams
from koord.api.kinds import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES
from koord.api.objects import PersistentVolumeClaim
from koord.kube.errors import Conflict, NotFound
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.config.args import UtilizationShapePoint, VolumeBindingArgs
from roles.scheduler.framework.context import BindDraft, CycleContext, Rows
from roles.scheduler.framework.events import NODE, Action, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Feed, Filter, PreBind, PreFilter, PreScore, Rejection, Reserve, Score
from roles.scheduler.framework.status import SKIP, SUCCESS, Status, error, unresolvable
from roles.scheduler.framework.tally import FIXED, Tally
from roles.scheduler.plugins.node_resources import ratio_table
from roles.scheduler.plugins.volumes.hints import storage_events
from roles.scheduler.plugins.volumes.matching import NO_SPACE, NO_VOLUME, NODE_CONFLICT, Choices, judge, names, reachable
from roles.scheduler.plugins.volumes.scoring import scores
from roles.scheduler.plugins.volumes.store import SELECTED_NODE, VolumeColumns, bound, claim_keys, volumes_of

_REJECTIONS = {
    NODE_CONFLICT: Rejection(("node(s) had volume node affinity conflict",), resolvable=False),
    NO_VOLUME: Rejection(("node(s) didn't find available persistent volumes to bind",), resolvable=False),
    NO_SPACE: Rejection(("node(s) did not have enough free storage",), resolvable=False),
}
#: The emptier the storage, the better.
_DEFAULT_SHAPE = [UtilizationShapePoint(utilization=0, score=10), UtilizationShapePoint(utilization=100, score=0)]
_POLL = 0.1  # seconds between looks at claims that are being bound
_BOUND_BY = "pv.kubernetes.io/bound-by-controller"


class _Failed(Exception):
    """The claims of a pod cannot get what was chosen for them."""


class Assumed(NamedTuple):
    """What a pod's claims are to get: by claim the name of a volume, or "" for one that is to be made for the node."""

    node: str
    volumes: dict[str, str]


class VolumeBinding(PreFilter, Filter, PreScore, Score, Reserve, PreBind):
    """Codes as in `matching`."""

    name = "VolumeBinding"
    Args = VolumeBindingArgs
    per_pod = True
    reads = score_reads = 0  # the stamp moves with every node and every storage object

    def __init__(self, args: VolumeBindingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.store = handle.cluster.register("Volumes", VolumeColumns())
        self._assumed: dict[str, Assumed] = {}
        shape = args.shape or (_DEFAULT_SHAPE if handle.gates.get("StorageCapacityScoring") else [])
        self._table = ratio_table([(point.utilization, point.score * 10) for point in shape]) if shape else None
        """Score by percent of a class's capacity that would be used; None: nodes are not scored."""

    def feeds(self) -> Sequence[Feed]:
        return self.store.feeds()

    def subscriptions(self) -> Sequence[Subscription]:
        return (*storage_events(self.store), Subscription(NODE, Action.ADD | Action.UPDATE_LABELS))

    # ---------------------------------------------------------------- deciding

    def pre_filter(self, ctx: CycleContext) -> Status:
        pod = ctx.pod
        volumes = volumes_of(pod.shape)
        if not volumes.any_claim:
            return SKIP
        for index, key in enumerate(claim_keys(pod)):
            refusal = self._refusal(pod, key, ephemeral=index >= len(volumes.claims))
            if refusal:
                return unresolvable(refusal)
        return SUCCESS

    def _refusal(self, pod: PodInfo, key: str, *, ephemeral: bool) -> str:
        """Why a claim keeps the pod from every node, "" if it does not."""
        name = key.partition("/")[2]
        claim = self.store.claims.get(key)
        if claim is None:
            waiting = "waiting for ephemeral volume controller to create the " if ephemeral else ""
            return f'{waiting}persistentvolumeclaim "{name}"' + ("" if ephemeral else " not found")
        if claim.metadata.deletion_timestamp is not None:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if ephemeral and all(owner.uid != pod.uid for owner in claim.metadata.owner_references):
            return f'PVC "{key}" was not created for pod "{pod.key}" (pod is not owner)'
        if claim.status.phase == "Lost":
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
        volume = claim.spec.volume_name
        if bound(claim):
            return "" if volume in self.store.volumes else f'persistentvolume "{volume}" of persistentvolumeclaim "{name}" not found'
        # A claim that names its volume is bound by the volume controller or not at all: the volume may be another claim's.
        return "" if self.store.waits(claim) and not volume else "pod has unbound immediate PersistentVolumeClaims"

    def filter_stamp(self, ctx: CycleContext) -> Any:
        return (self.store.version, ctx.cluster.node_version) if volumes_of(ctx.pod.shape).any_claim else None

    def _choices(self, ctx: CycleContext) -> Choices | None:
        """All rows; kept until a node or a storage object changes."""
        stamp = self.filter_stamp(ctx)
        if stamp is None:
            return None
        known = ctx.data.get(self.name)
        if known is None or known[0] != stamp:
            keys = claim_keys(ctx.pod)
            found = judge(ctx, self.store, keys) if all(key in self.store.claims for key in keys) else None
            known = ctx.data[self.name] = (stamp, found)
        choices: Choices | None = known[1]
        return choices

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        choices = self._choices(ctx)
        return None if choices is None else choices.codes[rows].copy()

    def tally(self, ctx: CycleContext) -> Tally:
        return FIXED

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return _REJECTIONS[code]

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        return False

    def pre_score(self, ctx: CycleContext) -> Status:
        choices = self._choices(ctx) if self._table is not None else None
        return SUCCESS if choices is not None and choices.claims else SKIP

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        choices = self._choices(ctx)
        if choices is None or self._table is None:
            return 0.0
        return scores(ctx, self.store, choices, self._table)[rows]

    def score_stamp(self, ctx: CycleContext) -> Any:
        return self.filter_stamp(ctx)

    # ---------------------------------------------------------------- carrying out

    def reserve(self, ctx: CycleContext, slot: int) -> Status:
        """Set aside what the claims get on the node, so that the next pod does not choose it too."""
        if ctx.pod.reservation:
            return SUCCESS  # volumes are bound for the pods that use the reservation
        choices = self._choices(ctx)
        if choices is None or not choices.claims:
            return SUCCESS
        assumed = Assumed(ctx.cluster.name_of(slot), {})
        for key, volumes, chosen in zip(choices.claims, choices.candidates, choices.chosen, strict=True):
            index = int(chosen[slot])
            volume = assumed.volumes[key] = volumes[index].metadata.name if index >= 0 else ""
            self.store.assume(key, ctx.pod.uid, volume=volume, node=assumed.node)
        self._assumed[ctx.pod.uid] = assumed
        return SUCCESS

    def unreserve(self, ctx: CycleContext, slot: int) -> None:
        assumed = self._assumed.pop(ctx.pod.uid, None)
        for key in assumed.volumes if assumed is not None else ():
            self.store.give_up(key, ctx.pod.uid)

    def waits(self, ctx: CycleContext) -> bool:
        return ctx.pod.uid in self._assumed

    async def pre_bind(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        """Bind the chosen volumes, ask for those to be provisioned, and wait until every claim has its volume."""
        assumed = self._assumed.get(ctx.pod.uid)
        if assumed is None:
            return SUCCESS
        try:
            async with asyncio.timeout(self.args.bind_timeout_seconds or None):
                await self._carry_out(ctx, assumed)
        except TimeoutError:
            return error(f"binding volumes: timed out after {self.args.bind_timeout_seconds} s")
        except (Conflict, NotFound, _Failed) as failure:
            return error(f"binding volumes: {failure}")
        self._assumed.pop(ctx.pod.uid, None)
        return SUCCESS

    async def _carry_out(self, ctx: CycleContext, assumed: Assumed) -> None:
        """Another pod that shares a claim may be at it, and may give up."""
        todo, seen = list(assumed.volumes), set[str]()
        while [key for key in assumed.volumes if not self._bound(ctx, key, assumed, seen)]:
            for key in tuple(todo):
                if self.store.writes(key, ctx.pod.uid):
                    todo.remove(key)
                    await (self._bind(key, assumed.volumes[key]) if assumed.volumes[key] else self._provision(key, assumed.node))
            await seams.sleep(_POLL)

    async def _bind(self, key: str, volume: str) -> None:
        """Write the claim into the volume. Somebody who has written another since it was read wins."""
        claim = self._claim(key)
        meta = claim.metadata
        ref = {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name,
            "uid": meta.uid, "resourceVersion": meta.resource_version,
        }  # fmt: skip
        found = self.store.volumes.get(volume)
        if found is None:
            raise _Failed(f"persistentvolume {volume} is gone")
        known, before = found.metadata, found.spec.claim_ref
        if before is not None and not names(found, claim):
            raise _Failed(f"persistentvolume {volume} was given to another claim")
        if before is not None and before.uid:
            return  # by another pod with the claim, or an earlier attempt
        body: dict[str, Any] = {"metadata": {"uid": known.uid, "resourceVersion": known.resource_version}, "spec": {"claimRef": ref}}
        if before is None:  # else it was reserved, and stays so when the claim is gone
            body["metadata"]["annotations"] = {_BOUND_BY: "yes"}
        self._may_write()
        await self.handle.api.patch(PERSISTENTVOLUMES, volume, body)

    def _claim(self, key: str) -> PersistentVolumeClaim:
        claim = self.store.claims.get(key)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            raise _Failed(f"persistentvolumeclaim {key} is gone")
        return claim

    def _may_write(self) -> None:
        if not self.handle.may_write():
            raise _Failed("the lease is lost: no more writes")

    async def _provision(self, key: str, node: str) -> None:
        """Say where a claim is to be provided. Somebody who has said otherwise since it was read wins."""
        meta = self._claim(key).metadata
        selected = meta.annotations.get(SELECTED_NODE)
        if selected == node:
            return
        if selected:
            raise _Failed(f"persistentvolumeclaim {key} is provisioned for node {selected}")
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": {SELECTED_NODE: node}}}
        self._may_write()
        await self.handle.api.patch(PERSISTENTVOLUMECLAIMS, meta.name, body, meta.namespace)

    def _bound(self, ctx: CycleContext, key: str, assumed: Assumed, seen: set[str]) -> bool:
        """Whether a claim has its volume. `seen` are the claims of which was seen that they are being bound."""
        claim, chosen = self._claim(key), assumed.volumes[key]
        name = claim.spec.volume_name or chosen
        volume = self.store.volumes.get(name)
        if volume is None and name and (name == chosen or claim.status.phase == "Lost"):
            raise _Failed(f"persistentvolume {name} is gone")
        if claim.spec.volume_name:
            if volume is None or not bound(claim):
                return False  # a volume that was made may be shown later than its claim
            slot = ctx.cluster.slot_of(assumed.node)
            if slot >= 0 and not reachable(ctx, volume)[slot]:
                raise _Failed(f"persistentvolume {name} cannot be used from node {assumed.node}")
            return True
        # The volume controller takes its claim off a volume, and the provisioner the node off a claim, when that cannot be.
        ref = volume.spec.claim_ref if volume is not None else None
        underway = (
            ref is not None and ref.uid == claim.metadata.uid if chosen else claim.metadata.annotations.get(SELECTED_NODE) == assumed.node
        )
        if underway:
            seen.add(key)
        elif key in seen:
            raise _Failed(f"{'binding' if chosen else 'provisioning'} failed for persistentvolumeclaim {key}")
        return False
