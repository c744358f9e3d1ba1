"""The NRI plugin: the runtime's requests through the same hooks as everywhere, with what only NRI can do (KA-RH-02)."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from koord.protocols import nri_pb2 as nri
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.hooks.context import Answer, Stage
from roles.koordlet.hooks.delivery import ALLOCATIONS, Delivery
from roles.koordlet.nri import convert
from roles.koordlet.nri.session import INTERNAL, INVALID_ARGUMENT, UNIMPLEMENTED, CallError

log = logging.getLogger(__name__)

#: Names as the runtime's configuration spells them, in the order of NRI's numbers.
EVENTS = (
    "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "CreateContainer", "PostCreateContainer", "StartContainer",
    "PostStartContainer", "UpdateContainer", "PostUpdateContainer", "StopContainer", "RemoveContainer",
)  # fmt: skip
SUBSCRIBED = ("RunPodSandbox", "RemovePodSandbox", "CreateContainer", "UpdateContainer")
_ABOUT_A_POD = (nri.PodSandboxRequest, nri.CreateContainerRequest, nri.UpdateContainerRequest)
_MARKS = tuple(key.encode() for key in ALLOCATIONS)
_ALIVE = (nri.CONTAINER_CREATED, nri.CONTAINER_RUNNING, nri.CONTAINER_PAUSED)


def event_mask(config: str) -> int:
    """Events of a configuration string (names separated by commas), those of SUBSCRIBED for an empty one. Raises ValueError."""
    names = [name.strip() for name in config.split(",") if name.strip()] or list(SUBSCRIBED)
    known = {event.lower(): number for number, event in enumerate(EVENTS)}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        raise ValueError(f"events {', '.join(unknown)} are not known: accepted are {', '.join(EVENTS)}")
    return sum({1 << known[name.lower()] for name in names})


class Plugin:
    """Answers one request at a time."""

    def __init__(self, delivery: Delivery, runtime: str) -> None:
        self._delivery = delivery
        self._runtime = runtime
        self._pods: dict[str, nri.PodSandbox] = {}
        self._listed: list[nri.Container] = []
        self._methods: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "Configure": (nri.ConfigureRequest, self._configure),
            "Synchronize": (nri.SynchronizeRequest, self._synchronize),
            "RunPodSandbox": (nri.PodSandboxRequest, self._run_pod),
            "RemovePodSandbox": (nri.PodSandboxRequest, self._remove_pod),
            "CreateContainer": (nri.CreateContainerRequest, self._create),
            "UpdateContainer": (nri.UpdateContainerRequest, self._update),
            # runtimes whose NRI has no method of its own for an event of a pod, or a plugin that asked for more events
            "StateChange": (nri.StateChangeEvent, self._state_change),
            **dict.fromkeys(("Shutdown", *(e for e in EVENTS if e not in SUBSCRIBED)), (nri.Empty, _nothing)),
        }

    async def prepare(self, method: str, request: bytes) -> None:
        """Have the pod known that a request is about, where it carries an allocation."""
        kind = self._methods[method][0] if method in self._methods else None
        if kind in _ABOUT_A_POD and any(mark in request for mark in _MARKS):
            pod = kind.FromString(request).pod
            await self._delivery.look_up(pod.uid, pod.annotations)

    def serve(self, method: str, request: bytes) -> bytes:
        """Raises CallError and DecodeError."""
        kind, answer = self._methods.get(method, (None, _nothing))
        if kind is None:
            raise CallError(UNIMPLEMENTED, f"method {method} is not offered")
        response: bytes = answer(kind.FromString(request)).SerializeToString()
        return response

    # -- life ----------------------------------------------------------------------------------------------------------------

    def _configure(self, request: nri.ConfigureRequest) -> nri.ConfigureResponse:
        log.info("NRI of %s %s", request.runtime_name, request.runtime_version)
        try:
            return nri.ConfigureResponse(events=event_mask(request.config))
        except ValueError as error:
            raise CallError(INVALID_ARGUMENT, str(error)) from None

    def _synchronize(self, request: nri.SynchronizeRequest) -> nri.SynchronizeResponse:
        """Containers that were there before this plugin get what they would have got."""
        self._pods.update((pod.id, pod) for pod in request.pods)
        self._listed += [c for c in request.containers if c.state in _ALIVE]
        if request.more:
            return nri.SynchronizeResponse(more=True)
        pods, listed, self._pods, self._listed = self._pods, self._listed, {}, []
        response = nri.SynchronizeResponse()
        for container in listed:
            pod = pods.get(container.pod_sandbox_id)
            if pod is None:
                continue
            try:
                changed = convert.update(container.id, self._ask(Stage.PRE_UPDATE_CONTAINER, pod, container), _period(container))
            except CallError as error:
                log.warning("pod %s/%s container %s: %s", pod.namespace, pod.name, container.name, error)
                continue
            if changed is not None:
                changed.ignore_failure = True
                response.update.append(changed)
        return response

    # -- pods ----------------------------------------------------------------------------------------------------------------

    def _run_pod(self, request: nri.PodSandboxRequest) -> nri.Empty:
        return self._pod(Stage.PRE_RUN_POD_SANDBOX, request.pod)

    def _remove_pod(self, request: nri.PodSandboxRequest) -> nri.Empty:
        return self._pod(Stage.PRE_REMOVE_POD_SANDBOX, request.pod)

    def _state_change(self, request: nri.StateChangeEvent) -> nri.Empty:
        event = EVENTS[request.event - 1] if 0 < request.event <= len(EVENTS) else ""
        if event == "RunPodSandbox":
            return self._pod(Stage.PRE_RUN_POD_SANDBOX, request.pod)
        return self._pod(Stage.PRE_REMOVE_POD_SANDBOX, request.pod) if event == "RemovePodSandbox" else nri.Empty()

    def _pod(self, stage: Stage, pod: nri.PodSandbox) -> nri.Empty:
        delivery = self._delivery
        try:
            delivery.pod(stage, convert.pod_context(pod, delivery.cgroups, strict=delivery.strict))
        except Exception as error:
            raise _refused(error) from error
        return nri.Empty()

    # -- containers ----------------------------------------------------------------------------------------------------------

    def _create(self, request: nri.CreateContainerRequest) -> nri.CreateContainerResponse:
        answer = self._with_directories(self._ask(Stage.PRE_CREATE_CONTAINER, request.pod, request.container))
        adjust = convert.adjustment(answer, _period(request.container))
        return nri.CreateContainerResponse(adjust=adjust) if adjust is not None else nri.CreateContainerResponse()

    def _update(self, request: nri.UpdateContainerRequest) -> nri.UpdateContainerResponse:
        answer = self._ask(Stage.PRE_UPDATE_CONTAINER, request.pod, request.container, request.linux_resources)
        changed = convert.update(request.container.id, answer, _period(request.container))
        return nri.UpdateContainerResponse(update=[changed] if changed is not None else [])

    def _ask(self, stage: Stage, pod: nri.PodSandbox, container: nri.Container, resources: nri.LinuxResources | None = None) -> Answer:
        delivery = self._delivery
        try:
            context = convert.container_context(pod, container, delivery.cgroups, self._runtime, resources, strict=delivery.strict)
            return delivery.container(stage, context)
        except Exception as error:
            raise _refused(error) from error

    def _with_directories(self, answer: Answer) -> Answer:
        """The answer; mounts of directories of the container's own that cannot be made are left out, or fail the request if strict."""
        mounts = []
        for mount in answer.mounts:
            problem = self._make(mount.source) if mount.recreated else ""
            if not problem:
                mounts.append(mount)
            elif self._delivery.strict:
                raise CallError(INTERNAL, problem)
            else:
                log.warning("%s; it is not mounted", problem)
        return replace(answer, mounts=tuple(mounts))

    def _make(self, source: str) -> str:
        """Make an empty directory that is open to all; what stood against it, or an empty text."""
        path = self._delivery.root.path(source)
        if not os.path.isdir(path) and not self._delivery.note(Entry(path, "", Undo.REMOVE_DIRECTORY, ours=())):
            return f"{path} is not made: it cannot be put on record"
        try:
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path)
            os.chmod(path, 0o777)
        except OSError as error:
            return f"{path} cannot be made: {error.strerror}"
        return ""


def _period(container: nri.Container) -> int:
    return int(container.linux.resources.cpu.period.value)


def _nothing(_: Any) -> nri.Empty:
    return nri.Empty()


def _refused(error: Exception) -> CallError:
    """A hook's failure reaches here only if the failure policy says so; else it is the request that cannot be read."""
    return CallError(INVALID_ARGUMENT if isinstance(error, ValueError) else INTERNAL, str(error) or type(error).__name__)
