"""RemovePodsViolatingInterPodAntiAffinity: evict pods beside which other pods run that they exclude (DS-K8S-06)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from operator import is_
from typing import ClassVar

from koord.api.objects import Pod
from roles.descheduler.framework.effects import PAUSE, Effect, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import free
from roles.descheduler.nodefit import Term, compiled_terms
from roles.descheduler.plugins.community.common import ChoosingPlugin, CommunityArgs, least_important_first
from roles.descheduler.podindex import Alike, PodIndex, asked_for, in_order
from roles.descheduler.snapshot import NodeView, PodView


class RemovePodsViolatingInterPodAntiAffinityArgs(CommunityArgs):
    """RemovePodsViolatingInterPodAntiAffinity."""


class RemovePodsViolatingInterPodAntiAffinity(ChoosingPlugin[RemovePodsViolatingInterPodAntiAffinityArgs]):
    """A Deschedule plugin without memory. A pod that leaves is no violation to the others any more."""

    name: ClassVar[str] = "RemovePodsViolatingInterPodAntiAffinity"

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Node by node, the least important pod first. Pods that nothing excludes at the start are not looked at again: what leaves
        meanwhile can only make fewer pods be excluded."""
        present = Present(nodes)
        for node in nodes:
            if handle.pause(1 + len(node.pods)):
                yield PAUSE
            looked_at = [view for view in node.pods if not view.leaving and self._chosen(view.pod)]
            present.pods.add(node.pods if len(looked_at) == len(node.pods) else looked_at)  # one list less for the garbage collector
        pods = present.pods
        rules: dict[bytes, Rule] = {}
        keys: set[str] = set()  # labels that rules ask for
        for alike in pods.templates.values():
            if handle.pause():
                yield PAUSE
            _collect(alike, rules, keys)
        for _ in pods.index(keys) if rules else ():
            if handle.pause():
                yield PAUSE
        broken = yield from _broken(rules, present, handle)
        yield from free(handle, rules, *pods.tables())
        for node in nodes:
            if handle.pause():
                yield PAUSE
            mine = broken.pop(node.name, {})
            for view in least_important_first((view for view, _ in mine.values()), handle.now):
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

    term: Term
    owners: list[Alike] = field(default_factory=list)
    meant: dict[int, dict[str, Pod]] | None = None
    """By domain and uid."""


def _collect(alike: Alike, rules: dict[bytes, Rule], keys: set[str]) -> None:
    """Each distinct term once, with its pods."""
    for term in compiled_terms(alike.view):
        rule = rules.get(term.key)
        if rule is None:
            rule = rules[term.key] = Rule(term)
            keys.update(asked_for(term.selector))
        rule.owners.append(alike)


Broken = dict[str, dict[str, tuple[PodView, list[Rule]]]]  # by node and uid


def _broken(rules: dict[bytes, Rule], present: Present, handle: Handle) -> Generator[Effect, bool, Broken]:
    """Pods that a rule of theirs would have elsewhere, with the rules."""
    found: Broken = {}
    for rule in rules.values():
        apart = not present.learn(rule)
        if handle.pause(1 + sum(len(each.numbers) for each in rule.owners)):
            yield PAUSE
        if apart:
            continue
        for number in in_order(rule.owners):
            view = present.pods.view(number)
            if present.excluded_by(rule, view.pod) is not None:
                meta, node = view.pod.metadata, view.pod.spec.node_name
                found.setdefault(node, {}).setdefault(meta.uid, (view, []))[1].append(rule)
    return found


class Present:
    """The pods that are looked at with the rows of their nodes, and those of them that have left in this round."""

    def __init__(self, nodes: list[NodeView]) -> None:
        self.pods = PodIndex()
        self.gone: set[str] = set()  # by uid
        self._nodes = nodes
        self._rows = {node.name: row for row, node in enumerate(nodes)}
        self._places: dict[str, list[int]] = {}

    def learn(self, rule: Rule) -> bool:
        """Where the pods are that the rule means. False where each of its pods is alone: they mean one another, and are all apart."""
        meant, places, row = self._matching(rule), self._places_of(rule.term.topology_key), self.pods.rows
        numbers = in_order(meant)
        if (
            len(meant) == len(rule.owners)
            and all(map(is_, meant, rule.owners))
            and len({places[row[each]] for each in numbers}) == len(numbers)
        ):
            return False
        rule.meant = {}
        for number in numbers:
            pod = self.pods.view(number).pod
            rule.meant.setdefault(places[row[number]], {})[pod.metadata.uid] = pod
        return True

    def _matching(self, rule: Rule) -> list[Alike]:
        """Pods of the rule's namespaces and labels."""
        return [alike for namespace in rule.term.namespaces for alike in self.pods.alike(namespace, rule.term.selector)]

    def excluded_by(self, rule: Rule, pod: Pod) -> Pod | None:
        """A pod on the same node, or in the same domain, that the rule excludes."""
        if rule.meant is None:
            return None
        here = rule.meant.get(self._places_of(rule.term.topology_key)[self._rows[pod.spec.node_name]])
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

    def _places_of(self, topology_key: str) -> list[int]:
        """Of each node the number of the domain that it is in; a node that does not have the key is one of its own."""
        found = self._places.get(topology_key)
        if found is None:
            numbers: dict[str, int] = {}
            values = [node.node.metadata.labels.get(topology_key) for node in self._nodes]
            found = [-1 - row if value is None else numbers.setdefault(value, len(numbers)) for row, value in enumerate(values)]
            self._places[topology_key] = found
        return found
