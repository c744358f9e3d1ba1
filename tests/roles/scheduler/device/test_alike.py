"""Nodes that are alike are asked about once: the grouping of their contents."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.vocabulary import Vocabulary
from roles.scheduler.framework.context import ALL_ROWS
from roles.scheduler.plugins.device_share.columns import DeviceColumns

NUMBERS = st.one_of(st.integers(0, 9), st.integers(10**6, 10**6 + 9), st.integers(0, 10**9))


@given(st.lists(st.tuples(st.integers(0, 63), NUMBERS), max_size=100), st.integers(0, 64))
def test_every_node_is_like_the_one_that_is_asked_for_it(written: list[tuple[int, int]], count: int) -> None:
    """Whatever was there before, of all nodes and of some."""
    cluster = Cluster(Vocabulary(), 64)
    columns = cluster.register("DeviceShare", DeviceColumns())
    contents = [0] * 64
    for slot, content in written:
        columns._became(slot, content)
        contents[slot] = content
    for rows, known in ((ALL_ROWS, contents), (np.arange(count), contents[:count]), (ALL_ROWS, contents)):
        first, alike = columns.alike(rows)
        assert [known[index] for index in first[alike].tolist()] == known
        assert len(first) == len(set(known))
    assert len(columns._kinds) <= 65  # however many numbers there have been
