"""The pod webhook: one review in process, with 50 profiles of which three match; `bench_admission` asks over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Any

from koord.api.kinds import CLUSTERCOLOCATIONPROFILES, NAMESPACES, PRIORITYCLASSES
from koord.api.priority import BANDS
from koord.apiserver.testing import running_server
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.manager.app import App
from roles.manager.options import Options, WebhookOptions
from roles.manager.webhooks.registry import WEBHOOKS
from roles.manager.webhooks.review import decode
from tests.benchmarks.table import Row, script

PROFILES, MATCHING = 50, 3


def profile(number: int) -> dict[str, Any]:
    app = "etl" if number < MATCHING else f"other-{number}"
    spec: dict[str, Any] = {"selector": {"matchLabels": {"app": app}}, "labels": {f"l{number}": "x"}}
    if number == 0:
        spec |= {"qosClass": "BE", "priorityClassName": "koord-batch"}
    kind = CLUSTERCOLOCATIONPROFILES
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": f"p{number}"}, "spec": spec}


def review() -> bytes:
    env = [{"name": f"VARIABLE_{number}", "value": "v" * 40} for number in range(20)]
    resources = {"requests": {"cpu": "750m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    containers = [{"name": f"c{number}", "image": "image:1", "env": env, "resources": resources} for number in range(3)]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "w-", "labels": {"app": "etl"}},
        "spec": {"containers": containers},
    }
    request = {
        "uid": "u", "operation": "CREATE", "namespace": "default", "name": "w",
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "object": pod,
    }  # fmt: skip
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


@contextlib.asynccontextmanager
async def manager(directory: str) -> AsyncIterator[App]:
    async with running_server(crds=True) as server, server.client() as client:
        await client.create(NAMESPACES, {"metadata": {"name": "koordinator-system"}})
        for name, (value, _) in BANDS.items():
            await client.create(PRIORITYCLASSES, {"metadata": {"name": str(name)}, "value": value})
        for number in range(PROFILES):
            await client.create(CLUSTERCOLOCATIONPROFILES, profile(number))
        informers, recorder = InformerFactory(client), Recorder("manager")
        ops = OpsServer(recorder=recorder, role="manager")
        webhook = WebhookOptions(port=0, address="127.0.0.1", cert_dir=directory)
        app = App(Options(enable_leader_election=False, webhook=webhook), client=client, informers=informers, recorder=recorder, ops=ops)
        await ops.start()
        life = Life()
        task = asyncio.create_task(app.run(life))
        while not ops.health.report("readyz")[0]:
            await asyncio.sleep(0.05)
        yield app
        life.stop()
        await asyncio.wait_for(task, 10)
        await informers.stop()
        await ops.stop()


async def measure(quick: bool) -> list[Row]:
    count = 500 if quick else 3000
    body = review()
    with tempfile.TemporaryDirectory() as directory:
        async with manager(directory) as app:
            server = app.webhooks.server
            webhook = next(entry for entry in WEBHOOKS if entry.path == "/mutate-pod")
            seconds = []
            for _ in range(count):
                started = time.perf_counter()
                answer = await server.answer(webhook, decode(body))
                seconds.append(time.perf_counter() - started)
                assert answer.allowed
            return [
                Row("pod webhook, in process, p50", statistics.median(seconds) * 1e3, "ms", note=f"{PROFILES} profiles, {MATCHING} match"),
                Row("pod webhook, in process, p99", statistics.quantiles(seconds, n=100)[98] * 1e3, "ms", 1.0),
            ]


def rows(quick: bool) -> list[Row]:
    import uvloop

    return uvloop.run(measure(quick))


if __name__ == "__main__":
    script(rows)
