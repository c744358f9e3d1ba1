"""Machines for tests: NodeResourceTopology objects by shape, pods that bind CPUs, a world that schedules and binds them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from koord.api import names
from koord.api.annotations_node import CPUInfo
from koord.api.objects import Pod
from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.framework.context import BindDraft
from roles.scheduler.plugins.numa.columns import NumaColumns
from roles.scheduler.plugins.numa.plugin import NodeNUMAResource

LSR = {names.LABEL_POD_QOS: "LSR"}
POINTS = ("preFilter", "filter", "score", "reserve", "preBind")


def detail(sockets: int = 1, nodes: int = 2, cores: int = 4, threads: int = 2) -> list[dict[str, int]]:
    """CPUs with siblings side by side: `nodes` NUMA nodes a socket, `cores` cores a NUMA node."""
    found = []
    for core in range(sockets * nodes * cores):
        node = core // cores
        for thread in range(threads):
            found.append({"id": core * threads + thread, "core": core, "socket": node // nodes, "node": node})
    return found


def machine_cpus(**shape: int) -> list[CPUInfo]:
    """The same as the parsed annotation."""
    return [CPUInfo(**cpu) for cpu in detail(**shape)]


def nrt(
    name: str, *, policy: str = "None", zones: Mapping[int, Mapping[str, Any]] | None = None, annotations: Mapping[str, Any] | None = None,
    memory: str = "32Gi", **shape: int,
) -> dict[str, Any]:  # fmt: skip
    """A NodeResourceTopology; zones have all of their CPUs and `memory` unless given. Annotations that are no text become JSON."""
    cpus = detail(**shape)
    found: dict[int, Mapping[str, Any]] = {}
    for node in sorted({cpu["node"] for cpu in cpus}):
        found[node] = {"cpu": sum(cpu["node"] == node for cpu in cpus), "memory": memory}
    texts = {key: value if isinstance(value, str) else orjson.dumps(value).decode() for key, value in (annotations or {}).items()}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name, "annotations": {names.ANNOTATION_NRT_CPU_TOPOLOGY: orjson.dumps({"detail": cpus}).decode(), **texts}},
        "topologyPolicies": [policy],
        "zones": [
            {
                "name": f"node-{node}",
                "type": "Node",
                "resources": [{"name": r, "capacity": str(q), "allocatable": str(q), "available": str(q)} for r, q in amounts.items()],
            }
            for node, amounts in (zones if zones is not None else found).items()
        ],
    }


def profile(**args: Any) -> dict[str, Any]:
    """A profile with NodeNUMAResource at all its points, scoring alone."""
    enabled = {"enabled": [{"name": "NodeNUMAResource"}]}
    plugins: dict[str, Any] = dict.fromkeys(POINTS, enabled)
    plugins["score"] = {"disabled": [{"name": "*"}], **enabled}
    return {"plugins": plugins, "pluginConfig": [{"name": "NodeNUMAResource", "args": args}] if args else []}


def bound_pod(name: str = "", *, cpu: str | None = "4", labels: Mapping[str, str] | None = None, **more: Any) -> Pod:
    """An LSR pod. `spec` and `numa` are the contents of its resource-spec and numa-topology-spec."""
    annotations = dict(more.pop("annotations", {}))
    for key, content in (
        (names.ANNOTATION_RESOURCE_SPEC, more.pop("spec", None)),
        (names.ANNOTATION_NUMA_TOPOLOGY_SPEC, more.pop("numa", None)),
    ):
        if content is not None:
            annotations[key] = orjson.dumps(content).decode()
    return testing.pod(name, cpu=cpu, labels=LSR if labels is None else labels, annotations=annotations, **more)


class NumaWorld(testing.World):
    """A world whose nodes have topologies; `bind` schedules a pod and shows it bound with what was written on it."""

    def __init__(self, content: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(profile() if content is None else content, **more)
        plugin = self.framework.plugins["NodeNUMAResource"]
        assert isinstance(plugin, NodeNUMAResource)
        self.plugin = plugin
        self.columns: NumaColumns = plugin.columns

    def machine(
        self, name: str, *, labels: Mapping[str, str] | None = None, node: Mapping[str, Any] | None = None, **topology: Any
    ) -> None:
        """A node with its topology; `node` are its allocatable amounts and annotations."""
        report = nrt(name, **topology)
        cpus = len(orjson.loads(report["metadata"]["annotations"][names.ANNOTATION_NRT_CPU_TOPOLOGY])["detail"])
        self.add_nodes(testing.node(name, labels=labels, **{"cpu": str(cpus), "memory": "256Gi", **(node or {})}))
        self.feed("NodeResourceTopology", report)

    def bind(self, pod: Pod) -> tuple[Decision, PodInfo | None]:
        """Schedule, run preBind, and let the bound pod be seen; None when it found no place."""
        decision = self.decide(pod)
        if not decision.scheduled:
            return decision, None
        self.cluster.place(decision.pod, decision.slot)
        status = self.framework.run_reserve(decision.ctx, decision.slot)
        if not status.ok:
            self.cluster.remove_pod(decision.pod.uid)
            decision.status = status
            return decision, None
        draft = BindDraft()
        asyncio.run(self._pre_bind(decision, draft))
        annotations = {**(pod.metadata.annotations or {}), **draft.annotations}
        seen = self.parser.parse(
            msgspec.structs.replace(
                pod,
                metadata=msgspec.structs.replace(pod.metadata, annotations={k: v for k, v in annotations.items() if v is not None}),
                spec=msgspec.structs.replace(pod.spec, node_name=decision.node),
            )
        )
        self.cluster.add_pod(seen, decision.node)
        return decision, seen

    async def _pre_bind(self, decision: Decision, draft: BindDraft) -> None:
        for plugin in decision.framework.pre_binds:
            assert (await plugin.pre_bind(decision.ctx, decision.node, draft)).ok

    def status(self, pod: Pod) -> dict[str, Any]:
        """The resource-status that the pod gets when it is bound, {} for none; fails when it is not scheduled."""
        decision, seen = self.bind(pod)
        assert seen is not None, decision.message()
        found = (seen.pod.metadata.annotations or {}).get(names.ANNOTATION_RESOURCE_STATUS)
        return dict(orjson.loads(found)) if found else {}

    def cpus(self, pod: Pod) -> str:
        """The CPU set that the pod gets."""
        return str(self.status(pod).get("cpuset", ""))

    def refusal(self, pod: Pod) -> str:
        """Why the pod is not placed."""
        decision = self.decide(pod)
        assert not decision.scheduled, decision.node
        return decision.message()
