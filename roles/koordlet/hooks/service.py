"""What the hook service answers: a request to a context, the hooks of its stage, a response (KA-RH-01)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from koord.decisions.record import Record, Subject
from koord.protocols import runtimehook_pb2 as pb
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.hooks import messages
from roles.koordlet.hooks.asking import Answers, Asking
from roles.koordlet.hooks.context import PodContext, Stage
from roles.koordlet.hooks.reconciler import Reconciler
from roles.koordlet.states.model import Snapshot

log = logging.getLogger(__name__)

SERVICE = "runtime.v1alpha1.RuntimeHookService"
POD_STAGES = (Stage.PRE_RUN_POD_SANDBOX, Stage.POST_STOP_POD_SANDBOX)
CONTAINER_STAGES = (
    Stage.PRE_CREATE_CONTAINER,
    Stage.PRE_START_CONTAINER,
    Stage.POST_START_CONTAINER,
    Stage.POST_STOP_CONTAINER,
    Stage.PRE_UPDATE_CONTAINER,
)


class HookService:
    """One method a stage. Raises HookError where the failure policy says so, ValueError for a request that cannot be read."""

    def __init__(
        self,
        asking: Asking,
        reconciler: Reconciler,
        executor: Executor,
        snapshot: Callable[[], Snapshot],
        modes: Callable[[str], Mode],
        *,
        disabled: frozenset[Stage],
        runtime: str,
    ) -> None:
        self._asking = asking
        self._reconciler = reconciler
        self._executor = executor
        self._snapshot = snapshot
        self._modes = modes
        self._disabled = disabled
        self._runtime = runtime

    def pod(self, stage: Stage, request: pb.PodSandboxHookRequest) -> pb.PodSandboxHookResponse:
        if stage in self._disabled:
            return messages.pod_response(request, Answers().answer)
        snapshot = self._snapshot()
        pod = messages.pod_context(request, snapshot.host.cgroups, strict=self._asking.strict)
        answers = self._asking.pod(pod, stage)
        if pod.cgroup_dir:
            self._reconciler.pod_now(pod, answers, snapshot)
        self._record(stage, pod, "", answers, snapshot.time)
        return messages.pod_response(request, answers.only(self._enforced).answer)

    def container(self, stage: Stage, request: pb.ContainerResourceHookRequest) -> pb.ContainerResourceHookResponse:
        if stage in self._disabled:
            return messages.container_response(request, Answers().answer)
        context = messages.container_context(request, self._executor.host.cgroups, self._runtime, strict=self._asking.strict)
        answers = self._asking.container(context, stage)
        self._record(stage, context.pod, context.name, answers, time.time())
        return messages.container_response(request, answers.only(self._enforced).answer)

    def _enforced(self, hook: str) -> bool:
        return self._modes(hook) is Mode.ENFORCE

    def _record(self, stage: Stage, pod: PodContext, container: str, answers: Answers, now: float) -> None:
        recorder = self._executor.recorder
        if recorder is None or not answers.owners:
            return
        for hook in dict.fromkeys(answers.owners.values()):
            fields = {name: value for name, value in answers.answer.set_fields() if answers.owners.get(name) == hook}
            numbers: dict[str, Any] = {n: v if isinstance(v, (int, str)) else str(v) for n, v in fields.items()}
            what = ", ".join(f"{name} {value}" for name, value in numbers.items())
            recorder.record(
                Record(
                    role="koordlet",
                    subject=Subject("Pod", pod.namespace, pod.name, pod.uid),
                    time=now,
                    verdict="Answered" if self._enforced(hook) else "WouldAnswer",
                    rule=hook,
                    message=f"{stage}{f' of container {container}' if container else ''}: {what}",
                    numbers=numbers,
                    features=("KA-RH-01",),
                )
            )
