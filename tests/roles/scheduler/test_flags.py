"""The command line as upstream's manifests and kube-scheduler's users write it, and HTTPS (SCH-FW-02)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.apiserver.testing import running_server
from koord.process import certificates
from koord.process.http import OpsServer
from koord.process.serving import tls_context
from roles.scheduler.cli import reviewers
from roles.scheduler.flags import INERT, controller_wanted
from roles.scheduler.serving import Gate, Serving, certificate_user
from tests.support import patience
from tests.support.processes import KOORD, free_port

CONFIG = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\n"

# The argument lists of upstream's chart and manifest, and what kube-scheduler's own manifests pass.
SHIPPED = [
    ["--port=10251", "--authentication-skip-lookup=true", "--v=4", "--feature-gates=", "--enable-network-topology-manager=true"],
    [
        "--leader-elect=true", "--leader-elect-resource-name=koord-scheduler", "--leader-elect-resource-namespace=koordinator-system",
        "--leader-elect-lease-duration=15s", "--scheduling-timeout=30s", "--scheduler-monitor-period=10s",
        "--scheduling-drop-unhandled-timeout=5s", "--controller-plugins=*,-Coscheduling", "--debug-scores=3", "-f", "-d",
        "--debug-diagnosis-blocking", "--debug-diagnosis-queue-size=10", "--debug-diagnosis-worker-count=1",
        "--sync-barrier-pod-name=b", "--sync-hard-timeout=10s", "--enable-workload-auditor=false",
    ],
    [
        "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf", "--authorization-kubeconfig=/etc/kubernetes/scheduler.conf",
        "--bind-address=127.0.0.1", "--leader-elect", "--client-ca-file=/etc/ca.crt", "--tls-min-version=VersionTLS12",
        "--requestheader-client-ca-file=/x", "--authorization-always-allow-paths=/healthz,/metrics", "--profiling=false",
        "--kube-api-qps=100", "--kube-api-burst=200", "--pod-max-in-unschedulable-pods-duration=5m0s", "--cert-dir=/x",
    ],
    [f"--{name}=" + {"integer": "1", "bool": "true", "duration": "5s"}.get(getattr(kind, "name", "integer" if kind is int else ""), "x")
     for name, (kind, _) in INERT.items()],
]  # fmt: skip


@pytest.mark.feature("SCH-FW-02")
@pytest.mark.parametrize("arguments", SHIPPED)
def test_shipped_argument_lists_are_accepted(arguments: list[str], tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(CONFIG)
    run = subprocess.run(
        [KOORD, "scheduler", f"--config={file}", "--validate-config", *arguments], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.feature("SCH-FW-02")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--address=here"], "--address: 'here' is no IP address"),
        (["--port=70000"], "--port"),
        (["--secure-ports=1"], "did you mean --secure-port"),
        (["--feature-gates=Nope=true"], "Nope"),
        (["run"], "unexpected argument 'run'"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str) -> None:
    run = subprocess.run([KOORD, "scheduler", "--validate-config", *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert said in run.stderr
    assert run.stderr.count("\n") == 1


def test_controllers_are_chosen_by_the_first_match() -> None:
    assert controller_wanted("A", ("*",))
    assert not controller_wanted("A", ("-A", "*", "A"))
    assert controller_wanted("A", ("A",))
    assert not controller_wanted("B", ("A",))


async def get(url: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=False) as answer:
        return answer.status, await answer.text()


@pytest.mark.feature("SCH-FW-02")
def test_the_process_serves_https_to_those_with_a_good_token(tmp_path: Path) -> None:
    """A whole process, its made certificate and TokenReview at the embedded API server."""
    file, secure = tmp_path / "scheduler.yaml", free_port()
    file.write_text(CONFIG)

    async def run() -> None:
        async with running_server() as server:
            arguments = [
                "scheduler", f"--config={file}", "--port=0", f"--secure-port={secure}", "--bind-address=127.0.0.1",
                f"--kubeconfig={server.kubeconfig_path}", f"--cert-dir={tmp_path / 'certs'}", "--v=0",
            ]  # fmt: skip
            with (tmp_path / "log").open("wb") as log:
                child = await asyncio.create_subprocess_exec(KOORD, *arguments, stderr=log)
            try:
                status = 0
                for _ in patience.tries(200):
                    with contextlib.suppress(aiohttp.ClientError):
                        status, _ = await get(f"https://127.0.0.1:{secure}/healthz")
                    if status == 200:
                        break
                    await asyncio.sleep(0.05)
                assert status == 200
                status, text = await get(f"https://127.0.0.1:{secure}/metrics", "any")
                assert status == 200
                assert "scheduler_pending_pods" in text
                status, text = await get(f"https://127.0.0.1:{secure}/configz", "any")
                assert json.loads(text)["kubescheduler.config.k8s.io"]["parallelism"] == 16
            finally:
                child.terminate()
                await child.wait()
            said = (tmp_path / "log").read_text()
            assert ("SIGTERM: ending" in said, "trying again" in said) == (True, False), said
            context = ssl.create_default_context(cafile=str(tmp_path / "certs" / "ca.crt"))
            assert context.get_ca_certs()

    asyncio.run(run())


class Reviewer:
    """Knows one token, and lets its user read metrics."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def create(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(kind.kind)
        spec = body["spec"]
        if kind.kind == "TokenReview":
            good = spec["token"] == "good"
            return {"status": {"authenticated": good, "user": {"username": "prometheus", "groups": ["monitoring"]}}}
        allowed = spec["user"] == "prometheus" and spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        return {"status": {"allowed": allowed}}


@pytest.mark.feature("SCH-FW-02")
def test_who_may_ask_is_reviewed_and_remembered(tmp_path: Path) -> None:
    async def run() -> None:
        made = certificates.ensure(tmp_path, "127.0.0.1")
        options = Serving("127.0.0.1", cert_file=str(made.cert_file), key_file=str(made.key_file), allowed_paths=("/healthz", "/open/*"))
        reviewer, now = Reviewer(), [100.0]
        gate = Gate(options, reviewer, reviewer, lambda: now[0])
        server = OpsServer("127.0.0.1", 0, ssl_context=tls_context(options), middlewares=(gate.middleware(),))
        server.json("/open/door", lambda: {"open": True})
        await server.start()
        try:
            assert (await get(f"{server.url}/healthz"))[0] == 200
            assert (await get(f"{server.url}/open/door"))[0] == 200
            assert reviewer.asked == []
            assert (await get(f"{server.url}/metrics"))[0] == 403
            assert (await get(f"{server.url}/metrics", "bad"))[0] == 401
            reviewer.asked.clear()
            for _ in range(3):
                assert (await get(f"{server.url}/metrics", "good"))[0] == 200
            assert reviewer.asked == ["TokenReview", "SubjectAccessReview"]
            status, text = await get(f"{server.url}/version", "good")
            assert (status, text) == (403, 'Forbidden: user "prometheus" cannot get path "/version"\n')
            now[0] += 11
            await get(f"{server.url}/metrics", "good")
            assert reviewer.asked[-2:] == ["TokenReview", "SubjectAccessReview"]
        finally:
            await server.stop()

    asyncio.run(run())


def test_the_cluster_that_is_scheduled_for_reviews_who_asks(tmp_path: Path) -> None:
    from koord.kube.config import load

    (tmp_path / "other").write_text(
        "current-context: o\ncontexts: [{name: o, context: {cluster: o}}]\nclusters: [{name: o, cluster: {server: 'http://other'}}]\n"
    )
    target = load(master="http://127.0.0.1:1", environ={"HOME": str(tmp_path)})
    unset = {"authentication_kubeconfig": "", "authorization_kubeconfig": ""}
    assert [one.server for one in reviewers(unset, target)] == ["http://127.0.0.1:1"] * 2
    assert [one.server for one in reviewers({**unset, "authorization_kubeconfig": str(tmp_path / "other")}, target)] == [
        "http://127.0.0.1:1",
        "http://other",
    ]


def test_certificates_and_suites_that_cannot_be_used_are_configuration_errors(tmp_path: Path) -> None:
    from koord.process.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="belong together"):
        tls_context(Serving(cert_file="/x"))
    with pytest.raises(ConfigurationError, match="/nowhere"):
        tls_context(Serving(cert_file="/nowhere", key_file="/nowhere"))
    with pytest.raises(ConfigurationError, match="IANA"):
        tls_context(Serving(cipher_suites=("AES128-SHA",)))
    with pytest.raises(ConfigurationError, match="no TLS_RSA_WITH_ROT13"):
        tls_context(Serving(cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_ROT13")))
    plain = {cipher["name"] for cipher in tls_context(Serving(cipher_suites=("TLS_RSA_WITH_AES_128_GCM_SHA256",))).get_ciphers()}
    assert "AES128-GCM-SHA256" in plain
    suites = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
    names = {cipher["name"] for cipher in tls_context(Serving(cipher_suites=suites)).get_ciphers()}
    assert {"ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"} <= names
    assert certificate_user({"subject": ((("commonName", "a"),), (("organizationName", "g"),))}) == {
        "username": "a",
        "groups": ["g", "system:authenticated"],
    }
