"""`koord cost`: rows and what is idle are what the nodes cost, whoever runs where (BEY-COST-01)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from koord import seams
from koord.api import names
from koord.api.objects import Node, NodeMetric, Pod, convert
from koord.cli import main
from roles.scheduler.journal.lines import Beginning, Change, Encoder

pytestmark = pytest.mark.feature("BEY-COST-01")

PRICES = """
currency: EUR
cpu: 0.1
memory: 0.01
batch: {cpu: 0.02, memory: 0.002}
mid: {cpu: 0.05, memory: 0.005}
nodes:
- match: {kind: metal}
  hourly: 3.0
"""
START = 1_767_225_600.0


def node(name: str, cores: int, gibibytes: int, **labels: str) -> Node:
    amounts = {"cpu": str(cores), "memory": f"{gibibytes}Gi"}
    return convert({"metadata": {"name": name, "labels": labels}, "status": {"capacity": amounts, "allocatable": amounts}}, Node)


def pod(name: str, on: str, requests: dict[str, str], namespace: str = "shop", **labels: str) -> Pod:
    body = {"metadata": {"name": name, "namespace": namespace, "uid": name, "labels": {k.replace("__", "/"): v for k, v in labels.items()}}}
    return convert({**body, "spec": {"nodeName": on, "containers": [{"name": "c", "resources": {"requests": requests}}]}}, Pod)


def report(name: str, **used: str) -> NodeMetric:
    pods = [
        {"namespace": "batch" if each.startswith("job") else "shop", "name": each.replace("_", "-"),
         "podUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}} for each, cpu in used.items()
    ]  # fmt: skip
    return convert({"metadata": {"name": name}, "status": {"podsMetric": pods}}, NodeMetric)


def written(folder: Path, *changes: tuple[float, Any, Any], end: float) -> Path:
    """A journal; changes are (hours since its beginning, object before, object now)."""
    items: list[Any] = [Beginning({"format": 1, "time": START, "koord": "test"})]
    items += [Change(START + hours * 3600, type(old or new).__name__, old, new) for hours, old, new in changes]
    items.append(Change(START + end * 3600, "Namespace", None, convert({"metadata": {"name": "end"}}, Node)))
    folder.mkdir(exist_ok=True)
    (folder / "scheduler.replay.jsonl").write_bytes(Encoder().lines(items))
    (folder / "prices.yaml").write_text(PRICES)
    return folder


def cost(folder: Path, *arguments: str) -> Any:
    line = ["cost", "--prices", str(folder / "prices.yaml"), "--decision-log", str(folder), "-o", "json", *arguments]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    return orjson.loads(done.stdout)


def test_batch_pays_at_its_own_rate_and_those_whose_cores_it_runs_on_get_it_back(tmp_path: Path) -> None:
    job = pod("job", "n", {names.RESOURCE_BATCH_CPU: "2000"}, "batch")
    found = cost(
        written(
            tmp_path, (0, None, node("n", 4, 0)), (0, None, pod("web", "n", {"cpu": "3"})), (0, None, job),
            (0, None, report("n", web="1", job="1")), (0.2, None, report("n", web="1", job="1")),
            (0.4, None, report("n", web="1", job="1")), (0.6, None, report("n", web="1", job="1")),
            (0.8, None, report("n", web="1", job="1")), end=1,
        )
    )  # fmt: skip
    rows = {row["namespace"]: row for row in found["by"]["namespace"]}
    assert found["nodesCost"] == pytest.approx(0.4)
    assert rows["batch"]["cost"] == pytest.approx(0.04)
    assert rows["batch"]["cpu"]["reclaimed"] == pytest.approx(1)
    assert rows["shop"]["cpu"]["credit"] == pytest.approx(0.04 * 2 / 3)  # of three cores that nobody uses two are the shop's
    assert rows["shop"]["cost"] == pytest.approx(0.3 - 0.04 * 2 / 3)
    assert rows["shop"]["cpu"]["idle"] == pytest.approx(2)
    assert found["idle"] == pytest.approx(0.1 - 0.04 / 3)


def test_a_report_that_is_too_old_says_nothing(tmp_path: Path) -> None:
    found = cost(
        written(tmp_path, (0, None, node("n", 4, 0)), (0, None, pod("web", "n", {"cpu": "3"})), (0, None, report("n", web="1")), end=1)
    )
    row = found["by"]["namespace"][0]
    assert row["measuredShare"] == pytest.approx(0.25)
    assert row["cpu"]["used"] == pytest.approx(0.25)


def test_only_what_is_since_then_counts(tmp_path: Path) -> None:
    one = node("n", 4, 0)
    folder = written(tmp_path, (0, None, one), (2, one, None), (3, None, one), end=4)
    assert cost(folder)["nodesCost"] == pytest.approx(3 * 0.4)
    assert cost(folder, "--since", "90m")["nodesCost"] == pytest.approx(0.4)


AMOUNTS = st.sampled_from(["0", "100m", "1", "2500m", "7"])
PODS = st.lists(
    st.tuples(
        st.integers(0, 2), AMOUNTS, AMOUNTS, st.sampled_from([None, "500", "3000"]), st.sampled_from([None, "1Gi"]),
        st.sampled_from(["shop", "batch", "lab"]), st.sampled_from(["", "a", "b"]), st.sampled_from(["", "LS", "BE"]),
        st.integers(0, 5), st.integers(0, 5),
    ),
    max_size=10,
)  # fmt: skip


@given(
    nodes=st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 16), st.booleans(), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=3
    ),
    pods=PODS,
)
@settings(max_examples=30)
def test_property_rows_and_idle_are_what_the_nodes_cost(
    tmp_path_factory: pytest.TempPathFactory, nodes: list[Any], pods: list[Any]
) -> None:
    changes: list[tuple[float, Any, Any]] = []
    total, end = 0.0, 8.0
    for number, (cores, gibibytes, metal, begin, length) in enumerate(nodes):
        one = node(f"n{number}", cores, gibibytes, **({"kind": "metal"} if metal else {}))
        changes += [(begin, None, one)] + ([(begin + length, one, None)] if length else [])
        total += (length or end - begin) * (3.0 if metal else 0.1 * cores + 0.01 * gibibytes)
    for number, (on, cpu, used, batch, memory, namespace, quota, qos, begin, length) in enumerate(pods):
        requests = {"cpu": cpu} | ({names.RESOURCE_BATCH_CPU: batch} if batch else {}) | ({"memory": memory} if memory else {})
        labels = {names.LABEL_QUOTA_NAME: quota, names.LABEL_POD_QOS: qos}
        one = pod(f"p{number}", f"n{on % len(nodes)}", requests, namespace, **{k: v for k, v in labels.items() if v})
        usage = {"namespace": namespace, "name": f"p{number}", "podUsage": {"resources": {"cpu": used, "memory": "2Gi"}}}
        metric = convert({"metadata": {"name": f"n{on % len(nodes)}"}, "status": {"podsMetric": [usage]}}, NodeMetric)
        changes += [(begin, None, one), (begin + 0.5, None, metric)] + ([(begin + length, one, None)] if length else [])
    folder = written(tmp_path_factory.mktemp("log"), *sorted(changes, key=lambda change: change[0]), end=end)
    found = cost(folder)
    assert found["nodesCost"] == pytest.approx(total, rel=1e-9)
    for rows in found["by"].values():
        assert sum(row["cost"] for row in rows) + found["idle"] == pytest.approx(total, rel=1e-6, abs=1e-9)
        assert all(row["cpu"]["credit"] <= row["cpu"]["paid"] + 1e-9 for row in rows)
    opencost = cost(folder, "-o", "opencost")["data"][0]
    assert sum(row["totalCost"] for row in opencost.values()) == pytest.approx(total, rel=1e-6, abs=1e-9)
    for row in opencost.values():
        parts = ("cpuCost", "cpuCostAdjustment", "ramCost", "ramCostAdjustment")
        assert sum(row[name] for name in parts) == pytest.approx(row["totalCost"], rel=1e-6, abs=1e-9)


# ---------------------------------------------------------------- Prometheus

SERIES: dict[str, list[Any]] = {
    "kube_node_status_capacity": [({"node": "n", "resource": "cpu"}, 4), ({"node": "n", "resource": "memory"}, 8 * 2**30)],
    "kube_node_labels": [({"node": "n", "label_node_kubernetes_io_instance_type": "m5"}, 1)],
    "kube_pod_resource_request": [
        ({"namespace": "shop", "pod": "web", "node": "n", "priority": "9000", "resource": "cpu"}, 3),
        ({"namespace": "batch", "pod": "job", "node": "n", "priority": "5000", "resource": names.RESOURCE_BATCH_CPU}, 2000),
    ],
    "container_cpu_usage_seconds_total": [({"namespace": "shop", "pod": "web"}, 1), ({"namespace": "batch", "pod": "job"}, 1)],
    "kube_pod_labels": [({"namespace": "shop", "pod": "web", "label_quota_scheduling_koordinator_sh_name": "gold"}, 1)],
    "throttled_periods": [({"namespace": "shop"}, 0.125)],
    "koordlet_pod_psi": [({"pod_namespace": "shop"}, 2.5)],
    "my_latency": [({"namespace": "shop"}, 0.25)],
}  # fmt: skip


class Answering(BaseHTTPRequestHandler):
    """As Prometheus answers, for the series above; one may be there only from so many hours ago until so many."""

    now = 1_800_000_000.0
    """Also that of who asks. It is the end of a step: how many steps an hour has does not hang on when the test runs."""

    def do_POST(self) -> None:
        form = {key: values[0] for key, values in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()}
        series = [(*found, 99, 0)[:4] for found in next((found for name, found in SERIES.items() if name in form["query"]), [])]
        result: list[Any]
        if self.path.endswith("query_range"):
            count = round((float(form["end"]) - float(form["start"])) / float(form["step"])) + 1
            times = [float(form["start"]) + number * float(form["step"]) for number in range(count)]
            result = [
                {"metric": labels, "values": [[at, str(value)] for at in times if since >= (self.now - at) / 3600 > until]}
                for labels, value, since, until in series
            ]
        else:
            result = [{"metric": labels, "value": [float(form["time"]), str(value)]} for labels, value, _, until in series if not until]
        body = orjson.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
        if "broken" in form["query"]:
            body = b"<html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silence."""


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(seams, "now", lambda: Answering.now)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_ended_before_the_end_keeps_its_labels(prometheus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its quota and its node's price; and a name may have had a second pod. A label is told as the node has it."""
    series = {
        **SERIES,
        "kube_node_status_capacity": [
            ({"node": "spot", "resource": name}, value, 40, 16) for name, value in (("cpu", 4), ("memory", 2**33))
        ],
        "kube_node_labels": [({"node": "spot", "label_karpenter_sh_capacity_type": "spot", "label_my_pool": "a"}, 1, 40, 16)],
        "kube_pod_resource_request": [
            ({"namespace": "shop", "pod": "web", "node": "spot", "priority": priority, "resource": "cpu"}, 3, since, until)
            for priority, since, until in (("9000", 40, 28), ("5000", 28, 16))
        ],
        "kube_pod_labels": [
            ({"namespace": "shop", "pod": "web", "uid": quota, "label_quota_scheduling_koordinator_sh_name": quota}, 1, since, until)
            for quota, since, until in (("gold", 40, 28), ("tin", 28, 16))
        ],
        "container_cpu_usage_seconds_total": [],
    }
    monkeypatch.setitem(globals(), "SERIES", series)
    (tmp_path / "prices.yaml").write_text(PRICES.replace("{kind: metal}", "{karpenter.sh/capacity-type: spot, myPool: a}"))
    line = ["cost", "--prices", str(tmp_path / "prices.yaml"), "--prometheus", prometheus, "--since", "2d", "-o", "json"]
    found = orjson.loads(CliRunner().invoke(main, line).stdout)
    assert found["nodesCost"] == pytest.approx(24 * 3.0)
    rows = {row["quota"]: row["cost"] for row in found["by"]["quota"]}
    assert set(rows) == {"gold", "tin"}
    assert rows["gold"] == pytest.approx(rows["tin"])
    assert found["by"]["namespace"][0]["cpu"]["requested"] == pytest.approx(72)


def test_prometheus_gives_the_same_and_the_penalty_beside_it(prometheus: str, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES.replace("{kind: metal}", "{node.kubernetes.io/instance-type: m5}"))
    line = ["cost", "--prices", str(tmp_path / "prices.yaml"), "--prometheus", prometheus, "--since", "2d", "--p99", "my_latency"]
    done = CliRunner().invoke(main, [*line, "-o", "json"])
    assert done.exit_code == 0, done.output
    found = orjson.loads(done.stdout)
    assert found["nodesCost"] == pytest.approx(48 * 3.0)
    rows = {row["namespace"]: row for row in found["by"]["namespace"]}
    assert rows["shop"]["penalty"] == {"throttled": 0.125, "psi": 2.5, "p99": 0.25}
    assert rows["batch"]["cost"] == pytest.approx(48 * 0.04)
    assert rows["batch"]["cpu"]["reclaimed"] == pytest.approx(48)
    assert {row["quota"] for row in found["by"]["quota"]} == {"gold", ""}
    assert {row["qos"] for row in found["by"]["qos"]} == {"BE", ""}
    assert sum(row["cost"] for row in rows.values()) + found["idle"] == pytest.approx(found["nodesCost"], rel=1e-9)
    shown = CliRunner().invoke(main, line).stdout
    assert "12.5 %" in shown
    assert "2.5 %" in shown


def test_use_of_pods_whose_requests_are_not_scraped_is_a_mistake_and_not_idle(
    prometheus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    line = ["cost", "--prices", str(tmp_path / "prices.yaml"), "--prometheus", prometheus]
    monkeypatch.setitem(SERIES, "kube_pod_resource_request", [])
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 1
    assert "/metrics/resources of koord's scheduler has to be scraped" in done.output
    assert done.output.count("\n") == 1
    monkeypatch.setitem(SERIES, "container_cpu_usage_seconds_total", [])
    assert CliRunner().invoke(main, line).exit_code == 0, "there are no pods"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--decision-log", "nowhere"], "nowhere: no such file or folder"),
        (["--decision-log", "."], "no scheduler.replay.jsonl"),
        ([], "give either --prometheus or --decision-log"),
        (["--decision-log", ".", "--since", "week"], "--since 'week' must be a duration"),
        (["--decision-log", ".", "--since", "0d"], "must be more than 0"),
        (["--decision-log", ".", "--p99", "x"], "--p99 needs --prometheus"),
        (["--decision-log", ".", "--prices", "bad.yaml"], "cpu"),
        (["--decision-log", ".", "--prices", "none.yaml"], "--prices none.yaml"),
        (["--prometheus", "http://127.0.0.1:9"], "--prometheus http://127.0.0.1:9"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prices.yaml").write_text(PRICES)
    Path("bad.yaml").write_text("cpu: -1\nmemory: 0\n")
    given = [] if "--prices" in arguments else ["--prices", "prices.yaml"]
    done = CliRunner().invoke(main, ["cost", *given, *arguments])
    assert done.exit_code == (2 if told.startswith(("give", "--since", "must", "--p99")) else 1)
    assert told in done.output
    assert done.output.count("\n") == 1


def test_what_is_no_prometheus_is_one_line(prometheus: str, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    done = CliRunner().invoke(main, ["cost", "--prices", str(tmp_path / "prices.yaml"), "--prometheus", prometheus, "--p99", "broken"])
    assert done.exit_code == 1
    assert "no JSON" in done.output
