"""Pacing: a cancelled wait costs nothing, and nobody waits for a lower class."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import PODS
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.ratelimit import Priority, RateLimiter, TokenBucket
from tests.support import patience


def test_a_cancelled_wait_takes_no_token() -> None:
    async def main() -> None:
        limiter = RateLimiter(0.001, 1)
        await limiter.acquire()
        waiters = [asyncio.create_task(limiter.acquire()) for _ in range(200)]
        await asyncio.sleep(0)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.wait(waiters)
        assert limiter._bucket is not None
        limiter._bucket.give_back()
        async with asyncio.timeout(patience.seconds(5)):
            await limiter.acquire()

    asyncio.run(main())


def test_a_token_that_came_with_the_cancellation_is_given_back() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        limiter = RateLimiter(0.001, 1)
        await limiter.acquire()
        first = asyncio.create_task(limiter.acquire())
        second = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        assert limiter._bucket is not None
        limiter._bucket.give_back()
        limiter._serve(loop)  # the first has its turn …
        first.cancel()  # … and is cancelled before it runs
        await asyncio.wait_for(second, patience.seconds(5))
        assert first.cancelled()

    asyncio.run(main())


def test_the_most_urgent_class_goes_first_and_each_class_in_order() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        limiter = RateLimiter(0.001, 1)

        async def one(name: str, priority: Priority) -> None:
            await limiter.acquire(priority)
            order.append(name)

        await limiter.acquire()
        waiting = [
            *(one(f"bulk{n}", Priority.BULK) for n in range(3)),
            *(one(f"status{n}", Priority.STATUS) for n in range(3)),
            *(one(f"bind{n}", Priority.BIND) for n in range(2)),
            one("review", Priority.ADMISSION),
        ]
        tasks = [asyncio.create_task(each) for each in waiting]
        await asyncio.sleep(0)
        assert limiter._bucket is not None
        for _ in tasks:  # a token when all of them wait, then one after the other
            limiter._bucket.give_back()
            limiter._serve(loop)
            await asyncio.sleep(0)
        async with asyncio.timeout(patience.seconds(5)):
            await asyncio.gather(*tasks)
        return order

    expected = ["review", "bind0", "bind1", "status0", "status1", "status2", "bulk0", "bulk1", "bulk2"]
    assert asyncio.run(main()) == expected


def test_a_flood_of_status_writes_leaves_tokens_for_bindings() -> None:
    """A binding has its token at once, although writes of status take whatever comes."""

    async def main() -> None:
        limiter = RateLimiter(0.001, 20)
        flood = [asyncio.create_task(limiter.acquire(priority)) for priority in (Priority.STATUS, Priority.BULK) for _ in range(20)]
        await asyncio.sleep(0)
        assert sum(task.done() for task in flood) == 18
        async with asyncio.timeout(patience.seconds(5)):
            await limiter.acquire(Priority.BIND)
            await limiter.acquire(Priority.ADMISSION)
        for task in flood:
            task.cancel()
        await asyncio.wait(flood)

    asyncio.run(main())


def test_requests_that_hang_keep_only_their_own_class_waiting(fault_server: Any) -> None:
    """A hundred status writes without an answer hold all places of their class; a binding has one of its own."""

    async def main() -> None:
        async with fault_server() as (server, _), Client(ClientConfig(server.url)) as client:
            never = asyncio.Event()

            async def script(request: Any) -> None:
                if request.method == "PATCH":
                    await never.wait()

            server.script = script
            hanging = [asyncio.create_task(client.patch(PODS, f"p{n}", {}, "default")) for n in range(120)]
            async with asyncio.timeout(patience.seconds(10)):
                await client.bind("default", "p", "n1")
                await client.ranked(Priority.ADMISSION).get(PODS, "p", "default")
            for task in hanging:
                task.cancel()
            await asyncio.wait(hanging)
            never.set()

    asyncio.run(main())


@given(st.floats(0.1, 1000), st.integers(1, 50), st.floats(0, 1e9), st.lists(st.floats(0, 1e-3), max_size=40))
def test_whoever_waits_as_long_as_told_gets_a_token(qps: float, burst: int, now: float, steps: list[float]) -> None:
    """Rounding must not leave a bucket a hair below one token: the wait would be too short to move a clock, and be asked for ever."""
    bucket = TokenBucket(qps, burst)
    for step in steps:
        now += step
        bucket.take(now)
    for _ in range(60):
        wait = bucket.wait(now)
        if bucket.take(now + wait):
            break
        assert now + wait > now
        now += wait
    else:
        raise AssertionError("no token after 60 waits")
