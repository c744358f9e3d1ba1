"""What all controllers share: a queue, one worker, and how a failure is told."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from koord.kube.errors import ApiError
from koord.kube.workqueue import WorkQueue
from roles.manager.controllers.writer import NotLeading

log = logging.getLogger("koord.manager")


class Controller(ABC):
    """Keys come into `queue` from informer handlers; `reconcile` makes the world right for one key."""

    name: str

    def __init__(self) -> None:
        self.queue = WorkQueue(self.name)

    @abstractmethod
    def attach(self) -> None:
        """Listen: informer handlers put keys into the queue."""

    @abstractmethod
    async def reconcile(self, key: str) -> float | None:
        """Make one key right. Seconds after which to look again, or None. Raising means: again, with back-off."""

    async def run(self) -> None:
        """One worker, for ever. Ends when leadership is gone."""
        try:
            while True:
                key = await self.queue.get()
                try:
                    again = await self.reconcile(key)
                except NotLeading:
                    log.info("controller %s stops: this replica does not lead any more", self.name)
                    return
                except asyncio.CancelledError:
                    raise
                except Exception as error:  # one bad object must not stop the others
                    delay = self.queue.failed(key)
                    if isinstance(error, ApiError):
                        log.warning("%s %s: %s; again in %.3fs", self.name, key, error, delay)
                    else:
                        log.exception("%s %s failed; again in %.3fs", self.name, key, delay)
                    continue
                self.queue.done(key)
                if again is not None:
                    self.queue.add_after(key, max(again, 0.001))
        finally:
            self.queue.close()
