"""TerwayQoS: the files by which the Terway CNI shapes traffic (KA-HK-08).

``global_bps_config`` has the bandwidth of the node and of its two offline levels (l1 is LS, l2 is BE), ``pod.json`` the pods. All
in bytes per second. Under any other policy both files are removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, ClassVar

import orjson

from koord.api.annotations import AnnotationError
from koord.api.qos import QoSClass
from roles.koordlet.actuation.writes import Kind, Write
from roles.koordlet.hooks.context import PodContext
from roles.koordlet.hooks.hook import Hook, Pods
from roles.koordlet.hooks.network import NetworkRule, network_rule, pod_limits
from roles.koordlet.host.cgroup import BESTEFFORT
from roles.koordlet.host.root import HostRoot
from roles.koordlet.states.model import Snapshot

log = logging.getLogger(__name__)

POLICY = "terway-qos"
_PRIORITIES = {QoSClass.SYSTEM: 0, QoSClass.LSE: 1, QoSClass.LSR: 1, QoSClass.LS: 1, QoSClass.BE: 2}


def directory(root: HostRoot) -> str:
    """Terway's directory: /var/lib of the host is mounted as /host-var-lib in a DaemonSet."""
    mounted = root.path("host-var-lib")
    return root.path("host-var-lib" if os.path.isdir(mounted) else "var/lib", "terway/qos")


def node_text(rule: NetworkRule) -> str:
    rows = [("hw_tx_bps_max", rule.total), ("hw_rx_bps_max", rule.total)]
    for level, band in (("l1", rule.ls), ("l2", rule.be)):
        rows += [
            (f"offline_{level}_tx_bps_min", band.tx_min),
            (f"offline_{level}_tx_bps_max", band.tx_max),
            (f"offline_{level}_rx_bps_min", band.rx_min),
            (f"offline_{level}_rx_bps_max", band.rx_max),
        ]
    return "".join(f"{key} {value}\n" for key, value in rows)


def pod_entry(pod: PodContext) -> dict[str, Any]:
    try:
        ingress, egress = pod_limits(pod)
    except AnnotationError as error:
        log.debug("pod %s: %s", pod.key, error)
        ingress = egress = 0
    return {
        "podName": pod.name,
        "podNamespace": pod.namespace,
        "podUID": pod.uid,
        "prio": _PRIORITIES.get(pod.qos, 2 if pod.kube_qos == BESTEFFORT else 1),
        "cgroupDir": f"/sys/fs/cgroup/net_cls/{pod.cgroup_dir}",
        "qosConfig": {"ingressBandwidth": ingress, "egressBandwidth": egress},
    }


class TerwayQoS(Hook[NetworkRule]):
    """See the module."""

    name: ClassVar[str] = "TerwayQoS"
    walks_always: ClassVar[bool] = True

    def learn(self, snapshot: Snapshot, rule: NetworkRule | None) -> NetworkRule | None:
        return rule if snapshot.slo is None else network_rule(snapshot.slo, POLICY)

    def walk(self, snapshot: Snapshot, rule: NetworkRule | None, pods: Pods) -> Iterator[Write]:
        if rule is None:
            return
        base = directory(snapshot.host.root)
        node_file, pod_file = os.path.join(base, "global_bps_config"), os.path.join(base, "pod.json")
        if not rule.active:
            for path in (node_file, pod_file):
                yield Write("terway", path, "", kind=Kind.ABSENT, reason=self.name)
            return
        if not os.path.isdir(base):
            yield Write("terway", base, "", kind=Kind.DIRECTORY, reason=self.name)
        entries = {pod.uid: pod_entry(pod) for pod, _ in pods.values()}
        yield Write("terway", node_file, node_text(rule), kind=Kind.CREATE, reason=self.name)
        text = orjson.dumps(entries, option=orjson.OPT_SORT_KEYS).decode()
        yield Write("terway", pod_file, text, kind=Kind.CREATE, reason=self.name)
