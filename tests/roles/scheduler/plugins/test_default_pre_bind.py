"""DefaultPreBind through the API server: one patch before the pod is bound."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import PODS
from koord.kube.errors import Forbidden
from roles.scheduler.observing.observer import Observer
from tests.support import patience

PROBE = """
from roles.scheduler.framework.interfaces import PreBind
from roles.scheduler.framework.status import SUCCESS

class {name}(PreBind):
    name = "{name}"

    async def pre_bind(self, ctx, node, draft):
        draft.annotations["example.com/{name}"] = node
        draft.labels["example.com/{name}"] = None
        return SUCCESS
"""


@pytest.mark.feature("SCH-PB-01")
def test_what_all_plugins_want_is_written_in_one_patch(scheduler: Any, tmp_path: Path) -> None:
    for name in ("First", "Second"):
        (tmp_path / f"{name}.py").write_text(PROBE.format(name=name))
    profile = {"schedulerName": "koord-scheduler", "plugins": {"preBind": {"enabled": [{"name": "First"}, {"name": "Second"}]}}}

    async def run() -> None:
        async with scheduler({"profiles": [profile]}, plugin_paths=(str(tmp_path),)) as live:
            before = int((await live.pod("p", meta={"labels": {"example.com/First": "old", "app": "p"}}))["metadata"]["resourceVersion"])
            await live.node("n")
            await live.bound("p")
            pod = await live.get("p")
            assert pod["metadata"]["annotations"] == {"example.com/First": "n", "example.com/Second": "n"}
            assert pod["metadata"]["labels"] == {"app": "p"}
            assert int(pod["metadata"]["resourceVersion"]) > before

    asyncio.run(run())


@pytest.mark.feature("SCH-PB-01")
def test_a_new_pod_of_the_same_name_is_not_touched(scheduler: Any, tmp_path: Path) -> None:
    (tmp_path / "First.py").write_text(PROBE.format(name="First"))
    profile = {"schedulerName": "koord-scheduler", "plugins": {"preBind": {"enabled": [{"name": "First"}]}}}

    async def run() -> None:
        async with scheduler({"profiles": [profile]}, plugin_paths=(str(tmp_path),)) as live:
            patch, done = live.client.patch, asyncio.Event()

            async def late(kind: Any, name: str, body: Any, *rest: Any, **more: Any) -> Any:
                if kind is PODS and "annotations" in body["metadata"] and not done.is_set():
                    done.set()
                    await live.client.delete(PODS, name, "default", grace_period_seconds=0)
                    await live.pod(name, scheduler="somebody-else")
                return await patch(kind, name, body, *rest, **more)

            live.client.patch = late
            await live.pod("p")
            await live.node("n")
            await asyncio.wait_for(done.wait(), patience.seconds(8))
            await live.pod("q")
            await live.bound("q")
            assert "annotations" not in (await live.get("p"))["metadata"]
            assert not (await live.get("p"))["spec"].get("nodeName")

    asyncio.run(run())


ONCE = """
from roles.scheduler.framework.interfaces import PreBind
from roles.scheduler.framework.status import SUCCESS

class Once(PreBind):
    name = "Once"
    first = True

    async def pre_bind(self, ctx, node, draft):
        if self.first:
            draft.annotations["{key}"] = '{{"cpuset": "7"}}'
        self.first = False
        return SUCCESS
"""


@pytest.mark.feature("SCH-PB-01")
def test_what_a_failed_attempt_wrote_goes_though_the_watch_is_yet_to_show_it(
    scheduler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod would run on the CPUs of another node."""
    key = "scheduling.koordinator.sh/resource-status"
    (tmp_path / "Once.py").write_text(ONCE.format(key=key))
    profile = {"schedulerName": "koord-scheduler", "plugins": {"preBind": {"enabled": [{"name": "Once"}]}}}
    updated = Observer.pod_updated

    def late(self: Observer, old: Any, info: Any) -> None:
        if info.node_name:
            updated(self, old, info)

    async def run() -> None:
        async with scheduler({"profiles": [profile]}, plugin_paths=(str(tmp_path),)) as live:
            monkeypatch.setattr(Observer, "pod_updated", late)
            bind, seen = live.client.bind, []

            async def refuse(namespace: str, name: str, node: str, **more: Any) -> Any:
                seen.append((await live.get(name))["metadata"].get("annotations", {}).get(key))
                if len(seen) == 1:
                    raise Forbidden(403, "Forbidden", "not now")
                return await bind(namespace, name, node, **more)

            live.client.bind = refuse
            await live.node("n")
            await live.pod("p")
            await live.bound("p")
            assert seen == ['{"cpuset": "7"}', None]

    asyncio.run(run())
