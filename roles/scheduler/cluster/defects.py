"""What code of others may raise, so that it costs one object and never a task or the process."""

from __future__ import annotations

from asyncio import CancelledError, current_task
from typing import Final

DEFECTS: Final = (Exception, CancelledError, SystemExit)
"""Of a step in which nothing is awaited: a cancellation there is of somebody's own task, not of ours, and no plugin ends the process."""


def ends_us(failure: BaseException) -> bool:
    """Whether what an awaited step raised is the cancellation of the task that awaits it."""
    task = current_task()
    return isinstance(failure, CancelledError) and task is not None and task.cancelling() > 0
