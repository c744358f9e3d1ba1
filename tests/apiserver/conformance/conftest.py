"""Two servers for one suite: the embedded one, and a real kube-apiserver where one is at hand.

Every scenario writes a transcript. The transcripts in `golden/` were recorded from a real kube-apiserver (KOORD_RECORD_GOLDEN=1 with
the marker realapi records anew); the embedded server must give the same.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

from tests.support import patience, real_apiserver

from .transcript import Target

HERE = Path(__file__).parent


def wait_ready(target: Target, process: subprocess.Popen[bytes], seconds: float) -> None:
    end = time.monotonic() + patience.seconds(seconds)
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            if target.session.get(target.url + "/readyz", timeout=patience.seconds(1)).status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"not ready in {seconds} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(patience.seconds(10))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _embedded(folder: Path, *flags: str) -> Iterator[Target]:
    config = folder / "kubeconfig"
    argv = [sys.executable, "-m", "koord.cli", "apiserver", "--port", "0", "--print-kubeconfig", str(config), *flags]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + patience.seconds(20)
        while not config.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        loaded = yaml.safe_load(config.read_text())
        target = Target(loaded["clusters"][0]["cluster"]["server"], loaded["users"][0]["user"]["token"])
        wait_ready(target, process, 20)
        yield target
        target.session.close()
    finally:
        stop(process)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """`koord apiserver` as a process, with TLS and a token."""
    with _embedded(tmp_path_factory.mktemp("embedded")) as target:
        yield target


@pytest.fixture(scope="session")
def embedded_rbac(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The same, with roles."""
    with _embedded(tmp_path_factory.mktemp("embedded-rbac"), "--authorization-mode", "RBAC") as target:
        yield target


@contextlib.contextmanager
def _real(folder: Path, authorization: str) -> Iterator[Target]:
    program = real_apiserver.binary()
    if not program or not shutil.which("etcd"):
        pytest.skip("no kube-apiserver (KOORD_REAL_APISERVER or PATH) or no etcd on PATH")
    with real_apiserver.real_api_server(folder, program, authorization=authorization) as server:
        target = Target(server.url, server.token)
        yield target
        target.session.close()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A real kube-apiserver on an etcd of its own."""
    with _real(tmp_path_factory.mktemp("real"), "AlwaysAllow") as target:
        yield target


@pytest.fixture(scope="session")
def real_rbac(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The same, with roles."""
    with _real(tmp_path_factory.mktemp("real-rbac"), "RBAC") as target:
        yield target
