"""Every change of the machine goes one way: observed, journalled, undone (KA-EXE-01, BEY-JRN-01, BEY-MODE-01)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from roles.koordlet.actuation.executor import Mode
from roles.koordlet.actuation.restore import journal_path, restore
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.hooks.server import HookServer, registration
from roles.koordlet.host.root import HostRoot
from roles.koordlet.sensing.base import MAX_TROUBLES, Troubles
from tests.support import patience
from tests.support.koordlet import Cluster, agent, run, until

SWITCHES = {"scan_period_in_seconds": "120", "use_hierarchy": "0"}


@pytest.mark.feature("KLO-COL-09")
@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_the_switches_of_kidled_are_observed_journalled_and_put_back(tmp_path: Path, mode: str) -> None:
    def switches(c: Cluster) -> dict[str, str]:
        return {name: (c.base / "sys/kernel/mm/kidled" / name).read_text().strip() for name in SWITCHES}

    async def story(c: Cluster) -> None:
        for name, value in SWITCHES.items():
            c.file(f"sys/kernel/mm/kidled/{name}", value)
        await c.node({})
        async with agent(c, "ColdPageCollector", mode=mode, coldpage_collector_interval=0.2) as app:
            if mode == "enforce":
                await until(lambda: switches(c) == {"scan_period_in_seconds": "5", "use_hierarchy": "1"}, "kidled is on", 20)
            else:
                await until(lambda: bool(app.metrics.sensing_errors.get("cold memory")), "what it would need is told", 20)
        assert restore(HostRoot.at(str(c.base))).failed == []
        assert switches(c) == SWITCHES

    run(tmp_path, story)


def test_the_registration_with_the_runtime_proxy_goes_when_the_node_is_put_back(machine) -> None:
    directory = machine.root.hooks_config
    batch, path = registration(directory, "/var/run/koordlet/koordlet.sock", "Fail", ["PreRunPodSandbox"])
    for _ in range(2):  # a restart finds its own
        assert machine.executor.apply([batch], rule="runtime hooks", now=1.0).failed == []
    assert Path(path).read_text()
    machine.journal.close()
    assert restore(machine.root).failed == []
    assert not Path(path).exists()
    assert not Path(directory).exists()


def test_a_registration_of_an_earlier_version_is_known_for_koordlets(machine) -> None:
    directory = Path(machine.root.hooks_config)
    directory.mkdir(parents=True)
    (directory / "koordlet.json").write_text("{}")
    (directory / "mine.json").write_text("{}")
    batch, _ = registration(str(directory), "/sock", "Ignore", [])
    assert machine.executor.apply([batch], rule="runtime hooks", now=1.0).failed == []
    machine.journal.close()
    assert restore(machine.root).failed == []
    assert [p.name for p in directory.iterdir()] == ["mine.json"]


def test_a_directory_that_others_use_by_now_stays(machine) -> None:
    batch, _ = registration(machine.root.hooks_config, "/sock", "Ignore", [])
    machine.executor.apply([batch], rule="runtime hooks", now=1.0)
    other = Path(machine.root.hooks_config, "other.json")
    other.write_text("{}")
    machine.journal.close()
    result = restore(machine.root)
    assert (result.failed, [e.path for e in result.theirs]) == ([], [machine.root.hooks_config])
    assert other.exists()


# -- bounded by what lives ---------------------------------------------------------------------------------------------------


def test_observing_remembers_only_what_is_wanted_still(machine) -> None:
    machine.put("cpu.shares", "kubepods.slice", "1024")
    for pod in range(600):
        machine.now += 1
        machine.put("cpu.shares", f"kubepods.slice/p{pod}", "1024")
        batch = sequence(Write("cpu.shares", f"kubepods.slice/p{pod}", "2"))
        assert machine.executor.apply([batch], rule="r", now=1.0, mode=Mode.OBSERVE).would
    assert len(machine.executor._would) < 200
    assert not Path(journal_path(machine.root)).read_bytes()


def test_troubles_of_pods_that_are_gone_make_room(machine) -> None:
    troubles = Troubles("network", machine.metrics)
    for pod in range(3 * MAX_TROUBLES):
        troubles.failed(f"pod {pod}", ValueError("gone"))
    assert len(troubles._open) == MAX_TROUBLES


# -- the socket of hooks -----------------------------------------------------------------------------------------------------


@pytest.mark.feature("KA-RH-01")
@pytest.mark.parametrize("how", ["removed", "replaced", "with its directory"])
def test_a_socket_that_was_taken_away_is_there_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "hooks/koordlet.sock"
    lost: list[int] = []

    async def story() -> None:
        server = HookServer("unix", str(path), lambda: None, lost=lambda: lost.append(1), look=0.05)  # type: ignore[arg-type, return-value]
        await server.start()
        path.unlink()
        if how == "replaced":
            path.write_text("")
        elif how == "with its directory":
            path.parent.rmdir()
        for _ in patience.tries(400):
            if lost:
                break
            await asyncio.sleep(0.02)
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.close()
        await server.stop()

    asyncio.run(story())
    assert lost == [1]
    assert not path.exists()
