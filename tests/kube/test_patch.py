"""JSON patch, merge patch and their inverses."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.kube import patch
from koord.kube.errors import PatchError, PatchTestFailed
from tests.support.examples import examples

scalars = st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text("ab/~é", max_size=4)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab/~", max_size=3), inner, max_size=4), max_leaves=12
)
documents_with_null = st.recursive(
    scalars | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab/~0", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(documents_with_null)
def test_true_equals_no_number_wherever_it_stands(doc: object) -> None:
    def other(value: object) -> object:
        """The same with each 0 and 1 as false and true, and the other way round."""
        if isinstance(value, dict):
            return {key: other(item) for key, item in value.items()}
        if isinstance(value, list):
            return [other(item) for item in value]
        return int(value) if isinstance(value, bool) else bool(value) if value in (0, 1) else value

    assert patch.json_equal(doc, copy.deepcopy(doc))
    assert patch.json_equal(doc, other(doc)) is (repr(doc) == repr(other(doc)))


@given(documents, documents)
def test_merge_patch_round_trip(old: object, new: object) -> None:
    before = copy.deepcopy(old)
    assert patch.json_equal(patch.apply_merge_patch(old, patch.diff_merge_patch(old, new)), new)
    assert old == before


@given(documents)
def test_equal_documents_have_an_empty_difference(doc: object) -> None:
    assert patch.diff_json_patch(doc, copy.deepcopy(doc)) == []
    if isinstance(doc, dict):
        assert patch.diff_merge_patch(doc, copy.deepcopy(doc)) == {}


@given(documents_with_null, documents_with_null)
@examples(99)
def test_json_patch_round_trip(old: object, new: object) -> None:
    before = copy.deepcopy(old)
    assert patch.json_equal(patch.apply_json_patch(old, patch.diff_json_patch(old, new)), new)
    assert old == before


@pytest.mark.parametrize(
    ("doc", "merge", "wanted"),
    [  # the examples of RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_of_the_rfc(doc: object, merge: object, wanted: object) -> None:
    assert patch.apply_merge_patch(doc, merge) == wanted


def test_json_patch_operations() -> None:
    doc = {"a": [1, 2, 3], "b": {"c/d": 1, "e~f": 2}}
    operations = [
        {"op": "test", "path": "/b/c~1d", "value": 1.0},
        {"op": "add", "path": "/a/1", "value": 9},
        {"op": "add", "path": "/a/-", "value": 4},
        {"op": "remove", "path": "/a/0"},
        {"op": "replace", "path": "/b/e~0f", "value": {"x": []}},
        {"op": "copy", "from": "/a", "path": "/b/e~0f/x/-"},
        {"op": "move", "from": "/b/c~1d", "path": "/top"},
    ]
    assert patch.apply_json_patch(doc, operations) == {"a": [9, 2, 3, 4], "b": {"e~f": {"x": [[9, 2, 3, 4]]}}, "top": 1}
    assert doc == {"a": [1, 2, 3], "b": {"c/d": 1, "e~f": 2}}


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        ({"op": "frob", "path": "/a"}, "accepted: add, remove"),
        ({"op": "add", "path": "a", "value": 1}, "start with '/'"),
        ({"op": "add", "path": "/a/4", "value": 1}, "out of range"),
        ({"op": "add", "path": "/a/01", "value": 1}, "no list index"),
        ({"op": "add", "path": "/a/0/x", "value": 1}, "neither object nor list"),
        ({"op": "add", "path": "/x/y", "value": 1}, "/x does not exist"),
        ({"op": "remove", "path": "/nope"}, "does not exist"),
        ({"op": "remove", "path": ""}, "whole document"),
        ({"op": "replace", "path": "/a/-", "value": 1}, "no list index"),
        ({"op": "replace", "path": "/b"}, "needs a value"),
        ({"op": "move", "from": "/b", "path": "/b/c"}, "its own child"),
        ({"op": "move", "path": "/b"}, "from must be a JSON pointer"),
        ({"op": "test", "path": "/b", "value": []}, "test of /b failed"),
        ("add", "must be an object"),
    ],
)
def test_json_patch_errors_say_where(operation: dict[str, object], says: str) -> None:
    with pytest.raises(PatchError, match="operation 0: ") as caught:
        patch.apply_json_patch({"a": [1], "b": {}}, [operation])
    assert says in str(caught.value)


def test_copies_have_a_bound_together() -> None:
    into_itself = [{"op": "copy", "from": "/a", "path": f"/a/x{i}"} for i in range(40)]
    with pytest.raises(PatchError, match=r"^operation \d+: the accumulated size of what is copied is \d+ bytes, more than 3145728$"):
        patch.apply_json_patch({"a": {"b": "c"}}, into_itself)
    one = {"op": "copy", "from": "/a", "path": "/b"}
    mebibyte = {"a": "x" * (1024 * 1024 - 2)}
    assert patch.apply_json_patch(mebibyte, [one] * 3)["b"] == mebibyte["a"]
    with pytest.raises(PatchError, match="operation 3: the accumulated size"):
        patch.apply_json_patch(mebibyte, [one] * 4)


def test_json_patch_refuses_what_is_no_list() -> None:
    with pytest.raises(PatchError, match="must be a list"):
        patch.apply_json_patch({}, {"op": "add"})  # type: ignore[arg-type]


def test_a_failed_test_has_its_own_error() -> None:
    with pytest.raises(PatchTestFailed):
        patch.apply_json_patch({"a": True}, [{"op": "test", "path": "/a", "value": 1}])


def test_difference_is_small() -> None:
    old = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}, "metadata": {"labels": {"x": "y"}}}
    new = {"spec": {"containers": [{"name": "a", "image": "2"}, {"name": "b"}]}, "metadata": {"labels": {}}}
    assert patch.diff_json_patch(old, new) == [
        {"op": "replace", "path": "/spec/containers/0/image", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/x"},
    ]
    assert patch.diff_merge_patch(old["metadata"], new["metadata"]) == {"labels": {"x": None}}
