"""The CRDs at work in an API server: what is accepted, refused, defaulted, shown."""

from __future__ import annotations

import asyncio
import copy
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from koord.api import crdgen, kinds, nodeslo_defaults, objects
from koord.api.kinds import BY_KIND, Kind
from koord.apiserver.testing import RunningServer, running_server
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound
from tests.support import patience

Obj = dict[str, Any]
OBJECTS: list[Obj] = list(yaml.load_all((Path(__file__).parent / "objects.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader))
BY_NAME: dict[str, Obj] = {obj["kind"]: obj for obj in OBJECTS}
DEFINITIONS = {definition["metadata"]["name"]: definition for definition in crdgen.all_crds()}
CRDS = Path(__file__).resolve().parents[2] / "configs" / "crds"


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[RunningServer, Client]]:
    async with running_server(crds=True) as server:
        async with server.client() as client:
            yield server, client


def run(body: Callable[[RunningServer, Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with cluster() as (server, client):
            await body(server, client)

    asyncio.run(main())


def namespace_of(obj: Obj) -> str | None:
    found: str | None = obj["metadata"].get("namespace")
    return found


async def create(client: Client, obj: Obj) -> Obj:
    """Create an object, its status too, and return it as it is stored."""
    kind = BY_KIND[obj["kind"]]
    namespace, name = namespace_of(obj), obj["metadata"]["name"]
    made: Obj = await client.create(kind, copy.deepcopy(obj), namespace)
    if "status" in obj and kind.subresources:
        made = await client.patch(kind, name, {"status": obj["status"]}, namespace, subresource="status")
    return made


def lost(wanted: Any, got: Any, path: str = "") -> list[str]:
    """Paths of what is in `wanted` and not, or not equally, in `got`; null and absent are the same."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        return [where for name, value in wanted.items() if value is not None for where in lost(value, got.get(name), f"{path}.{name}")]
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return [where for i, value in enumerate(wanted) for where in lost(value, got[i], f"{path}[{i}]")]
    return [] if wanted == got else [path]


@pytest.mark.feature("API-CRD-02")
@pytest.mark.feature("API-NM-01")
@pytest.mark.feature("API-NSLO-01")
def test_full_objects_are_kept_whole() -> None:
    assert {obj["kind"] for obj in OBJECTS} == {kind.kind for kind in kinds.CUSTOM}

    async def body(_: RunningServer, client: Client) -> None:
        for obj in OBJECTS:
            stored = await create(client, obj)
            assert lost(obj, stored) == [], obj["kind"]
            objects.convert(stored, getattr(objects, obj["kind"]))

    run(body)


NETWORK_DEFAULTS = {"ingressRequest": 0, "ingressLimit": 100, "egressRequest": 0, "egressLimit": 100}
MINIMAL: list[tuple[str, Obj, Obj]] = [
    ("Reservation", {"spec": {"template": {}, "owners": [{}], "preAllocationPolicy": {}}, "status": {}},
     {"spec": {"ttl": "24h", "allocateOnce": True, "preAllocationPolicy": {"mode": "Default", "enableMultiple": False}}}),
    ("ScheduleExplanation", {"spec": {}}, {"spec": {"ttl": "24h"}}),
    ("Device", {"spec": {"devices": [{"type": "gpu"}]}}, {"spec": {"devices": [{"type": "gpu", "health": False}]}}),
    ("NodeSLO", {"spec": {"resourceQOSStrategy": {"beClass": {"networkQOS": {}, "blkioQOS": {"blocks": [{"ioCfg": {}}]}}}}},
     {"spec": {"resourceQOSStrategy": {"beClass": {"networkQOS": NETWORK_DEFAULTS,
                                                   "blkioQOS": {"blocks": [{"ioCfg": {"ioWeightPercent": 100}}]}}}}}),
]  # fmt: skip


@pytest.mark.feature("API-CRD-02")
def test_defaults_are_filled_in() -> None:
    async def body(_: RunningServer, client: Client) -> None:
        for name, asked, wanted in MINIMAL:
            kind = BY_KIND[name]
            obj = {"apiVersion": kind.api_version, "kind": name, "metadata": {"name": "least"}, **asked}
            stored = await client.create(kind, obj, "default" if kind.namespaced else None)
            assert lost(wanted, stored) == [], name
        held = await client.patch(kinds.RESERVATIONS, "least", {"status": {"nodeName": "n"}}, subresource="status")
        assert held["status"]["phase"] == "Pending"

    run(body)


def broken(kind: str, path: str, value: Any) -> tuple[str, str, Any]:
    return kind, path, value


BAD = [
    broken("ClusterColocationProfile", "spec.qosClass", "GOLD"),
    broken("ClusterColocationProfile", "spec.probability", 1.5),
    broken("ClusterColocationProfile", "spec.koordinatorPriority", "high"),
    broken("ClusterColocationProfile", "spec.labels", {"a": 1}),
    broken("NodeMetric", "spec.metricCollectPolicy.nodeMemoryCollectPolicy", "all"),
    broken("NodeMetric", "spec.metricCollectPolicy.reportIntervalSeconds", "60s"),
    broken("NodeSLO", "spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent", 101),
    broken("NodeSLO", "spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent", -1),
    broken("NodeSLO", "spec.cpuBurstStrategy.cpuBurstPercent", 10001),
    broken("NodeSLO", "spec.resourceQOSStrategy.lsClass.memoryQOS.wmarkMinAdj", 51),
    broken("NodeSLO", "spec.resourceQOSStrategy.lsClass.memoryQOS.wmarkScalePermill", 0),
    broken("NodeSLO", "spec.systemStrategy.totalNetworkBandwidth", "much"),
    broken("Reservation", "spec.owners", []),
    broken("Reservation", "spec.owners", None),
    broken("Reservation", "spec.template", None),
    broken("Reservation", "spec.allocatePolicy", "Default"),
    broken("Reservation", "spec.preAllocationPolicy.mode", "Node"),
    broken("Reservation", "spec.expires", "tomorrow"),
    broken("Reservation", "spec.taints", [{"key": "a"}]),
    broken("Reservation", "spec.owners", [{"controller": {"kind": "ReplicaSet"}}]),
    broken("Device", "spec.devices", [{"topology": {"socketID": 0}}]),
    broken("Device", "spec.devices", [{"conditions": [{"type": "Healthy", "status": "Yes", "reason": "r", "message": "m"}]}]),
    broken("Device", "spec.devices", [{"resources": {"koordinator.sh/gpu-core": "one"}}]),
    broken("PodMigrationJob", "spec.podRef", None),
    broken("ClusterNetworkTopology", "spec.networkTopologySpec", None),
    broken("ElasticQuota", "spec.max", {"cpu": "many"}),
    broken("PodGroup", "spec.minMember", "three"),
    broken("ElasticQuotaProfile", "spec.quotaName", None),
    broken("ElasticQuotaProfile", "spec.nodeSelector", None),
    broken("Recommendation", "spec.target", {}),
    broken("NodeResourceTopology", "topologyPolicies", None),
    broken("NodeResourceTopology", "zones", [{"name": "node-0"}]),
]  # fmt: skip


def spoilt(name: str, path: str, value: Any) -> Obj:
    """The good object of a kind with one field replaced, or taken out when the value is None."""
    obj = copy.deepcopy(BY_NAME[name])
    *parents, last = path.split(".")
    holder = obj
    for parent in parents:
        holder = holder[parent]
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return obj


@pytest.mark.feature("API-CRD-02")
def test_bad_objects_are_refused_by_field() -> None:
    async def body(_: RunningServer, client: Client) -> None:
        for name, path, value in BAD:
            obj = spoilt(name, path, value)
            kind = BY_KIND[name]
            with pytest.raises(ApiError) as caught:
                await client.create(kind, obj, namespace_of(obj))
            assert caught.value.status == 422, (name, path, value)
            assert path in caught.value.message, (name, path, caught.value.message)

    run(body)


@pytest.mark.feature("API-CRD-01")
def test_unknown_fields_are_pruned_and_free_ones_kept() -> None:
    async def body(_: RunningServer, client: Client) -> None:
        slo = copy.deepcopy(BY_NAME["NodeSLO"])
        slo["spec"]["whatever"] = 1
        stored = await client.create(kinds.NODESLOS, slo)
        assert "whatever" not in stored["spec"]
        assert stored["spec"]["extensions"] == slo["spec"]["extensions"]

    run(body)


@pytest.mark.feature("API-CRD-01")
def test_status_is_a_subresource_where_the_catalogue_says_so() -> None:
    async def body(_: RunningServer, client: Client) -> None:
        for obj in OBJECTS:
            if "status" not in obj:
                continue
            kind, namespace, name = BY_KIND[obj["kind"]], namespace_of(obj), obj["metadata"]["name"]
            made = await client.create(kind, copy.deepcopy(obj), namespace)
            assert ("status" in made) == (not kind.subresources), kind.kind
            patch = client.patch(kind, name, {"status": obj["status"]}, namespace, subresource="status")
            if kind.subresources:
                assert lost(obj["status"], (await patch)["status"]) == []
            else:
                with pytest.raises(NotFound):
                    await patch

    run(body)


@pytest.mark.feature("API-CRD-01")
def test_node_resource_topologies_are_the_same_in_both_versions() -> None:
    v1alpha2 = Kind("topology.node.k8s.io", "v1alpha2", "NodeResourceTopology", "noderesourcetopologies", False)

    async def body(_: RunningServer, client: Client) -> None:
        old = await client.create(kinds.NODERESOURCETOPOLOGIES, copy.deepcopy(BY_NAME["NodeResourceTopology"]))
        new = await client.get(v1alpha2, "node-0")
        assert (old["apiVersion"], new["apiVersion"]) == ("topology.node.k8s.io/v1alpha1", "topology.node.k8s.io/v1alpha2")
        assert new["zones"] == old["zones"]
        free = {
            "apiVersion": v1alpha2.api_version,
            "kind": "NodeResourceTopology",
            "metadata": {"name": "b"},
            "zones": [],
            "attributes": [{"name": "a", "value": "b"}],
        }
        assert (await client.create(v1alpha2, free))["attributes"] == [{"name": "a", "value": "b"}]

    run(body)


async def table(server: RunningServer, path: str) -> tuple[list[str], list[str]]:
    """Column names and the cells of the first row, as `kubectl get` asks for them."""
    headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io", "Authorization": f"Bearer {server.token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(server.url + path) as answer:
        shown = await answer.json()
    return [column["name"] for column in shown["columnDefinitions"]], [str(cell) for cell in shown["rows"][0]["cells"]]


@pytest.mark.feature("API-CRD-01")
@pytest.mark.feature("API-REC-01")
def test_columns() -> None:
    async def body(server: RunningServer, client: Client) -> None:
        for name, wanted in {
            "Reservation": {"Phase": "Available", "Node": "node-0", "TTL": "1h0m0s", "Expires": "2030-01-01T00:00:00Z"},
            "PodMigrationJob": {"Phase": "Running", "Status": "Evicting", "Node": "node-0", "Reservation": "held",
                                "PodNamespace": "default", "Pod": "web-0", "NewPod": "web-1", "TTL": "5m0s"},
            "Recommendation": {"Type": "workload", "Kind": "Deployment", "Name": "web"},
            "PodGroup": {"Phase": "Running", "MinMember": "3", "Scheduled": "3", "Running": "3"},
            "ClusterColocationProfile": {"QoS": "BE", "Priority Class": "koord-batch", "Probability": "30%"},
            "NodeMetric": {"CPU": "1500m", "Memory": "2Gi"},
            "NodeSLO": {"Suppression": "True", "Threshold": "65", "Policy": "cfsQuota"},
            "ElasticQuota": {"Min CPU": "10", "Max CPU": "40", "Used CPU": "500m"},
            "ElasticQuotaProfile": {"Quota": "tree-root", "Ratio": "0.9"},
            "ScheduleExplanation": {"Schedulable": "False", "Message": "no room"},
            "NodeResourceTopology": {"Policies": '["SingleNUMANodePodLevel"]'},
        }.items():  # fmt: skip
            obj = BY_NAME[name]
            await create(client, obj)
            columns, cells = await table(server, BY_KIND[name].path(namespace_of(obj)))
            # the object's own name comes first; Recommendation has a column of the same name behind it
            shown = dict(zip(columns[1:], cells[1:], strict=True))
            assert {column: shown[column] for column in wanted} == wanted, name
            assert "Age" in shown

    run(body)


@pytest.mark.feature("API-NSLO-01")
def test_the_default_strategies_are_valid_and_fresh() -> None:
    assert nodeslo_defaults.resource_threshold_strategy() == {
        "enable": False, "cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cpuset", "memoryEvictThresholdPercent": 70,
        "cpuEvictPolicy": "evictByRealLimit",
    }  # fmt: skip
    nodeslo_defaults.cpu_burst_strategy()["policy"] = "auto"
    assert nodeslo_defaults.cpu_burst_strategy()["policy"] == "none"
    recommended = nodeslo_defaults.recommended_resource_qos_strategy()
    assert recommended["beClass"]["cpuQOS"]["groupIdentity"] == -1
    assert recommended["beClass"]["resctrlQOS"]["catRangeEndPercent"] == 30
    assert recommended["lsrClass"]["memoryQOS"]["wmarkMinAdj"] == -25
    assert recommended["systemClass"] == nodeslo_defaults.resource_qos("NONE")
    assert list(recommended["cgroupRoot"]) == ["blkioQOS"]

    async def body(_: RunningServer, client: Client) -> None:
        strategies = {
            "resourceUsedThresholdWithBE": nodeslo_defaults.resource_threshold_strategy(),
            "resourceQOSStrategy": recommended,
            "cpuBurstStrategy": nodeslo_defaults.cpu_burst_strategy(),
            "systemStrategy": nodeslo_defaults.system_strategy(),
        }
        obj = {"apiVersion": kinds.NODESLOS.api_version, "kind": "NodeSLO", "metadata": {"name": "n"}, "spec": strategies}
        assert lost(strategies, (await client.create(kinds.NODESLOS, obj))["spec"]) == []

    run(body)


@pytest.mark.kubectl
@pytest.mark.feature("API-CRD-01")
def test_kubectl_applies_explains_and_lists() -> None:
    async def kubectl(server: RunningServer, *arguments: str) -> str:
        command = ["kubectl", "--kubeconfig", str(server.kubeconfig_path), *arguments]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=patience.seconds(60), check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def main() -> None:
        async with running_server() as server:
            assert (await kubectl(server, "apply", "-f", str(CRDS))).count("created") == 13
            assert (await kubectl(server, "apply", "-f", str(CRDS))).count("unchanged") == 13
            text = await kubectl(server, "explain", "nodemetric.status")
            assert "What Prod will need at most." in text
            path = Path(__file__).parent / "objects.yaml"
            assert (await kubectl(server, "apply", "-f", str(path))).count("created") == len(OBJECTS)
            for short in ("pmj", "recom", "eqp", "sched-exp", "node-res-topo"):
                assert len((await kubectl(server, "get", short, "--no-headers")).splitlines()) == 1

    asyncio.run(main())
