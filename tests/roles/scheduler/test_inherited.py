"""kube-scheduler's plugins and upstream's changes of pods and nodes, through the API server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from koord.api.kinds import NODES, PODS
from koord.kube.errors import Forbidden, NotFound, ServerError, Unreachable
from roles.scheduler.cluster.terms import Requirement
from roles.scheduler.cluster.tolerations import Toleration
from roles.scheduler.cluster.vocabulary import TaintKey

ZONE = "topology.kubernetes.io/zone"


def only(score: str, **args: Any) -> dict[str, Any]:
    """A profile with one score plugin, so that its preference alone decides."""
    config = [{"name": score, "args": args}] if args else []
    points = {"score": {"disabled": [{"name": "*"}], "enabled": [{"name": score}]}}
    return {"profiles": [{"schedulerName": "koord-scheduler", "plugins": points, "pluginConfig": config}]}


async def amounts(live: Any, node: str, **allocatable: str) -> None:
    names = {key.replace("__", "/").replace("_", "-"): value for key, value in allocatable.items()}
    await live.client.patch(NODES, node, {"status": {"capacity": names, "allocatable": names}}, subresource="status")


@pytest.mark.feature("SCH-KS-03")
def test_the_node_whose_balance_of_cpu_and_memory_gains_most_is_preferred(scheduler: Any) -> None:
    """Not the one that is balanced best in the end: "lean" gains some points, "even" is perfect before and after."""

    async def run() -> None:
        async with scheduler(only("NodeResourcesBalancedAllocation")) as live:
            await live.node("even", cpu="100", memory="6400Mi")
            await live.node("lean", cpu="8", memory="6400Mi")
            half = {"requests": {"cpu": "10m", "memory": "3200Mi"}}
            await live.pod("there", nodeName="lean", containers=[{"name": "c", "image": "i", "resources": half}])
            await live.pod("p", cpu="1")
            assert await live.bound("p") == "lean"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-03")
def test_balance_of_cpu_and_memory_is_kept(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(only("NodeResourcesBalancedAllocation")) as live:
            await live.node("cpu-rich", cpu="32", memory="1Gi")
            await live.node("even", cpu="4", memory="256Mi")
            await live.pod("p", cpu="1")  # with 64Mi: a quarter of both on "even"
            assert await live.bound("p") == "even"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-05")
def test_node_affinity_requires_and_prefers(scheduler: Any) -> None:
    def affinity(kind: str, *expressions: dict[str, Any]) -> dict[str, Any]:
        term = {"matchExpressions": list(expressions)}
        if kind == "required":
            return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference": term}]}}

    async def run() -> None:
        async with scheduler() as live:
            for name, zone, cores in (("a", "x", "8"), ("b", "y", "16"), ("c", "", "32")):
                await live.node(name, cpu="64", labels={"cores": cores, **({ZONE: zone} if zone else {})})
            cases = {
                "in": (affinity("required", {"key": ZONE, "operator": "In", "values": ["y", "z"]}), {"b"}),
                "absent": (affinity("required", {"key": ZONE, "operator": "DoesNotExist"}), {"c"}),
                "range": (affinity("required", {"key": "cores", "operator": "Gt", "values": ["8"]},
                                   {"key": "cores", "operator": "Lt", "values": ["32"]}), {"b"}),
                "not": (affinity("required", {"key": ZONE, "operator": "NotIn", "values": ["x"]},
                                 {"key": ZONE, "operator": "Exists"}), {"b"}),
                "prefer": (affinity("preferred", {"key": "cores", "operator": "In", "values": ["8"]}), {"a"}),
            }  # fmt: skip
            for name, (wanted, nodes) in cases.items():
                await live.pod(name, cpu="10m", affinity=wanted)
                assert await live.bound(name) in nodes, name
            field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]}
            pinned = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [field]}}}
            await live.pod("pinned", affinity=pinned)
            assert await live.bound("pinned") == "c"
            await live.pod("nowhere", nodeSelector={ZONE: "q"})
            said = (await live.refused("nowhere"))["message"]
            assert said.startswith("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.")
            await live.client.patch(NODES, "a", {"metadata": {"labels": {ZONE: "q"}}})
            assert await live.bound("nowhere") == "a"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-08")
def test_nodes_that_hold_the_image_are_preferred(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(only("ImageLocality")) as live:
            for name in ("without", "with"):
                await live.node(name)
            images = [{"names": ["registry.k8s.io/pause:3.9"], "sizeBytes": 900 << 20}]
            await live.client.patch(NODES, "with", {"status": {"images": images}}, subresource="status")
            await live.sees("with", lambda view: view.images)
            await live.sees("without", lambda view: True)
            for name in ("p", "q", "r"):
                await live.pod(name, cpu="10m")
                assert await live.bound(name) == "with"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-10")
def test_a_host_port_is_given_once_a_node(scheduler: Any) -> None:
    def serving(address: str, protocol: str = "TCP") -> list[dict[str, Any]]:
        port = {"containerPort": 80, "hostPort": 8080, "hostIP": address, "protocol": protocol}
        return [{"name": "main", "image": "x", "ports": [port]}]

    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await live.pod("first", containers=serving("127.0.0.1"))
            await live.bound("first")
            await live.pod("other-address", containers=serving("127.0.0.2"))
            await live.pod("other-protocol", containers=serving("127.0.0.1", "UDP"))
            assert [await live.bound(name) for name in ("other-address", "other-protocol")] == ["n", "n"]
            await live.pod("any-address", containers=serving("0.0.0.0"))
            said = (await live.refused("any-address"))["message"]
            assert said.startswith("0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.")
            for name in ("first", "other-address"):
                await live.client.delete(PODS, name, "default", grace_period_seconds=0)
            assert await live.bound("any-address") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-02")
@pytest.mark.parametrize(("shape", "winner"), [([(0, 0), (100, 10)], "small"), ([(0, 10), (100, 0)], "large")])
def test_requested_to_capacity_ratio_packs_or_spreads(scheduler: Any, shape: list[tuple[int, int]], winner: str) -> None:
    strategy = {
        "type": "RequestedToCapacityRatio", "resources": [{"name": "cpu", "weight": 1}],
        "requestedToCapacityRatio": {"shape": [{"utilization": u, "score": s} for u, s in shape]},
    }  # fmt: skip

    async def run() -> None:
        async with scheduler(only("NodeResourcesFit", scoringStrategy=strategy)) as live:
            await live.node("small", cpu="4")
            await live.node("large", cpu="16")
            await live.pod("p", cpu="2")
            assert await live.bound("p") == winner

    asyncio.run(run())


@pytest.mark.feature("SCH-NRV-01")
@pytest.mark.feature("SCH-NRV-02")
@pytest.mark.feature("SCH-FW-08")
def test_node_reservation_is_taken_off_and_old_resource_names_are_understood(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="4", annotations={"node.koordinator.sh/reservation": '{"resources": {"cpu": "3"}}'})
            await amounts(live, "n", cpu="4", memory="8Gi", pods="110", koordinator_sh__batch_cpu="2000")
            await live.pod("big", cpu="2")
            assert "1 Insufficient cpu" in (await live.refused("big"))["message"]
            await live.pod("fits", cpu="1")
            assert await live.bound("fits") == "n"
            old = {"koordinator.sh/batch-cpu": "1500"}
            batch = [{"name": "main", "image": "x", "resources": {"requests": old, "limits": old}}]
            await live.client.patch(NODES, "n", {"metadata": {"annotations": {"node.koordinator.sh/reservation": None}}})
            assert await live.bound("big") == "n"
            status = {"koordinator.sh/batch-cpu": "2000", "cpu": "4", "memory": "8Gi", "pods": "110"}
            await live.client.patch(NODES, "n", {"status": {"capacity": status, "allocatable": status}}, subresource="status")
            await live.pod("batch-1", containers=batch)
            assert await live.bound("batch-1") == "n"
            await live.pod("batch-2", containers=batch)
            assert "Insufficient kubernetes.io/batch-cpu" in (await live.refused("batch-2"))["message"]

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-08")
def test_gates_change_priority_policy_and_resources_of_pods(scheduler: Any) -> None:
    gates = {"PriorityTransformer": True, "PreemptionPolicyTransformer": True, "ReplaceResourcesTransformer": True}

    async def run() -> None:
        async with scheduler(gates=gates) as live:
            await live.node("n", cpu="2")
            rename = {"annotations": {"pod.koordinator.sh/replace-resources": "cpu:example.com/milli,memory:"}}
            await live.pod("renamed", cpu="1500m", meta=rename)
            assert "Insufficient example.com/milli" in (await live.refused("renamed"))["message"]
            entry = live.app.queue.get((await live.get("renamed"))["metadata"]["uid"])
            assert entry.pod.shape.amounts == {"example.com/milli": 1500}
            low = {"labels": {"koordinator.sh/priority-class": "koord-batch"}}
            await live.pod("low", cpu="2", meta=low, terminationGracePeriodSeconds=0)
            await live.bound("low")
            high = {"koordinator.sh/priority-class": "koord-prod"}
            await live.pod("polite", cpu="2", meta={"labels": high})
            assert "preemptionPolicy=Never" in (await live.refused("polite"))["message"]
            policy = {"scheduling.koordinator.sh/preemption-policy": "PreemptLowerPriority"}
            await live.pod("rude", cpu="2", meta={"labels": {**high, **policy}})
            assert await live.bound("rude") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-11")
@pytest.mark.parametrize("gate", [True, False])
def test_nominations_of_other_schedulers_count_if_they_are_higher(scheduler: Any, gate: bool) -> None:
    from koord.api.kinds import PRIORITYCLASSES

    async def run() -> None:
        async with scheduler(gates={"CrossSchedulerNomination": gate}) as live:
            await live.node("n", cpu="2")
            for name, value in (("high", 1000), ("low", 1)):
                body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
                await live.client.create(PRIORITYCLASSES, body)
            await live.pod("theirs", cpu="2", scheduler="another", priorityClassName="high")
            await live.client.patch(PODS, "theirs", {"status": {"nominatedNodeName": "n"}}, "default", subresource="status")
            await asyncio.sleep(0.2)
            await live.pod("ours", cpu="2", priorityClassName="low")
            if not gate:
                assert await live.bound("ours") == "n"
                return
            assert "1 Insufficient cpu" in (await live.refused("ours"))["message"]
            await live.client.patch(PODS, "theirs", {"status": {"nominatedNodeName": None}}, "default", subresource="status")
            await asyncio.sleep(0.1)
            await live.node("wake-up", cpu="100m")
            await live.pod("same", cpu="10m", priorityClassName="high")
            await live.bound("same")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-11")
@pytest.mark.parametrize("how", ["deleted", "taken back"])
def test_room_that_was_kept_for_a_nominated_pod_wakes_who_waits_when_it_is_given_up(scheduler: Any, how: str) -> None:
    """Nobody else leaves and no node changes: without an event the pod would wait until the unschedulable ones are looked at again."""
    from koord.api.kinds import PRIORITYCLASSES

    async def run() -> None:
        async with scheduler(gates={"CrossSchedulerNomination": True}) as live:
            await live.node("n", cpu="2")
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
            await live.client.create(PRIORITYCLASSES, body)
            await live.pod("theirs", cpu="2", scheduler="another", priorityClassName="high")
            await live.client.patch(PODS, "theirs", {"status": {"nominatedNodeName": "n"}}, "default", subresource="status")
            await asyncio.sleep(0.2)
            await live.pod("ours", cpu="2")
            assert "1 Insufficient cpu" in (await live.refused("ours"))["message"]
            if how == "deleted":
                await live.client.delete(PODS, "theirs", "default", options={"gracePeriodSeconds": 0})
            else:
                await live.client.patch(PODS, "theirs", {"status": {"nominatedNodeName": None}}, "default", subresource="status")
            assert await live.bound("ours") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.parametrize("how", ["room is made elsewhere", "placed elsewhere", "bound elsewhere", "moved", "on its way out"])
def test_room_that_was_kept_on_another_node_wakes_who_waits(scheduler: Any, how: str) -> None:
    """The leader before nominated a pod to a node on which it cannot be, or it goes somewhere else; nobody leaves and no node changes."""
    from koord.api.kinds import PRIORITYCLASSES

    async def run() -> None:
        async with scheduler(gates={"CrossSchedulerNomination": True}) as live:
            await live.node("n", cpu="2")
            await live.node("m", cpu="2", taints=[{"key": "m", "effect": "NoSchedule"}], labels={"zone": "m"})
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
            await live.client.create(PRIORITYCLASSES, body)
            there: dict[str, Any] = {"tolerations": [{"key": "m", "operator": "Exists"}], "nodeSelector": {"zone": "m"}}
            hold = {"finalizers": ["example.com/hold"]}
            if how == "room is made elsewhere":
                await live.pod("victim", cpu="2", meta=hold, **there)
                assert await live.bound("victim") == "m"
            theirs = how == "bound elsewhere"
            there |= {"priorityClassName": "high", "schedulingGates": [] if theirs else [{"name": "closed"}]}
            meta, who = hold if how == "on its way out" else {}, "another" if theirs else "koord-scheduler"
            await live.pod("high", cpu="2", meta=meta, scheduler=who, **there)
            await live.client.patch(PODS, "high", {"status": {"nominatedNodeName": "n"}}, "default", subresource="status")
            await asyncio.sleep(0.2)
            await live.pod("low", cpu="2")
            assert "Insufficient cpu" in (await live.refused("low"))["message"]
            if how == "on its way out":
                await live.client.delete(PODS, "high", "default", options={"gracePeriodSeconds": 0})
            elif how == "moved":
                await live.client.patch(PODS, "high", {"status": {"nominatedNodeName": "m"}}, "default", subresource="status")
            elif theirs:
                await live.client.bind("default", "high", "m")
            else:
                await live.client.patch(PODS, "high", {"spec": {"schedulingGates": None}}, "default")
            assert await live.bound("low") == "n"
            for name in ("victim", "high"):
                with contextlib.suppress(NotFound):
                    await live.client.patch(PODS, name, {"metadata": {"finalizers": None}}, "default")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-03")
def test_a_new_leader_waits_at_the_barrier(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            from roles.scheduler.observing import barrier

            await live.pod("barrier", scheduler="nobody")
            found = barrier.Barrier("default", "barrier", 5.0)
            assert await barrier.wait(found, live.client, live.app.observer.pods, "koord-scheduler")
            seen = live.app.observer.pods.get("default/barrier")
            assert "scheduling.koordinator.sh/sync-barrier-koord-scheduler" in seen.metadata.annotations
            missing = barrier.Barrier("default", "nothing", 5.0)
            assert not await barrier.wait(missing, live.client, live.app.observer.pods, "koord-scheduler")
            # An API server that does not answer ends no new leader.
            failures = [Unreachable("restarting"), ServerError(500, "InternalError", "no")]
            patch = live.client.patch

            async def failing(*args: Any, **more: Any) -> Any:
                if failures:
                    raise failures.pop()
                return await patch(*args, **more)

            live.client.patch = failing
            assert await barrier.wait(found, live.client, live.app.observer.pods, "koord-scheduler")
            failures.extend([Forbidden(403, "Forbidden", "no")] * 1000)
            short = barrier.Barrier("default", "barrier", 0.2)
            assert not await barrier.wait(short, live.client, live.app.observer.pods, "koord-scheduler")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-04")
def test_nothing_is_scheduled_before_all_caches_are_full(scheduler: Any) -> None:
    """Pods on nodes, nodes and a pending pod were there before the scheduler: the one node with room must be found at once."""

    async def fill(objects: Any) -> None:
        for number in range(30):
            await objects.node(f"n{number}", cpu="1")
        await objects.pod("waiting")
        for number in range(30):
            if number != 17:
                await objects.pod(f"full-{number}", nodeName=f"n{number}")

    async def run() -> None:
        async with scheduler(before=fill) as live:
            assert await live.bound("waiting") == "n17"
            assert live.app.engine.cluster.pod_count == 30
            assert live.app.queue.counts()["unschedulable"] == 0

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
@pytest.mark.feature("SCH-KS-07")
def test_a_node_that_goes_brings_back_a_pod_that_had_to_spread(scheduler: Any) -> None:
    """The emptiest zone sets what the others may take; with its last node it sets nothing any more."""

    async def run() -> None:
        async with scheduler() as live:
            for name, zone in (("a", "1"), ("b", "2")):
                await live.node(name, labels={"zone": zone, "kubernetes.io/hostname": name}, cpu="4" if name == "a" else "100m")
            select = {"matchLabels": {"app": "x"}}
            constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": select}
            for number in range(2):
                await live.pod(f"p{number}", cpu="1", meta={"labels": {"app": "x"}}, topologySpreadConstraints=[constraint])
                if not number:
                    await live.bound("p0")
            assert "didn't match pod topology spread constraints" in (await live.refused("p1"))["message"]
            await live.client.delete(NODES, "b")
            assert await live.bound("p1") == "a"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-13")
def test_pods_go_where_the_features_that_they_need_are_declared(scheduler: Any) -> None:
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]
    restarting = [{"name": "main", "image": "x", "restartPolicy": "Never", "restartPolicyRules": rules}]
    needs: dict[str, dict[str, Any]] = {
        "RestartAllContainersOnContainerExits": {"containers": restarting},
        "UserNamespacesHostNetworkSupport": {"hostNetwork": True, "hostUsers": False},
    }

    async def run() -> None:
        async with scheduler() as live:
            await live.node("old")
            for feature, spec in needs.items():
                name = feature[:4].lower()
                await live.pod(name, **spec)
                said = (await live.refused(name))["message"]
                assert said.startswith("0/1 nodes are available: 1 node(s) didn't match Pod's required features.")
            await live.pod("plain", hostNetwork=True)
            assert await live.bound("plain") == "old"
            for feature in needs:
                await live.node(f"declares-{feature.lower()}")
                await live.client.patch(
                    NODES, f"declares-{feature.lower()}", {"status": {"declaredFeatures": [feature, "Another"]}}, subresource="status"
                )
            for feature in needs:
                assert await live.bound(feature[:4].lower()) == f"declares-{feature.lower()}"

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-05")
@pytest.mark.parametrize(("text", "above"), [("6", True), ("+6", True), ("5", False), ("-6", False), ("1_0", False), ("9" * 30, False)])
def test_gt_compares_whole_numbers_of_64_bits_and_nothing_else(text: str, above: bool) -> None:
    assert Requirement("key", "Gt", ("5",)).matches({"key": text}) is above
    assert Requirement("key", "Lt", (text,)).matches({"key": "5"}) is above
    assert Toleration("key", "Gt", "5", "").tolerates(TaintKey("key", text, "NoSchedule")) is above
