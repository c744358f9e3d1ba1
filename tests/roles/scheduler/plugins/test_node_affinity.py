"""NodeAffinity on names of nodes, as the pods of DaemonSets have it (SCH-KS-05)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.selectors import whole_number
from roles.scheduler import testing
from roles.scheduler.cluster import labels, terms
from roles.scheduler.cluster.terms import IN, NOT_IN, NodeTerm, Requirement
from roles.scheduler.framework.context import ALL_ROWS
from roles.scheduler.plugins import node_affinity
from roles.scheduler.plugins.node_affinity import any_term

NAME = "metadata.name"

pytestmark = pytest.mark.feature("SCH-KS-05")


def world(nodes: int) -> testing.World:
    found = testing.World()
    found.add_nodes(*(testing.node(f"n{number}") for number in range(nodes)))
    return found


def daemon(node: str) -> Any:
    field = {"key": NAME, "operator": "In", "values": [node]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    return testing.pod(affinity={"nodeAffinity": required})


def test_a_pod_of_a_daemonset_costs_no_look_at_the_names_of_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(20)
    looks: list[int] = []
    look = found.cluster.known_name
    monkeypatch.setattr(found.cluster, "known_name", lambda slot: (looks.append(slot), look(slot))[1])
    assert found.decide(daemon("n7")).node == "n7"
    assert "didn't satisfy plugin(s) [NodeAffinity]" in found.decide(daemon("gone")).message()
    assert len(looks) < 20


@pytest.mark.parametrize("op", ["Gt", "Lt", "In", "NotIn"])
def test_terms_without_number_do_not_look_at_the_labels_of_each_node_in_turn(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, looks = testing.World(), list[str]()
    found.add_nodes(*(testing.node(f"n{number}", labels={"size": str(number)}) for number in range(50)))
    for module in (terms, labels):
        read = getattr(module, "whole_number", whole_number)
        monkeypatch.setattr(module, "whole_number", lambda text, read=read: (looks.append(text), read(text))[1], raising=False)
    match = terms.matches_value
    monkeypatch.setattr(labels, "matches_value", lambda *args: (looks.append(""), match(*args))[1], raising=False)
    more = [] if op in ("Gt", "Lt") else ["x"]
    expressions = [{"key": "size", "operator": op, "values": [str(1000 + number), *more]} for number in range(50)]
    wanted = [{"matchExpressions": [expression]} for expression in expressions]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": wanted}}
    assert found.decide(testing.pod(affinity={"nodeAffinity": required})).scheduled is (op in ("Lt", "NotIn"))
    assert len(looks) <= 100


@pytest.mark.parametrize("op", ["In", "NotIn"])
def test_names_that_are_listed_are_not_compared_with_each_other(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, looks = world(20), list[Requirement]()
    match = node_affinity.matches_value
    monkeypatch.setattr(node_affinity, "matches_value", lambda *args: (looks.append(args[0]), match(*args))[1])
    fields = [{"key": NAME, "operator": op, "values": [f"x{number}" for number in range(100)]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    assert found.decide(testing.pod(affinity={"nodeAffinity": required})).scheduled is (op == "NotIn")
    assert not looks


class Labels(dict[str, str]):
    """Labels of a node that count how often they are looked at."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)


def test_nodes_are_not_looked_at_for_a_key_that_none_has() -> None:
    columns, nodes = labels.LabelColumns(4), [Labels(a="x"), Labels(a="y", b="z")]
    for slot, node in enumerate(nodes):
        columns.set(slot, node)
    columns.set(1, nodes[0])  # `b` went
    before = sum(node.looks for node in nodes)
    assert not any(columns.column(key).ids.any() for key in ("b", *(f"key-{number}" for number in range(100))))
    assert sum(node.looks for node in nodes) == before
    assert columns.column("a").ids.tolist() == [1, 1, 0, 0]
    columns.set(0, nodes[1])
    assert columns.column("b").ids.tolist() == [1, 0, 0, 0]
    columns.clear(0)
    columns.clear(1)
    assert not columns.column("a").ids.any()


VALUES = st.sampled_from(["1", "-2", "30", "x", "", "9223372036854775807", "9223372036854775808", "007"])


@given(
    st.lists(st.none() | VALUES, min_size=1, max_size=6),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Else"]),
    st.lists(VALUES, max_size=3),
    st.none() | VALUES,
)
def test_labels_are_matched_as_on_each_node_alone(held: list[str | None], op: str, wanted: list[str], later: str | None) -> None:
    found, requirement = testing.World(), Requirement("k", op, tuple(sorted(set(wanted))))
    for first in (held, [later, *held[1:]]):
        found.add_nodes(*(testing.node(f"n{n}", labels={} if value is None else {"k": value}) for n, value in enumerate(first)))
        fits = any_term(found.cluster, [NodeTerm((requirement,), ())], np.arange(len(first), dtype=np.intp)).tolist()
        assert fits == [requirement.matches({} if value is None else {"k": value}) for value in first]


def test_names_are_matched_as_on_each_node_alone() -> None:
    found = world(5)
    found.cluster.remove_node("n1")
    cluster = found.cluster
    fields = [
        Requirement(NAME, IN, ("n0", "n1", "n3", "x")), Requirement(NAME, IN, ("n3",)), Requirement(NAME, NOT_IN, ("n3",)),
        Requirement("metadata.uid", IN, ("n3",)),
    ]  # fmt: skip
    label = Requirement("kubernetes.io/hostname", NOT_IN, ("n0",))
    for first, second in itertools.product(fields, fields):
        for expressions in ((), (label,)):
            term = NodeTerm(expressions, (first, second))
            fit = []
            for slot in range(cluster.capacity):
                name = cluster.known_name(slot)
                labels = cluster.row(slot).view.labels if name else {}  # type: ignore[union-attr]
                named = all(field.key == NAME and field.matches({NAME: name}) for field in term.fields)
                fit.append(bool(name) and named and all(wanted.matches(labels) for wanted in term.expressions))
            assert any_term(cluster, [term], ALL_ROWS).tolist() == fit
            some = np.array((3, 0, 4), dtype=np.intp)
            assert any_term(cluster, [term], some).tolist() == [fit[3], fit[0], fit[4]]
