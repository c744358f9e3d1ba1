"""Merging of NUMA hints: never worse than looking at every combination."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.scheduler.plugins.topology_manager.hints import Hint, Merged, NodeUse, Policy, bits_of, mask_of, merge, violates_exclusivity

pytestmark = pytest.mark.feature("SCH-NUMA-07")

NODES = 0b111

hints = st.lists(
    st.builds(Hint, st.integers(1, NODES), st.booleans(), st.integers(0, 100)),
    min_size=1,
    max_size=5,
    unique_by=lambda hint: hint.affinity,
)
providers = st.lists(st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.one_of(st.none(), hints), max_size=3), max_size=2)


def brute_force(nodes: int, given_hints: list[dict[str, list[Hint] | None]]) -> tuple[bool, int, int, int]:
    """(preferred, -size, score, -mask) of the best of all combinations, by the words of the specification."""
    lists = [entry if entry is not None else [Hint(None, True)] for provider in given_hints for entry in provider.values()]
    best = (False, -nodes.bit_count(), 0, -nodes)
    for combination in product(*lists):
        masks = [hint.affinity for hint in combination if hint.affinity is not None]
        common = nodes
        for mask in masks:
            common &= mask
        if common:
            preferred = all(hint.preferred for hint in combination) and len(set(masks)) <= 1
            score = sum(hint.score for hint in combination if hint.affinity == common)
            best = max(best, (preferred, -common.bit_count(), score, -common))
    return best


@given(providers)
def test_best_effort_finds_what_trying_every_combination_finds(given_hints: list[dict[str, list[Hint] | None]]) -> None:
    merged = merge(Policy.BEST_EFFORT, NODES, given_hints)
    preferred, size, score, mask = brute_force(NODES, given_hints)
    assert merged.admitted
    if preferred:
        assert merged == Merged(-mask, True, score)
    else:
        assert not merged.preferred
        assert merged.affinity in (-mask, NODES)  # all of them when the narrowest does not hold every resource
        assert size == -(-mask).bit_count()


@given(providers)
def test_strict_policies_admit_exactly_where_all_prefer_the_same(given_hints: list[dict[str, list[Hint] | None]]) -> None:
    preferred, _, score, mask = brute_force(NODES, given_hints)
    merged = merge(Policy.RESTRICTED, NODES, given_hints)
    assert merged.admitted == preferred
    if preferred:
        assert merged == Merged(-mask, True, score)


def test_equal_masks_are_chosen_by_score_then_by_number() -> None:
    def chosen(first: int, second: int) -> int | None:
        cpu = [Hint(0b01, True, first), Hint(0b10, True, second)]
        return merge(Policy.SINGLE_NUMA_NODE, 0b11, [{"cpu": cpu}]).affinity

    assert (chosen(5, 5), chosen(5, 6), chosen(6, 5)) == (1, 2, 1)


def test_single_numa_node_takes_no_wider_hint_and_no_affinity_for_the_whole_machine() -> None:
    wide = [Hint(0b11, True)]
    refused = merge(Policy.SINGLE_NUMA_NODE, 0b11, [{"cpu": wide}])
    assert refused.reasons == ("Unaligned NUMA Hint cause cpu prefer [11] among [11]",)
    assert merge(Policy.RESTRICTED, 0b11, [{"cpu": wide}]).affinity == 0b11
    alone = merge(Policy.SINGLE_NUMA_NODE, 0b1, [{"cpu": [Hint(0b1, True)]}])
    assert alone.admitted
    assert alone.affinity is None


def test_what_cannot_be_had_refuses_strict_policies_and_widens_best_effort() -> None:
    asked = [{"memory": [], "cpu": [Hint(0b01, True)]}]
    assert merge(Policy.RESTRICTED, 0b11, asked).reasons == ("Unsatisfied NUMA memory",)
    assert merge(Policy.BEST_EFFORT, 0b11, asked).affinity == 0b11
    apart = [{"cpu": [Hint(0b0011, True)]}, {"gpu": [Hint(0b0110, True)]}]
    assert merge(Policy.BEST_EFFORT, 0b1111, apart).affinity == 0b1111
    assert merge(Policy.BEST_EFFORT, 0b1111, []).affinity == 0b1111


def test_exclusive_use_is_kept() -> None:
    use = {0: NodeUse.SINGLE, 1: NodeUse.SHARED, 2: NodeUse.IDLE}
    assert [violates_exclusivity(mask, use) for mask in (0b001, 0b010, 0b100, 0b011, 0b110)] == [False, True, False, True, False]
    asked = [{"cpu": [Hint(0b001, True), Hint(0b010, True, 50)]}]
    assert merge(Policy.SINGLE_NUMA_NODE, 0b111, asked, use).affinity == 0b001
    assert not merge(Policy.SINGLE_NUMA_NODE, 0b111, [{"cpu": [Hint(0b010, True)]}], use).admitted


def test_masks_and_nodes() -> None:
    assert bits_of(mask_of((3, 0, 5))) == [0, 3, 5]
