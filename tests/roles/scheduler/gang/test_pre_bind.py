"""DefaultPreBind: one patch for all that the preBind plugins want written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.kube.errors import Conflict, NotFound
from roles.scheduler import testing
from roles.scheduler.framework.context import BindDraft, CycleContext
from roles.scheduler.plugins.default_pre_bind import DefaultPreBind


class Server:
    """Answers patches with what it is told to, one after another."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    async def patch(self, kind: Any, name: str, body: Any, namespace: str, *, type: str) -> Any:
        self.asked.append((kind.kind, namespace, name, body, type))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def apply(server: Server, draft: BindDraft, **pod: Any) -> Any:
    found = testing.World()
    found.handle.client = server
    info = found.parser.parse(testing.pod("p", uid="u", **pod))
    return asyncio.run(DefaultPreBind(None, found.handle).apply(CycleContext(found.state, info), "n", draft))


@pytest.mark.feature("SCH-PB-01")
def test_one_patch_with_the_uid_that_holds_only_what_differs() -> None:
    server = Server({"metadata": {}})
    draft = BindDraft({"koordinator.sh/a": "1", "koordinator.sh/same": "x", "koordinator.sh/gone": None}, {"l": "v"})
    assert apply(server, draft, annotations={"koordinator.sh/same": "x", "koordinator.sh/gone": "y"}).ok
    body = {"metadata": {"uid": "u", "annotations": {"koordinator.sh/a": "1", "koordinator.sh/gone": None}, "labels": {"l": "v"}}}
    assert server.asked == [("Pod", "default", "p", body, "strategic")]


@pytest.mark.feature("SCH-PB-01")
def test_nothing_to_write_is_no_call() -> None:
    server = Server()
    assert apply(server, BindDraft({"koordinator.sh/a": "1", "b": None}), annotations={"koordinator.sh/a": "1"}).ok
    assert not server.asked


@pytest.mark.feature("SCH-PB-01")
def test_what_may_pass_is_tried_again_and_what_may_not_is_not() -> None:
    server = Server(Conflict(409, "Conflict", "changed"), Conflict(409, "Conflict", "changed"), {"metadata": {}})
    assert apply(server, BindDraft({"a": "1"})).ok
    assert len(server.asked) == 3
    for failure in (NotFound(404), Conflict(409, "Conflict", "Precondition failed: UID in precondition: u, UID in object meta: v")):
        server = Server(failure)
        with pytest.raises(type(failure)):
            apply(server, BindDraft({"a": "1"}))
        assert len(server.asked) == 1


@pytest.mark.feature("SCH-PB-01")
def test_a_pod_that_is_being_deleted_is_not_bound() -> None:
    status = apply(Server({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), BindDraft({"a": "1"}))
    assert not status.ok
    assert "being deleted" in status.message


@pytest.mark.feature("SCH-GANG-05")
def test_a_member_can_be_asked_about_in_a_what_if() -> None:
    from koord.api.names import LABEL_POD_GROUP
    from koord.config.scheduler import KubeSchedulerConfiguration
    from roles.scheduler.whatif import Simulation, Snapshot

    from .conftest import profile

    content = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config = KubeSchedulerConfiguration.model_validate({**content, "profiles": [profile(enablePreemption=True)]})
    simulation = Simulation(Snapshot([testing.node("n", cpu="2")]), config=config, now=1.0)
    member = testing.pod(cpu="1", labels={LABEL_POD_GROUP: "gang"})
    assert simulation.fits(member).node == "n"
    placed = simulation.place([testing.pod(cpu="1", labels={LABEL_POD_GROUP: "gang"}) for _ in range(3)])
    assert [placement.node for placement in placed] == ["n", "n", ""]
    assert "Insufficient cpu" in placed[2].message
