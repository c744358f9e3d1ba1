"""The pages as a reader follows them: links lead somewhere, commands are taken, objects and configurations are valid."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from koord.api import crdgen
from koord.apiserver.testing import running_server
from koord.config import scheduler as scheduler_config
from koord.config.errors import InvalidConfig
from koord.config.slo import parse as parse_slo
from roles.descheduler import config as descheduler_config
from roles.scheduler.plugins.registry import PLUGINS
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


def scheduler_configuration(document: Json) -> Json | None:
    """The scheduler configuration that a document is, or is a part of."""
    if document.get("kind") == scheduler_config.KIND:
        return document
    head = {"apiVersion": scheduler_config.API_VERSION, "kind": scheduler_config.KIND}
    if _PROFILE & document.keys():
        return {**head, "profiles": [{"schedulerName": "koord-scheduler", **document}]}
    return {**head, **document} if "profiles" in document and "kind" not in document else None


def check_scheduler(document: Json) -> None:
    """Raises what is wrong with a file or with the arguments of a plugin that we have."""
    arguments = {plugin.name: plugin.Args for plugin in PLUGINS}
    for profile in scheduler_config.parse(document).profiles:
        for entry in profile.plugin_config:
            model = arguments.get(entry.name)
            if model is not None:
                model.model_validate(entry.args)


def test_objects_and_configurations_of_the_pages_are_valid() -> None:
    problems, objects, files = asyncio.run(checked())
    assert not problems
    assert objects >= 5
    assert files >= 4


async def checked() -> tuple[list[str], int, int]:
    """What is wrong, and how many objects and configurations were looked at."""
    problems: list[str] = []
    objects = files = 0
    async with running_server(crds=crdgen.all_crds()) as server, server.client() as client:
        for page, document in documents():
            try:
                if (configuration := scheduler_configuration(document)) is not None:
                    files += 1
                    check_scheduler(configuration)
                elif document.get("kind") == descheduler_config.KIND:
                    files += 1
                    descheduler_config.resolve(descheduler_config.parse_configuration(yaml.safe_dump(document), page), page)
                elif "apiVersion" in document:
                    objects += 1
                    problems += [f"{page}: {text}" for text in await refused(client, document)]
            except (InvalidConfig, ValueError) as error:
                problems.append(f"{page}: {error}")
    return problems, objects, files


async def refused(client: Any, document: Json) -> list[str]:
    """What a strict API server says to an object, and the manager to a ConfigMap."""
    if document["kind"] == "ConfigMap" and document["metadata"]["name"] == "slo-controller-config":
        return [str(error) for error in parse_slo(document["data"], previous=None).errors]
    namespace = document.setdefault("metadata", {}).get("namespace")
    group, _, version = document["apiVersion"].rpartition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    status, body = await client.raw("GET", base)
    kinds = {one["kind"]: one for one in (orjson.loads(body)["resources"] if status == 200 else []) if "/" not in one["name"]}
    if document["kind"] not in kinds:
        return [f"{document['apiVersion']} {document['kind']} is not served"]
    kind = kinds[document["kind"]]
    if kind["namespaced"] and namespace not in (None, "default"):
        document["metadata"]["namespace"] = namespace = "default"
    path = f"{base}/namespaces/{namespace or 'default'}/{kind['name']}" if kind["namespaced"] else f"{base}/{kind['name']}"
    status, body = await client.raw("POST", f"{path}?dryRun=All&fieldValidation=Strict", document)
    return [] if status < 300 else [body.decode()]
