"""The status a kubelet reports for a pod, computed from its spec and the state of its containers: pure functions on plain dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koord.api.times import format_time

PROCESS_ANNOTATION = "sandbox.koordinator.sh/process"
"""A pod must carry this annotation with value "true" before its commands run as host processes."""

#: The conditions that are the kubelet's; others have other writers.
CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
BACKOFF_FIRST = 10.0
BACKOFF_CAP = 300.0
BACKOFF_RESET = 600.0
IMAGE_ID = "process://host"


@dataclass(slots=True)
class ContainerState:
    """What the kubelet knows of one container. Times are Unix seconds."""

    name: str
    image: str = ""
    container_id: str = ""
    running_since: float | None = None
    terminated: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    waiting: str = "ContainerCreating"
    waiting_message: str = ""
    restarts: int = 0
    ready: bool = False
    backoff: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


def terminated(
    code: int, number: int, reason: str, *, started: float, finished: float, container_id: str, message: str = ""
) -> dict[str, Any]:
    """A `terminated` container state."""
    state: dict[str, Any] = {
        "exitCode": code,
        "reason": reason,
        "startedAt": format_time(started),
        "finishedAt": format_time(finished),
        "containerID": container_id,
    }
    if number:
        state["signal"] = number
    if message:
        state["message"] = message
    return state


def reason_of(code: int, oom: bool) -> str:
    if oom:
        return "OOMKilled"
    return "Completed" if code == 0 else "Error"


def wants_restart(policy: str, exit_code: int) -> bool:
    """Whether restartPolicy asks for the container to be started again after this exit."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def next_backoff(previous: float, ran_for: float) -> float:
    """Seconds before the next start of a container that keeps ending: 10 s, doubled up to 300 s; ten quiet minutes reset it."""
    if ran_for >= BACKOFF_RESET or previous <= 0:
        return BACKOFF_FIRST
    return min(previous * 2, BACKOFF_CAP)


def phase(restart_policy: str, init: Sequence[ContainerState], regular: Sequence[ContainerState]) -> str:
    """Pod phase from its containers: Pending until all have started once, then Running, Succeeded or Failed for good."""
    for one in init:
        if one.terminated is not None and one.terminated["exitCode"] != 0 and restart_policy == "Never":
            return "Failed"
        if one.terminated is None or one.terminated["exitCode"] != 0:
            return "Pending"
    if any(c.running_since is None and c.terminated is None and c.last is None for c in regular):
        return "Pending"
    ended = [c.terminated for c in regular if c.terminated is not None]
    if len(ended) < len(regular) or any(wants_restart(restart_policy, t["exitCode"]) for t in ended):
        return "Running"
    return "Succeeded" if all(t["exitCode"] == 0 for t in ended) else "Failed"


def container_status(state: ContainerState) -> dict[str, Any]:
    """One entry of `status.containerStatuses`."""
    current: dict[str, Any]
    if state.running_since is not None:
        current = {"running": {"startedAt": format_time(state.running_since)}}
    elif state.terminated is not None:
        current = {"terminated": state.terminated}
    else:
        current = {"waiting": {"reason": state.waiting}}
        if state.waiting_message:
            current["waiting"]["message"] = state.waiting_message
    return {
        "name": state.name,
        "image": state.image,
        "imageID": IMAGE_ID,
        "containerID": state.container_id,
        "ready": state.ready,
        "started": state.running_since is not None,
        "restartCount": state.restarts,
        "state": current,
        "lastState": {"terminated": state.last} if state.last else {},
    }


def conditions(phase_: str, initialized: bool, ready: bool, previous: Sequence[Mapping[str, Any]], now: float) -> list[dict[str, Any]]:
    """The four kubelet conditions; a transition time only moves when the status does."""
    finished = phase_ in ("Succeeded", "Failed")
    wanted = dict(zip(CONDITIONS, (True, initialized, ready and not finished, ready and not finished), strict=True))
    before = {c.get("type"): c for c in previous}
    result = [dict(c) for c in previous if c.get("type") not in wanted]
    for kind, value in wanted.items():
        text = "True" if value else "False"
        old = before.get(kind, {})
        same = old.get("status") == text and old.get("lastTransitionTime")
        entry: dict[str, Any] = {
            "type": kind,
            "status": text,
            "lastProbeTime": None,
            "lastTransitionTime": old["lastTransitionTime"] if same else format_time(now),
        }
        if not value:
            entry["reason"] = "PodCompleted" if phase_ == "Succeeded" else "ContainersNotReady"
        result.append(entry)
    return result


def own_conditions(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of :data:`CONDITIONS`."""
    return [c for c in found if c.get("type") in CONDITIONS]


def pod_status(
    spec: Mapping[str, Any],
    kubernetes_qos: str,
    init: Sequence[ContainerState],
    regular: Sequence[ContainerState],
    previous: Mapping[str, Any],
    *,
    host_ip: str,
    started: float,
    now: float,
) -> dict[str, Any]:
    """The whole `status` of a pod as this kubelet sees it."""
    which = phase(spec.get("restartPolicy", "Always"), init, regular)
    initialized = all(c.terminated is not None and c.terminated["exitCode"] == 0 for c in init)
    ready = bool(regular) and all(c.ready for c in regular)
    status: dict[str, Any] = {
        "phase": which,
        "qosClass": kubernetes_qos,
        "hostIP": host_ip,
        "podIP": host_ip,
        "podIPs": [{"ip": host_ip}],
        "startTime": previous.get("startTime") or format_time(started),
        "conditions": conditions(which, initialized, ready, previous.get("conditions") or [], now),
        "containerStatuses": [container_status(c) for c in regular],
    }
    if init:
        status["initContainerStatuses"] = [container_status(c) for c in init]
    return status


def refusal(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> str | None:
    """Why this pod cannot run as host processes, None if it can: told in the pod's status, so that nothing is silently dropped."""
    if annotations.get(PROCESS_ANNOTATION) != "true":
        return f'this node runs commands as host processes; the pod must agree by the annotation {PROCESS_ANNOTATION}: "true"'
    if spec.get("volumes"):
        return "volumes are not available to host processes: " + ", ".join(str(v.get("name")) for v in spec["volumes"])
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        name = container.get("name")
        if not container.get("command"):
            return f"container {name} has no command; images are not unpacked here, so the command must be in the pod spec"
        if container.get("volumeMounts"):
            return f"container {name} has volumeMounts, which host processes cannot have"
        if container.get("livenessProbe") or container.get("startupProbe") or container.get("lifecycle"):
            return f"container {name} has a liveness or startup probe or lifecycle hooks; only readinessProbe is supported here"
        for variable in container.get("env") or []:
            if "valueFrom" in variable and "fieldRef" not in variable["valueFrom"]:
                return f"container {name}: env {variable.get('name')} takes its value from something else than fieldRef"
    if any(c.get("restartPolicy") for c in spec.get("initContainers") or []):
        return "restartable init containers (sidecars) are not supported here"
    return None


def field_ref(pod: Mapping[str, Any], path: str, host_ip: str) -> str | None:
    """Value of a downward-API `fieldPath`, None for one that is not known."""
    metadata, spec = pod.get("metadata", {}), pod.get("spec", {})
    known = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": host_ip,
        "status.podIP": host_ip,
    }
    return known.get(path)
