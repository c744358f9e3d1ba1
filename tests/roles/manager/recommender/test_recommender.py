"""The recommender through the API: Recommendations, pods and measurements in, status, checkpoints and new pods out."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from time import time
from typing import Any

import pytest
from aiohttp import web

from koord.api.kinds import CONFIGMAPS, CRONJOBS, JOBS, NODEMETRICS, PODS, RECOMMENDATIONS
from koord.api.objects import Recommendation, convert
from koord.api.quantity import parse_value
from koord.kube.errors import NotFound, Unreachable
from roles.manager.recommender.checkpoint import LABEL, body_of, name_of
from roles.manager.recommender.history import pods_pattern
from roles.manager.recommender.policy import Policy
from roles.manager.recommender.sources import MetricsAPI

QUICK = Policy(interval=0.2)
PREFIX = "analysis.koordinator.sh/"


def recommendation(name="web", *, workload=None, selector=None, mode="", type=None):
    target = {"type": type or ("workload" if workload else "podSelector")}
    if workload:
        target["workload"] = workload
    else:
        target["podSelector"] = selector or {}
    annotations = {PREFIX + "mode": mode} if mode else {}
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    return {"apiVersion": "analysis.koordinator.sh/v1alpha1", "kind": "Recommendation", "metadata": metadata, "spec": {"target": target}}


def deployment(name="web"):
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def read(bed, name="web"):
    return await bed.client.get(RECOMMENDATIONS, name, "default")


def conditions(obj):
    return {c["type"]: c for c in obj.get("status", {}).get("conditions", [])}


def targets(obj):
    statuses = obj.get("status", {}).get("podStatus", {}).get("containerStatuses", [])
    return {c["containerName"]: c["resources"] for c in statuses}


def recommended(bed, name="web"):
    async def look():
        obj = await read(bed, name)
        return obj if targets(obj) else None

    return bed.until(look)


def with_condition(bed, type, name="web"):
    async def look():
        obj = await read(bed, name)
        found = conditions(obj).get(type)
        return obj if found and found["status"] == "True" else None

    return bed.until(look)


async def start(bed, **options):
    return await bed.start(gates="Recommender=true", recommender=options.pop("policy", QUICK), **options)


@pytest.mark.feature("MGR-REC-01")
@pytest.mark.feature("MGR-REC-02")
@pytest.mark.feature("API-REC-01")
def test_a_workload_is_learnt_from_node_metrics_and_survives_a_restart(bed, make):
    async def test(bed):
        requests = {"cpu": "1", "memory": "1Gi"}
        await bed.create(
            make.node("n1"),
            deployment(),
            make.pod("web-1", "n1", labels={"app": "web"}, requests=requests),
            make.pod("db-1", "n1", labels={"app": "db"}, requests=requests),
            recommendation(workload={"kind": "Deployment", "name": "web"}),
            make.metric("n1", pods=[("default", "web-1", "koord-prod", ("400m", "600Mi")), ("default", "db-1", "", ("9", "9Gi"))]),
        )
        first = await start(bed)
        found = await recommended(bed)
        # the end of the bucket that holds 0.4 cores, and 15 % on top
        (main,) = targets(found).values()
        assert 460 <= int(main["cpu"].rstrip("m")) <= 490
        assert conditions(found)["LowConfidence"]["status"] == "True"
        assert conditions(found)["NoObjectsMatched"]["status"] == "False"

        async def bounds():
            return (await read(bed))["metadata"]["annotations"].get(PREFIX + "bounds")

        assert set(json.loads(await bed.until(bounds))["main"]) == {"lower", "upper"}
        uid = found["metadata"]["uid"]

        async def stored():
            return (await bed.client.get(CONFIGMAPS, name_of(uid), "koordinator-system"))["data"]

        kept = await bed.until(stored)
        first.life.stop()
        await bed.client.patch(RECOMMENDATIONS, "web", {"status": {"podStatus": None}}, "default", subresource="status")
        await bed.client.delete(PODS, "web-1", "default", grace_period_seconds=0)
        await start(bed)
        again = await recommended(bed)
        assert targets(again) == targets(found), "learnt before the restart, shown without a pod"
        assert conditions(again)["NoObjectsMatched"]["status"] == "True"
        assert json.loads(kept["container.main"])["samples"] == 1
        await bed.client.delete(RECOMMENDATIONS, "web", "default")

        async def gone():
            try:
                await stored()
            except NotFound:
                return True
            return False

        await bed.until(gone)

    bed(test)


@pytest.mark.feature("MGR-REC-01")
@pytest.mark.feature("MGR-REC-02")
@pytest.mark.parametrize("led", [True, False])
def test_what_was_learnt_of_one_target_says_nothing_of_another(bed, make, led):
    async def test(bed):
        await bed.create(
            make.node("n1"),
            make.pod("web-1", "n1", labels={"app": "web"}, requests={"cpu": "1", "memory": "1Gi"}),
            make.pod("db-1", "n1", labels={"app": "db"}, requests={"cpu": "1", "memory": "1Gi"}),
            recommendation(selector={"matchLabels": {"app": "web"}}),
            make.metric("n1", pods=[("default", "web-1", "koord-prod", ("8", "6Gi"))]),
        )
        first = await start(bed)
        uid = (await recommended(bed))["metadata"]["uid"]
        await bed.until(lambda: bed.client.get(CONFIGMAPS, name_of(uid), "koordinator-system"))
        if not led:
            first.life.stop()
        other = recommendation(selector={"matchLabels": {"app": "db"}})["spec"]
        await bed.client.patch(RECOMMENDATIONS, "web", {"spec": other}, "default")
        if not led:
            await start(bed)

        async def empty():
            obj = await read(bed)
            return not targets(obj) and PREFIX + "bounds" not in obj["metadata"].get("annotations", {})

        await bed.until(empty)
        report = make.metric("n1", pods=[("default", "db-1", "", ("400m", "600Mi"))])
        await bed.client.patch(NODEMETRICS, "n1", {"status": report["status"]}, subresource="status")
        (main,) = targets(await recommended(bed)).values()
        assert 460 <= int(main["cpu"].rstrip("m")) <= 490

    bed(test)


@pytest.mark.feature("MGR-REC-02")
def test_checkpoints_go_whose_recommendation_went_while_nobody_led(bed, make):
    async def test(bed):
        await bed.create(recommendation(selector={"matchLabels": {"app": "web"}}))
        alive = (await read(bed))["metadata"]["uid"]
        for uid in ("long-gone", alive):
            await bed.create(body_of(uid, "koordinator-system", "default/web", {}))
        await start(bed)

        async def left():
            stored = await bed.client.list(CONFIGMAPS, "koordinator-system", label_selector=f"{LABEL}=true")
            return {obj["metadata"]["name"] for obj in stored.items} == {name_of(alive)}

        await bed.until(left)

    bed(test)


@pytest.mark.feature("MGR-REC-02")
@pytest.mark.parametrize(
    ("target", "type", "said"),
    [
        ({"type": "moon"}, "ConfigUnsupported", "accepted: workload, podSelector"),
        ({"workload": {"kind": "Deployment", "name": ""}}, "ConfigUnsupported", "a kind and a name"),
        ({"workload": {"kind": "Rocket", "name": "r", "apiVersion": "space.example.com/v1"}}, "ConfigUnsupported", "serves no space"),
        ({"workload": {"kind": "ConfigMap", "name": "r", "apiVersion": "v1"}}, "ConfigUnsupported", "no scale sub-resource"),
        ({"workload": {"kind": "Rocket", "name": "r", "apiVersion": "v1 x"}}, "ConfigUnsupported", "apiVersion 'v1 x' is none"),
        ({"workload": {"kind": "Deployment", "name": "absent"}}, "NoObjectsMatched", "there is no Deployment absent"),
        ({"selector": {"matchLabels": {"app": "none"}}}, "NoObjectsMatched", "no pod matches"),
    ],
)  # fmt: skip
def test_targets_that_lead_nowhere_say_so(bed, target, type, said):
    async def test(bed):
        await bed.create(recommendation(**target))
        await start(bed)
        found = await with_condition(bed, type)
        assert said in conditions(found)[type]["message"]
        assert targets(found) == {}
        assert conditions(found)["LowConfidence"]["status"] == "True"

    bed(test)


@pytest.mark.feature("MGR-REC-02")
@pytest.mark.parametrize("low", ["True", "False"])
def test_values_that_stand_are_as_good_as_they_were_once_what_was_learnt_is_gone(bed, make, low):
    """Eight days without a pod: what stands in the status came of so much history as it did."""

    async def test(bed):
        asked = recommendation(selector={"matchLabels": {"app": "web"}}, mode="apply-on-create")
        values = {"containerStatuses": [{"containerName": "main", "resources": {"cpu": "300m", "memory": "1Gi"}}]}
        since = {"lastTransitionTime": make.now(), "reason": "ShortHistory", "message": "1 samples"}
        asked["status"] = {"podStatus": values, "conditions": [{"type": "LowConfidence", "status": low, **since}]}
        await bed.create(asked)
        manager = await start(bed)
        found = await with_condition(bed, "NoObjectsMatched")
        assert conditions(found)["LowConfidence"]["status"] == low

        async def listed():
            return (await read(bed))["metadata"]["annotations"].get(PREFIX + "selector")

        assert await bed.until(listed) == "app=web"

        async def seen():
            known = manager.app.view.recommendations.get("default/web")
            return len(known.status.conditions) > 1 and PREFIX + "selector" in known.metadata.annotations

        await bed.until(seen)
        new = make.pod("web-1", labels={"app": "web"}, requests={"cpu": "4"})
        answer = await manager.review("/mutate-pod", new, namespace="default")
        assert (answer["object"] == new) is (low == "True")

    bed(test)


@pytest.mark.feature("MGR-REC-02")
@pytest.mark.parametrize("running", [True, False])
def test_pods_of_the_next_job_of_a_cron_job_get_what_was_learnt(bed, make, running):
    """The selector of a Job is not known before the Job is there, and its pods come right after it."""

    async def test(bed):
        pods = {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}}
        cron = {"metadata": {"name": "report.eu"}, "spec": {"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": pods}}}}
        made = await bed.client.create(CRONJOBS, {"apiVersion": "batch/v1", "kind": "CronJob", **cron}, "default")
        if running:
            owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "report.eu", "uid": made["metadata"]["uid"], "controller": True}
            job = {"metadata": {"name": "report.eu-29700000", "ownerReferences": [owner]}, "spec": {"template": pods}}
            await bed.client.create(JOBS, {"apiVersion": "batch/v1", "kind": "Job", **job}, "default")
        asked = recommendation(workload={"kind": "CronJob", "name": "report.eu"}, mode="apply-on-create")
        values = {"containerStatuses": [{"containerName": "main", "resources": {"cpu": "300m", "memory": "1Gi"}}]}
        since = {"lastTransitionTime": make.now(), "reason": "Enough", "message": "9 days"}
        asked["status"] = {"podStatus": values, "conditions": [{"type": "LowConfidence", "status": "False", **since}]}
        await bed.create(asked)
        manager = await start(bed)

        async def reviewed(job):
            labels = {"batch.kubernetes.io/job-name": job, "batch.kubernetes.io/controller-uid": "7"}
            new = make.pod(f"{job}-abc", labels=labels, requests={"cpu": "4"})
            return (await manager.review("/mutate-pod", new, namespace="default"))["object"] != new

        assert await bed.until(lambda: reviewed("report.eu-29700060"))
        for other in ("report.eu", "report.eu-x", "report.eu-20260131", "report.eu-2970006", "report-29700060", "-29700060"):
            assert not await reviewed(other), other

    bed(test)


def metrics_api():
    """The resource metrics API, as an aggregated server would show it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": "PodMetrics", "plural": "pods", "singular": "pod", "listKind": "PodMetricsList"}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    metadata = {"name": "pods.metrics.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}}
    spec = {"group": "metrics.k8s.io", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}


@pytest.mark.feature("MGR-REC-01")
@pytest.mark.parametrize(
    ("answer", "again"), [((404, b"{}"), 600), ((403, b"{}"), 600), ((503, b"{}"), 60), ((200, b"<html>"), 60), (None, 60)]
)
def test_a_metrics_server_that_fails_is_asked_again_soon(answer, again):
    """One that is not there is not: pods would have their usage shared out by their requests for ten minutes, if it was only restarted."""
    now, asked = [0.0], []

    class Failing:
        async def raw(self, method, path):
            asked.append(now[0])
            if answer is None:
                raise Unreachable("no answer")
            return answer

    async def story():
        source = MetricsAPI(Failing(), clock=lambda: now[0])
        for now[0] in range(0, 1300, 30):
            assert await source.of_namespace("shop") is None

    asyncio.run(story())
    assert asked[:3] == [0, again, 2 * again]


@pytest.mark.feature("MGR-REC-01")
def test_containers_are_told_apart_where_the_metrics_api_is_served_and_kills_count(bed, make):
    async def test(bed):
        await bed.client.raw("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", metrics_api())
        usage = [
            {"name": "main", "usage": {"cpu": "250000000n", "memory": "400Mi"}},
            {"name": "side", "usage": {"cpu": "10m", "memory": "1Gi"}},
        ]
        measured = {
            "apiVersion": "metrics.k8s.io/v1beta1",
            "kind": "PodMetrics",
            "metadata": {"name": "web-1", "namespace": "default"},
            "timestamp": make.now(),
            "window": "30s",
            "containers": usage,
        }

        async def served():
            return (await bed.client.raw("POST", "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods", measured))[0] == 201

        await bed.until(served)
        containers = [{"name": name, "image": "x", "resources": {"requests": {"memory": "1Gi"}}} for name in ("main", "side")]
        pod = make.pod("web-1", "n1", labels={"app": "web"}, containers=containers)
        killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": make.now()}}
        pod["status"]["containerStatuses"] = [
            {"name": "side", "lastState": killed, "image": "x", "imageID": "", "ready": True, "restartCount": 1}
        ]
        await bed.create(make.node("n1"), pod, recommendation(selector={"matchLabels": {"app": "web"}}))
        await start(bed)
        found = targets(await recommended(bed))
        assert 287 <= int(found["main"]["cpu"].rstrip("m")) <= 310
        assert found["side"]["cpu"] == "24m", "the end of the bucket that begins at 10m, and 15 %"
        memory = {name: parse_value(resources["memory"]) / (1 << 30) for name, resources in found.items()}
        assert 0.44 < memory["main"] < 0.5
        assert 1.2 * 1.15 <= memory["side"] <= 1.2 * 1.15 * 1.06

    bed(test)


@asynccontextmanager
async def prometheus(answers: list[dict[str, Any]]):
    """A Prometheus that answers range queries: CPU first, then memory."""
    asked: list[dict[str, str]] = []

    async def query(request: web.Request) -> web.Response:
        asked.append(dict(await request.post()))  # type: ignore[arg-type]
        return web.json_response(answers[min(len(asked), len(answers)) - 1])

    app = web.Application()
    app.router.add_post("/api/v1/query_range", query)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()
        for _ in range(3):
            await asyncio.sleep(0)  # what was closed is gone


def matrix(*series):
    return {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": m, "values": v} for m, v in series]}}


@pytest.mark.feature("MGR-REC-01")
@pytest.mark.parametrize("measured", [False, True], ids=["history alone", "beside what is measured meanwhile"])
def test_history_of_eight_days_comes_from_prometheus(bed, make, measured):
    async def test(bed):
        labels = {"pod": "web-0", "container": "main"}
        hours = [int(time()) - 3600 * n for n in range(8 * 24)]
        cpu = matrix((labels, [[t, "2.0"] for t in hours]), ({"pod": "web-0", "container": "gone"}, [[hours[0], "9"]]))
        memory = matrix((labels, [[t, "1000000000"] for t in hours]))
        async with prometheus([cpu, memory]) as (address, asked):
            await bed.create(
                make.node("n1"),
                deployment(),
                make.pod("web-1", "n1", labels={"app": "web"}),
                recommendation(workload={"kind": "Deployment", "name": "web"}),
                *([make.metric("n1", pods=[("default", "web-1", "", ("2", "950Mi"))])] if measured else []),
            )
            await start(bed, policy=Policy(interval=0.2, prometheus=address))
            found = await recommended(bed)
            assert set(targets(found)) == {"main"}
            assert 2300 <= int(targets(found)["main"]["cpu"].rstrip("m")) <= 2450
            assert conditions(found)["FetchingHistory"]["status"] == "False"
            assert conditions(found)["LowConfidence"]["status"] == "False", "a sample an hour for eight days is a history of eight days"
            assert "web-[a-z0-9]+-[a-z0-9]{5}" in asked[0]["query"]
            assert len(asked) == 2

    bed(test)


@pytest.mark.feature("MGR-REC-01")
@pytest.mark.parametrize(
    ("kind", "earlier", "others"),
    [
        (
            "CronJob",
            ["a.b-29700000-x2x4z", "a.b-29700000-0-x2x4z"],
            ["a.b-29700000", "axb-29700000-x2x4z", "a.b-c-29700000-x2x4z", "a.b-2-x2x4z"],
        ),
        ("Job", ["a.b-x2x4z", "a.b-12-x2x4z"], ["a.b-c-x2x4z", "a.b-29700000-x2x4z"]),
        ("ReplicaSet", ["a.b-x2x4z"], ["a.b-c-x2x4z"]),
    ],
)
def test_history_is_asked_for_by_the_names_of_earlier_pods(kind, earlier, others):
    asked = convert(recommendation(workload={"kind": kind, "name": "a.b"}), Recommendation)
    pattern = re.compile(pods_pattern(asked, ["now"]))
    assert all(map(pattern.fullmatch, [*earlier, "now"]))
    assert not any(map(pattern.fullmatch, others))


@pytest.mark.feature("MGR-REC-01")
def test_a_prometheus_that_fails_is_done_without(bed, make):
    async def test(bed):
        async with prometheus([{"status": "error", "error": "out of order"}]) as (address, _):
            await bed.create(
                make.node("n1"),
                make.pod("web-1", "n1", labels={"app": "web"}),
                recommendation(selector={"matchLabels": {"app": "web"}}),
                make.metric("n1", pods=[("default", "web-1", "", ("1", "1Gi"))]),
            )
            await start(bed, policy=Policy(interval=0.2, prometheus=address))
            found = await recommended(bed)
            assert conditions(found)["FetchingHistory"]["status"] in ("True", "False")

    bed(test)


@pytest.mark.feature("MGR-REC-02")
@pytest.mark.parametrize("selector", [{"matchLabels": {"app": "web"}}, {}], ids=["labels", "every pod"])
def test_new_pods_get_what_was_learnt_where_that_was_asked_for(bed, make, selector):
    async def test(bed):
        now = datetime.now(UTC).timestamp()
        cpu = matrix(({"pod": "p", "container": "main"}, [[now - 60 * n, "0.4"] for n in range(2 * 1440)]))
        memory = matrix(({"pod": "p", "container": "main"}, [[now - 60 * n, "600000000"] for n in range(2 * 1440)]))
        async with prometheus([cpu, memory]) as (address, _):
            asked = recommendation(selector=selector, mode="apply-on-create")
            await bed.create(make.node("n1"), make.pod("web-1", "n1", labels={"app": "web"}), asked)
            manager = await start(bed, policy=Policy(interval=0.2, prometheus=address))

            async def applied():
                new = make.pod("web-2", labels={"app": "web"}, requests={"cpu": "4", "memory": "8Gi"})
                answer = await manager.review("/mutate-pod", new, namespace="default")
                assert answer["allowed"]
                return answer["object"] if answer["object"]["metadata"].get("annotations") else None

            pod = await bed.until(applied)
            target = targets(await read(bed))["main"]
            assert pod["spec"]["containers"][0]["resources"]["requests"] == target
            assert pod["metadata"]["annotations"] == {PREFIX + "applied-recommendation": "web"}
            await bed.client.patch(
                RECOMMENDATIONS, "web", {"metadata": {"annotations": {PREFIX + "mode": "estimate-on-create"}}}, "default"
            )

            async def estimated():
                new = make.pod("web-3", labels={"app": "web"}, requests={"cpu": "4", "memory": "8Gi"})
                told = (await manager.review("/mutate-pod", new, namespace="default"))["object"]
                assert told["metadata"]["annotations"]
                key = "scheduling.koordinator.sh/load-estimated-scaling-factors"
                return told if key in told["metadata"]["annotations"] else None

            told = await bed.until(estimated)
            assert told["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "4", "memory": "8Gi"}
            other = make.pod("db-1", labels={"app": "db"}, requests={"cpu": "4"})
            told = (await manager.review("/mutate-pod", other, namespace="default"))["object"]
            assert (told == other) is bool(selector)

    bed(test)
