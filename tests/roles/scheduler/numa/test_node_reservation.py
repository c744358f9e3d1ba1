"""What a node keeps back, and names of yesterday: the scheduler's view of a Node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import names
from roles.scheduler import testing

RESERVATION = names.ANNOTATION_NODE_RESERVATION


def view(reservation: str) -> dict[str, float]:
    """Amounts that pods can have of a node, in base units."""
    world = testing.World()
    world.add_nodes(testing.node("n", annotations={RESERVATION: reservation} if reservation else {}))
    resources = list(world.vocabulary.resources)
    return {name: float(world.cluster.free[index][0]) for index, name in enumerate(resources) if world.cluster.allocatable[index][0]}


@pytest.mark.feature("SCH-NRV-01")
@pytest.mark.parametrize(
    ("reservation", "cpu", "memory"),
    [
        ("", 8000, 32 << 30),
        ('{"resources":{"cpu":"1500m","memory":"3Gi"}}', 6500, 29 << 30),
        ('{"resources":{"cpu":"1500m","memory":"3Gi"},"applyPolicy":"Default"}', 6500, 29 << 30),
        ('{"resources":{"cpu":"1500m","memory":"3Gi"},"reservedCPUs":"0,4-5"}', 5000, 29 << 30),
        ('{"reservedCPUs":"0-1"}', 6000, 32 << 30),
        ('{"reservedCPUs":"0-1","resources":{"memory":"1Gi"},"applyPolicy":"ReservedCPUsOnly"}', 8000, 32 << 30),
        ('{"resources":{"cpu":"1500m"', 8000, 32 << 30),
        ('{"reservedCPUs":"0-x"}', 8000, 32 << 30),
        ('{"resources":{"cpu":"lots"}}', 8000, 32 << 30),
    ],
)
def test_allocatable_is_what_the_reservation_leaves(reservation: str, cpu: int, memory: int) -> None:
    found = view(reservation)
    assert (found["cpu"], found["memory"]) == (cpu, memory)


@pytest.mark.feature("SCH-NRV-01")
def test_more_than_there_is_leaves_nothing_and_batch_resources_stay() -> None:
    reservation = '{"resources":{"cpu":"20","memory":"1Gi","kubernetes.io/batch-cpu":"1000","nvidia.com/gpu":"1"}}'
    found = view(reservation)
    assert "cpu" not in found
    assert found["memory"] == 31 << 30
    world = testing.World()
    body = testing.node("n", annotations={RESERVATION: reservation})
    body.status.allocatable["kubernetes.io/batch-cpu"] = "4000"
    world.add_nodes(body)
    assert world.cluster.free[world.vocabulary.resources.find("kubernetes.io/batch-cpu")][0] == 4000
    assert "Insufficient cpu" in world.decide(testing.pod(cpu="1m")).message()


@pytest.mark.feature("SCH-NRV-01")
def test_a_change_of_the_reservation_counts_at_once() -> None:
    world = testing.World()
    world.add_nodes(testing.node("n"))
    world.add_pods(testing.pod(node="n", cpu="5"))
    assert world.decide(testing.pod(cpu="3")).scheduled
    world.add_nodes(testing.node("n", annotations={RESERVATION: '{"resources":{"cpu":"1"}}'}))
    assert not world.decide(testing.pod(cpu="3")).scheduled
    assert world.decide(testing.pod(cpu="2")).scheduled
    world.add_nodes(testing.node("n"))
    assert world.decide(testing.pod(cpu="3")).scheduled


@pytest.mark.feature("SCH-NRV-01")
@given(st.integers(0, 20_000), st.integers(0, 9), st.sampled_from(["", "Default", "ReservedCPUsOnly"]))
def test_never_below_zero_and_never_more_than_there_is(milli: int, cpus: int, policy: str) -> None:
    listed = f'"reservedCPUs":"0-{cpus - 1}",' if cpus else ""
    found = view(f'{{"resources":{{"cpu":"{milli}m"}},{listed}"applyPolicy":"{policy}"}}').get("cpu", 0)
    reserved = 0 if policy == "ReservedCPUsOnly" else cpus * 1000 or milli
    assert found == max(0, 8000 - reserved)


OLD = {
    "koordinator.sh/batch-cpu": "kubernetes.io/batch-cpu", "koordinator.sh/batch-memory": "kubernetes.io/batch-memory",
    **{f"kubernetes.io/{kind}": f"koordinator.sh/{kind}" for kind in ("rdma", "fpga", "gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio")},
}  # fmt: skip


@pytest.mark.feature("SCH-NRV-02")
@pytest.mark.parametrize(("old", "new"), sorted(OLD.items()))
def test_old_resource_names_of_nodes_and_pods_mean_todays(old: str, new: str) -> None:
    world = testing.World()
    body = testing.node("n")
    body.status.allocatable[old] = "100"
    world.add_nodes(body)
    assert world.cluster.free[world.vocabulary.resources.find(new)][0] == 100
    assert world.schedule(testing.pod(requests={old: "60"})).scheduled
    assert f"Insufficient {new}" in world.decide(testing.pod(requests={new: "60"})).message()
