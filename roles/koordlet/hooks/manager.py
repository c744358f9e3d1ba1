"""Runs the hooks: learns their rules, keeps the reconciler going, and lets runtimes ask (KA-RH-01 to KA-RH-04)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from koord import seams
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.hooks.asking import Asking
from roles.koordlet.hooks.context import Stage
from roles.koordlet.hooks.delivery import OWNER, Delivery, Fetch, never
from roles.koordlet.hooks.ignored import Ignored
from roles.koordlet.hooks.reconciler import Pass, Reconciler
from roles.koordlet.hooks.registry import make_hooks
from roles.koordlet.hooks.server import HookServer, ServerError, registration, stages_with_hooks
from roles.koordlet.nri.runner import NRIRunner
from roles.koordlet.options import Options
from roles.koordlet.qos.outcome import Notice
from roles.koordlet.states.callbacks import Callbacks, StateKind
from roles.koordlet.states.model import Snapshot
from roles.koordlet.waiting import either

if TYPE_CHECKING:
    from roles.koordlet.hooks.service import HookService
    from roles.koordlet.metrics.registry import Metrics

log = logging.getLogger(__name__)

#: A new pod's directories appear within moments of it being listed; then writing is tried again after so many seconds.
_RETRY_FIRST, _RETRY_GROWTH = 1.0, 2.0


class HooksManager:
    """Built with what the node agent has; :meth:`register` and :meth:`run` are all that it has to call."""

    def __init__(
        self,
        options: Options,
        executor: Executor,
        metrics: Metrics,
        gate: Callable[[str], bool],
        modes: Callable[[str], Mode],
        snapshot: Callable[[], Snapshot],
        notify: Callable[[Notice], None] = lambda notice: None,
        fetch: Fetch = never,
    ) -> None:
        self._options = options
        self._executor = executor
        self._modes = modes
        self._interval = options.runtime_hooks_reconcile_interval
        self._snapshot = snapshot
        self._fetch = fetch
        self._ignored = Ignored(executor, notify)
        self.asking = Asking(
            make_hooks(options, gate),
            strict=options.runtime_hooks_plugin_failure_policy == "Fail",
            observe=lambda hook, stage, seconds, worked: metrics.hook_duration.observe(
                seconds * 1000, hook, stage, "succeeded" if worked else "failed"
            ),
        )
        self.reconciler = Reconciler(self.asking, executor=executor, modes=modes, metrics=metrics, notify=notify)
        self._wanted = asyncio.Event()
        self._held_back: set[str] = set()
        self._disabled = disabled_stages(options.runtime_hooks_disable_stages)
        for hook in self.asking.hooks:
            hook.keep_record(executor)
        self._metrics = metrics
        self._registered = ""
        self._server = HookServer(options.runtime_hooks_network, self._address(), self._service, lost=self._lost)

    @property
    def names(self) -> tuple[str, ...]:
        """Hooks that are on."""
        return tuple(h.name for h in self.asking.hooks)

    def register(self, callbacks: Callbacks) -> None:
        """Have the reconciler run as soon as one of the states changes."""
        for kind in StateKind:
            callbacks.register(kind, "runtime hooks", self._wanted.set)

    async def run(self, stopping: asyncio.Event, synced: asyncio.Event) -> None:
        """Reconcile at each change and each interval until stopping. Nothing is decided before all states are synced."""
        log.info("hooks: %s", ", ".join(self.names) or "none")
        await either(stopping, synced)
        nri = self._start_nri(stopping)
        try:
            await self._loop(stopping)
        finally:
            await self._server.stop()
            if nri is not None:
                nri.cancel()
                await asyncio.gather(nri, return_exceptions=True)

    def _start_nri(self, stopping: asyncio.Event) -> asyncio.Task[None] | None:
        """The NRI plugin, which comes and goes with the runtime's socket."""
        options = self._options
        if not options.enable_nri_runtime_hook:
            return None
        path = os.path.join(self._executor.host.root.var_run, options.runtime_hooks_nri_socket_path.lstrip("/"))
        runner = NRIRunner(options, path, lambda: self._delivery("KA-RH-02"))
        task = asyncio.get_running_loop().create_task(runner.run(stopping), name="NRI plugin")
        task.add_done_callback(_complain)
        return task

    async def _loop(self, stopping: asyncio.Event) -> None:
        retry, listening, complaint = 0.0, False, ""
        while not stopping.is_set():
            if self._wanted.is_set():
                self._wanted.clear()
                retry = 0.0
            done = await self.once()
            if listening and self._registered and not _there(self._registered):
                log.error("the registration %s was taken away; it is written again", self._registered)
                await self._server.stop()
                listening = False
            if not listening and not stopping.is_set() and not self._options.observe_only:
                try:
                    await self._listen()
                    listening = True
                except ServerError as error:
                    # the reconciler does the same work without a runtime proxy: worth keeping
                    if str(error) != complaint:
                        log.error("%s; it is tried again", error)
                    complaint = str(error)
            retry = min(retry * _RETRY_GROWTH, self._interval) if retry else _RETRY_FIRST
            if done is None or not done.absent:
                retry = 0.0
            await either(stopping, self._wanted, seconds=min(retry or self._interval, self._interval))

    # -- the server ----------------------------------------------------------------------------------------------------------

    def _address(self) -> str:
        """Where to listen. The default is a mount of the DaemonSet; without that mount it is the directory that is mounted there."""
        address = self._options.runtime_hooks_addr
        if address != Options().runtime_hooks_addr or os.path.isdir(os.path.dirname(address)):
            return address
        return self._executor.host.root.var_run_path("koordlet", os.path.basename(address))

    def _delivery(self, feature: str) -> Delivery:
        return Delivery(
            self.asking,
            self.reconciler,
            self._executor,
            self._snapshot,
            self._modes,
            disabled=self._disabled,
            feature=feature,
            fetch=self._fetch,
        )

    def _service(self) -> HookService:
        from roles.koordlet.hooks.service import HookService

        return HookService(self._delivery("KA-RH-01"), self._options.default_runtime_type)

    async def _listen(self) -> None:
        await self._server.start()
        stages = stages_with_hooks(self.asking.hooks, self._disabled)
        options = self._options
        directory = self._executor.host.root.hooks_config
        batch, path = registration(directory, options.runtime_hooks_host_endpoint, options.runtime_hooks_failure_policy, stages)
        if all(self._modes(name) is Mode.OBSERVE for name in self.names):
            log.info("not registered with the runtime proxy: every hook only observes")
            return
        applied = self._executor.apply([batch], rule=OWNER, now=seams.now())
        if applied.failed or not _there(path):
            await self._server.stop()
            why = applied.failed[0].detail if applied.failed else f"{directory} is no directory"
            raise ServerError(f"hook registration {path} cannot be written: {why}")
        self._registered = path
        log.info("registered for %s in %s", ", ".join(stages) or "no stage", path)

    def _lost(self) -> None:
        self._metrics.hook_socket_lost.inc()

    # -- passes --------------------------------------------------------------------------------------------------------------

    async def once(self) -> Pass | None:
        """Learn the rules and do one pass; None when there is too little to go by."""
        snapshot = self._snapshot()
        if not snapshot.pods_synced:
            return None
        self._ignored.tell(snapshot)
        done = await self.reconciler.run(snapshot, self.asking.learn(snapshot))
        if done.held_back != self._held_back:
            for name in sorted(done.held_back - self._held_back):
                log.error("hook %s only observes where old values cannot be put on record", name)
            self._held_back = done.held_back
        return done


def disabled_stages(text: str) -> frozenset[Stage]:
    """``--runtime-hooks-disable-stages``; names that are no stage are told and left out."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in {str(s) for s in Stage}]
    if unknown:
        log.warning("--runtime-hooks-disable-stages: %s: accepted are %s", ", ".join(unknown), ", ".join(Stage))
    return frozenset(Stage(name) for name in names if name not in unknown)


def _there(path: str) -> bool:
    return os.path.exists(path)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the NRI plugin ended; hooks run by the reconciler and the runtime proxy", exc_info=error)
