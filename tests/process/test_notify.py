"""Signs of life for systemd."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.process.notify import notify, stay_watched, watchdog_period
from tests.support import patience


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def test_without_a_service_manager_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert notify("READY=1") is False


def test_a_manager_that_is_gone_costs_a_line_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert notify("READY=1") is False


@pytest.mark.parametrize(
    ("environ", "period"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "90000000"}, 45.0),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_how_often_systemd_wants_to_hear(environ: dict[str, str], period: float | None) -> None:
    assert watchdog_period(environ) == period


def test_signs_of_life_stop_while_the_process_is_not_well(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    async def scenario() -> None:
        stopping, health = asyncio.Event(), {"well": True}
        asked = 0

        def alive() -> bool:
            nonlocal asked
            asked += 1
            return health["well"]

        task = asyncio.create_task(stay_watched(stopping, alive))
        assert await asyncio.to_thread(manager.recv, 100) == b"WATCHDOG=1"
        health["well"] = False
        await asyncio.sleep(0)
        manager.setblocking(False)
        before = asked
        while asked < before + 3:
            await asyncio.sleep(0.01)
        while True:  # what was sent before it fell ill
            try:
                manager.recv(100)
            except BlockingIOError:
                break
        before = asked
        while asked < before + 3:
            await asyncio.sleep(0.01)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
        health["well"] = True
        manager.settimeout(10)
        assert await asyncio.to_thread(manager.recv, 100) == b"WATCHDOG=1"
        stopping.set()
        await asyncio.wait_for(task, patience.seconds(5))

    asyncio.run(scenario())
