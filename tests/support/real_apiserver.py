"""A real kube-apiserver on an etcd of its own, where the machine has both; one way to start it for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from koord.kube.config import ClientConfig
from koord.kube.credentials import StaticHeader
from tests.support import patience
from tests.support.processes import free_port

TOKEN = "secret"
#: An apiserver is ready later on a busy machine (seconds).
READY_WITHIN = 120.0


@dataclass(frozen=True, slots=True)
class RealApiServer:
    """Where it is, and how to come in: as a member of system:masters."""

    url: str
    token: str
    kubeconfig: Path
    pid: int

    def client_config(self) -> ClientConfig:
        return ClientConfig(self.url, credentials=StaticHeader.bearer(self.token), insecure=True)


def binary() -> str | None:
    """kube-apiserver as KOORD_REAL_APISERVER or PATH have it."""
    return os.environ.get("KOORD_REAL_APISERVER") or shutil.which("kube-apiserver")


@contextlib.contextmanager
def real_api_server(
    directory: Path, program: str, *, authorization: str = "AlwaysAllow", flags: Sequence[str] = ()
) -> Iterator[RealApiServer]:
    """Start etcd and `program` with their files in `directory` and further `flags`; both are ended at exit. Raises RuntimeError when one
    does not come up."""
    client, peer, port = free_port(), free_port(), free_port()
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "sa.key").write_bytes(pem)
    (directory / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    etcd = [
        "etcd", f"--data-dir={directory}/etcd", f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}", f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}", f"--initial-cluster=default=http://127.0.0.1:{peer}", "--unsafe-no-fsync",
    ]  # fmt: skip
    server = [
        program, f"--etcd-servers=http://127.0.0.1:{client}", f"--secure-port={port}", "--bind-address=127.0.0.1",
        f"--cert-dir={directory}/certs", f"--token-auth-file={directory}/tokens.csv", f"--authorization-mode={authorization}",
        "--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={directory}/sa.key", f"--service-account-key-file={directory}/sa.key",
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--allow-privileged=true", *flags,
    ]  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in (("etcd", etcd), ("kube-apiserver", server)):
            with (directory / f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        url = f"https://127.0.0.1:{port}"
        _until_ready(url, processes)
        yield RealApiServer(url, TOKEN, _kubeconfig(directory, url), processes[-1].pid)
    finally:
        for process in reversed(processes):
            _end(process)


def _kubeconfig(directory: Path, url: str) -> Path:
    path = directory / "kubeconfig"
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": "real",
        "clusters": [{"name": "real", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content))
    return path


def get(url: str, token: str = TOKEN) -> tuple[int, bytes]:
    """GET without a look at the certificate; (0, b"") when nothing answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=patience.seconds(5), context=ssl._create_unverified_context()) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except OSError:
        return 0, b""


def _until_ready(url: str, processes: list[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + patience.seconds(READY_WITHIN)
    while get(f"{url}/readyz")[0] != 200 or get(f"{url}/api/v1/namespaces/default")[0] != 200:
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        if time.monotonic() > end:
            raise RuntimeError(f"{url} is not ready after {READY_WITHIN:g} s")
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(patience.seconds(20))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
