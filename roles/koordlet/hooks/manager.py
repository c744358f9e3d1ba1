"""Runs the hooks: learns their rules, keeps the reconciler going, and lets runtimes ask (KA-RH-03, KA-RH-04)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.hooks.asking import Asking
from roles.koordlet.hooks.reconciler import Pass, Reconciler
from roles.koordlet.hooks.registry import make_hooks
from roles.koordlet.options import Options
from roles.koordlet.states.callbacks import Callbacks, StateKind
from roles.koordlet.states.model import Snapshot

if TYPE_CHECKING:
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
    ) -> None:
        self._interval = options.runtime_hooks_reconcile_interval
        self._snapshot = snapshot
        self.asking = Asking(
            make_hooks(options, gate),
            strict=options.runtime_hooks_plugin_failure_policy == "Fail",
            observe=lambda hook, stage, seconds, worked: metrics.hook_duration.observe(
                seconds * 1000, hook, stage, "succeeded" if worked else "failed"
            ),
        )
        self.reconciler = Reconciler(self.asking, executor=executor, modes=modes, metrics=metrics)
        self._wanted = asyncio.Event()
        self._held_back: set[str] = set()

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
        await _either(stopping, synced, None)
        retry = 0.0
        while not stopping.is_set():
            if self._wanted.is_set():
                self._wanted.clear()
                retry = 0.0
            done = await self.once()
            retry = min(retry * _RETRY_GROWTH, self._interval) if retry else _RETRY_FIRST
            if done is None or not done.absent:
                retry = 0.0
            await _either(stopping, self._wanted, min(retry or self._interval, self._interval))

    async def once(self) -> Pass | None:
        """Learn the rules and do one pass; None when there is too little to go by."""
        snapshot = self._snapshot()
        if not snapshot.pods_synced:
            return None
        done = await self.reconciler.run(snapshot, self.asking.learn(snapshot))
        if done.held_back != self._held_back:
            for name in sorted(done.held_back - self._held_back):
                log.error("hook %s only observes where old values cannot be put on record", name)
            self._held_back = done.held_back
        return done


async def _either(stopping: asyncio.Event, event: asyncio.Event, seconds: float | None) -> None:
    """Wait for one of two events, or so long."""
    waiters = {asyncio.ensure_future(e.wait()) for e in (stopping, event)}
    try:
        await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
