"""Trains the peak models and keeps their checkpoints (KLO-PRED-01, KLO-PRED-02)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from koord import seams
from koord.process.steady import SteadyClock
from roles.koordlet.prediction.models import Models
from roles.koordlet.states.model import PodState
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView
from roles.koordlet.waiting import pause

HOUSEKEEPING = 60.0


class PredictionLoop:
    """Trains at once and then every training interval; a minute after the first training housekeeping begins."""

    def __init__(self, models: Models, store: MetricStore, pods: Callable[[], Sequence[PodState]]) -> None:
        self._models = models
        self._store = store
        self._pods = pods

    async def run(self, stopping: asyncio.Event, ready: asyncio.Event) -> None:
        """Wait until ``ready`` (usage is collected), load checkpoints, then train until stopped; checkpoints are written at the end."""
        await ready.wait()
        self._models.restore({p.uid for p in self._pods()}, seams.now())
        loop = asyncio.get_running_loop()
        clock = SteadyClock(monotonic=loop.time, slew=0.0)  # a clock that is set makes no model old
        next_training = loop.time()
        next_housekeeping = next_training + HOUSEKEEPING
        while not stopping.is_set():
            now, wall = clock(), seams.now()
            if loop.time() >= next_training:
                pods = self._pods()
                self._models.recall((pod.uid for pod in pods), now)
                self._models.train(MetricsView(self._store, wall), pods, now)
                next_training = loop.time() + self._models.options.training_interval
            if loop.time() >= next_housekeeping:
                self._models.expire(now)
                await self._checkpoint(now)
                next_housekeeping = loop.time() + HOUSEKEEPING
            await pause(stopping, max(min(next_training, next_housekeeping) - loop.time(), 0.01))
        await self._checkpoint(clock())

    async def _checkpoint(self, now: float) -> None:
        """A slow disk holds up nothing but this."""
        due = self._models.due(now)
        if due:
            self._models.wrote(await seams.to_thread(self._models.write, due), now)
