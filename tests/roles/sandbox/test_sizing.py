"""The demo's load and jobs on machines of all sizes."""

from __future__ import annotations

import pytest

from koord.api.quantity import parse_milli
from roles.sandbox import others, sizing
from roles.sandbox.scenario import Scenario


def peak_cores(scenario: Scenario) -> float:
    return max(step.rate for step in scenario.load.steps) * scenario.service.cpu_milliseconds_per_request / 1000


@pytest.mark.parametrize(("cpus", "free"), [(1, 0.9), (1, 0.5), (2, 2.0), (2, 1.1), (4, 3.5), (16, 15.0), (64, 40.0), (256, 256.0)])
def test_the_load_takes_the_same_share_of_what_is_free(cpus: int, free: float) -> None:
    made = sizing.fitted(Scenario(), cpus, free)
    assert peak_cores(made) == pytest.approx(0.3 * min(free, sizing.MOST_FREE), rel=0.05)
    assert max(step.rate for step in made.load.steps) <= sizing.MOST_RATE
    assert parse_milli(made.service.cpu_request) + parse_milli(made.load.cpu_request) < 1000 * cpus, "the node has room for both"
    assert made.service.workers >= peak_cores(made)
    assert made.batch.cpu_burners >= cpus, "enough to fill the node"


def test_the_usual_machine_gets_the_scenario_as_it_is_written() -> None:
    assert sizing.fitted(Scenario(), 2, 2.0) == Scenario()


@pytest.mark.parametrize(("offer", "each"), [(1500, 440), (514, 140), (90, 20), (0, 20), (None, sizing.USUAL_REQUEST)])
def test_requests_of_the_jobs_fit_into_the_offer(offer: int | None, each: int) -> None:
    batch = Scenario().batch
    assert sizing.request_of_each(batch, offer) == each
    if offer is not None and each > sizing.LEAST_REQUEST:
        assert each * batch.cpu_burners + sizing.MEMORY_BURNER_REQUEST * batch.memory_burners <= offer


def test_a_request_in_the_scenario_counts_as_it_stands() -> None:
    batch = Scenario().batch.model_copy(update={"cpu_request": "250m"})
    assert sizing.request_of_each(batch, 10) == 250


def test_a_part_of_a_machine_is_not_measured() -> None:
    """koord counts the CPUs of the node: bound to some of them, its figures would be those of another machine."""
    assert others.too_few(2, 2) == ""
    assert others.too_few(1, 16).startswith("this process may use 1 of 16 CPUs")


def test_quiet_is_what_others_used_at_the_start_and_a_little_more() -> None:
    assert others.Look(2, 0.5).quiet == pytest.approx(0.8)
    assert others.Look(16, 1.0).quiet == pytest.approx(3.4)
    assert others.Look(1, 3.0).free == 0
