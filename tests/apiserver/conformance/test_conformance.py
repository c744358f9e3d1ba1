"""The embedded server answers as a real kube-apiserver does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import allowances, applies, customs, evolving, filled, hooks, limits, objects, pods, reads, rights, scenarios, subresources, writes
from .transcript import Target, Transcript

pytestmark = pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
MODULES = (scenarios, writes, reads, customs, applies, subresources, limits, evolving, hooks, rights, objects, pods, filled)
SCENARIOS = tuple(scenario for module in MODULES for scenario in module.SCENARIOS)
BY_ROLES = allowances.SCENARIOS
GOLDEN = Path(__file__).parent / "golden"
Scenario = Callable[[Transcript], None]


@pytest.fixture(scope="module", autouse=True)
def webhooks() -> Iterator[None]:
    yield
    hooks.close()


def run(target: Target, scenario: Scenario) -> list[object]:
    transcript = Transcript(target)
    try:
        scenario(transcript)
    finally:
        transcript.close()
    return transcript.lines


def golden(scenario: Scenario) -> Path:
    return GOLDEN / f"{scenario.__name__}.json"


def expected(scenario: Scenario) -> list[object]:
    found: list[object] = json.loads(golden(scenario).read_text())
    return found


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_embedded(embedded: Target, scenario: Scenario) -> None:
    assert run(embedded, scenario) == expected(scenario)


@pytest.mark.parametrize("scenario", BY_ROLES, ids=lambda s: s.__name__)
def test_embedded_with_roles(embedded_rbac: Target, scenario: Scenario) -> None:
    assert run(embedded_rbac, scenario) == expected(scenario)


@pytest.mark.realapi
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_real(real: Target, scenario: Scenario) -> None:
    _compare(real, scenario)


@pytest.mark.realapi
@pytest.mark.parametrize("scenario", BY_ROLES, ids=lambda s: s.__name__)
def test_real_with_roles(real_rbac: Target, scenario: Scenario) -> None:
    _compare(real_rbac, scenario)


def _compare(target: Target, scenario: Scenario) -> None:
    lines = run(target, scenario)
    if os.environ.get("KOORD_RECORD_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        golden(scenario).write_text(json.dumps(lines, indent=1, sort_keys=True) + "\n")
    assert lines == expected(scenario)
