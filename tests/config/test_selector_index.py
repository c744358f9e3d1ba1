"""Many selectors at once give the answers of one after the other, at the cost of those that are concerned."""

import json
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.config import selector_index, slo_validate
from koord.config.selector_index import SelectorIndex, bounds_of, meeting
from koord.config.selectors import compile_selector

KEYS, VALUES = ("a", "b", "c"), ("", "x", "y")
EXPRESSIONS = st.one_of(
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        st.sampled_from(KEYS),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=2),
    ),
    st.builds(lambda key, operator: {"key": key, "operator": operator}, st.sampled_from(KEYS), st.sampled_from(["Exists", "DoesNotExist"])),
)
SELECTORS = st.builds(
    lambda labels, expressions: compile_selector({"matchLabels": labels, "matchExpressions": expressions}),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=2),
    st.lists(EXPRESSIONS, max_size=3),
)
# A value that no selector names stands for all such values.
NODES = [
    {key: value for key, value in zip(KEYS, values, strict=True) if value is not None}
    for values in product((None, *VALUES, "other"), repeat=len(KEYS))
]


def demanded(selector):
    return {key for key, bound in bounds_of(selector).items() if bound.present}


@pytest.mark.feature("MGR-CM-V-01")
@given(st.lists(SELECTORS, max_size=6))
def test_property_an_index_gives_the_answers_of_each_selector(selectors):
    index = SelectorIndex([*selectors, None])
    for labels in NODES:
        assert index.matching(labels) == [number for number, selector in enumerate(selectors) if selector.matches(labels)]
    told = {(one, other): labels for one, other, labels in index.overlaps()}
    for one, other in combinations(range(len(selectors)), 2):
        keys = [demanded(selectors[number]) for number in (one, other)]
        comparable = keys[0] <= keys[1] or keys[1] <= keys[0]
        both = any(selectors[one].matches(labels) and selectors[other].matches(labels) for labels in NODES)
        assert ((one, other) in told) == (comparable and both)
        if (one, other) in told:
            assert selectors[one].matches(told[one, other])
            assert selectors[other].matches(told[one, other])


@pytest.mark.feature("MGR-CM-V-01")
def test_entries_that_have_nothing_in_common_are_not_compared(monkeypatch):
    compared = []
    monkeypatch.setattr(selector_index, "meeting", lambda *pair: compared.append(pair) or meeting(*pair))
    entries = [
        {"name": f"p{i}", "nodeSelector": {"matchExpressions": [
            {"key": f"k{j}", "operator": "In", "values": [f"{i}-{x}" for x in range(10)]} for j in range(3)]}}
        for i in range(300)
    ]  # fmt: skip
    data = {"colocation-config": json.dumps({"enable": True, "nodeConfigs": entries})}
    (found,) = slo_validate.check(data, {}, need_names=True)
    assert compared == []
    assert found.conflict({"k0": "7-3", "k1": "7-1", "k2": "7-9"}) == []
    entries.append({"name": "again", "nodeSelector": {"matchLabels": {"k0": "7-3", "k1": "7-1", "k2": "7-9", "zone": "z"}}})
    with pytest.raises(slo_validate.Refused, match=r"p7, again match the same nodes"):
        slo_validate.check({"colocation-config": json.dumps({"enable": True, "nodeConfigs": entries})}, {}, need_names=True)
    assert len(compared) <= 3
