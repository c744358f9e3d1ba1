"""Label, field and node selectors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import selectors
from koord.api.selectors import SelectorError, from_label_selector, parse_field_selector, parse_label_selector

keys = st.sampled_from(["a", "b", "x.io/name", "in", "notin"])
values = st.sampled_from(["", "1", "2", "v", "w-1"])
expressions = st.one_of(
    st.tuples(keys, st.sampled_from(["In", "NotIn"]), st.lists(values, min_size=1, max_size=3)),
    st.tuples(keys, st.sampled_from(["Exists", "DoesNotExist"]), st.just([])),
)
labels = st.dictionaries(keys, values, max_size=4)


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("a=b", [{"a": "b"}], [{}, {"a": "c"}]),
        ("a==b", [{"a": "b"}], [{}]),
        ("a!=b", [{}, {"a": "c"}], [{"a": "b"}]),
        ("a in (b, c)", [{"a": "b"}, {"a": "c"}], [{}, {"a": "d"}]),
        ("a notin (b,c),d", [{"d": "1"}, {"a": "x", "d": ""}], [{"d": "", "a": "b"}, {"a": "x"}]),
        ("x.io/a", [{"x.io/a": ""}], [{}]),
        ("!a", [{}], [{"a": ""}]),
        ("! a , b", [{"b": ""}], [{"a": "", "b": ""}]),
        ("a>3", [{"a": "4"}], [{"a": "3"}, {"a": "x"}, {}]),
        ("a<3", [{"a": "2"}, {"a": "-5"}], [{"a": "3"}]),
        ("a=", [{"a": ""}], [{"a": "b"}, {}]),
        ("a in (,b)", [{"a": ""}, {"a": "b"}], [{}]),
        ("", [{}, {"a": "b"}], []),
    ],
)
def test_text(text: str, yes: list[dict[str, str]], no: list[dict[str, str]]) -> None:
    selector = parse_label_selector(text)
    assert all(selector.matches(item) for item in yes)
    assert not any(selector.matches(item) for item in no)


@pytest.mark.parametrize(
    "text", ["a b", "a=b c", "a in b", "a in (b", ",", "a,", "=b", "a>x", "-a=b", "a=-", "a in ()x", "(a)", "a=b=c", "x/y/z"]
)
def test_bad_text(text: str) -> None:
    with pytest.raises(SelectorError):
        parse_label_selector(text)


@given(st.lists(expressions, max_size=4), labels)
def test_object_text_and_back(items: list[tuple[str, str, list[str]]], sample: dict[str, str]) -> None:
    wire = {"matchExpressions": [{"key": key, "operator": operator, "values": vals} for key, operator, vals in items]}
    selector = from_label_selector(wire)
    assert parse_label_selector(str(selector)) == selector

    def holds(key: str, operator: str, vals: list[str]) -> bool:
        if operator in ("Exists", "DoesNotExist"):
            return (key in sample) == (operator == "Exists")
        return (key in sample and sample[key] in vals) if operator == "In" else not (key in sample and sample[key] in vals)

    assert selector.matches(sample) == all(holds(*item) for item in items)


def test_null_and_empty_selectors() -> None:
    assert not from_label_selector(None).matches({})
    assert from_label_selector(None, nil_matches=True).matches({"a": "b"})
    assert from_label_selector({}).matches(None)
    assert from_label_selector({}).everything
    assert from_label_selector({"matchLabels": {"a": "b"}}).matches({"a": "b", "c": "d"})
    assert selectors.NOTHING.nothing


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        ({"matchLabels": ["a"]}, "must be a mapping"),
        ({"matchLabels": {"a": "b c"}}, "no valid label value"),
        ({"matchLabels": {"a": 1}}, "no valid label value"),
        ({"matchExpressions": [{"key": "a", "operator": "In"}]}, "at least one value"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}, "takes no values"),
        ({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}, "accepted: In, NotIn"),
        ({"matchExpressions": [{"operator": "In", "values": ["1"]}]}, "no valid label key"),
        ({"matchExpressions": {"key": "a"}}, "must be a list"),
        ({"matchExpressions": ["a"]}, "must be a mapping"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": "abc"}]}, "must be a list of strings"),
    ],
)
def test_bad_objects_say_what_is_accepted(selector: dict[str, Any], says: str) -> None:
    with pytest.raises(SelectorError) as caught:
        from_label_selector(selector)
    assert says in str(caught.value)


class Struct:
    """A projection's spelling of a selector."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def test_structs_are_read_like_dicts() -> None:
    expression = Struct(key="zone", operator="In", values=("a",))
    assert from_label_selector(Struct(match_labels={"x": "y"}, match_expressions=(expression,))).matches({"x": "y", "zone": "a"})
    term = Struct(match_expressions=(expression,), match_fields=None)
    assert selectors.node_selector(Struct(node_selector_terms=(term,))).matches({"zone": "a"}, "n")


def test_node_selector_terms() -> None:
    def term(*expressions: tuple[str, str, list[str]], fields: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        return {"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in expressions], "matchFields": fields or []}

    either = selectors.node_selector(
        {"nodeSelectorTerms": [term(("cpu", "Gt", ["8"]), ("gpu", "Exists", [])), term(("zone", "NotIn", ["a"]))]}
    )
    assert either.matches({"cpu": "9", "gpu": "", "zone": "a"}, "n")
    assert not either.matches({"cpu": "8", "gpu": "", "zone": "a"}, "n")
    assert either.matches({}, "n")
    named = selectors.node_selector_term(term(fields=[{"key": "metadata.name", "operator": "In", "values": ["n1"]}]))
    assert named.matches(None, "n1")
    assert not named.matches(None, "n2")
    assert not selectors.node_selector_term({}).matches({}, "n")
    assert not selectors.node_selector({}).matches({}, "n")
    with pytest.raises(SelectorError, match=r"accepted: metadata\.name"):
        selectors.node_selector_term(term(fields=[{"key": "spec.x", "operator": "In", "values": ["n1"]}]))
    for limit in ("x", "1_0", "9" * 30, "9" * 5000):
        with pytest.raises(SelectorError, match="exactly one integer"):
            selectors.node_selector_term(term(("cpu", "Lt", [limit])))
    assert not selectors.node_selector_term(term(("cpu", "Gt", ["8"]))).matches({"cpu": "9" * 30}, "n")


def test_field_selectors() -> None:
    selector = parse_field_selector("spec.nodeName=n1,status.phase!=Failed")
    assert selector.matches({"spec.nodeName": "n1", "status.phase": "Running"})
    assert not selector.matches({"spec.nodeName": "n1", "status.phase": "Failed"})
    assert not selector.matches({"spec.nodeName": "n2"})
    assert parse_field_selector("spec.nodeName=").matches({})
    assert parse_field_selector("spec.unschedulable==true").matches({"spec.unschedulable": "true"})
    assert parse_field_selector("").matches({})
    for bad in ("a", "=b", "a=b,,c=d", "a=b=c", "a=\\x", "a!b"):
        with pytest.raises(SelectorError):
            parse_field_selector(bad)


@given(st.lists(st.tuples(st.sampled_from(["metadata.name", "spec.nodeName"]), st.text("ab,=\\ ", max_size=5), st.booleans()), max_size=3))
def test_field_selector_round_trip(items: list[tuple[str, str, bool]]) -> None:
    selector = selectors.FieldSelector(tuple(selectors.FieldRequirement(*item) for item in items))
    assert parse_field_selector(str(selector)) == selector
