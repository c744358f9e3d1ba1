"""Every role with the rights of its manifest and no more: nothing that it asks for is refused (BEY-SEC-01).

The API server enforces the Roles of configs/install. What a role asked for in vain, and rules that nothing needed, are failures;
rules of what this test does not reach are listed in UNREACHED with their reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from koord.api.times import format_time
from koord.apiserver import kubeconfig
from koord.apiserver.config import ServerConfig
from koord.apiserver.testing import RunningServer, running_server
from koord.kube.client import Client
from tests.support import patience
from tests.support.processes import KOORD, free_port

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "koordinator-system"
ROLES = ("koord-manager", "koord-scheduler", "koord-descheduler", "koordlet")
# Rules that this test does not need, each with what does.
UNREACHED = {
    "koord-manager-colocation-profiles: patch pods": "gate ColocationProfileController; tests/roles/manager/test_controllers.py",
    "koord-manager-resource-slices: watch,create,patch,delete resourceslices": "gate DeviceResourceSlices; tests/roles/manager",
    "koordlet-resource-claims: get resourceclaims": "gate DRAPlugin; tests/roles/koordlet/act/test_claims.py",
    **dict.fromkeys(
        (
            "koord-manager-recommender: list,watch,patch recommendations",
            "koord-manager-recommender: patch recommendations/status",
            "koord-manager-recommender: get deployments,statefulsets,daemonsets,replicasets",
            "koord-manager-recommender: get replicationcontrollers",
            "koord-manager-recommender: get */scale",
            "koord-manager-recommender: get,list jobs,cronjobs",
            "koord-manager-recommender: list pods",
            "koord-manager-recommender: patch pods/resize",
            "koord-manager-recommender: create,patch,delete configmaps",
        ),
        "gate Recommender; tests/roles/manager/recommender",
    ),
    "koord-scheduler: patch podgroups/status": "Kubernetes' own pod groups; tests/roles/scheduler/gang/test_native_groups.py",
    "koord-scheduler: delete pods": "preemption; tests/roles/scheduler/plugins/test_preemption.py",
    "koord-scheduler: create pods/eviction": "quotas that are over-used; tests/roles/scheduler/elastic_quota",
    "koord-scheduler-device-plugins: patch nodes": "gate DevicePluginAdaption; tests/roles/scheduler/device",
    "koord-scheduler: patch persistentvolumes,persistentvolumeclaims": "volumes; tests/roles/scheduler/plugins/test_volumes.py",
    "koord-scheduler: create,patch,delete resourceclaims": "claims; tests/roles/scheduler/test_live_claims.py",
    "koord-scheduler: patch resourceclaims/status,resourceclaims/binding": "claims; tests/roles/scheduler/test_live_claims.py",
    "koord-scheduler: create tokenreviews": "secure port; tests/roles/scheduler",
    "koord-scheduler: create subjectaccessreviews": "secure port; tests/roles/scheduler",
    "koord-descheduler: list,watch clonesets,statefulsets": "OpenKruise; tests/roles/descheduler",
    "koord-descheduler: get */scale": "workloads that are not watched; tests/roles/descheduler",
    **dict.fromkeys(
        (
            "koord-descheduler-whatif: list persistentvolumes,services",
            "koord-descheduler-whatif: list storageclasses,csidrivers,csinodes,csistoragecapacities,volumeattachments",
            "koord-descheduler-whatif: list resourceclaims,resourceclaimtemplates,deviceclasses,resourceslices,devicetaintrules",
            "koord-descheduler-whatif: list clusternetworktopologies,devices",
            "koord-descheduler-whatif: list elasticquotas",
            "koord-descheduler-whatif: list noderesourcetopologies",
            "koord-descheduler-whatif: list configmaps",
        ),
        "evictions into places; tests/packaging/test_kustomize.py, tests/roles/descheduler/migration/test_foresight.py",
    ),
    "koord-descheduler-cordon: patch nodes": "CustomPriority with autoCordon; tests/roles/descheduler/test_intree.py",
    "koord-descheduler-metrics-server: list nodes,pods": "LowNodeUtilization by the metrics server; tests/roles/descheduler/test_usage.py",
    "koord-descheduler-prometheus: get secrets": "a token for Prometheus; tests/roles/descheduler/test_usage.py",
    "koord-descheduler: delete,patch pods": "evictionPolicy Delete and SoftEviction; tests/roles/descheduler/migration",
    "koordlet: get nodes/pods,nodes/configz": "asked by the kubelet, not by the API server",
    "koordlet: patch nodemetrics/status": "after a whole report interval; tests/roles/koordlet/observe/test_reports.py",
    "koordlet: list,watch,create,patch devices": "gate Accelerators; tests/roles/koordlet/observe/test_devices.py",
    "koordlet: create pods/eviction": "pressure; tests/roles/koordlet/act",
    "koordlet: list,watch persistentvolumeclaims": "gate BlkIOReconcile; tests/roles/koordlet/act",
    "koordlet: create,patch events": "evictions; tests/roles/koordlet/act",
}
RBAC_KINDS = {
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
}


def documents(pattern: str) -> list[dict[str, Any]]:
    return [d for file in sorted((ROOT / "configs/install").glob(pattern)) for d in yaml.safe_load_all(file.read_text()) if d]


def component_config(name: str) -> dict[str, Any]:
    found = next(d for d in documents("30-*.yaml") if d["metadata"]["name"] == f"{name}-config")
    made: dict[str, Any] = yaml.safe_load(found["data"][f"{name}-config"])
    return made


async def install(admin: Client) -> None:
    """Namespaces, accounts, roles and bindings as the manifests have them."""
    for name in (NAMESPACE, "kube-system"):
        status, _ = await admin.raw("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        assert status in (201, 409)
    for document in documents("2*-rbac-*.yaml"):
        root, plural = RBAC_KINDS[document["kind"]]
        namespace = document["metadata"].get("namespace")
        place = f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
        status, raw = await admin.raw("POST", place, document)
        assert status == 201, raw


async def account(server: RunningServer, admin: Client, name: str, directory: Path) -> Path:
    """A kubeconfig with the token of a role's service account."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token"
    _, raw = await admin.raw("POST", path, {"spec": {"expirationSeconds": 3600}})
    file = directory / f"{name}.kubeconfig"
    kubeconfig.write(file, kubeconfig.build(server.url, orjson.loads(raw)["status"]["token"]))
    return file


class Processes:
    """Roles as processes of their own, with what they said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, **environment: str) -> None:
        with (self.directory / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen([KOORD, *arguments], stdout=log, stderr=log, env={**os.environ, **environment})

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for name, process in self.running.items():
            assert process.wait(patience.seconds(40)) == 0, (name, self.log(name))

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")[-3000:]


def start_all(processes: Processes, files: dict[str, Path], directory: Path, kubelet_port: int) -> None:
    processes.start(
        "koord-manager", "manager", f"--kubeconfig={files['koord-manager']}", "--metrics-addr=0",
        f"--health-probe-addr=127.0.0.1:{free_port()}", "--enable-pprof=false",
        "--feature-gates=ConfigMapValidatingWebhook=true,AbnormalNodes=true", WEBHOOK_PORT=str(free_port()),
        WEBHOOK_CERT_DIR=str(directory / "certs"), POD_NAMESPACE=NAMESPACE,
    )  # fmt: skip
    scheduler = component_config("koord-scheduler")
    scheduler["clientConnection"] = {"kubeconfig": str(files["koord-scheduler"])}
    (directory / "scheduler.yaml").write_text(yaml.safe_dump(scheduler))
    processes.start(
        "koord-scheduler",
        "scheduler",
        f"--config={directory}/scheduler.yaml",
        "--address=127.0.0.1",
        f"--port={free_port()}",
        "--secure-port=0",
    )
    descheduler = component_config("koord-descheduler")
    address = f"127.0.0.1:{free_port()}"
    descheduler |= {"healthzBindAddress": address, "metricsBindAddress": address, "deschedulingInterval": "1s"}
    descheduler["clientConnection"] = {"kubeconfig": str(files["koord-descheduler"])}
    (directory / "descheduler.yaml").write_text(yaml.safe_dump(descheduler))
    processes.start("koord-descheduler", "descheduler", f"--config={directory}/descheduler.yaml", "--secure-port=0")
    host = directory / "host"
    for part in ("sys/fs/cgroup", "proc", "var/lib/kubelet", "var/run", "run"):
        (host / part).mkdir(parents=True)
    processes.start(
        "koordlet", "koordlet", "--node-name=n1", f"--host-root={host}", f"--kubeconfig={files['koordlet']}",
        f"--addr=127.0.0.1:{free_port()}", f"--kubelet-read-only-port={kubelet_port}", "--kubelet-insecure-tls=true",
        f"--audit-log-dir={directory}/audit", f"--tsdb-path={directory}/series", f"--prediction-checkpoint-filepath={directory}/prediction",
        f"--runtime-hooks-addr={host}/hooks.sock",
    )  # fmt: skip


async def until(what: str, look: Any, processes: Processes, seconds: float = 40.0) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + patience.seconds(seconds)
    while True:
        with contextlib.suppress(KeyError, TypeError, IndexError):
            if await look():
                return
        if loop.time() > end:
            logs = "\n".join(f"-- {name}\n{processes.log(name)}" for name in processes.running)
            pytest.fail(f"not within {seconds:g} s: {what}\n{logs}")
        await asyncio.sleep(0.1)


async def get(admin: Client, path: str) -> Any:
    status, raw = await admin.raw("GET", path)
    return orjson.loads(raw) if status == 200 else None


async def drive(admin: Client, processes: Processes) -> None:
    """A pod is scheduled into a quota and a gang and a reservation, and another is migrated."""

    async def create(path: str, body: dict[str, Any]) -> None:
        status, raw = await admin.raw("POST", path, body)
        assert status == 201, raw

    def pod(name: str, node: str = "", **metadata: Any) -> dict[str, Any]:
        container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
        spec: dict[str, Any] = {"schedulerName": "koord-scheduler", "containers": [container]}
        if node:
            spec["nodeName"] = node
        return {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec}

    pods = "/api/v1/namespaces/default/pods"
    await create(
        "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups",
        {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 1}},
    )
    quota = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": "q"},
        "spec": {"max": {"cpu": "4"}, "min": {"cpu": "1"}},
    }
    await create("/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas", quota)
    template = pod("t")["spec"] | {"schedulerName": "koord-scheduler"}
    reservation = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "r"},
        "spec": {"template": {"spec": template}, "owners": [{"labelSelector": {"matchLabels": {"app": "owner"}}}], "ttl": "1h"},
    }
    await create("/apis/scheduling.koordinator.sh/v1alpha1/reservations", reservation)
    labels = {"pod-group.scheduling.sigs.k8s.io": "g", "quota.scheduling.koordinator.sh/name": "q"}
    await create(pods, pod("a", labels=labels))

    async def reserved() -> bool:
        found = await get(admin, "/apis/scheduling.koordinator.sh/v1alpha1/reservations/r")
        return bool(found["status"]["phase"] == "Available")

    await until("the reservation is available", reserved, processes)
    await create(pods, pod("b", labels={"app": "owner"}))

    async def bound() -> bool:
        found = [await get(admin, f"{pods}/{name}") for name in "ab"]
        return all(p["spec"].get("nodeName") == "n1" for p in found)

    await until("both pods are bound", bound, processes)
    selector, template = {"matchLabels": {"app": "c"}}, {"metadata": {"labels": {"app": "c"}}, "spec": pod("c")["spec"]}
    replicas = {"metadata": {"name": "rs"}, "spec": {"replicas": 5, "selector": selector, "template": template}}
    await create("/apis/apps/v1/namespaces/default/replicasets", replicas)
    uid = (await get(admin, "/apis/apps/v1/namespaces/default/replicasets/rs"))["metadata"]["uid"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": uid, "controller": True}
    ready = orjson.dumps({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
    for name in ("c", "d", "e", "f", "g"):
        await create(pods, pod(name, "n1", labels={"app": "c"}, ownerReferences=[owner]))
        await admin.raw("PATCH", f"{pods}/{name}/status", ready, content_type="application/merge-patch+json")
    job = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "PodMigrationJob",
        "metadata": {"name": "m"},
        "spec": {"mode": "EvictDirectly", "podRef": {"namespace": "default", "name": "c"}},
    }
    await create("/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs", job)

    async def migrated() -> bool:
        found = await get(admin, "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs/m")
        assert found.get("status", {}).get("phase") != "Failed", found
        return "deletionTimestamp" in (await get(admin, f"{pods}/c"))["metadata"]

    await until("the pod has left", migrated, processes)

    usage = {"resources": {"cpu": "1", "memory": "1Gi"}}
    report = {"updateTime": format_time(time.time()), "nodeMetric": {"nodeUsage": usage, "systemUsage": usage}, "podsMetric": []}
    metrics = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics/n2"

    async def offered() -> bool:
        await admin.raw("PATCH", f"{metrics}/status", orjson.dumps({"status": report}), content_type="application/merge-patch+json")
        return "kubernetes.io/batch-cpu" in (await get(admin, "/api/v1/nodes/n2"))["status"]["allocatable"]

    await until("the second node offers batch resources", offered, processes)

    async def reported() -> bool:
        slo = await get(admin, "/apis/slo.koordinator.sh/v1alpha1/nodeslos/n1")
        topology = await get(admin, "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/n1")
        return slo is not None and topology is not None

    await until("the node has its NodeSLO and topology", reported, processes)


@pytest.mark.feature("BEY-SEC-01")
def test_roles_ask_for_nothing_that_their_manifests_do_not_grant(tmp_path: Path) -> None:
    from tests.e2e.test_hook_peers import kubelet

    async def main() -> None:
        config = ServerConfig(token="secret", authorization_mode="RBAC")
        async with running_server(crds=True, config=config) as server, server.client() as admin:
            await install(admin)
            status = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            body = orjson.dumps({"status": status})
            for name in ("n1", "n2"):
                cordoned = {"metadata": {"name": name}, "spec": {"unschedulable": name == "n2"}}
                await admin.raw("POST", "/api/v1/nodes", cordoned)
                await admin.raw("PATCH", f"/api/v1/nodes/{name}/status", body, content_type="application/merge-patch+json")
            colocation = {"metadata": {"name": "slo-controller-config"}, "data": {"colocation-config": '{"enable": true}'}}
            await admin.raw("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", colocation)
            spread = {"metadata": {"name": "koord-manager-config-spread"}}  # as installed: the manager may write it, and make none
            await admin.raw("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", spread)
            files = {name: await account(server, admin, name, tmp_path) for name in ROLES}
            processes = Processes(tmp_path)
            try:
                with kubelet() as port:
                    start_all(processes, files, tmp_path, port)
                    await drive(admin, processes)
            finally:
                await asyncio.to_thread(processes.stop)
            authorizer = server.core.authorizer
            assert authorizer is not None
            denied = sorted(f"{user.rpartition(':')[2]}: {authorizer_line(wanted)}" for user, wanted in authorizer.denied)
            assert denied == []
            used = {(allowance.role, allowance.index) for _, allowance in authorizer.used}
            unused = [line for place, line in granted() if place not in used and line not in UNREACHED]
            assert unused == [], "\n".join(unused)

    asyncio.run(main())


def granted() -> list[tuple[tuple[str, int], str]]:
    """Every rule of the manifests: where it stands, and how UNREACHED names it."""
    found = []
    for document in documents("2*-rbac-*.yaml"):
        if document["kind"] in ("ClusterRole", "Role"):
            meta = document["metadata"]
            role = "/".join(filter(None, (document["kind"], meta.get("namespace"), meta["name"])))
            for index, rule in enumerate(document["rules"]):
                line = f"{meta['name']}: {','.join(rule['verbs'])} {','.join(rule['resources'])}"
                found.append(((role, index), line))
    return found


def authorizer_line(wanted: Any) -> str:
    where = f" in {wanted.namespace}" if wanted.namespace else ""
    return f"{wanted.verb} {wanted.full_resource}.{wanted.group}{where} {wanted.name} {wanted.path}".strip()
