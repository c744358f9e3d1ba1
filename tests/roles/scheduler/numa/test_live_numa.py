"""NodeNUMAResource through the API server: topologies and pods in, CPU sets on pods and Reservations out."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from koord.api import names
from koord.api.kinds import NODERESOURCETOPOLOGIES, NODES, PODS, PRIORITYCLASSES, RESERVATIONS
from tests.support import patience
from tests.support.numa import LSR, nrt

Obj = dict[str, Any]

OWNER = {"app": "owner"}


def enabled(*plugins: str) -> Obj:
    return {"enabled": [{"name": name} for name in plugins]}


def config(**args: Any) -> Obj:
    """The shipped order of NodeNUMAResource and Reservation."""
    plugins: Obj = {point: enabled("Reservation", "NodeNUMAResource") for point in ("preFilter", "filter")}
    plugins |= {
        "postFilter": {"disabled": [{"name": "*"}], **enabled("Reservation", "DefaultPreemption")}, "preScore": enabled("Reservation"),
        "score": {"enabled": [{"name": "NodeNUMAResource"}, {"name": "Reservation", "weight": 5000}]},
        "reserve": enabled("NodeNUMAResource", "Reservation"), "preBind": enabled("NodeNUMAResource", "Reservation", "DefaultPreBind"),
        "bind": {"disabled": [{"name": "*"}], **enabled("Reservation", "DefaultBinder")},
    }  # fmt: skip
    return {"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins,
                          "pluginConfig": [{"name": "NodeNUMAResource", "args": args}]}]}  # fmt: skip


class Numa:
    """Short ways to make machines and bound pods."""

    def __init__(self, live: Any) -> None:
        self.live = live

    async def machine(self, name: str = "n", *, labels: Obj | None = None, allocatable: str = "16", **topology: Any) -> None:
        await self.live.node(name, cpu=allocatable, memory="64Gi", labels={"kubernetes.io/hostname": name, **(labels or {})})
        await self.report(name, **topology)

    async def report(self, name: str = "n", **topology: Any) -> None:
        await self.live.client.create(NODERESOURCETOPOLOGIES, nrt(name, **{"sockets": 2, "nodes": 1, **topology}))

    async def pod(self, name: str, *, cpu: str = "4", labels: Obj | None = None, spec: Obj | None = None, node: str = "", cpus: str = "",
                  annotations: Obj | None = None, **more: Any) -> None:  # fmt: skip
        notes = dict(annotations or {})
        if spec is not None:
            notes[names.ANNOTATION_RESOURCE_SPEC] = orjson.dumps(spec).decode()
        if cpus:
            notes[names.ANNOTATION_RESOURCE_STATUS] = orjson.dumps({"cpuset": cpus}).decode()
        if node:
            more["nodeName"] = node
        await self.live.pod(name, cpu=cpu, meta={"labels": LSR if labels is None else labels, "annotations": notes}, **more)

    async def status(self, name: str) -> Obj:
        await self.live.bound(name)
        text = (await self.live.get(name))["metadata"].get("annotations", {}).get(names.ANNOTATION_RESOURCE_STATUS)
        return dict(orjson.loads(text)) if text else {}

    async def cpus(self, name: str, **pod: Any) -> str:
        """Create a pod and wait for the CPUs it gets."""
        await self.pod(name, **pod)
        return str((await self.status(name)).get("cpuset", ""))

    async def refusal(self, name: str, **pod: Any) -> str:
        await self.pod(name, **pod)
        return str((await self.live.refused(name))["message"])

    async def reservation(self, name: str, *, cpu: str, policy: str = "Aligned", labels: Obj | None = None,
                          annotations: Obj | None = None, **spec: Any) -> str:  # fmt: skip
        """Make a Reservation of an LSR pod and wait for the CPUs it holds."""
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
        template = {
            "metadata": {"labels": LSR if labels is None else labels, "annotations": annotations or {}},
            "spec": {"schedulerName": "koord-scheduler", "containers": [container]},
        }
        body = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation", "metadata": {"name": name},
            "spec": {"template": template, "owners": [{"labelSelector": {"matchLabels": OWNER}}], "ttl": "24h", "allocateOnce": False,
                     "allocatePolicy": policy, **spec},
        }  # fmt: skip
        await self.live.client.create(RESERVATIONS, body)
        for _ in patience.tries(400):
            found = await self.live.client.get(RESERVATIONS, name)
            if found.get("status", {}).get("phase") == "Available":
                text = found["metadata"].get("annotations", {}).get(names.ANNOTATION_RESOURCE_STATUS)
                return str(orjson.loads(text)["cpuset"]) if text else ""
            await asyncio.sleep(0.02)
        raise AssertionError(f"reservation {name} never became available: {found.get('status')}")


def affinity() -> Obj:
    return {names.ANNOTATION_RESERVATION_AFFINITY: "{}"}


def cpu_list(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.feature("SCH-NUMA-01")
@pytest.mark.feature("SCH-NUMA-03")
@pytest.mark.feature("SCH-NUMA-11")
def test_a_bound_pod_carries_its_cpus_and_the_policy_it_got(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine()
            assert await numa.cpus("whole") == "0-3"
            pod = await live.get("whole")
            assert orjson.loads(pod["metadata"]["annotations"][names.ANNOTATION_RESOURCE_SPEC]) == {"preferredCPUBindPolicy": "FullPCPUs"}
            assert await numa.cpus("spread", spec={"requiredCPUBindPolicy": "SpreadByPCPUs"}) == "8,10,12,14"
            assert await numa.cpus("shared", labels={"koordinator.sh/qosClass": "LS"}) == ""
            assert "the requested CPUs must be integer" in await numa.refusal("part", cpu="1500m")
            await numa.pod("broken", annotations={names.ANNOTATION_RESOURCE_SPEC: "{"})
            condition = await live.refused("broken")
            assert condition["reason"] == "SchedulerError"
            assert names.ANNOTATION_RESOURCE_SPEC in condition["message"]

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-02")
@pytest.mark.feature("SCH-NUMA-11")
def test_a_policy_that_the_kubelet_demands_is_written_beside_the_one_that_the_pod_prefers(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            kubelet = {"policy": "static", "options": {"full-pcpus-only": "true"}}
            await numa.machine(annotations={names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: kubelet})
            assert await numa.cpus("p", spec={"preferredCPUBindPolicy": "SpreadByPCPUs"}) == "0-3"
            pod = await live.get("p")
            assert orjson.loads(pod["metadata"]["annotations"][names.ANNOTATION_RESOURCE_SPEC]) == {
                "requiredCPUBindPolicy": "FullPCPUs", "preferredCPUBindPolicy": "SpreadByPCPUs",
            }  # fmt: skip

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-11")
def test_a_reservation_shows_the_bind_policy_of_its_template(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine(allocatable="64")
            spec = {"preferredCPUBindPolicy": "SpreadByPCPUs"}
            await numa.reservation("r", cpu="4", annotations={names.ANNOTATION_RESOURCE_SPEC: orjson.dumps(spec).decode()})
            notes = (await live.client.get(RESERVATIONS, "r"))["metadata"]["annotations"]
            assert orjson.loads(notes[names.ANNOTATION_RESOURCE_SPEC]) == spec

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-11")
@pytest.mark.feature("SCH-NUMA-10")
def test_what_pods_hold_is_known_after_a_restart_and_before_the_topology_is(scheduler: Any) -> None:
    async def run() -> None:
        async def before(objects: Any) -> None:
            numa = Numa(objects)
            await objects.node("n", cpu="16", memory="64Gi")
            await numa.pod("old", node="n", cpus="0-3")

        async with scheduler(config(), crds=True, before=before) as live:
            numa = Numa(live)
            assert "node(s) invalid CPU Topology" in await numa.refusal("new")
            await numa.report(annotations={names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: {"policy": "none", "reservedCPUs": "8-9"}})
            assert (await numa.status("new"))["cpuset"] == "10-13"  # it came back by itself
            await live.client.delete(PODS, "old", "default", grace_period_seconds=0)
            assert await numa.cpus("next", cpu="8") == "0-7"

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-02")
@pytest.mark.feature("SCH-NUMA-06")
@pytest.mark.feature("SCH-NUMA-08")
def test_policies_of_nodes_apply_to_everybody_as_soon_as_they_are_set(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine(labels={names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"})
            await numa.pod("one", cpu="6", labels={})
            assert await numa.status("one") == {"numaNodeResources": [{"node": 0, "resources": {"cpu": "6", "memory": "64Mi"}}]}
            assert "1 Unaligned NUMA Hint cause cpu prefer [" in await numa.refusal("wide", cpu="10", labels={})
            labels = {names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "Restricted", names.LABEL_NODE_CPU_BIND_POLICY: "FullPCPUsOnly"}
            await live.client.patch(NODES, "n", {"metadata": {"labels": labels}})
            status = await numa.status("wide")
            assert status["cpuset"] == "0-1,8-15"
            assert [part["resources"]["cpu"] for part in status["numaNodeResources"]] == ["2", "8"]

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-13")
def test_owners_get_the_cpus_of_their_reservation_and_others_do_not(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine(allocatable="64")
            held = cpu_list(await numa.reservation("r", cpu="8"))
            assert held == set(range(8))
            stranger = cpu_list(await numa.cpus("stranger", cpu="4"))
            first = cpu_list(await numa.cpus("first", cpu="4", labels={**LSR, **OWNER}, annotations=affinity()))
            second = cpu_list(await numa.cpus("second", cpu="2", labels={**LSR, **OWNER}))
            assert stranger == {8, 9, 10, 11}
            assert first | second <= held
            assert not first & second
            # An Aligned reservation is completed from the node; what is left of it stays closed to others.
            third = cpu_list(await numa.cpus("third", cpu="4", labels={**LSR, **OWNER}, annotations=affinity()))
            assert held <= first | second | third
            assert len(third - held) == 2
            assert "not enough cpus" in await numa.refusal("late", cpu="4")
            await live.client.delete(RESERVATIONS, "r")
            for name in ("first", "second"):
                assert await live.bound(name) == "n"
            await live.client.delete(PODS, "first", "default", grace_period_seconds=0)
            assert cpu_list((await numa.status("late"))["cpuset"]).isdisjoint(second | third | stranger)

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-13")
def test_a_restricted_reservation_gives_only_its_own_cpus(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine()
            held = cpu_list(await numa.reservation("r", cpu="4", policy="Restricted"))
            owner = {"labels": {**LSR, **OWNER}, "annotations": affinity()}
            assert cpu_list(await numa.cpus("fits", cpu="2", **owner)) <= held
            assert "Reservation(s)" in await numa.refusal("big", cpu="3", **owner)
            assert cpu_list(await numa.cpus("rest", cpu="2", **owner)) <= held

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-13")
@pytest.mark.feature("SCH-NUMA-07")
def test_under_a_numa_policy_owners_go_where_their_reservation_is(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine(labels={names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"}, allocatable="64")
            held = cpu_list(await numa.reservation("r", cpu="4"))
            assert held == {0, 1, 2, 3}
            await numa.pod("neighbour", cpu="3500m", labels={})
            assert [part["node"] for part in (await numa.status("neighbour"))["numaNodeResources"]] == [1]
            await numa.pod("crowd", cpu="2500m", labels={}, nodeSelector={"kubernetes.io/hostname": "n"})
            assert [part["node"] for part in (await numa.status("crowd"))["numaNodeResources"]] == [1]
            owner = cpu_list(await numa.cpus("owner", cpu="4", labels={**LSR, **OWNER}))
            assert owner == held
            status = await numa.status("owner")
            assert [(part["node"], part["resources"]["cpu"]) for part in status["numaNodeResources"]] == [(0, "4")]
            # What the owner has inside the reservation counts once: 4 CPUs are left beside it.
            await numa.pod("beside", cpu="4", labels={})
            assert [part["node"] for part in (await numa.status("beside"))["numaNodeResources"]] == [0]
            assert "Unsatisfied NUMA cpu" in await numa.refusal("late", cpu="2500m", labels={})

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-13")
def test_a_pod_that_fits_no_reservation_takes_nothing_out_of_them(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine(allocatable="64")
            held = cpu_list(await numa.reservation("r", cpu="4", policy="Restricted"))
            # Bigger than what the reservation gives, so out of the node, which has 12 CPUs beside it.
            beside = cpu_list(await numa.cpus("beside", cpu="8", labels={**LSR, **OWNER}))
            assert beside.isdisjoint(held)
            assert "not enough cpus" in await numa.refusal("none", cpu="6", labels={**LSR, **OWNER})
            assert cpu_list(await numa.cpus("inside", cpu="4", labels={**LSR, **OWNER})) == held

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-13")
def test_reservation_ignored_pods_use_what_is_left_in_reservations(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine(allocatable="64")
            held = cpu_list(await numa.reservation("r", cpu="8"))
            first = cpu_list(await numa.cpus("owner", cpu="2", labels={**LSR, **OWNER}))
            taken = cpu_list(await numa.cpus("other", cpu="8"))
            assert first <= held
            assert taken.isdisjoint(held)
            assert "not enough cpus" in await numa.refusal("plain", cpu="2")
            ignoring = {**LSR, names.LABEL_POD_RESERVATION_IGNORED: "true"}
            assert cpu_list(await numa.cpus("ignoring", cpu="6", labels=ignoring)) == held - first

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-13")
def test_a_reservation_that_takes_a_pod_over_gets_its_cpus_among_its_own(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine()
            await numa.pod("running", cpu="4", labels={**LSR, **OWNER}, node="n", cpus="5-8")
            await numa.pod("other", cpu="4", node="n", cpus="0-3")
            held = cpu_list(await numa.reservation("r", cpu="6", policy="Restricted", preAllocation=True))
            assert len(held) == 6
            assert {5, 6, 7, 8} <= held
            assert held.isdisjoint({0, 1, 2, 3})

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-13")
def test_preemption_makes_room_for_bound_cpus(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine()
            for name, priority in (("a", 9000), ("b", 9001), ("c", 9002), ("urgent", 9500)):
                body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": priority}
                await live.client.create(PRIORITYCLASSES, body)
            for name in ("a", "b", "c"):
                await numa.pod(name, cpu="4", priorityClassName=name, terminationGracePeriodSeconds=0)
                await numa.status(name)
            before = (await numa.status("a"))["cpuset"]
            await numa.pod("urgent", cpu="8", priorityClassName="urgent")
            for _ in patience.tries(200):
                if not [p for p in (await live.client.list(PODS, "default")).items if p["metadata"]["name"] == "a"]:
                    break
                await asyncio.sleep(0.02)
            got = cpu_list((await numa.status("urgent"))["cpuset"])
            kept = cpu_list((await numa.status("b"))["cpuset"]) | cpu_list((await numa.status("c"))["cpuset"])
            assert got.isdisjoint(kept)
            assert cpu_list(before) <= got

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-14")
def test_the_debug_page_shows_a_node(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(config(), crds=True) as live, aiohttp.ClientSession() as session:
            numa = Numa(live)
            await numa.machine(annotations={names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: {"policy": "none", "reservedCPUs": "0-1"}})
            await live.node("bare")
            assert await numa.cpus("p", cpu="2") == "8-9"
            base = f"http://127.0.0.1:{live.ops.port}/apis/v1/plugins/NodeNUMAResource/nodes"
            page: Obj = {}
            for _ in patience.tries(100):
                async with session.get(f"{base}/n") as answer:
                    assert answer.status == 200
                    page = await answer.json()
                if page["allocatedPods"]:
                    break
                await asyncio.sleep(0.02)
            assert (page["name"], page["reservedCPUs"], page["availableCPUs"], page["allocatedCPUs"]) == ("n", "0-1", "2-7,10-15", "8-9")
            assert (page["policy"], page["numaTopologyPolicy"], page["maxRefCount"]) == ("None", "", 1)
            assert page["cpuTopology"]["numCPUs"] == 16
            assert [zone["resources"]["cpu"] for zone in page["numaNodeResources"]] == ["6", "8"]
            assert [zone["resources"]["cpu"] for zone in page["remainingNUMANodeResources"]] == ["6", "6"]
            assert [(pod["name"], pod["cpuset"]) for pod in page["allocatedPods"]] == [("p", "8-9")]
            for name in ("bare", "unknown"):
                async with session.get(f"{base}/{name}") as answer:
                    assert answer.status == 500

    asyncio.run(run())


@pytest.mark.feature("SCH-NUMA-03")
def test_a_numa_node_that_a_nominated_pod_waits_for_is_nobody_elses(scheduler: Any) -> None:
    """A pod of lower priority gets the other one. It would be the next victim."""

    async def run() -> None:
        async with scheduler(config(numaScoringStrategy={"type": "LeastAllocated"}), crds=True) as live:
            numa = Numa(live)
            for name, value in (("low", 1), ("high", 9500)):
                await live.client.create(PRIORITYCLASSES, {"metadata": {"name": name}, "value": value})
            await numa.machine(allocatable="32", cores=8, policy="SingleNUMANodePodLevel")
            shared: Obj = {"labels": {"koordinator.sh/qosClass": "LS"}}
            low: Obj = {**shared, "priorityClassName": "low", "terminationGracePeriodSeconds": 60}
            await numa.pod("victim", cpu="6", **low)
            await live.bound("victim")
            await numa.pod("keeps", cpu="6", **shared, priorityClassName="high")
            await live.bound("keeps")
            await numa.pod("waits", cpu="12", **shared, priorityClassName="high")
            await live.until("waits", lambda pod: pod["status"].get("nominatedNodeName"))
            await numa.pod("small", cpu="6", **low)
            await live.bound("small")
            await live.client.delete(PODS, "victim", "default", grace_period_seconds=0)
            assert await live.bound("waits") == "n"
            assert "deletionTimestamp" not in (await live.get("small"))["metadata"]

    asyncio.run(run())
