"""How high the usage of a node may go within the next hours: candidates for overcommit, each of a few lines. Pure.

A predictor looks at recorded usage alone: `usage[task, sample]` in cores, and answers the peak that it expects of the node after each
sample. What the limits of the tasks sum up to beyond that could be given to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from koord.accounting.histogram import AGENT_CPU, DecayingHistogram

Floats = NDArray[np.float64]


class Recorded(NamedTuple):
    """Tasks of one node, sampled together."""

    usage: Floats
    """Cores, by task and sample."""
    limits: Floats
    """Cores, by task."""
    step: float
    """Seconds between samples."""


Predictor = Callable[[Recorded, int], Floats]
"""(what is recorded, samples that are looked back at) -> expected peak after each sample from the first full window on."""


def windows(values: Floats, length: int) -> Floats:
    """Every window of so many samples, along the last axis."""
    return sliding_window_view(values, length, axis=-1)


def n_sigma(sigmas: float) -> Predictor:
    """Mean of the node's usage and so many standard deviations: tasks that are independent make it about normal."""

    def predict(recorded: Recorded, window: int) -> Floats:
        seen = windows(recorded.usage.sum(axis=0), window)
        return np.asarray(seen.mean(axis=-1) + sigmas * seen.std(axis=-1))

    return predict


def independent(sigmas: float) -> Predictor:
    """The tasks' means, and so many deviations of their sum as if no task knew of another: a common wave does not count twice."""

    def predict(recorded: Recorded, window: int) -> Floats:
        seen = windows(recorded.usage, window)
        return np.asarray(seen.mean(axis=-1).sum(axis=0) + sigmas * np.sqrt(seen.var(axis=-1).sum(axis=0)))

    return predict


def sum_of_percentiles(percent: float) -> Predictor:
    """The sum of what each task rarely passes: as if all were high at once."""

    def predict(recorded: Recorded, window: int) -> Floats:
        return np.asarray(sum(_percentile(windows(task, window), percent) for task in recorded.usage))

    return predict


def percentile_of_node(percent: float, factor: float) -> Predictor:
    """What the node as a whole rarely passed, and something on top."""

    def predict(recorded: Recorded, window: int) -> Floats:
        return _percentile(windows(recorded.usage.sum(axis=0), window), percent) * factor

    return predict


def koordlet(half_life: float = 12 * 3600.0, margin: float = 1.10, percentile: float = 0.95) -> Predictor:
    """koordlet's own: decaying histograms of each pod and of the node, p95 and the safety margin, the more careful one."""

    def predict(recorded: Recorded, window: int) -> Floats:
        tasks = sum(_decaying(task, recorded.step, half_life, percentile, window) for task in recorded.usage)
        node = _decaying(recorded.usage.sum(axis=0), recorded.step, half_life, percentile, window)
        return np.asarray(np.maximum(tasks, node) * margin)

    return predict


def _decaying(values: Floats, step: float, half_life: float, percentile: float, window: int) -> Floats:
    histogram = DecayingHistogram(AGENT_CPU, half_life)
    found = []
    for number, value in enumerate(values):
        histogram.add(float(value), 1.0, number * step)
        if number + 1 >= window:
            found.append(histogram.percentile(percentile))
    return np.array(found)


def _percentile(seen: Floats, percent: float) -> Floats:
    return np.asarray(np.percentile(seen, percent, axis=-1))


CANDIDATES: tuple[tuple[str, Predictor], ...] = (
    ("koordlet", koordlet()),
    ("N-sigma 3", n_sigma(3)),
    ("N-sigma 4", n_sigma(4)),
    ("N-sigma 4.5", n_sigma(4.5)),
    ("N-sigma 5", n_sigma(5)),
    ("N-sigma 6", n_sigma(6)),
    ("independent 5", independent(5)),
    ("sum of p90", sum_of_percentiles(90)),
    ("sum of p95", sum_of_percentiles(95)),
    ("sum of p98", sum_of_percentiles(98)),
    ("node p95 + 10%", percentile_of_node(95, 1.1)),
)
