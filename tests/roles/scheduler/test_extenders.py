"""HTTP extenders: another program filters, scores, preempts and binds; asked by the live scheduler on the embedded API server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from koord.api.kinds import NODES, PODS, PRIORITYCLASSES
from koord.config.extenders import Extender as Config
from koord.process.certificates import ensure
from koord.process.errors import ConfigurationError
from roles.scheduler import testing
from roles.scheduler.extenders import client as client_module
from roles.scheduler.extenders import wire
from roles.scheduler.extenders.client import Extender
from roles.scheduler.framework.status import Candidate
from roles.scheduler.framework.steps import at_once, in_steps

Obj = dict[str, Any]
Answer = Callable[[Obj], Any]


@contextlib.asynccontextmanager
async def extender(tls: ssl.SSLContext | None = None, **verbs: Answer) -> AsyncIterator[tuple[str, list[tuple[str, Obj]]]]:
    """A server with the given verbs; gives its URL and what it was asked."""
    asked: list[tuple[str, Obj]] = []

    async def handle(request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        body = orjson.loads(await request.read())
        asked.append((verb, body))
        answer = verbs[verb](body)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/ext/{verb}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}/ext", asked
    finally:
        await runner.cleanup()


def names_in(body: Obj) -> list[str]:
    return list(body["NodeNames"]) if body["NodeNames"] is not None else [node["metadata"]["name"] for node in body["Nodes"]["items"]]


async def three_nodes(objects: Any) -> None:
    for number in range(3):
        await objects.node(f"n{number}")


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-FW-01")
@pytest.mark.parametrize("cached", [True, False])
def test_an_extender_filters_and_scores(scheduler: Any, cached: bool) -> None:
    def select(body: Obj) -> Obj:
        left = [name for name in names_in(body) if name != "n0"]
        nodes = (
            {"NodeNames": left} if cached else {"nodes": {"items": [n for n in body["Nodes"]["items"] if n["metadata"]["name"] in left]}}
        )
        return {**nodes, "FailedNodes": {"n0": "not this one"}}

    def rank(body: Obj) -> list[Obj]:
        return [{"Host": name, "Score": 10 if name == "n2" else 0} for name in names_in(body)]

    async def run() -> None:
        async with extender(filter=select, rank=rank) as (url, asked):
            config = {"urlPrefix": url, "filterVerb": "filter", "prioritizeVerb": "rank", "weight": 1, "nodeCacheCapable": cached}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                await live.pod("p", meta={"annotations": {"example.com/whole": "yes"}})
                assert await live.bound("p") == "n2"
                async with aiohttp.ClientSession() as session, session.get(f"{live.ops.url}/debug/decisions?name=p") as response:
                    text = await response.text()
                assert '"extenders"' in text
            (first, filter_body), (second, rank_body) = asked
            assert (first, second) == ("filter", "rank")
            assert sorted(names_in(filter_body)) == ["n0", "n1", "n2"]
            assert sorted(names_in(rank_body)) == ["n1", "n2"]
            # The pod is sent whole, not as the scheduler keeps it.
            assert filter_body["Pod"]["metadata"]["annotations"] == {"example.com/whole": "yes"}
            assert (filter_body["Nodes"] is None) == cached

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_whole_nodes_count_in_the_answer_of_an_extender_that_keeps_none(scheduler: Any) -> None:
    async def run() -> None:
        async with extender(filter=lambda body: {"Nodes": body["Nodes"], "NodeNames": []}) as (url, _):
            config = {"urlPrefix": url, "filterVerb": "filter"}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                await live.pod("p")
                assert await live.bound("p")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
def test_a_refusal_is_explained_and_any_event_brings_the_pod_back(scheduler: Any) -> None:
    willing = False

    def select(body: Obj) -> Obj:
        if willing:
            return {"NodeNames": names_in(body)}
        return {"NodeNames": [], "FailedNodes": {"n0": "no licence", "n1": "no licence"}, "FailedAndUnresolvableNodes": {"n2": "too old"}}

    async def run() -> None:
        nonlocal willing
        async with extender(filter=select) as (url, _):
            config = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                await live.pod("p")
                condition = await live.refused("p")
                assert condition["reason"] == "Unschedulable"
                assert condition["message"].startswith("0/3 nodes are available: 1 too old, 2 no licence.")
                willing = True
                await live.node("unrelated", cpu="1m")
                await live.bound("p")

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_nobody_is_evicted_where_only_an_extender_says_no(scheduler: Any) -> None:
    """The pod fits on each node as it is. Who left would leave in vain, and at each attempt another one."""

    def select(body: Obj) -> Obj:
        return nobody(body) if body["Pod"]["metadata"]["name"] == "high" else {"NodeNames": names_in(body)}

    async def run() -> None:
        async with extender(filter=select) as (url, _):
            config = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                for number in range(3):
                    await live.pod(f"low-{number}", cpu="2")
                    await live.bound(f"low-{number}")
                await live.client.create(PRIORITYCLASSES, {"metadata": {"name": "high"}, "value": 1000})
                await live.pod("high", priorityClassName="high")
                condition = await live.refused("high")
                assert condition["message"] == (
                    "0/3 nodes are available: 3 no licence. preemption: 0/3 nodes are available: "
                    "3 Preemption is not helpful for scheduling."
                )
                assert not live.app.engine.state.evictions.victim_count

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("empty", [True, False], ids=["in the place of the former", "in a place of its own"])
def test_an_extender_is_asked_about_a_node_that_came_meanwhile(scheduler: Any, empty: bool) -> None:
    """At the next attempt, for which nothing has to happen."""

    async def run() -> None:
        async def replaced(body: Obj) -> Obj:
            if body["Pod"]["metadata"]["name"] == "p" and names_in(body) == ["n0"]:
                await live.client.delete(NODES, "n0")
                await live.node("n1")
                await live.consistent()
            return {"NodeNames": names_in(body)}

        async with extender(filter=replaced) as (url, asked):
            config = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}
            async with scheduler({"extenders": [config]}, before=lambda objects: objects.node("n0")) as live:
                if not empty:
                    await live.pod("there")
                    await live.bound("there")
                await live.pod("p")
                assert await live.bound("p") == "n1"
                assert names_in(asked[-1][1]) == ["n1"]

    asyncio.run(run())


def nobody(body: Obj) -> Obj:
    """As a Go program writes it when it appended no node."""
    failed = dict.fromkeys(names_in(body), "no licence")
    return {"Nodes": None, "NodeNames": None, "FailedNodes": failed, "FailedAndUnresolvableNodes": None, "Error": ""}


NOBODY: dict[str, tuple[Answer, str]] = {
    "null lists": (nobody, "3 no licence"),
    "null texts": (lambda body: {"FailedNodes": dict.fromkeys(names_in(body))}, "3 node(s) were refused by an extender"),
    "no field": (lambda body: {}, "3 node(s) were refused by an extender"),
    "null": (lambda body: None, "3 node(s) were refused by an extender"),
}


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("ignorable", [True, False])
@pytest.mark.parametrize("said", NOBODY)
def test_an_answer_without_nodes_refuses_all_of_them(scheduler: Any, said: str, ignorable: bool) -> None:
    answer, text = NOBODY[said]

    async def run() -> None:
        async with extender(filter=answer) as (url, _):
            config = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True, "ignorable": ignorable}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                await live.pod("p")
                condition = await live.refused("p")
                assert condition["reason"] == "Unschedulable"
                assert condition["message"].startswith(f"0/3 nodes are available: {text}.")

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("result", ["scheduled", "unschedulable"])
def test_the_time_of_an_attempt_is_also_that_of_its_extenders(scheduler: Any, result: str) -> None:
    async def select(body: Obj) -> Obj:
        await asyncio.sleep(0.2)
        return (
            {"NodeNames": names_in(body)} if result == "scheduled" else {"NodeNames": [], "FailedNodes": dict.fromkeys(names_in(body), "")}
        )

    async def run() -> None:
        async with extender(filter=select) as (url, asked):
            config = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                await live.pod("p")
                await (live.bound("p") if result == "scheduled" else live.refused("p"))
                await live.consistent()
                async with aiohttp.ClientSession() as session, session.get(f"{live.ops.url}/metrics") as response:
                    page = await response.text()
                about = f'{{profile="koord-scheduler",result="{result}"}} '
                took = page.partition(f"scheduler_scheduling_attempt_duration_seconds_sum{about}")[2].split()[0]
                assert float(took) >= 0.2 * len(asked) > 0
                steps = 'scheduler_plugin_execution_duration_seconds_count{extension_point="Filter",plugin="NodeResourcesFit"'
                assert steps in page  # the first attempt of ten is measured, whoever was asked

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
@pytest.mark.feature("SCH-FW-06")
def test_a_long_decision_is_checked_against_what_has_happened_meanwhile(scheduler: Any) -> None:
    """While the second look at the nodes goes on, the one that it is about to choose is deleted."""

    async def run() -> None:
        async with extender(filter=lambda body: {"NodeNames": names_in(body)}) as (url, _):
            config = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                app, gone = live.app, list[str]()
                begin, looks = app.engine.cycle.begin, 0

                def long(pod: Any, advice: Any) -> Any:
                    decision = at_once(in_steps(begin(pod, advice)))
                    yield
                    deleting = asyncio.ensure_future(live.client.delete(NODES, decision.node))
                    gone.append(decision.node)
                    while not (deleting.done() and app.observer._gate.held_back):
                        yield
                    return decision

                def slow(pod: Any, advice: Any) -> Any:
                    nonlocal looks
                    looks += 1
                    return long(pod, advice) if looks == 2 else begin(pod, advice)

                app.engine.cycle.begin = slow
                await live.pod("p")
                assert await live.bound("p") not in gone
                assert gone
                assert app.scheduler.outdated_plans == 1

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("ignorable", [True, False])
def test_an_extender_that_fails(scheduler: Any, ignorable: bool) -> None:
    async def slow(body: Obj) -> Obj:
        await asyncio.sleep(5)
        return {}

    def broken(body: Obj) -> web.Response:
        return web.Response(status=500)

    async def run() -> None:
        async with extender(filter=slow, rank=broken) as (url, asked):
            config = {"urlPrefix": url, "filterVerb": "filter", "httpTimeout": "50ms", "ignorable": ignorable, "nodeCacheCapable": True}
            ranking = {"urlPrefix": url, "prioritizeVerb": "rank", "weight": 5, "nodeCacheCapable": True}
            async with scheduler({"extenders": [config, ranking]}, before=three_nodes) as live:
                await live.pod("p")
                if ignorable:
                    await live.bound("p")  # scores are a wish: their failure never counts
                    assert "rank" in [verb for verb, _ in asked]
                else:
                    condition = await live.refused("p")
                    assert condition["reason"] == "SchedulerError"
                    assert "did not answer within 0.05 s" in condition["message"]

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-KS-02")
def test_only_pods_with_its_resources_and_the_extender_counts_them_itself(scheduler: Any) -> None:
    client: Any = None
    bindings: list[tuple[str, str]] = []

    async def bind(body: Obj) -> Obj:
        bindings.append((body["PodName"], body["Node"]))
        await client.bind(body["PodNamespace"], body["PodName"], body["Node"], body["PodUID"])
        return {"Error": ""}

    async def run() -> None:
        nonlocal client
        async with extender(filter=lambda body: {"NodeNames": ["n1"]}, bind=bind) as (url, asked):
            config = {
                "urlPrefix": url, "filterVerb": "filter", "bindVerb": "bind", "nodeCacheCapable": True,
                "managedResources": [{"name": "example.com/foo", "ignoredByScheduler": True}],
            }  # fmt: skip
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                client = live.client
                await live.pod("other")
                await live.bound("other")
                assert asked == []
                amounts = {"example.com/foo": "1"}  # no node has any: the scheduler leaves that to the extender
                await live.pod("p", containers=[{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}])
                assert await live.bound("p") == "n1"
                assert bindings == [("p", "n1")]

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
def test_an_extender_rules_out_victims(scheduler: Any) -> None:
    def preempt(body: Obj) -> Obj:
        assert sorted(body["NodeNameToMetaVictims"]) == ["n0", "n1", "n2"]
        return {"NodeNameToMetaVictims": {"n1": body["NodeNameToMetaVictims"]["n1"]}}

    async def run() -> None:
        async with extender(preempt=preempt) as (url, _):
            config = {"urlPrefix": url, "preemptVerb": "preempt", "nodeCacheCapable": True}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                for number in range(3):
                    await live.pod(f"low-{number}", cpu="4", terminationGracePeriodSeconds=0)
                homes = {f"low-{number}": await live.bound(f"low-{number}") for number in range(3)}
                victim = next(name for name, node in homes.items() if node == "n1")
                await live.client.create(PRIORITYCLASSES, {"metadata": {"name": "high"}, "value": 1000})
                await live.pod("high", cpu="4", priorityClassName="high")
                assert await live.bound("high") == "n1"
                left = {pod["metadata"]["name"] for pod in (await live.client.list(PODS, "default")).items}
                assert left == {"high", *homes} - {victim}

    asyncio.run(run())


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.parametrize("frees", [True, False], ids=["room comes free", "a victim is spared"])
def test_nobody_is_evicted_for_what_was_so_before_an_extender_answered(scheduler: Any, frees: bool) -> None:
    async def run() -> None:
        async def preempt(body: Obj) -> Obj:
            if len(asked) == 1:
                changed = next(name for name, node in homes.items() if node == ("n0" if frees else "n1"))
                if frees:
                    await live.client.delete(PODS, changed, "default", grace_period_seconds=0)
                else:
                    spared = {"metadata": {"labels": {"scheduling.koordinator.sh/disable-preemptible": "true"}}}
                    await live.client.patch(PODS, changed, spared, "default")
                await live.consistent()
            victims = body["NodeNameToMetaVictims"]
            return {"NodeNameToMetaVictims": {"n1" if "n1" in victims else "n2": victims.get("n1") or victims["n2"]}}

        async with extender(preempt=preempt) as (url, asked):
            config = {"urlPrefix": url, "preemptVerb": "preempt", "nodeCacheCapable": True}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                for number in range(3):
                    await live.pod(f"low-{number}", cpu="4", terminationGracePeriodSeconds=0)
                homes = {f"low-{number}": await live.bound(f"low-{number}") for number in range(3)}
                await live.client.create(PRIORITYCLASSES, {"metadata": {"name": "high"}, "value": 1000})
                await live.pod("high", cpu="4", priorityClassName="high")
                assert await live.bound("high") == ("n0" if frees else "n2")
                left = {pod["metadata"]["name"] for pod in (await live.client.list(PODS, "default")).items}
                gone = next(name for name, node in homes.items() if node == ("n0" if frees else "n2"))
                assert left == {"high", *homes} - {gone}

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-01")
def test_tls_with_the_extenders_own_authority(scheduler: Any, tmp_path: Path) -> None:
    async def run() -> None:
        own = ensure(tmp_path, "127.0.0.1")
        async with extender(own.context(), filter=lambda body: {"NodeNames": ["n2"]}) as (url, _):
            tls = {"caFile": str(tmp_path / "ca.crt")}
            config = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True, "enableHTTPS": True, "tlsConfig": tls}
            async with scheduler({"extenders": [config]}, before=three_nodes) as live:
                await live.pod("p")
                assert await live.bound("p") == "n2"

    asyncio.run(run())


def test_certificates_that_are_not_there_stop_the_start(tmp_path: Path) -> None:
    config = Config.model_validate({"urlPrefix": "https://x", "tlsConfig": {"caFile": str(tmp_path / "nowhere")}})
    with pytest.raises(ConfigurationError, match=r"extenders\[1\]\.tlsConfig.*nowhere"):
        Extender(config, 1)


def filtered(answer: Any) -> Any:
    return wire.filtered(answer, {"n1"}, by_name=True)


@pytest.mark.parametrize(
    ("read", "answer", "text"),
    [
        (filtered, [], "ExtenderFilterResult was expected"),
        (filtered, {"nodenames": "n1"}, "a list of node names"),
        (filtered, {"error": "disk on fire", "nodenames": []}, "disk on fire"),
        (wire.scores, {"host": "a"}, "a list of"),
        (wire.scores, [{"host": "a", "score": "9"}], "whole number"),
        (lambda answer: wire.preempted(answer, ()), {"nodeNameToMetaVictims": {"x": {}}}, "not among the candidates"),
        (wire.binding_error, True, "ExtenderBindingResult was expected"),
    ],
)
def test_nonsense_is_one_clear_error(read: Callable[[Any], Any], answer: Any, text: str) -> None:
    with pytest.raises(wire.BadAnswer, match=text):
        read(answer)


def test_what_is_null_or_left_out_has_its_zero_value() -> None:
    assert wire.binding_error(None) == ""
    assert wire.preempted(None, (Candidate("n1", (), 0),)) == ()
    assert wire.scores([{"Host": "n1"}, {"Host": "n2", "Score": None}, {"Host": "n3", "Score": 7}]) == {"n1": 0, "n2": 0, "n3": 7}


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["n1", "x", ""])
_WORDS = "error nodeNames nodes items metadata name failedNodes Host Score nodeNameToMetaVictims n1 pods uid"
_KEYS = st.sampled_from(_WORDS.split())
_JSON = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=8)


def preempted(answer: Any) -> Any:
    return wire.preempted(answer, (Candidate("n1", (), 0),))


_READERS = [filtered, wire.scores, wire.binding_error, preempted]


@given(st.sampled_from(_READERS), _JSON)
@example(filtered, {"nodes": {"items": True}})
@example(filtered, {"nodes": {"items": ["n1"]}})
@example(filtered, {"nodes": {"items": [{"metadata": ["n1"]}]}})
@example(preempted, {"nodeNameToMetaVictims": {"n1": {"pods": 7}}})
@example(preempted, {"nodeNameToMetaVictims": {"n1": {"pods": [7]}}})
def test_property_whatever_an_extender_says_is_read_or_refused(read: Callable[[Any], Any], answer: Any) -> None:
    with contextlib.suppress(wire.BadAnswer):
        read(answer)


GARBAGE: dict[str, Answer] = {
    "a server error": lambda body: web.Response(status=500, text="{}"),
    "a page": lambda body: web.Response(text="<html>", content_type="text/html"),
    "no text at all": lambda body: web.Response(body=b"\xff\xfe\x00"),
    "nothing": lambda body: web.Response(body=b""),
    "another node": lambda body: {"NodeNames": ["n1", "elsewhere"]},
    "nodes that are none": lambda body: {"Nodes": {"items": [1, 2]}},
    "a text for nodes": lambda body: {"Nodes": {"items": "n1"}},
    "its own error": lambda body: {"Error": "out of order", "NodeNames": ["n1"]},
    "too much": lambda body: {"NodeNames": ["n1"], "padding": "x" * 2_000_000},
}


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize("ignorable", [True, False])
def test_garbage_of_an_extender_costs_its_own_pods_alone(scheduler: Any, monkeypatch: pytest.MonkeyPatch, ignorable: bool) -> None:
    """Three profiles; the extender looks after some pods of one, by a resource."""
    monkeypatch.setattr(client_module, "MOST", 1 << 20)
    now = ""

    def answer(body: Obj) -> Any:
        return GARBAGE[now](body)

    async def run() -> None:
        nonlocal now
        async with extender(filter=answer) as (url, asked):
            config = {
                "urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True, "ignorable": ignorable,
                "managedResources": [{"name": "example.com/foo", "ignoredByScheduler": True}],
            }  # fmt: skip
            most = {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
            profiles = [
                {"schedulerName": "koord-scheduler"}, {"schedulerName": "packing", "pluginConfig": [most], "percentageOfNodesToScore": 50},
                {"schedulerName": "plain", "plugins": {"score": {"disabled": [{"name": "*"}]}}},
            ]  # fmt: skip
            async with scheduler({"extenders": [config], "profiles": profiles}, before=three_nodes) as live:
                amounts = {"example.com/foo": "1"}
                containers = [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]
                for number, now in enumerate(GARBAGE):
                    await live.pod(f"mine-{number}", containers=containers)
                    if ignorable:
                        await live.bound(f"mine-{number}")
                    else:
                        condition = await live.refused(f"mine-{number}")
                        assert condition["reason"] == "SchedulerError", now
                        assert url in condition["message"], now
                for name in ("koord-scheduler", "packing", "plain"):
                    await live.pod(f"of-{name}", scheduler=name)
                    await live.bound(f"of-{name}")
                assert {body["Pod"]["metadata"]["name"] for _, body in asked} == {f"mine-{number}" for number in range(len(GARBAGE))}

    asyncio.run(run())


def test_scores_of_a_node_that_is_listed_twice_add_up() -> None:
    assert wire.scores([{"Host": "a", "Score": 3}, {"host": "b", "score": 1}, {"host": "a", "score": 4}]) == {"a": 7, "b": 1}


def test_an_extender_may_spare_victims_but_not_add_any() -> None:
    world = testing.World()
    a, b = (world.parser.parse(testing.pod(uid=uid)) for uid in "ab")
    candidates = (Candidate("n", (a, b), 1),)
    (left,) = wire.preempted({"nodeNameToMetaVictims": {"n": {"pods": [{"uid": "b"}], "numPDBViolations": 0}}}, candidates)
    assert (left.victims, left.violations) == ((b,), 0)
    with pytest.raises(wire.BadAnswer, match="was no victim"):
        wire.preempted({"nodeNameToMetaVictims": {"n": {"pods": [{"uid": "c"}]}}}, candidates)
