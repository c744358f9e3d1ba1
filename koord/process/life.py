"""The life of a process: event loop, signals, supervised tasks, an end within five seconds, an exit status that means something."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from koord import seams
from koord.config.errors import ConfigError
from koord.process import tuning
from koord.process.errors import ConfigurationError, FatalError

log = logging.getLogger("koord.process")

GRACE = 4.0  # seconds that the main function and cleanups have to end by themselves after a signal
LIMIT = 5.0  # seconds after which the process ends in any case
RESTART_PAUSE = (0.5, 30.0)  # seconds, first and longest, before a crashed task is started again

Work = Coroutine[Any, Any, Any] | Callable[[], Coroutine[Any, Any, Any]]


class Life:
    """What a role is given to live by. `stopping` is set when it is to end."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.failure: str = ""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cleanups: list[tuple[str, Callable[[], Awaitable[object]]]] = []

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

    def on_stop(self, cleanup: Callable[[], Awaitable[object]], name: str = "") -> None:
        """Call `cleanup` at the end, last registered first. All of them together have the grace period."""
        self._cleanups.append((name or getattr(cleanup, "__qualname__", "cleanup"), cleanup))

    async def finish(self) -> None:
        """Cancel the supervised tasks, then clean up."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for name, cleanup in reversed(self._cleanups):
            try:
                await cleanup()
            except Exception:
                log.exception("cleanup %s failed", name)
        self._cleanups.clear()


def run(main: Callable[[Life], Awaitable[object]], *, name: str = "koord") -> int:
    """Run a role and return the exit status: 0 when it ended by itself or was asked to, 1 after any failure.

    On SIGTERM or SIGINT `life.stopping` is set; `main` is cancelled if it has not returned four seconds later, and the process
    is gone after five, whatever hangs. A second signal ends it at once. Configuration errors (`ConfigurationError`, `ConfigError`)
    become one line on stderr.
    """
    tuning.single_numeric_thread()
    tuning.relax_collector()
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
    return 1


async def _live(main: Callable[[Life], Awaitable[object]], name: str) -> int:
    life = Life()
    loop = asyncio.get_running_loop()

    def asked(number: int) -> None:
        if life.stopping.is_set():
            os._exit(128 + number)
        log.info("%s: ending", signal.Signals(number).name)
        with suppress(RuntimeError, ValueError, OSError):  # no stderr to write to
            faulthandler.dump_traceback_later(LIMIT, exit=True)
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
    if not task.done():
        await asyncio.wait({task}, timeout=GRACE - 1.5)
    if not task.done():
        log.warning("%s has not ended by itself; it is cancelled", name)
        task.cancel()
        await asyncio.wait({task}, timeout=0.5)
    life.stopping.set()
    left = max(0.5, GRACE - (asyncio.get_running_loop().time() - began))
    try:
        await asyncio.wait_for(life.finish(), left)
    except TimeoutError:
        log.error("cleaning up took longer than %.1f s; the rest is left", left)
    if task.done() and not task.cancelled():
        error = task.exception()
        if isinstance(error, (ConfigurationError, ConfigError)):
            return _refuse(name, error)
        if isinstance(error, FatalError):
            return _refuse(name, error)
        if error is not None:
            log.critical("%s failed", name, exc_info=error)
            return 1
    return 1 if life.failure else 0
