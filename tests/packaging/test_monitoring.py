"""Dashboards, alerts and monitors ask for what the roles really serve: names, labels and label values, ports and pages."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from roles.tools import manifests
from roles.tools.reference.metrics import ROLES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "configs/components/monitoring"
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))
Obj = dict[str, Any]
MONITOR = ("ServiceMonitor", "koord-scheduler")

# Labels that Prometheus or the ServiceMonitor put on every series.
TARGET_LABELS = {"job", "instance", "namespace", "pod", "service", "endpoint", "container"}
WORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset"}
LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SELECTOR = re.compile(r"\b([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(?!\w)(?!\s*\()")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')


@cache
def served() -> dict[str, set[str]]:
    """Series of every role with their labels."""
    found: dict[str, set[str]] = {}
    for role, entries in ROLES.items():
        for entry in entries():
            labels = set(entry.labels) - {"le"} | ({"node"} if role == "koordlet" else set())
            names = [entry.name + end for end in ("_bucket", "_sum", "_count")] if entry.kind == "histogram" else [entry.name]
            for name in names:
                found[name] = found.get(name, set()) | labels | ({"le"} if name.endswith("_bucket") else set())
    return found


def series(expression: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """(metric, matchers) of a PromQL expression."""
    text = re.sub(r"\[[^\]]*\]", "", LISTS.sub(" ", expression))
    found = []
    for match in SELECTOR.finditer(text):
        name, braces = match.group(1), match.group(2) or ""
        before = text[: match.start()]
        inside = before.count("{") > before.count("}") or before.count('"') % 2
        if not inside and name not in WORDS and not name.isdigit():
            found.append((name, MATCHER.findall(braces)))
    return found


def problems(expression: str) -> list[str]:
    """What an expression asks for that nothing serves."""
    known, found = served(), []
    usable: set[str] = set()
    for name, matchers in series(expression):
        if name == "up":
            usable |= TARGET_LABELS
            continue
        if name not in known:
            found.append(f"no role serves {name}")
            continue
        labels = known[name] | TARGET_LABELS
        usable |= labels
        for label, operator, value in matchers:
            if label not in labels:
                found.append(f"{name} has no label {label}")
            elif operator in ("=", "!=") and label != "job" and "$" not in value and not spoken(value):
                found.append(f"no role says {label}={value!r}")
    for listed in LISTS.findall(expression):
        found += [f"nothing has the label {label}" for label in re.findall(r"\w+", listed) if label not in usable]
    return found


@cache
def sources() -> str:
    return "\n".join(
        file.read_text() for folder in ("koord", "roles") for file in (ROOT / folder).rglob("*.py") if "reference" not in file.parts
    )


def spoken(value: str) -> bool:
    """Whether some role has the word; HTTP statuses are numbers there."""
    return value.isdigit() or f'"{value}"' in sources()


def rules() -> list[Obj]:
    [document] = yaml.safe_load_all((FOLDER / "rules.yaml").read_text())
    return [rule for group in document["spec"]["groups"] for rule in group["rules"]]


def queries() -> list[tuple[str, str]]:
    found = []
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            found += [(f"{file.stem}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    return found


def test_every_query_of_a_dashboard_is_served() -> None:
    wrong = [f"{where}: {problem}" for where, expression in queries() for problem in problems(expression)]
    assert wrong == []
    assert len(queries()) > 40


def test_every_alert_is_served() -> None:
    wrong = [f"{rule['alert']}: {problem}" for rule in rules() for problem in problems(rule["expr"])]
    assert wrong == []


def test_what_koordlet_declares_and_never_sets_is_not_asked_for() -> None:
    registry = ROOT / "roles/koordlet/metrics/registry.py"
    declared = dict(re.findall(r'self\.(\w+) = (?:self\._)?(?:gauge|counter|histogram)\(\s*"(\w+)"', registry.read_text()))
    attributes = {name: attribute for attribute, name in declared.items()}
    others = "\n".join(file.read_text() for file in (ROOT / "roles/koordlet").rglob("*.py") if file != registry)
    asked = {
        re.sub("_(bucket|sum|count)$", "", name)
        for _, text in [*queries(), *((r["alert"], r["expr"]) for r in rules())]
        for name, _ in series(text)
    }
    unset = [name for name in asked & set(attributes) if not named(attributes[name], others)]
    assert len(asked & set(attributes)) > 10
    assert unset == []


def named(attribute: str, text: str) -> bool:
    """Whether the text names an attribute, whole or as f"{prefix}_end"."""
    return bool(re.search(rf'\b{attribute}\b|\}}_{attribute.rpartition("_")[2]}"', text))


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("sum(rate(scheduler_schedule_attempts[5m]))", ["no role serves scheduler_schedule_attempts"]),
        ('koordlet_tick_seconds{stats="last"}', ["koordlet_tick_seconds has no label stats"]),
        ('koordlet_tick_seconds{stat="lastt"}', ["no role says stat='lastt'"]),
        ("sum by (plugni) (scheduler_unschedulable_pods)", ["nothing has the label plugni"]),
        (
            "histogram_quantile(0.9, sum by (le) (rate(scheduler_preemption_victims[5m])))",
            ["no role serves scheduler_preemption_victims", "nothing has the label le"],
        ),
        ('sum by (job) (up{job=~"a|b"}) unless on (job) koordlet_start_time == 1e3', []),
    ],
)
def test_the_check_finds_what_nobody_serves(expression: str, told: list[str]) -> None:
    assert problems(expression) == told


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_every_alert_has_its_line_in_the_runbook() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    anchors = {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert rule["alert"].lower() in anchors, f"{rule['alert']} is not in docs/operations.md"
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    described = {heading.lower() for heading in re.findall(r"^#+ (Koord\w+)$", text, re.MULTILINE)}
    assert described == {name.lower() for name in names}, "the runbook has a line of an alert that is gone"


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_dashboards_are_whole(file: Path) -> None:
    board = json.loads(file.read_text())
    assert board["uid"] == file.stem
    assert board["templating"]["list"][0]["name"] == "datasource", "a dashboard that names a data source works on one Grafana only"
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    for panel in panels:
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert all(target["legendFormat"] for target in panel["targets"])
    variables = {v["name"] for v in board["templating"]["list"]}
    used = {name for panel in panels for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])} - {
        "__rate_interval"
    }
    assert used <= variables


def test_every_dashboard_is_installed() -> None:
    maps = [d for d in manifests.rendered(crds=False, overlays=("monitoring",)) if d["metadata"]["name"].startswith("koord-dashboard-")]
    assert sorted(name for d in maps for name in d["data"]) == [file.name for file in DASHBOARDS]
    assert {d["metadata"]["labels"]["grafana_dashboard"] for d in maps} == {"1"}


def test_monitors_reach_the_metrics_of_every_role() -> None:
    objects = manifests.rendered(crds=False, overlays=("monitoring",))
    pods = {
        d["metadata"]["name"]: d["spec"]["template"] for d in objects if d["kind"] in ("Deployment", "DaemonSet")
    }  # name -> pod template
    services = [d for d in objects if d["kind"] == "Service"]
    monitors = [d for d in objects if d["kind"] == "ServiceMonitor"]
    assert {d["metadata"]["name"] for d in monitors} == set(pods)
    for monitor in monitors:
        spec = monitor["spec"]
        assert set(spec) == {"jobLabel", "selector", "endpoints"}
        [service] = [s for s in services if spec["selector"]["matchLabels"].items() <= s["metadata"].get("labels", {}).items()]
        assert service["metadata"]["labels"][spec["jobLabel"]] == monitor["metadata"]["name"], "the job label that alerts rely on"
        template = pods[monitor["metadata"]["name"]]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        [port] = service["spec"]["ports"]
        assert {endpoint["port"] for endpoint in spec["endpoints"]} == {port["name"]}
        [container] = template["spec"]["containers"]
        assert {p["name"]: p["containerPort"] for p in container["ports"]}[port["targetPort"]] == port["port"]
        assert any(str(port["port"]) in argument for argument in container["args"]) or monitor["metadata"]["name"] == "koord-descheduler"


def test_the_scheduler_s_requests_of_pods_are_scraped_as_they_are() -> None:
    """`koord cost` needs them. Two targets of the same labels would be one for Prometheus, and `up` of both the replica's."""
    [monitor] = [d for d in manifests.rendered(crds=False, overlays=("monitoring",)) if (d["kind"], d["metadata"]["name"]) == MONITOR]
    plain, resources = monitor["spec"]["endpoints"]
    assert "path" not in plain
    assert (resources["path"], resources["honorLabels"]) == ("/metrics/resources", True)
    assert [each["targetLabel"] for each in resources["relabelings"]] == ["job"]
    assert resources.items() >= plain.items()
