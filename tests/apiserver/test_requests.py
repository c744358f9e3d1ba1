"""Requests that kube-apiserver takes, or refuses, in ways of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
from typing import Any

import pytest

from koord.apiserver.config import ServerConfig
from koord.apiserver.rest.read import decode_continue, encode_continue
from koord.apiserver.web.handler import MAX_LINE
from tests.apiserver.conftest import APPLY, JSON_PATCH, MERGE, STRATEGIC
from tests.support import patience

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


def test_equal_owner_references_are_kept_once(with_api: Any) -> None:
    async def body(api: Any) -> None:
        ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
        other = {**ref, "name": "p"}
        made = await api.post(MAPS, {"metadata": {"name": "m", "ownerReferences": [ref, other, ref]}})
        assert made["metadata"]["ownerReferences"] == [ref, other]
        assert [warning.count("contains duplicate entries; API server dedups") for warning in api.warnings] == [1]
        await api.ok("PUT", MAPS + "/m", {"metadata": {"name": "m", "ownerReferences": [ref, ref]}})
        assert len(api.warnings) == 1
        patched = await api.merge(MAPS + "/m", {"metadata": {"ownerReferences": [other, other]}})
        assert patched["metadata"]["ownerReferences"] == [other]
        assert "after mutating admission happens" in api.warnings[0]
        assert api.warnings[0].endswith('duplicate UID(s) observed: u"')

    with_api(body)


def test_a_body_may_have_three_mebibytes(with_api: Any) -> None:
    async def body(api: Any) -> None:
        for size, expected in ((3 * 1024 * 1024, 422), (3 * 1024 * 1024 + 1, 413), (17 * 1024 * 1024, 413)):
            head, tail = b'{"metadata":{"name":"m"},"data":{"k":"', b'"}}'
            whole = head + b"x" * (size - len(head) - len(tail)) + tail
            for method, path, kind in (("POST", MAPS, "application/json"), ("PATCH", MAPS + "/m", MERGE)):
                async with api.session.request(method, path, data=io.BytesIO(whole), headers={"Content-Type": kind}) as answer:
                    out = await answer.json()
                    assert answer.status == (404 if expected == 422 and method == "PATCH" else expected)
                if expected == 413:
                    assert (out["reason"], out["message"]) == ("RequestEntityTooLarge", "Request entity too large: limit is 3145728")
        assert (await api.get(MAPS))["items"] == []

    with_api(body)


def test_ports_of_a_pod_are_unique(with_api: Any) -> None:
    async def body(api: Any) -> None:
        port = {"containerPort": 80, "hostPort": 80}
        for ports, causes in (
            ([[port], [{**port, "protocol": "UDP"}, {**port, "hostIP": "10.0.0.1"}]], []),
            ([[port, {**port, "containerPort": 81}]], ["spec.containers[0].ports[1].hostPort"]),
            ([[port], [port]], ["spec.containers[1].ports[0].hostPort"]),
            ([[{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]], ["spec.containers[0].ports[1].name"]),
            ([[{"name": "a", "containerPort": 1}], [{"name": "a", "containerPort": 2}]], []),
        ):
            containers = [{"name": f"c{i}", "image": "i", "ports": of} for i, of in enumerate(ports)]
            status, out = await api.call("POST", PODS + "?dryRun=All", {"metadata": {"name": "p"}, "spec": {"containers": containers}})
            assert [(c["reason"], c["field"]) for c in (out.get("details") or {}).get("causes", ())] == [
                ("FieldValueDuplicate", field) for field in causes
            ]
            assert status == (422 if causes else 201)

    with_api(body)


def test_a_version_that_is_still_to_come_is_not_answered_with_an_older_one(with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post(MAPS, {"metadata": {"name": "m"}})
        now = made["metadata"]["resourceVersion"]
        for version in ("0", "1", now):
            assert (await api.get(f"{MAPS}/m?resourceVersion={version}"))["metadata"]["resourceVersion"] == now
        status, out = await api.call("GET", f"{MAPS}/m?resourceVersion={int(now) + 10}")
        assert (status, out["details"]["causes"][0]["reason"]) == (504, "ResourceVersionTooLarge")

    with_api(body)


def test_an_apply_that_creates_needs_no_version(with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "resourceVersion": "5"}}
        assert (await api.call("PATCH", MAPS + "/m?fieldManager=me", made, kind=APPLY))[0] == 201
        assert (await api.call("PATCH", MAPS + "/m?fieldManager=me", made, kind=APPLY))[0] == 409

    with_api(body)


def test_a_taint_that_comes_twice_is_shown_as_json(with_api: Any) -> None:
    async def body(api: Any) -> None:
        taint = {"key": "a", "effect": "NoSchedule"}
        status, out = await api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n"}, "spec": {"taints": [taint, taint]}})
        assert status == 422
        assert out["details"]["causes"][0]["message"].startswith('Duplicate value: {"key":"a","effect":"NoSchedule"}: taints must be')

    with_api(body)


def test_fields_that_come_twice_are_told(with_api: Any) -> None:
    async def body(api: Any) -> None:
        containers = b'[{"name":"c","image":"i"},{"name":"d","image":"i","image":"j"}]'
        twice = b'{"metadata": {"name": "p"}, "spec": {"containers": ' + containers + b', "nope": 1}}'
        texts = ['duplicate field "spec.containers[1].image"', 'unknown field "spec.nope"']
        for how in ("", "&fieldValidation=Warn"):
            made = await api.ok("POST", f"{PODS}?dryRun=All{how}", twice)
            assert made["spec"]["containers"][1]["image"] == "j"
            assert [warning.replace("\\", "") for warning in api.warnings] == [f'299 - "{text}"' for text in texts]
        status, out = await api.call("POST", f"{PODS}?fieldValidation=Strict", twice)
        assert (status, out["message"].partition("decoding error: ")[2]) == (400, ", ".join(texts))
        await api.ok("POST", f"{PODS}?dryRun=All&fieldValidation=Ignore", twice)
        assert api.warnings == []
        await api.ok("POST", MAPS, b'{ "metadata": {"name": "spaced"} }')
        assert api.warnings == []

    with_api(body)


@pytest.mark.parametrize(
    ("fields", "lengths"),
    [
        (["a", "line\nbreak", "b", "tab\t", "delete\x7f", "\x85"], [17, 17]),
        (["x" * 5000, "y"], [256, 17]),
        ([f"{n:02}" + "x" * 400 for n in range(40)], [256] * 16),
    ],
)
def test_warnings_are_what_a_header_can_carry(fields: list[str], lengths: list[int], with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post(MAPS, {"metadata": {"name": "m"}, **dict.fromkeys(fields, 1)})
        assert made["metadata"]["name"] == "m"
        assert [len(warning.replace("\\", "")) - len('299 - ""') for warning in api.warnings] == lengths

    with_api(body)


def test_fields_that_come_twice_in_a_patch_are_told(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "m"}})
        twice = b'{"data":{"a":"1","a":"2"}}'
        for kind in (MERGE, STRATEGIC):
            for how in ("", "&fieldValidation=Warn"):
                changed = await api.ok("PATCH", f"{MAPS}/m?dryRun=All{how}", twice, kind=kind)
                assert changed["data"] == {"a": "2"}
                assert [warning.replace("\\", "") for warning in api.warnings] == ['299 - "duplicate field "data.a""']
            status, out = await api.call("PATCH", f"{MAPS}/m?fieldValidation=Strict", twice, kind=kind)
            assert (status, out["reason"]) == (422, "Invalid")
            assert out["message"].endswith('strict decoding error: duplicate field "data.a"')
            await api.ok("PATCH", f"{MAPS}/m?dryRun=All&fieldValidation=Ignore", twice, kind=kind)
            assert api.warnings == []

    with_api(body)


def test_resource_versions_are_whole_numbers_of_64_bits(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "m"}})
        for version, why in (("²", "syntax"), ("-1", "syntax"), (str(1 << 64), "out of range"), ("9" * 5000, "out of range")):
            for path in (MAPS, MAPS + "/m", MAPS + "?watch=true"):
                status, out = await api.call("GET", f"{path}{'&' if '?' in path else '?'}resourceVersion={version}")
                assert (status, out["reason"], why in out["message"]) == (400, "BadRequest", True), path
        status, out = await api.call("GET", f"{MAPS}/m?resourceVersion={(1 << 64) - 1}")
        assert (status, out["reason"]) == (504, "Timeout")

    with_api(body)


def test_slices_are_selected_by_their_driver_and_node(with_api: Any) -> None:
    slices = "/apis/resource.k8s.io/v1/resourceslices"

    async def body(api: Any) -> None:
        for driver, node in (("a.io", "m"), ("a.io", "n"), ("b.io", "n")):
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "d"}]}
            await api.post(slices, {"metadata": {"name": f"{driver}-{node}"}, "spec": spec})
        listed = await api.get(slices + "?fieldSelector=spec.driver%3Da.io,spec.nodeName%3Dn")
        assert [item["metadata"]["name"] for item in listed["items"]] == ["a.io-n"]
        await api.ok("DELETE", slices + "?fieldSelector=spec.driver%3Da.io")
        assert [item["metadata"]["name"] for item in (await api.get(slices))["items"]] == ["b.io-n"]

    with_api(body)


def test_a_list_does_not_go_on_from_a_state_that_is_lost(with_api: Any) -> None:
    async def body(api: Any) -> None:
        for name in ("a", "b"):
            await api.post(MAPS, {"metadata": {"name": name}})
        version, start = decode_continue((await api.get(MAPS + "?limit=1"))["metadata"]["continue"])
        later = encode_continue(version + 100, start)
        status, out = await api.call("GET", f"{MAPS}?limit=1&continue={later}")
        assert (status, out["reason"]) == (410, "Expired")
        rest = await api.get(f"{MAPS}?continue={out['metadata']['continue']}")
        assert [item["metadata"]["name"] for item in rest["items"]] == ["b"]

    with_api(body)


@pytest.mark.parametrize("text", ["2023-02-30T00:00:00Z", "2023-06-31T00:00:00Z", "2023-06-30T00:00:00Z\n", "0001-01-01T00:00:00+05:00"])
def test_times_that_never_were_are_refused(text: str, with_api: Any) -> None:
    async def body(api: Any) -> None:
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        made = await api.post(budgets, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1}})
        made["status"] = {
            "disruptedPods": {"p": text},
            **dict.fromkeys(("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"), 0),
        }
        assert (await api.call("PUT", f"{budgets}/b/status", made))[0] == 400
        made["status"]["disruptedPods"]["p"] = "2024-02-29T23:00:00Z"
        assert (await api.ok("PUT", f"{budgets}/b/status", made))["status"]["disruptedPods"] == {"p": "2024-02-29T23:00:00Z"}

    with_api(body)


def test_who_writes_may_have_a_name_that_is_no_utf_8(with_api: Any) -> None:
    async def body(api: Any) -> None:
        host, port = api.server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        sent = b'{"metadata":{"name":"m"},"data":{"a":"b"}}'
        writer.write(
            b"POST " + MAPS.encode() + b" HTTP/1.1\r\nHost: a\r\nUser-Agent: caf\xe9/1\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(sent), sent)
        )
        assert (await reader.readline()).split()[1] == b"201"
        writer.close()
        assert [one["manager"] for one in (await api.get(MAPS + "/m"))["metadata"]["managedFields"]] == ["caf\ufffd"]

    with_api(body)


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("POST", MAPS, {"metadata": {"name": "other"}}),
        ("PATCH", MAPS + "/m", {"data": {"a": "b"}}),
        ("DELETE", MAPS + "/m", None),
        ("DELETE", MAPS, None),
    ],
)
def test_who_cannot_read_the_answer_changes_nothing(method: str, path: str, sent: Any, with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post(MAPS, {"metadata": {"name": "m"}})
        kind = MERGE if method == "PATCH" else "application/json"
        status, out = await api.call(method, path, sent, kind=kind, accept="text/html")
        assert (status, out["reason"]) == (406, "NotAcceptable")
        assert [one["metadata"] for one in (await api.get(MAPS))["items"]] == [made["metadata"]]

    with_api(body)


def test_a_selector_may_be_long(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "m", "labels": {"app": "a1999"}}})
        for count in (2000, 18_000):
            selector = f"app in ({','.join(f'a{n}' for n in range(count))})"
            assert [one["metadata"]["name"] for one in (await api.get(f"{MAPS}?labelSelector={selector}"))["items"]] == ["m"]
        status, _ = await api.call("GET", f"{MAPS}?labelSelector={'a' * MAX_LINE}")
        assert status == 400

    with_api(body)


@pytest.mark.parametrize("text", ["9" * 400, "1_000", "١", "x"])
@pytest.mark.parametrize("key", ["limit", "timeoutSeconds"])
def test_numbers_of_a_query_are_of_plain_digits(text: str, key: str, with_api: Any) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("GET", f"{MAPS}?watch={int(key != 'limit')}&{key}={text}")
        assert (status, out["reason"]) == (400, "BadRequest")

    with_api(body)


_RULES = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
_NEEDS_A_VERSION: dict[str, dict[str, Any]] = {
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": {},
    "admissionregistration.k8s.io/v1/validatingwebhookconfigurations": {},
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies": {
        "spec": {"matchConstraints": {"resourceRules": _RULES}, "validations": [{"expression": "true"}]},
    },
    "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings": {"spec": {"policyName": "p", "validationActions": ["Deny"]}},
    "node.k8s.io/v1/runtimeclasses": {"handler": "h"},
    "storage.k8s.io/v1/csidrivers": {"spec": {}},
    "storage.k8s.io/v1/csinodes": {"spec": {"drivers": []}},
    "storage.k8s.io/v1/namespaces/default/csistoragecapacities": {"storageClassName": "c"},
    "storage.k8s.io/v1/volumeattachments": {"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}}},
}


@pytest.mark.parametrize("path", _NEEDS_A_VERSION)
def test_some_kinds_are_replaced_only_by_who_has_seen_them(path: str, with_api: Any) -> None:
    async def body(api: Any) -> None:
        sent = {"metadata": {"name": "x"}, **_NEEDS_A_VERSION[path]}
        made = await api.post(f"/apis/{path}", sent)
        status, out = await api.call("PUT", f"/apis/{path}/x", sent)
        assert (status, [cause["field"] for cause in out["details"]["causes"]]) == (422, ["metadata.resourceVersion"])
        await api.ok("PUT", f"/apis/{path}/x", {**made, "metadata": {**made["metadata"], "labels": {"a": "b"}}})

    with_api(body)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/api/v1/namespaces/default/services", {"spec": {"ports": [{"port": 80}]}}),
        ("/apis/node.k8s.io/v1/runtimeclasses", {"handler": "h"}),
    ],
)
def test_a_put_makes_services_and_runtime_classes(path: str, parts: dict[str, Any], with_api: Any) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("PUT", f"{path}/x", {"metadata": {"name": "x"}, **parts})
        assert status == 201, out

    with_api(body)


_POLICY = {
    "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
    "validations": [{"expression": "true"}],
}
_SPEC_OF: dict[str, dict[str, Any]] = {
    "resource.k8s.io/v1/namespaces/default/resourceclaims": {},
    "resource.k8s.io/v1/devicetaintrules": {"deviceSelector": {"driver": "d.example.com"}, "taint": {"key": "a", "effect": "NoSchedule"}},
    "scheduling.k8s.io/v1beta1/namespaces/default/podgroups": {"schedulingPolicy": {"gang": {"minCount": 1}}},
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies": _POLICY,
    "storage.k8s.io/v1/volumeattachments": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
}


@pytest.mark.parametrize("path", _SPEC_OF)
def test_a_status_changes_no_metadata_where_they_are_reset(path: str, with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(f"/apis/{path}", {"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": _SPEC_OF[path]})
        changes = {"labels": {"a": "c"}, "annotations": {"a": "b"}, "finalizers": ["example.com/held"]}
        await api.merge(f"/apis/{path}/x/status", {"metadata": changes, "status": {}})
        seen = await api.get(f"/apis/{path}/x")
        assert {key: seen["metadata"].get(key) for key in changes} == {"labels": {"a": "b"}, "annotations": None, "finalizers": None}
        await api.ok("PUT", f"/apis/{path}/x/status", {**seen, "metadata": {**seen["metadata"], **changes}})
        assert (await api.get(f"/apis/{path}/x"))["metadata"]["labels"] == {"a": "b"}

    with_api(body)


@pytest.mark.parametrize("path", ["csidrivers", "csinodes", "storageclasses", "volumeattachments"])
def test_the_deletion_of_storage_is_answered_with_the_object(path: str, with_api: Any) -> None:
    parts: dict[str, dict[str, Any]] = {key.rpartition("/")[2]: value for key, value in _NEEDS_A_VERSION.items()}
    parts["storageclasses"] = {"provisioner": "p"}

    async def body(api: Any) -> None:
        made = await api.post(f"/apis/storage.k8s.io/v1/{path}", {"metadata": {"name": "x"}, **parts[path]})
        gone = await api.ok("DELETE", f"/apis/storage.k8s.io/v1/{path}/x")
        assert gone["kind"] == made["kind"]

    with_api(body)


def test_a_namespace_of_what_has_none_is_dropped(with_api: Any) -> None:
    """Many charts say one for their cluster roles."""

    async def body(api: Any) -> None:
        path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
        sent = {"metadata": {"name": "x", "namespace": "default"}, "rules": []}
        kind = {"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1"}
        for method, where, what, form in (
            ("POST", path, sent, "application/json"),
            ("PUT", f"{path}/x", sent, "application/json"),
            ("PATCH", f"{path}/x", {"metadata": {"namespace": "default"}}, MERGE),
            ("PATCH", f"{path}/x?fieldManager=m", {**kind, **sent}, APPLY),
        ):
            made = await api.ok(method, where, what, kind=form)
            assert "namespace" not in made["metadata"]

    with_api(body)


def test_generations_that_count_metadata(with_api: Any) -> None:
    """The annotations of a Deployment, and the labels of an EndpointSlice."""

    async def body(api: Any) -> None:
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        parts = {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}
        slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
        for path, more, counted, free in (
            ("/apis/apps/v1/namespaces/default/deployments", parts, "annotations", "labels"),
            (slices, {"addressType": "IPv4", "endpoints": []}, "labels", "annotations"),
        ):
            await api.post(path, {"metadata": {"name": "x"}, **more})
            seen = [(await api.merge(f"{path}/x", {"metadata": {part: {"a": "b"}}}))["metadata"]["generation"] for part in (free, counted)]
            assert seen == [1, 2], path

    with_api(body)


def test_a_job_has_the_labels_of_its_pods(with_api: Any) -> None:
    async def body(api: Any) -> None:
        spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}
        for labels in ({}, {"a": "b"}):
            made = await api.post(JOBS, {"metadata": {"name": f"j{len(labels)}", "labels": labels}, "spec": spec})
            assert made["metadata"]["labels"] == (labels or made["spec"]["template"]["metadata"]["labels"])

    with_api(body)


def test_endpoint_slices_are_not_made_by_put(with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
        status, out = await api.call("PUT", f"{path}/x", {"metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": []})
        assert (status, out["reason"]) == (404, "NotFound")

    with_api(body)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases", {"spec": {}}),
        ("/apis/node.k8s.io/v1/runtimeclasses", {"handler": "h"}),
        ("/apis/policy/v1/namespaces/default/poddisruptionbudgets", {"spec": {}}),
        ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", {}),
    ],
)
def test_finalizers_of_some_built_in_kinds_need_no_path(path: str, parts: dict[str, Any], with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post(path, {"metadata": {"name": "x", "finalizers": ["plain"]}, **parts})
        assert (made["metadata"]["finalizers"], api.warnings) == (["plain"], [])

    with_api(body)


def test_the_status_of_a_deployment_changes_no_labels(with_api: Any) -> None:
    async def body(api: Any) -> None:
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        path = "/apis/apps/v1/namespaces/default/deployments"
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        await api.post(path, {"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": spec})
        made = await api.merge(
            f"{path}/x/status", {"metadata": {"labels": {"a": "c"}, "annotations": {"a": "c"}}, "status": {"replicas": 1}}
        )
        assert (made["metadata"]["labels"], made["metadata"]["annotations"]) == ({"a": "b"}, {"a": "c"})

    with_api(body)


def test_the_status_of_a_pod_gives_it_no_owners(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}
        made = await api.merge(f"{PODS}/p/status", {"metadata": {"ownerReferences": [owner]}, "status": {"phase": "Running"}})
        assert "ownerReferences" not in made["metadata"]

    with_api(body)


def test_a_written_pod_status_keeps_what_it_leaves_out(with_api: Any) -> None:
    """Its quality of service, and which generations were seen."""

    async def body(api: Any) -> None:
        await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
        conditions = [{"type": kind, "status": "True", "observedGeneration": seen} for kind, seen in (("A", 1), ("A", 2), ("B", 3))]
        await api.merge(f"{PODS}/p/status", {"status": {"observedGeneration": 1, "conditions": conditions}})
        bare = [{"type": kind, "status": "False"} for kind in "AABC"]
        made = await api.ok("PUT", f"{PODS}/p/status", {"metadata": {"name": "p"}, "status": {"conditions": bare}})
        assert (made["status"]["qosClass"], made["status"]["observedGeneration"]) == ("BestEffort", 1)
        assert [condition.get("observedGeneration") for condition in made["status"]["conditions"]] == [1, 2, 3, None]
        made = await api.ok("PUT", f"{PODS}/p/status", {"metadata": {"name": "p"}})
        assert made["status"] == {"qosClass": "BestEffort", "observedGeneration": 1}

    with_api(body)


def test_a_resize_takes_no_resources_and_containers_away(with_api: Any) -> None:
    async def body(api: Any) -> None:
        containers = [{"name": name, "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}} for name in "ab"]
        await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": containers}})
        bare = {"name": "a", "image": "i"}
        less = {**bare, "resources": {"requests": {"cpu": "2"}}}
        for changed, field in (
            (containers[:1], "spec.containers"),
            (containers[::-1], "spec.containers[0].name"),
            ([bare, containers[1]], "spec.containers[0].resources.requests"),
            ([less, containers[1]], "spec.containers[0].resources.requests"),
        ):
            sent = {"metadata": {"name": "p"}, "spec": {"containers": changed}}
            status, out = await api.call("PUT", f"{PODS}/p/resize", sent)
            assert (status, out["details"]["causes"][0]["field"]) == (422, field)
        more = {**bare, "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "3"}}}
        made = await api.ok("PUT", f"{PODS}/p/resize", {"metadata": {"name": "p"}, "spec": {"containers": [more, containers[1]]}})
        assert made["spec"]["containers"][0]["resources"] == more["resources"]

    with_api(body)


def test_a_bound_pod_is_nominated_nowhere(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}})
        status, out = await api.call("PATCH", f"{PODS}/p/status", {"status": {"nominatedNodeName": "m"}}, kind=MERGE)
        assert (status, [cause["field"] for cause in out["details"]["causes"]]) == (422, ["status.nominatedNodeName"])

    with_api(body)


def test_the_older_spelling_of_a_watch_only_reads(with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = MAPS.replace("/v1/", "/v1/watch/")
        assert (await api.call("POST", path, {"metadata": {"name": "m"}}))[0] == 405
        assert (await api.get(MAPS))["items"] == []

    with_api(body)


def test_a_dry_run_of_finalize_shows_what_would_be(with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post("/api/v1/namespaces", {"metadata": {"name": "n"}})
        out = await api.ok("PUT", "/api/v1/namespaces/n/finalize?dryRun=All", {**made, "spec": {"finalizers": ["a.io/b"]}})
        assert out["spec"]["finalizers"] == ["a.io/b"]
        assert (await api.get("/api/v1/namespaces/n"))["spec"]["finalizers"] == ["kubernetes"]

    with_api(body)


def test_who_finalizes_a_namespace_may_change_its_metadata(with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = "/api/v1/namespaces/n"
        made = await api.post("/api/v1/namespaces", {"metadata": {"name": "n", "finalizers": ["a.io/b"]}})
        status, out = await api.call("PUT", path + "/finalize", {**made, "spec": {"finalizers": ["kubernetes", "mine"]}})
        assert (status, out["details"]["causes"][0]["field"]) == (422, "spec.finalizers[1]")
        await api.ok("DELETE", path)
        meta = {"name": "n", "labels": {"a": "b"}, "finalizers": []}
        out = await api.ok("PUT", path + "/finalize", {"metadata": meta, "spec": {"finalizers": ["kubernetes"]}})
        assert out["metadata"]["labels"]["a"] == "b"
        assert "finalizers" not in out["metadata"]
        await api.ok("PUT", path + "/finalize", {"metadata": {"name": "n"}, "spec": {}})
        assert (await api.call("GET", path))[0] == 404

    with_api(body, config=ServerConfig(disabled_controllers=frozenset({"namespace"})))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": {"finalizers": "kubernetes"}}, "cannot be handled as a Namespace"),
        ({"spec": "x"}, "cannot be handled as a Namespace"),
        ({"metadata": "x"}, "metadata: must be an object"),
        ({"metadata": {}}, "name must be provided"),
        ({"kind": "Pod"}, "does not match the expected API version"),
    ],
)
def test_what_is_no_namespace_finalizes_none(change: dict[str, Any], said: str, with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post("/api/v1/namespaces", {"metadata": {"name": "n"}})
        status, out = await api.call("PUT", "/api/v1/namespaces/n/finalize", {**made, **change})
        assert status == 400
        assert said in out["message"]
        assert (await api.get("/api/v1/namespaces/n"))["spec"] == made["spec"]

    with_api(body)


def test_copies_of_a_json_patch_do_not_double_without_end(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "m"}, "data": {"k": "v"}})
        # of more than this the server would die before it answered
        doubling = [{"op": "copy", "from": "/metadata", "path": f"/metadata/x{i}"} for i in range(18)]
        status, out = await api.call("PATCH", MAPS + "/m?dryRun=All", doubling, kind=JSON_PATCH)
        assert (status, out["reason"]) == (422, "Invalid")
        few = [{"op": "copy", "from": "/data/k", "path": f"/data/k{i}"} for i in range(100)]
        assert len((await api.ok("PATCH", MAPS + "/m", few, kind=JSON_PATCH))["data"]) == 101

    with_api(body)


WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def test_a_patch_may_not_take_the_metadata_off(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        widget_crd["spec"]["versions"][0]["subresources"]["scale"] = {
            "specReplicasPath": ".spec.size",
            "statusReplicasPath": ".status.size",
        }
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "m"}, "spec": {"size": 1}}
        await api.post(WIDGETS, widget)
        await api.post(MAPS, {"metadata": {"name": "m"}})
        for path in (WIDGETS + "/m", WIDGETS + "/m/status", WIDGETS + "/m/scale", MAPS + "/m"):
            for patch, kind in (
                ({"metadata": None}, MERGE),
                ({"metadata": 5}, MERGE),
                ({"metadata": {"name": None}}, MERGE),
                ([{"op": "remove", "path": "/metadata"}], JSON_PATCH),
                ([{"op": "replace", "path": "/metadata", "value": []}], JSON_PATCH),
                ({"metadata": [1]}, MERGE),
            ):
                status, out = await api.call("PATCH", path, patch, kind=kind)
                assert status in (400, 422), (path, patch, status, out)
        assert (await api.get(WIDGETS + "/m"))["spec"] == {**widget["spec"], "colour": "red"}

    with_api(body)


def test_a_json_patch_removes_only_what_is_there(with_api: Any) -> None:
    """Who removes a lock, or a finalizer, must learn that somebody else has done so."""

    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "m"}, "data": {"lock": "mine"}})
        for path, expected in (("/data/lock", 200), ("/data/lock", 422), ("/metadata/annotations", 422), ("/immutable", 422)):
            status, out = await api.call("PATCH", MAPS + "/m", [{"op": "remove", "path": path}], kind=JSON_PATCH)
            assert status == expected, (path, out)

    with_api(body)


@pytest.mark.parametrize("other", [True, 2])
def test_the_parameters_of_what_was_allocated_stay(with_api: Any, other: Any) -> None:
    def allocated(value: Any) -> dict[str, Any]:
        opaque = {"driver": "gpu.example.com", "parameters": {"shared": value}}
        return {"status": {"allocation": {"devices": {"config": [{"source": "FromClaim", "opaque": opaque}]}}}}

    async def body(api: Any) -> None:
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
        await api.post(path, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}})
        await api.merge(path + "/c/status", allocated(1))
        status, out = await api.call("PATCH", path + "/c/status", allocated(other), kind=MERGE)
        assert (status, out["details"]["causes"][0]["field"]) == (422, "status.allocation")
        status, _ = await api.call("PATCH", path + "/c/status", allocated(1), kind=MERGE)
        assert status == 200

    with_api(body)


POLICY = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"


def test_strategic_patches_merge_as_the_types_say(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}})
        wanted = {"matchLabels": {"role": "b"}}
        out = await api.ok("PATCH", BUDGETS + "/b", {"spec": {"selector": wanted}}, kind=STRATEGIC)
        assert out["spec"] == {"minAvailable": 1, "selector": wanted}, "the selector of a budget is replaced"

        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "variables.a"}]}
        conditions = [{"name": name, "expression": "true"} for name in ("a", "b")]
        await api.post(POLICY, {"metadata": {"name": "p"}, "spec": {**spec, "matchConditions": conditions, "variables": conditions}})
        change = [{"name": "b", "expression": "false"}]
        out = await api.ok("PATCH", POLICY + "/p", {"spec": {"matchConditions": change, "variables": change}}, kind=STRATEGIC)
        for key in ("matchConditions", "variables"):
            assert out["spec"][key] == [conditions[0], *change], key

        hook = {
            "name": "a.example.com", "clientConfig": {"url": "https://a.example"}, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "matchConditions": conditions,
        }  # fmt: skip
        for kind in ("mutating", "validating"):
            hooks = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
            await api.post(hooks, {"metadata": {"name": "h"}, "webhooks": [hook]})
            patch = {"webhooks": [{"name": hook["name"], "matchConditions": change}]}
            out = await api.ok("PATCH", hooks + "/h", patch, kind=STRATEGIC)
            assert out["webhooks"][0]["matchConditions"] == [conditions[0], *change], kind
            await api.ok("DELETE", hooks + "/h")

        target = {"kind": "Deployment", "name": "d"}
        await api.post(SCALERS, {"metadata": {"name": "s"}, "spec": {"scaleTargetRef": target, "maxReplicas": 2}})
        for name in ("A", "B"):
            patch = {"status": {"conditions": [{"type": name, "status": "True"}]}}
            out = await api.ok("PATCH", SCALERS + "/s/status", patch, kind=STRATEGIC)
        assert sorted(condition["type"] for condition in out["status"]["conditions"]) == ["A", "B"]

    with_api(body)


def test_a_mebibyte_of_data_is_counted_in_bytes(with_api: Any) -> None:
    most = 1024 * 1024

    def binary(size: int) -> str:
        return base64.b64encode(bytes(size)).decode()

    async def body(api: Any) -> None:
        secrets = "/api/v1/namespaces/default/secrets"
        for path, data, expected in (
            (secrets, {"data": {"a": binary(most - 1), "b": binary(1)}}, 201),
            (secrets, {"data": {"a": binary(most - 1), "b": binary(2)}}, 422),
            (MAPS, {"binaryData": {"a": binary(most - 2)}, "data": {"b": "é"}}, 201),
            (MAPS, {"binaryData": {"a": binary(most - 1)}, "data": {"b": "é"}}, 422),
            (MAPS, {"metadata": {"annotations": {"a": "é" * (128 * 1024)}}}, 422),
        ):
            status, out = await api.call("POST", path + "?dryRun=All", {**data, "metadata": {"name": "m", **data.get("metadata", {})}})
            assert status == expected, (path, out.get("message"))
            if status == 422:
                whole = {secrets: "data", MAPS: ""}[path]  # the field that is too long
                field = "metadata.annotations" if "metadata" in data else whole
                assert [(cause["reason"], cause["field"]) for cause in out["details"]["causes"]] == [("FieldValueTooLong", field)]

    with_api(body)


def test_the_claims_of_a_stateful_set_are_volumes_of_its_pods(with_api: Any) -> None:
    def wanted(*mounted: str) -> dict[str, Any]:
        mounts = [{"name": name, "mountPath": f"/{name}"} for name in mounted]
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i", "volumeMounts": mounts}]}}
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        claims = [{"metadata": {"name": "data"}, "spec": claim}]
        spec = {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template, "volumeClaimTemplates": claims}
        return {"metadata": {"name": "s"}, "spec": spec}

    async def body(api: Any) -> None:
        sets = "/apis/apps/v1/namespaces/default/statefulsets"
        await api.post(sets, wanted("data"))
        await api.merge(sets + "/s", {"spec": {"replicas": 2}})
        status, out = await api.call("POST", sets, wanted("data", "other"))
        place = "spec.template.spec.containers[0].volumeMounts[1].name"
        assert (status, [cause["field"] for cause in out["details"]["causes"]]) == (422, [place])

    with_api(body)


JOBS = "/apis/batch/v1/namespaces/default/jobs"


def test_what_a_job_runs_stays(with_api: Any) -> None:
    """A suspended one that never started may be placed elsewhere; an indexed one grows with its parallelism."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}

    def template(**spec: Any) -> dict[str, Any]:
        return {"template": {"spec": spec}}

    moved = template(nodeSelector={"a": "b"}, tolerations=[{"key": "a", "operator": "Exists"}])
    moved["template"]["metadata"] = {"labels": {"a": "b"}, "annotations": {"a": "b"}}
    other = template(containers=[{"name": "c", "image": "i:2"}])
    far = template(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z"}]}})

    async def body(api: Any) -> None:
        async def tried(name: str, change: dict[str, Any]) -> list[str]:
            status, out = await api.call("PATCH", f"{JOBS}/{name}?dryRun=All", {"spec": change}, kind=STRATEGIC)
            assert status in (200, 422), out
            return [cause["field"] for cause in out.get("details", {}).get("causes", ())]

        running = {"metadata": {"name": "running"}, "spec": {"template": {"spec": pod}}}
        await api.post(JOBS, running)
        await api.post(JOBS, {"metadata": {"name": "waiting"}, "spec": {**running["spec"], "suspend": True}})
        indexed = {"completions": 2, "parallelism": 2, "completionMode": "Indexed"}
        await api.post(JOBS, {"metadata": {"name": "indexed"}, "spec": {**running["spec"], **indexed}})
        for change in (other, moved, far):
            assert await tried("running", change) == ["spec.template"]
        assert await tried("waiting", moved) == []
        assert await tried("waiting", {**moved, "suspend": False}) == []
        for change in (other, far):
            assert await tried("waiting", change) == ["spec.template.spec"]
        for status, refused in (
            ({"startTime": "2026-01-01T00:00:00Z"}, True),
            ({"conditions": [{"type": "Suspended", "status": "True"}]}, False),
            ({"active": 1}, True),
        ):
            await api.ok("PATCH", JOBS + "/waiting/status", {"status": status}, kind=MERGE)
            assert await tried("waiting", moved) == (["spec.template"] if refused else [])
        for change, field in (
            ({"completions": 2}, ["spec.completions"]),
            ({"completionMode": "Indexed"}, ["spec.completionMode"]),
            ({"selector": {"matchLabels": {"a": "b"}}}, ["spec.selector"]),
            ({"podFailurePolicy": {"rules": []}}, ["spec.podFailurePolicy"]),
            ({"managedBy": "a.b/c"}, ["spec.managedBy"]),
            ({"parallelism": 5, "suspend": True, "backoffLimit": 1, "activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 1}, []),
        ):
            assert await tried("running", change) == field
        assert await tried("indexed", {"completions": 3}) == ["spec.completions"]
        assert await tried("indexed", {"completions": 3, "parallelism": 3}) == []

    with_api(body)


def test_a_gated_pod_may_narrow_its_node_affinity(with_api: Any) -> None:
    required, preferred = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"

    def term(*keys: str) -> dict[str, Any]:
        return {"matchExpressions": [{"key": key, "operator": "Exists"} for key in keys]}

    def affinity(*terms: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"nodeAffinity": {**({required: {"nodeSelectorTerms": list(terms)}} if terms else {}), **more}}

    liked = [{"weight": 1, "preference": term("z")}]

    async def body(api: Any) -> None:
        spec = {"containers": [{"name": "c", "image": "i:1"}], "schedulingGates": [{"name": "a/b"}]}
        await api.post(PODS, {"metadata": {"name": "g"}, "spec": {**spec, "affinity": affinity(term("a"), term("b"))}})
        await api.post(PODS, {"metadata": {"name": "free"}, "spec": {**spec, "affinity": affinity(**{preferred: liked})}})
        place = f"spec.affinity.nodeAffinity.{required}.nodeSelectorTerms"
        for name, wanted, field in (
            ("g", affinity(term("a", "c"), term("b")), ""),
            ("g", affinity(term("a"), term("b"), **{preferred: liked}), ""),
            ("g", affinity(term("c", "a"), term("b")), f"{place}[0]"),
            ("g", affinity(term("a"), {}), f"{place}[1]"),
            ("g", affinity(term("a")), place),
            ("g", affinity(**{preferred: liked}), place),
            ("g", None, place),
            ("g", {**affinity(term("a"), term("b")), "podAffinity": {required: [{"topologyKey": "z"}]}}, "spec"),
            ("free", affinity(term("a")), ""),
            ("free", None, ""),
        ):
            change = [{"op": "add", "path": "/spec/affinity", "value": wanted}]
            status, out = await api.call("PATCH", f"{PODS}/{name}?dryRun=All", change, kind=JSON_PATCH)
            fields = [cause["field"] for cause in out.get("details", {}).get("causes", ())]
            assert (status, fields) == ((422, [field]) if field else (200, [])), (wanted, out)

    with_api(body)


def test_what_lacks_an_expected_part_is_refused(with_api: Any, widget_crd: Any) -> None:
    """It was an error of the server."""

    async def body(api: Any) -> None:
        await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
        status, out = await api.call("PATCH", PODS + "/p", {"spec": None}, kind=MERGE)
        assert (status, "spec.containers" in [cause["field"] for cause in out["details"]["causes"]]) == (422, True)
        for part in ("resize", "ephemeralcontainers"):
            assert (await api.call("PATCH", f"{PODS}/p/{part}", {"spec": None}, kind=MERGE))[0] in (200, 422), part
        parts = widget_crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["parts"]
        parts["items"] = [parts["items"]]
        status, out = await api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        assert (status, out["details"]["causes"][0]["field"].endswith("[parts].items")) == (422, True)

    with_api(body)


@pytest.mark.parametrize("said", [b"", b"GET /version HTT", b"GET /version HTTP/1.1\r\nHost: x\r\n"])
def test_a_connection_that_says_nothing_is_closed(said: bytes, with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord.apiserver.server.HEAD_SECONDS", 0.3)

    async def body(api: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(api.server.url.rpartition(":")[2]))
        writer.write(said)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), patience.seconds(5)) == b""
        writer.close()
        assert (await api.get("/version"))["major"]
        await asyncio.sleep(0.4)
        assert (await api.get("/version"))["major"], "one that has asked may rest"

    with_api(body)


@pytest.mark.parametrize(
    ("plural", "change", "field"),
    [
        ("deployments", {"strategy": {"type": "Recreate"}}, "spec.strategy.rollingUpdate"),
        ("deployments", {"strategy": {"type": "Other", "rollingUpdate": None}}, "spec.strategy"),
        (
            "deployments",
            {"strategy": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": 0}}},
            "spec.strategy.rollingUpdate.maxUnavailable",
        ),
        ("deployments", {"strategy": {"rollingUpdate": {"maxSurge": "two"}}}, "spec.strategy.rollingUpdate.maxSurge"),
        ("deployments", {"strategy": {"rollingUpdate": {"maxSurge": "150%"}}}, ""),
        ("deployments", {"strategy": {"type": "Recreate", "rollingUpdate": None}}, ""),
        ("deployments", {"minReadySeconds": 600}, "spec.progressDeadlineSeconds"),
        ("deployments", {"revisionHistoryLimit": -1}, "spec.revisionHistoryLimit"),
        ("daemonsets", {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}, "spec.updateStrategy.rollingUpdate.maxUnavailable"),
        ("daemonsets", {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, "spec.updateStrategy.rollingUpdate.maxSurge"),
        ("daemonsets", {"updateStrategy": {"type": "OnDelete"}}, ""),
        ("statefulsets", {"updateStrategy": {"type": "OnDelete"}}, "spec.updateStrategy.rollingUpdate"),
        ("statefulsets", {"updateStrategy": {"rollingUpdate": {"partition": -1}}}, "spec.updateStrategy.rollingUpdate.partition"),
        ("statefulsets", {"podManagementPolicy": "Serial"}, "spec"),
        ("statefulsets", {"revisionHistoryLimit": -1, "updateStrategy": {"rollingUpdate": {"maxUnavailable": "150%"}}}, ""),
        ("replicasets", {"minReadySeconds": -1}, "spec.minReadySeconds"),
        (
            "deployments",
            {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "00%"}}},
            "spec.strategy.rollingUpdate.maxUnavailable",
        ),
    ],
)
def test_workloads_say_how_they_are_rolled_out(plural: str, change: dict[str, Any], field: str, with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = f"/apis/apps/v1/namespaces/default/{plural}"
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        await api.post(path, {"metadata": {"name": "w"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}})
        status, out = await api.call("PATCH", path + "/w", {"spec": change}, kind=MERGE)
        assert (status, out["details"]["causes"][-1]["field"] if field else "") == (422 if field else 200, field), out

    with_api(body)


SERVICES = "/api/v1/namespaces/default/services"


def _service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def test_an_address_is_of_one_service(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(SERVICES, _service("a", clusterIP="10.0.0.7", type="NodePort", ports=[{"port": 80, "nodePort": 30080}]))
        for spec, field in (
            ({"clusterIP": "10.0.0.7"}, "spec.clusterIPs"),
            ({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30080}]}, "spec.ports[0].nodePort"),
            ({"clusterIP": "10.0.0"}, "spec.clusterIPs[0]"),
            ({"clusterIP": "10.0.0.8", "type": "ExternalName", "externalName": "x.io"}, "spec.clusterIPs"),
            ({"type": "ExternalName"}, "spec.externalName"),
        ):
            status, out = await api.call("POST", SERVICES, _service("b", **spec))
            assert (status, out["details"]["causes"][0]["field"]) == (422, field), out
        await api.post(SERVICES, _service("c", clusterIP="10.0.0.8"))
        await api.post(SERVICES, _service("d", clusterIP="None"))
        await api.post(SERVICES, _service("e", clusterIP="None"))
        status, _ = await api.call("PATCH", SERVICES + "/c", {"spec": {"clusterIP": "10.0.0.7"}}, kind=MERGE)
        assert status == 422
        await api.ok("DELETE", SERVICES + "/a")
        await api.post(SERVICES, _service("b", clusterIP="10.0.0.7"))

    with_api(body)


def test_services_that_share_an_address_since_before_can_be_changed(with_api: Any) -> None:
    async def body(api: Any) -> None:
        twins = {"clusterIP": "10.0.0.7", "type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}
        await api.post(SERVICES, _service("a", **twins))
        bucket = api.server.core.store.bucket("/services")
        obj = bucket.get("default", "a").copy()
        obj["metadata"]["name"] = "b"
        bucket.put("default", "b", obj)
        assert (await api.merge(SERVICES + "/b", {"metadata": {"labels": {"a": "b"}}}))["metadata"]["labels"] == {"a": "b"}
        await api.merge(SERVICES + "/b/status", {"status": {"conditions": []}})

    with_api(body)


def test_what_only_load_balancers_have_goes_with_the_type(with_api: Any) -> None:
    async def body(api: Any) -> None:
        spec = {"type": "LoadBalancer", "loadBalancerClass": "x.io/y", "externalTrafficPolicy": "Local"}
        await api.post(SERVICES, _service("a", **spec, healthCheckNodePort=31000))
        assert (await api.ok("PUT", SERVICES + "/a", _service("a", **spec)))["spec"]["healthCheckNodePort"] == 31000
        kept = (await api.merge(SERVICES + "/a", {"spec": {"type": "ClusterIP"}}))["spec"]
        assert not kept.keys() & {"allocateLoadBalancerNodePorts", "healthCheckNodePort", "loadBalancerClass", "externalTrafficPolicy"}

    with_api(body)


def test_who_leaves_out_the_address_of_a_service_keeps_it(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(SERVICES, _service("a", clusterIP="10.0.0.7", type="NodePort", ports=[{"port": 80, "nodePort": 30080}]))
        kept = (await api.ok("PUT", SERVICES + "/a", _service("a", type="NodePort")))["spec"]
        assert (kept["clusterIP"], kept["ports"][0]["nodePort"]) == ("10.0.0.7", 30080)
        kept = (await api.merge(SERVICES + "/a", {"spec": {"clusterIP": None}}))["spec"]
        assert kept["clusterIP"] == "10.0.0.7"
        kept = (await api.merge(SERVICES + "/a", {"spec": {"type": "ClusterIP"}}))["spec"]
        assert "nodePort" not in kept["ports"][0]
        assert "externalTrafficPolicy" not in kept
        kept = (await api.merge(SERVICES + "/a", {"spec": {"type": "ExternalName", "externalName": "x.io"}}))["spec"]
        assert "clusterIP" not in kept
        await api.post(SERVICES, _service("b", clusterIP="10.0.0.7"))

    with_api(body)


def test_a_driver_has_its_defaults_and_counts_its_changes_from_none(with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = "/apis/storage.k8s.io/v1/csidrivers"
        made = await api.post(path, {"metadata": {"name": "d.io"}, "spec": {}})
        assert "generation" not in made["metadata"]
        assert made["spec"] == {
            "attachRequired": True, "podInfoOnMount": False, "storageCapacity": False, "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "requiresRepublish": False, "seLinuxMount": False, "volumeLifecycleModes": ["Persistent"],
        }  # fmt: skip
        assert (await api.merge(path + "/d.io", {"spec": {"requiresRepublish": True}}))["metadata"]["generation"] == 1
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        await api.post(path, {"metadata": {"name": "p"}, "value": 5})
        assert (await api.merge(path + "/p", {"description": "five"}))["metadata"]["generation"] == 1

    with_api(body)


def test_a_volume_tells_when_it_came_into_its_phase(with_api: Any) -> None:
    async def body(api: Any) -> None:
        path, long_ago = "/api/v1/persistentvolumes", "2020-01-01T00:00:00Z"
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
        made = await api.post(path, {"metadata": {"name": "v"}, "spec": spec})
        assert made["status"]["lastPhaseTransitionTime"] == made["metadata"]["creationTimestamp"]
        status = {"phase": "Available", "lastPhaseTransitionTime": long_ago}
        assert (await api.merge(path + "/v/status", {"status": status}))["status"] == status
        kept = await api.merge(path + "/v/status", {"status": {"message": "m", "lastPhaseTransitionTime": None}})
        assert kept["status"]["lastPhaseTransitionTime"] == long_ago
        bound = await api.merge(path + "/v/status", {"status": {"phase": "Bound"}})
        assert bound["status"]["lastPhaseTransitionTime"] > long_ago
        made = await api.post(
            SCALERS, {"metadata": {"name": "h"}, "spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "D", "name": "d"}}}
        )
        assert made["status"] == {"desiredReplicas": 0}

    with_api(body)


def test_the_one_address_is_the_first_of_all(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
        one, other, both = "10.0.0.1", "10.0.0.2", [{"ip": "10.0.0.3"}, {"ip": "fd00::3"}]
        for sent, kept in (
            ({"podIP": one}, (one, [{"ip": one}])),
            ({"podIP": other}, (other, [{"ip": other}])),
            ({"podIP": None, "podIPs": both}, ("10.0.0.3", both)),
            ({"phase": "Running"}, ("10.0.0.3", both)),
            ({"podIP": one, "podIPs": None}, (one, [{"ip": one}])),
        ):
            status = (await api.merge(PODS + "/p/status", {"status": sent}))["status"]
            assert (status["podIP"], status["podIPs"]) == kept
        made = await api.post("/api/v1/nodes", {"metadata": {"name": "n"}, "spec": {"podCIDR": "10.1.0.0/24"}})
        assert made["spec"]["podCIDRs"] == ["10.1.0.0/24"]
        made = await api.post("/api/v1/nodes", {"metadata": {"name": "m"}, "spec": {"podCIDRs": ["10.2.0.0/24", "fd00::/64"]}})
        assert made["spec"]["podCIDR"] == "10.2.0.0/24"
        status, _ = await api.call("PATCH", "/api/v1/nodes/m", {"spec": {"podCIDR": "10.3.0.0/24"}}, kind=MERGE)
        assert status == 422

    with_api(body)


@pytest.mark.parametrize("version", [None, "", "0"])
def test_a_patch_may_not_take_the_version_off_where_it_is_needed(version: str | None, with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        await api.post(WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "m"}, "spec": {"size": 1}})
        await api.post(LEASES, {"metadata": {"name": "m"}, "spec": {}})
        await api.post(MAPS, {"metadata": {"name": "m"}})
        for path, expected in ((WIDGETS + "/m", 422), (WIDGETS + "/m/status", 422), (LEASES + "/m", 422), (MAPS + "/m", 200)):
            status, out = await api.call("PATCH", path, {"metadata": {"resourceVersion": version}}, kind=MERGE)
            assert status == expected, (path, out)

    with_api(body)


EVENTS, NEWER = "/api/v1/namespaces/default/events", "/apis/events.k8s.io/v1/namespaces/default/events"
TOLD = {
    "eventTime": "2026-01-01T00:00:00.000000Z", "reason": "Done", "action": "Do", "type": "Normal", "reportingController": "x.io/c",
    "reportingInstance": "c-0", "note": "n", "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, ""),
        ({"regarding": {"kind": "Pod", "name": "p", "namespace": "other"}}, ""),
        ({"eventTime": None}, "eventTime"),
        ({"reportingController": "a b"}, "reportingController"),
        ({"reportingInstance": "i" * 129}, "reportingInstance"),
        ({"reason": "r" * 129}, "reason"),
        ({"action": ""}, "action"),
        ({"note": "ü" * 513}, "message"),
        ({"series": {"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}, "series.count"),
        ({"deprecatedCount": 1}, "count"),
        ({"deprecatedSource": {"component": "c"}}, "source"),
    ],
)
def test_events_of_the_newer_api_are_complete(change: dict[str, Any], field: str, with_api: Any) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("POST", NEWER, {"metadata": {"name": "e"}, **TOLD, **change})
        assert (status, out["details"]["causes"][0]["field"] if field else "") == (422 if field else 201, field), out

    with_api(body)


def test_only_the_series_of_an_event_goes_on(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(NEWER, {"metadata": {"name": "e"}, **TOLD})
        await api.merge(NEWER + "/e", {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}})
        for change in ({"note": "m"}, {"reason": "Other"}, {"series": {"count": 1}}, {"reportingInstance": "c-1"}):
            status, _ = await api.call("PATCH", NEWER + "/e", change, kind=MERGE)
            assert status == 422, change
        await api.merge(EVENTS + "/e", {"message": "m"})  # the older API lets them change
        status, out = await api.call("PATCH", EVENTS + "/e", {"action": None}, kind=MERGE)
        assert (status, out["details"]["causes"][0]["field"]) == (422, "action")
        await api.post(EVENTS, {"metadata": {"name": "old"}, "reason": "r" * 200, "involvedObject": {"namespace": "default"}})
        elsewhere = {"metadata": {"name": "f"}, "involvedObject": {"namespace": "other"}}
        assert (await api.call("POST", EVENTS, elsewhere))[0] == 422

    with_api(body)


def test_names_that_only_some_objects_may_have_are_taken(with_api: Any) -> None:
    """Events are named after what they are about, roles with colons too."""

    async def body(api: Any) -> None:
        told = {"involvedObject": {"kind": "ClusterRole", "name": "system:Node"}, "reason": "r"}
        await api.post(EVENTS, {"metadata": {"name": "system:Node.17ab"}, **told})
        assert (await api.call("POST", NEWER, {"metadata": {"name": "system:Node.17ac"}, **TOLD}))[0] == 422
        claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        wanted = {"deviceClassName": "gpu", "tolerations": [{"operator": "Equal", "value": "x"}]}
        await api.post(claims, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "a", "exactly": wanted}]}}})
        wanted["tolerations"] = [{"operator": "Exists", "value": "x"}]
        made = {"metadata": {"name": "d"}, "spec": {"devices": {"requests": [{"name": "a", "exactly": wanted}]}}}
        assert (await api.call("POST", claims, made))[0] == 422

    with_api(body)


def test_the_selectors_of_a_network_policy_can_be_read(with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
        good, bad = {"matchLabels": {"a": "b"}}, {"matchExpressions": [{"key": "a", "operator": "In"}]}
        for spec, status in (
            ({"podSelector": good, "ingress": [{"from": [{"podSelector": good, "namespaceSelector": {}}]}]}, 201),
            ({"podSelector": {}}, 201),
            ({"podSelector": bad}, 422),
            ({"podSelector": {}, "ingress": [{"from": [{"podSelector": bad}]}]}, 422),
            ({"podSelector": {}, "egress": [{"to": [{"namespaceSelector": bad}]}]}, 422),
        ):
            got, out = await api.call("POST", path + "?dryRun=All", {"metadata": {"name": "n"}, "spec": spec})
            assert got == status, out

    with_api(body)


@pytest.mark.parametrize(
    ("names", "status"), [(["e"], 200), (["c"], 422), (["i"], 422), (["e", "e"], 422), ([None], 422), ([None, None], 422)]
)
def test_an_ephemeral_container_has_a_name_of_its_own(names: list[str | None], status: int, with_api: Any) -> None:
    async def body(api: Any) -> None:
        spec = {"containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "i", "image": "i"}]}
        await api.post(PODS, {"metadata": {"name": "p"}, "spec": spec})
        added = {"spec": {"ephemeralContainers": [{"name": name, "image": "i"} for name in names]}}
        got, out = await api.call("PATCH", PODS + "/p/ephemeralcontainers", added, kind=MERGE)
        assert got == status, out

    with_api(body)
