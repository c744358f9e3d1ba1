"""Running pods follow a recommendation in place: paced, within their quota, never restarted (MGR-REC-03)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import PODS, RECOMMENDATIONS
from koord.api.objects import Pod, convert
from koord.api.times import format_time
from koord.decisions.recorder import Recorder
from koord.kube.errors import Invalid, NotFound
from koord.kube.informers import InformerFactory
from koord.kube.strategic import apply_strategic_patch
from roles.manager.controllers.recommender import RecommenderController
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer
from roles.manager.options import Options
from roles.manager.recommender import resize
from roles.manager.recommender.estimate import Amount
from roles.manager.recommender.policy import Policy
from roles.manager.recommender.resize import PAUSE, decide

pytestmark = pytest.mark.feature("MGR-REC-03")
NOW = 1_700_000_000.0
MI = 1 << 20
TARGET = {"main": Amount(1.0, 512.0 * MI)}


def body(requests: dict[str, str], limits: dict[str, str] | None = None, **parts: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"requests": requests, "limits": limits or {}}, **parts.pop("container", {})}
    status = {"phase": "Running", "qosClass": "Burstable", **parts.pop("status", {})}
    metadata = {"name": "p", "namespace": "shop", "uid": "u", **parts.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"nodeName": "n", "containers": [container], **parts}, "status": status}


def pod(requests: dict[str, str], limits: dict[str, str] | None = None, **parts: Any) -> Pod:
    return convert(body(requests, limits, **parts), Pod)


def pending(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]}


def changes(found: Pod, **options: Any) -> dict[str, str]:
    return decide(found, TARGET, now=NOW, **options).changes


def test_requests_follow_and_limits_keep_their_meaning() -> None:
    assert changes(pod({"cpu": "2", "memory": "1Gi"})) == {"main.cpu": "1", "main.memory": str(512 * MI)}
    step = decide(pod({"cpu": "2", "memory": "1Gi"}, {"cpu": "4", "memory": "1Gi"}), TARGET, now=NOW)
    (container,) = step.body["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": str(512 * MI)}, "a limit that equals its request follows it"
    assert changes(pod({"cpu": "500m", "memory": "512Mi"}, {"cpu": "800m", "memory": "1Gi"})) == {"main.cpu": "799m"}, (
        "never up to the limit"
    )
    assert changes(pod({"memory": "512Mi"})) == {}, "what it does not ask for is not given"
    assert changes(pod({"cpu": "1030m", "memory": "520Mi"})) == {}, "small differences are worth no resize"


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        ({"metadata": {"labels": {"koordinator.sh/qosClass": "LSR"}}}, {"main.memory"}),
        ({"metadata": {"labels": {"koordinator.sh/qosClass": "LSE"}}}, {"main.memory"}),
        ({"status": {"qosClass": "Guaranteed"}}, {"main.memory"}),
        ({"container": {"resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]}}, {"main.cpu"}),
        ({"container": {"resizePolicy": [{"resourceName": "memory", "restartPolicy": "NotRequired"}]}}, {"main.cpu", "main.memory"}),
        ({"status": {"phase": "Pending"}}, set()),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, set()),
        ({"nodeName": ""}, set()),
        ({"status": {"conditions": [{"type": "PodResizeInProgress", "status": "True"}]}}, set()),
        ({"status": {"resize": "InProgress"}}, set()),
    ],
)  # fmt: skip
def test_who_is_left_alone(parts: dict[str, Any], left: set[str]) -> None:
    assert set(changes(pod({"cpu": "2", "memory": "1Gi"}, **parts))) == left


def test_a_deferred_resize_waits_and_may_become_smaller() -> None:
    step = decide(pod({"cpu": "500m", "memory": "256Mi"}, status=pending("Deferred")), TARGET, now=NOW)
    assert (step.body, step.waits) == ({}, True)
    assert "no room" in step.reason
    smaller = decide(pod({"cpu": "2", "memory": "1Gi"}, status=pending("Deferred")), TARGET, now=NOW)
    assert set(smaller.changes) == {"main.cpu", "main.memory"}


def test_an_infeasible_resize_is_given_back_and_not_tried_soon() -> None:
    held = [{"name": "main", "allocatedResources": {"cpu": "500m", "memory": "256Mi"}}]
    step = decide(pod({"cpu": "64", "memory": "256Mi"}, status={**pending("Infeasible"), "containerStatuses": held}), TARGET, now=NOW)
    assert step.changes == {"main.cpu": "500m"}
    assert step.waits
    assert step.pause > PAUSE


def test_a_quota_without_room_is_named() -> None:
    asked = []
    step = decide(
        pod({"cpu": "500m", "memory": "1Gi"}), TARGET, now=NOW, room=lambda growth: asked.append(dict(growth)) or "quota q is full"
    )  # type: ignore[func-returns-value]
    assert asked == [{"cpu": 500}], "what shrinks is not asked for"
    assert (step.body, step.reason, step.waits) == ({}, "quota q is full", True)


AMOUNTS = st.tuples(st.integers(1, 8000), st.integers(1, 8192))


@given(AMOUNTS, st.none() | AMOUNTS, st.floats(0.001, 16), st.floats(1e6, 1e10))
def test_property_a_resize_keeps_limits_and_the_quality_of_service_and_settles(
    asked: tuple[int, int], room: tuple[int, int] | None, cpu: float, memory: float
) -> None:
    def amounts(found: tuple[int, int]) -> dict[str, str]:
        return {"cpu": f"{found[0]}m", "memory": f"{found[1]}Mi"}

    limits = None if room is None else (asked[0] + room[0] - 1, asked[1] + room[1] - 1)
    before = body(amounts(asked), amounts(limits) if limits else {})
    step = decide(convert(before, Pod), {"main": Amount(cpu, memory)}, now=NOW)
    after = apply_strategic_patch(before, step.body, "Pod") if step.body else before
    found = convert(after, Pod).spec.containers[0].resources
    for resource in found.requests:
        if resource in found.limits:
            assert resize._amount(found.requests[resource], resource) <= resize._amount(found.limits[resource], resource)
            bound = amounts(asked)[resource] == amounts(limits or asked)[resource]
            assert (found.requests[resource] == found.limits[resource]) == bound or not bound
    again = decide(convert(after, Pod), {"main": Amount(cpu, memory)}, now=NOW)
    assert again.body == {}, "it has arrived"


# ---------------------------------------------------------------- through the controller


class ApiServer:
    """Serves PodMetrics, and pods that can be resized."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.resized: list[tuple[float, str]] = []
        self.status: dict[str, Any] = {}
        self.refuses, self.now = "", NOW

    async def raw(self, method: str, path: str, **_: Any) -> tuple[int, bytes]:
        usage = {"cpu": "200m", "memory": f"{100 * MI}"}
        items = [
            {"metadata": {"name": name}, "timestamp": format_time(self.now), "containers": [{"name": "main", "usage": usage}]}
            for name in self.pods
        ]
        return 200, orjson.dumps({"items": items})

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> dict[str, Any]:
        raise NotFound(404, "NotFound", name)

    async def create(self, kind: Any, obj: Any, namespace: str | None = None) -> Any:
        return obj

    async def patch(
        self, kind: Any, name: str, patch: Any, namespace: str | None = None, *, subresource: str | None = None, **_: Any
    ) -> Any:
        if kind is RECOMMENDATIONS and subresource == "status":
            self.status = patch["status"]
        if kind is PODS:
            assert subresource == "resize", "pods are changed in no other way"
            if self.refuses:
                raise Invalid(422, "Invalid", self.refuses)
            if patch.get("metadata", {}).get("uid", self.pods[name]["metadata"]["uid"]) != self.pods[name]["metadata"]["uid"]:
                raise Invalid(422, "Invalid", "metadata.uid: field is immutable")
            self.resized.append((self.now, name))
            self.pods[name] = apply_strategic_patch(self.pods[name], patch, "Pod")
        return {}

    async def delete(self, *_: Any, **__: Any) -> None:
        raise AssertionError("nothing is ever deleted or evicted")


class Cluster:
    def __init__(self, mode: str = "resize-in-place") -> None:
        self.api, self.version = ApiServer(), 0
        informers = InformerFactory(self.api)  # type: ignore[arg-type]
        self.state = ClusterState(informers, Options())
        policy = Policy(min_cpu=1, min_memory=1 << 20)
        self.controller = RecommenderController(
            self.state,
            informers,
            Writer(self.api),
            Recorder("manager"),
            policy,
            "koordinator-system",
            clock=lambda: self.api.now,  # type: ignore[arg-type]
        )
        self.controller._metrics_api._clock = lambda: self.api.now * 1000
        self.controller.attach()
        annotations = {"analysis.koordinator.sh/mode": mode}
        obj = {
            "metadata": {"name": "web", "namespace": "shop", "uid": "r", "annotations": annotations},
            "spec": {"target": {"type": "podSelector"}},
        }
        self.controller.recommendations.receive("shop/web", "1", msgspec.Raw(orjson.dumps(obj)))

    def quota(self, name: str, ceiling: str, used: str, parent: str = "") -> None:
        labels = {"quota.scheduling.koordinator.sh/parent": parent} if parent else {}
        obj = {
            "metadata": {"name": name, "namespace": "shop", "labels": labels},
            "spec": {"max": {"cpu": ceiling}},
            "status": {"used": {"cpu": used}},
        }
        self.controller._resizer._quotas.receive(f"shop/{name}", "1", msgspec.Raw(orjson.dumps(obj)))

    def show(self) -> None:
        self.version += 1
        for name, obj in self.api.pods.items():
            self.state.pods.receive(f"shop/{name}", str(self.version), msgspec.Raw(orjson.dumps(obj)))

    async def hours(self, hours: float, step: float = 600.0) -> None:
        end = self.api.now + hours * 3600
        while self.api.now < end:
            self.api.now += step
            self.show()
            await self.controller.reconcile("shop/web")

    def add(self, name: str, requests: dict[str, str], **metadata: Any) -> None:
        self.api.pods[name] = body(requests, metadata={"name": name, "namespace": "shop", "uid": f"u-{name}", **metadata})

    def requests(self, name: str) -> dict[str, str]:
        found = self.api.pods[name]["spec"]["containers"][0]["resources"]["requests"]
        assert isinstance(found, dict)
        return found


def condition(cluster: Cluster, kind: str) -> dict[str, Any]:
    return next(c for c in cluster.api.status["conditions"] if c["type"] == kind)


def test_running_pods_are_brought_to_their_targets_once_enough_is_known() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.add("a", {"cpu": "2", "memory": "1Gi"})
        cluster.add("b", {"cpu": "50m", "memory": "20Mi"})
        await cluster.hours(20)
        assert cluster.api.resized == [], "less than a day is known"
        await cluster.hours(6)
        assert {name for _, name in cluster.api.resized} == {"a", "b"}
        assert cluster.requests("a") == cluster.requests("b")
        times: dict[str, list[float]] = {}
        for time, name in cluster.api.resized:
            times.setdefault(name, []).append(time)
        for found in times.values():
            assert all(after - before >= PAUSE for before, after in itertools.pairwise(found))
        settled = len(cluster.api.resized)
        await cluster.hours(12)
        assert len(cluster.api.resized) - settled <= 4, "what fits is left alone"

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["recommend", "apply-on-create", "off", "Resize-In-Place"])
def test_no_other_mode_touches_running_pods(mode: str) -> None:
    async def main() -> None:
        cluster = Cluster(mode)
        cluster.add("a", {"cpu": "2", "memory": "1Gi"})
        await cluster.hours(30)
        assert cluster.api.resized == []

    asyncio.run(main())


def test_a_new_leader_waits_for_a_pause_first() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.add("a", {"cpu": "2", "memory": "1Gi"})
        await cluster.hours(26)
        cluster.api.pods["a"] = body({"cpu": "2", "memory": "1Gi"}, metadata=cluster.api.pods["a"]["metadata"])
        cluster.controller._resizer._began = None
        cluster.controller._resizer._not_before.clear()
        before, began = len(cluster.api.resized), cluster.api.now + 60
        await cluster.hours(0.5, step=60)
        assert cluster.api.resized[before][0] - began >= PAUSE

    asyncio.run(main())


def test_pods_grow_no_further_than_their_quota_together() -> None:
    async def main() -> None:
        cluster = Cluster()
        for name in "abc":
            cluster.add(name, {"cpu": "10m", "memory": "100Mi"}, labels={"quota.scheduling.koordinator.sh/name": "team"})
        cluster.quota("team", "10", "30m", parent="department")
        cluster.quota("department", "500m", "30m")
        while not cluster.api.resized:
            await cluster.hours(1 / 6)
        grown = [name for name in "abc" if cluster.requests(name)["cpu"] != "10m"]
        assert len(grown) == 2, "each takes about 200m more: a third one has no room, though the quota's status does not show it yet"
        found = condition(cluster, "ResizePending")
        assert found["status"] == "True"
        assert "quota department has no room for more cpu" in found["message"]

    asyncio.run(main())


def test_a_pod_follows_one_recommendation_not_two() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.add("a", {"cpu": "2", "memory": "1Gi"})
        cluster.show()
        pods, resizer = cluster.state.pods.list(), cluster.controller._resizer
        resizer._began = cluster.api.now - 2 * PAUSE
        assert await resizer.follow(pods, TARGET, "of shop/web") is None
        finding = await resizer.follow(pods, {"main": Amount(4.0, 1e9)}, "of shop/other")
        assert finding is not None
        assert "follows another Recommendation shop/web" in finding.message
        assert len(cluster.api.resized) == 1
        cluster.api.now += 2 * PAUSE  # the first one does not come any more
        assert await resizer.follow(pods, {"main": Amount(4.0, 1e9)}, "of shop/other") is None
        assert len(cluster.api.resized) == 2

    asyncio.run(main())


def test_a_resize_that_is_refused_is_told_and_not_repeated_at_once() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.add("a", {"cpu": "2", "memory": "1Gi"})
        cluster.api.refuses = "only cpu and memory resources are mutable"
        await cluster.hours(26)
        assert "only cpu and memory" in condition(cluster, "ResizePending")["message"]
        assert cluster.requests("a") == {"cpu": "2", "memory": "1Gi"}

    asyncio.run(main())


def test_a_pod_that_has_the_name_of_one_that_is_gone_is_not_resized_for_it() -> None:
    """The pod of a StatefulSet was made anew with other limits, and the watch is late."""

    async def main() -> None:
        cluster = Cluster()
        cluster.add("a", {"cpu": "2", "memory": "1Gi"})

        def show_late() -> None:
            cluster.version += 1
            late = {**cluster.api.pods["a"], "metadata": {"name": "a", "namespace": "shop", "uid": "before"}}
            cluster.state.pods.receive("shop/a", str(cluster.version), msgspec.Raw(orjson.dumps(late)))

        cluster.show = show_late  # type: ignore[method-assign]
        await cluster.hours(26)
        assert cluster.requests("a") == {"cpu": "2", "memory": "1Gi"}
        assert cluster.api.resized == []

    asyncio.run(main())


def test_quotas_that_went_leave_nothing_behind() -> None:
    async def main() -> None:
        cluster = Cluster()
        resizer = cluster.controller._resizer
        cluster.quota("stays", "10", "0", parent="above")
        for number in range(5):
            cluster.quota(f"job-{number}", "10", "0", parent=f"team-{number}")
        for number in range(5):
            resizer._quotas.forget(f"shop/job-{number}")
        assert list(resizer._keys) == ["stays"]
        assert list(resizer._tree._quotas) == ["stays"]
        assert list(resizer._tree._children) == ["above"], "a parent without children is no parent"
        cluster.quota("stays", "10", "0", parent="elsewhere")
        assert list(resizer._tree._children) == ["elsewhere"]

    asyncio.run(main())
