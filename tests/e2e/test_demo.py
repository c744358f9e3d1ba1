"""The demo: what it writes, with and without this machine as a node."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from roles.sandbox.process_kubelet import layout
from tests.e2e.conftest import REPOSITORY, SCENARIO, Running
from tests.roles.sandbox.conftest import settings_of
from tests.support import patience

pytestmark = pytest.mark.feature("BEY-SBX-01")


def demo(sandbox: Running, *arguments: str, timeout: float, **how: Any) -> subprocess.CompletedProcess[str]:
    command = sandbox.command("demo", f"--out={sandbox.directory / 'out'}", *arguments)
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env=sandbox.environment,
        capture_output=True,
        text=True,
        timeout=patience.seconds(timeout),
        check=False,
        **how,
    )


def is_told(sandbox: Running, done: subprocess.CompletedProcess[str], why: str) -> None:
    """It ended well: the three phases with figures, on the screen and in one file, and why they are calculated."""
    assert done.returncode == 0, done.stdout + done.stderr
    last = " ".join(done.stdout.split())
    assert f"Calculated, not measured: {why}" in last
    assert "Under koord, beside the same jobs with the same requests, it was" in last
    page = (sandbox.directory / "out" / "report.html").read_text()
    assert page.count("<svg") == 1
    assert "exists on paper only" in page
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(sandbox.state.glob("run-*"))


def test_without_a_local_node_the_phases_are_calculated(sandbox: Running) -> None:
    done = demo(sandbox, f"--scenario={sandbox.directory / 'scenario.yaml'}", "--no-local-node", timeout=240)
    is_told(sandbox, done, "switched off by --no-local-node.")
    assert "3 simulated nodes reported usage" in (sandbox.directory / "out" / "report.md").read_text()


def test_bound_to_a_part_of_the_machine_it_says_so(sandbox: Running) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2 or len(cpus) < (os.cpu_count() or 1):
        pytest.skip("this process has no whole machine of several CPUs to be bound to a part of")
    done = demo(sandbox, timeout=300, preexec_fn=lambda: os.sched_setaffinity(0, cpus[:1]))
    is_told(sandbox, done, f"this process may use 1 of {len(cpus)} CPUs (taskset or a cpuset)")


def test_without_root_it_says_so(sandbox: Running) -> None:
    """The interpreter of a checkout often lies where no other user gets to: the demo is told that it is not root instead."""
    (sandbox.directory / "sitecustomize.py").write_text("import os\nos.geteuid = lambda: 1000\n")
    sandbox.environment["PYTHONPATH"] = f"{sandbox.directory}:{REPOSITORY}"
    done = demo(sandbox, "--nodes=2", timeout=300)
    is_told(sandbox, done, "a real node needs root")
    assert "used by others" not in done.stdout, "who waits for a quiet machine would wait in vain"


def test_force_wants_a_measurement(sandbox: Running) -> None:
    done = demo(sandbox, "--force", "--no-local-node", "--nodes=1", timeout=240)
    assert done.returncode == 1
    assert "koord sandbox: error: switched off by --no-local-node" in done.stderr


@pytest.mark.parametrize("words", [("demo", "--no-local-node"), ("hotspot",), ("training",)], ids=lambda words: words[0])
def test_a_show_that_is_cut_short_has_not_shown_it(sandbox: Running, words: tuple[str, ...]) -> None:
    """Status 0 says that everything was seen; a signal before that is told by the status, and by the verdict of the demo."""
    command = sandbox.command(*words, f"--out={sandbox.directory / 'out'}")
    with subprocess.Popen(command, cwd=REPOSITORY, env=sandbox.environment, stdout=-1, stderr=-1, text=True) as running:
        try:
            assert running.stdout is not None
            told = running.stdout.readline()
            while told and "kubectl" not in told and " s " not in told and "s |" not in told:
                told = running.stdout.readline()
            running.send_signal(signal.SIGTERM)
            out, said = running.communicate(timeout=patience.seconds(60))
        finally:
            running.kill()
    assert (running.returncode, "Traceback" in said) == (128 + signal.SIGTERM, False), told + out + said
    assert (words[0] != "demo") or "The run ended before all phases were over" in " ".join(out.split())
    assert not list(sandbox.state.glob("run-*"))


@pytest.mark.parametrize("words", [("demo", "--no-local-node"), ("hotspot",), ("training",)], ids=lambda words: words[0])
def test_a_report_that_cannot_be_written_is_one_line(sandbox: Running, words: tuple[str, ...]) -> None:
    """Nothing of what was seen is lost for it, and nothing is left behind."""
    out = sandbox.directory / "out"
    (out / "report.md").mkdir(parents=True)
    done = subprocess.run(
        sandbox.command(*words, f"--out={out}"), cwd=REPOSITORY, env=sandbox.environment, capture_output=True, text=True, check=False,
        timeout=patience.seconds(240),
    )  # fmt: skip
    assert done.returncode == 1
    assert f"error: no report: {out / 'report.md'}: Is a directory" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert words[0] != "demo" or "Under koord, beside the same jobs" in " ".join(done.stdout.split())
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
    scenario["repeats"] = 0
    # The reclaim threshold is far above what there is: other tests may run on this machine, and something must be left to offer.
    scenario["sloControllerConfig"]["colocation-config"] |= {"cpuReclaimThresholdPercent": 200}
    path = Path(sandbox.directory / "local.yaml")
    path.write_text(yaml.safe_dump(scenario))

    done = demo(sandbox, "--force", f"--scenario={path}", timeout=110)

    assert done.returncode == 0, done.stdout + done.stderr
    report = (sandbox.directory / "out" / "report.md").read_text()
    assert "4 batch pods were placed on it" in report
    assert "`kubernetes.io/batch-cpu`" in report
    # none is left out; where others want the whole machine some get no answer in time, and the row says how many
    row = re.search(r"^\| with batch under koord \| 300 \| (\d+) \| (\d+) \|", report, re.MULTILINE)
    assert row is not None, report
    answered, failed = map(int, row.groups())
    assert answered + failed == 1500
    assert answered > 0
    assert "Every process was ended and every cgroup of the run was removed." in report
    assert "Under koord, beside 4 batch pods that request" in " ".join(done.stdout.split())
    assert "## What koord decided" in report
    assert "CFS quota" in report
    assert (sandbox.directory / "out" / "report.html").read_text().count("<svg") == 1
    # A limit was put on the best-effort tier while it ran: the dashed line of the chart.
    chart = ET.fromstring((sandbox.directory / "out" / "latency.svg").read_text())
    assert [e for e in chart.iter("{http://www.w3.org/2000/svg}polyline") if e.get("stroke-dasharray")]
    assert settings_of(hierarchies) == before
    assert not list(sandbox.state.glob("run-*"))
