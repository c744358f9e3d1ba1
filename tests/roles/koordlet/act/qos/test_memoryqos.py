"""Memory QoS (KA-MEM-01, KA-MEM-02)."""

from __future__ import annotations

import msgspec
import pytest

from koord.api.objects import Pod
from koord.api.objects_meta import decoder
from roles.koordlet.options import Options
from roles.koordlet.qos.memoryqos import MemoryQoS, allocatable_memory
from roles.koordlet.states.pods import pod_state

GI, MI = 1 << 30, 1 << 20
MAX = 2**63 - 1
ROOT = "kubepods.slice"
TIERS = (f"{ROOT}/kubepods-burstable.slice", f"{ROOT}/kubepods-besteffort.slice")
FILES = (
    "memory.min", "memory.low", "memory.high", "memory.wmark_ratio", "memory.wmark_scale_factor", "memory.wmark_min_adj",
    "memory.priority", "memory.use_priority_oom", "memory.oom.group",
)  # fmt: skip


@pytest.fixture
def strategy(gates):
    return MemoryQoS(Options(), gates("CgroupReconcile"))


def tree(world):
    dirs = [ROOT, *TIERS]
    for pod in world.pods:
        dirs += [pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers)]
    for directory in dirs:
        for name in FILES:
            world.machine.put(name, directory, "-7")
        if world.machine.v2:
            for name in ("enable", "size", "sync"):
                world.machine.put(f"memory.pagecache_limit.{name}", directory, "7")


def classes(world, **bodies):
    world.spec = {"resourceQOSStrategy": {f"{name}Class": {"memoryQOS": {"enable": True, **body}} for name, body in bodies.items()}}


def values(world, directory, *names):
    return [int(world.machine.get(f"memory.{n}", directory)) for n in names]


def test_protection_adds_up_from_containers_to_the_root(world, strategy):
    classes(world, ls={"minLimitPercent": 40, "lowLimitPercent": 60, "wmarkRatio": 90}, be={"minLimitPercent": 10, "priority": 3})
    a = world.pod("a", qos="LS", requests={"memory": "1Gi"}, limits={"memory": "2Gi"}, containers=2)
    b = world.pod("b", qos="BE", kube_qos="BestEffort", requests={"kubernetes.io/batch-memory": "1Gi"})
    tree(world)
    world.run(strategy)
    assert values(world, a.containers[0].cgroup_dir, "min", "low", "high") == [GI * 40 // 100, GI * 60 // 100, MAX]
    assert values(world, a.cgroup_dir, "min", "low", "wmark_ratio", "wmark_scale_factor", "wmark_min_adj") == [
        2 * GI * 40 // 100,
        2 * GI * 60 // 100,
        90,
        20,
        -25,
    ]
    assert values(world, b.cgroup_dir, "min", "low", "priority") == [GI // 10, 0, 3]
    assert values(world, TIERS[0], "min", "low") == [2 * GI * 40 // 100, 2 * GI * 60 // 100]
    assert values(world, TIERS[1], "min", "priority") == [GI // 10, 3]
    assert values(world, ROOT, "min", "use_priority_oom") == [2 * GI * 40 // 100 + GI // 10, 0]


@pytest.mark.parametrize(
    ("body", "limits", "expected"),
    [
        ({"throttlingPercent": 80}, {"memory": "2Gi"}, (GI + GI * 80 // 100) // 4096 * 4096),
        ({"throttlingPercent": 50}, {}, (GI + 63 * GI // 2) // 4096 * 4096),
        ({"throttlingPercent": 0}, {"memory": "2Gi"}, MAX),
        ({"throttlingPercent": 1, "minLimitPercent": 100}, {"memory": "512Mi"}, GI),
    ],
)
def test_throttling(world, strategy, body, limits, expected):
    classes(world, ls=body)
    pod = world.pod("a", qos="LS", requests={"memory": "1Gi"}, limits=limits)
    tree(world)
    world.run(strategy)
    assert values(world, pod.containers[0].cgroup_dir, "high") == [expected]


def test_an_amplified_node_throttles_at_what_is_there(world, build_node):
    allocatable = {"cpu": "14", "memory": "128Gi"}
    world.node = build_node(allocatable=allocatable, annotations={"node.koordinator.sh/raw-allocatable": '{"memory":"63Gi"}'})
    assert allocatable_memory(world.node) == 63 * GI


def test_a_low_that_protects_is_not_below_min(world, strategy):
    classes(world, ls={"minLimitPercent": 50, "lowLimitPercent": 20})
    pod = world.pod("a", qos="LS", requests={"memory": "1Gi"})
    tree(world)
    world.run(strategy)
    assert values(world, pod.cgroup_dir, "min", "low") == [GI // 2, GI // 2]
    assert values(world, TIERS[0], "min", "low") == [GI // 2, GI * 20 // 100], "pods and containers only"


def test_disabled_classes_get_neutral_values(world, strategy):
    world.spec = {"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": False, "minLimitPercent": 50, "wmarkRatio": 90}}}}
    pod = world.pod("a", qos="LS", requests={"memory": "1Gi"})
    tree(world)
    files = ("min", "low", "wmark_ratio", "wmark_scale_factor", "wmark_min_adj")
    before = values(world, pod.cgroup_dir, *files)
    off, world.spec = world.spec, {"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}}}
    world.machine.put("memory.low", pod.cgroup_dir, "77")
    state = world.run(strategy)
    assert values(world, pod.cgroup_dir, *files) != before
    world.spec = off
    world.run(strategy, state)
    assert values(world, pod.cgroup_dir, *files) == [0, 0, 0, 50, 0]


@pytest.mark.parametrize("spec", [{}, {"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": False, "minLimitPercent": 50}}}}])
def test_what_the_kubelet_protects_stays_protected_while_nothing_is_asked_for(world_v2, strategy, spec):
    """Its own memory QoS writes the same files (cgroup v2)."""
    world = world_v2
    world.spec = spec
    pod = world.pod("a", qos="LS", requests={"memory": "1Gi"})
    tree(world)
    groups = world.machine.host.cgroups
    directories = (groups.kubepods, groups.qos_dir("Burstable"), pod.cgroup_dir, pod.containers[0].cgroup_dir)
    for number, directory in enumerate(directories):
        for name in ("min", "low", "high"):
            world.machine.put(f"memory.{name}", directory, str(4096 * (number + 5)))
    world.run(strategy)
    for number, directory in enumerate(directories):
        assert values(world, directory, "min", "low", "high") == [4096 * (number + 5)] * 3


@pytest.mark.feature("KA-MEM-01")
@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.parametrize("restarts", [False, True])
def test_what_others_protect_after_it_was_switched_off_stays_protected(world_v2, strategy, restarts):
    world = world_v2
    classes(world, ls={"minLimitPercent": 50, "throttlingPercent": 80})
    pod = world.pod("a", qos="LS", requests={"memory": "1Gi"}, limits={"memory": "2Gi"})
    tree(world)
    box = pod.containers[0].cgroup_dir
    state = world.run(strategy)
    world.spec = {}
    for _ in range(2):
        state = world.run(strategy, state)
        world.now += 11
        world.machine.now += 11
        assert values(world, box, "min", "low", "high") == [0, 0, MAX]
    for directory in (TIERS[0], pod.cgroup_dir, box):
        for name in ("min", "low", "high"):
            world.machine.put(f"memory.{name}", directory, "8192")
    for _ in range(11):
        if restarts:
            world.machine.restart()
        state = world.run(strategy, None if restarts else state)
        world.now += 11
        world.machine.now += 11
    for directory in (TIERS[0], pod.cgroup_dir, box):
        assert values(world, directory, "min", "low", "high") == [8192] * 3


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ('{"policy":"none","minLimitPercent":90}', [0, 0, 50]),
        ('{"policy":"auto"}', [0, 95, 20]),
        ('{"policy":"auto","minLimitPercent":25}', [GI // 4, 95, 20]),
        ('{"minLimitPercent":25}', [GI // 4, 80, 20]),
        ('{"policy":"default","wmarkRatio":10}', [GI // 2, 10, 20]),
        ("{rubbish", [GI // 2, 80, 20]),
        ('{"policy":"wild","minLimitPercent":1}', [GI // 2, 80, 20]),
        ('{"minLimitPercent":"many"}', [GI // 2, 80, 20]),
    ],
)
def test_pod_annotation(world, strategy, annotation, expected):
    classes(world, ls={"minLimitPercent": 50, "wmarkRatio": 80})
    pod = world.pod("a", qos="LS", requests={"memory": "1Gi"}, annotations={"koordinator.sh/memoryQOS": annotation})
    tree(world)
    world.run(strategy)
    assert values(world, pod.cgroup_dir, "min", "wmark_ratio", "wmark_scale_factor") == expected


def test_unlabelled_pods_follow_their_kubernetes_class(world, strategy):
    classes(world, lsr={"wmarkRatio": 11}, ls={"wmarkRatio": 12}, be={"wmarkRatio": 13})
    pods = [world.pod(k.lower(), kube_qos=k) for k in ("Guaranteed", "Burstable", "BestEffort")]
    tree(world)
    world.run(strategy)
    assert [values(world, p.cgroup_dir, "wmark_ratio")[0] for p in pods] == [11, 12, 13]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"pageCacheLimitPercent": 25}, ["1", str(GI // 4), "0"]),
        ({"pageCacheLimitPercent": 25, "pageCacheReclaimSync": True}, ["1", str(GI // 4), "1"]),
        ({"pageCacheLimitSize": 2 * GI}, ["1", str(GI), "0"]),
        ({"pageCacheLimitSize": 0}, ["0", "0", "7"]),
        ({"pageCacheLimitPercent": 25, "pageCacheEnable": False}, ["0", str(GI // 4), "0"]),
        ({}, ["7", "7", "7"]),
    ],
)
def test_page_cache_on_v2(world_v2, strategy, body, expected):
    classes(world_v2, ls=body)
    pod = world_v2.pod("a", qos="LS", limits={"memory": "1Gi"})
    tree(world_v2)
    world_v2.run(strategy)
    assert [world_v2.machine.get(f"memory.pagecache_limit.{n}", pod.cgroup_dir) for n in ("enable", "size", "sync")] == expected


@pytest.mark.feature("KA-MEM-02")
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "off", [{"enable": False, "pageCacheLimitPercent": 25}, {"enable": True}, {"enable": True, "pageCacheEnable": False}]
)
def test_a_page_cache_limit_that_nobody_asks_for_any_more_is_taken_back(world_v2, strategy, off, restarts):
    world = world_v2
    files = [f"memory.pagecache_limit.{name}" for name in ("enable", "size", "sync")]
    classes(world, ls={"pageCacheLimitPercent": 25, "pageCacheReclaimSync": True})
    limited, open_ = world.pod("limited", qos="LS", limits={"memory": "1Gi"}), world.pod("open", qos="BE", kube_qos="BestEffort")
    tree(world)
    for pod in world.pods:
        for file in files:
            world.machine.put(file, pod.cgroup_dir, "0" if pod is limited else "7")
    state = world.run(strategy)
    assert [world.machine.get(file, limited.cgroup_dir) for file in files] == ["1", str(GI // 4), "1"]
    classes(world, ls=off)
    if restarts:
        world.machine.restart()
        state = None
    world.run(strategy, state)
    assert [world.machine.get(file, limited.cgroup_dir) for file in files] == ["0"] * 3
    assert [world.machine.get(file, open_.cgroup_dir) for file in files] == ["7"] * 3, "others set it"


def test_nothing_is_decided_again_until_something_changes(world, strategy):
    classes(world, ls={"minLimitPercent": 50})
    world.pod("a", qos="LS", requests={"memory": "1Gi"})
    snapshot = world.snapshot()
    first = strategy.decide(snapshot, snapshot.slo, strategy.initial(), 100.0)
    assert first.batches
    assert strategy.decide(snapshot, snapshot.slo, first.state, 105.0).batches == ()
    assert strategy.decide(snapshot, snapshot.slo, first.state, 111.0).batches
    world.node = None
    assert strategy.decide(world.snapshot(), snapshot.slo, strategy.initial(), 105.0).batches == ()


@pytest.mark.feature("KA-MEM-01")
@pytest.mark.feature("KA-MEM-02")
@pytest.mark.parametrize(("qos", "resource"), [("BE", "kubernetes.io/batch-memory"), ("LS", "memory")])
def test_sidecars_count_for_their_pod(world_v2, strategy, qos, resource):
    classes(world_v2, be={"minLimitPercent": 50, "pageCacheLimitPercent": 50}, ls={"minLimitPercent": 50, "pageCacheLimitPercent": 50})
    kube = "BestEffort" if qos == "BE" else "Burstable"
    amounts = {"requests": {resource: "1Gi"}, "limits": {resource: "2Gi"}}

    def pod(name, sidecar):
        wire = {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {"koordinator.sh/qosClass": qos}},
            "spec": {
                "initContainers": [{"name": "proxy", "restartPolicy": "Always", "resources": sidecar}],
                "containers": [{"name": "main", "resources": amounts}],
            },
            "status": {"phase": "Running", "qosClass": kube},
        }
        made = pod_state(decoder(Pod)(msgspec.json.encode(wire)), world_v2.machine.host.cgroups)
        world_v2.pods.append(made)
        return made.cgroup_dir

    whole, open_ = pod("whole", amounts), pod("open", {})
    tree(world_v2)
    world_v2.run(strategy)
    assert values(world_v2, whole, "min", "pagecache_limit.size") == [GI, 2 * GI]
    assert values(world_v2, open_, "min", "pagecache_limit.size") == [GI // 2, 7], "no limit of the pod, no share of it"
