"""A small parent that outlives the sandbox: whatever ends the sandbox, even SIGKILL or a second Ctrl-C, its cgroups are put back."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGTERM, signal.SIGHUP)


def guarded(body: Callable[[], int], afterwards: Callable[[], None]) -> int:
    """Run `body` in a child process and `afterwards` here once the child is gone; returns the child's exit code.

    SIGTERM and SIGHUP (a closed terminal) become SIGTERM of the child. SIGINT reaches the child from the terminal as well, so it is only
    ignored here. If this process is killed, the child gets SIGTERM and puts everything back itself.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # what comes between the fork and the handlers waits for them: it would end the parent, or be lost where it is ignored (nohup)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, signal.SIGINT))
    child = os.fork()
    if child == 0:
        os._exit(_child(body, parent, mask))
    previous = {number: signal.signal(number, _forward(child)) for number in FORWARDED}
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        code = os.waitstatus_to_exitcode(_wait(child))
    finally:
        afterwards()
        for number, handler in previous.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _child(body: Callable[[], int], parent: int, mask: set[int | signal.Signals]) -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM
    # A handler that does nothing, not SIG_IGN, which the pods' processes would inherit.
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = body()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _forward(child: int) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)

    return handler


def _wait(child: int) -> int:
    """Wait status of the child; a signal that arrives meanwhile does not end the waiting (PEP 475)."""
    return os.waitpid(child, 0)[1]
