"""The demo: what it writes, with and without this machine as a node."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from roles.sandbox.process_kubelet import layout
from tests.e2e.conftest import SCENARIO, Running
from tests.roles.sandbox.conftest import settings_of

pytestmark = pytest.mark.feature("BEY-SBX-01")


def demo(sandbox: Running, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command = sandbox.command("demo", "--force", f"--out={sandbox.directory / 'out'}", *arguments)
    return subprocess.run(
        command,
        cwd=sandbox.environment["PYTHONPATH"],
        env=sandbox.environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_without_a_local_node_the_simulated_part_runs_and_says_so(sandbox: Running) -> None:
    done = demo(sandbox, f"--scenario={sandbox.directory / 'scenario.yaml'}", "--no-local-node", timeout=60)
    assert done.returncode == 0, done.stderr
    report = (sandbox.directory / "out" / "report.md").read_text()
    assert "3 simulated nodes reported usage" in report
    assert "This machine was not used as a node: switched off by --no-local-node." in report
    assert not (sandbox.directory / "out" / "latency.svg").exists()
    assert not list(sandbox.state.glob("run-*"))


@pytest.mark.root
@pytest.mark.slow
def test_services_and_batch_share_this_machine(sandbox: Running) -> None:
    """One short phase under koord; the agent's first report comes after 30 s, so it cannot be quicker."""
    try:
        hierarchies = layout.detect()
    except layout.LayoutError as error:
        pytest.skip(str(error))
    if not all(os.access(mount, os.W_OK) for _, mount in hierarchies.mounts):
        pytest.skip("cgroup hierarchies are not writable")
    before = settings_of(hierarchies)
    scenario = yaml.safe_load(SCENARIO)
    scenario["load"] = {"steps": [{"rate": 40.0, "seconds": 4.0}, {"rate": 300.0, "seconds": 5.0}]}
    scenario["phases"] = [{"kind": "koord"}]
    # The reclaim threshold is far above what there is: other tests may run on this machine, and something must be left to offer.
    scenario["sloControllerConfig"]["colocation-config"] |= {"cpuReclaimThresholdPercent": 200}
    path = Path(sandbox.directory / "local.yaml")
    path.write_text(yaml.safe_dump(scenario))

    done = demo(sandbox, f"--scenario={path}", timeout=110)

    assert done.returncode == 0, done.stdout + done.stderr
    report = (sandbox.directory / "out" / "report.md").read_text()
    assert "4 batch pods were placed on it" in report
    assert "`kubernetes.io/batch-cpu`" in report
    assert "| with batch under koord | 300 | 1500 | 0 |" in report
    assert "Every process was ended and every cgroup of the run was removed." in report
    # A limit was put on the best-effort tier while it ran: the dashed line of the chart.
    chart = ET.fromstring((sandbox.directory / "out" / "latency.svg").read_text())
    assert [e for e in chart.iter("{http://www.w3.org/2000/svg}polyline") if e.get("stroke-dasharray")]
    assert settings_of(hierarchies) == before
    assert not list(sandbox.state.glob("run-*"))
