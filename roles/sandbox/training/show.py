"""`koord sandbox training`: the steps one after another, the view while they run, and the report at the end."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from koord.kube.errors import ApiError
from roles.sandbox import main
from roles.sandbox.polling import beside
from roles.sandbox.session import Session, Settings
from roles.sandbox.training import report, setup
from roles.sandbox.training.stage import Outcome, Stage, StepError
from roles.sandbox.training.steps import STEPS, Say
from roles.sandbox.view.terminal import View, open_view

if TYPE_CHECKING:
    from koord.process.life import Life
    from roles.sandbox.compose import Sandbox

REPORT, DATA = "report.md", "report.json"


def run(out: Path, verbosity: int) -> int:
    """Run the scenario and write the report. Returns the exit code: 0 when every step happened."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"koord sandbox training: error: {out}: {error.strerror}", file=sys.stderr)
        return 1
    settings = Settings(None, None, local_node=False, roles_as_processes=False, verbosity=verbosity)

    async def body(sandbox: Sandbox, life: Life, session: Session) -> None:
        await Training(sandbox, session, out).run(life)

    return main.hosted(settings, setup.scenario(), body)


class Training:
    """One run inside a sandbox."""

    def __init__(self, sandbox: Sandbox, session: Session, out: Path) -> None:
        self.sandbox, self.session, self.out = sandbox, session, out
        self.outcomes = [Outcome(name, title) for name, title, _ in STEPS]
        self.stage = Stage(sandbox)
        self.doing = "preparing"
        self.view: View

    async def run(self, life: Life) -> None:
        """All steps with a view; what did not happen is an error of the session. Ends early at a signal."""
        self.view = open_view()
        try:
            work, cut = await beside(life, self._work(), self._show)
            if cut:
                self.session.cut = life.signal
                self.session.errors.append(f"the run ended early: {life.failure or 'it was asked to by a signal'}")
        finally:
            try:
                self._write()
            except OSError as error:
                self.session.errors.append("no report")
                self.view.say(f"koord sandbox: error: no report: {error.filename or self.out}: {error.strerror}")
            self.view.close()
        if not work.cancelled() and (failure := work.exception()):
            raise failure

    def _show(self) -> None:
        frame = self.sandbox.frame(self._elapsed(), self.doing)
        self.view.show(replace(frame, nodes=self.stage.rows(frame.nodes)))

    async def _work(self) -> None:
        stage = self.stage
        try:
            await stage.prepare()
            for outcome, (name, title, step) in zip(self.outcomes, STEPS, strict=True):
                self.doing = title
                try:
                    await step(stage, outcome, self._speaker(name))
                finally:
                    outcome.placed = outcome.placed or stage.placed()
                outcome.happened = True
                await stage.clear()
        except (StepError, ApiError) as error:
            self.session.errors.append(f"{self.doing}: {error}")
            self.view.say(f"koord sandbox: {self.doing}: {error}")

    def _elapsed(self) -> float:
        return time.monotonic() - self.session.began

    def _speaker(self, name: str) -> Say:
        return lambda text: self.view.say(f"{self._elapsed():6.1f}s | {name}: {text}")

    def _write(self) -> None:
        """Write both reports. Raises OSError."""
        racks = {node["metadata"]["name"]: node["metadata"]["labels"].get(setup.RACK_LABEL, "") for node in self.sandbox.nodes.list()}
        data = {"steps": [outcome.data() for outcome in self.outcomes], "racks": racks, "errors": self.session.errors}
        (self.out / DATA).write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
        path = self.out / REPORT
        path.write_text(report.render(self.outcomes, racks, self.session.errors))
        self.view.say(f"report: {path}")
