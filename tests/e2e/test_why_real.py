"""`koord why` with nothing but a kubeconfig, through a real kube-apiserver's pod proxy, with the asking user's own rights (BEY-SEC-01)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.apiserver import kubeconfig
from roles.tools import manifests
from tests.e2e.test_rbac import component_config
from tests.e2e.test_tokens import CORE, NS, POD, RBAC, Caller, Row, install, made, meta, token_of, until
from tests.support import patience, real_apiserver
from tests.support.processes import KOORD, free_port, process

pytestmark = [pytest.mark.realapi, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.feature("BEY-SEC-01")]
PORT = 10259


def own_address() -> str | None:
    """An address of this machine that an API server passes requests on to: neither the loopback nor a link's own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # nothing is sent
        except OSError:
            return None
        found: str = probe.getsockname()[0]
    return None if found.startswith(("127.", "169.254.")) else found


@pytest.fixture(scope="module")
def address() -> str:
    found = own_address()
    if found is None:
        pytest.skip("needs an address of this machine other than the loopback")
    with socket.socket() as probe:
        if probe.connect_ex((found, PORT)) == 0:
            pytest.skip(f"somebody listens on {found}:{PORT} already")
    return found


def user(admin: Caller, name: str, *, reads: bool, proxies: bool, looks: str = "pods nodes events") -> str:
    """A token of somebody who may look at such objects, and maybe at koord's roles, and maybe get there."""
    made(admin, f"{CORE}/namespaces/{NS}/serviceaccounts", meta(name))
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": NS}]
    rule = {"apiGroups": ["", "events.k8s.io"], "resources": looks.split(), "verbs": ["get", "list"]}
    made(admin, f"{RBAC}/clusterroles", meta(f"looks-{name}", rules=[rule]))
    bindings = [(f"{RBAC}/clusterrolebindings", "ClusterRole", f"looks-{name}")]
    bindings += [(f"{RBAC}/clusterrolebindings", "ClusterRole", "koord-diagnostics-reader")] if reads else []
    bindings += [(f"{RBAC}/namespaces/{NS}/rolebindings", "Role", "koord-diagnostics-reader")] if proxies else []
    for number, (path, kind, role) in enumerate(bindings):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        made(admin, path, meta(f"{name}-{number}", roleRef=reference, subjects=subjects))
    return token_of(admin, name)


def write(directory: Path, url: str, name: str, token: str) -> Path:
    found = kubeconfig.build(url, token)
    found["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True  # the certificate is of the server's own making
    kubeconfig.write(directory / name, found)
    return directory / name


@pytest.fixture(scope="module")
def cluster(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Caller, Path]]:
    """A scheduler that could not place a pod, and its own pod as the API server knows it."""
    program = real_apiserver.binary()
    if program is None or shutil.which("etcd") is None:
        pytest.skip("needs kube-apiserver (KOORD_REAL_APISERVER or PATH) and etcd on PATH")
    directory = tmp_path_factory.mktemp("why")
    with real_apiserver.real_api_server(directory, program, authorization="Node,RBAC") as server:
        admin = Caller(server.url, server.token)
        install(admin, manifests.rendered(), policies=False)
        made(admin, f"{CORE}/nodes", meta("n1"))
        room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        ready = {"status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}}
        assert admin(Row("PATCH", f"{CORE}/nodes/n1/status", ready)).status_code == 200
        taints: dict[str, Any] = {"spec": {"taints": None}}
        assert admin(Row("PATCH", f"{CORE}/nodes/n1", taints)).status_code == 200
        role = meta("koord-scheduler-0", spec={**POD, "nodeName": "n1"})
        role["metadata"]["labels"] = {"koord-app": "koord-scheduler"}
        made(admin, f"{CORE}/namespaces/{NS}/pods", role)
        running = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
        assert admin(Row("PATCH", f"{CORE}/namespaces/{NS}/pods/koord-scheduler-0/status", running)).status_code == 200
        config = component_config("koord-scheduler")
        config["clientConnection"] = {"kubeconfig": str(write(directory, server.url, "scheduler", token_of(admin, "koord-scheduler")))}
        (directory / "scheduler.yaml").write_text(yaml.safe_dump(config))
        large = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "64"}}}]
        made(admin, f"{CORE}/namespaces/default/pods", meta("web", spec={"schedulerName": "koord-scheduler", "containers": large}))
        arguments = [
            "scheduler", f"--config={directory}/scheduler.yaml", "--address=127.0.0.1", f"--port={free_port()}",
            f"--secure-port={PORT}", f"--bind-address={address}",
        ]  # fmt: skip
        try:
            with process(*arguments):
                path = f"{CORE}/namespaces/default/pods/web"
                until(lambda: "Unschedulable" in admin(Row("GET", path)).text, "the scheduler has tried the pod")
                yield server.url, admin, directory
        finally:
            admin.close()


def why(config: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KOORD_")} | {"XDG_RUNTIME_DIR": str(config.parent)}
    command = [KOORD, "why", "pod", "default/web", f"--kubeconfig={config}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience.seconds(60), check=False)


@pytest.mark.parametrize(("name", "looks"), [("reader", "pods nodes events"), ("narrow", "pods"), ("blind", "services")])
def test_who_may_read_is_told_why(cluster: tuple[str, Caller, Path], name: str, looks: str) -> None:
    """The role's records; also to who may look at less than the rest of the answer would need."""
    url, admin, directory = cluster
    config = write(directory, url, name, user(admin, name, reads=True, proxies=True, looks=looks))

    until(lambda: why(config).returncode == 0, "the reader's rights are in force", 30)
    told = why(config)
    assert "scheduler: Unschedulable" in told.stdout, "the scheduler's own record"
    assert "Insufficient cpu" in told.stdout
    assert "no role answered" not in told.stderr


@pytest.mark.parametrize(("name", "reads", "proxies"), [("nosy", False, True), ("outside", True, False)])
def test_who_may_not_is_refused_by_the_role_or_on_the_way(cluster: tuple[str, Caller, Path], name: str, reads: bool, proxies: bool) -> None:
    """Whoever gets through the proxy has to be allowed the path by the role; whoever is allowed the path has to get through the proxy."""
    url, admin, directory = cluster
    config = write(directory, url, name, user(admin, name, reads=reads, proxies=proxies))
    told = why(config)
    assert told.returncode == 1, told.stdout
    assert "no role answered" in told.stderr
    assert "koord-scheduler-0" in told.stderr
    assert "403" in told.stderr or "forbidden" in told.stderr, told.stderr
