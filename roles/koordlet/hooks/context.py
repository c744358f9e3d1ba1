"""What hooks see of a pod, a container or a host application, and what they answer. Plain data.

CPU is in milli-cores for requests and limits, in shares and µs of a 100 ms period for cgroup values; memory is in bytes; -1 is no
limit. None means "not known" in a context and "leave it as it is" in an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from koord.api.qos import QoSClass, qos_with_default
from roles.koordlet.states.allocation import Claimant, Granted, Held, granted_devices, held
from roles.koordlet.states.nodecpus import ANY_NODE, NodeCPUs

if TYPE_CHECKING:
    from roles.koordlet.states.model import PodState


class Stage(StrEnum):
    """Moments of a pod's life at which a container runtime asks."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    POST_STOP_CONTAINER = "PostStopContainer"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_UPDATE_CONTAINER = "PreUpdateContainerResources"
    PRE_REMOVE_POD_SANDBOX = "PreRemoveRunPodSandbox"
    """NRI only."""


@dataclass(frozen=True, slots=True)
class BatchResources:
    """Batch resources that a container declares. None: the one is not declared."""

    cpu_request: int | None = None
    cpu_limit: int | None = None
    memory_request: int | None = None
    memory_limit: int | None = None

    @property
    def declared(self) -> bool:
        return any(getattr(self, f.name) is not None for f in fields(self))


@dataclass(frozen=True, slots=True)
class PodContext:
    """One pod. ``cgroup_dir`` is relative to the cgroup root."""

    namespace: str
    name: str
    uid: str
    labels: dict[str, str]
    annotations: dict[str, str]
    cgroup_dir: str
    kube_qos: str
    qos: QoSClass
    """The label's class, NONE when it says nothing known."""
    batch: tuple[BatchResources, ...] = ()
    """Of the containers that run side by side (sidecars too), those that declare something."""
    init_batch: tuple[tuple[BatchResources, ...], ...] = ()
    """The same of each init container that runs before them, with the sidecars that run beside it."""
    own_quota: int | None = None
    """CFS quota that Kubernetes gives the pod; None where the delivery does not know it."""
    state: PodState | None = None
    """Only in the reconciler."""
    requests: Mapping[str, int] | None = None
    """Effective requests in base units; None where they are not known: nothing is then allocated to the pod."""
    unlisted: bool = False
    """The kubelet was asked, and has no such pod."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.uid, qos_with_default(self.labels, self.kube_qos), self.requests, self.unlisted)

    def held(self, node: NodeCPUs = ANY_NODE) -> Held:
        """CPUs that the scheduler gave the pod, as far as they count."""
        return held(self.annotations, self.claimant, node)

    def granted(self) -> Granted:
        """Devices that the scheduler gave the pod, as far as they count. Raises AnnotationError."""
        return granted_devices(self.annotations, self.claimant)


@dataclass(frozen=True, slots=True)
class ContainerContext:
    """One container, or the pod's sandbox (``name`` empty)."""

    pod: PodContext
    name: str
    id: str
    cgroup_dir: str
    batch: BatchResources = BatchResources()
    own_quota: int | None = None
    own_shares: int | None = None
    """CPU shares that the request names; None where it names none."""
    env: dict[str, str] = field(default_factory=dict)
    native: Mapping[str, int | str] = field(default_factory=dict)
    """What the runtime sets without a hook, by the field of an answer; only in the reconciler."""

    @property
    def sandbox(self) -> bool:
        return not self.name


@dataclass(frozen=True, slots=True)
class HostAppContext:
    """A host application of the NodeSLO."""

    name: str
    qos: QoSClass
    cgroup_dir: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount; NRI only."""

    source: str
    destination: str
    options: tuple[str, ...] = ("rbind",)
    recreated: bool = False
    """The source is a directory of the container's own: made anew, open to all, before it is mounted."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device; NRI only."""

    path: str
    major: int
    minor: int
    mode: int = 0o666


@dataclass(frozen=True, slots=True)
class Answer:
    """What a hook wants; fields that it leaves None or empty stay as they are."""

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpuset: str | None = None
    memory_limit: int | None = None
    bvt: int | None = None
    cpu_idle: int | None = None
    net_classid: int | None = None
    rdt_class: str | None = None
    """Resctrl group of a container; NRI only."""
    env: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()

    def over(self, other: Answer) -> Answer:
        """This answer laid over another one."""
        changes = dict(self.set_fields())
        if self.env:
            changes["env"] = {**other.env, **self.env}
        changes["mounts"] = other.mounts + self.mounts
        changes["devices"] = other.devices + self.devices
        return replace(other, **changes)

    def set_fields(self) -> Iterator[tuple[str, Any]]:
        """Name and value of what is wanted."""
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and value not in ({}, ()):
                yield f.name, value

    def __bool__(self) -> bool:
        return next(self.set_fields(), None) is not None


NOTHING = Answer()
