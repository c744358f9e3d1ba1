"""A Reservation read once: what it reserves, under which terms, how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from koord.accounting.resources import ResourceVector, parse
from koord.api import annotations as api
from koord.api import names
from koord.api.deprecated import rewrite_resource_list
from koord.api.labels import reservation_order
from koord.api.objects import Pod, Reservation, ReservationOwner
from koord.api.times import parse_duration, parse_time
from koord.api.v1alpha1.reservation import PHASE_AVAILABLE, PHASE_FAILED, PHASE_PENDING, PHASE_SUCCEEDED, PHASE_WAITING
from roles.scheduler.cluster.vocabulary import TaintKey
from roles.scheduler.framework.restoring import ALIGNED, DEFAULT, RESTRICTED

T = TypeVar("T")

DEFAULT_TTL = 86400.0  # seconds, filled in by the API server
CLUSTER_MODE = "Cluster"
_TRUE = "true"
_POLICIES = {"": DEFAULT, ALIGNED: ALIGNED, RESTRICTED: RESTRICTED}


@dataclass(slots=True, eq=False)
class Terms:
    """What matching, fitting and the controller look at. `kind` is "Reservation", or "Pod" for a pod in operating mode Reservation.

    `problems` say why it is not valid; a reservation with some is neither scheduled nor used. Times in seconds, None for never.
    """

    kind: str
    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str]
    order: int
    deleting: bool
    taints: tuple[TaintKey, ...] = ()
    unschedulable: bool = False
    owners: tuple[ReservationOwner, ...] = ()
    allocate_once: bool = True
    policy: str = ALIGNED
    allocatable: ResourceVector = field(default_factory=dict)
    restricted: frozenset[str] = frozenset()
    inner: ResourceVector = field(default_factory=dict)
    node: str = ""
    phase: str = ""
    pre_allocation: bool = False
    pre_allocation_required: bool = False
    cluster_mode: bool = False
    multiple: bool = False
    created: float = 0.0
    ttl: float | None = None
    expires: float | None = None
    problems: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Whether it holds resources on a node."""
        return self.phase in (PHASE_AVAILABLE, PHASE_WAITING) and bool(self.node)

    @property
    def available(self) -> bool:
        """Whether owners may come, as far as its phase is concerned."""
        return self.phase == PHASE_AVAILABLE and bool(self.node)

    @property
    def terminal(self) -> bool:
        """Whether it is over."""
        return self.phase in (PHASE_SUCCEEDED, PHASE_FAILED)

    def deadline(self) -> float | None:
        """When it expires. A ttl of 0 never; else the earlier of `expires` and the end of the ttl, but a ttl that is only the API
        server's default does not cut a later `expires` short."""
        if self.ttl == 0:
            return None
        if self.expires is not None and (self.ttl is None or self.ttl == DEFAULT_TTL):
            return self.expires
        end = self.created + self.ttl if self.ttl is not None else None
        return min((time for time in (self.expires, end) if time is not None), default=None)


def of_reservation(reservation: Reservation, requested: ResourceVector) -> Terms:
    """The terms of a Reservation; `requested` is what its template asks for. Never raises: what cannot be read is a problem."""
    meta, spec, status = reservation.metadata, reservation.spec, reservation.status
    problems: list[str] = []
    namespace = (spec.template.metadata.namespace if spec.template is not None else "") or "default"
    order, deleting = reservation_order(meta.labels), meta.deletion_timestamp is not None
    terms = Terms("Reservation", meta.name, namespace, meta.uid, meta.labels, order, deleting)
    terms.taints = tuple(TaintKey(taint.key, taint.value or "", taint.effect) for taint in spec.taints)
    terms.unschedulable = spec.unschedulable
    terms.owners = spec.owners
    terms.allocate_once = spec.allocate_once is not False
    if spec.allocate_policy not in _POLICIES:
        problems.append(f"spec.allocatePolicy {spec.allocate_policy!r}: accepted are Aligned and Restricted")
    terms.policy = _POLICIES.get(spec.allocate_policy, DEFAULT)
    terms.phase = status.phase or PHASE_PENDING
    terms.node = status.node_name
    terms.allocatable = _allocatable(reservation, requested, problems)
    terms.restricted = _restricted(meta.annotations, terms.allocatable, problems)
    terms.inner = _inner(meta.annotations, problems)
    terms.pre_allocation = spec.pre_allocation
    policy = spec.pre_allocation_policy
    terms.cluster_mode = policy is not None and policy.mode == CLUSTER_MODE
    terms.multiple = policy is not None and policy.enable_multiple
    terms.pre_allocation_required = meta.labels.get(names.LABEL_PRE_ALLOCATION_REQUIRED) == _TRUE
    terms.created = _time(meta.creation_timestamp, "metadata.creationTimestamp", problems) or 0.0
    terms.expires = _time(spec.expires, "spec.expires", problems)
    if spec.ttl is not None:
        terms.ttl = _read(lambda: parse_duration(spec.ttl or ""), None, problems, "spec.ttl: ")
    if spec.template is None:
        problems.append("spec.template is required")
    if not spec.owners:
        problems.append("spec.owners needs at least one entry")
    if spec.ttl is None and spec.expires is None:
        problems.append("one of spec.ttl and spec.expires is required")
    terms.problems = tuple(problems)
    return terms


def of_pod(pod: Pod, requested: ResourceVector) -> Terms:
    """The terms of a pod in operating mode Reservation (SCH-RSV-14): used once, Aligned, there while it runs and is ready."""
    meta, status = pod.metadata, pod.status
    problems: list[str] = []
    order, deleting = reservation_order(meta.labels), meta.deletion_timestamp is not None
    terms = Terms("Pod", meta.name, meta.namespace, meta.uid, meta.labels, order, deleting, ttl=0.0)
    terms.owners = _read(lambda: api.parse_reservation_owners(meta.annotations) or (), (), problems)
    if not terms.owners and not problems:
        problems.append(f"annotation {names.ANNOTATION_RESERVATION_OWNERS} names no owner")
    terms.allocatable = requested
    terms.restricted = frozenset(requested)
    terms.inner = _inner(meta.annotations, problems)
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in status.conditions)
    terms.phase = PHASE_AVAILABLE if status.phase == "Running" and ready else PHASE_WAITING
    terms.node = pod.spec.node_name or ""
    terms.problems = tuple(problems)
    return terms


def resized(annotations: Mapping[str, str], requested: ResourceVector, problems: list[str]) -> ResourceVector:
    """What the template asks for, overlaid by the annotation `reservation-resize-allocatable`."""
    overlay = _read(lambda: parse(dict(api.parse_reservation_resize_allocatable(annotations) or {})), None, problems)
    return {**requested, **overlay} if overlay else requested


def _allocatable(reservation: Reservation, requested: ResourceVector, problems: list[str]) -> ResourceVector:
    """What is reserved: what the status says once it is there, else what the template asks for."""
    if not reservation.status.allocatable:
        return requested
    amounts = dict(reservation.status.allocatable)
    rewrite_resource_list(amounts)
    return _read(lambda: parse(amounts), requested, problems, "status.allocatable: ")


def _restricted(annotations: Mapping[str, str], allocatable: ResourceVector, problems: list[str]) -> frozenset[str]:
    wanted = _read(lambda: api.parse_reservation_restricted_options(annotations), None, problems)
    return frozenset(wanted or ()) & allocatable.keys() or frozenset(allocatable)


def _inner(annotations: Mapping[str, str], problems: list[str]) -> ResourceVector:
    """What the reservation keeps back for itself."""

    def amounts() -> ResourceVector:
        kept = api.parse_node_reservation(annotations)
        return parse(api.node_reservation_resources(kept)) if kept is not None else {}

    nothing: ResourceVector = {}
    return {name: amount for name, amount in _read(amounts, nothing, problems).items() if amount > 0}


def _time(text: str | None, path: str, problems: list[str]) -> float | None:
    return _read(lambda: parse_time(text or ""), None, problems, f"{path}: ") if text else None


def _read(read: Callable[[], T], default: T, problems: list[str], where: str = "") -> T:
    """What is read, or the default and one problem more."""
    try:
        return read()
    except ValueError as error:
        problems.append(f"{where}{error}")
        return default
