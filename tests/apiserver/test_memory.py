"""What a request says is forgotten with it, however long it is: nothing of it stays in caches."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.apiserver.conftest import APPLY

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
LONG = 400_000
TIMES = 12


def long(at: int) -> str:
    return f"a{at}" + "x" * LONG


def config_map(name: str = "m", **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", **more, "metadata": {"name": name, **more.get("metadata", {})}}


def pod(spec: dict[str, Any], **container: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", **container}], **spec}}


@pytest.mark.parametrize(
    ("path", "make"),
    [
        (MAPS, lambda at: config_map(metadata={"labels": {"a": long(at)}})),
        (MAPS, lambda at: config_map(metadata={"labels": {long(at): "a"}})),
        (MAPS, lambda at: config_map(metadata={"annotations": {long(at): "a"}})),
        (MAPS, lambda at: config_map(metadata={"finalizers": [long(at)]})),
        (MAPS, lambda at: config_map(long(at))),
        (PODS, lambda at: pod({"nodeName": long(at)})),
        (PODS, lambda at: pod({}, resources={"limits": {"cpu": " " * LONG + str(at + 1)}})),
        (PODS, lambda at: pod({"affinity": {"nodeAffinity": {}}, "nodeSelector": {long(at): long(at)}})),
        (MAPS, lambda at: config_map(data={f"k{at}-{i}": "v" for i in range(3_000)})),
        (MAPS + "/m?fieldManager=f", lambda at: config_map(data={f"k{at}-{i}": "v" for i in range(3_000)})),
        (MAPS + "/m?fieldManager=f", lambda at: config_map(metadata={"annotations": {long(at): "v"}})),
        (WIDGETS + "/w?fieldManager=f", lambda at: {"spec": {"size": 1, "free": {long(at): {long(at + TIMES): 1}}}}),
        (WIDGETS, lambda at: {"metadata": {"name": "w"}, "spec": {"size": 1, "free": {long(at): {long(at + TIMES): 1}}}}),
    ],
)
def test_nothing_stays(with_api: Any, widget_crd: Any, path: str, make: Callable[[int], Any]) -> None:
    async def body(api: Any) -> None:
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        path_and_query = path + ("&" if "?" in path else "?") + "dryRun=All"

        async def ask(at: int) -> None:
            obj = make(at)
            if "widgets" in path:
                obj |= {"apiVersion": "example.com/v1", "kind": "Widget"}
            if "fieldManager" in path:
                obj.setdefault("metadata", {}).setdefault("name", "w")
                await api.call("PATCH", path_and_query, obj, kind=APPLY)
            else:
                await api.call("POST", path_and_query, obj)

        await ask(0)  # what is made once
        gc.collect()
        tracemalloc.start()
        try:
            for at in range(1, TIMES):
                await ask(at)
            await api.get("/version")  # connections remember their last request
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 2 * LONG
        finally:
            tracemalloc.stop()

    with_api(body)
