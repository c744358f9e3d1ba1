"""ElasticQuota through the scheduler's door: quotas and pods in the API server in, bindings, conditions and annotations out."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from koord.accounting.resources import parse
from koord.api.kinds import ELASTICQUOTAS, NAMESPACES, PODS, PRIORITYCLASSES
from koord.kube.errors import NotFound
from roles.scheduler.plugins.elastic_quota.upkeep import Upkeep
from tests.support import patience

PREFIX = "quota.scheduling.koordinator.sh/"
Obj = dict[str, Any]


def profile(**args: Any) -> Obj:
    return {
        "schedulerName": "koord-scheduler",
        "pluginConfig": [{"name": "ElasticQuota", "args": args}],
        "plugins": {
            "preFilter": {"enabled": [{"name": "ElasticQuota"}]},
            "postFilter": {"disabled": [{"name": "*"}], "enabled": [{"name": "ElasticQuota"}, {"name": "DefaultPreemption"}]},
            "reserve": {"enabled": [{"name": "ElasticQuota"}]},
        },
    }


class Quotas:
    """A live scheduler with quotas."""

    def __init__(self, live: Any) -> None:
        self.live = live

    async def quota(
        self, name: str, maximum: Obj, minimum: Obj | None = None, *, namespace: str = "default",
        labels: Obj | None = None, annotations: Obj | None = None,
    ) -> None:  # fmt: skip
        body = {
            "apiVersion": ELASTICQUOTAS.api_version, "kind": "ElasticQuota",
            "metadata": {
                "name": name, "namespace": namespace, "labels": {PREFIX + key: value for key, value in (labels or {}).items()},
                "annotations": {PREFIX + key: json.dumps(value) for key, value in (annotations or {}).items()},
            },
            "spec": {"max": maximum, "min": minimum or {}},
        }  # fmt: skip
        await self.live.client.create(ELASTICQUOTAS, body, namespace)
        await self.known(name)

    async def known(self, name: str) -> None:
        cache = self.live.app.engine.frameworks["koord-scheduler"].plugins["ElasticQuota"].cache
        await until(lambda: cache.quota(name) is not None)

    async def pod(self, name: str, quota: str = "", *, cpu: str = "1", preemptible: bool = True, **spec: Any) -> Obj:
        labels = {PREFIX + "name": quota} if quota else {}
        if not preemptible:
            labels[PREFIX + "preemptible"] = "false"
        return dict(await self.live.pod(name, cpu=cpu, meta={"labels": labels}, terminationGracePeriodSeconds=0, **spec))

    async def shows(self, name: str, key: str, wanted: Obj, *, namespace: str = "default", seconds: float = 6.0) -> None:
        """Wait until an annotation (or status.used) of a quota shows amounts."""
        shown: Any = None
        for _ in range(int(patience.seconds(seconds) / 0.05)):
            quota = await self.live.client.get(ELASTICQUOTAS, name, namespace)
            used = (quota.get("status") or {}).get("used") or {}
            shown = used if key == "used" else json.loads((quota["metadata"].get("annotations") or {}).get(PREFIX + key, "{}"))
            amounts = parse(shown)
            if all(amounts.get(resource, 0) == amount for resource, amount in parse(wanted).items()):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{name} never showed {key} {wanted}, but {shown}")

    async def refused(self, name: str, text: str) -> str:
        pod = await self.live.until(name, lambda p: any(text in c.get("message", "") for c in p["status"].get("conditions", [])))
        assert not pod["spec"].get("nodeName")
        return str(next(c["message"] for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"))

    async def gone(self, name: str) -> None:
        for _ in patience.tries(200):
            try:
                await self.live.get(name)
            except NotFound:
                return
            await asyncio.sleep(0.03)
        raise AssertionError(f"pod {name} is still there")


async def until(test: Callable[[], bool], seconds: float = 20.0) -> None:
    for _ in range(int(patience.seconds(seconds) / 0.02)):
        if test():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came true")


@contextlib.asynccontextmanager
async def quotas(scheduler: Any, gates: dict[str, bool] | None = None, **args: Any) -> AsyncIterator[Quotas]:
    content = {"profiles": [profile(quotaGroupNamespace="default", **args)]}
    async with scheduler(content, crds=True, gates=gates or {}) as live:
        yield Quotas(live)


def run(body: Callable[[], Any]) -> None:
    asyncio.run(body())


@pytest.mark.feature("SCH-EQ-07")
@pytest.mark.feature("SCH-EQ-10")
@pytest.mark.feature("SCH-EQ-02")
def test_a_pod_over_its_quota_waits_and_is_told_why(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler) as q:
            await q.live.node("n", cpu="64")
            await q.quota("team", {"cpu": "4"}, {"cpu": "4"})
            await q.pod("first", "team", cpu="3")
            assert await q.live.bound("first") == "n"
            await q.pod("second", "team", cpu="2")
            await q.pod("other", "does-not-exist", cpu="20")
            message = await q.refused("second", "Insufficient quotas")
            assert "quotaName: team, runtime: cpu:4, used: cpu:3, pod's request: cpu:2, exceedDimensions: [cpu]" in message
            assert await q.live.bound("other") == "n"
            await q.shows("team", "used", {"cpu": "3"})
            await q.shows("team", "request", {"cpu": "5"})
            await q.shows("team", "runtime", {"cpu": "4"})
            async with aiohttp.ClientSession(q.live.ops.url) as session:
                found = await (await session.get("/debug/decisions?kind=Pod&namespace=default&name=second")).json()
                terms = {term["name"]: term for term in found[-1]["terms"]}
                assert list(terms) == ["quota koordinator-root-quota: cpu", "quota team: cpu"]
                assert terms["quota team: cpu"]["note"] == "used=3 request=5 runtime=4 min=4 max=4 pod=2"
                assert terms["quota team: cpu"]["value"] == -1000
                page = await (await session.get("/apis/v1/plugins/ElasticQuota/quotas?includePods=true")).json()
                assert page["team"]["podCache"]["default/first"] == {"isAssigned": True, "resource": {"cpu": "3"}}
                assert "koordinator-root-quota" not in page
                assert (await session.get("/apis/v1/plugins/ElasticQuota/quotas/nobody")).status == 404
            await q.live.client.delete(PODS, "first", "default", grace_period_seconds=0)
            assert await q.live.bound("second") == "n"
            await q.shows("team", "used", {"cpu": "2"})

    run(body)


@pytest.mark.feature("SCH-EQ-01")
def test_built_in_quotas_are_created_and_used(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler) as q:
            await q.live.node("n", cpu="8")
            for name in ("root", "system", "default"):
                for _ in patience.tries(100):
                    with contextlib.suppress(NotFound):
                        quota = await q.live.client.get(ELASTICQUOTAS, f"koordinator-{name}-quota", "default")
                        break
                    await asyncio.sleep(0.05)
                if name == "root":
                    assert quota["metadata"]["labels"] == {
                        PREFIX + "is-parent": "true", PREFIX + "allow-lent-resource": "false", PREFIX + "parent": "",
                    }  # fmt: skip
                else:
                    assert quota["spec"]["max"] == {"cpu": "1844674407370955161", "memory": "1844674407370955161"}
            await q.quota("team", {"cpu": "8"})
            await q.pod("stray", cpu="3")
            await q.live.bound("stray")
            await q.pod("big", "team", cpu="6")
            await q.refused("big", "Insufficient quotas")
            await q.shows("koordinator-default-quota", "used", {"cpu": "3"})
            await q.shows("koordinator-root-quota", "used", {"cpu": "3"})
            await q.shows("team", "runtime", {"cpu": "5"})

    run(body)


@pytest.mark.feature("SCH-EQ-03")
@pytest.mark.feature("SCH-EQ-04")
def test_shares_of_a_tree_follow_requests(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler) as q:
            await q.live.node("n", cpu="100")
            await q.quota("p", {"cpu": "24"}, {"cpu": "10"}, labels={"is-parent": "true"})
            await q.quota("c1", {"cpu": "16"}, {"cpu": "4"}, labels={"parent": "p"})
            await q.quota("c2", {"cpu": "40"}, {"cpu": "0"}, labels={"parent": "p"}, annotations={"shared-weight": {"cpu": "16"}})
            for name in ("c1", "c2"):
                for number in range(3):
                    await q.pod(f"{name}-{number}", name, cpu="10")
            await q.shows("c1", "request", {"cpu": "30"})
            await q.shows("p", "child-request", {"cpu": "46"})
            await q.shows("p", "request", {"cpu": "46"})
            await q.shows("p", "runtime", {"cpu": "24"})
            await q.shows("c1", "runtime", {"cpu": "14"})
            await q.shows("c2", "runtime", {"cpu": "10"})
            await q.shows("p", "used", {"cpu": "20"})

    run(body)


@pytest.mark.feature("SCH-EQ-05")
def test_mins_that_do_not_fit_are_scaled(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler) as q:
            await q.live.node("n", cpu="50")
            await q.quota("a", {"cpu": "100"}, {"cpu": "40"}, annotations={"shared-weight": {"cpu": "1"}})
            await q.quota("b", {"cpu": "100"}, {"cpu": "60"}, annotations={"shared-weight": {"cpu": "1"}})
            await q.pod("pa", "a", cpu="100")
            await q.pod("pb", "b", cpu="100")
            await q.shows("a", "runtime", {"cpu": "20"})
            await q.shows("b", "runtime", {"cpu": "30"})

    run(body)


@pytest.mark.feature("SCH-EQ-06")
def test_what_is_guaranteed_is_not_lent(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler, {"ElasticQuotaGuaranteeUsage": True}) as q:
            await q.live.node("n", cpu="10")
            await q.quota("p", {"cpu": "10"}, {"cpu": "10"}, labels={"is-parent": "true"})
            await q.quota("c1", {"cpu": "10"}, labels={"parent": "p"})
            await q.quota("c2", {"cpu": "10"}, {"cpu": "9"}, labels={"parent": "p"})
            await q.pod("one", "c1", cpu="1")
            await q.live.bound("one")
            await q.pod("two", "c1", cpu="1")
            assert "exceedDimensions: [cpu]" in await q.refused("two", "Insufficient quotas")
            await q.pod("three", "c2", cpu="5")
            await q.live.bound("three")
            await q.shows("c1", "guaranteed", {"cpu": "1"})
            await q.shows("c1", "allocated", {"cpu": "1"})
            await q.shows("c2", "guaranteed", {"cpu": "9"})
            await q.shows("c2", "runtime", {"cpu": "9"})
            await q.shows("p", "allocated", {"cpu": "10"})

    run(body)


@pytest.mark.feature("SCH-EQ-07")
def test_non_preemptible_pods_stay_within_min_and_parents_are_checked(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler, enableCheckParentQuota=True, enableRuntimeQuota=False) as q:
            await q.live.node("n", cpu="64")
            await q.quota("p", {"cpu": "8"}, {"cpu": "5"}, labels={"is-parent": "true"})
            await q.quota("t", {"cpu": "12"}, {"cpu": "5"}, labels={"parent": "p"})
            await q.pod("np1", "t", cpu="3", preemptible=False)
            await q.live.bound("np1")
            await q.pod("np2", "t", cpu="3", preemptible=False)
            message = await q.refused("np2", "Insufficient non-preemptible quotas")
            assert "quotaName: t, min: cpu:5, nonPreemptibleUsed: cpu:3" in message
            await q.pod("pre", "t", cpu="3")
            await q.live.bound("pre")
            await q.shows("t", "non-preemptible-used", {"cpu": "3"})
            await q.shows("t", "non-preemptible-request", {"cpu": "6"})
            await q.pod("over", "t", cpu="3")
            assert "quotaNameTopo: [p t], quotaName: p" in await q.refused("over", "Insufficient quotas")

    run(body)


@pytest.mark.feature("SCH-EQ-02")
def test_pods_move_to_the_quota_of_their_namespace(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler) as q:
            await q.live.node("n", cpu="64")
            await q.pod("early", "late", cpu="2")
            await q.pod("plain", cpu="3")
            await q.live.bound("early")
            await q.live.bound("plain")
            await q.shows("koordinator-default-quota", "used", {"cpu": "5"})
            await q.quota("late", {"cpu": "10"})
            await q.shows("late", "used", {"cpu": "2"})
            await q.live.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "quotas"}})
            await q.quota("bound-here", {"cpu": "10"}, namespace="quotas", annotations={"namespaces": ["default"]})
            await q.shows("bound-here", "used", {"cpu": "3"}, namespace="quotas")
            await q.shows("koordinator-default-quota", "used", {"cpu": "0"})
            await q.live.client.delete(ELASTICQUOTAS, "late", "default")
            await q.shows("koordinator-default-quota", "used", {"cpu": "2"})

    run(body)


@pytest.mark.feature("SCH-EQ-08")
def test_a_pod_preempts_within_its_quota_only(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler) as q:
            await q.live.node("n", cpu="64")
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
            await q.live.client.create(PRIORITYCLASSES, body)
            await q.quota("mine", {"cpu": "4"}, {"cpu": "4"})
            await q.quota("theirs", {"cpu": "4"}, {"cpu": "4"})
            await q.pod("foreign", "theirs", cpu="4")
            await q.pod("keep", "mine", cpu="2", preemptible=False)
            await q.pod("low", "mine", cpu="2")
            for name in ("foreign", "keep", "low"):
                await q.live.bound(name)
            await q.pod("high", "mine", cpu="2", priorityClassName="high")
            assert await q.live.bound("high") == "n"
            await q.gone("low")
            await q.live.bound("foreign")
            await q.live.bound("keep")
            await q.pod("too-big", "mine", cpu="3", priorityClassName="high")
            await q.refused("too-big", "Insufficient quotas")
            await asyncio.sleep(0.3)
            await q.live.bound("high")

    run(body)


@pytest.mark.feature("SCH-EQ-09")
def test_what_is_used_beyond_the_share_is_taken_back(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler, monitorAllQuotas=True, delayEvictTime="200ms", revokePodInterval="100ms") as q:
            await q.live.node("n", cpu="10")
            weight = {"shared-weight": {"cpu": "1"}}
            await q.quota("borrower", {"cpu": "10"}, {"cpu": "4"}, annotations=weight)
            await q.quota("owner", {"cpu": "10"}, {"cpu": "6"}, annotations=weight)
            await q.pod("stays", "borrower", cpu="4", preemptible=False)
            await q.pod("goes", "borrower", cpu="5")
            await q.live.bound("stays")
            await q.live.bound("goes")
            await q.pod("claims", "owner", cpu="6")
            await q.gone("goes")
            assert await q.live.bound("claims") == "n"
            await q.live.bound("stays")
            told = q.live.app.scheduler._recorder.ring.find("Pod", "default", "goes")
            (record,) = [record for record in told if record.verdict == "Evicted"]
            assert record.numbers["quota"] == "borrower"
            assert {term.name: term.value for term in record.terms}["cpu"] == 9000

    run(body)


@pytest.mark.feature("SCH-EQ-10")
def test_a_defect_that_one_quota_shows_holds_up_no_other(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keep, patch, starts = Upkeep.keep_status, Upkeep._patch, list[Any]()

    async def patched(self: Any, quota: Any, *rest: Any) -> None:
        if quota.name == "bad":
            raise RuntimeError("one more defect")
        await patch(self, quota, *rest)

    monkeypatch.setattr(Upkeep, "keep_status", lambda self: (starts.append(self), keep(self))[1])
    monkeypatch.setattr(Upkeep, "_patch", patched)

    async def body() -> None:
        async with quotas(scheduler) as q:
            await q.live.node("n", cpu="10")
            for name in ("bad", "good"):
                await q.quota(name, {"cpu": "10"})
                await q.pod(f"{name}-0", name, cpu="2")
                await q.live.bound(f"{name}-0")
            await q.shows("good", "used", {"cpu": "2"})
            await q.pod("good-1", "good", cpu="1")
            await q.shows("good", "used", {"cpu": "3"})
            assert len(starts) == 1

    run(body)


@pytest.mark.feature("SCH-EQ-09")
def test_nothing_is_taken_back_while_a_watch_is_silent(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler, monitorAllQuotas=True, delayEvictTime="200ms", revokePodInterval="100ms") as q:
            await q.live.node("n", cpu="10")
            weight = {"shared-weight": {"cpu": "1"}}
            await q.quota("borrower", {"cpu": "10"}, {"cpu": "4"}, annotations=weight)
            await q.quota("owner", {"cpu": "10"}, {"cpu": "6"}, annotations=weight)
            await q.pod("uses", "borrower", cpu="9")
            await q.live.bound("uses")
            real, q.live.app.informers.age = q.live.app.informers.age, lambda *kinds: 31.0
            await q.pod("claims", "owner", cpu="6")
            await q.refused("claims", "Insufficient cpu")
            await asyncio.sleep(1.0)
            await q.live.bound("uses")
            q.live.app.informers.age = real
            await q.gone("uses")

    run(body)


@pytest.mark.feature("SCH-EQ-11")
def test_trees_have_totals_of_their_own(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler, {"MultiQuotaTree": True}) as q:
            await q.live.node("n", cpu="20")
            tree = {"tree-id": "t1"}
            await q.quota(
                "t1-root", {"cpu": "100"}, {"cpu": "8"}, labels={**tree, "is-root": "true", "is-parent": "true"},
                annotations={"total-resource": {"cpu": "8"}},
            )  # fmt: skip
            await q.quota("t1-a", {"cpu": "50"}, {"cpu": "0"}, labels={**tree, "parent": "t1-root"})
            await q.quota("plain", {"cpu": "50"}, {"cpu": "0"})
            await q.pod("in-tree", "t1-a", cpu="30")
            await q.pod("in-default", "plain", cpu="30")
            await q.shows("t1-a", "runtime", {"cpu": "8"})
            await q.shows("plain", "runtime", {"cpu": "12"})
            await q.live.client.delete(ELASTICQUOTAS, "t1-a", "default")
            await q.live.client.delete(ELASTICQUOTAS, "t1-root", "default")
            await q.shows("plain", "runtime", {"cpu": "20"})

    run(body)


@pytest.mark.feature("SCH-EQ-13")
@pytest.mark.parametrize("hints", [False, True])
def test_a_waiting_pod_comes_back_when_its_quota_grows_or_others_ask_for_less(scheduler: Any, hints: bool) -> None:
    async def body() -> None:
        async with quotas(scheduler, enableQueueHint=hints) as q:
            await q.live.node("n", cpu="10")
            await q.quota("a", {"cpu": "10"}, annotations={"shared-weight": {"cpu": "1"}})
            await q.quota("b", {"cpu": "2"}, annotations={"shared-weight": {"cpu": "1"}})
            await q.pod("wants-more", "b", cpu="3")
            await q.refused("wants-more", "Insufficient quotas")
            await q.live.client.patch(ELASTICQUOTAS, "b", {"spec": {"max": {"cpu": "4"}}}, "default")
            assert await q.live.bound("wants-more") == "n"
            await q.pod("greedy", "b", cpu="9")  # never fits, but claims a share
            await q.pod("late", "a", cpu="7")
            await q.refused("late", "Insufficient quotas")
            await q.live.client.delete(PODS, "greedy", "default", grace_period_seconds=0)
            await q.shows("a", "runtime", {"cpu": "7"})
            assert await q.live.bound("late") == "n"

    run(body)


@pytest.mark.feature("SCH-EQ-10")
def test_metrics_of_quotas(scheduler: Any) -> None:
    async def body() -> None:
        async with quotas(scheduler) as q, aiohttp.ClientSession(q.live.ops.url) as session:
            for _ in patience.tries(100):
                text = await (await session.get("/metrics")).text()
                if "scheduler_elastic_quota_status{" in text:
                    break
                await asyncio.sleep(0.05)
            series = 'field="max",is_parent="false",name="koordinator-default-quota",parent="koordinator-root-quota",resource="cpu",tree=""'
            assert f"scheduler_elastic_quota_status{{{series}}}" in text
            assert f"scheduler_elastic_quota_spec{{{series}}}" in text
            assert "scheduler_update_elastic_quota_status_duration_seconds_count" in text
            await q.pod("x")
            await q.live.refused("x")
            text = await (await session.get("/metrics")).text()
            assert 'scheduler_elastic_quota_process_latency_count{operation="OnPodAdd"} 1.0' in text
            assert 'scheduler_elastic_quota_process_latency_count{operation="RefreshRuntime"}' in text

    run(body)
