"""kubectl against `koord apiserver`: the process, its kubeconfig, and what people type."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koord.apiserver import manifests
from tests.support import patience

CRDS = Path(manifests.__file__).resolve().parents[2] / "configs" / "crds"
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {"capacity": {"cpu": "4", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]},
}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d"},
    "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE},
}


class Server:
    """`koord apiserver` as a process with a data directory."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.unlink(missing_ok=True)
        argv = [sys.executable, "-m", "koord.cli", "apiserver", "--port", "0", "--data-dir", str(folder / "data")]
        self.log = open(folder / "log", "ab")  # noqa: SIM115
        started = time.monotonic()
        self.process = subprocess.Popen([*argv, "--print-kubeconfig", str(self.kubeconfig), *more], stdout=self.log, stderr=self.log)
        while not self.kubeconfig.exists():
            assert self.process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() - started < patience.seconds(30)
            time.sleep(0.01)

    def stop(self) -> tuple[int, float]:
        """(exit code, seconds it took)"""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(patience.seconds(15))
        self.log.close()
        return code, time.monotonic() - started


Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on PATH")
    running = Server(tmp_path_factory.mktemp("kubectl"), "--crds", str(CRDS))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def kubectl(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    cache = tmp_path_factory.mktemp("cache")

    def run(*words: str, stdin: object = None, fails: bool = False) -> str:
        argv = ["kubectl", "--kubeconfig", str(server.kubeconfig), "--cache-dir", str(cache), *words]
        text = None if stdin is None else json.dumps(stdin)
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=patience.seconds(60), check=False)
        assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
        return done.stderr if fails else done.stdout

    return run


@pytest.mark.kubectl
def test_apply_twice_change_and_server_side(kubectl: Kubectl) -> None:
    both = {"apiVersion": "v1", "kind": "List", "items": [NODE, DEPLOYMENT]}
    assert kubectl("apply", "-f", "-", stdin=both).splitlines() == ["node/n1 created", "deployment.apps/d created"]
    assert kubectl("apply", "-f", "-", stdin=both).splitlines() == ["node/n1 unchanged", "deployment.apps/d unchanged"]
    assert kubectl("scale", "deployment", "d", "--replicas=5") == "deployment.apps/d scaled\n"
    assert "configured" in kubectl("apply", "-f", "-", stdin=both)
    assert "serverside-applied" in kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=DEPLOYMENT)
    assert "unknown field" in kubectl("apply", "-f", "-", stdin={**DEPLOYMENT, "specc": {}}, fails=True)


@pytest.mark.kubectl
def test_columns_are_those_that_users_know(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=NODE)
    kubectl("run", "p", "--image=i:1", "--labels=a=b")
    assert kubectl("get", "pods").splitlines()[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert kubectl("get", "pods", "-o", "wide").splitlines()[1].split()[:4] == ["p", "0/1", "Pending", "0"]
    assert kubectl("get", "node", "n1").splitlines()[1].split()[:3] == ["n1", "Ready", "<none>"]
    kubectl("cordon", "n1")
    assert "Ready,SchedulingDisabled" in kubectl("get", "nodes")
    job = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "PodMigrationJob",
        "metadata": {"name": "j"},
        "spec": {"podRef": {"namespace": "default", "name": "p"}},
    }
    kubectl("create", "-f", "-", stdin=job)
    header, row = kubectl("get", "pmj").splitlines()
    assert header.split()[:3] == ["NAME", "PHASE", "STATUS"]
    assert row.split()[0] == "j"
    assert "p" in row.split()


@pytest.mark.kubectl
def test_explain_and_discovery(kubectl: Kubectl) -> None:
    assert "FIELDS:" in kubectl("explain", "nodemetric.status")
    explained = kubectl("explain", "pod.spec.containers.resources")
    assert "limits" in explained
    assert "requests" in explained
    assert "podmigrationjobs" in kubectl("api-resources", "--api-group=scheduling.koordinator.sh", "-o", "name")


@pytest.mark.kubectl
def test_typed_commands(kubectl: Kubectl) -> None:
    assert kubectl("create", "namespace", "typed") == "namespace/typed created\n"
    kubectl("create", "configmap", "m", "--from-literal=a=b", "-n", "typed")
    assert json.loads(kubectl("get", "configmap", "m", "-n", "typed", "-o", "json"))["data"] == {"a": "b"}
    assert kubectl("auth", "can-i", "delete", "pods") == "yes\n"
    assert "admin" in kubectl("auth", "whoami")
    assert "deleted" in kubectl("delete", "namespace", "typed", "--timeout=10s")


@pytest.mark.kubectl
def test_wait_describe_patch_label(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=NODE)
    assert "condition met" in kubectl("wait", "--for=condition=Ready", "node/n1", "--timeout=5s")
    kubectl("label", "node", "n1", "zone=a", "--overwrite")
    assert "zone=a" in kubectl("describe", "node", "n1")
    kubectl("patch", "node", "n1", "-p", '{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}')
    assert "k:NoSchedule" in kubectl("describe", "node", "n1")
    assert "not found" in kubectl("get", "node", "none", fails=True).lower()


def test_state_survives_a_restart_and_the_end_is_quick(tmp_path: Path) -> None:
    first = Server(tmp_path)
    before = json.loads(first.kubeconfig.read_text())
    call(before, "POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    version = call(before, "GET", "/api/v1/namespaces/default/configmaps/kept")["metadata"]["resourceVersion"]
    code, seconds = first.stop()
    assert code == 0
    assert seconds < patience.seconds(6)
    second = Server(tmp_path)
    try:
        after = json.loads(second.kubeconfig.read_text())
        assert after["users"] == before["users"]
        kept = call(after, "GET", "/api/v1/namespaces/default/configmaps/kept")
        assert (kept["data"], kept["metadata"]["resourceVersion"]) == ({"a": "b"}, version)
        made = call(after, "POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "new"}})
        assert int(made["metadata"]["resourceVersion"]) > int(version)
    finally:
        second.stop()


def call(config: dict, method: str, path: str, body: object = None) -> dict:  # type: ignore[type-arg]
    """One request with the kubeconfig's own authority and token."""
    import base64
    import ssl
    import urllib.request

    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {user['token']}", "Content-Type": "application/json"}
    request = urllib.request.Request(cluster["server"] + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, context=context, timeout=patience.seconds(10)) as response:
        found: dict = json.loads(response.read())  # type: ignore[type-arg]
        return found


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--bind-address", "0.0.0.0", "--anonymous"], "only listens on the loopback"),
        (["--disable-admission-plugins", "Nope"], "unknown Nope"),
        (["--event-ttl", "soon"], "is not a duration"),
        (["--webhook-service", "x"], "NAMESPACE/NAME=HOST:PORT"),
    ],
)
def test_bad_flags_are_one_clear_line(flags: list[str], text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "koord.cli", "apiserver", *flags], capture_output=True, text=True, timeout=patience.seconds(30), check=False
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_data_directory_that_gives_no_token_or_belongs_to_others_is_one_clear_line(tmp_path: Path) -> None:
    for mode, token, text in ((0o700, "\n", "token is empty"), (0o777, "secret", "may be written by others")):
        directory = tmp_path / f"{mode:o}"
        directory.mkdir()
        directory.chmod(mode)
        (directory / "token").write_text(token)
        argv = [sys.executable, "-m", "koord.cli", "apiserver", "--port", "0", "--data-dir", str(directory)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=patience.seconds(30), check=False)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert text in done.stderr
        assert str(directory) in done.stderr


def test_plugins_that_are_not_here_are_named(tmp_path: Path) -> None:
    running = Server(tmp_path, "--enable-admission-plugins", "PodSecurity,Priority,NodeRestriction")
    assert running.stop()[0] == 0
    assert "this server has no NodeRestriction, PodSecurity: nothing is checked" in (tmp_path / "log").read_text()
