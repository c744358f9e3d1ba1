"""Priority and QoS classes, their resolution and the resources they stand for."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import names
from koord.api.objects import Pod, convert
from koord.api.priority import (
    BANDS,
    DEFAULT_VALUES,
    PriorityClass,
    PriorityError,
    class_of_value,
    pod_priority_class,
    pod_priority_value,
    priority_class_raw,
    priority_class_with_default,
    priority_value_with_default,
    sub_priority,
    translate_resource_name,
)
from koord.api.qos import QoSClass, kubernetes_qos, pod_qos, qos_raw, qos_with_default


def pod(containers: list[dict[str, Any]] | None = None, **rest: Any) -> Pod:
    spec = {"containers": containers or [{}], **rest.pop("spec", {})}
    return convert({"metadata": rest.pop("metadata", {}), "spec": spec, "status": rest.pop("status", {})}, Pod)


def asks(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> dict[str, Any]:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}}


@pytest.mark.feature("API-PRIO-01")
@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (9000, "koord-prod"), (9999, "koord-prod"), (10000, ""), (8999, ""), (7000, "koord-mid"), (7999, "koord-mid"), (8000, ""),
        (5000, "koord-batch"), (5999, "koord-batch"), (6000, ""), (3000, "koord-free"), (3999, "koord-free"), (2999, ""), (0, ""),
        (-5, ""), (None, ""),
    ],
)  # fmt: skip
def test_bands(value: int | None, wanted: str) -> None:
    assert class_of_value(value) == wanted


@pytest.mark.feature("API-PRIO-01")
def test_label_decides_alone() -> None:
    label = names.LABEL_POD_PRIORITY_CLASS
    assert priority_class_raw({label: "koord-batch"}, 9500) is PriorityClass.BATCH
    assert priority_class_raw({label: "nonsense"}, 9500) is PriorityClass.NONE
    assert priority_class_raw({label: ""}, 9500) is PriorityClass.NONE
    assert priority_class_raw({}, 9500) is PriorityClass.PROD
    assert priority_class_raw(None, None) is PriorityClass.NONE


@pytest.mark.feature("API-PRIO-01")
@pytest.mark.parametrize(
    ("qos", "wanted", "value"),
    [
        ("SYSTEM", "koord-prod", 9500),
        ("LSE", "koord-prod", 9500),
        ("LSR", "koord-prod", 9500),
        ("LS", "koord-prod", 9500),
        ("BE", "koord-batch", 5500),
        ("", "", 0),
    ],
)
def test_class_by_qos(qos: str, wanted: str, value: int) -> None:
    assert priority_class_with_default({}, None, QoSClass(qos)) == wanted
    assert priority_value_with_default({}, None, QoSClass(qos)) == value
    assert priority_value_with_default({}, 0, QoSClass(qos)) == value
    assert priority_value_with_default({}, 123, QoSClass(qos)) == 123


def test_values_lie_in_their_bands() -> None:
    for priority, (low, high) in BANDS.items():
        assert low <= DEFAULT_VALUES[priority] <= high


@pytest.mark.feature("API-PRIO-01")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", 0),
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        ("010", 8),
        ("0x10", 16),
        ("0o17", 15),
        ("0b101", 5),
        ("0", 0),
        ("2147483647", 2147483647),
        ("-2147483648", -2147483648),
        ("1_000", 1000),
    ],
)
def test_sub_priority(text: str, wanted: int) -> None:
    assert sub_priority({names.LABEL_POD_PRIORITY: text}) == wanted


def test_sub_priority_missing_is_zero() -> None:
    assert sub_priority(None) == sub_priority({}) == 0


@pytest.mark.parametrize("text", ["x", "1.5", "2147483648", "-2147483649", "08", "0x", " 5", "5 ", "1__0", "--1", "9" * 100])
def test_bad_sub_priority_is_named(text: str) -> None:
    with pytest.raises(PriorityError, match=r"koordinator\.sh/priority"):
        sub_priority({names.LABEL_POD_PRIORITY: text})


@given(st.text(max_size=10))
def test_sub_priority_never_crashes(text: str) -> None:
    with contextlib.suppress(PriorityError):
        assert -(1 << 31) <= sub_priority({names.LABEL_POD_PRIORITY: text}) < 1 << 31


@pytest.mark.feature("API-RES-01")
def test_translation() -> None:
    assert translate_resource_name(PriorityClass.BATCH, "cpu") == "kubernetes.io/batch-cpu"
    assert translate_resource_name(PriorityClass.BATCH, "memory") == "kubernetes.io/batch-memory"
    assert translate_resource_name(PriorityClass.MID, "cpu") == "kubernetes.io/mid-cpu"
    assert translate_resource_name(PriorityClass.MID, "memory") == "kubernetes.io/mid-memory"
    assert translate_resource_name(PriorityClass.BATCH, "ephemeral-storage") == ""
    for name in ("cpu", "memory", "nvidia.com/gpu"):
        assert translate_resource_name(PriorityClass.PROD, name) == translate_resource_name(PriorityClass.NONE, name) == name
        assert translate_resource_name(PriorityClass.FREE, name) == ""


@pytest.mark.feature("API-QOS-01")
def test_label_then_kubernetes() -> None:
    label = names.LABEL_POD_QOS
    assert qos_raw({label: "LSE"}) is QoSClass.LSE
    assert qos_raw({label: "lse"}) is qos_raw({}) is qos_raw(None) is QoSClass.NONE
    assert qos_with_default({label: "BE"}, "Guaranteed") is QoSClass.BE
    assert qos_with_default({label: "what"}, "Guaranteed") is QoSClass.LSR
    assert qos_with_default({}, "Burstable") is QoSClass.LS
    assert qos_with_default({}, "BestEffort") is QoSClass.BE
    assert qos_with_default({}, "") is QoSClass.NONE


FULL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.feature("API-QOS-01")
@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (pod([asks(FULL, FULL)]), "Guaranteed"),
        (pod([asks(FULL, FULL), asks({"cpu": "500m", "memory": "1Gi"}, {"cpu": "0.5", "memory": "1024Mi"})]), "Guaranteed"),
        (pod([asks(FULL, FULL), {}]), "Burstable"),
        (pod([asks(FULL, {"cpu": "2", "memory": "1Gi"})]), "Burstable"),
        (pod([asks({"cpu": "1"}, {"cpu": "1"})]), "Burstable"),
        (pod([asks({"cpu": "1"})]), "Burstable"),
        (pod([asks({}, {"memory": "1Gi"})]), "Burstable"),
        (pod([asks({"kubernetes.io/batch-cpu": "1000"}, {"kubernetes.io/batch-cpu": "1000"})]), "BestEffort"),
        (pod([asks({"cpu": "0"})]), "BestEffort"),
        (pod([{}]), "BestEffort"),
        (pod([asks(FULL, FULL)], spec={"initContainers": [{}]}), "Burstable"),
        (pod([asks(FULL, FULL)], spec={"initContainers": [asks(FULL, FULL)]}), "Guaranteed"),
        (pod([{}], spec={"resources": {"requests": FULL, "limits": FULL}}), "Guaranteed"),
        (pod([{}], status={"qosClass": "Guaranteed"}), "Guaranteed"),
    ],
)
def test_kubernetes_qos_is_computed(made: Pod, wanted: str) -> None:
    assert kubernetes_qos(made) == wanted
    assert pod_qos(made) == {"Guaranteed": "LSR", "Burstable": "LS", "BestEffort": "BE"}[wanted]


def test_class_and_value_of_a_pod() -> None:
    assert pod_priority_class(pod([asks({"cpu": "1"})])) is PriorityClass.PROD
    assert pod_priority_class(pod()) is PriorityClass.BATCH
    assert pod_priority_class(pod(spec={"priority": 7100})) is PriorityClass.MID
    assert pod_priority_value(pod()) == 5500
    assert pod_priority_value(pod(spec={"priority": 7100})) == 7100
    labelled = pod(metadata={"labels": {names.LABEL_POD_QOS: "SYSTEM"}})
    assert pod_priority_class(labelled) is PriorityClass.PROD
