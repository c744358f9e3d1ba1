"""The embedded API server over HTTP: pod creates, binds, both under a watcher, a list of 5,000 pods; what a disk, policies and quotas cost.

Client and server are processes of their own on the same machine; the server's CPU time is measured too.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp
import orjson

from tests.benchmarks.table import Row, cpu_seconds, current_rss_mib, script
from tests.support.processes import process

PODS = "/api/v1/namespaces/default/pods"
IN_FLIGHT = 32


def pod(name: str) -> bytes:
    resources = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    container = {"name": "c", "image": "registry.example.com/app:1.0", "resources": resources, "env": [{"name": "A", "value": "B"}]}
    meta = {"name": name, "labels": {"app": "web", "koordinator.sh/qosClass": "LS"}}
    return orjson.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}})


def binding(name: str) -> bytes:
    return orjson.dumps({"metadata": {"name": name}, "target": {"kind": "Node", "name": "node-1"}})


async def post_all(session: aiohttp.ClientSession, requests: list[tuple[str, bytes]]) -> float:
    """Send all, 32 at a time; seconds it took."""
    waiting = iter(requests)

    async def worker() -> None:
        for path, body in waiting:
            async with session.post(path, data=body, headers={"Content-Type": "application/json"}) as response:
                await response.read()
                assert response.status == 201, response.status

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return time.perf_counter() - started


async def count_events(session: aiohttp.ClientSession, wanted: int) -> None:
    """Read a watch until it has shown so many events."""
    seen = 0
    async with session.get(f"{PODS}?watch=1&resourceVersion=0") as response:
        async for chunk in response.content.iter_any():
            seen += chunk.count(b"\n")
            if seen >= wanted:
                return


async def measure(url: str, pid: int, count: int) -> list[Row]:
    rows: list[Row] = []
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=IN_FLIGHT + 2)) as session:

        async def timed(what: str, requests: list[tuple[str, bytes]], goal: float | None = None) -> None:
            before = cpu_seconds(pid)
            took = await post_all(session, requests)
            each = (cpu_seconds(pid) - before) / len(requests) * 1e3
            rows.append(Row(what, len(requests) / took, "/s", goal, "higher", f"{each:.2f} ms of server CPU each"))

        names = [f"pod-{i}" for i in range(count)]
        await timed("apiserver: pod creates", [(PODS, pod(n)) for n in names])
        await timed("apiserver: binds", [(f"{PODS}/{n}/binding", binding(n)) for n in names])
        lists = []
        for _ in range(5):
            started = time.perf_counter()
            async with session.get(PODS) as response:
                size = len(await response.read())
            lists.append(time.perf_counter() - started)
        rows.append(Row(f"apiserver: list {count} pods", statistics.median(lists) * 1e3, "ms", note=f"{size / 2**20:.1f} MiB"))
        more = [f"more-{i}" for i in range(count)]
        watcher = asyncio.create_task(count_events(session, 3 * count))
        mixed = [r for n in more for r in ((PODS, pod(n)), (f"{PODS}/{n}/binding", binding(n)))]
        # a bind must find its pod: creates run ahead of their binds by more than what is in flight
        ahead = 4 * IN_FLIGHT
        creates, binds = mixed[0::2], mixed[1::2]
        ordered = creates[:ahead] + [r for pair in zip(creates[ahead:], binds, strict=False) for r in pair] + binds[len(creates) - ahead :]
        await timed("apiserver: creates and binds, one watcher", ordered, 3000)
        await asyncio.wait_for(watcher, 60)
        rows.append(Row(f"apiserver: memory with {2 * count} pods", current_rss_mib(pid), "MiB"))
    return rows


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_EXPRESSIONS = (
    "has(object.metadata.labels) && 'app' in object.metadata.labels",
    "object.spec.containers.all(c, has(c.resources) && has(c.resources.limits))",
    "object.spec.containers.all(c, !c.image.endsWith(':latest'))",
    "!has(object.spec.hostNetwork) || !object.spec.hostNetwork",
    "variables.total <= 64",
)


def policy() -> list[tuple[str, bytes]]:
    """A policy of five expressions and its binding."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "variables": [{"name": "total", "expression": "object.spec.containers.size()"}],
        "validations": [{"expression": text} for text in _EXPRESSIONS],
    }
    binding_spec = {"policyName": "pods", "validationActions": ["Deny"]}
    return [
        (f"{ADMISSION}/validatingadmissionpolicies", orjson.dumps({"metadata": {"name": "pods"}, "spec": spec})),
        (f"{ADMISSION}/validatingadmissionpolicybindings", orjson.dumps({"metadata": {"name": "pods"}, "spec": binding_spec})),
    ]


async def kept(url: str, pid: int, count: int) -> list[Row]:
    """On a data directory: creates, how long others wait meanwhile, then a policy, then a quota."""
    rows: list[Row] = []
    waits: list[float] = []
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=IN_FLIGHT + 2)) as session:

        async def ask() -> None:
            while True:
                started = time.perf_counter()
                async with session.get("/livez") as response:
                    await response.read()
                waits.append(time.perf_counter() - started)
                await asyncio.sleep(0.01)

        async def each(name: str) -> float:
            before = cpu_seconds(pid)
            await post_all(session, [(PODS, pod(f"{name}-{i}")) for i in range(count // 5)])
            return (cpu_seconds(pid) - before) / (count // 5) * 1e3

        before = cpu_seconds(pid)
        took = await post_all(session, [(PODS, pod(f"pod-{i}")) for i in range(count)])
        used = (cpu_seconds(pid) - before) / count * 1e3
        rows.append(Row("apiserver: pod creates, on disk", count / took, "/s", note=f"{used:.2f} ms of server CPU each"))
        asking = asyncio.create_task(ask())
        for number in range(250):  # some checkpoints long
            await post_all(session, [(PODS, pod(f"slow-{number}"))])
            await asyncio.sleep(0.02)
        asking.cancel()
        await asyncio.wait([asking])
        note = f"p99 {statistics.quantiles(waits, n=100)[98] * 1e3:.0f} ms; {count} pods on disk, a write every 20 ms"
        rows.append(Row("apiserver: longest wait of a health check", max(waits) * 1e3, "ms", 50, "lower", note))
        await post_all(session, policy())
        note = f"{await each('judged'):.2f} ms with a policy of five expressions"
        hard = {"pods": str(10 * count), "requests.cpu": str(10 * count), "requests.memory": "100Ti"}
        body = orjson.dumps({"metadata": {"name": "quota"}, "spec": {"hard": hard}})
        await post_all(session, [("/api/v1/namespaces/default/resourcequotas", body)])
        rows.append(Row("apiserver: CPU of a create on disk, with policy and quota", await each("counted"), "ms", note=note))
    return rows


def rows(quick: bool) -> list[Row]:
    import uvloop

    with tempfile.TemporaryDirectory() as name:
        found: list[Row] = []
        size = 1000 if quick else 5000
        for work, count, flags in ((measure, size, ()), (kept, 5 * size, ("--data-dir", f"{name}/data"))):
            kubeconfig = Path(name) / f"kubeconfig-{work.__name__}"
            with process("apiserver", "--port", "0", "--no-tls", "--print-kubeconfig", str(kubeconfig), *flags) as server:
                while not kubeconfig.exists() and server.poll() is None:
                    time.sleep(0.01)
                url = orjson.loads(kubeconfig.read_bytes())["clusters"][0]["cluster"]["server"]
                found += uvloop.run(work(url, server.pid, count))
        return found


if __name__ == "__main__":
    script(rows)
