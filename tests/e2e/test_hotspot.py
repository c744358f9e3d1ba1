"""The scenario "hot spot" as its users run it: manager, scheduler and descheduler relieve a loaded node, and the report tells how."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from roles.sandbox.hotspot.cluster import HIGH_PERCENT
from tests.e2e.conftest import Running

pytestmark = pytest.mark.feature("BEY-SBX-01")


def rows(report: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    part = report.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")][2:]


@pytest.mark.feature("DS-LNL-06")
def test_a_hot_node_is_relieved_and_nobody_moves_twice(sandbox: Running) -> None:
    out = sandbox.directory / "out"
    done = sandbox.run("hotspot", "--nodes=3", "--timeout=90", f"--out={out}")
    assert done.returncode == 0, done.stdout + done.stderr

    report = (out / "report.md").read_text()
    nodes = {name: (int(before.rstrip(" %")), int(after.rstrip(" %"))) for name, before, after, *_ in rows(report, "Nodes")}
    assert nodes["sim-000"][0] > HIGH_PERCENT >= nodes["sim-000"][1]
    assert all(after <= HIGH_PERCENT for _, after in nodes.values())

    migrations = rows(report, "Migrations")
    assert len(migrations) >= 3
    for _, _, source, target, replacement, phases in migrations:
        assert source == "sim-000"
        assert target in {"sim-001", "sim-002"}
        assert replacement.startswith("checkout-")
        assert re.search(r"Running [\d.]+ s → Succeeded [\d.]+ s$", phases)
    left, came = [row[1] for row in migrations], [row[4] for row in migrations]
    assert len({*left, *came}) == 2 * len(migrations)
    assert "Pods that were moved more than once: none." in report

    chart = ET.fromstring((out / "utilisation.svg").read_text())
    assert len(list(chart.iter("{http://www.w3.org/2000/svg}polyline"))) == len(nodes) + 1
    assert not list(sandbox.state.glob("run-*"))


def test_too_few_nodes_are_refused(sandbox: Running) -> None:
    done = sandbox.run("hotspot", "--nodes=2")
    assert done.returncode == 2
    assert "--nodes" in done.stderr
