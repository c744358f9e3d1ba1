"""No strict gang is ever half bound: random gangs, nodes and deletions against a scheduler in process; and restarts in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import NODES, PODGROUPS, PODS, Kind
from koord.api.names import (
    ANNOTATION_BIND_GANG_GROUP_ID,
    ANNOTATION_BIND_GANG_MEMBER_COUNT,
    ANNOTATION_GANG_GROUPS,
    ANNOTATION_GANG_MATCH_POLICY,
    LABEL_POD_GROUP,
)
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.kube.store import Informer
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.scheduler import testing
from roles.scheduler.app import App
from roles.scheduler.options import Options
from tests.support import patience
from tests.support.examples import examples

from .conftest import profile

Obj = dict[str, Any]
encode = msgspec.json.Encoder().encode


class Cluster:
    """What an API server would hold, shown to the informers of the scheduler that runs now; binds only so many pods when told to."""

    def __init__(self) -> None:
        self.stores: dict[tuple[Kind, str], Informer[Any]] = {}
        self.bodies: dict[tuple[Kind, str], Obj] = {}
        self.left = -1  # bindings that still succeed; -1: all
        self.version = 0

    # the informers' side
    def informer(self, kind: Kind, projection: type[Any], *, transform: Any = None, field_selector: str = "", **_: Any) -> Informer[Any]:
        key = (kind, field_selector)
        if key not in self.stores:
            self.stores[key] = Informer(kind.plural, projection, transform, type_meta=(kind.api_version, kind.kind))
        return self.stores[key]

    def start(self) -> None:
        for (kind, key), body in self.bodies.items():
            self._show(kind, key, body)

    async def wait_synced(self) -> None:
        """Shown at once."""

    def _show(self, kind: Kind, key: str, body: Obj) -> None:
        for (held, selector), store in self.stores.items():
            if held is kind and "Running" not in selector:
                self.version += 1
                store.receive(key, str(self.version), msgspec.Raw(encode(body)))

    # the users' side
    def put(self, kind: Kind, key: str, body: Obj) -> None:
        self.bodies[kind, key] = body
        self._show(kind, key, body)

    def drop(self, kind: Kind, key: str) -> None:
        if self.bodies.pop((kind, key), None) is not None:
            for (held, selector), store in self.stores.items():
                if held is kind and "Running" not in selector:
                    self.version += 1
                    store.forget(key)

    def node(self, name: str, cpu: int) -> None:
        self.put(NODES, name, msgspec.to_builtins(testing.node(name, cpu=str(cpu))))

    def group(self, name: str, minimum: int, annotations: Obj | None = None) -> None:
        body = {"metadata": {"name": name, "namespace": "default", "annotations": annotations or {}}, "spec": {"minMember": minimum}}
        self.put(PODGROUPS, f"default/{name}", body)

    def pod(self, name: str, gang: str = "", cpu: int = 1) -> None:
        pod = testing.pod(name, uid=f"u-{name}", cpu=str(cpu), memory="1Mi", labels={LABEL_POD_GROUP: gang} if gang else {})
        meta = {**msgspec.to_builtins(pod.metadata), "creationTimestamp": "2026-01-01T00:00:00Z"}
        body = {"metadata": meta, "spec": msgspec.to_builtins(pod.spec), "status": {}}
        self.put(PODS, f"default/{name}", body)

    def group_of(self, gangs: tuple[int, ...], policy: str) -> None:
        """Gangs g0, g1, ... of so many pods each that are scheduled together."""
        together = json.dumps([f"default/g{gang}" for gang in range(len(gangs))])
        for gang, members in enumerate(gangs):
            self.group(f"g{gang}", members, {ANNOTATION_GANG_MATCH_POLICY: policy, ANNOTATION_GANG_GROUPS: together})
            for member in range(members):
                self.pod(f"g{gang}-{member}", f"g{gang}")

    def bound(self, gang: str = "") -> int:
        """Pods of a gang, or of all, that have nodes."""
        pods = [body for (kind, _), body in self.bodies.items() if kind is PODS and body["spec"].get("nodeName")]
        return sum(1 for body in pods if gang in ("", body["metadata"]["labels"].get(LABEL_POD_GROUP)))

    # the client's side
    async def bind(self, namespace: str, pod: str, node: str, uid: str | None = None) -> None:
        if self.left == 0:
            await asyncio.Event().wait()
        self.left -= self.left > 0
        body = self.bodies.get((PODS, f"{namespace}/{pod}"))
        if body is not None:
            placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}
            changed = {**body, "spec": {**body["spec"], "nodeName": node}, "status": {"conditions": [placed]}}
            self.put(PODS, f"{namespace}/{pod}", changed)

    async def patch(self, kind: Kind, name: str, body: Obj, namespace: str = "", **_: Any) -> Obj:
        held = self.bodies.get((kind, f"{namespace}/{name}"))
        notes = body.get("metadata", {}).get("annotations")
        if held is not None and kind is PODS and notes:
            meta = {**held["metadata"], "annotations": {**held["metadata"].get("annotations", {}), **notes}}
            self.put(kind, f"{namespace}/{name}", {**held, "metadata": meta})
        return {"metadata": {}}

    async def create(self, kind: Kind, obj: Any, namespace: str | None = None) -> Obj:
        return obj if isinstance(obj, dict) else {}

    @contextlib.asynccontextmanager
    async def scheduler(self) -> Any:
        """A scheduler that begins with what is there."""
        self.stores = {}
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "profiles": [profile()],
        }  # fmt: skip
        recorder, life = Recorder("scheduler"), Life()
        ops = OpsServer("127.0.0.1", 0, recorder=recorder)
        app = App(
            Options(KubeSchedulerConfiguration.model_validate(content)),
            client=self,
            informers=self,
            recorder=recorder,
            ops=ops,
        )
        app.queue._initial_backoff, app.queue._max_backoff = 0.005, 0.02  # rests are exact, and nobody wants to wait for them here
        running = asyncio.get_running_loop().create_task(app.run(life))
        try:
            yield app
        finally:
            life.stop()
            with contextlib.suppress(BaseException):
                await asyncio.wait_for(running, patience.seconds(5))
            await life.finish()

    async def until(self, test: Callable[[], bool]) -> None:
        """Until something is so."""
        for _ in patience.tries(4000):
            if test():
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"{self.bound()} pods are bound")

    async def quiet(self, app: App) -> None:
        """Until nothing is tried or bound any more."""
        calm = 0
        for _ in patience.tries(3000):
            counts = app.queue.counts()
            busy = counts["active"] or counts["backoff"] or counts["in-flight"] or app.binder.backlog
            calm = 0 if busy else calm + 1
            if calm > 3:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"never quiet: {app.queue.counts()}")


GANGS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=4)
POLICIES = st.sampled_from(["once-satisfied", "waiting-and-running", "only-waiting"])
STEPS = st.lists(st.tuples(st.sampled_from(["node", "drop", "settle"]), st.integers(0, 5)), max_size=5)


@pytest.mark.feature("SCH-GANG-07")
@examples(10)
@given(nodes=st.lists(st.integers(1, 6), min_size=1, max_size=3), gangs=GANGS, policy=POLICIES, steps=STEPS, seed=st.randoms())
def test_a_strict_gang_is_bound_whole_or_not_at_all(
    nodes: list[int], gangs: list[tuple[int, int, int]], policy: str, steps: list[tuple[str, int]], seed: Any
) -> None:
    async def run() -> None:
        cluster = Cluster()
        for number, cpu in enumerate(nodes):
            cluster.node(f"n{number}", cpu)
        pods = [(f"g{g}-{m}", f"g{g}", cpu) for g, (least, more, cpu) in enumerate(gangs) for m in range(least + more)]
        seed.shuffle(pods)
        async with cluster.scheduler() as app:
            await asyncio.sleep(0)
            for g, (least, _, _) in enumerate(gangs):
                cluster.group(f"g{g}", least, {ANNOTATION_GANG_MATCH_POLICY: policy})
            for name, gang, cpu in pods:
                cluster.pod(name, gang, cpu)
                if seed.random() < 0.3:
                    await asyncio.sleep(0)
            satisfied: set[int] = set()
            for what, number in [*steps, ("settle", 0)]:
                if what == "node":
                    cluster.node(f"more{number}", 1 + number)
                elif what == "drop":
                    # Only pods that wait: what users do to bound ones is not the scheduler's doing.
                    name = pods[number % len(pods)][0]
                    body = cluster.bodies.get((PODS, f"default/{name}"))
                    if body is not None and not body["spec"].get("nodeName"):
                        await cluster.quiet(app)
                        body = cluster.bodies.get((PODS, f"default/{name}"))
                        if body is not None and not body["spec"].get("nodeName"):
                            cluster.drop(PODS, f"default/{name}")
                else:
                    await cluster.quiet(app)
                    for g, (least, _, _) in enumerate(gangs):
                        count = cluster.bound(f"g{g}")
                        assert count == 0 or count >= least, f"gang g{g}: {count} of {least}"
                        satisfied.update({g} if count else ())
                        assert count or g not in satisfied
            assert not len(app.waiting)
            on_nodes = app.engine.cluster.pod_count
            assert on_nodes == sum(cluster.bound(f"g{g}") for g in range(len(gangs)))  # nothing leaks from the cache

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-07")
@pytest.mark.parametrize("gangs", [(5,), (2, 3)])
@pytest.mark.parametrize("policy", ["once-satisfied", "waiting-and-running", "only-waiting"])
def test_a_restart_in_the_middle_of_a_gang_group_binds_the_rest(policy: str, gangs: tuple[int, ...]) -> None:
    async def run() -> None:
        cluster = Cluster()
        for number in range(3):
            cluster.node(f"n{number}", 2)
        cluster.group_of(gangs, policy)
        cluster.left = 2
        async with cluster.scheduler():
            await cluster.until(lambda: cluster.bound() == 2)
        cluster.left = -1
        async with cluster.scheduler():
            await cluster.until(lambda: cluster.bound() == 5)
        pods = [body for (kind, _), body in cluster.bodies.items() if kind is PODS]
        assert [body["metadata"]["annotations"].get(ANNOTATION_BIND_GANG_MEMBER_COUNT) for body in pods] == ["5"] * 5
        assert len({body["metadata"]["annotations"].get(ANNOTATION_BIND_GANG_GROUP_ID) for body in pods}) == 1

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-04")
@pytest.mark.parametrize("gangs", [(4,), (2, 2)])
@pytest.mark.parametrize(("policy", "bound"), [("once-satisfied", 5), ("waiting-and-running", 5), ("only-waiting", 4)])
def test_after_a_restart_a_member_beyond_a_whole_release_goes_as_its_policy_says(policy: str, bound: int, gangs: tuple[int, ...]) -> None:
    async def run() -> None:
        cluster = Cluster()
        cluster.node("n", 5)
        cluster.group_of(gangs, policy)
        async with cluster.scheduler():
            await cluster.until(lambda: cluster.bound() == 4)
        cluster.pod("more", "g0")  # as old as the others
        async with cluster.scheduler() as app:
            await cluster.until(lambda: app.queue.get("u-more") is not None or cluster.bound() == 5)
            await cluster.quiet(app)
        assert cluster.bound() == bound

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-03")
def test_two_groups_that_compete_do_not_hold_each_other_up() -> None:
    async def run() -> None:
        cluster = Cluster()
        cluster.node("n", 5)
        async with cluster.scheduler() as app:
            await asyncio.sleep(0)
            for side in "ab":
                both = '["default/%s0","default/%s1"]' % (side, side)  # noqa: UP031
                for number in range(2):
                    cluster.group(f"{side}{number}", 2, {ANNOTATION_GANG_GROUPS: both})
            for member in range(2):
                for gang in ("a0", "b0", "a1", "b1"):
                    cluster.pod(f"{gang}-{member}", gang)
            await cluster.quiet(app)
            counts = {gang: cluster.bound(gang) for gang in ("a0", "a1", "b0", "b1")}
            assert counts in ({"a0": 2, "a1": 2, "b0": 0, "b1": 0}, {"a0": 0, "a1": 0, "b0": 2, "b1": 2})
            cluster.node("more", 4)
            await cluster.quiet(app)
            assert [cluster.bound(gang) for gang in ("a0", "a1", "b0", "b1")] == [2, 2, 2, 2]

    asyncio.run(run())
