"""`make features`: each feature ID with the tests that name it, read from the source without importing it.

--missing lists only IDs without a test; --check fails when a test names an ID that features.toml does not know.
--page writes docs/features.md.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def marks(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (feature ID, test name) for each `pytest.mark.feature(...)` in a test module."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            for feature in _ids(node.value):
                yield feature, "(module)"
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield from _decorated(node, node.name)
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _decorated(child, f"{node.name}.{child.name}")


def _decorated(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str) -> Iterator[tuple[str, str]]:
    for decorator in node.decorator_list:
        for feature in _ids(decorator):
            yield feature, name


def _ids(expression: ast.expr) -> Iterator[str]:
    for call in ast.walk(expression):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.feature"):
            for argument in call.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


# The section of docs/ that tells of a family of IDs; the page is the group of its features.
SECTIONS = {
    "API": "architecture.md#koordapi",
    "API-CM": "manager.md#slo-controller-config",
    "API-CRD": "reference/api.md",
    "API-REC": "manager.md#recommender",
    "API-NSLO": "reference/configuration.md",
    "API-LBL": "reference/annotations.md",
    "API-ANN": "reference/annotations.md",
    "API-RES": "reference/annotations.md",
    "SCH": "scheduler.md#the-cycle",
    "SCH-LA": "scheduler.md#loadawarescheduling",
    "SCH-EQ": "scheduler.md#elasticquota",
    "SCH-KS": "scheduler.md#what-kube-scheduler-136-and-137-have",
    "SCH-RSZ": "scheduler.md#pods-that-are-resized-in-place",
    "SCH-CFG": "scheduler.md#plugins",
    "SCH-FW": "scheduler.md#order-of-the-extension-points",
    "SCH-PERF": "performance.md",
    "SCH-GANG": "scheduler-jobs.md#gangs",
    "SCH-WL": "scheduler-jobs.md#kubernetes-own-pod-groups",
    "SCH-NT": "scheduler-jobs.md#network-topology",
    "SCH-JP": "scheduler-jobs.md#room-for-a-job",
    "SCH-HINT": "scheduler-jobs.md#hints",
    "SCH-NUMA": "scheduler-numa.md#which-pods-get-cpu-sets",
    "SCH-FITP": "scheduler-numa.md#scores-only-noderesourcesfitplus-scarceresourceavoidance",
    "SCH-SCARCE": "scheduler-numa.md#scores-only-noderesourcesfitplus-scarceresourceavoidance",
    "SCH-DEV": "scheduler-devices.md#what-to-request",
    "SCH-DRA": "dra.md#rules",
    "SCH-RSV": "scheduler-reservations.md#who-may-use-it",
    "KLO": "koordlet.md#what-happens-in-a-tick",
    "KLO-DEV": "koordlet.md#devices",
    "KA": "koordlet.md#strategies",
    "KA-SUP": "koordlet.md#be-cpu-suppress",
    "KA-MEV": "koordlet.md#evictions",
    "KA-CEV": "koordlet.md#evictions",
    "KA-EVX": "koordlet.md#evictions",
    "KA-BST": "koordlet.md#cpu-burst",
    "KA-MEM": "koordlet.md#memory-qos",
    "KA-BLK": "koordlet.md#disks",
    "KA-RDT": "koordlet.md#cache-and-memory-bandwidth",
    "KA-SYS": "koordlet.md#kernel-knobs",
    "KA-INT": "koordlet.md#interference",
    "KA-PLG": "koordlet.md#your-own-code",
    "KA-EXE": "koordlet.md#the-journal-and---restore",
    "KA-HK": "koordlet-hooks.md",
    "KA-RH": "koordlet-hooks.md",
    "MGR": "manager.md#running-it",
    "MGR-NR": "manager.md#what-a-node-can-give",
    "MGR-REC": "manager.md#recommender",
    "MGR-POD": "manager.md#webhooks",
    "MGR-WH": "manager.md#webhooks",
    "MGR-EQ": "manager.md#webhooks",
    "MGR-CM": "manager.md#slo-controller-config",
    "MGR-NSLO": "manager.md#slo-controller-config",
    "DS": "descheduler.md#a-round",
    "DS-LNL": "descheduler.md#lownodeload",
    "DS-CP": "descheduler.md#custompriority",
    "DS-FA": "descheduler.md#fragmentationaware",
    "DS-SDB": "descheduler.md#scaledownbinpack",
    "DS-K8S": "descheduler.md#plugins-adapted-from-the-community",
    "DS-CFG": "descheduler.md#running-it",
    "DS-ARB": "descheduler-migration.md#arbitration",
    "DS-MC": "descheduler-migration.md#phases-of-a-job",
    "RP": "runtime-proxy.md#hooks",
    "RP-DKR": "runtime-proxy.md#docker",
    "RP-STO": "runtime-proxy.md#after-a-restart",
    "RP-CLI": "runtime-proxy.md#flags",
    "RP-OPS": "runtime-proxy.md#watching-it",
    "BEY-WHY": "cli.md",
    "BEY-SIM": "simulate.md",
    "BEY-REPLAY": "replay.md",
    "BEY-SBX": "getting-started.md",
    "BEY-POL": "policy-tests.md",
    "BEY-MODE": "koordlet.md#modes-try-a-strategy-before-you-trust-it",
    "BEY-DOC": "doctor.md",
    "BEY-LINT": "lint.md",
    "BEY-TOP": "top.md",
    "BEY-PSI": "koordlet.md#the-pressure-path",
    "BEY-INT": "koordlet.md#interference",
    "BEY-TUNE": "koordlet.md#resource-tuning",
    "BEY-OFF": "koordlet.md#memory-offloading",
    "BEY-ABN": "manager.md#abnormal-nodes",
    "BEY-REC": "manager.md#trying-it-first",
    "BEY-COST": "cost.md",
    "BEY-OVC": "manager.md#what-a-node-can-give",
    "BEY-JRN": "koordlet.md#the-journal-and---restore",
    "BEY-GRD": "koordlet.md#what-happens-in-a-tick",
    "BEY-SEC": "reference/trust.md",
}


def section(feature: str) -> str:
    """Where the documentation tells of a feature, relative to docs/. KeyError: a family without a row."""
    area, family = feature.split("-")[:2]
    return SECTIONS.get(f"{area}-{family}") or SECTIONS[area]


def page() -> str:
    """docs/features.md: every ID with its meaning and the files of its tests, grouped by the page that tells of it."""
    areas: dict[str, dict[str, str]] = tomllib.loads((ROOT / "features.toml").read_text(encoding="utf-8"))
    titles = {feature: title for area in areas.values() for feature, title in area.items()}
    tests: dict[str, dict[str, None]] = defaultdict(dict)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for feature, _ in marks(path):
            tests[feature][str(path.relative_to(ROOT))] = None
    groups: dict[str, list[str]] = defaultdict(list)
    for feature in titles:
        groups[section(feature).partition("#")[0]].append(feature)
    told = "What the IDs in docstrings, records and tests mean, by the page that tells of them. `make references` writes this page from"
    lines = ["# Features", "", f"{told} `features.toml` and the tests; `make features` names each test."]
    for target, features in groups.items():
        heading = re.search(r"^# (.*)", (ROOT / "docs" / target).read_text(encoding="utf-8"), re.MULTILINE)
        assert heading is not None
        lines += ["", f"## {heading.group(1)}", "", "| | | tests |", "| --- | --- | --- |"]
        for feature in features:
            meaning = re.sub(r"([|<>*_`])", r"\\\1", titles[feature])
            named = ", ".join(f"[{Path(path).stem.removeprefix('test_')}](../{path})" for path in tests[feature])
            lines.append(f"| [{feature}]({section(feature)}) | {meaning} | {named} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    if "--page" in arguments:
        (ROOT / "docs" / "features.md").write_text(page(), encoding="utf-8")
        return 0
    features: dict[str, dict[str, str]] = tomllib.loads((ROOT / "features.toml").read_text(encoding="utf-8"))
    known = {feature: title for area in features.values() for feature, title in area.items()}
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for feature, name in marks(path):
            tests[feature].append(f"{path.relative_to(ROOT)}::{name}")
    unknown = sorted(set(tests) - set(known))
    for feature in unknown:
        print(f"unknown feature ID {feature} in {', '.join(tests[feature])}", file=sys.stderr)
    if "--check" in arguments:
        return 1 if unknown else 0
    for area, titles in features.items():
        done = sum(feature in tests for feature in titles)
        print(f"\n{area}: {done} of {len(titles)}")
        for feature, title in titles.items():
            if "--missing" in arguments and feature in tests:
                continue
            print(f"  {feature:18} {title}")
            for test in tests.get(feature, []):
                print(f"  {'':18}   {test}")
    covered = sum(feature in tests for feature in known)
    print(f"\n{covered} of {len(known)} features have a test that names them.")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
