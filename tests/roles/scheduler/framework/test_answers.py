"""Answers of plugins that nobody can work with: what is told names the plugin and the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from roles.scheduler.cycle.decision import Decision
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.answers import AnswerError
from roles.scheduler.framework.framework import told
from roles.scheduler.framework.status import SUCCESS
from roles.scheduler.testing import World, node, pod

ANSWERS: dict[str, Any] = {}


class Answering(api.PreEnqueue, api.PreFilter, api.Filter, api.PreScore, api.Score, api.Reserve, api.Permit):
    """Gives the answers of the test, by step: a value, or a function of the length of `rows`."""

    name = "Answering"

    def pre_enqueue(self, pod: Any) -> Any:
        return ANSWERS.get("pre_enqueue", SUCCESS)

    def pre_filter(self, ctx: Any) -> Any:
        return ANSWERS.get("pre_filter", SUCCESS)

    def filter(self, ctx: Any, rows: Any) -> Any:
        return self._of("filter", ctx, rows)

    def pre_score(self, ctx: Any) -> Any:
        return ANSWERS.get("pre_score", SUCCESS)

    def score(self, ctx: Any, rows: Any) -> Any:
        return self._of("score", ctx, rows)

    def reserve(self, ctx: Any, slot: int) -> Any:
        return ANSWERS.get("reserve", SUCCESS)

    def permit(self, ctx: Any, slot: int) -> Any:
        return ANSWERS.get("permit", SUCCESS)

    def _of(self, step: str, ctx: Any, rows: Any) -> Any:
        answer = ANSWERS.get(step, 0.0 if step == "score" else None)
        return answer(ctx.cluster.slots[rows]) if callable(answer) else answer


def decided(answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Decision:
    monkeypatch.setattr(f"{__name__}.ANSWERS", answers)
    world = World({"plugins": {"multiPoint": {"enabled": [{"name": "Answering"}]}}}, plugins=[Answering])
    world.add_nodes(node("n1", cpu="1"), node("n2"), node("n3"))
    asked = pod(cpu="2")
    status = world.framework.run_pre_enqueue(world.parser.parse(asked))
    assert status is SUCCESS
    decision = world.schedule(asked)
    world.framework.run_permit(decision.ctx, decision.slot)
    return decision


@pytest.mark.parametrize("step", ["pre_enqueue", "pre_filter", "pre_score", "reserve", "permit"])
@pytest.mark.parametrize("answer", [None, True])
def test_a_step_that_returns_no_status(step: str, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnswerError) as raised:
        decided({step: answer}, monkeypatch)
    assert told(raised.value) == f"plugin Answering ({step}): it returned {answer}, not a Status such as SUCCESS"


@pytest.mark.parametrize("step", ["filter", "score"])
@pytest.mark.parametrize(
    ("answer", "what"),
    [(lambda slots: np.zeros(1), "an array of shape (1,)"), (lambda slots: [0] * len(slots), "[0, 0, "), (np.array(0), "array(0)")],
)
def test_an_array_that_is_none_or_too_short(step: str, answer: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnswerError, match="one for each of `rows`") as raised:
        decided({step: answer}, monkeypatch)
    assert told(raised.value).startswith(f"plugin Answering ({step}): it returned {what}")


@pytest.mark.parametrize("answer", [lambda slots: np.where(slots == 1, np.nan, 1.0), lambda slots: np.where(slots == 1, np.inf, 1.0)])
def test_a_score_that_is_no_number(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnswerError, match=r"plugin Answering \(score\): it returned (nan|inf) for node n2, not a finite number"):
        decided({"score": answer}, monkeypatch)


def test_one_value_for_all_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnswerError, match=r"\(score\): it returned nan for node n2"):
        decided({"score": float("nan")}, monkeypatch)


@pytest.mark.parametrize("value", [np.int64(5), np.float32(5.0), 5])
def test_one_value_for_all_may_be_a_number_of_numpy(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decided({"score": value}, monkeypatch).node in ("n2", "n3")


def test_scores_that_are_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnswerError, match=r"plugin Answering \(score\): it returned an array of shape .*, not numbers"):
        decided({"score": lambda slots: np.array([{}] * len(slots))}, monkeypatch)


def test_nodes_that_do_not_fit_may_have_any_score(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decided({"score": lambda slots: np.where(slots == 0, np.nan, slots)}, monkeypatch).node == "n3"


class Unwritten(api.Filter, api.Score):
    name = "Unwritten"


class Unexplained(api.Filter):
    name = "Unexplained"

    def filter(self, ctx: Any, rows: Any) -> Any:
        return np.full(len(ctx.cluster.slots[rows]), 2)


@pytest.mark.parametrize(
    ("point", "plugin", "message"),
    [
        ("filter", Unwritten, "plugin Unwritten (filter): NotImplementedError: write filter or filter_row"),
        ("score", Unwritten, "plugin Unwritten (score): NotImplementedError: write score or score_row"),
        (
            "filter",
            Unexplained,
            "plugin Unexplained (rejection): NotImplementedError: filter refused a node with code 2: write rejection, which says why",
        ),
    ],
)
def test_a_step_that_is_not_written(point: str, plugin: type[api.Plugin], message: str) -> None:
    world = World({"plugins": {point: {"enabled": [{"name": plugin.name}]}}}, plugins=[plugin])
    world.add_nodes(node("n1"), node("n2"))
    with pytest.raises(NotImplementedError) as raised:
        world.decide(pod()).message()
    assert told(raised.value) == message


def test_one_reason_may_be_a_text() -> None:
    assert api.Rejection("closed") == (("closed",), True)  # else each letter would be a reason
    assert api.Rejection(("closed", "hot"), resolvable=False) == (("closed", "hot"), False)
