"""Nodes with devices for tests, and pods that want some."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from roles.scheduler import testing
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.framework.context import BindDraft

Obj = dict[str, Any]

K = "koordinator.sh/"
CORE, RATIO, MEMORY, SHARED, RDMA, FPGA = K + "gpu-core", K + "gpu-memory-ratio", K + "gpu-memory", K + "gpu.shared", K + "rdma", K + "fpga"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
VENDOR, MODEL = "node.koordinator.sh/gpu-vendor", "node.koordinator.sh/gpu-model"

POINTS = ("preFilter", "filter", "reserve", "preBind")
NPU = ("huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp")
EVERYTHING = dict.fromkeys((K + "gpu", CORE, RATIO, RDMA, FPGA, "nvidia.com/gpu", "amd.com/gpu", *NPU), "1M")


def card(
    kind: str, minor: int, *, numa: int | None = 0, pcie: str = "", health: bool = True, labels: Mapping[str, str] | None = None,
    vfs: Iterable[str] = (), vf_labels: Mapping[str, str] | None = None, **amounts: str,
) -> Obj:  # fmt: skip
    """A device entry. Amounts in wire names without domain ("gpu_core"); a whole 80Gi GPU, or 100 of rdma or fpga, by default."""
    default = {CORE: "100", RATIO: "100", MEMORY: "80Gi"} if kind == "gpu" else {K + kind: "100"}
    given = {name if "/" in name else K + name.replace("_", "-"): value for name, value in amounts.items()}
    entry: Obj = {
        "type": kind, "id": f"{kind.upper()}-{minor}", "minor": minor, "health": health, "labels": dict(labels or {}),
        "resources": given or default,
    }  # fmt: skip
    if numa is not None:
        entry["topology"] = {"socketID": numa, "nodeID": numa, "pcieID": pcie or f"p{numa}", "busID": f"0000:{minor:02x}:00.0"}
    found = [{"minor": number, "busID": bus} for number, bus in enumerate(vfs)]
    if found:
        entry["vfGroups"] = [{"labels": dict(vf_labels or {}), "vfs": found}]
    return entry


def gpus(number: int, *, per_switch: int = 2, per_numa: int = 4, **more: Any) -> list[Obj]:
    """So many GPUs on switches and NUMA nodes."""
    return [card("gpu", n, numa=n // per_numa, pcie=f"p{n // per_switch}", **more) for n in range(number)]


def device(name: str, cards: Iterable[Obj], *, labels: Mapping[str, str] | None = None, partitions: Any = None) -> Obj:
    """A Device object."""
    annotations = {} if partitions is None else {"scheduling.koordinator.sh/gpu-partitions": json.dumps(partitions)}
    return {"metadata": {"name": name, "labels": dict(labels or {}), "annotations": annotations}, "spec": {"devices": list(cards)}}


def world(args: Obj | None = None, **profile: Any) -> testing.World:
    """A world in which DeviceShare is all that looks beyond plain resources."""
    on = {"enabled": [{"name": "DeviceShare"}]}
    plugins = {**dict.fromkeys(POINTS, on), "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "DeviceShare", "weight": 1}]}}
    plugins.update(profile)
    return testing.World({"plugins": plugins, "pluginConfig": [{"name": "DeviceShare", "args": args or {}}]})


def add(found: testing.World, name: str, cards: Iterable[Obj], *, node: Mapping[str, str] | None = None, **meta: Any) -> None:
    """A node with a Device object."""
    found.add_nodes(bare(name, node))
    found.feed("Device", device(name, cards, **meta))


def bare(name: str, labels: Mapping[str, str] | None = None) -> Any:
    """A node that offers any amount of every device resource. `gpu.shared` it does not: by default no manager writes it."""
    return testing.node(name, labels=labels, cpu="1000", memory="10Ti", **EVERYTHING, **{MEMORY: "10Ti"})


def pod(requests: Mapping[str, Any], *, hint: Any = None, joint: Any = None, partition: Any = None, **more: Any) -> Any:
    """A pod that requests devices."""
    annotations = dict(more.pop("annotations", {}))
    for key, value in ((HINT, hint), (JOINT, joint), (PARTITION, partition)):
        if value is not None:
            annotations[key] = value if isinstance(value, str) else json.dumps(value)
    return testing.pod(requests={name: str(value) for name, value in requests.items()}, annotations=annotations, **more)


def gpu(percent: int, **more: Any) -> Any:
    """A pod that wants so many percent of GPUs."""
    return pod({CORE: percent, RATIO: percent}, **more)


def annotation(found: testing.World, decision: Decision) -> Obj:
    """What would be written on a placed pod."""
    draft = BindDraft()
    plugin: Any = found.framework.plugins["DeviceShare"]
    asyncio.run(plugin.pre_bind(decision.ctx, decision.node, draft))
    text = draft.annotations.get(ALLOCATED)
    return json.loads(text) if text else {}


def give(found: testing.World, item: Any) -> Obj:
    """Schedule a pod; returns its annotation. Fails when it is not placed."""
    decision = found.schedule(item)
    assert decision.scheduled, decision.message()
    return annotation(found, decision)


def minors(found: testing.World, item: Any, kind: str = "gpu") -> list[int]:
    """Schedule a pod; returns the minors that it got."""
    return [entry["minor"] for entry in give(found, item).get(kind, [])]


def refusal(found: testing.World, item: Any) -> str:
    """Why a pod is not placed."""
    decision = found.decide(item)
    assert not decision.scheduled, decision.node
    return decision.message()


def holder(name: str, node: str, allocated: Obj, requests: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """A bound pod that holds devices."""
    annotations = {ALLOCATED: json.dumps(allocated), **more.pop("annotations", {})}
    return pod(requests or {CORE: 100, RATIO: 100}, name=name, node=node, annotations=annotations, **more)


def entry(minor: int, **amounts: Any) -> Obj:
    """An entry of `device-allocated`; a whole GPU by default."""
    given = {K + name.replace("_", "-"): str(value) for name, value in amounts.items()}
    return {"minor": minor, "resources": given or {CORE: "100", RATIO: "100", MEMORY: "80Gi"}}


def drafted(found: testing.World, decision: Decision) -> dict[str, Any]:
    """Annotations that would be patched."""
    draft = BindDraft()
    plugin: Any = found.framework.plugins["DeviceShare"]
    asyncio.run(plugin.pre_bind(decision.ctx, decision.node, draft))
    return draft.annotations
