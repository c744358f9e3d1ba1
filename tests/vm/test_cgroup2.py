"""The executor, parsers and restore on a real cgroup v2 kernel, in a virtual machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vm.machine import run

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(400)]  # two boots at most


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(Path(__file__).parent / "guest.py", tmp_path_factory.mktemp("vm"))


def test_version_and_driver(found: dict[str, Any]) -> None:
    assert "setup" not in found
    assert found["version"] == [2, "systemd", "kubepods.slice/kubepods-besteffort.slice"]


@pytest.mark.feature("KA-EXE-01")
@pytest.mark.feature("KA-FS-01")
def test_quotas_grow_and_shrink_in_the_kernels_order(found: dict[str, Any]) -> None:
    grown, shrunk, again, pod, container = found["quota"]
    assert [grown["failed"], shrunk["failed"], again["failed"]] == [[], [], []]
    assert (shrunk["written"], again["written"], again["skipped"]) == (2, 0, 2)
    assert (pod, container) == ("20000 100000", "20000 100000")


def test_a_quota_takes_effect(found: dict[str, Any]) -> None:
    effect = found["quota_works"]
    assert 0.05 < effect["cores"] < 0.5, effect
    assert 0 < effect["throttled"] <= effect["periods"]


@pytest.mark.feature("KA-BST-01")
def test_a_burst_above_the_quota_is_refused_and_told(found: dict[str, Any]) -> None:
    fits, above, fallback, value = found["burst"]
    assert fits == []
    assert "Invalid argument" in above[0]
    assert (fallback, value) == ([], "10000")


def test_shares_become_weights_and_are_not_written_twice(found: dict[str, Any]) -> None:
    assert found["weight"] == [1, 1, "20"]
    assert found["idle"] == [[], "1", "1"], "the tier has its weight again when it is idle no more"


def test_cpusets_move_without_ever_being_above_their_parent(found: dict[str, Any]) -> None:
    assert found["cpusets"] == [[], [], [], "0-1"]


@pytest.mark.feature("KA-MEM-01")
def test_memory_protection_and_limits(found: dict[str, Any]) -> None:
    outcomes, values = found["memory"]
    assert [failed for _, failed in outcomes] == [[], [], [], []]
    mib = 1 << 20
    assert values == {"memory.min": str(32 * mib), "memory.low": str(48 * mib), "memory.high": "max", "memory.max": str(200 * mib)}


@pytest.mark.feature("BEY-TUNE-01")
def test_held_files_are_given_back(found: dict[str, Any]) -> None:
    """What tuning and the actions against interference hold; the weight is what the other owner wanted meanwhile."""
    held = found["held"]
    assert (held["failed"], held["waited"], held["same"]) == ([], True, True)
    assert held["held"] == {
        "cpu.max": "30000 100000",
        "cpu.max.burst": "10000",
        "memory.low": str(16 << 20),
        "memory.min": str(8 << 20),
        "cpu.weight": "1",
    }
    assert held["weight"] == "39"


@pytest.mark.feature("KA-BLK-01")
def test_limits_of_a_disk(found: dict[str, Any]) -> None:
    if found["disks"] is None:
        pytest.skip("the guest's kernel has no null_blk module")
    failed, skipped, line = found["disks"]
    assert (failed, skipped) == ([], 1)
    assert set(line.split()) == {"DISK", "rbps=1048576", "wbps=max", "riops=max", "wiops=100"}


@pytest.mark.feature("KLO-SYS-02")
@pytest.mark.feature("KLO-SYS-06")
def test_what_the_kernel_writes_can_be_read(found: dict[str, Any]) -> None:
    assert found["parsers"] == {
        "memory": True,
        "numa": [0],
        "pressure": {"cpu": True, "memory": True, "io": True},
        "burner": True,
        "limit": 200 << 20,
        "refaults": True,
        "kills": 0,
        "ticks": True,
    }


def test_a_group_that_is_gone_is_nothing_to_do(found: dict[str, Any]) -> None:
    assert found["vanished"] == {"written": 0, "skipped": 0, "failed": []}


@pytest.mark.feature("BEY-OFF-01")
def test_idle_memory_is_offloaded_and_the_pod_does_not_wait(found: dict[str, Any]) -> None:
    """Of a pod that read 160 MiB once at least a fifth goes, at a memory pressure of at most 0.1 %."""
    offload = found["offload"]
    if offload is None:
        pytest.skip("the guest's kernel has no null_blk module")
    assert offload["failed"] == []
    assert offload["after"] <= 0.8 * offload["before"], offload
    assert offload["per_mille"] <= 1.0, offload


@pytest.mark.feature("BEY-JRN-01")
def test_everything_is_put_back(found: dict[str, Any]) -> None:
    failed, values = found["restored"]
    assert failed == []
    assert values == {
        "cpu.max": "max 100000",
        "cpu.weight": "100",
        "cpu.max.burst": "0",
        "cpuset.cpus": "",
        "memory.min": "0",
        "memory.low": "0",
        "memory.high": "max",
        "memory.max": "max",
    }


@pytest.mark.feature("BEY-PSI-01")
def test_the_kernel_wakes_the_pressure_path_when_a_load_rises(found: dict[str, Any]) -> None:
    """Root of the virtual machine has CAP_SYS_RESOURCE, which triggers with short windows need."""
    by_kernel, woken = found["pressure"]
    assert by_kernel is True
    assert woken in (["rise"], ["group"])
