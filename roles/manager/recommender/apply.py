"""Putting a recommendation into new pods, where its owner asked for that (off by default). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any

import orjson

from koord.api.names import ANNOTATION_LOAD_ESTIMATED_SCALING_FACTORS, LABEL_POD_QOS
from koord.api.objects import Recommendation
from koord.api.qos import QoSClass
from koord.api.quantity import Quantity, QuantityError, parse_milli
from koord.api.selectors import EVERYTHING, Selector, SelectorError, parse_label_selector
from koord.api.v1alpha1.recommendation import CONDITION_LOW_CONFIDENCE

ANNOTATION_MODE = "analysis.koordinator.sh/mode"
ANNOTATION_SELECTOR = "analysis.koordinator.sh/selector"
ANNOTATION_APPLIED = "analysis.koordinator.sh/applied-recommendation"
LABEL_CRON_JOB = "analysis.koordinator.sh/cron-job"
"""Demanded of pods of a CronJob's next Job, whose own selector nobody knows before it is there. No pod has it: see `_known_by`."""
_JOB_NAMES = ("batch.kubernetes.io/job-name", "job-name")
_FIRST_MINUTE = 29_000_000
"""A CronJob names its Jobs by minutes since 1970, which are more than this since 2025; dates like 20260131 are fewer."""
EXCLUSIVE = frozenset((QoSClass.LSR, QoSClass.LSE))
"""QoS classes whose pods have whole CPUs for themselves."""


class Mode(StrEnum):
    """What a Recommendation is for. An annotation that is none of these means RECOMMEND: a typing error must not change pods."""

    OFF = "off"
    RECOMMEND = "recommend"
    APPLY_ON_CREATE = "apply-on-create"
    ESTIMATE_ON_CREATE = "estimate-on-create"
    RESIZE_IN_PLACE = "resize-in-place"

    @property
    def touches_pods(self) -> bool:
        """Whether new pods are changed."""
        return self in (Mode.APPLY_ON_CREATE, Mode.ESTIMATE_ON_CREATE, Mode.RESIZE_IN_PLACE)


def mode_of(recommendation: Recommendation) -> Mode:
    """The mode of a Recommendation, by its annotation."""
    text = recommendation.metadata.annotations.get(ANNOTATION_MODE, "")
    return Mode(text) if text in set(Mode) else Mode.RECOMMEND


class Following:
    """The Recommendations that new pods may have to follow, confident ones only, kept with every change.

    Selectors are compiled once and found by a label that they demand, so that a review looks at those that may match, not at all.
    """

    def __init__(self) -> None:
        self._followed: dict[tuple[str, str], tuple[Recommendation, tuple[Selector, ...]]] = {}
        self._near: dict[tuple[str, str, str], set[str]] = {}  # names by namespace and a label, which is empty for those that demand none

    def put(self, recommendation: Recommendation) -> None:
        """A Recommendation was added or changed."""
        self.drop(recommendation)
        meta = recommendation.metadata
        if not mode_of(recommendation).touches_pods or not _confident(recommendation):
            return
        selectors = tuple(_compiled(meta.annotations.get(ANNOTATION_SELECTOR, "")))
        self._followed[meta.namespace, meta.name] = recommendation, selectors
        for key, value in _labels(selectors):
            self._near.setdefault((meta.namespace, key, value), set()).add(meta.name)

    def drop(self, recommendation: Recommendation) -> None:
        """A Recommendation is gone."""
        meta = recommendation.metadata
        _, selectors = self._followed.pop((meta.namespace, meta.name), (None, ()))
        for key, value in _labels(selectors):
            names = self._near[meta.namespace, key, value]
            names.discard(meta.name)
            if not names:
                del self._near[meta.namespace, key, value]

    def fitting(self, namespace: str, labels: Mapping[str, str]) -> Recommendation | None:
        """The one that new pods with these labels are to follow, the first by name."""
        near: set[str] = set()
        labels = _known_by(labels)
        for key, value in (("", ""), *labels.items()):
            near |= self._near.get((namespace, key, value), set())
        for name in sorted(near):
            recommendation, selectors = self._followed[namespace, name]
            if any(selector.matches(labels) for selector in selectors):
                return recommendation
        return None


def _known_by(labels: Mapping[str, str]) -> Mapping[str, str]:
    """A new pod's labels, and LABEL_CRON_JOB if its Job is named as a CronJob names them."""
    for key in _JOB_NAMES:
        name, _, minute = labels.get(key, "").rpartition("-")
        if name and minute.isascii() and minute.isdecimal() and len(minute) == 8 and int(minute) > _FIRST_MINUTE:
            return {**labels, LABEL_CRON_JOB: name}
    return labels


def _labels(selectors: Iterable[Selector]) -> set[tuple[str, str]]:
    """What a Recommendation is found by: one label that a selector demands; an empty one for selectors that demand none."""
    found: set[tuple[str, str]] = set()
    for selector in selectors:
        pin = next((one for one in selector.requirements if one.operator == "In"), None)
        found.update([("", "")] if pin is None else [(pin.key, value) for value in pin.values])
    return found


def _confident(recommendation: Recommendation) -> bool:
    return any(c.type == CONDITION_LOW_CONFIDENCE and c.status == "False" for c in recommendation.status.conditions)


def selector_text(selectors: Iterable[Selector]) -> str:
    """The selectors for the annotation. One of everything is `*` there: its usual text is empty, and without a selector nothing follows."""
    return ";".join(sorted("*" if selector.everything else str(selector) for selector in selectors))


def _compiled(text: str) -> Iterator[Selector]:
    for part in filter(None, text.split(";")):
        with suppress(SelectorError):
            yield EVERYTHING if part == "*" else parse_label_selector(part)


def estimate(pod: dict[str, Any], recommendation: Recommendation) -> dict[str, int]:
    """Tell LoadAwareScheduling what the pod is likely to use, in percent of what it asks for; what was told.

    Its requests stay. Nothing is told of a resource of which a container is not known or asks for nothing, and a pod that
    says itself what it uses is left alone.
    """
    status = recommendation.status.pod_status
    known = {c.container_name: c.resources for c in status.container_statuses} if status else {}
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if ANNOTATION_LOAD_ESTIMATED_SCALING_FACTORS in annotations:
        return {}
    factors = {}
    for resource in ("cpu", "memory"):
        percent = _percent(_running(pod), known, resource)
        if percent is not None:
            factors[resource] = percent
    if factors:
        told = {ANNOTATION_LOAD_ESTIMATED_SCALING_FACTORS: orjson.dumps(factors).decode(), ANNOTATION_APPLIED: recommendation.metadata.name}
        pod.setdefault("metadata", {})["annotations"] = {**annotations, **told}
    return factors


def _running(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Containers that run as long as the pod."""
    spec = pod.get("spec") or {}
    return [*(spec.get("containers") or []), *(c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always")]


def _percent(containers: list[dict[str, Any]], known: Mapping[str, Mapping[str, Any]], resource: str) -> int | None:
    """Likely use in percent of the larger of requests and limits (what the estimator scales, SCH-LA-06), 1 to 100."""
    used = asked = 0
    try:
        for container in containers:
            resources = container.get("resources") or {}
            base = [parse_milli((resources.get(section) or {}).get(resource, 0)) for section in ("requests", "limits")]
            if not max(base) or resource not in known.get(container.get("name", ""), {}):
                return None
            asked += max(base)
            used += parse_milli(known[container["name"]][resource])
    except QuantityError:
        return None
    return min(max(-(-used * 100 // asked), 1), 100) if asked else None


def apply(pod: dict[str, Any], recommendation: Recommendation, *, exclusive: bool = False) -> dict[str, str]:
    """Set the requests of a pod's containers in place; what was set, as text, by container and resource.

    A request stays below the container's limit, but a limit that equals its request follows it. Only resources that the container
    requests already are touched. So the pod's QoS class stays what it was. CPUs that a pod has for itself (LSR, LSE) are left alone: they
    are whole ones, and counted by who wrote the pod. `exclusive`: a profile is about to make it such a pod.
    """
    exclusive = exclusive or ((pod.get("metadata") or {}).get("labels") or {}).get(LABEL_POD_QOS) in EXCLUSIVE
    status = recommendation.status.pod_status
    wanted = {c.container_name: c.resources for c in status.container_statuses} if status else {}
    done: dict[str, str] = {}
    for container in _running(pod):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for resource, text in wanted.get(container.get("name", ""), {}).items():
            if resource not in requests or (exclusive and resource == "cpu"):
                continue
            bound = resource in limits and _equal(requests[resource], limits[resource])
            value = str(text) if bound else _below(str(text), limits.get(resource), resource)
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


def _below(text: str, limit: Any, resource: str) -> str | None:
    """The recommendation, or what is just below the limit: a request that equals it would be another QoS class. None: leave it alone."""
    try:
        if limit is None or Quantity(text) < Quantity(limit):
            return text
        most = Quantity(limit) - Quantity("1m" if resource == "cpu" else 1)
    except QuantityError:
        return None
    return str(most) if most > Quantity() else None
