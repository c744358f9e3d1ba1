"""The effective NodeSLO of what the API server hands out (KA-SLO-01)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.koordlet.states.slo import effective_slo

FULL: dict[str, Any] = {
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 50, "cpuSuppressPolicy": "cfsQuota"},
    "resourceQOSStrategy": {
        "policies": {"cpuPolicy": "coreSched"},
        "lsClass": {"memoryQOS": {"enable": True, "wmarkRatio": 80}, "networkQOS": {"enable": True, "egressLimit": "4G"}},
        "beClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 50}},
    },
    "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 200},
    "systemStrategy": {"totalNetworkBandwidth": "8G", "schedFeatures": {"HRTICK": True}},
    "extensions": {"interference": {"actions": ["squeeze"], "squeezePercent": 40}},
}


def _places(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return []
    return [place for key, inner in value.items() for place in ((*path, key), *_places(inner, (*path, key)))]


def _with(value: Any, path: tuple[str, ...], *, null: bool) -> Any:
    """A copy in which one place is null, or is not there."""
    key, *rest = path
    if rest:
        return {**value, key: _with(value[key], tuple(rest), null=null)}
    return {**{k: v for k, v in value.items() if k != key}, **({key: None} if null else {})}


@pytest.mark.feature("KA-SLO-01")
@given(st.sampled_from(_places(FULL)))
def test_null_is_as_if_it_were_not_there(place: tuple[str, ...]) -> None:
    slo, errors = effective_slo(_with(FULL, place, null=True))
    assert errors == []
    assert slo == effective_slo(_with(FULL, place, null=False))[0]


@pytest.mark.feature("KA-SLO-01")
def test_a_section_of_too_many_levels_is_reported_and_the_others_count():
    deep: dict = {}
    for _ in range(5000):
        deep = {"a": deep}
    for section in ("cpuBurstStrategy", "resourceQOSStrategy"):
        slo, problems = effective_slo({section: deep, "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 50}})
        assert [str(problem) for problem in problems] == [f"NodeSLO spec.{section}: is nested too deeply"]
        assert slo.threshold.cpu_suppress_threshold_percent == 50
    slo, problems = effective_slo({"extensions": {"resourceTuning": deep}})
    assert [problem.section for problem in problems] == ["extensions.resourceTuning"]
