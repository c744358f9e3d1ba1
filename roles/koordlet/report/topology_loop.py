"""Reports NodeResourceTopology when something about it changed (KLO-SI-05)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koord.api.kinds import NODERESOURCETOPOLOGIES
from koord.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.topology import BasicInfo, CPUTopology
from roles.koordlet.report.cpupools import CPUStateError, KubeletPolicy, kubelet_policy
from roles.koordlet.report.topology import TopologyInput, compute, difference, new_object
from roles.koordlet.report.zones import ZoneError
from roles.koordlet.sensing.nodeinfo import CPU_BASIC_INFO, CPU_INFO, NUMA_INFO
from roles.koordlet.states.kubelet import KubeletClient, KubeletError
from roles.koordlet.states.model import TopologyState
from roles.koordlet.states.nodestate import NodeState
from roles.koordlet.states.pods import PodCache
from roles.koordlet.store.store import MetricStore
from roles.koordlet.waiting import pause

if TYPE_CHECKING:
    from koord.api.objects import Node
    from koord.kube.client import Client

log = logging.getLogger(__name__)

#: The kubelet's configuration changes with its restart only.
CONFIG_EVERY = 30.0


@dataclass(eq=False, kw_only=True)
class TopologyLoop:
    """One look every ``interval``; what was computed stays as it is while none of its inputs changed."""

    client: Client
    state: NodeState
    pod_cache: PodCache
    store: MetricStore
    kubelet: KubeletClient
    root: HostRoot
    interval: float
    query_kubelet: bool
    publish: bool

    def __post_init__(self) -> None:
        self._config: dict[str, Any] | None = None
        self._config_at = -CONFIG_EVERY
        self._policy: tuple[dict[str, Any], CPUTopology, KubeletPolicy] | None = None
        self._done: tuple[object, ...] | None = None
        self._complaints: dict[str, str] = {}
        """What was told last of the computing and of the writing."""

    async def run(self, stopping: asyncio.Event, synced: Callable[[], bool]) -> None:
        while not stopping.is_set():
            if synced():
                await self.step()
            await pause(stopping, self.interval)

    def _complain(self, about: str, text: str) -> None:
        if text != self._complaints.get(about):
            log.error("NodeResourceTopology is kept: %s", text)
        self._complaints[about] = text

    async def step(self) -> None:
        """Compute, and write what differs. Whatever fails leaves the object as it is until the next round."""
        node = self.state.node
        if node is None:
            return
        publish = self.publish and self.pod_cache.confirmed
        if publish and self.state.nrt is None:
            publish = await self._create(node)
        try:
            data = await self._input(node)
        except (KubeletError, HostError) as error:
            self._complain("computing", str(error))
            return
        if data is None:
            return
        version = (self.state.nrt or {}).get("metadata", {}).get("resourceVersion")
        inputs = (data.topology, data.basic, data.numa, data.pods, data.policy, data.cpu_manager_state, node, version, publish)
        if self._done is not None and _same(inputs, self._done):
            return
        try:
            wanted = compute(data)
        except (ZoneError, CPUStateError, ValueError) as error:
            self._complain("computing", str(error))
            return
        self.state.publish_topology(TopologyState(wanted.annotations, wanted.labels))
        if not publish or self.state.nrt is None:
            self._done = inputs
            return
        patch = difference(self.state.nrt, wanted)
        if patch is None or await self._patch(patch):
            self._done = inputs
            self._complaints.clear()

    async def _input(self, node: Node) -> TopologyInput | None:
        """Everything that the computation needs; None while the machine was not read yet."""
        topology = self.store.snapshot(CPU_INFO)
        basic = self.store.snapshot(CPU_BASIC_INFO)
        numa = self.store.snapshot(NUMA_INFO)
        if not isinstance(topology, CPUTopology) or not isinstance(basic, BasicInfo) or numa is None:
            self._complain("computing", "CPU topology and NUMA nodes are not known yet")
            return None
        policy = KubeletPolicy()
        if self.query_kubelet:
            policy = self._policy_of(await self._kubelet_config(node), topology)
        state = self._cpu_manager_state() if policy.static else None
        return TopologyInput(
            node=node, topology=topology, basic=basic, numa=numa, pods=self.pod_cache.pods, policy=policy, cpu_manager_state=state
        )

    def _policy_of(self, config: dict[str, Any], topology: CPUTopology) -> KubeletPolicy:
        """Found anew only for another configuration or machine, so that what cannot be used is told once."""
        if self._policy is None or self._policy[0] != config or self._policy[1] is not topology:
            self._policy = config, topology, kubelet_policy(config, topology)
        return self._policy[2]

    async def _kubelet_config(self, node: Node) -> dict[str, Any]:
        """The kubelet's configuration; the last one stays in force when the kubelet cannot be asked again."""
        loop = asyncio.get_running_loop()
        if self._config is not None and loop.time() - self._config_at < CONFIG_EVERY:
            return self._config
        try:
            self._config = await self.kubelet.configz(node)
        except KubeletError as error:
            if self._config is None:
                raise
            log.warning("the kubelet's last known configuration is used: %s", error)
        self._config_at = loop.time()
        return self._config

    def _cpu_manager_state(self) -> bytes | None:
        path = self.root.kubelet_path("cpu_manager_state")
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HostError(f"{os.path.basename(path)} cannot be read: {error.strerror}") from error

    async def _create(self, node: Node) -> bool:
        """Create the empty object; whether the way is free to go on (the watch brings the object)."""
        if not self.state.topology_synced:
            return False
        try:
            created = await self.client.create(NODERESOURCETOPOLOGIES, new_object(node))
        except AlreadyExists:
            return False
        except ApiError as error:
            self._complain("writing", f"it cannot be created: {error}")
            return False
        if self.state.nrt is None and self.state.gone_nrt != created["metadata"]["uid"]:
            self.state.nrt = created
        return True

    async def _patch(self, patch: dict[str, Any]) -> bool:
        before = self.state.nrt
        try:
            updated = await self.client.patch(NODERESOURCETOPOLOGIES, self.state.node_name, patch)
        except (Conflict, NotFound):
            return False  # the watch brings the newer object, the next round starts from it
        except ApiError as error:
            self._complain("writing", f"it cannot be written: {error}")
            return False
        if self.state.nrt is before:  # what the watch told meanwhile is newer, and it does not tell it again
            self.state.nrt = updated
        return True


def _same(now: tuple[object, ...], before: tuple[object, ...]) -> bool:
    """Whether no input changed; by identity where objects are replaced on change, else by value."""
    return all(a is b or (not isinstance(a, tuple) and a == b) for a, b in zip(now, before, strict=True))
