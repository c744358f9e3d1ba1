"""What pods ask for, and what they will probably use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.estimate import DEFAULT_MEMORY, estimate_pod, estimate_resource
from koord.accounting.pods import is_resized, non_zero_requests, pod_limits, pod_requests, spec_requests
from koord.accounting.resources import fits
from koord.api.objects import Pod, convert


def c(cpu: str | None = None, memory: str | None = None, *, limits: dict[str, str] | None = None, sidecar: bool = False) -> dict[str, Any]:
    requests = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    made: dict[str, Any] = {"name": f"{cpu}-{memory}", "resources": {"requests": requests, "limits": limits or {}}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


def pod(*containers: dict[str, Any], **spec: Any) -> Pod:
    return convert({"spec": {"containers": list(containers), **spec}}, Pod)


@pytest.mark.parametrize(
    ("made", "cpu"),
    [
        (pod(c("1"), c("500m")), 1500),
        (pod(c("1"), initContainers=[c("4")]), 4000),
        (pod(c("5"), initContainers=[c("4")]), 5000),
        (pod(c("1"), initContainers=[c("1", sidecar=True)]), 2000),
        (pod(c("1"), initContainers=[c("1", sidecar=True), c("4")]), 5000),
        (pod(c("1"), initContainers=[c("4"), c("1", sidecar=True)]), 4000),
        (pod(c("1"), initContainers=[c("1", sidecar=True), c("1", sidecar=True), c("500m")]), 3000),
        (pod(c("1"), overhead={"cpu": "10m"}), 1010),
        (pod(c("1"), c("1"), resources={"requests": {"cpu": "3"}}, overhead={"cpu": "10m"}), 3010),
        (pod(), 0),
    ],
)
def test_requests(made: Pod, cpu: int) -> None:
    assert pod_requests(made).get("cpu", 0) == cpu


def test_limits_and_overhead() -> None:
    made = pod(c(limits={"cpu": "1"}), c(), overhead={"cpu": "100m", "memory": "1Mi"})
    assert pod_limits(made) == {"cpu": 1100}


STATES = json.loads((Path(__file__).parents[1] / "fixtures" / "resize-states.json").read_text())


@pytest.mark.feature("SCH-RSZ-01")
@pytest.mark.feature("SCH-RSZ-02")
@pytest.mark.parametrize("state", [pytest.param(state, id=state["name"]) for state in STATES])
def test_a_pod_in_any_state_of_a_resize_counts_as_kube_scheduler_counts_it(state: dict[str, Any]) -> None:
    """What is compared with was read from kube-scheduler 1.36 (tests/e2e/test_resize_real.py reads it anew)."""
    made = convert({"spec": state["spec"], "status": state["status"]}, Pod)
    for amounts, wanted in ((pod_requests(made), state["requests"]), (non_zero_requests(made), state["nonZero"])):
        assert {name: amounts.get(name, 0) for name in ("cpu", "memory")} == wanted
    # What does not follow from the spec alone is known as such: shapes of pods are told apart by it.
    assert is_resized(made) or pod_requests(made) == spec_requests(made.spec)


@pytest.mark.feature("SCH-RSZ-01")
def test_kubelets_before_1_33_tell_it_in_another_place() -> None:
    container = {"name": "a", "resources": {"requests": {"cpu": "100"}}}
    held = [{"name": "a", "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "2"}}}]
    for word, cpu in (("Infeasible", 2000), ("Deferred", 100_000), ("InProgress", 100_000)):
        made = convert({"spec": {"containers": [container]}, "status": {"containerStatuses": held, "resize": word}}, Pod)
        assert pod_requests(made) == {"cpu": cpu}


def test_scoring_defaults() -> None:
    assert non_zero_requests(pod(c(), c("1", "1Gi"))) == {"cpu": 1100, "memory": (200 << 20) + (1 << 30)}
    assert non_zero_requests(pod(c("0", "0"))) == {"cpu": 0, "memory": 0}


quantities = st.integers(0, 64).map(lambda n: f"{n * 250}m")
shapes = st.lists(st.tuples(quantities, st.booleans()), max_size=5)


@given(st.lists(quantities, min_size=1, max_size=4), shapes)
def test_requests_cover_every_moment_of_the_start(main: list[str], init: list[tuple[str, bool]]) -> None:
    """At no time do running init containers, sidecars or main containers need more than the pod asks for, and it is tight."""
    made = pod(*[c(q) for q in main], initContainers=[c(q, sidecar=s) for q, s in init])
    total = pod_requests(made)
    sidecars, peak = 0, 0
    for quantity, is_sidecar in init:
        milli = int(quantity[:-1])
        peak = max(peak, sidecars + milli)
        sidecars += milli if is_sidecar else 0
    peak = max(peak, sidecars + sum(int(q[:-1]) for q in main))
    assert total["cpu"] == peak
    assert fits({"cpu": peak}, total) == []


@pytest.mark.feature("SCH-LA-06")
@pytest.mark.parametrize(
    ("request_", "limit", "factor", "wanted"),
    [
        (1000, 0, 85, 850),
        (1000, 1000, 85, 850),
        (1000, 2000, 85, 1700),
        (1000, 1100, 100, 1100),
        (1000, 500, 85, 500),
        (1, 0, 50, 1),
        (3, 0, 50, 2),
        (1000, 1000, 150, 1000),
    ],
)
def test_estimate_of_one_resource(request_: int, limit: int, factor: int, wanted: int) -> None:
    assert estimate_resource("cpu", request_, limit, factor) == wanted


@pytest.mark.feature("SCH-LA-06")
def test_estimate_of_pods() -> None:
    assert estimate_pod(pod(c("2", "1Gi"))) == {"cpu": 1700, "memory": round((1 << 30) * 0.7)}
    assert estimate_pod(pod(c())) == {"cpu": 250, "memory": DEFAULT_MEMORY}
    batch = pod({"resources": {"requests": {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "1Gi"}}}, priority=5500)
    assert estimate_pod(batch) == {"cpu": 1700, "memory": round((1 << 30) * 0.7)}
    assert estimate_pod(pod(c(), priority=5500)) == {"cpu": 250, "memory": DEFAULT_MEMORY}
    assert estimate_pod(pod(c(), priority=7500)) == {"cpu": 0, "memory": 0}
    assert estimate_pod(pod(c("1", "1Gi"), priority=3500)) == {"cpu": 0, "memory": 0}
    assert estimate_pod(pod(c("1", "1Gi", limits={"cpu": "4"}))) == {"cpu": 3400, "memory": round((1 << 30) * 0.7)}
