"""`koord why` with a kubeconfig alone: the roles are found in the cluster and asked by way of its API server, with the caller's token."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result

from koord.api.kinds import NAMESPACES, PODS
from koord.apiserver.testing import running_server
from koord.cli import main
from koord.decisions.record import Record, Subject
from koord.decisions.recorder import Recorder
from koord.kube.client import Client
from koord.kube.config import load
from koord.process import certificates
from koord.process.http import OpsServer
from koord.process.requests import Handler, Request, Response
from koord.process.serving import TOKEN_HEADER
from roles.tools import reach
from roles.tools.reach import SYSTEM_NAMESPACE

TOKEN = "token-of-alice"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KOORD_ENDPOINTS", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


async def why(*args: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["why", *args], prog_name="koord")


class Roles:
    """Operations ports behind pods, each with the token that it was shown."""

    def __init__(self, folder: Path) -> None:
        made = certificates.ensure(folder / "roles", "127.0.0.1")
        self._tls = made.context()
        self.servers: dict[str, OpsServer] = {}
        self.shown: list[str] = []
        self._started: list[OpsServer] = []

    async def start(self, pod: str, role: str, *records: Record) -> None:
        recorder = Recorder(role)
        for record in records:
            recorder.record(record)

        async def note(request: Request, handler: Handler) -> Response:
            self.shown.append(request.headers.get(TOKEN_HEADER, ""))
            if request.headers.get(TOKEN_HEADER) != f"Bearer {TOKEN}":
                return Response(status=401, text="Unauthorized")
            assert "Authorization" not in request.headers  # as kube-apiserver does
            return await handler(request)

        server = OpsServer(role=role, recorder=recorder, ssl_context=self._tls, middlewares=[note])
        await server.start()
        self.servers[pod] = server
        self._started.append(server)

    async def stop(self) -> None:
        for server in self._started:
            await server.stop()


@asynccontextmanager
async def front(api_url: str, roles: Roles, folder: Path) -> AsyncIterator[Path]:
    """An API server's face with `pods/proxy`; everything else goes to the embedded one. Yields a kubeconfig."""
    loose = ssl.create_default_context()
    loose.check_hostname, loose.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession() as session:

        async def handle(request: web.Request) -> web.Response:
            if request.headers.get("Authorization") != f"Bearer {TOKEN}":
                return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
            parts = request.path.split("/")
            headers = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "authorization", "content-length")}
            target = f"{api_url}{request.path_qs}"
            if "proxy" in parts:
                scheme, pod, port = parts[parts.index("proxy") - 1].split(":")
                assert (scheme, port.isdigit()) == ("https", True)
                if pod not in roles.servers:
                    return web.json_response({"kind": "Status", "code": 503, "message": f"no endpoint {pod}"}, status=503)
                rest = request.path_qs.partition("/proxy")[2]
                target = f"{roles.servers[pod].url}{rest}"
            async with session.request(request.method, target, headers=headers, data=await request.read(), ssl=loose) as answer:
                return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "alice", "user": {"token": TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "alice"}}],
        }  # fmt: skip
        path = folder / "alice.yaml"
        path.write_text(yaml.safe_dump(config))
        try:
            yield path
        finally:
            await runner.cleanup()


def pod(name: str, app: str = "", node: str = "") -> dict[str, Any]:
    labels = {"koord-app": app} if app else {}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}}


async def install(client: Any, *pods: dict[str, Any], system: str = SYSTEM_NAMESPACE) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": system}})
    for body in pods:
        made = await client.create(PODS, body, system)
        await client.patch(PODS, made["metadata"]["name"], {"status": {"phase": "Running"}}, system, subresource="status")


@pytest.mark.feature("BEY-WHY-01")
def test_the_kubeconfig_is_enough(tmp_path: Path) -> None:
    async def story() -> None:
        now = time.time()
        subject = Subject("Pod", "shop", "web-0", "")
        placed = Record("scheduler", subject, now - 60, "Scheduled", "LoadAware", "placed on n1")
        squeezed = Record("koordlet", subject, now - 5, "Suppressed", "CPUSuppress", "quota 200m")
        elsewhere = Record("koordlet", subject, now - 4, "Suppressed", "CPUSuppress", "of another node")
        roles = Roles(tmp_path)
        async with running_server() as api, api.client() as client, front(api.server.url, roles, tmp_path) as kubeconfig:
            await client.create(NAMESPACES, {"metadata": {"name": "shop"}})
            await client.create(PODS, pod("web-0", node="n1"), "shop")
            await install(
                client,
                pod("koord-scheduler-1", "koord-scheduler"),
                pod("koordlet-a", "koordlet", "n1"),
                pod("koordlet-b", "koordlet", "n2"),
            )
            await roles.start("koord-scheduler-1", "scheduler", placed)
            await roles.start("koordlet-a", "koordlet", squeezed)
            await roles.start("koordlet-b", "koordlet", elsewhere)
            result = await why("pod", "web-0", "--kubeconfig", str(kubeconfig))  # in any namespace
            assert result.exit_code == 0, result.output
            assert "Placed on n1" in result.output
            assert "quota 200m" in result.output
            assert "of another node" not in result.output
            assert set(roles.shown) == {f"Bearer {TOKEN}"}

            del roles.servers["koordlet-a"]  # one does not answer: said, and the others' answers count
            result = await why("pod", "web-0", "--kubeconfig", str(kubeconfig))
            assert result.exit_code == 0, result.output
            assert "koordlet at pod koordlet-a by way of the API server: " in result.output

            roles.servers.clear()
            result = await why("pod", "web-0", "--kubeconfig", str(kubeconfig), "-o", "json")
            assert result.exit_code == 1
            assert "no role answered" in result.output
            assert '"answered": 0' in result.output
            await roles.stop()

    asyncio.run(story())


def test_koord_is_asked_where_it_lives_and_at_the_ports_that_its_pods_name(tmp_path: Path) -> None:
    async def story() -> None:
        record = Record("scheduler", Subject("Pod", "default", "web-0", ""), time.time(), "Scheduled", "LoadAware", "placed on n1")
        roles = Roles(tmp_path)
        async with running_server() as api, api.client() as client, front(api.server.url, roles, tmp_path) as kubeconfig:
            await client.create(PODS, pod("web-0", node="n1"), "default")
            scheduler = pod("koord-scheduler-1", "koord-scheduler")
            scheduler["spec"]["containers"][0]["ports"] = [{"name": "other", "containerPort": 1}, {"name": "https", "containerPort": 11259}]
            await install(client, scheduler, system="colocation")
            await roles.start("koord-scheduler-1", "scheduler", record)
            result = await why("pod", "web-0", "--kubeconfig", str(kubeconfig))
            assert result.exit_code == 1, "the caller's token is shown in koord's own namespace only"
            assert roles.shown == []
            assert "--koord-namespace" in result.output
            result = await why("pod", "web-0", "--kubeconfig", str(kubeconfig), "--koord-namespace=colocation")
            assert result.exit_code == 0, result.output
            assert "Placed on n1" in result.output
            async with Client(load(str(kubeconfig))) as alice:
                found, problems = await reach.find(alice, system="colocation")
            assert (problems, [one.prefix.rpartition(":")[2] for one in found]) == ([], ["11259/proxy"])
            await roles.stop()

    asyncio.run(story())


def test_a_cluster_without_koord_is_said_to_be_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with running_server() as api, api.client() as client:
            await client.create(PODS, pod("web-0"), "default")
            result = await why("pod", "web-0", "--kubeconfig", str(api.kubeconfig_path))
            assert result.exit_code == 1
            assert "no running pod of koord's roles in koordinator-system" in result.output
            assert "no role has decided" not in result.output

    asyncio.run(story())


def test_the_sandbox_is_not_asked_about_another_cluster(tmp_path: Path) -> None:
    async def story() -> None:
        folder = tmp_path / "run" / "koord-sandbox"
        folder.mkdir(parents=True)
        recorder = Recorder("scheduler")
        recorder.record(Record("scheduler", Subject("Pod", "default", "web-0", ""), time.time(), "Scheduled", "X", "in the sandbox"))
        ops = OpsServer(role="scheduler", recorder=recorder)
        await ops.start()
        async with running_server() as cluster, running_server() as sandbox, cluster.client() as client:
            await client.create(PODS, pod("web-0"), "default")
            (folder / "kubeconfig").write_text(Path(sandbox.kubeconfig_path).read_text())
            (folder / "endpoints.json").write_text(f'{{"scheduler": "{ops.url}"}}')
            result = await why("pod", "web-0", "--kubeconfig", str(cluster.kubeconfig_path))
            assert "in the sandbox" not in result.output
            assert result.exit_code == 1
        await ops.stop()

    asyncio.run(story())


def test_several_pods_of_the_name_are_listed(tmp_path: Path) -> None:
    async def story() -> None:
        async with running_server() as api, api.client() as client:
            for namespace in ("a", "b"):
                await client.create(NAMESPACES, {"metadata": {"name": namespace}})
                await client.create(PODS, pod("web-0"), namespace)
            result = await why("pod", "web-0", "--kubeconfig", str(api.kubeconfig_path))
            assert result.exit_code == 1
            assert "there are pods named web-0 in a, b" in result.output

    asyncio.run(story())
