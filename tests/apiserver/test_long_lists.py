"""Lists as long as a body may be: their items are checked against one another in one pass, not each with each, which took hours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koord.apiserver.ssa.fields import _interleaved
from tests.apiserver.conftest import APPLY, STRATEGIC

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
MANY = 60_000


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def named(key: str = "name", **more: Any) -> list[dict[str, Any]]:
    """Many items with names of their own, and at the end one of the first name."""
    return [{key: f"a{i}", **more} for i in range(MANY)] + [{key: "a0", **more}]


def fields(out: Any) -> list[str]:
    return [cause["field"] for cause in out["details"]["causes"] if cause["reason"] == "FieldValueDuplicate"]


def test_equal_owner_references_among_many(with_api: Any) -> None:
    async def body(api: Any) -> None:
        refs = [{"uid": f"{i}"} for i in range(MANY)] + [{"uid": "0"}]
        status, _ = await api.call("POST", MAPS, {"metadata": {"name": "m", "ownerReferences": refs}})
        assert status == 422
        assert api.warnings[0].endswith('duplicate UID(s) observed: 0"')

    with_api(body)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: pod(schedulingGates=named()), f"spec.schedulingGates[{MANY}]"),
        (lambda: pod(securityContext={"sysctls": named(value="1")}), f"spec.securityContext.sysctls[{MANY}].name"),
        (
            lambda: pod(topologySpreadConstraints=named("topologyKey")),
            "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}",
        ),
        (
            lambda: pod(containers=[{"name": "c", "image": "i", "ports": [{"name": f"a{i % MANY}"} for i in range(MANY + 1)]}]),
            f"spec.containers[0].ports[{MANY}].name",
        ),
    ],
)
def test_parts_of_a_pod(with_api: Any, make: Callable[[], Any], field: str) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("POST", PODS, make())
        assert (status, fields(out)) == (422, [field])

    with_api(body)


def test_sets_and_maps_of_a_custom_resource(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        spec = widget_crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["set"] = {"type": "array", "x-kubernetes-list-type": "set", "items": {"x-kubernetes-int-or-string": True}}
        await api.post(CRDS, widget_crd)
        for part, items in (("parts", named()), ("set", [*range(MANY), "0", 0])):
            wanted = {"metadata": {"name": "w"}, "spec": {"size": 1, part: items}, "kind": "Widget", "apiVersion": "example.com/v1"}
            status, out = await api.call("POST", WIDGETS, wanted)
            assert (status, fields(out)) == (422, [f"spec.{part}[{len(items) - 1}]"])

    with_api(body)


def test_equal_items_of_a_set_are_equal_as_json(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        spec = widget_crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        items = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic"}
        spec["set"] = {"type": "array", "x-kubernetes-list-type": "set", "items": items}
        await api.post(CRDS, widget_crd)
        objects = [{"a": 1, "b": 2}, {"a": True, "b": 2}, {"b": 2, "a": 1}]
        wanted = {"metadata": {"name": "w"}, "spec": {"size": 1, "set": objects}, "kind": "Widget", "apiVersion": "example.com/v1"}
        status, out = await api.call("POST", WIDGETS, wanted)
        assert (status, fields(out)) == (422, ["spec.set[2]"])

    with_api(body)


def test_an_apply_in_another_order(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(CRDS, widget_crd)
        parts = [{"name": f"a{i}"} for i in range(20_000)]
        obj = {"metadata": {"name": "w"}, "spec": {"size": 1, "parts": parts}, "kind": "Widget", "apiVersion": "example.com/v1"}
        await api.post(WIDGETS + "?fieldManager=f", obj)
        obj["spec"] = {"parts": parts[:1000][::-1]}
        out = await api.ok("PATCH", WIDGETS + "/w?fieldManager=g&force=true", obj, kind=APPLY)
        assert len(out["spec"]["parts"]) == 20_000

    with_api(body)


@pytest.mark.parametrize(
    ("applied", "live", "merged"),
    [
        ("ab", "", "ab"),
        ("ab", "xy", "xyab"),
        ("ab", "xaybz", "xaybz"),
        ("ba", "xaybz", "xybaz"),
        ("bca", "abc", "bca"),
        ("a", "axaya", "axy"),
    ],
)
def test_the_order_of_merged_lists(applied: str, live: str, merged: str) -> None:
    assert "".join(_interleaved(list(applied), list(live))) == merged


def test_scalars_of_a_strategic_patch(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "m", "finalizers": [f"x.io/{i}" for i in range(10_000)]}})
        gone = [f"x.io/{i}" for i in range(1, 100_000)]
        change = {"metadata": {"$deleteFromPrimitiveList/finalizers": gone, "finalizers": [f"y.io/{i}" for i in range(10_000)]}}
        out = await api.ok("PATCH", MAPS + "/m", change, kind=STRATEGIC)
        assert len(out["metadata"]["finalizers"]) == 10_001

    with_api(body)


def test_scopes_of_a_quota(with_api: Any) -> None:
    async def body(api: Any) -> None:
        hard = {f"count/a{i}.x.io": "1" for i in range(10_000)}
        spec = {"hard": hard, "scopes": ["Terminating", "BestEffort"] * 10_000}
        status, out = await api.call("POST", "/api/v1/namespaces/default/resourcequotas", {"metadata": {"name": "q"}, "spec": spec})
        assert status == 422
        assert {cause["field"] for cause in out["details"]["causes"]} == {"spec.scopes"}

    with_api(body)
