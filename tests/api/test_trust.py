"""The table of who may write what: it names every key once, and its bounds are those of the configuration."""

from __future__ import annotations

import pytest

from koord.api import names, strategies, trust
from koord.api.schema import Int, Struct
from roles.tools.reference.name_texts import ANNOTATIONS, LABELS


@pytest.mark.feature("BEY-SEC-03")
def test_each_key_has_one_row_and_the_reference_agrees() -> None:
    keys = [rule.key for rule in trust.TABLE]
    assert len(keys) == len(set(keys))
    texts = {getattr(names, constant): entry for constant, entry in {**LABELS, **ANNOTATIONS}.items()}
    for rule in trust.TABLE:
        assert rule.key in texts, f"{rule.key} is no name of the protocol"
        written_by = texts[rule.key].writer
        if rule.writer is trust.Writer.OWNER:
            assert "user" in written_by, rule.key
        elif rule.writer is trust.Writer.SPEC:
            assert written_by == "manager", rule.key


@pytest.mark.feature("BEY-SEC-03")
def test_what_the_scheduler_writes_on_pods_is_reserved() -> None:
    """A key of a pod that only the scheduler is said to write must not be open to owners."""
    for constant, entry in ANNOTATIONS.items():
        if entry.writer == "scheduler" and entry.on == "Pod":
            key = getattr(names, constant)
            assert key in trust.RESERVED or key in trust.FORBIDDEN, key


@pytest.mark.feature("BEY-SEC-03")
def test_bounds_are_those_of_the_configuration() -> None:
    level = strategies.RESOURCE_QOS.fields["lsClass"]
    assert isinstance(level, Struct)
    memory = level.fields["memoryQOS"]
    assert isinstance(memory, Struct)
    for schema, bounds in ((strategies.CPU_BURST, trust.CPU_BURST_BOUNDS), (memory, trust.MEMORY_QOS_BOUNDS)):
        for member, own in bounds.items():
            node = schema.fields[member]
            assert isinstance(node, Int)
            accepted = node.crd or node.cm or (None, None)
            low, high = accepted
            assert low is None or own.low >= low, member
            assert high is None or own.high <= high, member


@pytest.mark.feature("BEY-SEC-03")
def test_drawn_into_the_bounds() -> None:
    given = {"policy": "auto", "minLimitPercent": 100000, "wmarkMinAdj": -99, "priority": 5, "unknown": 7}
    assert trust.bounded(names.ANNOTATION_MEMORY_QOS, given) == {
        "policy": "auto", "minLimitPercent": 100, "wmarkMinAdj": -25, "priority": 5, "unknown": 7,
    }  # fmt: skip
