"""Worlds with reservations: the shipped order of plugins, Reservations by keyword."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.api.objects import Reservation
from roles.scheduler import testing
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.plugins.reservation.ledger import Held
from roles.scheduler.plugins.reservation.plugin import Reservation as Plugin

Obj = dict[str, Any]
OWNER = {"app": "owner"}
BY_LABEL = [{"labelSelector": {"matchLabels": OWNER}}]
AFFINITY = "scheduling.koordinator.sh/reservation-affinity"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"

_numbers = itertools.count(1)


def enabled(*names: str) -> Obj:
    return {"enabled": [{"name": name} for name in names]}


def profile(args: Mapping[str, Any] | None = None) -> Obj:
    """What the shipped profile says about Reservation."""
    return {
        "schedulerName": testing.SCHEDULER,
        "pluginConfig": [{"name": "Reservation", "args": dict(args or {})}],
        "plugins": {
            "preFilter": enabled("Reservation"), "filter": enabled("Reservation"), "preScore": enabled("Reservation"),
            "postFilter": {"disabled": [{"name": "*"}], **enabled("Reservation", "DefaultPreemption")},
            "score": {"enabled": [{"name": "Reservation", "weight": 5000}]}, "reserve": enabled("Reservation"),
            "preBind": enabled("Reservation", "DefaultPreBind"),
            "bind": {"disabled": [{"name": "*"}], **enabled("Reservation", "DefaultBinder")},
        },
    }  # fmt: skip


def body(name: str, *, cpu: str | None = "4", memory: str | None = "4Gi", owners: list[Obj] | None = None, policy: str = "Aligned",
         once: bool = False, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None,
         template: Obj | None = None, requests: Mapping[str, str] | None = None, ports: list[Obj] | None = None,
         **spec: Any) -> Obj:  # fmt: skip
    """A Reservation as it is created."""
    amounts = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None} | dict(requests or {})
    container = {"name": "main", "image": "registry.k8s.io/pause:3.9", "resources": {"requests": amounts}, "ports": ports or []}
    spec = {
        "template": {"metadata": {}, "spec": {"schedulerName": testing.SCHEDULER, "containers": [container], **(template or {})}},
        "owners": BY_LABEL if owners is None else owners, "ttl": "24h", "allocateOnce": once, **spec,
    }  # fmt: skip
    if policy:
        spec["allocatePolicy"] = policy
    meta = {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})}
    return {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation", "metadata": meta, "spec": spec}


def placed(name: str, node: str = "", *, phase: str = "Available", **more: Any) -> Reservation:
    """A Reservation as the API server shows it; with a node it is there."""
    made = body(name, **more)
    made["metadata"].update(uid=f"{name}-uid", creationTimestamp="1970-01-12T00:00:00Z", generation=1)
    if node:
        requests = made["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
        made["status"] = {"phase": phase, "nodeName": node, "allocatable": dict(requests)}
    return msgspec.convert(made, Reservation)


class World(testing.World):
    """A world whose profile has Reservation."""

    def __init__(self, args: Mapping[str, Any] | None = None, *, gates: Mapping[str, bool] | None = None, **more: Any) -> None:
        super().__init__(profile(args), gates=dict(gates or {}), **more)
        plugin = self.framework.plugins["Reservation"]
        assert isinstance(plugin, Plugin)
        self.plugin = plugin

    def hold(self, name: str, node: str, **more: Any) -> Held:
        """A Reservation that is there."""
        self.feed("Reservation", placed(name, node, **more))
        return self.plugin.ledger.held[f"{name}-uid"]

    def owner(self, name: str = "", **more: Any) -> Decision:
        """Schedule a pod of the usual owner."""
        more.setdefault("labels", OWNER)
        return self.schedule(testing.pod(name or f"owner-{next(_numbers)}", **more))

    def uses(self, decision: Decision) -> str:
        """The reservation that a decision takes, "" for none."""
        return decision.ctx.reservation.name if decision.ctx.reservation is not None else ""

    def free(self, node: str, resource: str = "cpu") -> float:
        """What is free on a node, in base units."""
        return float(self.cluster.free[self.vocabulary.resources.find(resource)][self.cluster.slot_of(node)])
