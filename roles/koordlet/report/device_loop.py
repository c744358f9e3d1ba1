"""Reports the Device object when something about it changed (KLO-DEV-04, KLO-DEV-02)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koord import seams
from koord.api.kinds import DEVICES
from koord.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from roles.koordlet.report.device import difference, rdma_device, stamp, wanted_object
from roles.koordlet.sensing.gpu import GPU
from roles.koordlet.sensing.rdma import RDMA
from roles.koordlet.sensing.xpu import XPU
from roles.koordlet.states.nodestate import NodeState
from roles.koordlet.store.store import MetricStore
from roles.koordlet.waiting import pause

if TYPE_CHECKING:
    from koord.kube.client import Client
    from koord.kube.informers import InformerFactory

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class DeviceLoop:
    """One look every ``interval``; ``sources`` are the snapshots that have to be there first (accelerators, RDMA cards)."""

    client: Client
    informers: InformerFactory
    state: NodeState
    store: MetricStore
    interval: float
    sources: tuple[str, ...] = (XPU,)

    def __post_init__(self) -> None:
        self._informer = self.informers.informer(DEVICES, dict, field_selector=f"metadata.name={self.state.node_name}", optional=True)
        self._complaint = ""

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await self.step(seams.now())
            await pause(stopping, self.interval)

    async def step(self, now: float) -> None:
        """Create the object or write what differs; a failure is reported once and tried again in the next round."""
        node = self.state.node
        found = {name: self.store.snapshot(name) for name in self.sources}
        if node is None or None in found.values() or not self._informer.synced:
            return
        # files come first: whoever writes them knows more than a library does
        cards = () if found.get(XPU) else found.get(GPU) or ()
        wanted = wanted_object(node, found.get(XPU) or (), [rdma_device(card) for card in found.get(RDMA) or ()], cards)
        existing = self._informer.get(self.state.node_name)
        try:
            if existing is None:
                wanted["spec"]["devices"] = stamp(wanted["spec"]["devices"], [], now)
                await self.client.create(DEVICES, wanted)
            else:
                patch = difference(existing, wanted, now)
                if patch is None:
                    return
                await self.client.patch(DEVICES, self.state.node_name, patch)
            self._complaint = ""
        except (AlreadyExists, Conflict, NotFound):
            return  # the watch brings the newer object, the next round starts from it
        except ApiError as error:
            if str(error) != self._complaint:
                log.error("Device %s cannot be written: %s", self.state.node_name, error)
            self._complaint = str(error)
