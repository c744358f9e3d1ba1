"""Wiring of the runtime proxy: engine first, then the store, then the listen socket (RP-CLI-01)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from koord.process.http import OpsServer
from koord.process.life import Life
from koord.protocols import cri_pb2 as cri
from roles.runtime_proxy import metrics, recovery, sockets
from roles.runtime_proxy.forward import Forwarder
from roles.runtime_proxy.hookclient import CHANNEL_OPTIONS, HookClient
from roles.runtime_proxy.interceptor import Interceptor
from roles.runtime_proxy.options import Options
from roles.runtime_proxy.registration import RegistrationDirectory
from roles.runtime_proxy.stages import HookRules, Stages

log = logging.getLogger(__name__)

_ENGINE_RETRY = (0.2, 5.0)  # first and longest pause, seconds
_AT_A_TIME = 16  # questions to the engine while the store is rebuilt


class App:
    """One proxy. `listening` is set once kubelet may connect."""

    def __init__(self, options: Options, *, ops: OpsServer | None = None) -> None:
        self._options = options
        self._ops = ops
        self.listening = asyncio.Event()
        self.registrations = RegistrationDirectory(options.hook_directory)
        self.hooks = HookClient(options.hook_timeout)
        self.metrics = metrics.Metrics(ops.registry if ops is not None else None)
        rules = HookRules(options.skip_key, options.skip_value, options.hook_annotations)
        self.interceptor = Interceptor(Stages(self.hooks, lambda: self.registrations.servers, rules, self.metrics.hook))

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
            except (grpc.aio.AioRpcError, DecodeError) as error:
                log.warning("the engine at %s does not answer yet: %s", self._options.engine, _text(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _ENGINE_RETRY[1])
                continue
            log.info("engine %s %s, CRI %s", version.runtime_name, version.runtime_version, version.runtime_api_version)
            return

    async def _rebuild(self, forwarder: Forwarder) -> None:
        store = self.interceptor.store
        known = store.known()
        pods = cri.ListPodSandboxResponse.FromString(await forwarder.ask("ListPodSandbox", cri.ListPodSandboxRequest(), timeout=30))
        containers = cri.ListContainersResponse.FromString(await forwarder.ask("ListContainers", cri.ListContainersRequest(), timeout=30))
        added, orphans = store.rebuild(pods, containers, known)
        if orphans:
            log.warning("%d containers belong to sandboxes that the engine does not list, e.g. %s", len(orphans), orphans[0])
        # Pods first: a container takes its cgroup parent from its pod.
        await _each([i for i in added if i in store.pods], lambda i: self._complete_pod(forwarder, i))
        await _each([i for i in added if i in store.containers], lambda i: self._complete_container(forwarder, i))
        self.metrics.store(len(store.pods), len(store.containers))

    async def _complete_pod(self, forwarder: Forwarder, sandbox_id: str) -> None:
        response = await forwarder.sandbox_status(sandbox_id)
        record = self.interceptor.store.pods.get(sandbox_id)
        if response is not None and record is not None:
            recovery.complete_pod(record, response)

    async def _complete_container(self, forwarder: Forwarder, container_id: str) -> None:
        response = await forwarder.container_status(container_id)
        store = self.interceptor.store
        record = store.containers.get(container_id)
        if record is None:
            return
        pod = store.pods.get(store.sandbox_of(container_id))
        if pod is not None:
            record.pod_cgroup_parent = pod.cgroup_parent
        if response is not None:
            recovery.complete_container(record, response)

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
            except (grpc.aio.AioRpcError, DecodeError) as error:
                log.warning("cannot compare the store with the engine: %s", _text(error))


def _text(error: Exception) -> str:
    return f"{error.code().name} {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else f"{type(error).__name__}: {error}"


async def _each(items: list[str], work: Callable[[str], Awaitable[None]]) -> None:
    """Do `work` for each item, a few at a time."""
    room = asyncio.Semaphore(_AT_A_TIME)

    async def one(item: str) -> None:
        async with room:
            await work(item)

    await asyncio.gather(*(one(item) for item in items))


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
