"""`--observe-only` (BEY-MODE-01): everything is decided and reported, and nothing of the machine is touched."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import NODEMETRICS
from koord.config.gates import KOORDLET
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.host.root import HostRoot
from roles.koordlet.options import OptionError, Options, check, settled
from roles.koordlet.permissions import unreadable
from roles.koordlet.report import policy
from tests.support.koordlet import GI, Cluster, agent, run, until

COUNTING = {"cpuacct.usage", "cpu.stat", "stat"}


def tree(base: Path) -> dict[str, bytes]:
    """Every file and directory below with its content, but those that count by themselves and the checkpoints, which were asked for."""
    return {
        str(path.relative_to(base)): path.read_bytes() if path.is_file() else b""
        for path in base.rglob("*")
        if path.name not in COUNTING and base / "checkpoints" not in (path, path.parent)
    }


@pytest.fixture(autouse=True)
def _quick_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MIN_INTERVAL", 1)


async def metric_wanted(c: Cluster) -> None:
    spec = {"metricCollectPolicy": {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 1}}
    body = {"apiVersion": NODEMETRICS.api_version, "kind": NODEMETRICS.kind, "metadata": {"name": "n1"}, "spec": spec}
    await c.client.create(NODEMETRICS, body)


async def reported(c: Cluster) -> bool:
    status = (await c.client.get(NODEMETRICS, "n1")).get("status") or {}
    return bool((status.get("nodeMetric") or {}).get("nodeUsage"))


@pytest.mark.feature("BEY-MODE-01")
def test_it_reports_and_decides_and_touches_nothing(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 50}})
        await metric_wanted(c)
        c.memory(60)
        await c.pod("be", qos="BE", kube_qos="BestEffort", memory=9 * GI, **{"koordinator.sh/eviction-enabled": "true"})
        c.use.update({"node": 9.0, "be": 8.0})
        c.counters()
        c.file("sys/kernel/mm/kidled/scan_period_in_seconds", "0")
        c.file("sys/kernel/mm/kidled/use_hierarchy", "0")
        c.file("sys/fs/resctrl/schemata", "L3:0=fff\nMB:0=100\n")
        before = tree(c.base)
        gates = tuple(sorted(set(KOORDLET) - {"BECPUManager"}))  # which would place the tier's pods instead
        async with agent(c, *gates, observe_only=True, audit_log_dir=str(c.base / "audit")) as app:
            wanted = {("BECPUSuppress", "WouldSuppress"), ("BEMemoryEvict", "WouldEvict")}
            records = app.recorder.ring
            await until(lambda: wanted <= {(r.rule, r.verdict) for r in records.find("Pod", "default", "be")}, "what would be done")
            await until(partial(reported, c), "a NodeMetric with use")
            assert tree(c.base) == before, "while it runs there is no lock, journal, socket or registration either"
        assert tree(c.base) == before
        assert not await c.evicted("be")

    run(tmp_path, story)


@pytest.mark.feature("BEY-MODE-01")
def test_it_is_in_nobodys_way(tmp_path) -> None:
    """An agent that enforces holds the node's lock; one that only looks starts beside it."""

    async def story(c: Cluster) -> None:
        await c.node({})
        await metric_wanted(c)
        await c.pod("web", qos="LS", kube_qos="Burstable")
        async with agent(c):
            await until((c.base / "var/run/koordlet/koordlet.lock").exists, "the lock")
            async with agent(c, observe_only=True):
                await until(partial(reported, c), "a NodeMetric with use")

    run(tmp_path, story)


@pytest.mark.feature("BEY-MODE-01")
def test_no_caller_can_make_the_executor_write(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        async with agent(c, observe_only=True) as app:
            await until(lambda: hasattr(app, "acting"), "the acting half")
            c.counters()
            executor: Executor = app.acting.executor
            before = tree(c.base)
            applied = executor.apply((sequence(Write("cpu.shares", "kubepods.slice", "2")),), rule="test", now=0.0, mode=Mode.ENFORCE)
            assert len(applied.would) == 1
            assert applied.written == []
            assert tree(c.base) == before

    run(tmp_path, story)


@pytest.mark.feature("BEY-MODE-01")
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"restore": True}, "--restore"),
        ({"strategy_modes": "CPUBurst=enforce,MemoryEvict=observe"}, "enforce: CPUBurst"),
    ],
)
def test_what_contradicts_it_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        check(Options(node_name="n1", observe_only=True, **values))


def test_directories_of_its_own_are_used_only_where_they_were_named() -> None:
    plain = settled(Options(observe_only=True))
    assert (plain.tsdb_path, plain.prediction_checkpoint_filepath) == ("", "")
    named = settled(Options(observe_only=True, tsdb_path="/series"))
    assert named.tsdb_path == "/series"
    untouched = Options(strategy_modes="CPUBurst=enforce")
    assert settled(untouched) is untouched


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_told_with_what_it_means(tmp_path) -> None:
    kubelet = tmp_path / "var/lib/kubelet"
    kubelet.mkdir(parents=True)
    (kubelet / "cpu_manager_state").write_text("{}")
    (kubelet / "cpu_manager_state").chmod(0)
    (text,) = unreadable(HostRoot.at(str(tmp_path)), lambda gate: False)
    assert text.startswith(f"{kubelet}/cpu_manager_state may not be read")
    assert "pinned" in text


def test_what_is_not_there_is_no_matter_of_permission(tmp_path) -> None:
    assert unreadable(HostRoot.at(str(tmp_path)), lambda gate: True) == []
