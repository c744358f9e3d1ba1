"""Pods of the node, from the kubelet's list to what strategies and collectors read (KLO-SI-02). Pure.

An unchanged pod keeps its object from list to list, and so do the pods together, so that "is" tells consumers whether anything changed.
The kubelet lists pods in any order; here they are in that of their uids.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from koord import seams
from koord.accounting.pods import resize_pending
from koord.api.names import ANNOTATION_CONFIG_SOURCE, RESOURCE_CPU, RESOURCE_MEMORY
from koord.api.objects import Container, ContainerStatus, Pod
from koord.api.objects_meta import RawList, ResourceList, decoder
from koord.api.priority import priority_class_with_default
from koord.api.qos import kubernetes_qos, qos_raw, qos_with_default
from roles.koordlet.host.cgroup import KUBE_QOS, Cgroups
from roles.koordlet.host.errors import HostError
from roles.koordlet.states.model import ContainerState, PodState

log = logging.getLogger(__name__)


#: A kubelet that has just started lists no pods for a moment, or its static ones alone; so many such answers in a row are believed.
SHORT_ANSWERS = 3
#: … and so many before the cluster is told: pools and usage without pods would be wrong for everybody who reads them.
SHORT_ANSWERS_REPORTED = 30
#: Where the kubelet has static pods from.
_STATIC_SOURCES = frozenset({"file", "http"})
#: Seconds that a pod has to leave, where it does not say: the default of Kubernetes.
DEFAULT_GRACE = 30.0


_RESIZED = (RESOURCE_CPU, RESOURCE_MEMORY)


class PodListError(ValueError):
    """The kubelet's answer is not a PodList."""


def _is_running(status: ContainerStatus | None) -> bool:
    if status is None:
        return False
    state = status.state
    if state.running is not None:
        return True
    # a status that tells no state but an id: the container was made and nobody says that it ended
    return state.terminated is None and state.waiting is None and bool(status.container_id)


def _in_force(spec: Container, status: ContainerStatus | None) -> Container:
    """The container with the CPU and memory that it has, of which its kubelet tells."""
    if status is None or status.resources is None:
        return spec
    asked, held = spec.resources, status.resources
    return replace(
        spec,
        resources=replace(asked, requests=_resized(asked.requests, held.requests), limits=_resized(asked.limits, held.limits)),
    )


def _resized(asked: ResourceList, held: ResourceList) -> ResourceList:
    found = {name: amount for name, amount in asked.items() if name not in _RESIZED}
    return found | {name: held[name] for name in _RESIZED if name in held}


def _containers(
    specs: tuple[Container, ...], statuses: tuple[ContainerStatus, ...], *, pod_dir: str, cgroups: Cgroups, init: bool, waits: bool
) -> tuple[ContainerState, ...]:
    by_name = {s.name: s for s in statuses}
    out: list[ContainerState] = []
    for spec in specs:
        status = by_name.pop(spec.name, None)
        has = _in_force(spec, status) if waits else spec
        found = _container(spec.name, has, status, pod_dir=pod_dir, cgroups=cgroups, init=init)
        out.append(found if has.resources == spec.resources else dataclasses.replace(found, asked=spec))
    # a status without a spec entry still owns a cgroup
    out += [_container(name, None, s, pod_dir=pod_dir, cgroups=cgroups, init=init) for name, s in by_name.items()]
    return tuple(out)


def _container(
    name: str, spec: Container | None, status: ContainerStatus | None, *, pod_dir: str, cgroups: Cgroups, init: bool
) -> ContainerState:
    container_id = status.container_id if status is not None else ""
    directory = ""
    if container_id:
        try:
            directory = cgroups.container_dir(pod_dir, container_id)
        except HostError as error:
            log.warning("container %s is left out: %s", name, error)
    return ContainerState(
        name=name, id=container_id, cgroup_dir=directory, running=_is_running(status), init=init, spec=spec, status=status
    )


def pod_state(pod: Pod, cgroups: Cgroups) -> PodState:
    """What everybody asks about a pod, computed once. A uid that cannot name a directory is a :class:`HostError`."""
    meta = pod.metadata
    # the kubelet names directories after its own judgement; an unknown class in the status must not choose a path
    kube_qos = pod.status.qos_class if pod.status.qos_class in KUBE_QOS else kubernetes_qos(pod)
    qos = qos_with_default(meta.labels, kube_qos)
    directory = cgroups.pod_dir(kube_qos, meta.uid)
    waits = resize_pending(pod) != ""
    return PodState(
        pod=pod,
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        labels=meta.labels,
        annotations=meta.annotations,
        phase=pod.status.phase,
        kube_qos=kube_qos,
        qos_label=qos_raw(meta.labels),
        qos=qos,
        priority_class=priority_class_with_default(meta.labels, pod.spec.priority, qos),
        cgroup_dir=directory,
        containers=_containers(
            pod.spec.containers, pod.status.container_statuses, pod_dir=directory, cgroups=cgroups, init=False, waits=waits
        ),
        init_containers=_containers(
            pod.spec.init_containers, pod.status.init_container_statuses, pod_dir=directory, cgroups=cgroups, init=True, waits=waits
        ),
        ephemeral_containers=_containers(
            (), pod.status.ephemeral_container_statuses, pod_dir=directory, cgroups=cgroups, init=False, waits=waits
        ),
    )


@dataclass(slots=True)
class PodCache:
    """The pods of the last good list. One without the pods of the API server leaves these untouched as long as one of them has its cgroup,
    and no list does."""

    cgroups: Cgroups
    adapt: Callable[[PodState], PodState] = lambda pod: pod
    """What extensions make of a pod that is new or changed."""
    clock: Callable[[], float] = seams.monotonic
    pods: tuple[PodState, ...] = ()
    synced: bool = False
    confirmed: bool = False
    """The kubelet has named pods of the API server, or named none for so long that this may be reported."""
    _raw: dict[str, tuple[int, PodState]] = field(default_factory=dict)
    _body: int | None = None
    _short_answers: int = 0
    _ends: dict[str, float] = field(default_factory=dict)

    def take(self, body: bytes) -> bool:
        """Take the kubelet's answer; whether the pods changed. Raises :class:`PodListError`.

        Single pods that cannot be read are logged and left out.
        """
        digest = hash(body)
        if self.synced and digest == self._body:
            return False
        try:
            listed = decoder(RawList)(body).items or ()
        except (msgspec.MsgspecError, RecursionError) as error:
            raise PodListError(f"the kubelet's answer is not a PodList: {error}") from None
        fresh: dict[str, tuple[int, PodState]] = {}
        for raw in listed:
            self._add(bytes(raw), fresh)
        if listed and not fresh:
            raise PodListError(f"none of the {len(listed)} pods of the kubelet's answer can be read")
        if all(_static(state) for _, state in fresh.values()):
            return self._take_short(fresh)
        self._body = digest
        self._short_answers = 0
        self.synced = self.confirmed = True
        return self._set(fresh)

    def _set(self, fresh: dict[str, tuple[int, PodState]]) -> bool:
        self._raw = dict(sorted(fresh.items()))
        pods = tuple(state for _, state in self._raw.values())
        changed = len(pods) != len(self.pods) or any(a is not b for a, b in zip(pods, self.pods, strict=True))
        if changed:
            self.pods = pods
        now, told = self.clock(), [pod for pod in self.pods if pod.pod.metadata.deletion_timestamp is not None]
        self._ends = {pod.uid: self._ends.get(pod.uid, now + _grace(pod.pod)) for pod in told}
        return changed

    def leaving(self) -> dict[str, float]:
        """Pods that were told to leave: uid → seconds until their grace ends, counted from when the kubelet first said so."""
        now = self.clock()
        return {uid: at - now for uid, at in self._ends.items()}

    def _take_short(self, fresh: dict[str, tuple[int, PodState]]) -> bool:
        """A kubelet that starts knows no pods yet, or its static ones alone until the API server told it the others, which run on. Told
        again and again, at the start or when none of the pods that it leaves out has a cgroup any more, the list is what it says."""
        self._short_answers += 1
        self._body = None
        left_out = {uid: known for uid, known in self._raw.items() if uid not in fresh and not (fresh and _static(known[1]))}
        if self._short_answers < SHORT_ANSWERS or any(self._there(state) for _, state in left_out.values()):
            fresh = {**left_out, **fresh}
        became = not self.synced and self._short_answers >= SHORT_ANSWERS
        self.synced = self.synced or became
        self.confirmed = self.confirmed or self._short_answers >= SHORT_ANSWERS_REPORTED
        return self._set(fresh) or became

    def _there(self, pod: PodState) -> bool:
        return os.path.isdir(self.cgroups.subsystem_dir("cpu", pod.cgroup_dir))

    def _add(self, raw: bytes, fresh: dict[str, tuple[int, PodState]]) -> None:
        digest = hash(raw)
        try:
            pod = _decode_pod(raw)
            known = self._raw.get(pod.metadata.uid)
            if known is not None and known[0] == digest:
                fresh[pod.metadata.uid] = known
                return
            fresh[pod.metadata.uid] = (digest, self.adapt(pod_state(pod, self.cgroups)))
        except (msgspec.MsgspecError, RecursionError, HostError, ValueError) as error:
            log.warning("a pod of the kubelet's list is left out: %s", error)

    def relocate(self) -> None:
        """Compute all cgroup directories again, after the cgroup driver became known."""
        self._raw = {uid: (digest, self.adapt(pod_state(state.pod, self.cgroups))) for uid, (digest, state) in self._raw.items()}
        self.pods = tuple(state for _, state in self._raw.values())


def _static(pod: PodState) -> bool:
    """Whether the kubelet has the pod from a file or an address; of all others it knows by the API server."""
    return pod.annotations.get(ANNOTATION_CONFIG_SOURCE) in _STATIC_SOURCES


def _grace(pod: Pod) -> float:
    given = pod.metadata.deletion_grace_period_seconds
    return DEFAULT_GRACE if given is None else float(given)


_decode_pod = decoder(Pod)
