"""Putting a recommendation into new pods, where its owner asked for that (manager.md 14; off by default). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from koord.api.objects import Recommendation
from koord.api.quantity import Quantity, QuantityError
from koord.api.v1alpha1.recommendation import CONDITION_LOW_CONFIDENCE
from koord.kube.selectors import SelectorError, parse_label_selector

ANNOTATION_MODE = "analysis.koordinator.sh/mode"
ANNOTATION_SELECTOR = "analysis.koordinator.sh/selector"
ANNOTATION_APPLIED = "analysis.koordinator.sh/applied-recommendation"


class Mode(StrEnum):
    """What a Recommendation is for. An annotation that is none of these means RECOMMEND: a typing error must not change pods."""

    OFF = "off"
    RECOMMEND = "recommend"
    APPLY_ON_CREATE = "apply-on-create"


def mode_of(recommendation: Recommendation) -> Mode:
    """The mode of a Recommendation, by its annotation."""
    text = recommendation.metadata.annotations.get(ANNOTATION_MODE, "")
    return Mode(text) if text in set(Mode) else Mode.RECOMMEND


def fitting(recommendations: Iterable[Recommendation], namespace: str, labels: Mapping[str, str]) -> Recommendation | None:
    """The Recommendation that new pods with these labels are to follow: confident ones only, the first by name."""
    for found in sorted(recommendations, key=lambda r: r.metadata.name):
        meta = found.metadata
        if meta.namespace != namespace or mode_of(found) is not Mode.APPLY_ON_CREATE or not _confident(found):
            continue
        if _selects(meta.annotations.get(ANNOTATION_SELECTOR, ""), labels):
            return found
    return None


def _confident(recommendation: Recommendation) -> bool:
    return any(c.type == CONDITION_LOW_CONFIDENCE and c.status == "False" for c in recommendation.status.conditions)


def _selects(text: str, labels: Mapping[str, str]) -> bool:
    for part in filter(None, text.split(";")):
        try:
            if parse_label_selector(part).matches(labels):
                return True
        except SelectorError:
            continue
    return False


def apply(pod: dict[str, Any], recommendation: Recommendation) -> dict[str, str]:
    """Set the requests of a pod's containers in place; what was set, as text, by container and resource.

    A request never rises above the container's limit, but a limit that equals its request follows it. Only resources that the container
    requests already are touched. So the pod's QoS class stays what it was.
    """
    status = recommendation.status.pod_status
    wanted = {c.container_name: c.resources for c in status.container_statuses} if status else {}
    done: dict[str, str] = {}
    spec = pod.get("spec") or {}
    sidecars = [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    for container in (*(spec.get("containers") or []), *sidecars):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for resource, text in wanted.get(container.get("name", ""), {}).items():
            if resource not in requests:
                continue
            bound = resource in limits and _equal(requests[resource], limits[resource])
            value = str(text) if bound else _capped(str(text), limits.get(resource))
            if value is not None and not _equal(value, requests[resource]):
                requests[resource] = value
                if bound:
                    limits[resource] = value
                done[f"{container['name']}.{resource}"] = value
    if done:
        metadata = pod.setdefault("metadata", {})
        annotations = metadata.get("annotations") or {}
        metadata["annotations"] = {**annotations, ANNOTATION_APPLIED: recommendation.metadata.name}
    return done


def _equal(one: Any, other: Any) -> bool:
    try:
        return Quantity(one) == Quantity(other)
    except QuantityError:
        return False


def _capped(text: str, limit: Any) -> str | None:
    try:
        return text if limit is None or Quantity(text) <= Quantity(limit) else str(limit)
    except QuantityError:
        return None
