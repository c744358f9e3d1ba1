"""Wiring of the runtime proxy: engine first, then the store, then the listen socket (RP-CLI-01)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc
import grpc.aio

from koord.process.http import OpsServer
from koord.process.life import Life
from koord.protocols import cri_pb2 as cri
from roles.runtime_proxy import metrics, sockets
from roles.runtime_proxy.forward import Forwarder
from roles.runtime_proxy.hookclient import CHANNEL_OPTIONS, HookClient
from roles.runtime_proxy.interceptor import Interceptor
from roles.runtime_proxy.options import Options
from roles.runtime_proxy.registration import RegistrationDirectory

log = logging.getLogger(__name__)

_ENGINE_RETRY = (0.2, 5.0)  # first and longest pause, seconds


class App:
    """One proxy. `listening` is set once kubelet may connect."""

    def __init__(self, options: Options, *, ops: OpsServer | None = None) -> None:
        self._options = options
        self._ops = ops
        self.listening = asyncio.Event()
        self.registrations = RegistrationDirectory(options.hook_directory)
        self.hooks = HookClient(options.hook_timeout)
        self.metrics = metrics.Metrics(ops.registry if ops is not None else None)
        self.interceptor = Interceptor(
            self.hooks, lambda: self.registrations.servers, (options.skip_key, options.skip_value), self.metrics.hook
        )

    async def run(self, life: Life) -> None:
        """Serve until `life.stopping`; calls in flight then have two seconds to end."""
        options = self._options
        temporary = sockets.prepare(options.endpoint)
        with contextlib.suppress(OSError):
            options.hook_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.registrations.refresh()
        forwarder = Forwarder(str(options.engine), self.interceptor, self.metrics.request)
        tasks: list[asyncio.Task[None]] = []
        server = grpc.aio.server(options=CHANNEL_OPTIONS, maximum_concurrent_rpcs=options.concurrency)
        try:
            if not await _unless_stopping(life, self._greet(forwarder)):
                return
            server.add_generic_rpc_handlers((forwarder,))
            server.add_insecure_port(f"unix:{temporary}")
            await server.start()
            sockets.publish(temporary, options.endpoint)
            self.listening.set()
            if self._ops is not None:
                self._ops.health.set("engine", True, "the engine answered and the socket is served")
            log.info("listening on %s, engine at %s", options.endpoint, options.engine)
            tasks = [asyncio.create_task(self._watch_registrations()), asyncio.create_task(self._relist(forwarder))]
            await life.stopping.wait()
            log.info("shutting down")
        finally:
            for task in tasks:
                task.cancel()
            if self.listening.is_set():
                options.endpoint.unlink(missing_ok=True)
            await server.stop(2)
            await forwarder.close()
            await self.hooks.close()

    async def _greet(self, forwarder: Forwarder) -> None:
        """Ask the engine for its version until it answers, then take over what it runs.

        Kubelet must not meet a proxy that cannot forward.
        """
        pause = _ENGINE_RETRY[0]
        while True:
            try:
                version = cri.VersionResponse.FromString(await forwarder.ask("Version", cri.VersionRequest(), timeout=5))
                await self._rebuild(forwarder)
            except grpc.aio.AioRpcError as error:
                log.warning("the engine at %s does not answer yet: %s %s", self._options.engine, error.code().name, error.details())
                await asyncio.sleep(pause)
                pause = min(pause * 2, _ENGINE_RETRY[1])
                continue
            log.info("engine %s %s, CRI %s", version.runtime_name, version.runtime_version, version.runtime_api_version)
            return

    async def _rebuild(self, forwarder: Forwarder) -> None:
        pods = cri.ListPodSandboxResponse.FromString(await forwarder.ask("ListPodSandbox", cri.ListPodSandboxRequest(), timeout=30))
        containers = cri.ListContainersResponse.FromString(await forwarder.ask("ListContainers", cri.ListContainersRequest(), timeout=30))
        store = self.interceptor.store
        if orphans := store.rebuild(pods, containers):
            log.warning("%d containers belong to sandboxes that the engine does not list, e.g. %s", len(orphans), orphans[0])
        self.metrics.store(len(store.pods), len(store.containers))

    async def _watch_registrations(self) -> None:
        while True:
            await asyncio.sleep(self._options.rescan)
            if self.registrations.refresh():
                self.metrics.reloaded()
                await self.hooks.keep_only({server.endpoint for server in self.registrations.servers})

    async def _relist(self, forwarder: Forwarder) -> None:
        """Drop what was killed or removed behind the proxy's back."""
        while True:
            await asyncio.sleep(self._options.relist)
            try:
                await self._rebuild(forwarder)
            except grpc.aio.AioRpcError as error:
                log.warning("cannot compare the store with the engine: %s %s", error.code().name, error.details())


async def _unless_stopping(life: Life, work: Any) -> bool:
    """Run `work` to its end; False when the process was told to stop before."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(life.stopping.wait())
    done, pending = await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    for other in pending:
        other.cancel()
    if task in done:
        task.result()
        return True
    return False
