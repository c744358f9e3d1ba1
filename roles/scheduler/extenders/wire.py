"""What the scheduler and an HTTP extender say to one another: k8s.io/kube-scheduler/extender/v1, whose names have no case when read.

Pure. Whole objects are the plain dicts of the API; where an extender keeps its own cache only names and UIDs are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from roles.scheduler.framework.status import Candidate

Object = dict[str, Any]
MAX_SCORE = 10  # of an extender
TIMES = 10  # what brings an extender's score to 0..100


class BadAnswer(ValueError):
    """The extender's answer makes no sense; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """Names of the nodes that pass, and why others do not, by name. That preemption could help there, as an extender may say, makes no
    difference: filters let the pod in, so nobody has to leave."""

    passed: frozenset[str]
    reasons: Mapping[str, str]


def node_args(pod: Object, names: Iterable[str], nodes: Mapping[str, Object] | None) -> Object:
    """ExtenderArgs for filter and prioritize: node names, or whole nodes when `nodes` are given."""
    if nodes is None:
        return {"Pod": pod, "Nodes": None, "NodeNames": list(names)}
    items = [nodes[name] for name in names if name in nodes]
    return {"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}


def filtered(answer: Any, asked: Set[str], *, by_name: bool) -> Filtered:
    """An ExtenderFilterResult about these nodes; one without nodes lets none pass. `by_name`: names of nodes were sent, and come back;
    otherwise they count only in the place of whole nodes. Raises BadAnswer, also for the error that the extender itself reports."""
    fields = _fields(answer, "an ExtenderFilterResult")
    if fields.get("error"):
        raise BadAnswer(str(fields["error"]))
    names = fields.get("nodenames") if by_name or "nodes" not in fields else None
    if names is None:
        items = [_fields(item, "a Node") for item in _list(_fields(fields.get("nodes"), "a NodeList").get("items"), "items")]
        passed = frozenset(str(_fields(item.get("metadata"), "metadata").get("name", "")) for item in items)
    else:
        passed = frozenset(str(name) for name in _list(names, "node names"))
    if not passed <= asked:
        raise BadAnswer(f"it lets pass node {min(passed - asked)!r}, which it was not asked about")
    return Filtered(passed, {**_texts(fields.get("failednodes")), **_texts(fields.get("failedandunresolvablenodes"))})


def scores(answer: Any) -> dict[str, int]:
    """A HostPriorityList as scores by node name; those of a node that is listed twice add up, as in kube-scheduler. Raises BadAnswer."""
    found: dict[str, int] = {}
    for item in _list(answer, "{Host, Score}"):
        fields = _fields(item, "{Host, Score}")
        host, score = fields.get("host", ""), fields.get("score", 0)
        if not isinstance(host, str) or not isinstance(score, int) or isinstance(score, bool):
            raise BadAnswer(f"{item!r} is no {{Host, Score}} with a whole number")
        found[host] = found.get(host, 0) + score
    return found


def preemption_args(pod: Object, candidates: Iterable[Candidate], pods: Mapping[str, Object] | None) -> Object:
    """ExtenderPreemptionArgs: victims by node, as UIDs, or as whole pods when `pods` (by "namespace/name") are given."""
    victims: Object = {}
    for candidate in candidates:
        shown = [{"UID": v.uid} for v in candidate.victims] if pods is None else [pods[v.key] for v in candidate.victims if v.key in pods]
        victims[candidate.node] = {"Pods": shown, "NumPDBViolations": candidate.violations}
    whole, meta = (None, victims) if pods is None else (victims, None)
    return {"Pod": pod, "NodeNameToVictims": whole, "NodeNameToMetaVictims": meta}


def preempted(answer: Any, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates that an ExtenderPreemptionResult leaves, with the victims that it names. Raises BadAnswer."""
    left = _fields(answer, "an ExtenderPreemptionResult").get("nodenametometavictims", {})
    if not isinstance(left, dict):
        raise BadAnswer("NodeNameToMetaVictims must be an object")
    found: list[Candidate] = []
    known = {candidate.node: candidate for candidate in candidates}
    for node in left.keys() - known.keys():
        raise BadAnswer(f"node {node!r} was not among the candidates")
    for node, candidate in known.items():
        if node not in left:
            continue
        fields = _fields(left[node], "MetaVictims")
        uids = [str(_fields(pod, "a MetaPod").get("uid")) for pod in _list(fields.get("pods"), "MetaPods")]
        by_uid = {victim.uid: victim for victim in candidate.victims}
        strangers = [uid for uid in uids if uid not in by_uid]
        if strangers:
            raise BadAnswer(f"pod {strangers[0]!r} was no victim on node {node!r}")
        victims = tuple(victim for victim in candidate.victims if victim.uid in set(uids))
        violations = fields.get("numpdbviolations")
        found.append(Candidate(node, victims, violations if isinstance(violations, int) else candidate.violations, candidate.leaving))
    return tuple(found)


def binding_args(namespace: str, name: str, uid: str, node: str) -> Object:
    """ExtenderBindingArgs."""
    return {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node}


def binding_error(answer: Any) -> str:
    """The error of an ExtenderBindingResult, "" when it bound the pod. Raises BadAnswer."""
    return str(_fields(answer, "an ExtenderBindingResult").get("error") or "")


def _fields(value: Any, what: str) -> dict[str, Any]:
    """The fields that are set. As Go reads JSON, null sets nothing: neither a field nor a whole object."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadAnswer(f"{what} was expected")
    return {str(key).lower(): item for key, item in value.items() if item is not None}


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadAnswer(f"a list of {what} was expected")
    return value


def _texts(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadAnswer("failed nodes must be an object of texts by node name")
    return {str(name): "" if text is None else str(text) for name, text in value.items()}
