"""`koord top`: rows from nodes, their metrics and pods, and the table on a live API server (BEY-TOP-01)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import NODES
from koord.api.objects import Node, NodeMetric, NodeSLO, Pod, convert
from koord.api.times import format_time
from koord.apiserver.testing import RunningServer, running_server
from koord.kube.client import Client
from roles.tools.top.cli import command
from roles.tools.top.rows import Row, Use, ordered, row, total
from roles.tools.top.table import HEADINGS, cells, fitting, plain, rich, room, wire
from tests.support import patience

pytestmark = pytest.mark.feature("BEY-TOP-01")
NOW = 1_800_000_000.0
GIB = 2**30

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "spec": {},
    "status": {
        "capacity": {"cpu": "10", "memory": "100Gi"},
        "allocatable": {"cpu": "10", "memory": "100Gi", "kubernetes.io/batch-cpu": "4000", "kubernetes.io/batch-memory": "40Gi"},
    },
}
SLO = {"metadata": {"name": "n1"}, "spec": {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 60}}}


def annotated(key: str, value: str) -> dict[str, Any]:
    return {**NODE, "metadata": {"name": "n1", "annotations": {key: value}}}


def used(cpu: str, memory: str) -> dict[str, Any]:
    return {"resources": {"cpu": cpu, "memory": memory}}


def metric(*pods: dict[str, Any], cpu: str = "5", memory: str = "50Gi", system: str = "500m", age: float = 20) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1"},
        "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
        "status": {
            "updateTime": format_time(NOW - age),
            "nodeMetric": {"nodeUsage": used(cpu, memory), "systemUsage": used(system, "1Gi")},
            "podsMetric": list(pods),
        },
    }


def pod_metric(name: str, cpu: str, priority: str = "", qos: str = "") -> dict[str, Any]:
    return {"name": name, "namespace": "default", "podUsage": used(cpu, "1Gi"), "priority": priority, "qos": qos}


def pod(name: str, batch_cpu: str = "", **resources: Any) -> dict[str, Any]:
    requests = {"kubernetes.io/batch-cpu": batch_cpu, "kubernetes.io/batch-memory": "1Gi"} if batch_cpu else resources
    container = {"name": "main", "image": "x", "resources": {"requests": requests, "limits": requests if batch_cpu else {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"phase": "Running"},
    }


def made(node: Any = NODE, usage: Any = None, slo: Any = None, pods: tuple[Any, ...] = ()) -> Row:
    return row(
        convert(node, Node),
        convert(usage, NodeMetric) if usage is not None else None,
        convert(slo, NodeSLO) if slo is not None else None,
        [convert(one, Pod) for one in pods],
        NOW,
    )


def test_use_by_tier_what_is_offered_and_what_best_effort_may_use() -> None:
    usage = metric(
        pod_metric("web", "2", "koord-prod", "LS"),
        pod_metric("old", "500m"),
        pod_metric("mid", "300m", "koord-mid", "LS"),
        pod_metric("job", "1", "koord-batch", "BE"),
        pod_metric("free", "200m", "koord-free", "BE"),
        pod_metric("plain", "100m"),
    )
    found = made(usage=usage, slo=SLO, pods=(pod("job", "3000"), pod("plain"), pod("old", cpu="1")))
    assert (found.prod.cpu, found.mid.cpu, found.batch.cpu, found.system.cpu) == (2600, 300, 1200, 500)
    assert found.used == Use(5000, 50 * GIB)
    assert (found.batch_allocatable.cpu, found.batch_requested) == (4000, Use(3000, GIB))
    assert found.best_effort == 1300, "the pod without requests is on the best-effort level, whatever its class"
    # 10 cores × 60 % − pods that are not best effort (2.8) − system (0.5)
    assert found.allowance == 2700
    assert (found.age, found.marks) == (20, ())
    line = cells(found)
    assert line[:9] == ("n1", "10", "50%", "26%", "3%", "12%", "5%", "3/4", "2.7")
    assert line[9:] == ("100Gi", "50%", "1Gi/40Gi", "20s", "-")


@pytest.mark.parametrize(
    ("change", "marks"),
    [
        ({"usage": None}, ("no metrics",)),
        ({"usage": metric(age=600)}, ("stale",)),
        # koordlet reports every 30 s at most, whatever is asked for
        ({"usage": {**metric(age=80), "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 5}}}}, ()),
        ({"usage": metric(cpu="6500m")}, ("hot cpu",)),
        ({"usage": metric(memory="96Gi")}, ("hot memory",)),
        ({"usage": metric(pod_metric("j", "3", "koord-batch", "BE"), pod_metric("w", "3")), "slo": SLO}, ("squeezed",)),
        ({"pods": (pod("a", "5000"),)}, ("overbooked",)),
        ({"node": {**NODE, "spec": {"unschedulable": True}}}, ("cordoned",)),
        (
            {"node": annotated("scheduling.koordinator.sh/usage-thresholds", '{"usageThresholds": {"cpu": 40}}')},
            ("hot cpu",),
        ),
        ({"node": annotated("node.koordinator.sh/abnormal", '{"penalty": 30}')}, ("abnormal",)),
    ],
)  # fmt: skip
def test_marks(change: dict[str, Any], marks: tuple[str, ...]) -> None:
    assert made(**{"usage": metric(), **change}).marks == marks


def test_suppression_that_is_off_limits_nothing() -> None:
    off = {"metadata": {"name": "n1"}, "spec": {"resourceUsedThresholdWithBE": {"enable": False}}}
    assert made(usage=metric(), slo=off).allowance is None
    assert made(usage=metric()).allowance is None
    assert made(usage=metric(pod_metric("w", "9")), slo=SLO).allowance == 0, "never below nothing"


USES = st.builds(Use, st.integers(0, 10**6), st.integers(0, 10**12))
ROWS = st.lists(
    st.builds(
        Row,
        name=st.text("abc", min_size=1, max_size=3),
        capacity=USES,
        used=USES,
        batch=USES,
        age=st.none() | st.floats(0, 1e6),
        marks=st.sampled_from([(), ("stale",), ("hot cpu", "stale")]),
    ),
    max_size=6,
)


@given(ROWS)
def test_the_sum_is_of_all_nodes_and_no_row_is_lost(rows: list[Row]) -> None:
    whole = total(rows)
    assert whole.used.cpu == sum(one.used.cpu for one in rows)
    assert whole.capacity.memory == sum(one.capacity.memory for one in rows)
    for by in ("name", "cpu", "memory", "batch"):
        assert sorted(map(id, ordered(rows, by))) == sorted(map(id, rows))
    shares = [one.used.cpu / (one.capacity.cpu or 1) for one in ordered(rows, "cpu")]
    assert shares == sorted(shares, reverse=True)
    assert len({line.index("CPU") for line in plain([whole, *rows])[:1]}) == 1


BUSY = Row(
    name="worker-0",
    capacity=Use(128_000, 512 * GIB),
    used=Use(97_300, 300 * GIB),
    prod=Use(60_000, GIB),
    batch=Use(20_000, GIB),
    system=Use(1000, GIB),
    batch_allocatable=Use(28_500, 180 * GIB),
    batch_requested=Use(2500, 18 * GIB),
    allowance=21_300,
    age=20,
    marks=("hot cpu",),
)


@pytest.mark.parametrize("width", [80, 90, 100, 120, 140, 200])
def test_a_terminal_shows_whole_cells_or_none(width: int) -> None:
    rows = [total([BUSY, BUSY]), BUSY, Row("worker-1", capacity=BUSY.capacity)]
    shown = rich(rows, "", width).plain.splitlines()
    columns = fitting(rows, width)
    assert max(map(len, shown)) <= width
    for line, whole in zip(shown, (HEADINGS, *map(cells, rows)), strict=False):
        assert line.split() == [word for column in columns for word in whole[column].split()]
    assert len(set(HEADINGS)) == len(HEADINGS), "a heading must be clear when its neighbours are left out"
    assert {"NODE", "USED", "MEM USED", "MARKS"} <= {HEADINGS[column] for column in columns}
    missing = len(HEADINGS) - len(columns)
    assert (f"{missing} column" in shown[-1] and "-o wide" in shown[-1]) == bool(missing)
    assert set(columns) <= set(fitting(rows, width + 20)), "more room never hides a column"
    assert rich(rows, "").plain.splitlines() == plain(rows)


def test_a_row_has_the_colour_of_its_own_state() -> None:
    drawn = rich([total([BUSY, Row("calm")]), BUSY, Row("late", marks=("stale",)), Row("calm")], "")
    assert [str(span.style) for span in drawn.spans] == ["dim", "red", "yellow"]
    texts = [drawn.plain[span.start : span.end].split()[0] for span in drawn.spans]
    assert texts == ["NODE", "worker-0", "late"]


def test_keys_in_json_are_spelt_alike() -> None:
    def keys(value: Any) -> set[str]:
        return set(value) | {inner for one in value.values() if isinstance(one, dict) for inner in keys(one)}

    (one,) = wire([BUSY])
    assert one["batchAllocatable"] == {"milliCPU": 28_500, "memoryBytes": 180 * GIB}
    assert one["batchRequested"]["milliCPU"] == 2500
    assert [key for key in keys(one) if not key.isalnum() or not key[0].islower()] == []


async def seed(client: Client) -> None:
    for name, cpu in (("n1", "7"), ("n2", "1")):
        node = {**NODE, "metadata": {"name": name, "labels": {"pool": name}}}
        await client.raw("POST", "/api/v1/nodes", node)
        body = orjson.dumps({"status": node["status"]})
        await client.raw("PATCH", f"/api/v1/nodes/{name}/status", body, content_type="application/merge-patch+json")
        path = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
        await client.raw(
            "POST", path, {**metric(), "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name}}
        )
        status = metric(pod_metric("job", "1", "koord-batch", "BE"), cpu=cpu)["status"]
        status["updateTime"] = format_time(time.time())
        await client.raw("PATCH", f"{path}/{name}/status", orjson.dumps({"status": status}), content_type="application/merge-patch+json")
    await client.raw("POST", "/api/v1/namespaces/default/pods", pod("job", "1500"))


async def top(server: RunningServer, *arguments: str) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, command, [f"--kubeconfig={server.kubeconfig_path}", *arguments])


def test_the_table_of_a_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            empty = await top(server)
            assert empty.exit_code == 0, empty.output
            assert "0 nodes" in empty.output
            await seed(client)
            done = await top(server)
            lines = done.output.splitlines()
            assert lines[0].split()[:3] == ["NODE", "CPU", "USED"]
            assert [line.split("  ")[0] for line in lines[1:]] == ["2 nodes", "n1", "n2"], "the busiest first"
            assert "hot cpu" in lines[2]
            assert "1.5/4" in lines[2]
            assert "1.5/8" in lines[1]
            assert [line.split()[0] for line in (await top(server, "--sort=name", "--limit=1")).output.splitlines()[2:]] == ["n1", "1"]
            one = orjson.loads((await top(server, "n2", "--output=json")).output)
            assert [node["name"] for node in one["nodes"]] == ["n2"]
            assert one["nodes"][0]["batch"]["milliCPU"] == 1000
            assert one["total"]["capacity"]["milliCPU"] == 10_000
            chosen = orjson.loads((await top(server, "--selector=pool=n1", "-o", "json")).output)
            assert [node["name"] for node in chosen["nodes"]] == ["n1"]
            missing = await top(server, "n9")
            assert (missing.exit_code, "no such node: n9" in missing.output) == (1, True)

    asyncio.run(main())


@pytest.mark.parametrize("arguments", [(), ("-o", "wide")])
def test_a_terminal_of_80_columns(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    from tests.support.processes import KOORD

    async def main() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            await seed(client)
            ours, theirs = pty.openpty()
            process = await asyncio.create_subprocess_exec(
                KOORD, "top", f"--kubeconfig={server.kubeconfig_path}", *arguments,
                stdout=theirs, env={**os.environ, "COLUMNS": "80", "TERM": "xterm"},
            )  # fmt: skip
            os.close(theirs)
            assert await process.wait() == 0
            text = re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 1 << 16).decode())
            os.close(ours)
            lines = text.splitlines()
            assert "…" not in text
            assert lines[2].split()[0] == "n1"
            assert (max(map(len, lines)) <= 80) == (not arguments)
            assert all(heading in lines[0] for heading in HEADINGS) == bool(arguments)

    asyncio.run(main())


@pytest.mark.parametrize(("lines", "folded", "shown"), [(24, None, 23), (9, None, 8), (1, None, 1), (20, 80, 9), (20, 200, 19)])
def test_as_many_rows_as_the_screen_has_room_for(lines: int, folded: int | None, shown: int) -> None:
    """Below the headings, and above the note that says how many more there are; lines that are folded count as what they take."""
    rows = [made(annotated("a", "b"), metric(), SLO, (pod("a-batch-pod", "1500"),))] * 40
    assert 80 < max(map(len, plain(rows))) <= 160
    assert room(rows, lines, folded) == shown
    assert len(plain(rows[:shown])) * (2 if folded == 80 else 1) <= max(lines, 2)


def watched(kubeconfig: Path, wanted: bytes, term: str) -> bytes:
    """What `koord top --watch` draws on a terminal of 8 lines, up to what is wanted."""
    command = [sys.executable, "-m", "koord.cli", "top", "--watch", "--interval=100ms", f"--kubeconfig={kubeconfig}"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 80, 0, 0))
    seen = b""
    inherited = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}  # the terminal's own size counts
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**inherited, "TERM": term}) as running:
        os.close(theirs)
        for _ in patience.tries(100):
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 65536)
            if wanted in seen:
                break
        running.kill()
    os.close(ours)
    return seen


@pytest.mark.parametrize(("term", "says"), [("xterm", b"7 more nodes"), ("dumb", b"n11")])
def test_watching_on_a_low_screen_and_on_one_that_cannot_be_drawn_on(term: str, says: bytes) -> None:
    """The last line says how many nodes are not on the screen; a terminal without a cursor gets one table after another."""

    async def story() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            for number in range(12):
                await client.create(NODES, {**NODE, "metadata": {"name": f"n{number}"}})
            seen = await asyncio.to_thread(watched, server.kubeconfig_path, says, term)
            assert says in seen, seen[-600:]

    asyncio.run(story())


def test_watching_looks_again(tmp_path: Path) -> None:
    from tests.support.processes import KOORD

    async def main() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            await seed(client)
            process = await asyncio.create_subprocess_exec(
                KOORD, "top", "--watch", "--interval=100ms", f"--kubeconfig={server.kubeconfig_path}", "-o", "json",
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            try:
                async with asyncio.timeout(patience.seconds(60)):
                    await process.stdout.readline()
                    await client.raw("DELETE", "/api/v1/nodes/n2")
                    while len(orjson.loads(await process.stdout.readline())["nodes"]) != 1:
                        pass
            finally:
                process.terminate()
                await process.wait()

    asyncio.run(main())


def test_a_server_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    from koord.apiserver import kubeconfig

    file = tmp_path / "kubeconfig"
    kubeconfig.write(file, kubeconfig.build("http://127.0.0.1:9", ""))
    done = CliRunner().invoke(command, [f"--kubeconfig={file}"])
    assert done.exit_code == 1
    assert "cannot query the API server: http://127.0.0.1:9" in done.output


def test_one_node_is_no_nodes() -> None:
    assert [total([made()] * number).name for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
