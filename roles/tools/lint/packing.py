"""Whether a scheduler's configuration allocates fewer GPUs than a random choice of nodes does, on the cluster of the files (BEY-LINT-02).

The cluster's nodes, emptied of pods with GPUs, are filled by the scheduler's own cycle with pods drawn from those of the files that ask for
GPUs, until as many cards are asked for as there are; and once more with every score left out, so that the cycle picks a node at random.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from koord.accounting.resources import parse as amounts_of
from koord.api import names
from koord.api.objects import Device, Node, ObjectMeta, Pod, convert
from koord.api.quantity import QuantityError
from koord.config.scheduler import KubeSchedulerConfiguration, parse
from roles.scheduler.cluster.podinfo import PodParser
from roles.scheduler.cluster.vocabulary import Vocabulary
from roles.scheduler.engine import registry
from roles.scheduler.framework.registry import Registry
from roles.scheduler.plugins.device_share.mix import class_of
from roles.scheduler.whatif import Simulation, Snapshot
from roles.tools.lint.finding import Finding, Level
from roles.tools.lint.sources import Document

Obj = dict[str, Any]
DRAWS = 5
CARDS = 256
PODS = 400
"""So many cards and pods are drawn for at most, on nodes that stand for the others: that bounds the time, to a few seconds."""
MARGIN = 1.0
"""Percent of the cards; what is less than that behind chance is not told."""
_NOW = 1.0
_KEPT = (names.ANNOTATION_DEVICE_ALLOCATE_HINT, names.ANNOTATION_DEVICE_JOINT_ALLOCATE, names.ANNOTATION_GPU_PARTITION_SPEC)


class Mix(NamedTuple):
    """Nodes with GPUs, their Devices, the pods without GPUs that are on them, and what pods with GPUs look like, with their percent."""

    nodes: list[Node]
    devices: list[Device]
    others: list[Pod]
    asking: list[tuple[Pod, int]]
    capacity: int  # percent of a card


def check(documents: Sequence[Document], objects: Iterable[Obj], plugins: Registry | None = None) -> Iterator[Finding]:
    """A warning for each configuration of a scheduler that does worse than chance. Says nothing where no nodes and pods with GPUs are."""
    if not documents or (found := mix(objects)) is None:
        return
    for document in documents:
        config = parse(document.data, document.source.name)
        ours, chance = compare(config, found, plugins)
        behind = [one - other for one, other in zip(ours, chance, strict=True)]
        if statistics.fmean(behind) < -MARGIN and sum(one < 0 for one in behind) > 2 * sum(one > 0 for one in behind):
            message = (
                f"allocates {statistics.fmean(ours):.1f} % of the GPUs where random allocates {statistics.fmean(chance):.1f} %: "
                f"{len(found.asking)} pods of these files that ask for GPUs, drawn {DRAWS} times until as many cards are asked for as "
                f"{len(found.nodes)} nodes have; DeviceShare with scoringStrategy LeastStranded leaves fewer cards stranded"
            )
            yield document.finding(message, "profiles" if "profiles" in document.data else "kind", level=Level.WARNING)


def compare(config: KubeSchedulerConfiguration, found: Mix, plugins: Registry | None = None) -> tuple[list[float], list[float]]:
    """Percent of the cards that are allocated: by the configuration and by chance, draw by draw."""
    by_chance = scoreless(config)
    known = registry(entry_points=False) if plugins is None else plugins
    ours, chance = [], []
    for draw in range(DRAWS):
        pods = arrivals(found, draw, [profile.scheduler_name for profile in config.profiles])
        ours.append(allocated(config, found, pods, draw, known))
        chance.append(allocated(by_chance, found, pods, draw, known))
    return ours, chance


def scoreless(config: KubeSchedulerConfiguration) -> KubeSchedulerConfiguration:
    """The same without a score: one of the nodes that a pod fits is as good as the other."""
    wire = config.model_dump(by_alias=True, exclude_unset=True)
    wire["profiles"] = [profile.model_dump(by_alias=True, exclude_unset=True) for profile in config.profiles]
    for profile in wire["profiles"]:
        plugins = profile["plugins"] = dict(profile.get("plugins") or {})
        plugins["score"] = {"disabled": [{"name": "*"}]}
        if plugins.get("multiPoint"):
            plugins["score"]["disabled"] += [{"name": each["name"]} for each in plugins["multiPoint"].get("enabled") or ()]
    return KubeSchedulerConfiguration.model_validate(wire)


def allocated(config: KubeSchedulerConfiguration, found: Mix, pods: Sequence[tuple[Pod, int]], seed: int, plugins: Registry) -> float:
    """Percent of the cards that pods get, in this order."""
    snapshot = Snapshot(found.nodes, found.others, objects={"Device": found.devices})
    simulation = Simulation(snapshot, config=config, now=_NOW, seed=seed, plugins=plugins)
    placed = {one.pod for one in simulation.place(pod for pod, _ in pods) if one.placed}
    return 100.0 * sum(percent for pod, percent in pods if pod.key in placed) / found.capacity


def arrivals(found: Mix, seed: int, schedulers: Sequence[str]) -> list[tuple[Pod, int]]:
    """Pods like those of the mix, drawn until they ask for all of the cards."""
    drawn, asked = random.Random(seed), 0
    pods: list[tuple[Pod, int]] = []
    while True:
        pod, percent = drawn.choice(found.asking)
        asked += percent
        if asked > found.capacity and pods:
            return pods
        name = f"drawn-{len(pods)}"
        meta = msgspec.structs.replace(pod.metadata, name=name, uid=name)
        if pod.spec.scheduler_name not in schedulers:
            pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduler_name=schedulers[0]))
        pods.append((msgspec.structs.replace(pod, metadata=meta), percent))


# ---------------------------------------------------------------- what the files hold


def mix(objects: Iterable[Obj]) -> Mix | None:
    """What can be said of GPUs; None without two nodes that have some and a pod that asks for some. What cannot be read is left out."""
    nodes: list[tuple[Node, int]] = []
    devices: dict[str, Device] = {}
    asking: list[tuple[Pod, int]] = []
    others: list[Pod] = []
    parser = PodParser(Vocabulary())
    for obj in objects:
        try:
            match obj.get("kind"):
                case "Node":
                    node = convert(obj, Node)
                    if cards := _cards(node):
                        nodes.append((node, cards))
                case "Device":
                    device = convert(obj, Device)
                    devices[device.metadata.name] = device
                case "Pod":
                    pod = convert(obj, Pod)
                    wanted = class_of(parser.parse(pod).shape)
                    if wanted is None:
                        others.append(pod)
                    elif wanted.gpu:
                        asking.append((_alone(pod), wanted.gpu))
        except (msgspec.ValidationError, QuantityError, TypeError, ValueError):
            continue  # told by those who check the object
    if not asking:
        return None
    chosen = _some(nodes, min(CARDS, PODS * statistics.fmean(percent for _, percent in asking) / 100))
    if len(chosen) < 2:
        return None
    held = [devices.get(node.metadata.name) or _device(node, cards) for node, cards in chosen]
    there = {node.metadata.name for node, _ in chosen}
    kept = [pod for pod in others if pod.spec.node_name in there]
    return Mix([node for node, _ in chosen], held, kept, asking, 100 * sum(cards for _, cards in chosen))


def _cards(node: Node) -> int:
    amounts = amounts_of(node.status.allocatable)
    whole = max(amounts.get(name, 0) for name in (names.RESOURCE_NVIDIA_GPU, names.RESOURCE_AMD_GPU, names.RESOURCE_HYGON_DCU))
    return int(whole or amounts.get(names.RESOURCE_GPU_CORE, 0) // 100)


def _some(nodes: Sequence[tuple[Node, int]], most: float) -> list[tuple[Node, int]]:
    """Every n-th node of each kind, so that they have about so many cards; two at least."""
    ordered = sorted(nodes, key=lambda item: (item[1], sorted(item[0].status.allocatable.items()), item[0].metadata.name))
    every = max(1.0, min(sum(cards for _, cards in ordered) / most, len(ordered) / 2))
    return [ordered[int(index * every)] for index in range(int(len(ordered) / every))]


def _alone(pod: Pod) -> Pod:
    """What the pod asks of a node, and nothing that binds it to other pods, to a quota or to where it is."""
    annotations = {key: value for key, value in pod.metadata.annotations.items() if key in _KEPT}
    affinity = pod.spec.affinity
    if affinity is not None:
        affinity = msgspec.structs.replace(affinity, pod_affinity=None, pod_anti_affinity=None)
    spec = msgspec.structs.replace(
        pod.spec, node_name="", affinity=affinity, topology_spread_constraints=(), priority=None, preemption_policy="Never", volumes=()
    )
    return msgspec.structs.replace(
        pod, metadata=ObjectMeta(namespace="default", annotations=annotations), spec=spec, status=type(pod.status)()
    )


def _device(node: Node, cards: int) -> Device:
    """What a node's cards look like where no Device tells."""
    each: Mapping[str, str] = {names.RESOURCE_GPU_CORE: "100", names.RESOURCE_GPU_MEMORY_RATIO: "100", names.RESOURCE_GPU_MEMORY: "80Gi"}
    found = [{"type": "gpu", "id": f"gpu-{minor}", "minor": minor, "health": True, "resources": each} for minor in range(cards)]
    return msgspec.convert({"metadata": {"name": node.metadata.name}, "spec": {"devices": found}}, Device)
