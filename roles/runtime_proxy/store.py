"""What is known of pods and containers, in the shape in which hook servers are told of it (RP-STO-01). Memory only."""

from __future__ import annotations

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy.merge import copy_resources, overlay, text_of, update_stored


class Store:
    """Pods by sandbox id, containers by container id."""

    def __init__(self) -> None:
        self.pods: dict[str, hook.PodSandboxHookRequest] = {}
        self.containers: dict[str, hook.ContainerResourceHookRequest] = {}
        self._sandbox_of: dict[str, str] = {}
        self._stopped: set[str] = set()

    def add_container(self, container_id: str, sandbox_id: str, record: hook.ContainerResourceHookRequest) -> None:
        record.container_meta.id = container_id
        self.containers[container_id] = record
        self._sandbox_of[container_id] = sandbox_id

    def sandbox_of(self, container_id: str) -> str:
        """Id of the sandbox that a container belongs to; empty when the container is not known."""
        return self._sandbox_of.get(container_id, "")

    def remove_container(self, container_id: str) -> None:
        self.containers.pop(container_id, None)
        self._sandbox_of.pop(container_id, None)

    def stop_pod(self, sandbox_id: str) -> None:
        """Forget a sandbox that the engine stopped and goes on listing. Containers go with their own calls."""
        if self.pods.pop(sandbox_id, None) is not None:
            self._stopped.add(sandbox_id)

    def stop_container(self, container_id: str) -> None:
        """Forget a container that the engine stopped and goes on listing."""
        if container_id in self.containers:
            self._stopped.add(container_id)
        self.remove_container(container_id)

    def stopped(self) -> frozenset[str]:
        """Ids of what was stopped and, as of the last list, not removed: its post hook was told, and no list brings it back."""
        return frozenset(self._stopped)

    def forget_stopped(self, gone: frozenset[str]) -> None:
        """Of what was stopped, these are not listed any more."""
        self._stopped -= gone

    def remove_pod(self, sandbox_id: str) -> None:
        """Forget a sandbox and its containers: an engine removes them together."""
        self.pods.pop(sandbox_id, None)
        for container_id in [c for c, s in self._sandbox_of.items() if s == sandbox_id]:
            self.remove_container(container_id)

    def resize_pod(self, request: cri.UpdatePodSandboxResourcesRequest) -> None:
        """Lay what the engine accepted over what is known of a pod, and tell its containers' records."""
        pod = self.pods.get(request.pod_sandbox_id)
        if pod is None:
            return
        for name in ("overhead", "resources"):
            if request.HasField(name):
                update_stored(getattr(pod, name), getattr(request, name))
                getattr(pod, name).SetInParent()
        for container_id, sandbox_id in self._sandbox_of.items():
            if sandbox_id == request.pod_sandbox_id:
                copy_pod_resources(pod, self.containers[container_id])

    def known(self) -> frozenset[str]:
        """Ids of all objects. Taken before a list is asked for, so that what is made meanwhile is not taken for gone."""
        return frozenset(self.pods) | frozenset(self.containers)

    def rebuild(
        self, pods: cri.ListPodSandboxResponse, containers: cri.ListContainersResponse, known_before: frozenset[str]
    ) -> tuple[list[str], list[str]]:
        """Take what the engine lists (RP-STO-02): unknown objects are added, those that are gone are dropped, richer records stay.

        What was stopped stays away. `known_before` names that, too, so that it is forgotten once it is listed no more. Returns the ids
        of the objects that were added, and of containers whose sandbox is not known; those are skipped.
        """
        alive = {item.id for item in pods.items}
        for gone in (set(self.pods) & known_before) - alive:
            self.remove_pod(gone)
        added = []
        for item in pods.items:
            if item.id not in self.pods and item.id not in self._stopped:
                self.pods[item.id] = pod_record(item.metadata, item.runtime_handler, item.labels, item.annotations)
                added.append(item.id)
        listed = {item.id for item in containers.containers}
        for gone in (set(self.containers) & known_before) - listed:
            self.remove_container(gone)
        self.forget_stopped(known_before - alive - listed)
        orphans = []
        for container in containers.containers:
            if container.id in self.containers or container.id in self._stopped:
                continue
            pod = self.pods.get(container.pod_sandbox_id)
            if pod is None:
                orphans.append(container.id)
                continue
            self.add_container(container.id, container.pod_sandbox_id, _of_pod(pod, container))
            added.append(container.id)
        return added, orphans


def pod_record(metadata: cri.PodSandboxMetadata, handler: str, labels: object, annotations: object) -> hook.PodSandboxHookRequest:
    """A pod record from what a list or a status tells; its cgroup parent is not known."""
    record = hook.PodSandboxHookRequest(runtime_handler=handler, labels=labels, annotations=annotations)  # type: ignore[arg-type]
    record.pod_meta.MergeFromString(metadata.SerializeToString())
    return record


def requested_pod(request: cri.RunPodSandboxRequest) -> hook.PodSandboxHookRequest:
    """A pod record from RunPodSandbox."""
    config = request.config
    record = pod_record(config.metadata, request.runtime_handler, config.labels, config.annotations)
    record.cgroup_parent = config.linux.cgroup_parent
    if config.linux.HasField("overhead"):
        copy_resources(config.linux.overhead, record.overhead)
    if config.linux.HasField("resources"):
        copy_resources(config.linux.resources, record.resources)
    return record


def _of_pod(pod: hook.PodSandboxHookRequest, told: cri.Container | cri.ContainerConfig) -> hook.ContainerResourceHookRequest:
    """A container record from a list: without resources and environment."""
    record = hook.ContainerResourceHookRequest(
        pod_meta=pod.pod_meta, pod_annotations=pod.annotations, pod_labels=pod.labels, pod_cgroup_parent=pod.cgroup_parent
    )
    copy_pod_resources(pod, record)
    record.container_meta.name, record.container_meta.attempt = told.metadata.name, told.metadata.attempt
    overlay(record.container_annotations, told.annotations)
    return record


def copy_pod_resources(
    source: hook.PodSandboxHookRequest | hook.ContainerResourceHookRequest, record: hook.ContainerResourceHookRequest
) -> None:
    """Write the pod's resources, of its own record or of another container's, into a container's record."""
    field = "resources" if isinstance(source, hook.PodSandboxHookRequest) else "pod_resources"
    if source.HasField(field):
        record.pod_resources.CopyFrom(getattr(source, field))


def requested_container(request: cri.CreateContainerRequest, pod: hook.PodSandboxHookRequest) -> hook.ContainerResourceHookRequest:
    """A container record from CreateContainer and the record of its pod. Resources are always present, zero where unset."""
    config = request.config
    record = _of_pod(pod, config)
    for item in config.envs:
        record.container_envs[item.key] = text_of(item.value)
    copy_resources(config.linux.resources, record.container_resources)
    record.container_resources.SetInParent()
    if parent := request.sandbox_config.linux.cgroup_parent:
        record.pod_cgroup_parent = parent
    return record
