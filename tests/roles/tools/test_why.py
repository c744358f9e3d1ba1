"""`koord why` through the command, with live operations servers and the embedded API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import ELASTICQUOTAS, EVENTS, NAMESPACES, NODES, PODGROUPS, PODS
from koord.api.names import ANNOTATION_CONFIG_MIRROR
from koord.apiserver.testing import running_server
from koord.cli import main
from koord.decisions.record import Record, Subject, Term
from koord.decisions.recorder import Recorder
from koord.decisions.sinks import FileSink
from koord.kube.client import Client
from koord.kube.errors import AlreadyExists
from koord.kube.events import EventRecorder
from koord.kube.references import ObjectRef
from koord.process.http import OpsServer
from roles.scheduler import testing
from roles.scheduler.cycle.record import record_of
from roles.tools import render
from roles.tools.explain import Table, explain
from roles.tools.facts import Gathered, Live
from roles.tools.headline import headline
from roles.tools.nearest import nearest_node
from roles.tools.render import as_json, as_text

Run = Callable[..., Any]
POD = Subject("Pod", "web", "api-1", "uid-1")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KOORD_ENDPOINTS", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


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
def test_a_decision_log_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "descheduler.jsonl").write_text('{"torn\n')
    FileSink(tmp_path / "scheduler.jsonl").write(unschedulable(time.time()))
    done = CliRunner().invoke(main, ["why", "pod", "web/api-1", "--decision-log", str(tmp_path)], prog_name="koord")
    assert done.exit_code == 0, done.output
    assert "2 × Insufficient cpu" in done.output
    assert "descheduler.jsonl, line 1: " in done.output


@pytest.mark.feature("BEY-WHY-01")
def test_a_running_pod_is_told_by_where_it_was_placed_and_not_by_what_its_hooks_answered() -> None:
    numbers: dict[str, Any] = {"cpu_shares": 204, "cpu_quota": -1, "memory_limit": 64 << 20}
    answered = Record("koordlet", POD, 9.0, "Answered", "BatchResource", "PreCreateContainer of container main: cpu_shares 204", numbers)
    mutated = Record("manager", POD, 5.0, "Mutated", "/mutate-pod", "profile jobs applied")
    placed = Record("scheduler", POD, 7.0, "Scheduled", "", "placed on n1")
    said = explain("Pod", Gathered(records=[answered, placed, mutated]), namespace="web", name="api-1", now=10.0)
    assert said is not None
    assert said.summary == "Pod web/api-1 was placed on n1 by the scheduler."
    assert [row for section in said.sections for table in section.tables for row in table.rows if row[0].startswith(("cpu", "memory"))] == [
        ("cpu_shares", "204"),
        ("cpu_quota", "-1"),
        ("memory_limit", "64Mi"),
    ]


@pytest.mark.feature("BEY-WHY-01")
def test_a_pending_pod_from_records_alone() -> None:
    async def story() -> None:
        now = time.time()
        server = await serve("scheduler", unschedulable(now - 400), unschedulable(now - 185))
        result = await why("pod", "web/api-1", "--endpoint", server.url)
        assert result.exit_code == 0, result.output
        assert result.output == (
            "Pod web/api-1 is pending: none of 3 nodes fits: 2 × Insufficient cpu, 1 × node(s) had too high load.\n"
            "\n"
            "scheduler: Unschedulable (3m ago, 2 times)\n"
            "  3 nodes looked at, 0 fit.\n"
            "\n"
            "  REASON                      NODES\n"
            "  Insufficient cpu            2 nodes\n"
            "  node(s) had too high load   1 node\n"
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
        assert output.startswith("Node n1 offers 4.8 batch CPUs: 8 − 3.2 kept free.\n")
        rows = [line.split() for line in output.splitlines()]
        assert ["cpu.total", "8", "node", "capacity"] in rows
        assert ["cpu.margin", "3.2", "total", "×", "40%", "kept", "free"] in rows
        assert ["memory.total", "32Gi", "node", "capacity"] in rows
        assert ["memory.hpUsed", "1.4Gi", "usage"] in rows
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
            assert lines[0] == "Pod default/big is pending: 0/2 nodes."
            assert "  Nearest by resources is n2; it is short of:" in lines
            assert "    cpu: 0.5 (the pod requests 3.5, 3 of 4 is free)" in lines
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


@pytest.mark.feature("BEY-WHY-01")
def test_kubelets_know_nodes_and_static_pods_by_other_uids() -> None:
    async def story() -> None:
        async with running_server() as api, api.client() as client:
            await fill(client)
            static = {"name": "static", "annotations": {ANNOTATION_CONFIG_MIRROR: "hash"}}
            body = {"metadata": static, "spec": {"nodeName": "n2", "containers": [{"name": "c", "image": "i"}]}}
            await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **body}, "default")
            events = EventRecorder(client, "kubelet", "n2")
            for uid, note in (("n2", "victim: web"), ("former", "of a former node")):
                events.event(ObjectRef("Node", "n2", "", uid), "Warning", "SystemOOM", note)
            events.event(ObjectRef("Pod", "static", "default", "hash"), "Warning", "BackOff", "restarting it")
            await events.stop()
            file = Record("koordlet", Subject("CgroupFile", "", "kubepods/podhash/cpu.shares"), 1.0, "Written", "CPUSuppress", "2 → 10")
            server = await serve("koordlet", file)
            options = ("--kubeconfig", str(api.kubeconfig_path), "--endpoint", server.url)
            node, pod = [(await why(kind, name, *options)).output for kind, name in (("node", "n2"), ("pod", "static"))]
            assert "victim: web" in node
            assert "former" not in node
            assert "restarting it" in pod
            assert "kubepods/podhash/cpu.shares Written" in pod
            await server.stop()

    asyncio.run(story())


@pytest.mark.feature("BEY-WHY-01")
def test_a_request_that_no_node_offers_is_named_without_a_scheduler_to_ask() -> None:
    """The number of cards that the pod webhook writes is none, nor is a former release's name of what there is."""
    amounts = {"cpu": "4", "pods": "9"}
    cards = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    nodes = [{"metadata": {"name": name}, "status": {"allocatable": {**amounts, **more}}} for name, more in (("a", cards), ("b", {}))]

    def near(**requests: str) -> Any:
        asked = {name.replace("__", "/"): amount for name, amount in requests.items()}
        return nearest_node({"spec": {"containers": [{"name": "c", "resources": {"requests": asked}}]}}, nodes, [])

    translated = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu.shared": "1"}
    former = {name.replace("koordinator.sh", "kubernetes.io"): amount for name, amount in cards.items()}
    assert [(one.node, one.shortages, one.nowhere) for one in (near(**translated), near(**former))] == [("a", (), ())] * 2
    assert near(**{"example.com/card": "1", "koordinator.sh/gpu-core": "200"}).nowhere == ("example.com/card",)
    missing = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"example.com/card": "1"}}}]}}
    told = explain("Pod", Gathered(live=Live(missing, nodes=nodes)), namespace="d", name="p", now=0.0)
    assert "No node offers example.com/card, which it requests." in str(told)


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
        assert "No answer from:\n  manager at http://127.0.0.1:1: " in result.output
        await server.stop()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["pod", "x", "--endpoint=http://h:abc"], "endpoint 'http://h:abc' must be http://host:port"),
        (["pod", "x", "--endpoint=http://[::1"], "endpoint 'http://[::1' must be http://host:port"),
        (["pod", "x"], "no role to query: give --kubeconfig (or KUBECONFIG, ~/.kube/config), --endpoint URL (or KOORD_ENDPOINTS)"),
        (["pod", "a/b/c", "--endpoint", "http://x"], "a pod is given as NAME or NAMESPACE/NAME"),
        (["pod", "a/b", "-n", "c", "--endpoint", "http://x"], "--namespace says 'c'"),
        (["pod"], "Missing argument"),
        (["pod", "x", "--endpoint", "ftp://x"], "must be http://host:port"),
        (["pod", "x", "--kubeconfig", "/nonexistent"], "/nonexistent: No such file"),
        (["pod", "x", "--endpont", "http://x"], "unknown flag: --endpont; did you mean --endpoint?"),
        (["pod", "x", "--watch", "--interval", "0"], "'0' must be more than 0"),
        (["node", "", "--endpoint", "http://x"], "a node is given as NAME"),
        (["node", "default/n1", "--endpoint", "http://x"], "a node is given as NAME"),
    ],
)
def test_mistakes_are_one_line(args: list[str], says: str) -> None:
    result = asyncio.run(why(*args))
    assert result.exit_code == (1 if says.startswith(("no role", "/")) else 2)
    assert result.stderr.startswith(f"koord why {args[0]}: error: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_nothing_known_and_ambiguous_names() -> None:
    async def story() -> None:
        one = Record("scheduler", Subject("Pod", "a", "same"), 1.0, "Scheduled")
        two = Record("scheduler", Subject("Pod", "b", "same"), 2.0, "Scheduled")
        server = await serve("scheduler", one, two)
        nothing = await why("pod", "nope", "--endpoint", server.url)
        assert nothing.exit_code == 1
        assert nothing.stderr == f"koord why pod: error: nothing is known about pod nope; queried: {server.url}\n"
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
    assert "No answer from: koordlet: refused" in text


@pytest.mark.feature("BEY-WHY-01")
@pytest.mark.parametrize(
    ("uid", "annotations", "summary", "reason"),
    [
        ("new", {}, "Pod d/p is pending: its scheduling gates hold it back (later).", ""),
        ("old", {}, "Pod d/p was evicted (koordlet): too hot.", "Evicted"),
        ("new", {ANNOTATION_CONFIG_MIRROR: "old"}, "Pod d/p was evicted (koordlet): too hot.", "Evicted"),
    ],
    ids=["a successor of the name", "the pod itself", "a static pod, by the agent's UID"],
)
def test_a_pod_is_not_explained_by_what_became_of_an_earlier_one(uid: str, annotations: dict[str, str], summary: str, reason: str) -> None:
    meta = {"name": "p", "namespace": "d", "uid": uid, "annotations": annotations}
    live = Live({"kind": "Pod", "metadata": meta, "spec": {"schedulingGates": [{"name": "later"}]}, "status": {"phase": "Pending"}})
    evicted = Record("koordlet", Subject("Pod", "d", "p", "old"), 5.0, "Evicted", "MemoryEvict", "too hot")
    found = explain("Pod", Gathered(records=[evicted], live=live, answered=1), namespace="d", name="p", now=9.0)
    assert found is not None
    assert (found.summary, found.reason) == (summary, reason)
    assert ("former" in found.sections[0].title) is (not reason)


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


def offer(policy_note: str = "max(total − margin − system − hpUsed, 0)", **values: int) -> Record:
    terms = tuple(Term(f"cpu.{name}", value, "", "milli") for name, value in values.items() if name != "batch")
    result = Term("batch-cpu", values["batch"], policy_note, "milli")
    long = "CPUNormalization: ratio 1.00: disabled; MidResource: mid-memory 17659974161 bytes (dynamic); " * 4
    return Record(
        "manager", Subject("Node", "", "n1"), 1.0, "Allocatable", "noderesource", long, {"kubernetes.io/batch-cpu": 0}, (*terms, result)
    )


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (offer(total=2000, margin=100, system=1978, hpUsed=40, batch=0), "offers no batch CPU: processes outside pods use 1.98 of 2 CPUs"),
        (offer(total=2000, margin=100, system=90, hpUsed=1900, batch=0), "offers no batch CPU: services use 1.9 of 2 CPUs"),
        (offer(total=32000, margin=1600, system=150, hpUsed=1447, batch=28803),
         "offers 28.8 batch CPUs: 32 − 1.6 kept free − 0.15 outside pods − 1.45 services"),
        (offer("max(total − margin − reserved − hpRequest, 0)", total=8000, margin=800, reserved=200, system=10, hpRequest=6900, batch=0),
         "offers no batch CPU: services request 6.9 of 8 CPUs"),
        (offer(total=4000, margin=3900, system=50, hpUsed=60, batch=0), "offers no batch CPU: 3.9 of 4 CPUs are kept free"),
    ],
)  # fmt: skip
def test_a_node_is_told_by_the_number_that_decided(record: Record, said: str) -> None:
    assert headline(record) == said
    found = Gathered(records=[record], answered=1)
    told = explain("Node", found, namespace="", name="n1", now=2.0)
    assert told is not None
    assert told.summary == f"Node n1 {said}."
    assert told.reason == "Allocatable"
    assert len(told.summary) <= 100
    text = as_text(told, found)
    assert "17659974161" not in text, "amounts of bytes have a suffix"
    assert text.count(said) == 1, "each fact once"


@given(st.text(max_size=600), st.sampled_from(["Pod", "Node", "PodGroup"]), st.sampled_from(["Unschedulable", "Evicted", "Something"]))
def test_the_first_line_is_short_whatever_a_role_says(message: str, kind: str, verdict: str) -> None:
    found = Gathered(records=[Record("role", Subject(kind, "space", "name"), 1.0, verdict, message=message)], answered=1)
    told = explain(kind, found, namespace="space", name="name", now=2.0)
    assert told is not None
    assert len(told.summary) <= 100
    assert "\n" not in told.summary


@given(
    st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True), st.from_regex(r"[a-z]([-a-z0-9]{0,200}[a-z0-9])?", fullmatch=True)
)
def test_a_long_name_leaves_room_for_the_cause(namespace: str, name: str) -> None:
    terms = (Term("quota team-a: cpu", -2000, unit="milli"),)
    record = Record("scheduler", Subject("Pod", namespace, name), 1.0, "Unschedulable", "ElasticQuota", "", {"evaluated": 5}, terms)
    told = explain("Pod", Gathered(records=[record], answered=1), namespace=namespace, name=name, now=2.0)
    assert told is not None
    assert told.subject == f"Pod {namespace}/{name}"
    assert told.summary.endswith("is pending: quota team-a: cpu is short of 2.")
    assert len(told.summary) <= 100


@pytest.mark.parametrize(
    ("message", "numbers", "terms", "said"),
    [
        ("0/2 nodes are available: the requested CPUs must be integer. preemption: none", {"evaluated": 0},
         (Term("CPUs wanted", 2.5, "", "cpus"), Term("nodes with a NUMA policy", 0, "", "nodes")),
         "none of 2 nodes fits: the requested CPUs must be integer"),
        ("0/3 nodes are available: 3 Insufficient cpu", {"evaluated": 3},
         (Term("Insufficient cpu", 3, unit="nodes"), Term("nodes with a NUMA policy", 2, "SingleNUMANode", "nodes")),
         "none of 3 nodes fits: 3 × Insufficient cpu"),
        ("0/1 nodes are available: 1 Insufficient cpu", {"evaluated": 1}, (Term("Insufficient cpu", 1, unit="nodes"),),
         "the only node does not fit: 1 × Insufficient cpu"),
        ("something else", {}, (), ""),
    ],
)  # fmt: skip
def test_only_what_refused_a_pod_is_counted(message: str, numbers: dict[str, Any], terms: tuple[Term, ...], said: str) -> None:
    assert headline(Record("scheduler", POD, 1.0, "Unschedulable", "", message, numbers, terms)) == said


def test_amounts_in_notes_have_the_units_of_the_values() -> None:
    note = "used=124010m request=2500m runtime=2457372224Ki min=4Gi max=unlimited of 17659974161"
    record = Record("scheduler", Subject("Pod", "a", "b"), 1.0, "Unschedulable", terms=(Term("quota x: cpu", -2000, note, "milli"),))
    told = explain("Pod", Gathered(records=[record], answered=1), namespace="a", name="b", now=2.0)
    assert told is not None
    assert told.sections[0].tables[0].rows[0][2] == "used=124 request=2.5 runtime=2.29Ti min=4Gi max=unlimited of 16.45Gi"


def test_only_the_quota_that_is_full_is_shown() -> None:
    """With what it has, in one row; quotas that have room kept nobody from anywhere."""
    terms = (
        Term("quota root: cpu", 358000, "used=143010m request=5149 runtime=501 min=unlimited max=unlimited pod=2", "milli"),
        Term("quota team-a: cpu", -2000, "used=4 request=6 runtime=4 min=2 max=4500m pod=2", "milli"),
        Term("quota team-a: memory", 0, "used=2Gi request=3Gi runtime=3Gi min=4Gi max=8Gi pod=1Gi", "bytes"),
    )
    record = Record("scheduler", POD, 1.0, "Unschedulable", "ElasticQuota", "0/9 nodes", {"evaluated": 9, "feasible": 0}, terms)
    told = explain("Pod", Gathered(records=[record], answered=1), namespace="web", name="api-1", now=2.0)
    assert told is not None
    (table,) = told.sections[0].tables
    assert table.headings == ("Quota", "Resource", "Short of", "Pod asks", "Used", "May use", "Min", "Max")
    assert table.rows == (("team-a", "cpu", "2", "2", "4", "4", "2", "4.5"),)


def test_a_gang_has_all_of_its_members_however_they_name_it(tmp_path: Path) -> None:
    """As the scheduler counts them: by the label, by the former label, or by the annotation."""
    names = (
        {"labels": {"pod-group.scheduling.sigs.k8s.io": "ring"}},
        {"labels": {"pod-group.scheduling.sigs.k8s.io/name": "ring"}},
        {"annotations": {"gang.scheduling.koordinator.sh/name": "ring"}},
        {"labels": {"pod-group.scheduling.sigs.k8s.io": "another"}, "annotations": {"gang.scheduling.koordinator.sh/name": "ring"}},
    )

    async def story() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            group = {"apiVersion": PODGROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "ring"}, "spec": {"minMember": 4}}
            await client.create(PODGROUPS, group, "default")
            for number, meta in enumerate(names):
                spec = {"containers": [{"name": "c", "image": "i"}]}
                body = {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": f"ring-{number}"}, "spec": spec}
                await client.create(PODS, body, "default")
            scheduler = await serve("scheduler")
            reached = ("--kubeconfig", str(server.kubeconfig_path), "--endpoint", scheduler.url)
            result = await why("podgroup", "default/ring", *reached)
            assert "it has 3 of the 4 pods that it needs together" in result.output, result.output
            assert "3 members, 0 on nodes, 4 needed together." in result.output
            assert "koord why podgroup default/ring" in (await why("pod", "default/ring-2", *reached)).output
            await scheduler.stop()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("used", "requested", "runtime", "said"),
    [
        ("4", "6", "4", "is full: pods request 6 cpu, may use 4: others use the rest of its 10"),
        ("10", "12", "10", "is full: pods request 12 cpu, may use 10: its max"),
        ("1500m", "1500m", "4", "has room: 1.5 of 4 cpu used"),
    ],
)
def test_a_quota_says_what_its_pods_may_use(used: str, requested: str, runtime: str, said: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            key = "quota.scheduling.koordinator.sh"
            annotations = {f"{key}/runtime": json.dumps({"cpu": runtime}), f"{key}/request": json.dumps({"cpu": requested})}
            annotations[f"{key}/namespaces"] = '["listed"]'
            quota = {
                "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
                "kind": "ElasticQuota",
                "metadata": {"name": "team-a", "namespace": "default", "annotations": annotations, "labels": {f"{key}/parent": "all"}},
                "spec": {"min": {"cpu": "2"}, "max": {"cpu": "10"}},
            }
            await client.create(ELASTICQUOTAS, quota, "default")
            await client.patch(ELASTICQUOTAS, "team-a", {"status": {"used": {"cpu": used}}}, "default")
            pod = {"metadata": {"name": "late", "labels": {f"{key}/name": "team-a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
            await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod}, "default")
            for place, label in (("listed", ""), ("listed", "other"), ("elsewhere", "")):  # by its namespace, unless it says otherwise
                with contextlib.suppress(AlreadyExists):
                    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}})
                meta = {"name": f"by-namespace-{label}x", "labels": {f"{key}/name": label} if label else {}}
                await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod["spec"]}, place)
            manager = await serve("manager", Record("manager", Subject("ElasticQuota", "default", "team-a"), 1.0, "Mutated"))
            reached = ("--kubeconfig", str(server.kubeconfig_path), "--endpoint", manager.url)
            for name in ("quota default/team-a", "eq team-a", "elasticquota/team-a"):
                result = await why(*name.split(), *reached)
                assert result.exit_code == 0, result.output
                assert result.output.startswith(f"ElasticQuota default/team-a {said}.\n")
            assert "2 pods in it, 2 without a node; child of all." in result.output
            assert "koord why pod default/late" in result.output
            assert "koord why pod listed/by-namespace-x" in result.output
            assert next(line.split() for line in result.output.splitlines() if line.startswith("  cpu"))[-2:] == ["2", "10"]
            elsewhere = await why("pod", "late", "-n", "kube-system", *reached)
            assert elsewhere.exit_code == 1
            assert "pod kube-system/late: there is none of this name in this namespace, but in default; queried: " in elsewhere.stderr
            alone = await why("pod", "late", "-n", "kube-system", *reached[:2])  # nobody else can be asked, and that is known all the same
            assert "late: there is none of this name in this namespace, but in default; no running pod of koord's roles" in alone.stderr
            nobody = await why("node", "n9", *reached[:2], "--endpoint", "http://127.0.0.1:1")
            assert "node n9: there is none of this name; no answer from http://127.0.0.1:1: " in nobody.stderr
            await manager.stop()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("used", "requested", "runtime", "most", "said"),
    [
        # runtime follows the requests: the scheduler lends the rest of what is sure to others
        ("1", "1", "1", {"cpu": "10"}, "has room: 1 of 10 cpu used"),
        ("0", "0", "0", {"cpu": "10"}, "has room: 0 of 10 cpu used"),
        ("0", None, None, {"cpu": "10"}, "has room: 0 of 10 cpu used"),
        ("10", "10", "10", {"cpu": "10"}, "is used up: 10 of 10 cpu used"),
        ("0", None, None, {"cpu": "0", "memory": "0"}, "gives its pods no cpu and no memory: its max is 0"),
        ("0", None, None, {"cpu": "0", "memory": "1Gi"}, "gives its pods no cpu: its max is 0"),
        ("1", "1", "1", {"cpu": "4", "nvidia.com/gpu": "0"}, "has room: 1 of 4 cpu used"),
        ("0", "2", "0", {"cpu": "0"}, "is full: pods request 2 cpu, may use 0: its max"),
        ("0", None, None, {}, "has no limit"),
    ],
)
def test_a_quota_that_nobody_waits_for_is_measured_by_its_max(
    used: str, requested: str | None, runtime: str | None, most: dict[str, str], said: str
) -> None:
    told = {"runtime": runtime, "request": requested}
    annotations = {f"quota.scheduling.koordinator.sh/{key}": json.dumps({"cpu": value}) for key, value in told.items() if value is not None}
    obj = {
        "metadata": {"name": "q", "namespace": "n", "annotations": annotations},
        "spec": {"max": most},
        "status": {"used": {"cpu": used}},
    }
    explained = explain("ElasticQuota", Gathered(live=Live(obj=obj)), namespace="n", name="q", now=1.0)
    assert explained is not None
    assert explained.summary == f"ElasticQuota n/q {said}."


EVICTED = {"reason": "Evicted", "message": "The node was low on resource: memory."}
KILLED = {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}


@pytest.mark.feature("BEY-WHY-01")
@pytest.mark.parametrize(
    ("status", "said"),
    [(EVICTED, "Evicted: The node was low on resource: memory"), (KILLED, "container main ended with status 137 (OOMKilled)")],
)
@pytest.mark.parametrize("node", ["n1", ""])
@pytest.mark.parametrize("verdict", ["Scheduled", "Unschedulable", ""])
def test_a_pod_that_failed_says_why_and_not_where_it_would_fit(status: dict[str, Any], said: str, node: str, verdict: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    obj = {
        "metadata": {"name": "api-1", "namespace": "web", "labels": {"pod-group.scheduling.sigs.k8s.io": "g"}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Failed", **status, "conditions": [] if node else [condition]},
    }
    nodes = [{"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "1"}}}]
    records = [Record("scheduler", POD, 1.0, verdict, message="placed on n1")] if verdict else []
    told = explain("Pod", Gathered(records, Live(obj=obj, nodes=nodes), answered=1), namespace="web", name="api-1", now=2.0)
    assert told is not None
    assert (told.summary, told.reason) == (f"Pod web/api-1 failed: {said}.", "")
    text = as_text(told, Gathered())
    assert "has room" not in text
    assert "No scheduler" not in text
    assert "podgroup" not in text
    if verdict:  # what koord decided is told as well
        assert text.count(f"scheduler: {verdict}") == 1


def test_what_koord_did_to_a_pod_that_failed_comes_first() -> None:
    evicted = Record("koordlet", POD, 1.0, "Evicted", "BEMemoryEvict", "memory 95% of the node is used")
    obj = {"metadata": {"name": "api-1", "namespace": "web"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Failed", **KILLED}}
    told = explain("Pod", Gathered([evicted], Live(obj=obj), answered=1), namespace="web", name="api-1", now=2.0)
    assert told is not None
    assert told.summary == "Pod web/api-1 was evicted (koordlet): memory 95% of the node is used."
    assert "It failed: container main ended with status 137 (OOMKilled)." in as_text(told, Gathered())


@pytest.mark.parametrize("words", [["foo", "x"], ["foo"], ["foo/x"]])
def test_what_cannot_be_explained_is_told_with_what_can(words: list[str]) -> None:
    result = asyncio.run(why(*words))
    assert result.exit_code == 2
    accepted = "accepted: node, pod, podgroup, quota, and a name"
    assert result.stderr == f"koord why: error: No such command {words[0]!r}; {accepted}\n"


def test_numbers_have_the_units_of_everything_else_and_stand_once() -> None:
    terms = (Term("capacity × threshold", 20800, "32000m × 65%", "milli"), Term("− pods that are not BE", 7177, "last sample", "milli"))
    numbers: dict[str, Any] = {
        "allowance_milli": 13623, "capacity_milli": 32000, "threshold_percent": 65, "non_be_pods_milli": 7177, "system_milli": 0,
        "quota_us": 1362300, "old_quota_us": -1, "tier_bytes": 3 << 30, "used_percent": 41.5,
    }  # fmt: skip
    record = Record("koordlet", Subject("Node", "", "n1"), 1.0, "Suppressed", "BECPUSuppress", "quota", numbers, terms)
    told = explain("Node", Gathered(records=[record], answered=1), namespace="", name="n1", now=2.0)
    assert told is not None
    told_numbers = told.sections[0].tables[1].rows
    assert told_numbers == (("quota (CPUs)", "13.6"), ("old_quota (CPUs)", "none"), ("tier", "3Gi"), ("used", "41.5%"))
    assert told.summary == "Node n1 was suppressed (koordlet): best-effort pods may use 13.6 CPUs: 32 × 65 % − 7.18 other pods."


@pytest.mark.parametrize("name", ["n", "node-of-a-rather-long-name-in-some-zone", "n" * 250])
def test_a_formula_is_told_whole_or_not_at_all(name: str) -> None:
    numbers: dict[str, Any] = {
        "allowance_milli": 13623, "capacity_milli": 32000, "threshold_percent": 65, "non_be_pods_milli": 7177,
        "non_be_host_apps_milli": 1111, "system_milli": 2222,
    }  # fmt: skip
    record = Record("koordlet", Subject("Node", "", name), 1.0, "Suppressed", "BECPUSuppress", "quota", numbers)
    told = explain("Node", Gathered(records=[record], answered=1), namespace="", name=name, now=2.0)
    assert told is not None
    assert "best-effort pods may use 13.6 CPUs" in told.summary
    assert "…" not in told.summary.replace("Node …", "")
    assert len(told.summary) <= 100


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120, 200])
def test_a_table_is_readable_at_any_width(width: int) -> None:
    """No line is longer than the terminal, no word of a sentence is lost, and none stands one character a line."""
    message = "0/21 nodes are available: Insufficient quotas, quotaName: team-a, exceedDimensions: [cpu]. 数据中心"
    table = Table(("Condition", "Status", "Reason", "Since", "Message"), (("PodScheduled", "False", "Unschedulable", "44m ago", message),))
    lines = render._aligned(table, width)
    assert all(render.cells(line) <= width for line in lines)
    assert message.replace(" ", "") in "".join(lines).replace(" ", "").replace("…", "")
    assert len(lines) <= 5 + 2 * (sum(map(len, table.rows[0])) // (width - 6))


def test_programs_find_every_value_of_a_term() -> None:
    terms = (Term("cpu.reserved", 0, "max(kubelet 0m, annotation 0m)", "milli"), Term("cpu.total", 4000, "", "milli"))
    found = Gathered(records=[Record("manager", Subject("Node", "", "n1"), 1.0, "Allocatable", terms=terms)], answered=1)
    told = explain("Node", found, namespace="", name="n1", now=2.0)
    assert told is not None
    (record,) = json.loads(as_json(told, found))["records"]
    assert [term["value"] for term in record["terms"]] == [0, 4000]
    assert record["numbers"] == {}


def test_the_kubeconfig_of_the_home_directory_is_enough_and_who_cannot_be_reached_is_told(tmp_path: Path) -> None:
    entry = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    contexts = [{"name": "c", "context": {"cluster": "c"}}]
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(json.dumps({"clusters": [entry], "contexts": contexts, "current-context": "c"}))
    result = asyncio.run(why("pod", "web/x"))
    said = "koord why pod: error: no role could be queried about pod web/x: API server http://127.0.0.1:1: connection refused\n"
    assert (result.exit_code, result.stderr, result.stdout) == (1, said, "")


def test_what_is_subtracted_has_one_sign_and_one_unit() -> None:
    terms = (Term("capacity × threshold", 1300, "2000m × 65%", "milli"), Term("− system", -1995, "measured", "milli"))
    numbers: dict[str, Any] = {"allowance_milli": -695, "capacity_milli": 2000, "threshold_percent": 65, "system_milli": 1995}
    record = Record("koordlet", Subject("Node", "", "n1"), 1.0, "Suppressed", "BECPUSuppress", "quota", numbers, terms)
    found = Gathered(records=[record], answered=1)
    told = explain("Node", found, namespace="", name="n1", now=2.0)
    assert told is not None
    text = as_text(told, found)
    assert "best-effort pods may use 0 CPUs: 2 × 65 % − 2 outside pods" in told.summary
    assert "− system               2 " in text
    assert "-1995" not in text


def test_a_pending_pods_reason_stands_once() -> None:
    reason = "0/6 nodes are available: 6 Insufficient kubernetes.io/batch-cpu."
    terms = (Term("Insufficient kubernetes.io/batch-cpu", 6, "", "nodes"),)
    record = Record("scheduler", POD, 1.0, "Unschedulable", message=reason, numbers={"evaluated": 6, "feasible": 0}, terms=terms)
    status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}]}
    obj = {"metadata": {"name": "api-1", "namespace": "web"}, "spec": {}, "status": status}
    events = [{"reason": "FailedScheduling", "note": reason, "series": {"count": 4}, "eventTime": "2026-01-01T00:00:00Z"}]
    found = Gathered(records=[record], answered=1, live=Live(obj=obj, events=events))
    told = explain("Pod", found, namespace="web", name="api-1", now=2.0)
    assert told is not None
    text = as_text(told, found)
    assert told.summary == "Pod web/api-1 is pending: none of 6 nodes fits: 6 × Insufficient kubernetes.io/batch-cpu."
    assert text.count(reason) == 1
    assert text.count("as above") == 1


@pytest.mark.feature("BEY-WHY-01")
def test_a_request_that_no_node_offers_is_named() -> None:
    world = testing.World()
    world.add_nodes(testing.node("a"), testing.node("b", **{"example.com__card": "0"}))
    pod = testing.pod("p", requests={"example.com/card": "1"})
    assert headline(record_of(world.decide(pod), now=0.0)) == "no node offers example.com/card, which it requests"
    world.add_nodes(testing.node("c", cpu="0", **{"example.com__card": "1"}))
    assert headline(record_of(world.decide(pod), now=0.0)).startswith("none of 3 nodes fits")
