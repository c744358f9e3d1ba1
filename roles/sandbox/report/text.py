"""`report.md`: what the demo measured, in plain words and a table. Every number comes from the run; nothing is claimed beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roles.sandbox.measure import PhaseResult, StepResult, merge_steps

TITLES: Mapping[str, str] = {
    "alone": "service alone",
    "unmanaged": "with batch, unmanaged",
    "shares": "with batch, BestEffort",
    "koord": "with batch under koord",
}
DISTURBED_CORES = 0.5
"""The sandbox's own control plane stays well below this; more than that comes from elsewhere and shows in every figure."""
ORDER = ("alone", "unmanaged", "shares", "koord")


@dataclass(frozen=True, slots=True)
class Facts:
    """What stands around the numbers."""

    title: str
    date: str
    kernel: str
    cpus: int
    memory: int
    cgroup_version: int
    simulated_nodes: int
    simulated_bound: int
    simulated_batch_cpu: int
    """Sum of batch-cpu that the simulated nodes offered, milli-CPU."""
    suppress_threshold: int
    service_request: str
    iterations: int
    restored: bool | None = None
    notes: Sequence[str] = field(default_factory=tuple)


def ordered(phases: Sequence[PhaseResult]) -> list[PhaseResult]:
    """Phases in the order in which a reader compares them, whatever order they ran in."""
    return sorted(phases, key=lambda p: ORDER.index(p.kind))


def render(facts: Facts, phases: Sequence[PhaseResult], plot: str | None) -> str:
    """The whole report as Markdown. `plot` is the file name of the chart beside it."""
    shown = ordered(phases)
    parts = [f"# {facts.title}", "", _machine(facts), ""]
    if shown:
        parts += [_summary(facts, shown), ""]
        if plot:
            parts += [f"![Service latency and CPU in each phase]({plot})", ""]
        parts += ["## Service latency", "", _latency_table(shown), ""]
        parts += ["## The machine", "", _machine_table(facts, shown), ""]
        parts += ["## Reaction to a load step", "", _reactions(shown), ""]
    parts += ["## Simulated nodes", "", simulated(facts), ""]
    parts += ["## After the run", "", _restored(facts), ""]
    if facts.notes:
        parts += ["## Notes", "", *(f"* {note}" for note in facts.notes), ""]
    if shown:
        parts += ["## How it was measured", "", _method(facts, shown), ""]
    return "\n".join(parts)


def _machine(facts: Facts) -> str:
    if not facts.cpus:
        return f"{facts.date}; Linux {facts.kernel}. This machine was not used as a node: what follows is simulated, and the notes say why."
    return (
        f"{facts.date}; Linux {facts.kernel}, {facts.cpus} CPUs, {facts.memory / 2**30:.1f} GiB, "
        f"cgroup v{facts.cgroup_version}. All roles of koord ran in one process beside the workloads."
    )


def _by_kind(phases: Sequence[PhaseResult]) -> dict[str, PhaseResult]:
    return {p.kind: p for p in phases}


def _peak(phase: PhaseResult) -> StepResult | None:
    rows = merge_steps(phase.steps)
    return rows[-1] if rows else None


def _summary(facts: Facts, phases: Sequence[PhaseResult]) -> str:
    by_kind = _by_kind(phases)
    lines = []
    for phase in phases:
        peak = _peak(phase)
        latency = f"p99 {peak.p99:.1f} ms at {peak.rate:g} requests/s" if peak else "the load did not come to its end"
        busy = phase.node_utilisation(facts.cpus)
        work = f", {phase.work_units:,} units of batch work" if phase.kind != "alone" else ""
        lines.append(f"* **{TITLES[phase.kind]}**: {latency}, CPU {busy:.0f} % busy{work}.")
    koord = by_kind.get("koord")
    if koord is not None and koord.batch_cpu_offered() > 0:
        lines.append(
            f"* The service asks for {facts.service_request} CPU and mostly does not use it: koord offered "
            f"**{koord.batch_cpu_offered()} milli-CPU** of this node again as `kubernetes.io/batch-cpu`; "
            f"{koord.batch_pods} batch {'pod was' if koord.batch_pods == 1 else 'pods were'} placed on it."
        )
    reactions = koord.reactions() if koord is not None else []
    times = [r.seconds for r in reactions if r.seconds is not None]
    if reactions:
        told = f"within **{max(times):.2f} s**" if len(times) == len(reactions) else f"in {len(times)} of {len(reactions)} cases"
        cuts = [r.quota_seconds for r in reactions if r.quota_seconds is not None]
        cut = f"koordlet lowered the batch tier's quota within **{max(cuts):.2f} s** and " if len(cuts) == len(reactions) else ""
        lines.append(f"* When the service's load rose, {cut}{'its' if cut else 'the batch tier’s'} CPU had made half of its fall {told}.")
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    out = ["| " + " | ".join(head) + " |", "|" + "|".join(" --- " if i == 0 else " ---: " for i in range(len(head))) + "|"]
    out += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(out)


def _latency_table(phases: Sequence[PhaseResult]) -> str:
    rows = []
    for phase in phases:
        for step in merge_steps(phase.steps):
            cells = [f"{value:.2f}" for value in (step.p50, step.p95, step.p99, step.max)]
            rows.append([TITLES[phase.kind], f"{step.rate:g}", str(step.count), str(step.errors), *cells])
    head = ["Phase", "requests/s", "answered", "errors", "p50 ms", "p95 ms", "p99 ms", "max ms"]
    return _table(head, rows) + "\n\nWhere a rate occurs in several steps of a phase, the worst step counts."


def _machine_table(facts: Facts, phases: Sequence[PhaseResult]) -> str:
    rows = []
    for phase in phases:
        batch = phase.kind != "alone"
        rows.append(
            [
                TITLES[phase.kind],
                f"{phase.node_utilisation(facts.cpus):.0f} %",
                f"{phase.rest_cores():.2f}",
                f"{phase.work_units:,}" if batch else "–",
                str(phase.batch_pods) if batch else "–",
                f"{phase.batch_cores():.2f}" if batch else "–",
                str(phase.batch_cpu_offered()) if phase.kind == "koord" else "–",
                str(phase.evictions) if batch else "–",
            ]
        )
    head = ["Phase", "CPU busy", "other CPU", "batch work", "batch pods", "batch CPU", "batch-cpu offered", "evictions"]
    return (
        _table(head, rows)
        + "\n\nOther CPU is what ran outside the pods, in cores: koord itself, the API server and whatever else this machine does. "
        + _disturbed(phases)
        + "Batch work counts units of 10,000 loop iterations; batch CPU is the mean in cores; batch-cpu is in milli-CPU."
    )


def _disturbed(phases: Sequence[PhaseResult]) -> str:
    """A warning when other processes used enough to explain the figures by themselves."""
    loud = [f"{TITLES[p.kind]} ({p.rest_cores():.2f})" for p in phases if p.rest_cores() > DISTURBED_CORES]
    if not loud:
        return ""
    return f"**Other processes disturbed the measurement**: {', '.join(loud)}; repeat it on a quiet machine. "


def _reactions(phases: Sequence[PhaseResult]) -> str:
    koord = _by_kind(phases).get("koord")
    reactions = koord.reactions() if koord is not None else []
    if not reactions:
        return "No step up was seen while batch pods ran under koord."
    rows = []
    for index, one in enumerate(reactions, 1):
        fell = f"{one.seconds:.2f} s" if one.seconds is not None else "it did not fall"
        cut = f"{one.quota_seconds:.2f} s" if one.quota_seconds is not None else "–"
        rows.append([str(index), f"{one.before_cores:.2f}", f"{one.after_cores:.2f}", fell, cut])
    head = ["Step up", "batch CPU before", "batch CPU after", "until half of the fall", "until the quota was lowered"]
    return (
        _table(head, rows) + "\n\nCPU in cores: the mean of the 3 s before the step, and of 1–8 s after it. "
        "Half of the fall is the middle of both, reached over 0.2 s and held for a second."
    )


def verdict(facts: Facts, phases: Sequence[PhaseResult]) -> list[str]:
    """The summary as lines for a terminal."""
    plain = _summary(facts, ordered(phases)).replace("**", "").replace("`", "")
    return [line.removeprefix("* ") for line in plain.splitlines() if line.strip()]


def simulated(facts: Facts) -> str:
    """What the simulated nodes did, in a sentence."""
    if facts.simulated_nodes == 0:
        return "There were none in this run."
    return (
        f"{facts.simulated_nodes} simulated nodes reported usage by their curves; the manager offered "
        f"{facts.simulated_batch_cpu} milli-CPU of batch-cpu on them, and {facts.simulated_bound} pods ran there."
    )


def _restored(facts: Facts) -> str:
    if facts.restored is None:
        return "This machine was not used as a node, so nothing had to be restored."
    if facts.restored:
        return "Every process was ended and every cgroup of the run was removed."
    return "**Some cgroups of the run could not be removed**; `koord sandbox clean` tries again."


def _method(facts: Facts, phases: Sequence[PhaseResult]) -> str:
    order = ", ".join(TITLES[p.kind] for p in sorted(phases, key=lambda p: p.begin))
    return (
        f"The phases ran in this order: {order}. The load generator is open-loop: requests leave at fixed times, and latency counts "
        f"from the planned time, so waiting is never hidden. Each request costs the service {facts.iterations:,} loop iterations. "
        "Unmanaged means the same jobs as ordinary pods with a CPU request and no limit, put on the node directly, with co-location and "
        "suppression switched off; BestEffort means that they ask for nothing. Under koord they come from a namespace that a "
        "ClusterColocationProfile selects. BE is held to what the rest leaves below "
        f"{facts.suppress_threshold} % of the node. CPU busy is the whole machine, this sandbox's own control plane "
        "and whatever else runs here included."
    )
