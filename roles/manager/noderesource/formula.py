"""The formulas of Batch resources, shared by the node and its NUMA zones; pure."""

from __future__ import annotations

from dataclasses import dataclass

from koord.api.quantity import multiply_base


@dataclass(slots=True)
class HighPriority:
    """Sums over high-priority pods: used, requested, max(used, requested). cpu in milli, memory in bytes, or milli of both in zones."""

    used: list[int]
    request: list[int]
    max: list[int]


@dataclass(frozen=True, slots=True)
class Balance:
    """One resource of one place (node or zone), all in one unit. `cap` is the Batch threshold percent, None when unset."""

    policy: str
    total: int
    reclaim_percent: int
    cap: int | None
    reserved: int
    system: int
    used: int
    request: int
    max: int
    parts: int = 1
    """How many of the unit make one of the base in which percents are truncated: 1000 for memory in thousandths of a byte."""

    @property
    def margin(self) -> int:
        """What the reclaim percent keeps free; negative for percents above 100."""
        return self._percent(100 - self.reclaim_percent)

    def _percent(self, percent: int) -> int:
        return multiply_base(-(-self.total // self.parts), percent / 100) * self.parts

    @property
    def amount(self) -> int:
        """What is left for Batch."""
        left = self.total - self.margin
        if self.policy == "request":
            left -= self.reserved + self.request
        elif self.policy == "maxUsageRequest":
            left -= max(self.system, self.reserved) + self.max
        else:
            left -= max(self.system, self.reserved) + self.used
        left = max(left, 0)
        return left if self.cap is None else min(left, self._percent(self.cap))

    @property
    def text(self) -> str:
        """The formula in words, for the record."""
        words = {
            "request": "total − margin − reserved − hpRequest",
            "maxUsageRequest": "total − margin − system − hpMax",
        }.get(self.policy, "total − margin − system − hpUsed")
        return f"min(max({words}, 0), total × {self.cap}%)" if self.cap is not None else f"max({words}, 0)"
