"""The pages as a reader follows them: links lead somewhere, commands are taken, objects and configurations are valid."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.config import scheduler as scheduler_config
from roles.descheduler import config as descheduler_config
from roles.tools.lint.run import lint
from roles.tools.lint.sources import read
from tests.support.docs import ROOT, anchors, commands, fences, pages, refusal, slug, without_fences

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_PROFILE = {"plugins", "pluginConfig"}
Json = dict[str, Any]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(re.sub(r"`[^`\n]*`", "", without_fences(page.read_text(encoding="utf-8")))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        goal = (page.parent / file).resolve() if file else page
        if not goal.exists() or (anchor and anchor not in anchors(goal)):
            broken.append(target)
    assert not broken


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in _LINK.findall(index.read_text(encoding="utf-8"))}
    assert {page for page in (ROOT / "docs").rglob("*.md") if page != index} - linked == set()


def test_headings_become_anchors_as_on_the_web() -> None:
    assert slug(" `koord why`: what *it* says, and how") == "koord-why-what-it-says-and-how"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("koord shceduler", "did you mean scheduler"),
        ("koord scheduler --no-such-flag", "unknown flag"),
        ("koord why pods x", "No such command"),
        ("koord sandbox up --nodes many", "many"),
        ("koord scheduler --config=FILE --port=10251", ""),
        ("koord recommend backtest usage.csv", ""),
        ("koord koordlet …", ""),
    ],
)
def test_what_koord_would_refuse_is_seen(line: str, part: str) -> None:
    found = refusal(line)
    assert part in found
    assert bool(part) == bool(found)


def test_koord_takes_every_command_line_of_the_pages() -> None:
    lines = {line: name_of(page) for page in pages() for line in commands(page.read_text(encoding="utf-8"))}
    assert len(lines) > 40
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.docs"], input="\n".join(lines), capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def documents() -> list[tuple[str, Json]]:
    """Every mapping in a YAML block that has a kind, or that is a part of a configuration of the scheduler."""
    found: list[tuple[str, Json]] = []
    for page in pages():
        for language, body in fences(page.read_text(encoding="utf-8")):
            if language == "yaml":
                found += [(name_of(page), one) for one in yaml.safe_load_all(body) if isinstance(one, dict)]
    return found


def completed(document: Json) -> Json | None:
    """A document as a file would have it: parts of a component configuration get their head. None for other fragments."""
    if "apiVersion" in document:
        return document
    head: Json = {"apiVersion": scheduler_config.API_VERSION, "kind": scheduler_config.KIND}
    if _PROFILE & document.keys():
        return {**head, "profiles": [{"schedulerName": "koord-scheduler", **document}]}
    if "profiles" not in document:
        return None
    if any("schedulerName" in profile for profile in document["profiles"]):
        return {**head, **document}
    return {"apiVersion": descheduler_config.API_VERSION, "kind": descheduler_config.KIND, **document}


def test_objects_and_configurations_of_the_pages_are_valid(tmp_path: Path) -> None:
    checked = 0
    for number, (page, document) in enumerate(documents()):
        whole = completed(document)
        if whole is not None:
            checked += 1
            (tmp_path / f"{number:03}-{Path(page).stem}.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    sources, skipped = read([str(tmp_path)])
    report = asyncio.run(lint(sources, skipped))
    # the plugins that docs/scheduler.md and docs/descheduler.md write are not part of koord
    problems = [line for line in report.lines()[:-1] if ": error: " in line and not re.search("QuietHours|OldImages", line)]
    assert not problems
    assert checked >= 10


@pytest.mark.parametrize("name", ["../README", "getting-started", "install", "troubleshooting", "doctor", "top", "ui"])
def test_prose_of_the_first_pages_has_short_lines(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 140 and not line.startswith(("|", "    "))] == []
