"""BE CPU suppress by cpuset and by quota, and giving back (KA-SUP-01, KA-SUP-02, KA-SUP-03)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.cpuset import CPUSet
from koord.api import names
from koord.api.objects import ContainerState as State
from koord.api.objects import ContainerStateWaiting, ContainerStatus
from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.options import Options
from roles.koordlet.qos.allowance import allowance
from roles.koordlet.qos.picker import Pools, divide, pick
from roles.koordlet.qos.starting import starting_quota
from roles.koordlet.qos.suppress import BECPUSuppress

QOS = "kubepods.slice/kubepods-besteffort.slice"
RESERVED = "node.koordinator.sh/reservation"


@pytest.fixture
def suppress(gates) -> BECPUSuppress:
    return BECPUSuppress(Options(), gates("BECPUSuppress"))


def be_tree(world, cpus: str = "0-15", quota: str = "-1", *, pods: int = 1, child_quota: str = "-1") -> list[str]:
    """BE pods with one container each; the directories below the level."""
    machine = world.machine
    out = []
    for i in range(pods):
        pod = world.pod(f"be{i}", qos="BE", kube_qos="BestEffort")
        out += [pod.cgroup_dir, pod.containers[0].cgroup_dir]
    for directory in [QOS, *out]:
        machine.put("cpuset.cpus", directory, cpus)
        machine.put("cpu.cfs_quota_us", directory, quota if directory == QOS else child_quota)
    return out


def taken(world, directories, cpus: str, quota: str) -> None:
    """As if suppression had been on: the tier and what is in it have been narrowed, and that is on record."""
    writes = [Write("cpu.cfs_quota_us", QOS, quota), *(Write("cpuset.cpus", d, cpus) for d in directories)]
    assert not world.machine.executor.apply([sequence(*writes)], rule="BECPUSuppress", now=world.now).failed


def threshold(world, **values) -> None:
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True, **values}}


# -- allowance ---------------------------------------------------------------------------------------------------------------


def test_allowance_subtracts_everybody_but_the_best_effort_tier(world):
    world.spec = {
        "resourceUsedThresholdWithBE": {"enable": True},
        "hostApplications": [
            {"name": "nginx", "qos": "LS"},
            {"name": "batch", "qos": "BE", "cgroupPath": {"base": "KubepodsBesteffort"}},
            {"name": "fake-be", "qos": "BE"},
        ],
    }
    world.pod("ls", qos="LS")
    world.pod("be", qos="BE", kube_qos="BestEffort")
    world.pod("plain", kube_qos="BestEffort")
    world.load(10.0, ls=2.0, be=3.0, plain=0.5, stranger=1.0)
    for app, used in (("nginx", 0.4), ("batch", 0.3), ("fake-be", 0.2)):
        world.sample("host_application_cpu_usage", used, app)
    allow = allowance(world.snapshot(), world.slo.host_applications, world.slo.threshold)
    assert (allow.non_be_pods, allow.non_be_host_apps) == (3000, 600)
    assert allow.system == pytest.approx(2600, abs=1)
    assert allow.milli == pytest.approx(16_000 * 65 // 100 - 3000 - 600 - 2600, abs=1)


@pytest.mark.feature("BEY-PSI-01")
@pytest.mark.parametrize(("now", "counted"), [(6.0, 5000), (2.0, 2000), (None, 2000)])
def test_a_load_that_has_just_risen_counts_as_it_is_now(world, now, counted):
    """The sample is a mean since the last tick; what the pressure path saw is of the last tenths of a second."""
    threshold(world)
    world.pod("ls", qos="LS")
    world.pod("be", qos="BE", kube_qos="BestEffort")
    world.pod("odd", qos="BE", kube_qos="Burstable")
    world.load(10.0, ls=2.0, be=3.0, odd=1.0)
    snapshot = replace(world.snapshot(), others_cpu=now)
    allow = allowance(snapshot, (), world.slo.threshold)
    assert allow.non_be_pods == counted, "a best-effort pod on another level is not one of the others"
    assert allow.milli == pytest.approx(16_000 * 65 // 100 - counted - allow.system, abs=1)


@pytest.mark.parametrize(
    ("reservation", "allocatable", "system"),
    [
        (None, {"cpu": "14"}, 2000),
        ('{"resources":{"cpu":"3"}}', {"cpu": "14"}, 3000),
        ('{"resources":{"cpu":"3"},"reservedCPUs":"0-4"}', {"cpu": "14"}, 5000),
        ("rubbish", {"cpu": "14"}, 2000),
        (None, {"cpu": "20"}, 500),
    ],
)
def test_reserved_cpu_is_the_least_that_the_system_counts(world, build_node, reservation, allocatable, system):
    threshold(world)
    world.node = build_node(allocatable=allocatable, annotations={RESERVED: reservation} if reservation else {})
    world.load(0.5)
    assert allowance(world.snapshot(), (), world.slo.threshold).system == system


def test_amplification_hides_nothing_that_is_reserved(world, build_node):
    threshold(world)
    world.node = build_node(allocatable={"cpu": "28"}, annotations={"node.koordinator.sh/raw-allocatable": '{"cpu":"14"}'})
    world.load(0.5)
    assert allowance(world.snapshot(), (), world.slo.threshold).system == 2000


def test_no_sample_means_no_decision(world, suppress, gates):
    be_tree(world, "0-7", "100000")
    threshold(world)
    for policy in ("cpuset", "cfsQuota"):
        threshold(world, cpuSuppressPolicy=policy)
        world.use(be0=1.0)
        assert world.decide(suppress).batches == ()
    world.use(1.0)
    world.now += 3
    world.use(1.0)
    assert world.decide(suppress).batches == (), "who of the pods uses it is not known"
    world.load(1.0)
    world.node = None
    assert world.decide(suppress).batches == ()
    world.pods.clear()
    assert world.decide(suppress).batches == ()


# -- quota -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "node_use", "expected"),
    [
        ("-1", 12.4, "2000"),  # nothing left: the least
        ("1600000", 5.4, "500000"),  # shrinks at once
        ("100000", 2.4, "260000"),  # grows by a tenth of the node
        ("512000", 5.4, "512000"),  # less than 1 % away
        ("-1", 10.3, "10000"),  # close to -1 as a number, but -1 is no limit
    ],
)
def test_quota_policy(world, suppress, old, node_use, expected):
    be_tree(world, "0-7", old)
    threshold(world, cpuSuppressPolicy="cfsQuota")
    world.load(node_use)
    world.run(suppress)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == expected
    assert world.machine.get("cpuset.cpus", QOS) == "0-15", "the cpuset is given back"


def test_quota_floor(world, suppress):
    be_tree(world, "0-15", "900000")
    threshold(world, cpuSuppressPolicy="cfsQuota", cpuSuppressThresholdPercent=5, cpuSuppressMinPercent=10)
    world.load(1.5)
    world.run(suppress)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "160000"


def test_quotas_of_children_make_way_on_v1(world, suppress):
    pod, box = be_tree(world, "0-15", "-1", child_quota="700000")
    threshold(world, cpuSuppressPolicy="cfsQuota")
    world.load(5.4)
    world.run(suppress)
    assert [world.machine.get("cpu.cfs_quota_us", d) for d in (QOS, pod, box)] == ["500000", "-1", "-1"]


def test_quotas_of_what_a_container_made_make_way_on_v1(world, suppress):
    _, box = be_tree(world, "0-15", "-1")
    inner = [f"{box}/docker", f"{box}/docker/one"]
    for directory in inner:
        world.machine.put("cpu.cfs_quota_us", directory, "700000")
    threshold(world, cpuSuppressPolicy="cfsQuota")
    world.load(5.4)
    world.run(suppress)
    assert [world.machine.get("cpu.cfs_quota_us", d) for d in (QOS, *inner)] == ["500000", "-1", "-1"]


def test_quota_on_v2(world_v2, suppress):
    world_v2.pod("be", qos="BE", kube_qos="BestEffort")
    world_v2.machine.put("cpu.cfs_quota_us", QOS, "max 100000")
    threshold(world_v2, cpuSuppressPolicy="cfsQuota")
    world_v2.load(5.4)
    world_v2.run(suppress)
    assert world_v2.machine.get("cpu.cfs_quota_us", QOS) == "500000 100000"


def test_a_quota_is_one_of_the_period_that_a_group_has(world, suppress):
    """100 ms is only the default: kubelets and administrators set others, and 1 core is 1 core in each of them."""
    pod, box = be_tree(world, "0-15", "800000", child_quota="60000")
    for directory, period in ((QOS, "50000"), (pod, "10000"), (box, "100000")):
        world.machine.put("cpu.cfs_period_us", directory, period)
    threshold(world, cpuSuppressPolicy="cfsQuota")
    world.load(5.4)
    outcome = world.decide(suppress)
    assert [s.value for s in outcome.samples if s.labels == ("cfsQuota",)] == [5.0]
    state = world.run(suppress)
    assert [world.machine.get("cpu.cfs_quota_us", d) for d in (QOS, pod, box)] == ["250000", "-1", "60000"], "six cores, beside 0.6"
    world.now += 10
    world.load(5.4)
    assert [s.value for s in world.decide(suppress, state).samples if s.labels == ("cfsQuota",)] == [5.0]
    world.now += 1
    world.load(2.4)
    world.run(suppress, state)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "330000", "a tenth of the node more"


def test_a_quota_of_another_period_on_v2(world_v2, suppress):
    world_v2.pod("be", qos="BE", kube_qos="BestEffort")
    world_v2.machine.put("cpu.cfs_quota_us", QOS, "max 20000")
    threshold(world_v2, cpuSuppressPolicy="cfsQuota")
    world_v2.load(5.4)
    world_v2.run(suppress)
    assert world_v2.machine.get("cpu.cfs_quota_us", QOS) == "100000 20000"


def test_unreadable_quota_is_left_alone(world, suppress):
    be_tree(world, "0-15", "rubbish")
    threshold(world, cpuSuppressPolicy="cfsQuota")
    world.load(5.4)
    world.run(suppress)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "rubbish"


# -- cpuset ------------------------------------------------------------------------------------------------------------------


def test_cpuset_policy_narrows_every_level(world, suppress):
    dirs = be_tree(world, pods=2)
    threshold(world)
    world.load(6.4)  # 16 × 65 % − 6.4 = 4
    world.run(suppress)
    assert {world.machine.get("cpuset.cpus", d) for d in (QOS, *dirs)} == {"0-3"}


def test_what_a_container_made_is_narrowed_before_it_on_v1(world, suppress, monkeypatch):
    """The kernel refuses a group fewer CPUs than a group in it has."""
    dirs = be_tree(world)
    dirs += [f"{dirs[-1]}/docker", f"{dirs[-1]}/docker/one"]
    for directory in dirs[-2:]:
        world.machine.put("cpuset.cpus", directory, "0-15")
    written, write = [], kernel.write
    monkeypatch.setattr(kernel, "write", lambda path, *rest, **options: (written.append(path), write(path, *rest, **options)))
    threshold(world)
    world.load(6.4)
    world.run(suppress)
    assert {world.machine.get("cpuset.cpus", d) for d in (QOS, *dirs)} == {"0-3"}
    depths = [path.count("/") for path in written if path.endswith("cpuset.cpus")]
    assert depths == sorted(depths, reverse=True)


def test_cpuset_grows_by_a_tenth_of_the_node(world, suppress):
    be_tree(world, "0-3")
    threshold(world)
    world.load(0.4)
    state = world.run(suppress)
    assert world.machine.get("cpuset.cpus", QOS) == "0-5"
    world.now += 1
    world.load(0.4)
    world.run(suppress, state)
    assert world.machine.get("cpuset.cpus", QOS) == "0-7"


@pytest.mark.parametrize("policy", ["none", "static"])
def test_an_allowance_beside_a_whole_number_of_cpus_does_not_swing(world, suppress, policy):
    world.nrt = {"kubelet.koordinator.sh/cpu-manager-policy": f'{{"policy":"{policy}"}}'}
    _, box = be_tree(world, "0-3")
    threshold(world)
    state, sizes = None, []
    for turn in range(12):  # 16 × 65 % − 6.4 = 4, and 5 milli more or less
        world.now += 1
        world.load(6.4 + (0.005 if turn % 2 else -0.005))
        state = world.run(suppress, state)
        sizes.append(len(CPUSet.parse(world.machine.get("cpuset.cpus", box))))
    assert sum(one != other for one, other in pairwise(sizes)) <= 2, sizes
    world.now += 1
    world.load(6.0)
    world.run(suppress, state)
    assert world.machine.get("cpuset.cpus", box) == "0-4", "more than noise is given at once"


def bound(world, qos, cpus, number):
    status = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus})}
    world.pod(qos.lower(), qos=qos, requests={"cpu": str(number)}, annotations=status)


def test_cpus_of_others(world, suppress):
    bound(world, "LSE", "0-3", 4)
    bound(world, "LSR", "4-7", 4)
    world.nrt = {
        RESERVED: '{"reservedCPUs":"8,9"}',
        "node.koordinator.sh/system-qos-resource": '{"cpuset":"10,11"}',
    }
    dirs = be_tree(world)
    threshold(world)
    world.load(6.4)
    world.run(suppress)
    # half of the candidates are LSR's, so is half of the 4 CPUs
    assert {world.machine.get("cpuset.cpus", d) for d in (QOS, *dirs)} == {"4-5,12-13"}
    world.nrt["node.koordinator.sh/system-qos-resource"] = '{"cpuset":"10,11","cpusetExclusive":false}'
    world.run(suppress)
    assert world.machine.get("cpuset.cpus", QOS) == "4,10-12"


def test_static_kubelet_policy_narrows_containers_only(world, suppress):
    bound(world, "LSE", "0-3", 4)
    world.nrt = {"kubelet.koordinator.sh/cpu-manager-policy": '{"policy":"static"}'}
    pod, box = be_tree(world)
    threshold(world)
    world.load(6.4)
    world.run(suppress)
    assert [world.machine.get("cpuset.cpus", d) for d in (QOS, pod, box)] == ["4-15", "4-15", "4-7"]


def test_when_every_cpu_is_taken_a_minimal_set_is_left_and_said_so(world, suppress):
    bound(world, "LSE", "0-13", 14)
    world.nrt = {RESERVED: '{"reservedCPUs":"14,15"}'}
    be_tree(world)
    threshold(world)
    world.load(1.0)
    outcome = world.decide(suppress)
    assert [n.reason for n in outcome.notices] == ["BECPUExhausted"]
    world.run(suppress)
    assert world.machine.get("cpuset.cpus", QOS) == "14"


def test_without_a_topology_object_nothing_is_decided(world, suppress):
    be_tree(world, "0-7")
    threshold(world)
    world.load(1.0)
    world.nrt = None
    world.run(suppress)
    assert world.machine.get("cpuset.cpus", QOS) == "0-7"


# -- giving back -------------------------------------------------------------------------------------------------------------


def test_switching_off_gives_everything_back_once(world, suppress):
    dirs = be_tree(world)
    taken(world, [QOS, *dirs], "0-1", "5000")
    late = world.pod("late", qos="BE", kube_qos="BestEffort")
    world.machine.put("cpuset.cpus", late.cgroup_dir, "0-1")  # made under narrowed CPUs, and never written
    dirs.append(late.cgroup_dir)
    world.spec = {}
    state = world.run(suppress)
    assert {world.machine.get("cpuset.cpus", d) for d in (QOS, *dirs)} == {"0-15"}
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "-1"
    state = world.run(suppress, state)
    world.machine.put("cpu.cfs_quota_us", QOS, "777777")  # somebody's own wish after that
    world.run(suppress, state)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "777777"
    world.machine.restart()
    world.run(suppress)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "777777"


@pytest.mark.feature("KA-SUP-03")
def test_switching_off_on_a_node_without_pods(world, suppress):
    machine = world.machine
    machine.put("cpuset.cpus", QOS, "0-15")
    machine.put("cpu.cfs_quota_us", QOS, "-1")
    taken(world, [QOS], "0-1", "5000")
    world.spec = {}
    world.run(suppress)
    assert (machine.get("cpu.cfs_quota_us", QOS), machine.get("cpuset.cpus", QOS)) == ("-1", "0-15")


@pytest.mark.feature("KA-SUP-03")
def test_what_an_agent_without_a_journal_left_narrow_is_given_back_where_off_is_said(world, suppress):
    dirs = be_tree(world, "0-1", "5000")
    threshold(world, enable=False)
    world.run(suppress)
    assert {world.machine.get("cpuset.cpus", d) for d in (QOS, *dirs)} == {"0-15"}
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "-1"


def test_what_others_narrowed_stays_while_suppression_is_off(world, suppress):
    """An administrator, or a kubelet that gives CPUs away: nothing was taken by koordlet."""
    dirs = be_tree(world, "0-11", "700000")
    world.nrt = {names.ANNOTATION_NRT_POD_CPU_ALLOCS: '[{"uid":"db","cpuset":"2-3","managedByKubelet":true}]'}
    world.machine.put("cpuset.cpus", dirs[1], "0-1,4-11")
    world.spec = {}
    world.run(suppress)
    get = world.machine.get
    assert [get("cpuset.cpus", d) for d in (QOS, *dirs)] == ["0-11", "0-11", "0-1,4-11"]
    assert get("cpu.cfs_quota_us", QOS) == "700000"
    bound(world, "LSE", "8-9", 2)
    world.run(suppress)
    assert get("cpuset.cpus", dirs[1]) == "0-1,4-7,10-15", "CPUs of an LSE pod are its own, whatever is on"


@pytest.mark.feature("KA-SUP-03")
@pytest.mark.parametrize("said", ["off", "quota", "manager", "nothing"])
def test_what_has_its_cpus_back_is_left_to_others(world, gates, said):
    """An administrator who narrows it then has the last word, and so has whoever narrows a container that comes later."""
    suppress = BECPUSuppress(Options(), gates("BECPUSuppress", *(("BECPUManager",) if said == "manager" else ())))
    dirs = be_tree(world)
    taken(world, [QOS, *dirs], "0-1", "-1")
    world.spec = {}
    if said in ("off", "quota"):
        threshold(world, **({"enable": False} if said == "off" else {"cpuSuppressPolicy": "cfsQuota"}))
    machine = world.machine
    state = None
    for second in range(400):
        machine.now = second
        world.now += 1
        world.load(6.4)
        state = world.run(suppress, state)
        if second == 2:
            assert {machine.get("cpuset.cpus", d) for d in (QOS, *dirs)} == {"0-15"}
            for directory in dirs:
                machine.put("cpuset.cpus", directory, "2-5")
            later = world.pod("later", qos="BE", kube_qos="BestEffort")
            dirs += [later.cgroup_dir, later.containers[0].cgroup_dir]
            for directory in dirs[-2:]:
                machine.put("cpuset.cpus", directory, "2-5")
    assert {machine.get("cpuset.cpus", d) for d in dirs} == {"2-5"}
    if said == "manager":
        return
    threshold(world)
    world.load(6.4)
    state = world.run(suppress, state)
    threshold(world, enable=False)
    world.now += 1
    world.run(suppress, state)
    assert {machine.get("cpuset.cpus", d) for d in (QOS, *dirs)} == {"0-15"}, "what is taken anew is given back anew"


@pytest.mark.feature("KA-SUP-03")
@pytest.mark.parametrize("said", ["off", "quota", "idle", "nothing"])
@pytest.mark.parametrize("machine_name", ["world", "world_v2"])
@pytest.mark.parametrize("barred_by", ["pod", "reservation"])
def test_cpus_that_come_free_come_back(request, suppress, machine_name, said, barred_by):
    """But not to what somebody else narrowed."""
    world = request.getfixturevalue(machine_name)
    machine, v2 = world.machine, world.machine.v2
    unlimited = "max 100000" if v2 else "-1"
    dirs = [QOS, *be_tree(world, quota=unlimited, child_quota=unlimited, pods=2)]

    def put(directory: str, cpus: str) -> None:
        machine.put("cpuset.cpus", directory, cpus)
        if v2:
            machine.put("cpuset.cpus.effective", directory, cpus)

    world.spec = {}
    if said == "idle":
        machine.put("cpu.idle", QOS, "1")
    if said != "nothing":
        more = {"off": {"enable": False}, "quota": {"cpuSuppressPolicy": "cfsQuota"}, "idle": {"cpuSuppressThresholdPercent": 100}}
        threshold(world, **more[said])
    state = None

    def settle() -> list[str]:
        nonlocal state
        for _ in range(4):
            machine.now += 1
            world.now += 1
            world.load(1.0)
            state = world.run(suppress, state)
            for directory in dirs:
                put(directory, machine.get("cpuset.cpus", directory))
        return [machine.get("cpuset.cpus", directory) for directory in dirs]

    for directory in dirs:
        put(directory, "0-15")
    assert settle() == ["0-15"] * 5
    for theirs in ("0-15", "6-7"):
        put(dirs[-1], theirs)
        if barred_by == "pod":
            bound(world, "LSE", "0-3", 4)
        else:
            world.nrt = {RESERVED: '{"reservedCPUs":"0-3"}'}
        assert settle() == ["4-15"] * 4 + ["4-15" if theirs == "0-15" else theirs]
        world.nrt = {}
        world.pods[:] = [pod for pod in world.pods if pod.qos.value != "LSE"]
        assert settle() == ["0-15"] * 4 + [theirs]


def test_a_kernel_that_does_not_take_the_cpus_is_not_asked_every_second(world, suppress, monkeypatch):
    be_tree(world, "0-1")
    threshold(world, enable=False)
    asked = []

    def refuse(path: str, text: str) -> None:
        if path.endswith("cpuset.cpus"):
            asked.append(path)
            raise WriteError(Trouble.READ_ONLY, path, "is refused")

    monkeypatch.setattr(kernel, "write", refuse)
    state = None
    for _ in range(1200):
        world.now += 1
        outcome = world.decide(suppress, state)
        state = outcome.state
        world.machine.executor.apply(outcome.batches, rule=suppress.name, now=world.now)
    assert max(Counter(asked).values()) <= 20


@pytest.mark.parametrize("policy", ["cfsQuota", "cpuset"])
def test_a_level_that_yields_by_itself_may_fill_the_node(world, suppress, policy):
    """cpu.idle and the whole node as the threshold: a quota would only leave CPUs idle between requests."""
    dirs = be_tree(world, "0-15", "-1")
    world.machine.put("cpu.idle", QOS, "0")
    threshold(world, cpuSuppressPolicy=policy, cpuSuppressThresholdPercent=100)
    world.load(8.0)
    state = world.run(suppress)
    held = (world.machine.get("cpu.cfs_quota_us", QOS), world.machine.get("cpuset.cpus", QOS))
    assert held != ("-1", "0-15")
    world.machine.put("cpu.idle", QOS, "1")
    (record,) = [r for r in world.decide(suppress, state).records if r.subject.kind == "Node"]
    assert record.verdict == "Unrestricted"
    assert "cpu.idle" in record.message
    state = world.run(suppress, state)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "-1"
    assert {world.machine.get("cpuset.cpus", d) for d in (QOS, *dirs)} == {"0-15"}
    threshold(world, cpuSuppressPolicy=policy, cpuSuppressThresholdPercent=99)
    state = world.run(suppress, state)
    assert (world.machine.get("cpu.cfs_quota_us", QOS), world.machine.get("cpuset.cpus", QOS)) != ("-1", "0-15")
    threshold(world, cpuSuppressPolicy=policy, cpuSuppressThresholdPercent=100)
    world.machine.put("cpu.idle", QOS, "0")
    world.run(suppress, state)
    assert (world.machine.get("cpu.cfs_quota_us", QOS), world.machine.get("cpuset.cpus", QOS)) != ("-1", "0-15"), "it yields no more"


def test_policy_switch_gives_the_other_back(world, suppress):
    be_tree(world, "0-15", "-1")
    threshold(world, cpuSuppressPolicy="cfsQuota")
    world.load(6.4)
    state = world.run(suppress)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "400000"
    threshold(world)
    outcome = world.decide(suppress, state)
    assert {sample.labels: sample.value for sample in outcome.samples if sample.family == "be_suppress_cpu"} == {
        ("cpuset",): 4,
        ("cfsQuota",): None,
    }, "no figure is left of the other policy"
    state = world.run(suppress, state)
    assert (world.machine.get("cpu.cfs_quota_us", QOS), world.machine.get("cpuset.cpus", QOS)) == ("-1", "0-3")
    threshold(world, cpuSuppressPolicy="cfsQuota")
    world.run(suppress, state)
    assert (world.machine.get("cpu.cfs_quota_us", QOS), world.machine.get("cpuset.cpus", QOS)) == ("400000", "0-15")


def test_manager_mode_leaves_placed_pods_alone(world, gates):
    pod, box = be_tree(world, "0-1", "5000")
    placed = world.pod(
        "placed",
        qos="BE",
        kube_qos="BestEffort",
        annotations={"scheduling.koordinator.sh/resource-status": '{"numaNodeResources":[{"node":0,"resources":{"cpu":"1"}}]}'},
    )
    for directory in (placed.cgroup_dir, placed.containers[0].cgroup_dir):
        world.machine.put("cpuset.cpus", directory, "0-1")
    threshold(world)
    world.load(6.4)
    world.run(BECPUSuppress(Options(), gates("BECPUSuppress", "BECPUManager")))
    get = world.machine.get
    assert [get("cpuset.cpus", d) for d in (QOS, pod, box, placed.cgroup_dir)] == ["0-15"] * 4
    assert get("cpuset.cpus", placed.containers[0].cgroup_dir) == "0-1"
    assert get("cpu.cfs_quota_us", QOS) == "-1"


# -- explaining --------------------------------------------------------------------------------------------------------------


def test_records_say_why_with_the_numbers(world, suppress):
    be_tree(world)
    world.pod("ls", qos="LS")
    threshold(world)
    world.load(6.4, ls=1.0)
    outcome = world.decide(suppress)
    assert [(r.subject.kind, r.subject.name, r.verdict) for r in outcome.records] == [
        ("Node", "node-a", "Suppressed"),
        ("Pod", "be0", "Suppressed"),
    ]
    record = outcome.records[0]
    assert record.numbers["allowance_milli"] == sum(t.value for t in record.terms)
    again = world.decide(suppress, outcome.state)
    assert again.records == (), "only changes are told"


# -- picking -----------------------------------------------------------------------------------------------------------------


def test_picker_takes_whole_cores_round_the_nodes(build_topology):
    topology = build_topology(16, nodes=2)
    assert pick(topology.cpus, 4) == [0, 1, 8, 9]
    assert pick(topology.cpus, 5) == [0, 1, 8, 9, 2]
    assert pick(topology.cpus, 3) == [0, 1, 8]
    assert pick(topology.cpus, 17) == []
    singles = [c for c in topology.cpus if c.id % 2 == 0]
    assert pick(singles, 3) == [0, 8, 2]


@given(st.integers(0, 40_000), st.sets(st.integers(0, 31)), st.sets(st.integers(0, 31)), st.integers(0, 32))
def test_divide_never_takes_what_is_barred_nor_more_than_there_is(build_topology, allow, lsr, lse, old):
    topology = build_topology(32, nodes=2)
    held = Pools(lsr=CPUSet(lsr - lse), lse=CPUSet(lse))
    new = divide(topology, held, allow, old)
    assert new.isdisjoint(held.lse)
    free = 32 - len(lse)
    assert len(new) == min(max(-(-allow // 1000), 2), old + 4 if max(-(-allow // 1000), 2) - old > 4 else 99, free)


# -- pods that start ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "expected"), [(5, 50_000), (119, 50_000), (121, 2000)])
def test_a_pod_that_starts_is_not_starved_and_one_that_never_does_holds_nothing_up(world, suppress, age, expected):
    threshold(world, cpuSuppressPolicy="cfsQuota")
    be_tree(world, quota="300000")
    world.pod("ls", qos="LS")
    world.pod("fresh", qos="BE", kube_qos="BestEffort", phase="Pending")
    world.load(15.9, ls=15.9)
    state = world.run(suppress)
    world.now += age
    world.load(15.9, ls=15.9)
    world.run(suppress, state)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == str(expected)


@pytest.mark.parametrize(
    ("reason", "expected"), [("", 50_000), ("ContainerCreating", 50_000), ("CrashLoopBackOff", 2000), ("ImagePullBackOff", 2000)]
)
def test_a_container_of_a_running_pod_that_is_made_is_not_starved(world, suppress, reason, expected):
    """The second container of a pod, or one that ended and is started again."""
    threshold(world, cpuSuppressPolicy="cfsQuota")
    be_tree(world, quota="2000")
    world.pod("ls", qos="LS")
    pod = world.pod("batch", qos="BE", kube_qos="BestEffort", phase="Running")
    waiting = ContainerStatus(name="second", state=State(waiting=ContainerStateWaiting(reason=reason)))
    second = replace(pod.containers[0], name="second", id="", cgroup_dir="", running=False, status=waiting)
    world.pods[world.pods.index(pod)] = replace(pod, containers=(*pod.containers, second))
    world.load(15.9, ls=15.9)
    state = world.run(suppress)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == str(expected)
    world.pods[-1] = pod
    world.now += 1
    world.load(15.9, ls=15.9)
    world.run(suppress, state)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "2000"


def test_the_least_quota_is_an_event_told_once_and_is_raised_at_once_for_a_pod_that_comes(world, suppress):
    threshold(world, cpuSuppressPolicy="cfsQuota")
    be_tree(world, quota="2000")
    world.pod("ls", qos="LS")
    world.load(15.9, ls=15.9)
    outcome = world.decide(suppress)
    assert [notice.reason for notice in outcome.notices] == ["BECPUExhausted"]
    assert world.decide(suppress, outcome.state).notices == ()
    world.pod("fresh", qos="BE", kube_qos="BestEffort", phase="Pending")
    world.now += 1
    world.load(15.9, ls=15.9)
    world.run(suppress, outcome.state)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "50000"


def test_several_pods_that_start_get_half_a_core_each_within_a_twentieth_of_the_node():
    assert [starting_quota(64_000, pods) for pods in (1, 3, 7)] == [50_000, 150_000, 320_000]


def test_a_pod_that_starts_weighs_as_much_as_others_until_it_runs(world, suppress):
    threshold(world, cpuSuppressPolicy="cfsQuota")
    be_tree(world, quota="2000")
    world.pod("ls", qos="LS")
    fresh = world.pod("fresh", qos="BE", kube_qos="BestEffort", phase="Pending")
    batch = world.pod("batch", qos="BE", kube_qos="BestEffort")
    world.load(15.9, ls=15.9)
    state = world.run(suppress)
    assert state.lifted == (), "it has no group yet"
    world.machine.put("cpu.shares", fresh.cgroup_dir, "2")
    world.machine.put("cpu.shares", batch.cgroup_dir, "1024")
    world.now += 1
    world.load(15.9, ls=15.9)
    state = world.run(suppress, state)
    assert world.machine.get("cpu.shares", fresh.cgroup_dir) == "1024"
    world.pods[world.pods.index(fresh)] = replace(fresh, phase="Running")
    world.now += 1
    world.load(15.9, ls=15.9)
    state = world.run(suppress, state)
    assert (world.machine.get("cpu.shares", fresh.cgroup_dir), state.lifted) == ("2", ())


@pytest.mark.parametrize(("cores", "quota"), [(1, 5000), (2, 10_000), (16, 50_000), (128, 50_000)])
def test_what_a_starting_pod_gets_is_a_small_part_of_the_node(cores, quota):
    assert starting_quota(cores * 1000) == quota
