"""`koord uninstall` against a live API server: the order of deletions, and that it stops where going on would hurt (BEY-DOC-01)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from koord.api.kinds import (
    CLUSTERROLEBINDINGS,
    CONFIGMAPS,
    DEPLOYMENTS,
    MUTATINGWEBHOOKCONFIGURATIONS,
    NAMESPACES,
    PODS,
    VALIDATINGWEBHOOKCONFIGURATIONS,
)
from koord.apiserver import kubeconfig
from koord.apiserver.config import ServerConfig
from koord.apiserver.rest import write
from koord.apiserver.rest.context import Options
from koord.apiserver.store import DELETED, Event
from koord.apiserver.testing import RunningServer, running_server
from koord.kube.client import Client
from koord.kube.errors import ApiError
from roles.manager.options import WebhookOptions
from roles.tools import manifests
from roles.tools.install import uninstall

pytestmark = pytest.mark.feature("BEY-DOC-01")
NAMESPACE = "koordinator-system"
OWN = WebhookOptions()
CONFIGURATIONS = ((MUTATINGWEBHOOKCONFIGURATIONS, OWN.mutating_name), (VALIDATINGWEBHOOKCONFIGURATIONS, OWN.validating_name))
DEAD = {
    "name": "pods.koordinator.sh",
    "clientConfig": {"url": "https://127.0.0.1:9/x"},
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
    "failurePolicy": "Fail",
    "timeoutSeconds": 1,
    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
}
POD = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}


async def installed(server: RunningServer, client: Client) -> None:
    """All manifests, and the webhooks as the manager registers them; nobody answers them any more."""
    for document in manifests.rendered(crds=False):
        resource = server.core.resources.by_api_version(document["apiVersion"], document["kind"])
        assert resource is not None
        await write.create(server.core, resource, document["metadata"].get("namespace", ""), document, Options())
    for kind, name in CONFIGURATIONS:
        await client.create(kind, {"metadata": {"name": name}, "webhooks": [DEAD]})


def run(file: Path) -> Any:
    return CliRunner().invoke(uninstall, [f"--kubeconfig={file}", "--restore=false", "--yes"])


@pytest.mark.parametrize("crds", [True, False])
def test_what_the_recommender_learnt_goes_with_the_recommendations(crds: bool) -> None:
    labels = {"analysis.koordinator.sh/recommendation-checkpoint": "true"}

    async def main() -> None:
        async with running_server() as server, server.client() as client:
            await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
            for name, marked in (("recommendation-checkpoint-1", labels), ("mine", {})):
                await client.create(CONFIGMAPS, {"metadata": {"name": name, "labels": marked}}, NAMESPACE)
            flags = [f"--kubeconfig={server.kubeconfig_path}", "--restore=false", *(["--crds"] if crds else [])]
            told = await asyncio.to_thread(CliRunner().invoke, uninstall, flags)
            assert ("would delete ConfigMap koordinator-system/recommendation-checkpoint-1" in told.output) is crds, told.output
            done = await asyncio.to_thread(CliRunner().invoke, uninstall, [*flags, "--yes"])
            assert done.exit_code == 0, done.output
            left = {one["metadata"]["name"] for one in (await client.list(CONFIGMAPS, NAMESPACE)).items}
            assert left >= {"mine"}
            assert ("recommendation-checkpoint-1" in left) is not crds

    asyncio.run(main())


def test_webhooks_go_before_what_answers_them() -> None:
    async def main() -> None:
        async with running_server() as server, server.client() as client:
            await installed(server, client)
            with pytest.raises(ApiError):
                await client.create(PODS, POD, "default")
            gone: list[str] = []

            def listener(event: Event) -> None:
                if event.type == DELETED:
                    gone.append(event.entry.obj["kind"])

            for bucket in {resource.bucket for resource in server.core.resources}:
                server.core.store.bucket(bucket).listeners.append(listener)
            done = await asyncio.to_thread(run, server.kubeconfig_path)
            assert done.exit_code == 0, done.output
            order = list(dict.fromkeys(gone))
            assert order[:3] == ["ClusterRoleBinding", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]
            assert order[3:5] == ["DaemonSet", "Deployment"], "then what acts"
            assert order.index("Deployment") < order.index("Service") < order.index("ClusterRole")
            assert order.index("ConfigMap") < order.index("ServiceAccount"), "rights and accounts last"
            await client.create(PODS, POD, "default")

    asyncio.run(main())


def test_it_stops_when_the_webhooks_cannot_be_deleted(tmp_path: Path) -> None:
    """A manager taken away under webhooks that stay would leave a cluster that creates no pods."""

    async def main() -> None:
        async with running_server(config=ServerConfig(token="t", authorization_mode="RBAC")) as server, server.client() as client:
            await installed(server, client)
            rbac = "/apis/rbac.authorization.k8s.io/v1"
            everything = {"apiGroups": ["", "apps", "policy", "rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["*"]}
            subject = {"kind": "ServiceAccount", "namespace": "default", "name": "admin"}
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "almost"}
            await client.raw("POST", f"{rbac}/clusterroles", {"metadata": {"name": "almost"}, "rules": [everything]})
            binding = {"metadata": {"name": "almost"}, "roleRef": reference, "subjects": [subject]}
            await client.raw("POST", f"{rbac}/clusterrolebindings", binding)
            await client.raw("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "admin"}})
            path = "/api/v1/namespaces/default/serviceaccounts/admin/token"
            _, raw = await client.raw("POST", path, {"spec": {"expirationSeconds": 3600}})
            file = tmp_path / "kubeconfig"
            kubeconfig.write(file, kubeconfig.build(server.url, orjson.loads(raw)["status"]["token"]))
            done = await asyncio.to_thread(run, file)
            assert done.exit_code == 1
            assert "stopped: without its server" in done.output
            for kind, name in CONFIGURATIONS:
                assert await client.get(kind, name)
            assert await client.get(DEPLOYMENTS, "koord-manager", NAMESPACE), "what answers them stays"
            assert await client.get(CLUSTERROLEBINDINGS, "koord-manager"), "and has its rights"

    asyncio.run(main())
