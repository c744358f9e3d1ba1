"""Keeps a decision that is made in slices on one state: while the gate is closed nobody looks at the scheduler's state or changes it.

What informers tell is held back, merged by object, and told when the gate has opened, in the order of each object's first change. Tasks
that look at the state (bindings, evictions, controllers of plugins) are driven: after an answer, a pause or whatever else they waited for
they go on when the gate is open. Health checks and the lease need neither.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from roles.scheduler.cluster.defects import DEFECTS

log = logging.getLogger(__name__)

T = TypeVar("T")
Tell = Callable[[Any, Any], object]
"""Told of an object as it was told before and as it is now; None for "not there"."""


@dataclass(slots=True)
class _Held:
    tell: Tell
    old: Any
    new: Any


class Gate:
    """Open unless a sliced decision is under way. One event loop."""

    def __init__(self) -> None:
        self.closed = False
        self.most_held = 0  # objects, at the worst moment since the start
        self._held: dict[Hashable, _Held] = {}
        self._opened = asyncio.Event()
        self._opened.set()

    @property
    def held_back(self) -> int:
        """How many objects' changes are held back."""
        return len(self._held)

    def close(self) -> None:
        """From now on one state."""
        self.closed = True
        self._opened.clear()

    def open(self) -> None:
        """The state may be seen and changed again. What was held back is told by `deliver`."""
        self.closed = False
        self._opened.set()

    async def passed(self) -> None:
        """Wait until the state may be seen and changed."""
        while self.closed:
            await self._opened.wait()

    async def drive(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine function each of whose steps finds the gate open. What it starts as tasks of their own is not covered."""
        return await _driven(self, function(*args))

    # ---------------------------------------------------------------- events

    def handlers(self, tell: Tell) -> tuple[Callable[[Any], None], Callable[[Any, Any], None], Callable[[Any], None]]:
        """Handlers for an informer (add, update, delete) that tell `tell` when the gate allows it."""
        return (
            lambda new: self._receive(tell, None, new),
            lambda old, new: self._receive(tell, old, new),
            lambda old: self._receive(tell, old, None),
        )

    def _receive(self, tell: Tell, old: Any, new: Any) -> None:
        if not self.closed and not self._held:
            tell(old, new)
            return
        key = (tell, _name_of(new if new is not None else old))
        held = self._held.get(key)
        if held is None:
            self._held[key] = _Held(tell, old, new)
            self.most_held = max(self.most_held, len(self._held))
        elif new is None and held.old is None:
            del self._held[key]  # it came and went
        else:
            held.new = new

    def deliver(self) -> Iterator[None]:
        """Tell what was held back, one object a step; what comes meanwhile too."""
        while self._held and not self.closed:
            held = self._held.pop(next(iter(self._held)))
            try:
                held.tell(held.old, held.new)
            except DEFECTS:  # as informers do: one object's mistake is not the others'
                log.exception("a change of %s could not be taken over", _name_of(held.new or held.old))
            yield


@types.coroutine
def _driven(gate: Gate, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    failure: BaseException | None = None
    try:
        while True:
            while gate.closed and failure is None:
                try:
                    yield from gate.passed().__await__()
                except BaseException as raised:  # cancelled: the work is told so, where it waits
                    failure = raised
            try:
                waiting = work.send(None) if failure is None else work.throw(failure)
            except StopIteration as end:
                return cast(T, end.value)
            failure = None
            try:
                yield waiting
            except BaseException as raised:
                failure = raised
    finally:
        work.close()


def _name_of(obj: Any) -> Hashable:
    """What tells objects of a kind apart."""
    key = getattr(obj, "key", None)
    if isinstance(key, str):
        return key
    meta = getattr(obj, "metadata", None)
    return (getattr(meta, "namespace", ""), getattr(meta, "name", "")) if meta is not None else id(obj)
