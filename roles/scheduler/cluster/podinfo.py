"""A pod as the scheduler sees it: parsed once, and split into what pods of one template share (the shape) and what they do not."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar
from weakref import WeakValueDictionary, ref

import msgspec

from koord.accounting.pods import RESIZE_DEFERRED, is_resized, non_zero_requests, pod_limits, pod_requests, resize_growth, resize_pending
from koord.api import names
from koord.api.deprecated import rewrite_pod
from koord.api.objects import Condition, ObjectMeta, Pod, PodAffinity, PodSpec, Volume
from koord.api.priority import PriorityClass, priority_class_with_default
from koord.api.qos import QoSClass, pod_qos
from roles.scheduler.cluster.gpuforms import translate_rest
from roles.scheduler.cluster.terms import (
    NodeTerm,
    PodTerm,
    PreferredNodeTerm,
    Selector,
    SpreadConstraint,
    WeightedPodTerm,
    map_selector,
    node_term,
    pod_term,
    spread_constraint,
)
from roles.scheduler.cluster.tolerations import Toleration, compile_tolerations
from roles.scheduler.cluster.transform import Transform
from roles.scheduler.cluster.vocabulary import Vocabulary

T = TypeVar("T")

_replace = msgspec.structs.replace

DEFAULT_SCHEDULER = "default-scheduler"
_TERMINATED = ("Succeeded", "Failed")

# Annotations that differ from pod to pod of one template and do not decide where it can be: mostly results written when it is bound.
_RESULTS = frozenset(
    (
        names.ANNOTATION_RESOURCE_STATUS, names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_RESERVATION_ALLOCATED,
        names.ANNOTATION_BIND_GANG_GROUP_ID, names.ANNOTATION_BIND_GANG_GROUP_ID_DEPRECATED,
        names.ANNOTATION_BIND_GANG_MEMBER_COUNT, names.ANNOTATION_BIND_GANG_MEMBER_COUNT_DEPRECATED,
        names.ANNOTATION_BIND_TIMESTAMP, names.ANNOTATION_GPU_MINORS, names.ANNOTATION_RESERVATION_NAME,
        names.ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX,  # its rank among its gang, read from the pod
    )
)  # fmt: skip


def annotated_otherwise(old: Pod, new: Pod) -> bool:
    """Whether annotations differ that somebody reads, apart from what schedulers write."""
    a, b = old.metadata.annotations or {}, new.metadata.annotations or {}
    return a != b and any(a.get(key) != b.get(key) for key in a.keys() | b.keys() if key not in _RESULTS)


# Labels that controllers set to another value on each pod of one template.
UNIQUE_LABELS = frozenset(
    ("statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index")
)
_UNIQUE_TEXT = tuple(label.encode() for label in UNIQUE_LABELS)
_NO_LABELS: dict[str, str] = {}

# What of a volume has to do with where its pod can be.
_placing = attrgetter(
    "persistent_volume_claim", "ephemeral", "csi", "gce_persistent_disk", "aws_elastic_block_store", "azure_disk", "rbd", "iscsi"
)
_NOWHERE = _placing(Volume())


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False, init=False)
class PodShape:
    """All that scheduling looks at in a pod, shared by the pods for which it is equal.

    `requests` are (resource id, amount) in base units; `non_zero` are (milli-CPU, bytes) with scheduler defaults for containers
    without requests. `memo` is where plugins keep what they derived from the shape.

    `labels` are without those of UNIQUE_LABELS, unless the pod's own terms speak of them: match selectors against `PodInfo.labels`.
    `template` is the first pod of the shape, of which the others share the parts.
    """

    digest: bytes
    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str]
    scheduler_name: str
    priority: int
    preemption_policy: str
    amounts: dict[str, int]
    limits: dict[str, int]
    requests: tuple[tuple[int, float], ...]
    non_zero: tuple[float, float]
    ports: tuple[tuple[str, str, int], ...]
    tolerations: tuple[Toleration, ...]
    node_selector: Selector
    required_nodes: tuple[NodeTerm, ...] | None
    preferred_nodes: tuple[PreferredNodeTerm, ...]
    affinity: tuple[PodTerm, ...]
    anti_affinity: tuple[PodTerm, ...]
    preferred_affinity: tuple[WeightedPodTerm, ...]
    spread: tuple[SpreadConstraint, ...]
    images: tuple[str, ...]
    gates: tuple[str, ...]
    claims: tuple[str, ...]
    volumes: tuple[Volume, ...]
    template: Pod
    daemonset: bool
    qos: QoSClass
    priority_class: PriorityClass
    memo: dict[Any, Any]


def may_select(selector: Selector | None, shape: PodShape) -> bool:
    """Whether a label selector may match pods of a shape, of which some labels are another on each."""
    return selector is not None and all(wanted.key in UNIQUE_LABELS or wanted.matches(shape.labels) for wanted in selector)


class PodInfo:
    """One pod. Everything that placing needs is on `shape`; `pod` is the projection, cut down to what the scheduler still reads when it
    came from a PodParser: without container statuses, volumes that do not matter and annotations of others. `labels` are all labels.

    `growth` is what a resize that its kubelet has deferred asks for beyond what the pod holds, in base units; None without one.
    `reservation` is the Reservation's name if the pod stands for one (a reserve pod, framework/restoring.py), "" for a real pod."""

    __slots__ = (
        "deleting", "growth", "key", "labels", "name", "namespace", "node_name", "nominated", "pod", "reservation", "shape", "terminated",
        "uid",
    )  # fmt: skip

    def __init__(self, pod: Pod, shape: PodShape, reservation: str = "") -> None:
        meta, spec, status = pod.metadata, pod.spec, pod.status
        self.labels = meta.labels
        self.namespace = meta.namespace
        self.name = meta.name
        self.key = f"{meta.namespace}/{meta.name}"
        self.uid = meta.uid or self.key
        self.node_name = spec.node_name or ""
        self.nominated = status.nominated_node_name or ""
        self.deleting = meta.deletion_timestamp is not None
        self.terminated = status.phase in _TERMINATED
        self.pod = pod
        self.shape = shape
        self.growth: dict[str, int] | None = None
        self.reservation = reservation

    @property
    def metadata(self) -> ObjectMeta:
        """The pod's metadata."""
        return self.pod.metadata

    @property
    def unique_labels(self) -> dict[str, str]:
        """Labels that other pods of the shape have with other values."""
        labels = self.labels
        return _NO_LABELS if labels is self.shape.labels else {key: labels[key] for key in sorted(UNIQUE_LABELS & labels.keys())}

    @property
    def priority(self) -> int:
        """spec.priority, 0 when unset."""
        return self.shape.priority

    def __repr__(self) -> str:
        return f"PodInfo({self.key})"


def with_amounts(info: PodInfo, amounts: dict[str, int], vocabulary: Vocabulary) -> PodInfo:
    """The pod as if it requested other amounts (base units). Its shape keeps the digest: it is for counting, not for deciding."""
    old = info.shape
    shape = PodShape()
    for name in PodShape.__slots__:
        if name != "__weakref__":
            setattr(shape, name, getattr(old, name))
    shape.memo = {}
    shape.amounts = amounts
    shape.requests = vocabulary.vector(amounts)
    taken = (old.amounts.get(name, 0) - amounts.get(name, 0) for name in (names.RESOURCE_CPU, names.RESOURCE_MEMORY))
    cpu, memory = (max(0.0, amount - less) for amount, less in zip(old.non_zero, taken, strict=True))
    shape.non_zero = (cpu, memory)
    return PodInfo(info.pod, shape, info.reservation)


class PodParser:
    """Turns projections into PodInfo; keeps the shapes that are in use so that equal pods share one.

    Raises `koord.api.quantity.QuantityError` for a pod with a malformed quantity.
    """

    def __init__(self, vocabulary: Vocabulary, transforms: tuple[Transform, ...] = ()) -> None:
        self.vocabulary = vocabulary
        self.all_annotations = False  # whether annotations of others are kept, for plugins of others
        self.also: set[str] = set()  # annotations of others that arguments of plugins name
        self._transforms = transforms
        self._shapes: WeakValueDictionary[bytes, PodShape] = WeakValueDictionary()
        self._last: Callable[[], PodShape | None] = _nothing
        self._encode = msgspec.msgpack.Encoder().encode

    def parse(self, pod: Pod, *, reservation: str = "") -> PodInfo:
        """The PodInfo of a pod as it stands; `reservation` names the Reservation that it stands for."""
        rewrite_pod(pod)
        if pod.spec.init_containers:
            translate_rest(pod)
        for transform in self._transforms:
            pod = transform(pod)
        shape = self._like_last(pod)
        if shape is None:
            digest = self._digest(pod)
            shape = self._shapes.get(digest)
            if shape is None:
                shape = self._shape(pod, digest)
                self._shapes[digest] = shape
            self._last = _nothing if is_resized(pod) else ref(shape)
        info = PodInfo(_slim(pod, shape, None if self.all_annotations else self._kept), shape, reservation)
        if pod.spec.node_name and resize_pending(pod) == RESIZE_DEFERRED:
            info.growth = resize_growth(pod)
        return info

    def _like_last(self, pod: Pod) -> PodShape | None:
        """The last pod's shape, if this pod is plainly of it: pods of a template come one after another, and a digest takes longer."""
        shape, meta = self._last(), pod.metadata
        if shape is None or pod.spec.volumes or meta.labels != shape.labels or meta.namespace != shape.namespace or is_resized(pod):
            return None
        model = shape.template
        alike = (
            _placed(model.spec, pod.spec.node_name) == pod.spec
            and self._relevant(meta.annotations) == shape.annotations
            and pod.status.qos_class == model.status.qos_class
            and [owner.kind for owner in meta.owner_references] == [owner.kind for owner in model.metadata.owner_references]
        )
        return shape if alike else None

    def _kept(self, key: str) -> bool:
        """Whether an annotation of this key is read by anybody."""
        return names.DOMAIN in key or key == names.ANNOTATION_GANG_MATCH_POLICY_ALIAS or key in self.also

    def _relevant(self, annotations: dict[str, str] | None) -> dict[str, str]:
        """Those that decide where a pod can be."""
        if not annotations:
            return {}
        return {key: value for key, value in annotations.items() if self._kept(key) and key not in _RESULTS}

    def _digest(self, pod: Pod) -> bytes:
        meta, spec = pod.metadata, pod.spec
        # Constraints are encoded by themselves: a unique label that one of them speaks of belongs to the shape.
        terms = self._encode((spec.affinity, spec.topology_spread_constraints)) if _has_terms(spec) else b""
        volumes = _placing_volumes(spec.volumes)
        # Claims of ephemeral volumes are named after the pod: such a pod has a shape of its own.
        own_name = meta.name if any(volume.ephemeral is not None for volume in volumes) else ""
        parts = (
            meta.namespace, own_name, _shape_labels(meta.labels, terms), terms, self._relevant(meta.annotations),
            spec.containers, spec.init_containers,
            spec.overhead,
            spec.resources, spec.node_selector, spec.tolerations, spec.priority, spec.scheduler_name, spec.preemption_policy,
            spec.scheduling_gates, volumes, spec.host_network, spec.host_users, spec.resource_claims,
            [owner.kind for owner in meta.owner_references],
            pod.status.qos_class,
            # While it is resized in place, what a pod counts for depends on its status: the amounts themselves are the identity.
            (sorted(pod_requests(pod).items()), sorted(non_zero_requests(pod).items())) if is_resized(pod) else None,
        )  # fmt: skip
        return hashlib.blake2b(self._encode(parts), digest_size=16).digest()

    def _shape(self, pod: Pod, digest: bytes) -> PodShape:
        meta, spec = pod.metadata, pod.spec
        shape = PodShape()
        shape.digest = digest
        shape.memo = {}
        shape.namespace = meta.namespace
        terms = self._encode((spec.affinity, spec.topology_spread_constraints)) if _has_terms(spec) else b""
        shape.labels = dict(_shape_labels(meta.labels, terms))
        shape.template = pod
        shape.volumes = _placing_volumes(spec.volumes)
        shape.annotations = self._relevant(meta.annotations)
        shape.scheduler_name = shape.labels.get(names.LABEL_POD_SCHEDULER_NAME) or spec.scheduler_name or DEFAULT_SCHEDULER
        shape.priority = spec.priority or 0
        shape.preemption_policy = spec.preemption_policy or names.PREEMPTION_POLICY_LOWER
        shape.amounts = pod_requests(pod)
        shape.limits = pod_limits(pod)
        shape.requests = self.vocabulary.vector(shape.amounts)
        non_zero = non_zero_requests(pod)
        shape.non_zero = (float(non_zero.get(names.RESOURCE_CPU, 0)), float(non_zero.get(names.RESOURCE_MEMORY, 0)))
        shape.ports = _host_ports(pod)
        shape.tolerations = compile_tolerations(spec.tolerations)
        shape.images = tuple(container.image for container in (*spec.init_containers, *spec.containers) if container.image)
        shape.gates = tuple(gate.name for gate in spec.scheduling_gates)
        shape.claims = _claims(pod)
        shape.daemonset = any(owner.kind == "DaemonSet" for owner in meta.owner_references)
        shape.qos = pod_qos(pod)
        shape.priority_class = priority_class_with_default(shape.labels, spec.priority, shape.qos)
        _compile_node_affinity(shape, pod)
        _compile_pod_affinity(shape, pod)
        shape.spread = tuple(spread_constraint(constraint, shape.labels) for constraint in spec.topology_spread_constraints)
        return shape


def _has_terms(spec: PodSpec) -> bool:
    return spec.affinity is not None or bool(spec.topology_spread_constraints)


def _shape_labels(labels: dict[str, str], terms: bytes) -> dict[str, str]:
    """Labels that pods of one template have in common."""
    if not labels or UNIQUE_LABELS.isdisjoint(labels) or any(text in terms for text in _UNIQUE_TEXT):
        return labels
    return {key: value for key, value in labels.items() if key not in UNIQUE_LABELS}


def _placing_volumes(volumes: tuple[Volume, ...]) -> tuple[Volume, ...]:
    """Volumes that have to do with where the pod can be; most have not, and names of token volumes differ from pod to pod."""
    return tuple(volume for volume in volumes if _placing(volume) != _NOWHERE)


def _condition(condition: Condition) -> Condition:
    """The condition with its words interned."""
    return _replace(condition, type=sys.intern(condition.type), status=sys.intern(condition.status), reason=sys.intern(condition.reason))


def _same(own: T, first: T) -> T:
    """The first one if they are equal, so that one of them is kept only."""
    return first if own == first else own


def _nothing() -> None:
    """Stands for a reference to what is gone."""


def _placed(spec: PodSpec, node: str) -> PodSpec:
    """The same on a node."""
    return spec if spec.node_name == node else _replace(spec, node_name=node)


def _slim(pod: Pod, shape: PodShape, kept: Callable[[str], bool] | None) -> Pod:
    """The projection with the parts that decide the shape shared with the first pod of the shape, and without what nobody reads. `kept`
    tells by its key whether an annotation is; None: all are."""
    meta, spec, status, first = pod.metadata, pod.spec, pod.status, shape.template.spec
    model, like = shape.template, _placed(first, spec.node_name)
    known = model is not pod  # the first one is slimmed now
    annotations = meta.annotations
    if annotations and kept is not None:
        annotations = {key: value for key, value in annotations.items() if kept(key)}
    slim = _replace(
        pod,
        metadata=_replace(
            meta,
            labels=shape.labels if len(meta.labels) == len(shape.labels) else meta.labels,
            annotations=shape.annotations if len(annotations) == len(shape.annotations) else annotations,
            namespace=shape.namespace,
            generate_name=_same(meta.generate_name, model.metadata.generate_name),
            owner_references=_same(meta.owner_references, model.metadata.owner_references),
        ),
        spec=like
        if known and like == spec
        else _replace(
            spec,
            containers=first.containers,
            init_containers=first.init_containers,
            overhead=first.overhead,
            resources=first.resources,
            node_selector=first.node_selector,
            affinity=first.affinity,
            tolerations=first.tolerations,
            topology_spread_constraints=first.topology_spread_constraints,
            scheduling_gates=first.scheduling_gates,
            scheduling_group=_same(spec.scheduling_group, first.scheduling_group),
            workload_ref=_same(spec.workload_ref, first.workload_ref),
            volumes=shape.volumes,
            scheduler_name=first.scheduler_name,
            priority_class_name=_same(spec.priority_class_name, first.priority_class_name),
            service_account_name=_same(spec.service_account_name, first.service_account_name),
            restart_policy=_same(spec.restart_policy, first.restart_policy),
        ),
        status=model.status
        if known and status == model.status
        else _replace(
            status,
            phase=_same(status.phase, model.status.phase),
            qos_class=_same(status.qos_class, model.status.qos_class),
            conditions=tuple(_condition(condition) for condition in status.conditions),
            container_statuses=(),
            init_container_statuses=(),
            pod_ips=(),
            pod_ip="",
            host_ip="",
        ),
    )
    if shape.template is pod:
        shape.template = slim
    return slim


def _host_ports(pod: Pod) -> tuple[tuple[str, str, int], ...]:
    found = set()
    for container in (*pod.spec.containers, *(c for c in pod.spec.init_containers if c.is_sidecar)):
        for port in container.ports:
            if port.host_port:
                found.add((port.protocol or "TCP", port.host_ip or "0.0.0.0", port.host_port))
    return tuple(sorted(found))


def _claims(pod: Pod) -> tuple[str, ...]:
    claims = (volume.persistent_volume_claim for volume in pod.spec.volumes)
    return tuple(sorted(claim.claim_name for claim in claims if claim is not None))


def _compile_node_affinity(shape: PodShape, pod: Pod) -> None:
    shape.node_selector = map_selector(pod.spec.node_selector)
    shape.required_nodes = None
    shape.preferred_nodes = ()
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if affinity is None:
        return
    if affinity.required is not None:
        shape.required_nodes = tuple(node_term(term) for term in affinity.required.node_selector_terms)
    shape.preferred_nodes = tuple(PreferredNodeTerm(item.weight, node_term(item.preference)) for item in affinity.preferred)


def _compile_pod_affinity(shape: PodShape, pod: Pod) -> None:
    affinity = pod.spec.affinity
    near = affinity.pod_affinity if affinity is not None else None
    far = affinity.pod_anti_affinity if affinity is not None else None
    namespace, labels = shape.namespace, shape.labels
    shape.affinity = _required_terms(near, namespace, labels)
    shape.anti_affinity = _required_terms(far, namespace, labels)
    shape.preferred_affinity = _preferred_terms(near, 1, namespace, labels) + _preferred_terms(far, -1, namespace, labels)


def _required_terms(part: PodAffinity | None, namespace: str, labels: dict[str, str]) -> tuple[PodTerm, ...]:
    return tuple(pod_term(term, namespace, labels) for term in part.required) if part is not None else ()


def _preferred_terms(part: PodAffinity | None, sign: int, namespace: str, labels: dict[str, str]) -> tuple[WeightedPodTerm, ...]:
    if part is None:
        return ()
    return tuple(WeightedPodTerm(sign * item.weight, pod_term(item.pod_affinity_term, namespace, labels)) for item in part.preferred)
