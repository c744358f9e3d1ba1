"""The objects of the simulated part: nodes, the latency-sensitive pods on them, and what they use at a time (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koord.api import names
from koord.api.kinds import PODS
from koord.api.quantity import parse_milli, parse_value
from koord.api.times import format_time
from roles.sandbox.builders import APP_LABEL, SCHEDULER, container, obj
from roles.sandbox.nodes.curves import SHAPES, Curve, spread
from roles.sandbox.process_kubelet import podspec
from roles.sandbox.process_kubelet.node import node_of

CURVE_ANNOTATION = "sandbox.koordinator.sh/usage-curve"
"""steady, diurnal or bursty: how a simulated pod uses what it requests."""
RUN_SECONDS_ANNOTATION = "sandbox.koordinator.sh/run-seconds"
"""After so many seconds a simulated pod is Succeeded; without it, it runs on."""
USAGE_PERCENT_ANNOTATION = "sandbox.koordinator.sh/usage-percent"
"""How much of its request a simulated pod uses at the top of its curve, a whole number from 0 to 1000; without it, by its QoS class."""
MAX_USAGE_PERCENT = 1000
IDLE_MILLI = 150
IDLE_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU in milli-CPU and memory in bytes."""

    cpu: int = 0
    memory: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu + other.cpu, self.memory + other.memory)


def node_name(index: int) -> str:
    return f"sim-{index:03d}"


def node(index: int, *, cpus: int, memory: int, now: float) -> dict[str, Any]:
    """A simulated Node with so many CPUs and bytes of memory."""
    name = node_name(index)
    capacity = {"cpu": str(cpus), "memory": f"{memory // 1024}Ki", "pods": "110", "ephemeral-storage": "100Gi"}
    info = {"kubeletVersion": "v1.30.0-simulated", "operatingSystem": "linux", "architecture": "amd64"}
    made = node_of(name, "simulated", capacity, address=address(index), port=10250, info=info, now=now)
    made["metadata"]["labels"]["topology.kubernetes.io/zone"] = f"zone-{'abc'[index % 3]}"
    return made


def address(index: int) -> str:
    """An address of a node from the range for documentation and tests (198.18.0.0/15)."""
    return f"198.18.{index // 250}.{index % 250 + 1}"


def service_pod(node_index: int, pod_index: int, namespace: str) -> dict[str, Any]:
    """A latency-sensitive pod already bound to a simulated node; its curve goes round the known shapes."""
    shape = list(SHAPES)[(node_index + pod_index) % len(SHAPES)]
    name = f"web-{node_index:03d}-{pod_index}"
    web = container("web", "sandbox/web", {"cpu": "2", "memory": "4Gi"}, {"cpu": "4", "memory": "4Gi"})
    spec = {"nodeName": node_name(node_index), "schedulerName": SCHEDULER, "containers": [web]}
    labels = {APP_LABEL: "web", names.LABEL_POD_QOS: "LS"}
    return obj(PODS, name, namespace, labels=labels, annotations={CURVE_ANNOTATION: shape}, spec=spec)


def curve_of(pod: Mapping[str, Any], period: float) -> Curve:
    """The curve a pod follows: its annotation, otherwise steady; batch pods use nearly all they ask for."""
    metadata = pod["metadata"]
    key = f"{metadata.get('namespace')}/{metadata['name']}"
    shape = (metadata.get("annotations") or {}).get(CURVE_ANNOTATION)
    shape = shape if shape in SHAPES else "steady"
    best_effort = (metadata.get("labels") or {}).get(names.LABEL_POD_QOS) == "BE"
    low, high = (0.7, 0.95) if best_effort else (0.1, 0.45)
    top = usage_percent(pod)
    if top is not None:
        low, high = low * top / 100 / high, top / 100
    return Curve(shape, low, high, period, spread(key), 0.05)


def usage_percent(pod: Mapping[str, Any]) -> int | None:
    """The annotation's value; None without one, or when it is no whole number from 0 to 1000."""
    text = (pod["metadata"].get("annotations") or {}).get(USAGE_PERCENT_ANNOTATION, "")
    if not (text.isascii() and text.isdigit()):
        return None
    return int(text) if int(text) <= MAX_USAGE_PERCENT else None


def requested(pod: Mapping[str, Any]) -> Usage:
    """What a pod asks for of either native or batch resources."""
    total = Usage()
    for one in pod["spec"].get("containers") or []:
        requests, _ = podspec.effective(one)
        extended = (one.get("resources") or {}).get("requests") or {}
        cpu = requests.get("cpu", 0) + parse_value(extended.get(names.RESOURCE_BATCH_CPU, 0))
        memory = requests.get("memory", 0) + parse_value(extended.get(names.RESOURCE_BATCH_MEMORY, 0))
        total = total + Usage(cpu, memory)
    return total


def usage(pod: Mapping[str, Any], time: float, period: float) -> Usage:
    """What a running pod uses at `time`. Memory follows the curve only by half: it does not come back as CPU does."""
    ask = requested(pod)
    level = curve_of(pod, period).level(time, str(pod["metadata"].get("uid", "")))
    return Usage(int(ask.cpu * level), int(ask.memory * (0.4 + 0.5 * level)))


def resources(value: Usage) -> dict[str, str]:
    """As a ResourceList: CPU in milli, memory in KiB."""
    return {"cpu": f"{value.cpu}m", "memory": f"{value.memory // 1024}Ki"}


def scale_to(usages: Iterable[Usage], capacity: Usage) -> tuple[list[Usage], Usage]:
    """Pods cannot use more CPU than there is: shrink all alike when they would. Returns the usages and what the rest uses."""
    wanted = list(usages)
    rest = Usage(min(IDLE_MILLI, capacity.cpu), min(IDLE_BYTES, capacity.memory))
    total = sum(u.cpu for u in wanted)
    room = capacity.cpu - rest.cpu
    if total > room > 0:
        wanted = [Usage(u.cpu * room // total, u.memory) for u in wanted]
    return wanted, rest


def capacity_of(node_: Mapping[str, Any]) -> Usage:
    capacity = node_.get("status", {}).get("capacity") or {}
    return Usage(parse_milli(capacity.get("cpu", 0)), parse_value(capacity.get("memory", 0)))


def running_status(pod: Mapping[str, Any], host: str, now: float) -> dict[str, Any]:
    """The status of a pod that a simulated kubelet runs."""
    when = format_time(now)
    containers = [
        {
            "name": c["name"],
            "image": c.get("image", ""),
            "imageID": "simulated://",
            "containerID": f"containerd://{container_hash(pod, c['name'])}",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": when}},
            "lastState": {},
        }
        for c in pod["spec"].get("containers") or []
    ]
    return {
        "phase": "Running",
        "qosClass": podspec.kubernetes_qos(pod["spec"]),
        "hostIP": host,
        "podIP": host,
        "podIPs": [{"ip": host}],
        "startTime": when,
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": when}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": containers,
    }


def succeeded_status(status: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The same pod after its work is done."""
    ended = format_time(now)
    containers = []
    for one in status.get("containerStatuses") or []:
        began = ((one.get("state") or {}).get("running") or {}).get("startedAt", ended)
        state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": ended}}
        containers.append({**one, "ready": False, "started": False, "state": state})
    kept = [
        {**c, "status": "False", "lastTransitionTime": ended} if c["type"] in ("Ready", "ContainersReady") else c
        for c in status.get("conditions") or []
    ]
    return {**status, "phase": "Succeeded", "containerStatuses": containers, "conditions": kept}


def container_hash(pod: Mapping[str, Any], name: str) -> str:
    """A container id of 64 hexadecimal digits that depends only on the pod and the container's name."""
    seed = f"{pod['metadata'].get('uid')}/{name}"
    return "".join(f"{int(spread(f'{seed}/{i}') * 2**32):08x}" for i in range(8))
