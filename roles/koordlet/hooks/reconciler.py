"""Brings all pods, containers, QoS directories and host applications in line with what the hooks answer (KA-RH-03).

Plans of pods are kept while neither the pod nor a rule changes: a quiet pass costs a look into the executor's cache a write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.qos import QoSClass
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.actuation.writes import About, Batch, Write, in_steps, sequence
from roles.koordlet.hooks.asking import Answers, Asking
from roles.koordlet.hooks.context import Answer, ContainerContext, HostAppContext, PodContext, Stage
from roles.koordlet.hooks.hook import Hook
from roles.koordlet.hooks.plan import TARGETS, Job, jobs, writes
from roles.koordlet.hooks.requests import contexts
from roles.koordlet.host.cgroup import KUBE_QOS
from roles.koordlet.host.errors import HostError
from roles.koordlet.qos import view
from roles.koordlet.qos.outcome import Notice, Sample
from roles.koordlet.sensing.hostapps import app_dir
from roles.koordlet.states.model import PodState, Snapshot

if TYPE_CHECKING:
    from roles.koordlet.metrics.registry import Metrics

log = logging.getLogger(__name__)

#: Pods between two moments at which others may run.
_PODS_A_SLICE = 16
#: Containers whose answers are remembered: as many as a node may have.
_ANSWERED = 2048
_CLASSES = {str(c): c for c in QoSClass}
#: In the path of every group that the kubelet makes, with either driver.
_KUBEPODS = "kubepods"


@dataclass(slots=True)
class _Plan:
    state: PodState
    jobs: tuple[Job, ...] = ()
    contexts: tuple[PodContext, tuple[ContainerContext, ...]] | None = None
    complete: bool = True
    """Whether nothing has to be looked up again (the sandbox's directory was found)."""


@dataclass(slots=True)
class Pass:
    """What became of one pass. ``absent`` counts writes whose directory or file was not there (yet)."""

    written: int = 0
    would: int = 0
    failed: int = 0
    absent: int = 0
    held_back: set[str] = field(default_factory=set)
    ours: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Which cgroup files (resource, directory) held what koordlet gave them before this pass wrote to them, as far as that was asked."""


@dataclass(eq=False)
class Reconciler:
    """One a process; passes must not overlap."""

    asking: Asking
    _: KW_ONLY
    executor: Executor
    modes: Callable[[str], Mode]
    metrics: Metrics
    notify: Callable[[Notice], None] = lambda notice: None

    def __post_init__(self) -> None:
        self._plans: dict[str, _Plan] = {}
        self._sandboxes: dict[str, str] = {}
        self._hooks: tuple[Hook[Any], ...] = ()
        self._unwalked: set[str] = set()
        """Hooks whose rule changed and whose walk has not gone through since."""
        self._answered: dict[tuple[str, str], dict[str, int | str]] = {}
        """By pod and container, what the runtime was told when it made the container; the newest last."""
        self._apps: dict[str, QoSClass] | None = None
        """Directories of the host applications of the last pass, with their classes."""

    async def run(self, snapshot: Snapshot, changed: frozenset[str] = frozenset()) -> Pass:
        """One pass over everything. ``changed``: hooks whose rule is new."""
        done = Pass()
        self._unwalked |= changed
        self._forget(snapshot)
        hooks = self._ready(snapshot, done)
        if changed or hooks != self._hooks:
            self._hooks = hooks
            for plan in self._plans.values():
                plan.complete = False
        apps = _host_apps(snapshot)
        if snapshot.slo is not None:
            self._leave({app.cgroup_dir: app.qos for app in apps})
        for job in self._node_jobs(snapshot, hooks, apps):
            self._carry_out(job, "kubeqos", snapshot, done)
        for number, state in enumerate(snapshot.pods):
            if state.terminated:
                continue
            for job in self._pod_jobs(state, snapshot, hooks):
                self._carry_out(job, "pod", snapshot, done)
            if number % _PODS_A_SLICE == _PODS_A_SLICE - 1:
                await seams.sleep(0)
        self._walk(snapshot, hooks, done)
        return done

    def pod_now(self, pod: PodContext, answers: Answers, snapshot: Snapshot, stage: Stage) -> None:
        """Carry out what a runtime's request led to for a pod's own directory, ahead of the next pass."""
        for job in jobs([writes(answers, pod.cgroup_dir, About.of(pod), _period(snapshot))]):
            self._carry_out(job, "pod", snapshot, Pass())
        for hook in self.asking.hooks:
            if stage in hook.pod_stages:
                for more in in_steps(hook.at_pod(stage, snapshot, pod, self.asking.rule(hook))):
                    self._carry_out(Job(hook.name, more), "pod", snapshot, Pass())

    def answered(self, uid: str, container: str, answer: Answer) -> None:
        """Remember what a runtime is told for a container that it makes: the container has it by our hand before the first pass sees it."""
        self._answered.pop((uid, container), None)
        values = {name: value for name, value in answer.set_fields() if name in TARGETS}
        if values:
            self._answered[uid, container] = values
        if len(self._answered) > _ANSWERED:
            del self._answered[next(iter(self._answered))]

    # -- what is wanted ------------------------------------------------------------------------------------------------------

    def _ready(self, snapshot: Snapshot, done: Pass) -> tuple[Hook[Any], ...]:
        """Hooks whose kernel switches are set."""
        ready = []
        for hook in self.asking.hooks:
            rule = self.asking.rule(hook)
            try:
                switches = hook.switches(snapshot, rule) if rule is not None else ()
            except Exception as error:
                self.asking.trouble(hook.name, "kernel switches", error)
                continue
            if not switches or self._switch(hook.name, switches, snapshot, done):
                ready.append(hook)
        return tuple(ready)

    def _switch(self, name: str, switches: tuple[Write, ...], snapshot: Snapshot, done: Pass) -> bool:
        for write in switches:
            applied = self.executor.apply((sequence(write),), rule=name, now=snapshot.time, mode=self.modes(name))
            done.written += len(applied.written)
            if applied.failed:
                done.failed += 1
                return False
        return True

    def _node_jobs(self, snapshot: Snapshot, hooks: tuple[Hook[Any], ...], apps: Sequence[HostAppContext]) -> list[Job]:
        wanted: list[tuple[str, Write]] = []
        for kube_qos in KUBE_QOS:
            wanted += writes(self.asking.kube_qos(kube_qos, hooks), snapshot.host.cgroups.qos_dir(kube_qos))
        for app in apps:
            wanted += writes(self.asking.host_app(app, hooks), app.cgroup_dir, About("group", name=app.name))
        return list(jobs([wanted]))

    def _leave(self, apps: dict[str, QoSClass]) -> None:
        """Give host applications back what they had that are listed no more, or are of another class: nothing is wanted of them, or other
        things. Those of an agent before this one are known by the journal, but for groups of the kubelet, which are pods' as well."""
        if apps == self._apps:
            return
        left = {directory for directory, qos in (self._apps or {}).items() if apps.get(directory) is not qos}
        owners = {hook.name for hook in self.asking.hooks if self.modes(hook.name) is Mode.ENFORCE}

        def former(directory: str, owner: str) -> bool:
            return owner in owners and (directory in left or (directory not in apps and _KUBEPODS not in directory))

        self.executor.give_back(former)
        self._apps = apps

    def _pod_jobs(self, state: PodState, snapshot: Snapshot, hooks: tuple[Hook[Any], ...]) -> tuple[Job, ...]:
        plan = self._plans.get(state.uid)
        if plan is None or plan.state is not state or not plan.complete:
            plan = self._plans[state.uid] = self._plan(state, snapshot, hooks)
        return plan.jobs

    def _plan(self, state: PodState, snapshot: Snapshot, hooks: tuple[Hook[Any], ...]) -> _Plan:
        try:
            pod, containers = contexts(state)
        except ValueError as error:
            log.warning("pod %s is left unchanged: %s", state.key, error)
            return _Plan(state)
        period = _period(snapshot)
        outer = writes(self.asking.pod(pod, hooks=hooks), pod.cgroup_dir, About.of(pod), period)
        inner: list[tuple[str, Write]] = []
        complete = True
        if state.pod.spec.runtime_class_name != "kata":
            sandbox = ContainerContext(pod, "", "", "")
            answers = self.asking.container(sandbox, hooks=hooks)
            if answers.answer:
                directory = self._sandbox(state, snapshot)
                complete = bool(directory)
                inner += writes(answers, directory, About.of(pod)) if directory else []
            for container in containers:
                answers = self.asking.container(container, hooks=hooks)
                told = self._answered.get((pod.uid, container.name), {})
                inner += writes(answers, container.cgroup_dir, About.of(pod, container.name), period, container.native, told)
        return _Plan(state, jobs([outer, inner]), (pod, containers), complete)

    def _walk(self, snapshot: Snapshot, hooks: tuple[Hook[Any], ...], done: Pass) -> None:
        listed = {p.contexts[0].cgroup_dir: p.contexts for p in self._plans.values() if p.contexts is not None}
        for hook in hooks:
            rule = self.asking.rule(hook)
            try:
                if hook.walks_always or hook.name in self._unwalked:
                    failed = done.failed
                    for batch in in_steps(hook.walk(snapshot, rule, listed)):
                        self._carry_out(Job(hook.name, batch), "allpods", snapshot, done)
                    if done.failed == failed:
                        self._unwalked.discard(hook.name)
                if self.modes(hook.name) is Mode.ENFORCE:
                    hook.act(snapshot, rule, listed, self.metrics)
                self._gauge(hook, hook.samples(rule, listed))
                self.asking.well(hook.name, "all pods")
            except Exception as error:
                self.asking.trouble(hook.name, "all pods", error)

    def _gauge(self, hook: Hook[Any], samples: Iterable[Sample]) -> None:
        for family in hook.rebuilds:
            getattr(self.metrics, family).clear()
        for sample in samples:
            if sample.value is not None:
                getattr(self.metrics, sample.family).set(sample.value, *sample.labels)

    def _sandbox(self, state: PodState, snapshot: Snapshot) -> str:
        """Directory of the pod's sandbox; empty while it cannot be told."""
        known = self._sandboxes.get(state.uid)
        if known is not None and (not known or snapshot.host.cgroups.exists(known)):  # one that ends is made anew under another id
            return known
        try:
            found = snapshot.host.cgroups.sandbox_dir(state.cgroup_dir, {c.cgroup_dir for c in state.all_containers() if c.cgroup_dir})
        except HostError:
            return ""
        if any(c.cgroup_dir == "" for c in state.containers):
            return found  # it may be a container that the kubelet does not list yet: look again
        self._sandboxes[state.uid] = found
        return found

    def _forget(self, snapshot: Snapshot) -> None:
        """Drop what is known about pods that are gone or have ended: a static pod comes back with its uid, an address in another pod."""
        here = {state.uid for state in snapshot.pods if not state.terminated}
        gone = [plan.state for uid, plan in self._plans.items() if uid not in here]
        for state in gone:
            del self._plans[state.uid]
            self._sandboxes.pop(state.uid, None)
            self.executor.forget(state.cgroup_dir)
        if gone:
            self.asking.forget([state.key for state in gone])

    # -- acting --------------------------------------------------------------------------------------------------------------

    def _only_resetting(self) -> frozenset[str]:
        return frozenset(hook.name for hook in self.asking.hooks if hook.only_resets(self.asking.rule(hook)))

    def _resets(self, batch: Batch, done: Pass) -> Batch:
        """Of a batch that takes back, what concerns files that hold what koordlet gave them, or that were made in a group of which one
        does."""

        def held(resource: str, directory: str) -> bool:
            key = (resource, directory)
            if key not in done.ours:
                done.ours[key] = self.executor.holds_ours(resource, directory)
            return done.ours[key]

        def ours(write: Write) -> bool:
            above = write.target.split("/")
            return any(held(write.resource, "/".join(above[:depth])) for depth in range(len(above), 0, -1))

        return Batch(tuple(tuple(filter(ours, level)) for level in batch.levels), batch.stop_on_error)

    def _carry_out(self, job: Job, level: str, snapshot: Snapshot, done: Pass) -> None:
        begun = seams.perf_counter()
        batch = self._resets(job.batch, done) if job.hook in self._only_resetting() else job.batch
        applied = self.executor.apply((batch,), rule=job.hook, now=snapshot.time, mode=self.modes(job.hook))
        handled = len(applied.written) + len(applied.would) + len(applied.failed) + applied.skipped
        done.written += len(applied.written)
        done.would += len(applied.would)
        done.failed += len(applied.failed)
        done.absent += sum(1 for _ in batch) - handled
        if applied.unjournalled:
            done.held_back.add(job.hook)
        for write in applied.written:
            if write.event and write.about.name:
                about = write.about
                self.notify(Notice("Normal", write.event, write.target, about.namespace, about.name, about.uid))
        spent = (seams.perf_counter() - begun) * 1000
        for write in applied.written:
            self.metrics.reconciler_duration.observe(spent, _level(write, level), write.resource, "succeeded")
        for _ in applied.failed:
            self.metrics.reconciler_duration.observe(spent, level, "", "failed")


def _host_apps(snapshot: Snapshot) -> list[HostAppContext]:
    """Host applications of the NodeSLO with their directories."""
    found: list[HostAppContext] = []
    for app in snapshot.slo.host_applications if snapshot.slo is not None else ():
        try:
            directory = app_dir(snapshot.host.cgroups, app)
        except HostError as error:
            log.debug("%s", error)
            continue
        found.append(HostAppContext(app.name, _CLASSES.get(app.qos, QoSClass.NONE), directory))
    return found


def _period(snapshot: Snapshot) -> Callable[[str], int]:
    return lambda directory: view.cpu_period(snapshot.host, directory)


def _level(write: Write, level: str) -> str:
    return "container" if write.about.container else level
