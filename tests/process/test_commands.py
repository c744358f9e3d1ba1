"""Running a command's asynchronous part: what Ctrl-C does to it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from koord.process import commands
from tests.support import patience

MIDDLE = """
async def work():
    waited = asyncio.get_running_loop().create_future()

    def ready():
        if not waited.done():
            interrupt()
            waited.set_result(None)

    asyncio.get_running_loop().call_soon(ready)
    try:
        await waited
        await asyncio.sleep(60)
    finally:
        print("cleaned up")
"""

STUCK = """
async def work():
    interrupt()
    interrupt()
    print("not reached")
"""


def ends(work: str) -> tuple[int, str]:
    """Exit status and all output of a program that runs the work, which interrupts itself."""
    program = f"""
import asyncio, os, signal, sys
from koord.process import commands
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests in the background of a shell ignores it

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
{work}
try:
    commands.run(work())
except KeyboardInterrupt:
    sys.exit(130 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1)
"""
    limit = patience.seconds(30)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=limit, check=False)
    return done.returncode, done.stdout + done.stderr


def test_ctrl_c_in_the_middle_of_a_callback_is_no_traceback() -> None:
    assert ends(MIDDLE) == (130, "cleaned up\n")


def test_a_second_ctrl_c_does_not_wait_for_the_loop() -> None:
    assert ends(STUCK) == (130, "")


def test_what_the_work_returns_and_raises_comes_back() -> None:
    async def work(text: str) -> int:
        await asyncio.sleep(0)
        return int(text)

    assert commands.run(work("7")) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        commands.run(work("x"))


def test_a_handler_of_somebody_else_stays() -> None:
    async def handler() -> object:
        return signal.getsignal(signal.SIGINT)

    def own(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGINT, own)
    try:
        assert commands.run(handler()) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_has_no_signals() -> None:
    got: list[int] = []

    async def work() -> int:
        return 1

    thread = threading.Thread(target=lambda: got.append(commands.run(work())))
    thread.start()
    thread.join()
    assert got == [1]
