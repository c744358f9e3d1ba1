"""Pressure and CPI of pods in the report, where they are collected (BEY-ABN-01)."""

from __future__ import annotations

import pytest

from roles.koordlet.report.contention import extensions
from roles.koordlet.store import kinds

LINE = "some avg10={0} avg60=2.00 avg300=3.00 total=4\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1\n"


@pytest.mark.feature("BEY-ABN-01")
def test_what_is_collected_is_reported_and_nothing_else(agent, make_pod) -> None:
    a = agent(version=2, gates="PSICollector=true")
    directory = a.tree.pod_dir("Burstable", "u-1")
    for d in (a.tree.kubepods, directory, a.tree.container_dir(directory, "web-main")):
        a.tree.cgroup(d)
        for name in ("cpu.pressure", "memory.pressure", "io.pressure"):
            a.tree.write(a.tree.file("cpuacct", d, name), LINE.format("7.25"))
    a.list(make_pod("web", "u-1"))
    a.tick()
    (pod,) = a.pod_cache.pods
    assert extensions(a.view, pod, 300) == {"psi": {"cpu": 7.25, "mem": 0.5, "io": 0.5}}
    key = (pod.uid, pod.containers[0].id)
    a.store.append(a.now, [(kinds.CONTAINER_CPI, (*key, "cycle"), 3e9), (kinds.CONTAINER_CPI, (*key, "instruction"), 2e9)])
    found = extensions(a.view, pod, 300)
    assert found is not None
    assert found["cpi"] == 1.5
    quiet = agent(version=2)
    quiet.list(make_pod("web", "u-1"))
    quiet.tick()
    assert all(extensions(quiet.view, pod, 300) is None for pod in quiet.pod_cache.pods)
