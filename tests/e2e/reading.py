"""A page's sessions, typed again into a sandbox that was started as the page says."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.conftest import REPOSITORY, Running
from tests.support import patience
from tests.support.console import Shown, difference, sessions


def follow(sandbox: Running, page: Path, seconds: float) -> None:
    """Type every command of the page until each has printed what the page shows: it comes about one after the other."""
    shown = list(sessions(page))
    assert shown
    deadline = time.monotonic() + patience.seconds(seconds)
    while shown:
        still: list[tuple[Shown, str]] = []
        for one in shown:
            printed = _typed(sandbox, one.command)
            if missing := difference(one.lines, printed):
                still.append((one, f"$ {one.command}\nnot printed: {missing}\nprinted:\n" + "\n".join(printed)))
        assert not still or time.monotonic() < deadline, "\n\n".join(told for _, told in still)
        shown = [one for one, _ in still]


def _typed(sandbox: Running, command: str) -> list[str]:
    words = shlex.split(command)
    if words[0] == "koord":
        words = [sys.executable, "-m", "koord.cli", *words[1:]]
    environment = {**sandbox.environment, "KUBECONFIG": str(sandbox.kubeconfig), "HOME": str(sandbox.directory), "COLUMNS": "120"}
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=patience.seconds(60), check=False)
    return [line.rstrip() for line in (done.stdout + done.stderr).rstrip("\n").split("\n")]
