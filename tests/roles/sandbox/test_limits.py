"""Kubelet arithmetic: shares, quota, memory, oom_score_adj."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.sandbox.process_kubelet import limits, podspec


@pytest.mark.parametrize(("milli", "shares"), [(0, 2), (1, 2), (10, 10), (250, 256), (1000, 1024), (1500, 1536), (10**9, 262_144)])
def test_shares(milli: int, shares: int) -> None:
    assert limits.shares_of(milli) == shares


@pytest.mark.parametrize(("milli", "quota"), [(0, -1), (5, 1000), (10, 1000), (250, 25_000), (2000, 200_000)])
def test_quota(milli: int, quota: int) -> None:
    assert limits.quota_of(milli) == quota


@given(st.integers(2, 262_144), st.integers(2, 262_144))
def test_weight_keeps_order_and_range(a: int, b: int) -> None:
    assert 1 <= limits.weight_of(a) <= 10_000
    assert a > b or limits.weight_of(a) <= limits.weight_of(b)


def test_pod_limit_only_when_every_container_has_one() -> None:
    one = limits.pod_limits("Burstable", {"cpu": 500}, [{"cpu": 500, "memory": 100}, {"memory": 50}])
    assert one == limits.CgroupLimits(512, -1, 150)
    both = limits.pod_limits("Guaranteed", {"cpu": 1000}, [{"cpu": 500, "memory": 100}, {"cpu": 500, "memory": 50}])
    assert both == limits.CgroupLimits(1024, 100_000, 150)
    assert limits.pod_limits("BestEffort", {}, [{}]) == limits.CgroupLimits(2, -1, -1)


def test_oom_score_by_class() -> None:
    assert limits.oom_score_adj("Guaranteed", 0, 100) == -997
    assert limits.oom_score_adj("BestEffort", 0, 100) == 1000
    assert limits.oom_score_adj("Burstable", 50, 100) == 500
    assert limits.oom_score_adj("Burstable", 0, 100) == 999
    assert limits.oom_score_adj("Burstable", 100, 100) == 2


def _pod(*containers: dict) -> dict:
    return {"containers": [{"name": f"c{i}", "resources": c} for i, c in enumerate(containers)]}


@pytest.mark.parametrize(
    ("spec", "qos"),
    [
        (_pod({}), "BestEffort"),
        (_pod({"requests": {"kubernetes.io/batch-cpu": 500}}), "BestEffort"),
        (_pod({"requests": {"cpu": "1"}}), "Burstable"),
        (_pod({"limits": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed"),
        (_pod({"limits": {"cpu": "1", "memory": "1Gi"}}, {}), "Burstable"),
        (_pod({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}), "Burstable"),
    ],
)
def test_kubernetes_qos(spec: dict, qos: str) -> None:
    assert podspec.kubernetes_qos(spec) == qos


def test_pod_request_is_the_larger_of_sum_and_init_plus_overhead() -> None:
    spec = _pod({"requests": {"cpu": "300m"}}, {"requests": {"cpu": "200m"}})
    spec["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "1", "memory": "64Mi"}}}]
    spec["overhead"] = {"cpu": "50m"}
    assert podspec.pod_requests(spec) == {"cpu": 1050, "memory": 64 * 2**20}


def test_expansion_of_variables() -> None:
    assert podspec.expand("$(A)-$(B)-$$(A)", {"A": "x"}) == "x-$(B)-$(A)"


def test_process_spec_takes_only_what_the_pod_says() -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"nodeName": "local", "containers": [{"name": "c"}], "securityContext": {"runAsUser": 7}},
    }
    container = {
        "name": "c",
        "command": ["/bin/echo"],
        "args": ["$(WHO) on $(NODE)"],
        "env": [{"name": "WHO", "value": "me"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    }
    made = podspec.process_spec(pod, container, host_ip="127.0.0.1", memory_capacity=100)
    assert made.argv == ["/bin/echo", "me on local"]
    assert made.uid == 7
    assert set(made.env) == {"PATH", "HOSTNAME", "WHO", "NODE"}
