"""A child process on any event loop: started with a user and group of its own, waited for through a pidfd.

Event loops differ in what their subprocess support offers (uvloop has no `user=`), so the child is started by `subprocess` itself.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

POLL_SECONDS = 0.05


class Child:
    """A running child. `returncode` is None until `wait` has seen the end; negative is a signal's number."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self._end: asyncio.Task[int] | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        output: IO[bytes],
        cwd: str | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> Child:
        """Start a process in a session of its own with a pipe as its standard input. Raises OSError."""
        return cls(
            subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=env,
                cwd=cwd,
                user=uid,
                group=gid,
                extra_groups=None if uid is None else [],
                start_new_session=True,
            )
        )

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    def tell(self, line: bytes) -> None:
        """Write a short line to the child's input and close it. Raises OSError."""
        assert self.process.stdin is not None
        with self.process.stdin:
            self.process.stdin.write(line)

    async def wait(self) -> int:
        """The return code, once the process has ended. May be awaited by several tasks."""
        if self._end is None:
            self._end = asyncio.create_task(self._wait(), name=f"child {self.pid}")
        return await asyncio.shield(self._end)

    async def _wait(self) -> int:
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            # A kernel before 5.3, or a process that has been waited for already.
            return await self._poll()
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        return self.process.wait()

    async def _poll(self) -> int:
        while True:
            code = self.process.poll()
            if code is not None:
                return code
            await asyncio.sleep(POLL_SECONDS)
