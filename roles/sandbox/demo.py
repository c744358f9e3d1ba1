"""`koord sandbox demo`: the phases, the view while they run, and the report at the end."""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from roles.sandbox.phases import DemoError, Phases
from roles.sandbox.polling import until
from roles.sandbox.report import plot, text
from roles.sandbox.report.text import TITLES, Facts
from roles.sandbox.view.frame import Frame, SimulatedNode
from roles.sandbox.view.terminal import View, open_view

if TYPE_CHECKING:
    from koord.process.life import Life
    from roles.sandbox.compose import Sandbox
    from roles.sandbox.main import Session
    from roles.sandbox.measure import PhaseResult

log = logging.getLogger(__name__)

FRAME_SECONDS = 0.25
SIMULATED_SECONDS = 30.0
REPORT = "report.md"
PLOT = "latency.svg"


_BAR = 24
_ROWS = 12


def drawn(rows: Sequence[SimulatedNode]) -> list[str]:
    """Simulated nodes as bars: # what their services use, + what koord offers to batch jobs beside them, . the rest."""
    lines = ["node      # used   + offered as batch-cpu   . neither" if rows else ""]
    for row in sorted(rows, key=lambda row: -(row.used or 0.0) / row.cpus)[:_ROWS]:
        used = min(_BAR, round(_BAR * (row.used or 0.0) / row.cpus))
        offered = min(_BAR - used, round(_BAR * (row.batch_cpu or 0) / 1000 / row.cpus))
        bar = "#" * used + "+" * offered + "." * (_BAR - used - offered)
        lines.append(f"{row.name:9} {bar} {row.used or 0:5.1f} of {row.cpus} CPUs used, {(row.batch_cpu or 0) / 1000:.1f} offered")
    if len(rows) > _ROWS:
        lines.append(f"… and {len(rows) - _ROWS} more")
    return [line for line in lines if line]


class Demo:
    """One demo; `run` inside the sandbox, `write` after everything has been restored."""

    def __init__(self) -> None:
        self.ran = False
        self.phases: Phases | None = None
        self.results: list[PhaseResult] = []
        self.notes: list[str] = []
        self.simulated = (0, 0, 0)
        self.rows: list[SimulatedNode] = []
        self.cpus = 0
        self.memory = 0

    async def run(self, sandbox: Sandbox, life: Life, session: Session) -> None:
        """Run the phases with a view; ends early, with what was measured, at a signal."""
        view = open_view()
        self.ran = True
        if sandbox.kubelet is not None:
            self.phases = Phases(sandbox, session.scenario)
            self.cpus, self.memory = sandbox.kubelet.machine.cpus, sandbox.kubelet.machine.memory
        work = asyncio.create_task(self._work(sandbox, session), name="demo")
        stop = asyncio.create_task(life.stopping.wait(), name="stopping")
        try:
            view.say(f"kubectl --kubeconfig {sandbox.kubeconfig} get nodes,pods -A")
            while not work.done() and not stop.done():
                view.show(self._frame(sandbox, session))
                await asyncio.wait({work, stop}, timeout=FRAME_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            self._end(work, life, session, view)
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)
            self.results = self.phases.results if self.phases is not None else []
            self.notes = [*(self.phases.notes if self.phases is not None else []), *self.notes]
            view.close()

    def _end(self, work: asyncio.Task[None], life: Life, session: Session, view: View) -> None:
        if not work.done():
            self.notes.append(f"The run ended before all phases were over: {life.failure or 'it was asked to by a signal'}.")
            return
        error = work.exception()
        if error is None:
            return
        if not isinstance(error, DemoError):
            raise error
        self.notes.append(f"The run ended early: {error}.")
        session.errors.append(str(error))
        view.say(f"koord sandbox: {error}")

    async def _work(self, sandbox: Sandbox, session: Session) -> None:
        await sandbox.submit_simulated_batch()
        if self.phases is not None:
            await self.phases.run()
            return
        self.notes.append(f"This machine was not used as a node: {session.without}.")
        if not await until(sandbox.simulated_batch_done, SIMULATED_SECONDS):
            self.notes.append(f"Not all simulated batch pods were placed within {SIMULATED_SECONDS:.0f} s.")

    def _frame(self, sandbox: Sandbox, session: Session) -> Frame:
        elapsed = time.monotonic() - session.began
        nodes, bound, offered = sandbox.simulated_totals()
        rows = sandbox.simulated_nodes()
        if sum(row.batch_cpu or 0 for row in rows) >= sum(row.batch_cpu or 0 for row in self.rows):
            self.rows = rows
        # What is offered goes away when the strategies are switched off for a phase: the most that was seen is told.
        self.simulated = (nodes, max(bound, self.simulated[1]), max(offered, self.simulated[2]))
        if self.phases is None:
            return sandbox.frame(elapsed, "simulated nodes")
        return self.phases.frame(sandbox.frame(elapsed, TITLES.get(self.phases.doing, self.phases.doing)))

    def write(self, out: Path, session: Session) -> Path:
        """Write the report and the chart; returns the report's path. Raises OSError."""
        chart: str | None = None
        if self.results:
            chart = PLOT
            (out / PLOT).write_text(plot.svg(self.results, self.cpus))
        path = out / REPORT
        path.write_text(text.render(self._facts(session), self.results, chart))
        return path

    def verdict(self, session: Session) -> list[str]:
        """What came of it, for the terminal: the figures, or the nodes that were simulated and why nothing was measured."""
        if self.results:
            return text.verdict(self._facts(session), self.results)
        lines = [*drawn(self.rows), text.simulated(self._facts(session))]
        return [*lines, f"Nothing was measured on this machine: {session.without}."] if session.without else lines

    def _facts(self, session: Session) -> Facts:
        nodes, bound, offered = self.simulated
        return Facts(
            title=session.scenario.title,
            date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            kernel=platform.release(),
            cpus=self.cpus,
            memory=self.memory,
            cgroup_version=session.local.groups.version if session.local is not None else 0,
            simulated_nodes=nodes,
            simulated_bound=bound,
            simulated_batch_cpu=offered,
            suppress_threshold=session.scenario.suppress_threshold(),
            service_request=session.scenario.service.cpu_request,
            iterations=self.phases.iterations if self.phases is not None else 0,
            restored=session.restored,
            notes=tuple(self.notes),
        )
