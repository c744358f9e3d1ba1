"""What the rules for modelled hosts ask of an agent, and what they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from roles.sandbox.world.history import AUTHOR, History
from roles.sandbox.world.host.kernel import CPUS
from roles.sandbox.world.host.layout import BESTEFFORT, LEVELS, Layout
from roles.sandbox.world.host.machine import Machine
from roles.sandbox.world.invariants.base import Invariant
from roles.sandbox.world.invariants.hosts import FilesArePutBack
from roles.sandbox.world.invariants.kubelets import NODE_SLO, ResizesTakeEffect

if TYPE_CHECKING:
    from koord.apiserver.store import Event

TIER = LEVELS[BESTEFFORT]
AGENT, KUBELET = "koordlet-n", "kubelet-n"
Obj = dict[str, Any]


class Judged:
    """A machine with cgroup v1 whose history a rule looks at."""

    def __init__(self, root: Path, rule: Callable[[History], Invariant]) -> None:
        self.now = 0.0
        self.history = History(lambda: self.now)
        self.machine = Machine(
            "n", root, cpus=6, memory=1 << 30, layout=Layout(1, frozenset()), history=self.history, clock=lambda: self.now
        )
        self.rule = rule(self.history)
        self.broken: list[str] = []
        self.history.watchers.append(lambda entry: self.broken.extend(self.rule.see(entry)))

    def set(self, author: str, group: str, cpus: str) -> None:
        assert self.machine.set(group, CPUS, cpus, author, "restore")

    def restored(self) -> list[str]:
        self.history.tell("restored", "n", "status 0")
        return self.broken


@pytest.fixture
def files(tmp_path: Path) -> Judged:
    return Judged(tmp_path / "n", FilesArePutBack)


def test_what_the_kubelet_sets_to_the_agents_very_value_may_stay_and_may_go(files: Judged) -> None:
    for name, left in (("a", "0-5"), ("b", "0,2-5"), ("c", "0-3")):
        group = files.machine.make(name).name
        files.set(KUBELET, group, "0,2-5")
        files.set(AGENT, group, "0-5")
        files.set(KUBELET, group, "0-5")
        files.set(AGENT, group, left)
    assert [text.partition(" holds ")[0] for text in files.restored()] == ["n/sys/fs/cgroup/cpuset/c/cpuset.cpus"]


def test_what_the_kubelet_gave_may_come_back_where_somebody_has_meddled(files: Judged) -> None:
    for name, left in (("a", "0"), ("b", "0-1"), ("c", "2")):
        group = files.machine.make(name).name
        files.set(KUBELET, group, "0")
        for author, cpus in ((AGENT, "0,2-5"), ("administrator", "0-1"), (AGENT, "0,2-3"), (AGENT, left)):
            files.set(author, group, cpus)
    assert [text.split("/")[-2] for text in files.restored()] == ["c"]


def test_what_the_agent_saw_others_set_before_may_come_back(files: Judged) -> None:
    for name, left in (("a", "0,3"), ("b", "0-1"), ("c", "0-5"), ("d", "2")):
        group = files.machine.make(name).name
        for author, cpus in ((AGENT, "0-2"), (KUBELET, "0,3"), (AGENT, "0-1"), (KUBELET, "0-1"), (AGENT, "0-3"), (AGENT, left)):
            files.set(author, group, cpus)
    assert [text.split("/")[-2] for text in files.restored()] == ["d"]


def test_a_write_of_what_stands_there_is_told_where_the_agent_has_written(files: Judged) -> None:
    group = files.machine.make("a").name
    before = len(files.history.entries)
    files.set(KUBELET, group, "0-5")
    assert len(files.history.entries) == before
    files.set(AGENT, group, "0-1")
    files.set(KUBELET, group, "0-1")
    assert [entry.author for entry in files.history.entries[before:]] == [AGENT, KUBELET]


@pytest.mark.parametrize(
    ("seconds", "frozen", "known"),
    [(0.3, 0.0, False), (5.0, 0.0, True), (5.0, 9.0, False), (5.0, 3.0, False), (8.0, 3.0, True)],
)
def test_of_what_was_written_while_the_disk_was_full_an_agent_knows_after_it_noticed_room(
    files: Judged, seconds: float, frozen: float, known: bool
) -> None:
    group = files.machine.make("a").name
    files.now = 1.0
    files.machine.disk_full = True
    files.set(AGENT, group, "0-3")
    files.now = 9.0
    if frozen:
        files.history.tell("fault", "freeze", f"9.0s freeze of koordlet-n for {frozen + 1:.1f}s")
    files.now = 10.0
    files.history.tell("room", "n")
    files.now += seconds
    files.history.tell("fault", "write-error", "5.0s write-error of koordlet-n for 20.0s")
    files.now = 20.0
    files.history.tell("ended", AGENT, "koordlet-n ended")
    files.history.tell("room", "n")
    assert bool(files.restored()) == known


@pytest.mark.parametrize(("cpus", "known"), [("0-5", False), ("0,3", True)])
def test_a_value_written_back_on_a_full_disk_is_known_only_if_others_had_set_it_last(files: Judged, cpus: str, known: bool) -> None:
    group = files.machine.make("a").name
    files.set(AGENT, group, "0-3")
    files.machine.disk_full = True
    for author, text in ((KUBELET, "0,3"), (AGENT, "0-4"), (AGENT, cpus)):
        files.set(author, group, text)
    files.history.tell("ended", AGENT, "koordlet-n ended")
    files.set(AGENT, group, "0-5")
    assert bool(files.restored()) == known


def test_a_group_made_under_narrowed_ones_may_get_what_the_first_of_them_held(files: Judged) -> None:
    files.set(AGENT, TIER, "0,2-3")
    pod = files.machine.make(f"{TIER}/pod").name
    files.set(AGENT, pod, "2-3")
    for name in ("a", "b"):
        files.machine.make(f"{pod}/{name}")
    for group in (TIER, pod):
        files.set(AGENT, group, "0-5")
    files.set(AGENT, f"{pod}/a", "0-5")
    files.set(AGENT, f"{pod}/b", "3")
    assert [text.split("/")[-2] for text in files.restored()] == ["b"]


def test_what_was_made_under_narrowed_cpus_and_is_narrowed_before_its_pod_may_get_what_the_tier_held(files: Judged) -> None:
    files.set(AGENT, TIER, "0,2-3")
    pod = files.machine.make(f"{TIER}/pod").name
    for name, cpus in (("a", "2"), ("b", "2")):
        files.set(AGENT, files.machine.make(f"{pod}/{name}").name, cpus)
    for group, cpus in ((TIER, "0-5"), (pod, "0-5"), (f"{pod}/a", "0-5"), (f"{pod}/b", "3")):
        files.set(AGENT, group, cpus)
    assert [text.split("/")[-2] for text in files.restored()] == ["b"]


def test_what_was_made_while_its_pod_had_the_narrowed_cpus_may_get_what_the_tier_held(files: Judged) -> None:
    files.set(AGENT, TIER, "0-1")
    pod = files.machine.make(f"{TIER}/pod").name
    inside = files.machine.make(f"{pod}/a").name
    for group, cpus in ((TIER, "0-5"), (pod, "0-2"), (inside, "0-2"), (pod, "0-5"), (inside, "0-5")):
        files.set(AGENT, group, cpus)
    assert files.restored() == []


def _pod(cpu: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "d", "uid": "u"},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {"cpu": cpu}}}]},
        "status": {"phase": "Running"},
    }


@pytest.mark.parametrize(
    ("sizes", "in_force", "late"),
    [(("2", "1", "2"), None, False), (("2", "1", "2"), "1", True), (("2", "1"), None, True), (("2", "1"), "1", False)],
)
def test_a_resize_is_late_where_what_is_in_force_is_not_what_is_asked_for(
    tmp_path: Path, sizes: tuple[str, ...], in_force: str | None, late: bool
) -> None:
    judged = Judged(tmp_path / "n", ResizesTakeEffect)
    history, judged.now = judged.history, 1.0
    history.of(NODE_SLO)["n"] = {}
    token = AUTHOR.set(("users", "PATCH /api/v1/namespaces/d/pods/a/resize"))
    for version, size in enumerate(sizes):
        stored = SimpleNamespace(namespace="d", name="a", obj=_pod(size))
        history.on_store(cast("Event", SimpleNamespace(type="MODIFIED", entry=stored, rv=version)))
    AUTHOR.reset(token)
    if in_force is not None:
        judged.now = 2.0
        history.tell("resized", "n", "u", {"main": {"limits": {"cpu": in_force}}})
    judged.now = 30.0
    history.tell("host", "n", "", {"undisturbed": 30.0})
    assert bool(judged.broken) is late
