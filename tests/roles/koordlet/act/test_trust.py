"""Whatever an annotation says: no pod gets more than its own requests and its node's policy allow."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.accounting.cpuset import EMPTY, CPUSet
from koord.api import names
from koord.api.qos import QoSClass
from roles.koordlet.eviction.victims import be_pods
from roles.koordlet.hooks.context import ContainerContext, PodContext
from roles.koordlet.hooks.cpusetallocator import CPUSetAllocator
from roles.koordlet.hooks.devices import GPUEnvInject
from roles.koordlet.hooks.ignored import ignored
from roles.koordlet.hooks.oomscoreadj import score_of
from roles.koordlet.hooks.requests import contexts
from roles.koordlet.options import Options
from roles.koordlet.qos.burst import CPUBurst, effective
from roles.koordlet.qos.memoryqos import MemoryQoS
from roles.koordlet.qos.picker import allocated_cpus, pools
from roles.koordlet.report.cpupools import owned_cpus
from roles.koordlet.states.allocation import Claimant, granted_devices, held, held_cpus
from roles.koordlet.states.nodecpus import NodeCPUs
from roles.koordlet.states.slo import CPUBurstStrategy
from roles.koordlet.store import kinds
from tests.support.examples import examples

_ACT = Path(__file__).parent / "conftest.py"
_spec = importlib.util.spec_from_file_location("koord_test_koordlet_act", _ACT)
assert _spec is not None
assert _spec.loader is not None
act: Any = sys.modules.get("koord_test_koordlet_act")
if act is None:
    act = importlib.util.module_from_spec(_spec)
    sys.modules["koord_test_koordlet_act"] = act
    _spec.loader.exec_module(act)

STATUS, DEVICES = names.ANNOTATION_RESOURCE_STATUS, names.ANNOTATION_DEVICE_ALLOCATED
MI = 1 << 20

_NUMBERS = st.one_of(st.integers(-5, 200), st.sampled_from([1000, 10_000, 100_000, 2**31, 2**62, -(2**31)]), st.floats(), st.booleans())
_VALUES = st.one_of(_NUMBERS, st.none(), st.sampled_from(["auto", "none", "default", "cfsQuotaBurstOnly", "cpuBurstOnly", "100000"]))
_MEMBERS = st.sampled_from(
    [
        "policy", "enable", "cpuBurstPercent", "cfsQuotaBurstPercent", "cfsQuotaBurstPeriodSeconds", "sharePoolThresholdPercent",
        "minLimitPercent", "lowLimitPercent", "throttlingPercent", "wmarkRatio", "wmarkMinAdj", "priority",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.dictionaries(_MEMBERS, _VALUES, max_size=6).map(json.dumps),
    st.fixed_dictionaries({"policy": st.just("auto")}, optional=dict.fromkeys(("cfsQuotaBurstPercent", "minLimitPercent"), _NUMBERS)).map(
        json.dumps
    ),
    st.text(max_size=20),
    st.sampled_from(["{}", "[]", "null", "{", '"auto"', "1e999"]),
)
_SOME = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def world(base: str) -> Any:
    return act.World(act.build(Path(base)))


@pytest.mark.feature("BEY-SEC-03")
@given(text=TEXTS, policy=st.sampled_from(["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"]), percent=st.sampled_from([100, 150, 300]))
@_SOME
def test_quota_stays_within_the_nodes_burst(text: str, policy: str, percent: int) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        w = world(base)
        w.spec = {"cpuBurstStrategy": {"policy": policy, "cfsQuotaBurstPercent": percent, "cpuBurstPercent": 1000}}
        cpu = {"cpu": "100m"}
        pod = w.pod("web", qos="LS", requests=cpu, limits=cpu, annotations={names.ANNOTATION_CPU_BURST: text})
        inner = pod.containers[0].cgroup_dir
        for directory in (pod.cgroup_dir, inner):
            w.machine.put("cpu.cfs_quota_us", directory, "10000")
            w.machine.put("cpu.cfs_period_us", directory, "100000")
            w.machine.put("cpu.cfs_burst_us", directory, "0")
        strategy, state = CPUBurst(Options(), act.make_gate("CPUBurst")), None
        for _ in range(12):
            w.now += 1
            w.load(2.0, web=0.1)
            w.sample(kinds.CONTAINER_CPU_THROTTLED, 0.5, pod.containers[0].id)
            state = w.run(strategy, state)
        quota, burst = int(w.machine.get("cpu.cfs_quota_us", inner)), int(w.machine.get("cpu.cfs_burst_us", inner))
        assert 0 < quota <= 10_000 * (percent if policy in ("cfsQuotaBurstOnly", "auto") else 100) // 100
        assert 0 <= burst <= 10_000 * 1000 // 100
        w.machine.host.files.close_all()


@pytest.mark.feature("BEY-SEC-03")
@given(texts=st.lists(TEXTS, min_size=1, max_size=3), enabled=st.booleans())
@_SOME
def test_protected_memory_is_within_the_requests(texts: list[str], enabled: bool) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        w = world(base)
        w.spec = {"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": enabled, "minLimitPercent": 50}}}}
        groups = w.machine.host.cgroups
        places = [groups.kubepods, groups.qos_dir("Burstable"), groups.qos_dir("BestEffort")]
        for number, text in enumerate(texts):
            memory = {"memory": "64Mi"}
            pod = w.pod(f"p{number}", qos="LS", requests=memory, limits=memory, annotations={names.ANNOTATION_MEMORY_QOS: text})
            places += [pod.cgroup_dir, pod.containers[0].cgroup_dir]
        for directory in places:
            for file in ("memory.min", "memory.low"):
                w.machine.put(file, directory, "0")
            w.machine.put("memory.high", directory, "9223372036854771712")
        w.run(MemoryQoS(Options(), act.make_gate("CgroupReconcile")))
        for file in ("memory.min", "memory.low"):
            assert 0 <= int(w.machine.get(file, groups.kubepods)) <= len(texts) * 64 * MI
            assert all(0 <= int(w.machine.get(file, directory)) <= 64 * MI for directory in places[3:])
        w.machine.host.files.close_all()


_CPU_TEXTS = st.one_of(
    st.sampled_from(["0-127", "0", "0-1", "2,10", "15-16", "", "x", "0-0", "1-0", "0-65535", " 3 "]),
    st.text(max_size=12),
).map(lambda cpus: json.dumps({"cpuset": cpus}))


@pytest.mark.feature("BEY-SEC-03")
@pytest.mark.feature("KA-HK-02")
@given(
    text=st.one_of(_CPU_TEXTS, TEXTS),
    qos=st.sampled_from(list(QoSClass)),
    milli=st.sampled_from([None, 0, 100, 1000, 1500, 2000, 4000]),
    binds=st.booleans(),
)
@examples(99)
def test_cpus_are_those_that_are_asked_for(text: str, qos: QoSClass, milli: int | None, binds: bool) -> None:
    node = NodeCPUs(CPUSet(range(16)), binds, {"other": CPUSet([0])})
    requests = None if milli is None else {names.RESOURCE_CPU: milli}
    found = held({STATUS: text}, Claimant("u", qos, requests), node)
    if not found.cpus:
        return
    assert milli
    assert milli % 1000 == 0
    assert len(found.cpus) * 1000 <= milli
    assert qos in (QoSClass.LSE, QoSClass.LSR) or binds
    assert found.cpus <= node.present
    assert not found.cpus & CPUSet([0])
    assert found.exclusive == (qos is QoSClass.LSE)


class TestCPUs:
    @pytest.mark.feature("BEY-SEC-03")
    def test_suppression_hooks_and_topology_read_alike(self, world) -> None:
        odd = [
            '{"cpuset":"0-3"}',
            '{"cpuset":"0-3","numaNodeResources":[{"node":0,"resources":{"cpu":"bad"}}]}',
            '{"cpuset":"0-3","numaNodeResources":{}}',
            '{"cpuset":"0-3","numaNodeResources":[{"node":"0"}]}',
        ]
        for text in odd:
            pod = act.make_pod(world.machine, "a", qos="LSE", kube_qos="Guaranteed", requests={"cpu": "4"}, annotations={STATUS: text})
            snapshot = world.snapshot()
            assert str(allocated_cpus(pod)) == str(held_cpus(pod).cpus) == "0-3", text
            assert pools([pod], snapshot.nrt).lse == owned_cpus([pod], [])[1] == CPUSet(range(4))
            context, (container,) = contexts(pod)
            answer = CPUSetAllocator(Options(), act.make_gate()).container(container, None)
            assert answer is not None
            assert (answer.cpuset, answer.cpu_quota) == ("0-3", -1), "the hook too"
            assert context.held().exclusive

    @pytest.mark.feature("BEY-SEC-03")
    def test_a_node_that_binds_all_pods_binds_shared_ones_too(self, world) -> None:
        pod = world.pod("web", qos="LS", requests={"cpu": "2"}, annotations={STATUS: '{"cpuset":"4-5"}'})
        assert not held_cpus(pod, world.snapshot().cpus).cpus
        world.nrt = {names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: '{"policy":"static","options":{"full-pcpus-only":"true"}}'}
        found = held_cpus(pod, world.snapshot().cpus)
        assert (str(found.cpus), found.exclusive) == ("4-5", False)

    @pytest.mark.feature("BEY-SEC-03")
    def test_why_an_allocation_is_ignored(self, world) -> None:
        world.nrt = {names.ANNOTATION_NRT_POD_CPU_ALLOCS: '[{"uid":"db","cpuset":"2-3","managedByKubelet":true}]'}
        node = world.snapshot().cpus
        for options, words in (
            ({"qos": "LS", "requests": {"cpu": "4"}}, "shares its CPUs"),
            ({"qos": "LSR"}, "no whole CPUs"),
            ({"qos": "LSR", "requests": {"cpu": "1500m"}}, "no whole CPUs"),
            ({"qos": "LSE", "requests": {"cpu": "1"}}, "requests 1 CPUs"),
            ({"qos": "LSE", "requests": {"cpu": "4"}}, "gave CPUs 2-3 to another pod"),
        ):
            pod = act.make_pod(world.machine, "a", annotations={STATUS: '{"cpuset":"0-3"}'}, **options)
            ((key, why),) = ignored(pod, node)
            assert key == STATUS
            assert why.startswith("not allocated")
            assert words in why
        far = act.make_pod(world.machine, "a", qos="LSR", requests={"cpu": "4"}, annotations={STATUS: '{"cpuset":"14-17"}'})
        assert "no CPUs 16-17" in dict(ignored(far, node))[STATUS]


GPU = {"minor": 0, "resources": {}}


class TestDevices:
    @pytest.mark.feature("BEY-SEC-03")
    @pytest.mark.feature("KA-HK-06")
    @pytest.mark.parametrize(
        ("requests", "allocated", "good"),
        [
            ({}, {"gpu": [{"minor": 0}]}, []),
            ({"cpu": 1000}, {"gpu": [{"minor": 0}], "rdma": [{"minor": 0}]}, []),
            ({"nvidia.com/gpu": 1}, {"gpu": [{"minor": 0}]}, ["gpu"]),
            ({"nvidia.com/gpu": 1}, {"gpu": [{"minor": 0}, {"minor": 1}]}, []),
            ({"koordinator.sh/gpu": 200}, {"gpu": [{"minor": 0}, {"minor": 1}]}, ["gpu"]),
            ({"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}, {"gpu": [{"minor": 3}]}, ["gpu"]),
            (
                {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50},
                {"gpu": [{"minor": 3, "resources": {"koordinator.sh/gpu-memory-ratio": "100"}}]},
                [],
            ),
            ({"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory": 8}, {"gpu": [{"minor": 0}, {"minor": 1}]}, ["gpu"]),
            ({"koordinator.sh/rdma": 100}, {"rdma": [{"minor": 0}]}, ["rdma"]),
            ({"koordinator.sh/rdma": 100}, {"rdma": [{"minor": 0}, {"minor": 1}]}, []),
            ({"koordinator.sh/rdma": 1, "nvidia.com/gpu": 1}, {"gpu": [{"minor": 0}], "rdma": [{"minor": 0}]}, ["gpu", "rdma"]),
        ],
    )
    def test_devices_are_those_that_are_asked_for(self, requests, allocated, good) -> None:
        found = granted_devices({DEVICES: json.dumps(allocated)}, Claimant("u", QoSClass.LS, requests))
        assert sorted(found.devices) == good
        assert bool(found.ignored) is (len(good) < len(allocated))

    @pytest.mark.feature("BEY-SEC-03")
    def test_hints_that_the_scheduler_honours_count(self) -> None:
        two = {DEVICES: '{"rdma":[{"minor":0},{"minor":1}],"gpu":[{"minor":0},{"minor":1}]}'}
        who = Claimant("u", QoSClass.LS, {"koordinator.sh/rdma": 2, "nvidia.com/gpu": 2})
        assert list(granted_devices(two, who).devices) == ["gpu"]
        for key, text in (
            (names.ANNOTATION_DEVICE_ALLOCATE_HINT, '{"rdma":{"allocateStrategy":"RequestsAsCount"}}'),
            (names.ANNOTATION_DEVICE_ALLOCATE_HINT, '{"rdma":{"allocateStrategy":"ApplyForAll"}}'),
            (names.ANNOTATION_DEVICE_JOINT_ALLOCATE, '{"deviceTypes":["gpu","rdma"]}'),
        ):
            assert sorted(granted_devices({**two, key: text}, who).devices) == ["gpu", "rdma"], text

    @pytest.mark.feature("BEY-SEC-03")
    def test_a_pod_that_nobody_knows_gets_nothing(self) -> None:
        annotations = {DEVICES: '{"gpu":[{"minor":0}]}', STATUS: '{"cpuset":"0-127"}'}
        for qos in QoSClass:
            pod = PodContext("t", "thief", "u", {names.LABEL_POD_QOS: str(qos)}, annotations, "/kubepods/x", "Burstable", qos)
            container = ContainerContext(pod, "main", "id", "/kubepods/x/y")
            assert GPUEnvInject(Options(), lambda gate: True).container(container, None) is None
            answer = CPUSetAllocator(Options(), lambda gate: True).container(container, None)
            assert not answer


@pytest.mark.feature("BEY-SEC-03")
def test_what_the_node_has_off_stays_off_unless_it_says_so(world) -> None:
    def of(text: str, node: CPUBurstStrategy, **options: bool) -> CPUBurstStrategy:
        pod = act.make_pod(world.machine, "a", qos="LS", annotations={names.ANNOTATION_CPU_BURST: text})
        return effective(node, pod, **options)

    off, on = CPUBurstStrategy(), CPUBurstStrategy(policy="auto", cfs_quota_burst_period_seconds=10)
    assert of('{"policy":"auto"}', off).policy == "cpuBurstOnly"
    assert of('{"policy":"cfsQuotaBurstOnly"}', off).policy == "none"
    assert of('{"policy":"cfsQuotaBurstOnly","cfsQuotaBurstPercent":200}', off, widened=True).cfs_quota_burst_percent == 200
    assert of('{"cfsQuotaBurstPeriodSeconds":-1}', on).cfs_quota_burst_period_seconds == 10
    assert of('{"cfsQuotaBurstPeriodSeconds":5}', on).cfs_quota_burst_period_seconds == 5
    assert of('{"policy":"none"}', on).policy == "none"


@pytest.mark.feature("BEY-SEC-03")
def test_best_effort_pods_stay_within_reach_of_the_node(world) -> None:
    for name, policy in (("a", "[]"), ("b", "{"), ("c", '["Nonsense"]')):
        world.pod(name, qos="BE", kube_qos="BestEffort", annotations={names.ANNOTATION_EVICTION_POLICY: policy})
    assert len(be_pods(world.snapshot(), "BEMemoryEvict")) == 3
    assert be_pods(world.snapshot(), "BECPUEvict") == [], "CPU can be squeezed: the owner's word counts"
    immortal = world.pod("d", qos="BE", kube_qos="BestEffort", annotations={names.ANNOTATION_OOM_SCORE_ADJ: "-1000"})
    assert score_of(contexts(immortal)[1][0]) == 0
    assert held_cpus(immortal).cpus == EMPTY
