"""The embedded API server as an object: start it, talk to it over HTTP, stop it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from aiohttp import web

from koord.apiserver.config import ServerConfig
from koord.apiserver.controllers.registry import Controllers
from koord.apiserver.core import Core, seed
from koord.apiserver.disk import Disk
from koord.apiserver.web.handler import MAX_BODY, MAX_LINE, Front

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http import RawRequestMessage
    from aiohttp.streams import StreamReader
    from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)


def _make_request(
    message: RawRequestMessage, payload: StreamReader, protocol: RequestHandler, writer: AbstractStreamWriter, task: asyncio.Task[None]
) -> web.BaseRequest:
    """A request that may carry a big object."""
    return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=MAX_BODY)


HEAD_SECONDS = 32.0  # for the head of a connection's first request, as kube-apiserver waits


class _Listening(web.Server):
    """Connections that say nothing are closed: each holds a file descriptor, and there are only so many."""

    def __init__(self, front: Front) -> None:
        super().__init__(
            self._answer,
            request_factory=_make_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=300,
            max_line_size=MAX_LINE,
        )
        self._front = front
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> RequestHandler:
        protocol = super().__call__()
        self._silent[protocol] = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._give_up, protocol)
        return protocol

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._heard(handler)
        super().connection_lost(handler, exc)

    def _heard(self, protocol: RequestHandler) -> None:
        if (waiting := self._silent.pop(protocol, None)) is not None:
            waiting.cancel()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._heard(request.protocol)
        return await self._front.handle(request)

    def _give_up(self, protocol: RequestHandler) -> None:
        del self._silent[protocol]
        if protocol.transport is not None:
            protocol.transport.abort()


class ApiServer:
    """One API server with its own store.

    `await start()` listens (port 0 picks a free one; `url` tells), `await stop()` ends watches and closes.
    Without listening, `core` serves in-process use: the functions of `koord.apiserver.rest` take it. Raises DiskError for a data
    directory that cannot be used.
    """

    def __init__(self, config: ServerConfig | None = None) -> None:
        self.config = config or ServerConfig()
        self.disk = Disk(self.config.data_dir) if self.config.data_dir else None
        if self.disk is not None:
            self.core = Core(self.config, self.disk.load(), self.disk.signing_key())
        else:
            self.core = Core(self.config)
        self.front = Front(self.core)
        self.controllers = Controllers(self.core)
        self.url = ""
        self.host, self.port = "", 0
        self._runner: web.ServerRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Something that goes on until the server stops."""
        self._tasks.append(asyncio.create_task(work, name=name))

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        """Seed the store, start the controllers and listen."""
        seed(self.core)
        self.controllers.start()
        self._runner = web.ServerRunner(_Listening(self.front), shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls, backlog=512)
        await site.start()
        bound = self._runner.addresses[0]
        self.host, self.port = host, int(bound[1])
        shown = f"[{host}]" if ":" in host else ("127.0.0.1" if host == "0.0.0.0" else host)
        self.url = f"{'https' if tls else 'http'}://{shown}:{self.port}"
        if self.disk is not None:
            self._tasks.append(asyncio.create_task(self.disk.keep(), name="checkpoints"))

    async def stop(self) -> None:
        """End everything; the data directory is let go last."""
        self.front.ready = False
        self.front.objects.watches.stop()
        self.controllers.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.core.admission.webhooks.caller.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self.disk is not None:
            self.core.store.disk = None
            self.disk.close()
            self.disk = None
