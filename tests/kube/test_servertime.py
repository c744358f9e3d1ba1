"""Whose clock ages are measured by: this machine's, or where that is wrong the API server's."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import pytest

from koord import seams
from koord.apiserver.testing import running_server
from koord.kube.servertime import ServerClock, ServerTime, clock_of

START = 1_700_000_000.0


class Wrong(seams.System):
    """A machine whose wall clock is wrong by so many seconds."""

    def __init__(self, ahead: float) -> None:
        super().__init__()
        self.ahead = ahead

    def now(self) -> float:
        return time.time() + self.ahead


@pytest.mark.parametrize("ahead", [200_000.0, -200_000.0, 0.0])
def test_a_clock_that_is_wrong_gives_way_to_the_api_servers(ahead: float) -> None:
    async def scenario() -> tuple[float, float]:
        async with running_server() as server:
            seams.use(Wrong(ahead))
            async with server.client() as client:
                clock = clock_of(client)
                before = clock() - time.time()
                await client.raw("GET", "/version")
                return before, clock() - time.time()

    before, after = asyncio.run(scenario())
    assert before == pytest.approx(ahead, abs=5.0)
    assert after == pytest.approx(0.0, abs=5.0)


class Clocks:
    def __init__(self, ahead: float = 0.0) -> None:
        self.passed, self.ahead = 0.0, ahead
        self.time = ServerTime(lambda: START + self.passed + self.ahead, lambda: self.passed)

    def answer(self, took: float = 0.1, off: float = 0.0) -> None:
        sent, self.passed = self.passed, self.passed + took
        self.time.answered(formatdate(START + sent + off, usegmt=True), sent)


def test_small_differences_late_answers_and_dates_that_cannot_be_read_say_nothing() -> None:
    clocks = Clocks()
    clocks.answer(off=29.0)
    assert clocks.time() == START + clocks.passed
    clocks.passed = 60.0
    clocks.answer(took=8.0, off=600.0)
    clocks.time.answered("yesterday", clocks.passed)
    clocks.time.answered(None, clocks.passed)
    assert clocks.time() == START + clocks.passed


def test_a_clock_that_is_set_back_or_forth_changes_no_age() -> None:
    clocks = Clocks(ahead=3_600.0)
    clock = ServerClock(clocks.time)
    clock()
    clocks.answer()
    assert clock() == pytest.approx(START + clocks.passed, abs=1.0)
    for ahead in (-500.0, 90_000.0):
        clocks.ahead = ahead
        clocks.passed += 5.0
        assert clock() == pytest.approx(START + clocks.passed, abs=3.0)
        clocks.passed += 6.0
        clocks.answer()
        assert clock() == pytest.approx(START + clocks.passed, abs=3.0)


def test_a_clock_that_is_set_before_it_is_looked_at_first() -> None:
    clocks = Clocks()
    clock = ServerClock(clocks.time)
    clocks.answer()
    clocks.ahead, clocks.passed = 200_000.0, 30.0
    assert clock() == pytest.approx(START + 30.0, abs=1.0)
