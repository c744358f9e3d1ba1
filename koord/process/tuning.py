"""Making CPython fit for big caches: garbage collector, allocator, numeric threads."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator

from koord import seams

# With the defaults, decoding 5,000 pods takes more than three times as long. The first is how many new objects are looked at in one go,
# during which everything stands still: 50,000 take 30 ms, 80 on a busy machine. With the second it bounds how many younger ones are.
GC_THRESHOLDS = (10_000, 10, 5000)
GC_OFTEN = (5_000, 10, 10)
GC_SMALL_STEPS = (3_000, 2)
_before_small_steps: list[tuple[int, int, int]] = []
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def single_numeric_thread() -> None:
    """One BLAS and OpenMP thread: ours are small vectors, and the threads would cost more than they do. Before numpy is imported."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def keep_memory(threshold: int = 256 * 2**20) -> bool:
    """Tell glibc to keep freed memory up to `threshold` bytes rather than return it after every large temporary.

    For roles that work with big arrays; not for the node agent, whose memory is the user's. False where the C library is
    another.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return all([mallopt(_M_TRIM_THRESHOLD, threshold), mallopt(_M_MMAP_THRESHOLD, min(threshold, 32 * 2**20))])


def give_back() -> bool:
    """Return freed memory to the machine, also from the middle of the heap. False where the C library is another."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return bool(trim(0))


def relax_collector() -> None:
    """Collect garbage less often: informer caches grow by the hundred thousand objects and hold no cycles."""
    gc.set_threshold(*GC_THRESHOLDS)


@contextlib.contextmanager
def collecting_seldom() -> Iterator[None]:
    """As `relax_collector`, for a piece of work; afterwards it is as it was."""
    before = gc.get_threshold()
    relax_collector()
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def collecting_in_small_steps() -> Iterator[None]:
    """For work that makes many objects while others wait for their turn: the collector looks at fewer of them in one go, at no more in all.

    What is alive in such a moment counts as old sooner, so it is nothing for the whole life of a process. Several may be at such work."""
    if not _before_small_steps:
        found = gc.get_threshold()
        gc.set_threshold(min(found[0], GC_SMALL_STEPS[0]), min(found[1], GC_SMALL_STEPS[1]), found[2])
    else:
        found = _before_small_steps[0]
    _before_small_steps.append(found)
    try:
        yield
    finally:
        _before_small_steps.pop()
        if not _before_small_steps:
            gc.set_threshold(*found)


def collect_often() -> None:
    """Look for garbage in cycles early, for a role of few objects whose memory is the user's."""
    gc.set_threshold(*GC_OFTEN)


def collect() -> None:
    """Look for garbage in cycles now; quick where `freeze` has set aside what stays."""
    gc.collect()


def freeze() -> None:
    """After the first sync: what is there now is there to stay, so the collector need not look at it again."""
    seams.settle()


def leave_at_once() -> None:
    """When the process ends, leave its memory to the kernel: a last look for garbage takes as long as the caches are large."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
