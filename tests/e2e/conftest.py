"""A sandbox as its users run it: a process of its own, with its state in a directory of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import leftovers, patience

REPOSITORY = Path(__file__).resolve().parents[2]
SCENARIO = """\
apiVersion: sandbox.koordinator.sh/v1alpha1
kind: Scenario
nodes:
  count: 3
  podsPerNode: 2
  batchPods: 4
  periodSeconds: 60
sloControllerConfig:
  colocation-config:
    enable: true
    metricAggregateDurationSeconds: 60
    metricReportIntervalSeconds: 1
    cpuReclaimThresholdPercent: 80
    memoryReclaimThresholdPercent: 80
  resource-threshold-config:
    clusterStrategy:
      enable: true
      cpuSuppressPolicy: cfsQuota
"""


class NotThere(AssertionError):
    """kubectl knows of no such object."""


@dataclass
class Running:
    """A sandbox process and the state directory that it writes."""

    directory: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.directory / "sandbox.log"

    @property
    def state(self) -> Path:
        return self.directory / "koord-sandbox"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "koord.cli", "sandbox", *arguments]

    def start(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*arguments), cwd=REPOSITORY, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.until((self.state / "endpoints.json").exists, 40, "endpoints.json")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=REPOSITORY,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=patience.seconds(120),
            check=False,
        )

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """What a condition finds. Objects and parts of them that it looks at may be yet to come."""
        deadline = time.monotonic() + patience.seconds(seconds)
        while True:
            found = None
            with suppress(NotThere, KeyError):
                found = condition()
            if found:
                return found
            ended = self.process is not None and self.process.poll() is not None
            assert not ended, f"the sandbox ended while waiting for {what}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.1)

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        done = self.try_kubectl(*arguments, stdin=stdin)
        if check and "(NotFound)" in done.stderr:
            raise NotThere(f"kubectl {' '.join(arguments)}: {done.stderr}")
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def try_kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments],
            env={**self.environment, "HOME": str(self.directory)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=patience.seconds(60),
            check=False,
        )

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def run_file(self) -> Path:
        return next(self.state.glob("run-????????.json"))

    def run_id(self) -> str:
        return self.run_file().stem.removeprefix("run-")

    def inner_pid(self) -> int:
        """The pid of the sandbox proper; `process` is its guardian."""
        return int(json.loads(self.run_file().read_bytes())["pid"])

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(patience.seconds(40))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox")


def make(directory: Path) -> Running:
    (directory / "scenario.yaml").write_text(SCENARIO)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "XDG_RUNTIME_DIR": str(directory),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        leftovers.VARIABLE: leftovers.mark(),
    }
    return Running(directory, environment)


def end(running: Running) -> None:
    """Stop it; if that fails, take its cgroups away, so that one failing test leaves nothing behind."""
    if running.process is not None and running.process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            running.stop()
        running.process.kill()
        running.process.wait()
    running.run("clean")


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Running]:
    """A sandbox that the test starts itself."""
    running = make(tmp_path)
    yield running
    end(running)


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[Running]:
    """A running sandbox of simulated nodes only, shared by a module."""
    running = make(directory)
    try:
        running.start("up", f"--scenario={directory / 'scenario.yaml'}", "--no-local-node")
        yield running
    finally:
        end(running)
