"""A leader that is told to end hands its lease over: the next one leads within two seconds."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import patience
from tests.support.processes import free_port, process, until_healthy

LEASES = {
    "scheduler": ("kube-system", "koord-scheduler"),
    "manager": ("koordinator-system", "koordinator-manager"),
    "descheduler": ("koordinator-system", "koord-descheduler"),
}


def until(look: Callable[[], Any], what: str, seconds: float = 40.0) -> Any:
    end = time.monotonic() + patience.seconds(seconds)
    while not (found := look()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found


def arguments(role: str, directory: Path, kubeconfig: Path, number: int) -> tuple[list[str], str, dict[str, str]]:
    """Flags, health URL and environment of the n-th replica."""
    at, config = free_port(), directory / f"{role}-{number}.yaml"
    health = f"http://127.0.0.1:{at}"
    if role == "scheduler":
        config.write_text(json.dumps({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": True,
            "resourceName": "koord-scheduler", "resourceNamespace": "kube-system"},
            "clientConnection": {"kubeconfig": str(kubeconfig)}, "profiles": [{"schedulerName": "koord-scheduler"}],
        }))  # fmt: skip
        return [role, f"--config={config}", "--address=127.0.0.1", f"--port={at}", "--secure-port=0"], health, {}
    if role == "descheduler":
        config.write_text(json.dumps({
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", "leaderElection": {"leaderElect": True},
            "healthzBindAddress": f"127.0.0.1:{at}", "metricsBindAddress": f"127.0.0.1:{at}", "profiles": [{"name": "p"}],
        }))  # fmt: skip
        return [role, f"--config={config}", f"--kubeconfig={kubeconfig}", "--secure-port=0"], health, {}
    flags = [role, f"--kubeconfig={kubeconfig}", f"--health-probe-addr=127.0.0.1:{at}", f"--metrics-addr=127.0.0.1:{free_port()}"]
    environment = {"WEBHOOK_PORT": str(free_port()), "WEBHOOK_CERT_DIR": str(directory / f"certs-{number}")}
    return [*flags, "--enable-pprof=false"], health, environment


@pytest.mark.parametrize("role", ["scheduler", "manager", "descheduler"])
def test_the_next_leader_leads_within_two_seconds(tmp_path: Path, role: str) -> None:
    port, kubeconfig = free_port(), tmp_path / "kubeconfig"
    namespace, name = LEASES[role]
    server = f"http://127.0.0.1:{port}"

    def post(path: str, body: object) -> None:
        request = urllib.request.Request(server + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=patience.seconds(10)):
            pass

    def holder() -> str:
        try:
            with urllib.request.urlopen(
                f"{server}/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}", timeout=patience.seconds(5)
            ) as answer:
                return str(json.load(answer)["spec"].get("holderIdentity") or "")
        except urllib.error.HTTPError:
            return ""

    flags = [f"--port={port}", "--no-tls", "--anonymous", "--crds=configs/crds", f"--print-kubeconfig={kubeconfig}"]
    with process("apiserver", *flags) as api:
        until_healthy(f"{server}/readyz", api)
        if namespace not in ("default", "kube-system"):
            post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        first_flags, _, first_environment = arguments(role, tmp_path, kubeconfig, 1)
        with process(*first_flags, **first_environment) as first:
            before = until(holder, "the first leads")
            second_flags, health, second_environment = arguments(role, tmp_path, kubeconfig, 2)
            with process(*second_flags, **second_environment) as second:
                until_healthy(f"{health}/readyz", second)  # it waits for the lease
                assert holder() == before
                first.terminate()
                assert first.wait(patience.seconds(40)) == 0
                assert holder() != before, "the lease was given back before the process ended"
                # two seconds by design; a lease that was left behind would cost fifteen
                assert until(lambda: holder() not in ("", before), "the second leads", 10.0)
