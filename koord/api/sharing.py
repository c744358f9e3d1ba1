"""Pods by the hundred thousand: what pods of a template have in common is kept once, and of a running pod only what controllers read.

A pod that is bound becomes a `SharedPod`: its key, node, uid and version, and a `Template` that it shares with its replicas. It reads
like a Pod; parts are put together when they are asked for. Left out are volumes, addresses, container ids, images' digests, the times
of conditions, and annotations that are none of koord's. A pod without a node is kept whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, cast

import msgspec
from cachetools import LRUCache

from koord.api.objects_meta import Condition, ObjectMeta
from koord.api.objects_pod import ContainerState, ContainerStatus, Pod, PodSpec, PodStatus

_KEPT: Final = 65_536  # templates that are known at once; an old one that is forgotten is kept again when it comes
#: Labels that tell the replicas of a workload apart.
_OWN_LABELS: Final = frozenset(
    {"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"}
)
_CONDITIONS: Final = frozenset({"DisruptionTarget", "PodResizePending", "PodResizeInProgress"})
_OURS: Final = "koordinator.sh/"
_encode: Final = msgspec.msgpack.Encoder().encode


class Template:
    """What pods of one template have in common. `facts` is for what a consumer derives from it, once."""

    __slots__ = ("facts", "metadata", "spec", "status")

    def __init__(self, metadata: ObjectMeta, spec: PodSpec, status: PodStatus) -> None:
        self.metadata, self.spec, self.status = metadata, spec, status
        self.facts: dict[Any, Any] = {}


class SharedPod(msgspec.Struct, frozen=True, gc=False):
    """A bound pod; see the module. `ident` is uid and version: 16 bytes and the rest of them where both are numbers, else text."""

    template: Template
    key: str
    """``namespace/name``."""
    node_name: str
    ident: bytes | str
    own_labels: dict[str, str] | None

    api_version = "v1"
    kind = "Pod"

    @property
    def stored_key(self) -> str:
        """The key that a store is to keep it under: with the object's own there is no second string."""
        return self.key

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        """Its name."""
        return self.key.partition("/")[2]

    @property
    def uid(self) -> str:
        """Its uid."""
        if isinstance(self.ident, str):
            return self.ident.partition("\0")[0]
        text = self.ident[:16].hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    @property
    def resource_version(self) -> str:
        """Its version."""
        return self.ident.partition("\0")[2] if isinstance(self.ident, str) else str(int.from_bytes(self.ident[16:], "big"))

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        shared = self.template.metadata.labels
        return {**shared, **self.own_labels} if self.own_labels else shared

    @property
    def metadata(self) -> ObjectMeta:
        """Metadata as a Pod has it; the time of creation is not kept."""
        return msgspec.structs.replace(
            self.template.metadata,
            name=self.name,
            namespace=self.namespace,
            uid=self.uid,
            resource_version=self.resource_version,
            labels=dict(self.labels),
        )

    @property
    def spec(self) -> PodSpec:
        """The spec as a Pod has it, without volumes."""
        return msgspec.structs.replace(self.template.spec, node_name=self.node_name)

    @property
    def status(self) -> PodStatus:
        """Phase, reason, what is held, and how containers ended."""
        return self.template.status

    @property
    def is_terminal(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion has been asked for."""
        return self.template.metadata.deletion_timestamp is not None


class PodSharer:
    """`sharer(pod)` is the pod with what it has in common with pods that came before.

    `kept` gives the equal key that a store holds already, None where it holds none.
    """

    def __init__(self, kept: Callable[[str], str | None] = lambda key: None) -> None:
        self._kept = kept
        self._templates: LRUCache[bytes, Template] = LRUCache(_KEPT)
        self._words: LRUCache[str, str] = LRUCache(_KEPT)

    def __call__(self, pod: Pod) -> Pod:
        if not pod.spec.node_name:
            return pod
        metadata = pod.metadata
        own = {key: metadata.labels[key] for key in _OWN_LABELS & metadata.labels.keys()} if metadata.labels else None
        shared = SharedPod(
            template=self._template(pod, own or {}),
            key=self._kept(key := f"{metadata.namespace}/{metadata.name}") or key,
            node_name=self._word(pod.spec.node_name),
            ident=_ident(metadata.uid, metadata.resource_version),
            own_labels=own or None,
        )
        return cast(Pod, shared)

    def _word(self, text: str) -> str:
        return self._words.setdefault(text, text)

    def _template(self, pod: Pod, own: Mapping[str, str]) -> Template:
        meta, spec = pod.metadata, pod.spec
        metadata = ObjectMeta(
            labels={key: value for key, value in meta.labels.items() if key not in own} if own else meta.labels,
            annotations={key: value for key, value in meta.annotations.items() if _OURS in key},
            owner_references=meta.owner_references,
            deletion_timestamp=meta.deletion_timestamp,
        )
        spec = msgspec.structs.replace(spec, node_name="", volumes=(), hostname="")
        status = _status(pod.status)
        key = blake2b(_encode((metadata, spec, status)), digest_size=16).digest()
        found = self._templates.get(key)
        if found is None:
            found = self._templates[key] = Template(metadata, spec, status)
        return found


def _status(status: PodStatus) -> PodStatus:
    conditions = tuple(
        Condition(type=c.type, status=c.status, reason=c.reason, message=c.message) for c in status.conditions if c.type in _CONDITIONS
    )
    return PodStatus(
        phase=status.phase,
        reason=status.reason,
        qos_class=status.qos_class,
        conditions=conditions,
        container_statuses=_containers(status.container_statuses),
        init_container_statuses=_containers(status.init_container_statuses),
        resize=status.resize,
        allocated_resources=status.allocated_resources,
        resources=status.resources,
    )


def _containers(statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
    """What containers hold, and how they ended."""
    found = []
    for status in statuses:
        ended = [state.terminated for state in (status.state, status.last_state)]
        if any(ended) or status.allocated_resources or status.resources is not None:
            state, last = (ContainerState(terminated=one) if one is not None else ContainerState() for one in ended)
            found.append(
                ContainerStatus(
                    name=status.name,
                    state=state,
                    last_state=last,
                    allocated_resources=status.allocated_resources,
                    resources=status.resources,
                )
            )
    return tuple(found)


def _ident(uid: str, version: str) -> bytes | str:
    packed = uid.replace("-", "")
    if len(uid) == 36 and len(packed) == 32 and version.isascii() and version.isdigit() and str(int(version)) == version:
        try:
            number = int(version)
            made = bytes.fromhex(packed) + number.to_bytes((number.bit_length() + 7) // 8, "big")
        except ValueError:
            pass
        else:
            text = made[:16].hex()
            if f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}" == uid:
                return made
    return f"{uid}\0{version}"
