"""The model of a kubelet on a modelled machine: it pins, starts, restarts and resizes as a kubelet does; and the machine says who waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from koord import seams
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.psi import parse_psi
from roles.koordlet.host.root import HostRoot
from roles.koordlet.qos.urgency import RISEN
from roles.koordlet.sensing.pressure import PressureWatch
from roles.koordlet.states.model import HostState
from roles.sandbox.world.history import History
from roles.sandbox.world.host.cpumanager import CpuManager, whole_cpus
from roles.sandbox.world.host.files import ProcessFiles
from roles.sandbox.world.host.kernel import BURST, CPUS, IDLE, LIMIT, QUOTA, SHARES
from roles.sandbox.world.host.layout import BESTEFFORT, HIGH, LEVELS, PSI, Layout
from roles.sandbox.world.host.machine import Machine
from roles.sandbox.world.host.running import STATE, Running
from roles.sandbox.world.host.usage import Use, share

TIER = LEVELS[BESTEFFORT]
Obj = dict[str, Any]


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Node:
    """A machine of six CPUs with its kubelet."""

    def __init__(self, root: Path, version: int, *extras: str, static: bool = False) -> None:
        self.clock = Clock()
        self.history = History(self.clock)
        layout = Layout(version, frozenset(extras or (BURST, PSI)))
        self.machine = Machine("n", root, cpus=6, memory=8 << 30, layout=layout, history=self.history, clock=self.clock)
        self.machine.reserved = frozenset({0}) if static else frozenset()
        self.kubelet = Running(self.machine, "kubelet-n")

    def start(self, pod: Obj) -> str:
        """Admit a pod and run its container; the container's group."""
        self.kubelet.admit(pod)
        while not self.kubelet.started(pod["metadata"]["uid"]):
            self.pass_on(0.5)
        pod["status"] = {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://c{pod['metadata']['uid']}"}],
        }
        self.kubelet.run(pod)
        return self.machine.residents[pod["metadata"]["uid"]].containers["main"]

    def pass_on(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.clock.now += 0.5
            self.machine.advance()

    def show(self, group: str, knob: str) -> str:
        return self.machine.kernel.show(self.machine.kernel.groups[group], knob)

    def told(self, verb: str) -> list[str]:
        return [entry.text for entry in self.history.entries if entry.verb == verb]


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., Node]:
    return lambda version=2, *extras, static=False: Node(tmp_path / f"n{version}", version, *extras, static=static)


def pod(uid: str, requests: Obj | None = None, limits: Obj | None = None, usage: int = 100) -> Obj:
    annotations = {"sandbox.koordinator.sh/usage-percent": str(usage), "sandbox.koordinator.sh/usage-curve": "steady"}
    resources = {"requests": requests or {}, "limits": limits or {}}
    meta = {"name": uid, "namespace": "d", "uid": uid, "annotations": annotations}
    return {"metadata": meta, "spec": {"containers": [{"name": "main", "resources": resources}]}}


def guaranteed(uid: str, cpu: str, memory: str = "256Mi") -> Obj:
    amounts = {"cpu": cpu, "memory": memory}
    return pod(uid, amounts, dict(amounts))


def batch(uid: str, milli: int, usage: int = 100) -> Obj:
    return pod(uid, {"kubernetes.io/batch-cpu": str(milli), "kubernetes.io/batch-memory": "256Mi"}, usage=usage)


# -- the static policy -------------------------------------------------------------------------------------------------------


def test_whole_cpus_go_to_guaranteed_pods_that_request_whole_ones() -> None:
    for one, count in ((guaranteed("a", "2"), 2), (guaranteed("a", "1500m"), 0), (pod("a", {"cpu": "2"}), 0), (pod("a"), 0)):
        assert whole_cpus(one, one["spec"]["containers"][0]) == count


def test_cores_first_never_the_reserved_and_nobody_twice() -> None:
    manager = CpuManager(frozenset(range(6)), frozenset({0}))
    for uid, cpu in (("a", "2"), ("b", "1"), ("c", "3"), ("d", "2")):
        manager.admit(guaranteed(uid, cpu))
    assert [sorted(manager.of_pod(uid)) for uid in "abcd"] == [[2, 3], [1], [], [4, 5]]
    assert manager.shared == {0}
    manager.release("a")
    state = orjson.loads(manager.checkpoint())
    assert (state["policyName"], state["defaultCpuSet"], state["entries"]) == (
        "static",
        "0,2-3",
        {"b": {"main": "1"}, "d": {"main": "4-5"}},
    )


@pytest.mark.parametrize("version", [1, 2])
def test_who_shares_gets_what_is_left_at_the_next_look(node: Any, version: int) -> None:
    n = node(version, static=True)
    shares, alone = n.start(pod("shares", {"cpu": "500m"})), n.start(guaranteed("alone", "2"))
    assert (n.show(shares, CPUS), n.show(alone, CPUS)) == ("0-5", "2-3")
    n.kubelet.reconcile(n.clock.now)
    assert n.show(shares, CPUS) == "0-1,4-5"
    n.kubelet.stop("alone")
    assert orjson.loads((n.machine.root / STATE).read_bytes())["defaultCpuSet"] == "0-5"
    n.kubelet.reconcile(n.clock.now)
    assert n.show(shares, CPUS) == "0-1,4-5"
    n.kubelet.set_cpus()
    assert n.show(shares, CPUS) == "0-5"


# -- starts, ends ------------------------------------------------------------------------------------------------------------


def test_a_start_takes_longer_with_less_cpu(node: Any) -> None:
    n = node(1)

    def seconds(uid: str) -> float:
        began = n.clock.now
        n.start(batch(uid, 1000))
        return float(n.clock.now - began)

    soon = seconds("a")
    n.machine.set(TIER, QUOTA, "5000", "koordlet-n", "suppress")
    assert seconds("b") >= 6.0 > soon


def test_a_container_that_ends_is_started_again_in_a_group_of_its_own(node: Any) -> None:
    n = node()
    one = pod("a", {"cpu": "500m"})
    group = n.start(one)
    assert n.kubelet.restarts(one) is None
    n.machine.exit("a", "main")
    n.kubelet.run(one)
    assert group not in n.machine.kernel.groups, "not before its kubelet says so"
    one["status"]["containerStatuses"] = n.kubelet.restarts(one)
    n.kubelet.run(one)
    (again,) = n.machine.residents["a"].containers.values()
    assert again != group
    assert one["status"]["containerStatuses"][0]["restartCount"] == 1
    assert n.kubelet.restarts(one) is None


# -- resizes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_pod_is_resized_in_place(node: Any, version: int) -> None:
    n = node(version)
    one = pod("a", {"cpu": "500m", "memory": "64Mi"}, {"cpu": "1", "memory": "256Mi"})
    group = n.start(one)
    own = n.machine.residents["a"].group
    for cpu, memory in (("2", "512Mi"), ("700m", "128Mi")):
        one["spec"]["containers"][0]["resources"]["limits"] = {"cpu": cpu, "memory": memory}
        assert n.kubelet.resize(one)
        quota = str(200_000 if cpu == "2" else 70_000)
        for name in (own, group):
            assert n.show(name, QUOTA).split()[0] == quota
            assert n.show(name, LIMIT) == str(int(memory[:-2]) << 20)
    assert not n.kubelet.resize(one)
    assert n.told("resized") == ["a", "a"]


def test_what_the_kernel_refuses_is_tried_again(node: Any) -> None:
    n = node(2, BURST)
    one = pod("a", {"cpu": "500m"}, {"cpu": "1"})
    group = n.start(one)
    n.machine.set(group, BURST, "100000", "koordlet-n", "burst")
    one["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "600m"}
    assert not n.kubelet.resize(one)
    n.machine.set(group, BURST, "60000", "koordlet-n", "burst")
    assert n.kubelet.resize(one)


def test_memory_below_what_is_used_waits_for_the_kubelet_and_kills_for_anybody_else(node: Any) -> None:
    n = node(2)
    one = pod("a", {"memory": "256Mi"}, {"memory": "512Mi"})
    group = n.start(one)
    n.pass_on(1)
    one["spec"]["containers"][0]["resources"]["limits"] = {"memory": "64Mi"}
    assert not n.kubelet.resize(one)
    n.machine.set(group, LIMIT, str(64 << 20), "koordlet-n", "limit")
    assert [text.split()[0] for text in n.told("oom")] == ["koordlet-n"]
    n.pass_on(1)
    assert group not in n.machine.kernel.groups


# -- weights, pressure -------------------------------------------------------------------------------------------------------


def test_time_is_divided_by_weight_and_nobody_gets_more_than_it_wants(node: Any) -> None:
    machine = node(1, IDLE).machine
    for name, shares in (("a", 3072), ("b", 1024), ("c", 1024)):
        machine.make(f"{TIER}/{name}")
        machine.set(f"{TIER}/{name}", SHARES, shares, "x", "y")

    def got(*wanted: float) -> list[float]:
        uses = [Use(machine.kernel.groups[f"{TIER}/{name}"], True, want) for name, want in zip("abc", wanted, strict=True)]
        share(machine.kernel, uses, 1.0)
        return [round(use.got, 2) for use in uses]

    assert got(6, 6, 6) == [3.0, 1.0, 1.0]
    assert got(6, 6, 0.5) == [3.38, 1.12, 0.5]
    machine.set(f"{TIER}/a", IDLE, 1, "x", "y")
    assert got(6, 6, 0)[0] < 0.1


@pytest.mark.parametrize("version", [1, 2])
def test_pressure_follows_from_who_waits(node: Any, version: int) -> None:
    n = node(version)
    n.start(batch("b", 2000))
    n.pass_on(10)

    def read(path: str, resource: str = "cpu") -> Any:
        name = path if path.startswith("proc/") else n.machine.layout.pressure_file(resource, path)
        return parse_psi(name, n.machine.reading(f"{n.machine.root}/{name}"))

    assert read("proc/pressure/cpu").some.avg10 < 1, "nobody waits"
    n.machine.set(TIER, QUOTA, "50000" if version == 1 else "50000 100000", "koordlet-n", "suppress")
    n.pass_on(30)
    before = read(TIER)
    assert before.some.avg10 > 70
    assert before.full.total > 0
    assert read("proc/pressure/cpu").some.avg10 > 70
    n.clock.now += 0.1  # between two looks of the kernel at what pods want
    assert 60_000 < read(TIER).some.total - before.some.total < 100_000


def test_memory_that_is_throttled_makes_its_group_wait(node: Any) -> None:
    n = node(2)
    group = n.start(pod("a", {"memory": "512Mi"}, {"memory": "1Gi"}))
    n.machine.set(group, HIGH, str(128 << 20), "koordlet-n", "MemoryQOS")
    n.pass_on(20)
    name = n.machine.layout.pressure_file("memory", group)
    assert parse_psi(name, n.machine.reading(f"{n.machine.root}/{name}")).some.avg10 > 10


def test_suppression_gives_services_their_time_back(node: Any) -> None:
    n = node(1)
    n.start(pod("service", {"cpu": "3"}))
    n.start(batch("b", 6000))
    n.pass_on(4)

    def held_up() -> float:
        return next(float((e.new or {})["held_up"]) for e in reversed(n.history.entries) if e.verb == "host")

    alone = held_up()
    n.machine.set(TIER, QUOTA, "100000", "koordlet-n", "suppress")
    n.pass_on(4)
    assert held_up() == 0 < alone


@pytest.mark.parametrize("version", [1, 2])
def test_koordlets_pressure_path_sees_a_service_that_needs_more(node: Any, version: int) -> None:
    """Between two ticks, by the counters of this very moment: best-effort pods that fill the node are no news, a rise beside them is."""
    n = node(version)
    n.start(batch("b", 6000))
    service = pod("service", {"cpu": "2"}, usage=10)
    n.start(service)
    surroundings = seams.System()
    surroundings.files = ProcessFiles(n.machine, "koordlet-n", lambda: False, lambda: None)
    token = seams.use(surroundings)
    try:
        root = HostRoot.at(str(n.machine.root))
        host = HostState(root, Cgroups.detect(root), HostFiles())
        watch = PressureWatch(host, list, 6, lambda reason: None)

        def looks(count: int) -> list[str]:
            found = []
            for _ in range(count):
                n.clock.now += 0.1
                host.files.begin_tick()
                found.append(watch.look(n.clock.now))
            return [reason for reason in found if reason]

        told: list[str] = []
        for _ in range(4):  # what is usual has to be learned
            watch.ticked(n.clock.now)
            told = looks(10)
        assert told == []
        service["metadata"]["annotations"]["sandbox.koordinator.sh/usage-percent"] = "100"
        n.machine.advance()
        assert RISEN in looks(5)
        host.files.close_all()
    finally:
        seams.leave(token)


def test_what_a_pod_uses_is_told_as_soon_as_it_runs(node: Any) -> None:
    made = node()
    made.pass_on(2.0)
    made.start(pod("a", {"cpu": "1", "memory": "8Gi"}))
    last = [entry for entry in made.history.entries if entry.verb == "host"][-1]
    assert last.new is not None
    assert last.time == made.clock.now
    assert last.new["memory"] > 40
