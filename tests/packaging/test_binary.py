"""The frozen executables: each role starts, serves health, and ends on SIGTERM."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.cli import COMMANDS
from koord.version import VERSION
from tests.support.processes import ROOT, free_port, process, roles, until_healthy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh build; KOORD_DIST names one that is there already."""
    if given := os.environ.get("KOORD_DIST"):
        return Path(given)
    directory = tmp_path_factory.mktemp("dist")
    environment = {**os.environ, "DIST": str(directory / "dist"), "BUILD": str(directory / "build")}
    built = subprocess.run([str(ROOT / "packaging" / "dist.sh")], env=environment, capture_output=True, text=True, check=False)
    if built.returncode == 3:
        pytest.skip(built.stderr.strip())
    assert built.returncode == 0, built.stderr[-2000:]
    return directory / "dist"


@pytest.fixture(scope="module")
def api(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The frozen API server with the CRDs installed; the path of its kubeconfig."""
    directory = tmp_path_factory.mktemp("api")
    kubeconfig = directory / "kubeconfig"
    arguments = ["apiserver", "--port", str(free_port()), "--data-dir", str(directory / "data"), "--print-kubeconfig", str(kubeconfig)]
    with process(*arguments, program=str(dist / "koord" / "koord")) as server:
        end = time.monotonic() + 20
        while not kubeconfig.exists():
            assert server.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        subprocess.run([sys.executable, "-m", "tests.benchmarks.install_crds", str(kubeconfig)], check=True, cwd=ROOT)
        yield kubeconfig


def test_both_executables_know_their_version_and_every_command(dist: Path) -> None:
    for program in (dist / "koord" / "koord", dist / "koord-onefile"):
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        assert VERSION in shown.stdout
    for command in COMMANDS:
        shown = subprocess.run([dist / "koord" / "koord", command, "--help"], capture_output=True, text=True, check=False)
        assert shown.returncode == 0, f"{command}: {shown.stderr[-500:]}"


@pytest.mark.parametrize("role", ["scheduler", "manager", "descheduler", "koordlet"])
def test_a_frozen_role_becomes_healthy_and_ends_on_sigterm(dist: Path, api: Path, tmp_path: Path, role: str) -> None:
    arguments, url, environment = next((a, u, e) for name, a, u, e in roles(tmp_path, api) if name == role)
    with process(*arguments, program=str(dist / "koord" / "koord"), KUBECONFIG=str(api), **environment) as child:
        until_healthy(url, child)
        started = time.monotonic()
        child.terminate()
        assert child.wait(6) == 0
        assert time.monotonic() - started < 6


def test_the_single_file_serves_too(dist: Path, api: Path, tmp_path: Path) -> None:
    arguments, url, environment = next((a, u, e) for name, a, u, e in roles(tmp_path, api) if name == "descheduler")
    with process(*arguments, program=str(dist / "koord-onefile"), KUBECONFIG=str(api), **environment) as child:
        until_healthy(url, child)


def test_the_frozen_proxy_refuses_what_it_cannot_do(dist: Path) -> None:
    done = subprocess.run(
        [dist / "koord" / "koord", "runtime-proxy", "--backend-runtime-mode=Nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "accepted: Containerd" in done.stderr
