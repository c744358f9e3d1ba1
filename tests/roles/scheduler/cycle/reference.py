"""A plain scheduler for tests: one pod, one node at a time, nothing kept, in the words of the specification."""

from __future__ import annotations

import math
import random
from typing import Any

from koord.accounting.pods import non_zero_requests, pod_requests
from koord.accounting.resources import parse
from koord.api.objects import Node, Pod, Taint

EXTENDED = "example.com/widget"
HOST = "kubernetes.io/hostname"
QUOTA = "quota.scheduling.koordinator.sh/name"


class Reference:
    """Decides by looping over nodes and rules as the specification words them, with plain integers."""

    def __init__(self, seed: int) -> None:
        self.nodes: dict[str, Node] = {}
        self.order: list[str] = []
        self.pods: dict[str, list[Pod]] = {}
        self.random = random.Random(seed)
        self.usage: dict[str, int] = {}  # milli-CPU by node, as its NodeMetric reports
        self.quotas: dict[str, int] = {}  # max in milli-CPU
        self.claims: dict[str, str] = {}  # zone by claim

    def totals(self, pod: Pod, order: list[str]) -> dict[str, int]:
        """The total of every feasible node, in the given order."""
        names = [name for name in order if name in self.nodes]
        if not self.quota_allows(pod):
            return {}
        feasible = [name for name in names if self.fits(pod, self.nodes[name])]
        if not feasible:
            return {}
        raw = {
            rule: {name: getattr(self, rule)(pod, self.nodes[name]) for name in feasible}
            for rule in ("taints", "affinity", "least", "balanced", "images", "neighbours")
        }
        high_taints, high_affinity = max(raw["taints"].values()), max(raw["affinity"].values())
        low, high = min(raw["neighbours"].values()), max(raw["neighbours"].values())
        spread = self.spread(pod, feasible)
        totals = {}
        for name in feasible:
            total = 3 * (100 - (raw["taints"][name] * 100 // high_taints if high_taints else 0))
            total += 2 * (raw["affinity"][name] * 100 // high_affinity if high_affinity else 0)
            total += 2 * (100 * (raw["neighbours"][name] - low) // (high - low) if high > low else 0)
            total += 2 * spread[name]
            totals[name] = total + raw["least"][name] + raw["balanced"][name] + raw["images"][name]
        return totals

    def decide(self, totals: dict[str, int]) -> str:
        """One of the best nodes, at random as the engine draws."""
        best = [name for name in totals if totals[name] == max(totals.values())]
        return best[0] if len(best) == 1 else best[self.random.randrange(len(best))] if best else ""

    def quota_allows(self, pod: Pod) -> bool:
        """What the pods of its quota request, with this one, within the quota's max."""
        name = pod.metadata.labels.get(QUOTA, "")
        if name not in self.quotas:
            return True
        members = [p for pods in self.pods.values() for p in pods if p.metadata.labels.get(QUOTA) == name]
        return sum(pod_requests(p).get("cpu", 0) for p in (*members, pod)) <= self.quotas[name]

    def volumes_allow(self, pod: Pod, node: Node) -> bool:
        """Volumes that are bound keep the pod in their zone."""
        claims = [v.persistent_volume_claim.claim_name for v in pod.spec.volumes if v.persistent_volume_claim is not None]
        return all(node.metadata.labels.get("zone") == self.claims[claim] for claim in claims)

    def tolerated(self, pod: Pod, taint: Any) -> bool:
        for t in pod.spec.tolerations:
            covers = (not t.effect or t.effect == taint.effect) and (not t.key or t.key == taint.key)
            if covers and (t.operator == "Exists" or (t.key and (t.value or "") == (taint.value or ""))):
                return True
        return False

    def fits(self, pod: Pod, node: Node) -> bool:
        cordon = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
        if node.spec.unschedulable and not self.tolerated(pod, cordon):
            return False
        if any(t.effect in ("NoSchedule", "NoExecute") and not self.tolerated(pod, t) for t in node.spec.taints):
            return False
        if any(node.metadata.labels.get(k) != v for k, v in pod.spec.node_selector.items()):
            return False
        others = self.pods.get(node.metadata.name, [])
        taken = {p.host_port for other in others for c in other.spec.containers for p in c.ports if p.host_port}
        if any(p.host_port in taken for c in pod.spec.containers for p in c.ports if p.host_port):
            return False
        if (
            not self.volumes_allow(pod, node)
            or not self.spread_allows(pod, node)
            or not self.neighbours_allow(pod, node)
            or not self.load_allows(pod, node)
        ):
            return False
        free = parse(node.status.allocatable)
        if len(others) + 1 > free.get("pods", 0):
            return False
        used = [pod_requests(other) for other in others]
        return all(v <= free.get(r, 0) - sum(u.get(r, 0) for u in used) for r, v in pod_requests(pod).items() if v > 0)

    def spread_allows(self, pod: Pod, node: Node) -> bool:
        """Hard spreading over zones: pods of the app in the zone, with this one, less the emptiest zone, at most maxSkew."""
        for constraint in spreading(pod, "DoNotSchedule"):
            key, wanted = constraint.topology_key, constraint.label_selector.match_labels
            if key not in node.metadata.labels:
                return False
            counts: dict[str, int] = {}
            for name, other in self.nodes.items():
                allowed = all(other.metadata.labels.get(k) == v for k, v in pod.spec.node_selector.items())
                if key in other.metadata.labels and allowed:
                    matching = [p for p in self.pods.get(name, []) if wanted.items() <= p.metadata.labels.items()]
                    counts[other.metadata.labels[key]] = counts.get(other.metadata.labels[key], 0) + len(matching)
            own = int(wanted.items() <= pod.metadata.labels.items())
            if counts.get(node.metadata.labels[key], 0) + own - min(counts.values(), default=0) > constraint.max_skew:
                return False
        return True

    def neighbours_allow(self, pod: Pod, node: Node) -> bool:
        """Required affinity and anti-affinity of the pod, and anti-affinity of pods that are there, over one topology key each."""

        def where(key: str, wanted: dict[str, str]) -> set[str]:
            return {
                other.metadata.labels[key]
                for name, other in self.nodes.items()
                if key in other.metadata.labels and any(wanted.items() <= p.metadata.labels.items() for p in self.pods.get(name, []))
            }

        for name, other in self.nodes.items():
            for there in self.pods.get(name, []):
                for term in anti(there):
                    value = other.metadata.labels.get(term.topology_key)
                    selected = term.label_selector.match_labels.items() <= pod.metadata.labels.items()
                    if selected and value is not None and node.metadata.labels.get(term.topology_key) == value:
                        return False
        for term in anti(pod):
            if node.metadata.labels.get(term.topology_key) in where(term.topology_key, term.label_selector.match_labels):
                return False
        for term in affine(pod):
            values, label = where(term.topology_key, term.label_selector.match_labels), node.metadata.labels.get(term.topology_key)
            first = not values and term.label_selector.match_labels.items() <= pod.metadata.labels.items()
            if label is None or (label not in values and not first):
                return False
        return True

    def load_allows(self, pod: Pod, node: Node) -> bool:
        """CPU usage as reported plus 85 % of what unreported pods and this one request, rounded, must not exceed 65 % of the node."""
        have = parse(node.status.allocatable).get("cpu", 0)
        usage = self.usage.get(node.metadata.name)
        if usage is None or not have:
            return True
        pods = (*self.pods.get(node.metadata.name, []), pod)
        estimates = [estimate_pod(p)["cpu"] for p in pods]
        return math.floor((usage + sum(estimates)) * 100 / have + 0.5) <= 65

    def taints(self, pod: Pod, node: Node) -> int:
        return sum(1 for t in node.spec.taints if t.effect == "PreferNoSchedule" and not self.tolerated(pod, t))

    def affinity(self, pod: Pod, node: Node) -> int:
        terms = pod.spec.affinity.node_affinity.preferred if pod.spec.affinity and pod.spec.affinity.node_affinity else ()
        return sum(t.weight for t in terms if all(node.metadata.labels.get(e.key) in e.values for e in t.preference.match_expressions))

    def least(self, pod: Pod, node: Node) -> int:
        alloc, total, weight = parse(node.status.allocatable), 0, 0
        others = self.pods.get(node.metadata.name, [])
        for name in ("cpu", "memory"):
            have = alloc.get(name, 0)
            if have:
                used = sum(non_zero_requests(p)[name] for p in (*others, pod))
                total += (have - used) * 100 // have if used <= have else 0
                weight += 1
        return total // weight if weight else 0

    def balanced(self, pod: Pod, node: Node) -> int:
        wanted = pod_requests(pod)
        if not wanted.get("cpu") and not wanted.get("memory"):
            return 0
        alloc = parse(node.status.allocatable)
        others = self.pods.get(node.metadata.name, [])
        balance = []
        for there in ((*others, pod), others):
            parts = [
                min(1.0, sum(pod_requests(p).get(name, 0) for p in there) / alloc[name]) for name in ("cpu", "memory") if alloc.get(name, 0)
            ]
            balance.append(math.floor((1 - (abs(parts[0] - parts[1]) / 2 if len(parts) == 2 else 0.0)) * 100))
        return 50 + (50 + balance[0] - balance[1]) // 2

    def images(self, pod: Pod, node: Node) -> int:
        """Bytes of the pod's images on the node, each times the share of nodes that have it, between 23 MiB and 1000 MiB a container."""
        held = 0
        for container in pod.spec.containers:
            sizes = {name: sizes_of(other).get(container.image) for name, other in self.nodes.items()}
            size = sizes[node.metadata.name]
            if size is not None:
                held += math.floor(size * (sum(s is not None for s in sizes.values()) / len(self.nodes)))
        low, high = 23 << 20, (1000 << 20) * len(pod.spec.containers)
        return math.floor(100 * (min(max(held, low), high) - low) / (high - low))

    def neighbours(self, pod: Pod, node: Node) -> int:
        """Weights of preferred terms, the pod's and those of pods that are there, and one for each required affinity that is met."""
        total = 0
        for name, other in self.nodes.items():
            for there in self.pods.get(name, []):
                terms = [(term, there) for term in preferences(pod)]
                terms += [(term, pod) for term in (*preferences(there), *((1, term) for term in affine(there)))]
                for (weight, term), about in terms:
                    value = other.metadata.labels.get(term.topology_key)
                    near = value is not None and node.metadata.labels.get(term.topology_key) == value
                    if near and term.label_selector.match_labels.items() <= about.metadata.labels.items():
                        total += weight
        return total

    def spread(self, pod: Pod, feasible: list[str]) -> dict[str, int]:
        """Soft spreading, normalized; nodes that lack a key of any constraint get nothing."""
        soft = spreading(pod, "ScheduleAnyway")
        if not soft:
            return dict.fromkeys(feasible, 0)
        labels = {name: node.metadata.labels for name, node in self.nodes.items()}
        keyed = [name for name in feasible if all(c.topology_key in labels[name] for c in soft)]
        raw = dict.fromkeys(keyed, 0.0)
        for c in soft:
            key, wanted = c.topology_key, c.label_selector.match_labels
            domains = len(keyed) if key == HOST else len({labels[name][key] for name in keyed})
            for name in keyed:
                count = 0
                for other in self.nodes:
                    counted = all(k.topology_key in labels[other] for k in soft)
                    counted = counted and all(labels[other].get(k) == v for k, v in pod.spec.node_selector.items())
                    if labels[other].get(key) == labels[name][key] and (counted or key == HOST):
                        count += sum(wanted.items() <= p.metadata.labels.items() for p in self.pods.get(other, []))
                raw[name] += count * math.log(domains + 2) + (c.max_skew - 1)
        scores = {name: math.floor(value + 0.5) for name, value in raw.items()}
        low, high = min(scores.values(), default=0), max(scores.values(), default=0)
        return {name: (100 if not high else 100 * (high + low - scores[name]) // high) if name in scores else 0 for name in feasible}


def sizes_of(node: Node) -> dict[str, int]:
    return {name: image.size_bytes for image in node.status.images for name in image.names}


def spreading(pod: Pod, how: str) -> list[Any]:
    return [c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == how]


def preferences(pod: Pod) -> list[Any]:
    """(weight, term), negative for anti-affinity."""
    affinity = pod.spec.affinity
    near = affinity.pod_affinity.preferred if affinity and affinity.pod_affinity else ()
    far = affinity.pod_anti_affinity.preferred if affinity and affinity.pod_anti_affinity else ()
    return [(p.weight, p.pod_affinity_term) for p in near] + [(-p.weight, p.pod_affinity_term) for p in far]


def anti(pod: Pod) -> Any:
    return pod.spec.affinity.pod_anti_affinity.required if pod.spec.affinity and pod.spec.affinity.pod_anti_affinity else ()


def affine(pod: Pod) -> Any:
    return pod.spec.affinity.pod_affinity.required if pod.spec.affinity and pod.spec.affinity.pod_affinity else ()


def estimate_pod(pod: Pod) -> dict[str, int]:
    """The default estimate: 85 % of the CPU request, 250m without one."""
    wanted = pod_requests(pod).get("cpu", 0)
    return {"cpu": math.floor(wanted * 0.85 + 0.5) if wanted else 250}
