"""GroupIdentity: scheduling priority of the kernel's group identity, ``cpu.bvt_warp_ns`` (KA-HK-01).

Only kernels that offer the file are touched. The classes' values come from the NodeSLO; an LS pod may lower its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from koord.api.annotations import parse_cpu_qos
from koord.api.qos import QoSClass
from roles.koordlet.actuation.systemfiles import SCHED_CORE, SCHED_GROUP_IDENTITY, SystemFile
from roles.koordlet.actuation.writes import Kind, Write
from roles.koordlet.hooks.context import Answer, HostAppContext, PodContext, Stage
from roles.koordlet.hooks.hook import Hook, Pods
from roles.koordlet.host.cgroup import BURSTABLE, GUARANTEED, KUBE_QOS, kube_qos_of_dir
from roles.koordlet.qos import view
from roles.koordlet.states.model import Snapshot
from roles.koordlet.states.slo import CPUQOS

RESOURCE = "cpu.bvt_warp_ns"
GROUP_IDENTITY_POLICY = "groupIdentity"


@dataclass(frozen=True, slots=True)
class IdentityRule:
    """Values of the classes; None where a class is off. ``silent``: the kernel has no such thing, or it is off and stays so."""

    lsr: int | None = None
    ls: int | None = None
    be: int | None = None
    system: int | None = None
    silent: bool = True

    @property
    def on(self) -> bool:
        return any(value is not None for value in (self.lsr, self.ls, self.be))

    def of_kube_qos(self, kube_qos: str) -> int:
        """Value of a pod without class."""
        if kube_qos == GUARANTEED:
            return self.lsr if self.lsr is not None else self.ls or 0
        return (self.ls if kube_qos == BURSTABLE else self.be) or 0

    def of_class(self, qos: QoSClass) -> int | None:
        """Value of a class, 0 where it is off; None for SYSTEM and no class, which have none of their own."""
        by_class = {QoSClass.LSE: self.lsr, QoSClass.LSR: self.lsr, QoSClass.LS: self.ls, QoSClass.BE: self.be}
        if qos is QoSClass.SYSTEM:
            return self.system
        return (by_class[qos] or 0) if qos in by_class else None

    def of_dir(self, kube_qos: str) -> int:
        """Value of the directory of a Kubernetes QoS class; kubepods itself holds all and stays neutral."""
        return 0 if kube_qos == GUARANTEED else self.of_kube_qos(kube_qos)


def _switch(snapshot: Snapshot, file: SystemFile) -> str | None:
    """What a kernel switch holds; None when there is none."""
    found = view.text(snapshot.host, file.locate, snapshot.host.root)
    return None if found is None else found.strip()


class GroupIdentity(Hook[IdentityRule]):
    """See the module."""

    name: ClassVar[str] = "GroupIdentity"
    pod_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_RUN_POD_SANDBOX,)

    def learn(self, snapshot: Snapshot, rule: IdentityRule | None) -> IdentityRule | None:
        if snapshot.slo is None:
            return rule
        strategy = snapshot.slo.qos
        allowed = strategy.policies.cpu_policy in {"", GROUP_IDENTITY_POLICY}

        def value(cpu: CPUQOS) -> int | None:
            return cpu.group_identity if allowed and cpu.enable else None

        lsr, ls, be, system = (value(body.cpu) for body in (strategy.lsr, strategy.ls, strategy.be, strategy.system))
        switch = _switch(snapshot, SCHED_GROUP_IDENTITY)
        offered = switch is not None or snapshot.host.cgroups.supported(RESOURCE, snapshot.host.cgroups.kubepods)
        off = lsr is None and ls is None and be is None
        return IdentityRule(lsr, ls, be, system, silent=not offered or (off and switch == "0"))

    def only_resets(self, rule: IdentityRule | None) -> bool:
        return rule is not None and not rule.on and rule.system is None

    def switches(self, snapshot: Snapshot, rule: IdentityRule) -> tuple[Write, ...]:
        """Core scheduling and group identity exclude each other."""
        if rule.silent or not rule.on:
            return ()
        return tuple(
            Write(file.name, file.locate(snapshot.host.root), value, kind=Kind.FILE, reason="UpdateSystemConfig")
            for file, value in ((SCHED_CORE, "0"), (SCHED_GROUP_IDENTITY, "1"))
            if _switch(snapshot, file) is not None
        )

    def pod(self, pod: PodContext, rule: IdentityRule | None) -> Answer | None:
        return None if rule is None or rule.silent else Answer(bvt=self._of_pod(pod, rule))

    def _of_pod(self, pod: PodContext, rule: IdentityRule) -> int:
        if pod.qos is QoSClass.LS:
            own = parse_cpu_qos(pod.annotations)
            if own is not None:
                if not own.get("enable") or rule.ls is None:
                    return 0  # what the node has off no pod switches on
                identity: int = own.get("groupIdentity", rule.ls)
                return min(identity, rule.ls)
        value = rule.of_class(pod.qos)
        return rule.of_kube_qos(pod.kube_qos) if value is None else value

    def kube_qos(self, kube_qos: str, rule: IdentityRule | None) -> Answer | None:
        return None if rule is None or rule.silent else Answer(bvt=rule.of_dir(kube_qos))

    def host_app(self, app: HostAppContext, rule: IdentityRule | None) -> Answer | None:
        return None if rule is None or rule.silent else Answer(bvt=rule.of_class(app.qos) or 0)

    def walk(self, snapshot: Snapshot, rule: IdentityRule | None, pods: Pods) -> Iterator[Write]:
        """Container directories of known pods, and pod directories that nobody lists with what is in them."""
        if rule is None or rule.silent:
            return
        host = snapshot.host
        for kube_qos in KUBE_QOS:
            for directory in view.subdirectories(host, "cpu", host.cgroups.qos_dir(kube_qos)):
                if host.cgroups.pod_uid_of(directory.rsplit("/", 1)[-1]) is None:
                    continue
                pod = pods.get(directory)
                if pod is None:
                    value = rule.of_dir(kube_qos_of_dir(directory))
                    yield Write(RESOURCE, directory, str(value))
                else:
                    try:
                        value = self._of_pod(pod[0], rule)
                    except ValueError:
                        continue  # said so where the pod itself was asked for
                for inner in view.subdirectories(host, "cpu", directory):
                    yield Write(RESOURCE, inner, str(value))
