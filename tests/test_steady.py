"""The suite on a machine that is slow, or busy: it costs time and not the run, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import leftovers, patience, processes

ROOT = Path(__file__).resolve().parents[1]
INI = """\
[pytest]
addopts = -ra --strict-markers -p no:cacheprovider
filterwarnings = error
timeout = 1
timeout_func_only = true
pythonpath = {root}
markers =
    root: needs root
    slow: slow
"""


def run(directory: Path, source: str, *arguments: str, slowness: str = "1", conftest: str = "") -> subprocess.CompletedProcess[str]:
    """A suite of one file under this suite's own settings."""
    (directory / "pytest.ini").write_text(INI.format(root=ROOT))
    (directory / "conftest.py").write_text(conftest or "from tests.conftest import *\n")
    (directory / "test_it.py").write_text(source)
    environment = {**os.environ, patience.VARIABLE: slowness}
    for name in (leftovers.VARIABLE, "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=patience.seconds(90), check=False
    )


SLOW_REPORT = """
import time

import pytest

from tests.conftest import *

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    yield
    if call.when == "call":
        time.sleep(2)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_report_that_takes_long_does_not_end_the_run(tmp_path: Path, workers: str) -> None:
    source = """
import time

def test_first():
    assert 1 == 2

def test_second():
    time.sleep(5)

def test_third():
    pass
"""
    done = run(tmp_path, source, "-n", workers, conftest=SLOW_REPORT)
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert "2 failed, 1 passed" in done.stdout
    assert done.returncode == 1


def test_a_fixture_that_hangs_is_ended(tmp_path: Path) -> None:
    source = """
import time
import pytest

@pytest.fixture
def hangs():
    time.sleep(30)

def test_it(hangs):
    pass
"""
    done = run(tmp_path, source)
    assert "1 error" in done.stdout
    assert "Timeout (>1.0s)" in done.stdout


def test_limits_grow_on_a_slow_machine(tmp_path: Path) -> None:
    source = """
import time
import pytest

def test_usual():
    time.sleep(2)

@pytest.mark.timeout(0.5)
def test_own():
    time.sleep(1)
"""
    assert "2 failed" in run(tmp_path, source).stdout
    assert "2 passed" in run(tmp_path, source, slowness="10").stdout


REPORTED = """
import os
import pathlib

import pytest

from tests.conftest import *

@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        pathlib.Path("reported").touch()
"""


def test_failures_are_told_when_they_happen(tmp_path: Path) -> None:
    """A run that is stopped in the middle has told what it found."""
    source = """
import os, pathlib, signal, time

def test_first():
    assert 1 == 2, "the first one"

def test_second():
    while not pathlib.Path("reported").exists():
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGKILL)
"""
    done = run(tmp_path, source, "-n", "1", slowness="30", conftest=REPORTED)
    assert done.returncode < 0
    assert "the first one" in done.stdout


def test_what_a_test_leaves_behind_is_ended(tmp_path: Path) -> None:
    source = """
import subprocess

def test_it():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    open("pid", "w").write(str(child.pid))
    child.returncode = 0  # nobody waits for it
"""
    done = run(tmp_path, source, "-W", "default")
    assert "1 passed" in done.stdout
    assert "left behind by a test and ended now: sleep 600" in done.stdout
    pid = int((tmp_path / "pid").read_text())
    assert not (Path("/proc") / str(pid) / "cmdline").exists() or not (Path("/proc") / str(pid) / "cmdline").read_bytes()


def children() -> set[int]:
    """The processes that this one has started, and that are still there."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                    found.add(int(entry.name))
    return found


def test_what_processes_are_forked_from_is_ended() -> None:
    """It would be there until pytest is not, and be told of as left behind."""
    before = children()
    with processes.forking() as forked:
        command = forked("--version")
        assert children() > before
        command.join(patience.seconds(60))
        assert command.exitcode == 0
    assert children() <= before


def test_a_process_that_has_only_just_begun_is_known_by_its_mark() -> None:
    for _ in range(20):
        with subprocess.Popen(["sleep", "600"], start_new_session=True, env={leftovers.VARIABLE: "mine"}) as child:
            found = leftovers.environment_of(Path("/proc", str(child.pid)))
            child.kill()
        assert found == f"{leftovers.VARIABLE}=mine\0".encode()


def test_steps_share_all_tests(tmp_path: Path) -> None:
    source = """
import pytest

@pytest.mark.root
def test_machine():
    pass

def test_plain():
    pass
"""
    listed = {step: run(tmp_path, source, f"--step={step}", "--collect-only", "-q").stdout for step in ("all", "hermetic", "machine")}
    assert "test_machine" in listed["machine"]
    assert "test_plain" not in listed["machine"]
    assert "test_plain" in listed["hermetic"]
    assert "test_machine" not in listed["hermetic"]
    assert "2 tests" in listed["all"]


def test_slowness_is_measured() -> None:
    assert 1 <= patience.measured(0.01) <= patience.MOST


def test_make_keeps_compiled_modules() -> None:
    """Without them each worker compiles every test, and each start of koord the whole program."""
    show = 'show: ; @echo "[$${PYTHONDONTWRITEBYTECODE-unset}]"'
    command = ["make", "-s", "--no-print-directory", "-C", str(ROOT), "--eval", show, "show"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[unset]\n"


@pytest.mark.parametrize(("step", "imported"), [("hermetic", {"test_one", "test_two"}), ("machine", {"test_two", "test_three"})])
def test_a_step_imports_only_files_that_have_something_for_it(tmp_path: Path, step: str, imported: set[str]) -> None:
    files = {
        "tests/test_one.py": "def test_it(): pass",
        "tests/test_two.py": "import pytest\n@pytest.mark.root\ndef test_it(): pass",
        "tests/e2e/test_three.py": "def test_it(): pass",
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"print('imported', __name__)\n{text}\n")
    done = run(tmp_path, "", "--collect-only", "-s", "-q", f"--step={step}", "tests")
    assert {line.split()[-1].split(".")[-1] for line in done.stdout.splitlines() if line.startswith("imported")} == imported
