"""Running worlds: each in a child of its own, so that none leaves anything behind for the next."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import itertools
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from roles.sandbox.world.faults import Fault
from roles.sandbox.world.invariants.checker import Checker
from roles.sandbox.world.spec import Spec, Workload
from roles.sandbox.world.story import tell
from roles.sandbox.world.world import World, quiet

_REHEARSED: list[World] = []
_MEMORY = "/dev/shm"  # files of modelled hosts change every second
_PREFIX = "koord-world-"
_FRESH = 4000.0  # seconds for which a directory is left alone: more than a world may take, so that none without a lock loses its own
SMALL = 200  # pods
LIMIT = 600.0  # seconds after which a world is given up; a large one has an hour


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one seed. `failure`: the world itself could not go on."""

    seed: int
    digest: str
    entries: int
    virtual: float
    violations: tuple[tuple[float, str, str], ...]
    faults: tuple[str, ...]
    cpu: float
    failure: str = ""
    story: tuple[str, ...] = ()
    memory: int = 0  # MiB at most

    @property
    def held(self) -> bool:
        """Whether every invariant held."""
        return not self.violations and not self.failure


def prepare() -> None:
    """Import and make once what all worlds need, before children are made."""
    from roles.sandbox.world import world as worlds

    worlds.warm()
    sweep(Path(_MEMORY))


def rehearse(tree: str = "") -> None:
    """Live a short world in this process, once, beside the release of a tree if there is one: its children then find modules imported,
    schemas compiled and code specialised."""
    if _REHEARSED:
        return
    with _scratch() as scratch, quiet():
        world = World(Spec(nodes=2, pods=4, minutes=0.2, plan=(), calm=5.0, hostile=1, beside=tree), scratch)
        _REHEARSED.append(world)  # kept: the `finally` of what it leaves behind must not run
        gc.disable()
        world.run()
        world.bury()
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep(folder: Path) -> list[Path]:
    """Remove what worlds that were killed have left in a folder: theirs is locked by nobody any more. The directories that are gone."""
    gone = []
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it goes just now, or is another user's
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(lock).st_ctime > _FRESH:
                    shutil.rmtree(path)
                    gone.append(path)
            finally:
                os.close(lock)
    return gone


def _live(spec: Spec, mutate: Callable[[], None] | None, with_story: bool) -> dict[str, Any]:
    began = time.process_time()
    failure = ""
    with _scratch() as scratch:
        if mutate is not None:
            mutate()
        world = World(spec, scratch)
        checker = Checker(world.history, world.about)
        world.accuse, world.open = checker.accuse, checker.open
        try:
            world.run()
            checker.end()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=6)}"
        _, plan = world.drawn()
        return {
            "seed": spec.seed,
            "digest": world.history.digest,
            "entries": world.history.count,
            "virtual": round(world.loop.time(), 3),
            "violations": [(v.time, v.invariant, v.text) for v in checker.violations],
            "faults": [str(fault) for fault in plan],
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "cpu": time.process_time() - began,
            "failure": failure,
            "story": list(tell(world, checker.violations)) if with_story else [],
        }


@dataclass(frozen=True, slots=True)
class _Child:
    """A world that is being lived."""

    spec: Spec
    pid: int
    pipe: int
    until: float


def _begin(spec: Spec, mutate: Callable[[], None] | None, *, story: bool = False, verbose: bool = False, limit: float = 0.0) -> _Child:
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            faulthandler.disable()
            if spec.pods <= SMALL:
                gc.disable()  # a tenth of the time, for the few MiB that a world of minutes leaves behind
            else:
                gc.set_threshold(100_000, 20, 20)  # most of what is there stays
            if not verbose:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with contextlib.nullcontext() if verbose else quiet():
                body = orjson.dumps(_live(spec, mutate, story))
            with os.fdopen(writing, "wb") as out:
                out.write(body)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    return _Child(spec, pid, reading, time.monotonic() + (limit or (3600.0 if spec.keep else LIMIT)))


def _end(child: _Child) -> Result:
    """What a child has to say; it is ended if its time is over."""
    chunks: list[bytes] = []
    while select.select([child.pipe], [], [], max(0.0, child.until - time.monotonic()))[0]:
        chunk = os.read(child.pipe, 1 << 20)
        if not chunk:
            break
        chunks.append(chunk)
    else:
        os.kill(child.pid, signal.SIGKILL)
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    if status:
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        why = "it took too long" if killed else f"its process ended with status {os.waitstatus_to_exitcode(status)}"
        return Result(child.spec.seed, "", 0, 0.0, (), (), 0.0, why)
    found = orjson.loads(b"".join(chunks))
    for name in ("violations", "faults", "story"):
        found[name] = tuple(tuple(one) if isinstance(one, list) else one for one in found[name])
    return Result(**found)


def run(spec: Spec, *, mutate: Callable[[], None] | None = None, story: bool = False, verbose: bool = False, limit: float = 0.0) -> Result:
    """Live one world in a child process. `mutate` is called there before it begins; after `limit` seconds (0: LIMIT) it is given up."""
    return _end(_begin(spec, mutate, story=story, verbose=verbose, limit=limit))


def many(specs: Iterator[Spec], workers: int, mutate: Callable[[], None] | None = None, tree: str = "") -> Iterator[Result]:
    """Live worlds side by side, `workers` at a time, each beside the release of a `tree` if there is one; results as they come. No thread:
    forking beside threads may hang."""
    running: list[_Child] = []
    if mutate is None:  # what a rehearsal keeps could hide a planted defect
        rehearse(tree)
    try:
        while True:
            for spec in itertools.islice(specs, workers - len(running)):
                running.append(_begin(spec, mutate))
            if not running:
                return
            first = min(child.until for child in running)
            ready = select.select([child.pipe for child in running], [], [], max(0.0, first - time.monotonic()))[0]
            for child in [child for child in running if child.pipe in ready or child.until <= time.monotonic()]:
                running.remove(child)
                yield _end(child)
    finally:
        for child in running:
            os.kill(child.pid, signal.SIGKILL)
            os.close(child.pipe)
            os.waitpid(child.pid, 0)


def shrink(spec: Spec, mutate: Callable[[], None] | None = None, say: Callable[[str], None] = lambda text: None) -> tuple[Spec, Result]:
    """The fewest faults and workloads that still break the same invariant. Raises ValueError for a seed that holds."""
    world = World(spec, Path(os.devnull))
    works, plan = world.drawn()
    first = run(spec, mutate=mutate)
    if first.held:
        raise ValueError(f"seed {spec.seed} breaks nothing")
    wanted = {name for _, name, _ in first.violations}
    best = first

    def attempt(works: list[Workload], plan: list[Fault]) -> bool:
        nonlocal best
        if not works:
            return False
        result = run(_with(spec, works, plan), mutate=mutate)
        same = bool(wanted & {name for _, name, _ in result.violations}) or bool(first.failure and result.failure)
        if same:
            best = result
        return same

    plan = _fewest(plan, lambda kept: attempt(works, kept))
    say(f"{len(plan)} faults are needed")
    works = _fewest(works, lambda kept: attempt(kept, plan))
    say(f"{len(works)} workloads are needed")
    return _with(spec, works, plan), best


def _with(spec: Spec, works: list[Workload], plan: list[Fault]) -> Spec:
    return replace(spec, workloads=tuple(works), plan=tuple(plan))


def _fewest(items: list[Any], still: Callable[[list[Any]], bool]) -> list[Any]:
    """Delta debugging: drop halves, then quarters … then single items, as long as it still fails."""
    size = max(1, len(items) // 2)
    while items and size >= 1:
        at, dropped = 0, False
        while at < len(items):
            kept = items[:at] + items[at + size :]
            if still(kept):
                items, dropped = kept, True
            else:
                at += size
        if not dropped:
            size //= 2
    return items
