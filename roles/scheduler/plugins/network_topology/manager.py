"""Keeping the status of the ClusterNetworkTopology (SCH-NT-01): what the tree looks like. Runs on the leader."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from koord import seams
from koord.api.kinds import CLUSTERNETWORKTOPOLOGIES
from koord.kube.errors import ApiError, NotFound
from koord.kube.references import reference
from roles.scheduler.framework.handle import Handle
from roles.scheduler.plugins.network_topology.network import OBJECT, Network
from roles.scheduler.plugins.network_topology.tree import detail_status

log = logging.getLogger(__name__)

_PERIOD = 10.0  # seconds between looks at nodes that changed
_REST = 0.2


class NetworkManager:
    """Writes `status.detailStatus` when it differs from the tree, and an event when the object makes no tree."""

    def __init__(self, handle: Handle, network: Network) -> None:
        self._handle = handle
        self._network = network
        self._wake = asyncio.Event()
        self._told = ""
        network.changed = self._wake.set

    async def run(self) -> None:
        """Keep it, until cancelled."""
        while True:
            if self._handle.may_write():
                await self.sync()
            await seams.sleep(_REST)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD):
                    await self._wake.wait()
            self._wake.clear()

    async def sync(self) -> None:
        """Bring the status up to date."""
        network = self._network
        topology, tree = network.topology, network.tree()
        if topology is None:
            return
        self._complain()
        if tree is None or network.problem:
            return
        details = detail_status(tree)
        if (topology.status or {}).get("detailStatus") == details:
            return
        try:
            body: dict[str, Any] = {"status": {"detailStatus": details}}
            await self._handle.api.patch(CLUSTERNETWORKTOPOLOGIES, OBJECT, body, subresource="status")
        except NotFound:
            return
        except ApiError as error:
            log.warning("status of ClusterNetworkTopology %s could not be written, it is tried again: %s", OBJECT, error)

    def _complain(self) -> None:
        network = self._network
        if network.problem and network.problem != self._told and network.topology is not None:
            about = reference(network.topology, CLUSTERNETWORKTOPOLOGIES)
            self._handle.event(about, "Warning", "InvalidTopology", f"the last good tree is kept: {network.problem}")
        self._told = network.problem
