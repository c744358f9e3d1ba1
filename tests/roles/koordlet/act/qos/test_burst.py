"""Kernel burst and quota burst (KA-BST-01, KA-BST-02)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.koordlet.actuation import kernel
from roles.koordlet.options import Options
from roles.koordlet.qos.burst import DOWN, REMAIN, RESET, UP, CPUBurst, operation, scaled
from roles.koordlet.qos.burst_limits import NodeState, Tokens, new_tokens, node_state
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import CPUBurstStrategy


@pytest.fixture
def burst(gates):
    return CPUBurst(Options(), gates("CPUBurst"))


def strategy(world, policy: str = "auto", **values):
    world.spec = {"cpuBurstStrategy": {"policy": policy, **values}}


def ls_pod(world, quotas=(150_000, 50_000), pod_quota=200_000, **options):
    """An LS pod whose containers have the limits of their quotas; quiet, on an idle node."""
    limits = options.pop("limits", {"cpu": "1"})
    pod = world.pod(options.pop("name", "ls"), qos=options.pop("qos", "LS"), limits=limits, containers=len(quotas), **options)
    put = world.machine.put
    for directory, quota in ((pod.cgroup_dir, pod_quota), *((c.cgroup_dir, q) for c, q in zip(pod.containers, quotas, strict=True))):
        put("cpu.cfs_quota_us", directory, f"{quota} 100000" if world.machine.v2 else str(quota))
        put("cpu.cfs_burst_us", directory, "0")
    world.use(1.0)
    return pod


def throttle(world, pod, *ratios):
    for container, ratio in zip(pod.containers, ratios, strict=True):
        world.sample("container_cpu_throttled", ratio, container.id)


def quotas(world, pod):
    get = world.machine.get
    return [get("cpu.cfs_quota_us", d) for d in (pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers))]


def bursts(world, pod):
    get = world.machine.get
    return [get("cpu.cfs_burst_us", d) for d in (pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers))]


# -- kernel burst ------------------------------------------------------------------------------------------------------------


def test_kernel_burst_of_containers_and_their_pod(world, burst):
    strategy(world, "cpuBurstOnly", cpuBurstPercent=300)
    pod = ls_pod(world, (100_000, 100_000))
    world.run(burst)
    assert bursts(world, pod) == ["600000", "300000", "300000"]
    strategy(world, "none")
    world.run(burst)
    assert bursts(world, pod) == ["0", "0", "0"]


def test_a_pod_that_has_what_it_wants_is_left_alone_until_something_changes(world, burst):
    strategy(world, "none")
    pod = ls_pod(world, (100_000,), pod_quota=100_000)
    state = world.run(burst)
    first = world.decide(burst, state)
    assert set(first.state.quiet) == {pod.uid}
    assert not any(first.batches), "nothing to write"
    again = world.decide(burst, first.state)
    assert (again.batches, again.samples, again.cleared) == ((), (), ()), "nothing to count either"
    # a second pod: the gauges are rebuilt whole
    ls_pod(world, (100_000,), name="other", pod_quota=100_000)
    both = world.decide(burst, again.state)
    assert {s.labels[1] for s in both.samples} == {"ls", "other"}
    assert both.cleared
    # somebody else changes a quota
    world.machine.put("cpu.cfs_quota_us", pod.containers[0].cgroup_dir, "70000")
    state = world.run(burst, both.state)
    assert quotas(world, pod)[1] == "70000", "with nothing enabled what others set stays"
    # the strategy changes
    strategy(world, "cpuBurstOnly")
    world.run(burst, state)
    assert bursts(world, pod)[1] == "1000000"
    # time passes: the executor is asked again
    state = world.run(burst, world.run(burst))
    world.now += 61
    assert any(world.decide(burst, state).batches)


def test_annotation_overlays_the_node_and_bad_ones_do_not(world, burst):
    strategy(world, "none")
    own = ls_pod(world, (100_000,), name="own", annotations={"koordinator.sh/cpuBurst": '{"policy":"cpuBurstOnly","cpuBurstPercent":200}'})
    bad = ls_pod(world, (100_000,), name="bad", annotations={"koordinator.sh/cpuBurst": '{"policy":"everything"}'})
    worse = ls_pod(world, (100_000,), name="worse", annotations={"koordinator.sh/cpuBurst": "{"})
    worst = ls_pod(world, (100_000,), name="worst", annotations={"koordinator.sh/cpuBurst": '{"policy":["auto"]}'})
    world.run(burst)
    assert [bursts(world, p)[1] for p in (own, bad, worse, worst)] == ["200000", "0", "0", "0"]


@pytest.mark.parametrize(("qos", "kube"), [("BE", "BestEffort"), ("LSR", "Guaranteed"), ("LSE", "Guaranteed")])
def test_other_classes_are_left_alone(world, burst, qos, kube):
    strategy(world, "auto")
    pod = ls_pod(world, (100_000,), qos=qos, kube_qos=kube)
    throttle(world, pod, 0.5)
    world.run(burst)
    assert (bursts(world, pod), quotas(world, pod)) == (["0", "0"], ["200000", "100000"])


def test_v2_burst_is_bounded_by_the_quota(world_v2, burst):
    strategy(world_v2, "cpuBurstOnly", cpuBurstPercent=1000)
    pod = ls_pod(world_v2, (100_000,), 100_000)
    world_v2.machine.put("cpu.cfs_burst_us", "kubepods.slice", "0")
    world_v2.run(burst)
    assert bursts(world_v2, pod) == ["100000", "100000"]


def test_v1_kernels_that_refuse_more_than_the_quota(world, burst, monkeypatch):
    strategy(world, "cpuBurstOnly", cpuBurstPercent=1000)
    pod = ls_pod(world, (100_000,), 200_000)
    real = kernel.write

    def write(path, text):
        if path.endswith("burst_us") and int(text) > int(Path(path).with_name("cpu.cfs_quota_us").read_text()):
            raise kernel.from_os_error(path, OSError(errno.EINVAL, os.strerror(errno.EINVAL)), "refused")
        real(path, text)

    monkeypatch.setattr(kernel, "write", write)
    world.run(burst)
    assert bursts(world, pod) == ["100000", "100000"]


@pytest.mark.feature("KA-BST-01")
def test_a_burst_leaves_room_for_a_limit_that_was_made_smaller(world_v2, burst):
    """The kernel refuses less quota than burst: the kubelet could not carry out what the spec says already."""
    strategy(world_v2, "cpuBurstOnly", cpuBurstPercent=1000)
    pod = ls_pod(world_v2, (200_000,), 200_000, limits={"cpu": "450m"})
    world_v2.machine.put("cpu.cfs_burst_us", "kubepods.slice", "0")
    world_v2.run(burst)
    assert bursts(world_v2, pod) == ["45000", "45000"]


def test_without_the_file_nothing_is_written(world, burst):
    strategy(world, "cpuBurstOnly")
    pod = ls_pod(world, (100_000,))
    for directory in (pod.cgroup_dir, pod.containers[0].cgroup_dir):
        os.unlink(world.machine.host.cgroups.file("cpu.cfs_burst_us", directory))
    world.run(burst)


# -- quota burst -------------------------------------------------------------------------------------------------------------


def test_throttled_containers_grow_to_their_ceiling_and_come_back(world, burst):
    strategy(world, "cfsQuotaBurstOnly", cfsQuotaBurstPercent=150)
    pod = ls_pod(world, (100_000, 100_000), 200_000)
    seen = []
    for _ in range(4):
        throttle(world, pod, 0.4, 0.0)
        world.run(burst)
        seen.append(quotas(world, pod))
        world.now += 1
        world.use(1.0)
    assert seen == [
        ["220000", "120000", "100000"],
        ["244000", "144000", "100000"],
        ["250000", "150000", "100000"],
        ["250000", "150000", "100000"],
    ]
    strategy(world, "none")
    world.run(burst)
    assert quotas(world, pod) == ["200000", "100000", "100000"]


def test_an_unlimited_pod_is_left_alone(world, burst):
    strategy(world, "auto")
    pod = ls_pod(world, (100_000,), -1)
    throttle(world, pod, 0.4)
    world.run(burst)
    assert quotas(world, pod) == ["-1", "120000"]


def test_growth_writes_the_pod_first_and_shrinking_the_container(world, burst):
    strategy(world, "cfsQuotaBurstOnly")
    pod = ls_pod(world, (100_000,), 100_000)
    throttle(world, pod, 0.4)
    (pair, *_) = world.decide(burst).batches
    assert [w.target for w in pair] == [pod.cgroup_dir, pod.containers[0].cgroup_dir]
    world.run(burst)
    assert quotas(world, pod) == ["120000", "120000"]
    strategy(world, "none")
    pairs = [[w.target for w in b] for b in world.decide(burst).batches if next(iter(b)).resource == "cpu.cfs_quota_us"]
    assert pairs == [[pod.containers[0].cgroup_dir, pod.cgroup_dir]]


def test_a_failed_first_write_stops_the_pair(world, burst):
    strategy(world, "cfsQuotaBurstOnly")
    pod = ls_pod(world, (100_000,), 100_000)
    throttle(world, pod, 0.4)
    os.chmod(world.machine.host.cgroups.file("cpu.cfs_quota_us", pod.cgroup_dir), 0)
    outcome = world.decide(burst)

    def refuse(path, text):
        raise kernel.from_os_error(path, OSError(errno.EINVAL, "no"), "refused")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "write", refuse)
        applied = world.machine.executor.apply(outcome.batches[:1], rule="r", now=1)
    assert len(applied.failed) == 1
    assert quotas(world, pod)[1] == "100000"


def test_pinned_and_normalized_pods_have_one_owner_of_their_quota(world, gates, build_node):
    strategy(world, "none")
    status = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0"}'}
    pinned = ls_pod(world, (-1,), -1, name="pinned", kube_qos="Guaranteed", requests={"cpu": "1"}, qos="", annotations=status)
    plain = ls_pod(world, (100_000,), -1, name="plain")
    world.node = build_node(annotations={"node.koordinator.sh/cpu-normalization-ratio": "1.5"})
    world.run(CPUBurst(Options(), gates("CPUBurst", "CPUSetAllocator", "CPUNormalization")))
    assert quotas(world, pinned) == ["-1", "-1"]
    assert quotas(world, plain) == ["-1", "100000"], "what burst did not raise it does not lower"


@pytest.mark.parametrize(
    ("used", "be", "expected"),
    [
        (7.0, 0.0, NodeState.IDLE),
        (7.3, 0.0, NodeState.COOLING),
        (8.0, 0.0, NodeState.OVERLOAD),
        (12.0, 5.0, NodeState.IDLE),
    ],
)
def test_node_state_is_that_of_the_share_pool(world, used, be, expected):
    strategy(world)
    world.pod("be", qos="BE", kube_qos="BestEffort")
    world.use(used, be=be)
    assert node_state(world.snapshot(), world.slo.cpu_burst, 1) is expected


def test_node_state_without_cpus_of_lsr_pods_and_without_samples(world):
    strategy(world)
    assert node_state(world.snapshot(), world.slo.cpu_burst, 1) is NodeState.UNKNOWN
    world.pod("lsr", qos="LSR", kube_qos="Guaranteed", requests={"cpu": "8"})
    world.use(5.0, lsr=0.5)
    assert node_state(world.snapshot(), world.slo.cpu_burst, 1) is NodeState.OVERLOAD


AUTO = CPUBurstStrategy(policy="auto")


@pytest.mark.parametrize(
    ("config", "allowed", "throttled", "node", "expected"),
    [
        (CPUBurstStrategy(policy="none"), True, 0.5, NodeState.OVERLOAD, RESET),
        (CPUBurstStrategy(policy="cpuBurstOnly"), True, 0.5, NodeState.IDLE, RESET),
        (AUTO, True, 0.5, NodeState.IDLE, UP),
        (AUTO, True, 0.0, NodeState.IDLE, REMAIN),
        (AUTO, True, None, NodeState.IDLE, REMAIN),
        (AUTO, False, 0.5, NodeState.IDLE, DOWN),
        (AUTO, False, 0.5, NodeState.COOLING, DOWN),
        (AUTO, True, 0.5, NodeState.COOLING, REMAIN),
        (AUTO, True, 0.5, NodeState.UNKNOWN, REMAIN),
        (AUTO, True, 0.5, NodeState.OVERLOAD, DOWN),
        (AUTO, True, 0.0, NodeState.OVERLOAD, DOWN),
    ],
)
def test_operations(config, allowed, throttled, node, expected):
    assert operation(config, allowed, throttled, node) == expected


@given(st.sampled_from([UP, DOWN, REMAIN, RESET]), st.integers(-1, 10**7), st.integers(1000, 10**6), st.integers(100, 1000))
def test_quota_stays_between_base_and_ceiling(what, current, base, percent):
    value = scaled(what, current, base, CPUBurstStrategy(cfs_quota_burst_percent=percent))
    assert base <= value <= base * percent // 100


# -- token bucket ------------------------------------------------------------------------------------------------------------


def test_tokens_are_spent_and_earned_by_whole_seconds():
    bucket = Tokens(capacity=1000, tokens=500, at=0.0, period=10)
    assert bucket.counted(160, 2.7) == Tokens(1000, 380, 2.0, 10)
    assert bucket.counted(59, 3.0).tokens == 500 + 41 * 3
    assert bucket.counted(80, 3.0).tokens == 500
    assert bucket.counted(10_000, 5.0).tokens == -1000
    assert bucket.counted(0, 100.0).tokens == 1000


@given(st.text(min_size=1), st.integers(0, 10**6))
def test_a_new_bucket_is_less_than_half_full(container_id, capacity):
    tokens = new_tokens(container_id, capacity, 10, 0.0).tokens
    assert 0 <= tokens < max(capacity // 2, 1)


def test_a_container_that_always_bursts_is_denied_after_its_period(world, burst):
    strategy(world, "cfsQuotaBurstOnly", cfsQuotaBurstPercent=200, cfsQuotaBurstPeriodSeconds=5)
    pod = ls_pod(world, (100_000,), -1)
    state, top = None, 0
    for _ in range(20):
        throttle(world, pod, 0.9)
        world.sample("container_cpu_usage", 1.9, pod.containers[0].id)
        state = world.run(burst, state)
        top = max(top, int(quotas(world, pod)[1]))
        world.now += 1
        world.use(1.0)
    assert top > 100_000
    assert quotas(world, pod)[1] == "100000"
    assert state.tokens[pod.containers[0].id].tokens <= 0


@pytest.mark.feature("KA-BST-02")
@pytest.mark.parametrize(("quota", "period"), [(-1, 100_000), (20_000, 10_000), (250_000, 100_000), (7_000, 100_000)])
@pytest.mark.parametrize("kernel_burst", ["0", "5000"])
def test_with_nothing_enabled_nothing_is_written(world, burst, quota, period, kernel_burst):
    pod = ls_pod(world, (quota,), quota, limits={"cpu": "2"})
    for directory in (pod.cgroup_dir, pod.containers[0].cgroup_dir):
        world.machine.put("cpu.cfs_period_us", directory, str(period))
        world.machine.put("cpu.cfs_burst_us", directory, kernel_burst)
    for policy in ("none", None):
        world.spec = {} if policy is None else {"cpuBurstStrategy": {"policy": policy}}
        assert not any(world.decide(burst).batches)


@pytest.mark.feature("KA-BST-02")
def test_quotas_are_of_the_period_that_the_kubelet_set(world, burst):
    strategy(world, "auto", cfsQuotaBurstPercent=150, cpuBurstPercent=200)
    pod = ls_pod(world, (10_000,), 10_000, limits={"cpu": "1"})
    for directory in (pod.cgroup_dir, pod.containers[0].cgroup_dir):
        world.machine.put("cpu.cfs_period_us", directory, "10000")
    throttle(world, pod, 0.4)
    state = None
    for _ in range(4):
        state = world.run(burst, state)
        world.now += 1
        world.use(1.0)
        throttle(world, pod, 0.4)
    assert quotas(world, pod) == ["15000", "15000"], "half more of ten milliseconds"
    assert max(int(text) for text in bursts(world, pod)) <= 20_000


@pytest.mark.feature("KA-BST-02")
def test_a_raised_quota_is_taken_back_by_the_next_agent_too(world, burst):
    strategy(world, "cfsQuotaBurstOnly")
    pod = ls_pod(world, (100_000,), 100_000)
    throttle(world, pod, 0.4)
    world.run(burst)
    assert quotas(world, pod) == ["120000", "120000"]
    world.spec = {}
    world.run(CPUBurst(burst.options, burst.gate))
    assert quotas(world, pod) == ["100000", "100000"]


@pytest.mark.feature("KA-BST-01")
@pytest.mark.feature("KA-BST-02")
@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.parametrize("restarts", [False, True])
def test_what_others_set_after_it_was_switched_off_stays(world, burst, restarts):
    strategy(world, "auto")
    pod = ls_pod(world, (100_000, 100_000), 200_000)
    throttle(world, pod, 0.4, 0.4)
    state = world.run(burst)
    strategy(world, "none")
    assert quotas(world, pod) == ["240000", "120000", "120000"]
    state = world.run(burst, state)
    assert (quotas(world, pod), bursts(world, pod)) == (["200000", "100000", "100000"], ["0"] * 3)
    directories = (pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers))
    for directory, quota in zip(directories, ("150000", "50000", "100000"), strict=True):
        world.machine.put("cpu.cfs_quota_us", directory, quota)
        world.machine.put("cpu.cfs_burst_us", directory, "7000")
    for _ in range(120):
        world.now += 1
        world.machine.now += 1
        world.use(1.0)
        if restarts:
            world.machine.restart()
        state = world.run(burst, None if restarts else state)
    assert (quotas(world, pod), bursts(world, pod)) == (["150000", "50000", "100000"], ["7000"] * 3)


@pytest.mark.feature("KA-BST-02")
def test_a_container_gives_back_its_burst_in_a_pod_that_others_narrowed(world, burst):
    strategy(world, "cfsQuotaBurstOnly")
    pod = ls_pod(world, (100_000, 100_000), 200_000)
    throttle(world, pod, 0.4, 0.0)
    state = world.run(burst)
    assert quotas(world, pod) == ["220000", "120000", "100000"]
    world.machine.put("cpu.cfs_quota_us", pod.cgroup_dir, "150000")
    strategy(world, "none")
    world.run(burst, state)
    assert quotas(world, pod) == ["150000", "100000", "100000"]


# -- resizes in place --------------------------------------------------------------------------------------------------------


def asks_for(world, pod, cpu: str, reason: str, has: str = "1"):
    """The pod as the kubelet lists it while it asks for another limit."""
    wire = msgspec.to_builtins(pod.pod)
    for container, status in zip(wire["spec"]["containers"], wire["status"]["containerStatuses"], strict=True):
        container["resources"]["limits"]["cpu"] = cpu
        status["resources"] = {"limits": {"cpu": has}}
    wire["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    world.pods[world.pods.index(pod)] = made = pod_state(msgspec.convert(wire, type(pod.pod)), world.machine.host.cgroups)
    return made


def turn(world, burst, pod, throttled: float):
    throttle(world, pod, throttled)
    world.run(burst)
    world.now += 1
    world.use(1.0)
    return quotas(world, pod)[1], bursts(world, pod)[1]


@pytest.mark.feature("SCH-RSZ-05")
@pytest.mark.parametrize("reason", ["Deferred", "Infeasible"])
@pytest.mark.parametrize("asked", ["2", "500m"])
def test_a_limit_that_the_kubelet_has_not_granted_is_nobody_s_yet(world, burst, reason, asked):
    """Quota burst stays between the limit that is in force and its ceiling: a refused growth is no gift, a shrink that waits no cut."""
    strategy(world, "auto", cfsQuotaBurstPercent=150, cpuBurstPercent=100)
    pod = asks_for(world, ls_pod(world, (100_000,), pod_quota=100_000), asked, reason)
    assert [turn(world, burst, pod, throttled) for throttled in (0.0, 0.4, 0.4, 0.4)] == [
        ("100000", "100000"), ("120000", "100000"), ("144000", "100000"), ("150000", "100000"),
    ]  # fmt: skip


@pytest.mark.feature("SCH-RSZ-05")
def test_a_quota_that_the_kubelet_has_just_resized_is_not_undone(world, burst):
    """Its cgroup is new before its status is."""
    strategy(world, "auto", cfsQuotaBurstPercent=150)
    pod = asks_for(world, ls_pod(world, (100_000,), pod_quota=100_000), "2", "Deferred")
    assert turn(world, burst, pod, 0.0)[0] == "100000"
    for directory in (pod.cgroup_dir, pod.containers[0].cgroup_dir):
        world.machine.put("cpu.cfs_quota_us", directory, "200000")
    assert turn(world, burst, pod, 0.0)[0] == "200000"
    resized = asks_for(world, pod, "2", "", has="2")
    assert turn(world, burst, resized, 0.0)[0] == "200000"
    assert turn(world, burst, resized, 0.4)[0] == "240000", "the new limit is the base now"


@pytest.mark.feature("KA-BST-02")
def test_a_burst_of_a_normalized_limit_begins_with_a_quota_that_the_kernel_takes(world, gates, build_node):
    strategy(world, "cfsQuotaBurstOnly")
    pod = ls_pod(world, (1000,), 1000, limits={"cpu": "10m"})
    world.node = build_node(annotations={"node.koordinator.sh/cpu-normalization-ratio": "1.2"})
    world.now += 1
    world.use(16.0)  # an overloaded node takes bursts back
    world.run(CPUBurst(Options(), gates("CPUBurst", "CPUNormalization")))
    assert quotas(world, pod) == ["1000", "1000"]


# -- the pod's quota beside those of its containers --------------------------------------------------------------------------


@pytest.mark.feature("KA-BST-02")
@pytest.mark.parametrize("policy", ["cfsQuotaBurstOnly", "none"])
def test_a_container_that_restarts_leaves_nothing_of_its_burst_with_the_pod(world, burst, policy):
    strategy(world, "cfsQuotaBurstOnly")
    pod = ls_pod(world, (100_000, 100_000), 200_000)
    throttle(world, pod, 0.4, 0.0)
    world.run(burst)
    assert quotas(world, pod) == ["220000", "120000", "100000"]
    # the kubelet makes the container anew, with its limit, and never looks at the pod's quota again
    world.machine.put("cpu.cfs_quota_us", pod.containers[0].cgroup_dir, "100000")
    strategy(world, policy)
    world.now += 1
    throttle(world, pod, 0.0, 0.0)
    world.use(1.0)
    world.run(burst)
    assert quotas(world, pod) == ["200000", "100000", "100000"]


@pytest.mark.feature("KA-BST-02")
def test_bursts_do_not_add_up_over_restarts(world, burst):
    strategy(world, "cfsQuotaBurstOnly")
    pod = ls_pod(world, (100_000, 100_000), 200_000)
    for _ in range(5):
        world.machine.put("cpu.cfs_quota_us", pod.containers[0].cgroup_dir, "100000")
        throttle(world, pod, 0.4, 0.4)
        world.run(burst)
        world.now += 1
        world.use(1.0)
    total, *own = map(int, quotas(world, pod))
    assert total == sum(own)


@pytest.mark.feature("SCH-RSZ-05")
def test_a_burst_that_ends_takes_nothing_of_the_limit_that_a_pod_was_resized_to(world, burst):
    """The kubelet sets the pod's quota to the sum of the limits, whatever a container has by bursting."""
    strategy(world, "cfsQuotaBurstOnly")
    pod = ls_pod(world, (100_000, 100_000), 200_000)
    for _ in range(3):
        throttle(world, pod, 0.4, 0.0)
        world.run(burst)
        world.now += 1
        world.use(1.0)
    world.machine.put("cpu.cfs_quota_us", pod.cgroup_dir, "200000")
    strategy(world, "none")
    throttle(world, pod, 0.0, 0.0)
    world.run(burst)
    assert quotas(world, pod) == ["200000", "100000", "100000"]


def overloaded(world):
    """A node that takes bursts back, a second later."""
    world.now += 1
    world.use(16.0)


@pytest.mark.feature("KA-BST-02")
@pytest.mark.feature("KA-HK-04")
@pytest.mark.parametrize(
    ("restarts", "labels", "whole"), [(False, {}, 80_000), (True, {}, 100_000), (False, {"koord-app": "koordlet"}, 100_000)]
)
def test_a_pod_with_normalized_containers_has_room_for_one_that_starts_with_its_whole_limit(
    world, gates, build_node, restarts, labels, whole
):
    strategy(world, "cfsQuotaBurstOnly")
    burst = CPUBurst(Options(), gates("CPUBurst", "CPUNormalization"))
    world.node = build_node(annotations={"node.koordinator.sh/cpu-normalization-ratio": "1.25"})
    pod = ls_pod(world, (100_000,), 100_000, labels=labels)
    overloaded(world)
    state = world.run(burst)
    if restarts:
        assert quotas(world, pod) == ["80000", "80000"]
        Path(world.machine.host.cgroups.file("cpu.cfs_quota_us", pod.containers[0].cgroup_dir)).unlink()
        world.pods.clear()
        pod = world.pod("ls", qos="LS", limits={"cpu": "1"}, running=False)
        overloaded(world)
        world.run(burst, state)
    assert int(world.machine.get("cpu.cfs_quota_us", pod.cgroup_dir)) == whole
