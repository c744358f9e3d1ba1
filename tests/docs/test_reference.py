"""The reference: it is what the code says now, nothing is missing, and nothing is without a description."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koord.api import names
from koord.config import gates as gate_tables
from koord.config import slo_schema
from koord.config.gate_texts import TEXTS
from koord.process.metrics import Tally, Timings
from roles.tools.reference import commands, configuration, crds, environment, gates, metrics, models, name_texts, slo
from roles.tools.reference.__main__ import PAGES, main
from tests import features
from tests.support.docs import ROOT

REFERENCE = ROOT / "docs" / "reference"
SOURCES = [*sorted((ROOT / "koord").rglob("*.py")), *sorted((ROOT / "roles").rglob("*.py"))]
FAMILIES = {"Counter", "Gauge", "Histogram", "Timings", "Tally", "GaugeMetricFamily", "CounterMetricFamily", "HistogramMetricFamily"}


def text(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_what_the_code_says(page: str) -> None:
    assert text(page) == PAGES[page](), f"docs/reference/{page} is stale: run `make references` and commit"


def test_the_features_are_all_there() -> None:
    """New tests of a feature may be missing until the page is next written; a feature or its section may not."""

    def rows(page: str) -> list[str]:
        return [line.rpartition(" | ")[0] for line in page.splitlines() if line.startswith("| [")]

    written = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
    assert rows(written) == rows(features.page()), "docs/features.md is stale: run `make references` and commit"


def test_no_page_is_left_over() -> None:
    assert {path.name for path in REFERENCE.glob("*.md")} == set(PAGES)


def test_the_program_writes_every_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(PAGES)
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


# -- commands ------------------------------------------------------------------------------------------------------------------


def test_every_command_and_flag_says_what_it_is() -> None:
    page = text("commands.md")
    for path, command in commands.walk():
        assert command.help, f"{path} has no help"
        assert path == "koord" or f"\n## {path}\n" in page
        section = page.split(f"\n## {path}\n", 1)[-1].split("\n## ")[0]
        for option in commands.options(command, path):
            assert option.help, f"{path} {option.opts[0]} has no help"
            assert path == "koord" or any(f"`{name}`" in section for name in option.opts), (
                f"{path} {option.opts[0]} is not in the reference"
            )


def test_every_environment_variable_is_listed() -> None:
    read = re.compile(r"environ(?:\.get\(|\.setdefault\(|\[)\s*\"([A-Za-z_]+)\"")
    found = {name for path in SOURCES for name in read.findall(path.read_text(encoding="utf-8"))}
    listed = {name.upper() for name in environment.VARIABLES}
    assert {name for name in found if name.upper() not in listed} == set()


# -- metrics -------------------------------------------------------------------------------------------------------------------


def all_metrics() -> set[str]:
    return {entry.name for collect in metrics.ROLES.values() for entry in collect()}


def declared(path: Path) -> Iterator[str]:
    """Names of the metrics that a module makes, as far as they stand there as text."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)) if any(f"{family}(" in source for family in FAMILIES) else ():
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if called in FAMILIES and len(node.args) > 1:
                yield node.args[0].value


@pytest.mark.parametrize("role", metrics.ROLES)
def test_every_metric_says_what_it_is(role: str) -> None:
    section = text("metrics.md").split(f"\n## {role}\n", 1)[1].split("\n## ")[0]
    for entry in metrics.ROLES[role]():
        assert entry.text, f"{role}: {entry.name} has no help"
        assert entry.kind in ("counter", "gauge", "histogram"), f"{role}: {entry.name} is {entry.kind}"
        assert f"| `{entry.name}` |" in section


def test_no_metric_of_the_source_is_missing() -> None:
    known = all_metrics()
    missing = {f"{path.relative_to(ROOT)}: {name}" for path in SOURCES for name in declared(path) if not {name, f"{name}_total"} & known}
    assert missing == set()


def test_metrics_are_read_from_the_registry_as_they_are_scraped() -> None:
    registry = CollectorRegistry()
    Counter("a_things", "Things.", ["kind"], registry=registry)
    Gauge("b_level", "Level.", registry=registry)
    Histogram("c_seconds", "Seconds.", ["verb"], registry=registry)
    Tally("d_plain", "Plain.", ("x", "y"), registry)
    Timings("e_seconds", "Hot.", ["z"], buckets=(1,), registry=registry)
    found = [(entry.name, entry.kind, entry.labels) for entry in metrics.entries(registry)]
    assert found == [
        ("a_things_total", "counter", ("kind",)), ("b_level", "gauge", ()), ("c_seconds", "histogram", ("verb",)),
        ("d_plain", "counter", ("x", "y")), ("e_seconds", "histogram", ("z",)),
    ]  # fmt: skip


# -- feature gates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", gates.ROLES)
def test_every_gate_says_what_it_does_and_no_text_is_left_over(role: str) -> None:
    assert set(TEXTS[role]) == set(gates.ROLES[role])
    assert all(TEXTS[role].values())


def test_every_table_of_gates_belongs_to_a_role() -> None:
    tables = {
        name for name in dir(gate_tables) if name.isupper() and not name.startswith("_") and isinstance(getattr(gate_tables, name), dict)
    }
    assert tables == {role.upper().replace("-", "_") for role in gates.ROLES}


# -- configuration -------------------------------------------------------------------------------------------------------------

KINDS = [
    configuration.KubeSchedulerConfiguration, configuration.DeschedulerConfiguration, configuration.Scenario,
    *(model for _, model in (*configuration.scheduler_plugins(), *configuration.descheduler_plugins())),
]  # fmt: skip


@pytest.mark.parametrize("model", KINDS, ids=lambda model: model.__name__)
def test_every_field_of_a_file_says_what_it_is(model: type) -> None:
    page = text("configuration.md")
    for path, kind, default, meaning in models.rows(model):
        assert meaning.strip("`")[:1] not in ("", "("), f"{model.__name__}.{path} has no description"
        if path not in ("`apiVersion`", "`kind`"):
            assert f"| {path} | {kind} | " in page, f"{model.__name__}.{path} (default {default}) is not in the reference"


def test_every_kind_of_argument_has_its_section() -> None:
    page = text("configuration.md")
    for name, _ in (*configuration.scheduler_plugins(), *configuration.descheduler_plugins()):
        assert f"\n### {name}Args\n" in page


@pytest.mark.parametrize("key", slo_schema.STRATEGIES)
def test_every_field_of_slo_controller_config_says_what_it_is(key: str) -> None:
    section = text("configuration.md").split(f"\n### {key}\n", 1)[1].split("\n#")[0]
    for path, kind, _, meaning in slo.rows(key, slo_schema.STRATEGIES[key]):
        assert meaning.strip("`")[:1] not in ("", "("), f"{key}: {path} has no description"
        assert f"| {path} | {kind} | " in section


# -- names and custom resources ------------------------------------------------------------------------------------------------


def test_every_name_of_the_protocol_is_listed() -> None:
    page = text("annotations.md")
    known = {**name_texts.LABELS, **name_texts.ANNOTATIONS, **name_texts.RESOURCES}
    for constant in dir(names):
        value = getattr(names, constant)
        ours = constant.startswith(("LABEL_", "ANNOTATION_")) or (constant.startswith("RESOURCE_") and "/" in value)
        if ours:
            assert constant in known, f"{constant} has no text"
            assert all(known[constant]), f"{constant} has an empty text"
            assert f"| `{value}` |" in page
    assert all(hasattr(names, constant) for constant in known)


def test_every_field_of_a_custom_resource_says_what_it_is() -> None:
    page = text("api.md")
    for definition in crds.crdgen.all_crds():
        kind = definition["spec"]["names"]["kind"]
        assert f"\n## {kind}\n" in page
        for version in definition["spec"]["versions"]:
            for path, schema, _ in crds.fields(version["schema"]["openAPIV3Schema"]):
                assert schema.get("description"), f"{kind}.{path} has no description"
