"""kubectl against the sandbox: tables, YAML, explain, apply, describe."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.e2e.conftest import Running

pytestmark = [pytest.mark.kubectl, pytest.mark.feature("BEY-SBX-01")]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_get_nodes_wide(cluster: Running) -> None:
    head, *body = rows(cluster.kubectl("get", "nodes", "-o", "wide"))
    assert {"NAME", "STATUS", "VERSION"} <= set(head)
    assert {row[0]: row[1] for row in body} == {f"sim-00{i}": "Ready" for i in range(3)}


def test_get_pods_wide(cluster: Running) -> None:
    cluster.until(lambda: "Running" in cluster.kubectl("get", "pods", "-n", "shop"), 40, "running pods")
    head, *body = rows(cluster.kubectl("get", "pods", "-A", "-o", "wide"))
    assert {"NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "NODE"} <= set(head)
    web = [row for row in body if row[1] == "web-000-0"]
    assert "sim-000" in web[0]


@pytest.mark.parametrize("kind", ["nodes", "pods", "nodemetrics", "nodeslos", "clustercolocationprofiles", "configmaps"])
def test_get_as_yaml(cluster: Running, kind: str) -> None:
    listed = yaml.safe_load(cluster.kubectl("get", kind, "-A", "-o", "yaml"))
    assert listed["kind"] == "List"
    assert all(item["metadata"]["resourceVersion"] for item in listed["items"])


def test_explain_a_custom_resource(cluster: Running) -> None:
    text = cluster.kubectl("explain", "nodemetric.status")
    assert "nodeMetric" in text
    assert "podsMetric" in text


def test_apply_twice_and_delete(cluster: Running) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "namespace": "default"}, "data": {"a": "1"}}
    assert "created" in cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    assert "unchanged" in cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    manifest["data"] = {"b": "2"}
    assert "configured" in cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    assert cluster.get("configmap", "mine", "-n", "default")["data"] == {"b": "2"}
    assert "deleted" in cluster.kubectl("delete", "configmap", "mine", "-n", "default")


def test_apply_server_side(cluster: Running) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ssa", "namespace": "default"}, "data": {"a": "1"}}
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
    assert cluster.get("configmap", "ssa", "-n", "default")["data"] == {"a": "1"}


def test_describe_node(cluster: Running) -> None:
    cluster.until(lambda: "batch-cpu" in cluster.kubectl("describe", "node", "sim-000"), 40, "batch-cpu in describe")
    text = cluster.kubectl("describe", "node", "sim-000")
    for word in ("Capacity:", "Allocatable:", "Non-terminated Pods:", "web-000-0", "kubernetes.io/batch-cpu"):
        assert word in text


def test_a_bad_object_is_refused_with_the_field(cluster: Running) -> None:
    bad = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "Bad_Name", "namespace": "default"}, "spec": {"containers": []}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(bad), check=False)
    assert "Bad_Name" not in cluster.kubectl("get", "pods", "-n", "default")


def test_without_the_token_nothing_is_told(cluster: Running) -> None:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    assert cluster.kubeconfig.stat().st_mode & 0o077 == 0
    server = config["clusters"][0]["cluster"]["server"]
    out = cluster.kubectl("get", "pods", "-A", f"--server={server}", "--token=wrong", check=False)
    assert out == ""
