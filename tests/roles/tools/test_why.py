"""`koord why` through the command, with live operations servers and the embedded API server."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from koord.api.kinds import EVENTS, NODES, PODS
from koord.apiserver.testing import running_server
from koord.cli import main
from koord.decisions.record import Record, Subject, Term
from koord.decisions.recorder import Recorder
from koord.kube.client import Client
from koord.kube.events import EventRecorder, ObjectRef
from koord.process.http import OpsServer
from roles.tools.explain import explain
from roles.tools.facts import Gathered, Live

Run = Callable[..., Any]
POD = Subject("Pod", "web", "api-1", "uid-1")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KOORD_ENDPOINTS", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


async def why(*args: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["why", *args], prog_name="koord")


async def serve(role: str, *records: Record) -> OpsServer:
    recorder = Recorder(role)
    for record in records:
        recorder.record(record)
    server = OpsServer(role=role, recorder=recorder)
    await server.start()
    return server


def unschedulable(at: float) -> Record:
    terms = (Term("Insufficient cpu", 2, unit="nodes"), Term("node(s) had too high load", 1, unit="nodes"))
    numbers: dict[str, Any] = {"evaluated": 3, "feasible": 0, "attempt": 4}
    return Record("scheduler", POD, at, "Unschedulable", "LoadAware", "0/3 nodes are available: 2 Insufficient cpu", numbers, terms)


@pytest.mark.feature("BEY-WHY-01")
def test_a_pending_pod_from_records_alone() -> None:
    async def story() -> None:
        now = time.time()
        server = await serve("scheduler", unschedulable(now - 400), unschedulable(now - 185))
        result = await why("pod", "web/api-1", "--endpoint", server.url)
        assert result.exit_code == 0, result.output
        assert result.output == (
            "Pod web/api-1 is pending: no node fits (scheduler): 0/3 nodes are available: 2 Insufficient cpu.\n"
            "\n"
            "scheduler: Unschedulable (3m ago, 2 times)\n"
            "  3 nodes looked at, 0 fit.\n"
            "  0/3 nodes are available: 2 Insufficient cpu.\n"
            "\n"
            "  REASON                      NODES\n"
            "  Insufficient cpu            2 nodes\n"
            "  node(s) had too high load   1 nodes\n"
            "\n"
            "  NUMBER    VALUE\n"
            "  attempt   4\n"
        )
        by_name = await why("pod", "api-1", f"--endpoint={server.url}")
        assert by_name.output == result.output  # the namespace is found out
        assert (await why("pod", "api-1", "-n", "web", "--endpoint", server.url)).output == result.output
        assert (await why("pod", "api-1", "-n", "other", "--endpoint", server.url)).exit_code == 1
        await server.stop()

    asyncio.run(story())


@pytest.mark.feature("BEY-WHY-01")
@pytest.mark.parametrize(("ties", "told"), [(1, ""), (2, " (equal to 1 other)"), (6, " (equal to 5 others)")])
def test_the_winner_is_not_one_of_those_it_equals(ties: int, told: str) -> None:
    async def story() -> None:
        numbers = {"evaluated": 6, "feasible": 6, "score": 497, "ties": ties, "node": "n2"}
        server = await serve("scheduler", Record("scheduler", POD, time.time(), "Scheduled", "LoadAware", "placed on n2", numbers))
        output = (await why("pod", "api-1", "-n", "web", "--endpoint", server.url)).output
        assert f"Of 6 nodes looked at, 6 fitted; this one won with 497 points{told}." in output
        await server.stop()

    asyncio.run(story())


@pytest.mark.feature("BEY-WHY-01")
def test_placed_suppressed_and_evicted() -> None:
    async def story() -> None:
        now = time.time()
        placed = Record(
            "scheduler",
            POD,
            now - 100,
            "Scheduled",
            "LoadAware",
            "placed on n2",
            {"evaluated": 3, "feasible": 2, "score": 150.5, "ties": 1, "node": "n2"},
            (Term("NodeResourcesFit", 50.0), Term("LoadAware", 100.5)),
        )
        evicted = Record(
            "koordlet",
            POD,
            now - 5,
            "Evicted",
            "MemoryEvict",
            "node memory is at 92%, above 70%",
            {"memory.usage": 6 * 2**30, "usagePercent": 92},
        )
        scheduler = await serve("scheduler", unschedulable(now - 200), placed)
        koordlet = await serve("koordlet", evicted)
        os.environ["KOORD_ENDPOINTS"] = f"scheduler={scheduler.url}, {koordlet.url}"
        try:
            output = (await why("pod", "api-1")).output
        finally:
            del os.environ["KOORD_ENDPOINTS"]
        assert output.startswith("Pod web/api-1 was evicted (koordlet): node memory is at 92%, above 70%.\n")
        assert "koordlet: Evicted by MemoryEvict (5s ago)" in output
        assert "memory.usage   6Gi" in output
        assert "Of 3 nodes looked at, 2 fitted; this one won with 150.5 points." in output
        assert output.index("LoadAware ") < output.index("NodeResourcesFit")
        assert "Unschedulable" not in output  # that was before it was placed
        await scheduler.stop()
        await koordlet.stop()

    asyncio.run(story())


@pytest.mark.feature("BEY-WHY-01")
def test_a_node_shows_the_terms_of_its_batch_capacity() -> None:
    async def story() -> None:
        terms = (
            Term("cpu.total", 8000, "node capacity"),
            Term("cpu.margin", 3200, "total × 40% kept free"),
            Term("memory.total", 32 * 2**30, "node capacity"),
            Term("memory.hpUsed", 1_500_000_000, "usage"),
            Term("batch-cpu", 4800, "8000 - 3200"),
        )
        record = Record(
            "manager", Subject("Node", "", "n1"), time.time(), "Allocatable", "noderesource", "BatchResource", {"pods": 7}, terms
        )
        server = await serve("manager", record)
        output = (await why("node", "n1", "--endpoint", server.url)).output
        assert output.startswith("Node n1 offers these co-location resources (manager): BatchResource.\n")
        rows = [line.split() for line in output.splitlines()]
        assert ["cpu.total", "8", "node", "capacity"] in rows
        assert ["cpu.margin", "3200m", "total", "×", "40%", "kept", "free"] in rows
        assert ["memory.total", "32Gi", "node", "capacity"] in rows
        assert ["memory.hpUsed", "1.40Gi", "usage"] in rows
        assert ["pods", "7"] in rows
        await server.stop()

    asyncio.run(story())


async def fill(client: Client) -> dict[str, Any]:
    for name, cpu in (("n1", "2"), ("n2", "4")):
        status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}, "capacity": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        await client.patch(NODES, name, {"status": status}, subresource="status")

    def pod(name: str, cpu: str, **spec: Any) -> dict[str, Any]:
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}

    await client.create(PODS, pod("other", "1", nodeName="n2"), "default")
    made = await client.create(PODS, pod("big", "3500m"), "default")
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes",
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }
    await client.patch(PODS, "big", {"status": {"conditions": [condition]}}, "default", subresource="status")
    events = EventRecorder(client, "koord-scheduler", "h")
    for _ in range(2):
        events.event(ObjectRef("Pod", "big", "default", made["metadata"]["uid"]), "Warning", "FailedScheduling", "0/2 nodes fit")
    events.event(ObjectRef("Pod", "other", "default"), "Normal", "Other", "of somebody else")
    await events.stop()
    return made


@pytest.mark.feature("BEY-WHY-01")
def test_the_live_object_tells_the_nearest_node_conditions_and_events(tmp_path: Path) -> None:
    async def story() -> None:
        async with running_server() as api, api.client() as client:
            made = await fill(client)
            uid = made["metadata"]["uid"]
            path = f"kubepods/pod{uid.replace('-', '_')}/cpu.cfs_quota_us"
            file = Record(
                "koordlet", Subject("CgroupFile", "", path), 1.0, "Written", "CPUSuppress", "-1 → 20000", {"old": "-1", "new": "20000"}
            )
            foreign = Record("koordlet", Subject("CgroupFile", "", "kubepods/podother/x"), 1.0, "Written", "CPUSuppress", "no")
            server = await serve("koordlet", file, foreign)
            result = await why("pod", "big", "--kubeconfig", str(api.kubeconfig_path), "--endpoint", server.url)
            assert result.exit_code == 0, result.output
            lines = result.output.splitlines()
            assert lines[0] == "Pod default/big: no role has decided on it lately."
            assert "  Nearest by resources is n2; it is short of:" in lines
            assert "    cpu: 500m (the pod requests 3500m, 3 of 4 is free)" in lines
            assert any(line.split()[:3] == ["PodScheduled", "False", "Unschedulable"] for line in lines)
            assert any("FailedScheduling" in line and line.endswith("0/2 nodes fit (×2)") for line in lines)
            assert "somebody else" not in result.output
            assert f"koordlet: {path} Written by CPUSuppress" in result.output
            assert "podother" not in result.output

            document = json.loads(
                (await why("pod", "default/big", "--kubeconfig", str(api.kubeconfig_path), "--endpoint", server.url, "-o", "json")).output
            )
            assert document["object"]["metadata"]["uid"] == uid
            assert document["events"][0]["series"]["count"] == 2
            assert len((await client.list(EVENTS)).items) == 2

            node = (await why("node", "n2", "--kubeconfig", str(api.kubeconfig_path))).output
            assert "1 pod on it." in node
            assert any(line.split() == ["cpu", "4", "4"] for line in node.splitlines())
            await server.stop()

    asyncio.run(story())


def test_a_running_sandbox_is_found(tmp_path: Path) -> None:
    async def story() -> None:
        server = await serve("scheduler", unschedulable(time.time()))
        directory = tmp_path / "koord-sandbox"
        directory.mkdir(mode=0o700)
        (directory / "endpoints.json").write_text(
            json.dumps({"run": "abc", "pid": 1, "scheduler": server.url, "manager": "http://127.0.0.1:1"})
        )
        result = await why("pod", "api-1")
        assert result.exit_code == 0
        assert "is pending" in result.output
        assert "Could not be asked:\n  manager at http://127.0.0.1:1: " in result.output
        await server.stop()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["pod", "x"], "nobody to ask: give --endpoint URL (or KOORD_ENDPOINTS), or --kubeconfig"),
        (["pod", "a/b/c", "--endpoint", "http://x"], "a pod is given as NAME or NAMESPACE/NAME"),
        (["pod", "a/b", "-n", "c", "--endpoint", "http://x"], "--namespace says 'c'"),
        (["pod"], "Missing argument"),
        (["pod", "x", "--endpoint", "ftp://x"], "must be http://host:port"),
        (["pod", "x", "--kubeconfig", "/nonexistent"], "/nonexistent: No such file"),
        (["pod", "x", "--endpont", "http://x"], "unknown flag: --endpont; did you mean --endpoint?"),
    ],
)
def test_mistakes_are_one_line(args: list[str], says: str) -> None:
    result = asyncio.run(why(*args))
    assert result.exit_code == 1
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_nothing_known_and_ambiguous_names() -> None:
    async def story() -> None:
        one = Record("scheduler", Subject("Pod", "a", "same"), 1.0, "Scheduled")
        two = Record("scheduler", Subject("Pod", "b", "same"), 2.0, "Scheduled")
        server = await serve("scheduler", one, two)
        nothing = await why("pod", "nope", "--endpoint", server.url)
        assert nothing.exit_code == 1
        assert nothing.stderr == f"koord why: nothing is known of pod nope; asked: {server.url}\n"
        both = await why("pod", "same", "--endpoint", server.url)
        assert both.exit_code == 1
        assert "there are pods named same in a, b: say which with --namespace" in both.stderr
        await server.stop()

    asyncio.run(story())


def test_tables_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from io import StringIO

    from roles.tools import explain, render
    from roles.tools.facts import Gathered

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    found = Gathered([unschedulable(1.0)], problems=["koordlet: refused"])
    explanation = explain.explain("Pod", found, namespace="web", name="api-1", now=2.0)
    assert explanation is not None
    screen = Terminal()
    render.show(explanation, found, "text", screen)
    text = screen.getvalue()
    assert "Insufficient cpu" in text
    assert "Could not be asked: koordlet: refused" in text


@pytest.mark.parametrize(
    ("spec", "status", "line"),
    [
        ({"schedulerName": "nobody"}, {}, "No scheduler has taken it up: spec.schedulerName is 'nobody'"),
        ({"schedulingGates": [{"name": "later"}]}, {}, "Held back by its scheduling gates: later."),
        ({"schedulerName": "x"}, {"conditions": [{"type": "PodScheduled", "status": "False"}]}, ""),
        ({"schedulerName": "x", "nodeName": "n"}, {}, ""),
    ],
)
@pytest.mark.feature("BEY-WHY-01")
def test_a_pod_that_no_scheduler_looked_at_says_so(spec: dict[str, Any], status: dict[str, Any], line: str) -> None:
    pod = {"metadata": {"name": "p", "namespace": "d"}, "spec": spec, "status": status}
    explanation = explain("Pod", Gathered(live=Live(obj=pod)), namespace="d", name="p", now=0.0)
    assert explanation is not None
    text = "\n".join(explanation.sections[-1].lines)
    assert (line in text) if line else not any(word in text for word in ("No scheduler", "Held back"))
