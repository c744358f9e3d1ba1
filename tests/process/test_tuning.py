"""How the interpreter is set up for roles with large caches."""

from __future__ import annotations

from koord.process import tuning


def test_a_look_for_garbage_keeps_the_loop_for_tens_of_milliseconds_at_most() -> None:
    """It takes a microsecond an object on a busy machine: those made since the last one, and what is left of some before."""
    young, times, _ = tuning.GC_THRESHOLDS
    assert young <= 25_000
    assert young * (times + 1) <= 125_000
