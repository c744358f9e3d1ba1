"""Reading a pod spec the way a kubelet does: resources, Kubernetes QoS class, command line and environment (pure, on plain dicts)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from koord.api.quantity import parse_milli, parse_value
from roles.sandbox.process_kubelet.container import ProcessSpec
from roles.sandbox.process_kubelet.limits import CgroupLimits, container_limits, oom_score_adj, pod_limits
from roles.sandbox.process_kubelet.status import field_ref

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
REFERENCE = re.compile(r"\$(\$?)\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")


def native(resources: Mapping[str, Any] | None) -> dict[str, int]:
    """The cpu (milli-CPU) and memory (bytes) of one resource list; other names do not reach native cgroup settings."""
    found: dict[str, int] = {}
    for name, text in (resources or {}).items():
        if name == "cpu":
            found["cpu"] = parse_milli(text)
        elif name == "memory":
            found["memory"] = parse_value(text)
    return found


def effective(container: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """(requests, limits) of a container; a limit without a request is the request."""
    resources = container.get("resources") or {}
    limits = native(resources.get("limits"))
    return {**limits, **native(resources.get("requests"))}, limits


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """The larger of the sum over containers and each init container, plus overhead."""
    total: dict[str, int] = {}
    for container in spec.get("containers") or []:
        for name, value in effective(container)[0].items():
            total[name] = total.get(name, 0) + value
    for container in spec.get("initContainers") or []:
        for name, value in effective(container)[0].items():
            total[name] = max(total.get(name, 0), value)
    for name, value in native(spec.get("overhead")).items():
        total[name] = total.get(name, 0) + value
    return total


def kubernetes_qos(spec: Mapping[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort by cpu and memory alone."""
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    pairs = [effective(c) for c in containers]
    if not any(v > 0 for requests, limits in pairs for v in (*requests.values(), *limits.values())):
        return "BestEffort"
    full = all(limits.get(n, 0) > 0 and requests.get(n) == limits[n] for requests, limits in pairs for n in ("cpu", "memory"))
    return "Guaranteed" if full else "Burstable"


def limits_of_pod(spec: Mapping[str, Any]) -> CgroupLimits:
    """Cgroup settings of the pod's directory."""
    return pod_limits(kubernetes_qos(spec), pod_requests(spec), [effective(c)[1] for c in spec.get("containers") or []])


def limits_of_container(container: Mapping[str, Any]) -> CgroupLimits:
    """Cgroup settings of a container's directory."""
    return container_limits(*effective(container))


def process_spec(pod: Mapping[str, Any], container: Mapping[str, Any], *, host_ip: str, memory_capacity: int) -> ProcessSpec:
    """The host process of a container: command and args with `$(VAR)` expanded, and a small environment of its own."""
    env = {"PATH": DEFAULT_PATH, "HOSTNAME": str(pod["metadata"]["name"])}
    for variable in container.get("env") or []:
        source = variable.get("valueFrom")
        value = field_ref(pod, source["fieldRef"]["fieldPath"], host_ip) if source else variable.get("value", "")
        env[variable["name"]] = expand(str(value or ""), env)
    argv = [expand(word, env) for word in [*container["command"], *(container.get("args") or [])]]
    security = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    adj = oom_score_adj(kubernetes_qos(pod["spec"]), effective(container)[0].get("memory", 0), memory_capacity)
    return ProcessSpec(argv, env, container.get("workingDir"), security.get("runAsUser"), security.get("runAsGroup"), adj)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable's value; an unknown name stays as it is, `$$(NAME)` is the literal text."""

    def value(match: re.Match[str]) -> str:
        if match.group(1):
            return f"$({match.group(2)})"
        return env.get(match.group(2), match.group(0))

    return REFERENCE.sub(value, text)
