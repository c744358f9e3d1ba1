"""Where a process meets its surroundings: clocks, sleep, randomness, threads, the name of its host.

Nothing else in koord reads a clock, draws a random number or leaves the event loop for a thread; the linter says so. The files that
the node agent changes, and those of the kernel that it reads, are behind one too. A process has
the machine's own (`System`). A composition root may hand it others by `use`: the tasks and callbacks started in that context then
live by them. So many processes can share one event loop, each with its own clock, and a run can be repeated from a seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import gc
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Files:
    """The system calls that change files of a machine, and that read those of its kernel. Errors are OSError."""

    def because(self, reason: str) -> None:
        """What the next changes are for. Who keeps a history of them wants to know; the machine does not."""

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """A descriptor; it belongs to these calls alone."""
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, count: int) -> bytes:
        return os.read(fd, count)

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        return os.pread(fd, count, offset)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """The number of bytes that were taken."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """The content is on the disk when this returns."""
        os.fdatasync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def rename(self, source: str, target: str) -> None:
        """Replaces the target at once."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        """With what is missing above it."""
        os.makedirs(path, mode=0o755, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)


class System:
    """The machine's own clocks, randomness and files."""

    files = Files()

    def __init__(self) -> None:
        self.random = random.Random()

    def now(self) -> float:
        """Wall clock, seconds since 1970; it may jump."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an unknown moment; never goes back."""
        return time.monotonic()

    def boottime(self) -> float:
        """As monotonic, but it goes on while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def perf_counter(self) -> float:
        """Seconds, finest resolution, for durations."""
        return time.perf_counter()

    def cpu_time(self) -> float:
        """CPU seconds of this process."""
        return time.process_time()

    def token_bytes(self, count: int) -> bytes:
        """Random bytes that nobody can guess."""
        return secrets.token_bytes(count)

    def hostname(self) -> str:
        """The name of this host."""
        return socket.gethostname()

    def settle(self) -> None:
        """What is in memory now stays: spare the collector from looking at it again."""
        gc.collect()
        gc.freeze()

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Suspend the task."""
        return asyncio.sleep(seconds)

    async def to_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a blocking function off the loop."""
        return await asyncio.to_thread(function, *args, **kwargs)


_SYSTEM = System()
_current: contextvars.ContextVar[System] = contextvars.ContextVar("koord.seams", default=_SYSTEM)


def current() -> System:
    """The surroundings of whoever asks."""
    return _current.get()


def use(surroundings: System) -> contextvars.Token[System]:
    """Live by these from now on, in this context and in what it starts; `leave` undoes it."""
    return _current.set(surroundings)


def leave(token: contextvars.Token[System]) -> None:
    """Undo a `use`."""
    _current.reset(token)


def now() -> float:
    """Wall clock, seconds since 1970. It may jump: measure durations and ages by `monotonic`."""
    surroundings = _current.get()
    return time.time() if surroundings is _SYSTEM else surroundings.now()  # asked for so often that one call less counts


def now_ns() -> int:
    """Wall clock, nanoseconds since 1970."""
    return int(_current.get().now() * 1e9)


def utcnow() -> datetime.datetime:
    """Wall clock as an aware datetime."""
    return datetime.datetime.fromtimestamp(_current.get().now(), datetime.UTC)


def monotonic() -> float:
    """Seconds since an unknown moment; never goes back."""
    surroundings = _current.get()
    return time.monotonic() if surroundings is _SYSTEM else surroundings.monotonic()


def boot_time() -> float:
    """Seconds since boot, including time asleep: a machine that was suspended must not believe that no time has passed."""
    return _current.get().boottime()


def perf_counter() -> float:
    """Seconds, finest resolution: how long something took."""
    surroundings = _current.get()
    return time.perf_counter() if surroundings is _SYSTEM else surroundings.perf_counter()


def rng() -> random.Random:
    """The random numbers of this process: jitter, choices, sampling. Not for secrets."""
    return _current.get().random


def uid() -> str:
    """A random (version 4) UUID."""
    digits = _current.get().token_bytes(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{'89ab'[int(digits[16], 16) & 3]}{digits[17:20]}-{digits[20:]}"


def token_hex(count: int) -> str:
    """`count` random bytes that nobody can guess, as hexadecimal text."""
    return _current.get().token_bytes(count).hex()


def token_urlsafe(count: int) -> str:
    """`count` random bytes that nobody can guess, as text that a URL can carry."""
    import base64

    return base64.urlsafe_b64encode(_current.get().token_bytes(count)).rstrip(b"=").decode("ascii")


def files() -> Files:
    """The files of this host."""
    return _current.get().files


def hostname() -> str:
    """The name of this host."""
    return _current.get().hostname()


def settle() -> None:
    """Tell the garbage collector that what is in memory now is there to stay."""
    _current.get().settle()


def sleep(seconds: float) -> Coroutine[Any, Any, None]:
    """Suspend the task for so many seconds."""
    return _current.get().sleep(seconds)  # no coroutine of its own: hardly anything is awaited more often


async def to_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function off the event loop and return its result."""
    result: T = await _current.get().to_thread(function, *args, **kwargs)
    return result


class Apart(Generic[T]):
    """A coroutine on an event loop and a thread of its own: what must go on although the caller's loop is busy.

    `done` is a future of the caller's loop. A process with surroundings of its own has one loop for everything: there it is a task.
    """

    def __init__(self, main: Callable[[Apart[T]], Coroutine[Any, Any, T]], name: str) -> None:
        self._home = asyncio.get_running_loop()
        self.done: asyncio.Future[T] = self._home.create_future()
        self._main = main
        self._lock = threading.Lock()
        self._cancelled = False
        self._task: asyncio.Task[T] | None = None
        self._loop = self._home
        if type(_current.get()) is System:
            context = contextvars.copy_context()
            threading.Thread(target=context.run, args=(self._thread,), name=name, daemon=True).start()
        else:
            self._task = self._home.create_task(main(self), name=name)
            self._task.add_done_callback(self._finish)

    def _thread(self) -> None:
        # asyncio's own loop: it can start processes (credential plugins) from any thread
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            loop = runner.get_loop()
            with self._lock:
                self._loop, self._task = loop, loop.create_task(self._main(self))
                if self._cancelled:
                    self._task.cancel()
            loop.run_until_complete(asyncio.wait([self._task]))
            self.post(self._finish, self._task)

    def _finish(self, task: asyncio.Task[T]) -> None:
        if self.done.done():
            return
        if task.cancelled():
            self.done.cancel()
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function on the caller's loop; nothing happens if that is closed."""
        with suppress(RuntimeError):
            self._home.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def cancel(self) -> None:
        """Cancel the coroutine; `done` says when it has ended. A second call changes nothing: what it does at its end goes on."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            if self._task is not None:
                with suppress(RuntimeError):  # it ended, and its loop with it
                    self._loop.call_soon_threadsafe(self._task.cancel)
