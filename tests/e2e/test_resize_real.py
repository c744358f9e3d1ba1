"""Resized pods on a real kube-apiserver: koord-scheduler, and kube-scheduler where it is at hand, find exactly the room that they leave.

KOORD_REAL_SCHEDULER names the kube-scheduler binary.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_tokens import CORE, Caller, Row, made, meta, until
from tests.support import patience, real_apiserver
from tests.support.processes import free_port, process

pytestmark = [pytest.mark.realapi, pytest.mark.slow, pytest.mark.timeout(300)]
PODS = f"{CORE}/namespaces/default/pods"
STATES = json.loads((Path(__file__).parents[1] / "fixtures" / "resize-states.json").read_text())
Obj = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[real_apiserver.RealApiServer, Caller]]:
    """A node for each state of a resize, with the pod that is in it and 1000m beside it."""
    program = real_apiserver.binary()
    if program is None or shutil.which("etcd") is None:
        pytest.skip("needs kube-apiserver (KOORD_REAL_APISERVER or PATH) and etcd on PATH")
    with real_apiserver.real_api_server(tmp_path_factory.mktemp("resize"), program) as server:
        admin = Caller(server.url, server.token)
        try:
            for state in STATES:
                _set_up(admin, state)
            yield server, admin
        finally:
            admin.close()


def _set_up(admin: Caller, state: Obj) -> None:
    name = state["name"]
    node = meta(name)
    node["metadata"]["labels"] = {"kubernetes.io/hostname": name}
    made(admin, f"{CORE}/nodes", node)
    untainted: Obj = {"spec": {"taints": None}}
    assert admin(Row("PATCH", f"{CORE}/nodes/{name}", untainted)).status_code == 200
    room = {"cpu": f"{state['requests']['cpu'] + 1000}m", "memory": "100Gi", "pods": "110"}
    ready = {"status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}}
    assert admin(Row("PATCH", f"{CORE}/nodes/{name}/status", ready)).status_code == 200
    made(admin, PODS, meta(f"there-{name}", spec={"nodeName": name, **state["spec"]}))
    assert admin(Row("PATCH", f"{PODS}/there-{name}/status", {"status": state["status"]})).status_code == 200


def _probe(admin: Caller, state: Obj, scheduler: str, kind: str, cpu: str) -> None:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    where = {"kubernetes.io/hostname": state["name"]}
    spec = {"schedulerName": scheduler, "nodeSelector": where, "containers": [container]}
    made(admin, PODS, meta(f"{kind}-{state['name']}", spec=spec))


def _pod(admin: Caller, name: str) -> Obj:
    found: Obj = admin(Row("GET", f"{PODS}/{name}")).json()
    return found


def _refused(pod: Obj) -> bool:
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in pod["status"].get("conditions", []))


def _exact(admin: Caller, scheduler: str) -> None:
    """1001m find no room beside any of the pods, 1000m do."""
    for state in STATES:
        _probe(admin, state, scheduler, "more", "1001m")
        _probe(admin, state, scheduler, "fits", "1")
    for state in STATES:
        name = state["name"]
        until(lambda name=name: _pod(admin, f"fits-{name}")["spec"].get("nodeName") == name, f"{scheduler}: 1000m beside {name}", 60)
        until(lambda name=name: _refused(_pod(admin, f"more-{name}")), f"{scheduler}: no room for 1001m beside {name}", 60)
    for state in STATES:
        for kind in ("more", "fits"):
            gone = Row("DELETE", f"{PODS}/{kind}-{state['name']}", {"gracePeriodSeconds": 0})
            assert admin(gone).status_code == 200


@pytest.mark.feature("SCH-RSZ-01")
@pytest.mark.feature("SCH-RSZ-02")
def test_koord_scheduler_counts_resized_pods(cluster: tuple[real_apiserver.RealApiServer, Caller], tmp_path: Path) -> None:
    server, admin = cluster
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(server.kubeconfig)}, "profiles": [{"schedulerName": "koord-scheduler"}],
    }  # fmt: skip
    (tmp_path / "scheduler.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    with process("scheduler", f"--config={tmp_path}/scheduler.yaml", "--address=127.0.0.1", f"--port={port}", "--secure-port=0"):
        _exact(admin, "koord-scheduler")


@pytest.mark.feature("SCH-RSZ-01")
@pytest.mark.feature("SCH-RSZ-02")
def test_kube_scheduler_counts_the_same(cluster: tuple[real_apiserver.RealApiServer, Caller], tmp_path: Path) -> None:
    """What the fixture says is what kube-scheduler does."""
    program = os.environ.get("KOORD_REAL_SCHEDULER")
    if not program:
        pytest.skip("needs a kube-scheduler binary in KOORD_REAL_SCHEDULER")
    server, admin = cluster
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if not re.search(r"v1\.36\.", version):
        pytest.skip(f"the fixture is of 1.36, this is {version.strip()}")
    files = [f"--{name}kubeconfig={server.kubeconfig}" for name in ("", "authentication-", "authorization-")]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen([program, *files, "--leader-elect=false", f"--secure-port={free_port()}"], stdout=log, stderr=log)
    try:
        _exact(admin, "default-scheduler")
    finally:
        child.terminate()
        child.wait(patience.seconds(40))
