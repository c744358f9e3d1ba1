"""What all controllers share: a queue, one worker that lets others have the event loop, and how a failure is told."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable

from koord import seams
from koord.kube.errors import ApiError
from koord.kube.workqueue import WorkQueue
from roles.manager.controllers.writer import NotLeading

log = logging.getLogger("koord.manager")

ROLE = "manager"
"""Of decision records."""

EVERYTHING = "*"
"""The key that stands for all keys: they are queued one after the other, with pauses, and no object can have this name."""

SLICE = 0.002
"""Seconds that a controller computes before others get the event loop, which answers webhooks and renews the lease."""


class Turns:
    """Lets others have the event loop after each slice of computing."""

    def __init__(self, slice: float = SLICE, clock: Callable[[], float] = seams.perf_counter) -> None:
        self._slice, self._clock = slice, clock
        self._began = clock()

    async def pause(self) -> None:
        """Give the loop away if the slice is used up."""
        if self._clock() - self._began >= self._slice:
            await seams.sleep(0)
            self._began = self._clock()


class Controller(ABC):
    """Keys come into `queue` from informer handlers; `reconcile` makes the state right for one key.

    Neither taking a key nor reconciling without a write suspends: `turns` does, between keys, and in every loop over many objects.
    """

    name: str

    def __init__(self) -> None:
        self.queue = WorkQueue(self.name)
        self.turns = Turns()

    @abstractmethod
    def attach(self) -> None:
        """Listen: informer handlers put keys into the queue."""

    @abstractmethod
    async def reconcile(self, key: str) -> float | None:
        """Make one key right. Seconds after which to look again, or None. Raising means: again, with back-off."""

    async def prepare(self) -> None:  # noqa: B027 - most need to know nothing
        """What has to be known before any controller acts, when this replica has taken the lead."""

    @property
    def queues(self) -> tuple[WorkQueue, ...]:
        """What metrics are kept of."""
        return (self.queue,)

    @abstractmethod
    def keys(self) -> Iterable[str]:
        """Every key there is, also of what has to be removed, for EVERYTHING."""

    def stand_by(self) -> None:
        """This replica does not lead: keys would wait for ever, also those of what is gone."""
        for queue in self.queues:
            queue.hold()

    def take_over(self) -> None:
        """This replica leads: whatever has changed until now, everything is looked at."""
        for queue in self.queues:
            queue.resume()
        self.queue.add(EVERYTHING)

    async def run(self) -> None:
        """One worker, for ever. Ends when leadership is gone."""
        try:
            while True:
                key = await self.queue.get()
                if key == EVERYTHING:
                    await self._queue_everything()
                elif not await self._work(key):
                    log.info("controller %s stops: this replica does not lead any more", self.name)
                    return
                await self.turns.pause()
        finally:
            self.queue.close()

    async def _queue_everything(self) -> None:
        self.queue.done(EVERYTHING)  # first: what changes from here on makes another round necessary
        for key in list(self.keys()):
            self.queue.add(key)
            await self.turns.pause()

    async def _work(self, key: str) -> bool:
        """One key of `queue`. False when this replica does not lead any more."""
        return await self._work_on(self.queue, key, self.reconcile)

    async def _work_on(self, queue: WorkQueue, key: str, look: Callable[[str], Awaitable[float | None]]) -> bool:
        """One key, whatever comes of it. False when this replica does not lead any more."""
        try:
            again = await look(key)
        except NotLeading:
            return False
        except ApiError as error:
            log.warning("%s %s: %s; again in %.3fs", self.name, key, error, queue.failed(key))
            return True
        except Exception as error:  # one bad object must not stop the others
            log.error("%s %s failed; again in %.3fs", self.name, key, queue.failed(key), exc_info=error)
            return True
        queue.done(key)
        if again is not None:
            self.queue.add_after(key, max(again, 0.001))
        return True
