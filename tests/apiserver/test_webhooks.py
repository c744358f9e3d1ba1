"""Admission webhooks, called over HTTP as kube-apiserver calls them."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest
from aiohttp import web

from koord.apiserver.config import ServerConfig

PODS = "/api/v1/namespaces/default/pods"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
Answer = Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]]


@contextlib.asynccontextmanager
async def webhook(answer: Answer) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    seen: list[dict[str, Any]] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        review = orjson.loads(await request.read())
        seen.append(review["request"])
        said = answer(review["request"])
        response = {"uid": review["request"]["uid"], **(said if isinstance(said, dict) else await said)}
        return web.json_response({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response})

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook", seen
    finally:
        await runner.cleanup()


def configuration(kind: str, url: str = "", **hook: Any) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"]}
    client = {"url": url} if url else {"service": {"namespace": "x", "name": "nowhere"}}
    entry = {"name": "a.b.c", "clientConfig": client, "rules": [rule], "admissionReviewVersions": ["v1"], "sideEffects": "None", **hook}
    return {"kind": kind, "apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "h"}, "webhooks": [entry]}


def pod(name: str = "p", **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}


def patch(*operations: dict[str, Any]) -> dict[str, Any]:
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(list(operations))).decode()}


def test_mutating_webhook_patches_and_sees_the_request(with_api: Any) -> None:
    async def body(api: Any) -> None:
        async with webhook(lambda r: patch({"op": "add", "path": "/metadata/labels", "value": {"by": "hook"}})) as (url, seen):
            await api.post(HOOKS + "/mutatingwebhookconfigurations", configuration("MutatingWebhookConfiguration", url))
            made = await api.post(PODS, {**pod(), "metadata": {"generateName": "p-"}})
            assert made["metadata"]["labels"] == {"by": "hook"}
            assert seen[0]["operation"] == "CREATE"
            assert seen[0]["resource"] == {"group": "", "version": "v1", "resource": "pods"}
            assert seen[0]["object"]["spec"]["schedulerName"] == "default-scheduler"
            assert "uid" not in seen[0]["object"]["metadata"]
            assert "name" not in seen[0]
            assert seen[0]["oldObject"] is None
            await api.post(
                PODS + f"/{made['metadata']['name']}/binding",
                {"metadata": {"name": made["metadata"]["name"]}, "target": {"kind": "Node", "name": "n"}},
            )
            assert len(seen) == 1

    with_api(body)


def test_validating_webhook_refuses_with_its_own_words(with_api: Any) -> None:
    async def body(api: Any) -> None:
        answer = {"allowed": False, "status": {"message": "not today", "code": 403, "reason": "Forbidden"}, "warnings": ["careful"]}
        async with webhook(lambda r: answer) as (url, _):
            selector = {"matchLabels": {"watched": "yes"}}
            await api.post(
                HOOKS + "/validatingwebhookconfigurations", configuration("ValidatingWebhookConfiguration", url, objectSelector=selector)
            )
            await api.post(PODS, pod("free"))
            status, out = await api.call("POST", PODS, pod("held", labels={"watched": "yes"}))
            assert (status, out["message"]) == (403, 'admission webhook "a.b.c" denied the request: not today')
            assert api.warnings == ['299 - "careful"']

    with_api(body)


def test_failure_policy(with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = HOOKS + "/validatingwebhookconfigurations"
        await api.post(path, configuration("ValidatingWebhookConfiguration", "http://127.0.0.1:1/", failurePolicy="Ignore"))
        await api.post(PODS, pod("passes"))
        await api.merge(path + "/h", {"webhooks": [{**configuration("x", "http://127.0.0.1:1/")["webhooks"][0], "failurePolicy": "Fail"}]})
        status, out = await api.call("POST", PODS, pod("fails"))
        assert (status, out["reason"]) == (500, "InternalError")
        assert 'failed calling webhook "a.b.c"' in out["message"]

    with_api(body)


def test_a_service_that_leads_nowhere_is_skipped_unless_told_otherwise(with_api: Any) -> None:
    async def passes(api: Any) -> None:
        await api.post(HOOKS + "/validatingwebhookconfigurations", configuration("ValidatingWebhookConfiguration"))
        await api.post(PODS, pod())
        assert "skipped" in api.warnings[0]

    async def fails(api: Any) -> None:
        await api.post(HOOKS + "/validatingwebhookconfigurations", configuration("ValidatingWebhookConfiguration"))
        assert (await api.call("POST", PODS, pod()))[0] == 500

    with_api(passes)
    with_api(fails, config=ServerConfig(unresolvable_webhooks="fail"))


def test_reinvocation_after_a_later_change(with_api: Any) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        labels = request["object"]["metadata"].get("labels") or {}
        if "second" in labels and "first" in labels:
            return {"allowed": True}
        return patch({"op": "add", "path": "/metadata/labels", "value": {**labels, "first" if "first" not in labels else "second": "x"}})

    async def body(api: Any) -> None:
        async with webhook(answer) as (url, seen):
            made = configuration("MutatingWebhookConfiguration", url, reinvocationPolicy="IfNeeded")
            made["webhooks"].append({**made["webhooks"][0], "name": "b.b.c", "reinvocationPolicy": "Never"})
            await api.post(HOOKS + "/mutatingwebhookconfigurations", made)
            out = await api.post(PODS, pod())
            assert set(out["metadata"]["labels"]) == {"first", "second"}
            assert len(seen) == 3

    with_api(body)


def test_what_a_webhook_changes_is_defaulted_and_goes_through_the_plugins_again(with_api: Any) -> None:
    sidecar = {"name": "side", "image": "s"}
    changes = [{"op": "add", "path": "/spec/containers/-", "value": sidecar}, {"op": "add", "path": "/spec/tolerations", "value": []}]

    async def body(api: Any) -> None:
        answers = [{"allowed": True}, patch(*changes)]
        async with webhook(lambda r: answers.pop() if answers else {"allowed": True}) as (url, seen):
            made = configuration("MutatingWebhookConfiguration", url)
            made["webhooks"].append({**made["webhooks"][0], "name": "b.b.c"})
            await api.post(HOOKS + "/mutatingwebhookconfigurations", made)
            out = await api.post(PODS, pod())
            assert [c["imagePullPolicy"] for c in seen[1]["object"]["spec"]["containers"]] == ["IfNotPresent", "Always"]
            assert len(out["spec"]["tolerations"]) == 2

            await api.post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 500})
            answers[:] = [{"allowed": True}, patch({"op": "add", "path": "/spec/priorityClassName", "value": "high"})]
            status, out = await api.call("POST", PODS, pod("q"))
            assert (status, "priority admission controller computed 500" in out["message"]) == (403, True)

    with_api(body)


def test_a_webhook_may_change_1_to_true(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        async with webhook(lambda r: patch({"op": "replace", "path": "/spec/free/a", "value": True})) as (url, _):
            rule = {"apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["widgets"], "operations": ["CREATE"]}
            made = configuration("MutatingWebhookConfiguration", url, rules=[rule])
            await api.post(HOOKS + "/mutatingwebhookconfigurations", made)
            widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, "free": {"a": 1}}}
            out = await api.post("/apis/example.com/v1/namespaces/default/widgets", widget)
            assert out["spec"]["free"]["a"] is True

    with_api(body, crds=[widget_crd])


def test_a_webhook_cannot_change_what_an_object_is(with_api: Any) -> None:
    async def body(api: Any) -> None:
        answers: list[dict[str, Any]] = []
        async with webhook(lambda r: answers.pop() if answers else {"allowed": True}) as (url, _):
            await api.post(HOOKS + "/mutatingwebhookconfigurations", configuration("MutatingWebhookConfiguration", url))
            await api.post(PODS, pod())
            for method, path in (("POST", PODS), ("PATCH", PODS + "/p")):
                wanted, kind = (pod("q"), "application/json") if method == "POST" else ({}, "application/merge-patch+json")
                for operation, expected, text in (
                    ({"path": "/metadata/namespace", "value": "other"}, 400, "the namespace of the provided object does not match"),
                    ({"path": "/kind", "value": "Node"}, 500, "cannot be handled as a Pod"),
                    ({"path": "/spec/containers", "value": "none"}, 500, "cannot be handled as a Pod"),
                ):
                    answers.append(patch({"op": "add", **operation}))
                    status, out = await api.call(method, path, wanted, kind=kind)
                    assert (status, text in out["message"]) == (expected, True), out
            answers.append(patch({"op": "add", "path": "/metadata/uid", "value": "x"}))
            status, out = await api.call("PATCH", PODS + "/p", {}, kind="application/merge-patch+json")
            assert (status, out["details"]["causes"][0]["field"]) == (422, "metadata.uid")

    with_api(body)


def test_webhooks_are_told_that_a_namespace_lies_in_itself(with_api: Any) -> None:
    async def body(api: Any) -> None:
        async with webhook(lambda r: {"allowed": True}) as (url, seen):
            made = configuration("ValidatingWebhookConfiguration", url)
            made["webhooks"][0]["rules"][0] |= {"resources": ["namespaces"], "operations": ["*"], "scope": "Cluster"}
            await api.post(HOOKS + "/validatingwebhookconfigurations", made)
            await api.post("/api/v1/namespaces", {"metadata": {"name": "a"}})
            await api.merge("/api/v1/namespaces/a", {"metadata": {"labels": {"x": "y"}}})
            await api.ok("DELETE", "/api/v1/namespaces/a")
            assert [(r["operation"], r["namespace"]) for r in seen] == [("CREATE", "a"), ("UPDATE", "a"), ("DELETE", "a")]

    with_api(body)


def test_a_mutating_webhook_changes_scales_bindings_evictions_and_tokens(with_api: Any) -> None:
    """What is created or written through a subresource is what the webhook made of it."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        kind = request["kind"]["kind"]
        if kind == "Scale":
            assert request["object"]["kind"] == request["oldObject"]["kind"] == "Scale"
            return patch({"op": "replace", "path": "/spec/replicas", "value": min(request["object"]["spec"]["replicas"], 4)})
        if kind == "Binding":
            return patch({"op": "add", "path": "/metadata/annotations", "value": {"by": "hook"}})
        if kind == "Eviction":
            return patch({"op": "add", "path": "/deleteOptions", "value": {"gracePeriodSeconds": 7}})
        return patch({"op": "add", "path": "/spec/audiences", "value": ["hook"]})

    async def body(api: Any) -> None:
        async with webhook(answer) as (url, seen):
            resources = ["*/scale", "pods/binding", "pods/eviction", "serviceaccounts/token"]
            rule = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": resources, "operations": ["*"]}
            await api.post(HOOKS + "/mutatingwebhookconfigurations", configuration("MutatingWebhookConfiguration", url, rules=[rule]))
            template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
            spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
            deployments = "/apis/apps/v1/namespaces/default/deployments"
            await api.post(deployments, {"metadata": {"name": "d"}, "spec": spec})
            assert (await api.merge(deployments + "/d/scale", {"spec": {"replicas": 9}}))["spec"]["replicas"] == 4
            assert (await api.get(deployments + "/d"))["spec"]["replicas"] == 4
            put = {"metadata": {"name": "d"}, "spec": {"replicas": 3}}
            assert (await api.ok("PUT", deployments + "/d/scale", put))["spec"]["replicas"] == 3
            assert [review["operation"] for review in seen] == ["UPDATE", "UPDATE"]
            assert [review["oldObject"]["spec"]["replicas"] for review in seen] == [1, 4]

            await api.post(PODS, pod())
            await api.post(PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}})
            bound = await api.get(PODS + "/p")
            assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("n", {"by": "hook"})
            await api.post(PODS + "/p/eviction", {"metadata": {"name": "p"}})
            assert (await api.get(PODS + "/p"))["metadata"]["deletionGracePeriodSeconds"] == 7
            await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "s"}})
            token = await api.post("/api/v1/namespaces/default/serviceaccounts/s/token", {"spec": {}})
            assert token["spec"]["audiences"] == ["hook"]

    with_api(body)


def test_a_scale_is_of_the_name_on_the_path_and_one_that_meets_another_write_begins_anew(with_api: Any) -> None:
    deployments = "/apis/apps/v1/namespaces/default/deployments"

    async def body(api: Any) -> None:
        async def answer(request: dict[str, Any]) -> dict[str, Any]:
            if len(seen) == 1:
                await api.merge(deployments + "/d", {"metadata": {"labels": {"written": "meanwhile"}}})
            return {"allowed": True}

        async with webhook(answer) as (url, seen):
            rule = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["deployments/scale"], "operations": ["*"]}
            await api.post(HOOKS + "/mutatingwebhookconfigurations", configuration("MutatingWebhookConfiguration", url, rules=[rule]))
            template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
            spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
            await api.post(deployments, {"metadata": {"name": "d"}, "spec": spec})
            assert (await api.merge(deployments + "/d/scale", {"spec": {"replicas": 5}}))["spec"]["replicas"] == 5
            assert len(seen) == 2, "asked again about the Scale as it is now"
            found = await api.get(deployments + "/d")
            assert (found["spec"]["replicas"], found["metadata"]["labels"]) == (5, {"written": "meanwhile"})

            other = {"metadata": {"name": "e"}, "spec": {"replicas": 2}}
            status, refused = await api.call("PUT", deployments + "/d/scale", other)
            assert (status, "(e) does not match the name on the URL (d)" in refused["message"]) == (400, True), refused
            assert (await api.get(deployments + "/d"))["spec"]["replicas"] == 5

    with_api(body)


@pytest.mark.parametrize(
    ("answer", "bundle"),
    [
        ({"allowed": True}, "-----BEGIN CERTIFICATE-----\ncafé\n-----END CERTIFICATE-----\n"),
        ({"allowed": True}, "no certificate"),
        ({"allowed": False, "status": "no"}, ""),
        ({"allowed": False, "status": {"code": "x"}}, ""),
        ({"allowed": False, "status": {"details": "x"}}, ""),
        ({"allowed": True, "patchType": "JSONPatch", "patch": 5}, ""),
        ({"allowed": True, "patchType": "JSONPatch", "patch": "ü"}, ""),
        ({"allowed": "yes"}, ""),
        ({"allowed": True, "warnings": "careful"}, ""),
    ],
)
def test_what_a_webhook_gets_wrong_is_judged_by_its_failure_policy(answer: dict[str, Any], bundle: str, with_api: Any) -> None:
    async def body(api: Any) -> None:
        async with webhook(lambda r: answer) as (url, _):
            await api.post(HOOKS + "/mutatingwebhookconfigurations", made := configuration("MutatingWebhookConfiguration", url))
            entry = made["webhooks"][0]
            if bundle:
                entry["clientConfig"] = {"url": url.replace("http:", "https:"), "caBundle": base64.b64encode(bundle.encode()).decode()}
            for policy, expected in (("Ignore", 201), ("Fail", 500)):
                entry["failurePolicy"] = policy
                await api.merge(HOOKS + "/mutatingwebhookconfigurations/h", made)
                status, out = await api.call("POST", PODS, pod(policy.lower()))
                assert status == expected, out
            assert out["message"].startswith('Internal error occurred: failed calling webhook "a.b.c": ')

    with_api(body)


def test_the_patch_of_a_webhook_replaces_what_is_missing(with_api: Any) -> None:
    async def body(api: Any) -> None:
        operation = {"op": "replace", "path": "/metadata/annotations", "value": {"a": "b"}}
        async with webhook(lambda r: patch(operation)) as (url, _):
            await api.post(HOOKS + "/mutatingwebhookconfigurations", configuration("MutatingWebhookConfiguration", url))
            assert (await api.post(PODS, pod()))["metadata"]["annotations"] == {"a": "b"}

    with_api(body)


def test_a_patch_must_leave_an_object(with_api: Any) -> None:
    async def body(api: Any) -> None:
        async with webhook(lambda r: patch({"op": "remove", "path": "/metadata"})) as (url, _):
            await api.post(HOOKS + "/mutatingwebhookconfigurations", configuration("MutatingWebhookConfiguration", url))
            status, out = await api.call("POST", PODS, pod())
            assert (status, 'admission webhook "a.b.c": patch: ' in out["message"]) == (500, True)

    with_api(body)
