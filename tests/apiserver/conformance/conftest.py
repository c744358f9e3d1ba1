"""Two servers for one suite: the embedded one, and a real kube-apiserver where one is at hand.

Every scenario writes a transcript. The transcripts in `golden/` were recorded from a real kube-apiserver (KOORD_RECORD_GOLDEN=1 with
the marker realapi records anew); the embedded server must give the same.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

from .transcript import Target

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_ready(target: Target, process: subprocess.Popen[bytes], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            if target.session.get(target.url + "/readyz", timeout=1).status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"not ready in {seconds} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """`koord apiserver` as a process, with TLS and a token."""
    folder = tmp_path_factory.mktemp("embedded")
    config = folder / "kubeconfig"
    argv = [sys.executable, "-m", "koord.cli", "apiserver", "--port", "0", "--print-kubeconfig", str(config)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 20
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
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A real kube-apiserver on an etcd of its own."""
    binary = os.environ.get("KOORD_REAL_APISERVER") or shutil.which("kube-apiserver")
    etcd = shutil.which("etcd")
    if not binary or not etcd:
        pytest.skip("no kube-apiserver (KOORD_REAL_APISERVER or PATH) or no etcd on PATH")
    folder = tmp_path_factory.mktemp("real")
    client, peer, port = free_port(), free_port(), free_port()
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text("secret,admin,admin,system:masters\n")
    urls = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    store = [
        etcd, "--data-dir", str(folder / "etcd"), "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
        "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", f"default={urls[1]}",
        "--unsafe-no-fsync",
    ]  # fmt: skip
    server = [
        binary, "--etcd-servers", urls[0], "--secure-port", str(port), "--bind-address", "127.0.0.1", "--cert-dir", str(folder / "certs"),
        "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", str(key),
        "--service-account-signing-key-file", str(key), "--token-auth-file", str(folder / "tokens.csv"),
        "--authorization-mode", "AlwaysAllow", "--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition",
        "--service-cluster-ip-range", "10.0.0.0/24",
    ]  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, argv in (("etcd", store), ("apiserver", server)):
            with open(folder / f"{name}.log", "wb") as log:
                processes.append(subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT))
        target = Target(f"https://127.0.0.1:{port}", "secret")
        wait_ready(target, processes[1], 90)
        yield target
        target.session.close()
    finally:
        for process in reversed(processes):
            stop(process)
