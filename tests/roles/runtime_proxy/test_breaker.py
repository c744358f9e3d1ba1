"""When hook servers are left alone: time spent waiting counts, and after a rest one call tries for all."""

from __future__ import annotations

import asyncio

import pytest

from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy.breaker import REST, WINDOW, Breaker, Pass
from tests.roles.runtime_proxy.support import HookServer, proxied, run_pod


def ask(breaker: Breaker, waited: float, given: float, now: float) -> bool:
    """One call; whether it asked."""
    admitted = breaker.admit(now)
    if admitted is not None:
        breaker.note(admitted, waited, given, now + waited)
    return admitted is not None


@pytest.mark.feature("RP-REG-03")
@pytest.mark.parametrize(("waited", "given", "until_open"), [(2.0, 2.0, 3), (1.9, 2.0, 3), (0.5, 0.5, 10), (1.0, 2.0, 5)])
def test_it_opens_by_time_spent_waiting(waited: float, given: float, until_open: int) -> None:
    breaker, now = Breaker(2.0), 100.0
    for _ in range(until_open):
        assert ask(breaker, waited, given, now)
        now += waited
    assert not ask(breaker, waited, given, now)


@pytest.mark.feature("RP-REG-03")
def test_quick_answers_old_waits_and_quick_errors_do_not_count() -> None:
    breaker, now = Breaker(2.0), 100.0
    for _ in range(10_000):  # a thousand pods at once, each answered in 30 ms
        assert ask(breaker, 0.03, 2.0, now)
    for _ in range(20):
        assert ask(breaker, 2.0, 2.0, now)
        now += WINDOW
    assert ask(breaker, 0.0, 0.0, now)


@pytest.mark.feature("RP-REG-03")
def test_after_a_rest_one_call_tries_and_the_others_go_past() -> None:
    breaker, now = Breaker(2.0), 100.0
    for _ in range(3):
        ask(breaker, 2.0, 2.0, now)
    now += 2.0 + REST
    assert breaker.admit(now) is Pass.ON_TRIAL
    assert [breaker.admit(now) for _ in range(100)] == [None] * 100
    breaker.note(Pass.FREELY, 2.0, 2.0, now)  # one that began before all this
    assert breaker.admit(now) is None
    breaker.note(Pass.ON_TRIAL, 2.0, 2.0, now + 2.0)
    assert breaker.admit(now + 3.0) is None
    now += 2.0 + REST
    assert breaker.admit(now) is Pass.ON_TRIAL
    breaker.abandon(Pass.ON_TRIAL)  # its caller gave up: another one tries
    assert breaker.admit(now) is Pass.ON_TRIAL
    breaker.note(Pass.ON_TRIAL, 0.01, 2.0, now)
    assert breaker.admit(now) is Pass.FREELY
    assert ask(breaker, 2.0, 2.0, now)  # and the count begins anew
    assert ask(breaker, 2.0, 2.0, now)


@pytest.mark.feature("RP-REG-03")
def test_a_server_that_answers_late_each_time_is_left_alone() -> None:
    async def scenario() -> None:
        server = HookServer(answers={"PreRunPodSandboxHook": hook.PodSandboxHookResponse()}, delay=0.3)
        async with proxied(hook_timeout=0.5) as stack, stack.hook_server("h", server, ["PreRunPodSandbox"]):
            for n in range(12):
                await stack.call("RunPodSandbox", run_pod(f"u{n}"))
            assert len(server.asked) < 8
            assert len(stack.engine.of("RunPodSandbox")) == 12

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-03")
def test_what_changes_nothing_is_spared_and_what_binds_is_asked_each_time() -> None:
    async def scenario() -> None:
        server = HookServer(answers={"PreRunPodSandboxHook": hook.PodSandboxHookResponse()}, delay=0.3)
        hooks = ["PreRunPodSandbox", "PostStopPodSandbox"]
        async with proxied(hook_timeout=0.5) as stack, stack.hook_server("h", server, hooks, "Fail"):
            for n in range(8):
                await stack.call("RunPodSandbox", run_pod(f"u{n}"))
            asked = len(server.asked)
            assert asked == 8
            for n in range(4):
                await stack.call("StopPodSandbox", b"\x0a\x05sb-u%d" % n)
            assert len(server.asked) == asked

    asyncio.run(scenario())
