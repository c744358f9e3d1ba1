"""What every runtime that asks has in common: hooks of a stage, a pod's own files at once, a record of the answer (KA-RH-01, KA-RH-02)."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from koord import seams
from koord.api.names import ANNOTATION_DEVICE_ALLOCATED, ANNOTATION_RESOURCE_STATUS, RESOURCE_CPU
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.hooks.asking import Answers, Asking
from roles.koordlet.hooks.context import NOTHING, Answer, ContainerContext, PodContext, Stage
from roles.koordlet.hooks.reconciler import Reconciler
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.cgroup_files import shares_to_milli
from roles.koordlet.host.root import HostRoot
from roles.koordlet.qos import view
from roles.koordlet.states.allocation import requests_of
from roles.koordlet.states.model import Snapshot

#: Asks the kubelet for its pods; whether it answered.
Fetch = Callable[[], Awaitable[bool]]
QUOTA = "cpu.cfs_quota_us"
#: Whose the registration is in the journal, and what requests have made.
OWNER = "runtime hooks"
ALLOCATIONS = (ANNOTATION_RESOURCE_STATUS, ANNOTATION_DEVICE_ALLOCATED)
_UNLISTED = 256
#: A runtime waits for the answer (seconds).
_PATIENCE = 1.0


async def never() -> bool:
    """There is no kubelet to ask."""
    return False


@dataclass(eq=False)
class Delivery:
    """Asked by the gRPC service and by the NRI plugin. Methods raise HookError where the failure policy says so."""

    asking: Asking
    reconciler: Reconciler
    executor: Executor
    snapshot: Callable[[], Snapshot]
    modes: Callable[[str], Mode]
    _: KW_ONLY
    disabled: frozenset[Stage]
    feature: str
    fetch: Fetch = never

    def __post_init__(self) -> None:
        self._unlisted: deque[str] = deque(maxlen=_UNLISTED)

    @property
    def cgroups(self) -> Cgroups:
        return self.executor.host.cgroups

    @property
    def root(self) -> HostRoot:
        return self.executor.host.root

    def note(self, entry: Entry) -> bool:
        """Put what is about to be made on the node on record; whether it may be."""
        return self.executor.note(entry, OWNER)

    @property
    def strict(self) -> bool:
        """Whether a request fails with what cannot be read or decided."""
        return self.asking.strict

    def pod(self, stage: Stage, pod: PodContext) -> Answer:
        """The answer for a pod; what it means for the pod's own files is written."""
        if stage in self.disabled:
            return NOTHING
        snapshot = self.snapshot()
        pod = self._known(pod, snapshot, None)
        answers = self.asking.pod(pod, stage)
        if pod.cgroup_dir:
            self.reconciler.pod_now(pod, answers, snapshot, stage)
        self._record(stage, pod, "", answers, snapshot.time)
        return answers.only(self._enforced).answer

    def container(self, stage: Stage, container: ContainerContext) -> Answer:
        """The answer for a container."""
        if stage in self.disabled:
            return NOTHING
        container = replace(container, pod=self._known(container.pod, self.snapshot(), container.own_shares))
        answers = self._within_its_pod(container.pod, self._in_a_group_that_is_there(container, self.asking.container(container, stage)))
        self._record(stage, container.pod, container.name, answers, seams.now())
        answer = answers.only(self._enforced).answer
        self.reconciler.answered(container.pod.uid, container.name, answer)
        return answer

    async def look_up(self, uid: str, annotations: Mapping[str, str]) -> None:
        """Ask the kubelet for a pod that carries an allocation and is not listed yet: what it asks for decides what it gets."""
        if not any(key in annotations for key in ALLOCATIONS) or self.snapshot().pod(uid) is not None:
            return
        try:
            answered = await asyncio.wait_for(self.fetch(), _PATIENCE)
        except TimeoutError:
            answered = False
        if answered and self.snapshot().pod(uid) is None:
            self._unlisted.append(uid)

    def _known(self, pod: PodContext, snapshot: Snapshot, shares: int | None) -> PodContext:
        """The pod with what it requests: by the kubelet's list, else, of a pod that the kubelet does not have, by the request itself."""
        state = snapshot.pod(pod.uid)
        if state is not None:
            return replace(pod, requests=requests_of(state))
        if pod.uid not in self._unlisted:
            return pod
        return replace(pod, requests=None if shares is None else {RESOURCE_CPU: shares_to_milli(shares)}, unlisted=True)

    def _in_a_group_that_is_there(self, container: ContainerContext, answers: Answers) -> Answers:
        """A runtime cannot start a container in a resctrl group that is not there: it starts without, and the reconciler moves it in once
        the group is made."""
        group = answers.answer.rdt_class
        if group is None:
            return answers
        hook, about = answers.owners["rdt_class"], f"pod {container.pod.key} resctrl group"
        if not self._enforced(hook) or os.path.isdir(self.root.resctrl_path(group)):
            self.asking.well(hook, about)
            return answers
        self.asking.trouble(hook, about, ValueError(f"{group} is not made (yet); containers start without a group of their own"))
        owners = {field: owner for field, owner in answers.owners.items() if field != "rdt_class"}
        return Answers(replace(answers.answer, rdt_class=None), owners)

    def _within_its_pod(self, pod: PodContext, answers: Answers) -> Answers:
        """On cgroup v1 the kernel refuses a container more than its pod has, and it could not start: where a strategy holds the pod's quota
        it gets no more than that, until the reconciler may give it the rest."""
        quota = answers.answer.cpu_quota
        if self.cgroups.v2 or quota is None or quota <= 0 or not self.executor.holds.holder(QUOTA, pod.cgroup_dir):
            return answers
        whole = view.usual_quota(self.executor.host, pod.cgroup_dir)
        if whole is None or not 0 < whole < quota:
            return answers
        return Answers(replace(answers.answer, cpu_quota=whole), answers.owners)

    def _enforced(self, hook: str) -> bool:
        return self.modes(hook) is Mode.ENFORCE

    def _record(self, stage: Stage, pod: PodContext, container: str, answers: Answers, now: float) -> None:
        recorder = self.executor.recorder
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
                    features=(self.feature,),
                )
            )
