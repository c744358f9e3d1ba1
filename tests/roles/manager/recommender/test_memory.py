"""Which model memory follows, and that it is no worse than what others do (MGR-REC-02, BEY-REC-01)."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.accounting.histogram import CheckpointError
from roles.manager.recommender import fleets, status
from roles.manager.recommender.backtest import MOVING_MAXIMUM, VPA_DEFAULTS, Outcome, Series, Usage, replay
from roles.manager.recommender.estimate import estimates
from roles.manager.recommender.group import ContainerGroup
from roles.manager.recommender.memory import HOUR, MemoryHistory
from roles.manager.recommender.policy import DAY, Policy

pytestmark = pytest.mark.feature("MGR-REC-02")
NO_FLOORS = {"min_cpu": 1, "min_memory": 1 << 20}
OURS = Policy(**NO_FLOORS)
VPA = dataclasses.replace(VPA_DEFAULTS, **NO_FLOORS)
RULE = dataclasses.replace(MOVING_MAXIMUM, **NO_FLOORS)


def weekly(rng: random.Random, memory: float) -> Callable[[float], float]:
    day = rng.randrange(7)
    return lambda t: memory * (1.8 if int(t // DAY) % 7 == day and int(t % DAY // HOUR) == 3 else 1) * rng.lognormvariate(0, 0.01)


def growing(rng: random.Random, memory: float) -> Callable[[float], float]:
    rate = rng.uniform(0.03, 0.08)
    return lambda t: memory * (1 + rate) ** (t / DAY) * rng.lognormvariate(0, 0.01)


def nightly(rng: random.Random, memory: float) -> Callable[[float], float]:
    hour, factor = rng.randrange(24), rng.uniform(1.2, 2.5)
    return lambda t: memory * (factor if int(t % DAY // HOUR) == hour else 1) * rng.lognormvariate(0, 0.02)


def made(shape: Callable[[random.Random, float], Callable[[float], float]], *, days: int = 21, count: int = 4) -> list[Series]:
    rng, found = random.Random(shape.__name__), []
    for number in range(count):
        at = shape(rng, rng.lognormvariate(6.8, 0.7) * float(1 << 20))
        usage = tuple(Usage(n * 1200.0, 0.5, at(n * 1200.0)) for n in range(int(days * DAY / 1200)))
        found.append(Series(f"{shape.__name__}-{number}", "main", "r", usage))
    return found


def known(name: str) -> list[Series]:
    """A fleet of the back-test, a sample every quarter of an hour."""
    full = fleets.fleet(name, containers=5, days=14, seed=3)
    return [dataclasses.replace(one, usage=one.usage[::3]) for one in full]


FLEETS: dict[str, Callable[[], list[Series]]] = {
    "weekly": lambda: made(weekly),
    "growing": lambda: made(growing),
    "nightly": lambda: made(nightly),
    **{name: lambda name=name: known(name) for name in fleets.SHAPES},  # type: ignore[misc]
}


@pytest.mark.feature("BEY-REC-01")
@pytest.mark.parametrize("name", FLEETS)
def test_no_more_kills_and_no_more_slack_than_the_vertical_pod_autoscaler_and_a_moving_maximum(name: str) -> None:
    series = FLEETS[name]()
    ours, vpa, rule = (replay(series, policy) for policy in (OURS, VPA, RULE))
    assert ours.killed_days <= min(vpa.killed_days, rule.killed_days)
    if name == "weekly":
        # the Vertical Pod Autoscaler asks for less there, and is killed each week
        assert ours.killed_days < vpa.killed_days
    else:
        assert ours.memory_slack <= vpa.memory_slack
    if name == "leaking":
        # a moving maximum runs after what leaks
        assert ours.killed_days < rule.killed_days
    else:
        assert ours.memory_slack <= rule.memory_slack


@pytest.mark.feature("BEY-REC-01")
def test_all_fleets_together_are_within_the_goal() -> None:
    """Memory slack of at most 20 percent over the fleets of the back-test, with fewer kills than the Vertical Pod Autoscaler."""
    total, vpa = Outcome(), Outcome()
    for name in fleets.SHAPES:
        series = known(name)
        for whole, policy in ((total, OURS), (vpa, VPA)):
            part = replay(series, policy)
            for field in ("days", "killed_days", "memory_requested", "memory_used"):
                setattr(whole, field, getattr(whole, field) + getattr(part, field))
    assert total.memory_slack <= 0.20
    assert total.killed_days <= vpa.killed_days


def fed(values: Callable[[float], float], days: float, step: float = HOUR / 2) -> ContainerGroup:
    group = ContainerGroup(DAY)
    for n in range(int(days * DAY / step)):
        group.add("r", 1e9 + n * step, cpu=0.1, memory=values(n * step), cpu_request=0.1)
    return group


def model_of(group: ContainerGroup) -> str:
    return estimates({"c": group}, OURS)["c"].model


def test_the_first_day_is_the_percentiles() -> None:
    assert model_of(fed(lambda t: 5e8, 0.5)) == "percentile"
    assert model_of(fed(lambda t: 5e8, 1.5)) != "percentile"


def test_a_weekly_peak_is_expected_on_its_day_only() -> None:
    group = fed(lambda t: 1e9 if int(t // DAY) % 7 == 3 and int(t % DAY // HOUR) == 3 else 5e8, 19)
    assert model_of(group) == "season"
    tomorrow = {}
    for days in (17, 19, 24):  # the target of the day that begins then
        group = fed(lambda t: 1e9 if int(t // DAY) % 7 == 3 and int(t % DAY // HOUR) == 3 else 5e8, days)
        tomorrow[days] = estimates({"c": group}, OURS)["c"].target.memory
    assert tomorrow[17] > 1e9, "day 17 is a high one"
    assert tomorrow[24] > 1e9
    assert max(v for d, v in tomorrow.items() if d == 19) >= 1e9, "two days after it is not far enough"
    group = fed(lambda t: 1e9 if int(t // DAY) % 7 == 3 and int(t % DAY // HOUR) == 3 else 5e8, 22)
    assert estimates({"c": group}, OURS)["c"].target.memory < 6e8


def test_what_climbs_is_led_and_told() -> None:
    group = fed(lambda t: 5e8 * 1.3 ** (t / DAY), 6)
    found = estimates({"c": group}, OURS)["c"]
    assert found.target.memory > 5e8 * 1.3**7, "the end of tomorrow, not of today"
    assert found.growth == pytest.approx(0.3, abs=0.01)
    told = status.memory_growing({"c": found})
    assert told is not None
    assert "container c: by 30" in told.message
    assert status.memory_growing({"c": estimates({"c": fed(lambda t: 5e8, 6)}, OURS)["c"]}) is None


def test_a_kill_is_judged_by_the_limit() -> None:
    group = fed(lambda t: 5e8, 9)
    before = estimates({"c": group}, OURS)["c"].target.memory
    assert group.out_of_memory("r", 1e9 + 9 * DAY, request=2e9)
    after = estimates({"c": group}, OURS)["c"].target.memory
    assert before < 6e8
    assert after == pytest.approx(2.4e9)


def test_a_container_that_uses_nothing_is_no_mistake() -> None:
    assert estimates({"c": fed(lambda t: 0.0, 12)}, OURS)["c"].growth == 0
    mixed = fed(lambda t: 0.0 if int(t // DAY) % 3 else 5e8, 12)
    assert estimates({"c": mixed}, OURS)["c"].target.memory >= 5e8


def test_the_percentile_model_is_the_vertical_pod_autoscaler() -> None:
    group = fed(lambda t: 5e8 + t, 9)
    found = estimates({"c": group}, VPA)["c"]
    assert found.model == "percentile"
    assert found.target.memory == pytest.approx(group.memory.percentile(0.9) * 1.15)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 6 * DAY), st.floats(1, 1e11), st.booleans()), min_size=1, max_size=60))
def test_property_a_checkpoint_keeps_the_history(uses: list[tuple[float, float, bool]]) -> None:
    history = MemoryHistory()
    for time, value, killed in sorted(uses):
        history.feed(time, value, lambda: 7e8)
        if killed:
            history.killed(value)
    again = MemoryHistory.from_checkpoint(json.loads(json.dumps(history.to_checkpoint())))
    for _ in range(3):
        assert again.target(lambda: 7e8, 10.0) == history.target(lambda: 7e8, 10.0)
        time = max(time for time, _, _ in uses) + DAY
        for one in (again, history):
            one.feed(time, 3e8, lambda: 7e8)
    assert len(json.dumps(history.to_checkpoint())) < 6000, "of a size that does not grow"


@pytest.mark.parametrize("change", [{"origin": "x"}, {"days": []}, {"today": [1]}, {"hours": {"a": 1}}, {"floor": -1}])
def test_a_bad_history_is_named(change: dict[str, object]) -> None:
    history = MemoryHistory()
    history.feed(5.0, 1.0, lambda: 1.0)
    with pytest.raises(CheckpointError, match="history"):
        MemoryHistory.from_checkpoint({**history.to_checkpoint(), **change})
