"""The binder: what each answer of the API server means for the pod (SCH-FW-06, SCH-FW-12)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.kube import errors
from roles.scheduler import testing
from roles.scheduler.binding.binder import Binder, Outcome, Task
from roles.scheduler.cluster.podinfo import PodInfo


class Client:
    """Answers every bind with an error, or not at all."""

    def __init__(self, answer: Exception | None = None) -> None:
        self.answer, self.calls, self.busy, self.most = answer, 0, 0, 0

    async def bind(self, namespace: str, pod: str, node: str, uid: str | None = None) -> None:
        self.calls += 1
        self.busy += 1
        self.most = max(self.most, self.busy)
        await asyncio.sleep(0.001)
        self.busy -= 1
        if self.answer is not None:
            raise self.answer


def bind(client: Client, *, count: int = 1, current: Any = "same", held: bool = True, workers: int = 4) -> list[tuple[Outcome, str]]:
    world = testing.World()
    world.add_nodes(testing.node("n", cpu="64"))
    world.handle.client = client
    decisions = [world.schedule(testing.pod(cpu="10m")) for _ in range(count)]
    results: list[tuple[Outcome, str]] = []

    def reread(pod: PodInfo) -> PodInfo | None:
        return next(d.pod for d in decisions if d.pod.uid == pod.uid) if current == "same" else current

    async def run() -> None:
        binder = Binder(
            workers=workers,
            finished=lambda task, outcome, status: results.append((outcome, status.message)),
            may_write=lambda: held,
            reread=reread,
        )
        binder.start()
        for decision in decisions:
            binder.submit(Task(decision, 1))
        while len(results) < count:
            await asyncio.sleep(0.001)
        assert binder.backlog == 0
        await binder.stop()

    asyncio.run(run())
    return results


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (None, Outcome.BOUND),
        (errors.NotFound(404, "NotFound", "no such pod"), Outcome.GONE),
        (errors.Conflict(409, "Conflict", "already assigned"), Outcome.OPEN),
        (errors.Invalid(422, "Invalid", "bad target"), Outcome.PARKED),
        (errors.Unreachable("down"), Outcome.LOST),
        (errors.ServerError(504, "Timeout", "not done in time"), Outcome.LOST),
        (errors.Forbidden(403, "Forbidden", "not allowed"), Outcome.RETRY),
        (RuntimeError("a defect"), Outcome.OPEN),
    ],
)
def test_answers_and_what_they_mean(answer: Exception | None, outcome: Outcome) -> None:
    ((found, message),) = bind(Client(answer))
    assert found is outcome
    if answer is not None:
        assert str(answer) in message


@pytest.mark.feature("SCH-FW-06")
def test_so_many_at_a_time_and_no_more() -> None:
    client = Client()
    assert {outcome for outcome, _ in bind(client, count=30, workers=4)} == {Outcome.BOUND}
    assert client.most == 4


@pytest.mark.feature("SCH-FW-12")
@pytest.mark.parametrize(
    ("spec", "reason"),
    [(None, "is gone"), ({"uid": "another"}, "is gone"), ({"uid": "u", "scheduler": "other"}, "belongs to scheduler 'other'")],
)
def test_a_pod_is_looked_at_once_more_before_it_is_bound(spec: dict[str, Any] | None, reason: str) -> None:
    world = testing.World()
    world.add_nodes(testing.node("n"))
    client = world.handle.client = Client()
    decision = world.schedule(testing.pod("p", uid="u"))
    current = None if spec is None else world.parser.parse(testing.pod("p", **spec))
    results: list[Any] = []

    async def run() -> None:
        binder = Binder(workers=1, finished=lambda *result: results.append(result), may_write=lambda: True, reread=lambda key: current)
        binder.start()
        binder.submit(Task(decision, 1))
        while not results:
            await asyncio.sleep(0.001)
        await binder.stop()

    asyncio.run(run())
    assert results[0][1] is Outcome.GONE
    assert reason in results[0][2].message
    assert client.calls == 0


@pytest.mark.feature("SCH-FW-03")
def test_nothing_is_written_without_the_lease() -> None:
    client = Client()
    ((outcome, message),) = bind(client, held=False)
    assert outcome is Outcome.RETRY
    assert "lease is lost" in message
    assert client.calls == 0
