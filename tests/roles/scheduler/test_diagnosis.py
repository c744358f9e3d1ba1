"""What is told about cycles beyond conditions and events: monitor, debug switches, diagnosis (SCH-FW-09)."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import aiohttp
import pytest

from roles.scheduler.diagnosis import Debug, Dump
from roles.scheduler.monitor import Monitor
from tests.support import patience


async def line_with(caplog: pytest.LogCaptureFixture, text: str) -> str:
    for _ in patience.tries(200):
        for record in caplog.records:
            if text in record.getMessage():
                return record.getMessage()
        await asyncio.sleep(0.02)
    raise AssertionError(f"no log line with {text!r}")


@pytest.mark.feature("SCH-FW-09")
def test_scores_filters_and_diagnoses_are_logged_and_switched(scheduler: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        async with scheduler(debug=Debug(2, True, True)) as live, aiohttp.ClientSession(live.ops.url) as session:
            await live.node("n1", cpu="2")
            await live.node("n2", cpu="2", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
            await live.pod("fits")
            await live.bound("fits")
            assert "NodeResourcesFit=" in await line_with(caplog, "default/fits: 1 feasible of 2 nodes, chosen n1")
            assert await line_with(caplog, "default/fits: TaintToleration refused n2: node(s) had untolerated taint {k: v}")
            await live.pod("big", cpu="64")
            await live.refused("big")
            document = json.loads((await line_with(caplog, "diagnosis {")).removeprefix("diagnosis "))
            assert document["questionedKey"] == "default/big"
            assert document["scheduleDiagnosis"]["nodeFailedDetails"] == [
                {"reason": "Insufficient cpu", "failedPlugin": "NodeResourcesFit", "preemptMightHelp": False, "failedNodes": ["n1"]},
                {
                    "reason": "node(s) had untolerated taint {k: v}", "failedPlugin": "TaintToleration", "preemptMightHelp": False,
                    "failedNodes": ["n2"],
                },
            ]  # fmt: skip
            assert (await session.get("/debug/flags/s")).status in (404, 405)

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-09")
def test_switches_are_put_over_http() -> None:
    from koord.process.http import OpsServer
    from roles.scheduler import diagnosis

    async def run() -> None:
        debug, dump, ops = Debug(), Dump(size=1, workers=1), OpsServer("127.0.0.1", 0)
        diagnosis.install(ops, debug, dump)
        ops.enable_profiling()
        await ops.start()
        async with aiohttp.ClientSession(ops.url) as session:
            for name, value, status in (
                ("s", "7", 200),
                ("f", "true", 200),
                ("d", "T", 200),
                ("db", "1", 200),
                ("s", "x", 400),
                ("f", "yes", 400),
            ):
                assert (await session.put(f"/debug/flags/{name}", data=value)).status == status
        await ops.stop()
        assert (debug, dump.blocking) == (Debug(7, True, True), True)

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-09")
def test_diagnoses_beyond_the_queue_are_dropped_and_none_is_lost_at_the_end() -> None:
    async def run() -> None:
        written: list[str] = []
        dump = Dump(size=2, workers=1, write=lambda document: written.append(document["questionedKey"]))
        dump.start()
        for name in "abc":
            dump.put({"questionedKey": name})
        assert (written, dump.dropped) == ([], 1)
        await dump.stop()
        assert written == ["a", "b"]
        dump.blocking = True
        dump.put({"questionedKey": "d"})
        assert written[-1] == "d"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-09")
def test_slow_pods_are_reported_each_period_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    monitor = Monitor(30.0, counted.append)
    monitor.started("u1", "default/slow", "koord-scheduler", 0.0)
    monitor.started("u2", "default/quick", "koord-scheduler", 20.0)
    assert monitor.check(30.0) == 0
    assert monitor.check(31.0) == 1
    assert monitor.check(41.0) == 1
    monitor.ended("u2", 45.0)
    monitor.ended("u1", 50.0)
    monitor.ended("u1", 51.0)
    assert counted == ["koord-scheduler"] * 3
    assert "scheduling of pod default/slow takes 50.0 s, more than 30.0 s" in caplog.text
    assert len(monitor) == 0


@pytest.mark.feature("SCH-FW-09")
def test_a_binding_that_hangs_shows_in_the_metrics(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler(scheduling_timeout=0.05, monitor_period=0.05) as live, aiohttp.ClientSession() as session:
            hung = asyncio.Event()

            async def bind(*_: Any, **__: Any) -> None:
                await hung.wait()

            live.client.bind = bind
            await live.node("n")
            await live.pod("p")
            for _ in patience.tries(200):
                text = await (await session.get(f"{live.ops.url}/metrics")).text()
                if 'scheduler_scheduling_timeout_total{profile="koord-scheduler"}' in text:
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError("the timeout was not counted")
            assert 'scheduler_scheduling_timeout{profile="koord-scheduler"}' in text
            hung.set()

    asyncio.run(run())
