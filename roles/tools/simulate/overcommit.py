"""What the manager would make of a cluster: the amounts that nodes offer to best-effort pods, and new pods as admission changes them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from koord.api import kinds
from koord.api.objects import (
    ClusterColocationProfile,
    Device,
    Node,
    NodeMetric,
    NodeResourceTopology,
    Pod,
    PriorityClassObject,
    convert,
)
from koord.api.objects import Namespace as NamespaceObject
from koord.config.gates import MANAGER, FeatureGates
from koord.config.slo import SLOConfig, parse
from koord.process.errors import ConfigurationError
from roles.manager.noderesource.inputs import pod_input
from roles.manager.noderesource.model import Inputs
from roles.manager.noderesource.plan import PLUGIN_NAMES, decide, format_amount
from roles.manager.options import Options
from roles.manager.webhooks import pod_mutate
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.view import View
from roles.tools.simulate.cluster import Cluster, Held, Obj, Structs, key_of

_ABOUT: tuple[Any, ...] = (NodeMetric, NodeResourceTopology, Device)


def config_of(cluster: Cluster) -> SLOConfig | None:
    """The cluster's slo-controller-config; None without one: then what nodes offer stays. Raises ConfigurationError."""
    data = cluster.slo_config()
    if data is None:
        return None
    result = parse(data, previous=None)
    if result.errors:
        raise ConfigurationError("; ".join(f"slo-controller-config: {error}" for error in result.errors))
    return result.config


class Overcommit:
    """Batch and Mid of every node as the manager would set them at `now` (Unix time). A node about which nothing has changed is looked at
    once, however many copies it is in."""

    def __init__(self, structs: Structs, now: float) -> None:
        self._structs, self._now = structs, now
        self._known: dict[tuple[Any, ...], tuple[Obj, ...]] = {}

    def offered(self, cluster: Cluster) -> Cluster:
        """The cluster with what nodes would offer then. Raises ConfigurationError."""
        config = config_of(cluster)
        if config is None:
            return cluster
        pods = cluster.pods_by_node()
        result, key = cluster.copy(), tuple(sorted((cluster.slo_config() or {}).items()))
        for name, node in cluster.all(kinds.NODES).items():
            about = [cluster.all(kind).get(name) for kind in (kinds.NODEMETRICS, kinds.NODERESOURCETOPOLOGIES, kinds.DEVICES)]
            seen = (key, id(node), *map(id, about), *map(id, pods[name]))
            if seen not in self._known:
                self._known[seen] = (self._node(config, node, about, pods[name]), node, *pods[name])  # kept: an id is one object's
            result.put(self._known[seen][0])
        return result

    def _node(self, config: SLOConfig, node: Obj, about: list[Obj | None], pods: list[Obj]) -> Obj:
        found = self._structs.of(node, Node)
        read = [None if obj is None else self._structs.of(obj, target) for obj, target in zip(about, _ABOUT, strict=True)]
        inputs = Inputs(
            node=found,
            strategy=config.colocation_for(found),
            now=self._now,
            pods=tuple(made for pod in pods if (made := pod_input(self._structs.of(pod, Pod))) is not None),
            metric=read[0],
            topology=read[1],
            device=read[2],
            normalization=config.cpu_normalization_for(found),
            amplification=config.resource_amplification_for(found),
        )
        plan = decide(inputs, cluster_enabled=config.cluster_enabled, plugins=PLUGIN_NAMES, last_write=None)
        if not plan.resources and not plan.removed:
            return node
        amounts = {resource: format_amount(resource, amount) for resource, amount in plan.resources.items()}
        status = {**(node.get("status") or {})}
        for section in ("capacity", "allocatable"):
            status[section] = {key: value for key, value in (status.get(section) or {}).items() if key not in plan.removed} | amounts
        return {**node, "status": status}


# ---------------------------------------------------------------- admission


class _Nothing:
    """An API server that knows the snapshot's objects only."""

    async def get(self, kind: kinds.Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """What admission asks the API server for, because no informer has it: nobody has."""
        return None


def admitted(cluster: Cluster, pods: list[Obj], draw: Any) -> tuple[list[Obj], dict[str, str]]:
    """New pods as the manager's webhook changes them, and why some are refused, by key."""
    nothing: Any = _Nothing()
    view = View(Options(), FeatureGates(MANAGER), nothing, draw)
    view.live = nothing
    view.namespaces = Held({name: convert(obj, NamespaceObject) for name, obj in cluster.all(kinds.NAMESPACES).items()})
    view.priority_classes = Held({name: convert(obj, PriorityClassObject) for name, obj in cluster.all(kinds.PRIORITYCLASSES).items()})
    for profile in cluster.all(kinds.CLUSTERCOLOCATIONPROFILES).values():
        view.on_profile(convert(profile, ClusterColocationProfile))

    async def change(pod: Obj) -> Obj:
        meta = pod["metadata"]
        request = Request(meta.get("uid", ""), "CREATE", "", "pods", "", meta.get("namespace", ""), meta["name"], pod, None)
        pod = pod_mutate.working_copy(pod)
        for _, step in pod_mutate.STEPS:
            pod = await pod_mutate.run_step(step, pod, request, view)
        return _with_priority(pod, cluster)

    found, refused = [], {}
    for pod in pods:
        try:
            found.append(_at_once(change(pod)))
        except Refusal as refusal:
            refused[key_of(pod)] = refusal.message
        except msgspec.ValidationError as error:
            refused[key_of(pod)] = f"the Pod cannot be read: {error}"
    return found, refused


def _at_once(work: Coroutine[Any, Any, Obj]) -> Obj:
    """The result of work that waits for nobody: its API server is the snapshot. It needs no event loop, and may run inside one."""
    try:
        work.send(None)
    except StopIteration as end:
        made: Obj = end.value
        return made
    work.close()
    raise RuntimeError("a step of admission waits for something that is not in the snapshot")


def _with_priority(pod: Obj, cluster: Cluster) -> Obj:
    """The API server's own admission: the value of the PriorityClass that the pod names, or of the default one."""
    spec = pod.get("spec") or {}
    if spec.get("priority") is not None:
        return pod
    classes = cluster.all(kinds.PRIORITYCLASSES)
    name = spec.get("priorityClassName") or next((each for each, obj in sorted(classes.items()) if obj.get("globalDefault")), "")
    value = classes[name].get("value", 0) if name in classes else 0
    return {**pod, "spec": {**spec, "priority": value} | ({"priorityClassName": name} if name else {})}
