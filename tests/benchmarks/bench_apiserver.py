"""The embedded API server over HTTP: pod creates, binds, both under a watcher, and a list of 5,000 pods.

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


def rows(quick: bool) -> list[Row]:
    import uvloop

    with tempfile.TemporaryDirectory() as name:
        kubeconfig = Path(name) / "kubeconfig"
        with process("apiserver", "--port", "0", "--no-tls", "--print-kubeconfig", str(kubeconfig)) as server:
            while not kubeconfig.exists() and server.poll() is None:
                time.sleep(0.01)
            url = orjson.loads(kubeconfig.read_bytes())["clusters"][0]["cluster"]["server"]
            found: list[Row] = uvloop.run(measure(url, server.pid, 1000 if quick else 5000))
            return found


if __name__ == "__main__":
    script(rows)
