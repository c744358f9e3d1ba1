"""CoreSched: who may share a core, by cookies, and who only runs on idle CPUs, by ``cpu.idle`` (KA-HK-05).

Active under the NodeSLO's CPU policy ``coreSched``. Pods of class SYSTEM never get cookies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from koord.api.names import CORE_SCHED_POLICY_EXCLUSIVE, CORE_SCHED_POLICY_NONE, LABEL_CORE_SCHED_GROUP_ID, LABEL_CORE_SCHED_POLICY
from koord.api.qos import QoSClass
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.places import identity
from roles.koordlet.actuation.systemfiles import SCHED_CORE, SCHED_FEATURES, SCHED_GROUP_IDENTITY
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.actuation.writes import Kind, Write
from roles.koordlet.hooks.context import Answer, PodContext
from roles.koordlet.hooks.cookies import CookieStore, Prctl
from roles.koordlet.hooks.hook import Hook, Pods
from roles.koordlet.host.cgroup import BURSTABLE, GUARANTEED
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.namespaces import PROCESSES, foreign
from roles.koordlet.options import Options
from roles.koordlet.qos import view
from roles.koordlet.qos.outcome import Sample
from roles.koordlet.states.model import Snapshot
from roles.koordlet.states.slo import CPUQOS

if TYPE_CHECKING:
    from roles.koordlet.metrics.registry import Metrics

log = logging.getLogger(__name__)

POLICY = "coreSched"


@dataclass(frozen=True, slots=True)
class CoreClass:
    enabled: bool = False
    expeller: bool = False
    idle: bool = False


@dataclass(frozen=True, slots=True)
class CoreRule:
    lsr: CoreClass = CoreClass()
    ls: CoreClass = CoreClass()
    be: CoreClass = CoreClass()

    @property
    def on(self) -> bool:
        return self.lsr.enabled or self.ls.enabled or self.be.enabled

    def of_kube_qos(self, kube_qos: str) -> CoreClass:
        if kube_qos == GUARANTEED:
            return self.lsr if self.lsr.enabled else self.ls
        return self.ls if kube_qos == BURSTABLE else self.be

    def of_pod(self, pod: PodContext) -> CoreClass:
        by_class = {QoSClass.LSE: self.lsr, QoSClass.LSR: self.lsr, QoSClass.LS: self.ls, QoSClass.BE: self.be}
        if pod.qos is QoSClass.SYSTEM:
            return CoreClass()
        return by_class.get(pod.qos) or self.of_kube_qos(pod.kube_qos)


def group_of(pod: PodContext, rule: CoreRule) -> str | None:
    """The group whose cookie a pod's processes share; None for no cookie."""
    chosen = rule.of_pod(pod)
    policy = pod.labels.get(LABEL_CORE_SCHED_POLICY, "")
    if not chosen.enabled or policy == CORE_SCHED_POLICY_NONE:
        return None
    own = pod.labels.get(LABEL_CORE_SCHED_GROUP_ID, "")
    # a label holds no slash: nobody names a pod into a group of another namespace, or into an exclusive pod's
    name = pod.uid if policy == CORE_SCHED_POLICY_EXCLUSIVE else f"{pod.namespace}/{own}" if own else ""
    return f"{name}-expeller" if chosen.expeller else name


def _class(cpu: CPUQOS) -> CoreClass:
    return CoreClass(cpu.enable, cpu.core_expeller, cpu.sched_idle == 1)


class CoreSched(Hook[CoreRule]):
    """See the module. ``kernel`` None: the running one, where process ids are the machine's own."""

    name: ClassVar[str] = "CoreSched"

    def __init__(self, options: Options, gate: Callable[[str], bool], kernel: Prctl | None = None) -> None:
        super().__init__(options, gate)
        self._kernel = kernel
        self._cookies: CookieStore | None = None
        self._looked = False
        self._seen: list[tuple[PodContext, str, str, str, int]] = []

    def learn(self, snapshot: Snapshot, rule: CoreRule | None) -> CoreRule | None:
        if snapshot.slo is None:
            return rule
        strategy = snapshot.slo.qos
        if strategy.policies.cpu_policy != POLICY:
            return CoreRule()
        return CoreRule(_class(strategy.lsr.cpu), _class(strategy.ls.cpu), _class(strategy.be.cpu))

    def switches(self, snapshot: Snapshot, rule: CoreRule) -> tuple[Write, ...]:
        """Group identity off first, then core scheduling on, where the kernel has switches for them."""
        if not rule.on:
            return ()
        root, files = snapshot.host.root, snapshot.host.files

        def knob(write: str, path: str, value: str, kind: Kind = Kind.FILE) -> Write:
            return Write(write, path, value, kind=kind, reason="UpdateSystemConfig")

        out: list[Write] = []
        identity, core, features = (f.locate(root) for f in (SCHED_GROUP_IDENTITY, SCHED_CORE, SCHED_FEATURES))
        if files.exists(identity):
            out.append(knob(SCHED_GROUP_IDENTITY.name, identity, "0"))
        if files.exists(core):
            out.append(knob(SCHED_CORE.name, core, "1"))
        elif {"CORE_SCHED", "NO_CORE_SCHED"}.intersection((view.text(snapshot.host, SCHED_FEATURES.locate, root) or "").split()):
            out.append(knob(SCHED_FEATURES.name, features, "CORE_SCHED", Kind.LINE))
        return tuple(out)

    def kube_qos(self, kube_qos: str, rule: CoreRule | None) -> Answer | None:
        return None if rule is None else Answer(cpu_idle=int(rule.of_kube_qos(kube_qos).idle))

    # -- cookies -------------------------------------------------------------------------------------------------------------

    def act(self, snapshot: Snapshot, rule: CoreRule | None, pods: Pods, metrics: Metrics) -> None:
        if rule is None or (self._cookies is None and not rule.on and not self._left_over(snapshot, pods)):
            return
        kernel = self._supported(snapshot)
        if kernel is None:
            return
        listed = list(self._containers(snapshot, rule, pods))
        if self._cookies is None:
            count = metrics.core_sched_status
            self._cookies = CookieStore(kernel, lambda group, worked: count.inc(group, "succeeded" if worked else "failed"))
            self._cookies.rebuild(((d, group, pids) for _, _, _, d, group, pids in listed if group is not None), snapshot.time)
            for _, _, _, directory, group, _ in listed:
                if group is None and snapshot.changed("cgroup.procs", directory):
                    self._cookies.adopt(directory)
        self._seen = []
        for pod, name, container_id, directory, group, pids in listed:
            if group is not None and pids and not self._noted(snapshot, directory):
                continue
            try:
                if group is None:
                    self._cookies.leave(directory, pids)
                elif cookie := self._cookies.join(directory, group, pids, snapshot.time):
                    self._seen.append((pod, name, container_id, group, cookie))
            except OSError as error:
                self.complain(f"pod {pod.key} container {name or '(sandbox)'}: {error}")
        self._cookies.sweep(snapshot.time, {directory for _, _, _, directory, _, _ in listed})

    def _left_over(self, snapshot: Snapshot, pods: Pods) -> bool:
        """Whether an agent before this one gave cookies, by the journal; asked once."""
        if self._looked:
            return False
        self._looked = True
        directories = (c.cgroup_dir for _, containers in pods.values() for c in containers)
        return any(snapshot.changed("cgroup.procs", d) for directory in directories for d in view.within(snapshot.host, directory))

    def _noted(self, snapshot: Snapshot, directory: str) -> bool:
        """Put a container on record before its processes get a cookie; whether they may have one."""
        path = snapshot.host.cgroups.file("cgroup.procs", directory)
        if self.note(Entry(path, "", Undo.COOKIES, "cgroup.procs", identity(path))):
            return True
        self.complain(f"{directory} cannot be put on record; its processes get no cookie")
        return False

    def samples(self, rule: CoreRule | None, pods: Pods) -> Iterator[Sample]:
        for pod, name, container_id, group, cookie in self._seen:
            yield Sample("core_sched_cookie", 1, (pod.name, pod.namespace, pod.uid, name, container_id, group, str(cookie)))

    def _containers(
        self, snapshot: Snapshot, rule: CoreRule, pods: Pods
    ) -> Iterator[tuple[PodContext, str, str, str, str | None, list[int]]]:
        """Pods oldest first; of each the sandbox before the containers."""
        host = snapshot.host
        ordered = sorted(pods.values(), key=lambda p: p[0].state.pod.metadata.creation_timestamp or "" if p[0].state else "")
        for pod, containers in ordered:
            group = group_of(pod, rule)
            places = [(c.name, c.id, c.cgroup_dir) for c in containers]
            try:
                places.insert(0, ("", "", host.cgroups.sandbox_dir(pod.cgroup_dir, {c.cgroup_dir for c in containers})))
            except HostError as error:
                log.debug("pod %s: %s", pod.key, error)
            for name, container_id, directory in places:
                for inner in view.within(host, directory):
                    yield pod, name, container_id, inner, group, view.ids(host, "cgroup.procs", inner)

    def _supported(self, snapshot: Snapshot) -> Prctl | None:
        """The kernel if it knows cookies and this process has none of its own."""
        kernel = self._kernel
        if kernel is None:
            if why := foreign(snapshot.host.root, PROCESSES):
                self.complain(f"no cookies: {why}")
                return None
            kernel = self._kernel = Prctl()
        try:
            own = kernel.get(0)
        except OSError as error:
            self.complain(f"the kernel has no core scheduling: {error}")
            return None
        if own:
            self.complain(f"koordlet itself carries the cookie {own:#x}: it must not, to be able to take cookies away")
            return None
        return kernel
