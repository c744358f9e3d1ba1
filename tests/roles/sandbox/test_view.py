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
from hypothesis import given
from hypothesis import strategies as st

from roles.sandbox import localnode
from roles.sandbox.cli import command
from roles.sandbox.logtail import JsonTail
from roles.sandbox.process_kubelet.layout import LayoutError
from roles.sandbox.view.frame import Frame, SimulatedNode, plain
from roles.sandbox.view.terminal import History, PlainView, open_view, render, sparkline, stacked
from tests.support import patience

FRAME = Frame(
    elapsed=12.3,
    phase="with batch under koord",
    phase_left=20.0,
    cpus=2,
    node_busy=1.5,
    service_cpu=0.6,
    be_quota=0.45,
    batch_cpu=800,
    batch_pods=3,
    load_rate=300,
    p50=1.7,
    p99=9.9,
    batch_cpu_used=0.4,
    last_decision="koordlet: Suppressed",
    phases=(("service alone", 4.1), ("with batch under koord", None), ("with batch, unmanaged", None)),
    nodes=tuple(SimulatedNode(f"sim-{i:03d}", 32, 4.2, 9000, 5) for i in range(15)),
)


def drawn(frame: Frame, width: int = 120, height: int = 40, history: History | None = None) -> str:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width).print(render(frame, history, width, height))
    return out.getvalue()


def test_the_live_view_shows_the_numbers() -> None:
    text = drawn(FRAME)
    for word in (
        "20 s left",
        "1.5 of 2",
        "limit 0.45 cores",
        "0.80 CPUs offered",
        "300 requests/s",
        "p99 9.9 ms",
        "Suppressed",
        "service alone 4.1 ms",
    ):
        assert word in text


def test_all_cpu_of_the_node_is_in_the_picture() -> None:
    """Unmanaged batch pods are no best-effort ones, and they burn all the same."""
    frame = replace(FRAME, be_quota=-1.0, service_cpu=0.5, batch_cpu_used=1.2, node_busy=2.0)
    text = drawn(frame)
    assert "service 0.50" in text
    assert "batch 1.20" in text
    assert "others 0.30" in text
    bar = next(line for line in text.splitlines() if line.startswith("CPU"))
    assert (bar.count("█"), bar.count("▓"), bar.count("▒"), bar.count("·")) == (10, 24, 6, 0)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=5), st.floats(0, 64))
def test_a_stacked_bar_is_as_long_as_ever(parts: list[float], whole: float) -> None:
    sizes = stacked(parts, whole, 40)
    assert sum(sizes) == 40
    assert all(size >= 0 for size in sizes)


def test_hot_nodes_stand_first_and_the_rest_is_a_sum() -> None:
    nodes = (*(SimulatedNode(f"sim-{i:03d}", 32, 2.0, 9000, 5) for i in range(30)), SimulatedNode("sim-999", 32, 30.0, 0, 7))
    text = drawn(replace(FRAME, nodes=nodes), height=24)
    rows = [line for line in text.splitlines() if line.startswith(("sim-", "and "))]
    assert rows[0].startswith("sim-999")
    assert "hot" in rows[0]
    assert rows[-1].startswith("and 22 more")
    assert "44.0/704" in rows[-1]
    assert len(text.splitlines()) <= 24
    many = drawn(replace(FRAME, nodes=nodes), height=60)
    assert many.count("sim-") == 31, "a tall terminal shows all of them"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_nothing_is_cut(width: int) -> None:
    text = drawn(replace(FRAME, last_decision=""), width=width, height=60)
    assert "…" not in text.replace("with batch under koord …", "")
    assert max(map(len, text.splitlines())) <= width


def test_history_is_a_line_of_heights() -> None:
    assert sparkline([0.0, 3.5, 7.0, None]) == "▁▅█ "
    assert sparkline([None, None]) == ""
    history = History()
    for second in range(8):
        history.take(replace(FRAME, elapsed=float(second), p99=float(second)))
    assert "▁▂▃▄▅▆▇█" in drawn(FRAME, history=history)


def test_what_is_not_known_yet_is_a_dash() -> None:
    text = drawn(Frame(elapsed=0.0, phase="setting up", cpus=2))
    assert "not offered" in text
    assert "p50 – ms" in text


def test_a_line_at_each_change_and_none_without() -> None:
    out = io.StringIO()
    view = open_view(out)
    assert isinstance(view, PlainView)
    for elapsed, phase, pods in (
        (0.0, "a", 0),
        (1.0, "a", 0),
        (1.5, "b", 0),
        (3.0, "b", 0),
        (90.0, "b", 0),
        (90.5, "b", 1),
        (91.0, "b", 2),
        (92.5, "b", 2),
    ):
        view.show(Frame(elapsed=elapsed, phase=phase, cpus=2, batch_pods=pods))
    assert [line.split("s ")[0].strip() for line in out.getvalue().splitlines()] == ["0.0", "1.5", "90.5", "92.5"]
    assert "p99 9.9 ms at 300/s" in plain(FRAME)
    assert len(plain(FRAME)) <= 120


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
from roles.sandbox.watchdog import guarded
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
    assert guard(tmp_path, body).wait(patience.seconds(20)) == code
    assert (tmp_path / "restored").exists()


def test_the_guardian_hands_a_signal_on(tmp_path: Path) -> None:
    process = guard(tmp_path, "time.sleep(60)")
    while not (tmp_path / "child").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    assert process.wait(patience.seconds(20)) == 128 + signal.SIGTERM
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
