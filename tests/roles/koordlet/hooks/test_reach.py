"""The page about hooks says what the code that carries answers does."""

from __future__ import annotations

import pytest

from roles.koordlet.hooks.reach import FIRST, LATER, NO, reached, table
from tests.support.processes import ROOT


@pytest.mark.feature("KA-RH-02")
def test_the_page_has_the_table_that_the_code_gives() -> None:
    assert table() in (ROOT / "docs/koordlet-hooks.md").read_text(), "python -m roles.koordlet.hooks.reach"


@pytest.mark.feature("KA-RH-02")
def test_what_each_way_reaches() -> None:
    found = reached()
    assert found["cpuset"] == (FIRST, FIRST, LATER)
    assert found["devices"] == (NO, FIRST, NO)
    assert found["env"] == (FIRST, FIRST, NO)
    assert found["bvt"] == (LATER, LATER, LATER)
