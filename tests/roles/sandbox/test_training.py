"""`koord sandbox training` through the command: the three things happen, and the report says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from roles.sandbox import profile
from roles.sandbox.training import setup
from tests.support import patience

INSTALLED = Path(__file__).parents[3] / "configs/install/30-config.yaml"


@pytest.mark.slow
@pytest.mark.feature("SCH-NT-02")
@pytest.mark.feature("SCH-EQ-09")
@pytest.mark.feature("SCH-JP-01")
def test_training_jobs_are_placed_lent_to_and_given_room(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "koord.cli", "sandbox", "training", "--out", str(out)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience.seconds(110), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if "kubectl" not in line]
    assert max(map(len, told)) <= 140, "piped, a change is one short line"
    assert "wide waits: no place in the network takes" in done.stdout
    data = json.loads((out / "report.json").read_text())
    topology, lending, preemption = data["steps"]

    assert job_racks(topology, data["racks"], "llm") == {"rack-3": 4}
    assert not any(pod.startswith("wide-") for pod in topology["placed"])
    assert "rack-0: 3, rack-1: 3, rack-2: 3, rack-3: 0" in topology["reasons"]["PodGroup wide"][0]

    assert Counter(pod[0] for pod in lending["placed"]) == {"a": 8, "b": 8}
    assert len(lending["evicted"]) == 4
    assert all(pod.startswith("a-") for pod in lending["evicted"])

    assert preemption["evicted"] == [f"sweep-{number:02d}" for number in range(4)]
    assert Counter(pod.rpartition("-")[0] for pod in preemption["placed"]) == {"prod": 4, "research-1": 4, "research-2": 4, "research-3": 4}
    assert "finds no node even without the victims" in preemption["reasons"]["PodGroup huge"][0]

    text = (out / "report.md").read_text()
    assert text.count(": happened") == 3
    assert "no place in the network takes 5 pods" in text
    assert list((runtime / "koord-sandbox").iterdir()) == []  # nothing of the run is left


def job_racks(step: dict[str, Any], racks: dict[str, str], job: str) -> Counter[str]:
    return Counter(racks[node] for pod, node in step["placed"].items() if pod.startswith(f"{job}-"))


@pytest.mark.feature("SCH-NT-02")
def test_the_profile_is_the_one_that_is_installed_but_for_the_revoking() -> None:
    maps = [document for document in yaml.safe_load_all(INSTALLED.read_text()) if document["metadata"]["name"] == "koord-scheduler-config"]
    (shipped,) = yaml.safe_load(maps[0]["data"]["koord-scheduler-config"])["profiles"]
    (mine,) = setup.configuration()["profiles"]
    assert mine["plugins"] == shipped["plugins"]
    arguments = {entry["name"]: entry["args"] for entry in mine["pluginConfig"]}
    quota = arguments["ElasticQuota"]
    assert (quota.pop("monitorAllQuotas"), quota.pop("delayEvictTime")) == (True, "3s")
    installed = {entry["name"]: entry["args"] for entry in shipped["pluginConfig"]}
    del installed["DeviceShare"]["gpuSharedResourceTemplatesConfig"]  # names the installation's own namespace
    assert arguments == installed
    (every_sandbox,) = profile.configuration(profile.plugin_config())["profiles"]
    assert every_sandbox["plugins"] == shipped["plugins"]
    assert {entry["name"]: entry["args"] for entry in every_sandbox["pluginConfig"]} == installed


def test_an_output_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "koord.cli", "sandbox", "training", "--out", str(tmp_path / "file" / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(60), check=False)
    assert (done.returncode, done.stderr) == (1, f"koord sandbox training: error: {tmp_path / 'file' / 'out'}: Not a directory\n")
