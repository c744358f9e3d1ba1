"""Admission as kube-apiserver asks for it: the manager's own process, reviews from another one, in an open loop over TLS.

Each pod is two reviews, /mutate-pod and /validate-pod. Pods are those of a Deployment, with the managed fields, tokens and tolerations that
they have in a cluster; there are 50 profiles, of which three match.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from koord.api.kinds import CLUSTERCOLOCATIONPROFILES, NAMESPACES, PRIORITYCLASSES
from koord.api.priority import BANDS
from koord.apiserver.testing import running_server
from koord.kube.patch import apply_json_patch
from tests.benchmarks.bench_manager import PROFILES, profile
from tests.benchmarks.table import Row, cpu_seconds, current_rss_mib, script
from tests.support.processes import ROOT, process, roles, until_healthy

PODS = 100
RATES = ((500, 5.0), (1000, 10.0), (2000, 10.0))
"""Reviews a second, and milliseconds that 99 of 100 may take at most."""


def pod(number: int) -> dict[str, Any]:
    """As the ReplicaSet controller of a 1.36 cluster creates it, after the built-in admission."""
    token = f"kube-api-access-{number:05d}"
    mount = {"name": token, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    resources = {"requests": {"cpu": "750m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    containers = [
        {
            "name": name,
            "image": f"registry.example.com/team/{name}:v1.2.3",
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "env": [{"name": f"VARIABLE_{index}", "value": "v" * 40} for index in range(10)],
            "resources": resources,
            "volumeMounts": [mount],
            "livenessProbe": {"httpGet": {"path": "/live", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
        }
        for name in ("main", "sidecar")
    ]
    fields: dict[str, Any] = {f'k:{{"name":"VARIABLE_{index}"}}': {".": {}, "f:name": {}, "f:value": {}} for index in range(10)}
    owned = {f'k:{{"name":"{one["name"]}"}}': {".": {}, "f:env": fields, "f:image": {}, "f:resources": {}} for one in containers}
    labels = {"app": "etl", "pod-template-hash": "7c9d8b6f5d"}
    owner = {"kind": "ReplicaSet", "name": "etl-7c9d8b6f5d", "uid": "r", "controller": True, "blockOwnerDeletion": True}
    written = {"f:metadata": {"f:generateName": {}, "f:labels": {}}, "f:spec": {"f:containers": owned, "f:dnsPolicy": {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "etl-7c9d8b6f5d-",
            "namespace": "default",
            "labels": labels,
            "ownerReferences": [{"apiVersion": "apps/v1", **owner}],
            "managedFields": [
                {
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": "2026-11-22T10:00:00Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": written,
                }
            ],
        },
        "spec": {
            "volumes": [
                {
                    "name": token,
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        ],
                        "defaultMode": 420,
                    },
                }
            ],
            "containers": containers,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                for key in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }


def review(number: int, obj: dict[str, Any]) -> str:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request = {
        "uid": f"3f1b0a5e-0000-4000-8000-{number:012d}",
        "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
        "namespace": "default", "operation": "CREATE", "object": obj, "oldObject": None, "dryRun": False,
        "userInfo": {
            "username": "system:serviceaccount:kube-system:replicaset-controller", "uid": "u",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
        },
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }  # fmt: skip
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}, separators=(",", ":"))


async def mutated(port: int, authority: Path, body: str, obj: dict[str, Any]) -> dict[str, Any]:
    """What a pod looks like after /mutate-pod."""
    import base64
    import ssl

    import aiohttp

    context = ssl.create_default_context(cafile=str(authority))
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.post(f"https://127.0.0.1:{port}/mutate-pod", data=body.encode(), server_hostname="localhost") as response,
    ):
        answer = (await response.json())["response"]
    changed: dict[str, Any] = apply_json_patch(obj, json.loads(base64.b64decode(answer["patch"])))
    return changed


async def measure(quick: bool) -> list[Row]:
    found: list[Row] = []
    seconds = 4 if quick else 15
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with running_server(crds=True) as server, server.client() as client:
            await client.create(NAMESPACES, {"metadata": {"name": "koordinator-system"}})
            for priority, (value, _) in BANDS.items():
                await client.create(PRIORITYCLASSES, {"metadata": {"name": str(priority)}, "value": value})
            for number in range(PROFILES):
                await client.create(CLUSTERCOLOCATIONPROFILES, profile(number))
            _, arguments, url, environment = next(role for role in roles(directory, server.kubeconfig_path) if role[0] == "manager")
            port = int(environment["WEBHOOK_PORT"])
            with process(*arguments, KUBECONFIG=str(server.kubeconfig_path), **environment) as child:
                await asyncio.to_thread(until_healthy, url.replace("healthz", "readyz"), child)
                authority = directory / "certs" / "ca-cert.pem"
                reviews: list[tuple[str, str]] = []
                for number in range(PODS):
                    obj = pod(number)
                    body = review(number, obj)
                    changed = await mutated(port, authority, body, obj)
                    reviews += [("/mutate-pod", body), ("/validate-pod", review(number, changed))]
                for rate, limit in RATES:
                    before = cpu_seconds(child.pid)
                    result = await asked(port, authority, rate, seconds, reviews)
                    cpu = (cpu_seconds(child.pid) - before) / (rate * (seconds + 1))
                    latencies = [1e3 * latency for latency in result["latencies"]]
                    answers = statistics.quantiles(latencies, n=100)
                    note = (
                        f"p50 {answers[49]:.1f} ms, longest {max(latencies):.0f} ms; CPU a review {1e3 * cpu:.2f} ms in the manager, "
                        f"{1e3 * result['cpu'] / (rate * (seconds + 1)):.2f} ms in the client; {result['connections']} connections, "
                        f"{len(result['failures'])} failed; load {os.getloadavg()[0]:.1f}"
                    )
                    found.append(Row(f"admission: {rate} reviews/s, open loop over TLS, p99", answers[98], "ms", limit, note=note))
                    found.append(Row(f"admission: CPU of a review in the manager's process, {rate} reviews/s", 1e3 * cpu, "ms", 0.4))
                    if result["failures"]:
                        raise RuntimeError(f"{len(result['failures'])} reviews failed, the first: {result['failures'][0]}")
                found.append(Row("admission: memory of the manager after that", current_rss_mib(child.pid), "MiB"))
    return found


async def asked(port: int, authority: Path, rate: float, seconds: float, reviews: list[tuple[str, str]]) -> dict[str, Any]:
    """What the client's process found."""
    command = [sys.executable, "-m", "tests.benchmarks.admission_load", str(port), str(authority), str(rate), str(seconds)]
    child = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    output, _ = await child.communicate(json.dumps(reviews).encode())
    if child.returncode:
        raise RuntimeError(f"the client ended with {child.returncode}")
    result: dict[str, Any] = json.loads(output)
    return result


def rows(quick: bool) -> list[Row]:
    return asyncio.run(measure(quick))


if __name__ == "__main__":
    script(rows)
