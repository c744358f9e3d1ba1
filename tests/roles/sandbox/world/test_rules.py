"""What rules of the world take for a fault, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from koord.decisions.record import Record, Subject
from roles.sandbox.world.history import Entry, History, Request
from roles.sandbox.world.invariants.base import CLAIM, Invariant
from roles.sandbox.world.invariants.claims import ClaimedOnce
from roles.sandbox.world.invariants.community import AFFINITY, SPREAD, WhatIsWrongLeaves, wrong
from roles.sandbox.world.invariants.evictions import OneNodeMakesRoom, RoomIsUsed
from roles.sandbox.world.invariants.gangs import GangWhole
from roles.sandbox.world.invariants.hosts import EvictedForAReason, HostsSettle
from roles.sandbox.world.invariants.liveness import BACK_OFF, ItSettles, NobodyCrashes, WhatFitsIsBound
from roles.sandbox.world.invariants.migrations import HotIsRelieved, Loads, MovesLoseNothing, OnlyHotNodesAreRelieved, TargetsStayCool
from roles.sandbox.world.invariants.overcommit import WhatIsLeftIsOffered
from roles.sandbox.world.invariants.quotas import MinimumIsReturned
from roles.sandbox.world.invariants.staleness import BookmarksSpareLists, NothingForGhosts
from roles.sandbox.world.invariants.suitability import BoundWhereItMay, ReservedIsHeld, TargetsAreOpen

QUOTA = "sys/fs/cgroup/kubepods-besteffort.slice/cpu.cfs_quota_us"


class Told:
    """A history that is written by hand, and what a rule says of it."""

    def __init__(self, rule: type[Invariant]) -> None:
        self.time = 0.0
        self.history = History(lambda: self.time)
        self.rule = rule(self.history)
        self.said: list[str] = []
        self.history.watchers.append(lambda entry: self.said.extend(self.rule.see(entry)))

    def add(self, bucket: str, key: str, new: Any) -> None:
        """Somebody makes an object."""
        self.history.of(bucket)[key] = new
        self.history._add(Entry(len(self.history.entries), self.time, "users", "", bucket, "ADDED", key, None, new))

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


@pytest.mark.parametrize(("room", "said"), [(20, False), (2000, True)])
def test_a_tier_starves_also_whose_pods_are_yet_to_start(room: int, said: bool) -> None:
    told = Told(EvictedForAReason)
    spec = {"resourceUsedThresholdWithBE": {"cpuEvictBESatisfactionLowerPercent": 50}}
    told.store("nodeslo.slo.koordinator.sh", "n", {"metadata": {"name": "n"}, "spec": spec})
    seen = {"room": room, "tier_asked": 0, "memory": 5}
    told.history._add(Entry(1, 0.0, "", "", "", "host", "n", None, seen))
    containers = [{"resources": {"requests": {"kubernetes.io/batch-cpu": "1000"}}}]
    meta = {"name": "p", "namespace": "d", "uid": "p", "labels": {"koordinator.sh/qosClass": "BE"}}
    body = {"metadata": meta, "spec": {"nodeName": "n", "containers": containers}}
    told.history.placed["n"] = {"d/p": body}
    told.store("pod", "d/p", body, "koordlet-n", "POST /api/v1/namespaces/d/pods/p/eviction")
    assert bool(told.said) is said


@pytest.mark.parametrize("meta", [{}, {"deletionTimestamp": "2026-01-01T00:00:59Z"}], ids=["stays", "leaves"])
def test_a_pod_that_is_where_it_should_not_be_and_leaves_does_not_stay(meta: dict[str, Any]) -> None:
    told = Told(WhatIsWrongLeaves)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    spec = {"nodeName": "a", "containers": [{"resources": {"requests": {"cpu": "100m"}}}]}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    told.store("node", "b", {"metadata": {"name": "b"}, "spec": {}, "status": {"allocatable": {"cpu": "1"}}})
    body = {"metadata": {"name": "p", "namespace": "d", "uid": "p", "ownerReferences": [owner], **meta}, "spec": spec, "status": status}
    told.store("pod", "d/p", body)
    assert isinstance(told.rule, WhatIsWrongLeaves)
    told.rule.since = {("p", AFFINITY): 0.0}
    told.time = 60.0
    assert bool(list(told.rule.end())) is (not meta)


@pytest.mark.parametrize(("took", "said"), [(20.0, False), (5.0, True)], ids=["lately", "long-ago"])
def test_a_descheduler_that_has_just_taken_the_lease_is_given_time(took: float, said: bool) -> None:
    told = Told(WhatIsWrongLeaves)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    spec = {"nodeName": "a", "containers": [{"resources": {"requests": {"cpu": "100m"}}}]}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    told.store("node", "b", {"metadata": {"name": "b"}, "spec": {}, "status": {"allocatable": {"cpu": "1"}}})
    meta = {"name": "p", "namespace": "d", "uid": "p", "ownerReferences": [owner]}
    told.store("pod", "d/p", {"metadata": meta, "spec": spec, "status": status})
    told.history.led["koord-descheduler"] = took
    assert isinstance(told.rule, WhatIsWrongLeaves)
    told.rule.since = {("p", AFFINITY): 0.0}
    told.time = 60.0
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize(("ago", "said"), [(5.0, False), (55.0, True)])
def test_room_that_has_just_come_is_not_missed_by_pods_that_are_wrong(ago: float, said: bool) -> None:
    told = Told(WhatIsWrongLeaves)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    spec = {"nodeName": "a", "containers": [{"resources": {"requests": {"cpu": "100m"}}}]}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    told.store("node", "b", {"metadata": {"name": "b"}, "spec": {}, "status": {"allocatable": {"cpu": "1"}}})
    told.pod("left", "b")
    meta = {"name": "p", "namespace": "d", "uid": "p", "ownerReferences": [owner]}
    told.store("pod", "d/p", {"metadata": meta, "spec": spec, "status": status})
    told.time = 60.0 - ago
    told.pod("left", "b", "Succeeded")
    assert isinstance(told.rule, WhatIsWrongLeaves)
    told.rule.since = {("p", AFFINITY): 0.0}
    told.time = 60.0
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize(("times", "said"), [(1, True), (2, False)])
def test_a_pod_that_was_put_back_twice_may_stay_for_a_while(times: int, said: bool) -> None:
    told = Told(WhatIsWrongLeaves)
    told.history.profiles = "community"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    spec = {"nodeName": "a", "containers": [{"resources": {"requests": {"cpu": "100m"}}}]}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    tainted = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    told.store("node", "a", {"metadata": {"name": "a"}, "spec": tainted, "status": {"allocatable": {"cpu": "1"}}})
    told.store("node", "b", {"metadata": {"name": "b"}, "spec": {}, "status": {"allocatable": {"cpu": "1"}}})
    for index in range(times + 1):
        told.time += 10.0
        meta = {"name": f"p{index}", "namespace": "d", "uid": f"p{index}", "ownerReferences": [owner]}
        told.history.placed["a"] = {f"d/p{index}": {"metadata": meta, "spec": spec, "status": status}}
        told.add("pod", f"d/p{index}", told.history.placed["a"][f"d/p{index}"])
        if index < times:
            told.time += 10.0
            leaving = {**meta, "deletionTimestamp": "2026-01-01T00:00:59Z"}
            told.store("pod", f"d/p{index}", {"metadata": leaving, "spec": spec, "status": status}, "descheduler-a")
            told.history.of("pod").pop(f"d/p{index}")
    told.time += 60.0
    assert bool(list(told.rule.end())) is said


def test_pods_are_spread_by_their_labels_whoever_owns_them() -> None:
    """After the API server has lost all, two workloads may have one name."""
    told = Told(WhatIsWrongLeaves)
    for name in "ab":
        told.store("node", name, {"metadata": {"name": name}, "spec": {}, "status": {}})
    spec = {"nodeName": "a", "topologySpreadConstraints": [{"maxSkew": 1, "labelSelector": {"matchLabels": {"app": "even"}}}]}
    told.history.placed["a"] = {
        f"d/{uid}": {
            "metadata": {"uid": uid, "labels": {"app": "even"}, "ownerReferences": [{"name": "even", "uid": f"of-{uid}"}]},
            "spec": spec,
        }
        for uid in "pq"
    }
    assert {("p", SPREAD), ("q", SPREAD)} <= set(wrong(told.history))


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("https://127.0.0.1:6443: connection refused", False),
        ('namespaces "koordinator-system" not found (NotFound, HTTP 404)', False),
        ("permission denied", True),
    ],
)
def test_a_manager_may_end_whose_api_server_is_away_or_has_lost_all(cause: str, said: bool) -> None:
    told = Told(NobodyCrashes)
    told.history.tell("ended", "manager-a", f"RuntimeError: webhooks: the first webhook sync did not finish in 20s: {cause}")
    assert bool(told.said) is said


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


@pytest.mark.parametrize("left", [False, True])
def test_a_target_does_not_count_who_came_and_has_left_again(left: bool) -> None:
    told = Told(TargetsStayCool)
    told.store("node", "n", {"status": {"capacity": {"cpu": "6"}}})
    told.report("hot", 5000, 150, web=1000, api=1000)
    told.pod("mild", "n")
    told.report("n", 2200, 150, mild=2050)
    for name in ("web", "api"):
        told.pod(name, "hot")
        status = {"phase": "Running", "nodeName": "n", "reservationName": f"for-{name}"}
        told.store("podmigrationjob.scheduling.koordinator.sh", name, {"spec": {"podRef": {"uid": name}}, "status": status})
        told.pod(name, "hot", deletionTimestamp="now")
        if left:
            came = {"annotations": {"scheduling.koordinator.sh/reservation-allocated": f'{{"name": "for-{name}"}}'}}
            told.pod(f"{name}-2", "n", **came)
            told.pod(f"{name}-2", "n", **came, deletionTimestamp="now")
    assert not told.said if left else told.said


@pytest.mark.parametrize("phase", ["Available", "Failed"])
def test_a_target_does_not_count_who_has_lost_the_place_there(phase: str) -> None:
    told = Told(TargetsStayCool)
    told.store("node", "n", {"status": {"capacity": {"cpu": "6"}}})
    told.report("hot", 5000, 150, web=1000, api=1000)
    told.pod("mild", "n")
    told.report("n", 2200, 150, mild=2050)
    for name in ("web", "api"):
        told.pod(name, "hot")
        status = {"phase": "Running", "nodeName": "n", "reservationName": f"for-{name}"}
        told.store("podmigrationjob.scheduling.koordinator.sh", name, {"spec": {"podRef": {"uid": name}}, "status": status})
        told.pod(name, "hot", deletionTimestamp="now")
        told.store("reservation.scheduling.koordinator.sh", f"for-{name}", {"metadata": {}, "status": {"phase": phase}})
        told.time += 10.0
    assert not told.said if phase == "Failed" else told.said


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_target_does_not_count_who_goes_elsewhere_by_an_exchange_of_places(exchanged: bool) -> None:
    told = Told(TargetsStayCool)
    told.store("node", "n", {"status": {"capacity": {"cpu": "6"}}})
    told.report("hot", 5000, 150, web=1000, api=1000)
    told.pod("mild", "n")
    told.report("n", 2200, 150, mild=2050)
    for name in ("web", "api"):
        told.pod(name, "hot")
        job = {"spec": {"podRef": {"uid": name}}, "status": {"phase": "Running", "nodeName": "n"}}
        told.store("podmigrationjob.scheduling.koordinator.sh", name, job)
        told.pod(name, "hot", deletionTimestamp="now")
        if exchanged:
            moved = {**job, "status": {"phase": "Running", "nodeName": "other"}}
            told.store("podmigrationjob.scheduling.koordinator.sh", name, moved)
        told.time += 10.0
    assert not told.said if exchanged else told.said


WATCH, LIST, ALL = (f"/api/v1/services?{how}" for how in ("watch=true&resourceVersion=7", "watch=true&sendInitialEvents=true", "limit=500"))


@pytest.mark.parametrize(
    ("asked", "said"),
    [([LIST, WATCH], False), ([WATCH], False), ([WATCH, ALL], False), ([WATCH, LIST], True), ([WATCH, ALL, WATCH], True)],
)
def test_caches_that_are_begun_after_a_bookmark_have_to_list_as_has_who_asks_once(asked: list[str], said: bool) -> None:
    told = Told(BookmarksSpareLists)
    told.time = 100.0
    told.history.tell("cut after a bookmark", "apiserver", "7")
    for path in asked:
        told.time += 0.5
        told.history.requested("descheduler-a", "GET", path)
    assert bool([*told.rule.end()]) is said


def bind(told: Told, name: str, node: str, **spec: Any) -> None:
    """A scheduler assigns a pod that it has just looked at."""
    meta = {"name": name, "namespace": "d", "uid": name}
    told.history.records.append(
        (told.time, "scheduler-a", Record("scheduler", Subject("Pod", "d", name), told.time, "Scheduled", "fit", ""))
    )
    cpu = {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}
    old, new = ({"metadata": meta, "spec": {**cpu, **spec, **place}, "status": {}} for place in ({}, {"nodeName": node}))
    told.history.of("pod")[f"d/{name}"] = new
    told.history.placed.setdefault(node, {})[f"d/{name}"] = new
    told.history._add(Entry(len(told.history.entries), told.time, "scheduler-a", "", "pod", "MODIFIED", f"d/{name}", old, new))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("closed", [{"taints": [{"key": "k", "effect": "NoSchedule"}]}, {"unschedulable": True}])
def test_a_pod_gets_no_node_that_is_known_to_be_closed(closed: dict[str, Any], known: bool) -> None:
    told = Told(BoundWhereItMay)
    told.time = 200.0
    told.store("node", "n", {"metadata": {}, "spec": {}})
    told.time += 10.0
    told.store("node", "n", {"metadata": {}, "spec": closed})
    told.time += 10.0 if known else 1.0
    bind(told, "p", "n")
    assert bool(told.said) is known


@pytest.mark.parametrize(("closed", "released", "said"), [(11.0, True, False), (9.0, True, True), (None, True, True), (11.0, False, True)])
def test_a_gang_may_miss_a_member_whose_node_was_closed_after_its_release(closed: float | None, released: bool, said: bool) -> None:
    told = Told(GangWhole)
    told.store("node", "n", {"metadata": {}, "spec": {}})
    if closed is not None and closed < 10.0:
        told.store("node", "n", {"metadata": {}, "spec": {"unschedulable": True}})
    told.time = 10.0
    meta = {"annotations": {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "2"}}
    told.pod("one", "", **meta)
    told.pod("two", "", **meta)
    for verdict, kind, name, message in (("Scheduled", "Pod", "two", "placed on n"), ("Released", "PodGroup", "g", "2 members")):
        if released:
            record = Record("scheduler", Subject(kind, "d", name), told.time, verdict, "fit", message)
            told.history.records.append((told.time, "scheduler-a", record))
    told.pod("one", "m", **meta)
    if closed is not None and closed > 10.0:
        told.time = closed
        told.store("node", "n", {"metadata": {}, "spec": {"unschedulable": True}})
    assert bool([*told.rule.end()]) is said


@pytest.mark.parametrize("hurt", [False, True])
def test_who_was_hurt_may_not_have_heard_of_it(hurt: bool) -> None:
    told = Told(BoundWhereItMay)
    told.time = 200.0
    told.store("node", "n", {"metadata": {}, "spec": {"unschedulable": True}})
    if hurt:
        told.history.tell("fault", "stall", "1.0s stall of scheduler-a for 30.0s")
    told.time += 20.0
    bind(told, "p", "n")
    assert bool(told.said) is not hurt


@pytest.mark.parametrize(("node", "said"), [("m", True), ("n", False)])
def test_pods_are_spread_evenly_when_they_get_a_node(node: str, said: bool) -> None:
    told = Told(BoundWhereItMay)
    for name in ("m", "n"):
        told.store("node", name, {"metadata": {}, "spec": {}})
    told.time = 200.0
    even = {"topologySpreadConstraints": [{"maxSkew": 1}]}
    bind(told, "first", "m", **even)
    told.time += 10.0
    bind(told, "second", node, **even)
    assert bool(told.said) is said


@pytest.mark.parametrize(("phase", "said"), [("Available", True), ("Failed", False)])
def test_what_a_reservation_holds_is_nobody_elses(phase: str, said: bool) -> None:
    told = Told(ReservedIsHeld)
    told.time = 100.0
    told.store("node", "n", {"status": {"allocatable": {"cpu": "2"}}})
    wants = {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}
    held = {"metadata": {"name": "r"}, "spec": {"template": {"spec": wants}}, "status": {"phase": phase, "nodeName": "n"}}
    told.store("reservation.scheduling.koordinator.sh", "r", held)
    bind(told, "first", "n")
    assert not told.said
    bind(told, "second", "n")
    assert bool(told.said) is said


@pytest.mark.parametrize(("seconds", "said"), [(1.0, False), (10.0, True)])
def test_no_pod_is_moved_towards_a_node_that_is_closed(seconds: float, said: bool) -> None:
    told = Told(TargetsAreOpen)
    told.pod("web", "hot")
    job = {"spec": {"podRef": {"uid": "web"}}, "status": {"phase": "Running", "nodeName": "n"}}
    told.store("podmigrationjob.scheduling.koordinator.sh", "j", job)
    told.time = 100.0
    told.store("node", "n", {"metadata": {}, "spec": {"unschedulable": True}})
    told.time += seconds
    told.pod("web", "hot", deletionTimestamp="now")
    assert bool(told.said) is said


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


@pytest.mark.parametrize(("times", "said"), [(5, False), (7, True)])
def test_a_reservation_takes_some_steps_from_pending_to_succeeded(times: int, said: bool) -> None:
    told = Told(ItSettles)
    path = "/apis/scheduling.koordinator.sh/v1alpha1/reservations/r/status"
    told.history.requests.extend(Request(float(second), "scheduler-a", "PATCH", path) for second in range(times))
    told.time = float(times)
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize(("made", "times", "said"), [(30.0, 5, False), (30.0, 6, True), (5.0, 3, False), (5.0, 4, True)])
def test_a_young_pod_is_tried_often_and_may_lack_something_else_each_time(made: float, times: int, said: bool) -> None:
    told = Told(ItSettles)
    told.time = made
    told.quota_pod("p", "", 1000)
    path = "/api/v1/namespaces/d/pods/p/status"
    told.history.requests.extend(Request(33.0 + second, "scheduler-a", "PATCH", path) for second in range(times))
    told.time = 50.0
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize(
    ("author", "time", "said"), [("scheduler-b", 69.0, False), ("scheduler-b", 105.0, True), ("scheduler-a", 69.0, True)]
)
def test_a_scheduler_whose_watches_are_refused_has_not_heard_that_all_was_lost(author: str, time: float, said: bool) -> None:
    told = Told(NothingForGhosts)

    def add(at: float, bucket: str, verb: str, key: str, text: str = "", new: Any = None) -> None:
        told.history._add(Entry(len(told.history.entries), at, author, "", bucket, verb, key, None, new, text=text))

    add(1.0, "pod", "ADDED", "d/p", new={"metadata": {"name": "p", "namespace": "d", "uid": "u"}})
    told.history.wiped = 38.0
    add(38.0, "", "wiped", "apiserver")
    add(41.0, "", "fault", "resume", text="35.8s resume of scheduler-b for 33.1s")
    add(time, "event", "ADDED", "d/p.1", new={"regarding": {"uid": "u"}})
    assert bool(told.said) is said


def preempts(told: Told, preemptor: str, victim: str, node: str) -> None:
    """The event of a pod that has to go."""
    note = {"reason": "Preempted", "note": f"Preempted by pod {preemptor} on node {node}", "regarding": {"uid": victim}}
    told.history._add(Entry(len(told.history.entries), told.time, "scheduler-a", "", "event", "ADDED", f"d/{victim}", None, note))


@pytest.mark.parametrize(
    ("spec", "labels", "said"),
    [
        ({}, {}, True),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, {}, False),
        ({"unschedulable": True}, {}, False),
        ({}, {"pool": "there"}, False),
    ],
)
def test_another_node_may_make_room_when_the_first_one_has_changed(spec: dict[str, Any], labels: dict[str, str], said: bool) -> None:
    told = Told(OneNodeMakesRoom)
    told.store("node", "a", {"metadata": {"name": "a"}, "spec": {}})
    told.time = 10.0
    preempts(told, "p", "low-a", "a")
    told.time = 11.0
    told.store("node", "a", {"metadata": {"name": "a", "labels": labels}, "spec": spec, "status": {"images": []}})
    told.time = 12.0
    preempts(told, "p", "low-b", "b")
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize(("heard", "said"), [(8.0, False), (9.5, True)])
def test_another_node_may_make_room_when_the_scheduler_had_yet_to_hear_that_the_first_one_has_changed(heard: float, said: bool) -> None:
    told = Told(OneNodeMakesRoom)
    told.store("node", "a", {"metadata": {"name": "a"}, "spec": {}})
    told.time = 9.0
    told.store("node", "a", {"metadata": {"name": "a"}, "spec": {"unschedulable": True}})
    told.time = 10.0
    told.history.heard["scheduler-a", "nodes"] = heard
    preempts(told, "p", "low-a", "a")
    told.time = 12.0
    told.history.heard["scheduler-a", "nodes"] = 11.0
    preempts(told, "p", "low-b", "b")
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize("late", [0.0, 3.0])
@pytest.mark.parametrize("gone", [False, True])
def test_another_node_may_make_room_when_who_was_asked_is_gone_however_late_events_come(gone: bool, late: float) -> None:
    told = Told(OneNodeMakesRoom)

    def leaves(time: float, name: str, verb: str = "MODIFIED") -> None:
        told.time = time
        meta = {"name": name, "namespace": "d", "uid": name}
        old, new = {"metadata": meta}, {"metadata": {**meta, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        old, new = (new, None) if verb == "DELETED" else (old, new)
        told.history._add(Entry(len(told.history.entries), time, "scheduler-a", "", "pod", verb, f"d/{name}", old, new))

    leaves(10.0, "low-a")
    preempts(told, "p", "low-a", "a")
    if gone:
        leaves(11.0, "low-a", "DELETED")
    leaves(12.0, "low-b")
    if not late:
        preempts(told, "p", "low-b", "b")
    leaves(14.0, "low-b", "DELETED")
    if late:
        told.time += late
        preempts(told, "p", "low-b", "b")
    assert bool(list(told.rule.end())) is not gone


@pytest.mark.parametrize(("stands_on", "said"), [("a", False), ("c", True)])
def test_a_gang_leaves_other_nodes_for_a_node_of_a_member_that_could_not_be_asked(stands_on: str, said: bool) -> None:
    told = Told(OneNodeMakesRoom)
    for name, node in (("one", "b"), ("two", stands_on)):
        meta = {"name": name, "namespace": "d", "uid": name, "annotations": {"gang.scheduling.koordinator.sh/name": "g"}}
        for number, (verb, spec) in enumerate((("ADDED", {}), ("MODIFIED", {"nodeName": node}))):
            old = {"metadata": meta, "spec": {}} if number else None
            told.history._add(Entry(number, 1.0, "", "", "pod", verb, f"d/{name}", old, {"metadata": meta, "spec": spec}))
    preempts(told, "p", "one", "b")
    preempts(told, "p", "low", "a")
    assert bool(list(told.rule.end())) is said


def workload_pod(name: str, node: str, **more: str) -> dict[str, Any]:
    """A pod of ReplicaSet web."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
    meta = {"name": name, "namespace": "d", "uid": name, "ownerReferences": [owner], "labels": {"koordinator.sh/qosClass": "LS"}}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    spec = {"containers": [{"resources": {"requests": {"cpu": "100m"}}}], "nodeName": node}
    return {"metadata": {**meta, **more}, "spec": spec, "status": status}


def hot_and_cool(told: Told) -> None:
    """Nodes of these names; all four pods of ReplicaSet web are on the hot one."""
    for name in ("hot", "cool"):
        amounts = {"cpu": "8"}
        told.store("node", name, {"metadata": {"name": name}, "spec": {}, "status": {"allocatable": amounts, "capacity": amounts}})
    told.store("replicaset.apps", "d/web", {"metadata": {"name": "web", "uid": "web"}, "spec": {"replicas": 4}})
    for index in range(4):
        told.history.placed.setdefault("hot", {})[f"d/web{index}"] = workload_pod(f"web{index}", "hot")
        told.add("pod", f"d/web{index}", workload_pod(f"web{index}", "hot"))


@pytest.mark.parametrize(("ago", "said"), [(5.0, False), (40.0, True)])
def test_a_workload_of_which_a_pod_has_just_left_another_node_is_spared(ago: float, said: bool) -> None:
    told = Told(HotIsRelieved)
    told.history.programs.append("descheduler-a")
    hot_and_cool(told)
    told.store("pod", "d/gone", workload_pod("gone", "other"))
    for second in range(0, 100, 5):
        told.time = float(second)
        told.report("hot", 7000 + second, 0, **{f"web{index}": 500 for index in range(4)})
        told.report("cool", 100 + second, 0)
        if second == 95 - ago:
            told.store("pod", "d/gone", workload_pod("gone", "other", deletionTimestamp="now"), "descheduler-a")
            told.history.of("pod").pop("d/gone")
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize(("took", "said"), [(70.0, False), (20.0, True)], ids=["lately", "long-ago"])
def test_a_descheduler_that_has_just_taken_the_lease_is_given_time_for_hot_nodes(took: float, said: bool) -> None:
    told = Told(HotIsRelieved)
    told.history.programs.append("descheduler-a")
    hot_and_cool(told)
    for second in range(0, 100, 5):
        told.time = float(second)
        told.report("hot", 7000 + second, 0, **{f"web{index}": 500 for index in range(4)})
        told.report("cool", 100 + second, 0)
    told.history.led["koord-descheduler"] = took
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize(("steps", "message", "said"), [
    ("away away came came", "left alone until 2026-01-01T00:10:00Z: 2 times in a row pods have left, and it did not get cooler", False),
    ("away came came away", "left alone until 2026-01-01T00:10:00Z: 2 times in a row pods have left, and it did not get cooler", False),
    ("came away away came", "left alone until 2026-01-01T00:10:00Z: 2 times in a row pods have left, and it did not get cooler", True),
    ("away came came", "left alone until 2026-01-01T00:10:00Z: 2 times in a row pods have left, and it did not get cooler", True),
    ("away away came came", "still hot after 0 evictions", True),
])  # fmt: skip
def test_a_node_that_others_fill_again_may_be_left_alone_when_the_descheduler_says_so(steps: str, message: str, said: bool) -> None:
    told = Told(HotIsRelieved)
    told.history.programs.append("descheduler-a")
    hot_and_cool(told)
    named = [(step, f"{step}{number}") for number, step in enumerate(steps.split())]
    for step, name in named:
        told.store("pod", f"d/{name}", workload_pod(name, "hot" if step == "away" else ""))
    for step, name in named:
        if step == "away":
            told.store("pod", f"d/{name}", workload_pod(name, "hot", deletionTimestamp="now"), "descheduler-a")
        else:
            told.store("pod", f"d/{name}", workload_pod(name, "hot"), "scheduler-a")
        told.history.of("pod").pop(f"d/{name}")
    for second in range(0, 100, 5):
        told.time = float(second)
        told.report("hot", 7000 + second, 0, **{f"web{index}": 500 for index in range(4)})
        told.report("cool", 100 + second, 0)
    record = Record("descheduler", Subject("Node", "", "hot", ""), 90.0, "Relieved", "LowNodeLoad", message)
    told.history.records.append((90.0, "descheduler-a", record))
    assert bool(list(told.rule.end())) is said


@pytest.mark.parametrize(("wanted", "said"), [(2, True), (1, False), (0, False), (None, False)])
def test_who_was_moved_comes_back_as_far_as_the_workload_asks_for_it(wanted: int | None, said: bool) -> None:
    """None: its user has deleted it since, while its pods waited for a node."""
    told = Told(MovesLoseNothing)
    told.store("replicaset.apps", "d/web", {"metadata": {"name": "web", "uid": "web"}, "spec": {"replicas": 2}})
    for name in ("web0", "web1"):
        told.add("pod", f"d/{name}", workload_pod(name, "hot"))
    told.store("pod", "d/web0", workload_pod("web0", "hot", deletionTimestamp="now"), "descheduler-a")
    told.history.of("pod").pop("d/web0")
    told.history.of("replicaset.apps").pop("d/web")
    if wanted is not None:
        told.store("replicaset.apps", "d/web", {"metadata": {"name": "web", "uid": "web"}, "spec": {"replicas": wanted}})
    assert bool(list(told.rule.end())) is said


def lands_elsewhere(told: Told, *, nominated: bool) -> None:
    """Pod low has left node a for pod high, which is nominated to it, and high is placed on node b."""
    if nominated:
        told.history.of("pod")["d/high"]["status"]["nominatedNodeName"] = "a"
        gone = told.history.of("pod").pop("d/low")
        told.history.placed["a"].clear()
        told.history._add(Entry(len(told.history.entries), told.time, "kubelet", "", "pod", "DELETED", "d/low", gone, None))
        told.time = 10.0
        record = Record("scheduler", Subject("Pod", "d", "high"), 9.5, "Scheduled", "fit", "placed on b")
        told.history.records.append((9.5, "scheduler-a", record))
    before = told.history.of("pod")["d/high"]
    told.store("pod", "d/high", {**before, "spec": {**before["spec"], "nodeName": "b"}}, "scheduler-a")


@pytest.mark.parametrize(("until", "said"), [(5.0, False), (-60.0, True)])
def test_a_scheduler_whose_watches_were_refused_need_not_know_that_victims_have_left(until: float, said: bool) -> None:
    told = Told(RoomIsUsed)
    for name in ("a", "b"):
        told.store("node", name, {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "2"}}})
    for name, node in (("low", "a"), ("other", "b"), ("high", "")):
        told.quota_pod(name, "q", 2000, node)
    told.time = until - 10.0
    told.history.tell("fault", "resume", "1.0s resume of scheduler-a for 10.0s")
    told.time = 5.0
    preempts(told, "high", "low", "a")
    lands_elsewhere(told, nominated=True)
    assert bool(told.said) is said


@pytest.mark.parametrize(("heard", "said"), [(4.0, False), (9.0, True)])
def test_a_scheduler_whose_watches_have_stalled_need_not_know_that_victims_have_left(heard: float, said: bool) -> None:
    told = Told(RoomIsUsed)
    for name in ("a", "b"):
        told.store("node", name, {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "2"}}})
    for name, node in (("low", "a"), ("other", "b"), ("high", "")):
        told.quota_pod(name, "q", 2000, node)
    told.time = 5.0
    told.history.heard["scheduler-a", "pods"] = heard
    preempts(told, "high", "low", "a")
    lands_elsewhere(told, nominated=True)
    assert bool(told.said) is said


@pytest.mark.parametrize(("late", "said"), [(9.0, False), (2.0, True)])
@pytest.mark.parametrize("room_before", [True, False])
def test_a_scheduler_that_reads_slowly_need_not_know_of_room(room_before: bool, late: float, said: bool) -> None:
    told = Told(RoomIsUsed)
    for name in ("a", "b"):
        told.store("node", name, {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "2"}}})
    told.quota_pod("low", "q", 2000, "a")
    if not room_before:
        told.quota_pod("other", "q", 2000, "b")
    told.quota_pod("high", "q", 2000)
    told.time = 10.0 if room_before else 5.0
    told.history.behind["scheduler-a", "pods"] = late
    preempts(told, "high", "low", "a")
    lands_elsewhere(told, nominated=not room_before)
    assert bool(told.said) is said


def claim(name: str, device: str, pod: str, driver: str = "koordinator.sh") -> dict[str, Any]:
    """A claim that was made for a pod, with a device of node n."""
    results = [{"request": "cards", "driver": driver, "pool": "n", "device": device}]
    meta = {"name": name, "namespace": "d", "ownerReferences": [{"kind": "Pod", "name": pod, "uid": pod}]}
    return {"metadata": meta, "status": {"allocation": {"devices": {"results": results}}, "reservedFor": [{"name": pod, "uid": pod}]}}


@pytest.mark.feature("SCH-DRA-21")
def test_a_device_of_two_claims_and_one_of_a_claim_and_of_pods_are_told() -> None:
    told = Told(ClaimedOnce)
    told.store(CLAIM, "d/a", claim("a", "gpu-0", "p"))
    told.store(CLAIM, "d/b", claim("b", "gpu-1", "q"))
    told.store(CLAIM, "d/other", claim("other", "gpu-0", "r", "gpu.example.com"))
    assert not told.said
    told.store(CLAIM, "d/c", claim("c", "gpu-1", "s"))
    assert told.said == ["gpu 1 of n is allocated to d/b, d/c, and 0 % of it to pods"]
    body = {
        "metadata": {"name": "half", "namespace": "d", "uid": "half", "annotations": {
            "scheduling.koordinator.sh/device-allocated": '{"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "50"}}]}'
        }},
        "spec": {"nodeName": "n"},
    }  # fmt: skip
    told.history.placed.setdefault("n", {})["d/half"] = body
    told.store("pod", "d/half", body)
    assert told.said[1] == "gpu 0 of n is allocated to d/a, and 50 % of it to pods"


@pytest.mark.feature("SCH-DRA-21")
def test_a_claim_of_a_pod_that_is_gone_has_to_be_given_back() -> None:
    told = Told(ClaimedOnce)
    told.pod("p", "n")
    told.store(CLAIM, "d/a", claim("a", "gpu-0", "p"))
    assert list(told.rule.end()) == []
    told.pod("p", "n", "Succeeded")
    assert list(told.rule.end()) == ["claim d/a is reserved for p, which is gone"]


def test_a_pod_that_came_just_before_the_end_may_wait() -> None:
    told = Told(WhatFitsIsBound)
    told.store("node", "n", {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}})
    told.time = BACK_OFF + 5.0
    told.store("pod", "d/p", {"metadata": {"name": "p", "namespace": "d", "uid": "p"}, "spec": {"containers": []}, "status": {}})
    assert not list(told.rule.end())
    told.time += BACK_OFF + 0.1
    assert len(list(told.rule.end())) == 1
