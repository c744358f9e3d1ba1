"""`koord sandbox hotspot`: deploy, watch the hot nodes be relieved, and report."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koord.api.kinds import PODMIGRATIONJOBS
from roles.sandbox.hotspot import cluster, report
from roles.sandbox.hotspot.record import Recording
from roles.sandbox.hotspot.replicas import Replicas
from roles.sandbox.view.terminal import LiveView, View, open_view

if TYPE_CHECKING:
    from koord.process.life import Life
    from roles.sandbox.compose import Sandbox
    from roles.sandbox.session import Session

TICK_SECONDS = 0.5
TOLD_SECONDS = 2.0
SETTLE_SECONDS = 4.0  # two rounds of the descheduler in which it finds nothing more to do
REPORT = "report.md"
PLOT = "utilisation.svg"


class HotSpot:
    """One run; `run` inside the sandbox, `write` after everything has ended."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ran = False
        self.recording = Recording(cluster.HIGH_PERCENT)
        self.notes: list[str] = []
        self._began = 0.0
        self._told = -TOLD_SECONDS

    async def run(self, sandbox: Sandbox, life: Life, session: Session) -> None:
        """Run until no node is hot, the time is over, or a signal. Raises ApiError."""
        view = open_view()
        self.ran = True
        try:
            view.say(f"kubectl --kubeconfig {sandbox.kubeconfig} get nodes,podmigrationjobs,reservations,pods -A")
            self._began = time.monotonic()
            await self._follow_jobs(sandbox, view)
            replicas = Replicas(sandbox.client, sandbox.pods)
            await replicas.deploy(sandbox.scenario.nodes.count)
            life.spawn(replicas.run(), "replicas")
            await self._watch(sandbox, life, session, view)
        finally:
            view.close()

    async def _follow_jobs(self, sandbox: Sandbox, view: View) -> None:
        """Take each job as it changes, so that no phase is missed between two samples."""

        def node_of(pod: str) -> str:
            found = sandbox.pods.get(f"{cluster.NAMESPACE}/{pod}") or {}
            return str((found.get("spec") or {}).get("nodeName") or "")

        def seen(job: dict[str, Any]) -> None:
            now = time.monotonic() - self._began
            changed = self.recording.job(now, job, node_of)
            if changed is not None:
                view.say(f"{now:6.1f}s {changed}")

        jobs = sandbox.informers.informer(PODMIGRATIONJOBS)
        jobs.add_handler(on_add=seen, on_update=lambda _, job: seen(job))
        await jobs.wait_synced()

    async def _watch(self, sandbox: Sandbox, life: Life, session: Session, view: View) -> None:
        calm_since: float | None = None
        while True:
            now = self._look(sandbox, view)
            if isinstance(view, LiveView):
                view.show(sandbox.frame(now, "hot spot"))
            if not self.recording.relieved():
                calm_since = None
            elif calm_since is None:
                calm_since = now
            elif now - calm_since >= SETTLE_SECONDS:
                view.say(f"{now:6.1f}s no node is hot any more")
                return
            if now >= self.seconds:
                self._failed(f"after {self.seconds:g} s {self._missing()}", session, view)
                return
            try:
                await asyncio.wait_for(life.stopping.wait(), TICK_SECONDS)
            except TimeoutError:
                continue
            session.cut = life.signal
            self.notes.append(f"The run ended early: {life.failure or 'it was asked to by a signal'}.")
            return

    def _look(self, sandbox: Sandbox, view: View) -> float:
        """Take one sample, and tell what has changed. Returns the second of the run."""
        now = time.monotonic() - self._began
        nodes = [node for node in sandbox.simulated_nodes() if node.pods]
        self.recording.sample(now, nodes)
        if not isinstance(view, LiveView) and now - self._told >= TOLD_SECONDS:
            self._told = now
            known = " ".join(f"{node} {self.recording.last(node):.0f}%" for node in sorted(self.recording.utilisation))
            view.say(f"{now:6.1f}s {known or 'no node has reported yet'}")
        return now

    def _missing(self) -> str:
        """What is not as it should be by now."""
        if not self.recording.hot_at_start():
            return "no node was ever reported hot"
        if hot := self.recording.hot_now():
            return f"{', '.join(hot)} were still hot" if len(hot) > 1 else f"{hot[0]} was still hot"
        return "not all migrations had ended"

    def _failed(self, text: str, session: Session, view: View) -> None:
        self.notes.append(f"The run did not succeed: {text}.")
        session.errors.append(text)
        view.say(f"koord sandbox: {text}")

    def write(self, out: Path, session: Session) -> Path:
        """Write the report and the chart; returns the report's path. Raises OSError."""
        chart: str | None = None
        if self.recording.utilisation:
            chart = PLOT
            (out / PLOT).write_text(report.chart(self.recording))
        date = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        path = out / REPORT
        path.write_text(report.render(session.scenario.title, date, self.recording, chart, self.notes))
        return path
