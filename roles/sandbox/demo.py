"""`koord sandbox demo`: the phases, the view while they run, and the report at the end."""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from roles.sandbox.phases import DemoError, Phases
from roles.sandbox.report import plot, text
from roles.sandbox.report.text import TITLES, Facts
from roles.sandbox.view.frame import Frame
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


class Demo:
    """One demo; `run` inside the sandbox, `write` after everything has been restored."""

    def __init__(self) -> None:
        self.ran = False
        self.phases: Phases | None = None
        self.results: list[PhaseResult] = []
        self.notes: list[str] = []
        self.simulated = (0, 0, 0)
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
            self._end(work, session, view)
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)
            self.results = self.phases.results if self.phases is not None else []
            self.notes = [*(self.phases.notes if self.phases is not None else []), *self.notes]
            self.simulated = sandbox.simulated_totals()
            view.close()

    def _end(self, work: asyncio.Task[None], session: Session, view: View) -> None:
        if not work.done():
            self.notes.append("The run was ended by a signal before all phases were over.")
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
        deadline = time.monotonic() + SIMULATED_SECONDS
        while time.monotonic() < deadline and not sandbox.simulated_batch_done():
            await asyncio.sleep(0.2)

    def _frame(self, sandbox: Sandbox, session: Session) -> Frame:
        phases = self.phases
        now = time.monotonic()
        if phases is None:
            return sandbox.frame(now - session.began, "simulated nodes")
        frame = sandbox.frame(now - session.began, TITLES.get(phases.doing, phases.doing))
        rate = phases.sampler.rate
        recent = phases.sampler.recent[-1] if phases.sampler.recent else None
        quota = recent.be_quota_us if recent is not None else None
        current = phases.current
        tick = current.ticks[-1] if current is not None and current.ticks else None
        return replace(
            frame,
            phase_left=None if phases.until is None else max(0.0, phases.until - now),
            node_busy=rate("node_busy", 1.0),
            service_cpu=rate("service_ns", 1e9),
            be_cpu=rate("be_ns", 1e9),
            be_quota=None if quota is None else (-1.0 if quota < 0 else quota / 100_000),
            load_rate=current.step_times[-1][2] if current is not None and current.step_times else None,
            p50=tick.p50 if tick is not None else None,
            p99=tick.p99 if tick is not None else None,
        )

    def write(self, out: Path, session: Session) -> Path:
        """Write the report and the chart; returns the report's path. Raises OSError."""
        chart: str | None = None
        if self.results:
            chart = PLOT
            (out / PLOT).write_text(plot.svg(self.results, self.cpus))
        path = out / REPORT
        path.write_text(text.render(self._facts(session), self.results, chart))
        return path

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
