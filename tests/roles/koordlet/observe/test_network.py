"""What pods lose on the network, and what best-effort pods move on networks and disks (BEY-INT-01)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from roles.koordlet.host import net
from roles.koordlet.host.errors import ParseError
from roles.koordlet.sensing.base import Round
from roles.koordlet.sensing.network import LEAST_PACKETS, Counters, NetworkCollector, lost
from roles.koordlet.store import kinds

pytestmark = pytest.mark.feature("BEY-INT-01")

GATE = "InterferenceDetection=true"
TITLES = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"
)


def face(name: str, moved: int = 0, packets: int = 0, drops: int = 0) -> str:
    """Half of each in either direction."""
    half = f"{moved // 2} {packets // 2} 0 {drops - drops // 2} 0 0 0 0"
    return f"{name}: {half} {moved // 2} {packets // 2} 0 {drops // 2} 0 0 0 0\n"


class Wire:
    """The network files of one pod's process."""

    def __init__(self, tree: Any, pid: int) -> None:
        self.tree, self.pid = tree, pid

    def put(
        self, *, sent: int = 0, again: int = 0, packets: int = 0, drops: int = 0, moved: int = 0, full: int = 0, listen: int = 0
    ) -> None:
        tcp = f"Tcp: RtoMin MaxConn OutSegs RetransSegs\nTcp: 200 -1 {sent} {again}\n"
        self.file("snmp", f"Ip: Forwarding\nIp: 1\n{tcp}Udp: InDatagrams RcvbufErrors\nUdp: 5 {full}\n")
        self.file("netstat", f"TcpExt: SyncookiesSent ListenDrops TCPBacklogDrop\nTcpExt: 0 {listen} 0\nIpExt: InOctets\nIpExt: 9\n")
        self.file("dev", TITLES + face("lo", 10**9) + face("eth0", moved, packets, drops))

    def file(self, name: str, text: str) -> None:
        self.tree.write(f"proc/{self.pid}/net/{name}", text)


@pytest.fixture
def node(agent, make_pod):
    """A service with process 71 and a batch pod with process 81, each with a network of its own."""
    a = agent(version=2, gates=GATE)
    pods = []
    for name, qos, pid in (("web", "Burstable", 71), ("miner", "BestEffort", 81)):
        directory = a.tree.container_dir(a.tree.pod_dir(qos, f"u-{name}"), f"{name}-main")
        a.tree.cgroup(directory)
        a.tree.write(a.tree.file("cpu", directory, "cgroup.procs"), f"{pid + 1}\n{pid}\n")
        pods.append(make_pod(name, f"u-{name}", qos=qos))
    a.list(*pods)
    return a, Wire(a.tree, 71), Wire(a.tree, 81)


def newest(a: Any, name: str, counter: str) -> float | None:
    return a.view.last(kinds.POD_NETWORK, pod_uid=f"u-{name}", network_counter=counter, within=30)


def test_shares_that_were_lost_and_bytes_a_second(node) -> None:
    a, web, miner = node
    web.put(sent=1000, again=5, packets=4000)
    miner.put(moved=10_000)
    a.tick(10)
    assert newest(a, "web", "retransmits") is None, "one reading is no rate"
    web.put(sent=1900, again=105, packets=5990, drops=4, full=5, listen=1)
    miner.put(moved=10_000 + 50_000_000)
    a.tick(10)
    assert newest(a, "web", "retransmits") == pytest.approx(10.0)
    assert newest(a, "web", "drops") == pytest.approx(0.5), "at the interface, in a full socket, and in a full backlog"
    assert newest(a, "miner", "bytes") == pytest.approx(5e6), "loopback burdens nobody"
    assert newest(a, "miner", "retransmits") == 0


def test_a_container_whose_processes_are_in_cgroups_of_its_own(node) -> None:
    """The outermost of them has the pod's network; containers in it may have others."""
    a, web, _ = node
    box = a.tree.container_dir(a.tree.pod_dir("Burstable", "u-web"), "web-main")
    for directory, pids in ((box, ""), (f"{box}/docker", ""), (f"{box}/docker/one", "5\n"), (f"{box}/init", "71\n")):
        a.tree.cgroup(directory)
        a.tree.write(a.tree.file("cpu", directory, "cgroup.procs"), pids)
    for sent in (0, 1000):
        web.put(sent=sent)
        a.tick(10)
    assert newest(a, "web", "retransmits") == 0


def test_a_new_network_starts_anew(node) -> None:
    a, web, _ = node
    web.put(sent=100_000, again=70)
    a.tick(10)
    web.put(sent=10, again=5)
    a.tick(10)
    assert newest(a, "web", "retransmits") is None
    web.put(sent=1010, again=5)
    a.tick(10)
    assert newest(a, "web", "retransmits") == 0


def test_no_descriptor_of_a_pods_network_is_kept(node) -> None:
    """A kept one would keep the network, its interfaces and addresses alive after the pod."""
    a, web, _ = node
    web.put()
    a.tick(10)
    assert not [p for p in map(os.readlink, _descriptors()) if "/net/" in p and str(a.tree.root) in p]


def _descriptors() -> list[str]:
    return [p for name in os.listdir("/proc/self/fd") if os.path.lexists(p := f"/proc/self/fd/{name}")]


def test_the_nodes_network_and_rubbish_are_left_out(agent, make_pod, node) -> None:
    a, web, miner = node
    web.put(sent=1)
    miner.put(moved=1)
    pods = [make_pod("web", "u-web"), make_pod("miner", "u-miner", qos="BestEffort")]
    pods[1]["spec"]["hostNetwork"] = True
    a.list(*pods)
    a.tick(10)
    web.file("snmp", "Tcp: OutSegs RetransSegs\nTcp: many 1\n")
    miner.put(moved=9_000_000)
    a.tick(10)
    assert newest(a, "web", "retransmits") is None
    assert newest(a, "miner", "bytes") is None
    web.put(sent=5)
    a.tick(10)
    web.put(sent=1005)
    a.tick(10)
    assert newest(a, "web", "retransmits") == 0, "it is read again when it can be"


def test_without_the_gate_nothing_is_read(agent, make_pod) -> None:
    a = agent(version=2)
    a.list(make_pod("web", "u-web"))
    a.tick(10)
    a.tick(10)
    assert a.view.query(kinds.POD_NETWORK, 60).values == []


@pytest.mark.parametrize("version", [1, 2])
def test_bytes_of_best_effort_pods_on_disks(agent, make_pod, version) -> None:
    a = agent(version=version, gates=GATE)
    pod = a.tree.pod_dir("BestEffort", "u-miner")
    box = a.tree.container_dir(pod, "miner-main")
    a.tree.cgroup(pod)
    a.tree.cgroup(box)
    path = a.tree.file("blkio", box if version == 1 else pod, "blkio.throttle.io_service_bytes" if version == 1 else "io.stat")
    a.list(make_pod("miner", "u-miner", qos="BestEffort"), make_pod("web", "u-web"))

    def moved(read: int, written: int) -> None:
        v1 = f"8:0 Read {read}\n8:0 Write {written}\n8:0 Total {read + written}\nTotal {read + written}\n"
        a.tree.write(path, v1 if version == 1 else f"8:0 rbytes={read} wbytes={written} rios=1 wios=1\n")

    moved(1000, 1000)
    a.tick(10)
    moved(1000 + 30_000_000, 1000 + 10_000_000)
    a.tick(10)
    assert a.view.last(kinds.POD_DISK, pod_uid="u-miner", within=30) == pytest.approx(4e6)
    assert a.view.keys(kinds.POD_DISK) == [("u-miner",)], "services are no suspects"


def test_bytes_of_sidecars_and_of_groups_that_a_container_made_count_too(agent, make_pod) -> None:
    """On cgroup v1 each group counts for itself."""
    a = agent(version=1, gates=GATE)
    pod = make_pod("miner", "u-miner", qos="BestEffort")
    proxy = {"name": "proxy", "restartPolicy": "Always"}
    pod["spec"]["initContainers"] = [proxy]
    pod["status"]["initContainerStatuses"] = [{"name": "proxy", "containerID": "containerd://proxy", "state": {"running": {}}}]
    top = a.tree.pod_dir("BestEffort", "u-miner")
    box, sidecar = a.tree.container_dir(top, "miner-main"), a.tree.container_dir(top, "proxy")
    a.list(pod)
    for moved in (1000, 1000 + 10_000_000):
        for group in (box, sidecar, f"{box}/docker"):
            a.tree.cgroup(group)
            a.tree.write(a.tree.file("blkio", group, "blkio.throttle.io_service_bytes"), f"8:0 Read {moved}\n8:0 Write 0\nTotal {moved}\n")
        a.tick(10)
    assert a.view.last(kinds.POD_DISK, pod_uid="u-miner", within=30) == pytest.approx(3e6)


def test_a_kernel_that_counts_nothing_gives_no_series(agent, make_pod) -> None:
    a = agent(version=1, gates=GATE)
    box = a.tree.container_dir(a.tree.pod_dir("BestEffort", "u-miner"), "miner-main")
    a.tree.cgroup(box)
    a.tree.write(a.tree.file("blkio", box, "blkio.throttle.io_service_bytes"), "Total 0\n")
    a.list(make_pod("miner", "u-miner", qos="BestEffort"))
    a.tick(10)
    a.tick(10)
    assert a.view.keys(kinds.POD_DISK) == []


class TestNumbers:
    def test_interfaces(self) -> None:
        text = TITLES + "    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n" + "eth0:10 2 0 3 0 0 0 0 20 4 0 5 0 0 0 0\n"
        assert net.interfaces("dev", text.encode()) == net.Interfaces(30, 8, 8)
        assert net.interfaces("dev", TITLES.encode()) == net.Interfaces(0, 0, 0)

    @pytest.mark.parametrize("line", ["eth0 1 2 3", "eth0: 1 2 3", "eth0: " + "1 " * 15 + "x"])
    def test_interfaces_that_are_none(self, line) -> None:
        with pytest.raises(ParseError, match="dev"):
            net.interfaces("dev", (TITLES + line).encode())

    def test_protocols(self) -> None:
        data = b"Tcp: A B\nTcp: 1 -1\nUdpLite: A\nUdpLite: 9\nUdp: A\nUdp: 3\n"
        assert net.protocol("snmp", data, "Tcp") == {"A": 1, "B": -1}
        assert net.protocol("snmp", data, "Udp") == {"A": 3}
        assert net.protocol("snmp", data, "TcpExt") == {}

    @pytest.mark.parametrize("data", [b"Tcp: A B\nTcp: 1\n", b"Tcp: A\n", b"Tcp: A\nTcp: x\n"])
    def test_protocols_that_are_none(self, data) -> None:
        with pytest.raises(ParseError, match="Tcp"):
            net.protocol("snmp", data, "Tcp")

    def test_few_packets_say_little(self) -> None:
        assert lost(1, 2) == 100 / LEAST_PACKETS
        assert lost(100, 900) == 10
        assert lost(0, 0) == 0

    def test_a_counter_that_went_back_is_no_difference(self) -> None:
        assert Counters(5, 0, 9, 0, 1).since(Counters(4, 0, 9, 0, 1)) == Counters(1, 0, 0, 0, 0)
        assert Counters(5, 0, 9, 0, 1).since(Counters(4, 1, 9, 0, 1)) is None


#: A service that does not come to read: its socket overflows.
DEAF = """
import fcntl, socket, struct, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(sock, 0x8914, struct.pack("16sh", b"lo", 0x49))
sock.bind(("127.0.0.1", 0))
sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.connect(sock.getsockname())
print("ready", flush=True)
sys.stdin.readline()
for _ in range(1000):
    out.send(b"x" * 1000)
print("sent", flush=True)
time.sleep(600)
"""


@pytest.mark.root
def test_a_service_that_does_not_read_in_a_real_network(agent, make_pod) -> None:
    """A process in a network namespace of its own; the kernel's files, the real reader."""
    a = agent(version=2, gates=GATE)
    box = a.tree.container_dir(a.tree.pod_dir("Burstable", "u-web"), "web-main")
    a.tree.cgroup(box)
    a.list(make_pod("web", "u-web"))
    machine = replace(a.host, root=a.host.root.with_dirs(proc="/proc"))
    collector = NetworkCollector(replace(a.context, host=machine))
    process = subprocess.Popen(["unshare", "--net", sys.executable, "-c", DEAF], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        a.tree.write(a.tree.file("cpu", box, "cgroup.procs"), f"{process.pid}\n")
        assert collector.run(Round(a.now, 100.0))
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "sent\n"
        a.files.begin_tick()
        a.now += 10
        assert collector.run(Round(a.now, 110.0))
        assert (newest(a, "web", "drops") or 0) > 30, "most of a thousand packets found the socket full"
        assert newest(a, "web", "bytes") == 0
        assert f"/proc/{process.pid}/net/dev" not in map(os.readlink, _descriptors())
    finally:
        process.kill()
        process.communicate()
