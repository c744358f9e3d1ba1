"""The life of one pod on the process kubelet: groups, init containers, containers with restarts, status, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roles.sandbox.process_kubelet import layout, podspec, status
from roles.sandbox.process_kubelet.cgroups import RunGroups
from roles.sandbox.process_kubelet.container import Container
from roles.sandbox.process_kubelet.readiness import Readiness, check
from roles.sandbox.process_kubelet.status import ContainerState

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Host:
    """What every pod of the node shares."""

    groups: RunGroups
    log_dir: Path
    ip: str
    memory_capacity: int
    clock: Callable[[], float]
    publish: Callable[[dict[str, Any], dict[str, Any]], Awaitable[None]]
    """Writes a status: (pod, status)."""
    finalize: Callable[[dict[str, Any]], Awaitable[None]]
    """Deletes the pod object with grace 0 once its processes are gone."""


class PodWorker:
    """Drives one pod (by uid) until its object is gone. The task is `run()`; `update()` and `gone()` come from the informer."""

    def __init__(self, pod: dict[str, Any], host: Host) -> None:
        self.pod = pod
        self.host = host
        self.uid: str = pod["metadata"]["uid"]
        self.qos = podspec.kubernetes_qos(pod["spec"])
        self.directory = layout.pod_dir(self.qos, self.uid)
        self.policy: str = pod["spec"].get("restartPolicy") or "Always"
        self.init = [self._state(c) for c in pod["spec"].get("initContainers") or []]
        self.regular = [self._state(c) for c in pod["spec"].get("containers") or []]
        self.running: dict[str, Container] = {}
        self.refused: str | None = None
        self.started = host.clock()
        self._changed = asyncio.Event()
        self._ending = asyncio.Event()
        self._object_gone = False
        self._published: dict[str, Any] | None = None
        self._conditions: list[Mapping[str, Any]] = []

    @staticmethod
    def _state(container: dict[str, Any]) -> ContainerState:
        return ContainerState(container["name"], container.get("image") or "")

    # --- what the informer says -------------------------------------------------------------------------------------

    def update(self, pod: dict[str, Any]) -> None:
        """A newer version of the object; a deletion timestamp begins the end."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._ending.set()
        self._changed.set()

    def gone(self) -> None:
        """The object is no more (a forced delete): stop at once."""
        self._object_gone = True
        self._ending.set()
        self._changed.set()

    # --- the task -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry the pod from start to end. Returns when its processes and groups are gone and the object is finalised."""
        if self.pod["metadata"].get("deletionTimestamp"):
            self._ending.set()
        life: asyncio.Task[None] | None = None
        try:
            if not self._ending.is_set():
                life = asyncio.create_task(self._guarded(), name=f"pod {self.name}")
                publisher = asyncio.create_task(self._publish_changes(), name=f"status {self.name}")
                try:
                    await self._ending.wait()
                finally:
                    publisher.cancel()
                    await asyncio.gather(publisher, return_exceptions=True)
            await self.stop(self._grace())
        finally:
            if life is not None:
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)
            await self._remove_groups()
        if not self._object_gone:
            await self.host.finalize(self.pod)

    @property
    def name(self) -> str:
        return f"{self.pod['metadata'].get('namespace')}/{self.pod['metadata']['name']}"

    def _grace(self) -> float:
        if self._object_gone:
            return 0.0
        value = self.pod["metadata"].get("deletionGracePeriodSeconds")
        return float(value if value is not None else self.pod["spec"].get("terminationGracePeriodSeconds") or 30)

    async def stop(self, grace_seconds: float) -> None:
        """Stop all running containers at the same time; no container is started afterwards."""
        self._ending.set()
        await asyncio.gather(*(c.stop(grace_seconds) for c in list(self.running.values())))

    async def _guarded(self) -> None:
        """A mistake of our own must show in the pod's status, not as a pod that waits for ever."""
        try:
            await self._live()
        except Exception as error:
            log.exception("pod %s failed", self.name)
            self.refused = f"{type(error).__name__}: {error}"
            for container in list(self.running.values()):
                self.host.groups.kill(container.group)
            self._changed.set()

    async def _live(self) -> None:
        self.refused = status.refusal(self.pod["spec"], self.pod["metadata"].get("annotations") or {})
        if self.refused is not None:
            log.warning("pod %s is refused: %s", self.name, self.refused)
            self._changed.set()
            return
        try:
            self.host.groups.create(self.directory, podspec.limits_of_pod(self.pod["spec"]))
        except OSError as error:
            self.refused = f"cannot make the pod's cgroup: {error}"
            self._changed.set()
            return
        self._changed.set()
        for spec, state in zip(self.pod["spec"].get("initContainers") or [], self.init, strict=True):
            await self._drive(spec, state, init=True)
            if state.terminated is None or state.terminated["exitCode"] != 0:
                return
        await asyncio.gather(*(self._drive(spec, state) for spec, state in zip(self.pod["spec"]["containers"], self.regular, strict=True)))

    async def _drive(self, spec: dict[str, Any], state: ContainerState, *, init: bool = False) -> None:
        """Run a container until it ends for good: restarts by policy, with the kubelet's back-off."""
        policy = self.policy if not init else ("Never" if self.policy == "Never" else "OnFailure")
        while not self._ending.is_set():
            began = self.host.clock()
            code = await self._once(spec, state, init=init)
            if self._ending.is_set() or not status.wants_restart(policy, code):
                return
            state.backoff = status.next_backoff(state.backoff, self.host.clock() - began)
            state.last, state.terminated = state.terminated, None
            state.waiting, state.waiting_message = "CrashLoopBackOff", f"back-off {state.backoff:.0f}s restarting the container"
            self._changed.set()
            try:
                await asyncio.wait_for(self._ending.wait(), state.backoff)
                return
            except TimeoutError:
                state.restarts += 1

    async def _once(self, spec: dict[str, Any], state: ContainerState, *, init: bool) -> int:
        """Start a container, wait for its end and return its exit code; a failed start counts as exit 128."""
        container = Container(state.name, self.directory, self.host.groups, self.log_path(state.name))
        state.container_id = f"containerd://{container.id}"
        process = podspec.process_spec(self.pod, spec, host_ip=self.host.ip, memory_capacity=self.host.memory_capacity)
        try:
            await container.start(process, podspec.limits_of_container(spec), self.host.clock())
        except OSError as error:
            now = self.host.clock()
            state.terminated = status.terminated(
                128, 0, "StartError", started=now, finished=now, container_id=state.container_id, message=str(error)
            )
            self._changed.set()
            return 128
        self.running[state.name] = container
        state.running_since, state.terminated = container.started_at, None
        probe = spec.get("readinessProbe")
        state.ready = not init and probe is None
        prober = asyncio.create_task(self._probe(probe, spec.get("ports") or [], state)) if probe else None
        self._changed.set()
        try:
            result = await container.wait(self.host.clock)
        finally:
            if prober is not None:
                prober.cancel()
                await asyncio.gather(prober, return_exceptions=True)
        del self.running[state.name]
        message = container.tail() if result.code else ""
        state.running_since, state.ready = None, False
        reason = status.reason_of(result.code, result.oom)
        state.terminated = status.terminated(
            result.code,
            result.signal,
            reason,
            started=result.started_at,
            finished=result.finished_at,
            container_id=state.container_id,
            message=message,
        )
        self._changed.set()
        await container.remove()
        return result.code

    async def _probe(self, probe: dict[str, Any], ports: list[dict[str, Any]], state: ContainerState) -> None:
        readiness = Readiness(probe)
        await asyncio.sleep(readiness.initial)
        while True:
            if readiness.observe(await check(probe, ports)):
                state.ready = readiness.ready
                self._changed.set()
            # Until the first success a slow period would only delay the start of the service.
            await asyncio.sleep(readiness.period if readiness.ready else min(readiness.period, 0.2))

    # --- status -----------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The status as it is now."""
        seen = self.pod.get("status") or {}
        if self._conditions:
            # the object may be older than what was written last: its times would be taken for changes, and written back for ever
            others = [c for c in seen.get("conditions") or [] if c.get("type") not in status.CONDITIONS]
            seen = {**seen, "conditions": [*others, *self._conditions]}
        result = status.pod_status(
            self.pod["spec"],
            self.qos,
            self.init,
            self.regular,
            seen,
            host_ip=self.host.ip,
            started=self.started,
            now=self.host.clock(),
        )
        self._conditions = status.own_conditions(result["conditions"])
        if self.refused is not None:
            result |= {"phase": "Failed", "reason": "ProcessKubelet", "message": self.refused}
        return result

    def log_path(self, container: str) -> Path:
        """Where a container's output goes: one file for all its restarts."""
        metadata = self.pod["metadata"]
        return self.host.log_dir / f"{metadata.get('namespace')}_{metadata['name']}_{self.uid}" / f"{container}.log"

    async def _publish_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self.status()
            # merged into the object by type: the reason of an earlier status has to be taken off
            wanted |= {"conditions": [{"reason": None, **c} for c in status.own_conditions(wanted["conditions"])]}
            if wanted != self._published:
                await self.host.publish(self.pod, wanted)
                self._published = wanted

    async def _remove_groups(self) -> None:
        for _ in range(100):
            self.host.groups.kill(self.directory)
            if self.host.groups.remove(self.directory):
                return
            await asyncio.sleep(0.02)
        log.error("cgroup %s of pod %s stays busy", self.directory, self.name)
