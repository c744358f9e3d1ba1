"""Usage curves and the NodeMetric of simulated nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import names
from koord.api.quantity import parse_milli, parse_value
from roles.sandbox.nodes import fleet, metrics
from roles.sandbox.nodes.curves import SHAPES, Curve
from roles.sandbox.nodes.fleet import Usage

TIMES = st.floats(0, 1e9)


@given(st.sampled_from(list(SHAPES)), TIMES, st.floats(0, 1), st.floats(0, 0.5))
def test_a_curve_stays_between_its_bounds(shape: str, time: float, phase: float, noise: float) -> None:
    level = Curve(shape, 0.1, 0.9, 600, phase, noise).level(time, "k")
    assert 0.1 * (1 - noise) - 1e-9 <= level <= 0.9 * (1 + noise) + 1e-9


def test_diurnal_has_its_peak_in_the_middle_of_the_day() -> None:
    curve = Curve("diurnal", 0.0, 1.0, 600)
    assert curve.level(0) == 0
    assert abs(curve.level(300) - 1.0) < 1e-9


def _node(cpus: int = 8) -> dict:
    return fleet.node(0, cpus=cpus, memory=32 * 2**30, now=0)


def _pods(count: int) -> list[dict]:
    return [fleet.service_pod(0, i, "web") | {} for i in range(count)]


@given(st.integers(0, 12), TIMES)
def test_a_node_never_uses_more_cpu_than_it_has(count: int, time: float) -> None:
    each, rest = metrics.node_usage(_pods(count), fleet.capacity_of(_node()), time, 600)
    assert sum(u.cpu for u in each) + rest.cpu <= 8000


def test_node_metric_adds_up() -> None:
    pods = _pods(3)
    status = metrics.status(pods, _node(), 1000.0, period=600, aggregate_seconds=60, durations=(300,))
    total = parse_milli(status["nodeMetric"]["nodeUsage"]["resources"]["cpu"])
    system = parse_milli(status["nodeMetric"]["systemUsage"]["resources"]["cpu"])
    pod_sum = sum(parse_milli(p["podUsage"]["resources"]["cpu"]) for p in status["podsMetric"])
    assert abs(total - system - pod_sum) <= len(pods) + 1
    assert [p["name"] for p in status["podsMetric"]] == sorted(p["metadata"]["name"] for p in pods)
    assert {(p["qos"], p["priority"]) for p in status["podsMetric"]} == {("LS", "koord-prod")}
    usage = status["nodeMetric"]["aggregatedNodeUsages"][0]["usage"]
    order = [parse_milli(usage[p]["resources"]["cpu"]) for p in ("p50", "p90", "p95", "p99")]
    assert order == sorted(order)


def test_reclaimable_never_exceeds_the_request() -> None:
    pods = _pods(2)
    reclaimable = metrics.reclaimable(pods, 1000.0, 600)
    assert 0 < reclaimable.cpu < sum(fleet.requested(p).cpu for p in pods)


def test_batch_pods_use_their_batch_resources() -> None:
    pod = {
        "metadata": {"name": "b", "namespace": "batch", "uid": "1", "labels": {names.LABEL_POD_QOS: "BE"}},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {names.RESOURCE_BATCH_CPU: "4000", names.RESOURCE_BATCH_MEMORY: "1Gi"}}}]
        },
    }
    assert fleet.requested(pod) == Usage(4000, parse_value("1Gi"))
    assert fleet.usage(pod, 50.0, 600).cpu > 2000


def test_succeeded_status_ends_every_container() -> None:
    pod = fleet.service_pod(0, 0, "web")
    pod["metadata"]["uid"] = "u"
    done = fleet.succeeded_status(fleet.running_status(pod, "198.18.0.1", 10), 20)
    assert done["phase"] == "Succeeded"
    assert all("terminated" in c["state"] for c in done["containerStatuses"])
    assert {c["type"]: c["status"] for c in done["conditions"]}["Ready"] == "False"


@pytest.mark.parametrize(
    ("text", "percent"), [("90", 90), ("0", 0), ("150", 150), ("1000", 1000), ("1001", None), ("-5", None), ("half", None), ("", None)]
)
def test_a_pod_may_say_how_much_of_its_request_it_uses(text: str, percent: int | None) -> None:
    pod = fleet.service_pod(0, 0, "web")
    pod["metadata"]["annotations"] = {fleet.CURVE_ANNOTATION: "steady", fleet.USAGE_PERCENT_ANNOTATION: text}
    expected = 0.45 if percent is None else percent / 100
    used = fleet.usage(pod, 100.0, 600).cpu / fleet.requested(pod).cpu
    assert fleet.usage_percent(pod) == percent
    assert abs(used - expected) <= 0.05 * expected + 0.001
