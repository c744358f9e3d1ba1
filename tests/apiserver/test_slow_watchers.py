"""What watches may hold: a bound for the whole server, and the stream of a client that is too slow ends so that it can go on."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Any

import orjson
import pytest

from koord.apiserver import store as stores
from koord.apiserver import watch
from koord.apiserver.config import ServerConfig
from koord.apiserver.core import Core
from koord.apiserver.store import Bucket, Store
from koord.apiserver.watch import Watcher

MAPS = "/api/v1/namespaces/default/configmaps"
KIB = 1024


def put(bucket: Bucket, name: str, size: int) -> None:
    meta = {"name": name, "namespace": "default", "uid": name}
    bucket.put("default", name, {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, "data": {"x": "x" * size}})


def core() -> tuple[Core, Any, Bucket]:
    made = Core(ServerConfig())
    return made, made.resources.by_path("", "v1", "configmaps"), made.store.bucket("/configmaps")


def names(data: bytes) -> list[str]:
    return [orjson.loads(line)["object"]["metadata"]["name"] for line in data.splitlines()]


def held(watcher: Watcher) -> int:
    """Bytes that are kept for it."""
    return watcher.waiting + watcher.sending


def test_all_watchers_together_keep_to_the_bound_and_those_with_most_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_BACKLOG_BYTES", 400 * KIB)
    made, resource, bucket = core()
    slow = [Watcher(bucket, resource, namespace="default") for _ in range(20)]
    some = Watcher(bucket, resource, namespace="default")
    quick = Watcher(bucket, resource, namespace="default")
    for watcher in (*slow, some, quick):
        assert watcher.open_at(made.store.rv)
        watcher.take()
    got = b""
    for i in range(100):
        put(bucket, f"m{i}", 4 * KIB)
        got += quick.take()
        if i % 3 == 0:
            some.take()
        everybody = (*slow, some, quick)
        assert sum(len(line) for w in everybody for line in w._backlog) <= 400 * KIB
        assert made.store.backlog.total == sum(held(w) for w in everybody) <= 400 * KIB
    assert names(got) == [f"m{i}" for i in range(100)]
    assert (quick.overrun, some.overrun) == (False, False)
    assert any(w.overrun for w in slow)
    for watcher in everybody:
        watcher.close()
    assert (made.store.backlog.total, made.store.backlog.holders, bucket.listeners) == (0, set(), [])


def test_clients_that_stand_still_do_not_keep_newcomers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on its way to a client counts; those that have taken nothing for longest give way."""
    monkeypatch.setattr(watch, "MAX_BACKLOG_BYTES", 400 * KIB)
    made, resource, bucket = core()
    begin = made.store.rv
    put(bucket, "m", 16 * KIB)
    closed: list[int] = []
    watchers = []
    for n in range(40):
        watchers.append(Watcher(bucket, resource, namespace="default", hang_up=lambda n=n: closed.append(n)))
        assert watchers[-1].open_at(begin)
        assert names(watchers[-1].take()) == ["m"]
        assert sum(held(w) for w in watchers) == made.store.backlog.total <= 400 * KIB
    assert closed == list(range(len(closed)))
    assert 16 <= len(closed) < 20
    for watcher in watchers:
        watcher.close()
    assert made.store.backlog.total == 0


@pytest.mark.parametrize("how", ["state", "history"])
def test_what_was_there_before_is_not_kept_for_a_slow_client(how: str) -> None:
    made, resource, bucket = core()
    begin = made.store.rv
    for i in range(400):
        put(bucket, f"m{i:03}", 4 * KIB)
    watcher = Watcher(bucket, resource, namespace="default")
    if how == "state":
        watcher.open_with_state(mark_end=True)
    else:
        assert watcher.open_at(begin)
    got = watcher.take()
    assert held(watcher) < 2 * watch.PIECE
    put(bucket, "m000", 1)  # it has been shown
    put(bucket, "m399", 1)  # it has not
    watcher.bookmark(made.store.rv)  # would tell an untruth
    while more := watcher.take():
        got += more
        assert held(watcher) < 2 * watch.PIECE
    events = [orjson.loads(line) for line in got.splitlines()]
    last = {e["object"]["metadata"]["name"]: len(e["object"]["data"]["x"]) for e in events if e["type"] != "BOOKMARK"}
    assert last == {f"m{i:03}": 1 if i in (0, 399) else 4 * KIB for i in range(400)}
    marks = [e["object"]["metadata"] for e in events if e["type"] == "BOOKMARK"]
    assert [m["resourceVersion"] for m in marks] == ([str(made.store.rv)] if how == "state" else [])
    assert events[-1]["type"] == ("BOOKMARK" if how == "state" else "MODIFIED")


def test_a_watcher_slower_than_the_history_ends() -> None:
    made, resource, bucket = core()
    begin = made.store.rv
    for i in range(100):
        put(bucket, f"m{i}", 4 * KIB)
    watcher = Watcher(bucket, resource, namespace="default")
    assert watcher.open_at(begin)
    assert watcher.take()
    made.store.compact()
    assert (watcher.take(), watcher.overrun) == (b"", True)
    assert not Watcher(bucket, resource, namespace="default").open_at(begin)


def test_the_history_counts_all_that_it_holds_and_is_bounded_for_all_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 600 * KIB
    monkeypatch.setattr(stores, "HISTORY_BYTES", limit)
    made, resource, bucket = core()
    other = made.store.bucket("/secrets")
    watchers = []
    put(other, "seldom", KIB)
    for version in ("v1", "v1alpha1", "v1beta1"):  # three representations of each event
        watchers.append(Watcher(bucket, replace(resource, version=version), namespace="default"))
        watchers[-1].open_at(made.store.rv)
        watchers[-1].take()
    for i in range(100):
        put(bucket, f"m{i % 10}", 10 * KIB)
        for watcher in watchers:
            watcher.take()
        kept = sum(_size(event) for b in (bucket, other) for event in b.history)
        assert kept <= made.store.history_bytes <= limit
    assert len(bucket.history[-1].cache) == 3
    assert len(other.history) == 1, "a resource that changes seldom keeps its history"
    forgotten = bucket.history[0]
    bucket.compact(made.store.rv)
    assert (bucket.history_bytes, forgotten.cache) == (0, {})
    made.store.compact()
    assert made.store.history_bytes == 0


def _size(event: stores.Event) -> int:
    return len(event.entry.raw) + (len(event.prev.raw) if event.prev else 0) + sum(map(len, event.cache.values()))


def test_a_client_that_does_not_read_sees_the_end_and_goes_on_without_a_gap(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six clients stop reading, one goes on: some of the six are cut, though none holds the bound alone."""
    limit = 12 << 20
    monkeypatch.setattr(watch, "MAX_BACKLOG_BYTES", limit)

    async def body(api: Any) -> None:
        store: Store = api.server.core.store
        bucket, begin = store.bucket("/configmaps"), store.rv
        before = len(bucket.listeners)
        slow = [await stopped(int(api.server.url.rpartition(":")[2]), begin) for _ in range(6)]
        quick = asyncio.create_task(followed(api, begin))
        while len(bucket.listeners) < before + 7:
            await asyncio.sleep(0)
        for i in range(LAST + 1):
            put(bucket, f"m{i}", 100 * KIB)
            assert store.backlog.total <= limit
            await asyncio.sleep(0)
        wanted = [f"m{i}" for i in range(LAST + 1)]
        assert [name for name, _ in await quick] == wanted
        assert before < len(bucket.listeners) < before + 6, "some were cut, not all"
        cut = 0
        for reader, writer in slow:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            got, ended = await read_on(reader)
            cut += ended
            rest = await followed(api, got[-1][1] if got else begin) if ended else []
            assert [name for name, _ in (*got, *rest)] == wanted
            writer.close()
            await writer.wait_closed()
        assert cut

    with_api(body)


LAST = 99
Told = tuple[str, int]


def told(line: bytes) -> Told:
    meta = orjson.loads(line)["object"]["metadata"]
    return meta["name"], int(meta["resourceVersion"])


async def followed(api: Any, version: int) -> list[Told]:
    """What a client that reads is told until the last object."""
    out: list[Told] = []
    async with api.session.get(f"{MAPS}?watch=1&resourceVersion={version}", read_bufsize=1 << 20) as response:
        while not out or out[-1][0] != f"m{LAST}":
            out.append(told(await response.content.readline()))
    return out


async def stopped(port: int, version: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A watch whose client reads nothing for now."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(f"GET {MAPS}?watch=1&resourceVersion={version} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return reader, writer


async def read_on(reader: asyncio.StreamReader) -> tuple[list[Told], bool]:
    """All that it is told, and whether its stream came to an end in order: behind a whole line, with the last chunk."""
    data, last = bytearray(), f'"name":"m{LAST}"'.encode()
    while not data.endswith(b"\r\n0\r\n\r\n") and not (data.endswith(b"}\n\r\n") and last in data[-300_000:]):
        data += await reader.read(1 << 20)
    chunks, rest = b"", bytes(data).partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    assert chunks.endswith(b"}\n") or not chunks
    return [told(line) for line in chunks.splitlines()], data.endswith(b"0\r\n\r\n")
