"""Every block of commands on the pages that newcomers and operators follow is run by a test, or says in the page's source why not.

The mark stands on a line of its own before the block: `<!-- not run: REASON -->`. What needs no cluster is run here;
of the rest the test is named.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from koord.cli import main
from tests.support.docs import ROOT

PAGES = [ROOT / "README.md"] + [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "getting-started",
        "install",
        "host",
        "operations",
        "troubleshooting",
        "top",
        "ui",
        "cli",
        "doctor",
        "lint",
        "plugin-guide",
        "manager",
        "koordlet",
        "scheduler",
        "runtime-proxy",
        "replay",
        "cost",
        "testing",
    )
]
_MARK = re.compile(r"<!-- not run: (.+) -->")
#: What is done here as it stands.
_ALONE = re.compile(r"koord (plugin new|completion|sandbox world --list-mutants)\b")
_COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )?(?:\. |koord|kubectl|make|helm|docker|curl|cosign|pip|install|systemctl|export|ln|echo)\b.*")

#: Which test runs a command line of which pages. The first that matches counts.
RUN = {
    r"\S+: make demo|\S+: koord sandbox demo": "tests/e2e/test_demo.py",
    r"\S+: make test": "tests/packaging/test_entry.py",
    r"\S+: koord sandbox hotspot": "tests/e2e/test_hotspot.py",
    r"\S+: koord sandbox training": "tests/roles/sandbox/test_training.py",
    r"\S+: (\. \.venv/bin/activate; )?koord sandbox up|\S+: export KUBECONFIG": "tests/e2e/test_activity.py",
    r"\S+: koord (why|top|ui|doctor)\b": "tests/e2e/test_commands.py",
    r"\S+: koord install --print": "tests/roles/tools/test_install.py",
    r"\S+: koord uninstall": "tests/roles/tools/test_uninstall.py",
    r"\S+: helm install koord": "tests/packaging/test_chart.py",
    r"\S+: koord koordlet .*--plugin-path": "tests/docs/test_plugin_guide.py",
    r"\S+: koord koordlet --restore": "tests/e2e/test_uninstall.py",
    r"\S+: koord koordlet --observe-only": "tests/packaging/test_systemd.py",
    r"\S+: NODE_NAME=\S+ koord koordlet": "tests/packaging/test_entry.py",
    r"\S+: koord lint": "tests/roles/tools/test_lint.py",
    r"\S+: koord (plugin new|completion|sandbox world --list-mutants)": "tests/docs/test_blocks.py",
    r"(scheduler|replay): koord \S*scheduler ": "tests/docs/test_blocks.py",
    r"replay: koord manager": "tests/docs/test_blocks.py",
    r"manager: koord manager --webhook-client": "tests/roles/manager/test_callers.py",
    r"scheduler: curl \S+/debug/decisions": "tests/roles/scheduler/test_live.py",
    r"scheduler: curl \S+/ElasticQuota/quotas": "tests/roles/scheduler/elastic_quota/test_live_quota.py",
    r"runtime-proxy: koord runtime-proxy --backend-runtime-mode=Docker": "tests/roles/runtime_proxy/test_process.py",
    r"cost: koord cost --prices \S+ --prometheus": "tests/roles/tools/test_cost.py",
    r"testing: koord sandbox world .*--beside": "tests/roles/sandbox/world/test_beside.py",
    r"testing: koord sandbox world --seed \d+ +#|testing: .*--shrink": "tests/roles/sandbox/world/test_world.py",
    r"testing: koord sandbox world .*--koordlets": "tests/roles/sandbox/world/test_hosts.py",
    r"troubleshooting: (curl|kubectl)": "tests/e2e/test_cluster.py",
    r"(README|getting-started): kubectl": "tests/e2e/test_commands.py",
    r"(install|operations): kubectl create clusterrolebinding": "tests/e2e/test_commands.py",
}


def blocks(page: Path) -> Iterator[tuple[str, list[str]]]:
    """(why it is not run, its command lines) of every block of commands: fenced as shell or as nothing, or indented."""
    why, fence, lines = "", None, list[str]()
    for line in [*page.read_text(encoding="utf-8").splitlines(), "the end"]:
        if line.startswith("```"):
            fence = line[3:] if fence is None else None
        elif fence in ("", "sh", "bash") or (fence is None and line.startswith("    ")):
            lines += [line.strip()] if _COMMAND.fullmatch(line.strip()) else []
        elif mark := _MARK.fullmatch(line.strip()):
            why = mark[1]
        if lines and not (fence in ("", "sh", "bash") or line.startswith("    ")):
            yield why, lines
            lines = []
        if fence is None and line and line[:3] != "```" and line[0] not in " <":
            why = ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    nobody = [
        line
        for why, lines in blocks(page)
        if not why
        for line in lines
        if not any(re.match(pattern, f"{page.stem}: {line}") for pattern in RUN)
    ]
    assert not nobody, "run it in a test, or put <!-- not run: REASON --> before the block"


def test_the_tests_that_are_named_exist() -> None:
    assert [file for file in RUN.values() if not (ROOT / file).is_file()] == []


def test_what_needs_no_cluster_is_done_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = 0
    for page in PAGES:
        for line in [line for _, lines in blocks(page) for line in lines if _ALONE.match(line)]:
            result = CliRunner().invoke(main, shlex.split(re.split(r" +[#>]", line)[0])[1:])
            assert result.exit_code == 0, f"{line}: {result.output}"
            assert result.output
            done += 1
    assert done >= 7
    made = sorted(file.name for file in tmp_path.glob("test_*.py"))
    assert made == ["test_memory_ceiling.py", "test_quiet_hours.py", "test_team_burst.py"]


def test_roles_take_their_lines_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the files that the pages name, as far as that needs no cluster."""
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n# quiet_hours\.py\n(.*?)```", (ROOT / "docs" / "scheduler.md").read_text(), re.DOTALL)
    assert example is not None
    Path("quiet_hours.py").write_text(example[1])
    Path("scheduler.yaml").write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    Path("descheduler.yaml").write_text("apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n")
    done = 0
    for page in (ROOT / "docs" / f"{name}.md" for name in ("scheduler", "replay")):
        for line in [line for _, lines in blocks(page) for line in lines if re.match(r"koord (scheduler|descheduler|manager) ", line)]:
            words = shlex.split(re.split(r" +[#>]", line)[0])[1:]
            result = CliRunner().invoke(main, [*dict.fromkeys([*words, "--validate-config"])])
            assert result.exit_code == 0, f"{line}: {result.output}"
            done += 1
    assert done >= 7
