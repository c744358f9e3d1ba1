"""Resource names of former releases."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import deprecated, names
from koord.api.objects import Device, ElasticQuota, Node, Object, Pod, convert

ALL_NAMES = sorted({*names.DEPRECATED_RESOURCES, *names.DEPRECATED_RESOURCES.values(), "cpu", "memory"})
lists = st.dictionaries(st.sampled_from(ALL_NAMES), st.integers(0, 9).map(str))


@pytest.mark.feature("API-RES-01")
@given(lists)
def test_old_names_give_way_where_the_new_one_is_absent(resources: dict[str, str]) -> None:
    given_list = dict(resources)
    deprecated.rewrite_resource_list(resources)
    for old, new in names.DEPRECATED_RESOURCES.items():
        if old in given_list and new in given_list:
            assert (resources[old], resources[new]) == (given_list[old], given_list[new])
        elif old in given_list:
            assert old not in resources
            assert resources[new] == given_list[old]
    assert sorted(resources.values()) == sorted(given_list.values())
    again = dict(resources)
    deprecated.rewrite_resource_list(again)
    assert again == resources


OLD, NEW = {"kubernetes.io/gpu": "100"}, {"koordinator.sh/gpu": "100"}
BATCH_OLD, BATCH_NEW = {"koordinator.sh/batch-cpu": "1k"}, {"kubernetes.io/batch-cpu": "1k"}


def _pod(resources: dict[str, str], batch: dict[str, str]) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": dict(resources), "limits": dict(batch)}}
    held = {"name": "c", "allocatedResources": dict(resources), "resources": copy.deepcopy(container["resources"])}
    status = {"containerStatuses": [held], "initContainerStatuses": [copy.deepcopy(held)], "allocatedResources": dict(batch)}
    spec = {"containers": [container], "initContainers": [copy.deepcopy(container)], "overhead": dict(batch)}
    return {"spec": spec, "status": {**status, "resources": {"requests": dict(batch)}}}


CASES: list[tuple[Any, Any, dict[str, Any], dict[str, Any]]] = [
    (Pod, deprecated.rewrite_pod, _pod(OLD, BATCH_OLD), _pod(NEW, BATCH_NEW)),
    (
        Node,
        deprecated.rewrite_node,
        {"status": {"capacity": OLD, "allocatable": BATCH_OLD}},
        {"status": {"capacity": NEW, "allocatable": BATCH_NEW}},
    ),
    (Device, deprecated.rewrite_device, {"spec": {"devices": [{"resources": OLD}]}}, {"spec": {"devices": [{"resources": NEW}]}}),
    (
        ElasticQuota,
        deprecated.rewrite_elastic_quota,
        {"spec": {"min": OLD, "max": BATCH_OLD}},
        {"spec": {"min": NEW, "max": BATCH_NEW}},
    ),
]


@pytest.mark.feature("API-RES-01")
@pytest.mark.parametrize(("projection", "rewrite", "old", "new"), CASES)
def test_objects_are_rewritten(projection: type[Object], rewrite: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
    projected = convert(copy.deepcopy(old), projection)
    rewrite(projected)
    assert projected == convert(copy.deepcopy(new), projection)
