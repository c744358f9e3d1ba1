"""How machines lay out their groups: the kubelet's cgroup root (kind, k3d), hybrid hierarchies, groups that come and go (KLO-SYS-01)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from koord.api.objects import Pod
from koord.api.objects_meta import decoder
from roles.koordlet.host.cgroup import BESTEFFORT, BURSTABLE, GUARANTEED, CgroupDriver, Cgroups, Layout
from roles.koordlet.host.errors import HostFileError
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.sensing.base import TROUBLE_ROUNDS, Collector, Round, SensingContext
from roles.koordlet.sensing.psi import PsiCollector
from roles.koordlet.states.driver import layout_of
from roles.koordlet.states.model import HostState, PodState
from roles.koordlet.states.pods import pod_state
from roles.koordlet.store import kinds
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView

pytestmark = pytest.mark.feature("KLO-SYS-01")

ROWS = [
    ("kubepods", CgroupDriver.CGROUPFS, "", "kubepods/besteffort/pod{uid}/{id}"),
    ("kubepods.slice", CgroupDriver.SYSTEMD, "", "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{slug}.slice/{scope}"),
    ("kubelet/kubepods", CgroupDriver.CGROUPFS, "kubelet", "kubelet/kubepods/besteffort/pod{uid}/{id}"),
    (
        "kubelet.slice/kubelet-kubepods.slice",
        CgroupDriver.SYSTEMD,
        "kubelet",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{slug}.slice/{scope}",
    ),
]


def machine(base: Path, *directories: str, v2: bool = False) -> HostRoot:
    top = base / "sys/fs/cgroup"
    for directory in directories:
        (top / ("" if v2 else "cpu") / directory).mkdir(parents=True)
    if v2:
        (top / "cgroup.controllers").write_text("cpu memory\n")
    return HostRoot.at(str(base))


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize(("kubepods", "driver", "top", "container"), ROWS)
def test_the_kubelets_root_is_found_and_its_names_are_made(
    tmp_path: Path, kubepods: str, driver: CgroupDriver, top: str, container: str, v2: bool
) -> None:
    root = machine(tmp_path, "system.slice", "init.scope", kubepods, v2=v2)
    cgroups = Cgroups.detect(root)
    assert (cgroups.layout, cgroups.kubepods) == (Layout(driver, top), kubepods)
    uid = "0a-1b"
    pod = cgroups.pod_dir(BESTEFFORT, uid)
    wanted = container.format(uid=uid, slug="0a_1b", id="abc", scope="cri-containerd-abc.scope")
    assert cgroups.container_dir(pod, "containerd://abc") == wanted
    assert cgroups.pod_uid_of(pod.rsplit("/", 1)[1]) in (uid, "0a_1b")
    for qos in (GUARANTEED, BURSTABLE):
        assert cgroups.pod_uid_of(cgroups.pod_dir(qos, uid).rsplit("/", 1)[1]) in (uid, "0a_1b")


def test_kubepods_at_the_top_is_the_machines_own(tmp_path: Path) -> None:
    """A machine with nodes in containers on it is a node itself."""
    root = machine(tmp_path, "kubelet/kubepods", "kubepods.slice")
    assert Cgroups.detect(root).layout == Layout(CgroupDriver.SYSTEMD)


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("cgroupRoot: /kubelet\ncgroupDriver: systemd\n", Layout(CgroupDriver.SYSTEMD, "kubelet")),
        ("cgroupRoot: /\n", Layout(CgroupDriver.CGROUPFS)),
        ("cgroupRoot: /a/b/\n", Layout(CgroupDriver.CGROUPFS, "a/b")),
        ("cgroupRoot: ../..\n", None),
        ("cgroupRoot: 2026-02-31\n", Layout(CgroupDriver.CGROUPFS, "2026-02-31")),
        ("{}", Layout(CgroupDriver.CGROUPFS)),
    ],
)
def test_the_kubelets_configuration_names_its_root(text: str, layout: Layout | None) -> None:
    assert layout_of(text) == layout


# -- pressure on hybrid machines ---------------------------------------------------------------------------------------------


def context(root: HostRoot, pods: tuple[PodState, ...] = ()) -> SensingContext:
    host = HostState(root, Cgroups.detect(root), HostFiles())
    return SensingContext(
        host=host,
        store=MetricStore(),
        metrics=Metrics("n1"),
        pods=lambda: pods,
        slo=lambda: None,
        memory_policy=lambda: "",
        gate=lambda _: True,
    )


@pytest.mark.feature("KLO-COL-11")
@pytest.mark.parametrize("where", ["cpuacct", "unified"])
def test_pressure_of_pods_is_read_where_the_kernel_tells_it(tmp_path: Path, where: str) -> None:
    root = machine(tmp_path, "kubepods.slice")
    wire = {"metadata": {"name": "p", "namespace": "default", "uid": "u1"}, "spec": {"containers": []}, "status": {"phase": "Running"}}
    pod = pod_state(decoder(Pod)(orjson.dumps(wire)), Cgroups.detect(root))
    for directory in ("kubepods.slice", pod.cgroup_dir):
        for name in ("cpu", "memory", "io"):
            path = tmp_path / "sys/fs/cgroup" / where / directory / f"{name}.pressure"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("some avg10=7.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n")
    sensing = context(root, (pod,))
    PsiCollector(sensing).run(Round(1000.0, 1.0))
    view = MetricsView(sensing.store, 1000.0)
    assert view.last(kinds.POD_PSI, pod_uid=pod.uid, psi_resource="cpu", psi_precision="10", psi_degree="some") == 7.0


def test_what_a_pod_waited_since_the_last_round(tmp_path: Path) -> None:
    """The kernel's average over ten seconds tells of a rise too late for whoever looks every second."""
    root = machine(tmp_path, "kubepods.slice")
    wire = {"metadata": {"name": "p", "namespace": "default", "uid": "u1"}, "spec": {"containers": []}, "status": {"phase": "Running"}}
    pods = [pod_state(decoder(Pod)(orjson.dumps(wire)), Cgroups.detect(root))]

    def waited(total: int) -> None:
        for directory in ("kubepods.slice", pods[0].cgroup_dir):
            for name in ("cpu", "memory", "io"):
                path = tmp_path / "sys/fs/cgroup/cpuacct" / directory / f"{name}.pressure"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"some avg10=7.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n")

    sensing = replace(context(root), pods=lambda: tuple(listed))
    listed, collector, view = list(pods), PsiCollector(sensing), MetricsView(sensing.store, 1010.0)
    for second, total in enumerate((5_000_000, 5_400_000, 9_400_000, 9_400_000)):
        waited(total)
        sensing.host.files.begin_tick()
        collector.run(Round(1000.0 + second, 1.0 + second))
    recent = {"pod_uid": "u1", "psi_resource": "cpu", "psi_precision": kinds.PSI_RECENT, "psi_degree": "some"}
    assert list(view.query(kinds.POD_PSI, 60.0, **recent).values) == [40.0, 100.0, 7.0], (
        "no more than all of it; the average where it stands"
    )
    listed.clear()
    collector.run(Round(1004.0, 5.0))
    assert not collector._totals


# -- what is gone is forgotten -----------------------------------------------------------------------------------------------


def test_paths_that_nobody_asks_for_are_forgotten(tmp_path: Path) -> None:
    cgroups = Cgroups.detect(machine(tmp_path, "kubepods"))
    for turn in range(50):
        for pod in range(100):
            cgroups.file("cpu.shares", f"kubepods/besteffort/pod{turn}-{pod}")
        cgroups.file("cpu.shares", "kubepods")
        cgroups.age()
    assert len(cgroups._paths) + len(cgroups._aged[0]) <= 2 * 101
    assert ("cpu.shares", "kubepods") in cgroups._aged[0]


def test_descriptors_of_groups_that_are_gone_are_closed(tmp_path: Path) -> None:
    files = HostFiles()
    for pod in range(20):
        directory = tmp_path / f"pod{pod}"
        directory.mkdir()
        (directory / "cpu.shares").write_text("2")
        files.read(str(directory / "cpu.shares"))
    for pod in range(1, 20):
        os.unlink(tmp_path / f"pod{pod}/cpu.shares")
        (tmp_path / f"pod{pod}").rmdir()
    assert (files.sweep(), files.open_count) == (19, 1)
    files.close_all()


def test_troubles_end_with_what_was_in_trouble(tmp_path: Path) -> None:
    class Failing(Collector):
        name = "failing"
        objects: tuple[str, ...] = ()

        def collect(self, at: Round) -> None:
            for key in self.objects:
                self.troubles.failed(key, HostFileError(key, "is gone"))

    collector = Failing(context(machine(tmp_path, "kubepods")))
    for number in range(10 * TROUBLE_ROUNDS):
        collector.objects = ("stays", f"pod{number}")
        collector.run(Round(float(number), float(number)))
    assert len(collector.troubles._open) <= 2 * TROUBLE_ROUNDS + 1
    assert "stays" in collector.troubles._open
