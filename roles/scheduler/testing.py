"""A small world for tests of plugins and of the cycle: nodes and pods by keyword, decisions in one call. No API server, no clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from koord.api.objects import Node, Pod
from koord.config.scheduler import Profile
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo, PodParser
from roles.scheduler.cluster.vocabulary import Vocabulary
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.framework.context import State
from roles.scheduler.framework.events import ClusterEvent
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Plugin, PodObserver
from roles.scheduler.plugins.registry import built_in

SCHEDULER = "koord-scheduler"


class RefusedError(Exception):
    """A plugin's `reserve` refused the pod on the node that was chosen; the text is its reason."""


class _Strict(Cluster):
    """Passes on what columns raise."""

    def _failed(self, step: Callable[..., Any], failure: BaseException) -> None:
        raise failure


_numbers = itertools.count(1)


def node(name: str, *, labels: Mapping[str, str] | None = None, taints: Iterable[Mapping[str, str]] = (), unschedulable: bool = False,
         images: Mapping[str, int] | None = None, annotations: Mapping[str, str] | None = None, **allocatable: Any) -> Node:  # fmt: skip
    """A Node; keyword arguments are allocatable resources ("/" and "-" written as "__" and "_"); 8 CPUs, 32Gi, 110 pods by default."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    amounts.update({key.replace("__", "/").replace("_", "-"): value for key, value in allocatable.items()})
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, **(labels or {})},
                "annotations": dict(annotations or {}),
            },
            "spec": {"taints": [dict(taint) for taint in taints], "unschedulable": unschedulable},
            "status": {"allocatable": amounts, "images": [{"names": [image], "sizeBytes": size} for image, size in (images or {}).items()]},
        },
        Node,
    )


def pod(
    name: str = "",
    *,
    cpu: str | None = "1",
    memory: str | None = "1Gi",
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    priority: int | None = None,
    node: str = "",
    uid: str = "",
    ports: Iterable[Mapping[str, Any]] = (),
    image: str = "registry.k8s.io/pause:3.9",
    limits: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
    scheduler: str = SCHEDULER,
    **spec: Any,
) -> Pod:
    """A Pod with one container; further keyword arguments are fields of its spec in wire names."""
    number = next(_numbers)
    amounts = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    amounts.update(requests or {})
    container = {"name": "main", "image": image, "ports": list(ports), "resources": {"requests": amounts, "limits": dict(limits or {})}}
    return msgspec.convert(
        {
            "metadata": {
                "name": name or f"pod-{number}", "namespace": namespace, "uid": uid or f"uid-{number}", "labels": dict(labels or {}),
                "annotations": dict(annotations or {}), "ownerReferences": spec.pop("ownerReferences", []),
            },
            "spec": {"schedulerName": scheduler, "nodeName": node, "priority": priority, "containers": [container], **spec},
            "status": dict(status or {}),
        },
        Pod,
    )  # fmt: skip


class World:
    """A cluster with one profile and its cycle. `plugins` are classes beside the built-in ones; `profile` is the profile's content;
    every `verify`-th decision is compared with a fresh one. `strict`: columns that raise fail the test; a scheduler logs it and goes on."""

    def __init__(
        self,
        profile: Mapping[str, Any] | None = None,
        *,
        plugins: Iterable[type[Plugin]] = (),
        seed: int = 1,
        now: float = 1_000_000.0,
        gates: Mapping[str, bool] | None = None,
        verify: int | None = None,
        strict: bool = True,
    ) -> None:
        self.vocabulary = Vocabulary()
        self.cluster = _Strict(self.vocabulary) if strict else Cluster(self.vocabulary)
        self.parser = PodParser(self.vocabulary)
        self.state = State(self.cluster, now=now, seed=seed)
        registry = built_in()
        for plugin in plugins:
            registry.add(plugin, "the test")
        content = {"schedulerName": SCHEDULER, **(profile or {})}
        self.handle = Handle(self.state, self.parser, SCHEDULER, gates=dict(gates or {}))
        self.framework = Framework(Profile.model_validate(content), registry, self.handle)
        self.handle.frameworks[SCHEDULER] = self.framework
        self.cycle = Cycle({SCHEDULER: self.framework}, self.state, verify=verify)

    def add_nodes(self, *nodes: Node) -> None:
        """Add or change nodes."""
        for item in nodes:
            self.cluster.set_node(NodeView(item))

    def remove_nodes(self, *names: str) -> None:
        """Delete nodes; their pods stay until they are removed, too."""
        for name in names:
            self.cluster.remove_node(name)

    def add_pods(self, *pods: Pod) -> list[PodInfo]:
        """Count pods that have a node, as a scheduler that starts does. One with a known uid has changed."""
        infos = [self.parser.parse(item) for item in pods]
        for info in infos:
            for observer in self._observers():
                observer.pod_seen(info)
            self.cluster.add_pod(info, info.node_name)
        return infos

    def remove_pods(self, *uids: str) -> None:
        """Delete pods."""
        for uid in uids:
            for observer in self._observers():
                observer.pod_gone(uid)
            self.cluster.remove_pod(uid)

    def _observers(self) -> list[PodObserver]:
        return [plugin for plugin in self.framework.plugins.values() if isinstance(plugin, PodObserver)]

    def feed(self, kind: str, new: Any, old: Any = None) -> None:
        """Hand an object to the plugins that observe its kind."""
        for plugin in self.framework.plugins.values():
            for feed in plugin.feeds():
                if feed.kind.kind == kind:
                    feed.observe(old, msgspec.convert(new, feed.projection) if isinstance(new, dict) else new)

    def decide(self, item: Pod | PodInfo) -> Decision:
        """Decide a pod, changing nothing."""
        return self.cycle.decide(item if isinstance(item, PodInfo) else self.parser.parse(item))

    def schedule(self, item: Pod | PodInfo) -> Decision:
        """Decide a pod and, if a node was found, count it there and reserve. Raises RefusedError, and takes the pod back, where a plugin's
        `reserve` refuses."""
        decision = self.decide(item)
        decision.take_effect()
        if decision.scheduled:
            self.framework.run_resize(decision.ctx, decision.slot)
            self.cluster.place(decision.pod, decision.slot)
            if not (status := self.framework.run_reserve(decision.ctx, decision.slot)).ok:
                self.take_back(decision)
                raise RefusedError(status.message)
        return decision

    def take_back(self, decision: Decision) -> None:
        """Undo `schedule`, as if the binding had failed."""
        self.framework.run_unreserve(decision.ctx, decision.slot)
        self.cluster.remove_pod(decision.pod.uid)
        self.framework.run_forget(decision.pod)

    def wakes(self, decision: Decision, event: ClusterEvent) -> bool:
        """Whether a pod that was refused is tried again after an event: a plugin that refused it subscribed to it, and its hint agrees; or
        none refused it. `old` and `new` of the event may also be made by `node` and `pod`. What a hint raises fails the test."""
        if not decision.rejected_by:
            return True
        event = event._replace(old=self._seen(event.old), new=self._seen(event.new))
        plugins = self.framework.plugins
        asked = [each for name in decision.rejected_by if name in plugins for each in plugins[name].subscriptions() if each.covers(event)]
        helpful = [each for each in asked if each.nobody is None or not each.nobody(event)]
        return any(each.hint is None or each.hint(decision.pod, each.keep(event) if each.keep is not None else event) for each in helpful)

    def _seen(self, thing: Any) -> Any:
        """What a hint gets to see of an object."""
        if isinstance(thing, Node):
            return NodeView(thing)
        return self.parser.parse(thing) if isinstance(thing, Pod) else thing
