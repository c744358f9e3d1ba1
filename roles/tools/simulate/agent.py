"""What koordlet would do on a node: whom it evicts, and what it writes into cgroup files, by its own strategies and hooks (BEY-SIM-01).

The machine has no files here but cgroups without limits: strategies that first look at more of the host (NUMA, resctrl) decide nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from koord.accounting.estimate import estimate_pod
from koord.accounting.pods import pod_requests
from koord.accounting.resources import parse_quantity
from koord.api import names
from koord.api.objects import Node, NodeMetric, Pod, convert
from koord.api.qos import QoSClass
from koord.config.gates import KOORDLET, FeatureGates
from koord.config.slo import SLOConfig
from roles.koordlet.eviction.tasks import EvictionTask, Ledger
from roles.koordlet.hooks.asking import Asking
from roles.koordlet.hooks.plan import writes
from roles.koordlet.hooks.registry import make_hooks
from roles.koordlet.hooks.requests import contexts
from roles.koordlet.host.cgroup import Cgroups, CgroupVersion
from roles.koordlet.host.errors import CgroupGoneError, HostError
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.topology import CPU, CPUTopology, make_topology
from roles.koordlet.options import Options
from roles.koordlet.qos.allowance import allowed, capacity_milli, reserved_milli
from roles.koordlet.qos.cpuevict import CPUEvict
from roles.koordlet.qos.evict_common import EvictState
from roles.koordlet.qos.memevict import MemoryEvict
from roles.koordlet.qos.registry import make_strategies
from roles.koordlet.states.model import HostState, PodState, Snapshot
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import effective_slo
from roles.koordlet.store import kinds
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView
from roles.manager.controllers.nodeslo import build
from roles.tools.simulate.suppression import host_applications

Obj = dict[str, Any]
Gate = Callable[[str], bool]
LEVELS = ("Guaranteed", "Burstable", "BestEffort")
_BOTH = ("cpu", "memory")
_UNTOUCHED = {
    "cpu.cfs_quota_us": b"-1\n",
    "cpu.cfs_period_us": b"100000\n",
    "cpu.cfs_burst_us": b"0\n",
    "cpu.shares": b"2\n",
    "memory.limit_in_bytes": b"9223372036854771712\n",
}
_LONG_AGO = 1e6  # seconds since the last eviction


@dataclass(slots=True)
class Evicted:
    """A pod that its node's agent evicts. `gate` is the feature that does it."""

    pod: str
    node: str
    gate: str
    message: str


class _Fresh(HostFiles):
    """Files as the kubelet and the runtime leave them in a new group without limits."""

    def read(self, path: str) -> bytes:
        """A file of a group; no other one is there. Raises HostFileError."""
        found = _UNTOUCHED.get(os.path.basename(path))
        if found is None:
            raise CgroupGoneError(path)
        return found


@cache
def _cores(count: int) -> CPUTopology | None:
    """So many cores on one socket."""
    return make_topology(CPU(number, number, 0, 0) for number in range(count)) if count else None


@cache
def _machine() -> HostState:
    root = HostRoot.at("/nonexistent/machine")
    return HostState(root, Cgroups(root, CgroupVersion.V1), _Fresh())


def gates_of(text: str) -> Gate:
    """koordlet's feature gates with those of a flag. Raises ConfigError."""
    gates = FeatureGates(KOORDLET)
    gates.set_from_flag(text)
    return gates.enabled


class Agent:
    """koordlet of one node at `now` (Unix time). `pods` are whole objects of pods there, also of those that come."""

    def __init__(
        self, config: SLOConfig | None, node: Node, metric: NodeMetric | None, pods: Iterable[Obj], now: float, gate: Gate
    ) -> None:
        self._now, self._gate, self._node = now, gate, node
        self._options = Options(node_name=node.metadata.name)
        cgroups = _machine().cgroups
        self.pods = tuple(pod_state(_there(pod, node.metadata.name), cgroups) for pod in pods)
        self._slo = effective_slo(build(config, node, {}) if config is not None else {})[0]
        store = MetricStore()
        self._measure(store, metric)
        self.snapshot = Snapshot(
            time=now, node_name=node.metadata.name, host=_machine(), node=node, slo=self._slo, pods=self.pods,
            topology=_cores(capacity_milli(node) // 1000), nrt=None,
            metrics=MetricsView(store, now), collect_interval=1.0, pods_synced=True,
        )  # fmt: skip

    def _measure(self, store: MetricStore, metric: NodeMetric | None) -> None:
        info = metric.status.node_metric if metric is not None else None
        if metric is None or info is None:
            return
        measured = {
            f"{each.namespace}/{each.name}": {name: _amount(name, each.pod_usage.resources) for name in _BOTH}
            for each in metric.status.pods_metric
        }
        total = {name: _amount(name, info.node_usage.resources) for name in _BOTH}
        samples: list[tuple[str, tuple[str, ...], float]] = [
            (kinds.SYS_CPU, (), _amount("cpu", info.system_usage.resources) / 1000),
            (kinds.SYS_MEMORY, (), _amount("memory", info.system_usage.resources)),
        ]
        best_effort = others = 0.0
        for pod in self.pods:
            use = measured.pop(pod.key, None)
            if use is None:  # it came: as the scheduler takes it to be
                use = {name: float(amount) for name, amount in estimate_pod(pod.pod).items() if name in _BOTH}
                total = {name: amount + use.get(name, 0) for name, amount in total.items()}
            cpu, memory = use.get("cpu", 0.0), use.get("memory", 0.0)
            samples += [(kinds.POD_CPU, (pod.uid,), cpu / 1000), (kinds.POD_MEMORY, (pod.uid,), memory)]
            best_effort, others = (best_effort + cpu, others) if pod.qos is QoSClass.BE else (best_effort, others + cpu)
        for gone in measured.values():
            total = {name: amount - gone[name] for name, amount in total.items()}
        samples += [(kinds.NODE_CPU, (), total["cpu"] / 1000), (kinds.NODE_MEMORY, (), total["memory"])]
        request = sum(pod_requests(pod.pod).get(names.RESOURCE_BATCH_CPU, 0) for pod in self.pods if pod.qos is QoSClass.BE)
        limit = self._limit(others, host_applications(metric), _amount("cpu", info.system_usage.resources))
        tier = (("usage", best_effort), ("request", request), ("real-limit", limit))
        samples += [(kinds.NODE_BE, ("cpu", allocation), value) for allocation, value in tier]
        store.append(self._now, samples)

    def _limit(self, others: float, applications: int, system: float) -> float:
        """Milli-cores that the best-effort tier may use."""
        capacity, reserved, threshold = capacity_milli(self._node), reserved_milli(self._node), self._slo.threshold
        if not threshold.enable or not self._gate("BECPUSuppress"):
            return capacity
        found = allowed(
            capacity, threshold.cpu_suppress_threshold_percent, int(others), applications, max(int(system), reserved), reserved,
            threshold.cpu_suppress_min_percent,
        )  # fmt: skip
        return max(0, found.milli)

    def evicted(self) -> list[Evicted]:
        """Pods that are evicted now, for good reason long after the last eviction."""
        tasks: list[EvictionTask] = []
        for strategy in (MemoryEvict(self._options, self._gate), CPUEvict(self._options, self._gate)):
            if strategy.enabled:
                state = EvictState(cooling_since=self._now - _LONG_AGO)
                tasks += strategy.decide(self.snapshot, self._slo, state, self._now).tasks
        found: dict[str, Evicted] = {}
        ledger = Ledger(tuple(tasks))
        for task in tasks:
            for victim in task.victims:
                if ledger.covers(task):
                    break
                if victim.pod.uid not in found:
                    found[victim.pod.uid] = Evicted(victim.pod.key, self._node.metadata.name, task.gate, task.message)
                    ledger.add(victim)
        return [*found.values()]

    def files(self, pod: str = "", container: str = "", level: str = "") -> dict[str, str]:
        """Cgroup files and their values, as cgroup v1 spells them: of a pod ("namespace/name"), of one of its containers, or of a
        level of Kubernetes QoS."""
        asking = Asking(make_hooks(self._options, self._gate))
        asking.learn(self.snapshot)
        if pod:
            state = next((each for each in self.pods if each.key == pod), None)
            if state is None:
                return {}
            directory, found = self._of_pod(asking, state, container)
        else:
            directory = _machine().cgroups.qos_dir(level)
            found = {write.resource: write.value for _, write in writes(asking.kube_qos(level), directory)}
        return found | self._of_strategies(directory)

    def _of_pod(self, asking: Asking, state: PodState, container: str) -> tuple[str, dict[str, str]]:
        context, containers = contexts(state)
        if not container:
            answers, directory = asking.pod(context), context.cgroup_dir
        else:
            one = next((each for each in containers if each.name == container), None)
            if one is None:
                return "", {}
            answers, directory = asking.container(one), one.cgroup_dir
        return directory, {write.resource: write.value for _, write in writes(answers, directory)}

    def _of_strategies(self, directory: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for strategy in make_strategies(self._options, self._gate):
            if not strategy.enabled:
                continue
            try:
                outcome = strategy.decide(self.snapshot, self._slo, strategy.initial(), self._now)
            except (HostError, OSError):
                continue  # it needs the machine
            for batch in outcome.batches:
                for write in batch:
                    if write.target == directory:
                        found[write.resource] = write.value
        return found


def _amount(name: str, resources: Mapping[str, str | int | float]) -> float:
    return parse_quantity(name, resources.get(name, 0))


def _there(pod: Obj, node: str) -> Pod:
    """The pod as it runs on its node, with an id for each container."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    known = {each.get("name") for each in status.get("containerStatuses") or ()}
    more = [
        {"name": each["name"], "containerID": f"containerd://{each['name']}", "state": {"running": {}}}
        for each in spec.get("containers") or ()
        if each["name"] not in known
    ]
    status = {**status, "phase": "Running", "containerStatuses": [*(status.get("containerStatuses") or ()), *more]}
    uid = (meta.get("uid") or f"{meta.get('namespace', '')}-{meta['name']}").replace("/", "-")
    return convert({**pod, "metadata": {**meta, "uid": uid}, "spec": {**spec, "nodeName": node}, "status": status}, Pod)
