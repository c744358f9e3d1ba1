"""The API server of a world: its lives, its addresses and its disk."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from koord.apiserver import manifests
from koord.apiserver.config import ServerConfig
from koord.apiserver.server import ApiServer
from roles.sandbox import objects
from roles.sandbox.world.environment import ADDRESSES, API_SERVER, NAME
from roles.sandbox.world.history import AUTHOR, HEADER, entry_bucket
from roles.sandbox.world.process import Process

if TYPE_CHECKING:
    from koord.apiserver.store import Store
    from roles.sandbox.world.environment import Environment

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
WEBHOOKS = ("10.96.0.10", 443)
TWO = 0.2  # of the worlds in which none of its addresses fails know both


class Server:
    """The API server, which may die and come back. It has two addresses, of which clients know both if it
    `fails_over`, and else sometimes; its disk is a directory, if it has one.

    `crds` are installed at each start. A life that begins with the disk of the last one is held against the history: what was written is
    there, and no version is given out twice. `meddle(handle, request)` answers in its place.
    """

    def __init__(self, world: Environment, crds: list[dict[str, Any]], *, fails_over: bool = False) -> None:
        self.world = world
        self.api: ApiServer
        self.process: Process
        self.meddle: Callable[[Handle, web.BaseRequest], Awaitable[web.StreamResponse]] = lambda handle, request: handle(request)
        self._crds = crds
        self._folder: Path | None = None
        self._number = 0
        self._former: list[tuple[Process, ApiServer]] = []  # what the dead held must not be collected: its `finally` would run
        network = world.network
        # a client that finds two races them, which costs a tenth of a world
        two = fails_over or random.Random(f"{world.seed}/addresses").random() < TWO
        network.names[NAME] = ADDRESSES if two else ADDRESSES[:1]
        for address in ADDRESSES:
            if address != API_SERVER[0]:
                network.services[(address, API_SERVER[1])] = lambda: API_SERVER
        network.services[WEBHOOKS] = self._manager

    @property
    def store(self) -> Store:
        """What it has stored."""
        return self.api.core.store

    def use_disk(self) -> None:
        """Keep everything on disk from the next start on."""
        self._folder = self.world.scratch / f"disk-{self._number}"

    async def start(self) -> None:
        """Begin a life, with the disk as it is."""
        world = self.world
        self._number += 1
        self.process = Process(world.loop, "apiserver", self._number, world.clock("apiserver"), world.seed, API_SERVER[0])
        await world.loop.create_task(self._serve(), context=self.process.context)

    async def _serve(self) -> None:
        service = f"{objects.SYSTEM_NAMESPACE}/koordinator-webhook-service"
        # kube-apiserver's minute, or often: a client asks of a watch that says nothing for long
        bookmarks = random.Random(f"{self.world.seed}/bookmarks").choice((15.0,) * 7 + (60.0,))
        bookmarks = 15.0 if self.world.spec.herd else bookmarks  # sooner than a watch is asked: that costs more
        webhooks = {service: f"{WEBHOOKS[0]}:{WEBHOOKS[1]}"}
        mode = "RBAC" if self.world.spec.policies else "AlwaysAllow"
        config = ServerConfig(webhook_services=webhooks, data_dir=self._folder, bookmark_seconds=bookmarks, authorization_mode=mode)
        self.api = ApiServer(config)
        handle, history = self.api.front.handle, self.world.history

        async def named(request: web.BaseRequest) -> web.StreamResponse:
            author = request.headers.get(HEADER, "")
            AUTHOR.set((author, f"{request.method} {request.raw_path}"))
            history.requested(author, request.method, request.raw_path)
            return await self.meddle(handle, request)

        self.api.front.handle = named  # type: ignore[method-assign]
        if self._number > 1:
            self._compare()
        self.store.listeners.append(history.on_store)
        await self.api.start(*API_SERVER)
        await manifests.install(self.api.core, self._crds)

    def _compare(self) -> None:
        """Hold what was found on disk against the history."""
        history = self.world.history
        found = {}
        for bucket in self.store.buckets.values():
            for entry in bucket.entries.values():
                key = f"{entry.namespace}/{entry.name}" if entry.namespace else entry.name
                found[entry_bucket(entry.obj), key] = entry.obj["metadata"]["resourceVersion"]
        for name, table in history.objects.items():
            for key, obj in table.items():
                version = obj["metadata"]["resourceVersion"]
                if found.get((name, key)) != version:
                    history.tell("lost", key, f"{name} at version {version}, found {found.get((name, key), 'nothing')}")
        if self.store.rv < history.version:
            history.tell("lost", "versions", f"version {self.store.rv + 1} is given out again, {history.version} was the last one")

    def crash(self) -> None:
        """As kill -9. The kernel closes its files and connections."""
        self.process.kill()
        disk = self.api.disk
        if disk is not None:
            disk._database.close()
            os.close(disk._lock)
        self._former.append((self.process, self.api))

    def wipe(self) -> None:
        """Its disk is lost: the next life knows nothing."""
        if self._folder is not None:
            self.use_disk()
        self.world.history.wipe()

    def _manager(self) -> tuple[str, int] | None:
        """The manager behind the webhooks' Service: any that listens."""
        world = self.world
        ready = [(world.addresses[name], 9876) for name in world.programs if name.startswith("manager-")]
        ready = [address for address in ready if world.network.serves(address)]
        return ready[world.rules.rng.randrange(len(ready))] if ready else None
