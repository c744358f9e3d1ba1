"""What DeviceShare writes when a pod is bound (SCH-DEV-11, SCH-DEV-15)."""

from __future__ import annotations

import asyncio

import orjson

from koord import seams
from koord.accounting.resources import format, sum_
from koord.api import names
from roles.scheduler.framework.context import BindDraft, CycleContext
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.status import SUCCESS, Status, error, unschedulable
from roles.scheduler.plugins.device_share.adaption import Machine, NotAdaptable, adapt, lock_of
from roles.scheduler.plugins.device_share.columns import DeviceColumns
from roles.scheduler.plugins.device_share.holdings import Holding, write_allocation
from roles.scheduler.plugins.device_share.inventory import Inventory
from roles.scheduler.plugins.device_share.locks import acquire, release


class Writer:
    """Drafts annotations and labels; with the gate DevicePluginAdaption those of vendors too, under their node locks."""

    def __init__(self, handle: Handle, columns: DeviceColumns) -> None:
        self._handle = handle
        self._columns = columns
        self._locked: dict[str, tuple[str, str, tuple[str, str]]] = {}  # by pod UID: node, annotation, pod
        self._releasing: set[asyncio.Task[None]] = set()

    @property
    def _adapts(self) -> bool:
        return self._handle.gates.get("DevicePluginAdaption", False)

    def waits(self, ctx: CycleContext) -> bool:
        """Whether a node must be locked first."""
        slot = ctx.cluster.slot_of_pod(ctx.pod.uid)
        if not self._adapts or slot < 0 or self._columns.taken(ctx.pod.uid) is None:
            return False
        inventory = self._columns.node(slot).inventory
        return inventory is not None and bool(lock_of(inventory.vendor))

    async def draft(self, ctx: CycleContext, node: str, holding: Holding, draft: BindDraft) -> Status:
        """Write down what a pod got."""
        devices = self._columns.find(node)
        inventory = devices.inventory if devices is not None else None
        if inventory is None:
            return error(f"the Device object of node {node} is gone")
        ids = {share.place: card.id for share in holding.allocation if (card := inventory.card(*share.place)) is not None}
        draft.annotations[names.ANNOTATION_DEVICE_ALLOCATED] = orjson.dumps(write_allocation(holding.allocation, ids)).decode()
        if ctx.pod.reservation:
            if self._handle.gates.get("ResizePod", False):
                content = {"resources": format(sum_(dict(share.amounts) for share in holding.allocation))}
                draft.annotations[names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE] = orjson.dumps(content).decode()
            return SUCCESS
        return await self._adapt(ctx, node, holding, inventory, ids, draft) if self._adapts else SUCCESS

    async def _adapt(
        self, ctx: CycleContext, node: str, holding: Holding, inventory: Inventory, ids: dict[tuple[str, int], str], draft: BindDraft
    ) -> Status:
        pod = ctx.pod
        provider = pod.labels.get(names.LABEL_GPU_ISOLATION_PROVIDER, "")
        try:
            found = adapt(holding.allocation, Machine(node, inventory.vendor, inventory.model, ids), provider, seams.now_ns())
        except NotAdaptable as refusal:
            return unschedulable(str(refusal))
        if found.lock:
            whose = (pod.namespace, pod.name)
            self._locked[pod.uid] = (node, found.lock, whose)  # also while nobody has answered: it may have been taken
            obstacle = await acquire(self._handle.api, node, found.lock, whose, seams.now())
            if obstacle:
                del self._locked[pod.uid]
                return error(obstacle)
        draft.annotations.update(found.annotations)
        draft.labels.update(found.labels)
        return SUCCESS

    def give_up(self, uid: str) -> None:
        """The pod is not bound after all: its lock is taken off."""
        locked = self._locked.pop(uid, None)
        if locked is not None:
            task = asyncio.get_running_loop().create_task(release(self._handle.api, *locked), name=f"unlocking {locked[0]}")
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    def forget(self, uid: str) -> None:
        """The pod is no more; the vendor's plugin takes the lock off, or it expires."""
        self._locked.pop(uid, None)
