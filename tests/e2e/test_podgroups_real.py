"""PodGroups of scheduling.k8s.io/v1alpha2 on a real kube-apiserver 1.36, with its alpha gates: gangs, basic groups, places, conditions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.test_tokens import CORE, Caller, Row, made, meta, until
from tests.support import real_apiserver
from tests.support.processes import free_port, process

pytestmark = [pytest.mark.realapi, pytest.mark.slow, pytest.mark.timeout(300)]
GATES = "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true,WorkloadAwarePreemption=true"
FLAGS = (f"--feature-gates={GATES}", "--runtime-config=scheduling.k8s.io/v1alpha2=true")
PODS = f"{CORE}/namespaces/default/pods"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
RACK = "example.com/rack"
Obj = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """Two racks of two nodes with two CPUs each, and koord-scheduler with Coscheduling."""
    program = real_apiserver.binary()
    if program is None or shutil.which("etcd") is None:
        pytest.skip("needs kube-apiserver (KOORD_REAL_APISERVER or PATH) and etcd on PATH")
    if " v1.36." not in subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("v1alpha2 is 1.36's")
    directory = tmp_path_factory.mktemp("podgroups")
    with real_apiserver.real_api_server(directory, program, flags=FLAGS) as server:
        admin = Caller(server.url, server.token)
        for number in range(4):
            node = meta(f"n{number}")
            node["metadata"]["labels"] = {"kubernetes.io/hostname": f"n{number}", RACK: f"r{number // 2}"}
            made(admin, f"{CORE}/nodes", node)
            untainted: Obj = {"spec": {"taints": None}}
            assert admin(Row("PATCH", f"{CORE}/nodes/n{number}", untainted)).status_code == 200
            room = {"cpu": "2", "memory": "8Gi", "pods": "110"}
            ready = {"status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}}
            assert admin(Row("PATCH", f"{CORE}/nodes/n{number}/status", ready)).status_code == 200
        points = ("preEnqueue", "preFilter", "preScore", "score", "reserve", "permit", "preBind", "postBind")
        plugins: Obj = {point: {"enabled": [{"name": "Coscheduling"}]} for point in points}
        plugins["postFilter"] = {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}, {"name": "DefaultPreemption"}]}
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(server.kubeconfig)},
            "profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}],
        }  # fmt: skip
        (directory / "scheduler.yaml").write_text(yaml.safe_dump(config))
        arguments = ("scheduler", f"--config={directory}/scheduler.yaml", "--address=127.0.0.1", f"--port={free_port()}", "--secure-port=0")
        try:
            with process(*arguments):
                yield admin
        finally:
            admin.close()


def group(admin: Caller, name: str, policy: Obj, **spec: Any) -> None:
    made(admin, GROUPS, meta(name, spec={"schedulingPolicy": policy, **spec}))


def member(admin: Caller, name: str, of: str, cpu: str = "1") -> None:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    made(
        admin,
        PODS,
        meta(name, spec={"schedulerName": "koord-scheduler", "schedulingGroup": {"podGroupName": of}, "containers": [container]}),
    )


def node_of(admin: Caller, name: str) -> str:
    return str(admin(Row("GET", f"{PODS}/{name}")).json()["spec"].get("nodeName") or "")


def said(admin: Caller, name: str, kind: str) -> Obj:
    shown = admin(Row("GET", f"{GROUPS}/{name}")).json()
    found = (c for c in (shown.get("status") or {}).get("conditions") or () if c["type"] == kind)
    return next(found, {})


def clear(admin: Caller, *names: str) -> None:
    for name in names:
        assert admin(Row("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})).status_code == 200


@pytest.mark.feature("SCH-WL-02")
@pytest.mark.feature("SCH-WL-03")
@pytest.mark.feature("SCH-WL-04")
def test_a_gang_is_placed_together_or_not_at_all(cluster: Caller) -> None:
    admin = cluster
    names = [f"g{number}" for number in range(3)]
    for name in names[:2]:
        member(admin, name, "gang", "2")
    group(admin, "gang", {"gang": {"minCount": 3}})
    member(admin, "too-large", "crowd", "2")
    group(admin, "crowd", {"gang": {"minCount": 5}})
    for number in range(4):
        member(admin, f"c{number}", "crowd", "2")
    until(lambda: said(admin, "crowd", "PodGroupScheduled").get("reason") == "Unschedulable", "the crowd is told why", 60)
    assert not any(node_of(admin, name) for name in (*names[:2], "c0", "c1"))
    member(admin, names[2], "gang", "2")
    until(lambda: all(node_of(admin, name) for name in names), "the gang is bound", 60)
    until(lambda: said(admin, "gang", "PodGroupScheduled").get("status") == "True", "the gang is told", 60)
    assert said(admin, "gang", "PodGroupScheduled")["reason"] == "Scheduled"
    clear(admin, *names, "too-large", *(f"c{number}" for number in range(4)))


@pytest.mark.feature("SCH-WL-02")
def test_pods_of_a_basic_group_go_one_by_one(cluster: Caller) -> None:
    admin = cluster
    group(admin, "loose", {"basic": {}})
    for number in range(5):
        member(admin, f"b{number}", "loose", "2")
    until(lambda: sum(1 for number in range(5) if node_of(admin, f"b{number}")) == 4, "four of five fit", 60)
    clear(admin, *(f"b{number}" for number in range(5)))


@pytest.mark.feature("SCH-WL-05")
def test_pods_of_a_group_share_a_rack(cluster: Caller) -> None:
    admin = cluster
    group(admin, "racked", {"gang": {"minCount": 4}}, schedulingConstraints={"topology": [{"key": RACK}]})
    names = [f"r{number}" for number in range(4)]
    for name in names:
        member(admin, name, "racked")
    until(lambda: all(node_of(admin, name) for name in names), "the gang is bound", 60)
    assert {node_of(admin, name) for name in names} in ({"n0", "n1"}, {"n2", "n3"})
    clear(admin, *names)
