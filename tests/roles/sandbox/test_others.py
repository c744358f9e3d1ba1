"""How busy the machine is, and what the demo makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from roles.sandbox import main, others
from roles.sandbox.cli import command
from roles.sandbox.demo import drawn
from roles.sandbox.session import Session, Settings
from roles.sandbox.view.frame import SimulatedNode


def test_only_cpus_of_ours_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2})
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu: [75.0, 100.0, 50.0, 100.0])
    assert others.busy_cores() == 1.25


@pytest.mark.parametrize(
    ("used", "cpus", "refused"), [(0.1, 2, False), (0.7, 2, False), (1.9, 2, True), (0.6, 1, True), (1.0, 2, False), (5.0, 16, False)]
)
def test_a_busy_machine_is_no_node(used: float, cpus: int, refused: bool) -> None:
    why = others.too_busy(used, cpus)
    assert bool(why) is refused
    if refused:
        assert why.startswith(f"{used:.1f} of {cpus} CPU")
        assert "--force" in why


def test_the_demo_says_why_it_measures_nothing_and_shows_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(others, "busy_cores", lambda: 1.9)
    monkeypatch.setattr(others, "cpus", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    session = Session(Settings(None, 3, True, False, 0, measuring=True), None, None, None, tmp_path, None, 0.0)  # type: ignore[arg-type]
    main._prepare(session)
    assert session.local is None
    assert session.without.startswith("1.9 of 2 CPUs are used by others")


def test_bars_never_exceed_their_width() -> None:
    rows = [SimulatedNode("sim-000", 8, 7.9, 4000, 3), SimulatedNode("sim-001", 8, None, None, 0)]
    lines = drawn(rows)
    assert len(lines) == 3
    assert all(line.split()[1].strip("#+.") == "" and len(line.split()[1]) == 24 for line in lines[1:])
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("arguments", [["demo", "--duration=nan"], ["world", "--minutes=nan"], ["workload", "burn-cpu", "--seconds=nan"]])
def test_seconds_are_numbers(arguments: list[str]) -> None:
    result = CliRunner().invoke(command, arguments)
    assert (result.exit_code, "is not a number of the range" in result.output) == (2, True)


def test_force_is_an_option_of_the_demo() -> None:
    assert "--force" in CliRunner().invoke(command, ["demo", "--help"]).output
