"""The installed rights of koordlet on both API servers: bound tokens, RBAC objects and the own-node policy as they are shipped."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from koord.apiserver.config import ServerConfig
from koord.apiserver.testing import running_server
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.credentials import StaticHeader
from roles.tools import manifests
from tests.support import patience, real_apiserver

NAMESPACE = "koordinator-system"
METRICS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
Answer = tuple[int, str]


async def call(client: Client, method: str, path: str, body: Any = None, kind: str = "application/json") -> Answer:
    """Status and message or name of the answer."""
    status, content = await client.raw(method, path, orjson.dumps(body) if body is not None else None, content_type=kind)
    answer = orjson.loads(content)
    return status, answer.get("message", "") if status >= 300 else answer["metadata"].get("name", "")


async def made(client: Client, path: str, body: Any) -> dict[str, Any]:
    status, content = await client.raw("POST", path, orjson.dumps(body), content_type="application/json")
    assert status == 201, content
    found: dict[str, Any] = orjson.loads(content)
    return found


def path_of(document: dict[str, Any]) -> str:
    """Where an object of the installation is created."""
    places = {"CustomResourceDefinition": "customresourcedefinitions", "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
              "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings", "ClusterRole": "clusterroles",
              "ClusterRoleBinding": "clusterrolebindings"}  # fmt: skip
    return f"/apis/{document['apiVersion']}/{places[document['kind']]}"


async def token(client: Client, bound_to: dict[str, Any] | None) -> str:
    spec: dict[str, Any] = {"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600}
    if bound_to is not None:
        meta = bound_to["metadata"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await made(client, f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/koordlet/token", body)
    return str(answer["status"]["token"])


async def install(client: Client) -> dict[str, Any]:
    """What ties koordlet down, two NodeMetrics, and koordlet's pod on node n1."""
    wanted = ("koordlet", "koordlet-own-node", "nodemetrics.slo.koordinator.sh")
    for document in manifests.rendered():
        if document["metadata"]["name"] in wanted and document["kind"] not in ("ServiceAccount", "DaemonSet", "NetworkPolicy"):
            await made(client, path_of(document), document)
    await made(client, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    await made(client, f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "koordlet"}})
    await made(client, "/api/v1/nodes", {"metadata": {"name": "n1"}})
    spec = {"nodeName": "n1", "serviceAccountName": "koordlet", "containers": [{"name": "koordlet", "image": "koord"}]}
    pod = await made(client, f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": "koordlet-1"}, "spec": spec})
    async with asyncio.timeout(patience.seconds(30)):
        while (await client.raw("GET", METRICS))[0] != 200:
            await asyncio.sleep(0.2)
    for name in ("n1", "n2"):
        await made(client, METRICS, {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name}})
    return pod


async def report(client: Client, node: str) -> Answer:
    status = {"status": {"nodeMetric": {"nodeUsage": {"resources": {"cpu": "1"}}}}}
    return await call(client, "PATCH", f"{METRICS}/{node}/status", status, "application/merge-patch+json")


async def story(admin: Client, url: str) -> None:
    """A koordlet with the token of its pod, and one with a token that names no node."""
    pod = await install(admin)
    tokens = await token(admin, pod), await token(admin, None)
    own, loose = (Client(ClientConfig(url, credentials=StaticHeader.bearer(t), insecure=True)) for t in tokens)
    async with own, loose:
        async with asyncio.timeout(patience.seconds(30)):  # an API server takes policies up with a delay
            while (await report(own, "n2"))[0] == 200:
                await asyncio.sleep(0.2)
        assert await report(own, "n1") == (200, "n1")
        status, message = await report(own, "n2")
        assert status == 422
        assert "the koordlet of node n1 may not write n2" in message
        status, message = await report(loose, "n1")
        assert status == 422
        assert "names no node" in message
        assert (await call(own, "GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"))[0] == 403
        assert (await call(own, "DELETE", f"{METRICS}/n1"))[0] == 403
    assert await report(admin, "n2") == (200, "n2")


@pytest.mark.feature("BEY-SEC-01")
def test_a_koordlet_writes_its_own_nodes_objects_only() -> None:
    async def run() -> None:
        config = ServerConfig(token="secret", authorization_mode="RBAC")
        async with running_server(config=config) as server, server.client() as admin:
            await story(admin, server.url)

    asyncio.run(run())


@pytest.mark.realapi
@pytest.mark.feature("BEY-SEC-01")
def test_so_does_a_real_kube_apiserver(tmp_path: Path) -> None:
    program = real_apiserver.binary()
    if program is None or shutil.which("etcd") is None:
        pytest.skip("needs kube-apiserver and etcd on PATH")

    async def run(server: real_apiserver.RealApiServer) -> None:
        async with Client(server.client_config()) as admin:
            if (await admin.raw("GET", POLICIES))[0] != 200:
                pytest.skip("this kube-apiserver has no ValidatingAdmissionPolicy")
            await story(admin, server.url)

    with real_apiserver.real_api_server(tmp_path, program, authorization="RBAC") as server:
        asyncio.run(run(server))
