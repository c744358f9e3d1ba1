"""Whether a pod could run on another node: the rule of Koordinator's plugins (DS-FIT-01) and the community's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from koord.accounting.resources import ResourceVector, fits
from koord.api import names
from koord.api.objects import Node, Pod, PodAffinityTerm, Taint, Toleration
from koord.api.selectors import NOTHING, NodeSelector, Selector, SelectorError, from_label_selector, node_selector
from roles.descheduler.snapshot import NodeView, PodView

HARD = ("NoSchedule", "NoExecute")
_ENCODER = msgspec.msgpack.Encoder()


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether one of the tolerations covers the taint."""
    for toleration in tolerations:
        if toleration.effect and toleration.effect != taint.effect:
            continue
        if toleration.key and toleration.key != taint.key:
            continue
        if toleration.operator == "Exists" or (toleration.key and toleration.operator in ("", "Equal") and toleration.value == taint.value):
            return True
    return False


def untolerated(pod: Pod, node: Node, relevant: Callable[[Taint], bool] | None = None) -> Taint | None:
    """The first relevant taint (hard ones, if not said otherwise) that the pod does not tolerate."""
    for taint in node.spec.taints:
        wanted = taint.effect in HARD if relevant is None else relevant(taint)
        if wanted and not tolerates(pod.spec.tolerations, taint):
            return taint
    return None


def affinity_matches(pod: Pod, node: Node) -> bool:
    """spec.nodeSelector and required node affinity. An affinity that cannot be read matches nothing."""
    return not Placeable.affinity_problem(pod, node, compiled_affinity(pod))


def compiled_affinity(pod: Pod) -> NodeSelector | None:
    """Required node affinity, compiled; None when the pod has none, and one that cannot be read matches nothing."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    try:
        return None if affinity is None or affinity.required is None else node_selector(affinity.required)
    except SelectorError:
        return NodeSelector(())


class Placeable:
    """A pod that looks for a node; what it asks for is compiled once."""

    def __init__(self, view: PodView) -> None:
        self.view = view
        self._affinity = compiled_affinity(view.pod)

    @staticmethod
    def affinity_problem(pod: Pod, node: Node, affinity: NodeSelector | None) -> str:
        """Why the node's labels do not suit the pod, "" when they do."""
        labels = node.metadata.labels
        if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
            return "its labels do not match the pod's node selector"
        if affinity is not None and not affinity.matches(labels, node.metadata.name):
            return "it does not match the pod's node affinity"
        return ""

    def community_unfit(self, target: NodeView) -> str:
        """Why the pod does not fit by the community's rule, "" when it does: labels, taints and room, its own required anti-affinity
        against the node's pods, and a free pod slot. On its own node it needs no room."""
        if target.node.spec.unschedulable:
            return "it is cordoned"
        if problem := self.suits(target):
            return problem
        if other := anti_affine(self.view, target):
            return f"pod {other.metadata.namespace}/{other.metadata.name} runs there, which the pod's anti-affinity excludes"
        if self.view.pod.spec.node_name == target.name:
            return ""
        if problem := self.room(target):
            return problem
        return "it has no free pod slot" if target.slots < 1 else ""

    def suits(self, target: NodeView) -> str:
        """Why the node does not suit the pod by labels and taints, "" when it does."""
        pod, node = self.view.pod, target.node
        if problem := self.affinity_problem(pod, node, self._affinity):
            return problem
        taint = untolerated(pod, node)
        return f"it has taint {taint.key}, which the pod does not tolerate" if taint is not None else ""

    def room(self, target: NodeView) -> str:
        """What of its requests the node lacks, "" for nothing."""
        wanted = must_fit(self.view.requests)
        lacking = fits(wanted, {name: target.allocatable.get(name, 0) - target.held(name) for name in wanted})
        return f"it lacks {', '.join(lacking)}" if lacking else ""


def must_fit(requests: Mapping[str, int]) -> ResourceVector:
    """What of the requests a node must have left: not over how many cards they are spread."""
    return {name: wanted for name, wanted in requests.items() if wanted > 0 and name not in names.COUNTED_BY_CARD}


# ---------------------------------------------------------------- anti-affinity


def anti_affinity_terms(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    """The pod's required anti-affinity."""
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    return () if affinity is None else affinity.required


@dataclass(frozen=True, slots=True)
class Term:
    """A required anti-affinity term, compiled: pods of these namespaces that the selector means are excluded.

    Two terms with one `key` mean the same pods. Not `sure`: labels of namespaces decide which ones are meant, and these are not known
    here."""

    key: bytes
    topology_key: str
    namespaces: tuple[str, ...]
    selector: Selector
    sure: bool = True

    @classmethod
    def of(cls, term: PodAffinityTerm, own: str) -> Term:
        """The term of a pod of this namespace."""
        key = _ENCODER.encode((term, "" if term.namespaces else own))
        chosen = term.namespace_selector
        sure = bool(term.namespaces) or chosen is None or not (chosen.match_labels or chosen.match_expressions)
        return cls(key, term.topology_key, tuple(term.namespaces) or (own,), _selector(term), sure)


def compiled_terms(view: PodView) -> tuple[Term, ...]:
    """The pod's required anti-affinity; remembered with what else is known of the pod. A selector that cannot be read means no pod."""
    if view.known is not None and view.known.apart is not None:
        found: tuple[Term, ...] = view.known.apart
        return found
    found = tuple(Term.of(term, view.pod.metadata.namespace) for term in anti_affinity_terms(view.pod))
    if view.known is not None:
        view.known.apart = found
    return found


def _selector(term: PodAffinityTerm) -> Selector:
    try:
        return from_label_selector(term.label_selector)
    except SelectorError:
        return NOTHING


def anti_affine(view: PodView, target: NodeView) -> Pod | None:
    """A pod of the node that the pod's required anti-affinity excludes there; the node must have the term's topology key."""
    for term in compiled_terms(view):
        if term.topology_key not in target.node.metadata.labels:
            continue
        for other in target.pods:
            meta = other.pod.metadata
            if meta.uid != view.pod.metadata.uid and meta.namespace in term.namespaces and term.selector.matches(meta.labels):
                return other.pod
    return None
