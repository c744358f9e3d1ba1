"""Server-side apply: ownership, conflicts, transfer, removal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.apiserver.admission.chain import AdmissionChain
from koord.apiserver.config import ServerConfig

APPLY = "application/apply-patch+yaml"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
MAPS = "/api/v1/namespaces/default/configmaps"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


def config_map(name: str = "m", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def managers(obj: dict[str, Any]) -> dict[str, Any]:
    return {f"{m['manager']}/{m['operation']}": m["fieldsV1"] for m in obj["metadata"].get("managedFields") or ()}


async def apply(api: Any, path: str, obj: dict[str, Any], manager: str, more: str = "") -> tuple[int, Any]:
    result: tuple[int, Any] = await api.call("PATCH", f"{path}/{obj['metadata']['name']}?fieldManager={manager}{more}", obj, kind=APPLY)
    return result


def test_apply_creates_and_owns_what_it_says(with_api: Any) -> None:
    async def body(api: Any) -> None:
        status, out = await apply(api, MAPS, config_map(a="1", b="2"), "me")
        assert status == 201
        assert managers(out) == {"me/Apply": {"f:data": {"f:a": {}, "f:b": {}}}}
        status, same = await apply(api, MAPS, config_map(a="1", b="2"), "me")
        assert (status, same["metadata"]["resourceVersion"]) == (200, out["metadata"]["resourceVersion"])

    with_api(body)


def test_fields_no_longer_applied_are_removed(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await apply(api, MAPS, config_map(a="1", b="2"), "me")
        await apply(api, MAPS, config_map(b="2", c="3"), "you")
        _, out = await apply(api, MAPS, config_map(), "me")
        assert out["data"] == {"b": "2", "c": "3"}

    with_api(body)


def test_defaults_leave_with_the_struct_that_is_no_longer_applied(with_api: Any) -> None:
    def deployment(probe: dict[str, Any], **volume: Any) -> dict[str, Any]:
        container = {"name": "c", "image": "i:1", "livenessProbe": probe}
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container], "volumes": [{"name": "v", **volume}]}}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}

    def seen(out: Any) -> tuple[Any, Any]:
        spec = out["spec"]["template"]["spec"]
        return spec["volumes"], {key for key in spec["containers"][0]["livenessProbe"] if key in ("httpGet", "tcpSocket")}

    async def body(api: Any) -> None:
        _, out = await apply(api, DEPLOYMENTS, deployment({"httpGet": {"port": 80}}, configMap={"name": "m"}), "me")
        assert seen(out) == ([{"name": "v", "configMap": {"name": "m", "defaultMode": 420}}], {"httpGet"})
        status, out = await apply(api, DEPLOYMENTS, deployment({"tcpSocket": {"port": 80}}, emptyDir={}), "me")
        assert status == 200, out
        assert seen(out) == ([{"name": "v", "emptyDir": {}}], {"tcpSocket"})
        # what somebody else has set in it stays
        _, out = await apply(api, DEPLOYMENTS, deployment({"tcpSocket": {"port": 80}}, configMap={"name": "m"}), "me")
        changed = out["spec"]["template"]
        changed["spec"]["volumes"][0]["configMap"]["optional"] = True
        await api.merge(DEPLOYMENTS + "/d?fieldManager=you", {"spec": {"template": changed}})
        status, out = await apply(api, DEPLOYMENTS, deployment({"tcpSocket": {"port": 80}}, emptyDir={}), "me")
        assert (status, out["details"]["causes"][0]["message"]) == (422, "Forbidden: may not specify more than 1 volume type")

    with_api(body)


def test_applied_nulls_are_values(with_api: Any, widget_crd: Any) -> None:
    """They take a default; where there is none, and null is not allowed, they are refused. In what others send they are dropped."""

    def obj(**spec: Any) -> dict[str, Any]:
        return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, **spec}}

    async def body(api: Any) -> None:
        await apply(api, WIDGETS, obj(parts=[{"name": "p", "count": 1}]), "me")
        status, out = await apply(api, WIDGETS, obj(colour=None), "me")
        assert (status, out["spec"]) == (200, {"size": 1, "colour": "red"})
        for spec, field in (
            ({"parts": None}, "spec.parts"),
            ({"parts": [{"name": "p", "count": None}]}, "spec.parts[0].count"),
        ):
            status, out = await apply(api, WIDGETS, obj(**spec), "me")
            assert (status, [cause["field"] for cause in out["details"]["causes"]]) == (422, [field])
        assert (await apply(api, WIDGETS, obj(parts=5), "me"))[0] == 500

    with_api(body, crds=[widget_crd])


def test_conflicts_name_the_owner_and_force_takes_over(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await apply(api, MAPS, config_map(a="1"), "me")
        status, out = await apply(api, MAPS, config_map(a="2"), "you")
        assert (status, out["reason"]) == (409, "Conflict")
        assert out["message"] == 'Apply failed with 1 conflict: conflict with "me": .data.a'
        assert out["details"]["causes"] == [{"reason": "FieldManagerConflict", "message": 'conflict with "me"', "field": ".data.a"}]
        status, out = await apply(api, MAPS, config_map(a="2"), "you", "&force=true")
        assert (status, out["data"]) == (200, {"a": "2"})
        assert managers(out) == {"you/Apply": {"f:data": {"f:a": {}}}}

    with_api(body)


def test_an_update_takes_what_it_changes(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await apply(api, MAPS, config_map(a="1", b="1"), "me")
        out = await api.merge(MAPS + "/m?fieldManager=editor", {"data": {"a": "9"}})
        assert managers(out) == {"me/Apply": {"f:data": {"f:b": {}}}, "editor/Update": {"f:data": {"f:a": {}}}}
        status, out = await apply(api, MAPS, config_map(a="1", b="1"), "me")
        assert status == 409
        assert 'conflict with "editor" using v1: .data.a' in out["message"]

    with_api(body)


def test_an_update_takes_what_it_changes_from_1_to_true(with_api: Any, widget_crd: Any) -> None:
    def obj(**free: Any) -> dict[str, Any]:
        return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, "free": free}}

    async def body(api: Any) -> None:
        await apply(api, WIDGETS, obj(a=1, b=0), "me")
        out = await api.merge(WIDGETS + "/w?fieldManager=editor", {"spec": {"free": {"a": True}}})
        assert managers(out)["me/Apply"]["f:spec"]["f:free"] == {"f:b": {}}
        assert managers(out)["editor/Update"] == {"f:spec": {"f:free": {"f:a": {}}}}

    with_api(body, crds=[widget_crd])


def test_associative_lists_merge_by_key(with_api: Any, widget_crd: Any) -> None:
    def part(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, **more}

    def obj(*parts: dict[str, Any]) -> dict[str, Any]:
        return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, "parts": list(parts)}}

    async def body(api: Any) -> None:
        await apply(api, WIDGETS, obj(part("a", count=1)), "one")
        _, out = await apply(api, WIDGETS, obj(part("b", count=2)), "two")
        assert out["spec"]["parts"] == [part("a", count=1), part("b", count=2)]
        assert managers(out)["two/Apply"]["f:spec"]["f:parts"] == {'k:{"name":"b"}': {".": {}, "f:count": {}, "f:name": {}}}
        _, out = await apply(api, WIDGETS, obj(), "one")
        assert out["spec"]["parts"] == [part("b", count=2)]

    with_api(body, crds=[widget_crd])


def test_keys_that_default_are_known_where_they_are_left_out(with_api: Any, widget_crd: Any) -> None:
    parts = widget_crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["parts"]
    parts["x-kubernetes-list-map-keys"] = ["name", "protocol", "side"]
    parts["items"]["properties"] |= {
        "protocol": {"type": "string", "default": "UDP"},
        "side": {"type": "string", "default": "left"},
    }

    def obj(**part: Any) -> dict[str, Any]:
        return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, "parts": [part]}}

    async def body(api: Any) -> None:
        for count in (1, 2):
            status, out = await apply(api, WIDGETS, obj(name="a", count=count), "one")
            assert status == (201 if count == 1 else 200), out
            assert out["spec"]["parts"] == [{"name": "a", "count": count, "protocol": "UDP", "side": "left"}]
        key = 'k:{"name":"a","protocol":"UDP","side":"left"}'
        assert managers(out)["one/Apply"]["f:spec"]["f:parts"] == {key: {".": {}, "f:count": {}, "f:name": {}}}
        _, out = await apply(api, WIDGETS, obj(name="a", protocol="TCP", side="left"), "two")
        assert [part["protocol"] for part in out["spec"]["parts"]] == ["UDP", "TCP"]

    with_api(body, crds=[widget_crd])


def test_scaling_takes_replicas_from_the_applier(with_api: Any) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}

    async def body(api: Any) -> None:
        assert (await apply(api, DEPLOYMENTS, deployment, "me"))[0] == 201
        await api.merge(DEPLOYMENTS + "/d/scale?fieldManager=hpa", {"spec": {"replicas": 5}})
        status, out = await apply(api, DEPLOYMENTS, deployment, "me")
        assert (status, [c["field"] for c in out["details"]["causes"]]) == (409, [".spec.replicas"])
        del spec["replicas"]
        status, out = await apply(api, DEPLOYMENTS, deployment, "me")
        assert (status, out["spec"]["replicas"]) == (200, 5)

    with_api(body)


def together(monkeypatch: pytest.MonkeyPatch, wanted: int) -> None:
    """So many creations wait for one another in admission, as they do while a webhook thinks; and all are frozen for retries."""
    waiting: list[asyncio.Future[None]] = []
    mutate = AdmissionChain.mutate

    async def slow(self: AdmissionChain, attributes: Any) -> None:
        await mutate(self, attributes)
        if attributes.operation == "CREATE" and len(waiting) < wanted:
            waiting.append(asyncio.get_running_loop().create_future())
            if len(waiting) == wanted:
                for future in waiting:
                    future.set_result(None)
            await waiting[-1]

    monkeypatch.setattr(AdmissionChain, "mutate", slow)
    monkeypatch.setattr(AdmissionChain, "has_webhooks", True)


def test_applies_that_create_at_the_same_time_become_one(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(api: Any) -> None:
        together(monkeypatch, 2)
        answers = await asyncio.gather(apply(api, MAPS, config_map(a="1"), "one"), apply(api, MAPS, config_map(b="2"), "two"))
        assert sorted(status for status, _ in answers) == [200, 201]
        out = await api.get(f"{MAPS}/m")
        assert out["data"] == {"a": "1", "b": "2"}
        assert managers(out) == {"one/Apply": {"f:data": {"f:a": {}}}, "two/Apply": {"f:data": {"f:b": {}}}}

    with_api(body)


def test_an_apply_that_creates_at_the_same_time_conflicts_like_any_other(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(api: Any) -> None:
        together(monkeypatch, 2)
        answers = await asyncio.gather(apply(api, MAPS, config_map(a="1"), "one"), apply(api, MAPS, config_map(a="2"), "two"))
        assert sorted((status, out.get("reason", "")) for status, out in answers) == [(201, ""), (409, "Conflict")]

    with_api(body)


def test_puts_that_create_at_the_same_time(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes second replaces; who insists on a version gets a conflict."""

    async def body(api: Any) -> None:
        together(monkeypatch, 2)
        path = "/api/v1/namespaces/default/endpoints/e"
        objs = [{"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "e", "labels": {"l": str(i)}}} for i in range(2)]
        answers = await asyncio.gather(*(api.call("PUT", path, obj) for obj in objs))
        assert sorted(status for status, _ in answers) == [200, 201]

    with_api(body)


def test_a_manager_is_needed(with_api: Any) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("PATCH", MAPS + "/m", config_map(a="1"), kind=APPLY)
        assert (status, out["details"]["causes"][0]["field"]) == (422, "fieldManager")

    with_api(body)


def test_objects_without_managers_conflict_as_before_first_apply(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, config_map(a="1"))
        status, out = await apply(api, MAPS, config_map(a="2"), "me")
        assert status == 409
        assert 'conflict with "before-first-apply" using v1' in out["message"]

    with_api(body, config=ServerConfig(managed_fields="apply"))


def test_status_is_applied_apart(with_api: Any) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}

    async def body(api: Any) -> None:
        await api.post("/api/v1/namespaces/default/pods", pod)
        condition = {"type": "Ready", "status": "True"}
        status = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"conditions": [condition]}}
        path = "/api/v1/namespaces/default/pods/p/status?fieldManager=kubelet"
        code, out = await api.call("PATCH", path, status, kind=APPLY)
        assert code == 200
        assert out["status"]["conditions"] == [condition]
        assert out["spec"]["containers"][0]["image"] == "i:1"
        mine = next(m for m in out["metadata"]["managedFields"] if m["manager"] == "kubelet")
        assert mine["subresource"] == "status"

    with_api(body)


def test_items_that_come_twice(with_api: Any, widget_crd: Any) -> None:
    """Nobody can apply them; those that others wrote stay as they are."""

    async def body(api: Any) -> None:
        labels = {"a": "b"}
        containers = [{"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}]
        template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
        made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        status, out = await apply(api, DEPLOYMENTS, {**made, "spec": spec}, "me")
        where = '.spec.template.spec.containers[name="c"].env: duplicate entries for key [name="A"]'
        assert (status, out["message"].endswith(where)) == (500, True), out
        status, out = await apply(api, MAPS, {**config_map(), "metadata": {"name": "m", "finalizers": ["x.io/a"] * 2}}, "me")
        assert (status, out["message"].endswith('.metadata.finalizers: duplicate entries for key [="x.io/a"]')) == (500, True), out

        await api.post(DEPLOYMENTS, {**made, "spec": spec})
        mine = {"spec": {"template": {"spec": {"containers": [{"name": "c", "env": [{"name": "B", "value": "3"}]}]}}}}
        status, out = await apply(api, DEPLOYMENTS, {**made, **mine}, "me")
        assert status == 200, out
        env = out["spec"]["template"]["spec"]["containers"][0]["env"]
        assert [(one["name"], one["value"]) for one in env] == [("A", "1"), ("A", "2"), ("B", "3")]

        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"parts": [{"name": "x"}] * 2}}
        status, out = await apply(api, WIDGETS, widget, "me")
        assert (status, out["message"].endswith('.spec.parts: duplicate entries for key [name="x"]')) == (500, True), out

    with_api(body)


def test_a_null_takes_nothing_out_of_a_map_of_others(with_api: Any, widget_crd: Any) -> None:
    """Programs write null for what they leave empty."""

    async def body(api: Any) -> None:
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        path = "/apis/example.com/v1/namespaces/default/widgets"
        head = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
        parts = [{"name": "a", "count": 1}]
        await api.post(path, {**head, "spec": {"size": 1, "free": {"x": 1}, "parts": parts}})

        async def applied(**spec: Any) -> tuple[int, Any]:
            status, out = await api.call("PATCH", f"{path}/w?fieldManager=m", {**head, "spec": spec}, kind=APPLY)
            return status, out.get("spec", {}) if status == 200 else out["message"]

        for spec in ({"parts": None}, {"free": None}, {"parts": None, "free": None}):
            status, kept = await applied(**spec)
            assert (status, kept["parts"], kept["free"]) == (200, parts, {"x": 1}), spec
        assert (await applied(size=None))[0] == 409
        status, kept = await applied(parts=[{"name": "b"}])
        assert [part["name"] for part in kept["parts"]] == ["a", "b"]
        status, kept = await applied(parts=None)
        assert (status, kept["parts"]) == (200, parts), "its own goes"

    with_api(body)


@pytest.mark.parametrize("emptied", [None, {}])
def test_a_map_of_which_nothing_is_left_is_null(emptied: Any, with_api: Any, widget_crd: Any) -> None:
    """Which the schema may not allow: nothing goes unseen."""

    async def body(api: Any) -> None:
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        path = "/apis/example.com/v1/namespaces/default/widgets/w?fieldManager=m"
        made = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, "free": {"x": 1}}}
        await api.call("PATCH", path, made, kind=APPLY)
        made["spec"]["free"] = emptied
        status, out = await api.call("PATCH", path, made, kind=APPLY)
        assert (status, out["details"]["causes"][0]["field"]) == (422, "spec.free")
        del made["spec"]["free"]
        assert "free" not in (await api.call("PATCH", path, made, kind=APPLY))[1]["spec"]

    with_api(body)
