"""The model of a host: its kernel refuses what kernels refuse, its processes die between two changes, and it can be put back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roles.sandbox.world.history import History
from roles.sandbox.world.host.files import Killed, ProcessFiles
from roles.sandbox.world.host.kernel import CPUS, IDLE, LIMIT, MEMSW, QUOTA, SHARES, Kernel, Refused
from roles.sandbox.world.host.layout import BESTEFFORT, BURST, LEVELS, Layout
from roles.sandbox.world.host.machine import Machine
from roles.sandbox.world.host.usage import Use, share
from tests.roles.sandbox.world.test_world import world
from tests.support import patience

TIER = LEVELS[BESTEFFORT]
POD = f"{TIER}/pod"


def kernel(version: int, *extras: str) -> Kernel:
    made = Kernel(Layout(version, frozenset(extras)), 6, lambda group, knob: None)
    for name in ("", "kubepods.slice", TIER, POD):
        made.make(name)
    return made


def refused(made: Kernel, group: str, knob: str, text: str) -> int:
    """The error that a write gives, 0 for none."""
    try:
        made.write(made.groups[group], knob, text)
    except Refused as error:
        return error.errno or -1
    return 0


def shown(made: Kernel, group: str, knob: str) -> str:
    return made.show(made.groups[group], knob)


def test_v1_quotas_of_groups_never_exceed_those_above() -> None:
    made = kernel(1)
    assert refused(made, TIER, QUOTA, "200000") == 0
    assert refused(made, POD, QUOTA, "200001") == errno.EINVAL
    assert refused(made, POD, QUOTA, "150000") == 0
    assert refused(made, TIER, QUOTA, "100000") == errno.EINVAL
    assert refused(made, TIER, QUOTA, "999") == errno.EINVAL
    assert (shown(made, TIER, QUOTA), shown(made, POD, QUOTA)) == ("200000", "150000")


def test_v2_quotas_stand_side_by_side_and_keep_the_period() -> None:
    made = kernel(2)
    assert refused(made, TIER, QUOTA, "50000 50000") == 0
    assert refused(made, POD, QUOTA, "600000") == 0
    assert refused(made, TIER, QUOTA, "20000") == 0
    assert (shown(made, TIER, QUOTA), shown(made, POD, QUOTA)) == ("20000 50000", "600000 100000")
    assert refused(made, TIER, QUOTA, "max") == 0
    assert shown(made, TIER, QUOTA) == "max 50000"


def test_v1_cpu_sets_lie_within_each_other_and_are_never_empty_under_tasks() -> None:
    made = kernel(1)
    assert refused(made, TIER, CPUS, "0-3") == errno.EBUSY
    assert refused(made, POD, CPUS, "0-3") == 0
    assert refused(made, TIER, CPUS, "0-3") == 0
    assert refused(made, POD, CPUS, "2-4") == errno.EACCES
    assert refused(made, POD, CPUS, "two") == errno.EINVAL
    made.groups[POD].tasks = 1
    assert refused(made, POD, CPUS, "") == errno.ENOSPC


def test_v2_cpu_sets_fall_back_to_those_above() -> None:
    made = kernel(2)
    for group, text in ((TIER, "0-3"), (POD, "4-5")):
        assert refused(made, group, CPUS, text) == 0
    assert made.effective(made.groups[POD]) == {0, 1, 2, 3}
    assert refused(made, TIER, CPUS, "") == 0
    assert made.effective(made.groups[POD]) == {4, 5}


def test_memory_limits() -> None:
    made = kernel(1, MEMSW)
    made.groups[POD].memory = 8 << 20
    assert refused(made, POD, LIMIT, str(4 << 20)) == errno.EBUSY
    assert refused(made, POD, MEMSW, str(16 << 20)) == errno.EINVAL
    assert refused(made, POD, LIMIT, str(16 << 20)) == 0
    assert refused(made, POD, MEMSW, str(16 << 20)) == 0
    assert refused(made, POD, LIMIT, "-1") == errno.EINVAL
    assert refused(kernel(2), POD, LIMIT, "1") == 0


def test_an_idle_group_has_no_weight_and_then_the_default_one() -> None:
    made = kernel(1, IDLE)
    for text in ("512",):
        assert refused(made, POD, SHARES, text) == 0
    assert refused(made, POD, IDLE, "1") == 0
    assert (refused(made, POD, SHARES, "600"), shown(made, POD, SHARES)) == (errno.EINVAL, "3")
    assert refused(made, POD, IDLE, "0") == 0
    assert shown(made, POD, SHARES) == "1024"
    assert refused(kernel(2), POD, SHARES, "0") == errno.ERANGE


def test_services_lose_to_best_effort_until_it_is_held_back() -> None:
    made = kernel(1)
    made.make("kubepods.slice/service")

    def got() -> float:
        uses = [Use(made.groups["kubepods.slice/service"], False, 5.0), Use(made.groups[POD], True, 4.0)]
        share(made, uses, 0.0)
        assert sum(use.got for use in uses) <= 6.0 + 1e-9
        return uses[0].got

    assert got() < 4.5
    made.write(made.groups[TIER], QUOTA, "100000")
    assert got() == 5.0


# -- the files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[int], Machine]:
    def make(version: int) -> Machine:
        layout = Layout(version, frozenset((BURST,)))
        return Machine("n", tmp_path / "n", cpus=6, memory=1 << 30, layout=layout, history=History(lambda: 0.0), clock=lambda: 0.0)

    return make


class Agent:
    """A process with the machine's files."""

    def __init__(self, machine: Machine) -> None:
        self.dead = False
        self.machine = machine
        self.files = ProcessFiles(machine, "koordlet-n", lambda: self.dead, self._fall)

    def _fall(self) -> None:
        self.dead = True

    def write(self, path: str, text: str) -> None:
        fd = self.files.open(f"{self.machine.root}/{path}", os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
        self.files.write(fd, text.encode())
        self.files.close(fd)


def test_files_show_what_the_kernel_took_and_the_history_has_the_author_and_the_cause(machine: Any) -> None:
    host = machine(1)
    agent, path = Agent(host), f"sys/fs/cgroup/cpu/{TIER}/cpu.cfs_quota_us"
    agent.files.because("BECPUSuppress")
    agent.write(path, "50000")
    with pytest.raises(OSError, match="EINVAL"):
        agent.write(path, "5")
    assert (host.root / path).read_text() == "50000\n"
    told = [(e.verb, e.author, e.request, (e.old or {})["value"], (e.new or {})["value"]) for e in host.history.entries]
    assert told == [
        ("WRITTEN", "koordlet-n", "BECPUSuppress", "-1", "50000"),
        ("REFUSED", "koordlet-n", "BECPUSuppress", "50000", "50000"),
    ]


def test_a_process_dies_in_a_change_and_does_nothing_any_more(machine: Any) -> None:
    host = machine(2)
    agent, path = Agent(host), f"sys/fs/cgroup/{TIER}/cpu.max"
    host.steps_to_live = 2
    agent.write(path, "50000")
    with pytest.raises(Killed):
        agent.write(path, "60000")
    assert (host.root / path).read_text() == "50000 100000\n"
    with pytest.raises(Killed):
        agent.write(path, "70000")


def test_a_full_disk_and_a_failing_one(machine: Any) -> None:
    host = machine(2)
    agent = Agent(host)
    host.disk_full = True
    with pytest.raises(OSError, match="No space"):
        agent.write("var/run/koordlet/journal", "x")
    agent.write(f"sys/fs/cgroup/{TIER}/cpu.max", "50000")
    host.failing = "/stat"
    fd = agent.files.open(f"{host.root}/proc/stat", os.O_RDONLY)
    with pytest.raises(OSError, match="Input/output"):
        agent.files.pread(fd, 100, 0)


def test_a_group_that_goes_takes_its_files_along(machine: Any) -> None:
    host = machine(1)
    host.make(POD)
    host.remove(POD)
    assert not (host.root / f"sys/fs/cgroup/cpu/{POD}").exists()
    assert [(e.verb, e.key) for e in host.history.entries] == [("GONE", f"n/{POD}")]


# -- in a world --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_agents_live_in_the_world_and_leave_nothing_behind() -> None:
    flags = ["--seed=101", "--kinds=crash,kill,disk-full,meddle,remount", "--minutes=1.2", "--koordlets=2", "--faults=9"]
    done = world(*flags, timeout=patience.seconds(280))
    assert done.returncode == 0, done.stdout[-3000:]
    assert "koordlet-sim-000 (BECPUSuppress) sets" in done.stdout
    assert "* restored sim-000 status 0" in done.stdout
    assert "* restored sim-001 status 0" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_agent_that_forgets_what_it_wrote_is_betrayed() -> None:
    done = world("--seed=101", "--kinds=kill", "--minutes=1.2", "--mutant=every-life-begins-anew", timeout=patience.seconds(280))
    assert done.returncode == 1, done.stdout[-3000:]
    assert "FilesArePutBack" in done.stdout
