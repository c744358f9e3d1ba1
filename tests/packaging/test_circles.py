"""The check that no modules import one another in a circle can fail; `make lint` runs it on koord."""

from __future__ import annotations

import importlib.util

from tests.support.docs import ROOT

_SPEC = importlib.util.spec_from_file_location("circles", ROOT / "packaging" / "circles.py")
assert _SPEC is not None
assert _SPEC.loader is not None
circles = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(circles)


def test_a_circle_is_found_and_told_in_the_order_of_the_imports() -> None:
    assert circles.circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    found = circles.circle({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()})
    assert found[0] == found[-1]
    assert set(found) == {"b", "c"}
