"""NodeMetrics as columns: they say what the reports said, in a fraction of the memory (MGR-NR-01)."""

from __future__ import annotations

import dataclasses
import time
import tracemalloc
from typing import Any, cast

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord import seams
from koord.api.objects import Node, NodeMetric, convert
from koord.api.quantity import QuantityError
from koord.api.times import format_time
from koord.config.gates import MANAGER, FeatureGates
from koord.config.slo import SLOConfig
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from koord.process import metrics
from roles.manager.controllers.abnormalnode import AbnormalNodeController
from roles.manager.controllers.noderesource import NodeResourceController
from roles.manager.controllers.state import ClusterState
from roles.manager.metrics import Metrics
from roles.manager.noderesource.inputs import dangling_usage, degraded, pod_usages
from roles.manager.noderesource.model import Inputs, PodInput
from roles.manager.noderesource.plan import PLUGIN_NAMES, decide
from roles.manager.noderesource.reports import PodUsages, ReportKeeper
from roles.manager.options import Options

pytestmark = pytest.mark.feature("MGR-NR-01")
CPU = st.integers(0, 10**7).map(lambda n: f"{n}m") | st.sampled_from(("1", "0.5", 2, 1.5, "100n"))
MEMORY = st.integers(0, 1 << 44).map(str) | st.sampled_from(("1Gi", "512Mi", 7, "1e9"))
ENTRY = st.fixed_dictionaries(
    {
        "name": st.text("abc", min_size=1, max_size=3),
        "namespace": st.sampled_from(("m", "n")),
        "priority": st.sampled_from(("koord-prod", "koord-batch", "", "odd")),
        "qos": st.sampled_from(("LS", "")),
        "podUsage": st.fixed_dictionaries({"resources": st.fixed_dictionaries({}, optional={"cpu": CPU, "memory": MEMORY})}),
    },
    optional={"extensions": st.just({"cpi": 2.0})},
)


def report(entries: list[dict[str, Any]]) -> NodeMetric:
    info = {
        "nodeUsage": {"resources": {"cpu": "1"}},
        "aggregatedNodeUsages": [{"duration": "5m", "usage": {"p95": {"resources": {"cpu": "2"}}}}],
    }
    return convert(
        {"metadata": {"name": "n1"}, "status": {"updateTime": "2026-01-01T00:00:00Z", "nodeMetric": info, "podsMetric": entries}},
        NodeMetric,
    )


@given(st.lists(ENTRY, max_size=8, unique_by=lambda entry: (entry["namespace"], entry["name"])))
def test_property_columns_say_what_the_report_said(entries: list[dict[str, Any]]) -> None:
    plain = report(entries)
    kept = ReportKeeper()(plain)
    assert isinstance(kept.status.pods_metric, PodUsages)
    assert pod_usages(kept) == pod_usages(plain)
    pods = [PodInput(f"{e['namespace']}/{e['name']}", "", "", 0, 0) for e in entries[::2]]  # type: ignore[arg-type]
    assert dangling_usage(kept, pods) == dangling_usage(plain, pods)
    fields = ("name", "namespace", "priority", "qos", "extensions")
    told = [[getattr(entry, field) for field in fields] for entry in kept.status.pods_metric]
    assert told == [[getattr(entry, field) for field in fields] for entry in plain.status.pods_metric]
    for entry, (key, amounts) in zip(entries, pod_usages(plain).items(), strict=True):
        assert kept.status.pods_metric.of(entry["namespace"], entry["name"]) == amounts, key
    assert kept.status == ReportKeeper()(report(entries)).status, "the same report is no change"
    assert kept.status.node_metric is not None
    assert kept.status.node_metric.node_usage == plain.status.node_metric.node_usage  # type: ignore[union-attr]


@pytest.mark.feature("MGR-NR-BATCH-01")
@pytest.mark.feature("MGR-NR-BATCH-03")
def test_nobody_uses_or_holds_less_than_nothing(make: Any) -> None:
    def batch_cpu(annotations: dict[str, str], **report: Any) -> int | None:
        node = convert(make.node("n1", annotations=annotations), Node)
        strategy = dataclasses.replace(SLOConfig().colocation_for(node), enable=True)
        plain = convert(make.metric("n1", **report), NodeMetric)
        amounts = set()
        for metric in (plain, ReportKeeper()(plain)):
            inputs = Inputs(node, strategy, time.time(), metric=metric)
            plan = decide(inputs, cluster_enabled=True, plugins=PLUGIN_NAMES, last_write=None)
            amounts.add(plan.resources.get("kubernetes.io/batch-cpu"))
        (amount,) = amounts
        return amount

    assert batch_cpu({}, pods=[("d", "a", "koord-prod", ("-100", "-1Gi"))]) == batch_cpu({}) == 19200
    held = {"allocations": [{"name": "h", "priority": "koord-batch", "resources": {"kubernetes.io/batch-cpu": "-1k"}}]}
    assert batch_cpu({"node.koordinator.sh/thirdPartyAllocations": orjson.dumps(held).decode()}) is None, "what stands on the node stays"


def test_a_report_that_cannot_be_read_stays_as_it_is() -> None:
    bad = report([{"name": "a", "namespace": "n", "podUsage": {"resources": {"cpu": "lots"}}}])
    assert ReportKeeper()(bad) is bad
    with pytest.raises(QuantityError):
        pod_usages(bad)


def test_a_reported_pod_costs_few_bytes_beside_the_pod_itself() -> None:
    names = {key: key for key in (f"shop-{n % 40}/web-7c9d8b6f5d-{n:05d}" for n in range(110))}
    entries = [
        {
            "namespace": key.split("/")[0],
            "name": key.split("/")[1],
            "priority": "koord-prod",
            "podUsage": {"resources": {"cpu": f"{n}m", "memory": f"{n}Mi"}},
        }
        for n, key in enumerate(names)
    ]
    raw, keeper = msgspec.json.encode(report(entries)), ReportKeeper(names.get)
    reports = 40
    kept = [keeper(msgspec.json.decode(raw, type=NodeMetric))]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept += [keeper(msgspec.json.decode(raw, type=NodeMetric)) for _ in range(reports)]
        each = (tracemalloc.get_traced_memory()[0] - before) / reports / len(names)
    finally:
        tracemalloc.stop()
    assert each < 64, f"{each:.0f} bytes a reported pod, the node's own numbers included"


class Machine(seams.System):
    """A machine whose clock somebody sets."""

    set_to, passed = 1_780_000_000.0, 100.0

    def now(self) -> float:
        return self.set_to + self.passed

    def monotonic(self) -> float:
        return self.passed


@pytest.mark.parametrize("step", [-900.0, 500_000.0])
def test_a_clock_that_is_set_before_a_manager_leads_makes_no_report_younger_or_older(make: Any, step: float) -> None:
    """What decides begins later than the reports come, and must measure their age by the same clock."""
    machine = Machine()
    token = seams.use(machine)
    try:
        state = ClusterState(InformerFactory(None), Options())  # type: ignore[arg-type]
        told = make.metric("n", system=("1", "1Gi"))
        told["status"]["updateTime"] = format_time(machine.now())
        node = convert(make.node("n"), Node)
        state.node_metrics.receive("n", "1", msgspec.Raw(orjson.dumps(told)))
        machine.passed += 40
        machine.set_to += step
        parts: tuple[Any, ...] = (state, None, Metrics(metrics.registry("manager")), Recorder("manager"))
        deciding = NodeResourceController(*parts, plugins=PLUGIN_NAMES, gates=FeatureGates(MANAGER))

        def why() -> str:
            return degraded(deciding.observe(node, deciding.clock()))

        assert why() == "", "40 s old"
        machine.passed += 1200  # degradeTimeMinutes is 15
        assert "old, more than degradeTimeMinutes allows" in why()
        judging = AbnormalNodeController(state, *cast("tuple[Any, ...]", (None, Recorder("manager"), None)))
        assert abs(judging.clock() - deciding.clock()) < 1
    finally:
        seams.leave(token)
