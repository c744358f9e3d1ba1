"""The live view on a terminal (rich), or plain lines anywhere else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, TextIO

from roles.sandbox.view.frame import Frame, number, plain, suppression

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

PLAIN_SECONDS = 2.0
MAX_NODE_ROWS = 12
BAR = 28


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
    """One line every two seconds, and one at each change of phase."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self._last: tuple[float, str] | None = None

    def show(self, frame: Frame) -> None:
        if self._last is not None and self._last[1] == frame.phase and frame.elapsed - self._last[0] < PLAIN_SECONDS:
            return
        self._last = (frame.elapsed, frame.phase)
        self.say(plain(frame))

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def close(self) -> None:
        self.out.flush()


class LiveView:
    """A table that is drawn anew four times a second."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self.live: Live = Live(console=Console(file=out), refresh_per_second=4, transient=False, auto_refresh=False)
        self.live.start()

    def show(self, frame: Frame) -> None:
        self.live.update(render(frame), refresh=True)

    def say(self, text: str) -> None:
        self.live.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self.live.stop()


def bar(value: float | None, whole: float) -> str:
    """A bar of block characters for `value` out of `whole`."""
    if value is None or whole <= 0:
        return ""
    filled = min(max(round(BAR * value / whole), 0), BAR)
    return "█" * filled + "░" * (BAR - filled)


def render(frame: Frame) -> RenderableType:
    """The frame as a rich renderable."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    left = f", {frame.phase_left:.0f} s left" if frame.phase_left is not None else ""
    parts: list[RenderableType] = [Text(f"koord sandbox  {frame.elapsed:.0f} s  {frame.phase}{left}", style="bold")]
    if frame.cpus:
        table = Table(show_header=False, box=None, padding=(0, 1))
        table.add_row("node CPU", bar(frame.node_busy, frame.cpus), f"{number(frame.node_busy)} of {frame.cpus} cores")
        table.add_row("service", bar(frame.service_cpu, frame.cpus), f"{number(frame.service_cpu)} cores")
        table.add_row("best effort", bar(frame.be_cpu, frame.cpus), f"{number(frame.be_cpu)} cores, limit {suppression(frame)}")
        offered = "not offered" if frame.batch_cpu is None else f"{frame.batch_cpu} milli-CPU offered"
        table.add_row("batch-cpu", "", f"{offered}, {frame.batch_pods} batch pods, {frame.evictions} evictions")
        table.add_row("load", "", f"{number(frame.load_rate, 'g')} requests/s")
        table.add_row("latency", "", f"p50 {number(frame.p50, '.1f')} ms   p99 {number(frame.p99, '.1f')} ms")
        parts.append(table)
    if frame.last_decision:
        parts.append(Text(frame.last_decision, style="dim", no_wrap=True, overflow="ellipsis"))
    if frame.nodes:
        parts.append(_nodes(frame))
    return Group(*parts)


def _nodes(frame: Frame) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1))
    placed = any(node.place or node.jobs for node in frame.nodes)
    for head in ("simulated node", "CPU used", "batch-cpu", "pods"):
        table.add_column(head, justify="left" if head == "simulated node" else "right")
    for head in ("place", "jobs") if placed else ():
        table.add_column(head)
    for node in frame.nodes[:MAX_NODE_ROWS]:
        offered = "–" if node.batch_cpu is None else str(node.batch_cpu)
        more = (node.place, node.jobs) if placed else ()
        table.add_row(node.name, f"{number(node.used, '.1f')}/{node.cpus}", offered, str(node.pods), *more)
    if len(frame.nodes) > MAX_NODE_ROWS:
        table.add_row(f"and {len(frame.nodes) - MAX_NODE_ROWS} more", "", "", "")
    return table
