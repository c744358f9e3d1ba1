"""What the descheduler would move: its own rounds on the objects, and the scheduler asked where pods would go (BEY-SIM-01).

A round is as long after the one before as the configuration says. Pods that leave come again where the scheduler puts them, with what they
used; everything else is measured as it is now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from koord.accounting.resources import format_value, parse_quantity
from koord.api import kinds, trust
from koord.api.objects import Node, NodeMetric, Pod
from koord.api.times import format_time
from roles.descheduler.build import Options
from roles.descheduler.framework.evicting import Evicting, EvictOptions, EvictResult
from roles.descheduler.journal import Seen
from roles.descheduler.migration.template import elsewhere
from roles.descheduler.replaying import Rerun, Round, Then
from roles.scheduler.whatif import Placement
from roles.tools.simulate.cluster import Cluster, Obj, Structs, key_of

Ask = Callable[[Cluster, Sequence[Pod]], list[Placement]]


@dataclass(slots=True)
class Moved:
    """A pod that the descheduler takes from `node`; `to` is where it comes again, "" for nowhere: then it stays. `round` counts from 1."""

    pod: str
    node: str
    to: str
    reason: str
    round: int


class _Leaving(Then):
    """Lets everybody go, and remembers who and why."""

    def __init__(self) -> None:
        super().__init__({})
        self.left: list[tuple[Pod, EvictOptions]] = []

    async def evict(self, evictor: Evicting, pod: Pod, options: EvictOptions) -> EvictResult:
        """Granted."""
        self.left.append((pod, options))
        return EvictResult(True)


def moves(cluster: Cluster, options: Options, ask: Ask, structs: Structs, now: float, rounds: int) -> tuple[Cluster, list[Moved]]:
    """So many rounds of the descheduler: the cluster then, and who was moved."""
    return asyncio.run(_moves(cluster.copy(), options, ask, structs, now, rounds))


async def _moves(
    cluster: Cluster, options: Options, ask: Ask, structs: Structs, now: float, rounds: int
) -> tuple[Cluster, list[Moved]]:  # fmt: skip
    rerun, found = Rerun(options), list[Moved]()
    stuck: set[str] = set()
    for number in range(rounds):
        at = now + number * options.config.descheduling_interval
        _report(cluster, at)
        acting = _Leaving()
        await rerun.make(Round(at, _seen(cluster, structs), {}, {}, [], _waiting(cluster, structs)), acting)
        leaving = [(pod, why) for pod, why in acting.left if pod.key not in stuck]
        if not leaving:
            continue
        without = cluster.copy()
        for pod, _ in leaving:
            without.all(kinds.PODS).pop(pod.key, None)
        wanted = [_again(pod, why) for pod, why in leaving]
        places = {placement.pod: placement.node for placement in ask(without, wanted)}
        for pod, why in leaving:
            source, target = pod.spec.node_name, places.get(pod.key, "")
            found.append(Moved(pod.key, source, target, why.reason, number + 1))
            if target:
                _move(cluster, pod.key, source, target)
            else:
                stuck.add(pod.key)
    return cluster, found


def _again(pod: Pod, why: EvictOptions) -> Pod:
    """The pod as its reservation asks for it."""
    made = elsewhere(pod, tuple(why.relief.nodes) if why.relief is not None else None)
    meta = msgspec.structs.replace(made.metadata, annotations=trust.unplaced(made.metadata.annotations))
    spec = msgspec.structs.replace(made.spec, node_name="")
    return msgspec.structs.replace(made, metadata=meta, spec=spec, status=msgspec.structs.replace(made.status, phase="Pending"))


def _seen(cluster: Cluster, structs: Structs) -> list[Seen]:
    there, metrics = cluster.pods_by_node(), cluster.all(kinds.NODEMETRICS)
    return [
        Seen(
            structs.of(node, Node),
            [structs.of(pod, Pod) for pod in there[name]],
            structs.of(metrics[name], NodeMetric) if name in metrics else None,
        )
        for name, node in sorted(cluster.all(kinds.NODES).items())
    ]


def _waiting(cluster: Cluster, structs: Structs) -> list[Pod]:
    """Pods without a node."""
    pods = (structs.of(pod, Pod) for pod in cluster.pods_by_node()[""])
    return [pod for pod in pods if pod.status.phase not in ("Succeeded", "Failed")]


def _report(cluster: Cluster, at: float) -> None:
    """Every node reports again, what it uses now."""
    for metric in list(cluster.all(kinds.NODEMETRICS).values()):
        cluster.put({**metric, "status": {**(metric.get("status") or {}), "updateTime": format_time(at)}})


def _move(cluster: Cluster, key: str, source: str, target: str) -> None:
    """The pod runs on the other node now, with what it used. Which CPUs and devices it has there, nobody knows."""
    pod = cluster.all(kinds.PODS)[key]
    meta = {**pod["metadata"], "annotations": trust.unplaced(pod["metadata"].get("annotations") or {})}
    cluster.put({**pod, "metadata": meta, "spec": {**pod["spec"], "nodeName": target}})
    metrics = cluster.all(kinds.NODEMETRICS)
    entry = None
    if source in metrics:
        status = metrics[source].get("status") or {}
        entry = next((each for each in status.get("podsMetric") or () if key_of({"metadata": each}) == key), None)
        if entry is not None:
            cluster.put({**metrics[source], "status": _with(status, entry, -1)})
    if entry is not None and target in metrics:
        cluster.put({**metrics[target], "status": _with(metrics[target].get("status") or {}, entry, 1)})


def _with(status: Obj, entry: Obj, sign: int) -> Obj:
    """A report with a pod more, or less."""
    info: dict[str, Any] = status.get("nodeMetric") or {}
    use = {**((info.get("nodeUsage") or {}).get("resources") or {})}
    for name, text in ((entry.get("podUsage") or {}).get("resources") or {}).items():
        use[name] = format_value(name, max(0, parse_quantity(name, use.get(name, 0)) + sign * parse_quantity(name, text)))
    pods = [each for each in status.get("podsMetric") or () if each is not entry] + ([entry] if sign > 0 else [])
    return {**status, "nodeMetric": {**info, "nodeUsage": {"resources": use}}, "podsMetric": pods}
