"""Sharing one resource: the worked example, exact remainders, and what must hold for any numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.scheduler.plugins.elastic_quota.waterfill import Claim, fill, scaled_mins

AMOUNTS = st.one_of(st.integers(0, 12), st.integers(0, 2**45))
CLAIMS = st.lists(
    st.builds(lambda weight, base, request, lends: Claim("", weight, base, request, lends), AMOUNTS, AMOUNTS, AMOUNTS, st.booleans()),
    max_size=7,
).map(lambda claims: [claim._replace(name=f"q{index}") for index, claim in enumerate(claims)])
TOTAL = st.one_of(st.integers(-5, 40), st.integers(0, 2**47))


def reference(total: int, claims: list[Claim]) -> list[int]:
    """The definition, word by word, with fractions: slow and plain."""
    shares = {c.name: c.base if c.request > c.base or not c.lends else c.request for c in claims}
    asking = {c.name: c for c in claims if c.request > c.base}
    left = total - sum(shares.values())
    while left > 0 and sum(c.weight for c in asking.values()) > 0:
        whole = sum(c.weight for c in asking.values())
        exact = {name: Fraction(c.weight * left, whole) for name, c in asking.items() if c.weight}
        given_out = {name: int(value) for name, value in exact.items()}
        units = left - sum(given_out.values())
        for name in sorted(exact, key=lambda name: (-(exact[name] - int(exact[name])), name))[:units]:
            given_out[name] += 1
        left = 0
        for name, portion in given_out.items():
            shares[name] += portion
            if shares[name] >= asking[name].request:
                left += shares[name] - asking[name].request
                shares[name] = asking[name].request
                del asking[name]
    return [shares[c.name] for c in claims]


@given(TOTAL, CLAIMS)
def test_it_is_the_definition(total: int, claims: list[Claim]) -> None:
    assert fill(total, claims) == reference(total, claims)


@given(TOTAL, CLAIMS)
def test_nobody_gets_less_than_its_base_or_more_than_it_asks_and_nothing_is_lost(total: int, claims: list[Claim]) -> None:
    shares = fill(total, claims)
    for claim, share in zip(claims, shares, strict=True):
        assert share >= min(claim.base, claim.request)
        assert share <= max(claim.request, claim.base)
        assert claim.lends or share >= claim.base
    sure = sum(claim.base if claim.request > claim.base or not claim.lends else claim.request for claim in claims)
    takers = [claim for claim in claims if claim.request > claim.base and claim.weight]
    wanted = sum(claim.request - claim.base for claim in takers)
    assert sum(shares) == sure + max(0, min(total - sure, wanted))


@given(TOTAL, CLAIMS, st.data())
def test_asking_for_more_never_gives_less(total: int, claims: list[Claim], data: st.DataObject) -> None:
    if claims:
        index = data.draw(st.integers(0, len(claims) - 1))
        more = list(claims)
        more[index] = claims[index]._replace(request=claims[index].request + data.draw(AMOUNTS))
        assert fill(total, more)[index] >= fill(total, claims)[index]


@given(TOTAL, AMOUNTS, CLAIMS)
def test_more_to_share_is_shared(total: int, extra: int, claims: list[Claim]) -> None:
    assert sum(fill(total + extra, claims)) >= sum(fill(total, claims))


def test_the_surplus_of_one_flows_to_the_other() -> None:
    claims = [Claim("a", 40, 10, 40), Claim("b", 40, 10, 25), Claim("c", 40, 20, 4)]
    assert fill(60, claims) == [31, 25, 4]


def test_units_that_cannot_be_split_go_to_the_first_names() -> None:
    assert fill(7, [Claim(name, 7, 0, 5) for name in ("z", "x", "y")]) == [2, 3, 2]


def test_huge_weights_do_not_overflow() -> None:
    assert fill(10**15, [Claim("a", 2**63 - 1, 0, 2**62), Claim("b", 2**63 - 1, 0, 2**62)]) == [5 * 10**14] * 2


@given(st.integers(-10, 2**45), st.lists(AMOUNTS, max_size=6))
def test_mins_shrink_only_when_they_do_not_fit(total: int, mins: list[int]) -> None:
    scaled = scaled_mins(total, mins)
    if sum(mins) <= total:
        assert scaled == mins
    else:
        assert all(0 <= low <= full for low, full in zip(scaled, mins, strict=True))
        assert sum(scaled) <= max(0, total) * (1 + 1e-12)


@pytest.mark.parametrize(("total", "expected"), [(100, [40, 60]), (50, [20, 30]), (0, [0, 0]), (-3, [0, 0]), (7, [2, 4])])
def test_scaled_mins(total: int, expected: list[int]) -> None:
    assert scaled_mins(total, [40, 60]) == expected
