"""Simulated nodes end to end: usage is reported, batch resources are offered, a batch pod is made BE and placed on them."""

from __future__ import annotations

import json
import re
import shlex
import urllib.error
import urllib.request
from typing import Any

import pytest

from koord.api.quantity import parse_value
from roles.tools.reference.metrics import ROLES
from tests.e2e.conftest import REPOSITORY, Running
from tests.support import patience

pytestmark = [pytest.mark.kubectl, pytest.mark.feature("BEY-SBX-01")]

BATCH_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "job", "namespace": "batch"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "any",
                "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}},
            }
        ],
        "restartPolicy": "Never",
        "nodeSelector": {"sandbox.koordinator.sh/node": "simulated"},
    },
}


def allocatable(cluster: Running, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("node", name)["status"]["allocatable"]
    return found


def test_nodes_offer_batch_resources(cluster: Running) -> None:
    offered = cluster.until(lambda: allocatable(cluster, "sim-000").get("kubernetes.io/batch-cpu"), 40, "batch-cpu")
    assert 0 < parse_value(offered) < 32_000, "milli-CPU; a whole number of thousands is written 24k"
    # a first report may be older than the first pod
    cluster.until(lambda: cluster.get("nodemetric", "sim-000")["status"]["podsMetric"], 40, "pods in a report")


def test_a_batch_pod_goes_the_whole_way(cluster: Running) -> None:
    cluster.until(lambda: allocatable(cluster, "sim-001").get("kubernetes.io/batch-cpu"), 40, "batch-cpu")
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(BATCH_POD))
    pod = cluster.get("pod", "job", "-n", "batch")
    assert pod["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
    assert pod["spec"]["priorityClassName"] == "koord-batch"
    assert pod["spec"]["containers"][0]["resources"]["requests"]["kubernetes.io/batch-cpu"] == "2k"
    assert "cpu" not in pod["spec"]["containers"][0]["resources"]["requests"]

    def running() -> dict[str, Any] | None:
        now: dict[str, Any] = cluster.get("pod", "job", "-n", "batch")
        return now if now["status"].get("phase") == "Running" else None

    pod = cluster.until(running, 40, "a running batch pod")
    assert pod["spec"]["nodeName"].startswith("sim-")
    used = {n["metadata"]["name"]: n for n in cluster.get("nodemetrics")["items"]}[pod["spec"]["nodeName"]]

    def reported() -> bool:
        metric = cluster.get("nodemetric", pod["spec"]["nodeName"])
        return any(p["name"] == "job" and p["qos"] == "BE" and p["priority"] == "koord-batch" for p in metric["status"]["podsMetric"])

    assert used["status"]["updateTime"]
    cluster.until(reported, 40, "usage of the batch pod")


def test_the_scheduler_explains_itself_at_the_published_endpoint(cluster: Running) -> None:
    endpoints = json.loads((cluster.state / "endpoints.json").read_bytes())
    assert {"manager", "scheduler", "descheduler"} <= set(endpoints)
    assert "koordlet" not in endpoints
    cluster.until(lambda: cluster.get("pod", "etl-000", "-n", "batch")["spec"].get("nodeName"), 40, "a placed batch pod")

    def records() -> list[dict[str, Any]]:
        url = f"{endpoints['scheduler']}/debug/decisions?kind=Pod&namespace=batch&name=etl-000"
        with urllib.request.urlopen(url, timeout=patience.seconds(20)) as answer:
            found: list[dict[str, Any]] = json.loads(answer.read())
            return found

    assert cluster.until(records, 40, "a decision record")[-1]["verdict"] == "Scheduled"


def test_what_fits_nowhere_stays_pending_with_a_reason(cluster: Running) -> None:
    huge = json.loads(json.dumps(BATCH_POD))
    huge["metadata"]["name"] = "huge"
    resources = huge["spec"]["containers"][0]["resources"]
    resources["requests"] = resources["limits"] = {"cpu": "500", "memory": "1Gi"}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(huge))

    def reason() -> str:
        conditions = cluster.get("pod", "huge", "-n", "batch")["status"].get("conditions", [])
        return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), "")

    assert "batch-cpu" in cluster.until(reason, 40, "the reason why it is pending")


def test_reservations_gangs_and_quotas_work_as_installed(cluster: Running) -> None:
    """The sandbox runs the profile that koord is installed with."""
    container = {"name": "main", "image": "any", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    template = {"spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
    reservation = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "kept"},
        "spec": {"ttl": "1h", "owners": [{"labelSelector": {"matchLabels": {"app": "nobody"}}}], "template": template},
    }
    group = {"pod-group.scheduling.sigs.k8s.io": "absent"}
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone", "namespace": "default", "labels": group}, **template}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [reservation, alone]}))
    cluster.until(lambda: cluster.get("reservation", "kept").get("status", {}).get("phase") == "Available", 40, "the reservation")

    def waits() -> bool:
        status = cluster.get("pod", "alone", "-n", "default")["status"]
        return any("gang default/absent" in condition.get("message", "") for condition in status.get("conditions", []))

    cluster.until(waits, 40, "a pod that waits for its gang")
    quotas = {q["metadata"]["name"] for q in cluster.get("elasticquotas", "-A")["items"]}
    assert "koordinator-root-quota" in quotas


def test_roles_as_processes_do_the_same(sandbox: Running) -> None:
    sandbox.start("up", f"--scenario={sandbox.directory / 'scenario.yaml'}", "--no-local-node", "--nodes=1", "--roles-as-processes")
    endpoints = json.loads((sandbox.state / "endpoints.json").read_bytes())
    for role in ("manager", "scheduler", "descheduler"):
        with urllib.request.urlopen(f"{endpoints[role]}/healthz", timeout=patience.seconds(20)) as answer:
            assert answer.status == 200
    sandbox.until(lambda: allocatable(sandbox, "sim-000").get("kubernetes.io/batch-cpu"), 40, "batch-cpu")
    sandbox.until(lambda: sandbox.get("pod", "etl-000", "-n", "batch")["spec"].get("nodeName"), 40, "a placed batch pod")
    assert sandbox.stop() == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{endpoints['scheduler']}/healthz", timeout=patience.seconds(20))


@pytest.mark.parametrize("role", ["manager", "scheduler", "descheduler"])
def test_every_metric_of_a_running_role_is_in_the_reference(cluster: Running, role: str) -> None:
    endpoint = json.loads((cluster.state / "endpoints.json").read_bytes())[role]
    with urllib.request.urlopen(f"{endpoint}/metrics", timeout=patience.seconds(20)) as answer:
        text = answer.read().decode()
    known = {entry.name: entry for entry in ROLES[role]()}
    shown = {name: kind for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE) if not name.endswith("_created")}
    assert shown == {name: known[name].kind for name in shown if name in known}
    for name, labels in re.findall(r"^([a-z_]+)\{([^}]*)\}", text, re.MULTILINE):
        entry = known.get(name) or known.get(re.sub(r"_(bucket|sum|count)$", "", name))
        if entry is not None:  # else a family's time of creation
            assert set(re.findall(r'(\w+)="', labels)) - {"le"} == set(entry.labels), name


def troubleshooting(pattern: str) -> list[str]:
    """Commands of docs/troubleshooting.md, without comments and pipes."""
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    found = []
    for line in page.splitlines():
        if line.startswith("    "):
            found += [re.split(r"\s+[#|&]", part)[0].strip() for part in line.split(";") if re.match(pattern, part.strip())]
    return found


def status_of(url: str) -> int:
    """The status of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=patience.seconds(20)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_what_troubleshooting_asks_roles_is_answered(cluster: Running) -> None:
    endpoints = json.loads((cluster.state / "endpoints.json").read_bytes())
    asked = 0
    for command in troubleshooting("curl"):
        role, path = re.findall(r"\$([A-Z]+)(/[^\s\"]+)", command)[0] if "$" in command else ("", "")
        if role.lower() not in endpoints:
            continue
        asked += 1
        status = status_of(endpoints[role.lower()] + path)
        # a gang or quota that is not there, of a plugin that this profile may not have
        assert status == 200 or (status == 404 and "/apis/v1/plugins/" in path), command
    assert asked >= 6


def test_kubectl_takes_the_commands_of_troubleshooting(cluster: Running) -> None:
    tried = 0
    for command in troubleshooting("kubectl"):
        words = [re.sub(r"^NODE$", "sim-000", word) for word in shlex.split(command)[1:]]
        if "port-forward" in words:
            continue
        tried += 1
        done = cluster.try_kubectl(*words)
        assert done.returncode == 0 or "not found" in done.stderr.lower(), f"{command}: {done.stderr}"
    assert tried >= 10
