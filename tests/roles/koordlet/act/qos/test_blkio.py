"""Limits, weights and latency targets of disks (KA-BLK-01), and finding the disks (KLO-SYS-07)."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import NODESLOS, PERSISTENTVOLUMECLAIMS, PODS
from koord.api.qos import QoSClass
from roles.koordlet.actuation.disklines import by_disk, says
from roles.koordlet.actuation.restore import restore
from roles.koordlet.app import restore as restore_command
from roles.koordlet.host.cgroup_files import TABLE
from roles.koordlet.host.errors import ParseError
from roles.koordlet.host.parse import whole_disks
from roles.koordlet.host.storage import LocalStorage, parse_storage
from roles.koordlet.options import Options
from roles.koordlet.qos.blkio import BlkIOReconcile
from roles.koordlet.qos.blkio_lines import group_lines
from roles.koordlet.sensing.storage import read_storage
from roles.koordlet.states.slo import IOCfg
from tests.support.koordlet import BE_TIER, Cluster, agent, exposed, run, until
from tests.support.realcgroups import CONTROLLERS

LSBLK = """NAME="sda" TYPE="disk" MAJ:MIN="8:0"
NAME="sda1" TYPE="part" MAJ:MIN="8:1"
NAME="sdb" TYPE="disk" MAJ:MIN="8:16"
NAME="vg--data-lv" TYPE="lvm" MAJ:MIN="253:0"
NAME="nvme0n1" TYPE="disk" MAJ:MIN="259:0"
NAME="nvme0n1p3" TYPE="part" MAJ:MIN="259:7"
NAME="loop0" TYPE="loop" MAJ:MIN="7:0"
"""
VGS = "  vg-data  1 /dev/sdb\n  wide  2 /dev/sdc\n  wide  2 /dev/sdd\n"
LVS = "  lv vg-data\n"
THROTTLES = [f"blkio.throttle.{way}_{unit}_device" for way in ("read", "write") for unit in ("iops", "bps")]

READ_WRITE = (("read_iops", 900), ("read_bps", 500), ("write_iops", 30), ("write_bps", 4096))


def findmnt(base: str, uid: str = "uid-db") -> str:
    mount = f"{base}/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi"
    return (
        'TARGET="/" SOURCE="/dev/sda1"\n'
        f'TARGET="{mount}/pv-7/mount" SOURCE="/dev/mapper/vg--data-lv"\n'
        f'TARGET="{mount}/scratch/mount" SOURCE="/dev/nvme0n1p3[/some/dir]"\n'
        'TARGET="/proc" SOURCE="proc"\n'
    )


@pytest.fixture
def strategy(gates):
    return BlkIOReconcile(Options(), gates("BlkIOReconcile"))


class TestStorage:
    @pytest.mark.feature("KLO-SYS-07")
    def test_disks_behind_everything(self) -> None:
        storage = parse_storage(LSBLK, VGS, LVS, findmnt("/m"))
        assert storage.number_of_device("/dev/sda") == "8:0"
        assert storage.number_of_device("sda1") == "8:0"
        assert storage.number_of_device("/dev/nvme0n1p3") == "259:0"
        assert storage.number_of_device("/dev/loop0") is None
        assert storage.number_of_group("vg-data") == "8:16"
        assert storage.number_of_group("wide") is None, "two physical volumes"
        mounts = "/m/var/lib/kubelet/pods/uid-db/volumes/kubernetes.io~csi"
        assert storage.number_of_mount(f"{mounts}/pv-7/mount/") == "8:16"
        assert storage.number_of_mount(f"{mounts}/scratch/mount") == "259:0"
        assert storage.number_of_mount("/proc") is None

    def test_column_names_of_util_linux_2_37(self) -> None:
        assert parse_storage(LSBLK.replace("MAJ:MIN", "MAJ_MIN"), VGS, LVS, "") == parse_storage(LSBLK, VGS, LVS, "")

    @pytest.mark.parametrize(
        ("texts", "said"),
        [
            (('NAME="sda" TYPE="disk"\n', "", "", ""), "lsblk: line 1"),
            (('NAME="sda" TYPE="disk" MAJ:MIN="8"\n', "", "", ""), "wanted major:minor"),
            ((LSBLK, "vg 1\n", "", ""), "vgs: line 1"),
            ((LSBLK, VGS, "a b c\n", ""), "lvs: line 1"),
            ((LSBLK, VGS, LVS, "/ /dev/sda1\n"), "findmnt: line 1"),
        ],
    )
    def test_a_line_that_is_no_row_fails_the_round(self, texts, said) -> None:
        with pytest.raises(ParseError, match=said):
            parse_storage(*texts)

    @given(st.text(), st.text(), st.text(), st.text())
    def test_fuzz_any_text_is_storage_or_one_error(self, lsblk, vgs, lvs, mounts) -> None:
        with contextlib.suppress(ParseError):
            parse_storage(lsblk, vgs, lvs, mounts)


class TestLines:
    def test_the_kernels_spelling_counts_as_ours(self) -> None:
        current = "8:0 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00 wlat=3000 min=50.00 max=150.00\n"
        assert says("blkio.cost.qos", current, "8:0 enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000")
        assert not says("blkio.cost.qos", current, "8:0 enable=0")
        assert says("blkio.cost.weight", "default 100\n8:0 80\n", "8:0 80")
        assert says("blkio.throttle.read_bps_device", "", "8:0 0")
        assert not says("blkio.throttle.read_bps_device", "", "8:0 1")

    limits = st.integers(0, 10**12)

    @given(limits, limits, limits, limits, st.integers(1, 100))
    def test_property_a_written_line_counts_as_written(self, riops, rbps, wiops, wbps, weight) -> None:
        config = IOCfg(read_iops=riops, read_bps=rbps, write_iops=wiops, write_bps=wbps, io_weight_percent=weight)
        for file, line in group_lines("8:0", config):
            assert says(file, line, line)
            assert TABLE[file].v1 is None or TABLE[file].v1.encode(line) == line
            assert TABLE[file].v2 is None or TABLE[file].v2.encode(line) == line


def disks(world: Any, **numbers: str) -> None:
    world.storage = LocalStorage(disks={f"/dev/{name}": number for name, number in numbers.items()})


def files(world: Any, directory: str, **own: str) -> None:
    for name in ("kubepods.slice", directory):
        for file in (*THROTTLES, "blkio.cost.weight"):
            world.machine.put(file, name, own.get(file, ""))


def block(name: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "type": "device", "ioCfg": config}


def written(world: Any, strategy: Any, state: Any = None) -> list[str]:
    outcome = world.decide(strategy, state)
    applied = world.machine.executor.apply(outcome.batches, rule=strategy.name, now=world.now)
    assert applied.failed == []
    return [f"{w.resource.removeprefix('blkio.').removesuffix('_device')} {w.value}" for w in applied.written]


class TestStrategy:
    def test_every_limit_and_what_is_no_longer_configured(self, world, strategy) -> None:
        disks(world, sda="8:0", sdb="8:16")
        files(world, BE_TIER)
        world.spec = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": [block("/dev/sdb", readBPS=500)]}}}}
        assert written(world, strategy) == ["throttle.read_bps 8:16 500", "cost.weight 8:16 100"]
        config = block("/dev/sda", readIOPS=10, readBPS=20, writeIOPS=30, ioWeightPercent=60)
        world.spec = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": [config]}}}}
        assert written(world, strategy) == [
            "throttle.read_bps 8:16 0",
            "throttle.read_iops 8:0 10", "throttle.read_bps 8:0 20", "throttle.write_iops 8:0 30", "cost.weight 8:0 60",
        ]  # fmt: skip

    def test_disabled_takes_everything_away(self, world, strategy) -> None:
        disks(world, sda="8:0")
        files(world, BE_TIER)
        for enable in (True, False):
            config = block("/dev/sda", writeIOPS=30)
            world.spec = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": enable, "blocks": [config]}}}}
            last = written(world, strategy)
        assert "throttle.write_iops 8:0 0" in last

    def test_what_an_administrator_set_stays(self, world, strategy) -> None:
        """Disks of which nothing is configured: the level's limits, and latency targets of the machine."""
        disks(world, sda="8:0", sdb="8:16")
        config = {"enable": True, "blocks": [block("sda", readBPS=1)]}
        for strategies in ({}, {"beClass": {"blkioQOS": config}, "cgroupRoot": {"blkioQOS": config}}, {}):
            world.machine.put("blkio.cost.qos", "", "8:16 enable=1 ctrl=user rpct=99.00 rlat=5000 wpct=99.00 wlat=5000")
            files(world, BE_TIER, **{"blkio.throttle.read_bps_device": "8:16 500"})
            world.spec = {"resourceQOSStrategy": strategies}
            assert [line for line in written(world, strategy) if "8:16" in line] == []

    def test_a_disk_that_is_not_there_leaves_the_target_alone_and_is_told_once(self, world, strategy) -> None:
        disks(world, sda="8:0")
        files(world, BE_TIER)
        blocks = [block("/dev/sda", readIOPS=1), block("/dev/sdz", readIOPS=1)]
        world.spec = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": blocks}}}}
        first = world.decide(strategy)
        assert not any(first.batches)
        assert "sdz" in first.records[0].message
        assert world.decide(strategy, first.state).records == ()

    @pytest.mark.feature("KA-BLK-01")
    @pytest.mark.parametrize("version", ["world", "world_v2"])
    def test_blocks_of_one_disk_count_together(self, request, strategy, version) -> None:
        """A disk and the volume group on it, or two volumes of a pod on one disk: the narrower limits, and whatever only one says."""
        world = request.getfixturevalue(version)
        world.storage = LocalStorage(disks={"/dev/sda": "8:0"}, partitions={}, groups={"vg0": "/dev/sda"}, volumes={}, mounts={})
        pod = world.pod("a", qos="LS")
        for file in (*THROTTLES, "blkio.cost.weight") if version == "world" else ("io.max", "blkio.cost.weight"):
            world.machine.put(file, BE_TIER, "")
            world.machine.put(file, pod.cgroup_dir, "")
        group = {**block("vg0", readBPS=0, readIOPS=900, writeBPS=4096), "type": "volumegroup"}
        blocks = [block("/dev/sda", readIOPS=1000, readBPS=500, writeIOPS=30, ioWeightPercent=40), group]
        world.spec = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": blocks}}}}
        world.pods[:] = [replace(pod, annotations={"koordinator.sh/blkioQOS": orjson.dumps({"blocks": blocks}).decode()})]
        limits = [f"throttle.{name} 8:0 {limit}" for name, limit in READ_WRITE]
        line = "io.max 8:0 riops=900 rbps=500 wiops=30 wbps=4096"
        assert written(world, strategy) == 2 * [*(limits if version == "world" else [line]), "cost.weight 8:0 40"]
        group["ioCfg"]["ioWeightPercent"] = 50
        outcome = world.decide(strategy)
        assert [(r.subject.kind, r.verdict) for r in outcome.records] == [("Node", "Skipped")]
        assert "vg0" in outcome.records[0].message
        assert "ioWeightPercent" in outcome.records[0].message
        assert not [w for b in outcome.batches for w in b if w.target == BE_TIER]

    def test_an_annotation_that_is_taken_away_while_the_agent_is_down(self, world, strategy) -> None:
        disks(world, sda="8:0")
        wanted = orjson.dumps({"blocks": [block("sda", readBPS=7)]}).decode()
        pod = world.pod("a", qos="LS", annotations={"koordinator.sh/blkioQOS": wanted})
        files(world, pod.cgroup_dir)
        assert "throttle.read_bps 8:0 7" in written(world, strategy)
        world.pods[:] = [replace(pod, annotations={})]
        assert "throttle.read_bps 8:0 0" in written(world, strategy), "with the state of an agent that has just started"
        world.pods[:] = [pod]
        assert "throttle.read_bps 8:0 7" in written(world, strategy)
        world.pods[:] = [replace(pod, qos_label=QoSClass.NONE)]
        assert "throttle.read_bps 8:0 0" in written(world, strategy), "a pod without a class has none either"
        other = world.pod("b", qos="LS")
        files(world, other.cgroup_dir, **{THROTTLES[1]: "8:0 500"})
        assert not any("500" in line or other.cgroup_dir in line for line in written(world, strategy))

    def test_what_the_kernel_has_no_file_for_is_told_once(self, world, strategy) -> None:
        """No weights on cgroup v1 of most kernels, no latency targets without iocost, no io controller in a group."""
        disks(world, sda="8:0")
        Path(world.machine.root.cgroup, "blkio", BE_TIER).mkdir(parents=True)
        config = {"blkioQOS": {"enable": True, "blocks": [block("sda", readBPS=1, ioWeightPercent=50, enableUserModel=True)]}}
        world.spec = {"resourceQOSStrategy": {"beClass": config, "cgroupRoot": config}}
        first = world.decide(strategy)
        assert [r.message.partition(":")[0] for r in first.records] == ["limits and ioWeightPercent", "latency targets and cost models"]
        assert world.decide(strategy, first.state).records == ()
        world.machine.put(THROTTLES[1], BE_TIER, "")
        second = world.decide(strategy, first.state)
        assert [r.message.partition(":")[0] for r in second.records] == ["ioWeightPercent"]
        assert [w.value for b in second.batches for w in b] == ["8:0 1"]

    def test_a_hierarchy_that_is_not_mounted_is_told_once(self, world, strategy) -> None:
        disks(world, sda="8:0")
        shutil.rmtree(Path(world.machine.root.cgroup, "blkio"))
        config = {"blkioQOS": {"enable": True, "blocks": [block("sda", readBPS=1)]}}
        world.spec = {"resourceQOSStrategy": {"beClass": config}}
        first = world.decide(strategy)
        assert [r.message for r in first.records] == ["limits: cgroup v1's hierarchy blkio is not mounted"]
        assert world.decide(strategy, first.state).records == ()

    def test_the_whole_machine(self, world, strategy) -> None:
        disks(world, sda="8:0", sdb="8:16")
        world.machine.put("blkio.cost.qos", "", "")
        world.machine.put("blkio.cost.model", "", "")
        world.spec = {"resourceQOSStrategy": {"cgroupRoot": {"blkioQOS": {"enable": True, "blocks": [block("sdb")]}}}}
        written(world, strategy)
        model = {"modelReadBPS": 1, "modelWriteBPS": 2, "modelReadSeqIOPS": 3, "modelWriteSeqIOPS": 4, "modelReadRandIOPS": 5}
        config = block("sda", readLatency=100, readLatencyPercent=90, enableUserModel=True, **model)
        world.spec = {"resourceQOSStrategy": {"cgroupRoot": {"blkioQOS": {"enable": True, "blocks": [config]}}}}
        assert written(world, strategy) == [
            "cost.qos 8:16 enable=0",
            "cost.qos 8:0 enable=1 ctrl=user rpct=90 rlat=100 wpct=95 wlat=3000",
            "cost.model 8:0 ctrl=user rbps=1 rseqiops=3 rrandiops=5 wbps=2 wseqiops=4 wrandiops=1",
        ]

    def test_v2_writes_one_line_a_disk_and_restores_it(self, world_v2, strategy) -> None:
        world = world_v2
        disks(world, sda="8:0")
        tier = "kubepods.slice/kubepods-besteffort.slice"
        before = "8:0 rbps=max wbps=max riops=77 wiops=max"
        path = Path(world.machine.root.cgroup, tier, "io.max")
        path.parent.mkdir(parents=True)
        path.write_text(before + "\n")
        (path.parent / "io.weight").write_text("default 100\n")
        config = block("/dev/sda", readBPS=4096, writeIOPS=9, ioWeightPercent=40)
        world.spec = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": [config]}}}}
        written(world, strategy)
        assert path.read_text() == "8:0 riops=max rbps=4096 wiops=9 wbps=max"
        assert (path.parent / "io.weight").read_text() == "8:0 40"
        path.write_text(path.read_text() + "\n")
        assert restore(world.machine.root).failed == []
        assert set(by_disk(path.read_text())["8:0"].split()) == set(before.split()[1:])

    def test_null_is_what_is_not_there(self, world, strategy) -> None:
        disks(world, sda="8:0", sdb="8:16")
        blocks = [{**block("/dev/sda"), "ioCfg": None}, block("/dev/sdb", readBPS=2048)]
        pod = world.pod("a", qos="LS", annotations={"koordinator.sh/blkioQOS": orjson.dumps({"blocks": blocks}).decode()})
        files(world, pod.cgroup_dir)
        assert "throttle.read_bps 8:16 2048" in written(world, strategy)
        assert world.decide(strategy).records == ()

    def test_bad_annotations_are_one_record(self, world, strategy) -> None:
        disks(world, sda="8:0")
        deep = '{"blocks": [{"ioCfg": null, "x": ' + "[" * 700 + "]" * 700 + "}]}"
        texts = {"a": "[]", "b": '{"blocks": [{"name": "x", "type": "tape"}]}', "c": '{"blocks": [{"ioCfg": 3}]}', "d": deep}
        for name, text in texts.items():
            pod = world.pod(name, qos="LS", annotations={"koordinator.sh/blkioQOS": text})
            files(world, pod.cgroup_dir)
        records = world.decide(strategy).records
        assert [r.subject.name for r in records] == ["a", "b", "c", "d"]
        assert all("koordinator.sh/blkioQOS" in r.message or "tape" in r.message for r in records)


def tier(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": bool(blocks), "blocks": list(blocks)}}}}


def asking(*blocks: dict[str, Any]) -> dict[str, str]:
    return {"koordinator.sh/blkioQOS": orjson.dumps({"blocks": list(blocks)}).decode()}


@pytest.mark.feature("KA-BLK-01")
class TestContainers:
    """cgroup v1 holds back the processes of a limited group, and not those of the groups in it."""

    READ, WRITE = THROTTLES[1], THROTTLES[3]

    @pytest.fixture
    def limits(self, world, strategy):
        """Carry the configuration out; what was written to containers."""
        disks(world, sda="8:0", sdb="8:16")
        files(world, BE_TIER)
        state = strategy.initial()

        def run(*, restarted: bool = False) -> list[tuple[str, str, str]]:
            nonlocal state
            outcome = world.decide(strategy, strategy.initial() if restarted else state)
            applied = world.machine.executor.apply(outcome.batches, rule=strategy.name, now=world.now)
            assert applied.failed == []
            state = outcome.state
            inner = [write for write in applied.written if write.target.count("/") == 3]
            return [(write.target.rpartition("-")[2].removesuffix(".scope"), write.resource, write.value) for write in inner]

        return run

    def pod(self, world: Any, name: str, *blocks: dict[str, Any], kube_qos: str = "BestEffort", **options: Any) -> Any:
        pod = world.pod(name, qos="BE" if kube_qos == "BestEffort" else "LS", kube_qos=kube_qos, annotations=asking(*blocks), **options)
        for directory in (pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers)):
            files(world, directory)
        return pod

    def test_each_container_gets_the_narrower_limit(self, world, limits) -> None:
        world.spec = tier(block("sda", readBPS=100, writeBPS=100))
        self.pod(world, "plain", containers=2, phase="Pending")
        self.pod(world, "mixed", block("sda", readBPS=50, writeBPS=500), block("sdb", readBPS=7))
        self.pod(world, "web", block("sda", readBPS=900), kube_qos="Burstable")
        assert sorted(limits()) == sorted([
            ("c0", self.READ, "8:0 100"), ("c0", self.WRITE, "8:0 100"), ("c1", self.READ, "8:0 100"), ("c1", self.WRITE, "8:0 100"),
            ("c0", self.READ, "8:0 50"), ("c0", self.READ, "8:16 7"), ("c0", self.WRITE, "8:0 100"),
            ("c0", self.READ, "8:0 900"),
        ])  # fmt: skip
        assert limits() == []

    def test_the_sandbox_too(self, world, limits) -> None:
        pod = self.pod(world, "plain")
        sandbox = f"{pod.cgroup_dir}/cri-containerd-pause.scope"
        files(world, sandbox)
        for directory in (sandbox, pod.containers[0].cgroup_dir):
            world.machine.put("cpuset.cpus", directory, "0")
        world.spec = tier(block("sda", readBPS=100))
        assert limits() == [("c0", self.READ, "8:0 100"), ("pause", self.READ, "8:0 100")]

    @pytest.mark.parametrize("restarted", [False, True])
    def test_what_is_let_go_is_taken_back_and_nothing_else(self, world, limits, restarted) -> None:
        world.spec = tier(block("sda", readBPS=100))
        pod = self.pod(world, "mixed", block("sdb", readBPS=7))
        box = pod.containers[0].cgroup_dir
        world.machine.put(self.WRITE, box, "8:0 500")
        limits()
        # a plain file keeps the last line only
        world.machine.put(self.READ, box, "8:0 100\n8:16 7")
        world.pods[:] = [replace(pod, annotations={})]
        assert limits(restarted=restarted) == [("c0", self.READ, "8:16 0")]
        world.machine.put(self.READ, box, "8:0 100")
        world.spec = tier()
        assert limits(restarted=restarted) == [("c0", self.READ, "8:0 0")]
        assert world.machine.get(self.WRITE, box) == "8:0 500", "an administrator's"

    @pytest.mark.feature("BEY-JRN-01")
    @pytest.mark.parametrize("restarted", [False, True])
    def test_what_others_set_after_it_was_switched_off_stays(self, world, limits, restarted) -> None:
        """Of the tier, of a pod and of its containers; while it is on, a narrower limit of others stays after the first one, too."""
        world.spec = tier(block("sda", readBPS=100))
        pod = self.pod(world, "mixed", block("sda", readBPS=50))
        directories = (BE_TIER, pod.cgroup_dir, pod.containers[0].cgroup_dir)
        limits()
        assert [world.machine.get(self.READ, directory) for directory in directories] == ["8:0 100", "8:0 50", "8:0 50"]
        world.machine.put(self.READ, directories[-1], "8:0 20")
        limits(restarted=restarted)
        assert world.machine.get(self.READ, directories[-1]) == "8:0 20"
        world.machine.put(self.READ, directories[-1], "8:0 50")
        world.spec, world.pods[:] = tier(), [replace(pod, annotations={})]
        limits()
        assert {world.machine.get(self.READ, directory).partition(" ")[2] for directory in directories} == {"0"}
        for directory in directories:
            world.machine.put(self.READ, directory, "8:0 70")
        for _ in range(3):
            world.machine.now += 61
            if restarted:
                world.machine.restart()
            limits(restarted=restarted)
        assert {world.machine.get(self.READ, directory) for directory in directories} == {"8:0 70"}

    def test_a_narrower_limit_of_others_stays(self, world, limits) -> None:
        """Runtimes have classes of their own for disks."""
        world.spec = tier(block("sda", readBPS=100, writeBPS=100))
        box = self.pod(world, "plain").containers[0].cgroup_dir
        world.machine.put(self.READ, box, "8:0 50")
        world.machine.put(self.WRITE, box, "8:0 500")
        assert limits() == [("c0", self.WRITE, "8:0 100")]
        assert world.machine.get(self.READ, box) == "8:0 50"

    def test_what_cannot_be_told_widens_nothing(self, world, limits) -> None:
        """A pod cannot rid itself of the tier's limits by an annotation that nobody can read."""
        world.spec = tier(block("sda", readBPS=100))
        pod = self.pod(world, "a", block("sda", readBPS=50), block("sdb", writeBPS=50))
        limits()
        bad = replace(pod, annotations=asking(block("sdz", readBPS=1)))
        world.pods[:] = [bad]
        self.pod(world, "b", block("sdz", readBPS=1))
        assert limits() == [("c0", self.READ, "8:0 100")], "of the other one, which has no limit yet"
        world.pods[:] = [pod]
        world.spec = tier(block("sdz", readBPS=200))
        assert limits() == []

    def test_restore(self, world, limits) -> None:
        pod = self.pod(world, "plain")
        box = pod.containers[0].cgroup_dir
        world.machine.put(self.READ, box, "8:0 500")
        world.spec = tier(block("sda", readBPS=100))
        limits()
        assert world.machine.get(self.READ, box) == "8:0 100"
        world.machine.put(self.READ, box, "8:0 100")  # with the line's end, as the kernel shows it
        assert restore(world.machine.root).failed == []
        assert by_disk(world.machine.get(self.READ, box)) == {"8:0": "500"}

    def test_cgroup_v2_passes_limits_down_itself(self, world_v2, strategy) -> None:
        world = world_v2
        disks(world, sda="8:0")
        pod = world.pod("plain", qos="BE", kube_qos="BestEffort")
        for directory in (BE_TIER, pod.cgroup_dir, pod.containers[0].cgroup_dir):
            world.machine.put("io.max", directory, "")
        world.spec = tier(block("sda", readBPS=100))
        assert {write.target for batch in world.decide(strategy).batches for write in batch} == {BE_TIER}

    @pytest.mark.root
    def test_the_kernel_limits_the_group_that_the_process_is_in(self, world, strategy, tree) -> None:
        found = [number for number in whole_disks(Path("/proc/diskstats").read_bytes()) if not number.startswith(("1:", "7:"))]
        if "blkio" not in CONTROLLERS or not found:
            pytest.skip("needs cgroup v1's blkio and a disk in use")
        disks(world, sda=(disk := found[0]))
        pod = world.pod("plain", qos="BE", kube_qos="BestEffort")
        tree.make(pod.containers[0].cgroup_dir)
        pid = tree.run(pod.containers[0].cgroup_dir, "sys.stdin.readline()").pid
        (where,) = [line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if ":blkio:" in line]
        files = [Path(f"/sys/fs/cgroup/blkio{where}", name) for name in (self.READ, self.WRITE)]
        state = None
        for blocks, wanted in (
            ((block("sda", readBPS=3 << 20, writeBPS=4 << 20),), [f"{disk} {3 << 20}\n", f"{disk} {4 << 20}\n"]),
            ((block("sda", writeBPS=5 << 20),), ["", f"{disk} {5 << 20}\n"]),
            ((), ["", ""]),
            ((block("sda", readBPS=6 << 20),), [f"{disk} {6 << 20}\n", ""]),
        ):
            world.spec = tier(*blocks)
            state = world.run(strategy, state)
            assert [file.read_text() for file in files] == wanted
        assert restore(world.machine.root).failed == []
        assert [file.read_text() for file in files] == ["", ""]


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """The four tools on PATH, answering from files."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("lsblk", "vgs", "lvs", "findmnt"):
        (directory / name).write_text(f"#!/bin/sh\ncat {directory}/{name}.txt\n")
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return directory


@pytest.mark.feature("KLO-SYS-07")
def test_a_volume_that_is_mounted_after_the_container_was_made(world, tools, strategy) -> None:
    """koordlet below --host-root sees the mounts of its own making; those of the machine's process 1 have the machine's paths."""
    for name, text in (("lsblk", LSBLK), ("vgs", VGS), ("lvs", LVS), ("findmnt", 'TARGET="/" SOURCE="overlay"\n')):
        (tools / f"{name}.txt").write_text(text)
    mount = "/var/lib/kubelet/pods/uid-db/volumes/kubernetes.io~csi/scratch/mount"
    world.machine.file(
        "proc/1/mounts", f"/dev/sda1 / ext4 rw 0 0\n/dev/mapper/vg--data-lv {mount} ext4 rw 0 0\n/dev/sda1 /a\\040b ext4\nodd\n"
    )
    world.storage = read_storage(world.machine.root)
    assert world.storage.mounts == {"/": "overlay", mount: "/dev/mapper/vg--data-lv", "/a b": "/dev/sda1"}
    wanted = {"blocks": [{"name": "scratch", "type": "podvolume", "ioCfg": {"readBPS": 2048}}]}
    pod = world.pod("db", qos="LS", annotations={"koordinator.sh/blkioQOS": orjson.dumps(wanted).decode()})
    spec = msgspec.convert({"volumes": [{"name": "scratch", "csi": {"driver": "x"}}]}, type(pod.pod.spec))
    world.pods[:] = [replace(pod, pod=msgspec.structs.replace(pod.pod, spec=spec))]
    files(world, pod.cgroup_dir)
    assert written(world, strategy) == ["throttle.read_bps 8:16 2048", "cost.weight 8:16 100"]


@pytest.mark.feature("KA-BLK-01")
@pytest.mark.feature("KLO-SYS-07")
@pytest.mark.feature("KLO-COL-13")
@pytest.mark.feature("KLO-SI-06")
def test_disks_of_a_tier_and_of_a_pods_claim(tmp_path, tools) -> None:
    """NodeSLO and annotation in; lines in the files out; everything back in the end."""

    async def story(c: Cluster) -> None:
        blocks = [block("/dev/sda", readIOPS=1000, writeBPS=1 << 20)]
        await c.node({"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": blocks}}}})
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {"volumeName": "pv-7", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        await c.client.create(PERSISTENTVOLUMECLAIMS, claim)
        wanted = [
            {"name": "store", "type": "podvolume", "ioCfg": {"readBPS": 2048}},
            {"name": "tmp", "type": "podvolume", "ioCfg": {"readBPS": 1}},
        ]
        volumes = [
            {"name": "store", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "tmp", "csi": {"driver": "x"}},
        ]
        pod = await c.pod(
            "db",
            qos="LS",
            kube_qos="Burstable",
            volumes=volumes,
            annotations={"koordinator.sh/blkioQOS": orjson.dumps({"blocks": wanted}).decode()},
        )
        mounts = findmnt(str(c.base), pod["metadata"]["uid"]).replace("/scratch/", "/tmp/")
        for name, text in (("lsblk", LSBLK), ("vgs", VGS), ("lvs", LVS), ("findmnt", mounts)):
            (tools / f"{name}.txt").write_text(text)
        directory = c.dirs(pod)[0]
        for where in ("kubepods.slice", BE_TIER, directory):
            for file in (*THROTTLES, "blkio.cost.weight"):
                c.cgroup("blkio", where, file, "")
        async with agent(c, "BlkIOReconcile") as app:
            await until(lambda: c.read("blkio", BE_TIER, THROTTLES[0]) == "8:0 1000", "the limit of the tier")
            assert c.read("blkio", BE_TIER, "blkio.throttle.write_bps_device") == "8:0 1048576"
            # a plain file keeps the last line only: the second volume's
            await until(lambda: c.read("blkio", directory, "blkio.throttle.read_bps_device") == "259:0 1", "the limits of the pod")
            told = [r.message for r in app.recorder.ring.find("CgroupFile") if "read_bps" in r.subject.name]
            assert any("8:16 2048" in text for text in told)
            assert 'koordlet_collect_node_local_storage_info_status{node="n1",status="succeeded"}' in exposed(app.metrics.internal)

            await c.client.patch(PODS, "db", {"metadata": {"annotations": {"koordinator.sh/blkioQOS": None}}}, "default")
            await until(lambda: c.read("blkio", directory, "blkio.throttle.read_bps_device") == "259:0 0", "the pod set free")
            off = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": False}}}}
            await c.client.patch(NODESLOS, "n1", {"spec": off})
            await until(lambda: c.read("blkio", BE_TIER, THROTTLES[0]) == "8:0 0", "the tier set free")
        assert restore_command(c.options) == 0

    run(tmp_path, story)
