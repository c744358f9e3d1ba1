"""Collectors: files in, samples out."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from roles.koordlet.host.files import HostFiles
from roles.koordlet.states.slo import effective_slo
from roles.koordlet.store import kinds
from tests.support.koordlet import exposed

MIB = 1 << 20
GIB = 1 << 30


def be_pod(make_pod, name: str = "spark", uid: str = "be-1", **fields):
    labels = {"koordinator.sh/qosClass": "BE"}
    requests = {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}
    return make_pod(name, uid, qos="BestEffort", labels=labels, requests=requests, **fields)


@pytest.mark.feature("KLO-COL-01")
class TestNode:
    def test_first_round_only_seeds(self, agent) -> None:
        a = agent()
        a.tick()
        assert a.store.keys(kinds.NODE_MEMORY) == []
        a.tree.burn({0: 1.0, 1: 0.5}, 1.0)
        a.tick()
        assert a.view.last(kinds.NODE_CPU) == pytest.approx(1.5)
        assert a.view.last(kinds.NODE_MEMORY) == 2 * GIB
        assert a.metrics.node_used_cpu.get() == pytest.approx(1.5)

    def test_a_counter_that_went_back_gives_no_sample(self, agent) -> None:
        a = agent()
        a.tick()
        a.tree.ticks = dict.fromkeys(range(4), 1)
        a.tree.stat()
        a.tick()
        assert a.view.last(kinds.NODE_CPU) is None
        a.tree.burn({0: 1.0}, 1.0)
        a.tick()
        assert a.view.last(kinds.NODE_CPU) == pytest.approx(1.0)

    @pytest.mark.parametrize("broken", ["", "cpu 1 2\n", "nonsense"])
    def test_unreadable_stat_reports_nothing_and_recovers(self, agent, broken: str, caplog) -> None:
        a = agent()
        a.tick()
        good = a.tree.read("proc/stat")
        a.tree.write("proc/stat", broken)
        for _ in range(3):
            a.tick()
        assert a.view.last(kinds.NODE_CPU) is None
        complaints = [r for r in caplog.records if "proc/stat" in r.getMessage() and "node:" in r.getMessage()]
        assert len(complaints) == 1, "one clear error, not one a second"
        a.tree.write("proc/stat", good)
        a.tick()
        assert a.view.last(kinds.NODE_CPU) is not None

    def test_page_cache_follows_the_policy(self, agent) -> None:
        a = agent()
        a.tick()
        a.tick()
        assert a.view.last(kinds.NODE_MEMORY_WITH_PAGE_CACHE) is None
        a.policy = "usageWithPageCache"
        a.tick()
        assert a.view.last(kinds.NODE_MEMORY_WITH_PAGE_CACHE) == 4 * GIB


@pytest.mark.feature("KLO-COL-02")
class TestNumaNodes:
    def test_memory_and_cpu(self, agent) -> None:
        a = agent(sockets=2, cores=2)
        a.tree.numa(0, total_kb=4 << 20, free_kb=1 << 20, file_kb=1 << 20)
        a.tick()
        a.tree.burn({0: 0.5, 1: 0.5, 2: 0.25}, 1.0)
        a.tick()
        assert a.view.last(kinds.NODE_NUMA_CPU, numa_node_id="0") == pytest.approx(1.0)
        assert a.view.last(kinds.NODE_NUMA_CPU, numa_node_id="1") == pytest.approx(0.25)
        assert a.view.last(kinds.NODE_NUMA_MEMORY, numa_node_id="0") == 2 * GIB

    def test_memory_that_is_plugged_in_later(self, agent) -> None:
        """A node of CXL memory comes online after boot: with the next look at what the machine has it is sensed, too."""
        a = agent()
        a.tree.numa(0, total_kb=4 << 20, free_kb=1 << 20)
        a.tick()
        a.tree.numa(1, total_kb=4 << 20, free_kb=2 << 20)
        a.tick(30)
        a.tick(31)
        a.tick()
        assert [n.id for n in a.store.snapshot("node_numa_info")] == [0, 1]
        assert a.view.last(kinds.NODE_NUMA_MEMORY, numa_node_id="1") == 2 * GIB

    def test_failure_does_not_block_the_node(self, agent) -> None:
        a = agent()
        a.tree.write("sys/bus/node/devices/node0/meminfo", "rubbish")
        a.tick()
        a.tick()
        assert a.view.last(kinds.NODE_CPU) is not None
        assert a.store.keys(kinds.NODE_NUMA_MEMORY) == []


@pytest.mark.feature("KLO-LIFE-01")
@pytest.mark.parametrize("kind", [RuntimeError, KeyError, OSError, MemoryError])
def test_whatever_a_collector_raises_the_others_go_on(agent, monkeypatch, kind) -> None:
    a = agent()
    collectors = {collector.name: collector for collector in a.loop._collectors}

    def fails(at) -> None:
        raise kind("mine")

    monkeypatch.setattr(collectors["pods"], "collect", fails)
    for _ in range(3):
        a.tick()
    assert a.context.metrics.sensing_errors.get("pods") == 3
    assert a.view.last(kinds.NODE_CPU) is not None
    assert not collectors["pods"].started
    monkeypatch.undo()
    a.tick()
    assert collectors["pods"].started


@pytest.mark.feature("KLO-COL-03")
@pytest.mark.feature("KLO-COL-04")
def test_of_a_pod_that_sleeps_only_the_cpu_time_is_read(agent, make_pod, monkeypatch) -> None:
    """On the kernel's files; in a tree of plain files everything is read every time."""
    a = agent()
    directory = a.tree.pod_dir("Burstable", "u-1")
    a.tree.cgroup(directory, anon=300 * MIB)
    a.list(make_pod("web", "u-1"))
    read: list[str] = []
    fetch = HostFiles.read
    monkeypatch.setattr(HostFiles, "of_kernel", lambda self, path: True)
    monkeypatch.setattr(HostFiles, "read", lambda self, path: (read.append(path), fetch(self, path))[1])

    def rounds(count: int) -> Counter[str]:
        read.clear()
        for _ in range(count):
            a.tick()
        return Counter(os.path.basename(path) for path in read if os.path.dirname(path).endswith(directory))

    rounds(3)
    asleep = rounds(10)
    assert (asleep["cpuacct.usage"], asleep["memory.stat"], asleep["cpu.stat"]) == (10, 2, 0)
    assert a.view.last(kinds.POD_MEMORY, pod_uid="u-1") == 300 * MIB
    assert a.view.last(kinds.POD_CPU_THROTTLED, pod_uid="u-1") == 0.0
    a.tree.cpu(directory, 10**9 + 750_000_000)
    a.tree.cgroup(directory, anon=400 * MIB)
    a.tree.cpu(directory, 10**9 + 750_000_000)
    awake = rounds(1)
    assert (awake["memory.stat"], awake["cpu.stat"]) == (1, 1), "whoever runs is read at once"
    assert a.view.last(kinds.POD_MEMORY, pod_uid="u-1") == 400 * MIB


@pytest.mark.feature("KLO-COL-03")
@pytest.mark.parametrize(("version", "driver"), [(1, "systemd"), (1, "cgroupfs"), (2, "systemd"), (2, "cgroupfs")])
class TestPods:
    def test_usage_of_pods_and_containers(self, agent, make_pod, version, driver) -> None:
        a = agent(version=version, driver=driver)
        directory = a.tree.pod_dir("Burstable", "u-1")
        container = a.tree.container_dir(directory, "web-main")
        a.tree.cgroup(directory, anon=300 * MIB, cache=90 * MIB)
        a.tree.cgroup(container, anon=200 * MIB)
        a.list(make_pod("web", "u-1"))
        a.tick()
        assert a.view.last(kinds.POD_CPU, pod_uid="u-1") is None, "the first reading seeds"
        a.tree.cpu(directory, 10**9 + 750_000_000)
        a.tree.cpu(container, 10**9 + 500_000_000)
        a.tick()
        assert a.view.last(kinds.POD_CPU, pod_uid="u-1") == pytest.approx(0.75)
        assert a.view.last(kinds.POD_MEMORY, pod_uid="u-1") == 300 * MIB
        assert a.view.last(kinds.CONTAINER_CPU, container_id="containerd://web-main") == pytest.approx(0.5)
        assert a.view.last(kinds.CONTAINER_MEMORY, container_id="containerd://web-main") == 200 * MIB
        assert a.context.shared.pods.cpu == pytest.approx(0.75)
        assert a.context.shared.pods_numa[1] == {0: 300 * MIB}

    def test_memory_by_numa_node_of_a_machine_with_two(self, agent, make_pod, version, driver) -> None:
        a = agent(version=version, driver=driver, sockets=2)
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory, anon=300 * MIB, cache=90 * MIB)
        a.list(make_pod("web", "u-1"))
        a.tick()
        a.tick()
        assert a.context.shared.pods_numa[1] == {0: 300 * MIB}
        assert a.view.last(kinds.SYS_NUMA_MEMORY, numa_node_id="0") == 3 * GIB - 300 * MIB
        assert a.view.last(kinds.SYS_NUMA_MEMORY, numa_node_id="1") == 3 * GIB

    def test_a_reset_counter_drops_the_sample(self, agent, make_pod, version, driver) -> None:
        a = agent(version=version, driver=driver)
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory, cpu_ns=5 * 10**9)
        a.list(make_pod("web", "u-1"))
        a.tick()
        a.tree.cpu(directory, 10**6)
        a.tick()
        assert a.view.last(kinds.POD_CPU, pod_uid="u-1") is None
        a.tree.cpu(directory, 10**6 + 10**9)
        a.tick()
        assert a.view.last(kinds.POD_CPU, pod_uid="u-1") == pytest.approx(1.0)


@pytest.mark.feature("KLO-COL-03")
class TestPodsThatComeAndGo:
    def test_a_pod_without_cgroup_disturbs_nobody(self, agent, make_pod) -> None:
        a = agent()
        a.tree.cgroup(a.tree.pod_dir("Burstable", "u-1"))
        a.list(make_pod("ok", "u-1"), make_pod("ghost", "u-2"))
        a.tick()
        a.tick()
        assert a.view.last(kinds.POD_CPU, pod_uid="u-1") is not None
        assert a.view.last(kinds.POD_CPU, pod_uid="u-2") is None

    def test_a_missing_key_in_one_file_leaves_that_figure_out(self, agent, make_pod) -> None:
        a = agent()
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory)
        a.list(make_pod("web", "u-1"))
        a.tick()
        a.tree.write(a.tree.file("memory", directory, "memory.stat"), "total_cache 1\n")
        a.tree.cpu(directory, 2 * 10**9)
        a.tick()
        assert a.view.last(kinds.POD_CPU, pod_uid="u-1") == pytest.approx(1.0)
        assert a.view.last(kinds.POD_MEMORY, pod_uid="u-1") is None

    def test_without_cpu_counters_memory_is_still_sensed(self, agent, make_pod) -> None:
        a = agent()
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory, anon=MIB)
        (a.tree.root / a.tree.file("cpuacct", directory, "cpuacct.usage")).unlink()
        (a.tree.root / "proc/stat").unlink()
        a.list(make_pod("web", "u-1"))
        a.tick()
        assert a.view.last(kinds.NODE_MEMORY) == 2 * GIB
        assert a.view.last(kinds.POD_MEMORY, pod_uid="u-1") == MIB
        assert a.view.last(kinds.POD_CPU, pod_uid="u-1") is None

    def test_without_meminfo_cpu_is_still_sensed(self, agent) -> None:
        a = agent()
        (a.tree.root / "proc/meminfo").unlink()
        a.tick()
        a.tree.burn({0: 1.0}, 1.0)
        a.tick()
        assert a.view.last(kinds.NODE_CPU) == pytest.approx(1.0)
        assert (a.view.last(kinds.NODE_MEMORY), a.view.last(kinds.SYS_MEMORY)) == (None, None)
        assert a.view.last(kinds.SYS_CPU) == pytest.approx(1.0)

    def test_gone_pods_leave_no_descriptor_and_no_series(self, agent, make_pod) -> None:
        a = agent()
        pods = [make_pod(f"p{i}", f"u-{i}") for i in range(5)]
        for i in range(5):
            directory = a.tree.pod_dir("Burstable", f"u-{i}")
            a.tree.cgroup(directory)
            a.tree.cgroup(a.tree.container_dir(directory, f"p{i}-main"))
        a.list(*pods)
        for _ in range(3):
            a.tick()
        before = a.files.open_count
        a.list(*pods[:1])
        a.tick()
        assert a.store.keys(kinds.POD_CPU) == [("u-0",)]
        assert a.store.keys(kinds.CONTAINER_CPU) == [("containerd://p0-main",)]
        assert before - a.files.open_count >= 4 * 6

    def test_a_cgroup_that_disappears_is_dropped_at_once(self, agent, make_pod) -> None:
        import shutil

        a = agent()
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory)
        a.list(make_pod("web", "u-1"))
        a.tick()
        a.tick()
        for subsystem in ("cpu", "cpuacct", "memory", "cpuset"):
            shutil.rmtree(a.tree.root / f"sys/fs/cgroup/{subsystem}/{directory}")
        a.tick(3.0)
        assert a.view.last(kinds.POD_CPU, pod_uid="u-1") is None
        assert a.context.shared.pods.cpu == 0

    def test_terminated_pods_are_not_read(self, agent, make_pod) -> None:
        a = agent()
        a.tree.cgroup(a.tree.pod_dir("Burstable", "u-1"))
        a.list(make_pod("job", "u-1", phase="Succeeded"))
        a.tick()
        a.tick()
        assert a.store.keys(kinds.POD_CPU) == []

    def test_each_file_is_read_once_a_tick(self, agent, make_pod) -> None:
        a = agent(version=2)
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory)
        a.list(make_pod("web", "u-1"))
        a.tick()
        reads, opens = a.files.reads, a.files.opens
        a.tick()
        distinct = len({p for p in a.files._fds if directory in p})
        assert distinct == 2, "cpu.stat serves usage and throttling; one NUMA node needs no memory.numa_stat"
        assert a.files.reads - reads <= 2 + distinct + 8
        assert a.files.opens - opens <= 2, "only files that do not exist are tried again"

    def test_a_long_gap_makes_a_first_reading_again(self, agent, make_pod) -> None:
        a = agent()
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory)
        a.list(make_pod("web", "u-1"))
        a.tick()
        a.tree.cpu(directory, 2 * 10**9)
        a.tick(21.0)
        assert a.view.last(kinds.POD_CPU, pod_uid="u-1") is None


@pytest.mark.feature("KLO-COL-04")
@pytest.mark.parametrize("version", [1, 2])
def test_throttled_ratio(agent, make_pod, version: int) -> None:
    a = agent(version=version)
    directory = a.tree.pod_dir("Burstable", "u-1")
    container = a.tree.container_dir(directory, "web-main")
    a.tree.cgroup(directory)
    a.tree.cgroup(container)
    a.list(make_pod("web", "u-1"))
    a.tick()
    a.tree.throttle(directory, 1010, 15)
    a.tick()
    assert a.view.last(kinds.POD_CPU_THROTTLED, pod_uid="u-1") == 0.5
    assert a.view.last(kinds.CONTAINER_CPU_THROTTLED, container_id="containerd://web-main") == 0, "no period passed"
    a.tree.throttle(container, 1004, 11)
    (a.tree.root / a.tree.file("cpu", directory, "cpu.stat")).unlink()
    a.tick()
    assert a.view.last(kinds.POD_CPU_THROTTLED, within=0.5, pod_uid="u-1") is None
    assert a.view.last(kinds.CONTAINER_CPU_THROTTLED, container_id="containerd://web-main") == 0.25


@pytest.mark.feature("KLO-COL-05")
class TestBETier:
    def last(self, a, what: str):
        return a.view.last(kinds.NODE_BE, be_resource="cpu", be_allocation=what)

    @pytest.mark.parametrize("version", [1, 2])
    def test_limit_request_and_usage(self, agent, make_pod, version: int) -> None:
        a = agent(version=version)
        tier = a.tree.qos_dir("BestEffort")
        a.tree.cgroup(tier, cpu_ns=10**9, quota=250_000)
        ended = {**be_pod(make_pod), "status": {"phase": "Succeeded"}}
        ended["metadata"] = {**ended["metadata"], "name": "ended", "uid": "u-3"}
        a.list(be_pod(make_pod), make_pod("plain", "u-2", qos="BestEffort"), ended)
        a.tick()
        assert self.last(a, "usage") == 0
        a.tree.cpu(tier, 10**9 + 400_000_000)
        a.tick()
        assert (self.last(a, "usage"), self.last(a, "real-limit"), self.last(a, "request")) == (400, 2500, 1500)
        assert a.metrics.be_used_cpu.get() == 0.4

    def test_the_smallest_container_cpuset_counts(self, agent, make_pod) -> None:
        a = agent()
        directory = a.tree.pod_dir("BestEffort", "be-1")
        a.tree.cgroup(directory, cpus="0")
        a.tree.cgroup(a.tree.container_dir(directory, "c1"), cpus="0-1")
        a.tree.cgroup(a.tree.container_dir(directory, "c2"), cpus="0-2")
        a.tick()
        assert self.last(a, "real-limit") == 2000, "containers, not pods, are two levels below"

    def test_all_or_nothing(self, agent) -> None:
        a = agent()
        a.tree.write(a.tree.file("cpu", a.tree.qos_dir("BestEffort"), "cpu.cfs_period_us"), "0\n")
        a.tree.write(a.tree.file("cpu", a.tree.qos_dir("BestEffort"), "cpu.cfs_quota_us"), "5000\n")
        a.tick()
        a.tick()
        assert self.last(a, "usage") is None


def apps(*rows):
    return effective_slo({"hostApplications": list(rows)})[0]


@pytest.mark.feature("KLO-COL-06")
class TestHostApplications:
    def test_usage_by_application(self, agent) -> None:
        a = agent(slo=apps({"name": "nginx", "priority": "koord-prod", "qos": "LS"}, {"name": "missing", "qos": "BE"}))
        a.tree.cgroup("host-latency-sensitive/nginx", anon=64 * MIB, cache=10 * MIB)
        a.tick()
        a.tree.cpu("host-latency-sensitive/nginx", 10**9 + 10**8)
        a.tick()
        assert a.view.last(kinds.HOST_APP_CPU, host_app_name="nginx") == pytest.approx(0.1)
        assert a.view.last(kinds.HOST_APP_MEMORY, host_app_name="nginx") == 64 * MIB
        assert a.view.last(kinds.HOST_APP_MEMORY_WITH_PAGE_CACHE, host_app_name="nginx") == 74 * MIB
        assert a.metrics.host_app_usage.get("nginx", "memory", "koord-prod", "LS") == 64 * MIB
        a.slo = apps()
        a.tick()
        assert a.metrics.host_app_usage.get("nginx", "memory", "koord-prod", "LS") is None
        assert a.context.shared.host_apps.cpu == 0

    def test_null_is_what_is_not_there(self) -> None:
        slo, errors = effective_slo({"hostApplications": [{"name": "nginx", "priority": None, "cgroupPath": {"base": None}}]})
        assert ([app.name for app in slo.host_applications], list(errors)) == (["nginx"], [])

    def test_of_two_with_the_same_name_the_first_one_counts(self, agent) -> None:
        """Their samples would collide, and without host applications nothing would be known of the system either."""
        slo, errors = effective_slo({"hostApplications": [{"name": "nginx", "qos": "LS"}, {"name": "x"}, {"name": "nginx", "qos": "BE"}]})
        assert [(str(e), e.outcome) for e in errors] == [
            ("NodeSLO spec.hostApplications[2]: another application is named 'nginx', too", "it is left out")
        ]
        a = agent(slo=slo)
        for directory in ("host-latency-sensitive/nginx", "host-best-effort/nginx"):
            a.tree.cgroup(directory, anon=64 * MIB)
        for i in range(1, 4):
            a.tree.burn({0: 1.0}, 1.0)
            a.tree.cpu("host-latency-sensitive/nginx", 10**9 + i * 10**8)
            a.tree.cpu("host-best-effort/nginx", 10**9 + i * 2 * 10**8)
            a.tick()
        assert a.view.last(kinds.HOST_APP_CPU, host_app_name="nginx") == pytest.approx(0.1)
        assert a.view.last(kinds.SYS_CPU) == pytest.approx(0.9)

    def test_a_path_that_would_leave_the_root_is_refused(self, agent, caplog) -> None:
        a = agent(slo=apps({"name": "evil", "qos": "LS", "cgroupPath": {"parentDir": "../../..", "relativePath": "etc"}}))
        a.tick()
        a.tick()
        assert a.view.last(kinds.HOST_APP_CPU, host_app_name="evil") is None
        assert any("leaves" in r.getMessage() for r in caplog.records)


@pytest.mark.feature("KLO-COL-07")
class TestSystem:
    def test_what_is_left_of_the_node(self, agent, make_pod) -> None:
        a = agent(slo=apps({"name": "nginx", "qos": "LS"}))
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory, anon=256 * MIB)
        a.tree.cgroup("host-latency-sensitive/nginx", anon=64 * MIB, cache=512 * MIB)
        a.tree.numa(0, total_kb=8 << 20, free_kb=6 << 20)
        a.list(make_pod("web", "u-1"))
        a.tick()
        a.tree.burn({0: 1.0, 1: 1.0}, 1.0)
        a.tree.cpu(directory, 10**9 + 500_000_000)
        a.tree.cpu("host-latency-sensitive/nginx", 10**9 + 250_000_000)
        a.tick()
        assert a.view.last(kinds.SYS_CPU) == pytest.approx(1.25)
        assert a.view.last(kinds.SYS_MEMORY) == 2 * GIB - 256 * MIB - 64 * MIB, "page cache of applications is nobody's use"
        assert a.view.last(kinds.SYS_NUMA_MEMORY, numa_node_id="0") == 2 * GIB - 256 * MIB
        assert a.view.last(kinds.SYS_NUMA_CPU, numa_node_id="0") == pytest.approx(1.25)

    def test_never_negative(self, agent, make_pod) -> None:
        a = agent()
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory, anon=4 * GIB)
        a.list(make_pod("web", "u-1"))
        a.tick()
        a.tree.cpu(directory, 9 * 10**9)
        a.tick()
        assert (a.view.last(kinds.SYS_CPU), a.view.last(kinds.SYS_MEMORY)) == (0, 0)

    def test_without_a_nodeslo_or_with_stale_inputs_nothing(self, agent, make_pod) -> None:
        a = agent(slo=None)
        a.tick()
        a.tick()
        assert a.view.last(kinds.SYS_CPU) is None
        a.slo = apps()
        a.tick()
        assert a.view.last(kinds.SYS_CPU) is not None
        a.tree.write("proc/stat", "broken")
        for _ in range(14):
            a.tick()
        assert a.view.last(kinds.SYS_CPU) is None, "node usage is older than ten seconds"

    def test_pods_whose_cpu_is_unknown_are_not_taken_for_the_system(self, agent, make_pod) -> None:
        a = agent()
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory, anon=GIB)
        a.tick()
        a.tick()
        a.list(make_pod("web", "u-1"))
        a.tick()
        assert a.view.last(kinds.SYS_MEMORY, within=0.5) is None
        a.tick()
        assert a.view.last(kinds.SYS_MEMORY, within=0.5) == GIB

    @pytest.mark.parametrize(("file", "kind"), [("cpuacct/{}/cpuacct.usage", kinds.SYS_CPU), ("memory/{}/memory.stat", kinds.SYS_MEMORY)])
    def test_what_a_pod_uses_that_cannot_be_read_is_not_taken_for_the_system(self, agent, make_pod, file: str, kind: str) -> None:
        """Else the report counts it twice: as the pod's, by its former readings, and as the system's."""
        a = agent()
        directories = [a.tree.pod_dir("Burstable", uid) for uid in ("u-1", "u-2")]
        for directory in directories:
            a.tree.cgroup(directory, anon=GIB)
        a.list(make_pod("web", "u-1"), make_pod("db", "u-2"))
        a.tick()
        a.tick()
        assert a.view.last(kind, within=0.5) is not None
        path = "sys/fs/cgroup/" + file.format(directories[1])
        held = (a.tree.root / path).read_text()
        a.tree.write(path, "broken")
        a.tick()
        assert a.view.last(kind, within=0.5) is None
        assert a.view.last(kinds.POD_CPU, within=0.5, pod_uid="u-1") is not None
        a.tree.write(path, held)
        a.tick()
        a.tick()
        assert a.view.last(kind, within=0.5) is not None


@pytest.mark.feature("KLO-COL-08")
def test_page_cache_of_pods_and_containers(agent, make_pod) -> None:
    a = agent(flags={"enable_pagecache_collector": True})
    directory = a.tree.pod_dir("Burstable", "u-1")
    container = a.tree.container_dir(directory, "web-main")
    a.tree.cgroup(directory, anon=2 * MIB, cache=5 * MIB)
    a.tree.cgroup(container, anon=MIB, cache=MIB)
    a.list(make_pod("web", "u-1"))
    a.tick()
    assert a.view.last(kinds.POD_MEMORY_WITH_PAGE_CACHE, pod_uid="u-1") == 7 * MIB, "a gauge needs no second reading"
    a.tick()
    assert a.view.last(kinds.CONTAINER_MEMORY_WITH_PAGE_CACHE, container_id="containerd://web-main") == 2 * MIB
    assert a.view.last(kinds.NODE_MEMORY_WITH_PAGE_CACHE) == 4 * GIB


@pytest.mark.feature("KLO-COL-11")
class TestPressure:
    LINE = "some avg10={0} avg60=2.00 avg300=3.00 total=4\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1\n"

    def put(self, a, directory: str, cpu: str = "1.50") -> None:
        for name in ("cpu.pressure", "memory.pressure", "io.pressure"):
            a.tree.write(a.tree.file("cpuacct", directory, name), self.LINE.format(cpu))

    def test_series_and_gauges(self, agent, make_pod) -> None:
        a = agent(version=2, gates="PSICollector=true")
        directory = a.tree.pod_dir("Burstable", "u-1")
        for d in (a.tree.kubepods, directory, a.tree.container_dir(directory, "web-main")):
            a.tree.cgroup(d)
            self.put(a, d)
        a.tree.write(a.tree.file("", directory, "cpu.pressure"), self.LINE.format("7.25").split("\n")[0] + "\n")
        a.list(make_pod("web", "u-1"))
        a.tick()
        one = {"pod_uid": "u-1", "psi_resource": "cpu", "psi_precision": "10"}
        assert a.view.last(kinds.POD_PSI, psi_degree="some", **one) == 7.25
        assert a.view.last(kinds.POD_PSI_CPU_FULL_SUPPORTED, pod_uid="u-1") == 0
        text = exposed(a.metrics.external)
        assert 'koordlet_container_psi{container_id="containerd://web-main"' in text
        assert 'cpu_full_supported="false"' in text
        assert 'psi_degree="full",psi_precision="avg10",psi_resource_type="cpu"' not in text.split("koordlet_pod_psi{", 1)[1]

    def test_without_the_kernel_files_it_does_nothing(self, agent, make_pod) -> None:
        a = agent(gates="PSICollector=true")
        a.list(make_pod("web", "u-1"))
        a.tick()
        assert a.store.keys(kinds.POD_PSI) == []
        assert "psi" not in a.loop.waiting_for


@pytest.mark.feature("KLO-COL-13")
def test_inventory_and_its_counters(agent) -> None:
    a = agent(sockets=2, cores=2)
    a.tick()
    assert len(a.store.snapshot("node_cpu_info")) == 4
    assert [n.id for n in a.store.snapshot("node_numa_info")] == [0, 1]
    assert a.metrics.collect_cpu_info.get("succeeded") == 1
    before = a.store.snapshot("node_cpu_info")
    a.tick(61.0)
    assert a.store.snapshot("node_cpu_info") is before, "an equal topology keeps its identity"
    for node in (0, 1):
        (a.tree.root / f"sys/bus/node/devices/node{node}/meminfo").unlink()
    a.tick(61.0)
    assert a.metrics.collect_numa_info.get("failed") == 1


class TestClock:
    def test_a_jump_of_the_wall_clock_changes_no_rate(self, agent) -> None:
        a = agent()
        a.tick()
        a.tree.burn({0: 1.0}, 1.0)
        a.tick(jump=3600.0)
        assert a.view.last(kinds.NODE_CPU) == pytest.approx(1.0)
        a.tree.burn({0: 1.0}, 1.0)
        a.tick(jump=-7200.0)
        assert a.view.last(kinds.NODE_CPU) == pytest.approx(1.0), "points of the future do not block new ones"
        assert a.view.count(kinds.NODE_CPU, 60) == 2, "and points of before keep their age"
