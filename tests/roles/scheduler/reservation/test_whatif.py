"""What-ifs know reservations: what is held, who may use it, where a new one would go."""

from __future__ import annotations

import json

import pytest

from roles.scheduler import testing
from roles.scheduler.whatif import Simulation, Snapshot, with_reservations
from tests.roles.scheduler.reservation.worlds import ALLOCATED, OWNER, placed


def simulation(*reservations: object, pods: tuple[object, ...] = ()) -> Simulation:
    config = with_reservations([testing.SCHEDULER])
    nodes = [testing.node("a", cpu="4"), testing.node("b", cpu="8")]
    return Simulation(Snapshot(nodes=nodes, pods=pods, objects={"Reservation": reservations}), config=config, now=0.0)  # type: ignore[arg-type]


@pytest.mark.feature("SCH-RSV-06")
def test_reserved_room_is_for_owners() -> None:
    asked = simulation(placed("r", "b", cpu="6"))
    assert not asked.fits(testing.pod(cpu="5")).placed
    assert asked.fits(testing.pod(cpu="5", labels=OWNER)).node == "b"
    assert asked.fits(testing.pod(cpu="5", labels=OWNER)).node == "b", "asking changes nothing"
    (first, second) = asked.place([testing.pod("p", uid="p", cpu="6", labels=OWNER), testing.pod("q", cpu="5", labels=OWNER)])
    assert (first.node, second.placed) == ("b", False)
    asked.remove(["p"])
    assert asked.fits(testing.pod(cpu="5", labels=OWNER)).node == "b"


@pytest.mark.feature("SCH-RSV-08")
def test_an_owner_that_leaves_gives_its_share_back_to_the_reservation() -> None:
    owner = testing.pod("p", uid="p", node="b", cpu="6", labels=OWNER, annotations={ALLOCATED: json.dumps({"name": "r", "uid": "r-uid"})})
    asked = simulation(placed("r", "b", cpu="6"), pods=(owner,))
    assert asked.remove(["p"]) == 1
    assert not asked.fits(testing.pod(cpu="5")).placed
    assert asked.fits(testing.pod(cpu="5", labels=OWNER)).node == "b"


@pytest.mark.feature("SCH-RSV-01")
def test_a_reservation_is_placed_and_then_there_for_its_owners() -> None:
    asked = simulation()
    assert asked.reserve(placed("r", cpu="6")).node == "b"
    assert not asked.fits(testing.pod(cpu="5")).placed
    assert asked.fits(testing.pod(cpu="5", labels=OWNER)).node == "b"
    refused = asked.reserve(placed("s", cpu="6"))
    assert not refused.placed
    assert "Insufficient cpu" in refused.message
    assert "not valid" in asked.reserve(placed("bad", ttl=None)).message
