"""Plugins that are being written, and their configuration: the scheduler is a process of its own, replaced when one of their files changes.

A new process is the only clean way: what a module did when it was imported (registries, threads, patched names) ends with the old one.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

PERIOD = 0.5
END_SECONDS = 10.0

Process = asyncio.subprocess.Process
Snapshot = dict[str, tuple[int, int]]


def snapshot(paths: Iterable[str]) -> Snapshot:
    """Size and time of change of every file given, and every Python file of the folders given; what cannot be read is not in it."""
    found: Snapshot = {}
    for path in map(Path, paths):
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            with suppress(OSError):
                facts = file.stat()
                found[str(file)] = (facts.st_size, facts.st_mtime_ns)
    return found


def changed(before: Snapshot, now: Snapshot) -> list[str]:
    """Names of the files that came, went or changed, sorted."""
    return sorted({Path(file).name for file in before.keys() | now.keys() if before.get(file) != now.get(file)})


async def mistakes(argv: list[str], env: dict[str, str]) -> str:
    """What `koord scheduler --validate-config` has against the files as they are now; "" when nothing."""
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *argv, "--validate-config", stdin=nothing, stdout=nothing, stderr=asyncio.subprocess.PIPE, env=env
    )
    _, text = await process.communicate()
    lines = text.decode(errors="replace").strip().splitlines()
    return (
        ""
        if process.returncode == 0
        else lines[-1].removeprefix("koord scheduler: error: ")
        if lines
        else f"the check ended with status {process.returncode}"
    )


class Reloading:
    """Keeps one process of a role on the newest files that pass the check.

    `mistakes` says what is wrong with the files as they are, `spawn` starts the process and returns when it is ready.
    """

    def __init__(
        self,
        paths: Iterable[str],
        *,
        mistakes: Callable[[], Awaitable[str]],
        spawn: Callable[[], Awaitable[Process]],
        say: Callable[[str], None],
    ) -> None:
        self._paths = tuple(paths)
        self._mistakes = mistakes
        self._spawn = spawn
        self._say = say

    async def run(self, process: Process) -> int:
        """Until the process ends by itself: its exit status."""
        seen = snapshot(self._paths)
        ended = asyncio.ensure_future(process.wait())
        try:
            while True:
                await asyncio.wait([ended], timeout=PERIOD)
                if ended.done():
                    return ended.result()
                now = snapshot(self._paths)
                files = changed(seen, now)
                if not files:
                    continue
                seen = now
                named = ", ".join(files)
                against = await self._mistakes()
                if against:
                    self._say(f"{named} changed, and the scheduler stays as it is: {against}")
                    continue
                await end(process)
                process = await self._spawn()
                ended = asyncio.ensure_future(process.wait())
                self._say(f"{named} changed: the scheduler was started again")
        finally:
            ended.cancel()


async def end(process: Process, seconds: float = END_SECONDS) -> None:
    """SIGTERM, and SIGKILL for a process that does not heed it in time."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def say(text: str) -> None:
    """A line for the user where no view is open yet."""
    print(text, file=sys.stderr, flush=True)
