"""The one file: it runs where /tmp holds no programs, unpacks once, survives kills, and trusts no directory of somebody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from koord.version import VERSION
from tests.support import patience
from tests.support.processes import process, roles, until_healthy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def unpacked(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the one file unpacked itself into."""
    directory = tmp_path_factory.mktemp("unpacked") / "koord"
    shown = version(dist, KOORD_UNPACK_DIR=str(directory))
    assert shown.stdout.strip().endswith(VERSION)
    return directory


def version(dist: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [dist / "koord-onefile", "--version"], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("role", ["scheduler", "manager", "descheduler", "koordlet"])
def test_a_role_becomes_healthy_and_ends_on_sigterm(dist: Path, unpacked: Path, api: Path, tmp_path: Path, role: str) -> None:
    arguments, url, environment = next((a, u, e) for name, a, u, e in roles(tmp_path, api) if name == role)
    environment |= {"KUBECONFIG": str(api), "KOORD_UNPACK_DIR": str(unpacked)}
    with process(*arguments, program=str(dist / "koord-onefile"), **environment) as child:
        until_healthy(url, child)
        child.terminate()
        assert child.wait(patience.seconds(20)) == 0


def test_it_unpacks_once_and_a_kill_leaves_nothing(dist: Path, unpacked: Path, api: Path, tmp_path: Path) -> None:
    (made,) = unpacked.iterdir()
    before = made.stat().st_mtime_ns
    arguments, url, _ = next((a, u, e) for name, a, u, e in roles(tmp_path, api) if name == "descheduler")
    environment = {"KUBECONFIG": str(api), "KOORD_UNPACK_DIR": str(unpacked)}
    with process(*arguments, program=str(dist / "koord-onefile"), **environment) as child:
        until_healthy(url, child)
        assert os.readlink(f"/proc/{child.pid}/exe") == str(made / "koord"), "the process is koord itself, no parent of it"
        child.send_signal(signal.SIGKILL)
        child.wait(patience.seconds(20))
    assert [p.name for p in unpacked.iterdir()] == [made.name]
    assert version(dist, KOORD_UNPACK_DIR=str(unpacked)).returncode == 0
    assert made.stat().st_mtime_ns == before


def test_several_first_starts_at_once(dist: Path, tmp_path: Path) -> None:
    directory = tmp_path / "koord"
    with ThreadPoolExecutor(3) as pool:
        shown = list(pool.map(lambda _: version(dist, KOORD_UNPACK_DIR=str(directory)), range(3)))
    assert [s.returncode for s in shown] == [0, 0, 0], [s.stderr for s in shown]
    assert len(list(directory.iterdir())) == 1


def test_older_versions_and_what_a_kill_left_go(dist: Path, tmp_path: Path) -> None:
    directory = tmp_path / "koord"
    for name in ("0" * 64, ".new.killed"):
        (directory / name).mkdir(parents=True)
        (directory / name / "koord").write_text("#!/bin/sh\n")
        (directory / name / "koord").chmod(0o755)
        os.utime(directory / name, (time.time() - 7200,) * 2)
    assert version(dist, KOORD_UNPACK_DIR=str(directory)).returncode == 0
    assert len(list(directory.iterdir())) == 1


def test_a_damaged_file_runs_nothing(dist: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "koord-onefile"
    damaged.write_bytes((dist / "koord-onefile").read_bytes()[:-1000])
    damaged.chmod(0o755)
    done = subprocess.run(
        [damaged, "--version"], env={**os.environ, "KOORD_UNPACK_DIR": str(tmp_path / "d")}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "checksum" in done.stderr


def test_a_directory_that_others_may_write_to_is_not_trusted(dist: Path, tmp_path: Path) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    done = version(dist, KOORD_UNPACK_DIR=str(directory))
    assert done.returncode == 1
    assert "KOORD_UNPACK_DIR" in done.stderr
    assert list(directory.iterdir()) == []


@as_root
def test_noexec_everywhere_but_in_one_place(dist: Path) -> None:
    """/tmp and /var/cache are noexec mounts: the next place serves; and where no place is left it says so."""
    script = """
set -eu
mount -t tmpfs -o mode=755 tmpfs /mnt && cp "$1" /mnt/koord
for place in /tmp /var/cache /dev/shm; do mount -t tmpfs -o noexec tmpfs "$place"; done
mount -t tmpfs tmpfs /var/lib
export TMPDIR=/tmp; unset KOORD_UNPACK_DIR
/mnt/koord --version
ls -d /var/lib/koord/bin/*/koord
mount -o remount,noexec /var/lib
if /mnt/koord --version; then exit 9; else echo "status $?"; fi
"""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(dist / "koord-onefile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(120), check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].endswith(VERSION)
    assert said[1].startswith("/var/lib/koord/bin/")
    assert said[2] == "status 1"
    assert "/var/cache/koord /var/lib/koord/bin" in done.stderr
