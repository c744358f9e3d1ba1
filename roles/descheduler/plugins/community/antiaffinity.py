"""RemovePodsViolatingInterPodAntiAffinity: evict pods beside which other pods run that they exclude (DS-K8S-06)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from operator import is_
from typing import ClassVar

import msgspec

from koord.api.objects import Pod, PodAffinityTerm
from koord.api.selectors import SelectorError, from_label_selector
from roles.descheduler.framework.effects import PAUSE, Effect, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import free
from roles.descheduler.framework.plugin import DESCHEDULE
from roles.descheduler.nodefit import anti_affinity_terms
from roles.descheduler.picture import NodeView, PodView
from roles.descheduler.plugins.community.common import CommunityArgs, least_important_first
from roles.descheduler.podindex import PodIndex, asked_for

Place = tuple[str, str]  # a value of the topology key, or a node that does not have the key
NODE = "node"
_ENCODER = msgspec.msgpack.Encoder()


class RemovePodsViolatingInterPodAntiAffinityArgs(CommunityArgs):
    """RemovePodsViolatingInterPodAntiAffinity."""


class RemovePodsViolatingInterPodAntiAffinity:
    """A Deschedule plugin without memory. A pod that leaves is no violation to the others any more."""

    name: ClassVar[str] = "RemovePodsViolatingInterPodAntiAffinity"
    point: ClassVar[str] = DESCHEDULE

    def __init__(self, args: RemovePodsViolatingInterPodAntiAffinityArgs, interval: float) -> None:
        self.args = args
        self._chosen = args.chosen()

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Node by node, the least important pod first. Pods that nothing excludes at the start are not looked at again: what leaves
        meanwhile can only make fewer pods be excluded."""
        rules: dict[bytes, Rule] = {}
        keys: set[str] = set()  # labels that rules ask for
        for node in nodes:
            for view in node.pods:
                if handle.pause():
                    yield PAUSE
                if not view.leaving and view.pod.spec.affinity is not None and self._chosen(view.pod):
                    _collect(view, rules, keys)
        if not rules:
            return
        present = Present(nodes, PodIndex(keys=keys))
        for node in nodes:
            for view in node.pods:
                if handle.pause():
                    yield PAUSE
                if not view.leaving and self._chosen(view.pod):
                    present.pods.add(view)
        broken = yield from _broken(rules, present, handle)
        yield from free(handle, rules, *present.pods.tables())
        for node in nodes:
            if handle.pause():
                yield PAUSE
            mine = broken.pop(node.name, {})
            for view in least_important_first(view for view, _ in mine.values()):
                if handle.pause():
                    yield PAUSE
                pod = view.pod
                other = next((other for rule in mine[pod.metadata.uid][1] if (other := present.excluded_by(rule, pod))), None)
                if other is None or handle.filter(pod):
                    continue
                reason = f"pod's anti-affinity excludes pod {other.metadata.namespace}/{other.metadata.name} on node {other.spec.node_name}"
                if (yield Evict(pod, reason)):
                    present.gone.add(pod.metadata.uid)


@dataclass(slots=True)
class Rule:
    """A term of pods of one namespace: the pods that have it, and the pods that it means by where they are."""

    term: PodAffinityTerm
    namespace: str
    owners: list[PodView] = field(default_factory=list)
    meant: dict[Place, dict[str, Pod]] | None = None


def _collect(view: PodView, rules: dict[bytes, Rule], keys: set[str]) -> None:
    """Each distinct term once, with its pods."""
    namespace = view.pod.metadata.namespace
    for term in anti_affinity_terms(view.pod):
        key = _ENCODER.encode((term, "" if term.namespaces else namespace))
        rule = rules.get(key)
        if rule is None:
            rule = rules[key] = Rule(term, namespace)
            keys.update(asked_for(term.label_selector))
        rule.owners.append(view)


Broken = dict[str, dict[str, tuple[PodView, list[Rule]]]]  # by node and uid


def _broken(rules: dict[bytes, Rule], present: Present, handle: Handle) -> Generator[Effect, bool, Broken]:
    """Pods that a rule of theirs would have elsewhere, with the rules."""
    found: Broken = {}
    for rule in rules.values():
        apart = not present.learn(rule)
        if handle.pause(1 + len(rule.owners)):
            yield PAUSE
        if apart:
            continue
        for view in rule.owners:
            if present.excluded_by(rule, view.pod) is not None:
                meta, node = view.pod.metadata, view.pod.spec.node_name
                found.setdefault(node, {}).setdefault(meta.uid, (view, []))[1].append(rule)
    return found


class Present:
    """The pods that are looked at, and those of them that have left in this round."""

    def __init__(self, nodes: list[NodeView], pods: PodIndex) -> None:
        self.pods = pods
        self.gone: set[str] = set()  # by uid
        self._labels = {node.name: node.node.metadata.labels for node in nodes}
        self._places: dict[str, dict[str, Place]] = {}

    def learn(self, rule: Rule) -> bool:
        """Where the pods are that the rule means. False where each of its pods is alone: they mean one another, and are all apart."""
        views, key = self._matching(rule), rule.term.topology_key
        places = [self._place(view.pod, key) for view in views]
        if len(views) == len(rule.owners) and all(map(is_, views, rule.owners)) and len(set(places)) == len(places):
            return False
        rule.meant = {}
        for view, place in zip(views, places, strict=True):
            rule.meant.setdefault(place, {})[view.pod.metadata.uid] = view.pod
        return True

    def _matching(self, rule: Rule) -> list[PodView]:
        """Pods of the rule's namespaces (none: the owner's own) and labels. A selector that cannot be read means none."""
        try:
            selector = from_label_selector(rule.term.label_selector)
        except SelectorError:
            return []
        return [view for namespace in rule.term.namespaces or (rule.namespace,) for view in self.pods.matching(namespace, selector)]

    def excluded_by(self, rule: Rule, pod: Pod) -> Pod | None:
        """A pod on the same node, or in the same domain, that the rule excludes."""
        here = (rule.meant or {}).get(self._place(pod, rule.term.topology_key))
        if here is None:
            return None
        own, gone = pod.metadata.uid, self.gone
        left: list[str] = []
        other: Pod | None = None
        for uid, each in here.items():
            if uid in gone:
                left.append(uid)
            elif uid != own:
                other = each
                break
        for uid in left:  # met once, and not again
            del here[uid]
        return other

    def _place(self, pod: Pod, topology_key: str) -> Place:
        known = self._places.setdefault(topology_key, {})
        name = pod.spec.node_name
        place = known.get(name)
        if place is None:
            value = self._labels[name].get(topology_key) if name in self._labels else None
            place = known[name] = (NODE, name) if value is None else ("", value)
        return place
