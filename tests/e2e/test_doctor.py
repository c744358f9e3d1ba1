"""`koord doctor` on a cluster with running roles: well, then broken one thing after the other (BEY-DOC-01)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from koord.api.kinds import (
    CLUSTERROLES,
    CONFIGMAPS,
    CUSTOMRESOURCEDEFINITIONS,
    DAEMONSETS,
    DEPLOYMENTS,
    LEASES,
    VALIDATINGWEBHOOKCONFIGURATIONS,
)
from koord.apiserver.config import ServerConfig
from koord.apiserver.rest import write
from koord.apiserver.rest.context import Options
from koord.apiserver.testing import RunningServer, running_server
from koord.kube import config as kubeconfig
from koord.kube.client import Client
from koord.kube.errors import NotFound
from roles.tools import manifests
from tests.support import patience
from tests.support.processes import KOORD, free_port
from tests.support.real_apiserver import RealApiServer, binary, real_api_server

NAMESPACE = "koordinator-system"
LEASES_HELD = ("koordinator-manager", "koord-scheduler")


async def install(server: RunningServer) -> None:
    """Everything that `koord install --print` prints."""
    for document in manifests.rendered():
        resource = server.core.resources.by_api_version(document["apiVersion"], document["kind"])
        assert resource is not None, document["kind"]
        await write.create(server.core, resource, document["metadata"].get("namespace", ""), document, Options())


async def doctor(file: Path, *arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """(status, findings that are not ok by area)."""
    process = await asyncio.create_subprocess_exec(
        KOORD, "doctor", "--cluster", f"--kubeconfig={file}", "--output=json", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    answer = orjson.loads(out)
    found: dict[str, list[dict[str, str]]] = {}
    for one in answer["findings"]:
        if one["level"] != "ok":
            found.setdefault(one["area"], []).append(one)
    assert process.returncode == int(answer["failed"])
    return process.returncode or 0, found


@contextlib.asynccontextmanager
async def roles(server: RunningServer, directory: Path) -> Any:
    """Manager and scheduler as processes."""
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"resourceName": "koord-scheduler", "resourceNamespace": NAMESPACE},
        "clientConnection": {"kubeconfig": str(server.kubeconfig_path)},
    }
    (directory / "scheduler.yaml").write_text(yaml.safe_dump(config))
    environment = {
        **os.environ,
        "WEBHOOK_HOST": "127.0.0.1",
        "WEBHOOK_PORT": str(free_port()),
        "WEBHOOK_CERT_DIR": str(directory / "certs"),
        "POD_NAMESPACE": NAMESPACE,
    }
    commands = (
        ["manager", f"--kubeconfig={server.kubeconfig_path}", "--metrics-addr=0", "--health-probe-addr=0", "--enable-pprof=false"],
        ["scheduler", f"--config={directory}/scheduler.yaml", "--port=0", "--secure-port=0"],
    )
    started = []
    with (directory / "log").open("wb") as log:
        for command in commands:
            started.append(await asyncio.create_subprocess_exec(KOORD, *command, env=environment, stdout=log, stderr=log))
    try:
        yield started
    finally:
        for process in started:
            if process.returncode is None:
                process.terminate()
                await asyncio.wait_for(process.wait(), patience.seconds(40))


async def settled(client: Client, directory: Path) -> None:
    """Leases are held and the webhooks are registered."""
    async with asyncio.timeout(patience.seconds(60)):
        while True:
            try:
                for name in LEASES_HELD:
                    await client.get(LEASES, name, NAMESPACE)
                found = await client.get(VALIDATINGWEBHOOKCONFIGURATIONS, "koordinator-validating-webhook-configuration")
                if found.get("webhooks"):
                    return
            except NotFound:
                pass
            await asyncio.sleep(0.2)


async def mend_what_no_kubelet_does(client: Client) -> None:
    """Nobody here runs the pods of workloads: the Deployments go, koord runs outside."""
    for name in ("koord-manager", "koord-scheduler", "koord-descheduler"):
        await client.delete(DEPLOYMENTS, name, NAMESPACE)
    await client.delete(DAEMONSETS, "koordlet", NAMESPACE)


@pytest.mark.feature("BEY-DOC-01")
def test_a_cluster_that_is_well_and_then_breaks(tmp_path: Path) -> None:
    async def main() -> None:
        config = ServerConfig(token="secret", authorization_mode="RBAC")
        async with running_server(config=config) as server, server.client() as client:
            await install(server)
            await mend_what_no_kubelet_does(client)
            async with roles(server, tmp_path) as (manager, _):
                await settled(client, tmp_path)
                status, found = await doctor(server.kubeconfig_path)
                left = found.pop("leaders")
                assert [one["message"] for one in left] == ["koord-descheduler: it has never had a leader"]
                assert (status, found) == (0, {}), (tmp_path / "log").read_text()[-2000:]
                status, found = await doctor(server.kubeconfig_path, "--security")
                assert (status, found.keys()) == (0, {"leaders"}), "no token can do more than its role's work"
                await older_kubelets(client)
                status, found = await doctor(server.kubeconfig_path)
                assert "a token of koordlet suffices to run commands in every container" in found["nodes/proxy"][0]["message"]
                status, found = await doctor(server.kubeconfig_path, "--security")
                assert "run commands in containers (get nodes/proxy)" in found["token of koordlet"][0]["message"]
                assert status == 1
                await client.delete(CLUSTERROLES, "koordlet-older-kubelets")
                await broken_objects(server, client)
                manager.kill()
                await manager.wait()
                status, found = await doctor(server.kubeconfig_path)
                assert status == 1
                assert "could not be tried" in found["webhooks"][0]["message"]

    asyncio.run(main())


async def older_kubelets(client: Client) -> None:
    """The component that grants what no role should have."""
    for document in manifests.documents("optional/older-kubelets"):
        plural = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}[document["kind"]]
        status, raw = await client.raw("POST", f"/apis/rbac.authorization.k8s.io/v1/{plural}", document)
        assert status == 201, raw


async def broken_objects(server: RunningServer, client: Client) -> None:
    """Each thing that is taken away or spoilt is told of, with what to do."""
    role = await client.get(CLUSTERROLES, "koord-scheduler")
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] != ["pods/binding"]]
    await client.replace(CLUSTERROLES, role)
    await client.delete(CUSTOMRESOURCEDEFINITIONS, "podgroups.scheduling.sigs.k8s.io")
    bad = {"data": {"resource-threshold-config": '{"clusterStrategy": {"enable": "yes"}}'}}
    await client.patch(CONFIGMAPS, "slo-controller-config", bad, NAMESPACE)
    status, found = await doctor(server.kubeconfig_path)
    assert status == 1
    assert "podgroups.scheduling.sigs.k8s.io is not installed" in found["definitions"][0]["message"]
    assert found["rights"][0]["message"].endswith("system:serviceaccount:koordinator-system:koord-scheduler may not create pods/binding")
    assert "clusterStrategy.enable: must be true or false" in found["slo-controller-config"][0]["message"]
    assert all(one["remedy"] for area in found.values() for one in area)
    status, found = await doctor(
        server.kubeconfig_path, "--role=koordlet", "--as=system:serviceaccount:koordinator-system:koord-descheduler"
    )
    assert "koordlet" in found["rights"][0]["message"], "asked as another account, most is refused"
    assert len(found["rights"]) == 1


@pytest.mark.realapi
@pytest.mark.feature("BEY-DOC-01")
def test_a_real_api_server_answers_the_same_questions(tmp_path: Path) -> None:
    """Definitions read back without drift, rights by impersonation, the clock."""
    program = binary()
    assert program is not None

    async def main(api: RealApiServer) -> None:
        async with Client(kubeconfig.load(str(api.kubeconfig))) as client:
            kinds: dict[str, list[dict[str, Any]]] = {}
            for document in manifests.rendered():
                version, namespace = document["apiVersion"], document["metadata"].get("namespace")
                root = f"/apis/{version}" if "/" in version else f"/api/{version}"
                if root not in kinds:
                    kinds[root] = orjson.loads((await client.raw("GET", root))[1])["resources"]
                plural = next(one["name"] for one in kinds[root] if one["kind"] == document["kind"] and "/" not in one["name"])
                status, raw = await client.raw(
                    "POST", f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}", document
                )
                assert status == 201, raw
            _, found = await doctor(api.kubeconfig)
            async with asyncio.timeout(patience.seconds(30)):
                while "definitions" in found:  # the server takes a moment to establish them
                    _, found = await doctor(api.kubeconfig)
            assert found.keys() <= {"workloads", "leaders", "webhooks"}, found
            _, found = await doctor(api.kubeconfig, "--role=scheduler", "--as=system:serviceaccount:koordinator-system:koordlet")
            assert "koordlet may not get pods" in found["rights"][0]["message"]

    with real_api_server(tmp_path, program, authorization="RBAC") as api:
        asyncio.run(main(api))
