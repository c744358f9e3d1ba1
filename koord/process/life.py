"""The life of a process: event loop, signals, supervised tasks, an end in order and in time, an exit status that means something."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from koord import seams
from koord.config.errors import ConfigError
from koord.process import tuning
from koord.process.errors import ConfigurationError, FatalError, is_usage

log = logging.getLogger("koord.process")

GRACE = 4.0  # seconds that the main function and the steps of the end have after a signal
LIMIT = 5.0  # seconds after which the process ends in any case; a lame duck adds its own
LAST = 0.5  # seconds at least for closing what is left, whatever came before
RESTART_PAUSE = (0.5, 30.0)  # seconds, first and longest, before a crashed task is started again

Work = Coroutine[Any, Any, Any] | Callable[[], Coroutine[Any, Any, Any]]


class Phase(IntEnum):
    """When a step of the end is taken: each phase ends before the next one begins, within one the step registered last goes first.

    Before any of them the process says "not ready". `LAME_DUCK` is the exception to the order: it begins at once, runs beside the
    others, and only `CLOSE` waits for it. So a server of admission answers until its endpoint is out of every load balancer,
    while the controllers stop and the next leader begins.
    """

    LAME_DUCK = 0
    """Servers that must answer for some seconds more, then close."""
    WORK = 1
    """What acts on the world: it stops. Supervised tasks are cancelled first."""
    LEASE = 2
    """The lease is released: nothing of this process writes any more."""
    EVENTS = 3
    """What was done is told: events and records that wait are written."""
    CLOSE = 4
    """Servers, informers, clients. Register first what others need to the last."""


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    cleanup: Callable[[], Awaitable[object]]
    phase: Phase
    seconds: float


class Life:
    """What a role is given to live by. `stopping` is set when it is to end."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.failure: str = ""
        self.signal = 0
        """The number of the signal that asked for the end; 0 while none has."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._steps: list[_Step] = []
        self._ducks: list[asyncio.Task[None]] = []

    def ready(self) -> tuple[bool, str]:
        """A readiness probe: not ready from the moment the process is asked to end."""
        return (False, "ending") if self.stopping.is_set() else (True, "")

    def stop(self) -> None:
        """Ask for an orderly end with status 0."""
        self.stopping.set()

    def fail(self, reason: str) -> None:
        """Ask for an end with status 1. The first reason counts."""
        if not self.failure:
            self.failure = reason
            log.error("%s; ending", reason)
        self.stopping.set()

    def spawn(self, work: Work, name: str, *, restart: bool = False) -> asyncio.Task[Any]:
        """Run a task for as long as the process lives.

        If it raises, the process ends with status 1, unless `restart`: then it is started again after a growing pause (`work`
        must be a function that makes the coroutine). A task that returns is done.
        """
        if restart and not callable(work):
            raise TypeError(f"{name}: a task that is to be restarted needs a function that makes the coroutine")
        task = asyncio.get_running_loop().create_task(self._supervise(work, name, restart), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _supervise(self, work: Work, name: str, restart: bool) -> Any:
        pause = RESTART_PAUSE[0]
        while True:
            began = asyncio.get_running_loop().time()
            try:
                return await (work() if callable(work) else work)
            except Exception as error:
                if not restart:
                    if isinstance(error, (ConfigurationError, ConfigError, FatalError)):
                        self.fail(f"{name}: {error}")
                    else:
                        log.exception("task %s failed", name)
                        self.fail(f"task {name} failed: {type(error).__name__}: {error}")
                    return None
                log.exception("task %s failed; it is started again in %.1f s", name, pause)
            if asyncio.get_running_loop().time() - began > 60.0:
                pause = RESTART_PAUSE[0]
            await seams.sleep(pause)
            pause = min(pause * 2, RESTART_PAUSE[1])

    def on_stop(
        self, cleanup: Callable[[], Awaitable[object]], name: str = "", *, phase: Phase = Phase.CLOSE, seconds: float = 0.0
    ) -> None:
        """Call `cleanup` at the end, in its phase.

        All steps share the grace period, except lame ducks: each declares how many `seconds` it may take after the signal.
        A step that fails is logged, and the next one follows.
        """
        self._steps.append(_Step(name or getattr(cleanup, "__qualname__", "cleanup"), cleanup, phase, seconds))

    @property
    def lame_duck(self) -> float:
        """Seconds after the signal for which some server goes on."""
        return max((step.seconds for step in self._steps if step.phase is Phase.LAME_DUCK), default=0.0)

    def begin_end(self) -> None:
        """Start the lame ducks: their time counts from the moment the process is asked to end."""
        loop = asyncio.get_running_loop()
        self.stopping.set()
        for step in self._of(Phase.LAME_DUCK):
            self._steps.remove(step)
            self._ducks.append(loop.create_task(self._limited([step], step.seconds), name=step.name))

    async def finish(self, seconds: float = GRACE) -> None:
        """Take the steps of the end, within so many seconds (lame ducks have their own)."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.begin_end()
        await self._cancel_tasks()
        acting = [step for phase in (Phase.WORK, Phase.LEASE, Phase.EVENTS) for step in self._of(phase)]
        await self._limited(acting, seconds - LAST - (loop.time() - began))
        if self._ducks:
            await asyncio.wait(self._ducks)
        await self._limited(self._of(Phase.CLOSE), seconds - (loop.time() - began))
        self._steps.clear()

    def _of(self, phase: Phase) -> list[_Step]:
        return [step for step in reversed(self._steps) if step.phase is phase]

    async def _cancel_tasks(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    @staticmethod
    async def _limited(steps: list[_Step], seconds: float) -> None:
        """One step after the other; what is not done in time is left."""
        step = None
        try:
            async with asyncio.timeout(max(LAST, seconds)):
                for step in steps:
                    try:
                        await step.cleanup()
                    except Exception:
                        log.exception("cleanup %s failed", step.name)
        except TimeoutError:
            log.error("cleaning up (%s) took longer than %.1f s; the rest is left", step.name if step else "", seconds)


def run(main: Callable[[Life], Awaitable[object]], *, name: str = "koord") -> int:
    """Run a role and return the exit status: 0 when it ended by itself or was asked to, 1 after any failure.

    On SIGTERM or SIGINT `life.stopping` is set; `main` is cancelled if it has not returned soon after, the steps of the end are
    taken (see `Phase`), and the process is gone after five seconds, whatever hangs; later by as much as its lame duck was given.
    A second signal ends it at once. Configuration errors (`ConfigurationError`, `ConfigError`) become one line on stderr.
    """
    tuning.single_numeric_thread()
    tuning.relax_collector()
    tuning.leave_at_once()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_live(main, name))
    except (ConfigurationError, ConfigError) as error:
        return _refuse(name, error)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not built for this platform: asyncio's own loop does
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _refuse(name: str, error: Exception) -> int:
    text = " ".join(str(error).split())
    print(f"{name}: error: {text}", file=sys.stderr, flush=True)
    return 2 if is_usage(error) else 1


async def _live(main: Callable[[Life], Awaitable[object]], name: str) -> int:
    life = Life()
    loop = asyncio.get_running_loop()

    def asked(number: int) -> None:
        if life.stopping.is_set():
            os._exit(128 + number)
        life.signal = number
        log.info("%s: ending", signal.Signals(number).name)
        with suppress(RuntimeError, ValueError, OSError):  # no stderr to write to
            faulthandler.dump_traceback_later(LIMIT + life.lame_duck, exit=True)
        life.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number)
    task = asyncio.ensure_future(main(life))
    stopping = loop.create_task(life.stopping.wait(), name="stopping")
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        status = await _end(life, task, name)
    finally:
        stopping.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return status


async def _end(life: Life, task: asyncio.Future[object], name: str) -> int:
    """Let main and the cleanups end within the grace period, then say how it went."""
    began = asyncio.get_running_loop().time()
    life.begin_end()
    if not task.done():
        await asyncio.wait({task}, timeout=GRACE - 1.5)
    if not task.done():
        log.warning("%s has not ended in time; it is cancelled", name)
        task.cancel()
        await asyncio.wait({task}, timeout=0.5)
    await life.finish(max(LAST, GRACE - (asyncio.get_running_loop().time() - began)))
    if task.done() and not task.cancelled():
        error = task.exception()
        if isinstance(error, (ConfigurationError, ConfigError, FatalError)):
            return _refuse(name, error)
        if error is not None:
            log.critical("%s failed", name, exc_info=error)
            return 1
    return 1 if life.failure else 0
