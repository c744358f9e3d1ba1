"""How the interpreter is set up for roles with large caches."""

from __future__ import annotations

import gc

import pytest

from koord.process import tuning


def test_a_look_for_garbage_keeps_the_loop_for_tens_of_milliseconds_at_most() -> None:
    """It takes a microsecond an object on a busy machine: those made since the last one, and what is left of some before."""
    young, times, _ = tuning.GC_THRESHOLDS
    assert young <= 25_000
    assert young * (times + 1) <= 125_000


@pytest.mark.feature("DS-FW-01")
def test_the_collector_looks_at_little_in_one_go_as_long_as_anybody_works_in_small_steps() -> None:
    before = gc.get_threshold()
    gc.set_threshold(*tuning.GC_THRESHOLDS)
    try:
        one, other = tuning.collecting_in_small_steps(), tuning.collecting_in_small_steps()
        one.__enter__()
        young, times, _ = gc.get_threshold()
        assert (young, times) == tuning.GC_SMALL_STEPS
        assert young * (times + 2) <= 15_000  # 15 ms on a busy machine
        other.__enter__()
        one.__exit__(None, None, None)  # not the last one that began
        assert gc.get_threshold()[:2] == tuning.GC_SMALL_STEPS
        other.__exit__(None, None, None)
        assert gc.get_threshold() == tuning.GC_THRESHOLDS
    finally:
        gc.set_threshold(*before)
