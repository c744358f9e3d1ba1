"""A user's own code in the node agent (KA-PLG-01), and NodeSLO extensions and host applications as delivered (KA-SLO-02)."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from koord.api.kinds import NODESLOS
from koord.process.errors import ConfigurationError
from roles.koordlet.cli import command
from roles.koordlet.extensions import Extensions, PodPolicy, load
from tests.support.koordlet import BE_TIER, GI, Cluster, agent, run, until

EXTENSION = '''
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.extensions import PodPolicy
from roles.koordlet.host.cgroup import BESTEFFORT
from roles.koordlet.qos.outcome import Outcome, Strategy


class BestEffortShares(Strategy[None]):
    """Shares of the best-effort tier by a NodeSLO extension."""

    name = "BestEffortShares"

    @property
    def enabled(self):
        return self.gate("BestEffortShares")

    @property
    def interval(self):
        return 1.0

    def initial(self):
        return None

    def decide(self, snapshot, slo, state, now):
        shares = slo.extensions["shares"]["bestEffort"]
        directory = snapshot.host.cgroups.qos_dir(BESTEFFORT)
        return Outcome(None, batches=(sequence(Write("cpu.shares", directory, str(shares))),))


class Careful:
    """Refuses what is precious, whatever a disruption budget says."""

    def __init__(self, other):
        self.other = other

    def recently_evicted(self, uid):
        return self.other.recently_evicted(uid)

    async def evict(self, pod, gate, why):
        return "it is precious" if "precious" in pod.labels else await self.other.evict(pod, gate, why)


def policy(pod):
    if pod.name == "broken":
        raise RuntimeError("no policy")
    return PodPolicy(cpu_burst={"policy": "cpuBurstOnly", "cpuBurstPercent": 200}) if pod.qos == "LS" else None


def register(extensions):
    extensions.strategy(BestEffortShares)
    extensions.pod_policy(policy)
    extensions.replace_evictor(lambda client, other: Careful(other))
    extensions.slo_extension("shares", {"bestEffort": 100, "other": 1})
'''

STRATEGY = """
from roles.koordlet.qos.outcome import Strategy


def register(extensions):
    extensions.strategy(Mine)


class Mine(Strategy[None]):
"""


@pytest.mark.feature("KA-PLG-01")
@pytest.mark.feature("KA-SLO-02")
def test_an_extension_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(EXTENSION)

    async def story(c: Cluster) -> None:
        spec = {
            "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70},
            "extensions": {"shares": {"bestEffort": 33}, "unknown": 1},
            "hostApplications": [{"name": "nginx", "qos": "LS", "cgroupPath": {"base": "CgroupRoot", "relativePath": "nginx"}}],
        }
        await c.node(spec)
        limits = {"limits": {"cpu": "1"}}
        ls = await c.pod("ls", qos="LS", kube_qos="Burstable", quota=100_000, resources=limits)
        own = await c.pod(
            "own",
            qos="LS",
            kube_qos="Burstable",
            quota=100_000,
            resources=limits,
            annotations={"koordinator.sh/cpuBurst": '{"policy":"none"}'},
        )
        await c.pod("broken", qos="LS", kube_qos="Burstable", quota=100_000, resources=limits)
        await c.pod("gem", qos="BE", kube_qos="BestEffort", memory=9 * GI, precious="true")
        await c.pod("scrap", qos="BE", kube_qos="BestEffort", memory=4 * GI)
        options = {"plugin_path": str(path), "qos_extension_plugins": "BestEffortShares=true"}
        async with agent(c, "CPUBurst", "BEMemoryEvict", **options) as app:
            await until(lambda: c.read("cpu", BE_TIER, "cpu.shares") == "33", "the extension's strategy")
            await until(lambda: c.read("cpu", c.dirs(ls)[1], "cpu.cfs_burst_us") == "200000", "the injected policy")
            assert c.read("cpu", c.dirs(own)[1], "cpu.cfs_burst_us") == "0", "a pod's own annotation wins"
            assert app.state.slo is not None
            assert app.state.slo.extensions == {"shares": {"bestEffort": 33, "other": 1}}, (
                "defaults fill in; what nobody asked for is left out"
            )
            assert [a.name for a in app.state.slo.host_applications] == ["nginx"]
            await c.client.patch(NODESLOS, "n1", {"spec": {"extensions": None, "hostApplications": None}})
            await until(lambda: c.read("cpu", BE_TIER, "cpu.shares") == "100", "the extension's default")
            assert app.state.slo.host_applications == ()

            c.memory(80)
            await until(lambda: c.evicted("scrap"), "the eviction that the extension allows")
            assert not await c.evicted("gem")
            refused = [r for r in app.recorder.ring.find("Pod", "default", "gem") if r.verdict == "EvictionRefused"]
            assert "it is precious" in refused[0].message

    run(tmp_path, story)


@pytest.mark.feature("KA-PLG-01")
@pytest.mark.parametrize(
    ("code", "gates", "said"),
    [
        ("register = 1", "", "no function register"),
        ("def register(e): raise KeyError('x')", "", r"register failed: .*/mine\.py:1: KeyError"),
        ("import os\nimport nowhere_to_be_found", "", r"cannot be loaded: .*/mine\.py:2: ModuleNotFoundError: No module"),
        ("def f(:\n  pass", "", r"cannot be loaded: .*/mine\.py:1: SyntaxError: invalid syntax"),
        ("\nraise SystemExit(0)", "", r"cannot be loaded: .*/mine\.py:2: SystemExit: 0"),
        ("def register(e): pass", "Other=true", "Other: extension strategies that were loaded: none"),
        ("def register(e): pass", "Other", "is not Name=true"),
        ("def register(e):\n  e.replace_evictor(None)\n  e.replace_evictor(print)\n  e.replace_evictor(print)", "", "two extensions"),
        ("from roles.koordlet.qos.sysconfig import SystemConfig\ndef register(e): e.strategy(SystemConfig)", "", "is there already"),
        ("def register(e): e.strategy(int)", "", "<class 'int'> is no Strategy class"),
        (f"{STRATEGY}    pass", "", "strategy Mine of .* has no `name`"),
        (f"{STRATEGY}    name = 'Mine'", "", "strategy 'Mine' of .* does not define: decide, initial"),
        ("def register(e): [e.slo_extension('x', default) for default in ({}, {'a': 1})]", "", "NodeSLO extension 'x' is there already"),
        ("def register(e): e.slo_extension('x', {'a': object})", "", "NodeSLO extension 'x': its default cannot be in a NodeSLO"),
    ],
)
def test_mistakes_stop_the_start_with_their_reason(tmp_path: Path, code: str, gates: str, said: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(code)
    with pytest.raises(ConfigurationError, match=said):
        load([str(path)], gates)
    with pytest.raises(ConfigurationError, match=r"absent\.py does not exist"):
        load([str(tmp_path / "absent.py")])
    with pytest.raises(ConfigurationError, match="is no Python file"):
        load([str(tmp_path)])


def test_a_strategy_that_is_not_switched_on_does_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mine.py"
    path.write_text(EXTENSION)
    caplog.set_level("INFO", "roles.koordlet.extensions")
    assert load([str(path)]).make_strategies(None, lambda name: True) == []  # type: ignore[arg-type]
    assert "strategy BestEffortShares is loaded and off; --qos-extension-plugins=BestEffortShares=true turns it on" in caplog.messages
    caplog.clear()
    load([str(path)], "BestEffortShares=false")
    assert not any("is loaded and off" in message for message in caplog.messages), "it was switched off by name"


def _exits(pod):
    raise SystemExit(3)


@pytest.mark.parametrize(
    "wrong",
    [lambda pod: {"cpu_burst": {}}, lambda pod: PodPolicy(cpu_burst={"policy": object()}), lambda pod: PodPolicy(memory_qos=5), _exits],  # type: ignore[arg-type]
)
def test_a_policy_that_gives_what_none_can_use_costs_itself_only(world, caplog, wrong) -> None:
    found = Extensions()
    found.pod_policy(wrong)
    found.pod_policy(lambda pod: PodPolicy(cpu_burst={"policy": "cpuBurstOnly"}))
    pods = [found.with_policies(world.pod(f"p{number}", qos="LS")) for number in range(50)]
    assert all(pod.annotations["koordinator.sh/cpuBurst"] == '{"policy":"cpuBurstOnly"}' for pod in pods)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


@pytest.mark.feature("KA-PLG-01")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\nimport no_such_module\n", ":2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def register(extensions):\n    {}['a']\n", ":2: KeyError: 'a'"),
        ("x = 1\n", "there is no function register(extensions)"),
    ],
)
def test_checking_the_flags_loads_the_files_that_they_name(tmp_path: Path, text: str, says: str) -> None:
    """`--validate-config` accepts no command line with which koordlet could not start."""
    (tmp_path / "own.py").write_text(text)
    done = CliRunner().invoke(command, ["--node-name=n1", f"--plugin-path={tmp_path}/own.py", "--validate-config"])
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert f"{tmp_path}/own.py" in done.output
    assert says in done.output
