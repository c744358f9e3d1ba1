"""Settings of the whole suite: hypothesis profiles and what a test may need of the machine."""

from __future__ import annotations

import gc
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support import leftovers, patience

# What gates a change must not depend on luck: the default profile tries the same examples each time; `make fuzz` looks for new ones.
settings.register_profile("default", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def _missing(marker: str) -> str | None:
    """Why this machine cannot run tests with `marker`, or None."""
    if marker == "root":
        if os.geteuid() != 0:
            return "needs root"
        if not os.access("/sys/fs/cgroup/cpu/cpu.shares", os.W_OK) and not Path("/sys/fs/cgroup/cpu/tasks").exists():
            return "needs writable cgroup v1 controllers"
    if marker == "kubectl" and shutil.which("kubectl") is None:
        return "needs kubectl on PATH"
    if marker == "helm" and shutil.which("helm") is None:
        return "needs helm on PATH"
    if marker == "realapi" and not os.environ.get("KOORD_REAL_APISERVER"):
        return "needs a kube-apiserver binary in KOORD_REAL_APISERVER"
    if marker == "cri" and (os.geteuid() != 0 or shutil.which("containerd") is None):
        return "needs root and containerd on PATH"
    if marker == "vm" and shutil.which("qemu-system-x86_64") is None:
        return "needs qemu-system-x86_64 on PATH"
    return None


MACHINE = ("root", "cri", "vm", "realapi")
"""Marks of tests that use the machine itself: its cgroups, a container runtime, a virtual machine."""
STEPS = ("all", "hermetic", "machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--step", choices=STEPS, default="all", help="hermetic: what runs side by side; machine: end-to-end tests and what uses the machine"
    )


def pytest_configure(config: pytest.Config) -> None:
    leftovers.mark()
    patience.slowness()
    # In the setup and the teardown of a test the timer runs too (below), but never while a report is made: that would end the run.
    config.addinivalue_line("filterwarnings", "ignore::pluggy.PluggyTeardownRaisedWarning")


def pytest_report_header() -> str:
    return f"machine: limits of time are multiplied by {patience.slowness()}"


def is_of_the_machine(item: pytest.Item) -> bool:
    """Whether a test belongs to the second step: whole sandboxes, what uses the machine, and what first builds the executable."""
    built = "dist" in getattr(item, "fixturenames", ())
    return built or "tests/e2e/" in item.nodeid or any(item.get_closest_marker(marker) for marker in MACHINE)


_OF_THE_MACHINE = re.compile(rf"mark\.({'|'.join(MACHINE)})\b|\bdist\b")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Every worker imports what it collects: a step leaves the files alone that have nothing for it."""
    step = config.getoption("--step")
    end_to_end = "tests/e2e" in collection_path.as_posix()
    if step == "hermetic" and end_to_end:
        return True
    if step != "machine" or end_to_end or not re.fullmatch(r"test_.*\.py", collection_path.name):
        return None
    return None if _OF_THE_MACHINE.search(collection_path.read_text(encoding="utf-8")) else True


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """What a worker imports stays: looking through it again and again for garbage takes a third of the time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    step = config.getoption("--step")
    if step != "all":
        sides: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            sides[is_of_the_machine(item) == (step == "machine")].append(item)
        config.hook.pytest_deselected(items=sides[False])
        items[:] = sides[True]
    usual = float(config.getini("timeout") or 0)
    for item in items:
        for marker in ("root", "kubectl", "helm", "realapi", "cri", "vm"):
            if item.get_closest_marker(marker) and (reason := _missing(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))
        own = item.get_closest_marker("timeout")
        limit = float(own.args[0] if own and own.args else (own.kwargs.get("timeout", usual) if own else usual))
        if limit and patience.slowness() > 1:
            item.add_marker(pytest.mark.timeout(patience.seconds(limit)), append=False)


def _timed(item: pytest.Item) -> Iterator[None]:
    """pytest-timeout's timer around a fixture's work, as around the test's own (`timeout_func_only`)."""
    from pytest_timeout import _get_item_settings

    settings = _get_item_settings(item)
    hooks = item.config.pluginmanager.hook
    timed = bool(settings.timeout and settings.timeout > 0)
    if timed:
        hooks.pytest_timeout_set_timer(item=item, settings=settings)
    yield
    if timed:
        hooks.pytest_timeout_cancel_timer(item=item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield from _timed(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield from _timed(item)


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """What a test forgets to close fails that test, not one that happens to run when it is collected."""
    yield
    gc.collect()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Once a test's fixtures are let go of, the next collections need not look at what is there now."""
    yield
    gc.collect()
    gc.freeze()


class _AtOnce:
    """Prints a failure when it happens: a run that is stopped has told what it found."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_sep("_", f"FAILED {report.nodeid} ({report.when})", red=True)
            terminal.write_line(report.longreprtext)


def pytest_sessionstart(session: pytest.Session) -> None:
    # Beside workers the summary comes only when all of them have ended, if it comes.
    if not hasattr(session.config, "workerinput") and session.config.getoption("numprocesses", None):
        session.config.pluginmanager.register(_AtOnce(session.config), "failures-at-once")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    for line in leftovers.end(leftovers.mark()):
        print(f"left behind by a test and ended now: {line}")


class _ByFile(LoadScopeScheduling):
    """A file's tests run in one worker, because they share servers; so do all tests of the packages, because they share one build."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "tests/packaging" if file.startswith("tests/packaging/") else file


@pytest.hookimpl(optionalhook=True)  # unknown to pytest where xdist is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _ByFile(config, log)
