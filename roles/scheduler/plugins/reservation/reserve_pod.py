"""The pod that stands for a Reservation in queue and cluster (SCH-RSV-01)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.accounting.pods import pod_requests
from koord.accounting.resources import ResourceVector, equal
from koord.accounting.resources import format as format_amounts
from koord.api import names
from koord.api.deprecated import rewrite_pod
from koord.api.objects import ObjectMeta, Pod, PodSpec, PodStatus, Reservation, ResourceRequirements
from koord.api.priority import PriorityError, sub_priority
from roles.scheduler.cluster.podinfo import PodInfo, PodParser
from roles.scheduler.plugins.reservation.terms import Terms, of_reservation

HIGHEST_PRIORITY = (1 << 31) - 1
_DEFAULT_SCHEDULER = "default-scheduler"
_replace = msgspec.structs.replace


def read(reservation: Reservation, parser: PodParser) -> tuple[Terms, PodInfo | None]:
    """The terms of a Reservation and its reserve pod; no pod for one that is not valid. Never raises."""
    spec = _template(reservation)
    template = Pod(spec=spec)
    rewrite_pod(template)
    try:
        requested = pod_requests(template)
    except ValueError as error:
        terms = of_reservation(reservation, {})
        terms.problems = (*terms.problems, f"spec.template: {error}")
        return terms, None
    terms = of_reservation(reservation, {name: amount for name, amount in requested.items() if amount > 0})
    if terms.problems:
        return terms, None
    if not equal(terms.allocatable, requested):
        spec = _sized(spec, terms.allocatable)
    pod = Pod(metadata=_metadata(reservation, terms), spec=_spec(spec, reservation, terms), status=PodStatus(phase="Pending"))
    try:
        return terms, parser.parse(pod, reservation=terms.name)
    except ValueError as error:
        terms.problems = (f"spec.template: {error}",)
        return terms, None
    except OverflowError:
        terms.problems = ("spec.template: a number in it does not fit into 64 bits",)
        return terms, None


def _template(reservation: Reservation) -> PodSpec:
    """A copy of the template's spec with requests filled in from limits, as the API server does for pods."""
    if reservation.spec.template is None:
        return PodSpec()
    spec = msgspec.convert(msgspec.to_builtins(reservation.spec.template.spec), PodSpec)
    for container in (*spec.containers, *spec.init_containers):
        resources = container.resources
        for name, amount in resources.limits.items():
            resources.requests.setdefault(name, amount)
    return spec


def _sized(spec: PodSpec, amounts: ResourceVector) -> PodSpec:
    """The spec with other requests: all of them in the first container."""
    nothing = ResourceRequirements()
    whole = ResourceRequirements(requests=dict(format_amounts(amounts)))
    containers = tuple(_replace(container, resources=nothing if index else whole) for index, container in enumerate(spec.containers))
    inits = tuple(_replace(container, resources=nothing) for container in spec.init_containers)
    return _replace(spec, containers=containers, init_containers=inits, overhead={}, resources=None)


def _metadata(reservation: Reservation, terms: Terms) -> ObjectMeta:
    meta, template = reservation.metadata, reservation.spec.template
    assert template is not None
    annotations = {**template.metadata.annotations, **meta.annotations}
    annotations[names.ANNOTATION_RESERVE_POD] = "true"
    annotations[names.ANNOTATION_RESERVATION_NAME] = meta.name
    if terms.pre_allocation:
        annotations[names.ANNOTATION_IS_PRE_ALLOCATION] = "true"
    if template.spec.node_name:
        annotations[names.ANNOTATION_RESERVATION_NODE] = template.spec.node_name
    return ObjectMeta(
        name=meta.uid,
        uid=meta.uid,
        namespace=terms.namespace,
        labels={**template.metadata.labels, **meta.labels},
        annotations=annotations,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
        owner_references=template.metadata.owner_references,
    )


def _spec(spec: PodSpec, reservation: Reservation, terms: Terms) -> PodSpec:
    priority = _labelled_priority(reservation.metadata.labels) if spec.priority is None else spec.priority
    return _replace(
        spec,
        node_name=terms.node if terms.active else "",
        priority=HIGHEST_PRIORITY if priority is None else priority,
        scheduler_name=spec.scheduler_name or _DEFAULT_SCHEDULER,
    )


def _labelled_priority(labels: Mapping[str, str]) -> int | None:
    """What the label `koordinator.sh/priority` says; None without it, and for what is no int32."""
    if not labels.get(names.LABEL_POD_PRIORITY):
        return None
    try:
        return sub_priority(labels)
    except PriorityError:
        return None
