"""What rules of the world take for a fault, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from koord.decisions.record import Record, Subject
from roles.sandbox.world.history import Entry, History
from roles.sandbox.world.invariants.base import Invariant
from roles.sandbox.world.invariants.evictions import RoomIsUsed
from roles.sandbox.world.invariants.hosts import HostsSettle
from roles.sandbox.world.invariants.migrations import Loads, OnlyHotNodesAreRelieved, TargetsStayCool
from roles.sandbox.world.invariants.overcommit import WhatIsLeftIsOffered
from roles.sandbox.world.invariants.quotas import MinimumIsReturned

QUOTA = "sys/fs/cgroup/kubepods-besteffort.slice/cpu.cfs_quota_us"


class Told:
    """A history that is written by hand, and what a rule says of it."""

    def __init__(self, rule: type[Invariant]) -> None:
        self.time = 0.0
        self.history = History(lambda: self.time)
        self.rule = rule(self.history)
        self.said: list[str] = []
        self.history.watchers.append(lambda entry: self.said.extend(self.rule.see(entry)))

    def store(self, bucket: str, key: str, new: Any, author: str = "", request: str = "") -> None:
        """A write to the API server."""
        table = self.history.of(bucket)
        old, table[key] = table.get(key), new
        entry = Entry(len(self.history.entries), self.time, author, request, bucket, "MODIFIED", key, old, new)
        self.history._add(entry)

    def pod(self, name: str, node: str, phase: str = "Running", **meta: Any) -> None:
        author = "descheduler-a" if meta else "kubelet"
        body = {"metadata": {"name": name, "namespace": "d", "uid": name, **meta}, "spec": {"nodeName": node}, "status": {"phase": phase}}
        self.store("pod", f"d/{name}", body, author)

    def quota_pod(self, name: str, quota: str, cpu: int, node: str = "") -> None:
        """One of a quota that requests so many milli-CPU."""
        meta = {"name": name, "namespace": "d", "uid": name, "labels": {"quota.scheduling.koordinator.sh/name": quota}}
        spec = {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": f"{cpu}m"}}}]}
        body = {"metadata": meta, "spec": spec, "status": {}}
        table = self.history.of("pod")
        table[f"d/{name}"] = body
        self.history.placed.setdefault(node, {})[f"d/{name}"] = body
        self.history._add(Entry(len(self.history.entries), self.time, "users", "", "pod", "ADDED", f"d/{name}", None, body))

    def report(self, node: str, used: int, system: int, **pods: int) -> None:
        """A NodeMetric in milli-CPU."""
        cpu = {name: {"resources": {"cpu": f"{value}m"}} for name, value in (("nodeUsage", used), ("systemUsage", system))}
        each = [{"namespace": "d", "name": name, "podUsage": {"resources": {"cpu": f"{value}m"}}} for name, value in pods.items()]
        self.store("nodemetric.slo.koordinator.sh", node, {"metadata": {}, "status": {"nodeMetric": cpu, "podsMetric": each}}, "kubelet-n")


@pytest.mark.parametrize("churn", [False, True])
def test_files_may_follow_pods_that_come_and_go_and_must_rest_otherwise(churn: bool) -> None:
    told = Told(HostsSettle)
    for step in range(15):
        told.time += 2.0
        if churn:
            told.pod(f"p{step}", "n")
        told.pod(f"p{step}", "another")
        told.time += 0.5
        before, after = ("200000", "300000") if step % 2 else ("300000", "200000")
        told.history.file("n", QUOTA, "koordlet-n", "BECPUSuppress", before, after, age=0.0, full=False)
    told.history.tell("phase", "uninstall")
    assert bool(told.said) is not churn


@pytest.mark.parametrize(("web", "hot"), [(2000, False), (3900, True)])
def test_a_node_is_hot_by_its_mean_or_by_the_pods_that_are_there_now(web: int, hot: bool) -> None:
    told = Told(OnlyHotNodesAreRelieved)
    told.store("node", "n", {"status": {"capacity": {"cpu": "6"}}})
    told.pod("web", "n")
    told.report("n", 3000, 100, web=web)  # it came in the last minute, so that the mean of the node has a part of it only
    told.pod("web", "n", deletionTimestamp="now")
    assert not told.said if hot else told.said


@pytest.mark.parametrize(("system", "cool"), [(150, True), (3000, False)])
def test_a_target_is_cool_without_pods_that_left_before_its_report(system: int, cool: bool) -> None:
    told = Told(TargetsStayCool)
    told.store("node", "n", {"status": {"capacity": {"cpu": "6"}}})
    told.pod("web", "hot")
    told.report("hot", 5000, 150, web=1000)
    told.report("n", 3100, system)
    job = {"spec": {"podRef": {"uid": "web"}}, "status": {"phase": "Running", "nodeName": "n"}}
    told.store("podmigrationjob.scheduling.koordinator.sh", "j", job)
    told.pod("web", "hot", deletionTimestamp="now")
    assert not told.said if cool else told.said


@pytest.mark.parametrize(("reported", "cool"), [(True, True), (False, False)])
def test_a_target_counts_what_left_for_it_and_is_in_no_report(reported: bool, cool: bool) -> None:
    told = Told(TargetsStayCool)
    told.store("node", "n", {"status": {"capacity": {"cpu": "6"}}})
    told.report("hot", 5000, 150, web=1000, api=1000)
    told.pod("mild", "n")
    told.report("n", 2200, 150, mild=2050)
    for name in ("web", "api"):
        told.pod(name, "hot")
        told.time += 10.0
        if reported and name == "api":  # web is on the target by now, and used less than at home
            told.report("n", 2500, 150, mild=2350)
            told.time += 30.0
        job = {"spec": {"podRef": {"uid": name}}, "status": {"phase": "Running", "nodeName": "n"}}
        told.store("podmigrationjob.scheduling.koordinator.sh", name, job)
        told.pod(name, "hot", deletionTimestamp="now")
    assert not told.said if cool else told.said


@pytest.mark.parametrize(("rooms", "said"), [((400, 300), False), ((200, 200), True)])
def test_a_quota_does_not_wait_for_what_others_owe_where_room_is_in_pieces(rooms: tuple[int, int], said: bool) -> None:
    told = Told(MinimumIsReturned)
    for name, least in (("a", 1), ("b", 2)):
        told.store("elasticquota.scheduling.sigs.k8s.io", f"d/{name}", {"metadata": {"name": name}, "spec": {"min": {"cpu": str(least)}}})
    for node, room in zip("mn", rooms, strict=True):
        told.store("node", node, {"status": {"allocatable": {"cpu": "2"}}})
        told.quota_pod(f"lent-{node}", "a", 2000 - room, node)
    told.quota_pod("waits", "b", 500)
    told.time += 60.0
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize(("offered", "said"), [("1500", False), ("1400", True), ("", True)])
def test_what_is_left_of_a_node_is_offered(offered: str, said: bool) -> None:
    told = Told(WhatIsLeftIsOffered)
    told.history.programs.append("manager-a")
    batch = {"kubernetes.io/batch-cpu": offered} if offered else {}
    told.store("node", "n", {"status": {"capacity": {"cpu": "6"}, "allocatable": {"cpu": "6", **batch}}})
    for _ in range(2):
        told.time += 20.0
        told.report("n", 600, 100)
    assert bool(list(told.rule.end())) is said


def test_a_report_that_says_the_same_is_no_other_one() -> None:
    told = Told(Loads)
    for used in (1000, 1000, 2000):
        told.time += 20.0
        told.report("n", used, 100, web=900)
    assert isinstance(told.rule, Loads)
    assert told.rule.used("n", 100.0) == [1000, 2000]


@pytest.mark.parametrize("verdict", ["Scheduled", "Unschedulable"])
def test_room_for_a_pod_whose_binding_is_on_its_way_is_nobody_elses(verdict: str) -> None:
    told = Told(RoomIsUsed)
    for name in ("a", "b"):
        node = {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "2"}}}
        told.store("node", name, node)
    told.quota_pod("low", "q", 2000, "a")
    told.quota_pod("first", "q", 2000)
    told.quota_pod("second", "q", 2000)
    told.time = 10.0
    told.history.records.append((9.0, "scheduler-a", Record("scheduler", Subject("Pod", "d", "first"), 9.0, verdict, "fit", "placed on b")))
    note = {"reason": "Preempted", "note": "Preempted by pod second on node a", "regarding": {"uid": "low"}}
    event = Entry(len(told.history.entries), told.time, "scheduler-a", "", "event", "ADDED", "d/e", None, note)
    told.history._add(event)
    told.quota_pod("second", "q", 2000, "b")
    assert bool(told.said) is (verdict == "Unschedulable")
