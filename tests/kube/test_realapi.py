"""The client library against a real kube-apiserver (KOORD_REAL_APISERVER names the binary; etcd must be on PATH)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from koord.api.kinds import CONFIGMAPS, DEPLOYMENTS, EVENTS, LEASES, NODES, PODS
from koord.api.objects import Pod
from koord.kube import errors, patch, reflector
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.events import EventRecorder
from koord.kube.informers import InformerFactory
from koord.kube.leases import LeaderElector, Leadership, Timing
from koord.kube.references import ObjectRef
from tests.support import patience, real_apiserver

pytestmark = pytest.mark.realapi


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientConfig]:
    program = real_apiserver.binary()
    if program is None or shutil.which("etcd") is None:
        pytest.skip("needs kube-apiserver and etcd on PATH")
    with real_apiserver.real_api_server(tmp_path_factory.mktemp("realapi"), program) as server:
        yield server.client_config()


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def test_informers_bind_and_evict(config: ClientConfig, eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "PAGE", 3)

    async def main() -> None:
        async with Client(config, role="test") as client:
            await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            for number in range(10):
                await client.create(PODS, pod(f"p{number}"), "default")
            factory = InformerFactory(client)
            everything = factory.informer(PODS, Pod)
            bound = factory.informer(PODS, Pod, field_selector="spec.nodeName=n1")
            factory.start()
            await asyncio.wait_for(factory.wait_synced(), patience.seconds(20))
            assert (len(everything), len(bound)) == (10, 0)
            first = everything.get("default/p0")
            assert first is not None
            await client.bind("default", "p0", "n1", first.metadata.uid)
            with pytest.raises(errors.Conflict):
                await client.bind("default", "p0", "n1")
            await eventually(lambda: "default/p0" in bound)
            await client.evict("default", "p1", grace_period_seconds=0)
            await client.delete(PODS, "p0", "default", grace_period_seconds=0)
            await eventually(lambda: "default/p1" not in everything and "default/p0" not in bound)
            lines = [line async for line in client.watch(PODS, resource_version=first.metadata.resource_version, timeout_seconds=1)]
            assert any(b'"DELETED"' in line for line in lines)
            assert len((await client.list(PODS, limit=2)).items) == 8
            await factory.stop()

    asyncio.run(main())


def test_leader_election_and_events(config: ClientConfig) -> None:
    async def main() -> None:
        async with Client(config) as client:

            async def lead(leadership: Leadership) -> None:
                await asyncio.sleep(0.5)
                assert leadership.held

            timing = Timing(2.0, 1.5, 0.2)
            for name in ("a", "b"):
                assert await LeaderElector(client, "default", "koord-test", name, timing=timing).run(lead) is True
            spec = (await client.get(LEASES, "koord-test", "default"))["spec"]
            assert not spec.get("holderIdentity")
            assert spec["leaseTransitions"] == 1
            recorder = EventRecorder(client, "koord-test", "host")
            for _ in range(3):
                recorder.event(ObjectRef("Pod", "p9", "default", "u"), "Warning", "FailedScheduling", "no room", action="Scheduling")
            await recorder.stop()
            assert (recorder.sent, recorder.dropped) == (3, 0)
            found = [item for item in (await client.list(EVENTS)).items if item["reason"] == "FailedScheduling"]
            assert [item["series"]["count"] for item in found] == [3]

    asyncio.run(main())


CONTAINERS = [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}, {"name": "b", "image": "1"}]
DELETE_X = {"$patch": "delete", "name": "X"}
STRATEGIC: list[dict[str, Any]] = [
    {"metadata": {"labels": {"x": "y"}, "finalizers": ["koord.test/b", "koord.test/a"]}},
    {"metadata": {"$deleteFromPrimitiveList/finalizers": ["koord.test/b"]}},
    {"metadata": {"labels": None, "finalizers": ["koord.test/c"], "$setElementOrder/finalizers": ["koord.test/c", "koord.test/a"]}},
    {"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "new", "image": "3"}]}}}},
    {
        "spec": {
            "template": {"spec": {"containers": [{"name": "a", "env": [{"name": "Z", "value": "3"}, {"$patch": "delete", "name": "X"}]}]}}
        }
    },
    {
        "spec": {
            "template": {
                "spec": {
                    "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}, {"name": "d"}],
                    "containers": [{"name": "b", "image": "5"}, {"name": "d", "image": "4"}],
                }
            }
        }
    },
    {"spec": {"template": {"spec": {"containers": [{"$patch": "delete", "name": "d"}], "nodeSelector": {"k": "v", "l": "w"}}}}},
    {
        "spec": {
            "template": {"spec": {"nodeSelector": {"$patch": "replace", "m": "x"}, "tolerations": [{"key": "t", "operator": "Exists"}]}}
        }
    },
    {"spec": {"template": {"spec": {"tolerations": [{"key": "u", "operator": "Exists"}]}}}},
    {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}},
    {"spec": {"template": {"spec": {"containers": [{"$patch": "replace"}, {"name": "z", "image": "9"}]}}}},
    {"metadata": {"finalizers": None}},
]


def bare(obj: dict[str, Any]) -> dict[str, Any]:
    """An object without what the server counts up by itself."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("resourceVersion", "generation", "managedFields")}
    return {**obj, "metadata": metadata}


def defaulted(expected: Any, actual: Any) -> bool:
    """Whether the server's answer is what we expected, but for members that it defaulted."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(key in actual and defaulted(value, actual[key]) for key, value in expected.items())
    if isinstance(expected, list):
        return isinstance(actual, list) and len(expected) == len(actual) and all(map(defaulted, expected, actual))
    return bool(expected == actual)


def test_strategic_patches_apply_as_the_server_applies_them(config: ClientConfig) -> None:
    async def main() -> None:
        async with Client(config) as client:
            template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": CONTAINERS}}
            spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
            body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
            current = await client.create(DEPLOYMENTS, body, "default")
            for change in STRATEGIC:
                wanted = patch.apply_strategic_patch(bare(current), change, DEPLOYMENTS)
                current = await client.patch(DEPLOYMENTS, "d", change, "default", type="strategic")
                got = bare(current)
                for empty in ("labels", "finalizers"):
                    if not wanted["metadata"].get(empty):
                        wanted["metadata"].pop(empty, None)
                assert defaulted(wanted, got), (change, wanted, got)

    asyncio.run(main())


def test_merge_and_json_patches_apply_as_the_server_applies_them(config: ClientConfig) -> None:
    async def main() -> None:
        async with Client(config) as client:
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1", "b/c": "2", "d~e": "3"}}
            body["data"] = {"a": "1", "b": "2"}
            current = await client.create(CONFIGMAPS, body, "default")
            goals = [{"a": "2", "c": "3"}, {"b": "x"}, {"x.y": "1", "b": "x"}]
            for goal in goals:
                new = {**current, "data": goal}
                current = await client.patch(CONFIGMAPS, "m", patch.diff_merge_patch(current, new), "default", type="merge")
                assert current["data"] == goal
            for goal in goals:
                new = {**current, "data": goal}
                current = await client.patch(CONFIGMAPS, "m", patch.diff_json_patch(current, new), "default", type="json")
                assert current["data"] == goal
            with pytest.raises(errors.ApiError):
                await client.patch(CONFIGMAPS, "m", [{"op": "test", "path": "/data/b", "value": "no"}], "default", type="json")

    asyncio.run(main())
