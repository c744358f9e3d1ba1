"""The workload auditor: what it counts and warns of, by itself and through the scheduler's door."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from koord.api.kinds import PODS
from roles.scheduler import testing
from roles.scheduler.auditor import Audit, Event, Thresholds
from roles.scheduler.flags import metric_labels
from tests.support import patience


class Case:
    """An auditor with a pod of its own; `says` are the alerts."""

    def __init__(self, caplog: Any, **limits: Any) -> None:
        self.registry = CollectorRegistry()
        self.audit = Audit(Thresholds(enabled=True, **limits), [testing.SCHEDULER], self.registry)
        self.world = testing.World()
        self.pod = self.parse("p", priority=7, labels={"team": "blue"})
        self.victim = self.parse("v")
        self._caplog = caplog
        caplog.set_level(logging.WARNING)

    def parse(self, name: str, **spec: Any) -> Any:
        return self.world.parser.parse(testing.pod(name, uid=name, **spec))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"scheduler_workload_auditor_{name}", {"priority": "7", **labels})

    @property
    def says(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.getMessage().startswith("ALERT")]


@pytest.mark.feature("SCH-FW-13")
def test_a_workload_from_its_first_pod_to_its_binding(caplog: Any) -> None:
    case = Case(caplog, labels=(("team", "team"),))
    audit = case.audit
    audit.pod_seen(case.pod, "w", 100.0)
    audit.record("w", Event.GATED, 101.0)
    audit.record("w", Event.ADMITTED, 102.0)
    audit.failed(case.pod, (case.victim,), preempted_in_vain=False, now=103.0)
    audit.failed(case.pod, (), preempted_in_vain=False, now=105.0)
    assert audit.events_of("w") == {
        "create": 1, "gatedByQueueAdmission": 1, "admissionPassed": 1, "scheduleFailure": 2, "preemptNominated": 1,
        "preemptVictimDeleting": 1,
    }  # fmt: skip
    audit.pod_gone("v", 110.0)
    assert case.value("preemption_to_victim_deleted_seconds_sum", team="blue") == 7.0
    assert case.value("preemption_victim_deleting_retries_sum", team="blue") == 1.0
    audit.scheduled(case.pod, 112.0)
    assert case.value("victim_reschedule_duration_seconds_sum", team="blue") == 2.0
    before = case.value("scheduling_events_before_outcome_sum", team="blue", event_type="scheduleFailure", outcome="scheduled")
    assert before == 2.0
    assert not audit.events_of("w")
    assert not case.says


@pytest.mark.feature("SCH-FW-13")
def test_what_drags_on_is_warned_of(caplog: Any) -> None:
    case = Case(caplog, deleting_retries=1, deletion=5.0, reschedule=1.0, interval=60.0)
    audit = case.audit
    audit.pod_seen(case.pod, "w", 0.0)
    audit.failed(case.pod, (case.victim,), preempted_in_vain=False, now=1.0)
    audit.failed(case.pod, (), preempted_in_vain=False, now=2.0)
    audit.failed(case.pod, (), preempted_in_vain=False, now=3.0)
    audit.pod_gone("v", 10.0)
    audit.failed(case.pod, (), preempted_in_vain=True, now=11.0)
    assert case.value("preemption_invalidations_total") == 1.0
    assert case.value("preemption_cycle_interrupted_seconds_sum") == 10.0
    audit.failed(case.pod, (case.victim,), preempted_in_vain=False, now=12.0)
    audit.failed(case.pod, (case.victim,), preempted_in_vain=False, now=13.0)
    assert case.value("repeated_preemptions_total") == 1.0
    audit.pod_gone("v", 14.0)
    audit.scheduled(case.pod, 90.0)
    said = "\n".join(case.says)
    for text in ("still terminate after 2 attempts", "took 9.0 s to go", "room is made for it once more",
                 "nothing happened for 76 s", "scheduled 76.0 s after its victims were gone"):  # fmt: skip
        assert text in said


@pytest.mark.feature("SCH-FW-13")
def test_foreign_and_running_pods_are_left_out_and_nothing_is_kept_when_it_is_off(caplog: Any) -> None:
    case = Case(caplog)
    case.audit.pod_seen(case.parse("f", scheduler="other"), "f", 0.0)
    case.audit.pod_seen(case.parse("r", node="n"), "r", 0.0)
    assert not case.audit.events_of("f")
    assert not case.audit.events_of("r")
    off = Audit(Thresholds(), [testing.SCHEDULER], CollectorRegistry())
    off.pod_seen(case.pod, "w", 0.0)
    off.record("w", Event.GATED, 0.0)
    assert not off.events_of("w")


@pytest.mark.feature("SCH-FW-13")
def test_metric_labels_are_read() -> None:
    assert metric_labels(("team=example.com/team", "x=y")) == (("team", "example.com/team"), ("x", "y"))
    for wrong in (("team",), ("a-b=c",), ("priority=x",), ("a=b", "a=c")):
        with pytest.raises(ValueError, match="accepted: name=pod-label-key"):
            metric_labels(wrong)


@pytest.mark.feature("SCH-FW-13")
def test_gangs_and_preemption_are_audited(gangs: Any) -> None:
    async def run() -> None:
        options = {"audit": Thresholds(enabled=True)}
        async with (
            gangs(nodes=("4",), options=options, enablePreemption=True, post_filter=("Coscheduling",)) as g,
            aiohttp.ClientSession() as session,
        ):
            await g.priority("high", 1000)
            await g.live.pod("low", cpu="4", nodeName="n0", terminationGracePeriodSeconds=0)
            await g.group("job", 2)
            for number in range(2):
                await g.member(f"p{number}", "job", cpu="2", priorityClassName="high")
            await g.bound("p0", "p1")
            for _ in patience.tries(200):
                metrics = await (await session.get(f"{g.live.ops.url}/metrics")).text()
                if 'outcome="scheduled"' in metrics:
                    break
                await asyncio.sleep(0.02)
            base = "scheduler_workload_auditor_"
            assert f'{base}preemption_to_victim_deleted_seconds_count{{priority="1000"}} 1.0' in metrics
            assert f'{base}victim_reschedule_duration_seconds_count{{priority="1000"}} 1.0' in metrics
            for event in ("create", "gangMinMemberSatisfied", "preemptNominated", "victimAllDeleted", "scheduleFailure"):
                assert f'event_type="{event}",outcome="scheduled",priority="1000"' in metrics, event
            assert "low" not in {p["metadata"]["name"] for p in (await g.client.list(PODS, "default")).items}

    asyncio.run(run())
