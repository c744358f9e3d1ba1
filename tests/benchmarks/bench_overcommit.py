"""The manager's overcommit over many nodes: a full pass, a steady minute, memory, and what is written (API server stubbed)."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
import zlib
from typing import Any

import msgspec
import orjson

from koord.api.kinds import CONFIGMAPS, NODEMETRICS, NODES, PODS, Kind
from koord.api.times import format_time
from koord.config.gates import MANAGER, FeatureGates
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from koord.process import metrics
from roles.manager.controllers.noderesource import NodeResourceController
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer
from roles.manager.metrics import Metrics
from roles.manager.noderesource.plan import PLUGIN_NAMES
from roles.manager.options import Options
from tests.benchmarks.table import Row, current_rss_mib, script

PODS_A_NODE = 110


class Cluster:
    """The objects as an API server would show them, and a client whose patches come back as watch events."""

    def __init__(self, nodes: int) -> None:
        self.writes = 0
        self.informers = InformerFactory(self)  # type: ignore[arg-type]
        self.state = ClusterState(self.informers, Options())
        self.nodes = {f"n{number}": self._node(f"n{number}") for number in range(nodes)}

    def _node(self, name: str) -> dict[str, Any]:
        amounts = {"cpu": "96", "memory": "384Gi", "pods": "256"}
        status = {"capacity": dict(amounts), "allocatable": dict(amounts), "conditions": [{"type": "Ready", "status": "True"}]}
        return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": {}}, "spec": {}, "status": status}

    def show(self, kind: Kind, key: str, obj: dict[str, Any]) -> None:
        store = {NODES: self.state.nodes, NODEMETRICS: self.state.node_metrics, PODS: self.state.pods, CONFIGMAPS: self.state.config_maps}
        store[kind].receive(key, "1", msgspec.Raw(orjson.dumps(obj)))  # type: ignore[attr-defined]

    async def patch(self, kind: Kind, name: str, body: Any, namespace: str | None = None, **_: Any) -> dict[str, Any]:
        self.writes += 1
        node = self.nodes[name]
        for section in ("capacity", "allocatable"):
            node["status"][section].update((body.get("status") or {}).get(section) or {})
        node["metadata"]["annotations"].update((body.get("metadata") or {}).get("annotations") or {})
        asyncio.get_running_loop().call_soon(self.show, NODES, name, node)
        return {}

    def fill(self) -> None:
        text = '{"enable":true}'
        body = {"metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"}, "data": {"colocation-config": text}}
        self.show(CONFIGMAPS, "koordinator-system/slo-controller-config", body)
        for name, node in self.nodes.items():
            for number in range(PODS_A_NODE):
                self.show(PODS, f"team-{number % 40}/{pod_name(name, number)}", pod(name, number))
            self.show(NODES, name, node)
            self.report(name)

    def report(self, name: str, busy: float = 1.0) -> None:
        self.show(NODEMETRICS, name, metric(name, busy))


def pod(node: str, number: int) -> dict[str, Any]:
    """As a cluster has them: two containers, statuses, conditions, addresses, a projected token, annotations of the network."""
    batch = number % 3 == 0
    names = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory") if batch else ("cpu", "memory")
    amounts = dict(zip(names, ("500" if batch else "500m", "1Gi"), strict=True))
    digest = hashlib.sha256(f"{node}/{number}".encode()).hexdigest()
    uid = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
    stamp = f"2026-11-{1 + int(digest[:2], 16) % 28:02d}T10:{int(digest[2:4], 16) % 60:02d}:00Z"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{number}-7c9d8b6f5d", "uid": f"rs-{number}", "controller": True}
    labels = {"app": f"web-{number}", "koordinator.sh/qosClass": "BE" if batch else "LS", "pod-template-hash": "7c9d8b6f5d"}
    address = f"10.{int(digest[4:6], 16)}.{int(digest[6:8], 16)}.{number}"
    containers = [
        {"name": name, "image": f"registry.example.com/{name}:1", "resources": {"requests": amounts if name == "main" else {}}}
        for name in ("main", "sidecar")
    ]
    states = [
        {
            "name": one["name"],
            "ready": True,
            "started": True,
            "image": one["image"],
            "imageID": f"{one['image']}@sha256:{digest}",
            "containerID": f"containerd://{digest[::-1]}",
            "state": {"running": {"startedAt": stamp}},
            "resources": one["resources"],
        }
        for one in containers
    ]
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    metadata = {
        "name": pod_name(node, number),
        "namespace": f"team-{number % 40}",
        "uid": uid,
        "resourceVersion": str(10**9 + int(digest[:6], 16)),
        "creationTimestamp": stamp,
        "labels": labels,
        "annotations": {"cni.projectcalico.org/podIP": f"{address}/32"},
        "ownerReferences": [owner],
    }
    status = {
        "phase": "Running",
        "qosClass": "Burstable",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": stamp} for kind in kinds],
        "containerStatuses": states,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": stamp,
    }
    volumes = [{"name": f"kube-api-access-{digest[:5]}", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]
    spec = {"nodeName": node, "priority": 5500 if batch else 9500, "containers": containers, "volumes": volumes}
    return {"metadata": metadata, "spec": spec, "status": status}


def pod_name(node: str, number: int) -> str:
    """Names of a ReplicaSet's pods end in five letters and digits."""
    return f"web-{number}-7c9d8b6f5d-{zlib.crc32(node.encode()):08x}"


def metric(name: str, busy: float) -> dict[str, Any]:
    def amounts(cpu: float, memory: int) -> dict[str, Any]:
        return {"resources": {"cpu": f"{int(cpu * 1000)}m", "memory": f"{memory}Mi"}}

    entries = [
        {
            "namespace": f"team-{number % 40}",
            "name": pod_name(name, number),
            "priority": "koord-batch" if number % 3 == 0 else "koord-prod",
            "podUsage": amounts(
                0.2 * busy + (zlib.crc32(name.encode()) + number) % 97 / 1000, 400 + (zlib.crc32(name.encode()) + number) % 101
            ),
        }
        for number in range(PODS_A_NODE)
    ]
    usage = {"nodeUsage": amounts(30 * busy, 60_000), "systemUsage": amounts(2, 4_000)}
    status = {"updateTime": format_time(time.time()), "nodeMetric": usage, "podsMetric": entries}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


async def drain(controller: NodeResourceController) -> tuple[float, float]:
    """Work until nothing is left; seconds and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    while True:
        while len(controller.queue):
            key = await controller.queue.get()
            await controller.reconcile(key)
            controller.queue.done(key)
        await asyncio.sleep(0)
        if not len(controller.queue):
            return time.perf_counter() - wall, time.process_time() - cpu


async def measure(quick: bool) -> list[Row]:
    count = 500 if quick else 5000
    before = current_rss_mib()
    cluster = Cluster(count)
    gates = FeatureGates(MANAGER)
    parts = (cluster.state, Writer(cluster), Metrics(metrics.registry("manager")), Recorder("manager"))  # type: ignore[arg-type]
    controller = NodeResourceController(*parts, plugins=PLUGIN_NAMES, gates=gates)
    controller.attach()
    cluster.fill()
    gc.collect()
    gc.freeze()
    what = f"{count} nodes × {PODS_A_NODE} pods"
    wall, cpu = await drain(controller)
    rows = [
        Row(f"manager: full overcommit pass, {what}", wall, "s", note=f"{cpu:.2f} s of CPU, {cluster.writes} writes"),
        Row(
            f"manager: memory of {what}",
            current_rss_mib() - before,
            "MiB",
            None if quick else 300,
            note="Nodes, NodeMetrics and Pods, less the empty process",
        ),
    ]
    for name in cluster.nodes:
        controller.queue.add(name)
    _, cpu = await drain(controller)
    rows.append(
        Row(f"manager: CPU of deciding anew for all, {what}", cpu, "s", None if quick else 0.5, note="as after an edit; nobody reported")
    )
    for title, share in (("nothing moves", 0.0), ("10 % of the nodes move", 0.1)):
        cluster.writes, decoding = 0, time.process_time()
        for number, name in enumerate(cluster.nodes):
            cluster.report(name, 1.8 if number < share * count else 1.0)
        decoding = time.process_time() - decoding
        _, cpu = await drain(controller)
        note = f"{cluster.writes} writes; {decoding:.2f} s of it decoding NodeMetrics"
        rows.append(Row(f"manager: CPU a minute, {title}, {what}", decoding + cpu, "s", note=note))
    return rows


def rows(quick: bool) -> list[Row]:
    import uvloop

    return uvloop.run(measure(quick))


if __name__ == "__main__":
    script(rows)
