"""What co-location costs a latency-sensitive service on this machine: alone, with unmanaged batch jobs, and with the same jobs under koord.

The sandbox's scenario in real cgroups, as root: an HTTP service under an open-loop load at three levels, CPU and memory burners beside it.
usage: bench_colocation.py [--seconds=N] [--rates=100,250,400] [--policies=cfsQuota,cpuset] [--threshold=65]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roles.sandbox import main, scenario
from roles.sandbox.measure import PhaseResult

if TYPE_CHECKING:
    from roles.sandbox.demo import Demo


def option(name: str, default: str) -> str:
    return next((a.split("=", 1)[1] for a in sys.argv if a.startswith(f"--{name}=")), default)


def chosen(rates: Sequence[float], seconds: float, policy: str, threshold: int, phases: Sequence[scenario.PhaseKind]) -> scenario.Scenario:
    """The demo's scenario with other load steps, phases and suppress policy; no simulated nodes, they only take CPU."""
    config = scenario.Scenario().slo_controller_config
    strategy = {
        **config["resource-threshold-config"]["clusterStrategy"],
        "cpuSuppressPolicy": policy,
        "cpuSuppressThresholdPercent": threshold,
    }
    return scenario.Scenario(
        title="co-location benchmark",
        nodes=scenario.Nodes(count=0, batch_pods=0),
        load=scenario.Load(steps=[scenario.LoadStep(rate=rate, seconds=seconds) for rate in rates]),
        phases=[scenario.Phase(kind=kind) for kind in phases],
        slo_controller_config={**config, "resource-threshold-config": {"clusterStrategy": strategy}},
    )


def busy(result: PhaseResult, begin: float, end: float, cpus: int) -> float:
    """CPU utilisation of the machine between two moments, percent."""
    inside = [s for s in result.samples if begin <= s.time <= end]
    if len(inside) < 2 or inside[-1].time <= inside[0].time:
        return float("nan")
    return 100 * (inside[-1].node_busy - inside[0].node_busy) / ((inside[-1].time - inside[0].time) * cpus)


def rows(name: str, result: PhaseResult, cpus: int, alone: dict[float, float]) -> list[str]:
    """One line a load level; p99 beside that of the service alone."""
    out = []
    for number, step in enumerate(result.steps):
        begin = next((t for t, index, _ in result.step_times if index == number), result.begin)
        used = busy(result, begin, begin + step.seconds, cpus)
        alone.setdefault(step.rate, step.p99)
        ratio = step.p99 / alone[step.rate] if alone[step.rate] else float("nan")
        errors = f", {step.errors} errors" if step.errors else ""
        cells = (f"{step.rate:g} /s", name, f"{step.p50:.2f} ms", f"{step.p99:.2f} ms", f"{ratio:.2f}", f"{used:.0f} %")
        out.append(f"| {' | '.join(cells)} | {result.work_units}{errors} |")
    return out


HEAD = "| load | how | p50 | p99 | p99 / alone | CPU busy | batch work in the phase |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |"


def run(rates: Sequence[float], seconds: float, policies: Sequence[str], threshold: int) -> int:
    """A run a policy, the unmanaged phase in the first one only; prints the table as it grows. Returns the exit code."""
    alone: dict[float, float] = {}

    def tell(show: Demo, session: Any) -> None:
        lines = []
        for result in show.results:
            name = {"alone": "alone", "unmanaged": "unmanaged"}.get(result.kind, f"koord, {policy}")
            lines += rows(name, result, show.cpus, alone)
        print("\n".join([*([HEAD] if first else []), *lines]), flush=True)
        for note in show.notes:
            print(f"note: {note}", file=sys.stderr, flush=True)

    status = 0
    for number, policy in enumerate(policies):
        first = number == 0
        # every run has its own "alone": figures of one machine move from minute to minute
        phases: Sequence[scenario.PhaseKind] = ("alone", "unmanaged", "koord") if first else ("alone", "koord")
        alone.clear()
        wanted = chosen(rates, seconds, policy, threshold, phases)
        status = status or main.phases(main.Settings(None, 0, True, False, 0), wanted, tell)
    return status


if __name__ == "__main__":
    sys.exit(
        run(
            [float(r) for r in option("rates", "100,250,400").split(",")],
            float(option("seconds", "10")),
            option("policies", "cfsQuota,cpuset").split(","),
            int(option("threshold", "65")),
        )
    )
