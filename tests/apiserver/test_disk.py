"""The data directory: what was answered is kept, whatever ends the server, and no version is given out twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from multiprocessing.process import BaseProcess as Process
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from koord.api.kinds import CONFIGMAPS
from koord.apiserver import disk as module
from koord.apiserver.config import ServerConfig
from koord.apiserver.disk import BIRTH, Disk, DiskError
from koord.apiserver.server import ApiServer
from koord.apiserver.store import Event, Store
from koord.apiserver.testing import running_server
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from tests.support import patience
from tests.support.processes import KOORD, forking, free_port, until_answers, until_healthy

LIVES = int(os.environ.get("KOORD_KILLS", "12"))
"""How often the server is killed; the nightly run sets 1000."""


def start(directory: Path, port: int) -> subprocess.Popen[bytes]:
    flags = ["--no-tls", "--port", str(port), "--data-dir", str(directory)]
    scratch = {**os.environ, "TMPDIR": str(directory.parent)}  # who is killed leaves it behind
    server = subprocess.Popen([KOORD, "apiserver", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=scratch)
    until_healthy(f"http://127.0.0.1:{port}/readyz", server)
    return server


def create(port: int, name: str) -> int | None:
    """The version of a new ConfigMap, None without an answer."""
    body = json.dumps({"metadata": {"name": name}}).encode()
    url = f"http://127.0.0.1:{port}/api/v1/namespaces/default/configmaps"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=patience.seconds(5)) as answer:
            return int(json.load(answer)["metadata"]["resourceVersion"])
    except (OSError, ValueError):
        return None


def stored(port: int) -> dict[str, int]:
    """Names and versions of the ConfigMaps that the tests made."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/namespaces/default/configmaps", timeout=patience.seconds(60)) as answer:
        return {item["metadata"]["name"]: int(item["metadata"]["resourceVersion"]) for item in json.load(answer)["items"]}


def write_until_killed(server: Process, port: int, life: int, rng: random.Random) -> dict[str, int]:
    """What one life of the server acknowledged: it is killed up to a quarter of a second after it began to serve, some lives before."""
    if rng.random() < 0.1:
        time.sleep(rng.uniform(0.0, 0.2))
        server.kill()
        server.join(30)
        return {}
    until_answers(f"http://127.0.0.1:{port}/readyz", server.is_alive)
    timer = threading.Timer(rng.uniform(0.0, 0.25), server.kill)
    timer.start()
    known: dict[str, int] = {}
    number = 0
    while server.is_alive():
        version = create(port, f"c-{life}-{number}")
        if version is not None:
            known[f"c-{life}-{number}"] = version
        number += 1
    timer.join()
    server.join(30)
    return known


@pytest.mark.timeout(7200 if LIVES > 100 else 180)
def test_kill_9_loses_no_answered_write_and_repeats_no_version(tmp_path: Path) -> None:
    with forking() as forked:
        killed_again_and_again(tmp_path, forked)


def killed_again_and_again(tmp_path: Path, forked: Callable[..., Process]) -> None:
    rng, port = random.Random(7), free_port()
    flags = ("apiserver", "--no-tls", "--port", str(port), "--data-dir", str(tmp_path / "data"))
    known: dict[str, int] = {}
    given: list[int] = []
    for life in range(LIVES):
        made = write_until_killed(forked(*flags), port, life, rng)
        known |= made
        given += made.values()
        if life % 50 == 49 or life == LIVES - 1:
            server = forked(*flags)
            try:
                until_answers(f"http://127.0.0.1:{port}/readyz", server.is_alive)
                there = stored(port)
                assert {name: there.get(name) for name in known} == known
                url = f"http://127.0.0.1:{port}/api/v1/namespaces/default/configmaps"
                with urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=patience.seconds(60)) as answer:
                    assert answer.status == 200
                known = {}
            finally:
                server.kill()  # what is deleted stays deleted
                server.join(30)
            print(f"{life + 1} lives, {len(given)} writes acknowledged, none lost")
    server = forked(*flags)
    try:
        until_answers(f"http://127.0.0.1:{port}/readyz", server.is_alive)
        assert stored(port).keys() <= {"kube-root-ca.crt"}
    finally:
        server.kill()
        server.join(30)
    assert given
    assert len(given) == len(set(given))


def test_a_second_server_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    port = free_port()
    first = start(tmp_path, port)
    try:
        flags = ["--no-tls", "--port", str(free_port()), "--data-dir", str(tmp_path)]
        second = subprocess.run([KOORD, "apiserver", *flags], capture_output=True, text=True, timeout=patience.seconds(30), check=False)
        assert second.returncode == 1
        assert f"{tmp_path} is in use by process {first.pid}" in second.stderr
        first.send_signal(signal.SIGKILL)
        first.wait(patience.seconds(10))
        third = start(tmp_path, port)  # the kernel let the lock go
        third.terminate()
        third.communicate(timeout=patience.seconds(20))
    finally:
        first.kill()
        first.communicate()


def test_a_server_that_keeps_nothing_says_so() -> None:
    server = subprocess.Popen([KOORD, "apiserver", "--no-tls", "--port", "0"], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        lines = []
        end = time.monotonic() + patience.seconds(30)
        while time.monotonic() < end and not any("nothing is kept" in line for line in lines):
            lines.append(server.stderr.readline())
        assert any("--data-dir keeps it" in line for line in lines)
    finally:
        server.terminate()
        server.communicate(timeout=patience.seconds(20))


def run(server: ApiServer, work: Any) -> Any:
    async def main() -> Any:
        await server.start()
        async with Client(ClientConfig(server=server.url)) as client:
            try:
                return await work(client)
            finally:
                await server.stop()

    return asyncio.run(main())


def config_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def test_objects_versions_and_deletions_come_back(tmp_path: Path) -> None:
    async def write(client: Client) -> int:
        await client.create(CONFIGMAPS, config_map("kept"), "default")
        await client.patch(CONFIGMAPS, "kept", {"data": {"a": "1"}}, "default")
        await client.create(CONFIGMAPS, config_map("gone"), "default")
        await client.delete(CONFIGMAPS, "gone", "default")
        return int((await client.list(CONFIGMAPS, "default")).resource_version)

    async def read(client: Client) -> tuple[dict[str, Any], int]:
        kept = await client.get(CONFIGMAPS, "kept", "default")
        with pytest.raises(errors.NotFound):
            await client.get(CONFIGMAPS, "gone", "default")
        async for lines in client.watch_batches(CONFIGMAPS, "default", resource_version=str(before)):
            assert orjson.loads(lines[0])["object"]["code"] == 410  # a watch from the life before is not told half of it
            break
        return kept, int((await client.create(CONFIGMAPS, config_map("new"), "default"))["metadata"]["resourceVersion"])

    before = run(ApiServer(ServerConfig(data_dir=tmp_path)), write)
    kept, version = run(ApiServer(ServerConfig(data_dir=tmp_path)), read)
    assert kept["data"] == {"a": "1"}
    assert version > before + BIRTH - 1


def test_a_write_that_cannot_be_kept_did_not_happen(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    store = disk.load()
    bucket = store.bucket("things")
    bucket.put("", "a", {"metadata": {"name": "a"}})
    heard: list[Event] = []
    store.listeners.append(heard.append)
    version = store.rv
    disk._database.execute("PRAGMA query_only=ON")
    with pytest.raises(sqlite3.Error):
        bucket.put("", "b", {"metadata": {"name": "b"}})
    with pytest.raises(sqlite3.Error):
        bucket.remove("", "a")
    assert (store.rv, sorted(entry.name for entry in bucket.entries.values()), heard) == (version, ["a"], [])
    disk._database.execute("PRAGMA query_only=OFF")
    bucket.remove("", "a")
    disk.close()
    assert not Disk(tmp_path).load().bucket("things").entries


def test_who_cannot_keep_writes_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ready again with the first write that is kept; when nobody writes, it tries for itself."""

    async def main() -> None:
        async with running_server(config=ServerConfig(data_dir=tmp_path)) as server, aiohttp.ClientSession(server.url) as session:
            disk = server.core.store.disk
            assert isinstance(disk, Disk)

            async def write(name: str) -> int:
                async with session.post("/api/v1/namespaces/default/configmaps", json={"metadata": {"name": name}}) as answer:
                    return answer.status

            async def health(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    return answer.status, await answer.text()

            failed = "[+]ping ok\n[-]store failed: reason withheld\n[+]admission ok\n[+]controllers ok\n"
            for again in ("a write", "a try"):
                disk._database.execute("PRAGMA query_only=ON")  # a disk that refuses
                assert await write(again[2:]) == 500
                assert await health("/readyz") == (500, failed + "readyz check failed\n")
                assert (await health("/readyz/store"))[0] == 500
                assert (await health("/readyz/ping"))[0] == 200
                assert (await health("/livez"))[0] == 200
                disk._database.execute("PRAGMA query_only=OFF")
                assert (await health("/readyz"))[0] == 500
                if again == "a write":
                    assert await write(again[2:]) == 201
                for _ in patience.tries(100):
                    if (await health("/readyz")) == (200, "ok"):
                        break
                    await asyncio.sleep(0.02)
                assert await health("/readyz") == (200, "ok")

    monkeypatch.setattr(module, "CHECKPOINT_EVERY", 0.1)
    asyncio.run(main())


def test_the_snapshot_of_a_former_release_is_taken_over(tmp_path: Path) -> None:
    obj = {"metadata": {"name": "a", "namespace": "n", "resourceVersion": "17"}, "data": {"k": "v"}}
    (tmp_path / "snapshot.json").write_bytes(orjson.dumps({"format": 1, "resourceVersion": 40, "buckets": {"/configmaps": [obj]}}))
    disk = Disk(tmp_path)
    store = disk.load()
    disk.close()
    assert [entry.obj for entry in store.bucket("/configmaps").entries.values()] == [obj]
    assert store.rv == 40 + BIRTH
    assert not (tmp_path / "snapshot.json").exists()


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at" * 40, b"\0" * 4096])
def test_a_file_that_is_no_database_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.db").write_bytes(content)
    with pytest.raises(DiskError, match=r"state\.db: .*move it away to start empty"):
        Disk(tmp_path).load()


def test_what_a_listener_writes_is_told_after_what_made_it_write() -> None:
    store = Store()
    bucket = store.bucket("things")
    heard: list[tuple[str, str]] = []

    def complete(event: Event) -> None:
        if event.type == "ADDED":
            bucket.put("", event.entry.name, {**event.entry.copy(), "status": "complete"})

    bucket.listeners.append(complete)
    store.listeners.append(lambda event: heard.append((event.type, event.entry.name)))
    bucket.put("", "a", {"metadata": {"name": "a"}})
    assert heard == [("ADDED", "a"), ("MODIFIED", "a")]


def test_a_listener_that_leaves_keeps_nobody_else_from_hearing() -> None:
    store = Store()
    bucket = store.bucket("things")
    heard: list[str] = []

    def once(event: Event) -> None:
        bucket.listeners.remove(once)

    bucket.listeners += [once, lambda event: heard.append(event.entry.name)]
    bucket.put("", "a", {"metadata": {"name": "a"}})
    assert heard == ["a"]


def test_a_listener_that_fails_keeps_nobody_else_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    bucket = store.bucket("things")
    heard: list[tuple[str, str]] = []

    def complete(event: Event) -> None:
        if event.type == "ADDED":
            bucket.put("", event.entry.name, {**event.entry.copy(), "status": "complete"})
            raise RuntimeError("no more")

    bucket.listeners.append(complete)
    store.listeners.append(lambda event: heard.append((event.type, event.entry.name)))
    bucket.put("", "a", {"metadata": {"name": "a"}})
    assert heard == [("ADDED", "a"), ("MODIFIED", "a")]
    assert "no more" in caplog.text
