"""The probes of configs/ against the roles: what has the kubelet restart a container is not the fault of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from roles.tools import manifests
from tests.support.processes import free_port, healthy, process, roles, until_healthy


def probes(*overlays: str) -> dict[str, tuple[str, str]]:
    """Paths of liveness and readiness by workload."""
    found = {}
    for obj in manifests.rendered(overlays=overlays):
        if obj["kind"] in ("Deployment", "DaemonSet") and obj["metadata"]["name"].startswith("koord"):
            container: dict[str, Any] = obj["spec"]["template"]["spec"]["containers"][0]
            found[obj["metadata"]["name"]] = tuple(container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe"))
    return found


@pytest.mark.parametrize("overlay", ["", *manifests.OVERLAYS])
def test_a_restart_is_for_what_a_restart_cures(overlay: str) -> None:
    found = probes(*filter(None, [overlay]))
    assert set(found) == {"koord-manager", "koord-scheduler", "koord-descheduler", "koordlet"}
    assert set(found.values()) == {("/livez", "/readyz")}


def test_koordlet_is_not_restarted_because_the_api_server_is_away(tmp_path: Path) -> None:
    cluster = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    file = tmp_path / "kubeconfig"
    contexts = [{"name": "a", "context": {"cluster": "a"}}]
    file.write_text(yaml.safe_dump({"current-context": "a", "contexts": contexts, "clusters": [cluster]}))
    _, arguments, health, environment = next(row for row in roles(tmp_path, file) if row[0] == "koordlet")
    host = [f"--host-root={tmp_path}/host" if argument.startswith("--host-root=") else argument for argument in arguments]
    base = health.removesuffix("/healthz")
    live, ready = probes()["koordlet"]
    with process(*host, f"--kubeconfig={file}", **environment) as child:
        until_healthy(f"{base}/livez", child)
        assert not healthy(health), "the API server is away"
        assert healthy(base + live)
        assert not healthy(base + ready), "a rollout does not go on"
