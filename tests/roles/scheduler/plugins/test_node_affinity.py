"""NodeAffinity on names of nodes, as the pods of DaemonSets have it (SCH-KS-05)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from roles.scheduler import testing
from roles.scheduler.cluster.terms import IN, NOT_IN, NodeTerm, Requirement
from roles.scheduler.framework.context import ALL_ROWS
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
