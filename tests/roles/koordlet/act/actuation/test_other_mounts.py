"""A journal is about the machine and not about the paths of the process that wrote it (BEY-JRN-01)."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import zlib
from pathlib import Path

import orjson
import pytest

from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.places import identity
from roles.koordlet.actuation.restore import journal_path, restore
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.states.model import HostState
from tests.support import patience
from tests.support.processes import KOORD

pytestmark = pytest.mark.feature("BEY-JRN-01")

QUOTA = "cpu.cfs_quota_us"
TIERS = {"systemd": "kubepods.slice/kubepods-besteffort.slice", "cgroupfs": "kubepods/besteffort"}


class Node:
    """A machine of files, and the paths under which processes see it."""

    def __init__(self, base: Path, *, v2: bool = False, driver: str = "systemd") -> None:
        self.base, self.tier = base / "node", TIERS[driver]
        cgroup = self.base / "sys/fs/cgroup"
        directory = cgroup / self.tier if v2 else cgroup / "cpu" / self.tier
        directory.mkdir(parents=True)
        if v2:
            (cgroup / "cgroup.controllers").write_text("cpu memory\n")
        self.file = directory / ("cpu.max" if v2 else QUOTA)
        self.first = "max 100000" if v2 else "-1"
        self.file.write_text(self.first + "\n")
        for sub in ("proc/sys/kernel/random", "var/run/koordlet"):
            (self.base / sub).mkdir(parents=True)

    def boot(self, name: str) -> None:
        (self.base / "proc/sys/kernel/random/boot_id").write_text(name + "\n")

    @property
    def now(self) -> str:
        return self.file.read_text().strip()

    @property
    def journal(self) -> Path:
        return self.base / "var/run/koordlet/journal"

    def seen_at(self, path: Path) -> HostRoot:
        path.symlink_to(self.base)
        return HostRoot.at(str(path))

    def mounted(self, where: Path) -> HostRoot:
        """As upstream's DaemonSet has it: a mount for each directory."""
        flags = {}
        for flag, inside in (("cgroup-root-dir", "sys/fs/cgroup"), ("sys-root-dir", "sys"), ("var-run-root-dir", "var/run")):
            (where / flag).symlink_to(self.base / inside)
            flags[flag] = str(where / flag)
        return HostRoot.at(str(where / "container"), flags)


def write(root: HostRoot, tier: str, value: str = "20000") -> None:
    host, journal = HostState(root, Cgroups.detect(root), HostFiles()), Journal(journal_path(root), root)
    journal.open()
    applied = Executor(host, journal).apply([sequence(Write(QUOTA, tier, value))], rule="suppress", now=1.0)
    assert applied.failed == []
    journal.close()
    host.files.close_all()


def old_line(path: str, value: str, inode: int) -> bytes:
    body = orjson.dumps([path, value, "write", QUOTA, inode])
    return b"%08x %s\n" % (zlib.crc32(body), body)


@pytest.mark.parametrize("driver", TIERS)
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("by_mounts", [False, True])
def test_what_one_layout_wrote_another_one_puts_back(tmp_path, v2, driver, by_mounts) -> None:
    node = Node(tmp_path, v2=v2, driver=driver)
    seen = node.mounted(tmp_path) if by_mounts else node.seen_at(tmp_path / "host")
    write(seen, node.tier)
    assert node.now != node.first
    result = restore(HostRoot.at(str(node.base)))
    assert (result.restored, result.lost, result.failed) == ([str(node.file)], [], [])
    assert node.now == node.first
    assert node.journal.read_bytes() == b""


def test_an_agent_under_another_mount_takes_the_first_values_over(tmp_path) -> None:
    node = Node(tmp_path)
    write(node.seen_at(tmp_path / "host"), node.tier)
    write(HostRoot.at(str(node.base)), node.tier, "30000")
    assert restore(node.seen_at(tmp_path / "again")).restored
    assert node.now == "-1", "and not what the first agent wrote"


def test_a_journal_of_the_first_version_is_taken_over_under_another_mount(tmp_path) -> None:
    node = Node(tmp_path)
    inode = identity(str(node.file))
    gone = old_line("/host/sys/fs/cgroup/cpu/kubepods.slice/gone/cpu.cfs_quota_us", "7", 99)
    node.journal.write_bytes(old_line(f"/host/sys/fs/cgroup/cpu/{node.tier}/{QUOTA}", "-1", inode) + gone)
    node.file.write_text("20000\n")
    write(HostRoot.at(str(node.base)), node.tier, "30000")
    assert b'"v":2' in node.journal.read_bytes()
    result = restore(node.seen_at(tmp_path / "host"))
    assert (node.now, len(result.restored), result.lost) == ("-1", 1, [])


def test_another_machine_loses_nothing_and_says_so(tmp_path) -> None:
    node, other = Node(tmp_path), Node(tmp_path / "other")
    write(HostRoot.at(str(node.base)), node.tier)
    shutil.copy(node.journal, other.journal)
    other.file.write_text("5555\n")
    before = other.journal.read_bytes()
    result = restore(HostRoot.at(str(other.base)))
    assert [error.path for error in result.lost] == [str(other.file)]
    assert other.now == "5555"
    assert result.missed
    left = Journal(str(other.journal), HostRoot.at(str(other.base)))
    left.load()
    assert [entry.value for entry in left] == ["-1"], before
    write(HostRoot.at(str(other.base)), other.tier)
    assert b'"-1"' in other.journal.read_bytes() or b"5555" in other.journal.read_bytes()


def test_a_group_that_is_gone_is_told_from_a_tree_that_is_not_there(tmp_path) -> None:
    node = Node(tmp_path)
    write(HostRoot.at(str(node.base)), node.tier)
    hidden = node.base / "hidden"
    os.rename(node.base / "sys", hidden)
    assert len(restore(HostRoot.at(str(node.base))).lost) == 1, "nothing is mounted there"
    os.rename(hidden, node.base / "sys")
    shutil.rmtree(node.file.parent)
    assert restore(HostRoot.at(str(node.base))).gone == [str(node.file)]
    assert node.journal.read_bytes() == b""


def test_a_kernel_that_was_booted_since_has_nothing_to_be_put_back(tmp_path) -> None:
    node = Node(tmp_path)
    node.boot("one")
    write(HostRoot.at(str(node.base)), node.tier)
    node.boot("two")
    result = restore(HostRoot.at(str(node.base)))
    assert (result.gone, node.now) == ([str(node.file)], "20000")


def cli(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "agent_mode"}
    command = [str(KOORD), "koordlet", "--restore", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(60), check=False, env={**clean, **environ})


def test_the_command_fails_where_it_finds_nothing_and_the_journal_stays(tmp_path) -> None:
    node = Node(tmp_path)
    write(node.seen_at(tmp_path / "host"), node.tier)
    (tmp_path / "host").unlink()
    before = len(node.journal.read_bytes().splitlines())
    wrong = cli("--host-root=/", f"--var-run-root-dir={node.base}/var/run")
    assert (wrong.returncode, node.now) == (1, "20000")
    assert "nothing of what the journal" in wrong.stderr
    assert before >= len(node.journal.read_bytes().splitlines()) > 0
    right = cli(f"--host-root={node.base}")
    assert (right.returncode, node.now) == (0, "-1")
    assert f"put back: {node.file}" in right.stdout
    assert "1 files put back" in right.stdout


@pytest.mark.parametrize("layout", ["host/var/run", "host-var-run"])
def test_the_command_names_the_layout_that_has_the_journal(tmp_path, layout) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / layout / "koordlet").mkdir(parents=True)
    (tmp_path / layout / "koordlet/journal").write_text("something")
    done = cli(f"--host-root={tmp_path}")
    assert done.returncode == 1
    assert "but there is one at" in done.stderr
    assert not (tmp_path / "var").exists(), "nothing is made where nothing is"


def test_the_command_without_a_machine_or_with_one_that_was_never_touched(tmp_path) -> None:
    nothing = cli(f"--host-root={tmp_path}/nothing")
    assert (nothing.returncode, "error: there is no" in nothing.stderr) == (1, True)
    Node(tmp_path)
    untouched = cli(f"--host-root={tmp_path}/node")
    assert (untouched.returncode, "no journal" in untouched.stdout) == (0, True)


def test_a_report_for_the_kubelet_takes_the_place_of_the_exit_status(tmp_path) -> None:
    node = Node(tmp_path)
    root = HostRoot.at(str(node.base))
    write(root, node.tier)
    broken = Journal(journal_path(root), root)
    broken.open()
    broken.remember([Entry(str(node.base / "proc/sys/vm"), "7", resource="min_free_kbytes")])
    (node.base / "proc/sys/vm").mkdir(parents=True)
    broken.close()
    report = tmp_path / "report"
    done = cli(f"--host-root={node.base}", KOORD_RESTORE_REPORT=str(report))
    assert (done.returncode, node.now) == (0, "-1")
    assert "proc/sys/vm" in report.read_text()
    assert cli(f"--host-root={node.base}").returncode == 1, "by hand it is an error, and still on record"


# -- what cannot be read -----------------------------------------------------------------------------------------------------


def test_a_journal_that_cannot_be_read_is_not_replaced(tmp_path, monkeypatch) -> None:
    node = Node(tmp_path)
    root = HostRoot.at(str(node.base))
    write(root, node.tier)
    held = node.journal.read_bytes()
    import builtins

    real = builtins.open

    def failing(name, *args, **more):
        if str(name) == str(node.journal):
            raise OSError(errno.EIO, "Input/output error")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "open", failing)
    host, journal = HostState(root, Cgroups.detect(root), HostFiles()), Journal(journal_path(root), root)
    made = Executor(host, journal)
    assert made.apply([sequence(Write(QUOTA, node.tier, "30000"))], rule="r", now=1).unjournalled
    assert (node.now, node.journal.read_bytes()) == ("20000", held)
    monkeypatch.undo()
    assert made.apply([sequence(Write(QUOTA, node.tier, "30000"))], rule="r", now=2).written
    journal.close()
    assert restore(root).restored
    assert node.now == "-1"


def test_lines_that_are_not_understood_outlive_every_rewriting(tmp_path, caplog) -> None:
    node = Node(tmp_path)
    root = HostRoot.at(str(node.base))
    write(root, node.tier)
    body = orjson.dumps({"v": 3, "where": "elsewhere"})
    newer = b"%08x %s" % (zlib.crc32(body), body)
    damaged = b"00000000 [damaged"
    node.journal.write_bytes(node.journal.read_bytes() + newer + b"\n" + damaged + b"\n")
    for value in ("21000", "22000"):
        write(root, node.tier, value)
    result = restore(root)
    assert (node.now, result.not_understood) == ("-1", 2)
    assert "damaged lines" in caplog.text
    assert node.journal.read_bytes().splitlines() == [newer, damaged]


# -- the kernel's own order --------------------------------------------------------------------------------------------------


MEMORY = Path("/sys/fs/cgroup/memory")
swap_accounting = pytest.mark.skipif(
    os.geteuid() != 0 or not (MEMORY / "memory.memsw.limit_in_bytes").exists(), reason="needs root and cgroup v1 with swap accounting"
)


@pytest.mark.root
@swap_accounting
def test_memory_limits_go_up_and_down_below_the_limit_with_swap(machine, tree) -> None:
    name, directory, mega = "memory.limit_in_bytes", "kubepods.slice/pod", 1 << 20
    tree.make(directory)
    path = Path(machine.host.cgroups.file(name, directory))
    swap = path.with_name("memory.memsw.limit_in_bytes")
    first = path.read_text(), swap.read_text()

    def set_to(amount: int) -> tuple[int, int]:
        machine.now += 1
        batch = sequence(Write(name, directory, str(amount), cached=False))
        assert machine.executor.apply([batch], rule="r", now=1).failed == []
        return int(path.read_text()), int(swap.read_text())

    path.write_text(str(64 * mega))
    swap.write_text(str(80 * mega))
    assert set_to(128 * mega) == (128 * mega, 144 * mega), "what it may swap stays what it was"
    assert set_to(32 * mega) == (32 * mega, 48 * mega)
    machine.journal.close()
    assert restore(machine.root).failed == []
    assert (int(path.read_text()), int(swap.read_text())) == (64 * mega, 80 * mega)
    assert first


@pytest.mark.root
@swap_accounting
def test_a_limit_is_put_back_under_a_limit_with_swap_that_others_set(machine, tree) -> None:
    directory, mega = "kubepods.slice/pod", 1 << 20
    tree.make(directory)
    path = Path(machine.host.cgroups.file("memory.limit_in_bytes", directory))
    first = path.read_text()
    assert not machine.executor.apply([sequence(Write("memory.limit_in_bytes", directory, str(64 * mega)))], rule="r", now=1).failed
    path.with_name("memory.memsw.limit_in_bytes").write_text(str(64 * mega))  # as runc does
    machine.journal.close()
    result = restore(machine.root)
    assert (result.failed, path.read_text()) == ([], first)


@pytest.mark.root
@swap_accounting
def test_a_limit_with_swap_that_a_runtime_set_beside_ours_does_not_outlive_it(machine, tree) -> None:
    """What was there before the limit with swap cannot stand beside what was there before the memory limit."""
    pod, container, mega = "kubepods.slice/pod", "kubepods.slice/pod/a", 1 << 20
    tree.make(container)
    limits = [Path(machine.host.cgroups.file("memory.limit_in_bytes", directory)) for directory in (pod, container)]
    first = [(path.read_text(), path.with_name("memory.memsw.limit_in_bytes").read_text()) for path in limits]

    def set_to(directory: str, amount: int) -> None:
        machine.now += 1
        batch = sequence(Write("memory.limit_in_bytes", directory, str(amount), cached=False))
        assert machine.executor.apply([batch], rule="r", now=1).failed == []

    for path, directory, amount in zip(limits, (pod, container), (128, 64), strict=True):
        set_to(directory, amount * mega)
        path.with_name("memory.memsw.limit_in_bytes").write_text(str(amount * mega))
    set_to(container, 100 * mega)
    set_to(container, 32 * mega)
    machine.journal.close()
    result = restore(machine.root)
    assert result.failed == []
    assert [error.path.rsplit("/", 2)[-2:] for error in result.theirs] == [["a", "memory.memsw.limit_in_bytes"]]
    assert [(path.read_text(), path.with_name("memory.memsw.limit_in_bytes").read_text()) for path in limits] == first
    assert restore(machine.root).lines == [], "nothing is left on record"


@pytest.mark.root
@swap_accounting
def test_limits_that_tasks_do_not_let_go_back_are_named_with_the_reason_and_stay_on_record(machine, tree) -> None:
    directory, mega = "kubepods.slice/pod", 1 << 20
    tree.make(directory)
    path = Path(machine.host.cgroups.file("memory.limit_in_bytes", directory))
    swap = path.with_name("memory.memsw.limit_in_bytes")
    path.write_text(str(32 * mega))
    swap.write_text(str(32 * mega))
    batch = sequence(Write("memory.limit_in_bytes", directory, str(256 * mega)))
    assert machine.executor.apply([batch], rule="r", now=1).failed == []
    held = "x = bytearray(100 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('held', flush=True)\nsys.stdin.readline()"
    process = tree.run(directory, held)
    assert process.stdout.readline() == b"held\n"
    machine.journal.close()
    for _ in range(2):
        result = restore(machine.root)
        assert {error.path for error in result.failed} == {str(path), str(swap)}
        assert all("is refused" in line for line in result.lines)
        assert process.poll() is None
    process.communicate(b"\n")
    assert restore(machine.root).failed == []
    assert (int(path.read_text()), int(swap.read_text())) == (32 * mega, 32 * mega)
