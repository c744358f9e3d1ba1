"""TCNetworkQoS: bandwidth of classes and pods by the kernel's traffic control (KA-HK-09). See ``tcplan``."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from roles.koordlet.hooks.context import Answer, ContainerContext, PodContext, Stage
from roles.koordlet.hooks.hook import Hook, Pods
from roles.koordlet.hooks.network import NET_CLASSES, NetworkRule, network_rule, pod_limits
from roles.koordlet.hooks.tcapply import NetworkApplier, OnRecord, run_command
from roles.koordlet.hooks.tcplan import CLASS_MINORS, NetworkPlan, limited, minors, plan
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.namespaces import NETWORK, foreign
from roles.koordlet.options import Options
from roles.koordlet.states.model import Snapshot

if TYPE_CHECKING:
    from roles.koordlet.metrics.registry import Metrics

log = logging.getLogger(__name__)

POLICY = "tc"
_MAJOR = 1 << 16


def default_device(snapshot: Snapshot) -> str | None:
    """The NIC of the IPv4 default route with the lowest metric."""
    try:
        lines = snapshot.host.files.text(snapshot.host.root.proc_path("net/route")).splitlines()[1:]
    except (HostError, ValueError):
        return None
    routes = [line.split() for line in lines]
    defaults = [(int(r[6]), r[0]) for r in routes if len(r) >= 8 and r[1] == "00000000" and r[7] == "00000000" and r[6].isdecimal()]
    return min(defaults)[1] if defaults else None


@dataclass(frozen=True, slots=True)
class TCRule:
    """``own``: uid -> minor of pods that limit themselves."""

    network: NetworkRule
    own: tuple[tuple[str, int], ...] = ()


class TCNetworkQoS(Hook[TCRule]):
    """``applier`` None: the running kernel's, where the network is the machine's own."""

    name: ClassVar[str] = "TCNetworkQoS"
    pod_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_RUN_POD_SANDBOX,)

    def __init__(self, options: Options, gate: Callable[[str], bool], applier: NetworkApplier | None = None) -> None:
        super().__init__(options, gate)
        self._applier = applier

    def learn(self, snapshot: Snapshot, rule: TCRule | None) -> TCRule | None:
        if snapshot.slo is None:
            return rule
        network = network_rule(snapshot.slo, POLICY)
        return TCRule(network, tuple(sorted(minors(limited(_listed(snapshot))).items())))

    def pod(self, pod: PodContext, rule: TCRule | None) -> Answer | None:
        if rule is None or not rule.network.active or not rule.network.total:
            return None
        name = NET_CLASSES.get(pod.qos)
        if any(pod_limits(pod)):
            minor = dict(rule.own).get(pod.uid)
            return None if minor is None else Answer(net_classid=_MAJOR + minor)
        return None if name is None else Answer(net_classid=_MAJOR + CLASS_MINORS[name])

    def container(self, container: ContainerContext, rule: TCRule | None) -> Answer | None:
        """The kernel asks the very group of a process, which copied its pod's class when it was made and not since."""
        return self.pod(container.pod, rule)

    def act(self, snapshot: Snapshot, rule: TCRule | None, pods: Pods, metrics: Metrics) -> None:
        if rule is None:
            return
        if self._applier is None:
            root = snapshot.host.root
            if why := foreign(root, NETWORK):
                self.complain(f"no traffic is shaped: {why}")
                return
            self._applier = NetworkApplier(partial(run_command, root=root), OnRecord(self, root.sys))
        device = default_device(snapshot)
        if device is None:
            self.complain("there is no IPv4 default route, so no NIC to shape")
            return
        addresses = {pod.uid: (pod, _address(pod)) for pod, _ in pods.values()}
        wanted: NetworkPlan = plan(device, rule.network, addresses)
        self._applier.want(wanted)


def _address(pod: PodContext) -> str:
    """The pod's own IPv4 address; empty in the host's network."""
    if pod.state is None or pod.state.pod.spec.host_network:
        return ""
    status = pod.state.pod.status
    for address in (status.pod_ip, *(one.ip for one in status.pod_ips)):  # of two families the first one may be IPv6
        try:
            return str(ipaddress.IPv4Address(address))
        except ValueError:
            continue
    return ""


def _listed(snapshot: Snapshot) -> list[PodContext]:
    """Pods as far as their own limits go."""
    return [
        PodContext(s.namespace, s.name, s.uid, s.labels, s.annotations, s.cgroup_dir, s.kube_qos, s.qos_label)
        for s in snapshot.pods
        if not s.terminated
    ]
