"""Whatever stands in a NodeResourceTopology, on a Node or on a pod: one line in the log, never an exception, and the rest counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.cpuset import CPUSet
from koord.api import names
from roles.scheduler import testing
from roles.scheduler.plugins.numa.records import read_record
from tests.support.numa import NumaWorld, bound_pod, nrt

ON_REPORTS = (
    names.ANNOTATION_NRT_CPU_TOPOLOGY, names.ANNOTATION_NRT_POD_CPU_ALLOCS, names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY,
    names.ANNOTATION_NODE_RESERVATION, names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE, names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO,
)  # fmt: skip

texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "null", "[]", "{}", "[null]", "0", '"x"', '{"detail":null}', '{"detail":[{}]}', '{"detail":[{"id":99999999}]}',
            '{"detail":[{"id":0,"core":0,"socket":0,"node":0},{"id":0,"core":1,"socket":3,"node":9}]}',
            '{"detail":[{"id":0,"core":0,"socket":0,"node":100000000000000000000}]}', '{"reservedCPUs":"5-1"}',
            '{"reservedCPUs":7}', '{"reservedCPUs":"0-1"}', '{"cpuset":"x"}', '{"cpuset":"0","cpusetExclusive":null}',
            '{"cpu":"1.5"}', '{"cpu":-2}', '{"cpu":1e300}', '{"cpu":0.5,"memory":2}', '[{"uid":"u","cpuset":"a","managedByKubelet":true}]',
        ]
    ),
)  # fmt: skip
amounts = st.one_of(st.integers(-5, 9), st.sampled_from(["8", "x", "", "-1", "1e3", "9223372036854775807"]))
zones = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["node-0", "node-1", "node-01", "node-x", "node-", "node-99999", "n", ""]),
            "type": st.sampled_from(["Node", "Node", "Core"]),
            "resources": st.lists(
                st.fixed_dictionaries({"name": st.sampled_from(["cpu", "memory", ""]), "allocatable": amounts}), max_size=3
            ),
        }
    ),
    max_size=3,
)


@pytest.mark.feature("SCH-NUMA-10")
@given(st.dictionaries(st.sampled_from(ON_REPORTS), texts), zones, texts, texts, st.booleans())
def test_nothing_that_is_reported_breaks_a_decision(
    annotations: dict[str, str], reported: list[dict[str, Any]], ratio: str, held: str, strict: bool
) -> None:
    world = NumaWorld()
    labels = {names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"} if strict else {names.LABEL_NODE_CPU_BIND_POLICY: "FullPCPUsOnly"}
    world.add_nodes(testing.node("n", labels=labels, annotations={names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO: ratio}))
    report = nrt("n", sockets=1, nodes=2, cores=2, annotations=annotations)
    report["zones"] = reported
    world.feed("NodeResourceTopology", report)
    world.add_pods(bound_pod("there", node="n", cpu="1", annotations={names.ANNOTATION_RESOURCE_STATUS: held}))
    for cpu in ("1", "2", "500m"):
        decision, _ = world.bind(bound_pod(cpu=cpu, memory="1Mi"))
        assert decision.scheduled or decision.message()
    world.machine("good", sockets=1, nodes=2, cores=2)
    assert world.cpus(bound_pod(cpu="2", memory="1Mi", nodeSelector={"kubernetes.io/hostname": "good"})) == "0-1"


@pytest.mark.feature("SCH-NUMA-11")
@given(texts)
def test_nothing_on_a_pod_breaks_a_decision(text: str) -> None:
    world = NumaWorld()
    world.machine("n", sockets=1, nodes=2, cores=2)
    for key in (names.ANNOTATION_RESOURCE_SPEC, names.ANNOTATION_NUMA_TOPOLOGY_SPEC, names.ANNOTATION_RESOURCE_STATUS):
        decision, seen = world.bind(bound_pod(cpu="2", memory="1Mi", annotations={key: text}))
        assert seen is not None or key in decision.message() or "CPUs" in decision.message()


@pytest.mark.feature("SCH-NUMA-11")
def test_a_numa_node_that_no_machine_has_holds_nothing() -> None:
    status = (
        '{"cpuset":"0","numaNodeResources":[{"node":100000000000000000000,"resources":{"cpu":"1"}},{"node":1,"resources":{"cpu":"1"}}]}'
    )
    record = read_record("default/p", {names.ANNOTATION_RESOURCE_STATUS: status})
    assert record is not None
    assert record.amounts == {1: {"cpu": 1000}}


@pytest.mark.feature("SCH-NUMA-11")
@pytest.mark.parametrize("more", [{}, {"priority": 1}])
def test_cpus_stay_taken_when_the_annotation_cannot_be_read_any_more(more: dict[str, Any]) -> None:
    world = NumaWorld()
    world.machine("n", sockets=1, nodes=1, cores=4)

    def shown(text: str | None, **more: Any) -> None:
        annotations = {} if text is None else {names.ANNOTATION_RESOURCE_STATUS: text}
        world.add_pods(bound_pod("x", uid="x", node="n", cpu="4", memory="1Mi", annotations=annotations, **more))

    def given() -> str:
        seen = world.bind(bound_pod("y", uid="y", cpu="4", memory="1Mi"))[1]
        assert seen is not None
        world.cluster.remove_pod("y")
        found = read_record("default/y", seen.pod.metadata.annotations)
        assert found is not None
        return str(CPUSet.from_mask(found.cpus))

    shown('{"cpuset":"0-3"}')
    shown('{"cpuset":"0-', **more)
    assert given() == "4-7"
    with world.state.suppose() as supposed:
        supposed.remove("x")
    shown('{"cpuset":', **more)
    assert given() == "4-7"
    shown(None, **more)  # this gives them back
    shown('{"cpuset":"0-')
    assert given() == "0-3"
    shown('{"cpuset":"0-3"}')
    world.cluster.remove_pod("x")
    world.plugin.pod_gone("x")
    shown('{"cpuset":"0-')  # as at a start, nobody has seen what it says
    assert given() == "0-3"
