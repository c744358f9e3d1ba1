"""OOMScoreAdj: annotations in, /proc/<pid>/oom_score_adj out (KA-HK-10)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from roles.koordlet.actuation.restore import journal_path, restore
from tests.support.koordlet import exposed

ONE, SPEC = "koordinator.sh/oom-score-adj", "koordinator.sh/oom-score-adj-spec"


@pytest.mark.feature("KA-HK-10")
@pytest.mark.parametrize(
    ("annotations", "wanted"),
    [
        ({ONE: "-500"}, ["-500", "-500"]),
        ({ONE: "100", SPEC: '{"c1":900}'}, ["100", "900"]),
        ({ONE: "1001"}, ["7", "7"]),
        ({ONE: "many", SPEC: '{"c0":-1000}'}, ["-997", "7"]),
        ({ONE: "5", SPEC: '{"c0":2000}'}, ["5", "5"]),
        ({}, ["7", "7"]),
    ],
)
def test_scores(hooked, annotations, wanted) -> None:
    node = hooked("OOMScoreAdj")
    pod = node.world.pod("p", containers=2, annotations=annotations)
    for number, container in enumerate(pod.containers):
        node.files("cgroup.procs", f"{100 + number}\n{300 + number}", container.cgroup_dir)
        node.machine.file(f"proc/{100 + number}/oom_score_adj", "7\n")
    node.run()
    assert [score(node, 100), score(node, 101)] == wanted
    assert node.run().written == 0
    journal = Path(journal_path(node.machine.root))
    assert "oom_score_adj" not in (journal.read_text() if journal.exists() else ""), "a process's number is soon another's"


@pytest.mark.feature("KA-HK-10")
def test_new_processes_and_the_gauge(hooked) -> None:
    node = hooked("OOMScoreAdj")
    pod = node.world.pod("p", annotations={ONE: "33"})
    directory = pod.containers[0].cgroup_dir
    node.files("cgroup.procs", "100", directory)
    node.machine.file("proc/100/oom_score_adj", "0\n")
    node.run()
    node.files("cgroup.procs", "100\n101", directory)
    node.machine.file("proc/101/oom_score_adj", "0\n")
    node.run()
    assert [score(node, 100), score(node, 101)] == ["33", "33"]
    gauges = [line for line in exposed(node.machine.metrics.internal).splitlines() if line.startswith("koordlet_container_oom_score_adj{")]
    assert len(gauges) == 1
    assert 'pod_name="p"' in gauges[0]
    assert gauges[0].endswith(" 33.0")


@pytest.mark.feature("KA-HK-10")
def test_processes_in_cgroups_that_a_container_made(hooked) -> None:
    node = hooked("OOMScoreAdj")
    inner = node.world.pod("p", annotations={ONE: "33"}).containers[0].cgroup_dir + "/system.slice/job.service"
    node.files("cgroup.procs", "100", inner)
    node.machine.file("proc/100/oom_score_adj", "0\n")
    node.run()
    assert score(node, 100) == "33"


def score(node: Any, pid: int) -> str:
    return str((node.machine.base / f"proc/{pid}/oom_score_adj").read_text().strip())


@pytest.mark.root
@pytest.mark.feature("KA-HK-10")
@pytest.mark.feature("BEY-JRN-01")
def test_on_the_real_kernel(real_hooked) -> None:
    """The score of a real process, and restore, which knows it from a later one of its number."""
    node = real_hooked("OOMScoreAdj")
    shutil.rmtree(node.machine.base / "proc")
    (node.machine.base / "proc").symlink_to("/proc")
    pod = node.world.pod("p", annotations={ONE: "900"})
    directory = pod.containers[0].cgroup_dir
    node.make(directory)
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            own = score(node, process.pid)
            Path(node.machine.host.cgroups.file("cgroup.procs", directory)).write_text(str(process.pid))
            node.run()
            assert score(node, process.pid) == "900"
            assert [restored.endswith(f"{process.pid}/oom_score_adj") for restored in restore(node.machine.root).restored] == [True]
            assert score(node, process.pid) == own
        finally:
            process.kill()
