"""Walking victims, accounting, refusals, cool-down (KA-EVX-01)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from koord.kube import errors
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.audit.log import AuditLog
from roles.koordlet.eviction.evictor import PodEvictor
from roles.koordlet.eviction.runner import EvictionRunner
from roles.koordlet.eviction.tasks import EvictionTask, Victim
from roles.koordlet.options import Options
from roles.koordlet.qos.memevict import MemoryEvict
from roles.koordlet.store import kinds
from roles.sandbox.world import loop as virtual


class Stub:
    """An evictor that refuses some pods."""

    def __init__(self, refuse=(), earlier=()):
        self.refuse, self.earlier = set(refuse), set(earlier)
        self.asked: list[str] = []

    def recently_evicted(self, uid):
        return uid in self.earlier

    async def evict(self, pod, gate, why):
        self.asked.append(pod.name)
        return "a disruption budget" if pod.name in self.refuse else None


def task(world, gate="MemoryEvict", key="used", target=None, **pods):
    victims = []
    for name, amount in pods.items():
        pod = next((p for p in world.pods if p.name == name), None) or world.pod(name, qos="BE", kube_qos="BestEffort")
        victims.append(Victim(pod, {"used": {"memory": amount}, "request": {"batch": amount}}))
    return EvictionTask(gate, key, target or {"memory": 100}, tuple(victims), "because")


def run(world, evictor, *tasks, mode=Mode.ENFORCE, mode_of=lambda gate: Mode.ENFORCE):
    runner = EvictionRunner(evictor, world.machine.recorder, mode_of)
    return asyncio.run(runner.run(tuple(tasks), mode)), runner


def test_stops_when_the_target_is_reached(world):
    stub = Stub()
    fresh, _ = run(world, stub, task(world, a=60, b=60, c=60))
    assert (fresh, stub.asked) == (2, ["a", "b"])


def test_a_refused_victim_is_passed_over(world):
    stub = Stub(refuse={"a"})
    fresh, _ = run(world, stub, task(world, a=60, b=60, c=60))
    assert (fresh, stub.asked) == (2, ["a", "b", "c"])
    (record,) = world.machine.recorder.ring.find("Pod", "default", "a")
    assert record.verdict == "EvictionRefused"


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.parametrize("told", ["by koordlet", "by others"])
@pytest.mark.parametrize(
    "later", [({"a": 100, "b": 60},), ({"b": 60, "a": 100},), ({"b": 60}, {"a": 100})], ids=["first", "last", "of another task"]
)
def test_an_earlier_eviction_counts_without_a_call(world, told, later):
    """Wherever the pod stands by now: it may use less, since it goes, and have more priority than others."""
    stub = Stub()
    _, runner = run(world, stub, task(world, a=100, b=60))
    if told == "by koordlet":
        stub.earlier = {"uid-a"}
    ending = told == "by others"
    tasks = [task(world, **pods) for pods in later]
    tasks = [replace(t, victims=tuple(replace(v, ending=ending and v.pod.name == "a") for v in t.victims)) for t in tasks]
    assert (asyncio.run(runner.run(tuple(tasks))), stub.asked) == (0, ["a"])


@pytest.mark.parametrize(("critical", "asked"), [(False, []), (True, ["a"])])
def test_a_pod_that_leaves_anyhow_is_waited_for_unless_the_need_is_critical(world, critical, asked):
    stub = Stub()
    first, second = task(world, a=100, b=60), task(world, gate="X", key="request", target={"batch": 90}, a=100, b=60)
    victims = tuple(replace(victim, ending=victim.pod.name == "a") for victim in first.victims)
    fresh, _ = run(world, stub, replace(first, victims=victims), replace(second, victims=victims, critical=critical))
    assert (fresh, stub.asked) == (len(asked), asked)


@pytest.mark.parametrize(("hastens", "then"), [(False, ["a", "b"]), (True, ["a", "b", "a"])])
def test_a_victim_that_may_stay_for_hours_is_not_counted_on_for_long(world, hastens, then):
    """It is told to leave, holds its memory all the same, and evicting it again by the API changes nothing."""
    stub, clock = Stub(), [1000.0]
    stub.hastens = hastens
    runner = EvictionRunner(stub, world.machine.recorder, lambda gate: Mode.ENFORCE, steady=lambda: clock[0])
    wanted = task(world, a=100, b=100)
    asyncio.run(runner.run((wanted,)))
    assert stub.asked == ["a"]
    stub.earlier = {"uid-a"}
    lingers = replace(wanted, victims=tuple(replace(v, lingering=v.pod.name == "a") for v in wanted.victims))
    clock[0] += 29.0
    asyncio.run(runner.run((lingers,)))
    assert stub.asked == ["a"], "it may be about to end"
    clock[0] += 2.0
    asyncio.run(runner.run((lingers,)))
    assert stub.asked == ["a", "b"]
    stub.earlier = {"uid-b"}
    clock[0] += 90.0
    asyncio.run(runner.run((lingers,)))
    assert stub.asked == then


def test_tasks_share_victims_and_amounts(world):
    stub = Stub()
    first = task(world, a=60, b=60)
    second = task(world, gate="BEMemoryEvict", target={"memory": 130}, a=60, b=60, c=60)
    third = task(world, gate="X", key="request", target={"batch": 180}, a=60, b=60, c=60)
    fresh, _ = run(world, stub, first, second, third)
    assert (fresh, stub.asked) == (3, ["a", "b", "c"])


def test_observe_mode_asks_nobody_and_records_once(world):
    stub = Stub()
    metrics = world.machine.metrics
    mode_of = lambda gate: Mode.OBSERVE if gate == "MemoryEvict" else Mode.ENFORCE  # noqa: E731
    runner = EvictionRunner(stub, world.machine.recorder, mode_of, metrics=metrics)
    for _ in range(2):
        asyncio.run(runner.run((task(world, a=60, b=60, c=60),)))
    assert stub.asked == []
    assert [r.verdict for r in world.machine.recorder.ring.find("Pod")] == ["WouldEvict", "WouldEvict"]
    assert metrics.would_evict.get("MemoryEvict") == 2


def test_what_is_only_observed_frees_nothing_for_those_that_evict(world):
    stub = Stub()
    mode_of = lambda gate: Mode.OBSERVE if gate == "BEMemoryEvict" else Mode.ENFORCE  # noqa: E731
    observed, real = task(world, gate="BEMemoryEvict", a=60, b=60, c=60), task(world, a=60, b=60, c=60)
    fresh, _ = run(world, stub, observed, real, observed, mode_of=mode_of)
    assert (fresh, stub.asked) == (2, ["a", "b"])
    assert [r.verdict for r in world.machine.recorder.ring.find("Pod")].count("WouldEvict") == 2


def test_runs_in_the_background_one_a_strategy(world):
    async def main():
        stub, done = Stub(), []
        runner = EvictionRunner(stub, world.machine.recorder, lambda gate: Mode.ENFORCE)
        runner.submit("m", [task(world, a=100)], Mode.ENFORCE, done.append)
        assert runner.busy("m")
        runner.submit("m", [task(world, b=100)], Mode.ENFORCE, done.append)
        await asyncio.sleep(0.01)
        assert (stub.asked, done, runner.busy("m")) == (["a"], [1], False)

    asyncio.run(main())


# -- the evictor -------------------------------------------------------------------------------------------------------------


LOST = object()
"""No answer ever comes."""


class API:
    """Answers evictions as told, and of a node as ``node`` says; only the verbs that the evictor uses."""

    def __init__(self, answer=None, node=LOST):
        self.answer, self.node, self.calls = answer, node, []

    def within(self, seconds):
        return self

    async def evict(self, namespace, pod, *, grace_period_seconds=None, uid=None):
        self.calls.append((namespace, pod, uid, grace_period_seconds))
        await self.given(self.answer)

    async def get(self, kind, name):
        assert (kind.plural, name) == ("nodes", "node-a")
        await self.given(self.node)

    async def given(self, answer):
        if answer is LOST:
            await asyncio.Event().wait()
        if answer is not None:
            raise answer


def evict(world, api, *, only_api=True, stop=None, clock=lambda: 0.0, pod=None):
    told, stopped = [], []

    async def stop_containers(pod):
        stopped.append(pod.name)
        return stop

    evictor = PodEvictor(
        api,
        only_api=only_api,
        stop_containers=stop_containers,
        tell=lambda pod, reason, text: told.append((reason, text)),
        metrics=world.machine.metrics,
        clock=clock,
    )
    refusal = asyncio.run(evictor.evict(pod or world.pod("a"), "MemoryEvict", "70 %"))
    return refusal, told, stopped, evictor


def test_api_eviction_carries_the_uid_and_is_remembered(world):
    now = [0.0]
    api = API()
    refusal, told, stopped, evictor = evict(world, api, clock=lambda: now[0])
    assert refusal is None
    assert api.calls == [("default", "a", "uid-a", None)]
    assert told == [("evictPodSuccess", "trigger by koordlet feature MemoryEvict, kill pod: a: 70 %")]
    assert stopped == []
    assert evictor.recently_evicted("uid-a")
    now[0] = 120.0
    assert not evictor.recently_evicted("uid-a")
    assert world.machine.metrics.pod_eviction.get("evicted") == 1
    assert world.machine.metrics.pod_eviction_detail.get("default", "a", "evicted") == 1


@pytest.mark.parametrize("only_api", [True, False])
def test_a_disruption_budget_is_a_refusal_whatever_the_flag(world, only_api):
    refusal, told, stopped, evictor = evict(world, API(errors.TooManyRequests(429, message="budget")), only_api=only_api)
    assert "budget" in refusal
    assert (told[0][0], stopped, evictor.recently_evicted("uid-a")) == ("evictPodFail", [], False)


def test_without_the_flag_containers_are_stopped_after_the_api_agreed(world):
    refusal, _, stopped, _ = evict(world, API(), only_api=False)
    assert (refusal, stopped) == (None, ["a"])


@pytest.mark.parametrize(("leaving", "refused"), [(None, False), ("2026-01-01T00:00:00Z", True)])
def test_a_pod_that_leaves_already_is_evicted_by_stopping_it_or_not_at_all(world, leaving, refused):
    pod = world.pod("a")
    pod = replace(pod, pod=structs.replace(pod.pod, metadata=structs.replace(pod.pod.metadata, deletion_timestamp=leaving)))
    refusal, _, stopped, evictor = evict(world, API(), only_api=False, stop="no socket", pod=pod)
    assert (refusal is not None, stopped) == (refused, ["a"])
    assert evictor.recently_evicted("uid-a"), "not every second"
    assert evictor.hastens
    assert evict(world, API(), only_api=False, pod=pod)[0] is None
    assert not evict(world, API(), pod=pod)[3].hastens


@pytest.mark.parametrize(("only_api", "stop", "success"), [(True, None, False), (False, None, True), (False, "no socket", False)])
def test_no_answer_from_the_api(world, only_api, stop, success):
    refusal, _, stopped, _ = evict(world, API(errors.Unreachable("down")), only_api=only_api, stop=stop)
    assert (refusal is None) is success
    assert stopped == ([] if only_api else ["a"])


def test_a_pod_that_is_gone_counts_as_evicted(world):
    assert evict(world, API(errors.NotFound(404)))[0] is None


ANSWERS = (
    errors.Unauthorized(401),
    errors.Forbidden(403, "Forbidden", "a policy protects it"),
    errors.Conflict(409),
    errors.Invalid(422),
    errors.ServerError(500, "", "more than one PodDisruptionBudget"),
    errors.ServerError(502),
    errors.ServerError(503, "ServiceUnavailable"),
)


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda error: str(error.status))
def test_an_answer_of_the_api_stops_no_container(world, answer):
    refusal, told, stopped, evictor = evict(world, API(answer), only_api=False)
    assert ("refuses" in refusal, stopped) == (True, [])
    assert (told[0][0], evictor.recently_evicted("uid-a")) == ("evictPodFail", False)


@pytest.mark.parametrize("silence", [errors.Unreachable("timed out"), errors.ServerError(504, "Timeout")])
@pytest.mark.parametrize("critical", [True, False])
def test_silence_stops_containers_only_beyond_the_second_threshold(world, silence, critical, tmp_path):
    told, stopped = [], []

    async def stop(pod):
        stopped.append(pod.name)

    log = AuditLog(str(tmp_path))
    recorder = world.machine.recorder
    evictor = PodEvictor(
        API(silence), only_api=False, stop_containers=stop, tell=lambda *event: told.append(event[1:]), recorder=recorder, audit=log
    )
    runner = EvictionRunner(evictor, recorder, lambda gate: Mode.ENFORCE)
    work = replace(task(world, a=100), critical=critical)
    assert asyncio.run(runner.run((work,))) == int(critical)
    assert stopped == ["a"] * critical
    verdicts = {record.verdict for record in recorder.ring.find("Pod")}
    log.flush()
    if critical:
        assert verdicts == {"ContainersStopped", "Evicted"}
        assert [reason for reason, _ in told] == ["containersStopped", "evictPodSuccess"]
        assert "StopContainers" in (tmp_path / "audit.log").read_text()
    else:
        assert verdicts == {"EvictionRefused"}
        assert "below the critical threshold" in told[0][1]


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.parametrize(
    ("node", "silent"),
    [
        (None, False),
        (errors.Forbidden(403), False),
        (errors.ServerError(500), False),
        (errors.ServerError(504), True),
        (errors.Unreachable("down"), True),
        (LOST, True),
    ],
    ids=["answers", "403", "500", "504", "unreachable", "lost"],
)
def test_an_eviction_that_a_webhook_holds_up_is_no_silence(world, node, silent):
    """The API server answers others meanwhile: the webhook may be about to protect the pod."""
    stopped = []

    async def stop(pod):
        stopped.append(pod.name)

    evictor = PodEvictor(API(LOST, node), only_api=False, stop_containers=stop, tell=lambda *event: None)
    refusal = virtual.run(virtual.VirtualLoop(), evictor.evict(world.pod("a"), "MemoryEvict", "because", critical=True))
    assert (refusal is None, stopped) == (silent, ["a"] * silent)
    assert silent or "webhook" in refusal


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.parametrize("only_api", [True, False])
def test_a_pod_whose_eviction_is_held_up_holds_up_no_other(world, only_api):
    """The run ends with it, so that others have their turn, and for a minute it is passed over."""
    now = [0.0]

    class Webhook(API):
        async def evict(self, namespace, pod, **how):
            self.calls.append((now[0], pod))
            if pod == "a":
                await asyncio.Event().wait()

        async def get(self, kind, name):
            return {}

    async def stop(pod):
        return None

    api = Webhook()
    evictor = PodEvictor(api, only_api=only_api, stop_containers=stop, tell=lambda *event: None, clock=lambda: now[0])
    runner = EvictionRunner(evictor, world.machine.recorder, lambda gate: Mode.ENFORCE, steady=lambda: now[0])
    work = replace(task(world, a=100, b=100), critical=True)
    for at, fresh in ((0.0, 0), (1.0, 1), (61.0, 0)):
        now[0] = at
        assert virtual.run(virtual.VirtualLoop(), runner.run((work,))) == fresh
    assert api.calls == [(0.0, "a"), (1.0, "b"), (61.0, "a")]
    assert len(world.machine.recorder.ring.find("Pod", "default", "a")) == 2, "told when it is held up, not when it is passed over"


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.parametrize("critical", [True, False])
def test_an_api_server_that_held_up_a_pod_and_is_silent_then_is_done_without(world, critical):
    api, stopped = API(LOST, node=None), []

    async def stop(pod):
        stopped.append(pod.name)

    evictor = PodEvictor(api, only_api=False, stop_containers=stop, tell=lambda *event: None, clock=lambda: 0.0)

    def refused():
        return virtual.run(virtual.VirtualLoop(), evictor.evict(world.pod("a"), "MemoryEvict", "because", critical=critical))

    assert "webhook" in refused()
    assert "held up" in refused()
    assert (len(api.calls), stopped) == (1, []), "while it answers others the pod is passed over"
    api.node = LOST
    assert (refused() is None, stopped) == (critical, ["a"] * critical)


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.parametrize("only_api", [True, False])
def test_an_api_server_that_is_silent_holds_up_nobody(world, only_api):
    """One pod is asked for a task that is not critical, and where nothing but the API may end a pod."""
    api, stopped = API(LOST), []

    async def stop(pod):
        stopped.append(pod.name)

    evictor = PodEvictor(api, only_api=only_api, stop_containers=stop, tell=lambda *event: None)
    runner = EvictionRunner(evictor, world.machine.recorder, lambda gate: Mode.ENFORCE)

    async def main():
        done, both = [], asyncio.Event()

        def ended(fresh):
            done.append(fresh)
            if len(done) == 2:
                both.set()

        runner.submit("CPUEvict", [task(world, gate="CPUEvict", a=60, b=60)], Mode.ENFORCE, ended)
        tasks = [
            task(world, c=60, d=60),
            task(world, gate="X", d=60),
            replace(task(world, gate="BEMemoryEvict", c=60, d=60), critical=True),
        ]
        runner.submit("MemoryEvict", tasks, Mode.ENFORCE, ended)
        await both.wait()
        return done

    assert virtual.run(virtual.VirtualLoop(), main()) == [0, 2 * (not only_api)]
    assert stopped == ([] if only_api else ["c", "d"])
    assert [pod for _, pod, *_ in api.calls] == ["a", "c", "c", *["d"] * (not only_api)]


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (("big",), [(0, "big"), (30, "big"), (60, "big"), (90, "big")]),
        (("big", "other"), [(0, "big"), (30, "other"), (60, "big"), (90, "big")]),
    ],
    ids=["alone", "others first"],
)
def test_a_pod_that_its_kubelet_starts_again_is_not_counted_on_for_long(world, gates, pods, expected):
    """The API server is silent, memory is critical all the time: what is stopped takes its memory again."""
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70}}
    for priority, name in enumerate(pods, 5000):
        world.pod(name, qos="BE", kube_qos="BestEffort", priority=priority)
    begun, stopped = world.now, []

    async def stop(pod):
        stopped.append((int(world.now - begun), pod.name))

    clock = lambda: world.now  # noqa: E731
    evictor = PodEvictor(API(errors.Unreachable("timed out")), only_api=False, stop_containers=stop, tell=lambda *event: None, clock=clock)
    runner = EvictionRunner(evictor, world.machine.recorder, lambda gate: Mode.ENFORCE, steady=clock)
    strategy = MemoryEvict(Options(), gates("BEMemoryEvict"))
    state = strategy.initial()
    for seconds in range(0, 120, 5):
        world.now = begun + seconds
        world.sample(kinds.NODE_MEMORY, 62 << 30)
        for name in pods:
            world.sample(kinds.POD_MEMORY, 20 << 30, f"uid-{name}")
        outcome = world.decide(strategy, state)
        assert outcome.tasks[0].critical
        state = strategy.evicted(outcome.state, world.now) if asyncio.run(runner.run(outcome.tasks)) else outcome.state
    assert stopped == expected


def test_an_evictor_that_raises_costs_its_victim_only(world):
    class Raises(Stub):
        async def evict(self, pod, gate, why):
            if pod.name == "a":
                raise KeyError(pod.name)
            return await super().evict(pod, gate, why)

    stub = Raises()
    fresh, _ = run(world, stub, task(world, b=60, a=60, c=60))
    assert (fresh, stub.asked) == (2, ["b", "c"])


def test_an_evictor_of_an_extension_need_not_know_what_is_critical(world):
    stub = Stub()
    assert run(world, stub, replace(task(world, a=100), critical=True))[0] == 1
