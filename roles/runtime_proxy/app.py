"""Wiring of the runtime proxy: engine first, then the store, then the listen socket (RP-CLI-01)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import grpc.aio

from koord import seams
from koord.process import tuning
from koord.process.life import Life
from koord.process.notify import notify, stay_watched
from roles.runtime_proxy import metrics, sockets
from roles.runtime_proxy.hookclient import HookClient
from roles.runtime_proxy.options import DOCKER, Options
from roles.runtime_proxy.registration import RegistrationDirectory
from roles.runtime_proxy.stages import HookRules, Stages
from roles.runtime_proxy.store import Store

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from koord.process.http import OpsServer  # 5 MiB, and most proxies run without a port
    from roles.runtime_proxy.cri_backend import CRIBackend
    from roles.runtime_proxy.docker.backend import DockerBackend

    Backend = CRIBackend | DockerBackend  # each is imported only where it is the engine's

log = logging.getLogger(__name__)

_LAST = 2.0  # seconds at least of the time to drain that are kept for the end, when nobody new is served
_LOOK = 3.0  # seconds between two looks whether the socket is there
_ENGINE_RETRY = (0.2, 5.0)  # first and longest pause, seconds


class App:
    """One proxy. `listening` is set once kubelet may connect."""

    def __init__(self, options: Options, *, ops: OpsServer | None = None, registry: CollectorRegistry | None = None) -> None:
        """`registry` counts in place of that of `ops`; without either nothing is counted."""
        self._options = options
        self._ops = ops
        self.listening = asyncio.Event()
        self.registrations = RegistrationDirectory(options.hook_directory)
        self.hooks = HookClient(options.hook_timeout)
        registry = registry or (ops.registry if ops is not None else None)
        self.metrics = metrics.Metrics(registry) if registry is not None else metrics.Uncounted()
        rules = HookRules(options.skip_key, options.skip_value, options.hook_annotations)
        self._stages = Stages(self.hooks, lambda: self.registrations.servers, rules, self.metrics.hook)
        self.backend: Backend | None = None
        self._listed = False  # whether the last comparison with the engine succeeded
        self._first: asyncio.Task[None] | None = None  # the first comparison, where it takes longer than kubelet may wait

    @property
    def store(self) -> Store:
        """What is known of pods and containers; there is one once the app runs."""
        assert self.backend is not None
        return self.backend.store

    def _backend(self) -> Backend:
        options = self._options
        if options.mode == DOCKER:
            from roles.runtime_proxy.docker.backend import DockerBackend

            return DockerBackend(str(options.engine), self._stages, self.metrics.request, options.concurrency)
        from roles.runtime_proxy.cri_backend import CRIBackend

        return CRIBackend(str(options.engine), self._stages, self.metrics.request, options.concurrency)

    async def run(self, life: Life) -> None:
        """Serve until `life.stopping`; then calls under way have `Options.drain` seconds to end. Raises sockets.SocketError."""
        options = self._options
        listener = sockets.listener(options.endpoint)
        with contextlib.suppress(OSError):
            options.hook_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.registrations.refresh()
        tasks: list[asyncio.Task[None]] = []
        last = min(options.drain, _LAST)
        backend = self.backend = self._backend()
        try:
            if not await _unless_stopping(life, self._greet(backend)):
                return
            await backend.listen(listener.open())
            self.listening.set()
            if self._ops is not None:
                self._ops.health.set("engine", True, "the engine answered and the socket is served")
            notify("READY=1")
            life.spawn(stay_watched(life.stopping, lambda: True), "signs of life")
            log.info("listening on %s, engine at %s", options.endpoint, options.engine)
            self.hooks.connect(self._endpoints())
            tuning.freeze()
            tuning.give_back()  # what starting took and nobody holds any more
            work = (self._watch_registrations(), self._relist(backend), _stay_there(backend, listener))
            tasks = [asyncio.create_task(each) for each in work]
            await life.stopping.wait()
            log.info("shutting down")
            notify("STOPPING=1")
            # New callers are served meanwhile: an image may take minutes to pull, and kubelet must not be without a runtime for it.
            end = asyncio.get_running_loop().time() + options.drain
            await backend.drain(max(options.drain - _LAST, 0.0))
            last = max(end - asyncio.get_running_loop().time(), last)
        finally:
            for task in (*tasks, *([self._first] if self._first is not None else ())):
                task.cancel()
            listener.close()
            await backend.close(last)
            await self._stages.close()
            await self.hooks.close()

    async def _greet(self, backend: Backend) -> None:
        """Ask the engine who it is until it answers, then take over what it runs.

        Kubelet must not meet a proxy that cannot forward. One that does not know yet what runs can: an engine that answers but
        cannot list, or takes its time to, must not keep the node from its runtime. What it is busy with is not asked for again.
        """
        now = asyncio.get_running_loop().time
        pause, deadline = _ENGINE_RETRY[0], None
        while True:
            answered = False
            try:
                engine = await backend.greet()
                answered, deadline = True, deadline or now() + self._options.patience
                if not await self._rebuilt(backend, deadline - now()):
                    log.error(
                        "the engine does not tell within %g s what it runs; until it does, that is forwarded without hooks",
                        self._options.patience,
                    )
                    return
            except backend.errors as error:
                if answered and deadline is not None and now() + pause > deadline:
                    log.error("the engine does not tell what it runs: %s; until it does, that is forwarded without hooks", _text(error))
                    return
                log.warning("the engine at %s does not answer yet: %s", self._options.engine, _text(error))
                await seams.sleep(pause)
                pause = min(pause * 2, _ENGINE_RETRY[1])
                continue
            log.info("engine: %s; %d pods, %d containers", engine, len(backend.store.pods), len(backend.store.containers))
            return

    async def _rebuilt(self, backend: Backend, seconds: float) -> bool:
        """Compare the store with the engine; False: that takes longer, and goes on. Raises what `rebuild` raises."""
        work = self._first = asyncio.create_task(self._rebuild(backend))
        try:
            done, _ = await asyncio.wait({work}, timeout=max(seconds, 0.0))
        except asyncio.CancelledError:
            work.cancel()
            raise
        if not done:
            return False
        self._first = None
        work.result()
        return True

    async def _rebuild(self, backend: Backend) -> None:
        self._listed = False
        await backend.rebuild()
        self._listed = True
        self.metrics.store(len(backend.store.pods), len(backend.store.containers))

    def _endpoints(self) -> set[str]:
        return {server.endpoint for server in self.registrations.servers}

    async def _watch_registrations(self) -> None:
        while True:
            await seams.sleep(self._options.rescan)
            if self.registrations.refresh():
                self.metrics.reloaded()
                await self.hooks.keep_only(self._endpoints())
                self.hooks.connect(self._endpoints())

    async def _relist(self, backend: Backend) -> None:
        """Drop what was killed or removed behind the proxy's back; sooner again after a list that failed."""
        while True:
            try:
                if self._first is not None:
                    first, self._first = self._first, None
                    await first
                    log.info("the engine has told: %d pods, %d containers", len(backend.store.pods), len(backend.store.containers))
                else:
                    await seams.sleep(self._options.relist if self._listed else min(self._options.relist, _ENGINE_RETRY[1]))
                    await self._rebuild(backend)
            except backend.errors as error:
                log.warning("cannot compare the store with the engine: %s", _text(error))


async def _stay_there(backend: Backend, listener: sockets.Listener) -> None:
    """A socket whose file was taken away has no callers, and nothing tells: look, and make it anew. Calls under way go on."""
    complaint = ""
    while True:
        await seams.sleep(_LOOK)
        if not listener.lost():
            continue
        try:
            await backend.listen(listener.open())
            log.error("the socket was taken away or replaced; it is made again")
            complaint = ""
        except (sockets.SocketError, OSError) as error:
            if str(error) != complaint:
                log.error("the socket was taken away or replaced, making it again is tried: %s", error)
            complaint = str(error)


def _text(error: Exception) -> str:
    return f"{error.code().name} {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else f"{type(error).__name__}: {error}"


async def _unless_stopping(life: Life, work: Any) -> bool:
    """Run `work` to its end; False when the process was told to stop before."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(life.stopping.wait())
    _, pending = await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    for other in pending:
        other.cancel()
    if task.done():
        task.result()
        return True
    return False
