"""GroupIdentity: NodeSLO and pods in, cpu.bvt_warp_ns out (KA-HK-01, KA-HST-01)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import Trouble, WriteError

BVT = "cpu.bvt_warp_ns"
LS_BE = {"lsClass": {"cpuQOS": {"enable": True}}, "beClass": {"cpuQOS": {"enable": True}}}
OWN = "koordinator.sh/cpuQOS"


def spec(**strategy: Any) -> dict[str, Any]:
    return {"resourceQOSStrategy": strategy}


@pytest.fixture
def node(hooked) -> Any:
    made = hooked("GroupIdentity")
    made.qos = {q: made.machine.host.cgroups.qos_dir(q) for q in ("Guaranteed", "Burstable", "BestEffort")}
    made.files(BVT, "0", *made.qos.values())
    return made


def pod(node: Any, name: str, value: str = "0", **options: Any) -> Any:
    made = node.world.pod(name, **options)
    node.files(BVT, value, made.cgroup_dir, *(c.cgroup_dir for c in made.containers))
    return made


def bvt(node: Any, made: Any) -> str:
    return str(node.machine.get(BVT, made if isinstance(made, str) else made.cgroup_dir))


@pytest.mark.feature("KA-HK-01")
class TestValues:
    def test_by_class_annotation_and_kubernetes_qos(self, node) -> None:
        node.world.spec = spec(**LS_BE)
        wanted = [
            (pod(node, "ls", qos="LS"), "2"),
            (pod(node, "down", qos="LS", annotations={OWN: '{"enable":true,"groupIdentity":-1}'}), "-1"),
            (pod(node, "plain", qos="LS", annotations={OWN: '{"enable":true}'}), "2"),
            (pod(node, "off", qos="LS", annotations={OWN: '{"groupIdentity":1}'}), "0"),
            (pod(node, "be", qos="BE", kube_qos="BestEffort", annotations={OWN: '{"enable":true,"groupIdentity":2}'}), "-1"),
            (pod(node, "lsr", qos="LSR", kube_qos="Guaranteed"), "0"),
            (pod(node, "guaranteed", kube_qos="Guaranteed"), "2"),
            (pod(node, "burstable"), "2"),
            (pod(node, "besteffort", kube_qos="BestEffort"), "-1"),
            (pod(node, "system", qos="SYSTEM"), "2"),
            (pod(node, "wrong", "1", qos="LS", annotations={OWN: '{"enable":true,"groupIdentity":3}'}), "1"),
            (pod(node, "broken", "1", qos="LS", annotations={OWN: "{"}), "1"),
        ]
        node.run()
        assert {p.name: bvt(node, p) for p, _ in wanted} == {p.name: value for p, value in wanted}
        assert [bvt(node, d) for d in node.qos.values()] == ["0", "2", "-1"]

    def test_guaranteed_follows_lsr_when_it_is_on(self, node) -> None:
        node.world.spec = spec(lsrClass={"cpuQOS": {"enable": True, "groupIdentity": 1}}, **LS_BE)
        made = pod(node, "g", kube_qos="Guaranteed")
        exclusive = pod(node, "lse", qos="LSE", kube_qos="Guaranteed")
        node.run()
        assert (bvt(node, made), bvt(node, exclusive)) == ("1", "1")

    def test_containers_and_strangers_when_the_rule_changes(self, node) -> None:
        made = pod(node, "be", qos="BE", kube_qos="BestEffort")
        stranger = f"{node.qos['BestEffort']}/kubepods-besteffort-podabc.slice"
        node.files(BVT, "0", stranger, f"{stranger}/inner", f"{node.qos['BestEffort']}/no-pod")
        node.world.spec = spec(**LS_BE)
        node.run()
        found = [bvt(node, d) for d in (made.containers[0].cgroup_dir, stranger, f"{stranger}/inner", f"{node.qos['BestEffort']}/no-pod")]
        assert found == ["-1", "-1", "-1", "0"]

    def test_another_policy_makes_everything_neutral(self, node) -> None:
        made = pod(node, "ls", qos="LS")
        node.world.spec = spec(**LS_BE)
        node.run()
        node.world.spec = spec(policies={"cpuPolicy": "coreSched"}, **LS_BE)
        node.run()
        assert [bvt(node, d) for d in (made, *node.qos.values())] == ["0"] * 4

    @pytest.mark.feature("BEY-JRN-01")
    def test_what_others_set_after_it_was_switched_off_stays(self, node) -> None:
        made = pod(node, "be", qos="BE", kube_qos="BestEffort")
        box = made.containers[0].cgroup_dir
        for _ in range(2):
            node.world.spec = spec(**LS_BE)
            node.run()
            inherits = pod(node, "inherits", "-1", qos="BE", kube_qos="BestEffort")
            groups = (made, box, inherits, inherits.containers[0].cgroup_dir, node.qos["BestEffort"])
            node.run()
            assert {bvt(node, group) for group in groups} == {"-1"}
            node.world.spec = {}
            node.run()
            assert {bvt(node, group) for group in groups} == {"0"}, "and what was made in a group that was changed"
            node.world.pods.remove(inherits)
        later = pod(node, "later", qos="BE", kube_qos="BestEffort")
        groups = (made, box, later, node.qos["BestEffort"])
        for group in groups:
            node.files(BVT, "1", group if isinstance(group, str) else group.cgroup_dir)
        for _ in range(3):
            node.machine.now += 61
            node.run()
        assert {bvt(node, group) for group in groups} == {"1"}

    def test_what_others_set_stays_while_it_is_off(self, node) -> None:
        made = pod(node, "ls", "1", qos="LS")
        other = pod(node, "be", "-1", qos="BE", kube_qos="BestEffort")
        node.run()
        assert (bvt(node, made), bvt(node, other)) == ("1", "-1")


@pytest.mark.feature("KA-HK-01")
class TestSwitches:
    def test_set_when_a_class_is_on(self, node) -> None:
        identity = node.machine.file("proc/sys/kernel/sched_group_identity_enabled", "0\n")
        core = node.machine.file("proc/sys/kernel/sched_core", "1\n")
        made = pod(node, "ls", "1", qos="LS")
        node.run()
        assert (identity.read_text(), core.read_text(), bvt(node, made)) == ("0\n", "1\n", "1"), "off and off: nothing is touched"
        node.world.spec = spec(**LS_BE)
        node.run()
        assert (identity.read_text(), core.read_text(), bvt(node, made)) == ("1", "0", "2")
        node.world.spec = spec()
        node.run()
        assert bvt(node, made) == "0", "it was on: neutral values are written"

    def test_nothing_is_written_when_a_switch_fails(self, node) -> None:
        made = pod(node, "ls", qos="LS")
        core = node.machine.base / "proc/sys/kernel/sched_core"
        core.mkdir(parents=True)
        node.machine.file("proc/sys/kernel/sched_group_identity_enabled", "x\n")
        node.world.spec = spec(**LS_BE)
        node.run()
        assert bvt(node, made) == "2", "a directory in place of the switch is no switch"

    @pytest.mark.feature("KA-RH-03")
    @pytest.mark.parametrize("trouble", ["switch", "journal"])
    def test_containers_follow_although_the_first_pass_failed(self, node, monkeypatch, trouble) -> None:
        """A kernel that is busy for a moment, a disk that is full for a moment."""
        node.machine.file("proc/sys/kernel/sched_core", "1\n")
        made = pod(node, "be", qos="BE", kube_qos="BestEffort")
        node.world.spec = spec(**LS_BE)

        def busy(path: str, text: str) -> None:
            raise WriteError(Trouble.BUSY, path, "is refused")

        with monkeypatch.context() as failing:
            if trouble == "switch":
                failing.setattr(kernel, "write", busy)
            else:
                failing.setattr(node.machine.journal, "remember", lambda *args, **options: False)
            snapshot = node.world.snapshot()
            assert asyncio.run(node.reconciler.run(snapshot, node.asking.learn(snapshot))).failed > 0
        assert node.run().written > 0
        assert [bvt(node, d) for d in (node.qos["BestEffort"], made, made.containers[0].cgroup_dir)] == ["-1"] * 3
        node.files(BVT, "1", made.containers[0].cgroup_dir)
        node.machine.now += 1000
        node.run()
        assert bvt(node, made.containers[0].cgroup_dir) == "1", "what others set afterwards stays"

    def test_kernels_without(self, hooked) -> None:
        bare = hooked("GroupIdentity")
        bare.world.spec = spec(**LS_BE)
        bare.world.pod("ls", qos="LS")
        assert bare.run().written == 0


@pytest.mark.feature("KA-HST-01")
def test_host_applications(node) -> None:
    apps = [{"name": n, "qos": q} for n, q in (("nginx", "LS"), ("yarn", "BE"), ("other", ""))]
    node.world.spec = {**spec(**LS_BE), "hostApplications": apps}
    directories = ("host-latency-sensitive/nginx", "host-best-effort/yarn", "other")
    node.files(BVT, "1", *directories)
    node.run()
    assert [bvt(node, d) for d in directories] == ["2", "-1", "0"]
