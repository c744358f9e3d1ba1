"""Numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A number of a range; `nan`, which lies in each, and infinity are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a number of the range {self._describe_range()}.", param, ctx)
        return found
