"""What the watchers of one server have not been sent yet, and which of them go when it is too much."""

from __future__ import annotations

from typing import Protocol

_SPARE = 32  # one part of so many is made free at once, so that not every event looks for somebody to cut


class Holder(Protocol):
    """Somebody for whom bytes are kept: what waits, and what is on its way."""

    waiting: int
    sending: int
    # when it last took something (see `Backlog.turn`)
    turn: int

    def cut(self) -> None:
        """Give up what waits, and end behind what is on its way."""

    def abort(self) -> None:
        """Give up what is on its way, too."""


class Backlog:
    """All holders and the sum of what they hold, in bytes. `turn` counts how often anybody took something."""

    __slots__ = ("holders", "total", "turn")

    def __init__(self) -> None:
        self.holders: set[Holder] = set()
        self.total = 0
        self.turn = 0

    def shrink(self, limit: int) -> None:
        """Get below `limit`. Those for whom most waits are cut, as far as that is more than anybody has on its way; if that is not enough,
        those that have taken nothing for longest, and with them what is on its way: who stands still must not keep newcomers out.
        """
        room, most = limit - limit // _SPARE, max((holder.sending for holder in self.holders), default=0)
        for holder in sorted(self.holders, key=lambda holder: -holder.waiting):
            if self.total <= room:
                return
            if holder.waiting > most:
                holder.cut()
        for holder in 2 * sorted(self.holders, key=lambda holder: holder.turn):
            if self.total <= room:
                return
            if holder.waiting:
                holder.cut()
            else:
                holder.abort()
