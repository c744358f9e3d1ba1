"""Whether what a plugin answers can be worked with. Where it cannot, the error names the plugin and the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from roles.scheduler.framework.context import BindDraft, CycleContext
from roles.scheduler.framework.interfaces import NodeMask, NodeSet, Plugin
from roles.scheduler.framework.status import Status

_STEPS = {"PreFilter": "pre_filter", "PreScore": "pre_score"}


class AnswerError(Exception):
    """An answer of a plugin's step that nobody can work with; the text is whole."""

    def __init__(self, plugin: Plugin, step: str, what: str) -> None:
        super().__init__(f"plugin {plugin.name} ({step}): {what}")


def status_of(plugin: Plugin, step: str, answer: Any) -> Status:
    """The answer, which has to be a Status. Raises AnswerError."""
    if isinstance(answer, Status):
        return answer
    raise AnswerError(plugin, step, f"it returned {_told(answer)}, not a Status such as SUCCESS")


def check_draft(plugin: Plugin, draft: BindDraft) -> None:
    """Look at what a preBind plugin wants written on the pod. Raises AnswerError."""
    for field, values in (("annotations", draft.annotations), ("labels", draft.labels)):
        for key, value in values.items():
            if not (isinstance(key, str) and (value is None or isinstance(value, str))):
                raise AnswerError(plugin, "pre_bind", f"draft.{field}[{key!r}] is {_told(value)}, not a text (None removes the key)")


def check(plugin: Plugin, point: str, answer: Any, ctx: CycleContext, rows: Any = None) -> None:
    """Look at what a step answered for all pods of a shape. Raises AnswerError."""
    if point == "Filter":
        if answer is not None and not isinstance(rows, int):
            _check_length(plugin, "filter", answer, ctx, rows)
    elif point == "Score":
        _check_score(plugin, answer, ctx, rows)
    elif not (point == "PreFilter" and isinstance(answer, (NodeSet, NodeMask))):
        status_of(plugin, _STEPS[point], answer)


def _check_length(plugin: Plugin, step: str, answer: Any, ctx: CycleContext, rows: Any) -> None:
    wanted = len(ctx.cluster.slots[rows])
    if not isinstance(answer, np.ndarray) or answer.shape != (wanted,):
        raise AnswerError(plugin, step, f"it returned {_told(answer)}, not an array of {wanted}, one for each of `rows`")


def _check_score(plugin: Plugin, answer: Any, ctx: CycleContext, rows: Any) -> None:
    number = isinstance(answer, (int, float, np.number)) or isinstance(rows, int)
    if not number:
        _check_length(plugin, "score", answer, ctx, rows)
    try:
        wrong = ~np.isfinite(np.asarray(answer, dtype=np.float64))
    except (TypeError, ValueError):
        raise AnswerError(plugin, "score", f"it returned {_told(answer)}, not numbers") from None
    if not np.any(wrong):
        return
    slots = ctx.cluster.slots[rows]
    found = np.atleast_1d(slots)[np.atleast_1d(ctx.feasible[slots] & wrong)]
    if len(found):  # others may hold anything
        value = answer if number else answer[wrong & ctx.feasible[slots]][0]
        raise AnswerError(plugin, "score", f"it returned {value} for node {ctx.cluster.name_of(int(found[0]))}, not a finite number")


def _told(answer: Any) -> str:
    return f"an array of shape {answer.shape}" if isinstance(answer, np.ndarray) and answer.ndim else f"{answer!r:.80}"
