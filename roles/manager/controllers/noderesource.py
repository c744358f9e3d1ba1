"""NodeResource controller: extended resources of nodes (MGR-NR-01). Observes and writes; `noderesource.plan` decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from koord.api import names
from koord.api.kinds import NODERESOURCETOPOLOGIES, NODES
from koord.api.objects import Device, Node, NodeMetric, NodeResourceTopology, Pod, convert
from koord.api.quantity import QuantityError, value_or
from koord.config import slo_schema
from koord.config.gates import FeatureGates
from koord.config.slo import SLOConfig
from koord.decisions.record import Record, Subject
from koord.decisions.recorder import Recorder
from koord.kube.client import FIELD_MANAGER
from koord.kube.errors import ApiError, NotFound
from koord.kube.events import EventRecorder
from koord.kube.workqueue import WorkQueue
from roles.manager.controllers.base import EVERYTHING, ROLE, Controller, log
from roles.manager.controllers.editing import EditSpreader
from roles.manager.controllers.memory import EditMemory
from roles.manager.controllers.ranked import RankedQueue
from roles.manager.controllers.state import BY_NODE, ClusterState, node_of
from roles.manager.controllers.writer import NotLeading, Writer
from roles.manager.journal import Journal
from roles.manager.metrics import Metrics, run
from roles.manager.noderesource import amplification, batch, devices, mid, normalization, zones
from roles.manager.noderesource.brake import Brake
from roles.manager.noderesource.inputs import NodePods, Totals, pod_input, unix_time
from roles.manager.noderesource.model import Inputs, PodInput
from roles.manager.noderesource.plan import Plan, decide, rank

KEYS = frozenset({slo_schema.COLOCATION, slo_schema.NORMALIZATION, slo_schema.AMPLIFICATION})
SPREAD = "*spread"
"""The key that lets the next nodes follow an edit of the ConfigMap."""
SPREAD_EVERY = 3.0
RECORD_EVERY = 60.0
HELD_AGAIN = 30.0  # seconds after which a node whose values are held is looked at again
WRITERS = 16  # nodes that are written at the same time
_CHECKS = {
    "NodeStatusCheck": frozenset({mid.NAME, batch.NAME, devices.GPU, devices.RDMA}),
    "NodeStatusCheckMeta": frozenset({normalization.NAME, amplification.NAME, devices.GPU}),
}
_GONE = {"updateNodeStatus": "updateNodeNotFound", "patchNodeMeta": "updateNodeMetaNotFound"}
FEATURES = ("MGR-NR-01", "MGR-NR-BATCH-01", "MGR-NR-MID-01")


@lru_cache(maxsize=256)
def _runs(contributed: tuple[str, ...], failed: tuple[str, ...], enabled: bool) -> tuple[tuple[str, str, str], ...]:
    """What is counted of a decision: plugin, outcome and step."""
    found = [run(plugin, False, "ResourceCalculate") for plugin in dict.fromkeys(failed) if plugin not in contributed]
    for plugin in dict.fromkeys(contributed):
        found.append(run(plugin, True, "ResourceCalculate" if enabled else "ResourceReset"))
        found.append(run(plugin, plugin not in failed, "NodePrepare"))
        found += [run(plugin, True, step) for step, plugins in _CHECKS.items() if plugin in plugins]
    return tuple(found)


class NodeResourceController(Controller):
    """Keys are node names."""

    name = "noderesource"

    def __init__(
        self,
        state: ClusterState,
        writer: Writer,
        metrics: Metrics,
        recorder: Recorder,
        *,
        plugins: tuple[str, ...],
        gates: FeatureGates,
        smoothing: float = 0.0,
        clock: Callable[[], float] | None = None,
        events: EventRecorder | None = None,
        journal: Journal | None = None,
    ) -> None:
        super().__init__()
        clock = clock or state.clock  # how old a report is must not be the difference of two clocks
        self.journal = journal
        self.brake, self.events = Brake(), events
        self.state, self.writer, self.metrics, self.recorder = state, writer, metrics, recorder
        self.plugins, self.gates, self.smoothing, self.clock = plugins, gates, smoothing, clock
        self._written: dict[str, float] = {}
        self._answered: dict[str, tuple[str, Node]] = {}  # by node: the version that was seen when it was written, and what came of it
        self._recorded: dict[str, tuple[float, str]] = {}
        self._unreadable: set[str] = set()  # pods that a warning told of
        self._totals: dict[str, Totals] = {}  # by node, until one of its pods changes
        self._told: dict[str, Mapping[str, int]] = {}  # by node, what its metrics show
        self._without_device: set[str] = set()  # nodes whose Device was deleted
        self._asked: set[str] = set()  # nodes of which it is known who wrote the devices that they offer without a Device
        self.due = RankedQueue(f"{self.name}-writes")
        self._turn = asyncio.Lock()
        memory = EditMemory(writer, state.config_key.partition("/")[0])
        self.editing = EditSpreader(state, recorder, events, clock, self.turns, self._under, memory)
        for plugin in plugins:
            metrics.plugin_ran(plugin, True, "Setup")

    def attach(self) -> None:
        """Listen."""
        self.state.nodes.add_handler(
            on_add=lambda node: self.queue.add(node.metadata.name),
            on_update=lambda old, new: self.queue.add(new.metadata.name),
            on_delete=self._on_node_gone,
        )
        # A NodeMetric that was only created says nothing yet; it counts once its status comes.
        self.state.node_metrics.add_handler(on_update=self._on_metric, on_delete=lambda metric: self.queue.add(metric.metadata.name))
        self.state.devices.add_handler(
            on_add=self._on_device_there,
            on_update=self._on_device,
            on_delete=self._on_device_gone,
        )
        self.state.topologies.add_handler(on_add=self._on_topology, on_update=self._on_topology_change)
        self.state.pods.add_handler(on_add=self._on_pod, on_update=self._on_pod_change, on_delete=self._on_pod_gone)
        self.state.on_config(self._on_config)
        self.state.on_release(self.queue.add)

    def _on_node_gone(self, node: Node) -> None:
        for memory in (self._written, self._answered, self._recorded, self._totals):
            memory.pop(node.metadata.name, None)
        self.state.spread.forget(node.metadata.name)
        for known in (self._without_device, self._asked):
            known.discard(node.metadata.name)
        self.brake.forget(node.metadata.name)
        self.metrics.held_nodes.set(len(self.brake.held))
        if self.journal is not None:
            self.journal.gone(node.metadata.name)

    def _on_metric(self, old: NodeMetric, new: NodeMetric) -> None:
        if old.status != new.status:
            self.queue.add(new.metadata.name)

    def _on_pod(self, pod: Pod) -> None:
        self._totals.pop(node_of(pod) or "", None)

    def _on_pod_change(self, old: Pod, new: Pod) -> None:
        self._on_pod(old)
        self._on_pod(new)

    def _on_pod_gone(self, pod: Pod) -> None:
        self._on_pod(pod)
        self._unreadable.discard(pod.key)

    def _on_device_there(self, device: Device) -> None:
        self._without_device.discard(device.metadata.name)
        self.queue.add(device.metadata.name)

    def _on_device_gone(self, device: Device) -> None:
        if self.state.nodes.get(device.metadata.name) is not None:  # it may well go with its node, and after it
            self._without_device.add(device.metadata.name)
        self.queue.add(device.metadata.name)

    def _on_device(self, old: Device, new: Device) -> None:
        if old.spec != new.spec or old.metadata.labels != new.metadata.labels:
            self.queue.add(new.metadata.name)

    def _on_topology(self, topology: NodeResourceTopology) -> None:
        if zones.has_zones(topology) or names.ANNOTATION_NRT_CPU_BASIC_INFO in topology.metadata.annotations:
            self.queue.add(topology.metadata.name)

    def _on_topology_change(self, old: NodeResourceTopology, new: NodeResourceTopology) -> None:
        key = names.ANNOTATION_NRT_CPU_BASIC_INFO
        if old.metadata.annotations.get(key) != new.metadata.annotations.get(key) or old.zones != new.zones:
            self.queue.add(new.metadata.name)

    def _on_config(self, changed: frozenset[str]) -> None:
        if self.state.spreads:
            self.editing.begun()
            self.queue.add(SPREAD)
        if KEYS & changed and self.state.spread.waiting < len(self.state.nodes):  # the others come when it is their turn
            self.queue.add(EVERYTHING)

    @property
    def queues(self) -> tuple[WorkQueue, ...]:
        """What is to be decided, and what is to be written."""
        return (self.queue, self.due)

    def keys(self) -> Iterable[str]:
        """All nodes."""
        return (name for name, _ in self.state.nodes.items())

    async def prepare(self) -> None:
        """Find out which nodes wait for an edit that was on its way."""
        await self.editing.resume()
        self.queue.add(SPREAD)

    async def run(self) -> None:
        """Decide for one node after the other; what is due is written by WRITERS tasks, the most urgent first."""
        self.state.spreads = True  # before, edits of the ConfigMap were another leader's
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run(), name=f"{self.name} decides")
            for number in range(WRITERS):
                tasks.create_task(self._write_for_ever(), name=f"{self.name} writes {number}")

    async def _write_for_ever(self) -> None:
        try:
            while await self._work_on(self.due, await self.due.get(), self.reconcile):
                pass
        finally:
            self.due.close()

    async def _work(self, key: str) -> bool:
        """Decide for one node; a write is queued by its rank."""
        return await self._work_on(self.queue, key, self._spread if key == SPREAD else self._queue_write)

    async def _queue_write(self, key: str) -> float | None:
        """Queue what is to be written to a node, if anything; otherwise the time until it has to be looked at again."""
        inputs, plan = await self._decided(key)
        if inputs is None or plan is None:
            return None
        held = self._held(inputs, plan, take=False)
        if plan.body or self._zones_change(inputs, plan) is not None:
            self.due.put(key, rank(inputs.node, plan))
            return None
        if plan.status_due:
            self._written[key] = inputs.now
        return HELD_AGAIN if held else self._degrades_in(inputs)

    async def reconcile(self, key: str) -> float | None:
        """Calculate and write one node's resources; the time until its metrics would be too old, if that comes first."""
        inputs, plan = await self._decided(key)
        if inputs is None or plan is None:
            return None
        held = self._held(inputs, plan, take=True)
        zones_failed = await self._try(("updateNodeResourceTopology",), self._write_zones, inputs, plan)
        if any(contribution.plugin == batch.NAME for contribution in plan.contributions):
            self.metrics.plugin_ran(batch.NAME, zones_failed is None, "NodePreUpdate")
        parts = (("updateNodeStatus", plan.status_patch), ("patchNodeMeta", plan.metadata_patch))
        node_failed = await self._try(tuple(reason for reason, patch in parts if patch), self._write_node, inputs, plan)
        for failure in (zones_failed, node_failed):
            if failure is not None:
                raise failure
        return HELD_AGAIN if held else self._degrades_in(inputs)

    async def _spread(self, _: str) -> float | None:
        """One round of an edit's way to the nodes; the time until the next one."""
        await self.editing.round(held=bool(self.brake.held))
        self.metrics.spread_nodes.set(self.state.spread.waiting)
        return SPREAD_EVERY if self.state.spread.active else None

    def _under(self, node: Node, config: SLOConfig) -> Plan:
        """What a node would be told under a configuration."""
        inputs = self.observe(node, self.clock(), config)
        return decide(
            inputs, cluster_enabled=config.cluster_enabled, plugins=self.plugins, last_write=self._written.get(node.metadata.name)
        )

    def _held(self, inputs: Inputs, plan: Plan, *, take: bool) -> bool:
        """Whether what stands on the node must not be taken away yet; the plan then leaves it alone."""
        name, present = inputs.node.metadata.name, self._promised(inputs.node)
        self.brake.promise(name, present)
        before = len(self.brake.held)
        # Without a ConfigMap nobody has said that co-location is off.
        unmeasured = plan.unmeasured or (not plan.enabled and self.state.config_of(name).stale(slo_schema.COLOCATION))
        held = bool(unmeasured and present) and self.brake.holds(name, present, inputs.now, take=take)
        if held:
            plan.hold()
        else:
            self.brake.held.discard(name)
        if len(self.brake.held) != before:
            self.metrics.held_nodes.set(len(self.brake.held))
        if held and not before and self.events is not None:
            text = f"reports are missing on many nodes at once, {name} among them: batch and mid are kept on nodes beyond the share"
            self.events.event(self.state.config_ref, "Warning", "OvercommitHeld", text)
        return held

    @staticmethod
    def _promised(node: Node) -> int:
        return value_or(node.status.allocatable.get(names.RESOURCE_BATCH_CPU))

    async def _decided(self, key: str) -> tuple[Inputs, Plan] | tuple[None, None]:
        """What one node is to be told now; one decision at a time, so that the tasks together do not hold the loop."""
        if not self.state.config.available:
            return None, None
        await self._ask_for_device(key)
        async with self._turn:
            await self.turns.pause()
            node = self._node(key)
            if node is None:
                self.metrics.node_resource_reconciled(False, "reconcileNodeNotFound")
                self._told.pop(key, None)
                self.metrics.extended_resources(key, {})
                return None, None
            now, config = self.clock(), self.state.config_of(key)
            inputs = self.observe(node, now, config)
            last = self._written.get(key)
            plan = decide(inputs, cluster_enabled=config.cluster_enabled, plugins=self.plugins, last_write=last)
            self._totals[key] = NodePods.of(inputs.pods).totals
        for plugin, message in plan.errors:
            log.warning("node %s: %s: %s; what stands on the node stays", key, plugin, message)
        self._count(plan)
        if self._told.get(key) != plan.resources:
            self._told[key] = plan.resources
            self.metrics.extended_resources(key, plan.resources)
        if self._record(inputs, plan) and self.journal is not None:
            self.journal.decided(inputs, plan, config.cluster_enabled, last)
        return inputs, plan

    async def _ask_for_device(self, name: str) -> None:
        """A Device may have gone while no manager ran: the node itself tells whether what it offers of devices was written here."""
        node = self.state.nodes.get(name)
        if node is None or name in self._asked or self.state.devices.get(name) is not None or not devices.offered(node):
            return
        try:
            current = await self.writer.client.get(NODES, name)
        except NotFound:
            return
        now = self.state.nodes.get(name)
        if now is None or now.metadata.uid != node.metadata.uid:
            return  # it went meanwhile, and what was answered is not about a namesake of it
        if devices.written_by(current, FIELD_MANAGER) and self.state.devices.get(name) is None:
            self._without_device.add(name)
        self._asked.add(name)

    def _node(self, name: str) -> Node | None:
        """A node as the cache has it, or as our own last write has left it where the cache has not got that far."""
        node, answered = self.state.nodes.get(name), self._answered.get(name)
        if node is None or answered is None:
            return node
        if node.metadata.resource_version == answered[0]:
            return answered[1]
        del self._answered[name]
        return node

    def _count(self, plan: Plan) -> None:
        """Runs of the plugins by step: calculating (or the reset), preparing the node, and looking whether a write is due."""
        contributed = tuple([contribution.plugin for contribution in plan.contributions])
        self.metrics.plugins_ran(_runs(contributed, tuple([plugin for plugin, _ in plan.errors]), plan.enabled))

    def observe(self, node: Node, now: float, config: SLOConfig | None = None) -> Inputs:
        """The inputs of a node from the caches."""
        name, config = node.metadata.name, config or self.state.config_of(node.metadata.name)
        return Inputs(
            node=node,
            strategy=config.colocation_for(node),
            now=now,
            pods=NodePods(lambda: self._pods(name), self._totals.get(name)),
            metric=self.state.node_metrics.get(name),
            topology=self.state.topologies.get(name),
            device=self.state.devices.get(name),
            device_gone=name in self._without_device,
            normalization=config.cpu_normalization_for(node),
            amplification=config.resource_amplification_for(node),
            count_pods_without_metric=self.gates.enabled("BatchCountPodsWithoutMetric"),
            sync_gpu_shared=self.gates.enabled("EnableSyncGPUSharedResource"),
            lower_abnormal=self.gates.enabled("AbnormalNodes"),
            raw_is_kept=self.gates.enabled("WebhookFramework") and self.gates.enabled("NodeMutatingWebhook"),
            smoothing=self.smoothing,
        )

    def _pods(self, name: str) -> Iterator[PodInput]:
        for pod in self.state.pods.by_index(BY_NODE, name):
            try:
                made = pod_input(pod)
            except QuantityError as error:
                if pod.key not in self._unreadable:
                    log.warning("pod %s: %s; it is left out of its node's accounting", pod.key, error)
                self._unreadable.add(pod.key)
                continue
            if made is not None:
                yield made

    async def _try(
        self, reasons: tuple[str, ...], write: Callable[[Inputs, Plan], Awaitable[bool]], inputs: Inputs, plan: Plan
    ) -> ApiError | None:
        """Writes are independent of one another: the failure of one is told after the others have been tried."""
        try:
            if await write(inputs, plan):
                for reason in reasons:
                    self.metrics.node_resource_reconciled(True, reason)
        except NotFound:
            # The node (or its topology) went away meanwhile.
            for reason in reasons:
                self.metrics.node_resource_reconciled(False, _GONE.get(reason, reason))
            return None
        except NotLeading:
            raise
        except ApiError as error:
            for reason in reasons:
                self.metrics.node_resource_reconciled(False, reason)
            return error
        return None

    async def _write_node(self, inputs: Inputs, plan: Plan) -> bool:
        """Status and metadata in one request: the status sub-resource takes both."""
        name, body = inputs.node.metadata.name, plan.body
        if body:
            # of this node only: a machine that is set up anew often has the name of the old one, and not its size
            body = {**body, "metadata": {**body.get("metadata", {}), "uid": inputs.node.metadata.uid}}
            seen = self.state.nodes.get(name)
            answer = await self.writer.patch(NODES, name, body, subresource="status" if plan.status_patch else None)
            if seen is not None and answer:
                self._answered[name] = (seen.metadata.resource_version, convert(answer, Node))
        if plan.status_due:
            self._written[name] = inputs.now
        return bool(body)

    def _zones_change(self, inputs: Inputs, plan: Plan) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]] | None] | None:
        """How the zones of the node's topology change; None when they stay as they are."""
        topology = inputs.topology
        contribution = next((item for item in plan.contributions if item.plugin == batch.NAME), None)
        if topology is None or contribution is None:
            return None

        def change(raw: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
            if contribution.clear_zones:
                return zones.clear(raw)
            return zones.write(raw, contribution.zones, plan.ratio, inputs.strategy.resource_diff_threshold)

        return change if change(msgspec.to_builtins(topology.zones)) is not None else None

    async def _write_zones(self, inputs: Inputs, plan: Plan) -> bool:
        topology, change = inputs.topology, self._zones_change(inputs, plan)
        if topology is None or change is None:
            return False

        async def write() -> bool:
            # The projection lacks unknown fields, and a list is replaced as a whole: take the object as it is now, and only that version.
            current = await self.writer.client.get(NODERESOURCETOPOLOGIES, topology.metadata.name)
            changed = change(current.get("zones") or [])
            if changed is None:
                return False
            version = current["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "zones": changed}
            await self.writer.client.patch(NODERESOURCETOPOLOGIES, topology.metadata.name, body, type="merge")
            return True

        return await self.writer.attempt(write)

    def _degrades_in(self, inputs: Inputs) -> float | None:
        updated = unix_time(inputs.metric.status.update_time) if inputs.metric else None
        if updated is None:
            return None
        left = updated + inputs.strategy.degrade_time_minutes * 60 - inputs.now
        return left + 1.0 if left > 0 else None

    def _record(self, inputs: Inputs, plan: Plan) -> bool:
        """Whether there was something to record: not the same as a moment ago."""
        name = inputs.node.metadata.name
        parts = [f"{item.plugin}: {item.message}" for item in plan.contributions] + [f"{plugin}: {error}" for plugin, error in plan.errors]
        parts += [f"ignored {error}" for error in inputs.strategy.ignored]
        message = "; ".join(parts)
        before = self._recorded.get(name)
        if before is not None and before[1] == message and inputs.now - before[0] < RECORD_EVERY:
            return False
        self._recorded[name] = (inputs.now, message)
        numbers: dict[str, float | int | str] = {**plan.resources, "pods": len(inputs.pods)}
        subject, verdict = Subject("Node", "", name, inputs.node.metadata.uid), "Allocatable" if plan.enabled else "Reset"
        self.recorder.record(Record(ROLE, subject, inputs.now, verdict, self.name, message, numbers, tuple(plan.terms), FEATURES))
        return True
