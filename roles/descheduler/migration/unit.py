"""What the job of a gang's member knows of the jobs of the others: a plain value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """`placed` of `count` members have a place; `begun`: the eviction of one was accepted; `first`: this one is to leave before the others;
    `lost`: why the gang stays where it is, "" as long as it may move."""

    gang: str
    count: int
    placed: int
    begun: bool
    first: bool
    lost: str = ""

    def waits(self) -> str:
        """Why this member must not leave yet, "" when it may."""
        if self.begun:
            return ""
        if self.placed < self.count:
            return f"{self.placed} of the {self.count} members of gang {self.gang} have a place"
        return "" if self.first else f"another member of gang {self.gang} leaves first"
