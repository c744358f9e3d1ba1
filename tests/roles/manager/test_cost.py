"""What must not grow with the cluster: counted in calls, not in seconds."""

from __future__ import annotations

import math
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.names import ANNOTATION_NODE_CPU_NORMALIZATION_RATIO
from koord.api.objects import NodeMetric, Pod, Recommendation, convert
from koord.api.selectors import parse_label_selector
from koord.api.sharing import PodSharer
from roles.manager.abnormal.signs import LEAST_EXCESS, MIN_REPLICAS, SIGMAS, Families, cpi_outliers, judge
from roles.manager.noderesource.normalization import _answer
from roles.manager.noderesource.reports import ReportKeeper
from roles.manager.recommender.apply import Following
from roles.manager.recommender.resolve import Target
from tests.support.counting import counting


def reports(cpis):
    """One replica of a workload on each node."""
    for number, cpi in enumerate(cpis):
        entry = {"namespace": "d", "name": f"web-{number}", "priority": "koord-prod", "extensions": {"cpi": cpi}}
        yield msgspec.convert({"metadata": {"name": f"n{number}"}, "status": {"podsMetric": [entry]}}, NodeMetric)


def owners(count):
    return {f"d/web-{number}": "rs" for number in range(count)}


@pytest.mark.feature("BEY-ABN-01")
@given(st.lists(st.floats(0.1, 10.0), min_size=MIN_REPLICAS, max_size=30))
def test_property_each_replica_is_compared_with_all_others(cpis):
    wanted, close = {}, set()
    for number, cpi in enumerate(cpis):
        others = cpis[:number] + cpis[number + 1 :]
        mean = statistics.fmean(others)
        bound = max(mean + SIGMAS * statistics.pstdev(others), mean * LEAST_EXCESS)
        if math.isclose(cpi, bound, rel_tol=1e-6):
            close.add(f"n{number}")
        elif cpi > bound:
            wanted[f"n{number}"] = [f"d/web-{number}"]
    found = cpi_outliers(reports(cpis), owners(len(cpis)))
    assert {node: pods for node, pods in found.items() if node not in close} == wanted


@pytest.mark.feature("BEY-ABN-01")
def test_outliers_of_a_workload_cost_no_more_than_its_replicas():
    def work(count):
        metrics, owned = list(reports([1.0 + 0.001 * (number % 7) for number in range(count)])), owners(count)
        with counting() as calls:
            cpi_outliers(metrics, owned)
        return calls.number

    assert work(2000) < 2.2 * work(1000)


@pytest.mark.feature("BEY-REC-01")
def test_a_pod_is_not_compared_with_every_recommendation():
    following = Following()

    def add(name, selector):
        annotations = {"analysis.koordinator.sh/mode": "apply-on-create", "analysis.koordinator.sh/selector": selector}
        status = {"conditions": [{"type": "LowConfidence", "status": "False"}]}
        meta = {"name": name, "namespace": "d", "annotations": annotations}
        following.put(msgspec.convert({"metadata": meta, "status": status}, Recommendation))

    for number in range(2000):
        add(f"r{number:04}", f"app=a{number}")
    add("any", "team")
    with counting() as calls:
        found = following.fitting("d", {"app": "a1999", "pod-template-hash": "x"})
        none = following.fitting("d", {"app": "other"})
    assert found.metadata.name == "r1999"
    assert none is None
    assert calls.number < 60


@pytest.mark.feature("MGR-REC-01")
def test_a_namespace_of_pods_is_looked_through_by_their_labels_alone(make):
    sharer, target = PodSharer(), Target((parse_label_selector("app=a1,statefulset.kubernetes.io/pod-name=p1"),))

    def pod(number):
        labels = {"app": f"a{number % 10}", "statefulset.kubernetes.io/pod-name": f"p{number}"}
        return sharer(convert(make.pod(f"p{number}", "n1", labels=labels), Pod))

    pods = [pod(number) for number in range(100)]
    with counting() as calls:
        found = [shared.name for shared in pods if target.matches(shared)]
    assert found == ["p1"]
    assert calls.number < 15 * len(pods)


@pytest.mark.feature("BEY-ABN-01")
def test_pods_that_report_nothing_of_their_own_cost_the_judgement_of_nodes_nothing(make):
    def work(pods, extensions):
        report = make.metric("n", pods=[("d", f"web-{number}", "koord-prod", ("1", "1Gi")) for number in range(pods)])
        report["status"]["podsMetric"][0]["extensions"] = extensions
        metric, families = ReportKeeper()(convert(report, NodeMetric)), Families(lambda key: "rs")
        with counting() as calls:
            families.add(metric)
            signs = judge(metric, now=0.0)
        return calls.number, signs.pressure

    few, pressure = work(10, {"cpi": 1.5, "psi": {"cpu": 60.0}})
    many, _ = work(200, {"cpi": 1.5, "psi": {"cpu": 60.0}})
    assert pressure == 1.0
    assert many < few + 20


@pytest.mark.feature("MGR-NR-NORM-01")
@given(st.floats(1.0, 5.0))
def test_the_ratio_that_is_used_is_the_one_that_is_written(ratio):
    found = _answer(ratio, "test")
    assert found.ratio == float(found.annotations[ANNOTATION_NODE_CPU_NORMALIZATION_RATIO])
