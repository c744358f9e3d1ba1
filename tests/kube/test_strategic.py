"""Strategic merge patch: merge keys, directives and order."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import PODS
from koord.kube.errors import PatchError
from koord.kube.strategic import apply_strategic_patch


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def names(doc: dict[str, Any]) -> list[str]:
    return [item["name"] for item in doc["spec"]["containers"]]


def test_containers_merge_by_name() -> None:
    doc = pod({"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"})
    before = copy.deepcopy(doc)
    change = pod({"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "3"}]})
    result = apply_strategic_patch(doc, change, PODS)
    assert result["spec"]["containers"] == [
        {"name": "a", "image": "1", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "3"}]},
        {"name": "b"},
    ]
    assert doc == before


def test_new_elements_stand_before_those_not_named() -> None:
    assert names(apply_strategic_patch(pod({"name": "a"}), pod({"name": "new"}), "Pod")) == ["new", "a"]
    assert names(apply_strategic_patch(pod({"name": "a"}, {"name": "b"}, {"name": "c"}), pod({"name": "b"}), "Pod")) == ["a", "b", "c"]


def test_delete_and_replace_directives() -> None:
    doc = pod({"name": "a"}, {"name": "b"}, nodeSelector={"x": "1", "y": "2"})
    assert names(apply_strategic_patch(doc, pod({"$patch": "delete", "name": "a"}), "Pod")) == ["b"]
    assert names(apply_strategic_patch(doc, pod({"$patch": "replace"}, {"name": "z"}), "Pod")) == ["z"]
    assert apply_strategic_patch(doc, {"spec": {"nodeSelector": {"$patch": "replace", "z": "3"}}}, "Pod")["spec"]["nodeSelector"] == {
        "z": "3"
    }
    assert apply_strategic_patch(doc, {"spec": {"nodeSelector": {"$patch": "delete"}}}, "Pod")["spec"]["nodeSelector"] == {}
    assert "nodeSelector" not in apply_strategic_patch(doc, {"spec": {"nodeSelector": None}}, "Pod")["spec"]


def test_atomic_lists_are_replaced() -> None:
    doc = pod(tolerations=[{"key": "a"}, {"key": "b"}])
    assert apply_strategic_patch(doc, {"spec": {"tolerations": [{"key": "c"}]}}, "Pod")["spec"]["tolerations"] == [{"key": "c"}]


def test_primitive_lists() -> None:
    doc = {"metadata": {"finalizers": ["a", "b", "c"]}}
    assert apply_strategic_patch(doc, {"metadata": {"finalizers": ["d", "b"]}}, "Pod")["metadata"]["finalizers"] == ["d", "a", "b", "c"]
    assert apply_strategic_patch(doc, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}}, "Pod")["metadata"]["finalizers"] == [
        "a",
        "c",
    ]
    ordered = {"metadata": {"$setElementOrder/finalizers": ["c", "a", "b"], "finalizers": []}}
    assert apply_strategic_patch(doc, ordered, "Pod")["metadata"]["finalizers"] == ["c", "a", "b"]


def test_set_element_order() -> None:
    doc = pod({"name": "a"}, {"name": "server"}, {"name": "b"})
    change = {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "new"}, {"name": "a"}], "containers": [{"name": "new"}]}}
    assert names(apply_strategic_patch(doc, change, "Pod")) == ["server", "b", "new", "a"]


def test_retain_keys() -> None:
    doc = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    change = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert apply_strategic_patch(doc, change, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_template_of_a_workload_is_reached() -> None:
    doc = {"spec": {"template": pod({"name": "a", "image": "1"}, {"name": "b"})}}
    change = {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "2"}]}}}}
    for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"):
        assert apply_strategic_patch(doc, change, kind)["spec"]["template"]["spec"]["containers"][0]["image"] == "2"
    cron = apply_strategic_patch({"spec": {"jobTemplate": doc}}, {"spec": {"jobTemplate": change}}, "CronJob")
    assert len(cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]) == 2


def test_node_conditions() -> None:
    doc = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "x"}], "allocatable": {"cpu": "4"}}}
    change = {"status": {"conditions": [{"type": "Ready", "status": "False"}], "allocatable": {"kubernetes.io/batch-cpu": "2k"}}}
    result = apply_strategic_patch(doc, change, "Node")
    assert result["status"]["conditions"] == [{"type": "Ready", "status": "False", "reason": "x"}]
    assert result["status"]["allocatable"] == {"cpu": "4", "kubernetes.io/batch-cpu": "2k"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0]: has no merge key 'name'"),
        ({"spec": {"containers": ["x"]}}, "spec.containers[0]: must be an object"),
        ({"spec": {"containers": [{"name": {}}]}}, "no merge key"),
        ({"spec": {"nodeSelector": {"$patch": "frob"}}}, "accepted: replace, delete, merge"),
        ({"spec": {"$retainKeys": "x"}}, "spec.$retainKeys: must be a list"),
        ({"spec": {"$frob": 1}}, "unknown directive"),
        ({"metadata": {"finalizers": [{"a": 1}]}}, "list of scalars"),
        ({"spec": {"$setElementOrder/containers": [{}]}}, "needs the merge key"),
        ({"spec": {"$setElementOrder/tolerations": []}}, "not a merged list"),
        (
            {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a"}, {"name": "b"}]}},
            "do not come in this order ('b')",
        ),
    ],
)
def test_bad_patches_say_where(change: dict[str, Any], says: str) -> None:
    with pytest.raises(PatchError) as caught:
        apply_strategic_patch(pod({"name": "a"}, tolerations=[]), change, "Pod")
    assert says in str(caught.value)


containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("abcde")},
        optional={
            "image": st.sampled_from("12"),
            "env": st.lists(st.fixed_dictionaries({"name": st.sampled_from("xyz")}), max_size=2, unique_by=str),
        },
    ),
    max_size=4,
    unique_by=lambda item: item["name"],
)


@given(containers, containers, st.lists(st.sampled_from("abcde"), max_size=2, unique=True), st.permutations("abcde"))
def test_applying_twice_is_applying_once(have: list[Any], change: list[Any], gone: list[str], order: list[str]) -> None:
    change = [item for item in change if item["name"] not in gone] + [{"$patch": "delete", "name": name} for name in gone]
    for extra in ({}, {"$setElementOrder/containers": [{"name": name} for name in order]}):
        if extra:
            change = sorted(change, key=lambda item: order.index(item["name"]))
        body = {"spec": {"containers": change, **extra}, "metadata": {"finalizers": ["f"]}}
        once = apply_strategic_patch(pod(*have), body, "Pod")
        assert apply_strategic_patch(once, body, "Pod") == once
        assert set(names(once)) == ({item["name"] for item in have} | {item["name"] for item in change}) - set(gone)
        assert len(names(once)) == len(set(names(once)))
