"""Gangs on a live scheduler: PodGroups and members in short ways."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from koord.api.kinds import EVENTS, PODGROUPS, PODS, PRIORITYCLASSES
from koord.api.names import LABEL_POD_GROUP
from tests.support import patience

Obj = dict[str, Any]
GANG = "gang.scheduling.koordinator.sh/"
_POINTS = ("preEnqueue", "preFilter", "preScore", "score", "reserve", "permit", "preBind", "postBind")


def profile(*others: str, post_filter: tuple[str, ...] = ("Coscheduling", "DefaultPreemption"), **args: Any) -> Obj:
    """A profile with Coscheduling; `others` are further preFilter plugins."""
    plugins: Obj = {point: {"enabled": [{"name": "Coscheduling"}]} for point in _POINTS}
    plugins["preFilter"]["enabled"] += [{"name": name} for name in others]
    plugins["postFilter"] = {"disabled": [{"name": "*"}], "enabled": [{"name": name} for name in post_filter]}
    return {"schedulerName": "koord-scheduler", "pluginConfig": [{"name": "Coscheduling", "args": args}], "plugins": plugins}


def condition(pod: Obj) -> Obj:
    return next((c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"), {})


class Gangs:
    """A live scheduler with gangs."""

    def __init__(self, live: Any) -> None:
        self.live = live
        self.client = live.client

    @property
    def plugin(self) -> Any:
        return self.live.app.engine.frameworks["koord-scheduler"].plugins["Coscheduling"]

    async def group(self, name: str, minimum: int, *, annotations: Obj | None = None, **spec: Any) -> Obj:
        notes = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (annotations or {}).items()}
        body = {
            "apiVersion": PODGROUPS.api_version, "kind": "PodGroup",
            "metadata": {"name": name, "annotations": {GANG + key: value for key, value in notes.items()}},
            "spec": {"minMember": minimum, **spec},
        }  # fmt: skip
        return await self.client.create(PODGROUPS, body, "default")

    async def member(self, name: str, gang: str, *, cpu: str = "1", annotations: Obj | None = None, labels: Obj | None = None,
                     **spec: Any) -> Obj:  # fmt: skip
        """A member of a PodGroup's gang."""
        meta = {"labels": {LABEL_POD_GROUP: gang, **(labels or {})}, "annotations": dict(annotations or {})}
        return await self.live.pod(name, cpu=cpu, meta=meta, terminationGracePeriodSeconds=0, **spec)

    async def annotated(self, name: str, gang: str, minimum: str | None, *, cpu: str = "1", **annotations: str) -> Obj:
        """A member that describes its gang itself."""
        notes = {GANG + "name": gang, **{GANG + key.replace("_", "-"): value for key, value in annotations.items()}}
        if minimum is not None:
            notes[GANG + "min-available"] = minimum
        return await self.live.pod(name, cpu=cpu, meta={"annotations": notes})

    async def priority(self, name: str, value: int, **more: Any) -> None:
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value, **more}
        await self.client.create(PRIORITYCLASSES, body)

    async def bound(self, *names: str) -> dict[str, str]:
        return {name: await self.live.bound(name) for name in names}

    async def said(self, name: str, text: str) -> str:
        """The PodScheduled condition's message once it holds the text."""
        pod = await self.live.until(name, lambda p: text in condition(p).get("message", ""))
        assert not pod["spec"].get("nodeName")
        return str(condition(pod)["message"])

    async def nodes_of(self) -> dict[str, str]:
        return {p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in (await self.client.list(PODS, "default")).items}

    async def quiet(self) -> None:
        """Until the scheduler has nothing left to try."""
        queue, waiting = self.live.app.queue, self.live.app.waiting
        for _ in patience.tries(400):
            counts = queue.counts()
            if not counts["active"] and not counts["backoff"] and not counts["in-flight"] and not len(waiting):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"never quiet: {queue.counts()}")

    async def event(self, name: str, reason: str) -> Obj:
        for _ in patience.tries(300):
            for event in (await self.client.list(EVENTS, "default")).items:
                if event["regarding"]["name"] == name and event["reason"] == reason:
                    return event
            await asyncio.sleep(0.02)
        raise AssertionError(f"no event {reason} on {name}")

    async def podgroup(self, name: str, test: Callable[[Obj], Any], seconds: float = 8.0) -> Obj:
        group: Obj = {}
        for _ in range(int(patience.seconds(seconds) / 0.02)):
            group = await self.client.get(PODGROUPS, name, "default")
            if test(group.get("status") or {}):
                return group["status"]
            await asyncio.sleep(0.02)
        raise AssertionError(f"PodGroup {name} never got there: {group.get('status')}")

    async def finish(self, name: str, phase: str) -> None:
        await self.client.patch(PODS, name, {"status": {"phase": phase}}, "default", subresource="status")


@pytest.fixture
def gangs(scheduler: Any) -> Callable[..., contextlib.AbstractAsyncContextManager[Gangs]]:
    """`async with gangs(enablePreemption=True) as g:` gives a live scheduler with Coscheduling."""

    @contextlib.asynccontextmanager
    async def start(
        *others: str, nodes: tuple[str, ...] = (), options: Obj | None = None, profiles: Any = None, **args: Any
    ) -> AsyncIterator[Gangs]:
        async def before(objects: Any) -> None:
            for number, cpu in enumerate(nodes):
                await objects.node(f"n{number}", cpu=cpu)

        given = profiles or [profile(*others, **args)]
        async with scheduler({"profiles": given}, crds=True, before=before, **(options or {})) as live:
            yield Gangs(live)

    return start
