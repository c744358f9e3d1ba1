"""docs/koordlet.md names every strategy with its gate, mode, metrics and verdicts, and nothing that is not there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from koord.config.gates import KOORDLET
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.options import Options
from roles.koordlet.qos.manager import _WOULD
from roles.koordlet.qos.registry import NAMES, OBSERVING
from roles.koordlet.states.slo import CPUTuning, InterferenceStrategy, MemoryTuning

PAGE = (Path(__file__).parents[3] / "docs/koordlet.md").read_text(encoding="utf-8")


def rows(name: str) -> list[str]:
    return [line for line in PAGE.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]]


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_has_its_switches_mode_and_metrics(name: str) -> None:
    switches, mode, *_ = rows(name)
    gates = re.findall(r"`(\w+)`", switches.split("|")[2])
    assert gates
    assert {gate: KOORDLET[gate] for gate in gates} == dict.fromkeys(gates, "(on)" in switches)
    assert ("`observe`" in mode) is (name in OBSERVING)


def test_metrics_that_are_named_are_there() -> None:
    metrics = Metrics("n")
    families = {family.name for family in (*metrics._internal, *metrics._external)}
    for named in set(re.findall(r"koordlet_[a-z_0-9]+\*?", PAGE)):
        assert named in families or (named.endswith("_*") and any(f.startswith(named[:-1]) for f in families)), named


def test_flags_that_are_named_are_there() -> None:
    flags = {field.name.replace("_", "-") for field in fields(Options)}
    own = {"oneshot", "sleep-interval", "prints-output-file", "config-file", "kubeconfig"}  # of the device daemon and of every role
    for named in set(re.findall(r"`--([a-z-]+)", PAGE)):
        assert named in flags | own, named


@pytest.mark.parametrize("verdict", _WOULD)
def test_verdicts_are_explained(verdict: str) -> None:
    assert f"`{verdict}`" in PAGE


@pytest.mark.parametrize("strategy", [CPUTuning, MemoryTuning, InterferenceStrategy])
def test_settings_are_named_with_their_defaults(strategy: type) -> None:
    fields = strategy.__struct_encode_fields__
    for name, default in zip(fields, strategy.__struct_defaults__, strict=True):
        if name in ("enable", "actions"):
            continue
        assert re.search(rf"{name}`?[^\n|]{{0,40}}?\b{default}\b", PAGE), f"{name} = {default}"
