"""Running the asynchronous part of a command that ends by itself or with Ctrl-C. Roles, which also end on SIGTERM, have `life.run`."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but Ctrl-C cancels the work between two steps of the loop.

    asyncio cancels in the middle of whatever runs; a callback that was about to set a result then complains with a traceback.
    A second Ctrl-C is a KeyboardInterrupt at once. Where somebody else handles the signal, or ignores it, that stays.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return asyncio.run(work)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(work)
        asked = False

        def interrupt(number: int, frame: object) -> None:
            nonlocal asked
            if asked:
                raise KeyboardInterrupt
            asked = True
            loop.call_soon_threadsafe(task.cancel)

        signal.signal(signal.SIGINT, interrupt)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if asked:
                raise KeyboardInterrupt from None
            raise
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
