"""Labels whose value needs reading, and that the table of names is sound."""

from __future__ import annotations

import re

import pytest

from koord.api import labels, names


def constants(prefix: str) -> dict[str, str]:
    return {name: value for name, value in vars(names).items() if name.startswith(prefix) and isinstance(value, str)}


@pytest.mark.feature("API-LBL-01")
def test_names_are_legal_and_none_is_there_twice() -> None:
    legal = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
    for prefix in ("LABEL_", "ANNOTATION_", "RESOURCE_"):
        table = {name: value for name, value in constants(prefix).items() if not value.endswith("-")}
        assert len(set(table.values())) == len(table)
        for name, value in table.items():
            assert legal.fullmatch(value), name
    assert all(not new.startswith(old) or new == old for old, new in names.DEPRECATED_RESOURCES.items())
    assert not names.DEPRECATED_RESOURCES.keys() & set(constants("RESOURCE_").values())


@pytest.mark.feature("API-LBL-01")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.5", 50),
        ("1", 100),
        ("0", 0),
        ("0.29", 28),
        ("1.5", 150),
        ("2e-1", 20),
        ("-0.1", None),
        ("x", None),
        ("", None),
        ("NaN", None),
        ("inf", None),
        ("1e308", None),
        ("1_0", None),
        (" 1", None),
        ("१", None),
    ],
)
def test_ratio_labels(text: str, wanted: int | None) -> None:
    key = names.LABEL_NODE_CPU_RECLAIM_RATIO
    assert labels.ratio_percent({key: text}, key) == wanted


def test_missing_labels_decide_nothing() -> None:
    for nothing in (None, {}):
        assert labels.ratio_percent(nothing, names.LABEL_NODE_MEMORY_RECLAIM_RATIO) is None
        assert labels.effective_cpu_bind_policy(nothing, "none", None) == "None"
        assert labels.numa_topology_policy(nothing) == ""
        assert labels.reservation_order(nothing) == 0
        assert not labels.is_true(nothing, names.LABEL_POD_RESERVATION_IGNORED)


@pytest.mark.feature("API-LBL-01")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [("1", True), ("t", True), ("TRUE", True), ("0", False), ("False", False), ("f", False), ("yes", None), ("tRUE", None), ("", None)],
)
def test_go_booleans(text: str, wanted: bool | None) -> None:
    assert labels.parse_go_bool(text) is wanted


@pytest.mark.feature("API-LBL-01")
@pytest.mark.parametrize(
    ("label", "policy", "options", "wanted"),
    [
        ("FullPCPUsOnly", "none", {}, "FullPCPUsOnly"), ("SpreadByPCPUs", "none", {}, "SpreadByPCPUs"),
        ("SpreadByPCPUs", "static", {"full-pcpus-only": "true"}, "FullPCPUsOnly"),
        ("None", "static", {"full-pcpus-only": "true"}, "FullPCPUsOnly"),
        ("", "static", {"full-pcpus-only": "false"}, "None"), ("", "none", {"full-pcpus-only": "true"}, "None"),
        ("what", "none", None, "None"),
    ],
)  # fmt: skip
def test_cpu_bind_policy_of_a_node(label: str, policy: str, options: dict[str, str] | None, wanted: str) -> None:
    assert labels.effective_cpu_bind_policy({names.LABEL_NODE_CPU_BIND_POLICY: label}, policy, options) == wanted


def test_words() -> None:
    assert labels.numa_topology_policy({names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"}) == "SingleNUMANode"
    assert labels.numa_topology_policy({names.LABEL_NODE_NUMA_TOPOLOGY_POLICY: "Any"}) == ""
    assert labels.is_true({names.LABEL_POD_RESERVATION_IGNORED: "true"}, names.LABEL_POD_RESERVATION_IGNORED)
    assert not labels.is_true({names.LABEL_POD_RESERVATION_IGNORED: "True"}, names.LABEL_POD_RESERVATION_IGNORED)


@pytest.mark.parametrize(
    ("text", "wanted"), [("5", 5), ("-5", -5), ("+5", 5), ("x", 0), ("1.5", 0), ("9" * 19, 0), ("9" * 40, 0), ("-", 0)]
)
def test_reservation_order(text: str, wanted: int) -> None:
    assert labels.reservation_order({names.LABEL_RESERVATION_ORDER: text}) == wanted
