"""NodeResourcesFit: which resources it can be told to ignore."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from koord.accounting.resources import is_extended
from roles.scheduler import testing

CONFIG = {
    "ignoredResources": ["cpu", "hugepages-2Mi", "kubernetes.io/batch-cpu", "example.com/widget"],
    "ignoredResourceGroups": ["kubernetes.io", "example.org"],
}


@pytest.mark.feature("SCH-KS-02")
@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ({"cpu": "9"}, "Insufficient cpu"),
        ({"hugepages-2Mi": "2Mi"}, "Insufficient hugepages-2Mi"),
        ({"kubernetes.io/batch-cpu": "1"}, "Insufficient kubernetes.io/batch-cpu"),
        ({"kubernetes.io/batch-memory": "1"}, "Insufficient kubernetes.io/batch-memory"),
        ({"example.com/widget": "1"}, ""),
        ({"example.org/gadget": "1"}, ""),
        ({"example.com/other": "1"}, "Insufficient example.com/other"),
    ],
)
def test_only_extended_resources_can_be_ignored(requests: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    plugins: Any = {point: {"enabled": [{"name": "NodeResourcesFit"}]} for point in ("preFilter", "filter")}
    with caplog.at_level(logging.WARNING):
        world = testing.World({"plugins": plugins, "pluginConfig": [{"name": "NodeResourcesFit", "args": CONFIG}]})
    assert "cpu, hugepages-2Mi, kubernetes.io/batch-cpu, kubernetes.io cannot be ignored" in caplog.text
    world.add_nodes(testing.node("n"))
    decision = world.decide(testing.pod(**{"cpu": None, "memory": None, "requests": requests}))
    assert decision.scheduled == (not reason)
    assert reason in decision.message()


@pytest.mark.parametrize("name", ["cpu", "a/b/c", "/x", "example.com/", "kubernetes.io/x", "sub.kubernetes.io/x", "requests.example.com/x"])
def test_what_is_no_extended_resource(name: str) -> None:
    assert not is_extended(name)
    assert is_extended("example.com/widget")


@pytest.mark.feature("SCH-KS-02")
@pytest.mark.parametrize("count", [58, 59, 60, 64, 100])
def test_a_pod_may_ask_for_any_number_of_resources(count: int) -> None:
    plugins: Any = {point: {"enabled": [{"name": "NodeResourcesFit"}]} for point in ("preFilter", "filter")}
    world = testing.World({"plugins": plugins})
    names = [f"example.com/r{number:03}" for number in range(count)]
    world.add_nodes(testing.node("n", **dict.fromkeys(names, "1")))
    assert world.decide(testing.pod(requests=dict.fromkeys(names, "1"))).scheduled
    world.add_pods(testing.pod("holds", node="n", requests={names[-1]: "1"}))
    decision = world.decide(testing.pod("late", requests=dict.fromkeys(names, "1")))
    assert decision.verdict == "Unschedulable"
    assert names[-1] in decision.message()
    assert names[0] not in decision.message()
    assert decision.failure is not None
    assert len(decision.failure.resolvable()) == 1  # the pod that holds it could leave
