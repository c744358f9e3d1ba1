"""Numbers for answers that are worked out row by row: a filter keeps a code per node, the code stands for a status."""

from __future__ import annotations

from roles.scheduler.framework.interfaces import Rejection
from roles.scheduler.framework.status import Code, Status


class StatusCodes:
    """Codes of refusing statuses, given out as they come; 0 is success. Codes below `first` are the plugin's own."""

    def __init__(self, first: int = 1) -> None:
        self._first = first
        self._codes: dict[tuple[tuple[str, ...], bool], int] = {}
        self._rejections: list[Rejection] = []

    def code(self, status: Status) -> int:
        """The code of a status, 0 for one that lets the pod pass."""
        if status.ok or status.code is Code.SKIP:
            return 0
        key = (status.reasons, status.code is not Code.UNRESOLVABLE)
        found = self._codes.get(key)
        if found is None:
            found = self._codes[key] = self._first + len(self._rejections)
            self._rejections.append(Rejection(*key))
        return found

    def rejection(self, code: int) -> Rejection:
        """What a code that was given out means."""
        return self._rejections[code - self._first]
