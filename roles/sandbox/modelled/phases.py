"""The demo's phases on a calculated node: the same load, the same jobs, koord's own decisions; a model of CPU time in place of the CPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koord.api.quantity import parse_milli
from roles.sandbox.measure import PhaseResult, Sample, StepResult, Tick
from roles.sandbox.modelled.deciding import PERIOD_US, Agent, listed, offered
from roles.sandbox.modelled.fairshare import NORMAL, QUANTUM, Machine, Process
from roles.sandbox.scenario import PhaseKind, Scenario
from roles.sandbox.sizing import request_of_each
from roles.sandbox.workload.load import Step, plan, summary

CPUS = 2
MOST_STEP_SECONDS = 5.0
MOST_STEPS, MOST_JOBS, MOST_REQUESTS = 8, 8, 2000.0
"""What is calculated of a scenario for a larger machine: the node is small, and nobody waits for it."""
SAMPLE = 0.05
TICK = 1.0
BEST_EFFORT_SHARES = 2
"""cpu.shares of the best-effort tier, as kubelets write it."""
UNIX = 1_700_000_000.0


@dataclass(slots=True)
class _Answers:
    """Latencies in seconds, since the last tick and by step."""

    second: list[float] = field(default_factory=list)
    step: list[list[float]] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)

    def take(self, at: float, latency: float) -> None:
        self.second.append(latency)
        planned = at - latency
        index = next((i for i, end in enumerate(self.bounds) if planned < end), len(self.bounds) - 1)
        self.step[index].append(latency)


class Modelled:
    """All phases of a scenario on a node of two CPUs, one after the other in virtual time; the same figures at every run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        steps = scenario.load.steps[:MOST_STEPS]
        self.steps = [Step(min(step.rate, MOST_REQUESTS), min(step.seconds, MOST_STEP_SECONDS)) for step in steps]
        self.service_request = min(parse_milli(scenario.service.cpu_request), CPUS * 1000)
        self.used_alone = 0.0
        self.offer = 0
        self.each = request_of_each(scenario.batch, None)
        self.results: list[PhaseResult] = []
        self.decisions: list[str] = []

    def run(self) -> list[PhaseResult]:
        """The phases in the scenario's order. The requests of the jobs are what fits into koord's offer, and the same in every phase."""
        kinds: list[PhaseKind] = [phase.kind for phase in self.scenario.phases]
        for kind in sorted(kinds, key=lambda kind: kind not in ("alone", "koord")):
            self.results.append(self._phase(kind))
        return self.results

    def _phase(self, kind: PhaseKind) -> PhaseResult:
        began = self.results[-1].end if self.results else 0.0
        answers = _Answers(step=[[] for _ in self.steps])
        machine = Machine(CPUS, answers.take)
        workers = [Process(self.service_request * NORMAL / 1000 / CPUS) for _ in range(CPUS)]
        machine.place(workers)
        if kind == "koord":
            strategy = self.scenario.slo_controller_config.get("colocation-config", {})
            self.offer = offered(CPUS, int(strategy.get("cpuReclaimThresholdPercent", 60)), self.used_alone)
            self.each = request_of_each(self.scenario.batch, self.offer)
        jobs = self._jobs(kind)
        result = PhaseResult(kind, began, batch_pods=len(jobs), request_milli=0 if kind == "shares" else self.each)
        with tempfile.TemporaryDirectory(prefix="koord-modelled-") as directory:
            threshold: dict[str, Any] = self.scenario.slo_controller_config.get("resource-threshold-config", {}).get("clusterStrategy", {})
            pods = [listed("shop", "shop", "shop", "LS"), *(listed(f"cpu-{i}", "batch", f"cpu-{i}", "BE") for i in range(len(jobs)))]
            policy = {**threshold, "cpuSuppressPolicy": "cfsQuota"}
            agent = Agent(Path(directory), "modelled", CPUS, policy, pods) if kind == "koord" else None
            self._load(machine, workers, jobs, agent, answers, result)
        if agent is not None:
            self.decisions = [
                f"{record.time - UNIX:.0f} s into the phase: {record.message}" for record in agent.records if record.subject.kind == "Node"
            ]
        seconds = machine.now
        if kind == "alone":
            self.used_alone = sum(one.used for one in workers) / seconds
        result.end = began + seconds
        result.work_units = round(1000 * sum(one.used for one in jobs))
        result.steps = [
            StepResult(rate=step.rate, seconds=step.seconds, **summary(latencies, 0))
            for step, latencies in zip(self.steps, answers.step, strict=True)
        ]
        return result

    def _jobs(self, kind: PhaseKind) -> list[Process]:
        """The batch jobs: ordinary pods weigh what they request, best-effort ones share the little that their tier weighs."""
        if kind == "alone":
            return []
        count = min(self.scenario.batch.cpu_burners, MOST_JOBS)
        if kind == "unmanaged":
            return [Process(self.each * NORMAL / 1000, batch=True) for _ in range(count)]
        return [Process(BEST_EFFORT_SHARES / max(count, 1), batch=True, limited=kind == "koord") for _ in range(count)]

    def _load(
        self, machine: Machine, workers: Sequence[Process], jobs: Sequence[Process], agent: Agent | None, answers: _Answers,
        result: PhaseResult,
    ) -> None:  # fmt: skip
        """Let the load run: jobs are there from its beginning, koordlet looks once a second, counters are sampled as on a machine."""
        machine.place(jobs)
        work = self.scenario.service.cpu_milliseconds_per_request / 1000
        departures = plan(self.steps)
        total = 0.0
        for step in self.steps:
            total += step.seconds
            answers.bounds.append(total)
        begin, sent, step_now = result.begin, 0, -1
        used = [0.0, 0.0]
        count, ticks = 0, round(TICK / QUANTUM)
        samples = round(SAMPLE / QUANTUM)
        while count * QUANTUM < total:
            while sent < len(departures) and departures[sent][0] <= machine.now:
                planned, index = departures[sent]
                if index != step_now:
                    step_now = index
                    result.step_times.append((begin + planned, index, self.steps[index].rate))
                machine.request(workers[sent % len(workers)], planned, work)
                sent += 1
            if count % samples == 0:
                result.samples.append(self._sample(machine, workers, jobs, begin, result.kind))
            machine.step()
            count += 1
            if count % ticks == 0:
                told = summary(answers.second, 0)
                result.ticks.append(Tick(begin + machine.now, step_now, told["count"], 0, told["p50"], told["p99"]))
                answers.second.clear()
                now = [sum(one.used for one in workers), sum(one.used for one in jobs)]
                if agent is not None:
                    machine.quota = agent.decide(UNIX + machine.now, now[0] - used[0], now[1] - used[1])
                used = now
        # What has no answer yet has waited at least so long.
        for one in workers:
            for planned, _ in one.queue:
                answers.take(machine.now, machine.now - planned)

    def _sample(self, machine: Machine, workers: Sequence[Process], jobs: Sequence[Process], begin: float, kind: str) -> Sample:
        service, batch = sum(one.used for one in workers), sum(one.used for one in jobs)
        koord = kind == "koord"
        return Sample(
            time=begin + machine.now,
            node_busy=service + batch,
            be_ns=round(batch * 1e9) if koord or kind == "shares" else 0,
            service_ns=round(service * 1e9),
            batch_ns=round(batch * 1e9) if jobs else None,
            pods_ns=round((service + batch) * 1e9),
            be_quota_us=-1 if machine.quota is None else round(machine.quota * PERIOD_US),
            batch_cpu=self.offer if koord else None,
        )
