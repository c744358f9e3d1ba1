"""The reservation that a pod moves into (DS-MC-07). Pure: a job and a pod in, the Reservation to be made out.

What the job's own template says wins; only what is missing is filled in. The pod is plain JSON as the API server has it, because the
template must carry everything that scheduling may look at.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import msgspec

from koord.api import names, trust
from koord.api.kinds import PODMIGRATIONJOBS, RESERVATIONS
from koord.api.objects import Pod, PodMigrationJob, Reservation, convert
from koord.api.times import TimeError, format_duration, parse_duration, parse_time
from roles.descheduler.migration import status
from roles.descheduler.migration.words import CREATED_BY
from roles.descheduler.spreading import Domains

Json = dict[str, Any]
_OF_THE_SERVER = ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
                  "managedFields", "selfLink", "finalizers")  # fmt: skip
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_AFFINITY = f"spec.template.spec.affinity.nodeAffinity.{_REQUIRED}."
SPARE = 60.0  # seconds


class TemplateError(ValueError):
    """A template that no reservation can be made from; the text says where and what is accepted."""


def reservation(
    job: PodMigrationJob,
    pod: Json,
    now: float,
    *,
    without_claims: bool = False,
    nodes: Sequence[str] | None = None,
    spread: Sequence[Domains] = (),
) -> Json:
    """The Reservation for a job. `nodes` are the only ones where it may lie, None for all but those that the job avoids; `spread` is what
    the pod's topology spread leaves of them.

    `without_claims` leaves volumes of claims out (gate DisablePVCReservation). Raises TemplateError."""
    made = copy.deepcopy(_object({"template": _given(job)}, "template", ""))
    metadata = _object(made, "metadata", "")
    spec = _object(made, "spec", "")
    metadata["name"] = metadata.get("name") or job.metadata.uid
    metadata.pop("generateName", None)
    labels = _object(metadata, "labels", "metadata.")
    labels[names.LABEL_CREATED_BY] = CREATED_BY
    labels[names.LABEL_RESERVATION_ORDER] = order(now)
    # the garbage collector takes the reservation away when the job is deleted while no descheduler runs
    metadata["ownerReferences"] = [*_objects(metadata, "ownerReferences", "metadata."), owner_reference(job)]
    if ours := not spec.get("template"):
        spec["template"] = {"metadata": _metadata(pod), "spec": copy.deepcopy(pod.get("spec") or {})}
    if not spec.get("owners"):
        spec["owners"] = owners(pod)
    if not spec.get("ttl") and not spec.get("expires") and job.spec.ttl:
        spec["ttl"] = job.spec.ttl
    spec["allocateOnce"] = True
    held = _object(_object(spec, "template", "spec."), "spec", "spec.template.")
    held.pop("nodeName", None)
    if spread and ours:
        _counted_already(held)
    _spread_over_all(held)
    for each in spread:
        _keep_to_domains(held, each)
    if node := (pod.get("spec") or {}).get("nodeName"):
        _keep_off(held, node)
    for lost in status.avoided(job) if nodes is None else ():
        _keep_off(held, lost)
    if nodes is not None:
        _keep_to(held, nodes)
    if without_claims:
        volumes = _objects(held, "volumes", "spec.template.spec.")
        held["volumes"] = [each for each in volumes if not (each.get("persistentVolumeClaim") or each.get("ephemeral"))]
    asked = {"apiVersion": RESERVATIONS.api_version, "kind": RESERVATIONS.kind, "metadata": metadata, "spec": spec}
    try:
        convert(asked, Reservation)  # the API server takes parts of it as they are, and nobody could read them
    except msgspec.ValidationError as error:
        raise TemplateError(f"spec.reservationOptions.template makes no Reservation: {error}") from None
    return asked


def longer(made: Reservation, now: float, seconds: float) -> str:
    """The ttl that lets a reservation last so many seconds from now, "" where it does already. One with a fixed end is left alone.

    It is a minute more than asked for, so that a pod that is refused at first does not need another one at each attempt."""
    try:
        held = parse_duration(made.spec.ttl) if made.spec.ttl else 0.0
        age = now - parse_time(made.metadata.creation_timestamp) if made.metadata.creation_timestamp else 0.0
    except TimeError:
        return ""
    return format_duration(age + seconds + SPARE) if made.spec.expires is None and 0 < held < age + seconds else ""


def order(now: float) -> str:
    """The label by which the scheduler takes the oldest reservation first: unix milliseconds."""
    return str(int(now * 1000))


def owner_reference(job: PodMigrationJob) -> Json:
    """That the job owns what is made for it."""
    meta = job.metadata
    kind = PODMIGRATIONJOBS
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": meta.name, "uid": meta.uid, "controller": True}


def waits_for_a_node(pod: Json) -> bool:
    """Whether the scheduler has tried the pod and found no node."""
    state = pod.get("status") or {}
    conditions = state.get("conditions") or []
    return state.get("phase") == "Pending" and any(
        each.get("type") == "PodScheduled" and each.get("status") == "False" for each in conditions
    )


def owners(pod: Json) -> list[Json]:
    """Who may use the reservation: a waiting pod itself, else the pods of its controller; nobody if there is none."""
    meta = pod.get("metadata") or {}
    if waits_for_a_node(pod):
        return [{"object": {"kind": "Pod", "namespace": meta.get("namespace"), "name": meta.get("name"), "uid": meta.get("uid")}}]
    for reference in meta.get("ownerReferences") or []:
        if reference.get("controller"):
            return [{"controller": {**reference, "namespace": meta.get("namespace")}}]
    return []


def _object(parent: Json, name: str, path: str) -> Json:
    """A member that must be an object, made if it is missing."""
    value = parent.get(name)
    if value is None:
        value = parent[name] = {}
    if not isinstance(value, dict):
        raise _wrong(f"{path}{name}", "an object", value)
    return value


def _objects(parent: Json, name: str, path: str) -> list[Json]:
    """A member that must be a list of objects, empty if it is missing."""
    value = parent.get(name)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise _wrong(f"{path}{name}", "a list", value)
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            raise _wrong(f"{path}{name}[{index}]", "an object", each)
    return list(value)


def _wrong(path: str, accepted: str, value: object) -> TemplateError:
    where = path if path == "template" else f"template.{path}"
    return TemplateError(f"spec.reservationOptions.{where} must be {accepted}, found {type(value).__name__}")


def _metadata(pod: Json) -> Json:
    """What the successor will have. What the scheduler gave to the pod where it is would count on the node of the reservation, too."""
    made = {name: copy.deepcopy(value) for name, value in (pod.get("metadata") or {}).items() if name not in _OF_THE_SERVER}
    return {**made, "annotations": trust.unplaced(made["annotations"])} if made.get("annotations") else made


def _keep_off(held: Json, node: str) -> None:
    """The reservation must not lie on a node: every required term says so."""
    required = _required(held)
    required["nodeSelectorTerms"] = [_with_name(term, "NotIn", node) for term in _terms(required)]


def _keep_to(held: Json, nodes: Sequence[str]) -> None:
    """The reservation must lie on one of the nodes. A field may be compared with one name only, so there is a term a node."""
    required = _required(held)
    terms = _terms(required)
    required["nodeSelectorTerms"] = [_with_name(term, "In", node) for node in nodes for term in terms]


def _counted_already(held: Json) -> None:
    """Topology spread that must hold is asked of the nodes by name: the scheduler would count the pod that leaves, too."""
    for constraint in held.get("topologySpreadConstraints") or ():
        if constraint.get("whenUnsatisfiable") == "DoNotSchedule":
            constraint["whenUnsatisfiable"] = "ScheduleAnyway"
            constraint.pop("minDomains", None)  # not allowed here


def _keep_to_domains(held: Json, domains: Domains) -> None:
    """The reservation must lie in a domain that is open: every required term says so, in as few words as that takes."""
    if not domains.closed:
        return
    shut = len(domains.closed) <= len(domains.open)
    values = sorted(domains.closed if shut else domains.open)
    wanted = {"key": domains.key, "operator": "NotIn" if shut else "In", "values": values}
    required = _required(held)
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*_objects(term, "matchExpressions", f"{_AFFINITY}nodeSelectorTerms[]."), wanted]}
        for term in _terms(required)
    ]


def _spread_over_all(held: Json) -> None:
    """What keeps the reservation to some nodes must not hide the others from the pod's topology spread: the pod that comes counts them.

    A pod with rules of its own about nodes goes on counting those that match, for there is no way to say which."""
    where = "spec.template.spec."
    affinity = held.get("affinity") or {}
    of_nodes = _object(affinity, "nodeAffinity", f"{where}affinity.") if isinstance(affinity, dict) and affinity.get("nodeAffinity") else {}
    if held.get("nodeSelector") or (of_nodes or {}).get(_REQUIRED):
        return
    constraints = held.get("topologySpreadConstraints")
    for constraint in constraints if isinstance(constraints, list | tuple) else ():
        if isinstance(constraint, dict):
            constraint["nodeAffinityPolicy"] = "Ignore"


def _required(held: Json) -> Json:
    where = "spec.template.spec."
    affinity = _object(_object(held, "affinity", where), "nodeAffinity", f"{where}affinity.")
    return _object(affinity, _REQUIRED, f"{where}affinity.nodeAffinity.")


def _terms(required: Json) -> list[Json]:
    """The terms of a required node affinity; one without a condition if there is none."""
    return _objects(required, "nodeSelectorTerms", _AFFINITY) or [{}]


def _with_name(term: Json, operator: str, node: str) -> Json:
    wanted = {"key": "metadata.name", "operator": operator, "values": [node]}
    return {**term, "matchFields": [*_objects(term, "matchFields", f"{_AFFINITY}nodeSelectorTerms[]."), wanted]}


def elsewhere(pod: Pod, nodes: Sequence[str] | None = None) -> Pod:
    """The pod as its reservation asks for it: on any node but its own, or on one of these nodes."""
    spec = msgspec.to_builtins(pod.spec)
    _spread_over_all(spec)
    _keep_off(spec, pod.spec.node_name)
    if nodes is not None:
        _keep_to(spec, nodes)
    return msgspec.structs.replace(pod, spec=convert({"spec": spec}, Pod).spec)


def reference(made: Json) -> Json:
    """What the job remembers of its reservation."""
    meta = made["metadata"]
    return {"apiVersion": RESERVATIONS.api_version, "kind": RESERVATIONS.kind, "name": meta["name"], "uid": meta.get("uid", "")}


def foreign(made: Json, job: PodMigrationJob) -> str:
    """The name of another job that an existing reservation was made for, "" if the job may adopt it."""
    for owner in (made.get("metadata") or {}).get("ownerReferences") or []:
        if owner.get("kind") == PODMIGRATIONJOBS.kind and owner.get("uid") != job.metadata.uid:
            return str(owner.get("name"))
    return ""


def mine(job: PodMigrationJob) -> str:
    """The name that the reservation of a job has unless its template says otherwise."""
    made: object = _given(job)
    metadata = made.get("metadata") if isinstance(made, dict) else None
    given = metadata.get("name") if isinstance(metadata, dict) else None
    ref = status.reservation_ref(job)
    return ref.name if ref is not None else str(given or job.metadata.uid)


def _given(job: PodMigrationJob) -> Any:
    """The template that the job brings, None for none. Its schema accepts everything."""
    options = job.spec.reservation_options
    return options.template if options is not None else None
