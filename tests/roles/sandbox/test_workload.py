"""The service, the open-loop load generator and the burners."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.sandbox.workload import burn
from roles.sandbox.workload.load import Generator, Step, percentile, plan
from roles.sandbox.workload.serve import RESPONSE
from roles.sandbox.workload.work import calibrate, spin
from tests.support import patience


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([50, 95, 99]))
def test_percentile_is_the_nearest_rank(values: list[float], percent: int) -> None:
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found in ordered
    assert sum(v <= found for v in ordered) >= len(ordered) * percent / 100


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 5)), min_size=1, max_size=4))
def test_plan_has_every_request_in_its_step(steps: list[tuple[int, int]]) -> None:
    made = plan([Step(float(r), float(s)) for r, s in steps])
    assert len(made) == sum(r * s for r, s in steps)
    assert made == sorted(made)
    edges = [0.0]
    for _, seconds in steps:
        edges.append(edges[-1] + seconds)
    assert all(edges[i] <= t < edges[i + 1] for t, i in made)


@pytest.mark.parametrize("bad", ["", "10", "10:", "x:1", "0:1", "1:-1", "nan:1", "1:inf"])
def test_bad_steps_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="step"):
        Step.parse(bad)


class Stalling(threading.Thread):
    """A one-connection-at-a-time server that stops answering for a while."""

    def __init__(self, stall_after: float, stall: float) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = self.listener.getsockname()
        self.begin = time.monotonic()
        self.stall_after, self.stall = stall_after, stall
        self.stopping = threading.Event()

    def run(self) -> None:
        import selectors

        selector = selectors.DefaultSelector()
        selector.register(self.listener, selectors.EVENT_READ)
        stalled = False
        while not self.stopping.is_set():
            for key, _ in selector.select(0.05):
                if not stalled and time.monotonic() - self.begin > self.stall_after:
                    stalled = True
                    time.sleep(self.stall)
                if key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    selector.register(connection, selectors.EVENT_READ)
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj.recv(4096):
                        key.fileobj.sendall(RESPONSE)
                    else:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        selector.close()


def stalled() -> tuple[dict[str, Any], list[str]]:
    """What is measured of a server that stops for half a second of one and a half, and the events that were told."""
    server = Stalling(stall_after=0.5, stall=0.5)
    server.start()
    out = io.StringIO()
    try:
        (result,) = Generator(server.address, [Step(100, 1.5)], out).run()
    finally:
        server.stopping.set()
        server.join(5)
    return result, [json.loads(line)["event"] for line in out.getvalue().splitlines()]


def test_a_stall_is_charged_to_every_request_that_had_to_wait() -> None:
    for _ in patience.tries(2):
        result, events = stalled()
        assert result["count"] + result["errors"] == 150
        assert result["errors"] == 0
        # 50 of 150 requests were planned during the stall: a closed loop would have seen one slow request.
        assert result["p95"] > 300
        assert events[0] == "step"
        assert events[-1] == "end"
        assert "tick" in events
        if result["p50"] < 100:  # on a busy machine the others may have waited as well
            break
    assert result["p50"] < 100


def test_nobody_listening_is_an_error_for_every_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (result,) = Generator(("127.0.0.1", port), [Step(50, 0.4)], io.StringIO()).run()
    assert (result["count"], result["errors"]) == (0, 20)


def test_work_takes_the_time_it_was_calibrated_for() -> None:
    iterations = calibrate(2.0)
    began = time.process_time()
    for _ in range(20):
        spin(iterations)
    assert 0.02 < time.process_time() - began < 0.3


def test_burners_report_their_work() -> None:
    out = io.StringIO()
    units = burn.burn_cpu(out, seconds=0.2)
    assert units > 0
    assert json.loads(out.getvalue().splitlines()[-1])["units"] == units
    out = io.StringIO()
    assert burn.burn_memory(out, 8, pause=0.01, seconds=0.1) > 0
    assert json.loads(out.getvalue().splitlines()[-1])["event"] == "work"


def test_workers_share_the_port_and_the_load() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "koord.cli", "sandbox", "workload", "serve", f"--port={port}", "--iterations=20000", "--workers=2"]
    server = subprocess.Popen(argv, cwd=Path(__file__).resolve().parents[3], start_new_session=True)
    try:
        deadline = time.monotonic() + patience.seconds(10)
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
        (result,) = Generator(("127.0.0.1", port), [Step(100, 1.5)], io.StringIO()).run()
        assert (result["count"], result["errors"]) == (150, 0)
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        times = [
            sum(int(x) for x in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]) for pid in (server.pid, *children)
        ]
        assert len(times) == 2
        assert min(times) >= 0.15 * sum(times)
    finally:
        os.killpg(server.pid, 15)
        server.wait()
