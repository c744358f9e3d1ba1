"""What co-location costs a latency-sensitive service on this machine, and what each measure buys back; in real cgroups, as root.

The sandbox's scenario: an HTTP service under an open-loop load at three levels, CPU and memory burners beside it.
(a) alone, (b) with the burners as ordinary pods, (c) as BestEffort pods, which have the least CPU weight and no more, (d) held by
koordlet's suppression once a second, (e) at cpu.idle, with the pressure path, and the whole node as the threshold. Each agent
gets a sandbox of its own and its own "alone": figures of one machine move from minute to minute.
usage: bench_colocation.py [--seconds=15] [--rates=100,250,400] [--variants=d,e] [--threshold=65] [--hot-threshold=100]
       [--svg=colocation.svg]
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roles.sandbox import main, scenario
from roles.sandbox.measure import PhaseResult, StepResult
from roles.sandbox.report.svg import COLOURS, Chart, Line, document

if TYPE_CHECKING:
    from roles.sandbox.demo import Demo
    from roles.sandbox.session import Session

IDLE = {"policies": {"cpuPolicy": "coreSched"}, "beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}}}
NAMES = {
    "a": "alone",
    "b": "unmanaged",
    "c": "shares only",
    "d": "koordlet suppress",
    "e": "koordlet, pressure path, cpu.idle",
}
SHORT = {**NAMES, "e": "pressure path, cpu.idle"}
KINDS = {"alone": "a", "unmanaged": "b", "shares": "c"}
#: What a run leaves in the file that a signal ended.
STOPPED = {"stopped": True}
HEAD = "| load | how | p50 | p99 | p99 / alone | CPU busy | batch CPU | errors |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"


def option(name: str, default: str) -> str:
    return next((a.split("=", 1)[1] for a in sys.argv if a.startswith(f"--{name}=")), default)


@dataclass(frozen=True, slots=True)
class Cell:
    """One way at one load. CPU use in percent of the machine, batch CPU in cores."""

    way: str
    rate: float
    p50: float
    p99: float
    ratio: float
    busy: float
    batch: float
    errors: int

    def __str__(self) -> str:
        cells = (f"{self.rate:g} /s", f"({self.way}) {NAMES[self.way]}", f"{self.p50:.2f} ms", f"{self.p99:.2f} ms", f"{self.ratio:.2f}")
        return f"| {' | '.join(cells)} | {self.busy:.0f} % | {self.batch:.2f} | {self.errors} |"


def chosen(variant: str, rates: Sequence[float], seconds: float, phases: Sequence[scenario.PhaseKind], threshold: int) -> scenario.Scenario:
    """The demo's scenario with other load steps, phases and node agent; no simulated nodes, they only take CPU."""
    config = scenario.Scenario().slo_controller_config
    strategy = {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": threshold}
    hot = variant == "e"
    return scenario.Scenario(
        title="co-location benchmark",
        nodes=scenario.Nodes(count=0, batch_pods=0),
        batch=scenario.Batch(cpu_request="100m"),
        repeats=0,
        load=scenario.Load(steps=[scenario.LoadStep(rate=rate, seconds=seconds) for rate in rates]),
        phases=[scenario.Phase(kind=kind) for kind in phases],
        node_agent=scenario.NodeAgent(feature_gates="CoreSched=true" if hot else "", pressure_triggers=hot),
        slo_controller_config={
            **config,
            "resource-threshold-config": {"clusterStrategy": strategy},
            **({"resource-qos-config": {"clusterStrategy": IDLE}} if hot else {}),
        },
    )


def between(result: PhaseResult, begin: float, end: float, cpus: int) -> tuple[float, float]:
    """CPU use of the machine in percent, and of the batch pods in cores, between two moments."""
    inside = [s for s in result.samples if begin <= s.time <= end]
    if len(inside) < 2 or inside[-1].time <= inside[0].time:
        return float("nan"), float("nan")
    first, last = inside[0], inside[-1]
    span = last.time - first.time
    batch = ((last.batch_ns or 0) - (first.batch_ns or 0)) / 1e9 / span if first.batch_ns is not None else 0.0
    return 100 * (last.node_busy - first.node_busy) / (span * cpus), batch


def cells(way: str, result: PhaseResult, cpus: int, alone: dict[float, StepResult]) -> list[Cell]:
    """One a load level; p99 beside that of the service alone."""
    out = []
    for number, step in enumerate(result.steps):
        begin = next((t for t, index, _ in result.step_times if index == number), result.begin)
        busy, batch = between(result, begin, begin + step.seconds, cpus)
        base = alone.setdefault(step.rate, step)
        out.append(Cell(way, step.rate, step.p50, step.p99, step.p99 / base.p99 if base.p99 else float("nan"), busy, batch, step.errors))
    return out


def chart(table: Sequence[Cell]) -> str:
    """The 99th percentile above, the use of the machine below, by load; a line a way."""
    ways = sorted({cell.way for cell in table})

    def lines(pick: str) -> list[Line]:
        return [
            Line(f"({way}) {SHORT[way]}", [(c.rate, getattr(c, pick)) for c in table if c.way == way], COLOURS[number], dashed=way == "a")
            for number, way in enumerate(ways)
        ]

    return document(
        [
            Chart("p99", "requests/s", "ms", lines("p99"), log_y=True),
            Chart("CPU busy", "requests/s", "percent of the machine", lines("busy"), y_min=0.0),
        ]
    )


def run(rates: Sequence[float], seconds: float, variants: Sequence[str], thresholds: dict[str, int], svg: Path) -> int:
    """A sandbox for each agent, the phases without koord in the first one; prints one table at the end. Returns the exit code."""
    status = 0
    lines: list[dict[str, Any]] = []
    with tempfile.NamedTemporaryFile("a+", prefix="koord-bench-") as file:
        for number, variant in enumerate(variants):
            phases: Sequence[scenario.PhaseKind] = ("alone", "unmanaged", "shares", "koord") if number == 0 else ("alone", "koord")
            wanted = chosen(variant, rates, seconds, phases, thresholds[variant])
            # what the sandbox says meanwhile is for a reader at the terminal, not part of the table
            with contextlib.redirect_stdout(sys.stderr):
                status = main.phases(main.Settings(None, 0, True, False, 0), wanted, teller(variant, file.name)) or status
            file.seek(0)
            lines = [json.loads(line) for line in file]
            if STOPPED in lines:
                status = status or 130
                break
        table = [Cell(**line) for line in lines if line != STOPPED]
    print("\n".join([HEAD, *map(str, table)]), flush=True)
    if table:
        first = table.index(next(c for c in table if c.way == "a"))
        drawn = [c for c in table if c.way != "a" or table.index(c) < first + len(rates)]
        svg.write_text(chart(sorted(drawn, key=lambda c: (c.way, c.rate))))
        print(f"\nchart: {svg}", flush=True)
    return status


def teller(variant: str, path: str) -> Callable[[Demo, Session], None]:
    """Writes what was measured into a file: a sandbox runs in a process of its own, so that another one can clean up after it."""

    def tell(show: Demo, session: Session) -> None:
        alone: dict[float, StepResult] = {}
        found = [c for r in show.results for c in cells(KINDS.get(r.kind, variant), r, show.cpus, alone)]
        with open(path, "a") as file:
            file.writelines(json.dumps(asdict(c)) + "\n" for c in found)
            if not session.errors and len([r for r in show.results if r.steps]) < len(session.scenario.phases):
                file.write(json.dumps(STOPPED) + "\n")
        for note in show.notes:
            print(f"note: {note}", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    chosen_variants = option("variants", "d,e").split(",")
    if not set(chosen_variants) <= {"d", "e"}:
        sys.exit(f"--variants: d and e are known, not {','.join(chosen_variants)}")
    sys.exit(
        run(
            [float(r) for r in option("rates", "100,250,400").split(",")],
            float(option("seconds", "15")),
            chosen_variants,
            {"d": int(option("threshold", "65")), "e": int(option("hot-threshold", "100"))},
            Path(option("svg", "colocation.svg")),
        )
    )
