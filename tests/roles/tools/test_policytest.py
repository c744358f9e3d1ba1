"""`koord test`: policies as cases, run by koord's own code (BEY-POL-01)."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from koord import seams
from koord.cli import main
from roles.tools.policytest.cases import find, load
from roles.tools.policytest.running import Runner
from tests.support.docs import ROOT

POLICIES = ROOT / "docs" / "policies"

WRONG = """\
given: {files: [nodes.yaml]}
cases:
- name: none of this is so
  when:
    drain: [idle]
    add:
    - apiVersion: v1
      kind: Pod
      metadata: {name: job, labels: {tier: batch}}
      spec: {containers: [{name: main, image: i, resources: {requests: {cpu: "2"}}}]}
  then:
  - placed: {pod: default/job, node: idle}
  - pending: {pod: default/web-0, because: no reason}
  - admitted:
      pod: default/job
      has: {spec: {priorityClassName: koord-prod}}
  - admitted: {pod: default/job, has: {spec: {containers: [{resources: {requests: {cpu: "2"}}}]}}}
  - refused: {pod: default/job}
  - offers: {node: busy, amounts: {kubernetes.io/batch-cpu: 1}}
  - offers: {node: other, amounts: {cpu: 1}}
  - fits: true
  - victims: [default/web-0]
  - lost: [default/web-0]
  - hot: []
  - free: []
"""


def koord_test(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["test", *arguments])
    return result.exit_code, result.output


@pytest.mark.feature("BEY-POL-01")
@pytest.mark.parametrize("path", sorted(find((str(POLICIES),))), ids=lambda path: path.stem)
def test_the_shipped_policies_hold(path: Path) -> None:
    results = list(Runner().run(load(path)))
    assert [(result.name, result.failures) for result in results if result.failures] == []


@pytest.mark.feature("BEY-POL-01")
def test_what_is_added_and_not_simulated_is_said(tmp_path: Path) -> None:
    """A DaemonSet's pods take room on every node: a case that holds without them proves less than it seems to."""
    (case := tmp_path / "agents_test.yaml").write_text("""\
cases:
- name: an agent for every node
  when:
    add:
    - apiVersion: apps/v1
      kind: DaemonSet
      metadata: {name: agent, namespace: ops}
      spec: {template: {spec: {containers: [{name: main, image: i, resources: {requests: {cpu: "64"}}}]}}}
  then:
  - fits: true
- name: nothing
  then:
  - fits: true
""")
    code, output = koord_test(str(case), f"--junit={tmp_path / 'out.xml'}")
    told = "not simulated, as it is not known which pods it makes: DaemonSet ops/agent"
    assert (code, output.splitlines()[:3]) == (0, ["ok   an agent for every node", f"     {told}", "ok   nothing"])
    suite = ET.parse(tmp_path / "out.xml").getroot()[0]
    assert [case.findtext("system-out") for case in suite] == [told, None]


@pytest.mark.feature("BEY-POL-01")
def test_objects_within_a_case_are_read_as_those_in_files(tmp_path: Path) -> None:
    (case := tmp_path / "times_test.yaml").write_text("""\
given:
  objects:
  - apiVersion: v1
    kind: Node
    metadata: {name: a, creationTimestamp: 2026-01-01T00:00:00Z, labels: {shift: 22:30}}
    status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}, capacity: {cpu: "4", memory: 8Gi, pods: "10"}}
  - apiVersion: slo.koordinator.sh/v1alpha1
    kind: NodeMetric
    metadata: {name: a}
    status: {updateTime: 2026-01-01T00:00:00Z, nodeMetric: {nodeUsage: {resources: {cpu: "1", memory: 1Gi}}}}
cases:
- name: a pod for the night finds its node
  when:
    add:
    - apiVersion: v1
      kind: Pod
      metadata: {name: p}
      spec:
        schedulerName: koord-scheduler
        nodeSelector: {shift: 22:30}
        containers: [{name: main, image: i, resources: {requests: {cpu: "1"}}}]
  then: [{placed: {pod: default/p, node: a}}]
""")
    code, told = koord_test(str(case))
    assert code == 0, told


@pytest.mark.feature("BEY-POL-01")
def test_every_expectation_can_fail_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text((POLICIES / "nodes.yaml").read_text())
    wrong = tmp_path / "wrong_test.yaml"
    wrong.write_text(WRONG)
    junit = tmp_path / "junit.xml"
    code, told = koord_test(str(tmp_path), "--junit", str(junit))
    assert code == 1
    assert told.startswith("FAIL none of this is so\n")
    assert told.endswith("1 case, 1 failed\n")
    missing = "0/2 nodes are available: 1 Insufficient kubernetes.io/batch-cpu, 1 node(s) were unschedulable"
    for line, expected, found in (
        (12, "default/job on idle", f"it has no node: {missing}"),
        (13, "default/web-0 without a node, because 'no reason'", "there is no such pod, or it stays where it is"),
        (14, "default/job admitted with spec.priorityClassName = 'koord-prod'", "it is 'koord-batch'"),
        (17, "default/job admitted with spec.containers[0].resources.requests.cpu = '2'", "it is not there"),
        (18, "default/job refused at admission", "it has no node"),
        (19, "busy with kubernetes.io/batch-cpu 1", "it has 0"),
        (20, "node other", "there is no such node"),
        (21, "that everything fits", "these do not: default/job"),
        (22, "victims: default/web-0", "none"),
        (23, "lost: default/web-0", "none"),
        (24, "hot nodes: none", "busy"),
        (25, "free nodes: none", "idle"),
    ):
        assert f"{wrong}:{line}\n       expected  {expected}\n       found     {found}" in told
    (suite,) = ET.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert len(suite.findall("testcase/failure")) == 12


@pytest.mark.feature("BEY-POL-01")
def test_what_is_left_to_best_effort_pods_can_fail_too(tmp_path: Path) -> None:
    text = (POLICIES / "pressure_test.yaml").read_text()
    (tmp_path / "nodes.yaml").write_text((POLICIES / "nodes.yaml").read_text())
    for right, wrong in (
        ("to: 3700m", "to: 3600m"),
        ("unsuppressed: [idle]", "suppressed: {node: idle, to: 1}"),
        ("suppressed: {node: idle, to: 800m}", "unsuppressed: [idle]"),
    ):
        text = text.replace(right, wrong, 1)
    (tmp_path / "wrong_test.yaml").write_text(text)
    code, told = koord_test(str(tmp_path))
    assert code == 1
    for expected, found in (
        ("best-effort pods of idle suppressed to 3600m cores", "to 3700m"),
        ("best-effort pods of idle suppressed to 1 cores", "they are not suppressed"),
        ("best-effort pods not suppressed on idle", "they are on idle"),
    ):
        assert f"       expected  {expected}\n       found     {found}" in told
    assert told.endswith("9 cases, 3 failed\n")


@pytest.mark.feature("BEY-POL-01")
def test_what_a_nodes_agent_does_can_fail_too(tmp_path: Path) -> None:
    text = (POLICIES / "nodeagent_test.yaml").read_text()
    (tmp_path / "nodes.yaml").write_text((POLICIES / "nodes.yaml").read_text())
    for right, wrong in (
        ("cpu.shares: 2048", "cpu.shares: 2049"),
        ("container: main, values: {cpu.cfs_quota_us: 200000}", "container: other, values: {cpu.cfs_quota_us: 1}"),
        ("cpu.cfs_quota_us: 420000", "cpu.idle: 1"),
        ("files: {pod: default/report", "files: {pod: default/nobody"),
        ("evicted: []", "evicted: [default/etl-0]"),
        ("evicted: [default/etl-0]\n  - fits: false", "evicted: [default/etl-1]\n  - fits: true"),
        ("when: {after: 16m}", "when: {after: 1m}"),
        ("faults: {down: [idle]}", "faults: {down: []}"),
        ("faults: {silent: [idle]}", "faults: {silent: []}"),
    ):
        assert right in text
        text = text.replace(right, wrong, 1)
    (tmp_path / "wrong_test.yaml").write_text(text)
    code, told = koord_test(str(tmp_path))
    assert code == 1
    for expected, found in (
        ("default/etl-0 with cpu.shares 2049", "it is 2048"),
        ("default/etl-0 other with cpu.cfs_quota_us 1", "it is left alone; written: nothing"),
        ("idle BestEffort with cpu.idle 1", "it is left alone; written: cpu.cfs_quota_us 420000"),
        ("files of default/nobody", "there is no such pod, or it stays where it is"),
        ("evicted: default/etl-0", "none"),
        ("evicted: default/etl-1", "default/etl-0"),
        ("that everything fits", "these do not: default/etl-0"),
        ("default/api without a node, because 'untolerated taint'", "it goes to idle"),
        ("idle with kubernetes.io/batch-cpu 0", "it has 3800"),
    ):
        assert f"       expected  {expected}\n       found     {found}" in told, told
    assert told.count("it has 3800") == 2
    assert told.endswith("9 cases, 8 failed\n")


@pytest.mark.feature("BEY-POL-01")
def test_the_schema_knows_what_files_hold() -> None:
    code, told = koord_test("--schema")
    assert code == 0
    schema = json.loads(told)
    assert set(schema["properties"]) == {"given", "cases"}
    assert "evicted" in schema["$defs"]["Expectation"]["properties"]
    assert "agentFeatureGates" in schema["$defs"]["Given"]["properties"]
    assert koord_test()[0] == 2


@pytest.mark.feature("BEY-POL-01")
def test_cases_run_again_when_a_file_beside_them_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes.yaml").write_text((POLICIES / "nodes.yaml").read_text())
    cases = tmp_path / "a_test.yaml"
    cases.write_text("given: {files: [nodes.yaml]}\ncases:\n- name: fits\n  then: [{fits: true}]\n")
    (tmp_path / "gone.yaml").symlink_to("nowhere.yaml")
    (tmp_path / ".#a_test.yaml").symlink_to("somebody@host.123:456")  # it is open in Emacs
    looks = iter(["look again", "fits: false", "cases: 1"])

    async def meanwhile(seconds: float) -> None:
        change = next(looks, None)
        if change is None:
            raise KeyboardInterrupt
        if change != "look again":
            cases.write_text(cases.read_text().replace("fits: true", change) if change.startswith("fits") else change)
            os.utime(cases, ns=(1, len(change)))

    monkeypatch.setattr(seams, "sleep", meanwhile)
    told = koord_test(str(tmp_path), "--watch")[1]
    assert told.count("1 case, all as expected") == 1, "looked at again, and nothing had changed"
    assert told.count("1 case, 1 failed") == 1
    assert "a_test.yaml:1: cases" in told, "a mistake in the file is told, and watching goes on"


@pytest.mark.feature("BEY-POL-01")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cases: []", "x_test.yaml:1: cases: "),
        ("- 1", "x_test.yaml: must be a mapping with `cases`"),
        ("cases: [{name: a, then: [{placed: {pod: a}, fits: true}]}]", "cases[0].then[0]: must hold one of placed, pending"),
        ("cases:\n- name: a\n  thn: []\n", "x_test.yaml:3: cases[0].thn: unknown field"),
        ("cases: [{name: a, then: [{fits: 1}]}]", "cases[0].then[0].fits: must be"),
        ("cases: [{name: a, given: {files: [no.yaml]}, then: [{fits: true}]}]", "no.yaml: No such file or directory"),
        ("cases: [{name: a, when: {drain: [n]}, then: [{fits: true}]}]", "case 'a': node 'n' is not in the snapshot"),
        ("cases: [{name: a, given: {objects: [{a: 1}]}, then: [{fits: true}]}]", "case 'a', object 1: must be an object"),
        ("cases: [{name: a, given: {featureGates: No=true}, then: [{fits: true}]}]", "No"),
        ("cases: [{name: a, when: {after: soon}, then: [{fits: true}]}]", "case 'a': after: "),
        ("cases: [{name: a, when: {pressure: {n: {cpu: 1}}}, then: [{fits: true}]}]", "case 'a': node 'n' is not in the snapshot"),
        ("cases: [{name: a, then: [{files: {pod: a, node: b, values: {}}}]}]", "must name a pod (and a container), or a node and a level"),
        ("cases: [{name: a, given: {agentFeatureGates: No=true}, then: [{fits: true}]}]", "No"),
        ("cases: {", "x_test.yaml: while parsing"),
    ],
)
def test_mistakes_in_a_file_have_their_place(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "x_test.yaml").write_text(text)
    code, output = koord_test(str(tmp_path))
    assert code in (1, 2)
    assert told in output
    assert "Traceback" not in output


@pytest.mark.feature("BEY-POL-01")
def test_lint_knows_such_files(tmp_path: Path) -> None:
    (tmp_path / "x_test.yaml").write_text("cases:\n- name: a\n  thn: []\n")
    result = CliRunner().invoke(main, ["lint", str(tmp_path)])
    assert result.exit_code == 1
    assert "x_test.yaml:3:3: error: cases[0].thn: unknown field" in result.output


@pytest.mark.feature("BEY-POL-01")
@pytest.mark.parametrize("command", [["test"], ["lint"], ["simulate", "-s"]])
def test_a_file_that_is_being_edited_keeps_nobody_from_the_others(tmp_path: Path, command: list[str]) -> None:
    name = "a.yaml" if command[0] == "simulate" else "a_test.yaml"
    node = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n"
    (tmp_path / name).write_text(node if name == "a.yaml" else "cases: [{name: a, then: [{fits: true}]}]")
    (tmp_path / f".#{name}").symlink_to("somebody@host.123:456")
    result = CliRunner().invoke(main, [*command, str(tmp_path)])
    assert result.exit_code == 0, result.output


@pytest.mark.feature("BEY-POL-01")
def test_a_folder_without_cases_is_an_error(tmp_path: Path) -> None:
    assert koord_test(str(tmp_path)) == (1, f"main test: error: {tmp_path}: no *_test.yaml in this folder\n")
