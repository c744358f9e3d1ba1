"""RemoveInterferingPods: what agents ask for in NodeMetrics, carried out with the descheduler's own limits (BEY-INT-01)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api import kinds
from tests.roles.descheduler.support import after_rounds, configuration, descheduling, eventually, metric, node, pod

REQUEST = {"reason": "Interference", "signal": "cpu", "victim": "default/web", "since": "2026-01-01T00:00:00Z"}


def reported(*, age: float = 0, **requests: Any) -> dict[str, Any]:
    """The NodeMetric of n1 with requests by pod."""
    made = metric("n1", "1", {"web": "1", "miner": "3", "other": "1"}, age=age)
    for entry in made["status"]["podsMetric"]:
        if entry["name"] in requests:
            entry["extensions"] = {"migrateOut": requests[entry["name"]]}
    return made


PODS = [node("n1"), node("n2"), pod("web", "n1"), pod("miner", "n1"), pod("other", "n1")]


def done(args: dict[str, Any], *objects: dict[str, Any]) -> Any:
    return after_rounds([*PODS, *objects], configuration({"deschedule": ["RemoveInterferingPods"]}, {"RemoveInterferingPods": args}))


@pytest.mark.feature("BEY-INT-01")
def test_a_pod_that_its_agent_asks_to_move_leaves() -> None:
    found = done({}, reported(miner=REQUEST))
    assert found.pods == {"web", "other"}
    (record,) = found.records("Evicted")
    assert (record.numbers["victim"], record.numbers["signal"]) == ("default/web", "cpu")


@pytest.mark.feature("BEY-INT-01")
def test_one_pod_a_node_and_round_the_one_asked_for_longest() -> None:
    found = done({}, reported(miner=REQUEST, other={**REQUEST, "since": "2025-01-01T00:00:00Z"}))
    assert found.pods == {"web", "miner"}


@pytest.mark.feature("BEY-INT-01")
@pytest.mark.parametrize(
    ("args", "metrics"),
    [
        ({}, reported()),
        ({}, reported(miner="yes")),
        ({}, reported(age=1000, miner=REQUEST)),
        ({"paused": True}, reported(miner=REQUEST)),
        ({"dryRun": True}, reported(miner=REQUEST)),
        ({"evictableNamespaces": {"exclude": ["default"]}}, reported(miner=REQUEST)),
        ({"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "n1"}}}, reported(miner=REQUEST)),
    ],
    ids=["nobody is asked", "no request", "old", "paused", "dry run", "namespace", "no other node"],
)
def test_when_nobody_leaves(args: dict[str, Any], metrics: dict[str, Any]) -> None:
    assert done(args, metrics).pods == {"web", "miner", "other"}


@pytest.mark.feature("BEY-INT-01")
@pytest.mark.parametrize("seconds", [0, 600], ids=["gone", "terminating"])
def test_the_next_pod_leaves_when_a_report_still_asks_for_it_after_the_first_has_left(seconds: int) -> None:
    pods = [pod(name, "n1", terminationGracePeriodSeconds=seconds) for name in ("web", "miner", "other")]
    objects = [node("n1"), node("n2"), *pods, reported(miner=REQUEST, other=REQUEST)]
    text = configuration({"deschedule": ["RemoveInterferingPods"]}, {"RemoveInterferingPods": {}}, deschedulingInterval="50ms")

    async def scenario() -> None:
        async with descheduling(objects, text) as running:
            await running.wait_rounds(4)
            assert running.subjects("Evicted") == ["miner"]
            if seconds:
                await running.client.delete(kinds.PODS, "miner", "default", grace_period_seconds=0)
            status = reported(other=REQUEST)["status"]
            status["podsMetric"] = [each for each in status["podsMetric"] if each["name"] != "miner"]
            await running.client.patch(kinds.NODEMETRICS, "n1", {"status": status}, subresource="status")
            await eventually(lambda: running.subjects("Evicted") == ["miner", "other"])

    asyncio.run(scenario())


@pytest.mark.feature("BEY-INT-01")
def test_a_pod_that_anti_affinity_keeps_off_the_other_node_stays() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "miner"}}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    miner = pod("miner", "n1")
    miner["metadata"]["labels"] = {"app": "miner"}
    objects = [node("n1"), node("n2"), pod("web", "n1"), miner, pod("quiet", "n2", affinity=rule), reported(miner=REQUEST)]
    found = after_rounds(objects, configuration({"deschedule": ["RemoveInterferingPods"]}, {"RemoveInterferingPods": {}}))
    assert found.pods == {"web", "miner", "quiet"}
