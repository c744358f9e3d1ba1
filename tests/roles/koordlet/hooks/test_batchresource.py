"""BatchResource and the reconciler: API objects and a pod list in, cgroup files out (KA-HK-03, KA-RH-03, KA-RH-04)."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import NODES, NODESLOS
from koord.api.objects import Pod
from koord.api.objects_meta import decoder
from koord.api.qos import QoSClass
from koord.apiserver.testing import running_server
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.actuation.restore import restore
from roles.koordlet.hooks.batchresource import BatchResource, BatchRule
from roles.koordlet.hooks.context import BatchResources, ContainerContext, PodContext, Stage
from roles.koordlet.hooks.delivery import Delivery
from roles.koordlet.hooks.requests import contexts
from roles.koordlet.options import Options
from roles.koordlet.qos.interference_files import Held, batches, squeezed
from roles.koordlet.states.pods import pod_state
from roles.koordlet.store import kinds

GIB = 1 << 30
BE = {"koordinator.sh/qosClass": "BE"}
QUOTA_POLICY = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
RATIO = "node.koordinator.sh/cpu-normalization-ratio"
ALL = ("cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes")


def batch(cpu: str, memory: str = "1Gi") -> dict[str, str]:
    return {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory}


def unlimited(node: Any, *directories: str) -> None:
    node.files("cpu.shares", "2", *directories)
    node.files("cpu.cfs_quota_us", "-1", *directories)
    node.files("memory.limit_in_bytes", "9223372036854771712", *directories)


def values(node: Any, directory: str) -> tuple[str, ...]:
    return tuple(node.machine.get(resource, directory) for resource in ALL)


def be_pod(node: Any, name: str = "b", **options: Any) -> Any:
    pod = node.world.pod(name, qos="BE", kube_qos="BestEffort", **options)
    unlimited(node, pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers))
    return pod


@pytest.mark.feature("KA-HK-03")
@pytest.mark.feature("KA-RH-03")
def test_limits_of_pod_and_containers(hooked) -> None:
    node = hooked("BatchResource")
    pod = be_pod(node, requests=batch("500"), limits=batch("1500", "3Gi"), containers=2)
    node.run()
    assert values(node, pod.cgroup_dir) == ("1024", "300000", str(6 * GIB))
    for container in pod.containers:
        assert values(node, container.cgroup_dir) == ("512", "150000", str(3 * GIB))
    assert {r.rule for r in node.records} == {"BatchResource"}
    told = {r.subject.name.rsplit("/", 1)[-1]: (r.numbers["old"], r.numbers["new"]) for r in node.records if "c0" in r.subject.name}
    assert told["cpu.cfs_quota_us"] == ("-1", "150000")


@pytest.mark.feature("KA-HK-03")
@pytest.mark.parametrize(("order", "cores"), [("proxy fetch", 5), ("fetch proxy", 4)])
def test_an_init_container_runs_beside_the_sidecars_before_it(hooked, order, cores) -> None:
    node = hooked("BatchResource")
    limits = {"proxy": batch("1000", "1Gi"), "fetch": batch("4000", "4Gi"), "main": batch("1000", "1Gi")}
    parts = {name: {"name": name, "resources": {"requests": amounts, "limits": amounts}} for name, amounts in limits.items()}
    parts["proxy"]["restartPolicy"] = "Always"
    wire = {
        "metadata": {"name": "job", "namespace": "default", "uid": "uid-job", "labels": BE},
        "spec": {"initContainers": [parts[name] for name in order.split()], "containers": [parts["main"]]},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }
    pod = pod_state(decoder(Pod)(msgspec.json.encode(wire)), node.machine.host.cgroups)
    node.world.pods.append(pod)
    unlimited(node, pod.cgroup_dir)
    node.run()
    assert values(node, pod.cgroup_dir) == (str(1024 * cores), str(100_000 * cores), str(cores * GIB))


@pytest.mark.feature("KA-HK-03")
def test_nothing_is_set_for_a_pod_with_an_init_container_that_declares_nothing(hooked) -> None:
    node = hooked("BatchResource")
    wire = {
        "metadata": {"name": "job", "namespace": "default", "uid": "uid-job", "labels": BE},
        "spec": {"initContainers": [{"name": "fetch"}], "containers": [{"name": "main"}]},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }
    pod = pod_state(decoder(Pod)(msgspec.json.encode(wire)), node.machine.host.cgroups)
    node.world.pods.append(pod)
    node.files("cpu.shares", "7", pod.cgroup_dir)
    node.run()
    assert node.machine.get("cpu.shares", pod.cgroup_dir) == "7"


@pytest.mark.feature("KA-HK-03")
def test_on_cgroup_v2(hooked) -> None:
    node = hooked("BatchResource", v2=True)
    pod = node.world.pod("b", qos="BE", kube_qos="BestEffort", requests=batch("500"), limits=batch("500"))
    for directory in (pod.cgroup_dir, pod.containers[0].cgroup_dir):
        node.files("cpu.shares", "1", directory)
        node.files("cpu.cfs_quota_us", "max 100000", directory)
        node.files("memory.limit_in_bytes", "max", directory)
    node.run()
    for directory in (pod.cgroup_dir, pod.containers[0].cgroup_dir):
        assert node.machine.get("cpu.cfs_quota_us", directory) == "50000 100000"
        assert node.machine.get("memory.limit_in_bytes", directory) == str(GIB)
        assert node.machine.get("cpu.shares", directory) == "20", "1 + (512 - 2) * 9999 / 262142"


@pytest.mark.feature("KA-HK-03")
class TestWhoGetsWhat:
    def test_one_container_without_limit_leaves_the_pod_without(self) -> None:
        pod = context(batch=(BatchResources(1000, 2000, None, GIB), BatchResources(cpu_request=500)))
        answer = hook().pod(pod, BatchRule())
        assert answer is not None
        assert (answer.cpu_shares, answer.cpu_quota, answer.memory_limit) == (1536, -1, -1)

    def test_a_container_with_a_request_only(self) -> None:
        answer = hook().container(ContainerContext(context(), "c", "i", "d", BatchResources(cpu_request=500)), None)
        assert answer is not None
        assert (answer.cpu_shares, answer.cpu_quota, answer.memory_limit) == (512, -1, -1)

    def test_small_values(self) -> None:
        answer = hook().container(ContainerContext(context(), "c", "i", "d", BatchResources(1, 1, 0, 0)), None)
        assert answer is not None
        assert (answer.cpu_shares, answer.cpu_quota, answer.memory_limit) == (2, 1000, -1)

    @pytest.mark.parametrize("qos", [QoSClass.LS, QoSClass.NONE, QoSClass.LSR, QoSClass.SYSTEM])
    def test_only_the_label_be(self, qos) -> None:
        assert hook().pod(context(qos=qos, batch=(BatchResources(1, 1, 1, 1),)), None) is None

    def test_nothing_declared_nothing_done(self) -> None:
        assert hook().pod(context(), None) is None
        assert hook().container(ContainerContext(context(), "c", "i", "d"), None) is None

    def test_a_large_init_container_fits_into_its_pod(self) -> None:
        pod = context(batch=(BatchResources(100, 100, GIB, GIB),), init_batch=((BatchResources(4000, 4000, 2 * GIB, 2 * GIB),),))
        answer = hook().pod(pod, None)
        assert answer is not None
        assert (answer.cpu_shares, answer.cpu_quota, answer.memory_limit) == (4096, 400_000, 2 * GIB)

    def test_quota_policy_and_ratio(self) -> None:
        one = ContainerContext(context(), "c", "i", "d", BatchResources(1000, 1000, GIB, GIB))
        quotas = [getattr(hook().container(one, rule), "cpu_quota", None) for rule in (BatchRule(True, 1.5), BatchRule(False, 1.1))]
        assert quotas == [-1, 90910]

    @given(limits=st.lists(st.one_of(st.none(), st.integers(0, 10**6)), min_size=1, max_size=5), ratio=st.floats(0.5, 5, allow_nan=False))
    def test_a_pod_never_gets_less_than_a_container(self, limits, ratio) -> None:
        parts = tuple(BatchResources(cpu_request=10, cpu_limit=limit) for limit in limits)
        rule = BatchRule(ratio=ratio)
        whole = hook().pod(context(batch=parts), rule)
        assert whole is not None
        for part in parts:
            single = hook().container(ContainerContext(context(), "c", "i", "d", part), rule)
            assert single is not None
            assert whole.cpu_quota == -1 or 0 < single.cpu_quota <= whole.cpu_quota


def hook() -> BatchResource:
    return BatchResource(Options(), lambda _: True)


def context(**fields: Any) -> PodContext:
    known: dict[str, Any] = {"qos": QoSClass.BE, "kube_qos": "BestEffort", "cgroup_dir": "kubepods.slice/pod", "labels": {}}
    return PodContext(namespace="d", name="p", uid="u", annotations={}, **{**known, **fields})


@pytest.mark.feature("KA-RH-04")
def test_rules_follow_node_and_nodeslo(hooked) -> None:
    node = hooked("BatchResource")
    pod = be_pod(node, requests=batch("1000"), limits=batch("1000"))
    directories = (pod.cgroup_dir, pod.containers[0].cgroup_dir)

    def quotas() -> list[str]:
        node.run()
        return [node.machine.get("cpu.cfs_quota_us", d) for d in directories]

    assert quotas() == ["100000", "100000"]
    node.world.node = act_node(**{RATIO: "1.25"})
    assert quotas() == ["80000", "80000"]
    node.world.node = act_node(**{RATIO: "1.255"})
    assert quotas() == ["80000", "80000"], "changes below 0.01 do not count"
    node.world.node = act_node(**{RATIO: "-3"})
    assert quotas() == ["80000", "80000"], "a ratio that cannot be used leaves the last one"
    node.world.spec = QUOTA_POLICY
    assert quotas() == ["-1", "-1"]
    node.world.spec = {}
    node.world.node = act_node()
    assert quotas() == ["100000", "100000"]


@pytest.mark.feature("BEY-JRN-01")
def test_what_the_hook_gave_at_creation_is_not_put_back_when_the_policy_has_changed_before_the_first_pass(hooked) -> None:
    node = hooked("BatchResource")
    pod = be_pod(node, requests=batch("200"), limits=batch("200"))
    node.asking.learn(node.world.snapshot())
    asked = Delivery(
        node.asking, node.reconciler, node.machine.executor, node.world.snapshot, lambda _: Mode.ENFORCE, disabled=frozenset(), feature="",
    )  # fmt: skip
    answer = asked.container(Stage.PRE_CREATE_CONTAINER, contexts(pod)[1][0])
    directory = pod.containers[0].cgroup_dir
    node.files("cpu.cfs_quota_us", str(answer.cpu_quota), directory)
    node.world.spec = QUOTA_POLICY
    node.run()
    assert (answer.cpu_quota, node.machine.get("cpu.cfs_quota_us", directory)) == (20000, "-1")
    node.machine.journal.close()
    assert restore(node.machine.root).failed == []
    assert values(node, directory) == ("2", "-1", "9223372036854771712")


@pytest.mark.feature("BEY-INT-01")
@pytest.mark.feature("KA-HK-03")
@pytest.mark.parametrize("kernel", ["hooked", pytest.param("real_hooked", marks=pytest.mark.root)])
def test_a_container_of_a_squeezed_pod_starts(request, kernel) -> None:
    """cgroup v1 refuses a container more than its pod has."""
    node = request.getfixturevalue(kernel)("BatchResource")
    executor, world = node.machine.executor, node.world
    pod = world.pod("b", qos="BE", kube_qos="BestEffort", limits=batch("2000"))
    directory = pod.containers[0].cgroup_dir
    unlimited(node, pod.cgroup_dir)
    node.run()
    free = Held(pod.namespace, pod.name, pod.uid)

    def squeeze(before: Held) -> Held:
        world.sample(kinds.POD_CPU, 0.4, pod.uid)
        snapshot = world.snapshot()
        held = replace(free, files=squeezed(snapshot, snapshot.slo, pod, before, snapshot.slo.interference))
        assert not executor.apply(batches([before], [held]), rule="InterferenceDetection", now=world.now).failed
        return held

    def quotas() -> list[str]:
        node.run()
        return [node.machine.get("cpu.cfs_quota_us", d) for d in (pod.cgroup_dir, directory)]

    held = squeeze(free)
    asked = Delivery(node.asking, node.reconciler, executor, world.snapshot, lambda _: Mode.ENFORCE, disabled=frozenset(), feature="")
    answer = asked.container(Stage.PRE_CREATE_CONTAINER, contexts(pod)[1][0])
    unlimited(node, directory)
    node.files("cpu.cfs_quota_us", str(answer.cpu_quota), directory)
    held = squeeze(held)
    assert quotas() == ["20000", "20000"]
    assert not executor.apply(batches([held], ()), rule="InterferenceDetection", now=world.now).failed
    assert quotas() == ["200000", "200000"]


def act_node(**annotations: str) -> Any:
    import sys

    return sys.modules["koord_test_koordlet_act"].make_node(annotations=annotations)


@pytest.mark.feature("KA-HK-03")
def test_batch_resources_by_annotation_and_bad_input(hooked) -> None:
    node = hooked("BatchResource")
    spec = '{"containers":{"c0":{"requests":{"kubernetes.io/batch-cpu":"500"},"limits":{"kubernetes.io/batch-cpu":"500"}}}}'
    good = be_pod(node, "good", annotations={"node.koordinator.sh/extended-resource-spec": spec})
    bad = be_pod(node, "bad", annotations={"node.koordinator.sh/extended-resource-spec": "{"})
    odd = be_pod(node, "odd", requests={"kubernetes.io/batch-cpu": "many"})
    last = be_pod(node, "last", limits=batch("100"))
    node.run()
    assert values(node, good.cgroup_dir)[:2] == ("512", "50000")
    assert values(node, last.cgroup_dir)[1] == "10000", "pods after a bad one are served"
    for pod in (bad, odd):
        assert values(node, pod.cgroup_dir)[:2] == ("2", "-1")


@pytest.mark.feature("KA-RH-03")
def test_passes_are_quiet_and_static_pods_come_back(hooked) -> None:
    node = hooked("BatchResource")
    pod = be_pod(node, limits=batch("1000"))
    assert node.run().written > 0
    assert node.run().written == 0
    unlimited(node, pod.cgroup_dir)
    assert node.run().written == 0, "trusted for as long as --resource-force-update-seconds"
    node.world.pods.remove(pod)
    node.run()
    node.world.pods.append(pod)
    node.run()
    assert values(node, pod.cgroup_dir)[1] == "100000", "a pod that was away is written anew"


@pytest.mark.feature("KA-HK-03")
@pytest.mark.feature("KA-RH-03")
def test_through_the_agent(host, kubelet, make_node, make_pod, start, cluster, listed, eventually) -> None:
    async def main() -> None:
        tree = host()
        pod_dir = tree.pod_dir("BestEffort", "u-1")
        inner = tree.container_dir(pod_dir, "b-main")
        for directory in (pod_dir, inner):
            tree.cgroup(directory)
            tree.write(tree.file("cpu", directory, "cpu.shares"), "2\n")
            tree.write(tree.file("memory", directory, "memory.limit_in_bytes"), "9223372036854771712\n")
        quota = tree.file("cpu", inner, "cpu.cfs_quota_us")
        async with running_server(crds=True) as server, server.client() as client, kubelet() as served:
            await cluster(client, make_node())
            served.pods = listed(make_pod("b", "u-1", qos="BestEffort", labels=BE, requests=batch("500"), limits=batch("500")))
            koordlet = await start(tree, server, served.port)
            try:
                await eventually(lambda: tree.read(quota).strip() == "50000", what="first pass")
                assert tree.read(tree.file("cpu", pod_dir, "cpu.shares")).strip() == "512"
                assert tree.read(tree.file("memory", inner, "memory.limit_in_bytes")).strip() == str(GIB)
                await client.patch(NODES, "n1", {"metadata": {"annotations": {RATIO: "2.00"}}})
                await eventually(lambda: tree.read(quota).strip() == "25000", 5, "the ratio at once")
                await client.patch(NODESLOS, "n1", {"spec": QUOTA_POLICY})
                await eventually(lambda: tree.read(quota).strip() == "-1", 5, "the policy at once")
                _, text = await koordlet.get("/metrics")
                done = [line for line in text.splitlines() if "reconciler_invoked_duration_milliseconds_count" in line]
                assert any('level="container"' in line and 'status="succeeded"' in line for line in done)
            finally:
                code, said = await koordlet.stop()
            assert code == 0, said
            assert "Traceback" not in said

    asyncio.run(main())


@pytest.mark.root
@pytest.mark.feature("KA-HK-03")
@pytest.mark.feature("KA-RH-03")
def test_on_the_real_kernel(real_hooked) -> None:
    """Pod and containers of real cgroups: lowered, then raised, in an order that the kernel takes."""
    node = real_hooked("BatchResource")

    def resized(cpu: str, memory: str) -> list[tuple[str, ...]]:
        node.world.pods.clear()
        pod = node.world.pod("b", qos="BE", kube_qos="BestEffort", requests=batch(cpu), limits=batch(cpu, memory), containers=2)
        node.make(pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers))
        node.run()
        return [values(node, d) for d in (pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers))]

    mib = 1 << 20
    assert resized("1000", "64Mi") == [("2048", "200000", str(128 * mib))] + [("1024", "100000", str(64 * mib))] * 2
    assert resized("250", "32Mi") == [("512", "50000", str(64 * mib))] + [("256", "25000", str(32 * mib))] * 2
    assert resized("3000", "48Mi") == [("6144", "600000", str(96 * mib))] + [("3072", "300000", str(48 * mib))] * 2
    node.world.spec = QUOTA_POLICY
    assert {quota for _, quota, _ in resized("3000", "48Mi")} == {"-1"}


@pytest.mark.root
@pytest.mark.feature("KA-HK-03")
@pytest.mark.feature("KA-RH-03")
def test_the_agent_on_the_real_kernel(host, real_cgroups, kubelet, make_node, make_pod, start, cluster, listed, eventually) -> None:
    async def main() -> None:
        tree = host()
        shutil.rmtree(tree.root / "sys/fs/cgroup")
        pod_dir = tree.pod_dir("BestEffort", "u-1")
        directories = [tree.container_dir(pod_dir, name) for name in ("b-main", "b-side")]
        with real_cgroups(tree.root / "sys/fs/cgroup"):
            async with running_server(crds=True) as server, server.client() as client, kubelet() as served:
                for sub in ("cpu", "cpuacct", "memory", "cpuset"):
                    for directory in directories:
                        (tree.root / "sys/fs/cgroup" / sub / directory).mkdir(parents=True)

                def seen(directory: str) -> list[int]:
                    files = (("cpu", "cpu.shares"), ("cpu", "cpu.cfs_quota_us"), ("memory", "memory.limit_in_bytes"))
                    return [int(tree.read(tree.file(sub, directory, name))) for sub, name in files]

                await cluster(client, make_node())
                containers = {"main": "b-main", "side": "b-side"}
                requests = {"requests": batch("500"), "limits": batch("500", "64Mi")}
                pod = make_pod("b", "u-1", qos="BestEffort", labels=BE, containers=containers, **requests)
                pod["spec"]["containers"][1]["resources"] = {"requests": batch("250"), "limits": batch("1000", "32Mi")}
                served.pods = listed(pod)
                koordlet = await start(tree, server, served.port)
                try:
                    mib = 1 << 20
                    await eventually(lambda: seen(directories[1]) == [256, 100000, 32 * mib], what="the second container")
                    assert seen(directories[0]) == [512, 50000, 64 * mib]
                    assert seen(pod_dir) == [768, 150000, 96 * mib]
                finally:
                    code, said = await koordlet.stop()
                assert code == 0, said
                assert "Traceback" not in said

    asyncio.run(main())
