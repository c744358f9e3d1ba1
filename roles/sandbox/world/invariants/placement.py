"""Where pods are put: nothing is given away twice, and nobody is moved by a binding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from koord.api.quantity import parse_milli, parse_value
from roles.sandbox.world.host.layout import allocated_cpus
from roles.sandbox.world.invariants.base import (
    DEVICE_ALLOCATED,
    POD,
    RESOURCE_STATUS,
    Invariant,
    Obj,
    annotations_of,
    bound_by,
    node_of,
    requests,
    role_of,
    written_in,
)

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry


class NodeNotOvercommitted(Invariant):
    """Pods are assigned to a node only while their requests fit into its CPU, memory and pod places."""

    hears = frozenset({POD})

    def see(self, entry: Entry) -> Iterator[str]:
        if not bound_by(entry):
            return
        name = node_of(entry.new)
        node = self.history.of("node").get(name)
        if node is None:
            return
        room = (node.get("status") or {}).get("allocatable") or {}
        total: dict[str, int] = defaultdict(int)
        count = 0
        for pod in self.pods_of(name):
            count += 1
            for resource, amount in requests(pod).items():
                total[resource] += amount
        for resource, parse in (("cpu", parse_milli), ("memory", parse_value)):
            if total[resource] > parse(room.get(resource, "0")):
                yield f"{entry.key} on {name}: {resource} {total[resource]} of {parse(room.get(resource, '0'))}"
        if count > parse_value(room.get("pods", "110")):
            yield f"{entry.key} on {name}: {count} pods"


def cards_used(pods: Iterable[Obj]) -> dict[tuple[str, str, int], int]:
    """How much of each card is given away to these pods, in percent, by (node, kind, minor)."""
    used: dict[tuple[str, str, int], int] = defaultdict(int)
    for pod in pods:
        for kind, cards in written_in(pod, DEVICE_ALLOCATED).items():
            for card in (card for card in (cards if isinstance(cards, list) else ()) if isinstance(card, dict)):
                amounts = card.get("resources") or {}
                share = parse_value(amounts.get("koordinator.sh/gpu-core", amounts.get("koordinator.sh/rdma", "0")))
                used[node_of(pod), kind, int(card.get("minor", 0))] += share
    return used


class DeviceOnce(Invariant):
    """No card is given away beyond its 100 %."""

    hears = frozenset({POD})

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or DEVICE_ALLOCATED not in annotations_of(entry.new):
            return
        for (node, kind, minor), share in cards_used(self.pods_of(node_of(entry.new))).items():
            if share > 100:
                yield f"{kind} {minor} of {node} is given away to {share} %"


class ExclusiveCpuOnce(Invariant):
    """No CPU is exclusive to two pods."""

    hears = frozenset({POD})

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or RESOURCE_STATUS not in annotations_of(entry.new):
            return
        owner: dict[tuple[str, int], str] = {}
        for pod in self.pods_of(node_of(entry.new)):
            if (pod["metadata"].get("labels") or {}).get("koordinator.sh/qosClass") not in ("LSR", "LSE"):
                continue
            for cpu in sorted(allocated_cpus(annotations_of(pod).get(RESOURCE_STATUS, ""))):
                other = owner.setdefault((node_of(pod), cpu), pod["metadata"]["name"])
                if other != pod["metadata"]["name"]:
                    yield f"CPU {cpu} of {node_of(pod)} is exclusive to {other} and {pod['metadata']['name']}"


class BoundOnce(Invariant):
    """A pod is assigned once and stays where it is."""

    hears = frozenset({POD})

    def see(self, entry: Entry) -> Iterator[str]:
        old, new = entry.old, entry.new
        if entry.bucket != "pod" or old is None or new is None or not node_of(old) or node_of(new) == node_of(old):
            return
        if new["metadata"]["uid"] == old["metadata"]["uid"]:
            yield f"{entry.key} was on {node_of(old)} and is on {node_of(new)}"


class BoundIsScheduled(Invariant):
    """A pod that has a node is never told that it was not scheduled."""

    hears = frozenset({POD})

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == "pod" and role_of(entry.author) == "scheduler" and node_of(entry.new):
            for condition in ((entry.new or {}).get("status") or {}).get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    yield f"{entry.key} is on {node_of(entry.new)} and was told {condition.get('reason')}"
