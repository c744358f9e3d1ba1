"""One hook's mistake, or one pod's nonsense, leaves everything else in force (KA-RH-03)."""

from __future__ import annotations

from typing import Any

import pytest

from koord.config.gates import KOORDLET
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.hooks.context import Answer, ContainerContext, PodContext
from roles.koordlet.hooks.hook import Hook
from roles.koordlet.hooks.registry import HOOKS


class Broken(Hook[None]):
    """Fails wherever it is asked, as no hook should."""

    name = "Aaa"
    walks_always = True

    def learn(self, snapshot: Any, rule: None) -> None:
        raise KeyError("learn")

    def pod(self, pod: PodContext, rule: None) -> Answer | None:
        raise TypeError(f"pod {pod.name}")

    def container(self, container: ContainerContext, rule: None) -> Answer | None:
        raise IndexError("container")

    def walk(self, snapshot: Any, rule: None, pods: Any) -> Any:
        yield from ()
        raise AttributeError("walk")


@pytest.mark.feature("KA-RH-03")
def test_other_hooks_go_on(hooked, caplog) -> None:
    node = hooked("BatchResource")
    node.asking.hooks = (Broken(None, lambda _: True), *node.asking.hooks)  # type: ignore[arg-type]
    resources = {"kubernetes.io/batch-cpu": "500"}
    pod = node.world.pod("b", qos="BE", kube_qos="BestEffort", limits=resources)
    node.files("cpu.cfs_quota_us", "-1", pod.cgroup_dir, pod.containers[0].cgroup_dir)
    node.run()
    node.run()
    assert node.machine.get("cpu.cfs_quota_us", pod.cgroup_dir) == "50000"
    texts = [r.message for r in caplog.records if "hook Aaa" in r.message]
    assert sorted(texts) == sorted(set(texts)), "each is told once"
    assert {t.rsplit(": ", 1)[-1] for t in texts} == {"'learn'", "pod b", "container", "walk"}


@pytest.mark.feature("KA-RH-03")
def test_observing_writes_nothing_and_says_what_it_would(hooked) -> None:
    node = hooked("BatchResource")
    node.reconciler.modes = lambda _: Mode.OBSERVE
    pod = node.world.pod("b", qos="BE", kube_qos="BestEffort", limits={"kubernetes.io/batch-cpu": "500"})
    node.files("cpu.cfs_quota_us", "-1", pod.cgroup_dir)
    done = node.run()
    assert (done.written, done.would > 0) == (0, True)
    assert node.machine.get("cpu.cfs_quota_us", pod.cgroup_dir) == "-1"
    assert {r.verdict for r in node.records} == {"WouldWrite"}


@pytest.mark.feature("KA-RH-01")
def test_every_hook_has_a_gate_and_they_are_in_order() -> None:
    names = [hook.name for hook in HOOKS]
    assert names == sorted(names)
    assert set(names) <= set(KOORDLET)
    assert set(names) == {
        "BatchResource", "CPUNormalization", "CPUSetAllocator", "CoreSched", "GPUEnvInject", "GroupIdentity", "OOMScoreAdj",
        "RDMADeviceInject", "Resctrl", "TCNetworkQoS", "TerwayQoS",
    }  # fmt: skip
