"""Resctrl: a pod's annotation in, its resctrl group out (KA-RDT-02). The file system is a directory here; see the kernel's rules there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from koord.api.qos import QoSClass
from roles.koordlet.hooks import resctrl
from roles.koordlet.hooks.asking import Answers
from roles.koordlet.hooks.context import PodContext, Stage

KEY = "node.koordinator.sh/resctrl"
BOTH = {"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 25}}}


class Groups:
    """resctrl of a machine with two caches of 12 ways. A group made by the agent gets its files, as the kernel gives them."""

    def __init__(self, node: Any, vendor: str = "GenuineIntel") -> None:
        self.node = node
        self.base = Path(node.machine.root.sys_fs, "resctrl")
        node.machine.file("proc/cpuinfo", f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu cat_l3 mba\n")
        (self.base / "info/L3").mkdir(parents=True)
        (self.base / "info/L3/cbm_mask").write_text("fff\n")
        (self.base / "schemata").write_text("    L3:0=fff;1=fff\n    MB:0=100;1=100\n")

    def pod(self, name: str, config: Any, *tids: int, qos: str = "LS") -> Any:
        text = config if isinstance(config, str) else json.dumps(config)
        pod = self.node.world.pod(name, qos=qos, annotations={KEY: text})
        self.node.files("tasks", "\n".join(map(str, tids)), pod.containers[0].cgroup_dir)
        return pod

    def path(self, pod: Any) -> Path:
        return self.base / f"koordlet-{pod.uid}"

    def filled(self, pod: Any) -> Path:
        """The group as the kernel would have made it."""
        path = self.path(pod)
        path.mkdir()
        (path / "schemata").write_text("L3:0=fff;1=fff\nMB:0=100;1=100\n")
        (path / "tasks").write_text("")
        return path

    def writes(self) -> list[tuple[str, str]]:
        """(file, value) of what a pass wants, in order."""
        snapshot = self.node.world.snapshot()
        self.node.asking.learn(snapshot)
        (hook,) = self.node.asking.hooks
        from roles.koordlet.hooks.requests import contexts

        pods = {p.cgroup_dir: contexts(p) for p in snapshot.pods}
        found = hook.walk(snapshot, self.node.asking.rule(hook), pods)
        return [(os.path.relpath(w.target, self.base), w.value) for w in found]


@pytest.fixture
def groups(hooked) -> Groups:
    return Groups(hooked("Resctrl"))


@pytest.mark.feature("KA-RDT-02")
def test_group_schemata_and_tasks(groups) -> None:
    pod = groups.pod("p", BOTH, 101, 102)
    name = f"koordlet-{pod.uid}"
    assert groups.writes() == [
        (name, ""),
        (f"{name}/schemata", "L3:0=f;1=f;"),
        (f"{name}/schemata", "MB:0=30;1=30;"),
        (f"{name}/tasks", "101"),
        (f"{name}/tasks", "102"),
    ]
    path = groups.filled(pod)
    (path / "tasks").write_text("101\n")
    assert [value for _, value in groups.writes()][2:] == ["102"], "threads that are in it stay"
    groups.node.run()
    assert "102" in (path / "tasks").read_text()


@pytest.mark.feature("KA-RDT-02")
@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"llc": {"schemata": {"range": [0, 100]}, "schemataPerCache": [{"cacheID": 1, "range": [50, 100]}]}}, ["L3:0=fff;1=fc0;"]),
        ({"llc": {"schemataPerCache": [{"cacheID": 1, "range": [50, 100]}]}}, []),
        ({"llc": {"schemata": {"range": [60, 30]}}, "mb": {"schemata": {"percent": 50}}}, ["MB:0=50;1=50;"]),
        ({"mb": {"schemata": {"percent": 50}, "schemataPerCache": [{"cacheID": 0, "percent": 101}]}}, []),
        ("[", []),
    ],
)
def test_only_valid_parts(groups, config, wanted) -> None:
    groups.pod("p", config)
    assert [value for file, value in groups.writes() if file.endswith("schemata")] == wanted


@pytest.mark.feature("BEY-SEC-03")
@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"llc": {"schemata": {"range": [0, 100]}}}, ["L3:0=f;1=f;", "MB:0=40;1=40;"]),
        ({"llc": {"schemata": {"range": [50, 100]}}}, ["L3:0=f;1=f;", "MB:0=40;1=40;"]),
        ({"mb": {"schemata": {"percent": 100}}}, ["L3:0=f;1=f;", "MB:0=40;1=40;"]),
        ({"mb": {"schemata": {"percent": 10}}, "llc": {"schemata": {"range": [0, 15]}}}, ["L3:0=3;1=3;", "MB:0=10;1=10;"]),
        ({}, []),
    ],
)
def test_best_effort_pods_stay_within_their_class(groups, config, wanted) -> None:
    body = {"resctrlQOS": {"enable": True, "catRangeEndPercent": 30, "mbaPercent": 40}}
    groups.node.world.spec = {"resourceQOSStrategy": {"beClass": body}}
    groups.pod("p", config, qos="BE")
    assert [value for file, value in groups.writes() if file.endswith("schemata")] == wanted


@pytest.mark.feature("KA-RDT-02")
@pytest.mark.parametrize("listed", [False, True])
def test_a_new_group_has_its_limits_at_once(groups, listed) -> None:
    """The directory and what is in it: by the runtime's request before a pod starts, and by one pass for a listed pod."""
    node = groups.node
    if listed:
        path = groups.path(groups.pod("p", BOTH, 101))
        node.run()
    else:
        snapshot = node.world.snapshot()
        node.asking.learn(snapshot)
        pod = PodContext("d", "p", "u9", {}, {KEY: json.dumps(BOTH)}, "", "Burstable", QoSClass.LS)
        node.reconciler.pod_now(pod, Answers(), snapshot, Stage.PRE_RUN_POD_SANDBOX)
        path = groups.base / "koordlet-u9"
    assert (path / "schemata").read_text().split() == ["L3:0=f;1=f;", "MB:0=30;1=30;"]
    assert not listed or (path / "tasks").read_text().split() == ["101"]


@pytest.mark.feature("KA-RDT-02")
def test_on_amd(hooked) -> None:
    groups = Groups(hooked("Resctrl"), vendor="AuthenticAMD")
    groups.pod("p", {"mb": {"schemata": {"percent": 33}}})
    assert [value for file, value in groups.writes() if file.endswith("schemata")] == ["MB:0=52;1=52;"]


@pytest.mark.feature("KA-RDT-02")
def test_a_changed_annotation_is_written_and_a_pod_that_went_leaves_nothing(groups, monkeypatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(resctrl.seams, "monotonic", lambda: clock[0])
    pod = groups.pod("p", BOTH)
    path = groups.filled(pod)
    groups.node.run()
    groups.node.world.pods.clear()
    changed = groups.pod("p", {"llc": {"schemata": {"range": [0, 50]}}})
    groups.node.run()
    assert "L3:0=3f;1=3f;" in (path / "schemata").read_text()
    for file in path.iterdir():
        file.unlink()
    stranger = groups.base / "other"
    stranger.mkdir()
    groups.node.world.pods.remove(changed)
    groups.node.run()
    clock[0] += 5
    groups.node.world.now += 14 * 86400.0
    groups.node.run()
    assert path.exists(), "it may be the group of a pod that is about to be listed"
    clock[0] += 6
    groups.node.run()
    assert not path.exists()
    assert stranger.exists()


@pytest.mark.feature("KA-RDT-02")
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("qos", "then", "wanted"),
    [
        ("LS", {"llc": {"schemata": {"range": [0, 30]}}}, ["L3:0=f;1=f;", "MB:0=100;1=100;"]),
        ("LS", {"mb": {"schemata": {"percent": 25}}}, ["L3:0=fff;1=fff;", "MB:0=30;1=30;"]),
        ("LS", {"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 101}}}, ["L3:0=f;1=f;"]),
        ("LS", {}, ["L3:0=fff;1=fff;", "MB:0=100;1=100;"]),
        ("BE", {}, ["L3:0=3f;1=3f;", "MB:0=40;1=40;"]),
    ],
)
def test_a_part_that_an_annotation_names_no_more_is_taken_back(groups, qos, then, wanted, restarts) -> None:
    node = groups.node
    (hook,) = node.asking.hooks
    hook.keep_record(node.machine.executor)
    node.world.spec = {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 50, "mbaPercent": 40}}}}
    only = groups.pod("only", {"mb": {"schemata": {"percent": 50}}})
    pod = groups.pod("p", BOTH, qos=qos)
    for one in (only, pod):
        groups.filled(one)
    node.run()
    if restarts:
        node.machine.restart()
        hook.keep_record(node.machine.executor)
    node.world.pods.remove(pod)
    groups.pod("p", then, qos=qos)
    found = groups.writes()
    assert [value for file, value in found if file == f"koordlet-{pod.uid}/schemata"] == wanted
    assert [value for file, value in found if file == f"koordlet-{only.uid}/schemata"] == ["MB:0=50;1=50;"], "it never had another part"


@pytest.mark.feature("KA-RDT-02")
def test_machines_without(hooked) -> None:
    node = hooked("Resctrl")
    node.world.pod("p", annotations={KEY: json.dumps(BOTH)})
    assert node.run().written == 0
