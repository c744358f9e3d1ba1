"""How many examples a dear property test tries: few where it gates every change, many more in the nightly run."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
MORE = 50


def examples(number: int, **more: Any) -> settings:
    """`number` examples, fifty times as many in the nightly run: a number in `settings` would hold there, too."""
    return settings(max_examples=number * MORE if NIGHTLY else number, deadline=None, **more)
