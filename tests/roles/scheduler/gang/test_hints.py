"""Scheduling hints through the scheduler's door, and in the cycle."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from koord.api.names import ANNOTATION_SCHEDULING_HINT as HINT
from koord.api.names import ANNOTATION_SCHEDULING_HINT_DEPRECATED as OLD
from roles.scheduler import testing
from roles.scheduler.plugins.scheduling_hint import extension_of

PLUGINS = {"plugins": {"preFilter": {"enabled": [{"name": "SchedulingHint"}]}}}


def world(**args: Any) -> testing.World:
    found = testing.World({**PLUGINS, "pluginConfig": [{"name": "SchedulingHint", "args": args}]})
    found.add_nodes(*(testing.node(name, cpu=cpu) for name, cpu in (("a", "16"), ("b", "4"), ("c", "2"), ("z", "1"))))
    return found


def hinted(text: Any, *, key: str = HINT, cpu: str = "100m", **spec: Any) -> Any:
    return testing.pod(cpu=cpu, annotations={key: text if isinstance(text, str) else json.dumps(text)}, **spec)


@pytest.mark.feature("SCH-HINT-01")
def test_named_nodes_are_required() -> None:
    found = world()
    assert found.decide(hinted({"nodeNames": ["b"]})).node == "b"
    assert found.decide(hinted({"nodeNames": ["b"]}, key=OLD)).node == "b"
    assert not found.decide(hinted({"nodeNames": ["no-such"]})).scheduled
    assert not found.decide(hinted({"nodeNames": ["z"]}, cpu="2")).scheduled
    both = testing.pod(cpu="1", annotations={HINT: '{"nodeNames":["b"]}', OLD: '{"nodeNames":["a"]}'})
    assert found.decide(both).node == "b"
    empty = testing.pod(cpu="1", annotations={HINT: "", OLD: '{"nodeNames":["c"]}'})
    assert found.decide(empty).node == "c"


@pytest.mark.feature("SCH-HINT-01")
def test_a_hint_that_cannot_be_read_is_an_error_of_the_pod() -> None:
    decision = world().decide(hinted('{"nodeNames":'))
    assert decision.verdict == "Error"
    assert HINT in decision.message()
    assert "not valid JSON" in decision.message()
    assert "Expected" in world().decide(hinted({"nodeNames": "b"})).message()


@pytest.mark.feature("SCH-HINT-02")
def test_preferred_nodes_are_tried_in_order_and_given_up_when_none_fits() -> None:
    found = world()
    wanted = {"preferredNodeNames": ["no-such", "z", "c", "a"]}
    assert found.decide(hinted(wanted, cpu="1500m")).node == "c"
    assert found.decide(hinted({"preferredNodeNames": ["z"]}, cpu="2500m")).node in ("a", "b")
    assert found.decide(hinted({"preferredNodeNames": ["a", "c"], "nodeNames": ["b", "c"]})).node == "c"
    # None of the preferred nodes is among the required ones: they are passed over.
    assert found.decide(hinted({"preferredNodeNames": ["a"], "nodeNames": ["b"]})).node == "b"


@pytest.mark.feature("SCH-HINT-02")
def test_only_so_many_preferred_nodes_are_tried() -> None:
    found = world(maxHintNodes=1)
    assert found.decide(hinted({"preferredNodeNames": ["z", "c"]}, cpu="2")).node == "a"
    # A name that is no node counts too, unless the nodes are restricted: then those outside go before the list is cut.
    assert found.decide(hinted({"preferredNodeNames": ["no-such", "c"]})).node == "a"
    assert found.decide(hinted({"preferredNodeNames": ["no-such", "a", "c", "b"], "nodeNames": ["b", "c"]})).node == "c"
    with pytest.raises(ValueError, match="maxHintNodes"):
        world(maxHintNodes=0)


def test_extensions_are_handed_to_the_plugin_they_name() -> None:
    found = world()
    info = found.parser.parse(hinted({"extensions": {"Probe": {"a": 1}}}))
    assert extension_of(info, "Probe") == {"a": 1}
    assert extension_of(info, "Other") is None
    assert extension_of(found.parser.parse(hinted("[")), "Probe") is None


@pytest.mark.feature("SCH-HINT-01")
@pytest.mark.feature("SCH-HINT-02")
def test_hints_through_the_api_server(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler({"profiles": [{"schedulerName": "koord-scheduler", **PLUGINS}]}) as live:
            await live.node("big", cpu="16")
            await live.node("small", cpu="2")
            await live.pod("required", meta={"annotations": {HINT: '{"nodeNames":["small"]}'}}, cpu="500m")
            await live.pod("preferred", meta={"annotations": {HINT: '{"preferredNodeNames":["gone","small"]}'}}, cpu="500m")
            assert await live.bound("required") == "small"
            assert await live.bound("preferred") == "small"
            await live.pod("broken", meta={"annotations": {HINT: "{"}})
            assert (await live.refused("broken"))["reason"] == "SchedulerError"
            await live.pod("absent", meta={"annotations": {HINT: '{"nodeNames":["later"]}'}})
            assert (await live.refused("absent"))["reason"] == "Unschedulable"
            await live.node("later")
            assert await live.bound("absent") == "later"

    asyncio.run(run())
