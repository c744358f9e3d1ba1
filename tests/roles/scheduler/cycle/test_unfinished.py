"""An evaluation that was not finished is not taken for current, whichever plugin raised and whenever (SCH-FW-06)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from roles.scheduler import testing
from roles.scheduler.cluster.changes import NODE, PODS
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.restoring import RestoredReservation
from roles.scheduler.framework.status import SUCCESS, Status

ASKED = (
    "pre_filter",
    "filter",
    "filter_stamp",
    "pre_score",
    "score",
    "score_stamp",
    "restored_rows",
    "restored_row",
)


class Touchy(api.PreFilter, api.Filter, api.PreScore, api.Score, api.Restorer):
    """Raises once in the step that the test names; lets one pod on a node."""

    name = "Touchy"
    reads = score_reads = restore_reads = NODE | PODS
    raising: ClassVar[str] = ""

    def _ask(self, step: str) -> None:
        if Touchy.raising == step:
            Touchy.raising = ""
            raise KeyError("a cache that is not warm yet")

    def pre_filter(self, ctx: Any) -> Status:
        self._ask("pre_filter")
        return SUCCESS

    def filter(self, ctx: Any, rows: Any) -> Any:
        self._ask("filter")
        return ctx.cluster.pod_slots[rows] < 110

    def filter_stamp(self, ctx: Any) -> Any:
        self._ask("filter_stamp")
        return 1

    def rejection(self, ctx: Any, code: int) -> api.Rejection:
        return api.Rejection(("taken",))

    def pre_score(self, ctx: Any) -> Status:
        self._ask("pre_score")
        return SUCCESS

    def score(self, ctx: Any, rows: Any) -> Any:
        self._ask("score")
        return ctx.cluster.allocatable[0][rows] / 1000.0

    def score_stamp(self, ctx: Any) -> Any:
        self._ask("score_stamp")
        return 1

    def connect(self, filters: Sequence[api.ReservationFilter]) -> None:
        pass

    def restored_rows(self, ctx: Any) -> dict[int, tuple[RestoredReservation, ...]] | None:
        self._ask("restored_rows")
        return {}

    def restored_row(self, ctx: Any, slot: int) -> tuple[RestoredReservation, ...]:
        self._ask("restored_row")
        return ()

    def nominate(self, ctx: Any, slot: int) -> RestoredReservation | None:
        return None


def world() -> testing.World:
    only = {"disabled": [{"name": "*"}], "enabled": [{"name": "Touchy"}]}
    points = dict.fromkeys(("preFilter", "filter", "preScore", "score"), only)
    made = testing.World({"plugins": {**points, "postFilter": {"disabled": [{"name": "*"}]}}}, plugins=(Touchy,))
    made.add_nodes(*(testing.node(f"n{number}", cpu=str(number + 1)) for number in range(4)))
    return made


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("step", ASKED)
@pytest.mark.parametrize("placed", [0, 1, 2])
def test_after_an_exception_everybody_is_asked_again(step: str, placed: int) -> None:
    made = world()
    for number in range(placed):  # the first build, then rows that changed
        assert made.schedule(testing.pod(f"p{number}")).node == f"n{3 - number}"
    Touchy.raising = step
    try:
        made.decide(testing.pod("unlucky"))
    except KeyError:
        assert Touchy.raising == ""
    Touchy.raising = ""
    for number in range(placed, 4):
        assert made.schedule(testing.pod(f"p{number}")).node == f"n{3 - number}"
    assert not made.decide(testing.pod("late")).scheduled
