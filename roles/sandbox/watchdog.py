"""A small parent that outlives the sandbox: whatever ends the sandbox, even SIGKILL or a second Ctrl-C, its cgroups are put back."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress

PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGTERM, signal.SIGHUP)


def guarded(body: Callable[[], int], afterwards: Callable[[], None]) -> int:
    """Run `body` in a child process and `afterwards` here once the child is gone; returns the child's exit code.

    SIGTERM and SIGHUP (a closed terminal) become SIGTERM of the child. SIGINT reaches the child from the terminal as well, so it is only
    ignored here. If this process is killed, the child gets SIGTERM and puts everything back itself.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent, watched = os.getpid(), {*FORWARDED, signal.SIGINT, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever began this process may have ignored it
    # Taken one by one instead of handled: what comes just before a process begins to wait is handled only when that is over.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        os._exit(_child(body, parent, mask))
    try:
        code = os.waitstatus_to_exitcode(_wait(child, watched))
    finally:
        afterwards()
        before = {number: signal.signal(number, signal.SIG_IGN) for number in watched}  # what has come since is nobody's any more
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
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


def _wait(child: int, watched: Collection[signal.Signals]) -> int:
    """Wait status of the child, which gets what is forwarded."""
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if signal.sigwait(watched) in FORWARDED:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
    return ended[1]
