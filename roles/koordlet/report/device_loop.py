"""Reports the Device object when something about it changed (KLO-DEV-04)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from koord.api.kinds import DEVICES
from koord.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from roles.koordlet.report.device import Device, difference, stamp, wanted_object
from roles.koordlet.sensing.xpu import XPU
from roles.koordlet.states.nodestate import NodeState
from roles.koordlet.store.store import MetricStore

if TYPE_CHECKING:
    from koord.kube.client import Client
    from koord.kube.informers import InformerFactory

log = logging.getLogger(__name__)


class DeviceLoop:
    """One look every ``interval``; ``others`` gives devices that are found by other means (RDMA)."""

    def __init__(
        self,
        *,
        client: Client,
        informers: InformerFactory,
        state: NodeState,
        store: MetricStore,
        interval: float,
        others: Callable[[], Sequence[Device]] = tuple,
    ) -> None:
        self._client = client
        self._state = state
        self._store = store
        self._interval = interval
        self._others = others
        self._informer = informers.informer(DEVICES, dict, field_selector=f"metadata.name={state.node_name}", optional=True)
        self._complaint = ""

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await self.step(time.time())
            try:
                await asyncio.wait_for(stopping.wait(), self._interval)
            except TimeoutError:
                continue

    async def step(self, now: float) -> None:
        """Create the object or write what differs; a failure is reported once and tried again in the next round."""
        node, entries = self._state.node, self._store.snapshot(XPU)
        if node is None or entries is None or not self._informer.synced:
            return
        wanted = wanted_object(node, entries, self._others())
        existing = self._informer.get(self._state.node_name)
        try:
            if existing is None:
                wanted["spec"]["devices"] = stamp(wanted["spec"]["devices"], [], now)
                await self._client.create(DEVICES, wanted)
            else:
                patch = difference(existing, wanted, now)
                if patch is None:
                    return
                await self._patch(patch)
            self._complaint = ""
        except (AlreadyExists, Conflict, NotFound):
            return  # the watch brings the newer object, the next round starts from it
        except ApiError as error:
            if str(error) != self._complaint:
                log.error("Device %s cannot be written: %s", self._state.node_name, error)
            self._complaint = str(error)

    async def _patch(self, patch: dict[str, Any]) -> None:
        await self._client.patch(DEVICES, self._state.node_name, patch)
