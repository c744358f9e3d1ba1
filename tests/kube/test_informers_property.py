"""Whatever happens on the way, the store ends up equal to the server's list, and the handlers' story adds up to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.api.kinds import PODS
from koord.api.objects import Pod
from koord.kube import reflector
from koord.kube.informers import InformerFactory
from tests.support import patience

names = st.sampled_from("abcdef")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), names),
        st.tuples(st.just("remove"), names),
        st.tuples(st.sampled_from(["close", "cut", "compact", "silent", "restart", "pause", "break"]), st.just("")),
    ),
    max_size=25,
)


class Mirror:
    """The world as the handlers tell it; each call checks that it fits what was told before."""

    def __init__(self, informer: Any) -> None:
        self.world: dict[str, str] = {}
        informer.add_handler(self.add, self.update, self.delete)

    def add(self, obj: Pod) -> None:
        assert obj.metadata.name not in self.world
        self.world[obj.metadata.name] = obj.metadata.resource_version

    def update(self, old: Pod, new: Pod) -> None:
        assert self.world[old.metadata.name] == old.metadata.resource_version
        self.world[new.metadata.name] = new.metadata.resource_version

    def delete(self, obj: Pod) -> None:
        del self.world[obj.metadata.name]


@given(steps)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_store_equals_list(
    fault_server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, script: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(reflector, "BACKOFF_FIRST", 0.002)
    monkeypatch.setattr(reflector, "BACKOFF_LIMIT", 0.004)
    monkeypatch.setattr(reflector, "PAGE", 2)
    caplog.clear()

    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            mirror = Mirror(informer)
            factory.start()
            for action, name in script:
                if action == "put":
                    server.put(name)
                elif action == "remove" and name in server.objects:
                    server.remove(name)
                elif action == "close":
                    server.send(None)
                elif action == "cut":
                    server.send(b'{"type":"MODIFIED","object":{"metadata":{"na')
                    server.send(None)
                elif action == "break":
                    server.send(b"\xff\xfe\n")
                elif action == "compact":
                    server.compact()
                elif action == "silent":  # a change that the watches are not told of, as if it fell into a gap
                    server.send(None)
                    server.watchers.clear()
                elif action == "restart":
                    await server.stop()
                    await server.start()
                elif action == "pause":
                    await asyncio.sleep(0.005)
            server.put("end")
            wanted = {name: obj["metadata"]["resourceVersion"] for name, obj in server.objects.items()}
            async with asyncio.timeout(patience.seconds(10)):
                while mirror.world != wanted:
                    await asyncio.sleep(0.002)
            assert {obj.metadata.name: obj.metadata.resource_version for obj in informer.list()} == wanted
            assert not [record for record in caplog.records if record.exc_info]
            await factory.stop()

    asyncio.run(main())
