"""The Node object of this machine: what a kubelet registers, and its heartbeats."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koord.api.kinds import LEASES, NODES
from koord.api.times import format_time
from koord.version import VERSION
from roles.sandbox.builders import Obj, obj
from roles.sandbox.process_kubelet.limits import node_capacity

MAX_PODS = 110
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
HEARTBEAT_SECONDS = 10.0
SANDBOX_LABEL = "sandbox.koordinator.sh/node"


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of this machine that a Node object shows. Memory in bytes."""

    cpus: int
    memory: int
    kernel: str
    machine_id: str
    boot_id: str

    @classmethod
    def read(cls, proc: Path = Path("/proc")) -> Machine:
        """CPUs this process may use, total memory, and the identities of machine and boot."""
        memory = 0
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                memory = int(line.split()[1]) * 1024
        return cls(
            cpus=len(os.sched_getaffinity(0)),
            memory=memory,
            kernel=platform.release(),
            machine_id=_text(Path("/etc/machine-id")),
            boot_id=_text(proc / "sys/kernel/random/boot_id"),
        )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def conditions(now: float, previous: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """The conditions of a healthy node at Unix time `now`; transition times are kept from `previous`."""
    before = {c.get("type"): c for c in previous}
    wanted = (
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "process kubelet is posting ready status"),
    )
    result = []
    for kind, value, reason, message in wanted:
        old = before.get(kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == value else None
        result.append(
            {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": format_time(now),
                "lastTransitionTime": since or format_time(now),
            }
        )
    return result


def node_object(name: str, machine: Machine, *, address: str, port: int, now: float) -> dict[str, Any]:
    """The Node as registered. `port` is where /pods, /configz and /healthz are served."""
    capacity = node_capacity(machine.cpus, machine.memory, MAX_PODS)
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    info = {
        "machineID": machine.machine_id,
        "systemUUID": machine.machine_id,
        "bootID": machine.boot_id,
        "kernelVersion": machine.kernel,
        "osImage": platform.platform(terse=True),
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": f"v1.30.0-koord.{VERSION}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": architecture,
    }
    return {**node_of(name, "process", capacity, address=address, port=port, info=info, now=now), "spec": {}}


def node_of(name: str, part: str, capacity: Obj, *, address: str, port: int, info: Obj, now: float) -> Obj:
    """A healthy Node of the `part` of the sandbox, simulated or process, that offers all it has."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": info["architecture"],
        SANDBOX_LABEL: part,
    }
    status = {
        "capacity": capacity,
        "allocatable": dict(capacity),
        "conditions": conditions(now),
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": info,
    }
    return obj(NODES, name, labels=labels, status=status)


def lease_object(name: str, uid: str, now: str) -> dict[str, Any]:
    """The heartbeat Lease of a node, owned by it. `now` is an RFC 3339 time with microseconds."""
    spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
    lease = obj(LEASES, name, LEASE_NAMESPACE, spec=spec)
    lease["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]
    return lease
