"""A process of the world: what it runs belongs to it, lives by its host's clock, and dies with it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from koord import seams

if TYPE_CHECKING:
    from koord.process.health import Health

log = logging.getLogger(__name__)

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("koord.world.process", default=None)
"""The process that a task or callback belongs to; None: the world itself."""
EPOCH = 1_767_225_600.0  # wall clock at the beginning of every world: 2026-01-01T00:00:00Z


class Clock:
    """The clocks of one host. `offset`: seconds by which its wall clock is wrong."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.offset = 0.0

    def now(self) -> float:
        return EPOCH + self._loop.time() + self.offset

    def monotonic(self) -> float:
        return self._loop.time() + 1000.0


class Surroundings(seams.System):
    """The seams of a process in a world."""

    def __init__(self, clock: Clock, host: str, seed: str) -> None:
        self._clock = clock
        self._host = host
        self.random = random.Random(seed)
        self._secrets = random.Random(f"{seed}/secrets")
        self.now = clock.now  # type: ignore[method-assign]
        self.monotonic = clock.monotonic  # type: ignore[method-assign]
        self.boottime = clock.monotonic  # type: ignore[method-assign]
        self.perf_counter = clock.monotonic  # type: ignore[method-assign]

    def cpu_time(self) -> float:
        return self._clock.monotonic()

    def token_bytes(self, count: int) -> bytes:
        return self._secrets.randbytes(count)

    def hostname(self) -> str:
        return self._host

    def settle(self) -> None:
        """The interpreter is not this process' alone."""

    async def to_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args, **kwargs)


class Process:
    """One life of one program. A restart is another Process of the same name with the next number. `loop` is the world's VirtualLoop."""

    def __init__(self, loop: Any, name: str, number: int, clock: Clock, seed: str, address: str) -> None:
        self.name = name
        self.number = number
        self.address = address
        self.dead = False
        self.frozen = False
        self.hindered = False  # dead, frozen, or counting its callbacks: `admits` is to be asked
        self.pace = 0.0  # bytes a second that it reads from each connection; 0: whatever comes
        self.fuse: tuple[int, Callable[[], object]] | None = None  # callbacks until something happens
        self.ended = ""  # how it ended by itself
        self.health: Health | None = None  # its checks, if it is a role
        self.held: list[Any] = []
        self.buried: list[Any] = []
        self.connections: list[Any] = []
        self.tasks: dict[str, asyncio.Task[Any]] = {}  # the last one of each name
        self.surroundings = Surroundings(clock, name, f"{seed}/{name}/{number}")
        self._loop = loop
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.context.run(seams.use, self.surroundings)
        self.task: asyncio.Task[Any] | None = None

    def __repr__(self) -> str:
        return f"{self.name}#{self.number}"

    def start(self, main: Callable[[], Awaitable[Any]]) -> None:
        """Begin to live."""

        async def live() -> None:
            try:
                await main()
                self.ended = "ended"
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.ended = f"{type(error).__name__}: {error}"
                log.debug("%s ended", self, exc_info=True)
            for connection in list(self.connections):
                connection.abort()

        self.task = self._loop.create_task(live(), context=self.context)

    def kill(self, last: float = 0.0) -> None:
        """As kill -9: nothing of it runs again, not even a `finally`; its connections are reset by its host.

        What it sent in this moment still arrives if that takes no longer than `last` seconds.
        """
        self.dead = self.hindered = True
        if last and self._loop.network is not None:
            self._loop.network.at(last, self._reset)
        else:
            self._reset()

    def _reset(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def failed(self) -> list[str]:
        """Tasks that ended by an exception which nobody has looked at."""
        return [
            f"{name}: {error!r}"
            for name, task in self.tasks.items()
            if task.done() and not task.cancelled() and task._log_traceback and (error := task.exception()) is not None  # type: ignore[attr-defined]
        ]

    def freeze(self) -> None:
        """As SIGSTOP: connections stay."""
        self.frozen = self.hindered = True

    def thaw(self) -> None:
        """Go on."""
        self.frozen = False
        self._loop.thaw(self)

    def arm(self, callbacks: int, then: Callable[[], object]) -> None:
        """Let something happen in place of the callback of that number from now on."""
        self.fuse, self.hindered = (max(1, callbacks), then), True

    def disarm(self) -> None:
        """Count no more."""
        self.fuse = None

    def admits(self, handle: Any) -> bool:
        """Whether a callback may run now; one of a dead process never does, one of a frozen process later."""
        if self.fuse is not None and not (self.dead or self.frozen):
            left, then = self.fuse
            self.fuse = (left - 1, then)
            if left == 1:
                self.fuse = None
                then()
        if self.dead:
            self.buried.append(handle)
            return False
        if self.frozen:
            self.held.append(handle)
            return False
        self.hindered = self.fuse is not None
        return True


def author() -> str:
    """The name of the process that is running now."""
    process = PROCESS.get()
    return process.name if process is not None else "world"
