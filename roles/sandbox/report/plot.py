"""The chart of the report: latency of the service over the phases, and where the CPU went."""

from __future__ import annotations

from collections.abc import Sequence

from roles.sandbox.measure import PhaseResult, Sample
from roles.sandbox.report.svg import COLOURS, Chart, Line, Span, document
from roles.sandbox.report.text import TITLES, ordered

SMOOTH_SECONDS = 1.0
GAP_SECONDS = 2.0


def layout(phases: Sequence[PhaseResult]) -> list[tuple[PhaseResult, float]]:
    """Each phase with the offset that puts it behind the one before, in reading order and from zero."""
    placed, at = [], 0.0
    for phase in ordered(phases):
        placed.append((phase, at - phase.begin))
        at += phase.end - phase.begin + GAP_SECONDS
    return placed


def series(samples: Sequence[Sample], counter: str, scale: float) -> list[tuple[float, float]]:
    """A cumulative counter as a rate over one-second windows: (time, rate), units divided by `scale`."""
    points: list[tuple[float, float]] = []
    last: tuple[float, float] | None = None
    for one in samples:
        value = getattr(one, counter)
        if value is None:
            last = None
            continue
        if last is not None and one.time - last[0] >= SMOOTH_SECONDS:
            points.append((one.time, max(0.0, (value - last[1]) / scale / (one.time - last[0]))))
            last = (one.time, value)
        elif last is None:
            last = (one.time, value)
    return points


def charts(phases: Sequence[PhaseResult], cpus: int) -> list[Chart]:
    """Latency (logarithmic) above, CPU below."""
    placed = layout(phases)
    spans = [Span(p.begin + off, p.end + off, TITLES[p.kind]) for p, off in placed]
    latency: list[Line] = []
    usage: list[Line] = []
    for phase, off in placed:
        first = phase is placed[0][0]
        p50 = [(t.time + off, t.p50) for t in phase.ticks if t.count]
        p99 = [(t.time + off, t.p99) for t in phase.ticks if t.count]
        latency += [Line("p50" if first else "", p50, COLOURS[0]), Line("p99" if first else "", p99, COLOURS[1])]
        for name, counter, scale, colour in (
            ("whole machine", "node_busy", 1.0, "#555555"),
            ("service", "service_ns", 1e9, COLOURS[0]),
            ("batch pods", "batch_ns", 1e9, COLOURS[2]),
        ):
            points = [(time + off, value) for time, value in series(phase.samples, counter, scale)]
            usage.append(Line(name if first else "", points, colour))
        quota = [(s.time + off, s.be_quota_us / 100_000) for s in phase.samples if s.be_quota_us is not None and s.be_quota_us >= 0]
        usage.append(Line("best-effort quota" if first else "", quota, COLOURS[4], dashed=True))
    return [
        Chart("Service latency, each second", "seconds of load", "milliseconds", latency, spans, log_y=True),
        Chart(f"CPU ({cpus} in all)", "seconds of load", "cores", usage, spans, y_min=0.0),
    ]


def svg(phases: Sequence[PhaseResult], cpus: int) -> str:
    """The SVG document."""
    return document(charts(phases, cpus))
