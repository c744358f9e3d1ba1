"""The demo's phases on a node that is calculated."""

from __future__ import annotations

import pytest

from roles.sandbox import measure
from roles.sandbox.measure import PhaseResult
from roles.sandbox.modelled import phases
from roles.sandbox.modelled.deciding import offered
from roles.sandbox.modelled.fairshare import NORMAL, QUANTUM, Machine, Process
from roles.sandbox.scenario import Phase, Scenario


def let_run(machine: Machine, seconds: float) -> None:
    for _ in range(round(seconds / QUANTUM)):
        machine.step()


def test_cpu_is_shared_by_weight() -> None:
    machine = Machine(1, lambda at, latency: None)
    heavy, light = Process(3 * NORMAL, batch=True), Process(NORMAL, batch=True)
    machine.place([heavy, light])
    let_run(machine, 4.0)
    assert heavy.used + light.used == pytest.approx(4.0)
    assert heavy.used == pytest.approx(3.0, rel=0.02)


def test_a_quota_holds_only_whom_it_limits() -> None:
    machine = Machine(2, lambda at, latency: None)
    free, held = Process(NORMAL, batch=True), [Process(NORMAL, batch=True, limited=True) for _ in range(2)]
    machine.place([free, *held])
    machine.quota = 0.4
    let_run(machine, 5.0)
    assert sum(one.used for one in held) == pytest.approx(0.4 * 5, rel=0.05)
    assert free.used > 3.5, "beside one that is held"


def test_latency_counts_from_the_planned_time() -> None:
    answers: list[float] = []
    machine = Machine(1, lambda at, latency: answers.append(latency))
    one = Process(NORMAL)
    machine.place([one])
    machine.request(one, 0.0, 0.002)
    machine.request(one, 0.0, 0.002)
    let_run(machine, 0.01)
    assert answers == [pytest.approx(0.002, abs=QUANTUM), pytest.approx(0.004, abs=QUANTUM)]


def test_who_wakes_up_takes_the_cpu_over_from_a_light_process() -> None:
    answers: list[float] = []
    machine = Machine(1, lambda at, latency: answers.append(latency))
    service, batch = Process(NORMAL), Process(1, batch=True)
    machine.place([service, batch])
    let_run(machine, 0.5)
    machine.request(service, machine.now, 0.0015)
    let_run(machine, 0.01)
    assert answers[0] <= 0.0015 + 2 * QUANTUM


@pytest.fixture(scope="module")
def story() -> phases.Modelled:
    made = phases.Modelled(Scenario())
    made.run()
    return made


def by_kind(story: phases.Modelled) -> dict[str, PhaseResult]:
    return {result.kind: result for result in story.results}


def p99(result: PhaseResult) -> float:
    peak = result.peak()
    assert peak is not None
    return peak.p99


def test_the_story_is_that_of_the_demo(story: phases.Modelled) -> None:
    """Unmanaged jobs cost the service something, koord gives most of it back, and the CPUs are used better than alone."""
    found = by_kind(story)
    assert p99(found["unmanaged"]) > 1.5 * p99(found["alone"])
    assert p99(found["koord"]) < p99(found["unmanaged"])
    assert found["koord"].node_utilisation(phases.CPUS) > 1.5 * found["alone"].node_utilisation(phases.CPUS)
    assert not measure.contradiction(story.results)


def test_the_jobs_are_the_same_in_every_phase(story: phases.Modelled) -> None:
    found = by_kind(story)
    assert found["koord"].request_milli == found["unmanaged"].request_milli > 0
    assert found["koord"].batch_pods == found["unmanaged"].batch_pods


def test_koord_itself_decides(story: phases.Modelled) -> None:
    """The quota follows the load by koordlet's own strategy, and the offer is the manager's."""
    koord = by_kind(story)["koord"]
    assert koord.batch_cpu_offered() == offered(phases.CPUS, 95, story.used_alone)
    assert koord.reactions()
    assert all(one.quota_seconds is not None for one in koord.reactions())
    assert any("CFS quota" in line for line in story.decisions)
    assert {s.be_quota_us for r in story.results if r.kind != "koord" for s in r.samples} == {-1}


def test_the_same_figures_at_every_run(story: phases.Modelled) -> None:
    again = phases.Modelled(Scenario())
    again.run()
    assert [(r.steps, r.work_units) for r in again.results] == [(r.steps, r.work_units) for r in story.results]


def test_any_scenario_can_be_told() -> None:
    scenario = Scenario(phases=[Phase(kind="unmanaged"), Phase(kind="shares")])
    made = phases.Modelled(scenario)
    assert [result.kind for result in made.run()] == ["unmanaged", "shares"]
