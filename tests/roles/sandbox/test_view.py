"""The live view and the plain lines; the guardian; the command's help."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from roles.sandbox import localnode
from roles.sandbox.cli import command
from roles.sandbox.logtail import JsonTail
from roles.sandbox.process_kubelet.layout import LayoutError
from roles.sandbox.view.frame import Frame, SimulatedNode, plain
from roles.sandbox.view.terminal import MAX_NODE_ROWS, PlainView, bar, open_view, render

FRAME = Frame(
    elapsed=12.3,
    phase="with batch under koord",
    phase_left=20.0,
    cpus=2,
    node_busy=1.5,
    service_cpu=0.6,
    be_cpu=0.4,
    be_quota=0.45,
    batch_cpu=800,
    batch_pods=3,
    load_rate=300,
    p50=1.7,
    p99=9.9,
    last_decision="koordlet: Suppressed",
    nodes=tuple(SimulatedNode(f"sim-{i:03d}", 32, 4.2, 9000, 5) for i in range(MAX_NODE_ROWS + 3)),
)


def drawn(frame: Frame) -> str:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=120).print(render(frame))
    return out.getvalue()


def test_the_live_view_shows_the_numbers() -> None:
    text = drawn(FRAME)
    for word in (
        "20 s left",
        "1.50 of 2 cores",
        "limit 0.45 cores",
        "800 milli-CPU offered",
        "300 requests/s",
        "p99 9.9 ms",
        "Suppressed",
        "and 3 more",
    ):
        assert word in text


def test_what_is_not_known_yet_is_a_dash() -> None:
    text = drawn(Frame(elapsed=0.0, phase="setting up", cpus=2))
    assert "not offered" in text
    assert "p50 – ms" in text


def test_plain_lines_come_every_two_seconds_and_at_each_phase() -> None:
    out = io.StringIO()
    view = open_view(out)
    assert isinstance(view, PlainView)
    for elapsed, phase in ((0.0, "a"), (1.0, "a"), (1.5, "b"), (3.0, "b"), (3.6, "b")):
        view.show(Frame(elapsed=elapsed, phase=phase))
    assert [line.split("|")[0].strip() for line in out.getvalue().splitlines()] == ["0.0s", "1.5s", "3.6s"]
    assert "batch-cpu 800" in plain(FRAME)


@pytest.mark.parametrize(("value", "filled"), [(0, 0), (1, 14), (2, 28), (9, 28)])
def test_bars_stay_in_their_place(value: float, filled: int) -> None:
    assert bar(value, 2).count("█") == filled
    assert len(bar(value, 2)) == 28


def test_an_unfinished_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = JsonTail(path)
    assert tail.read() == []
    path.write_bytes(b'{"a": 1}\nTraceback\n{"a"')
    assert tail.read() == [{"a": 1}]
    with path.open("ab") as file:
        file.write(b": 2}\n[3]\n")
    assert tail.read() == [{"a": 2}]


def test_without_root_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LayoutError, match="needs root"):
        localnode.prepare("01234567", tmp_path)


GUARDED = """
import os, sys, time
from pathlib import Path
from roles.sandbox.guardian import guarded
out = Path(sys.argv[1])
def body():
    (out / "child").write_text(str(os.getpid()))
    {body}
    return 7
sys.exit(guarded(body, lambda: (out / "restored").touch()))
"""


def guard(tmp_path: Path, body: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    return subprocess.Popen(
        [sys.executable, "-c", GUARDED.replace("{body}", body), str(tmp_path)], env=environment, stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [("pass", 7), ("raise ValueError('x')", 1), ("os.kill(os.getpid(), 9)", 137), ("os._exit(3)", 3)],
    ids=["return", "exception", "kill", "exit"],
)
def test_the_guardian_restores_after_any_end(tmp_path: Path, body: str, code: int) -> None:
    assert guard(tmp_path, body).wait(20) == code
    assert (tmp_path / "restored").exists()


def test_the_guardian_hands_a_signal_on(tmp_path: Path) -> None:
    process = guard(tmp_path, "time.sleep(60)")
    while not (tmp_path / "child").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert (tmp_path / "restored").exists()


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert all(word in result.output for word in ("up", "demo", "clean"))


def test_a_node_shows_its_place_and_its_jobs_only_where_there_are_some() -> None:
    plain_row = SimulatedNode("sim-000", 32, 0.1, None, 0)
    assert "place" not in drawn(Frame(0, "x", nodes=(plain_row,)))
    text = drawn(Frame(0, "x", nodes=(replace(plain_row, place="rack-2", jobs="2 llm"), plain_row)))
    assert "place" in text
    assert "rack-2" in text
    assert "2 llm" in text
