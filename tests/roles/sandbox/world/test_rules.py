"""What rules of the world take for a fault, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from roles.sandbox.world.history import Entry, History
from roles.sandbox.world.invariants.base import Invariant
from roles.sandbox.world.invariants.hosts import HostsSettle
from roles.sandbox.world.invariants.migrations import Loads, OnlyHotNodesAreRelieved, TargetsStayCool

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

    def report(self, node: str, used: int, system: int, **pods: int) -> None:
        """A NodeMetric in milli-CPU."""
        cpu = {name: {"resources": {"cpu": f"{value}m"}} for name, value in (("nodeUsage", used), ("systemUsage", system))}
        each = [{"namespace": "d", "name": name, "podUsage": {"resources": {"cpu": f"{value}m"}}} for name, value in pods.items()]
        self.store("nodemetric.slo.koordinator.sh", node, {"metadata": {}, "status": {"nodeMetric": cpu, "podsMetric": each}})


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


def test_a_report_that_says_the_same_is_no_other_one() -> None:
    told = Told(Loads)
    for used in (1000, 1000, 2000):
        told.time += 20.0
        told.report("n", used, 100, web=900)
    assert isinstance(told.rule, Loads)
    assert told.rule.used("n", 100.0) == [1000, 2000]
