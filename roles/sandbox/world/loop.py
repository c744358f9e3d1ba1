"""An event loop on virtual time: it never waits, and it knows which process each callback belongs to."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import os
import socket
from asyncio import base_events, events
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from roles.sandbox.world.process import PROCESS, Process

if TYPE_CHECKING:
    from roles.sandbox.world.network import Network

_STUCK = 300_000  # callbacks within one instant after which the world is taken for an endless loop


class Stuck(RuntimeError):
    """Nothing is left to run although somebody waits, or time stands still."""


def _name(handle: Any) -> str:
    """What a callback is, in words."""
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"task {task.get_name()}: {getattr(task.get_coro(), '__qualname__', '')}"
    return str(getattr(callback, "__qualname__", callback))


class _Ordered:
    """What sets and dicts keep in the order of its first use, not of addresses; each class counts for itself."""

    _hashed = 0
    _order = 0

    def __hash__(self) -> int:
        if not self._order:
            kind = type(self)
            kind._hashed += 1
            self._order = kind._hashed
        return self._order


class _Task(_Ordered, asyncio.Task[Any]):
    pass


class _Future(_Ordered, asyncio.Future[Any]):
    pass


class _Handle(events.Handle):
    """A callback of this loop: as asyncio's without its debugging, which asks the loop three times a callback."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Any, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class _Timer(_Handle):
    """A callback at a time."""

    __slots__ = ("_when",)

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context  # not by super(): a third of the time
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._when = when
        self._loop = loop

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None  # type: ignore[assignment]
            loop = self._loop
            loop._idle_timers += 1
            if loop._idle_timers > 200:
                loop.tidy()

    def when(self) -> float:
        """The time at which it is called."""
        return self._when


class VirtualLoop(base_events.BaseEventLoop):
    """Runs callbacks in the order of (time, order of scheduling). Time passes only when nothing is left to do at the present moment.

    A callback of a dead process is dropped; one of a frozen process waits until the process goes on. Connections are those of
    `network`. There are no threads, signals and descriptors.
    """

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0
        self._order = 0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._idle_timers = 0  # of these, how many were cancelled; more than there are, where some were cancelled when they had been due
        self._callbacks = 0
        self._blame: Counter[str] = Counter()
        self.network: Network | None = None
        self._addresses: dict[int, tuple[str, int]] = {}
        self._clock_resolution = 1e-9
        _Task._hashed = _Future._hashed = 0

    def __del__(self) -> None:
        """Nothing was opened."""

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: contextvars.Context | None = None) -> Any:
        task = _Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # killed processes leave theirs behind
        process = (PROCESS.get() if context is None else context.get(PROCESS)) if name else None
        if process is not None:
            process.tasks[name] = task
        return task

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    # -- time ----------------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._virtual

    get_debug = staticmethod(bool)  # type: ignore[assignment]  # asked at each task and future: no call of Python's for a False

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        timer = _Timer(when, callback, args, self, context)
        self._order += 1
        heapq.heappush(self._timers, (when if when > self._virtual else self._virtual, self._order, timer))
        return timer

    def tidy(self) -> None:
        """Most timers are cancelled: of the time that a request may take. In their hundreds they would make steps on the heap longer."""
        if self._idle_timers * 2 > len(self._timers):
            self._timers[:] = [timer for timer in self._timers if not timer[2]._cancelled]  # type: ignore[attr-defined]
            heapq.heapify(self._timers)
            self._idle_timers = 0

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        when = self._virtual + delay  # not by call_at: there are thousands
        timer = _Timer(when, callback, args, self, context)
        self._order += 1
        heapq.heappush(self._timers, (when if delay > 0.0 else self._virtual, self._order, timer))
        return timer

    def run_forever(self) -> None:
        if self.is_running():
            raise RuntimeError("this loop runs already")
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._thread_id = -1  # type: ignore[assignment]
        self._stopping = False
        try:
            self._run()
        finally:
            self._stopping = False
            self._thread_id = None  # type: ignore[assignment]
            events._set_running_loop(before)

    def is_running(self) -> bool:
        return self._thread_id is not None  # type: ignore[attr-defined]

    def _run(self) -> None:
        """Again and again everything that is due now; if nothing is, the next moment."""
        ready = self._ready  # type: ignore[attr-defined]
        timers, pop, take = self._timers, heapq.heappop, ready.popleft
        while not self._stopping:
            if not ready:
                while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
                    pop(timers)
                if not timers:
                    raise Stuck("nothing is left to run")
                if timers[0][0] > self._virtual:
                    self._virtual = timers[0][0]
                    self._callbacks = 0
            now = self._virtual
            while timers and timers[0][0] <= now:
                timer = pop(timers)[2]
                if not timer._cancelled:  # type: ignore[attr-defined]
                    ready.append(timer)
            count = len(ready)
            self._callbacks += count
            if self._callbacks > _STUCK - 1000:
                self._blame_all(ready)
            for _ in range(count):
                handle = take()
                if handle._cancelled:
                    continue
                context = handle._context
                process = context.get(PROCESS)
                if process is not None and process.hindered and not process.admits(handle):
                    continue
                try:
                    context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"Exception in callback {_name(handle)}", "exception": error, "handle": handle})
                if self._stopping:
                    break

    def _blame_all(self, ready: Iterable[Any]) -> None:
        """Time does not pass: remember what is done meanwhile, and give up in the end."""
        for handle in ready:
            if not handle._cancelled:
                self._blame[f"{handle._context.get(PROCESS)}: {_name(handle)}"] += 1
        if self._callbacks > _STUCK:
            who = ", ".join(f"{name} ({times})" for name, times in self._blame.most_common(4))
            raise Stuck(f"{self._callbacks} callbacks without time passing at {self._virtual:.3f}: {who}")

    def stop(self) -> None:
        self._stopping = True

    def thaw(self, process: Process) -> None:
        """Let everything go on that waited for a frozen process."""
        self._ready.extend(process.held)  # type: ignore[attr-defined]
        process.held.clear()

    # -- what asyncio asks of a loop and is not there ------------------------------------------------------------------------

    def _check_running(self) -> None:
        return

    def _process_events(self, event_list: Any) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """No descriptor ever becomes readable here."""

    def remove_reader(self, fd: Any) -> bool:
        return False

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """Processes of a world are ended by the world."""

    def remove_signal_handler(self, sig: int) -> bool:
        return False

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """There are no threads: it is done at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        return

    async def getaddrinfo(self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:
        known = self.network.names if self.network is not None else {}
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, int(port))) for one in known.get(host, (host,))]

    # -- connections ---------------------------------------------------------------------------------------------------------

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Remember where this socket leads to; `create_connection` then goes there over the network of the world."""
        assert self.network is not None
        await self.network.reach(address[0], address[1])
        self._addresses[sock.fileno()] = (address[0], address[1])

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, *, sock: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        assert self.network is not None
        if sock is not None:
            host, port = self._addresses.pop(sock.fileno())
            sock.close()
        else:
            host = self.network.names.get(host, (host,))[0]
            await self.network.reach(host, port)
        return self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        assert self.network is not None
        return self.network.listen(protocol_factory, host, port or 0)

    async def create_unix_server(self, protocol_factory: Callable[[], Any], path: Any = None, **options: Any) -> Any:  # type: ignore[override]
        assert self.network is not None
        os.close(os.open(str(path), os.O_WRONLY | os.O_CREAT, 0o755))  # a socket has a file, which its owner looks at
        return self.network.listen(protocol_factory, str(path), 0)


def run(loop: VirtualLoop, main: Any) -> Any:
    """Run a coroutine to its end on this loop."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        asyncio.set_event_loop(None)
