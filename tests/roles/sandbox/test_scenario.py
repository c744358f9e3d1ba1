"""Scenario files: strict, defaulted, and the built-in demo is the file that is shipped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koord.config import slo
from koord.config.errors import InvalidConfig
from koord.config.model import wire
from koord.config.scheduler import load
from roles.koordlet.options import Options, check
from roles.sandbox import objects, scenario
from roles.sandbox.cli import command
from roles.sandbox.rolesets import koordlet, manager, scheduler
from roles.sandbox.scenario import Scenario

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "sandbox"


def test_the_shipped_demo_is_the_built_in_one() -> None:
    assert scenario.load(CONFIGS / "demo.yaml") == Scenario() == scenario.load(None)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_scenario_is_accepted(path: Path) -> None:
    assert scenario.load(path).phases


def write(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({**wire(Scenario()), **changes}))
    return path


def test_the_manager_has_the_gates_of_the_scenario(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    head = {"apiVersion": scenario.API_VERSION, "kind": scenario.KIND}
    path.write_text(yaml.safe_dump({**head, "manager": {"featureGates": "DeviceResourceSlices=true"}}))
    sandbox: Any = SimpleNamespace(scenario=scenario.load(path), scratch=tmp_path, port=lambda role: 1, environment={})
    assert "--feature-gates=DeviceResourceSlices=true" in manager.arguments(sandbox)
    path.write_text(yaml.safe_dump({**head, "manager": {"featureGates": "Nonsense=true"}}))
    with pytest.raises(InvalidConfig, match=r"manager\.featureGates.*Nonsense"):
        scenario.load(path)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"nodez": {}}, "nodez"),
        ({"nodes": {"count": -1}}, "nodes.count"),
        ({"nodes": {"count": "3"}}, "nodes.count"),
        ({"load": {"steps": []}}, "load.steps"),
        ({"load": {"steps": [{"rate": 0, "seconds": 1}]}}, "load.steps[0].rate"),
        ({"phases": [{"kind": "later"}]}, "phases[0].kind"),
        ({"phases": [{"kind": "alone"}, {"kind": "alone"}]}, "once"),
        ({"sloControllerConfig": {"resource-threshold-config": {"clusterStrategy": {"cpuSuppressThresholdPercent": 500}}}}, "cpuSuppress"),
        ({"kind": "Other"}, "Other"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, changes: dict, where: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        scenario.load(write(tmp_path, **changes))
    assert where in str(error.value)


def test_strategies_off_means_off_for_the_manager_too() -> None:
    parsed = slo.parse(Scenario().config_data(strategies=False), previous=None)
    assert not parsed.errors
    assert '"enable":false' in Scenario().config_data(strategies=False)["colocation-config"]


def test_duration_stretches_all_steps_alike() -> None:
    made = Scenario().stretched(60.0)
    assert made.phase_seconds() * len(made.phases) == pytest.approx(60.0)
    assert [s.rate for s in made.load.steps] == [s.rate for s in Scenario().load.steps]


@pytest.mark.parametrize("arguments", [["demo", "--scenario", "bad.yaml"], ["up", "--scenario", "bad.yaml"]])
def test_a_bad_file_ends_with_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("kind: Scenario\napiVersion: sandbox.koordinator.sh/v1alpha1\nnodes: 3\n")
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1
    assert "nodes" in result.output
    assert "Traceback" not in result.output


def test_the_scheduler_as_a_process_gets_the_configuration_of_the_scenario(tmp_path: Path) -> None:
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "mine"}],
    }
    path = tmp_path / "scenario.yaml"
    head = {"apiVersion": scenario.API_VERSION, "kind": scenario.KIND}
    path.write_text(yaml.safe_dump({**head, "scheduler": {"configuration": configuration, "networkTopology": True}}))
    sandbox: Any = SimpleNamespace(scenario=scenario.load(path), scratch=tmp_path, port=lambda role: 1, scheduler_config=None)
    flags = scheduler.arguments(sandbox)
    assert "--enable-network-topology-manager" in flags
    assert [profile.scheduler_name for profile in load(flags[0].removeprefix("--config=")).profiles] == ["mine"]
    sandbox.scenario = Scenario()
    assert "--enable-network-topology-manager" not in scheduler.arguments(sandbox)
    assert scheduler.sources(sandbox) == []
    sandbox.scheduler_config = "mine.yaml"
    assert scheduler.arguments(sandbox)[0] == "--config=mine.yaml", "the user's own file, which is followed"
    assert scheduler.sources(sandbox) == ["mine.yaml"]


@pytest.mark.parametrize(
    ("kind", "namespace", "asks"), [("koord", "batch", True), ("unmanaged", "batch-unmanaged", True), ("shares", "batch-unmanaged", False)]
)
def test_batch_pods_by_phase(kind: str, namespace: str, asks: bool) -> None:
    """What asks for nothing is BestEffort to Kubernetes: the least weight, no limit."""
    pods = objects.batch_pods(Scenario(), kind, "local", 250)
    assert {p["metadata"]["namespace"] for p in pods} == {namespace}
    resources = [c["resources"] for p in pods for c in p["spec"]["containers"]]
    assert [bool(r["requests"]) for r in resources] == [asks] * len(pods)
    assert not any(r.get("limits") for r in resources), "limits would make other jobs of them"
    if asks:
        assert [r["requests"]["cpu"] for r in resources] == ["250m"] * 3 + ["30m"], "the same in every phase"
    assert all(("nodeName" in p["spec"]) is (kind != "koord") for p in pods)


def test_the_node_agent_gets_its_settings(tmp_path: Path) -> None:
    made = scenario.load(write(tmp_path, nodeAgent={"featureGates": "CoreSched=true", "pressureTriggers": False}))
    local = SimpleNamespace(cgroup_root=tmp_path)
    kubelet = SimpleNamespace(name="local", server=SimpleNamespace(port=1))
    found = koordlet.settings(SimpleNamespace(scenario=made, local=local, kubelet=kubelet, scratch=tmp_path))
    assert (found["feature_gates"], found["pressure_triggers"]) == ("CoreSched=true", False)
    options = Options(**found)
    check(options)


def test_idle_groups_are_off_with_the_strategies() -> None:
    idle = {"policies": {"cpuPolicy": "coreSched"}, "beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}}}
    made = Scenario(slo_controller_config={**Scenario().slo_controller_config, "resource-qos-config": {"clusterStrategy": idle}})
    assert "schedIdle" in made.config_data()["resource-qos-config"]
    off = made.config_data(strategies=False)
    assert "schedIdle" not in off["resource-qos-config"]
    assert not slo.parse(off, previous=None).errors
