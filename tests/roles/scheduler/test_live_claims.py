"""Dynamic resource allocation through the scheduler's door: slices, classes, claims and pods in, bindings and allocations out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from koord.api.kinds import (
    DEVICECLASSES,
    DEVICETAINTRULES,
    PODS,
    PRIORITYCLASSES,
    RESERVATIONS,
    RESOURCECLAIMS,
    RESOURCECLAIMTEMPLATES,
    RESOURCESLICES,
)
from koord.apiserver.controllers.registry import CONTROLLERS
from koord.apiserver.resources import builtin_resources
from koord.kube.errors import ServerError, Unreachable
from roles.scheduler.framework.status import Status, error
from roles.scheduler.plugins.dynamic_resources import writing
from roles.scheduler.plugins.dynamic_resources.writing import Carried
from tests.roles.scheduler.reservation.test_equivalence_shipped import installed_profile
from tests.support import patience
from tests.support.claims import claim, device, device_class, of_claim, of_template, request, results, slice_of, taint_rule, template

Obj = dict[str, Any]
KINDS = {kind.kind: kind for kind in (DEVICECLASSES, DEVICETAINTRULES, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, RESOURCESLICES)}


RESERVING: Obj = {"schedulerName": "koord-scheduler", "plugins": {"multiPoint": {"enabled": [{"name": "Reservation"}]}}}


async def make(live: Any, *objects: Obj) -> None:
    for item in objects:
        await live.client.create(KINDS[item["kind"]], item, item["metadata"].get("namespace"))


def gangs(**plugins: Any) -> Obj:
    profile = {"schedulerName": "koord-scheduler", "plugins": {"multiPoint": {"enabled": [{"name": "Coscheduling"}]}, **plugins}}
    profile["pluginConfig"] = [{"name": "Coscheduling", "args": {"enablePreemption": True}}]
    return {"profiles": [profile]}


GANG = "gang.scheduling.koordinator.sh"
OF_TWO = {"annotations": {f"{GANG}/name": "g", f"{GANG}/min-available": "2"}}


async def leaving(live: Any) -> list[str]:
    """Pods that were asked to go."""
    return [pod["metadata"]["name"] for pod in (await live.client.list(PODS)).items if pod["metadata"].get("deletionTimestamp")]


async def priorities(live: Any, **values: int) -> None:
    for name, value in values.items():
        meta = {"apiVersion": PRIORITYCLASSES.api_version, "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        await live.client.create(PRIORITYCLASSES, meta)


def model(name: str) -> str:
    """A selector of the devices of a model."""
    return f'device.attributes["gpu.example.com"].model == "{name}"'


async def claim_of(live: Any, pod: str) -> Obj:
    """The claim that was made for a pod."""
    shown = await live.get(pod)
    name = shown["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    return await live.client.get(RESOURCECLAIMS, name, "default")


async def until(live: Any, name: str, test: Callable[[Obj], Any]) -> Obj:
    """A claim once a test of it holds."""
    shown: Obj = {}
    for _ in patience.tries(1000):
        shown = await live.client.get(RESOURCECLAIMS, name, "default")
        if test(shown):
            return shown
        await asyncio.sleep(0.02)
    raise AssertionError(f"claim {name} never got there: {shown}")


@pytest.mark.feature("SCH-DRA-01")
@pytest.mark.feature("SCH-DRA-02")
@pytest.mark.feature("SCH-DRA-08")
def test_a_claim_of_a_template_is_allocated_where_the_device_is(scheduler: Any) -> None:
    big = 'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0'

    async def run() -> None:
        async with scheduler() as live:
            for name in ("empty", "small", "big"):
                await live.node(name)
            driver = {"opaque": {"driver": "gpu.example.com", "parameters": {"sharing": "none"}}}
            await make(live, device_class(config=[driver]), slice_of("small", device("gpu-0", memory="16Gi")))
            await make(live, slice_of("big", device("gpu-0", memory="80Gi"), device("gpu-1", memory="80Gi")))
            await make(live, template("one", request("gpu", big), config=[driver]))
            made = await live.pod("p", resourceClaims=of_template())
            assert await live.bound("p") == "big"
            found = await claim_of(live, "p")
            assert found["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
            assert found["status"]["allocation"].pop("allocationTimestamp")
            assert found["status"] == {
                "allocation": {
                    "devices": {
                        "results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "big", "device": "gpu-0"}],
                        "config": [{"source": "FromClass", **driver}, {"source": "FromClaim", **driver}],
                    },
                    "nodeSelector": {
                        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["big"]}]}],
                    },
                },
                "reservedFor": [{"resource": "pods", "name": "p", "uid": made["metadata"]["uid"]}],
            }  # fmt: skip

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-10")
@pytest.mark.feature("SCH-DRA-09")
def test_pods_wait_for_devices_and_get_those_that_are_given_back(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with scheduler() as live:
            monkeypatch.setattr(live.app.queue, "_initial_backoff", 0.05)
            await live.node("n", cpu="16")
            await make(live, template("one"))
            await live.pod("first", cpu="1", resourceClaims=of_template())
            assert "device class gpu does not exist" in (await live.refused("first"))["message"]
            await make(live, device_class())
            await live.until("first", lambda p: "cannot allocate all claims" in str(p["status"].get("conditions")))
            await make(live, slice_of("n", device("gpu-0"), device("gpu-1")))
            assert await live.bound("first") == "n"
            await asyncio.gather(*(live.pod(f"p{number}", cpu="1", resourceClaims=of_template()) for number in range(2)))
            placed = ""
            for _ in patience.tries(400):
                shown = [await live.get(f"p{number}") for number in range(2)]
                placed = "".join(pod["metadata"]["name"] for pod in shown if pod["spec"].get("nodeName"))
                if placed:
                    break
                await asyncio.sleep(0.02)
            other = {"p0": "p1", "p1": "p0"}[placed]
            assert "cannot allocate all claims" in (await live.refused(other))["message"]
            await live.client.delete(PODS, "first", "default", grace_period_seconds=0)
            assert await live.bound(other) == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-15")
def test_a_rule_keeps_claims_off_until_it_goes(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await make(live, device_class(), slice_of("n", device("gpu-0")), claim("mine"), taint_rule("fan", pool="n"))
            shown = await live.client.get(DEVICETAINTRULES, "fan")
            assert shown["spec"]["taint"]["timeAdded"]
            await live.pod("p", resourceClaims=of_claim("mine"))
            assert "cannot allocate all claims" in (await live.refused("p"))["message"]
            await live.client.delete(DEVICETAINTRULES, "fan")
            assert await live.bound("p") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-01")
def test_a_shared_claim_keeps_its_pods_together(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            for name in ("a", "b", "c"):
                await live.node(name)
            await make(live, device_class(), slice_of("b", device("gpu-0")), claim("shared"))
            for name in ("p", "q", "r"):
                await live.pod(name, cpu="1", resourceClaims=of_claim("shared"))
            for name in ("p", "q", "r"):
                assert await live.bound(name) == "b"
            found = await live.client.get(RESOURCECLAIMS, "shared", "default")
            assert sorted(consumer["name"] for consumer in found["status"]["reservedFor"]) == ["p", "q", "r"]
            assert results(found) == ["gpu=b/gpu-0"]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-10")
def test_a_claim_that_is_made_later_is_waited_for(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await make(live, device_class(), slice_of("n", device("gpu-0")))
            await live.pod("p", resourceClaims=of_claim("later"))
            await live.pod("other")
            assert await live.bound("other") == "n"
            assert not (await live.get("p"))["spec"].get("nodeName")
            await make(live, claim("later"))
            assert await live.bound("p") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-08")
@pytest.mark.parametrize(
    ("profiles", "plugins"),
    [(("koord-scheduler",), "*"), (("first", "koord-scheduler"), "*"), (("koord-scheduler",), "Coscheduling")],
    ids=["one profile", "second of two profiles", "without controllers"],
)
def test_what_a_pod_that_is_not_bound_had_is_given_back(
    profiles: tuple[str, ...], plugins: str, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Binding is refused once after the claim was written: then nobody finds it reserved or allocated, and the next attempt gets it."""

    async def run() -> None:
        config = {"profiles": [{"schedulerName": name} for name in profiles]}
        async with scheduler(config, controller_plugins=(plugins,)) as live:
            await live.node("n")
            await make(live, device_class(), slice_of("n", device("gpu-0")), claim("mine"))
            binder = live.app.engine.frameworks["koord-scheduler"].plugins["DefaultBinder"]
            bind, written = binder.bind, []

            async def refusing(ctx: Any, node: str) -> Status:
                if written:
                    return await bind(ctx, node)
                written.append(await live.client.get(RESOURCECLAIMS, "mine", "default"))
                return error("refused for once")

            monkeypatch.setattr(binder, "bind", refusing)
            monkeypatch.setattr(live.app.queue, "_initial_backoff", 30.0)
            await live.pod("p", resourceClaims=of_claim("mine"))
            found = await until(live, "mine", lambda c: written and not (c.get("status") or {}).get("reservedFor"))
            assert results(written[0]) == ["gpu=n/gpu-0"]
            assert not (found.get("status") or {}).get("allocation")
            await live.client.patch(PODS, "p", {"metadata": {"labels": {"try": "again"}}}, "default")
            live.app.queue.activate([live.app.queue.get((await live.get("p"))["metadata"]["uid"]).pod], 0.0, rested=True)
            live.app.scheduler.wake()
            assert await live.bound("p") == "n"
            assert results(await live.client.get(RESOURCECLAIMS, "mine", "default")) == ["gpu=n/gpu-0"]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-08")
def test_no_pod_is_bound_with_a_claim_that_is_being_given_back(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Giving back takes longer than the pod's next attempt."""

    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await make(live, device_class(), slice_of("n", device("gpu-0")), claim("mine"))
            plugins = live.app.engine.frameworks["koord-scheduler"].plugins
            bind, give_back, tried, slow = plugins["DefaultBinder"].bind, plugins["DynamicResources"]._releases._one, [], asyncio.Event()

            async def refusing(ctx: Any, node: str) -> Status:
                tried.append(node)
                return error("refused for once") if len(tried) == 1 else await bind(ctx, node)

            async def slowly(*what: Any) -> None:
                await slow.wait()
                await give_back(*what)

            monkeypatch.setattr(plugins["DefaultBinder"], "bind", refusing)
            monkeypatch.setattr(plugins["DynamicResources"]._releases, "_one", slowly)
            monkeypatch.setattr(live.app.queue, "_initial_backoff", 0.02)
            await live.pod("p", resourceClaims=of_claim("mine"))
            await live.until("p", lambda p: "is being given back" in str(p["status"].get("conditions")))
            assert len(tried) == 1
            slow.set()
            assert await live.bound("p") == "n"
            assert results(await live.client.get(RESOURCECLAIMS, "mine", "default")) == ["gpu=n/gpu-0"]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-08")
@pytest.mark.parametrize("part", ["metadata", "status"])
@pytest.mark.parametrize("applied", [True, False])
def test_an_answer_that_is_lost_costs_an_attempt_and_no_device(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch, part: str, applied: bool
) -> None:
    """The finalizer's answer, or that of the allocation; the API server may have taken it or not."""

    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await make(live, device_class(), slice_of("n", device("gpu-0"), device("gpu-1")), claim("mine"), claim("other"))
            patch, lost = live.client.patch, []

            async def losing(kind: Any, name: str, body: Obj, *more: Any, **options: Any) -> Obj:
                hit = kind is RESOURCECLAIMS and not lost and (options.get("subresource") == "status") == (part == "status")
                if hit:
                    lost.append(name)
                if not hit or applied:
                    shown: Obj = await patch(kind, name, body, *more, **options)
                if hit:
                    raise Unreachable("the answer is lost")
                return shown

            monkeypatch.setattr(live.client, "patch", losing)
            monkeypatch.setattr(live.app.queue, "_initial_backoff", 0.02)
            await live.pod("p", cpu="1", resourceClaims=of_claim("mine"))
            assert await live.bound("p") == "n"
            await live.pod("q", cpu="1", resourceClaims=of_claim("other"))
            assert await live.bound("q") == "n"
            found = [await live.client.get(RESOURCECLAIMS, name, "default") for name in ("mine", "other")]
            assert sorted(device for one in found for device in results(one)) == ["gpu=n/gpu-0", "gpu=n/gpu-1"]
            assert [[consumer["name"] for consumer in one["status"]["reservedFor"]] for one in found] == [["p"], ["q"]]
            assert lost == ["mine"]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-08")
def test_what_another_leader_has_bound_meanwhile_is_not_given_back(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await make(live, device_class(), slice_of("n", device("gpu-0")), claim("mine"))
            made = await live.pod("p", resourceClaims=of_claim("mine"))
            assert await live.bound("p") == "n"
            plugin = live.app.engine.frameworks["koord-scheduler"].plugins["DynamicResources"]
            await until(live, "mine", lambda shown: plugin.cache.claims["default/mine"].status.reserved_for)
            plugin._releases.release(Carried(made["metadata"]["uid"], "p", ("default/mine",), ("default/mine",)))
            for _ in patience.tries(400):
                if not plugin.cache.releasing:
                    break
                await asyncio.sleep(0.02)
            assert not plugin.cache.releasing
            found = await live.client.get(RESOURCECLAIMS, "mine", "default")
            assert results(found) == ["gpu=n/gpu-0"]
            assert found["status"]["reservedFor"]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-08")
@pytest.mark.parametrize("failure", [ServerError(500, "InternalError", "no"), KeyError("one more defect")])
def test_a_claim_that_cannot_be_given_back_holds_up_no_other(scheduler: Any, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await make(live, device_class(), slice_of("n", device("gpu-0"), device("gpu-1")), claim("stuck"), claim("other"))
            releases = live.app.engine.frameworks["koord-scheduler"].plugins["DynamicResources"]._releases
            give_back, tried = releases._one, []

            async def failing(key: str, pod: str, release: Any) -> None:
                tried.append(key)
                if key == "default/stuck":
                    raise failure
                await give_back(key, pod, release)

            monkeypatch.setattr(releases, "_one", failing)
            monkeypatch.setattr(writing, "_PAUSES", (0.01, 3600.0))
            uids = {name: (await live.client.get(RESOURCECLAIMS, name, "default"))["metadata"]["uid"] for name in ("stuck", "other")}
            releases.deallocate("default/stuck", uids["stuck"], "p", "1")
            while len(tried) < 2:
                await asyncio.sleep(0.01)
            releases.deallocate("default/other", uids["other"], "q", "1")
            while releases._waiting.keys() != {("default/stuck", "p")}:
                await asyncio.sleep(0.01)
            assert tried == ["default/stuck", "default/stuck", "default/other"]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-08")
@pytest.mark.parametrize("installed", [False, True], ids=["default profile", "installed profile"])
def test_a_claim_that_is_allocated_where_its_pod_cannot_go_is_allocated_anew(scheduler: Any, installed: bool) -> None:
    """Before anybody has to leave for the pod."""

    async def run() -> None:
        profiles = {"profiles": [installed_profile() | {"schedulerName": "koord-scheduler"}]} if installed else None
        async with scheduler(profiles, crds=True) as live:
            await priorities(live, low=1, high=1000)
            for name in ("full", "free"):
                await live.node(name, cpu="2")
            await make(live, device_class(), slice_of("full", device("gpu-0")), claim("mine"))
            await live.pod("first", cpu="1", priorityClassName="low", resourceClaims=of_claim("mine"))
            assert await live.bound("first") == "full"
            shown = await live.client.get(RESOURCECLAIMS, "mine", "default")
            await live.client.patch(RESOURCECLAIMS, "mine", {"status": {"reservedFor": None}}, "default", subresource="status")
            assert results(shown) == ["gpu=full/gpu-0"]
            await make(live, slice_of("free", device("gpu-0")))
            await live.pod("second", cpu="1500m", priorityClassName="high", resourceClaims=of_claim("mine"))
            assert await live.bound("second") == "free"
            assert not (await live.get("first"))["metadata"].get("deletionTimestamp")
            assert results(await live.client.get(RESOURCECLAIMS, "mine", "default")) == ["gpu=free/gpu-0"]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-08")
@pytest.mark.parametrize("idle", [False, True], ids=["not allocated before", "allocated before"])
@pytest.mark.parametrize("ours", [False, True], ids=["by another scheduler", "for another pod"])
def test_no_pod_is_bound_whose_claim_is_allocated_elsewhere_meanwhile(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch, idle: bool, ours: bool
) -> None:
    """The pod has its place and waits, for a volume for instance, before its claim is written."""

    async def run() -> None:
        async with scheduler() as live:
            for name in ("a", "b"):
                await live.node(name, cpu="2", labels={"name": name})
                await make(live, slice_of(name, device("gpu-0")))
            await make(live, device_class(), claim("mine"))
            plugin = live.app.engine.frameworks["koord-scheduler"].plugins["DynamicResources"]
            if idle:
                await live.pod("former", cpu="1", nodeSelector={"name": "a"}, resourceClaims=of_claim("mine"))
                await live.bound("former")
                await live.client.patch(RESOURCECLAIMS, "mine", {"status": {"reservedFor": None}}, "default", subresource="status")
                while not (seen := plugin.cache.claims["default/mine"].status).allocation or seen.reserved_for:
                    await asyncio.sleep(0.02)
            write, go_on = plugin._writer.write, asyncio.Event()

            async def waiting(key: str, carried: Carried) -> str:
                if carried.name == "waits":
                    await go_on.wait()
                return str(await write(key, carried))

            monkeypatch.setattr(plugin._writer, "write", waiting)
            made = await live.pod("waits", cpu="500m", nodeSelector={"name": "a"}, resourceClaims=of_claim("mine"))
            while made["metadata"]["uid"] not in plugin._carried:
                await asyncio.sleep(0.02)
            if ours:
                await live.pod("other", cpu="1500m", nodeSelector={"name": "b"}, resourceClaims=of_claim("mine"))
                await live.refused("other")
            else:
                given = {"request": "gpu", "driver": "gpu.example.com", "pool": "b", "device": "gpu-0"}
                for allocation in (None, {"devices": {"results": [given]}}):
                    status = {"status": {"allocation": allocation}}
                    shown = await live.client.patch(RESOURCECLAIMS, "mine", status, "default", subresource="status")
                while plugin.cache.claims["default/mine"].metadata.resource_version != shown["metadata"]["resourceVersion"]:
                    await asyncio.sleep(0.02)
            go_on.set()
            if ours:
                assert await live.bound("waits") == "a"
            else:
                pod = await live.until("waits", lambda pod: pod["spec"].get("nodeName") or pod["status"].get("conditions"))
                assert not pod["spec"].get("nodeName")
            found = await live.client.get(RESOURCECLAIMS, "mine", "default")
            assert results(found) == ["gpu=a/gpu-0" if ours else "gpu=b/gpu-0"]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-14")
def test_a_server_without_the_group_is_served_all_the_same(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods without claims are scheduled; one with a claim waits, and hears for what."""

    older = [resource for resource in builtin_resources() if resource.group != "resource.k8s.io"]
    monkeypatch.setattr("koord.apiserver.state.builtin_resources", lambda: iter(older))
    rows = {name: controller for name, controller in CONTROLLERS.items() if name != "resourceclaim"}
    monkeypatch.setattr("koord.apiserver.controllers.registry.CONTROLLERS", rows)

    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await live.pod("plain")
            assert await live.bound("plain") == "n"
            await live.pod("p", resourceClaims=of_claim("mine"))
            await live.pod("q")
            assert await live.bound("q") == "n"
            assert not (await live.get("p"))["spec"].get("nodeName")

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-18")
def test_a_pod_gets_the_device_of_a_victim(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await priorities(live, lowest=-10, low=-5, high=5)
            await live.node("n", cpu="8")
            await make(live, device_class(), slice_of("n", device("gpu-0")), template("one"))
            await live.pod("bystander", cpu="1", priorityClassName="lowest")
            await live.pod("low", cpu="1", priorityClassName="low", resourceClaims=of_template(), terminationGracePeriodSeconds=0)
            for name in ("bystander", "low"):
                assert await live.bound(name) == "n"
            await until(live, (await claim_of(live, "low"))["metadata"]["name"], lambda shown: shown["status"].get("reservedFor"))
            await live.pod("high", cpu="1", priorityClassName="high", resourceClaims=of_template())
            assert await live.bound("high") == "n"
            assert results(await claim_of(live, "high")) == ["gpu=n/gpu-0"]
            assert {item["metadata"]["name"] for item in (await live.client.list(PODS)).items} == {"bystander", "high"}

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-18")
def test_of_two_devices_a_pod_gets_the_one_that_no_nominated_pod_needs(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await priorities(live, low=1, high=1000)
            await live.node("n", cpu="8")
            devices = [device(f"gpu-{at}", model=name) for at, name in enumerate(("big", "small", "ai"))]
            await make(live, device_class(), slice_of("n", *devices))
            await make(live, template("one"), template("ai", request("ai", model("ai"))))
            await make(live, template("both", request("big", model("big")), request("ai", model("ai"))))
            await live.pod("victim", priorityClassName="low", terminationGracePeriodSeconds=30, resourceClaims=of_template("ai"))
            assert await live.bound("victim") == "n"
            await live.pod("waits", priorityClassName="high", resourceClaims=of_template("both"))
            await live.until("waits", lambda pod: pod["status"].get("nominatedNodeName") == "n")
            await live.pod("any", priorityClassName="low", resourceClaims=of_template())
            assert await live.bound("any") == "n"
            assert results(await claim_of(live, "any")) == ["gpu=n/gpu-1"]
            await live.client.delete(PODS, "victim", "default", grace_period_seconds=0)
            assert await live.bound("waits") == "n"
            assert not (await live.get("any"))["metadata"].get("deletionTimestamp")

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-09")
@pytest.mark.parametrize("refused", [0, 1, 2], ids=["", "first binding refused", "second binding refused"])
def test_a_claim_that_a_gang_shares_is_allocated_once_for_all_of_it(scheduler: Any, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    """Nothing is written before all members have a place: the second one goes by what is about to be allocated for the first."""

    async def run() -> None:
        async with scheduler(gangs(), crds=True) as live:
            monkeypatch.setattr(live.app.queue, "_initial_backoff", 0.05)
            plugins = live.app.engine.frameworks["koord-scheduler"].plugins
            bind, tried = plugins["DefaultBinder"].bind, []

            async def refusing(ctx: Any, node: str) -> Status:
                tried.append(ctx.pod.name)
                return error("refused for once") if len(tried) == refused else await bind(ctx, node)

            monkeypatch.setattr(plugins["DefaultBinder"], "bind", refusing)
            for name in ("a", "b"):
                await live.node(name)
                await make(live, slice_of(name, device("gpu-0")))
            await make(live, device_class(), claim("shared"))
            for name in ("g0", "g1"):
                await live.pod(name, meta=OF_TWO, resourceClaims=of_claim("shared"))
            assert await live.bound("g0") == await live.bound("g1")
            found = await until(live, "shared", lambda shown: len(shown["status"].get("reservedFor") or ()) == 2)
            assert len(results(found)) == 1
            cache = plugins["DynamicResources"].cache
            for _ in patience.tries(400):
                if not cache.assumed and not cache.releasing:
                    break
                await asyncio.sleep(0.02)
            assert cache.taken == {("gpu.example.com", results(found)[0][4], "gpu-0"): 1}
            assert not cache.assumed
            assert not cache.lent

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-18")
def test_a_gang_that_shares_a_claim_makes_room_for_it_once(scheduler: Any) -> None:
    names = ("DynamicResources", "Coscheduling", "DefaultPreemption")

    async def run() -> None:
        async with scheduler(gangs(postFilter={"enabled": [{"name": name} for name in names]}), crds=True) as live:
            await priorities(live, low=1, high=1000)
            for name in ("a", "b"):
                await live.node(name)
                await make(live, slice_of(name, device("gpu-0")))
            await make(live, device_class(), template("one"), claim("shared"))
            for name in ("v0", "v1"):
                await live.pod(name, priorityClassName="low", terminationGracePeriodSeconds=30, resourceClaims=of_template())
                await live.bound(name)
            for name in ("g0", "g1"):
                await live.pod(name, meta=OF_TWO, priorityClassName="high", resourceClaims=of_claim("shared"))
            node = (await live.until("g0", lambda pod: pod["status"].get("nominatedNodeName")))["status"]["nominatedNodeName"]
            while not (gone := await leaving(live)):
                await asyncio.sleep(0.02)
            await live.client.delete(PODS, gone[0], "default", grace_period_seconds=0)
            assert await live.bound("g0") == await live.bound("g1") == node
            assert not await leaving(live)

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-18")
@pytest.mark.parametrize("gone", [False, True], ids=["victim leaves", "victim is gone, and has its claim"])
def test_who_shares_a_claim_with_a_nominated_pod_follows_it(scheduler: Any, monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """On the other node nobody has to leave."""
    rows = {name: controller for name, controller in CONTROLLERS.items() if name != "resourceclaim"}
    monkeypatch.setattr("koord.apiserver.controllers.registry.CONTROLLERS", rows)

    async def run() -> None:
        async with scheduler() as live:
            await priorities(live, low=1, high=1000)
            await make(live, device_class(), claim("shared"))
            for name, victim in (("a", "v0"), ("b", "v1")):
                await live.node(name)
                await make(live, slice_of(name, device("gpu-0")), claim(victim))
                await live.pod(victim, priorityClassName="low", terminationGracePeriodSeconds=30, resourceClaims=of_claim(victim))
                await live.bound(victim)
            await live.pod("first", priorityClassName="high", resourceClaims=of_claim("shared"))
            node = (await live.until("first", lambda pod: pod["status"].get("nominatedNodeName")))["status"]["nominatedNodeName"]
            while not (left := await leaving(live)):
                await asyncio.sleep(0.02)
            if gone:
                await live.client.delete(PODS, left[0], "default", grace_period_seconds=0)
            await live.pod("second", priorityClassName="high", resourceClaims=of_claim("shared"))
            await live.refused("second")
            if not gone:
                await live.client.delete(PODS, left[0], "default", grace_period_seconds=0)
            free = {"status": {"reservedFor": None, "allocation": None}}
            await live.client.patch(RESOURCECLAIMS, left[0], free, "default", subresource="status")
            assert [await live.bound(name) for name in ("first", "second")] == [node, node]
            assert not await leaving(live)

    asyncio.run(run())


def on(node: str) -> Obj:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


async def network(live: Any, count: int) -> None:
    """Nodes a to c, and devices that all of them may use."""
    for name in ("a", "b", "c"):
        await live.node(name)
    await make(live, device_class(), template("one"), template("two", request(count=2, allocationMode="ExactCount")))
    await make(live, slice_of("", *(device(f"net-{at}") for at in range(count)), pool="net", name="net", allNodes=True))


@pytest.mark.feature("SCH-DRA-18")
@pytest.mark.parametrize("for_devices", [True, False], ids=["waits for a device", "waits for CPU"])
def test_a_device_that_a_nominated_pod_waits_for_is_nobodys_on_other_nodes(scheduler: Any, for_devices: bool) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await priorities(live, low=1, high=1000)
            await network(live, 2 if for_devices else 1)
            claims: Obj = {"resourceClaims": of_template()}
            victim: Obj = {"cpu": "1", **claims} if for_devices else {"cpu": "3"}
            await live.pod("victim", priorityClassName="low", terminationGracePeriodSeconds=30, **victim, **on("a"))
            assert await live.bound("victim") == "a"
            wanted = of_template("two" if for_devices else "one")
            await live.pod("waits", cpu="2", priorityClassName="high", resourceClaims=wanted, **on("a"))
            await live.until("waits", lambda pod: pod["status"].get("nominatedNodeName") == "a")
            await live.pod("small", priorityClassName="low", **claims, **on("b"))
            assert "cannot allocate all claims" in (await live.refused("small"))["message"]
            await live.client.delete(PODS, "victim", "default", grace_period_seconds=0)
            assert await live.bound("waits") == "a"
            await live.client.delete(PODS, "waits", "default", grace_period_seconds=0)
            assert await live.bound("small") == "b"

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-18")
def test_each_nominated_pod_keeps_a_device_of_its_own_and_the_rest_is_free(scheduler: Any) -> None:
    """Pods of less priority are asked on a node with a nominated pod and on others; `mid` may make room for itself."""

    async def run() -> None:
        async with scheduler() as live:
            await priorities(live, low=1, mid=500, high=1000)
            await network(live, 3)
            for name in ("a", "b"):
                await live.pod(f"victim-{name}", cpu="3", priorityClassName="low", terminationGracePeriodSeconds=30, **on(name))
                await live.bound(f"victim-{name}")
            claims: Obj = {"resourceClaims": of_template()}
            for name in ("a", "b"):
                await live.pod(name, cpu="2", priorityClassName="high", **claims, **on(name))
                await live.until(name, lambda pod: pod["status"].get("nominatedNodeName"))
            await live.pod("third", cpu="100m", priorityClassName="low", terminationGracePeriodSeconds=30, **claims, **on("c"))
            assert await live.bound("third") == "c"
            for name in ("a", "c"):
                await live.pod(f"more-{name}", cpu="100m", priorityClassName="low", **claims, **on(name))
                await live.refused(f"more-{name}")
            await live.pod("mid", cpu="100m", priorityClassName="mid", **claims, **on("c"))
            await live.until("mid", lambda pod: pod["status"].get("nominatedNodeName"))
            for name in ("victim-a", "third", "victim-b"):
                await live.client.delete(PODS, name, "default", grace_period_seconds=0)
            assert [await live.bound(name) for name in ("a", "b", "mid")] == ["a", "b", "c"]
            assert not await leaving(live)

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-09")
def test_room_is_reserved_for_a_pod_with_claims(scheduler: Any) -> None:
    """No claim is made for a reservation, as when such a pod migrates: nothing is waited for."""

    async def run() -> None:
        async with scheduler({"profiles": [RESERVING]}, crds=True) as live:
            await live.node("n")
            await make(live, device_class(), slice_of("n", device("gpu-0")), template("one"))
            container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}
            spec = {
                "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [container], "resourceClaims": of_template()}},
                "owners": [{"labelSelector": {"matchLabels": {"app": "a"}}}],
                "allocateOnce": True,
                "ttl": "1h",
            }
            body = {"apiVersion": RESERVATIONS.api_version, "kind": "Reservation", "metadata": {"name": "kept"}, "spec": spec}
            await live.client.create(RESERVATIONS, body)
            for _ in patience.tries(500):
                kept = await live.client.get(RESERVATIONS, "kept")
                if (kept.get("status") or {}).get("phase") == "Available":
                    break
                await asyncio.sleep(0.02)
            assert kept["status"]["nodeName"] == "n"
            await live.pod("user", cpu="1", labels={"app": "a"}, resourceClaims=of_template())
            assert await live.bound("user") == "n"
            assert results(await claim_of(live, "user")) == ["gpu=n/gpu-0"]

    asyncio.run(run())


def gpus(count: str) -> Obj:
    resources = {"cpu": "100m", "example.com/gpu": count}
    return {"containers": [{"name": "main", "image": "i", "resources": {"requests": resources, "limits": {"example.com/gpu": count}}}]}


@pytest.mark.feature("SCH-DRA-13")
def test_an_extended_resource_is_given_as_devices_where_the_node_has_none_of_it(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("devices")
            await live.pod("p", **gpus("2"))
            assert "Insufficient example.com/gpu" in (await live.refused("p"))["message"]
            await make(live, slice_of("devices", device("gpu-0"), device("gpu-1"), device("gpu-2")))
            await make(live, device_class(extendedResourceName="example.com/gpu"))
            assert await live.bound("p") == "devices"
            shown = await live.get("p")
            told = shown["status"]["extendedResourceClaimStatus"]
            wanted = {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "container-0-request-1"}
            assert told["requestMappings"] == [wanted]
            found = await live.client.get(RESOURCECLAIMS, told["resourceClaimName"], "default")
            assert results(found) == ["container-0-request-1=devices/gpu-0", "container-0-request-1=devices/gpu-1"]
            assert found["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
            assert found["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": shown["metadata"]["uid"]}]
            await live.pod("more", **gpus("2"))
            assert "cannot allocate all claims" in (await live.refused("more"))["message"]
            await live.node("plugin", allocatable={"example.com/gpu": "2"})
            assert await live.bound("more") == "plugin"
            assert "extendedResourceClaimStatus" not in (await live.get("more"))["status"]
            await live.client.delete(PODS, "p", "default", grace_period_seconds=0)
            await live.pod("third", **gpus("3"))
            assert await live.bound("third") == "devices"

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-13")
def test_the_claim_of_extended_resources_goes_when_its_pod_is_not_bound(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n")
            await make(live, slice_of("n", device("gpu-0")), device_class(extendedResourceName="example.com/gpu"))
            binder = live.app.engine.frameworks["koord-scheduler"].plugins["DefaultBinder"]
            bind, seen = binder.bind, []

            async def refusing(ctx: Any, node: str) -> Status:
                seen.append([claim["metadata"]["name"] for claim in (await live.client.list(RESOURCECLAIMS)).items])
                return error("refused for once") if len(seen) == 1 else await bind(ctx, node)

            monkeypatch.setattr(binder, "bind", refusing)
            monkeypatch.setattr(live.app.queue, "_initial_backoff", 0.05)
            await live.pod("p", **gpus("1"))
            assert await live.bound("p") == "n"
            left: list[str] = []
            for _ in patience.tries(400):
                left = [claim["metadata"]["name"] for claim in (await live.client.list(RESOURCECLAIMS)).items]
                if len(left) == 1:
                    break
                await asyncio.sleep(0.02)
            assert len(seen[0]) == len(left) == 1
            assert seen[0] != left
            told = (await live.get("p"))["status"]["extendedResourceClaimStatus"]
            assert told["resourceClaimName"] == left[0]

    asyncio.run(run())
