"""Nodes that are alike are asked about once: the grouping of their contents."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.vocabulary import Vocabulary
from roles.scheduler.plugins.device_share.columns import DeviceColumns

NUMBERS = st.one_of(st.integers(0, 9), st.integers(10**6, 10**6 + 9), st.integers(0, 10**9))


@given(st.lists(NUMBERS, max_size=64))
def test_every_node_is_like_the_one_that_is_asked_for_it(contents: list[int]) -> None:
    cluster = Cluster(Vocabulary(), 64)
    columns = cluster.register("DeviceShare", DeviceColumns())
    columns.content[: len(contents)] = contents
    slots = np.arange(len(contents))
    first, alike = columns.alike(slots)
    assert [contents[index] for index in first[alike].tolist()] == contents
    assert len(first) == len(set(contents))
