"""What predictors of a node's peak would have promised, and how often that would have been too much (BEY-OVC-01). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from roles.manager.overcommit.predictors import CANDIDATES, Floats, Predictor, Recorded, windows


@dataclass(frozen=True, slots=True)
class Score:
    """Shares over all moments of all nodes."""

    name: str
    violations: float
    """Of moments after which the node used more within the horizon than was expected."""
    reclaimed: float
    """Of the limits that could be given to somebody else."""
    of_oracle: float
    """What is reclaimed, in proportion to what one who knows the future reclaims."""
    moments: int


def nodes_of(usage: Floats, limits: Floats, step: float, tasks: int, groupings: Iterable[Sequence[int]]) -> list[Recorded]:
    """Tasks put on nodes, so many each, once for each grouping (an order of the tasks); a rest that fills no node is left out."""
    found = []
    for order in groupings:
        placed, bound = usage[list(order)], limits[list(order)]
        for n in range(max(len(usage) // tasks, 1)):
            found.append(Recorded(placed[n * tasks : (n + 1) * tasks], bound[n * tasks : (n + 1) * tasks], step))
    return found


def replay(
    nodes: Sequence[Recorded], *, horizon: float, window: float, candidates: Iterable[tuple[str, Predictor]] = CANDIDATES
) -> list[Score]:
    """Each candidate's score, and the oracle's last. `horizon` and `window` in seconds. Raises ValueError when the record is too short."""
    known = list(candidates)
    totals = {name: np.zeros(3) for name, _ in (*known, ("oracle", None))}  # moments, violations, cores reclaimed
    everything = 0.0
    for node in nodes:
        ahead, back = max(round(horizon / node.step), 1), max(round(window / node.step), 2)
        moments = node.usage.shape[1] - back - ahead + 1
        if moments < 1:
            count = node.usage.shape[1]
            raise ValueError(f"{count} samples of {node.step:g} s are too few for a window of {window:g} s and {horizon:g} s ahead")
        limit = float(node.limits.sum())
        future = windows(node.usage.sum(axis=0)[back:], ahead).max(axis=-1)
        everything += limit * moments
        for name, predictor in known:
            expected = np.minimum(predictor(node, back)[:moments], limit)
            totals[name] += (moments, float((future > expected + 1e-9).sum()), float((limit - expected).sum()))
        totals["oracle"] += (moments, 0.0, float((limit - np.minimum(future, limit)).sum()))
    best = totals["oracle"][2]
    return [
        Score(name, wrong / moments, cores / everything, cores / best if best else 0.0, int(moments))
        for name, (moments, wrong, cores) in totals.items()
    ]


def chosen(scores: Iterable[Score], violations: float) -> Score | None:
    """The one that reclaims most with at most such a share of violations; None when none keeps to it."""
    fit = [score for score in scores if score.violations <= violations and score.name != "oracle"]
    return max(fit, key=lambda score: score.reclaimed, default=None)
