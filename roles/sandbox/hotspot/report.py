"""The report and the chart of the scenario "hot spot" (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from roles.sandbox.hotspot.cluster import LOW_PERCENT
from roles.sandbox.hotspot.record import Migration, Recording
from roles.sandbox.report.svg import COLOURS, Chart, Line, document
from roles.sandbox.report.text import table

DASHES = 2
LEGEND_NODES = 8  # more names than these do not fit beside the title


def chart(recording: Recording) -> str:
    """An SVG document: utilisation of each node over time, the high threshold dashed."""
    hot = recording.hot_at_start()
    lines: list[Line] = []
    for index, node in enumerate(sorted(recording.utilisation, key=lambda name: (name not in hot, name))):
        name = node if index < LEGEND_NODES else ""
        lines.append(Line(name, recording.utilisation[node], COLOURS[index % len(COLOURS)], dashed=index // len(COLOURS) % DASHES == 1))
    times = [time for points in recording.utilisation.values() for time, _ in points]
    if times:
        lines.append(Line("high", [(min(times), recording.high), (max(times), recording.high)], "#555555", dashed=True))
    return document([Chart("CPU of each node", "seconds", "percent of the node", lines, y_min=0.0)])


def render(title: str, date: str, recording: Recording, chart: str | None, notes: Sequence[str]) -> str:
    """The report as Markdown. `chart` is the name of the chart's file beside it."""
    parts = [f"# {title}", "", f"{date}. Simulated nodes; API server, manager, scheduler and descheduler are the real ones.", ""]
    parts += [_summary(recording), ""]
    if chart:
        parts += [f"![CPU of each node over time]({chart})", ""]
    parts += ["## Nodes", "", _nodes(recording), "", "## Migrations", "", _migrations(list(recording.migrations.values())), ""]
    if notes:
        parts += ["## Notes", "", *(f"* {note}" for note in notes), ""]
    parts += ["## How it works", "", METHOD.format(low=LOW_PERCENT, high=recording.high), ""]
    return "\n".join(parts)


METHOD = """\
All pods ask for the same CPU; the pods of one workload use most of it, the others' little, so that only real usage shows which
node is hot. LowNodeLoad (low {low} %, high {high:g} %) acts on a node that stays hot for more than two rounds. For each pod that
is to leave MigrationController makes a PodMigrationJob; the scheduler reserves a place for it, with LoadAware avoiding loaded
nodes; only then is the pod evicted, and the pod that its ReplicaSet makes instead takes the reserved place. Utilisation is what
the nodes' NodeMetrics report."""


def _summary(recording: Recording) -> str:
    hot, now = recording.hot_at_start(), recording.hot_now()
    phases = Counter(one.phase for one in recording.migrations.values())
    told = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "none"
    again = recording.moved_again()
    return "\n".join(
        [
            f"* Hot at the start (above {recording.high:g} %): {', '.join(hot) or 'none'}.",
            f"* Hot at the end: {', '.join(now) or 'none'}.",
            f"* Migrations: **{len(recording.migrations)}** ({told}).",
            f"* Pods that were moved more than once: {', '.join(again) or 'none'}.",
        ]
    )


def _nodes(recording: Recording) -> str:
    away = Counter(one.source for one in recording.migrations.values() if one.phase == "Succeeded")
    came = Counter(one.target for one in recording.migrations.values() if one.phase == "Succeeded")
    rows = [
        (node, f"{recording.before(node):.0f} %", f"{recording.last(node):.0f} %", str(away[node]), str(came[node]))
        for node in sorted(recording.utilisation)
    ]
    return table(("node", "CPU before", "CPU after", "pods away", "pods taken"), rows)


def _migrations(migrations: Sequence[Migration]) -> str:
    if not migrations:
        return "None."
    head = ("PodMigrationJob", "pod", "from", "to", "replaced by", "phases")
    rows = []
    for one in migrations:
        phases = " → ".join(f"{phase} {at:.1f} s" for phase, at in one.phases)
        why = f" ({one.reason})" if one.phase == "Failed" and one.reason else ""
        rows.append((one.job, one.pod, one.source, one.target or "–", one.replacement or "–", phases + why))
    return table(head, rows, words=len(head))
