"""What every runtime that asks has in common: hooks of a stage, a pod's own files at once, a record of the answer (KA-RH-01, KA-RH-02)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord import seams
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.hooks.asking import Answers, Asking
from roles.koordlet.hooks.context import NOTHING, Answer, ContainerContext, PodContext, Stage
from roles.koordlet.hooks.reconciler import Reconciler
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.root import HostRoot
from roles.koordlet.states.model import Snapshot


class Delivery:
    """Asked by the gRPC service and by the NRI plugin. Methods raise HookError where the failure policy says so."""

    def __init__(
        self,
        asking: Asking,
        reconciler: Reconciler,
        executor: Executor,
        snapshot: Callable[[], Snapshot],
        modes: Callable[[str], Mode],
        *,
        disabled: frozenset[Stage],
        feature: str,
    ) -> None:
        self._asking = asking
        self._reconciler = reconciler
        self._executor = executor
        self._snapshot = snapshot
        self._modes = modes
        self._disabled = disabled
        self._feature = feature

    @property
    def cgroups(self) -> Cgroups:
        return self._executor.host.cgroups

    @property
    def root(self) -> HostRoot:
        return self._executor.host.root

    @property
    def strict(self) -> bool:
        """Whether a request fails with what cannot be read or decided."""
        return self._asking.strict

    def pod(self, stage: Stage, pod: PodContext) -> Answer:
        """The answer for a pod; what it means for the pod's own files is written."""
        if stage in self._disabled:
            return NOTHING
        snapshot = self._snapshot()
        answers = self._asking.pod(pod, stage)
        if pod.cgroup_dir:
            self._reconciler.pod_now(pod, answers, snapshot, stage)
        self._record(stage, pod, "", answers, snapshot.time)
        return answers.only(self._enforced).answer

    def container(self, stage: Stage, container: ContainerContext) -> Answer:
        """The answer for a container."""
        if stage in self._disabled:
            return NOTHING
        answers = self._asking.container(container, stage)
        self._record(stage, container.pod, container.name, answers, seams.now())
        return answers.only(self._enforced).answer

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
                    features=(self._feature,),
                )
            )
