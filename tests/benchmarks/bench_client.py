"""The client library: what a request costs beside aiohttp, binds under a flood of status writes, and events at the advertised speed.

The server is a process of its own that reads requests and answers after so many milliseconds.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import aiohttp

from koord.api.kinds import PODS
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.events import EventRecorder
from koord.kube.references import ObjectRef
from koord.process import certificates
from tests.benchmarks.table import Row, script

ANSWER = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'
FLOOD = 32  # writers of status at once
RATE = 100  # requests a second, the scheduler's limit in the flood


async def _serve(milliseconds: float, folder: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if b"content-length: " in head:
                    await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
                if milliseconds:
                    await asyncio.sleep(milliseconds / 1e3)
                writer.write(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    context = certificates.ensure(Path(folder), "127.0.0.1").context() if folder else None
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def served(milliseconds: float = 0, folder: str = "") -> Iterator[ClientConfig]:
    child = Popen([sys.executable, __file__, "serve", str(milliseconds), folder], stdout=PIPE)
    assert child.stdout is not None
    try:
        port = int(child.stdout.readline())
        yield ClientConfig(f"http{'s' if folder else ''}://127.0.0.1:{port}", insecure=bool(folder))
    finally:
        child.kill()
        child.communicate()


async def each(count: int, send: Callable[[int], Awaitable[object]]) -> float:
    """CPU microseconds of this process for one of so many requests, 16 at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await send(number)

    before = time.process_time()
    await asyncio.gather(*(worker() for _ in range(16)))
    return (time.process_time() - before) / count * 1e6


async def beside_aiohttp(config: ClientConfig, count: int) -> tuple[float, float]:
    """CPU microseconds of a bind by koord's client and by aiohttp."""
    async with Client(config) as client:
        await each(200, lambda n: client.bind("default", f"p{n}", "node"))
        own = await each(count, lambda n: client.bind("default", f"p{n}", "node"))
    body = b'{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"},"target":{"apiVersion":"v1","kind":"Node","name":"node"}}'
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    async with aiohttp.ClientSession(config.server, connector=aiohttp.TCPConnector(limit=100, ssl=False)) as session:

        async def post(number: int) -> None:
            path = f"/api/v1/namespaces/default/pods/p{number}/binding"
            async with session.post(path, data=body, headers=headers) as answer:
                await answer.json()

        await each(200, post)
        return own, await each(count, post)


async def bind_times(config: ClientConfig, seconds: float, *, flood: bool) -> list[float]:
    """Seconds of binds, twenty a second, on a client that is limited to RATE; under a flood, with writers of status that never rest."""
    async with Client(config, qps=RATE, burst=RATE) as client:
        stop = asyncio.Event()

        async def write(name: str) -> None:
            while not stop.is_set():
                await client.patch(PODS, name, {"status": {"message": "x"}}, "default", subresource="status")

        writers = [asyncio.create_task(write(f"w{n}")) for n in range(FLOOD if flood else 0)]
        await asyncio.sleep(2.0 if flood else 0.1)  # the burst is used up
        taken: list[float] = []

        async def bind(number: int) -> None:
            began = time.perf_counter()
            await client.bind("default", f"p{number}", "node")
            taken.append(time.perf_counter() - began)

        binds = []
        for number in range(round(seconds * 20)):
            binds.append(asyncio.create_task(bind(number)))
            await asyncio.sleep(0.05)
        await asyncio.gather(*binds)
        stop.set()
        await asyncio.gather(*writers)
        return taken


async def events(config: ClientConfig, seconds: int) -> tuple[int, int, float]:
    """(written, dropped, seconds until all were written) of a thousand different events a second."""
    async with Client(config) as client:
        recorder = EventRecorder(client, "koord-scheduler")
        recorder.start()
        began = time.perf_counter()
        for number in range(seconds * 1000):
            reference = ObjectRef("Pod", f"p{number}", "default", str(number))
            recorder.event(reference, "Normal", "Scheduled", "Successfully assigned", action="Binding")
            if number % 10 == 9:
                await asyncio.sleep(max(0.0, began + (number + 1) / 1000 - time.perf_counter()))
        await recorder.flush(60)
        took = time.perf_counter() - began
        await recorder.stop()
        return recorder.sent, recorder.dropped, took


def rows(quick: bool) -> list[Row]:
    import uvloop

    count, seconds = (2000, 5) if quick else (10_000, 20)
    out: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, where in (("plain", ""), ("TLS", folder)):
            with served(0, where) as config:
                own, other = uvloop.run(beside_aiohttp(config, count))
            out.append(Row(f"client: CPU of a bind, {name}", own, "µs", None, "lower", f"aiohttp {other:.0f} µs"))
    with served(2) as config:
        calm = uvloop.run(bind_times(config, seconds, flood=False))
        full = uvloop.run(bind_times(config, seconds, flood=True))
    p99 = [statistics.quantiles(taken, n=100)[98] * 1e3 for taken in (calm, full)]
    note = f"calm {p99[0]:.1f} ms, {FLOOD} writers of status, {RATE} requests/s"
    out.append(Row("client: p99 of a bind under a flood of status writes", p99[1], "ms", 1.5 * p99[0], "lower", note))
    with served(10) as config:
        written, dropped, took = uvloop.run(events(config, 3 if quick else 10))
    note = f"{written} requests, all in {took:.1f} s, 10 ms each at the server"
    out.append(Row("client: events lost at 1,000/s", dropped, "events", 0, "lower", note))
    return out


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""))
    else:
        script(rows)
