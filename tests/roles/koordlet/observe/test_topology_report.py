"""NodeResourceTopology: CPU pools, reservations, kubelet policy, zones (KLO-SI-05)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.cpuset import CPUSet
from koord.api import names
from koord.api.kinds import NODERESOURCETOPOLOGIES, NODES
from koord.kube.errors import Forbidden
from roles.koordlet.host.topology import CPU, make_topology
from roles.koordlet.report.packing import PackingError, take_packed
from roles.koordlet.report.zones import merge_zones

LS_POOL, BE_POOL = names.ANNOTATION_NRT_CPU_SHARED_POOLS, names.ANNOTATION_NRT_BE_CPU_SHARED_POOLS
POLICY = names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY
ALLOCS = names.ANNOTATION_NRT_POD_CPU_ALLOCS


@pytest.fixture
def run(agent, kubelet, make_node, world) -> Callable[..., None]:
    def start(story: Callable[[Any], Awaitable[None]], *, node: dict[str, Any] | None = None, **options: Any) -> None:
        async def main() -> None:
            options.setdefault("sockets", 2)
            options.setdefault("cores", 4)
            options.setdefault("threads", 2)
            async with world(agent, kubelet, node or make_node(), **options) as w:
                w.agent.tick()
                w.agent.pod_cache.confirmed = True
                await story(w)

        asyncio.run(main())

    return start


def pinned(cpus: str, qos: str) -> dict[str, Any]:
    return {
        "labels": {"koordinator.sh/qosClass": qos} if qos else {},
        "annotations": {names.ANNOTATION_RESOURCE_STATUS: orjson.dumps({"cpuset": cpus}).decode()},
        "requests": {"cpu": str(len(CPUSet.parse(cpus)))},
        "qos": "Guaranteed",
    }


@pytest.mark.feature("KLO-SI-05")
class TestObject:
    def test_created_filled_and_then_left_alone(self, run) -> None:
        async def story(w) -> None:
            made = await w.nrt()
            assert made["topologyPolicies"] == ["None"]
            assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Koordinator"
            owner = made["metadata"]["ownerReferences"][0]
            assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", "n1", True)
            annotations = {k: orjson.loads(v) for k, v in made["metadata"]["annotations"].items()}
            assert annotations[names.ANNOTATION_NRT_CPU_TOPOLOGY]["detail"][12] == {"id": 12, "core": 4, "socket": 1, "node": 1}
            assert annotations[LS_POOL] == [
                {"socket": 0, "node": 0, "cpuset": "0-3,8-11"},
                {"socket": 1, "node": 1, "cpuset": "4-7,12-15"},
            ]
            assert annotations[POLICY] == {"policy": "none"}
            assert annotations[ALLOCS] is None
            assert [z["name"] for z in made["zones"]] == ["node-0", "node-1"]
            assert {r["name"]: r["capacity"] for r in made["zones"][0]["resources"]} == {
                "cpu": "8",
                "hugepages-1Gi": "0",
                "hugepages-2Mi": "0",
                "memory": "4Gi",
            }
            again = await w.nrt()
            assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

        run(story)

    def test_nothing_is_told_before_the_kubelet_named_a_pod(self, run, make_pod) -> None:
        """A kubelet that has just started lists none: pools without the CPUs of its LSR pods would be given to others."""

        async def story(w) -> None:
            w.agent.pod_cache.confirmed = False
            await w.topology.step()
            assert (await w.client.list(NODERESOURCETOPOLOGIES)).items == []
            assert orjson.loads(w.state.local_topology.annotations[LS_POOL])[0]["cpuset"] == "0-3,8-11", "for this machine's own use"
            w.agent.list(make_pod("lsr", "u-1", **pinned("0,8", "LSR")))
            assert (await w.annotation(LS_POOL))[0]["cpuset"] == "1-3,9-11"

        run(story)

    def test_this_machine_knows_its_pools_while_the_object_cannot_be_made(self, run, make_pod, monkeypatch, caplog) -> None:
        async def story(w) -> None:
            async def refuse(*_: Any) -> Any:
                raise Forbidden(403, "Forbidden", "no room")

            with monkeypatch.context() as patched:
                patched.setattr(w.client, "create", refuse)
                w.agent.list(make_pod("lsr", "u-1", **pinned("0,8", "LSR")))
                for w.kubelet.status in (500, 500, 200):
                    await w.topology.step()
            assert orjson.loads(w.state.topology.annotations[LS_POOL])[0]["cpuset"] == "1-3,9-11"
            assert caplog.text.count("it cannot be created") == 1, "once, whatever else fails beside it"
            assert (await w.annotation(LS_POOL))[0]["cpuset"] == "1-3,9-11"

        run(story)

    @pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "changed"])
    def test_what_the_watch_tells_before_the_answer_to_a_write_counts(self, run, make_pod, monkeypatch, deleted) -> None:
        async def story(w) -> None:
            await w.nrt()
            patch = w.client.patch
            w.agent.list(make_pod("lsr", "u-1", **pinned("0,8", "LSR")))

            async def slowly(*args: Any) -> Any:
                answer = await patch(*args)
                if deleted:
                    await w.client.delete(NODERESOURCETOPOLOGIES, "n1")
                    await w.until(lambda: w.state.nrt is None)
                else:
                    await patch(NODERESOURCETOPOLOGIES, "n1", {"metadata": {"annotations": {LS_POOL: "[]"}}})
                    await w.until(lambda: w.state.nrt["metadata"]["annotations"][LS_POOL] == "[]")
                return answer

            with monkeypatch.context() as patched:
                patched.setattr(w.client, "patch", slowly)
                await w.topology.step()
            assert (await w.annotation(LS_POOL))[0]["cpuset"] == "1-3,9-11"

        run(story)

    def test_an_object_that_is_gone_before_its_creation_is_answered_is_made_again(self, run, monkeypatch) -> None:
        async def story(w) -> None:
            create = w.client.create

            async def slowly(*args: Any) -> Any:
                answer = await create(*args)
                await w.until(lambda: w.state.nrt is not None)
                await w.client.delete(NODERESOURCETOPOLOGIES, "n1")
                await w.until(lambda: w.state.nrt is None)
                return answer

            with monkeypatch.context() as patched:
                patched.setattr(w.client, "create", slowly)
                await w.topology.step()
            assert w.state.nrt is None
            await w.nrt()

        run(story)

    def test_others_keep_what_is_theirs(self, run) -> None:
        async def story(w) -> None:
            await w.nrt()
            zone = {
                "name": "node-0",
                "type": "Node",
                "resources": [{"name": "gpu", "capacity": "8", "allocatable": "8", "available": "8"}],
            }
            gone = {"name": "node-9", "type": "Node", "resources": []}
            patch = {"metadata": {"annotations": {"other": "x"}}, "zones": [zone, gone]}
            await w.client.patch(NODERESOURCETOPOLOGIES, "n1", patch)
            await w.until(lambda: len(w.state.nrt["zones"][0]["resources"]) == 1)
            made = await w.nrt()
            assert [z["name"] for z in made["zones"]] == ["node-0", "node-1"]
            assert {r["name"] for r in made["zones"][0]["resources"]} == {"cpu", "gpu", "hugepages-1Gi", "hugepages-2Mi", "memory"}
            assert made["metadata"]["annotations"]["other"] == "x"

        run(story)

    def test_equal_json_is_not_written(self, run) -> None:
        async def story(w) -> None:
            made = await w.nrt()
            text = made["metadata"]["annotations"][LS_POOL]
            spaced = orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2).decode()
            await w.client.patch(NODERESOURCETOPOLOGIES, "n1", {"metadata": {"annotations": {LS_POOL: spaced}}})
            await w.until(lambda: w.state.nrt["metadata"]["annotations"][LS_POOL] == spaced)
            assert (await w.nrt())["metadata"]["annotations"][LS_POOL] == spaced

        run(story)


@pytest.mark.feature("KLO-SI-05")
class TestPools:
    def test_lsr_leaves_one_pool_and_lse_both(self, run, make_pod) -> None:
        async def story(w) -> None:
            w.agent.list(
                make_pod("lsr", "u-1", **pinned("0-1,8-9", "LSR")),
                make_pod("lse", "u-2", **pinned("2,10", "LSE")),
                make_pod("unlabelled", "u-3", **pinned("4-7,12-15", "")),
                make_pod("broken", "u-4", annotations={names.ANNOTATION_RESOURCE_STATUS: "{cpuset"}),
                make_pod("done", "u-5", phase="Succeeded", **pinned("3,11", "LSE")),
            )
            assert await w.annotation(LS_POOL) == [{"socket": 0, "node": 0, "cpuset": "3,11"}]
            assert await w.annotation(BE_POOL) == [
                {"socket": 0, "node": 0, "cpuset": "0-1,3,8-9,11"},
                {"socket": 1, "node": 1, "cpuset": "4-7,12-15"},
            ]

        run(story)

    def test_reservation_and_system_cpus_leave_both(self, run, make_node) -> None:
        async def story(w) -> None:
            wanted = [{"socket": 0, "node": 0}, {"socket": 1, "node": 1, "cpuset": "5-7,13-15"}]
            assert await w.annotation(LS_POOL) == wanted, "an emptied pool stays without its cpuset"
            assert await w.annotation(BE_POOL) == wanted
            assert await w.annotation(names.ANNOTATION_NODE_RESERVATION) == {
                "reservedCPUs": "0-3,8-11",
                "applyPolicy": "ReservedCPUsOnly",
            }
            assert await w.annotation(names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE) == {"cpuset": "4,12"}

        annotations = {
            names.ANNOTATION_NODE_RESERVATION: '{"reservedCPUs":"8-11,0,1,2,3","applyPolicy":"ReservedCPUsOnly"}',
            names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE: '{"cpuset":"4,12"}',
        }
        run(story, node=make_node(annotations=annotations))

    @pytest.mark.parametrize(
        ("reservation", "published", "first"),
        [
            ('{"resources":{"cpu":"1500m"}}', {"resources": {"cpu": "1500m"}, "reservedCPUs": "0,8"}, "1-3,9-11"),
            (
                '{"resources":{"cpu":1.5,"memory":"1024Ki"}}',
                {"resources": {"cpu": "1500m", "memory": "1Mi"}, "reservedCPUs": "0,8"},
                "1-3,9-11",
            ),
            ('{"resources":{"cpu":"lots"},"reservedCPUs":"0"}', {}, "0-3,8-11"),
            ('{"reservedCPUs":"what"}', {}, "0-3,8-11"),
            ("{broken", {}, "0-3,8-11"),
            ('{"resources":{"cpu":"0"}}', {"resources": {"cpu": "0"}}, "0-3,8-11"),
        ],
    )
    def test_reservation_by_amount(self, run, make_node, reservation, published, first) -> None:
        async def story(w) -> None:
            assert await w.annotation(names.ANNOTATION_NODE_RESERVATION) == published
            assert (await w.annotation(LS_POOL))[0]["cpuset"] == first

        run(story, node=make_node(annotations={names.ANNOTATION_NODE_RESERVATION: reservation}))


STATIC = {"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}


@pytest.mark.feature("KLO-SI-05")
class TestKubelet:
    @pytest.mark.parametrize(
        ("config", "reserved"),
        [
            ({"reservedSystemCPUs": "12,3,11", "kubeReserved": {"cpu": "4"}}, "3,11-12"),
            ({"kubeReserved": {"cpu": "1500m"}, "systemReserved": {"cpu": "600m"}}, "0-1,8"),
            ({"kubeReserved": {"cpu": "8"}}, "0-3,8-11"),
            ({"reservedSystemCPUs": "99"}, None),
        ],
    )
    def test_static_policy(self, run, config, reserved, caplog) -> None:
        async def story(w) -> None:
            w.kubelet.config = {**STATIC, **config}
            wanted = {"policy": "static", "options": {"full-pcpus-only": "true"}}
            assert await w.annotation(POLICY) == (wanted | {"reservedCPUs": reserved} if reserved else wanted)
            assert (await w.annotation(LS_POOL))[0]["cpuset"] == "0-3,8-11", "reserved CPUs stay in the pools"
            assert caplog.text.count("kubelet configuration:") == (not reserved), "told once, not every round"

        run(story)

    def test_pods_pinned_by_the_kubelet_leave_both_pools(self, run, make_pod) -> None:
        async def story(w) -> None:
            w.kubelet.config = STATIC
            entries = {"u-1": {"a": "0,8", "b": "1,9", "c": "junk"}, "u-2": {"a": "2"}, "u-3": {"a": "3"}, "gone": {"a": "4"}}
            state = {"policyName": "static", "defaultCpuSet": "5-15", "entries": entries}
            w.agent.tree.write("var/lib/kubelet/cpu_manager_state", orjson.dumps(state).decode())
            w.agent.list(
                make_pod("web", "u-1", qos="Guaranteed"),
                make_pod("ls", "u-2", labels={"koordinator.sh/qosClass": "LS"}),
                make_pod("lsr", "u-3", **pinned("3", "LSR")),
            )
            assert await w.annotation(ALLOCS) == [
                {"uid": "gone", "cpuset": "4", "managedByKubelet": True},
                {"namespace": "default", "name": "web", "uid": "u-1", "cpuset": "0-1,8-9", "managedByKubelet": True},
            ]
            assert (await w.annotation(BE_POOL))[0]["cpuset"] == "2-3,10-11"

        run(story)

    def test_a_broken_checkpoint_changes_nothing(self, run, caplog) -> None:
        async def story(w) -> None:
            w.kubelet.config = STATIC
            before = await w.annotation(LS_POOL)
            w.agent.tree.write("var/lib/kubelet/cpu_manager_state", "{broken")
            assert await w.annotation(LS_POOL) == before
            assert any("cpu_manager_state" in r.getMessage() for r in caplog.records)

        run(story)

    @pytest.mark.parametrize(
        ("policy", "scope", "wanted"),
        [
            ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
            ("restricted", "container", "RestrictedContainerLevel"),
            ("best-effort", "", "BestEffortContainerLevel"),
            ("none", "pod", "None"),
        ],
    )
    def test_topology_policy(self, run, policy, scope, wanted) -> None:
        async def story(w) -> None:
            w.kubelet.config = {"topologyManagerPolicy": policy, "topologyManagerScope": scope}
            assert (await w.nrt())["topologyPolicies"] == [wanted]

        run(story)

    def test_without_asking_the_kubelet(self, run) -> None:
        async def story(w) -> None:
            assert await w.annotation(POLICY) == {}
            assert "/configz" not in w.kubelet.requests

        run(story, query=False)

    def test_an_unreachable_kubelet_leaves_the_empty_object(self, run, caplog) -> None:
        async def story(w) -> None:
            w.kubelet.status = 500
            assert (await w.nrt())["zones"] == []
            assert any("HTTP 500" in r.getMessage() for r in caplog.records)
            w.kubelet.status = 200
            assert len((await w.nrt())["zones"]) == 2

        run(story)


@pytest.mark.feature("KLO-SI-05")
class TestZones:
    def test_numa_reservation_lowers_allocatable_and_not_capacity(self, run, make_node) -> None:
        async def story(w) -> None:
            made = await w.nrt()
            assert made["metadata"]["labels"][names.LABEL_NODE_ENABLE_NUMA_RESERVATION] == "true"
            cpu = made["zones"][0]["resources"][0]
            assert cpu == {"name": "cpu", "capacity": "8", "allocatable": "7500m", "available": "7500m"}
            patch = {"metadata": {"labels": {names.LABEL_NODE_ENABLE_NUMA_RESERVATION: None}}}
            await w.client.patch(NODES, "n1", patch)
            await w.until(lambda: not w.state.node.metadata.labels)
            after = await w.nrt()
            assert after["zones"][0]["resources"][0]["allocatable"] == "8"
            assert names.LABEL_NODE_ENABLE_NUMA_RESERVATION not in after["metadata"]["labels"]

        node = make_node(
            labels={names.LABEL_NODE_ENABLE_NUMA_RESERVATION: "true"},
            capacity={"cpu": "16", "memory": "8Gi"},
            allocatable={"cpu": "15", "memory": "8Gi"},
        )
        run(story, node=node)

    def test_amplification_hides_no_numa_reservation(self, run, make_node) -> None:
        async def story(w) -> None:
            cpu = (await w.nrt())["zones"][0]["resources"][0]
            assert cpu == {"name": "cpu", "capacity": "8", "allocatable": "7500m", "available": "7500m"}

        node = make_node(
            labels={names.LABEL_NODE_ENABLE_NUMA_RESERVATION: "true"},
            capacity={"cpu": "16", "memory": "8Gi"},
            allocatable={"cpu": "30", "memory": "8Gi"},
            annotations={names.ANNOTATION_NODE_RAW_ALLOCATABLE: '{"cpu":"15","memory":"8Gi"}'},
        )
        run(story, node=node)

    def test_numa_nodes_with_gaps_without_cpus_and_without_memory(self, run, make_node) -> None:
        """CPUs and memory are reserved on the nodes that have some."""

        async def story(w) -> None:
            w.agent.tree.write("sys/bus/node/devices/node1/meminfo", "Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB\n")
            w.agent.tree.write("sys/bus/node/devices/node7/meminfo", "Node 7 MemTotal: 2097152 kB\nNode 7 MemFree: 1024 kB\n")
            w.agent.tick(61.0)
            zones = (await w.nrt())["zones"]
            assert [z["name"] for z in zones] == ["node-0", "node-1", "node-7"]
            rows = [{r["name"]: (r["capacity"], r["allocatable"]) for r in z["resources"]} for z in zones]
            assert [row["cpu"] for row in rows] == [("8", "7500m"), ("8", "7500m"), ("0", "0")]
            assert [row["memory"] for row in rows] == [("4Gi", "3Gi"), ("0", "0"), ("2Gi", "1Gi")]

        node = make_node(
            labels={names.LABEL_NODE_ENABLE_NUMA_RESERVATION: "true"},
            capacity={"cpu": "16", "memory": "6Gi"},
            allocatable={"cpu": "15", "memory": "4Gi"},
        )
        run(story, node=node)


def grid(sockets: int, cores: int, threads: int):
    total = sockets * cores
    return make_topology(
        CPU(t * total + s * cores + c, s * cores + c, s, s) for t in range(threads) for s in range(sockets) for c in range(cores)
    )


class TestPacking:
    def test_sockets_then_cores_then_single_cpus(self) -> None:
        topology = grid(2, 4, 2)
        everything = CPUSet(topology.ids)
        assert str(take_packed(topology, everything, 8)) == "0-3,8-11"
        assert str(take_packed(topology, everything, 11)) == "0-5,8-12"
        assert str(take_packed(topology, everything, 1)) == "0"
        assert str(take_packed(topology, everything - CPUSet([0]), 2)) == "1,9"
        with pytest.raises(PackingError):
            take_packed(topology, CPUSet([1]), 2)

    @given(st.integers(1, 2), st.integers(1, 4), st.integers(1, 2), st.data())
    def test_takes_exactly_what_is_wanted_of_what_is_free(self, sockets: int, cores: int, threads: int, data: st.DataObject) -> None:
        topology = grid(sockets, cores, threads)
        free = CPUSet(data.draw(st.sets(st.sampled_from(topology.ids))))
        wanted = data.draw(st.integers(0, len(free)))
        taken = take_packed(topology, free, wanted)
        assert len(taken) == wanted
        assert taken <= free


def test_merging_keeps_foreign_facts_of_a_zone() -> None:
    old = [{"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}], "resources": [{"name": "cpu", "capacity": "1"}]}]
    new = [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": "2"}]}]
    merged = merge_zones(old, new)[0]
    assert (merged["costs"][0]["value"], merged["resources"]) == (10, [{"name": "cpu", "capacity": "2"}])
