"""The live view on a terminal (rich), or a line at each change anywhere else."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from roles.sandbox.view.frame import Frame, SimulatedNode, changes, number, others, plain, suppression

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

PLAIN_SECONDS = 2.0
BAR = 40
LEAST_ROWS = 6
HEAD_LINES = 14
"""Lines above the nodes."""
HISTORY = 60
HISTORY_SECONDS = 0.5
SPARKS = "▁▂▃▄▅▆▇█"
# A sign of its own for each tier: colour alone would not do. The colours are Okabe and Ito's.
TIERS = (("service", "█", "#0072B2"), ("batch", "▓", "#E69F00"), ("others", "▒", "#999999"), ("free", "·", "dim"))


class View(Protocol):
    """Something that shows frames."""

    def show(self, frame: Frame) -> None: ...

    def say(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None: ...


def open_view(out: TextIO | None = None) -> View:
    """The live view when `out` (stdout) is a terminal, plain lines otherwise."""
    out = out or sys.stdout
    return LiveView(out) if out.isatty() else PlainView(out)


class PlainView:
    """A line at each change: at once when the phase changes, else every two seconds at most."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self._last: tuple[float, tuple[object, ...]] | None = None

    def show(self, frame: Frame) -> None:
        now = changes(frame)
        if self._last is not None:
            at, before = self._last
            if now == before or (now[0] == before[0] and frame.elapsed - at < PLAIN_SECONDS):
                return
        self._last = (frame.elapsed, now)
        self.say(plain(frame))

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def close(self) -> None:
        self.out.flush()


class History:
    """The last half minute of what a line can show."""

    def __init__(self) -> None:
        self.p99: deque[float | None] = deque(maxlen=HISTORY)
        self.batch: deque[float | None] = deque(maxlen=HISTORY)
        self._at = -HISTORY_SECONDS

    def take(self, frame: Frame) -> None:
        if frame.elapsed - self._at >= HISTORY_SECONDS:
            self._at = frame.elapsed
            self.p99.append(frame.p99)
            self.batch.append(frame.batch_cpu_used)


class LiveView:
    """A screen that is drawn anew four times a second."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self.live: Live = Live(console=Console(file=out), refresh_per_second=4, transient=False, auto_refresh=False)
        self.history = History()
        self.live.start()

    def show(self, frame: Frame) -> None:
        self.history.take(frame)
        size = self.live.console.size
        self.live.update(render(frame, self.history, size.width, size.height), refresh=True)

    def say(self, text: str) -> None:
        self.live.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self.live.stop()


def sparkline(values: Sequence[float | None], top: float | None = None) -> str:
    """Values as a line of eight heights, blanks where there was none."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    most = top if top is not None else max(known)
    step = most / (len(SPARKS) - 1) if most > 0 else 1.0
    return "".join(" " if value is None else SPARKS[min(max(round(value / step), 0), len(SPARKS) - 1)] for value in values)


def stacked(parts: Sequence[float], whole: float, width: int = BAR) -> list[int]:
    """Characters of each part and of what is free, `width` together."""
    sizes: list[int] = []
    for part in parts:
        left = width - sum(sizes)
        sizes.append(min(max(round(width * min(part / whole, 1.0)), 0), left) if whole > 0 else 0)
    return [*sizes, width - sum(sizes)]


def render(frame: Frame, history: History | None = None, width: int = 80, height: int = 40) -> RenderableType:
    """The frame as a rich renderable that fits into so many columns and lines."""
    from rich.console import Group
    from rich.text import Text

    left = f", {frame.phase_left:.0f} s left" if frame.phase_left is not None else ""
    parts: list[RenderableType] = [Text(f"koord sandbox  {frame.elapsed:.0f} s  {frame.phase}{left}", style="bold")]
    if frame.phases:
        parts.append(_strip(frame))
    if frame.cpus:
        parts += _machine(frame, history or History())
    if frame.last_decision:
        parts.append(Text(frame.last_decision, style="dim", no_wrap=True, overflow="ellipsis"))
    if frame.nodes:
        parts.append(_nodes(frame, width, max(height - HEAD_LINES, LEAST_ROWS)))
    return Group(*parts)


def _strip(frame: Frame) -> RenderableType:
    """The phases: those that are over with their p99, the one that runs, those to come."""
    from rich.text import Text

    line = Text("p99  ")
    for index, (title, p99) in enumerate(frame.phases):
        if index:
            line.append("  →  ", style="dim")
        running = p99 is None and frame.phase == title
        line.append(
            f"{title} {'…' if running else number(p99, '.1f') + ' ms' if p99 is not None else ''}".rstrip(), style="bold" if running else ""
        )
    return line


def _machine(frame: Frame, history: History) -> list[RenderableType]:
    """All CPU of the machine by tier in one bar, then what batch pods get, and the service's latency with its history."""
    from rich.text import Text

    used = (frame.service_cpu or 0.0, frame.batch_cpu_used or 0.0, others(frame) or 0.0)
    bar = Text("CPU       ")
    for (_, character, colour), size in zip(TIERS, stacked(used, frame.cpus), strict=True):
        bar.append(character * size, style=colour)
    bar.append(f" {number(frame.node_busy, '.1f')} of {frame.cpus}")
    legend = Text("          ")
    for (name, character, colour), value in zip(TIERS, (*used, max(frame.cpus - sum(used), 0.0)), strict=True):
        legend.append(character, style=colour)
        legend.append(f" {name} {value:.2f}  ")
    offered = "not offered" if frame.batch_cpu is None else f"{frame.batch_cpu / 1000:.2f} CPUs offered"
    pods = f"{frame.batch_pods} {'pod' if frame.batch_pods == 1 else 'pods'}"
    batch = Text(f"batch     {offered}, limit {suppression(frame)}, {pods}, {frame.evictions} evicted")
    latency = Text(
        f"latency   p50 {number(frame.p50, '.1f')} ms   p99 {number(frame.p99, '.1f')} ms   at {number(frame.load_rate, 'g')} requests/s"
    )
    lines: list[RenderableType] = [bar, legend, batch, latency]
    for name, values, colour in (("p99", history.p99, TIERS[0][2]), ("batch CPU", history.batch, TIERS[1][2])):
        if drawn := sparkline(list(values)):
            lines.append(Text.assemble((f"{name:10}", "dim"), (drawn, colour)))
    return lines


def _nodes(frame: Frame, width: int, rows: int) -> RenderableType:
    """Simulated nodes, the hottest first, as many as there is room for; the rest as a sum."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), pad_edge=False)
    placed = any(node.place or node.jobs for node in frame.nodes)
    roomy = width >= 80 and not placed
    for head in (
        "simulated node",
        *(("# used  + offered",) if roomy else ()),
        "CPU used",
        "offered",
        "pods",
        *(("place", "jobs") if placed else ()),
    ):
        table.add_column(head, justify="right" if head in ("CPU used", "offered", "pods") else "left", no_wrap=True)
    ordered = sorted(frame.nodes, key=lambda node: (-(node.used or 0.0) / max(node.cpus, 1), node.name)) if not placed else frame.nodes
    shown = ordered if len(ordered) <= rows else ordered[: rows - 1]
    for node in shown:
        cells = [Text(node.name), *((_bar(node),) if roomy else ())]
        offered = "–" if node.batch_cpu is None else f"{node.batch_cpu / 1000:.1f}"
        cells += [Text(f"{number(node.used, '.1f')}/{node.cpus}"), Text(offered), Text(str(node.pods))]
        cells += [Text(node.place), Text(node.jobs)] if placed else []
        table.add_row(*cells)
    if rest := ordered[len(shown) :]:
        used, batch = sum(node.used or 0.0 for node in rest), sum(node.batch_cpu or 0 for node in rest) / 1000
        sums = [f"{used:.1f}/{sum(node.cpus for node in rest)}", f"{batch:.1f}", str(sum(node.pods for node in rest))]
        table.add_row(f"and {len(rest)} more", *([""] if roomy else []), *sums)
    return table


def _bar(node: SimulatedNode) -> RenderableType:
    from rich.text import Text

    used, offered, free = stacked([node.used or 0.0, (node.batch_cpu or 0) / 1000], node.cpus, 24)
    hot = (node.used or 0.0) >= 0.65 * node.cpus
    bar = Text("#" * used, style="#D55E00" if hot else TIERS[0][2])
    bar.append("+" * offered, style=TIERS[1][2])
    bar.append("." * free, style="dim")
    return bar.append(" hot" if hot else "")
