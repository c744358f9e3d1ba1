"""A real containerd behind a proxy that is restarted again and again: pods, exec, logs, port-forward and pulls go on, and nothing fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.roles.runtime_proxy.support import until
from tests.roles.runtime_proxy.support_containerd import Client, Containerd, running_containerd
from tests.roles.runtime_proxy.test_restart import ended, start
from tests.support import patience
from tests.support.processes import free_port

pytestmark = [pytest.mark.cri, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(400)]
RESTARTS = int(os.environ.get("KOORD_PROXY_RESTARTS", "3"))
STDIN, STDOUT = b"\0", b"\1"


@pytest.fixture(scope="module")
def containerd() -> Iterator[Containerd]:
    with running_containerd() as daemon:
        yield daemon


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kp-") as name:  # short: a socket's path is limited to 107 bytes
        yield Path(name)


class Registry:
    """Serves images of one layer each, slowly: a pull takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.port = free_port()
        self.begun: list[str] = []
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[str, bytes] = {}

    def add(self, name: str) -> str:
        """An image that no other shares anything with; its full name."""
        import io
        import tarfile

        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            content = os.urandom(400_000)
            entry = tarfile.TarInfo("data")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        diff = self._keep(layer.getvalue())
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
        config = json.dumps(
            {"architecture": machine, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
        ).encode()
        media = "application/vnd.docker.distribution.manifest.v2+json"
        parts = {
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": self._keep(config)},
            "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar", "size": len(self._blobs[diff]), "digest": diff}],
        }
        self._manifests[name] = json.dumps({"schemaVersion": 2, "mediaType": media, **parts}).encode()
        return f"127.0.0.1:{self.port}/{name}:1"

    def _keep(self, content: bytes) -> str:
        digest = "sha256:" + sha256(content).hexdigest()
        self._blobs[digest] = content
        return digest

    async def _here(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _manifest(self, request: web.Request) -> web.Response:
        body = self._manifests.get(request.match_info["name"])
        if body is None:
            return web.Response(status=404)
        headers = {"Docker-Content-Digest": "sha256:" + sha256(body).hexdigest()}
        return web.Response(body=body, content_type=json.loads(body)["mediaType"], headers=headers)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        body = self._blobs[request.match_info["digest"]]
        answer = web.StreamResponse(headers={"Content-Length": str(len(body)), "Content-Type": "application/octet-stream"})
        await answer.prepare(request)
        if len(body) > 100_000:
            self.begun.append(request.match_info["name"])
        for at in range(0, len(body), 20_000):
            await answer.write(body[at : at + 20_000])
            if len(body) > 100_000:
                await asyncio.sleep(self.seconds * 20_000 / len(body))
        return answer

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Registry]:
        app = web.Application()
        app.router.add_get("/v2/", self._here)
        app.router.add_get("/v2/{name}/manifests/{reference}", self._manifest)
        app.router.add_get("/v2/{name}/blobs/{digest}", self._blob)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield self
        finally:
            await runner.cleanup()


class Session:
    """A stream to a container, by the address that the runtime gave through the proxy."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self._url = http, url
        self._ws: Any = None

    async def open(self) -> Session:
        self._ws = await self._http.ws_connect(self._url, protocols=("v4.channel.k8s.io",))
        return self

    async def send(self, data: bytes) -> None:
        await self._ws.send_bytes(STDIN + data)

    async def read(self, wanted: bytes, channel: bytes) -> bytes:
        """What comes on a channel until it holds `wanted`."""
        found = b""
        async with asyncio.timeout(patience.seconds(20)):
            while wanted not in found:
                message = await self._ws.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, message
                if message.data[:1] == channel:
                    found += message.data[1:]
        return found

    async def close(self) -> None:
        await self._ws.close()


async def life_of_a_pod(client: Client, containerd: Containerd, name: str, parent: str) -> None:
    m = client.m
    sandbox, pod = await client.run_pod(name, parent)
    container = await client.create(sandbox, pod, "main")
    await client.start(container)
    assert (await client.exec(container, "/bin/echo", name)).stdout == f"{name}\n".encode()
    await client.update(container, cpu_shares=100)
    await client.stop(container)
    await client.raw("RemoveContainer", m.ContainerRequest(container_id=container))
    for method in ("StopPodSandbox", "RemovePodSandbox"):
        await client.raw(method, m.PodSandboxRequest(pod_sandbox_id=sandbox))


@pytest.mark.feature("RP-CLI-01")
@pytest.mark.feature("RP-OPS-01")
def test_nothing_fails_while_the_proxy_is_restarted(containerd: Containerd, directory: Path) -> None:
    if shutil.which("busybox") is None:
        pytest.skip("needs busybox")

    async def scenario() -> None:
        m = containerd.m
        (directory / "e.sock").symlink_to(containerd.socket)
        parent, stop = containerd.parent("restart"), asyncio.Event()
        lived: list[str] = []
        port = free_port()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(directory / "p.sock"))
            listening.listen(1024)
            child = start(directory, listening=listening)
            client = Client(directory / "p.sock", m)
            async with Registry(2.0).serving() as registry, aiohttp.ClientSession() as http:
                try:
                    sandbox, pod = await client.run_pod("lasting", parent)
                    pod.log_directory = str(directory)
                    script = f"httpd -p 127.0.0.1:{port} -h /etc; n=0; while true; do n=$((n+1)); echo line $n; sleep 0.1; done"
                    config = m.ContainerConfig(
                        metadata=m.ContainerMetadata(name="main"),
                        image=m.ImageSpec(image="docker.io/koord-test/busybox:1"),
                        command=("/bin/busybox", "sh", "-c", script.replace("httpd", "/bin/busybox httpd")),
                        log_path="main.log",
                        linux=m.LinuxContainerConfig(
                            security_context=m.ContainerSecurityContext(namespace_options=m.NamespaceOption(network=2))
                        ),
                    )
                    request = m.CreateContainerRequest(pod_sandbox_id=sandbox, config=config, sandbox_config=pod)
                    container = str((await client.call("CreateContainer", request, "CreateContainerResponse")).container_id)
                    await client.start(container)
                    log = directory / "main.log"
                    await until(lambda: log.exists() and b"line 3" in log.read_bytes(), limit=20)

                    async def session(method: str, request: Any) -> Session:
                        return await Session(http, (await client.call(method, request, f"{method}Response")).url).open()

                    async def lives() -> None:
                        while not stop.is_set():
                            name = f"short{len(lived)}"
                            await life_of_a_pod(client, containerd, name, parent)
                            lived.append(name)

                    pods = asyncio.create_task(lives())
                    for number in range(RESTARTS):
                        before, lines = len(lived), log.read_bytes().count(b"\n")
                        echo = await session("Exec", m.ExecRequest(
                            container_id=container, cmd=["/bin/sh", "-c", "while read x; do echo got-$x; done"], stdin=True, stdout=True
                        ))  # fmt: skip
                        await echo.send(b"one\n")
                        await echo.read(b"got-one\n", STDOUT)
                        forward = await session("PortForward", m.PortForwardRequest(pod_sandbox_id=sandbox, port=[port]))
                        await forward.send(b"GET /absent HTTP/1.0\r\n")
                        image = registry.add(f"image{number}")
                        pull = asyncio.ensure_future(
                            client.raw("PullImage", m.PullImageRequest(image=m.ImageSpec(image=image)), 60, "ImageService")
                        )
                        waits = asyncio.ensure_future(client.exec(container, "/bin/sh", "-c", "sleep 1.5; echo whole"))
                        await until(lambda number=number: f"image{number}" in registry.begun, limit=20)
                        # as `systemctl restart` does it: the end, calls that come meanwhile, the begin
                        child.send_signal(signal.SIGTERM)
                        assert await ended(child, 60) == 0
                        child = start(directory, listening=listening)
                        assert (await waits).stdout == b"whole\n"
                        assert m.PullImageResponse.FromString(await pull).image_ref.startswith("sha256:")
                        await echo.send(b"two\n")
                        await echo.read(b"got-two\n", STDOUT)
                        await forward.send(b"\r\n")
                        assert b"404" in await forward.read(b"404", STDIN)
                        await client.raw("ReopenContainerLog", m.ContainerRequest(container_id=container))
                        await until(lambda lines=lines: log.read_bytes().count(b"\n") > lines + 5, limit=20)
                        await until(lambda before=before: len(lived) > before or pods.done(), limit=60)
                        for open_session in (echo, forward):
                            await open_session.close()
                        if pods.done():
                            pods.result()
                    stop.set()
                    await pods
                    numbers = [int(line.split()[-1]) for line in log.read_text().splitlines()]
                    assert numbers == list(range(1, len(numbers) + 1)), "no line of the log is missing"
                    images = m.ListImagesResponse.FromString(await client.raw("ListImages", m.Empty(), service="ImageService"))
                    pulled = {tag for one in images.images for tag in one.repo_tags}
                    assert {f"127.0.0.1:{registry.port}/image{number}:1" for number in range(RESTARTS)} <= pulled
                finally:
                    stop.set()
                    await client.close()
                    child.terminate()
                    await ended(child, 30)
        assert len(lived) >= RESTARTS
        assert (directory / "p.sock").exists(), "it is the service manager's"

    asyncio.run(scenario())
