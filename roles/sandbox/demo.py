"""`koord sandbox demo`: the phases, the view while they run, and the report at the end."""

from __future__ import annotations

import asyncio
import logging
import platform
import shutil
import textwrap
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from roles.sandbox.modelled.phases import CPUS, Modelled
from roles.sandbox.phases import DemoError, Phases
from roles.sandbox.polling import beside, until
from roles.sandbox.report import page, plot, text
from roles.sandbox.report.text import TITLES, Facts
from roles.sandbox.view.frame import Frame, SimulatedNode
from roles.sandbox.view.terminal import open_view

if TYPE_CHECKING:
    from koord.process.life import Life
    from roles.sandbox.compose import Sandbox
    from roles.sandbox.measure import PhaseResult
    from roles.sandbox.scenario import Scenario
    from roles.sandbox.session import Session

log = logging.getLogger(__name__)

SIMULATED_SECONDS = 120.0
REPORT, PAGE = "report.md", "report.html"
PLOT = "latency.svg"
MOST_DECISIONS = 20


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
        self.decisions: list[str] = []
        self.why = ""
        """Why the figures are calculated; empty when they are measured."""
        self.simulated = (0, 0, 0)
        self.rows: list[SimulatedNode] = []
        self.cpus = 0
        self.memory = 0

    async def run(self, sandbox: Sandbox, life: Life, session: Session) -> None:
        """Run the phases with a view; ends early, with what was measured, at a signal."""
        view = open_view()
        self.ran = True
        if sandbox.kubelet is not None:
            self.phases = Phases(sandbox, session.scenario, session.look.quiet if session.look is not None else 0.0)
            self.cpus, self.memory = sandbox.kubelet.machine.cpus, sandbox.kubelet.machine.memory
        try:
            view.say(f"kubectl --kubeconfig {sandbox.kubeconfig} get nodes,pods -A")
            work, cut = await beside(life, self._work(sandbox), lambda: view.show(self._frame(sandbox, session)))
            self._end(work, cut, life, session)
        finally:
            self.results = self.phases.results if self.phases is not None else []
            self.decisions = sandbox.decisions(session.began) if self.phases is not None else []
            self.notes = [*(self.phases.notes if self.phases is not None else []), *self.notes]
            view.close()

    def _end(self, work: asyncio.Task[None], cut: bool, life: Life, session: Session) -> None:
        if cut:
            session.cut = life.signal
            self.notes.append(f"The run ended before all phases were over: {life.failure or 'it was asked to by a signal'}.")
            return
        error = work.exception()
        if error is None:
            return
        if not isinstance(error, DemoError):
            raise error
        self.notes.append(f"The run ended early: {error}.")
        session.errors.append(str(error))

    async def _work(self, sandbox: Sandbox) -> None:
        await sandbox.submit_simulated_batch()
        if self.phases is not None:
            await self.phases.run()
            return
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

    def calculate(self, scenario: Scenario, why: str) -> None:
        """Tell the phases on a node that is calculated, where this machine could not be measured: for the reason `why`."""
        self.why = why
        modelled = Modelled(scenario)
        self.results = modelled.run()
        self.cpus, self.decisions = CPUS, modelled.decisions

    def write(self, out: Path, session: Session) -> Path:
        """Write the report: one HTML file, and as Markdown with its chart beside it. Returns the first one's path. Raises OSError."""
        facts = self._facts(session)
        chart = plot.svg(self.results, self.cpus) if self.results else None
        if chart is not None:
            (out / PLOT).write_text(chart)
        told = text.render(facts, self.results, PLOT if chart is not None else None)
        (out / REPORT).write_text(told)
        (out / PAGE).write_text(page.page(facts.title, told, chart))
        return out / PAGE

    def verdict(self, session: Session) -> list[str]:
        """What came of it, for the terminal: simulated nodes as bars where this machine was not measured, and one paragraph."""
        lines = [*drawn(self.rows), text.simulated(self._facts(session)), ""] if self.why and self.rows else []
        width = min(shutil.get_terminal_size().columns, 100)
        return [*lines, *textwrap.wrap(text.verdict(self._facts(session), text.ordered(self.results)), width, break_on_hyphens=False)]

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
            modelled=self.why,
            others_at_start=session.look.used if session.look is not None else 0.0,
            decisions=tuple(self.decisions[-MOST_DECISIONS:]),
        )
