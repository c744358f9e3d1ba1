"""A journal read from its files, and decided again: as it was configured then, and with another configuration beside it (BEY-REPLAY-01)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from koord import seams
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.process.errors import ConfigurationError
from roles.scheduler.framework.registry import PluginError
from roles.scheduler.journal.lines import Decided, Happening, Operation, Told, read
from roles.scheduler.replaying import Moment, Replay, Turn, turns
from roles.tools.replay.causes import difference
from roles.tools.replay.files import readable
from roles.tools.replay.found import Found


def items_of(files: list[Path]) -> Iterator[Any]:
    """The items of a journal. Raises ConfigurationError."""
    for file in files:
        with readable(file):
            yield from read(file)


class Run:
    """Decides a journal again. `each` is told of every decision as it is decided now. Raises ConfigurationError."""

    def __init__(self, config: KubeSchedulerConfiguration | None = None, each: Callable[[Turn], None] = lambda turn: None) -> None:
        self.found = Found(config=config is not None)
        self._config, self._each = config, each
        self._moment = Moment()
        self._then: Replay | None = None
        self._other: Replay | None = None
        self._skipping = False
        self._last: Turn | None = None  # as it was configured then

    def run(self, files: list[Path]) -> Found:
        """All of it."""
        token, began = seams.use(self._moment), self._moment.cpu_time()
        try:
            turns(items_of(files), self._take, self._turn)
        finally:
            seams.leave(token)
        return self.found.ended(files, self._moment.cpu_time() - began)

    def _take(self, item: dict[str, Any] | Told | Happening | None) -> None:
        if isinstance(item, dict):
            self._begin(item)
        elif self._skipping:
            self._skipping = item is not None
        else:
            if isinstance(item, Happening) and item.what is Operation.OUTSIDE:
                self.found.outside += 1
            for replay in self._replays():
                replay.take(item)

    def _replays(self) -> list[Replay]:
        return [replay for replay in (self._then, self._other) if replay is not None]

    def _begin(self, head: dict[str, Any]) -> None:
        self._skipping = bool(head.get("continues")) and self._then is not None
        if self._skipping:
            return
        try:
            self.found.versions[str(head.get("koord"))] += 1
            self._then = Replay(head, self._moment)
            self._then.told = self._decided_then
            if self._config is not None:
                self._other = Replay(head, self._moment, config=self._config)
                self._other.told = self._decided
        except (PluginError, ValueError, LookupError, TypeError) as error:
            raise ConfigurationError(f"the scheduler of the journal cannot be made: {error}") from error

    def _turn(self, item: Happening, then: Decided | None) -> None:
        if self._then is None or self._skipping:
            return
        self._last = None
        for replay in self._replays():
            replay.turn(item, then)

    def _decided_then(self, turn: Turn) -> None:
        self._last = turn
        self.found.repeated += turn.same
        if self._other is None:
            self._decided(turn)

    def _decided(self, turn: Turn) -> None:
        found = self.found
        found.count(turn.now, repeated=False, same=turn.same, alike=turn.alike)
        self._each(turn)
        if not turn.same:
            found.differences.append(difference(turn, self._last if self._other is not None else None))
