"""Publishes the devices of nodes as ResourceSlices while it is asked to, and takes them back when it is not any more (SCH-DRA-20)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from koord.api.kinds import RESOURCESLICES
from koord.api.objects import Device
from koord.kube.errors import AlreadyExists, Forbidden, NotFound
from koord.kube.informers import InformerFactory
from roles.manager.controllers.base import Controller
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer
from roles.manager.slices.slices import MANAGED_BY, MANAGER, due, slices_of

log = logging.getLogger("koord.manager")

Obj = dict[str, Any]
_MINE = f"{MANAGED_BY}={MANAGER}"
_BY_NODE = "node"


class DeviceSliceController(Controller):
    """Keys are node names. Slices have the label of this manager; those of others are none of its business."""

    name = "deviceslices"

    def __init__(self, state: ClusterState, informers: InformerFactory, writer: Writer) -> None:
        super().__init__()
        self.state, self.writer = state, writer
        self.slices = informers.informer(RESOURCESLICES, dict, label_selector=_MINE, optional=True)
        self.slices.index(_BY_NODE, _node_of)
        self._written: dict[str, list[Obj]] = {}  # by node, what is there once the watch has told of all of it

    def attach(self) -> None:
        """Listen."""
        self.state.devices.add_handler(
            on_add=lambda device: self.queue.add(device.metadata.name),
            on_update=lambda old, new: self.queue.add(new.metadata.name),
            on_delete=lambda device: self.queue.add(device.metadata.name),
        )
        self.slices.add_handler(on_add=self._told, on_update=lambda old, new: self._told(new), on_delete=self._told)

    def _told(self, shown: Obj) -> None:
        self.queue.add(_node_of(shown))

    def keys(self) -> Iterable[str]:
        """All nodes with devices, and those with slices."""
        return dict.fromkeys((*(device.metadata.name for device in self.state.devices.list()), *map(_node_of, self.slices.list())))

    async def reconcile(self, key: str) -> float | None:
        """Make the slices of a node say what its Device says. A change is a new generation: until all slices have it, the pool is
        incomplete and nobody allocates of it. The watch tells of each slice, and of the first ones while the last are still to come."""
        device: Device | None = self.state.devices.get(key)
        shown = sorted(self.slices.by_index(_BY_NODE, key), key=lambda entry: str(entry["metadata"]["name"]))
        wanted = slices_of(device, 0) if device is not None else []
        wanted.sort(key=lambda entry: str(entry["metadata"]["name"]))
        generation = due(shown, wanted, self._written.pop(key, ()))
        if not generation:
            return None
        for entry in wanted:
            entry["spec"]["pool"]["generation"] = generation
        if wanted:
            self._written[key] = wanted
        there = {entry["metadata"]["name"] for entry in shown}
        for entry in wanted:
            name = entry["metadata"]["name"]
            if name not in there or not await self._changed(name, entry):
                await self._create(entry)
            there.discard(name)
        for name in there:
            await _delete(self.writer, name)
        return None

    async def _changed(self, name: str, entry: Obj) -> bool:
        """Whether it was there to be changed: a watch may say for long that it is."""
        try:
            await self.writer.patch(RESOURCESLICES, name, {"metadata": entry["metadata"], "spec": entry["spec"]})
        except NotFound:
            return False
        return True

    async def _create(self, entry: Obj) -> None:
        try:
            await self.writer.create(RESOURCESLICES, entry)
        except AlreadyExists:
            log.debug("ResourceSlice %s is there already: the watch tells", entry["metadata"]["name"])
        except NotFound:
            log.warning("ResourceSlices are not served here: the devices of %s are not published", entry["spec"]["nodeName"])


class DeviceSliceRemoval(Controller):
    """What is left of a time when the gate was on: removed once, by who takes the lead."""

    name = "deviceslices"

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self.writer = writer

    def attach(self) -> None:
        """One look, at the begin."""
        self.queue.add(MANAGER)

    def keys(self) -> Iterable[str]:
        """One look."""
        return (MANAGER,)

    async def reconcile(self, key: str) -> float | None:
        """Take back what was published. Where it may not look, or there is no such kind, nothing was."""
        try:
            found = await self.writer.client.list(RESOURCESLICES, label_selector=_MINE)
        except (NotFound, Forbidden):
            return None
        for entry in found.items:
            await _delete(self.writer, entry["metadata"]["name"])
            await self.turns.pause()
        if found.items:
            log.info("gate DeviceResourceSlices is off: %d ResourceSlices of devices are taken back", len(found.items))
        return None


async def _delete(writer: Writer, name: str) -> None:
    try:
        await writer.delete(RESOURCESLICES, name)
    except NotFound:
        log.debug("ResourceSlice %s is gone already", name)


def _node_of(shown: Obj) -> str:
    return str((shown.get("spec") or {}).get("nodeName") or "")
