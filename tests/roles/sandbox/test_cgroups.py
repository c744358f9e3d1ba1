"""Real cgroups: made like a kubelet's, joined, emptied, removed, and nothing else touched."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from roles.sandbox.process_kubelet import layout
from roles.sandbox.process_kubelet.cgroups import RunGroups, read
from roles.sandbox.process_kubelet.container import Container, ProcessSpec
from roles.sandbox.process_kubelet.limits import CgroupLimits
from tests.support import patience

ENV = {"PATH": os.environ["PATH"]}
LIMITS = CgroupLimits(512, 50_000, 64 * 2**20)


def test_run_ids_cannot_name_another_directory() -> None:
    for bad in ("", "../..", "abc", "0123456g", "012345678"):
        with pytest.raises(ValueError, match="run id"):
            layout.group_name(bad)


def test_detect_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cgroup.procs").touch()
    with pytest.raises(layout.LayoutError, match="cpuacct, cpuset, memory"):
        layout.detect(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    with pytest.raises(layout.LayoutError, match="cpu, memory"):
        layout.detect(tmp_path)


def test_controllers_mounted_together_are_one_hierarchy(tmp_path: Path) -> None:
    for name in ("cpu,cpuacct", "cpuset", "memory"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    (tmp_path / "cpuacct").symlink_to("cpu,cpuacct")
    found = layout.detect(tmp_path)
    assert len(list(found.roots("01234567"))) == 3
    assert found.mount("cpuacct") == found.mount("cpu")


def test_paths_are_those_of_a_cgroupfs_kubelet() -> None:
    assert layout.container_dir("Guaranteed", "u1", "containerd://c1") == "kubepods/podu1/c1"
    assert layout.container_dir("BestEffort", "u1", "c1") == "kubepods/besteffort/podu1/c1"
    assert layout.pod_dir("Burstable", "u1") == "kubepods/burstable/podu1"


@pytest.mark.root
def test_limits_land_in_the_files(groups: RunGroups) -> None:
    groups.create("kubepods")
    groups.create("kubepods/podx", LIMITS)
    if groups.version == 1:
        assert read(groups.path("cpu", "kubepods/podx") / "cpu.shares") == "512"
        assert read(groups.path("cpu", "kubepods/podx") / "cpu.cfs_quota_us") == "50000"
        assert read(groups.path("memory", "kubepods/podx") / "memory.limit_in_bytes") == str(64 * 2**20)
        assert read(groups.path("cpuset", "kubepods/podx") / "cpuset.cpus") == read(groups.path("cpuset").parent / "cpuset.cpus")
    else:
        assert read(groups.path("", "kubepods/podx") / "cpu.max") == "50000 100000"
    assert groups.cfs_quota_us("kubepods/podx") == 50_000


def run(groups: RunGroups, tmp_path: Path, script: str, **spec: object) -> tuple[Container, int]:
    async def go() -> tuple[Container, int]:
        groups.create("kubepods")
        container = Container("c", "kubepods", groups, tmp_path / "log")
        await container.start(ProcessSpec(["/bin/sh", "-c", script], ENV, **spec), LIMITS, time.time())  # type: ignore[arg-type]
        result = await container.wait(time.time)
        return container, result.code

    return asyncio.run(go())


@pytest.mark.root
def test_not_one_instruction_runs_outside_its_groups(groups: RunGroups, tmp_path: Path) -> None:
    container, code = run(groups, tmp_path, "cat /proc/self/cgroup; exit 3")
    assert code == 3
    lines = (tmp_path / "log").read_text().splitlines()
    ours = [line for line in lines if line.endswith(f"/{layout.group_name(groups.run_id)}/{container.group}")]
    assert len(ours) == len(groups.roots)


@pytest.mark.root
def test_a_command_that_does_not_exist_ends_with_127_and_a_message(groups: RunGroups, tmp_path: Path) -> None:
    async def go() -> tuple[int, str]:
        groups.create("kubepods")
        container = Container("c", "kubepods", groups, tmp_path / "log")
        await container.start(ProcessSpec(["/does/not/exist"], ENV), LIMITS, 0.0)
        return (await container.wait(time.time)).code, container.tail()

    code, message = asyncio.run(go())
    assert code == 127
    assert "/does/not/exist" in message


@pytest.mark.root
def test_a_user_is_dropped_to_before_the_command(groups: RunGroups, tmp_path: Path) -> None:
    _, code = run(groups, tmp_path, 'test "$(id -u)" = 65534', uid=65534, gid=65534)
    assert code == 0


@pytest.mark.root
def test_children_left_behind_are_killed_with_the_container(groups: RunGroups, tmp_path: Path, running: Callable[[int], bool]) -> None:
    container, code = run(groups, tmp_path, "setsid sleep 300 & echo $!; exit 0")
    assert code == 0
    child = int((tmp_path / "log").read_text())
    assert not running(child)
    assert groups.pids(container.group) == set()


@pytest.mark.root
def test_memory_limit_is_told_as_oom(groups: RunGroups, tmp_path: Path) -> None:
    async def go() -> tuple[int, bool]:
        groups.create("kubepods")
        container = Container("c", "kubepods", groups, tmp_path / "log")
        argv = ["/usr/bin/env", "python3", "-c", "x = bytearray(256 * 2**20)"]
        await container.start(ProcessSpec(argv, ENV, oom_score_adj=1000), CgroupLimits(2, -1, 32 * 2**20), 0.0)
        result = await container.wait(time.time)
        return result.code, result.oom

    assert asyncio.run(go()) == (137, True)


@pytest.mark.root
def test_stop_is_gentle_then_firm(groups: RunGroups, tmp_path: Path) -> None:
    async def stop(script: str, grace: float) -> tuple[int, float]:
        groups.create("kubepods")
        log = tmp_path / f"log{grace}{len(script)}"
        container = Container("c", "kubepods", groups, log)
        await container.start(ProcessSpec(["/bin/sh", "-c", script], ENV), LIMITS, 0.0)
        for _ in patience.tries(200):  # until it heeds the signal as it is to
            if log.read_text():
                break
            await asyncio.sleep(0.05)
        began = time.monotonic()
        _, result = await asyncio.gather(container.stop(grace), container.wait(time.time))
        return result.code, time.monotonic() - began

    grace = patience.seconds(5)
    code, took = asyncio.run(stop('trap "exit 5" TERM; echo; while :; do sleep 0.05; done', grace))
    assert code == 5
    assert took < grace, "it went by itself"
    code, took = asyncio.run(stop('trap "" TERM; echo; while :; do sleep 0.05; done', 0.5))
    assert code == 137
    assert 0.4 < took < patience.seconds(5)


@pytest.mark.root
def test_remove_all_kills_and_leaves_other_groups_alone(
    hierarchies: layout.Hierarchies, cgroup_settings: Callable[[], dict[str, str]]
) -> None:
    before = cgroup_settings()
    one = RunGroups(hierarchies, "0a0b0c0d")
    one.create_top()
    one.create("kubepods", LIMITS)
    one.create("kubepods/besteffort", LIMITS)
    process = subprocess.Popen(["sleep", "300"])
    try:
        one.attach("kubepods/besteffort", process.pid)
        assert one.pids(recursive=True) == {process.pid}
        assert one.remove_all() == []
        assert process.wait(patience.seconds(5)) == -9
    finally:
        process.kill()
        process.wait()
    assert not any(top.exists() for top in one.roots.values())
    assert cgroup_settings() == before
