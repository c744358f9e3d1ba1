"""Names that the pages mention are names that exist: flags, gates, metrics, labels and annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from koord.api import names
from roles.tools.reference import commands, gates, metrics
from tests.support.docs import ROOT, fences, pages, without_fences

PROSE = [page for page in pages() if page.parent.name != "reference"]
_CODE = re.compile(r"`([^`\n]+)`")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
_METRIC = re.compile(
    r"\b((?:koordlet|scheduler|koord|slo_controller|descheduler|workqueue|rest_client|kube_pod|kubernetes)_[a-z0-9_]*[a-z0-9])(_?\*)?"
)
_KEY = re.compile(r"(?<![\w.@-])(?:[a-z-]+\.)*koordinator\.sh/[A-Za-z][\w.-]*")
_GATE = re.compile(r"\b[Gg]ates?:? ((?:`[A-Za-z]+`(?:,? (?:and |or )?)?)+)")

# Flags of the kubelet, of other tools and of benchmarks.
FOREIGN_FLAGS = {
    "--container-runtime-endpoint",
    "--container-runtime",
    "--docker-endpoint",
    "--server-side",
    "--force-conflicts",
    "--quick",
    "--load",
    "--policies",
    "--flag",
    "--bool",
    "--admission-control-config-file",  # kube-apiserver's
}
# A metric that a page says is not there; a label that users choose for their namespaces.
ABSENT_METRICS = {"kube_pod_labels", "scheduler_dra_bindingconditions"}
CHOSEN_KEYS = {"koordinator.sh/enable-colocation"}
FOREIGN_KEYS = ("sandbox.koordinator.sh/", "analysis.koordinator.sh/")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def codes(page: Path) -> Iterator[str]:
    """Everything that a page shows as code."""
    text = page.read_text(encoding="utf-8")
    yield from _CODE.findall(without_fences(text))
    yield from (line for line in without_fences(text).splitlines() if line.startswith("    "))
    yield from (body for language, body in fences(text) if language in ("", "sh", "bash"))


@cache
def known_flags() -> set[str]:
    walked = (option for path, command in commands.walk() for option in commands.options(command, path))
    return {"--help"} | {name for option in walked for name in (*option.opts, *option.secondary_opts)}


@cache
def known_metrics() -> set[str]:
    return {entry.name for collect in metrics.ROLES.values() for entry in collect()}


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_flags_exist(page: Path) -> None:
    known = known_flags()
    # whole command lines are parsed by test_pages
    mentioned = {flag for code in codes(page) if code.startswith("--") for flag in _FLAG.findall(code)}
    unknown = {flag for flag in mentioned if flag not in known and not any(name.startswith(flag) for name in known)}
    assert unknown - FOREIGN_FLAGS == set()


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_metrics_exist(page: Path) -> None:
    known = known_metrics()
    missing = set()
    for code in codes(page):
        if not re.fullmatch(r"[a-z_]+(\*|\{.*\})?", code):
            continue
        for name, star in _METRIC.findall(code):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            if name not in known and base not in known and not (star and any(one.startswith(name) for one in known)):
                missing.add(name)
    assert missing - ABSENT_METRICS == set()


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_labels_and_annotations_exist(page: Path) -> None:
    known = {value for constant, value in vars(names).items() if constant.isupper() and isinstance(value, str)}
    mentioned = {key.rstrip(".-") for code in codes(page) for key in _KEY.findall(code)}
    groups = {key for key in mentioned if re.fullmatch(r".*/v\d\w*", key)}
    assert {key for key in mentioned - known - groups - CHOSEN_KEYS if not key.startswith(FOREIGN_KEYS)} == set()


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_gates_exist(page: Path) -> None:
    known = {gate for table in gates.ROLES.values() for gate in table}
    mentioned = {gate for group in _GATE.findall(page.read_text(encoding="utf-8")) for gate in re.findall(r"`([A-Za-z]+)`", group)}
    assert mentioned - known == set()


_PATH = re.compile(r"[a-z_]\w*(?:/\w+)*(?:\.py|/)")
_CALL = re.compile(r"(?:([A-Z]\w*)\.)?(\w+)\(.*\)(?: -> .*)?")
_CLASS = re.compile(r"[A-Z][a-z]+(?:[A-Z]\w*)?")
SOURCES = {path: path.read_text(encoding="utf-8") for root in ("koord", "roles") for path in (ROOT / root).rglob("*.py")}


def walks() -> set[str]:
    """What the sections of the architecture page that lead through the code show as code."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    sections = [part for part in without_fences(text).split("\n## ") if part.startswith(("A pod's way", "A cgroup value's way"))]
    assert len(sections) == 2
    return {code for section in sections for code in _CODE.findall(section)}


def test_files_of_the_walks_exist() -> None:
    paths = {f"/{path.relative_to(ROOT)}" for top in ("koord", "roles", "tests") for path in (ROOT / top).rglob("*.py")}
    mentioned = {code for code in walks() if _PATH.fullmatch(code)}
    assert len(mentioned) > 20
    assert {code for code in mentioned if not any(path.endswith(f"/{code}") or f"/{code}" in f"{path}" for path in paths)} == set()


def test_functions_and_classes_of_the_walks_exist() -> None:
    """Each can be found, and a breakpoint set on it."""
    mentioned = walks()
    calls = {call.groups() for code in mentioned if (call := _CALL.fullmatch(code))}
    assert len(calls) > 12
    for owner, function in calls:
        homes = [text for text in SOURCES.values() if not owner or f"\nclass {owner}" in text]
        assert any(re.search(rf"\bdef {function}\(", text) for text in homes), f"{owner}.{function}"
    everything = "\n".join(SOURCES.values())
    for name in sorted(code for code in mentioned if _CLASS.fullmatch(code)):
        assert re.search(rf"\bclass {name}\b|\"{name}\"", everything), name


def test_the_picture_of_extension_points_is_the_code() -> None:
    """Every interface of a plugin is on it, and every method that it names is one."""
    code = SOURCES[ROOT / "roles/scheduler/framework/interfaces.py"]
    page = (ROOT / "docs" / "scheduler.md").read_text(encoding="utf-8")
    picture = next(body for language, body in fences(page) if language == "mermaid" and "PreEnqueue" in body)
    interfaces = set(re.findall(r"^class (\w+)\(Plugin\)", code, re.MULTILINE)) - {"Controllers"}
    assert {name for name in interfaces if not re.search(rf"\b{name}\b", picture)} == set()
    for owner, method in re.findall(r"(\w+)\.(\w+)", picture):
        assert owner in interfaces
        assert f"def {method}(" in code


def test_what_docstrings_refer_to_is_in_the_repository() -> None:
    """A page that the code names is one of this repository; sections of documents that are not are no help to a reader."""
    known = {path.name for path in pages()} | {"report.md", "notes.md"}
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in SOURCES.items()
        for name in re.findall(r"\b([\w-]+\.md)\b", text)
        if name not in known
    }
    found |= {f"{path.relative_to(ROOT)}: {text}" for path, text in _numbered_sections()}
    assert found == set()


def _numbered_sections() -> Iterator[tuple[Path, str]]:
    for path, text in SOURCES.items():
        for reference in re.findall(r"\b[\w-]+\.md \d[\d.]*|\(sections? \d[^)]*\)|\b[A-Z]+-[A-Z]+-\d+,? §\d|\(spec \d[^)]*\)", text):
            yield path, reference
