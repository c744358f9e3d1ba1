"""CPUSetAllocator and CPUNormalization: topology and allocations in, cpuset and quota out (KA-HK-02, KA-HK-04)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koord.api.objects import Pod
from koord.api.objects_meta import decoder
from roles.koordlet.actuation.restore import restore
from roles.koordlet.host.topology import parse_cpu_list
from roles.koordlet.states.pods import pod_state
from tests.support.processes import ROOT

POOLS = [{"socket": 0, "node": 0, "cpuset": "0-5"}, {"socket": 1, "node": 1, "cpuset": "8-15"}]
BE_POOLS = [{"socket": 0, "node": 0, "cpuset": "0-7"}, {"socket": 1, "node": 1, "cpuset": "8-15"}]
BATCH = {"kubernetes.io/batch-cpu": "2000"}
RATIO = "node.koordinator.sh/cpu-normalization-ratio"
BE_LEVEL = "kubepods.slice/kubepods-besteffort.slice"


def nrt(policy: str = "none", **more: str) -> dict[str, str]:
    return {
        "node.koordinator.sh/cpu-shared-pools": json.dumps(POOLS),
        "node.koordinator.sh/be-cpu-shared-pools": json.dumps(BE_POOLS),
        "kubelet.koordinator.sh/cpu-manager-policy": json.dumps({"policy": policy}),
        **more,
    }


def allocated(cpus: str = "", *nodes: int, resource: str = "cpu") -> dict[str, str]:
    parts = [{"node": n, "resources": {resource: "1"}} for n in nodes]
    return {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus, "numaNodeResources": parts})}


def pod(node: Any, name: str, **options: Any) -> Any:
    made = node.world.pod(name, **options)
    inner = [c.cgroup_dir for c in made.containers]
    node.files("cpuset.cpus", "0-15", made.cgroup_dir, *inner, f"{made.cgroup_dir}/cri-containerd-sandbox-{name}.scope")
    node.files("cpu.cfs_quota_us", "200000", made.cgroup_dir, *inner)
    return made


def cpus(node: Any, made: Any) -> str:
    return str(node.machine.get("cpuset.cpus", made.containers[0].cgroup_dir))


def quotas(node: Any, made: Any) -> list[str]:
    return [node.machine.get("cpu.cfs_quota_us", d) for d in (made.cgroup_dir, made.containers[0].cgroup_dir)]


@pytest.mark.feature("KA-HK-02")
class TestCPUSets:
    def test_each_case(self, hooked) -> None:
        node = hooked("CPUSetAllocator")
        node.world.nrt = nrt(**{"node.koordinator.sh/system-qos-resource": '{"cpuset":"6-7"}'})
        wanted = [
            (pod(node, "bound", qos="LSR", kube_qos="Guaranteed", requests={"cpu": "2"}, annotations=allocated("2,10")), "2,10"),
            (pod(node, "unlabelled", kube_qos="Guaranteed", requests={"cpu": "1"}, annotations=allocated("3")), "3"),
            (pod(node, "forged", qos="LS", requests={"cpu": "2"}, annotations=allocated("0-1")), "0-5,8-15"),
            (pod(node, "greedy", qos="LSR", requests={"cpu": "2"}, annotations=allocated("0-2")), "0-5,8-15"),
            (pod(node, "numa", qos="LS", requests={"cpu": "1"}, annotations=allocated("", 1)), "8-15"),
            (
                pod(
                    node,
                    "numa-be",
                    qos="BE",
                    kube_qos="BestEffort",
                    requests=BATCH,
                    annotations=allocated("", 1, resource="kubernetes.io/batch-cpu"),
                ),
                "0-15",
            ),
            (pod(node, "system", qos="SYSTEM"), "6-7"),
            (pod(node, "ls", qos="LS"), "0-5,8-15"),
            (pod(node, "be", qos="BE", kube_qos="BestEffort"), "0-15"),
            (pod(node, "none"), "0-5,8-15"),
        ]
        node.run()
        assert {p.name: cpus(node, p) for p, _ in wanted} == {p.name: value for p, value in wanted}
        bound = wanted[0][0]
        assert node.machine.get("cpuset.cpus", f"{bound.cgroup_dir}/cri-containerd-sandbox-bound.scope") == "2,10"
        assert node.machine.get("cpuset.cpus", bound.cgroup_dir) == "0-15", "pods keep theirs"

    def test_be_pods_with_the_manager(self, hooked) -> None:
        node = hooked("CPUSetAllocator", "BECPUManager")
        node.world.nrt = nrt()
        made = pod(
            node, "be", qos="BE", kube_qos="BestEffort", requests=BATCH, annotations=allocated("", 0, 1, resource="kubernetes.io/batch-cpu")
        )
        one = pod(node, "one", qos="BE", kube_qos="BestEffort", requests=BATCH, annotations=allocated("", 0))
        node.run()
        assert (cpus(node, made), cpus(node, one)) == ("0-15", "0-7"), "both pools are the whole machine"

    def test_static_policy_and_no_topology(self, hooked) -> None:
        node = hooked("CPUSetAllocator")
        none, ls = pod(node, "none"), pod(node, "ls", qos="LS")
        node.world.nrt = None
        node.run()
        assert (cpus(node, none), cpus(node, ls)) == ("0-15", "0-15")
        node.world.nrt = nrt("static")
        node.run()
        assert (cpus(node, none), cpus(node, ls)) == ("0-15", "0-5,8-15")

    def test_a_bad_topology_leaves_the_last(self, hooked) -> None:
        node = hooked("CPUSetAllocator")
        node.world.nrt = nrt()
        node.run()
        node.world.nrt = nrt() | {"node.koordinator.sh/cpu-shared-pools": '[{"node":0,"cpuset":"0-x"}]'}
        made = pod(node, "late", qos="LS")
        node.run()
        assert cpus(node, made) == "0-5,8-15"

    @pytest.mark.parametrize("v2", [False, True])
    @pytest.mark.parametrize(("level", "ls", "system"), [("0-15", True, True), ("0-3", False, False), ("0-5,8-15", True, False)])
    def test_what_the_best_effort_level_lacks(self, hooked, v2, level, ls, system) -> None:
        """A pod without requests lies there whatever its label says."""
        node = hooked("CPUSetAllocator", v2=v2)
        node.world.nrt = nrt(**{"node.koordinator.sh/system-qos-resource": '{"cpuset":"6-7"}'})
        files = ("cpuset.cpus", "cpuset.cpus.effective") if v2 else ("cpuset.cpus",)
        made = [node.world.pod(qos.lower(), qos=qos, kube_qos="BestEffort") for qos in ("LS", "SYSTEM")]
        for name in files:
            node.files(name, level, BE_LEVEL, *(directory for p in made for directory in (p.cgroup_dir, p.containers[0].cgroup_dir)))
        node.run()
        assert cpus(node, made[0]) == ("0-5,8-15" if ls or v2 else level)
        assert cpus(node, made[1]) == ("6-7" if system or v2 else level)

    @pytest.mark.feature("BEY-SEC-03")
    @pytest.mark.parametrize("status", [
        "[", "7", '{"cpuset":["0"]}', '{"cpuset":"-1"}', '{"cpuset":"0-3","numaNodeResources":7}',
        '{"numaNodeResources":[{"node":-1,"resources":{"cpu":"1"}}]}', '{"numaNodeResources":[{"node":0,"resources":{"cpu":"x"}}]}',
    ])  # fmt: skip
    def test_what_cannot_be_read_leads_nobody_out_of_the_share_pools(self, hooked, status: str) -> None:
        node = hooked("CPUSetAllocator", "BatchResource")
        node.world.nrt = nrt()
        annotations = {"scheduling.koordinator.sh/resource-status": status}
        made = [pod(node, "odd", qos="LS", requests={"cpu": "1"}, annotations=annotations)]
        made.append(pod(node, "batch", qos="LS", annotations={"node.koordinator.sh/extended-resource-spec": "{"}))
        node.run()
        assert [cpus(node, one) for one in made] == ["0-5,8-15"] * 2

    def test_bound_pods_have_no_quota(self, hooked) -> None:
        node = hooked("CPUSetAllocator")
        bound = pod(node, "bound", qos="LSR", kube_qos="Guaranteed", requests={"cpu": "2"}, annotations=allocated("2,10"))
        shared = pod(node, "shared", qos="LS")
        odd = pod(node, "odd", qos="LSR", annotations={"scheduling.koordinator.sh/resource-status": "["})
        node.run()
        assert (quotas(node, bound), quotas(node, shared), quotas(node, odd)) == (["-1"] * 2, ["200000"] * 2, ["200000"] * 2)

    def test_unless_told_otherwise(self, hooked) -> None:
        node = hooked("CPUSetAllocator", disable_unset_cpu_quota=True)
        bound = pod(node, "bound", qos="LSR", kube_qos="Guaranteed", requests={"cpu": "2"}, annotations=allocated("2,10"))
        node.run()
        assert (cpus(node, bound), quotas(node, bound)) == ("2,10", ["200000"] * 2)

    @pytest.mark.feature("KA-MET-01")
    def test_metrics_of_the_pools(self, hooked) -> None:
        node = hooked("CPUSetAllocator", "PerCPUMetric")
        node.world.nrt = nrt()
        node.run()
        metrics = node.machine.metrics
        assert (metrics.share_pool_cores.get(), metrics.be_share_pool_cores.get()) == (14, 16)
        assert metrics.share_pool_info.get("5") == 1
        assert metrics.share_pool_info.get("6") is None
        assert metrics.be_share_pool_info.get("7") == 1
        node.world.nrt = nrt() | {"node.koordinator.sh/cpu-shared-pools": '[{"socket":0,"node":0,"cpuset":"0-4"}]'}
        node.run()
        assert (metrics.share_pool_cores.get(), metrics.share_pool_info.get("5")) == (5, None)

    def test_no_metrics_of_single_cpus_unless_asked(self, hooked) -> None:
        node = hooked("CPUSetAllocator")
        node.world.nrt = nrt()
        node.run()
        assert node.machine.metrics.share_pool_info.get("5") is None

    @pytest.mark.feature("KA-HST-01")
    def test_host_applications(self, hooked) -> None:
        node = hooked("CPUSetAllocator")
        node.world.nrt = nrt()
        node.world.spec = {"hostApplications": [{"name": "nginx", "qos": "LS"}, {"name": "yarn", "qos": "BE"}]}
        node.files("cpuset.cpus", "0-15", "host-latency-sensitive/nginx", "host-best-effort/yarn")
        node.run()
        assert node.machine.get("cpuset.cpus", "host-latency-sensitive/nginx") == "0-5,8-15"
        assert node.machine.get("cpuset.cpus", "host-best-effort/yarn") == "0-15"

    @pytest.mark.feature("KA-HST-01")
    @pytest.mark.parametrize("v2", [False, True])
    @pytest.mark.parametrize("restarts", [False, True])
    def test_a_host_application_that_is_listed_no_more_has_its_cpus_back(self, hooked, restarts, v2) -> None:
        node = hooked("CPUSetAllocator", v2=v2)
        node.world.nrt = nrt()
        apps = [{"name": name, "qos": "LS"} for name in ("nginx", "redis", "squid")]
        node.world.spec = {"hostApplications": apps}
        made = pod(node, "one", qos="LS")
        directories = [f"host-latency-sensitive/{app['name']}" for app in apps]
        node.files("cpuset.cpus", "0-15", *directories)
        node.run()
        assert [node.machine.get("cpuset.cpus", d) for d in directories] == ["0-5,8-15"] * 3
        node.files("cpuset.cpus", "3", directories[2])
        node.world.spec = {"hostApplications": [apps[1]]}
        if restarts:
            node.restart()
        node.run()
        assert [node.machine.get("cpuset.cpus", d) for d in directories] == ["0-15", "0-5,8-15", "3"]
        assert node.machine.get("cpuset.cpus", made.containers[0].cgroup_dir) == "0-5,8-15"
        node.world.spec = {"hostApplications": apps[:2]}
        node.run()
        assert [node.machine.get("cpuset.cpus", d) for d in directories] == ["0-5,8-15", "0-5,8-15", "3"]

    @pytest.mark.feature("KA-HST-01")
    def test_a_host_application_of_another_class_has_its_cpus_back(self, hooked) -> None:
        node = hooked("CPUSetAllocator")
        node.world.nrt = nrt()
        node.files("cpuset.cpus", "0-15", "apps/one")
        seen = []
        for qos in ("LS", "BE", "LS"):
            app = {"name": "one", "qos": qos, "cgroupPath": {"base": "CgroupRoot", "relativePath": "apps/one"}}
            node.world.spec = {"hostApplications": [app]}
            node.run()
            seen.append(node.machine.get("cpuset.cpus", "apps/one"))
        assert seen == ["0-5,8-15", "0-15", "0-5,8-15"]

    def test_a_sandbox_that_is_made_anew_follows_as_the_first_one(self, hooked) -> None:
        node = hooked("CPUSetAllocator")
        wanted = {"qos": "LSR", "requests": {"cpu": "1"}, "annotations": allocated("4")}
        made = pod(node, "one", **wanted)
        node.run()
        for former in Path(node.machine.root.cgroup).glob(f"*/{made.cgroup_dir}/*.scope"):
            shutil.rmtree(former)
        node.world.pods.remove(made)
        again = node.world.pod("one", **wanted)
        sandbox = f"{again.cgroup_dir}/cri-containerd-second.scope"
        node.files("cpuset.cpus", "0-15", again.containers[0].cgroup_dir, sandbox)
        node.run()
        assert (made.uid, node.machine.get("cpuset.cpus", sandbox)) == (again.uid, "4")

    def test_kata_and_unknown_sandboxes(self, hooked) -> None:
        node = hooked("CPUSetAllocator")
        made = pod(node, "two", qos="LSR", requests={"cpu": "1"}, annotations=allocated("4"))
        stranger = f"{made.cgroup_dir}/cri-containerd-other.scope"
        node.files("cpuset.cpus", "0-15", stranger)
        node.run()
        assert cpus(node, made) == "4"
        assert node.machine.get("cpuset.cpus", stranger) == "0-15", "two candidates: neither is taken for the sandbox"


@pytest.mark.feature("KA-HK-04")
class TestNormalization:
    def pods(self, node: Any) -> tuple[Any, ...]:
        limits = {"cpu": "2"}
        return (
            pod(node, "ls", qos="LS", limits=limits),
            pod(node, "plain", limits=limits),
            pod(node, "lsr", qos="LSR", limits=limits),
            pod(node, "bound", kube_qos="Guaranteed", requests=limits, limits=limits, annotations=allocated("1-2")),
            pod(node, "without", qos="LS"),
        )

    def seen(self, node: Any, pods: tuple[Any, ...]) -> list[list[str]]:
        node.run()
        return [quotas(node, p) for p in pods]

    def test_quotas_follow_the_ratio(self, hooked) -> None:
        node = hooked("CPUNormalization")
        pods = self.pods(node)
        kept = ["200000", "200000"]
        assert self.seen(node, pods) == [kept] * 5, "no ratio, no writes"
        node.world.node = ratio("1.30")
        assert self.seen(node, pods) == [["153847"] * 2, ["153847"] * 2, kept, kept, kept]
        node.world.node = ratio("0.9")
        assert self.seen(node, pods) == [kept] * 5, "slow CPUs get no more than was asked for"
        node.world.node = ratio("1.60")
        assert self.seen(node, pods)[0] == ["125000"] * 2
        node.world.node = ratio("")
        assert self.seen(node, pods)[0] == ["125000"] * 2, "a ratio that cannot be read"
        node.world.node = ratio(None)
        assert self.seen(node, pods) == [kept] * 5, "without a ratio they get their own back"

    def test_a_ratio_that_went_while_the_agent_was_down(self, hooked) -> None:
        node = hooked("CPUNormalization")
        pods = self.pods(node)
        node.world.node = ratio("1.60")
        assert self.seen(node, pods)[0] == ["125000"] * 2
        node.world.node = None
        node.restart()
        (hook,) = node.asking.hooks
        hook.keep_record(node.machine.executor)
        assert self.seen(node, pods)[0] == ["125000"] * 2, "the Node is not known yet"
        node.world.node = ratio(None)
        assert self.seen(node, pods) == [["200000", "200000"]] * 5

    @pytest.mark.parametrize("v2", [False, True])
    def test_no_quota_is_below_what_the_kernel_takes(self, hooked, v2) -> None:
        node = hooked("CPUNormalization", v2=v2)
        made = node.world.pod("reloader", qos="LS", limits={"cpu": "10m"})
        node.files("cpu.cfs_quota_us", "1000 100000" if v2 else "1000", made.cgroup_dir, made.containers[0].cgroup_dir)
        node.world.node = ratio("1.20")
        node.run()
        assert quotas(node, made) == ["1000 100000" if v2 else "1000"] * 2

    def test_quota_burst_owns_its_containers(self, hooked) -> None:
        node = hooked("CPUNormalization", "CPUBurst")
        node.world.node = ratio("2")
        made = pod(node, "ls", qos="LS", limits={"cpu": "2"})
        node.world.spec = {"cpuBurstStrategy": {"policy": "auto"}}
        node.run()
        assert quotas(node, made) == ["200000", "200000"]
        node.world.spec = {}
        node.run()
        assert quotas(node, made) == ["100000", "100000"]


RUNNING: dict[str, Any] = {"running": {}}
WAITING: dict[str, Any] = {"waiting": {"reason": "CrashLoopBackOff"}}
FAILED: dict[str, Any] = {"terminated": {"exitCode": 1}}
DONE: dict[str, Any] = {"terminated": {"exitCode": 0}}


def service(node: Any, *containers: dict[str, Any], policy: str = "Always", label: str = "", made: int = 0) -> Any:
    """The node's only pod, of class LS: its containers as :func:`part` gives them, ``made`` anew so often."""
    named = [(f"c{number}", one) for number, one in enumerate(containers)]

    def listed(*, init: bool) -> tuple[list[Any], list[Any]]:
        mine = [(name, one) for name, one in named if one["init"] is init]
        specs = [{"name": name, "restartPolicy": one["policy"], "resources": {"limits": {"cpu": one["cpu"]}}} for name, one in mine]
        told = [
            {"name": name, "containerID": f"containerd://{name}-{made}", "state": one["state"]}
            for name, one in mine
            if one["state"] is not None
        ]
        return specs, told

    (specs, told), (inits, inits_told) = listed(init=False), listed(init=True)
    labels = {"koordinator.sh/qosClass": "LS", **({"koord-app": label} if label else {})}
    wire = {
        "metadata": {"name": "web", "namespace": "default", "uid": "uid-web", "labels": labels},
        "spec": {"restartPolicy": policy, "containers": specs, "initContainers": inits},
        "status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": told, "initContainerStatuses": inits_told},
    }
    node.world.pods[:] = [pod_state(decoder(Pod)(msgspec.json.encode(wire)), node.machine.host.cgroups)]
    return node.world.pods[0]


def part(state: dict[str, Any] | None = None, cpu: str = "2", *, init: bool = False, policy: str | None = None) -> dict[str, Any]:
    """A container of limit ``cpu``; ``state`` None: nobody has told of it."""
    return {"state": state, "cpu": cpu, "init": init, "policy": policy}


@pytest.mark.feature("KA-HK-04")
class TestRoomForContainersThatStart:
    """cgroup v1 gives no container more than its pod, and a runtime begins with the whole quota of the limit."""

    def quota(self, node: Any, made: Any) -> int:
        """The pod's, after a pass."""
        node.files("cpu.cfs_quota_us", "100000", made.cgroup_dir, *(c.cgroup_dir for c in made.all_containers() if c.cgroup_dir))
        node.world.node = ratio("1.25")
        node.run()
        return int(node.machine.get("cpu.cfs_quota_us", made.cgroup_dir))

    @pytest.mark.parametrize(("containers", "policy", "seen"), [
        ([part(RUNNING)], "Always", 160_000),
        ([part()], "Always", 200_000),
        ([part(WAITING)], "Always", 200_000),
        ([part(FAILED)], "Always", 200_000),
        ([part(DONE)], "Always", 200_000),
        ([part(RUNNING), part(WAITING)], "Always", 320_000),
        ([part(RUNNING, "400m"), part(DONE)], "OnFailure", 192_000),
        ([part(RUNNING, "400m"), part(FAILED)], "OnFailure", 240_000),
        ([part(RUNNING, "400m"), part(FAILED)], "Never", 192_000),
        ([part(RUNNING, "400m"), part(FAILED, policy="Always")], "Never", 240_000),
        ([part(DONE, "4", init=True), part(RUNNING)], "Always", 320_000),
        ([part(RUNNING, "4", init=True), part()], "Always", 320_000),
        ([part(WAITING, "4", init=True), part()], "Always", 400_000),
        ([part(RUNNING, init=True, policy="Always"), part(RUNNING, "100m")], "Always", 168_000),
        ([part(DONE, init=True, policy="Always"), part(RUNNING, "100m")], "Never", 210_000),
    ])  # fmt: skip
    def test_the_pod_keeps_its_quota_where_one_would_not_fit(self, hooked, containers, policy, seen) -> None:
        node = hooked("CPUNormalization")
        assert self.quota(node, service(node, *containers, policy=policy)) == seen

    def test_an_init_container_runs_beside_the_sidecars_before_it(self, hooked) -> None:
        node = hooked("CPUNormalization")
        made = service(node, part(RUNNING, "1", init=True, policy="Always"), part(RUNNING, "4", init=True), part(None, "1"))
        assert self.quota(node, made) == 400_000, "of the five CPUs that the kubelet gives the pod"

    @pytest.mark.parametrize("manifest", ["install/43-koordlet.yaml", "optional/koordlet-guard/daemonset.yaml"])
    def test_koordlet_could_not_make_room_for_itself(self, hooked, manifest) -> None:
        node = hooked("CPUNormalization")
        daemon = yaml.safe_load((ROOT / "configs" / manifest).read_text())
        made = service(node, part(RUNNING), label=daemon["spec"]["template"]["metadata"]["labels"]["koord-app"])
        assert self.quota(node, made) == 200_000
        assert node.machine.get("cpu.cfs_quota_us", made.containers[0].cgroup_dir) == "160000", "its container is as others are"

    def test_the_kernel_of_v2_lets_a_container_have_more(self, hooked) -> None:
        node = hooked("CPUNormalization", v2=True)
        made = service(node, part())
        node.files("cpu.cfs_quota_us", "200000 100000", made.cgroup_dir)
        node.world.node = ratio("1.25")
        node.run()
        assert node.machine.get("cpu.cfs_quota_us", made.cgroup_dir) == "160000 100000"

    @pytest.mark.root
    def test_a_container_starts_and_restarts_on_the_real_kernel(self, real_hooked) -> None:
        node = real_hooked("CPUNormalization")
        node.world.node = ratio("1.25")
        top = Path(node.machine.root.cgroup, "cpu")

        def runtime_starts(directory: str) -> None:
            (top / directory).mkdir()
            (top / directory / "cpu.cfs_quota_us").write_text("200000")

        made = service(node, part())
        node.make(made.cgroup_dir)
        (top / made.cgroup_dir / "cpu.cfs_quota_us").write_text("200000")
        node.run()
        for restarts in range(2):
            made = service(node, part(RUNNING), made=restarts)
            runtime_starts(made.containers[0].cgroup_dir)
            node.run()
            assert quotas(node, made) == ["160000", "160000"], "what the ratio asks for once it runs"
            (top / made.containers[0].cgroup_dir).rmdir()
            service(node, part(WAITING), made=restarts)
            node.run()


def ratio(text: str | None) -> Any:
    return sys.modules["koord_test_koordlet_act"].make_node(annotations={} if text is None else {RATIO: text})


@pytest.mark.root
@pytest.mark.feature("KA-HK-02")
@pytest.mark.feature("KA-HK-04")
def test_on_the_real_kernel(real_hooked) -> None:
    node = real_hooked("CPUSetAllocator", "CPUNormalization")
    cpu = (node.machine.base / "sys/fs/cgroup/cpuset/cpuset.cpus").read_text().strip().replace(",", "-").split("-")[0]
    bound = node.world.pod("bound", qos="LSR", kube_qos="Guaranteed", requests={"cpu": "1"}, annotations=allocated(cpu))
    ls = node.world.pod("ls", qos="LS", limits={"cpu": "2"})
    for made in (bound, ls):
        node.make(made.cgroup_dir, made.containers[0].cgroup_dir)
        for directory in (made.cgroup_dir, made.containers[0].cgroup_dir):
            (node.machine.base / "sys/fs/cgroup/cpu" / directory / "cpu.cfs_quota_us").write_text("200000")
    node.world.node = ratio("1.25")
    node.run()
    assert cpus(node, bound) == cpu
    assert (quotas(node, bound), quotas(node, ls)) == (["-1", "-1"], ["160000", "160000"])
    node.world.node = ratio(None)
    node.run()
    assert quotas(node, ls) == ["200000", "200000"]


@pytest.mark.root
@pytest.mark.feature("KA-HK-02")
def test_a_narrow_best_effort_level_on_the_real_kernel(real_hooked) -> None:
    node = real_hooked("CPUSetAllocator")
    here = sorted(parse_cpu_list("cpuset.cpus", (node.machine.base / "sys/fs/cgroup/cpuset/cpuset.cpus").read_text().strip()))
    if len(here) < 2:
        pytest.skip("needs two CPUs")
    every = ",".join(map(str, here))
    node.world.nrt = {"node.koordinator.sh/cpu-shared-pools": f'[{{"socket":0,"node":0,"cpuset":"{every}"}}]'}
    made = node.world.pod("web", qos="LS", kube_qos="BestEffort")
    node.make(BE_LEVEL)
    (node.machine.base / "sys/fs/cgroup/cpuset" / BE_LEVEL / "cpuset.cpus").write_text(str(here[0]))
    node.make(made.containers[0].cgroup_dir)
    node.run()
    assert cpus(node, made) == str(here[0]), "nothing is written that the kernel refuses"


@pytest.mark.root
@pytest.mark.feature("KA-HK-03")
@pytest.mark.feature("KA-HK-04")
def test_small_limits_on_the_real_kernel(real_hooked) -> None:
    node = real_hooked("BatchResource", "CPUNormalization")
    batch = node.world.pod("batch", qos="BE", kube_qos="BestEffort", limits={"kubernetes.io/batch-cpu": "10"})
    reloader = node.world.pod("reloader", qos="LS", limits={"cpu": "10m"})
    for made in (batch, reloader):
        node.make(made.cgroup_dir, made.containers[0].cgroup_dir)
        for directory in (made.cgroup_dir, made.containers[0].cgroup_dir):
            (node.machine.base / "sys/fs/cgroup/cpu" / directory / "cpu.cfs_quota_us").write_text("2000")
    node.world.node = ratio("1.20")
    node.run()
    assert (quotas(node, batch), quotas(node, reloader)) == (["1000"] * 2, ["1000"] * 2), "the least quota that the kernel takes"


@pytest.mark.root
@pytest.mark.feature("KA-HST-01")
def test_host_applications_on_the_real_kernel(real_hooked) -> None:
    """A latency-sensitive program of the host leaves the CPUs that pods have of their own, a best-effort one keeps to its pool."""
    node = real_hooked("CPUSetAllocator")
    here = sorted(parse_cpu_list("cpuset.cpus", (node.machine.base / "sys/fs/cgroup/cpuset/cpuset.cpus").read_text().strip()))
    if len(here) < 2:
        pytest.skip("needs two CPUs")
    first, every = str(here[0]), ",".join(map(str, here))
    service, batch = "host-latency-sensitive/nginx", "host-best-effort/yarn"
    node.make(service, batch)
    node.world.nrt = {
        "node.koordinator.sh/cpu-shared-pools": f'[{{"socket":0,"node":0,"cpuset":"{first}"}}]',
        "node.koordinator.sh/be-cpu-shared-pools": f'[{{"socket":0,"node":0,"cpuset":"{every}"}}]',
    }
    node.world.spec = {"hostApplications": [{"name": "nginx", "qos": "LS"}, {"name": "yarn", "qos": "BE"}]}
    programs = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        for program, directory in zip(programs, (service, batch), strict=True):
            (node.machine.base / "sys/fs/cgroup/cpuset" / directory / "cgroup.procs").write_text(str(program.pid))
        assert [os.sched_getaffinity(p.pid) for p in programs] == [set(here), set(here)]
        node.run()
        assert [os.sched_getaffinity(p.pid) for p in programs] == [{here[0]}, set(here)], "the kernel itself says so"
        assert [path.endswith(f"{service}/cpuset.cpus") for path in restore(node.machine.root).restored] == [True]
        assert os.sched_getaffinity(programs[0].pid) == set(here)
    finally:
        for program in programs:
            program.kill()
            program.wait()
