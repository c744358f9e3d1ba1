"""A live scheduler on the embedded API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from koord.api.kinds import NAMESPACES, NODES, PODS
from koord.apiserver.testing import running_server
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.kube.client import Client
from koord.kube.informers import InformerFactory
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.scheduler.app import App, Options

Obj = dict[str, Any]


class Objects:
    """Short ways to make nodes and pods at an API server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def node(self, name: str, *, cpu: str = "4", memory: str = "8Gi", taints: list[Obj] | None = None, **meta: Any) -> None:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, **meta}}
        body["spec"] = {"taints": taints or []}
        await self.client.create(NODES, body)
        amounts = {"cpu": cpu, "memory": memory, "pods": "110"}
        await self.client.patch(NODES, name, {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")

    async def pod(self, name: str, *, cpu: str = "1", scheduler: str = "koord-scheduler", meta: Obj | None = None, **spec: Any) -> Obj:
        container = {"name": "main", "image": "registry.k8s.io/pause:3.9", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **(meta or {})}}
        body["spec"] = {"schedulerName": scheduler, "containers": [container], **spec}
        return await self.client.create(PODS, body, "default")


class Live(Objects):
    """A running scheduler, the API server it works on, and short ways to use both."""

    def __init__(self, client: Client, app: App, life: Life, ops: OpsServer, running: asyncio.Task[None], url: str) -> None:
        super().__init__(client)
        self.app, self.life, self.ops, self.running, self.url = app, life, ops, running, url

    async def get(self, name: str) -> Obj:
        return await self.client.get(PODS, name, "default")

    async def until(self, name: str, test: Callable[[Obj], Any], seconds: float = 8.0) -> Obj:
        """The pod once a test of it holds."""
        pod: Obj = {}
        for _ in range(int(seconds / 0.02)):
            pod = await self.get(name)
            if test(pod):
                return pod
            await asyncio.sleep(0.02)
        raise AssertionError(f"pod {name} never got there: {pod.get('spec', {}).get('nodeName')} {pod.get('status')}")

    async def bound(self, name: str) -> str:
        pod = await self.until(name, lambda p: p["spec"].get("nodeName"))
        return str(pod["spec"]["nodeName"])

    async def refused(self, name: str) -> Obj:
        """The PodScheduled=False condition."""
        pod = await self.until(name, condition)
        found = condition(pod)
        assert found is not None
        return found


def condition(pod: Obj) -> Obj | None:
    return next((c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled" and c["status"] == "False"), None)


@contextlib.asynccontextmanager
async def live(config: Obj | None = None, *, leader_elect: bool = False, crds: bool = False,
    before: Callable[[Objects], Awaitable[None]] | None = None, **options: Any,
) -> AsyncIterator[Live]:  # fmt: skip
    content: Obj = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False}, "profiles": [{"schedulerName": "koord-scheduler"}], **(config or {}),
    }  # fmt: skip
    async with running_server(crds=crds) as server, server.client() as client:
        for name in ("default", "kube-system"):
            with contextlib.suppress(Exception):
                await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if before is not None:
            await before(Objects(client))
        informers, recorder, life = InformerFactory(client), Recorder("scheduler"), Life()
        ops = OpsServer("127.0.0.1", 0, recorder=recorder, role="scheduler")
        app = App(
            Options(KubeSchedulerConfiguration.model_validate(content), **options),
            client=client,
            informers=informers,
            recorder=recorder,
            ops=ops,
        )
        await ops.start()
        running = asyncio.get_running_loop().create_task(app.run(life))
        try:
            for _ in range(400):
                if running.done():
                    running.result()
                if ops.health.report("healthz")[0] and (not leader_elect or app.may_write()):
                    break
                await asyncio.sleep(0.02)
            yield Live(client, app, life, ops, running, server.url)
        finally:
            life.stop()
            with contextlib.suppress(BaseException):
                await asyncio.wait_for(running, 3)
            await life.finish()
            await informers.stop()
            await ops.stop()


@pytest.fixture
def scheduler() -> Callable[..., contextlib.AbstractAsyncContextManager[Live]]:
    """`async with scheduler(config) as s:` gives a Live one."""
    return live
