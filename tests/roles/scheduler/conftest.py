"""A live scheduler on the embedded API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from koord.api.kinds import NAMESPACES, NODES, PODS
from koord.apiserver.testing import running_server
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.decisions.ring import RingSink
from koord.kube.client import Client
from koord.kube.informers import InformerFactory
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.scheduler.app import App
from roles.scheduler.cluster.audit import compare, recount
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.framework.interfaces import Plugin
from roles.scheduler.framework.trust import Trust
from roles.scheduler.gate import Gate
from roles.scheduler.options import Options
from roles.scheduler.turns import Turns
from tests.support import patience

Obj = dict[str, Any]


class Objects:
    """Short ways to make nodes and pods at an API server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def node(self, name: str, *, cpu: str = "4", memory: str = "8Gi", taints: list[Obj] | None = None,
        allocatable: Obj | None = None, **meta: Any) -> None:  # fmt: skip
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, **meta}}
        body["spec"] = {"taints": taints or []}
        await self.client.create(NODES, body)
        amounts = {"cpu": cpu, "memory": memory, "pods": "110", **(allocatable or {})}
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
        self.another: Callable[..., contextlib.AbstractAsyncContextManager[Live]]  # a second scheduler on the same API server

    async def get(self, name: str) -> Obj:
        return await self.client.get(PODS, name, "default")

    async def until(self, name: str, test: Callable[[Obj], Any], seconds: float = 8.0) -> Obj:
        """The pod once a test of it holds."""
        pod: Obj = {}
        for _ in range(int(patience.seconds(seconds) / 0.02)):
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

    async def sees(self, node: str, test: Callable[[NodeView], Any], seconds: float = 8.0) -> None:
        """Wait until a test of what the scheduler knows of a node holds."""
        cluster = self.app.engine.cluster
        for _ in range(int(patience.seconds(seconds) / 0.02)):
            slot = cluster.slot_of(node)
            view = cluster.row(slot).view if slot >= 0 else None
            if view is not None and test(view):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"the scheduler did not see node {node} change")

    async def consistent(self, seconds: float = 5.0) -> None:
        """What the scheduler counts is what the API server has, and the columns add up. Events may be on their way for a while."""
        found: list[str] = []
        for _ in range(int(patience.seconds(seconds) / 0.02)):
            found = await self._differences()
            if not found:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the cache differs from the API server: " + "; ".join(found))

    async def _differences(self) -> list[str]:
        app = self.app
        nodes = {node["metadata"]["name"] for node in (await self.client.list(NODES)).items}
        pods = [pod for pod in (await self.client.list(PODS)).items if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        ids = {pod["metadata"]["uid"]: f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods}
        placed = {p["metadata"]["uid"]: (ids[p["metadata"]["uid"]], p["spec"]["nodeName"]) for p in pods if p["spec"].get("nodeName")}
        await app.gate.passed()
        found = compare(app.engine.cluster, nodes, placed, app.cache.is_assumed) + recount(app.engine.cluster)
        ours = {p["metadata"]["uid"] for p in pods if not p["spec"].get("nodeName") and p["spec"]["schedulerName"] in app.engine.frameworks}
        for uid in ours:
            if app.queue.get(uid) is None and not app.cache.is_assumed(uid):
                found.append(f"pod {ids[uid]} is pending and nobody will schedule it")
        found.extend(f"pod {entry.pod.key} is queued and not pending" for entry in app.queue.entries() if entry.pod.uid not in ours
            and not entry.pod.reservation)  # fmt: skip
        return found


def condition(pod: Obj) -> Obj | None:
    return next((c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled" and c["status"] == "False"), None)


@contextlib.asynccontextmanager
async def running_app(
    client: Client, url: str, config: Obj | None = None, *, leader_elect: bool = False, checked: bool = True, **options: Any
) -> AsyncIterator[Live]:
    """One scheduler process, so to speak, on an API server. `leader_elect`: wait until it leads; `checked`: its books must be right
    in the end."""
    content: Obj = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False}, "profiles": [{"schedulerName": "koord-scheduler"}], **(config or {}),
    }  # fmt: skip
    informers, recorder, life = InformerFactory(client), Recorder("scheduler", [RingSink(per_subject=1000)]), Life()
    ops = OpsServer("127.0.0.1", 0, recorder=recorder, role="scheduler")
    model = KubeSchedulerConfiguration.model_validate(content)
    app = App(Options(model, **{"verify": 5, **options}), client=client, informers=informers, recorder=recorder, ops=ops)
    await ops.start()
    running = asyncio.get_running_loop().create_task(app.run(life))
    try:
        for _ in patience.tries(400):
            if running.done():
                running.result()
            caches = app.ops.health.report("healthz")[0] if leader_elect or not model.leader_election.leader_elect else True
            if caches and (not leader_elect or app.may_write()):
                break
            await asyncio.sleep(0.02)
        found = Live(client, app, life, ops, running, url)
        yield found
        if checked and not running.done() and not life.stopping.is_set() and app.observer.attached:
            await found.consistent()
    finally:
        life.stop()
        with contextlib.suppress(BaseException):
            await asyncio.wait_for(running, patience.seconds(3))
        await life.finish()
        await informers.stop()
        await ops.stop()


@contextlib.asynccontextmanager
async def live(config: Obj | None = None, *, leader_elect: bool = False, crds: bool = False,
    before: Callable[[Objects], Awaitable[None]] | None = None, **options: Any,
) -> AsyncIterator[Live]:  # fmt: skip
    async with running_server(crds=crds) as server, server.client() as client:
        for name in ("default", "kube-system"):
            with contextlib.suppress(Exception):
                await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if before is not None:
            await before(Objects(client))
        async with running_app(client, server.url, config, leader_elect=leader_elect, **options) as found:

            @contextlib.asynccontextmanager
            async def another(**more: Any) -> AsyncIterator[Live]:
                async with server.client() as own, running_app(own, server.url, config, **more) as second:
                    yield second

            found.another = another
            yield found


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Now and then what was kept of plugins is compared with fresh answers, and none may differ; marker `differs` for tests about that."""
    monkeypatch.setattr(Cycle, "VERIFY", 5)
    monkeypatch.setattr(Turns, "STEPS", 1)
    if request.node.get_closest_marker("differs") is None:
        monkeypatch.setattr(Trust, "withdraw", differs)


@pytest.fixture(autouse=True)
def one_picture(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While a decision is made in slices nobody else looks at the columns or changes them."""
    strangers: list[str] = []
    made, close = App.__init__, Gate.close

    def watched(self: App, *args: Any, **more: Any) -> None:
        made(self, *args, **more)
        self.engine.cluster.gate = self.gate  # type: ignore[attr-defined]

    def closed(self: Gate) -> None:
        self.owner = current()  # type: ignore[attr-defined]
        close(self)

    def current() -> Any:
        with contextlib.suppress(RuntimeError):
            return asyncio.current_task()
        return None

    def guarded(name: str) -> Callable[..., Any]:
        method = getattr(Cluster, name)

        def look(self: Cluster, *args: Any, **more: Any) -> Any:
            gate = getattr(self, "gate", None)
            if gate is not None and gate.closed and current() is not gate.owner:
                strangers.append(f"{name} by {asyncio.current_task()}")
            return method(self, *args, **more)

        return look

    monkeypatch.setattr(App, "__init__", watched)
    monkeypatch.setattr(Gate, "close", closed)
    for name in ("place", "remove_pod", "swap_pod", "set_node", "remove_node", "row", "slot_of", "slot_of_pod", "pod"):
        monkeypatch.setattr(Cluster, name, guarded(name))
    yield
    assert not strangers, strangers[:3]


def differs(self: Trust, plugin: Plugin, why: str) -> None:
    raise AssertionError(f"plugin {plugin.name} differs: {why}")


@pytest.fixture
def scheduler() -> Callable[..., contextlib.AbstractAsyncContextManager[Live]]:
    """`async with scheduler(config) as s:` gives a Live one."""
    return live
