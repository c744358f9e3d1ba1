"""`report.md`: what the demo measured, in plain words and a table. Every number comes from the run; nothing is claimed beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roles.sandbox.measure import PhaseResult, contradiction, merge_steps
from roles.sandbox.others import too_busy
from roles.tools.headline import cpus

TITLES: Mapping[str, str] = {
    "alone": "service alone",
    "unmanaged": "with batch, unmanaged",
    "shares": "with batch, BestEffort",
    "koord": "with batch under koord",
}
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
    modelled: str = ""
    """Why the figures are calculated and not measured; empty when they are measured."""
    others_at_start: float = 0.0
    """CPU that others used before anything ran, in cores."""
    decisions: Sequence[str] = field(default_factory=tuple)
    """What koord decided on the node, in its own words, oldest first."""


def ordered(phases: Sequence[PhaseResult]) -> list[PhaseResult]:
    """Phases in the order in which a reader compares them, whatever order they ran in."""
    return sorted(phases, key=lambda p: ORDER.index(p.kind))


def render(facts: Facts, phases: Sequence[PhaseResult], plot: str | None) -> str:
    """The whole report as Markdown. `plot` is the file name of the chart beside it."""
    shown = ordered(phases)
    parts = [f"# {facts.title}", "", verdict(facts, shown), "", _machine(facts), ""]
    if shown:
        parts += [_summary(facts, shown), ""]
        if plot:
            parts += [f"![Service latency and CPU in each phase]({plot})", ""]
        parts += ["## Service latency", "", _latency_table(shown), ""]
        parts += ["## The machine", "", _machine_table(facts, shown), ""]
        parts += ["## Reaction to a load step", "", _reactions(shown), ""]
    if facts.decisions:
        parts += ["## What koord decided", "", *(f"* {line}" for line in facts.decisions), ""]
    parts += ["## Simulated nodes", "", simulated(facts), ""]
    parts += ["## After the run", "", _restored(facts), ""]
    if facts.notes:
        parts += ["## Notes", "", *(f"* {note}" for note in facts.notes), ""]
    if shown:
        parts += ["## How it was measured" if not facts.modelled else "## How it was calculated", "", _method(facts, shown), ""]
    return "\n".join(parts)


ENDED = "The run ended"
"""How the note begins that says why not all phases are there."""


def verdict(facts: Facts, phases: Sequence[PhaseResult]) -> str:
    """What came of it, in one paragraph: whether it was measured, what batch jobs cost the service, and whether to believe it."""
    by_kind = _by_kind(phases)
    parts = []
    if facts.modelled:
        parts.append(f"Calculated, not measured: {facts.modelled}.")
    elif phases:
        machine = f"{facts.cpus} {'CPU' if facts.cpus == 1 else 'CPUs'}"
        parts.append(f"Measured on this machine ({machine}, {facts.others_at_start:.1f} of them used by others at the start).")
    parts += [note for note in facts.notes if note.startswith(ENDED)]
    doubts = distrust(facts, phases) if not facts.modelled else []
    if doubts:
        parts.append(f"Do not trust these figures: {'; '.join(doubts)}. Run it again when the machine is quiet.")
    parts += _comparison(by_kind, facts.cpus)
    return " ".join(parts) or "Nothing was measured; the notes say why."


def _comparison(by_kind: Mapping[str, PhaseResult], cpus: int) -> list[str]:
    """The service's p99 at its highest rate through the phases, as sentences."""
    alone, without, koord = (by_kind.get(kind) for kind in ("alone", "unmanaged", "koord"))
    if without is None:
        without = by_kind.get("shares")
    base = alone.peak() if alone is not None else None
    said = []
    if base is not None:
        said.append(f"Alone, the service answered {base.rate:g} requests/s with a p99 of {base.p99:.1f} ms.")
    if without is not None and (peak := without.peak()) is not None:
        beside = f"{without.batch_pods} batch {'pod' if without.batch_pods == 1 else 'pods'}{_requesting(without)}"
        said.append(f"Beside {beside}, unmanaged, it was {peak.p99:.1f} ms.")
    if koord is not None and (peak := koord.peak()) is not None:
        same = without is not None and (koord.batch_pods, koord.request_milli) == (without.batch_pods, without.request_milli)
        who = "the same jobs with the same requests" if same else f"{koord.batch_pods} batch pods{_requesting(koord)}"
        work = f", and they did {100 * koord.work_units / without.work_units:.0f} % of that work" if without and without.work_units else ""
        said.append(f"Under koord, beside {who}, it was {peak.p99:.1f} ms{work}.")
        if alone is not None:
            said.append(f"The CPUs were {koord.node_utilisation(cpus):.0f} % busy instead of {alone.node_utilisation(cpus):.0f} %.")
    return said


def _requesting(phase: PhaseResult) -> str:
    return f" that request {phase.request_milli}m of CPU each" if phase.request_milli else " that request nothing"


def distrust(facts: Facts, phases: Sequence[PhaseResult]) -> list[str]:
    """Why the figures are not to be believed, one reason each; empty when nothing speaks against them."""
    found = []
    if phases and too_busy(facts.others_at_start, facts.cpus):
        found.append(f"others used {facts.others_at_start:.1f} of {facts.cpus} CPUs before the start")
    for phase in phases:
        if phase.disturbed():
            tries = f", after {phase.attempts} tries" if phase.attempts > 1 else ""
            found.append(
                f"others used the CPUs in {phase.noisy_seconds()} of {len(phase.others())} seconds of the phase "
                f"“{TITLES[phase.kind]}”{tries}"
            )
    if contradiction(phases):
        found.append("the service was slower alone than beside batch jobs, which only something else can have caused")
    return found


def _machine(facts: Facts) -> str:
    if facts.modelled:
        return f"{facts.date}; Linux {facts.kernel}. The node of these figures has {facts.cpus} CPUs and exists on paper only."
    if not facts.cpus:
        return f"{facts.date}; Linux {facts.kernel}. This machine was not used as a node."
    return (
        f"{facts.date}; Linux {facts.kernel}, {facts.cpus} CPUs, {facts.memory / 2**30:.1f} GiB, "
        f"cgroup v{facts.cgroup_version}. All roles of koord ran in one process beside the workloads."
    )


def _by_kind(phases: Sequence[PhaseResult]) -> dict[str, PhaseResult]:
    return {p.kind: p for p in phases}


def _summary(facts: Facts, phases: Sequence[PhaseResult]) -> str:
    by_kind = _by_kind(phases)
    lines = []
    for phase in phases:
        peak = phase.peak()
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


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """A table in Markdown; what stands in the columns after the first `words` is numbers."""
    out = ["| " + " | ".join(head) + " |", "|" + "|".join(" --- " if i < words else " ---: " for i in range(len(head))) + "|"]
    out += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(out)


def _latency_table(phases: Sequence[PhaseResult]) -> str:
    rows = []
    for phase in phases:
        for step in merge_steps(phase.steps):
            cells = [f"{value:.2f}" for value in (step.p50, step.p95, step.p99, step.max)]
            rows.append([TITLES[phase.kind], f"{step.rate:g}", str(step.count), str(step.errors), *cells])
    head = ["Phase", "requests/s", "answered", "errors", "p50 ms", "p95 ms", "p99 ms", "max ms"]
    return table(head, rows) + "\n\nWhere a rate occurs in several steps of a phase, the worst step counts."


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
    unit = "milliseconds of CPU" if facts.modelled else "10,000 loop iterations"
    return (
        table(head, rows)
        + "\n\nOther CPU is what ran outside the pods, in cores: koord itself, the API server and whatever else this machine does. "
        + f"Batch work counts units of {unit}; batch CPU is the mean in cores; batch-cpu is in milli-CPU."
    )


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
        table(head, rows) + "\n\nCPU in cores: the mean of the 3 s before the step, and of 1–8 s after it. "
        "Half of the fall is the middle of both, reached over 0.2 s and held for a second."
    )


def simulated(facts: Facts) -> str:
    """What the simulated nodes did, in a sentence."""
    if facts.simulated_nodes == 0:
        return "There were none in this run."
    return (
        f"{facts.simulated_nodes} simulated nodes reported usage by their curves; the manager offered "
        f"{cpus(facts.simulated_batch_cpu)} CPUs to batch pods on them, and {facts.simulated_bound} pods ran there."
    )


def _restored(facts: Facts) -> str:
    if facts.restored is None:
        return "This machine was not used as a node, so nothing had to be restored."
    if facts.restored:
        return "Every process was ended and every cgroup of the run was removed."
    return "**Some cgroups of the run could not be removed**; `koord sandbox clean` tries again."


def _method(facts: Facts, phases: Sequence[PhaseResult]) -> str:
    order = ", ".join(TITLES[p.kind] for p in sorted(phases, key=lambda p: p.begin))
    if facts.modelled:
        source = (
            "The CPUs are a model of Linux' fair scheduler (weights, ticks, the best-effort tier's quota; no caches, no memory bandwidth), "
            "the same at every run. The node's batch-cpu comes from the manager's formula, the quota from koordlet's strategy. "
        )
    else:
        source = (
            "The load generator is open-loop: requests leave at fixed times, and latency counts from the planned time, so waiting is never "
            f"hidden. Each request costs the service {facts.iterations:,} loop iterations. CPU busy is the whole machine, the sandbox's "
            "own control plane and others included. A phase in which others use more than at the start, for more than one "
            "second in twenty, is measured again. "
        )
    return (
        f"The phases ran in this order: {order}. {source}Unmanaged means the same jobs with the same requests as ordinary pods, put on "
        "the node directly, with co-location and suppression switched off; BestEffort means that they request nothing. Under koord they "
        f"come from a namespace that a ClusterColocationProfile selects. BE is held to what the rest leaves below "
        f"{facts.suppress_threshold} % of the node."
    )
