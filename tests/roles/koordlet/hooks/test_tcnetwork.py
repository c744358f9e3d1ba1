"""TCNetworkQoS: NodeSLO and pods in, traffic control and net_cls out (KA-HK-09). tc is real, in a network namespace of its own."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.api.objects_pod import PodIP
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.hooks.network import Bandwidth, NetworkRule
from roles.koordlet.hooks.tcapply import AGAIN, CommandError, Commands, NetworkApplier, Result, run_command
from roles.koordlet.hooks.tcnetwork import OnRecord, default_device
from roles.koordlet.hooks.tcplan import class_rates, minors
from tests.support import patience

ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eth9\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "lo\t00000000\t0101A8C0\t0003\t0\t0\t10\t00000000\t0\t0\t0\n"
    "eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
)
LIMITS = {"koordinator.sh/networkQOS": '{"egressLimit":"80M"}'}


def spec(policy: str = "tc", total: str = "8G") -> dict[str, Any]:
    ls = {"networkQOS": {"enable": True, "egressRequest": 30, "egressLimit": 50}}
    be = {"networkQOS": {"enable": True, "egressRequest": 10}}
    strategy = {"policies": {"netQOSPolicy": policy}, "lsClass": ls, "beClass": be}
    return {"systemStrategy": {"totalNetworkBandwidth": total}, "resourceQOSStrategy": strategy}


class Tools:
    """ipset and iptables in memory; tc as a list of what was run, or the real one in a namespace."""

    def __init__(self, namespace: int = 0) -> None:
        self.namespace = namespace
        self.sets: dict[str, set[str]] = {}
        self.rules: list[tuple[str, ...]] = []
        self.ran: list[str] = []
        self.failing = ""

    async def __call__(self, command: tuple[str, ...]) -> Result:
        self.ran.append(" ".join(command))
        if self.failing and self.failing in self.ran[-1]:
            return Result(2, "", "RTNETLINK answers: no")
        if command[0] == "tc":
            if not self.namespace:
                return Result(0, "", "")
            return await run_command(("nsenter", "-t", str(self.namespace), "-n", *command))
        return self.ipset(*command[1:]) if command[0] == "ipset" else self.iptables(command)

    def ipset(self, action: str, *rest: str) -> Result:
        name = rest[-1] if action == "list" else rest[0]
        if action == "create":
            self.sets.setdefault(name, set())
        elif name not in self.sets:
            return Result(1, "", "The set with the given name does not exist")
        elif action in {"add", "del"}:
            (self.sets[name].add if action == "add" else self.sets[name].discard)(rest[1])
        elif action == "destroy":
            del self.sets[name]
        return Result(0, "".join(f"add {name} {a}\n" for a in sorted(self.sets.get(name, ()))), "")

    def iptables(self, command: tuple[str, ...]) -> Result:
        action, rule = command[4], command[6:]
        if action == "-A":
            self.rules.append(rule)
        elif rule not in self.rules:
            return Result(1, "", "No chain/target/match by that name.")
        elif action == "-D":
            self.rules.remove(rule)
        return Result(0, "", "")


class Remembered:
    """A record that ends with the process."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        return dict(self.known)

    def add(self, device: str, qdisc: str) -> bool:
        self.known.setdefault(device, qdisc)
        return True

    def drop(self, device: str) -> None:
        del self.known[device]


class Network:
    def __init__(self, node: Any, tools: Tools) -> None:
        self.node, self.tools = node, tools
        (self.hook,) = node.asking.hooks
        self.hook._applier = NetworkApplier(tools, Remembered())
        node.machine.file("proc/net/route", ROUTES)
        node.files("net_cls.classid", "0", "kubepods.slice")

    def pod(self, name: str, address: str = "", *, host: bool = False, **options: Any) -> Any:
        state = self.node.world.pod(name, **options)
        self.node.world.pods.pop()
        pod = msgspec.structs.replace(
            state.pod,
            spec=msgspec.structs.replace(state.pod.spec, host_network=host),
            status=msgspec.structs.replace(state.pod.status, pod_ip=address),
        )
        from dataclasses import replace

        made = replace(state, pod=pod)
        self.node.world.pods.append(made)
        self.node.files("net_cls.classid", "0", made.cgroup_dir)
        return made

    def run(self) -> None:
        async def main() -> None:
            snapshot = self.node.world.snapshot()
            await self.node.reconciler.run(snapshot, self.node.asking.learn(snapshot))
            await self.hook._applier.settled()

        asyncio.run(main())

    def classid(self, pod: Any) -> int:
        return int(self.node.machine.get("net_cls.classid", pod.cgroup_dir))


@pytest.fixture
def network(hooked) -> Network:
    return Network(hooked("TCNetworkQoS"), Tools())


@pytest.mark.feature("KA-HK-09")
def test_classes_sets_and_class_ids(network) -> None:
    network.node.world.spec = spec()
    pods = [
        network.pod("system", "10.0.0.1", qos="SYSTEM"),
        network.pod("ls", "10.0.0.2", qos="LS"),
        network.pod("lse", "10.0.0.3", qos="LSE"),
        network.pod("be", "10.0.0.4", qos="BE", kube_qos="BestEffort"),
        network.pod("none", "10.0.0.5"),
        network.pod("host", "10.0.0.9", host=True, qos="LS"),
        network.pod("own", "10.0.0.6", qos="LS", annotations=LIMITS),
    ]
    network.run()
    own = minors([pods[-1].uid])[pods[-1].uid]
    assert [network.classid(p) for p in pods] == [0x10002, 0x10003, 0x10003, 0x10004, 0, 0x10003, 0x10000 + own]
    assert network.tools.sets == {
        "system_class": {"10.0.0.1"},
        "ls_class": {"10.0.0.2", "10.0.0.3"},
        "be_class": {"10.0.0.4"},
    }
    assert len(network.tools.rules) == 3
    assert network.tools.rules[0][-2:] == ("--set-class", "1:2")
    ran = "\n".join(network.tools.ran)
    for text in (
        "tc qdisc replace dev lo root handle 1: htb default 2",
        "classid 1:1 htb rate 1000000000bps burst 1000000b ceil 1000000000bps cburst 1000000b prio 0",
        "classid 1:2 htb rate 600000000bps burst 600000b ceil 1000000000bps cburst 1000000b prio 1",
        "classid 1:3 htb rate 300000000bps burst 300000b ceil 500000000bps cburst 500000b prio 2",
        "classid 1:4 htb rate 100000000bps burst 100000b ceil 100000000bps cburst 100000b prio 3",
        f"classid 1:{own:x} htb rate 10000000bps burst 10000b ceil 10000000bps",
        "match ip src 10.0.0.6/32",
    ):
        assert text in ran
    count = len(network.tools.ran)
    network.run()
    assert len(network.tools.ran) == count, "what stands is left alone"
    network.tools.sets["ls_class"].add("1.2.3.4")
    network.node.world.pods.pop(1)
    network.run()
    assert network.tools.sets["ls_class"] == {"10.0.0.3"}


@pytest.mark.feature("KA-HK-09")
def test_containers_that_are_older_than_the_policy_are_classified(network) -> None:
    """net_cls counts for the processes of its very group, and a group copies it only when it is made."""
    pod = network.pod("host", host=True, qos="LS")
    sandbox = f"{pod.cgroup_dir}/cri-containerd-pause.scope"
    inner = (pod.containers[0].cgroup_dir, sandbox)
    for directory in inner:
        network.node.files("net_cls.classid", "0", directory)
        network.node.files("cpuset.cpus", "0", directory)

    def classids() -> list[int]:
        network.run()
        return [int(network.node.machine.get("net_cls.classid", directory)) for directory in inner]

    network.node.world.spec = spec()
    assert classids() == [0x10003] * 2
    network.node.world.pods[:] = [replace(pod, annotations=LIMITS)]
    assert classids() == [0x10000 + minors([pod.uid])[pod.uid]] * 2


@pytest.mark.feature("KA-HK-09")
def test_pods_whose_first_address_is_ipv6(network) -> None:
    network.node.world.spec = spec()
    state = network.pod("be", "fd00::4", qos="BE", kube_qos="BestEffort")
    status = msgspec.structs.replace(state.pod.status, pod_ips=(PodIP("fd00::4"), PodIP("10.0.0.4")))
    network.node.world.pods[-1] = replace(state, pod=msgspec.structs.replace(state.pod, status=status))
    network.pod("only", "fd00::5", qos="LS")
    network.run()
    assert (network.tools.sets["be_class"], network.tools.sets["ls_class"]) == ({"10.0.0.4"}, set())


@pytest.mark.feature("KA-HK-09")
def test_failures_are_told_once_and_tried_again(network, caplog) -> None:
    network.node.world.spec = spec()
    network.pod("ls", "10.0.0.2", qos="LS")
    network.tools.failing = "ipset create"
    network.run()
    network.run()
    assert [r.message for r in caplog.records if "ipset create" in r.message] == [
        "network QoS: ipset create system_class hash:ip -exist: RTNETLINK answers: no"
    ]
    network.tools.failing = ""
    network.run()
    assert network.tools.sets["ls_class"] == {"10.0.0.2"}


@pytest.mark.feature("KA-HK-09")
def test_without_bandwidth_or_route_nothing_is_set_up(network, caplog) -> None:
    network.node.world.spec = spec(total="0")
    pod = network.pod("ls", "10.0.0.2", qos="LS")
    network.run()
    assert not [c for c in network.tools.ran if "replace" in c or "create" in c]
    assert network.classid(pod) == 0
    (network.node.machine.base / "proc/net/route").write_text(ROUTES.splitlines()[0])
    network.run()
    assert "no IPv4 default route" in caplog.text


@pytest.mark.feature("KA-HK-09")
def test_programs_that_are_missing_or_hang(monkeypatch) -> None:
    monkeypatch.setattr("roles.koordlet.hooks.tcapply.TIMEOUT", 0.1)

    async def main() -> None:
        with pytest.raises(CommandError, match="it is needed for network QoS"):
            await run_command(("koord-no-such-program",))
        with pytest.raises(CommandError, match=r"did not end within 0\.1 s"):
            await run_command(("sleep", "5"))

    asyncio.run(main())


@pytest.fixture
def namespace() -> Iterator[int]:
    tools = [name for name in ("tc", "unshare", "nsenter") if shutil.which(name) is None]
    if os.geteuid() != 0 or tools:
        pytest.skip(f"needs root and {', '.join(tools) or 'tc'}")
    process = subprocess.Popen(["unshare", "-n", "sleep", "60"])
    try:
        own = os.readlink("/proc/self/ns/net")
        for _ in patience.tries(200):
            if os.readlink(f"/proc/{process.pid}/ns/net") != own:
                break
            import time

            time.sleep(0.01)
        else:
            pytest.skip("network namespaces cannot be made here")
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.root
@pytest.mark.feature("KA-HK-09")
def test_the_running_kernel(hooked, namespace) -> None:
    def tc(*arguments: str) -> str:
        return subprocess.run(["nsenter", "-t", str(namespace), "-n", "tc", *arguments], check=True, capture_output=True, text=True).stdout

    network = Network(hooked("TCNetworkQoS"), Tools(namespace))
    network.node.world.spec = spec()
    pod = network.pod("own", "10.0.0.6", qos="LS", annotations=LIMITS)
    other = network.pod("other", "10.0.0.7", qos="LS", annotations=LIMITS)
    network.run()
    network.pod("late", "10.0.0.8", qos="LS")
    network.run()
    shown = tc("class", "show", "dev", "lo")
    rates = dict(re.findall(r"class htb (1:\w+) .*?rate (\w+) ceil", shown))
    number = {p.uid: f"1:{m:x}" for p in (pod, other) for m in [minors([pod.uid, other.uid])[p.uid]]}
    wanted = {"1:1": "8Gbit", "1:2": "4800Mbit", "1:3": "2400Mbit", "1:4": "800Mbit"}
    assert rates == {**wanted, number[pod.uid]: "80Mbit", number[other.uid]: "80Mbit"}, shown
    assert tc("filter", "show", "dev", "lo").count("match 0a000006/ffffffff") == 1
    network.node.world.pods.remove(pod)
    pod = network.pod("own", "10.0.0.77", qos="LS", annotations=LIMITS)
    network.run()
    shown = tc("filter", "show", "dev", "lo")
    assert ("match 0a00004d/ffffffff" in shown, "match 0a000006/ffffffff" in shown) == (True, False), "the address is another one"
    network.node.world.pods.remove(other)
    network.run()
    assert number[other.uid] not in tc("class", "show", "dev", "lo")
    network.node.world.spec = spec("terway-qos")
    network.run()
    assert "htb" not in tc("qdisc", "show", "dev", "lo")
    assert (network.tools.sets, network.tools.rules) == ({}, [])


@pytest.mark.root
@pytest.mark.feature("KA-HK-09")
def test_a_pod_with_the_address_of_one_that_ended_is_limited_at_once(hooked, namespace) -> None:
    network = Network(hooked("TCNetworkQoS"), Tools(namespace))
    network.node.world.spec = spec()
    gone = network.pod("gone", "10.0.0.6", qos="LS", annotations=LIMITS)
    network.run()
    network.node.world.pods.remove(gone)
    heir = network.pod("heir", "10.0.0.6", qos="LS", annotations=LIMITS)
    network.run()
    shown = asyncio.run(network.tools(("tc", "filter", "show", "dev", "lo", "parent", "1:"))).output
    flows = re.findall(r"flowid (1:\w+)[^\n]*\n\s+match 0a000006/ffffffff", shown)
    assert flows == [f"1:{minors([heir.uid])[heir.uid]:x}"], shown


@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.parametrize(("before", "after"), [("qdisc fq 8005: root refcnt 2", "fq"), ("qdisc noqueue 0: root refcnt 2", "")])
@pytest.mark.parametrize("default", ["0x2", "2 direct_packets_stat 0"], ids=["iproute2 5", "iproute2 4"])
def test_the_root_qdisc_is_on_record_before_it_is_replaced_and_given_back(hooked, before: str, after: str, default: str) -> None:
    from roles.koordlet.actuation.restore import restore

    node = hooked("TCNetworkQoS")
    network = Network(node, Tools())
    device = default_device(node.world.snapshot())
    node.machine.file(f"sys/class/net/{device}/operstate", "up")
    shown, ran = [before], []

    async def tools(command: tuple[str, ...]) -> Result:
        ran.append(" ".join(command))
        if command[:3] == ("tc", "qdisc", "show"):
            return Result(0, shown[0], "")
        if command[:2] == ("tc", "qdisc") and "htb" in command:
            assert '"undo":"network"' in Path(node.machine.journal.path).read_text(), "first on record"
            shown[0] = f"qdisc htb 1: root refcnt 2 r2q 10 default {default}"
        if command[:3] == ("tc", "qdisc", "del"):
            shown[0] = "qdisc noqueue 0: root"
        return Result(0, "", "")

    network.hook.keep_record(node.machine.executor)
    network.hook._applier = NetworkApplier(tools, OnRecord(network.hook, node.machine.root.sys))
    node.world.spec = spec()
    network.run()
    assert shown[0].startswith("qdisc htb")
    node.machine.journal.close()
    ran.clear()
    result = restore(
        node.machine.root, lambda name, was: asyncio.run(Commands(tools).undo(name, was)) or ("" if name == device else "which?")
    )
    assert (result.failed, len(result.restored) >= 1) == ([], True)
    assert f"tc qdisc del dev {device} root" in ran
    replaced = [f"tc qdisc replace dev {device} root handle 8005: fq"] if after else []
    assert [command for command in ran if "qdisc replace" in command] == replaced


@pytest.mark.feature("KA-HK-09")
def test_a_nic_that_the_default_route_has_left_is_not_shaped_any_more(hooked) -> None:
    node = hooked("TCNetworkQoS")
    network = Network(node, Tools())
    shown = {"eth9": "qdisc fq 8005: root refcnt 2", "eth1": "qdisc noqueue 0: root"}

    async def tools(command: tuple[str, ...]) -> Result:
        if command[0] != "tc":
            return await network.tools(command)
        device = command[command.index("dev") + 1]
        if device not in shown:
            return Result(1, "", f'Cannot find device "{device}"')
        if command[1:3] == ("qdisc", "del") and refusals:
            return Result(2, "", refusals.pop())
        if command[1:3] == ("qdisc", "show"):
            return Result(0, shown[device], "")
        if command[1:3] == ("qdisc", "del"):
            shown[device] = "qdisc noqueue 0: root"
        elif command[1] == "qdisc":
            htb = "htb" in command
            shown[device] = "qdisc htb 1: root refcnt 2 r2q 10 default 0x2" if htb else f"qdisc {command[-1]} {command[-2]} root"
        return Result(0, "", "")

    async def main() -> None:
        for device in ("eth9", "eth1", "eth1", "eth9"):
            node.machine.file("proc/net/route", ROUTES.replace("lo\t00000000", f"{device}\t00000000"))
            snapshot = node.world.snapshot()
            await node.reconciler.run(snapshot, node.asking.learn(snapshot))
            await network.hook._applier.settled()
            seen.append({name: text.split()[1] for name, text in shown.items()})
            clock[0] += AGAIN
            if len(seen) == 3:
                del shown["eth1"]  # unplugged
            assert len(network.tools.sets) == 3
            assert len(network.tools.rules) == 3

    seen: list[dict[str, str]] = []
    refusals, clock = ["RTNETLINK answers: Device or resource busy"], [0.0]
    network.hook._applier = NetworkApplier(tools, Remembered(), clock=lambda: clock[0])
    node.world.spec = spec()
    asyncio.run(main())
    assert seen == [
        {"eth9": "htb", "eth1": "noqueue"}, {"eth9": "htb", "eth1": "htb"}, {"eth9": "fq", "eth1": "htb"}, {"eth9": "htb"}
    ]  # fmt: skip


class Qdiscs(Tools):
    """tc in memory: the root qdiscs of NICs."""

    def __init__(self, **shown: str) -> None:
        super().__init__()
        self.shown = {device: f"qdisc {what} root refcnt 2" for device, what in shown.items()}

    async def __call__(self, command: tuple[str, ...]) -> Result:
        done = await super().__call__(command)
        if command[:2] != ("tc", "qdisc"):
            return done
        device = command[command.index("dev") + 1]
        if command[2] == "show":
            return Result(0, self.shown[device], "")
        if command[2] == "del":
            self.shown[device] = "qdisc noqueue 0: root refcnt 2"
        else:
            made = "htb 1: root r2q 10 default 0x2" if "htb" in command else f"{command[-1]} {command[-2]} root refcnt 2"
            self.shown[device] = f"qdisc {made}"
        return done


def restarted(network: Network) -> None:
    """Another life of the agent: of the one before it knows what is on disk."""
    machine = network.node.machine
    journal = Journal(machine.journal.path, machine.root)
    journal.open()
    machine.journal, machine.executor = journal, Executor(machine.host, journal)
    network.hook._applier = NetworkApplier(network.tools, OnRecord(network.hook, machine.root.sys))
    network.hook.keep_record(machine.executor)


def on_record(network: Network) -> list[str]:
    return [entry.value.split()[1] for entry in network.node.machine.journal if entry.undo is Undo.NETWORK]


@pytest.mark.feature("KA-HK-09")
@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.parametrize("restarts", [(), ("shaped",), ("off",)], ids=["one life", "restarted while shaped", "switched off in between"])
def test_the_policy_that_is_switched_off_gives_the_root_qdisc_back(hooked, restarts) -> None:
    network = Network(hooked("TCNetworkQoS"), Qdiscs(lo="fq 8005:"))
    network.node.machine.file("sys/class/net/lo/operstate", "up")
    restarted(network)
    network.node.world.spec = spec()
    network.run()
    assert "htb" in network.tools.shown["lo"]
    assert on_record(network) == ["fq"]
    if "shaped" in restarts:
        restarted(network)
        network.run()
    network.node.world.spec = spec(policy="terway-qos")
    if "off" in restarts:
        restarted(network)
    network.run()
    assert network.tools.shown["lo"].startswith("qdisc fq 8005: root")
    assert on_record(network) == []

    network.tools.shown["lo"] = "qdisc cake 8006: root refcnt 2"
    for policy, shown in (("tc", "htb"), ("terway-qos", "cake")):
        network.node.world.spec = spec(policy)
        network.run()
        assert network.tools.shown["lo"].split()[1] == shown, "what was there the first time is forgotten"


@pytest.mark.feature("KA-HK-09")
def test_a_root_qdisc_that_others_chose_since_stays(hooked) -> None:
    network = Network(hooked("TCNetworkQoS"), Qdiscs(lo="fq 8005:"))
    network.node.machine.file("sys/class/net/lo/operstate", "up")
    restarted(network)
    network.node.world.spec = spec()
    network.run()
    network.tools.shown["lo"] = "qdisc cake 8006: root refcnt 2"
    restarted(network)
    for policy, shown, recorded in (("tc", "htb", ["cake"]), ("terway-qos", "cake", [])):
        network.node.world.spec = spec(policy)
        network.run()
        assert (network.tools.shown["lo"].split()[1], on_record(network)) == (shown, recorded)

    network.node.world.spec = spec()
    network.run()
    network.tools.shown["lo"] = "qdisc fq 8007: root refcnt 2"
    network.node.world.spec = spec("terway-qos")
    network.run()
    assert (network.tools.shown["lo"].split()[1:3], on_record(network)) == (["fq", "8007:"], [])


@pytest.mark.feature("KA-HK-09")
def test_a_nic_that_the_default_route_left_while_the_agent_was_down_is_given_back(hooked) -> None:
    network = Network(hooked("TCNetworkQoS"), Qdiscs(lo="fq 8005:", eth9="noqueue 0:"))
    for device in ("lo", "eth9"):
        network.node.machine.file(f"sys/class/net/{device}/operstate", "up")
    restarted(network)
    network.node.world.spec = spec()
    network.run()
    network.node.machine.file("proc/net/route", ROUTES.replace("lo\t00000000", "lo\t0001A8C0"))
    restarted(network)
    network.run()
    assert {device: shown.split()[1] for device, shown in network.tools.shown.items()} == {"lo": "fq", "eth9": "htb"}
    assert on_record(network) == ["noqueue"]


@pytest.mark.root
@pytest.mark.feature("KA-HK-09")
def test_the_running_kernel_has_its_root_qdisc_back(hooked, namespace) -> None:
    def tc(*arguments: str) -> str:
        return subprocess.run(["nsenter", "-t", str(namespace), "-n", "tc", *arguments], check=True, capture_output=True, text=True).stdout

    network = Network(hooked("TCNetworkQoS"), Tools(namespace))
    network.node.machine.file("sys/class/net/lo/operstate", "up")
    restarted(network)
    tc("qdisc", "replace", "dev", "lo", "root", "handle", "8005:", "pfifo")
    for policy, shown in (("tc", "qdisc htb 1: root"), ("terway-qos", "qdisc pfifo 8005: root")):
        network.node.world.spec = spec(policy)
        restarted(network)
        network.run()
        assert shown in tc("qdisc", "show", "dev", "lo")


def test_a_class_without_limits_may_use_the_whole_bandwidth() -> None:
    """Its pods are in it though nobody limits it; a ceiling of its rate would be one byte a second."""
    rates = {name: (rate, ceil) for name, rate, ceil in class_rates(NetworkRule(active=True, total=1_000, be=Bandwidth(tx_min=100)))}
    assert rates == {"system": (900, 1_000), "ls": (1, 1_000), "be": (100, 100)}
