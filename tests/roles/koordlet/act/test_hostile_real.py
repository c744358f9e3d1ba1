"""Hostile pods on this machine's own cgroups, with the whole agent at work: whoever is beside them has what he has beside harmless pods."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from koord.api import trust
from roles.sandbox.hostile import ATTACKS
from tests.support import patience
from tests.support.processes import ROOT

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.feature("BEY-SEC-03")]


@cache
def end_of(kind: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.support.hostilehost", kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience.seconds(300), check=False)
    if "cannot have a mount namespace" in done.stderr:
        pytest.skip("needs a mount namespace of its own")
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_others_have_what_they_have_beside_harmless_pods() -> None:
    hostile, clean = end_of("hostile"), end_of("clean")
    for name in ("exclusive", "service", "batch"):
        assert hostile["others"][name] == clean["others"][name], name
        assert hostile["scores"][name] == clean["scores"][name], name
    exclusive = hostile["others"]["exclusive"][1]
    assert exclusive["cpuset.cpus"] == "0"
    # the tier's quota follows the load of the machine; everything else is the same
    for tier, files in clean["tiers"].items():
        for name, value in files.items():
            if name not in ("cpu.cfs_quota_us", "memory.oom_control"):
                assert hostile["tiers"][tier][name] == value, (tier, name)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_no_pod_gets_more_than_it_may(attack: Any) -> None:
    hostile, clean = end_of("hostile"), end_of("clean")
    name = f"h-{attack.name}"
    for mine, harmless in zip(hostile["hostile"][name], clean["hostile"][name], strict=True):
        assert mine["cpuset.cpus"] == harmless["cpuset.cpus"], "another pod's CPU"
        assert 0 < int(mine["cpu.cfs_quota_us"]) <= 30_000, "three times its limit is the node's bound"
        assert mine["memory.limit_in_bytes"] == harmless["memory.limit_in_bytes"]
        for protection in ("memory.min", "memory.low"):
            assert int(mine.get(protection, "0")) <= 64 << 20
        assert mine["cpu.shares"] == harmless["cpu.shares"]
        for limit in ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"):
            assert mine.get(limit) == harmless.get(limit)
    before, after = hostile["scores"][name]
    assert after == before or after >= trust.OOM_SCORE_BOUNDS.low
