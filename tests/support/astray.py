"""Random histories of a scheduler alone, on virtual time, whose writes go astray (SCH-FW-06).

Requests are refused, cut, carried out without an answer, answered late, or carried out after they were answered; the scheduler is killed
now and then; users make, delete and make again pods with GPUs, CPUs of their own, quotas, gangs and reservations. While it happens nothing
is given away twice and nobody is told what is not so. In the end the books are those of a scheduler that has just begun, and that one
finds nothing to do.
usage: python -m tests.support.astray [first seed] [count]     prints what was broken; the status is 1 then
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from koord.api.kinds import (
    DEVICECLASSES,
    DEVICES,
    ELASTICQUOTAS,
    NAMESPACES,
    NODERESOURCETOPOLOGIES,
    NODES,
    PODS,
    PRIORITYCLASSES,
    RESERVATIONS,
    RESOURCECLAIMS,
    RESOURCESLICES,
)
from koord.kube.client import Client
from koord.kube.errors import ApiError
from roles.sandbox import objects, profile
from roles.sandbox.bootstrap import ensure
from roles.sandbox.world import programs
from roles.sandbox.world import world as worlds
from roles.sandbox.world.history import HEADER
from roles.sandbox.world.invariants.base import Invariant
from roles.sandbox.world.invariants.claims import ClaimedOnce
from roles.sandbox.world.invariants.evictions import EvictedOnce, VictimsAreLower
from roles.sandbox.world.invariants.placement import BoundIsScheduled, BoundOnce, DeviceOnce, ExclusiveCpuOnce, NodeNotOvercommitted
from roles.sandbox.world.process import PROCESS
from roles.sandbox.world.server import Server
from roles.sandbox.world.spec import NAMESPACE, Spec
from roles.scheduler.app import App
from roles.scheduler.cluster.audit import recount
from tests.support.claims import claim, device, device_class, of_claim, slice_of
from tests.support.devices import CORE, RATIO, gpus

Obj = dict[str, Any]
RULES: tuple[type[Invariant], ...] = (
    NodeNotOvercommitted, DeviceOnce, ClaimedOnce, ExclusiveCpuOnce, BoundOnce, BoundIsScheduled, EvictedOnce, VictimsAreLower,
)  # fmt: skip
PRIORITIES = {"low": 100, "mid": 1000, "high": 8000, "koord-prod": 9000}
CODES = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
SORTS = ("plain", "cores", "gpu", "quota", "gang", "reservation", "claim")
STARTED, SETTLED, LOOKED = 4.0, 25.0, 30.0  # seconds
HISTORY = ("runtimeVersion", "representativePodKey", "bindingMembers", "onceResourceSatisfied")
"""What pages tell of the past, which nobody knows who has just begun."""


def failure(code: int) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": CODES[code], "message": "astray"}
    return web.json_response(body, status=code, headers={"Retry-After": "1"} if code in (429, 503) else {})


class Astray(worlds.World):
    """One history."""

    def __init__(self, seed: int, scratch: Path) -> None:
        draw = random.Random(f"astray/{seed}")
        super().__init__(Spec(seed=seed, nodes=draw.choice((2, 3)), minutes=0.5, webhooks=False, cpus=8, gpu_nodes=2), scratch)
        self.draw, self.fate = draw, random.Random(f"astray/{seed}/fate")
        self.share = draw.choice((0.0, 0.2, 0.4))  # of the scheduler's writes that go astray
        self.hurt, self.made = False, 0
        self.sorts = draw.sample(SORTS, 4)
        self.apps: dict[str, App] = {}
        self.pods: dict[str, Obj] = {}
        self.late: set[asyncio.Task[Any]] = set()
        self.broken: list[str] = []
        self.bound: list[str] = []
        self.accuse = lambda rule, text: self.broken.append(f"{rule}: {text}")
        for rule in RULES:
            self.history.watchers.append(partial(self._see, rule.__name__, rule(self.history).see))

    def _see(self, rule: str, see: Any, entry: Any) -> None:
        if entry.bucket == "pod" or entry.bucket.startswith("resourceclaim"):
            self.broken += [f"{self.loop.time():.2f} {rule}: {text}" for text in see(entry)]
        if rule == RULES[0].__name__ and entry.request.endswith("/binding"):
            self.bound.append(entry.key)

    # ---------------------------------------------------------------- what becomes of requests

    async def meddle(self, handle: Any, request: web.BaseRequest) -> web.StreamResponse:
        scheduler = request.headers.get(HEADER, "").startswith("scheduler")
        spared = request.method == "GET" or "/leases" in request.path or "/events" in request.path
        if not (self.hurt and scheduler) or spared or self.fate.random() >= self.share:
            return await handle(request)
        await request.read()
        how = self.fate.choice(("refused", "refused", "cut", "unanswered", "unanswered", "cut late", "slow", "told late", "done late"))
        if how == "refused":
            return failure(self.fate.choice(list(CODES)))
        if how == "done late":
            self.late.add(asyncio.ensure_future(self._later(handle, request)))
            return failure(504)
        if how == "slow":
            await asyncio.sleep(self.fate.uniform(0.01, 3.0))
        done = None if how == "cut" else await handle(request)
        if how == "told late":
            await asyncio.sleep(self.fate.uniform(0.01, 3.0))
        if how == "unanswered":
            return failure(self.fate.choice((500, 504)))
        if how in ("cut", "cut late"):
            assert request.transport is not None
            request.transport.abort()
        return done or failure(500)

    async def _later(self, handle: Any, request: web.BaseRequest) -> None:
        await asyncio.sleep(self.fate.uniform(0.05, 0.5))
        await handle(request)

    # ---------------------------------------------------------------- what there is

    async def bootstrap(self) -> None:
        async with Client(programs.connection("admin")) as client:
            for name in ("default", objects.SYSTEM_NAMESPACE, NAMESPACE):
                await ensure(client, NAMESPACES, objects.namespace(name))
            for name, value in PRIORITIES.items():
                await client.create(PRIORITYCLASSES, objects.priority_class(name, value))
            await client.create(ELASTICQUOTAS, worlds._quota("team-a", 4, 8), NAMESPACE)
            await client.create(DEVICECLASSES, device_class())
            for index in range(self.spec.nodes):
                await self._node(client, f"n{index}", gpu=index < self.spec.gpu_nodes)

    async def _node(self, client: Client, name: str, *, gpu: bool) -> None:
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        if gpu:
            amounts |= {CORE: "200", RATIO: "200", "koordinator.sh/gpu-memory": "160Gi"}
            cards = {"apiVersion": DEVICES.api_version, "kind": DEVICES.kind, "metadata": {"name": name}, "spec": {"devices": gpus(2)}}
            await client.create(DEVICES, cards)
        await client.create(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        await client.patch(NODES, name, {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
        await client.create(NODERESOURCETOPOLOGIES, worlds._topology(name, 8))
        await client.create(RESOURCESLICES, slice_of(name, device("a"), device("b")))

    # ---------------------------------------------------------------- who makes and ends pods

    async def _users(self) -> None:
        end = self.loop.time() + self.spec.minutes * 60
        async with Client(programs.connection("users")) as client:
            while self.loop.time() < end:
                step = self.draw.random()
                with contextlib.suppress(ApiError):
                    if step < 0.6:
                        await self._make(client, self.draw.choice(self.sorts))
                    elif step < 0.9 and self.history.of("pod"):
                        await self._unmake(client, self.draw.choice(sorted(self.history.of("pod"))).partition("/")[2])
                    elif step > 0.97:
                        self._kill()
                await asyncio.sleep(self.draw.choice((0.01, 0.2, 1.0, 2.0)))

    async def _make(self, client: Client, sort: str) -> None:
        draw = self.draw
        self.made += 1
        name, cpu, priority = f"{sort}-{self.made}", draw.choice(("500m", "1", "2", "4")), draw.choice(("low", "mid", "high"))
        labels: dict[str, str] = {}
        notes: dict[str, str] = {}
        more: dict[str, str] = {}
        spec: Obj = {}
        count = draw.randint(1, 3)
        if sort == "cores":
            labels, cpu, priority = {"koordinator.sh/qosClass": "LSR"}, draw.choice(("1", "2")), "koord-prod"
        elif sort == "gpu":
            cpu, share = "500m", draw.choice(("30", "60", "100", "200"))
            more = {CORE: share, RATIO: share}
        elif sort == "quota":
            labels = {"quota.scheduling.koordinator.sh/name": "team-a"}
        elif sort == "gang":
            gang = "gang.scheduling.koordinator.sh/"
            notes = {f"{gang}name": name, f"{gang}min-available": str(count)}
            more = {CORE: "60", RATIO: "60"} if draw.random() < 0.3 else {}
        elif sort == "claim":
            cpu, count, spec = "500m", 1, {"resourceClaims": of_claim(name)}
            await client.create(RESOURCECLAIMS, {**claim(name), "metadata": {"name": name, "namespace": NAMESPACE}}, NAMESPACE)
        else:
            labels = {"app": name}
        pod = self._pod(name, {"cpu": cpu, "memory": "64Mi", **more}, priority, labels, notes, spec)
        if sort == "reservation":
            template = {"spec": {"schedulerName": "koord-scheduler", "containers": pod["spec"]["containers"]}}
            held = {"template": template, "owners": [{"labelSelector": {"matchLabels": labels}}], "ttl": "24h"}
            await client.create(RESERVATIONS, {"metadata": {"name": name}, "spec": {**held, "allocateOnce": draw.random() < 0.5}})
        for number in range(count):
            one = {**pod, "metadata": {**pod["metadata"], "name": f"{name}-{number}"}}
            self.pods[one["metadata"]["name"]] = one
            await client.create(PODS, one, NAMESPACE)

    def _pod(self, name: str, amounts: Obj, priority: str, labels: Obj, notes: Obj, more: Obj) -> Obj:
        resources = {"requests": amounts, "limits": amounts, **({"claims": [{"name": "device"}]} if more else {})}
        spec = {
            "schedulerName": "koord-scheduler", "priorityClassName": priority,
            "containers": [{"name": "main", "image": "x", "resources": resources}],
            "terminationGracePeriodSeconds": self.draw.choice((0, 1, 5)), **more,
        }  # fmt: skip
        return {"metadata": {"name": name, "labels": labels, "annotations": notes}, "spec": spec}

    async def _unmake(self, client: Client, name: str) -> None:
        again = self.draw.random() < 0.2
        await client.delete(PODS, name, NAMESPACE, grace_period_seconds=0 if again else None)
        if again:
            await client.create(PODS, self.pods[name], NAMESPACE)

    def _kill(self) -> None:
        process = self.programs["scheduler-a"].process
        if process is not None and not process.dead:
            process.kill()
            self.graveyard.append(process)
            self.network.at(self.draw.uniform(0.1, 4.0), self.start, "scheduler-a")

    async def _kubelets(self) -> None:
        due: dict[str, float] = {}
        async with Client(programs.connection("kubelet")) as client:
            while True:
                for pod in list(self.history.of("pod").values()):
                    meta = pod["metadata"]
                    if not meta.get("deletionTimestamp"):
                        continue
                    grace = min(float(meta.get("deletionGracePeriodSeconds") or 0), self.fate.choice((0.0, 2.0, 5.0)))
                    if self.loop.time() >= due.setdefault(meta["uid"], self.loop.time() + grace):
                        with contextlib.suppress(ApiError):
                            await client.delete(PODS, meta["name"], NAMESPACE, grace_period_seconds=0, preconditions={"uid": meta["uid"]})
                await asyncio.sleep(0.5)

    # ---------------------------------------------------------------- the history, and what is left of it

    async def _main(self) -> None:
        self.server = Server(self, worlds._crds())
        self.server.meddle = self.meddle
        await self.server.start()
        await self.bootstrap()
        config = self._configuration()
        made = App.__init__

        def seen(app: App, *args: Any, **options: Any) -> None:
            made(app, *args, **options)
            process = PROCESS.get()
            assert process is not None
            self.apps[process.name] = app

        App.__init__ = seen  # type: ignore[method-assign]
        self.add("scheduler-a", lambda program: programs.scheduler(self, program.name, program.life, config))
        running = [asyncio.ensure_future(self._keep_running()), asyncio.ensure_future(self._kubelets())]
        await asyncio.sleep(STARTED)
        self.hurt = True
        await self._users()
        self.hurt = False
        await asyncio.sleep(SETTLED)
        await self._judge(config)
        for task in running:
            task.cancel()

    def _configuration(self) -> Path:
        arguments = profile.plugin_config()
        arguments["Coscheduling"] = {**arguments["Coscheduling"], "defaultTimeout": self.draw.choice(("5s", "600s"))}
        content = profile.configuration(arguments)
        content["profiles"][0]["plugins"]["postFilter"]["enabled"].append({"name": "DefaultPreemption"})
        election = {"leaderElect": True, "resourceName": "s", "resourceNamespace": objects.SYSTEM_NAMESPACE, "retryPeriod": "2s"}
        file = self.scratch / "scheduler.json"
        file.write_text(json.dumps({**content, "leaderElection": election}))
        return file

    async def _judge(self, config: Path) -> None:
        program = self.programs["scheduler-a"]
        self.broken += [f"{name}: {what}" for name, what in self._ailments()] + [f"it ended: {end}" for end in program.ends]
        app = self.apps["scheduler-a"]
        await app.gate.passed()
        self.broken += recount(app.engine.cluster)
        self.broken += [f"{p.uid} is still {p.stage.value}" for p in app.scheduler.placements if p.stage.value != "waiting on permit"]
        before = books(app)
        assert program.process is not None
        program.process.kill()
        self.graveyard.append(program.process)
        program.wanted = False
        bound, asked = len(self.bound), leaving(self.history.of("pod"))
        self.add("scheduler-z", lambda program: programs.scheduler(self, program.name, program.life, config))
        await asyncio.sleep(LOOKED)
        new, gone = self.bound[bound:], leaving(self.history.of("pod")) - asked
        self.broken += [f"who has just begun binds {name}" for name in new] + [f"who has just begun removes {name}" for name in gone]
        after = books(self.apps["scheduler-z"])
        self.broken += [f"{page}: {before[page]}, afresh {after.get(page)}" for page in before if before[page] != after.get(page)]


def leaving(pods: dict[str, Obj]) -> set[str]:
    return {name for name, pod in pods.items() if pod["metadata"].get("deletionTimestamp")}


def books(app: App) -> dict[str, Any]:
    """What a scheduler and its plugins tell of nodes, quotas, gangs and devices."""
    cluster = app.engine.cluster
    found: dict[str, Any] = {}
    for name in sorted(cluster.name_of(slot) for slot in cluster.alive.nonzero()[0]):
        found[name] = [float(column[cluster.slot_of(name)]) for column in (cluster.free[0], cluster.free[1], cluster.pod_slots)]
    for plugin in app.engine.frameworks["koord-scheduler"].plugins.values():
        for endpoint in plugin.endpoints():
            if "{" not in endpoint.path:
                found[f"{plugin.name}/{endpoint.path}"] = lasting(json.loads(json.dumps(endpoint.answer({}), default=str)))
    return found


def lasting(page: Any) -> Any:
    """A page without times and amounts of nothing."""
    if isinstance(page, dict):
        return {key: lasting(value) for key, value in page.items() if value not in (0, "0") and key not in HISTORY and "ime" not in key}
    return sorted((lasting(one) for one in page), key=repr) if isinstance(page, list) else page


def lived(seed: int) -> list[str]:
    """What was broken in one history."""
    with tempfile.TemporaryDirectory(prefix="koord-astray-") as scratch, worlds.quiet():
        history = Astray(seed, Path(scratch))
        history.run()
        history.bury()
        return [f"seed {seed}: {text}" for text in (*history.broken, *([] if history.bound else ["nothing was bound"]))]


def main(first: int, count: int) -> int:
    """Each seed in a child of its own; the status."""
    worlds.warm()
    status = 0
    for seed in range(first, first + count):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                found = lived(seed)
                print("\n".join(found[:5]), end="\n" if found else "", flush=True)
                status = int(bool(found))
            finally:
                os._exit(status)
        status |= os.waitpid(pid, 0)[1]
    return int(bool(status))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0, int(sys.argv[2]) if len(sys.argv) > 2 else 10))
