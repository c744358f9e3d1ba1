"""Fewer log lines where callers set the pace: kubelet repeats a call that fails, and hundreds of pods start at once."""

from __future__ import annotations

import logging

from koord.kube.ratelimit import TokenBucket

_AT_ONCE = 10
_EVERY = 10.0  # seconds from one line to the next once those were used up


class RepeatFilter(logging.Filter):
    """Lets ten lines of a kind pass at once, then one in ten seconds that says how many were left out.

    A kind is a line's text before its values are put in, so that an unknown sandbox does not hide a hook server's error.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[object, TokenBucket] = {}
        self._left_out: dict[object, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written; `record.created` is the clock."""
        kind = record.msg
        bucket = self._kinds.setdefault(kind, TokenBucket(1 / _EVERY, _AT_ONCE))
        if not bucket.take(record.created):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        if more := self._left_out.pop(kind, 0):
            record.msg, record.args = f"{record.getMessage()} (and {more} more like this)", None
        return True
