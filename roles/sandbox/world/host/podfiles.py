"""What a kubelet sets in the cgroups of pods, by what they request and are limited to."""

from __future__ import annotations

from typing import Any

from roles.sandbox.process_kubelet import podspec
from roles.sandbox.process_kubelet.limits import CgroupLimits, shares_of, weight_of
from roles.sandbox.world.host.layout import BURSTABLE, LEVELS, LIMIT, MEMSW, PERIOD_US, QUOTA, SHARES, UNLIMITED
from roles.sandbox.world.host.machine import Machine, Resident

Obj = dict[str, Any]


def _weight(machine: Machine, shares: int) -> int:
    return shares if machine.layout.version == 1 else weight_of(shares)


def _apply(machine: Machine, group: str, wanted: CgroupLimits, author: str, cause: str, *, shrink: bool = True) -> bool:
    """Whether the kernel took everything. Without `shrink` limits only grow: what is below the group has more than it is to have."""
    v1 = machine.layout.version == 1
    known = machine.kernel.groups[group]
    taken = [machine.set(group, SHARES, _weight(machine, wanted.cpu_shares), author, cause)]
    quota = wanted.cpu_quota_us
    if shrink or quota < 0 or 0 <= known.quota < quota:
        taken.append(machine.set(group, QUOTA, quota if v1 else f"{'max' if quota < 0 else quota} {PERIOD_US}", author, cause))
    limit = wanted.memory_bytes if wanted.memory_bytes >= 0 else UNLIMITED
    grows = limit > known.limit
    knobs = [knob for knob in (MEMSW, LIMIT) if knob in machine.layout.knobs]
    if shrink or grows:
        for knob in knobs if grows else reversed(knobs):
            taken.append(machine.set(group, knob, limit if v1 or wanted.memory_bytes >= 0 else "max", author, cause))
    return all(taken)


def pod(machine: Machine, resident: Resident, author: str, *, shrink: bool = True) -> bool:
    """The group of a pod that is admitted, or resized; whether the kernel took everything."""
    return _apply(machine, resident.group, podspec.limits_of_pod(resident.pod["spec"]), author, "pod", shrink=shrink)


def container(machine: Machine, group: str, body: Obj, author: str) -> bool:
    """The group of a container that is started, or resized; whether the kernel took everything."""
    return _apply(machine, group, podspec.limits_of_container(body), author, "container")


def levels(machine: Machine, author: str) -> None:
    """The weight of the burstable level is what its pods request."""
    specs = [resident.pod["spec"] for resident in machine.residents.values() if resident.kube_qos == BURSTABLE]
    total = sum(podspec.pod_requests(spec).get("cpu", 0) for spec in specs)
    machine.set(LEVELS[BURSTABLE], SHARES, _weight(machine, shares_of(total)), author, "level")
