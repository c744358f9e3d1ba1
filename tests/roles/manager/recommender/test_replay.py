"""A back-test is a replay of the controller: fed with the same day, both have the same targets at every sample (BEY-REC-01)."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import RECOMMENDATIONS
from koord.api.times import format_time
from koord.cli import main as koord
from koord.decisions.recorder import Recorder
from koord.kube.errors import NotFound
from koord.kube.informers import InformerFactory
from roles.manager.controllers.recommender import RecommenderController
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer
from roles.manager.options import Options
from roles.manager.recommender.backtest import Moment, Series, Usage, moments, replay
from roles.manager.recommender.policy import Policy
from tests.support.examples import examples

BEGIN = 1_700_006_400
POLICY = Policy(min_cpu=1, min_memory=1 << 20)
KEY = "default/web"


class ApiServer:
    """Serves PodMetrics and takes what is written."""

    def __init__(self) -> None:
        self.measured: list[dict[str, Any]] = []
        self.targets: dict[str, dict[str, str]] = {}

    async def raw(self, method: str, path: str, **_: Any) -> tuple[int, bytes]:
        return 200, orjson.dumps({"items": self.measured})

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> dict[str, Any]:
        raise NotFound(404, "NotFound", name)

    async def create(self, kind: Any, obj: Any, namespace: str | None = None) -> Any:
        return obj

    async def patch(self, kind: Any, name: str, body: Any, namespace: str | None = None, **_: Any) -> Any:
        if kind is RECOMMENDATIONS and "podStatus" in body.get("status", {}):
            statuses = body["status"]["podStatus"]["containerStatuses"]
            self.targets = {one["containerName"]: one["resources"] for one in statuses}
        return {}


class Cluster:
    """A controller whose pods and measurements come out of recorded series."""

    def __init__(self) -> None:
        self.api, self.now = ApiServer(), float(BEGIN)
        informers = InformerFactory(self.api)  # type: ignore[arg-type]
        self.state = ClusterState(informers, Options())
        writer = Writer(self.api)  # type: ignore[arg-type]
        self.controller = RecommenderController(
            self.state, informers, writer, Recorder("manager"), POLICY, "koordinator-system", clock=lambda: self.now
        )
        self.controller._metrics_api._clock = lambda: self.now * 1000  # every round lists anew
        self.controller.attach()
        spec = {"target": {"type": "podSelector", "podSelector": {}}}
        self.controller.recommendations.receive(
            KEY, "1", raw({"metadata": {"name": "web", "namespace": "default", "uid": "u"}, "spec": spec})
        )

    async def round(self, moment: Moment) -> dict[str, dict[str, str]]:
        """One interval of the controller; the targets that it has written."""
        killed = {(kill.container, kill.replica) for kill in moment.kills}
        pods: dict[str, list[tuple[Series, Usage, Any]]] = {}
        for one, usage, target in moment.lived:
            pods.setdefault(one.replica, []).append((one, usage, target))
        self.api.measured = []
        for replica, containers in pods.items():
            self.now = containers[0][1].time
            self.state.pods.receive(f"default/{replica}", str(self.now), raw(pod(replica, containers, killed)))
            usages = [
                {"name": one.container, "usage": {"cpu": f"{round(u.cpu * 1000)}m", "memory": str(int(u.memory))}}
                for one, u, _ in containers
            ]
            self.api.measured.append({"metadata": {"name": replica}, "timestamp": format_time(self.now), "containers": usages})
        await self.controller.reconcile(KEY)
        return self.api.targets


def raw(obj: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(orjson.dumps(obj))


def pod(replica: str, containers: list[tuple[Series, Usage, Any]], killed: set[tuple[str, str]]) -> dict[str, Any]:
    made, statuses = [], []
    for one, usage, target in containers:
        requests = {"cpu": f"{round(usage.cpu_request * 1000)}m"}
        if target is not None:
            requests["memory"] = target.resources()["memory"]
            if (one.container, replica) in killed:
                ended = {"terminated": {"reason": "OOMKilled", "finishedAt": format_time(usage.time)}}
                statuses.append({"name": one.container, "lastState": ended})
        made.append({"name": one.container, "image": "i", "resources": {"requests": requests}})
    metadata = {"name": replica, "namespace": "default", "uid": replica, "labels": {}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n", "containers": made},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


@st.composite
def recorded(draw: st.DrawFn) -> dict[str, list[Series]]:
    """A workload of one or two containers over up to five days, whose pods come and go."""
    step = draw(st.sampled_from([1800, 7200, 21600]))
    rounds = draw(st.integers(2, 5 * 86400 // step if step > 1800 else 60))
    found: dict[str, list[Series]] = {}
    spans = [sorted(draw(st.tuples(st.integers(0, rounds - 1), st.integers(0, rounds - 1)))) for _ in range(draw(st.integers(1, 3)))]
    spans[0] = [0, rounds - 1]
    for container in ("main", "side")[: draw(st.integers(1, 2))]:
        found[container] = []
        for number, (begin, end) in enumerate(spans):
            request = draw(st.integers(1, 4000)) / 1000
            use = draw(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 4096)), min_size=1, max_size=9))
            usage = []
            for n in range(begin, end + 1):
                cpu, memory = use[n % len(use)]
                usage.append(Usage(float(BEGIN + n * step), cpu / 1000, float(memory << 20), request))
            found[container].append(Series("web", container, f"r{number}", tuple(usage)))
    return found


@pytest.mark.feature("BEY-REC-01")
@pytest.mark.feature("MGR-REC-02")
@examples(24)
@given(recorded())
def test_property_a_backtest_gives_the_targets_of_the_controller(containers: dict[str, list[Series]]) -> None:
    async def main() -> None:
        cluster = Cluster()
        for moment in moments(containers, POLICY):
            written = await cluster.round(moment)
            wanted = {name: found.target.resources() for name, found in moment.learner.estimates().items()}
            # the status follows changes of a percent and more; what the controller knows is the same to the last digit
            known = cluster.controller._learnt[KEY].learner.estimates()
            assert {name: found.target.resources() for name, found in known.items()} == wanted
            assert written.keys() == wanted.keys()

    asyncio.run(main())


@pytest.mark.feature("BEY-REC-01")
def test_a_killed_container_had_what_its_pod_could_ask_for() -> None:
    """A target lies between two bytes, a pod's request on one: what a kill teaches starts from that, as in a cluster."""
    usage = [Usage(float(BEGIN + n * 21600), 0.5, memory, 1.0) for n, memory in enumerate([600e6, 601e6, 602e6, 603e6, 2e9])]
    (kill,) = [kill for moment in moments({"c": [Series("w", "c", "r", usage)]}, POLICY) for kill in moment.kills]
    before = next(moment for moment in moments({"c": [Series("w", "c", "r", usage[:-1])]}, POLICY) if moment.time == usage[-2].time)
    asked = before.learner.estimates()["c"].target
    assert asked.memory != int(asked.memory)
    assert kill.request == float(asked.resources()["memory"])


@pytest.mark.feature("BEY-REC-01")
def test_a_sample_weighs_as_much_as_its_container_requests() -> None:
    """A peak of an hour a day is a twenty-fourth of the samples, however much it uses: p90 is the base."""
    usage = [Usage(float(BEGIN + n * 600), 4.0 if n % 144 // 6 == 9 else 0.5, 600e6) for n in range(5 * 144)]
    by_itself = replay([Series("w", "c", "r", usage)], POLICY)
    recorded = replay([Series("w", "c", "r", [one._replace(cpu_request=2.0) for one in usage])], POLICY)
    assert by_itself.starved_share == recorded.starved_share == pytest.approx(1 / 24)


@pytest.mark.feature("BEY-REC-01")
@pytest.mark.timeout(240)
def test_the_table_of_the_docs_is_what_the_command_says() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs/manager.md").read_text()
    (block,) = re.findall(r"```\n\$ (koord recommend backtest [^`]*?)```", page)
    command, _, table = block.replace("\\\n", " ").partition("\n")
    done = CliRunner().invoke(koord, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == table.strip(), "docs/manager.md: put what the command says in place of the table"
