"""The Docker calls with hooks: create, start, stop, update (RP-DKR-02)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy import merge
from roles.runtime_proxy.concurrency import KeyedLocks
from roles.runtime_proxy.docker import messages
from roles.runtime_proxy.docker.target import Route
from roles.runtime_proxy.stages import HookRefusal, Stages
from roles.runtime_proxy.store import Store

log = logging.getLogger(__name__)


class EngineError(Exception):
    """The engine cannot be asked; the text says what and why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the caller gets: the engine's answer (`head` as the engine wrote it) or one of our own (`head` is None)."""

    status: int
    body: bytes
    head: Any = None

    @property
    def ok(self) -> bool:
        return self.status < 400


Forward = Callable[[bytes], Awaitable[Reply]]
Inspect = Callable[[str], Awaitable[Any]]


def refusal(text: str, status: int = 500) -> Reply:
    """An error in Docker's own form, which its clients show as text."""
    return Reply(status, orjson.dumps({"message": text}))


class DockerInterceptor:
    """Holds the store and decides, call by call. `inspect` asks the engine for a container, None when there is none.

    It raises EngineError when the engine cannot say.
    """

    def __init__(self, stages: Stages, inspect: Inspect) -> None:
        self.store = Store()
        self.driver = ""
        self._stages = stages
        self._locks = KeyedLocks()
        self._inspect = inspect
        self._calls = {"create": self._create, "start": self._start, "stop": self._stop, "update": self._update}

    async def handle(self, to: Route, body: bytes, forward: Forward) -> Reply:
        """Answer one call. A body that no hook changed goes on byte for byte."""
        if to.call != "create":
            to = Route(to.call, await self._id_of(to.container), to.name)
        try:
            return await self._calls[to.call](to, body, forward)
        except HookRefusal as error:
            return refusal(str(error))

    async def _id_of(self, container: str) -> str:
        """The id that is meant by an id, the begin of one, or a name, of a container that is known here."""
        store = self.store
        if container in store.containers or container in store.pods or not store.known():
            return container
        found = messages.field(await self.look_at(container), "Id")
        return found if isinstance(found, str) and (found in store.containers or found in store.pods) else container

    async def look_at(self, container: str) -> Any:
        """A container in full, None when there is none or the engine cannot say."""
        try:
            return await self._inspect(container)
        except EngineError as error:
            log.warning("container %s cannot be looked at: %s", container, error)
            return None

    async def _is_gone(self, container: str) -> bool:
        """Whether the engine says that there is no such container. One that cannot say is to answer the call itself."""
        try:
            return await self._inspect(container) is None
        except EngineError:
            return False

    # -- create ---------------------------------------------------------------------------------------------------------------

    async def _create(self, to: Route, body: bytes, forward: Forward) -> Reply:
        try:
            name = messages.parse_name(to.name)
        except messages.MalformedName as error:
            return refusal(str(error))
        document = _object(body)
        if name is None or document is None:  # somebody else's container, or a body that the engine will refuse in its own words
            return await forward(body)
        labels = messages.split_labels(messages.field(document, "Labels"))[0]
        host = messages.field(document, "HostConfig")
        if not isinstance(host, dict):
            host = {}
        if labels.get(messages.TYPE_LABEL) == messages.SANDBOX:
            return await self._create_pod(name, document, host, body, forward)
        return await self._create_container(name, labels, document, host, body, forward)

    async def _create_pod(self, name: messages.KubeName, document: Any, host: Any, body: bytes, forward: Forward) -> Reply:
        record = messages.pod_record(name, document, host, self.driver)
        answer = await self._stages.pre("PreRunPodSandbox", record, record.labels)
        if answer is not None:
            if answer.HasField("resources"):
                messages.write_resources(host, answer.resources, messages.CREATE_FIELDS)
            self._write_parent(host, answer.cgroup_parent)
            _write_host(document, host)
            merge.apply_pod_answer(record, answer)
            if answer.HasField("resources"):
                record.resources.CopyFrom(answer.resources)
            body = _bytes_of(document, body)
        reply = await forward(body)
        if created := _id(reply):
            self.store.pods[created] = record
        return reply

    async def _create_container(
        self, name: messages.KubeName, labels: dict[str, str], document: Any, host: Any, body: bytes, forward: Forward
    ) -> Reply:
        sandbox = labels.get(messages.SANDBOX_LABEL, "")
        pod = self.store.pods.get(sandbox) or await self._learn_pod(sandbox)
        if pod is None:
            return refusal(f"Failed to get pod info: sandbox {sandbox!r} of container {to_text(name)} is not known")
        record = messages.container_record(name, document, host, pod)
        answer = await self._stages.pre("PreCreateContainer", record, pod.labels)
        if answer is not None:
            if answer.HasField("container_resources"):
                messages.write_resources(host, answer.container_resources, messages.CREATE_FIELDS)
            self._write_parent(host, answer.pod_cgroup_parent)
            _write_host(document, host)
            if answer.container_envs:
                environment = messages.replaced_envs(messages.field(document, "Env"), answer.container_envs)
                messages.set_field(document, "Env", environment)
            _apply(record, answer)
            body = _bytes_of(document, body)
        reply = await forward(body)
        if created := _id(reply):
            self.store.add_container(created, sandbox, record)
        return reply

    def _write_parent(self, host: dict[str, Any], parent: str) -> None:
        """An answer without a parent leaves the container where it belongs; upstream would move it to Docker's default group."""
        if parent:
            messages.set_field(host, "CgroupParent", messages.to_docker_parent(parent, self.driver))

    async def _learn_pod(self, sandbox: str) -> hook.PodSandboxHookRequest | None:
        document = await self.look_at(sandbox) if sandbox else None
        return self.learn_pod(sandbox, document) if document is not None else None

    # -- the others -----------------------------------------------------------------------------------------------------------

    async def _start(self, to: Route, body: bytes, forward: Forward) -> Reply:
        record = self.store.containers.get(to.container)
        if record is None:
            return await forward(body)
        sandbox = self.store.sandbox_of(to.container)
        if self._stages.asks("PreStartContainer", record.pod_labels):
            async with self._locks.of(to.container):
                answer = await self._stages.pre("PreStartContainer", record, record.pod_labels)
                if answer is not None:
                    _apply(record, answer)
        try:
            return await forward(body)
        finally:
            self._stages.post("PostStartContainer", record, record.pod_labels, sandbox)

    async def _stop(self, to: Route, body: bytes, forward: Forward) -> Reply:
        container, pod = self.store.containers.get(to.container), self.store.pods.get(to.container)
        if container is None and pod is None and await self._is_gone(to.container):
            return refusal(f"No such container: {to.container}")
        sandbox = self.store.sandbox_of(to.container)
        try:
            reply = await forward(body)
        finally:
            if container is not None:
                self._stages.post("PostStopContainer", container, container.pod_labels, sandbox)
            elif pod is not None:
                self._stages.post("PostStopPodSandbox", pod, pod.labels, to.container)
        if reply.ok or reply.status == 404:  # a stop that failed is tried again, and deserves its hook again
            if container is not None:
                self.store.stop_container(to.container)
            elif pod is not None:
                self.store.stop_pod(to.container)
        return reply

    async def _update(self, to: Route, body: bytes, forward: Forward) -> Reply:
        if to.container not in self.store.containers:
            return await forward(body)
        async with self._locks.of(to.container):  # updates of one container have an order, in the engine and in the store
            return await self._update_in_turn(to, body, forward)

    async def _update_in_turn(self, to: Route, body: bytes, forward: Forward) -> Reply:
        record, document = self.store.containers.get(to.container), _object(body)
        if record is None or document is None:
            return await forward(body)
        proposed = hook.ContainerResourceHookRequest()
        proposed.CopyFrom(record)
        messages.lay_over(proposed.container_resources, messages.resources_of(document))
        answer = await self._stages.pre("PreUpdateContainerResources", proposed, record.pod_labels)
        if answer is not None:
            _apply(proposed, answer)
            if answer.HasField("container_resources"):
                messages.write_resources(document, answer.container_resources, messages.UPDATE_FIELDS)
                body = _bytes_of(document, body)
        reply = await forward(body)
        if reply.ok:
            record.CopyFrom(proposed)
        return reply

    # -- what the engine knows (RP-DKR-03) --------------------------------------------------------------------------------------

    def learn_pod(self, sandbox: str, inspected: Any) -> hook.PodSandboxHookRequest | None:
        """Keep a sandbox that was made before this process; None when it is no pod's. The record is that of its creation."""
        name, config, host = _inspected(inspected)
        labels = messages.split_labels(messages.field(config, "Labels"))[0]
        if name is None or labels.get(messages.TYPE_LABEL) != messages.SANDBOX:
            return None
        record = self.store.pods[sandbox] = messages.pod_record(name, config, host, self.driver)
        return record

    def learn_container(self, container: str, inspected: Any) -> bool:
        """Keep a container that was made before this process. False when it is no pod's or its sandbox is not known."""
        name, config, host = _inspected(inspected)
        labels = messages.split_labels(messages.field(config, "Labels"))[0]
        pod = self.store.pods.get(sandbox := labels.get(messages.SANDBOX_LABEL, ""))
        if name is None or pod is None:
            return False
        self.store.add_container(container, sandbox, messages.container_record(name, config, host, pod))
        return True


def to_text(name: messages.KubeName) -> str:
    return f"{name.namespace}/{name.pod}/{name.container}"


def _apply(record: hook.ContainerResourceHookRequest, answer: hook.ContainerResourceHookResponse) -> None:
    """As `merge.apply_answer`, but resources are replaced, as they are in the request."""
    merge.apply_answer(record, answer)
    if answer.HasField("container_resources"):
        record.container_resources.CopyFrom(answer.container_resources)


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _write_host(document: dict[str, Any], host: dict[str, Any]) -> None:
    if host:
        messages.set_field(document, "HostConfig", host)


def _bytes_of(document: dict[str, Any], body: bytes) -> bytes:
    """A body after a merge; one that the hook left as it was keeps its bytes."""
    return body if document == _object(body) else orjson.dumps(document)


def _id(reply: Reply) -> str:
    found = messages.field(_object(reply.body), "Id") if reply.ok else None
    return found if isinstance(found, str) else ""


def _inspected(document: Any) -> tuple[messages.KubeName | None, Any, Any]:
    name = messages.field(document, "Name")
    try:
        parsed = messages.parse_name(name) if isinstance(name, str) else None
    except messages.MalformedName:
        parsed = None
    return parsed, messages.field(document, "Config"), messages.field(document, "HostConfig")
