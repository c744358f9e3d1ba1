"""`koord sandbox up` has something to explain: what waits, what was suppressed, what was pushed out (BEY-SBX-01, BEY-WHY-01)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.e2e.conftest import REPOSITORY, Running
from tests.e2e.reading import follow
from tests.support import patience

pytestmark = [pytest.mark.feature("BEY-SBX-01"), pytest.mark.slow, pytest.mark.timeout(300)]


def why(sandbox: Running, *arguments: str) -> str:
    command = [sys.executable, "-m", "koord.cli", "why", *arguments, f"--kubeconfig={sandbox.kubeconfig}"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=sandbox.environment, capture_output=True, text=True, timeout=patience.seconds(60), check=False
    )
    return done.stdout


def test_something_is_pending_suppressed_and_pushed_out(sandbox: Running) -> None:
    sandbox.start("up", "--nodes=5", "--no-local-node")
    # pending: too large, a quota that is full, a gang that is not whole
    sandbox.until(lambda: "5 × Insufficient cpu" in why(sandbox, "pod", "teams/too-big"), 60, "a pod that fits nowhere")
    sandbox.until(
        lambda: any("quota team-a: cpu is short of 2" in why(sandbox, "pod", f"teams/report-{n}") for n in range(3)), 60, "a full quota"
    )
    assert "koord why podgroup teams/training" in why(sandbox, "pod", "teams/training-0")
    # until the scheduler has decided on the gang, what the API server shows is told
    sandbox.until(lambda: "has 3 of 4 pods" in why(sandbox, "podgroup", "teams/training"), 60, "a gang that is not whole")
    # pushed out by a more important pod
    sandbox.until(lambda: "makes room for teams/urgent" in why(sandbox, "pod", "teams/patient"), 120, "a pod that makes room")
    # suppressed on the node that gets hot
    sandbox.until(lambda: "best-effort pods may use" in why(sandbox, "node", "sim-000", "-o", "json"), 120, "a suppressed node")
    jobs = [pod["metadata"]["name"] for pod in sandbox.get("pods", "-n", "batch")["items"] if pod["spec"].get("nodeName") == "sim-000"]
    assert any("was suppressed (koordlet)" in why(sandbox, "pod", f"batch/{name}") for name in jobs)
    # jobs come and go
    before = {pod["metadata"]["name"] for pod in sandbox.get("pods", "-n", "batch", "-l", "app=job")["items"]}
    sandbox.until(
        lambda: {pod["metadata"]["name"] for pod in sandbox.get("pods", "-n", "batch", "-l", "app=job")["items"]} - before, 120, "new jobs"
    )
    # and a reader of the page sees what it shows
    follow(sandbox, REPOSITORY / "docs" / "getting-started.md", 120)
    assert sandbox.stop() == 0
    assert "Traceback" not in sandbox.log.read_text()


def test_a_plugin_of_ones_own_is_tried_on_simulated_nodes(sandbox: Running) -> None:
    """The worked example of the guide, as a file and a configuration beside it."""
    guide = (REPOSITORY / "docs" / "scheduler.md").read_text()
    code = re.search(r"```python\n# quiet_hours\.py\n(.*?)```", guide, re.DOTALL)
    configuration = re.search(r"```yaml\n(apiVersion: kubescheduler[^`]*QuietHours[^`]*)```", guide)
    assert code is not None
    assert configuration is not None
    plugin, config = sandbox.directory / "quiet_hours.py", sandbox.directory / "scheduler.yaml"
    plugin.write_text(code.group(1))
    config.write_text(configuration.group(1))
    refused = sandbox.run("up", "--nodes=2", "--no-local-node", f"--scheduler-config={config}")
    assert refused.returncode == 1
    assert "QuietHours" in refused.stderr, "nobody brought the plugin"
    assert "Traceback" not in refused.stderr
    sandbox.start("up", "--nodes=2", "--no-local-node", f"--scheduler-config={config}", f"--plugin-path={plugin}")
    sandbox.until(lambda: [p for p in sandbox.get("pods", "-n", "batch")["items"] if p["spec"].get("nodeName")], 60, "a pod that is placed")
    # a mistake is told and nothing changes; what is valid again is taken up
    plugin.write_text(f"{code.group(1)}\nraise ValueError('half written')\n")
    sandbox.until(lambda: "the scheduler stays as it is" in sandbox.log.read_text(), 60, "the mistake")
    assert "quiet_hours.py:" in sandbox.log.read_text(), "it says where"
    plugin.write_text(
        code.group(1).replace('name = "QuietHours"', 'name = "QuietHours"\n    seen = print("the new text is loaded", flush=True)')
    )
    sandbox.until(lambda: "quiet_hours.py changed: the scheduler was started again" in sandbox.log.read_text(), 60, "another scheduler")
    log = next(sandbox.state.glob("run-*/scheduler.log"))
    sandbox.until(lambda: "the new text is loaded" in log.read_text(), 40, "the new text")
    # so is its configuration; what is wrong with it is said by its own name
    config.write_text(configuration.group(1).replace("label: maintenance", "labels: maintenance"))
    sandbox.until(lambda: "args.labels: unknown field" in sandbox.log.read_text(), 60, "the wrong argument")
    assert f"scheduler.yaml changed, and the scheduler stays as it is: {config}:" in sandbox.log.read_text()
    config.write_text(configuration.group(1).replace("label: maintenance", "label: example.com/quiet"))
    sandbox.until(lambda: "scheduler.yaml changed: the scheduler was started again" in sandbox.log.read_text(), 60, "the new arguments")
    assert sandbox.stop() == 0


def test_without_a_terminal_it_is_started_and_ended_by_commands(sandbox: Running) -> None:
    started = sandbox.run("up", "--nodes=1", "--no-local-node", "--detach")
    assert started.returncode == 0, started.stderr
    run = sandbox.run_id()
    assert f"KUBECONFIG={sandbox.state / f'run-{run}' / 'kubeconfig'}" in started.stdout
    assert "sim-000" in sandbox.kubectl("get", "nodes")
    assert "no sandbox 00000000 runs" in sandbox.run("down", "00000000").stderr
    ended = sandbox.run("down")
    assert (ended.returncode, ended.stdout.strip()) == (0, f"sandbox {run} ended")
    assert list(sandbox.state.iterdir()) == []
    assert sandbox.run("down").stdout.strip() == "no sandbox runs"


def test_a_detached_sandbox_that_cannot_start_says_why(sandbox: Running) -> None:
    plugin = sandbox.directory / "broken.py"
    plugin.write_text("raise ValueError('half written')\n")
    started = sandbox.run("up", "--nodes=1", "--no-local-node", "--detach", f"--plugin-path={plugin}")
    assert started.returncode == 1
    assert "broken.py:1: ValueError: half written" in started.stderr
    assert "Traceback" not in started.stderr
    assert list(sandbox.state.iterdir()) == []
