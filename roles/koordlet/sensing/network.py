"""What pods lose and move on the network, for interference detection (BEY-INT-01).

Each pod with a network of its own is read through one of its processes. Of latency-sensitive pods the shares that were lost count, of
best-effort pods the traffic. Pods on the node's network are left out: its counters are everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from roles.koordlet.host import net, parse
from roles.koordlet.qos import view
from roles.koordlet.sensing.base import FORGET_AFTER_INTERVALS, Collector, Round, SensingContext
from roles.koordlet.states.model import PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

#: Shares are of at least so many packets: one packet lost of three is no news.
LEAST_PACKETS = 200
#: Counters of ``TcpExt`` and ``Udp`` that say that a packet came as far as the pod and found its socket full.
_FULL = ("ListenDrops", "TCPBacklogDrop", "TCPRcvQDrop")


@dataclass(frozen=True, slots=True)
class Counters:
    """Cumulative counters of a network namespace; packets with loopback, bytes without."""

    segments: int
    retransmits: int
    packets: int
    drops: int
    bytes: int

    def since(self, before: Counters) -> Counters | None:
        """What was counted between two readings; None when a counter went back (another namespace, or a wrap)."""
        passed = Counters(
            self.segments - before.segments,
            self.retransmits - before.retransmits,
            self.packets - before.packets,
            self.drops - before.drops,
            self.bytes - before.bytes,
        )
        lowest = min(passed.segments, passed.retransmits, passed.packets, passed.drops, passed.bytes)
        return passed if lowest >= 0 else None


def lost(part: int, rest: int) -> float:
    """Percent of ``part`` in ``part + rest``, which counts as :data:`LEAST_PACKETS` where it is less."""
    return 100.0 * part / max(part + rest, LEAST_PACKETS)


class NetworkCollector(Collector):
    """Retransmitted segments and dropped packets in percent, traffic in bytes a second, of one collect interval each."""

    name: ClassVar[str] = "network"
    gate: ClassVar[str] = "InterferenceDetection"

    def __init__(self, context: SensingContext, interval: float = 10.0) -> None:
        super().__init__(context, interval)
        self._before: dict[str, tuple[float, Counters]] = {}

    def collect(self, at: Round) -> None:
        samples: list[Sample] = []
        seen: dict[str, tuple[float, Counters]] = {}
        for pod in self.context.sensed_pods():
            if pod.pod.spec.host_network:
                continue
            counters = self.attempt(pod.key, self._counters, pod, quiet=True)
            if counters is None:
                continue
            seen[pod.uid] = (at.mono, counters)
            mono, before = self._before.get(pod.uid, (at.mono, counters))
            passed = counters.since(before)
            if passed is not None and 0 < at.mono - mono <= FORGET_AFTER_INTERVALS * self._interval:
                samples += [
                    (kinds.POD_NETWORK, (pod.uid, "retransmits"), lost(passed.retransmits, passed.segments)),
                    (kinds.POD_NETWORK, (pod.uid, "drops"), lost(passed.drops, passed.packets)),
                    (kinds.POD_NETWORK, (pod.uid, "bytes"), passed.bytes / (at.mono - mono)),
                ]
        self._before = seen
        self.context.store.append(at.now, samples)

    def _counters(self, pod: PodState) -> Counters | None:
        pid = self._pid(pod)
        if pid is None:
            return None
        faces = net.interfaces(*self._read(pid, "dev"))
        path, data = self._read(pid, "snmp")
        tcp, udp = net.protocol(path, data, "Tcp"), net.protocol(path, data, "Udp")
        extended = net.protocol(*self._read(pid, "netstat"), "TcpExt")
        full = udp.get("RcvbufErrors", 0) + sum(extended.get(name, 0) for name in _FULL)
        return Counters(tcp.get("OutSegs", 0), tcp.get("RetransSegs", 0), faces.packets, faces.drops + full, faces.bytes)

    def _pid(self, pod: PodState) -> int | None:
        """A process of the pod: the oldest of its first container that has any, outermost, as those further in may have a network of their
        own. Asked each time, as numbers are used again."""
        for container in pod.containers:
            for directory in view.within(self.context.host, container.cgroup_dir) if container.cgroup_dir and container.running else ():
                pids = [pid for pid in parse.ids(*self.read("cgroup.procs", directory)) if pid > 0]
                if pids:
                    return min(pids)
        return None

    def _read(self, pid: int, name: str) -> tuple[str, bytes]:
        host = self.context.host
        path = host.root.proc_path(str(pid), "net", name)
        try:
            return path, host.files.read(path)
        finally:
            # a kept descriptor would keep the pod's network alive after the pod
            host.files.close(path)
