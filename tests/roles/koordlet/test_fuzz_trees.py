"""Readers of whole directories of sysfs and resctrl: whatever is missing, too much or rubbish, a value or one error that names the file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.config.gates import KOORDLET, FeatureGates
from roles.koordlet.host.cgroup import Cgroups, CgroupVersion
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.numa import HUGEPAGE_SIZES, NumaReader
from roles.koordlet.host.root import HostRoot, PathEscapeError
from roles.koordlet.host.topology import make_topology, numa_of_cpus, read_basic_info, read_topology
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.options import Options
from roles.koordlet.report.zones import ZoneError, make_zones
from roles.koordlet.sensing.base import Round, SensingContext
from roles.koordlet.sensing.rdma import RDMA, RDMACollector, read_device
from roles.koordlet.sensing.resctrl import GROUPS, ResctrlCollector
from roles.koordlet.states.model import HostState
from roles.koordlet.store import kinds
from roles.koordlet.store.store import MetricStore

#: A tree is a hundred times as slow as a text.
thorough = settings(max_examples=5_000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 20)

#: Ten times as quick as a disk.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

#: A path below the machine's root -> its content; ``DIRECTORY`` makes a directory of it, ``Link`` a link.
Tree = dict[str, Any]
DIRECTORY = object()


class Link(str):
    __slots__ = ()


RUBBISH = st.one_of(
    st.binary(max_size=10),
    st.sampled_from(
        [b"", b"\n", b"-1\n", b"9" * 25, b"0-999999999\n", b"1,,2\n", b"3-1\n", b"max", b"0x10", b"\xff\xfe", b"\xc2\xb2\n", b"\0"]
    ),
    st.just(DIRECTORY),
    st.builds(Link, st.sampled_from(["nowhere", ".", "../../..", "/etc"])),
)


def damaged(whole: Mapping[str, bytes], extra: list[str]) -> st.SearchStrategy[Tree]:
    """The tree with some files missing, some of other content, and some things that nobody expects."""
    paths = sorted(whole)
    parents = sorted({str(parent) for path in paths for parent in list(Path(path).parents)[:-2]})
    return st.builds(
        lambda gone, instead, added: {**{p: d for p, d in whole.items() if p not in gone}, **instead, **added},
        st.sets(st.sampled_from(paths), max_size=8),
        st.dictionaries(st.sampled_from(paths + parents), RUBBISH, max_size=4),
        st.dictionaries(st.sampled_from(extra), RUBBISH, max_size=4),
    )


@contextmanager
def machine(tree: Tree) -> Iterator[HostRoot]:
    """The tree on disk. Where two entries exclude each other (a file below a file) the first one stays."""
    base = tempfile.mkdtemp(prefix="koord-tree-", dir=IN_MEMORY)
    try:
        for name in sorted(tree):
            path, content = os.path.join(base, name), tree[name]
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if content is DIRECTORY:
                    os.makedirs(path, exist_ok=True)
                elif isinstance(content, Link):
                    os.symlink(str(content), path)
                else:
                    Path(path).write_bytes(content)
            except OSError:
                continue
        yield HostRoot.at(base)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def names_a_file(error: Exception, root: HostRoot) -> bool:
    return root.root in str(error)


def cpu_tree() -> dict[str, bytes]:
    """Two sockets, two cores each of two threads, a NUMA node a socket."""
    tree: dict[str, bytes] = {"sys/devices/system/cpu/online": b"0-7\n", "sys/devices/system/cpu/smt/active": b"1\n"}
    tree["sys/devices/system/cpu/intel_pstate/no_turbo"] = b"0\n"
    tree["sys/fs/resctrl/info/L3/cbm_mask"] = b"fffff\n"
    for cpu in range(8):
        base = f"sys/devices/system/cpu/cpu{cpu}"
        socket = cpu % 4 // 2
        tree |= {
            f"{base}/topology/core_cpus_list": b"%d,%d\n" % (cpu % 4, cpu % 4 + 4),
            f"{base}/topology/package_cpus_list": b"0-1,4-5\n" if socket == 0 else b"2-3,6-7\n",
            f"{base}/topology/physical_package_id": b"%d\n" % socket,
            f"{base}/topology/core_id": b"%d\n" % (cpu % 2),
            f"{base}/cache/index3/level": b"3\n",
            f"{base}/cache/index3/shared_cpu_list": b"0-1,4-5\n" if socket == 0 else b"2-3,6-7\n",
        }
    for node, cpus in enumerate((b"0-1,4-5\n", b"2-3,6-7\n")):
        for base in ("sys/devices/system/node", "sys/bus/node/devices"):
            tree[f"{base}/node{node}/cpulist"] = cpus
    tree["proc/cpuinfo"] = b"".join(b"processor : %d\nvendor_id : X\nphysical id : 0\ncore id : %d\n\n" % (n, n) for n in range(8))
    return tree


EXTRA_CPU = [
    "sys/devices/system/cpu/cpu3/online", "sys/devices/system/cpu/cpu99999/topology/core_id", "sys/devices/system/cpu/cpufreq",
    "sys/devices/system/cpu/cpu07", "sys/devices/system/cpu/cpu8/topology", "sys/devices/system/node/node5/cpulist",
    "sys/devices/system/node/node0x", "sys/devices/system/cpu/cpu1/cache/index9/level", "sys/devices/system/cpu/cpu\u00b2",
]  # fmt: skip


@pytest.mark.feature("KLO-SYS-05")
@thorough
@given(damaged(cpu_tree(), EXTRA_CPU))
def test_fuzz_a_tree_of_cpus(tree: Tree) -> None:
    with machine(tree) as root:
        try:
            topology = read_topology(root)
        except (HostError, ValueError) as error:
            assert names_a_file(error, root) or "no usable CPU" in str(error)  # noqa: PT017
            return
        assert len(topology) == len(topology.by_id) > 0
        assert topology == make_topology(topology.cpus), "it comes in its canonical order"
        for groups in (topology.cores, topology.sockets):
            assert sorted(groups) == list(range(len(groups))), "logical ids have no gaps"
            assert sorted(cpu for group in groups.values() for cpu in group) == list(topology.ids)
        assert set(numa_of_cpus(root).values()) >= set(topology.nodes) - {0}
        assert set(read_basic_info(root, topology).wire()) <= {
            "cpuModel", "hyperThreadEnabled", "turboEnabled", "catL3CbmMask", "vendorID",
        }  # fmt: skip


def numa_tree() -> dict[str, bytes]:
    tree: dict[str, bytes] = {"sys/devices/system/node/has_generic_initiator": b"\n"}
    for node in range(3):
        base = f"sys/bus/node/devices/node{node}"
        lines = ("MemTotal: 1000", "MemFree: 500", "Active(file): 7", "Inactive(file): 8", "SReclaimable: 9")
        tree[f"{base}/meminfo"] = "".join(f"Node {node} {line} kB\n" for line in lines).encode()
        for size in HUGEPAGE_SIZES:
            tree[f"{base}/hugepages/hugepages-{size}kB/nr_hugepages"] = b"2\n"
    return tree


EXTRA_NUMA = [
    "sys/bus/node/devices/node7/meminfo", "sys/bus/node/devices/nodeX/meminfo", "sys/bus/node/devices/node",
    "sys/bus/node/devices/node\u0663/meminfo", "sys/bus/node/devices/node01/meminfo",
    "sys/bus/node/devices/node0/hugepages/hugepages-64kB/nr_hugepages", "sys/devices/system/node/node1/meminfo",
]  # fmt: skip


@pytest.mark.feature("KLO-SYS-04")
@thorough
@given(damaged(numa_tree(), EXTRA_NUMA), damaged(cpu_tree(), EXTRA_CPU), st.booleans())
def test_fuzz_a_tree_of_numa_nodes(tree: Tree, cpus: Tree, hugepages: bool) -> None:
    with machine({**cpus, **tree}) as root:
        reader = NumaReader(root, HostFiles())
        try:
            nodes = reader.read(hugepages=hugepages)
        except (HostError, ValueError) as error:
            assert names_a_file(error, root)  # noqa: PT017
            return
        assert [node.id for node in nodes] == sorted({node.id for node in nodes})
        for node in nodes:
            assert node.memory.numa_used >= 0
            assert set(node.hugepages) == (set(HUGEPAGE_SIZES.values()) if hugepages else set())
        reader.rescan()
        assert reader.read(hugepages=hugepages) == nodes
        try:
            zones = make_zones(read_topology(root), nodes, {"cpu": 500, "memory": 1000})
        except (HostError, ZoneError):
            return
        assert [zone["name"] for zone in zones] == [f"node-{node.id}" for node in nodes]


ROOT_PORT = "sys/devices/pci0000:3a"
CARDS = ("0000:3b:00.0", "0000:3b:00.1")


def rdma_tree() -> Tree:
    tree: Tree = {}
    for number, card in enumerate(CARDS):
        base = f"{ROOT_PORT}/{card}"
        tree |= {
            f"{base}/class": b"0x020000\n",
            f"{base}/numa_node": b"1\n",
            f"{base}/infiniband/mlx5_{number}/node_guid": b"x\n",
            f"{base}/sriov_numvfs": b"2\n",
            f"{base}/virtfn0": Link(f"../0000:3b:0{number + 1}.0"),
            f"sys/class/infiniband/mlx5_{number}/ports/1/state": b"4: ACTIVE\n",
            f"sys/bus/pci/devices/{card}": Link(f"../../../devices/pci0000:3a/{card}"),
        }
    return tree


EXTRA_RDMA = [
    f"{ROOT_PORT}/{CARDS[0]}/infiniband/aaa/x", f"{ROOT_PORT}/{CARDS[1]}/infiniband/irdma{'9' * 12}/x", f"{ROOT_PORT}/{CARDS[1]}/physfn",
    f"{ROOT_PORT}/{CARDS[0]}/virtfn7", "sys/bus/pci/devices/rubbish", "sys/bus/pci/devices/0000:ff:00.0/class",
    "sys/class/infiniband/mlx5_0/ports/2/state", f"{ROOT_PORT}/{CARDS[0]}/infiniband/mlx5_\u00b2/x",
]  # fmt: skip


def context(root: HostRoot, gates: str = "") -> SensingContext:
    enabled = FeatureGates(KOORDLET)
    enabled.set_from_flag(gates)
    metrics = Metrics("n1")
    metrics.node_known = True
    host = HostState(root, Cgroups(root, CgroupVersion.V1), HostFiles())
    return SensingContext(
        host=host,
        store=MetricStore(),
        metrics=metrics,
        pods=tuple,
        slo=lambda: None,
        memory_policy=str,
        gate=enabled.enabled,
        options=Options(enable_resctrl_collector=True),
    )


@pytest.mark.feature("KLO-DEV-02")
@thorough
@given(damaged(rdma_tree(), EXTRA_RDMA))
def test_fuzz_a_tree_of_rdma_cards(tree: Tree) -> None:
    with machine(tree) as root:
        for card in CARDS:
            try:
                device = read_device(root, card)
            except (HostError, ValueError) as error:
                assert names_a_file(error, root)  # noqa: PT017
                continue
            if device is not None:
                assert device.numa_node >= 0
                assert device.minor >= 0
        sensed = context(root, "RDMADevices=true")
        try:
            RDMACollector(sensed).collect(Round(1.0, 1.0))
        except PathEscapeError as error:
            assert names_a_file(error, root)  # noqa: PT017
            return  # the only thing that spoils a round: the directory of all cards is elsewhere
        found = sensed.store.snapshot(RDMA)
        assert len({device.minor for device in found}) == len(found)


def resctrl_tree() -> dict[str, bytes]:
    flags = "cat_l3 mba cqm_mbm_total cqm_mbm_local cqm_llc cqm_occup_llc"
    tree = {
        "proc/cpuinfo": f"processor : 0\nvendor_id : GenuineIntel\nmodel name : X\nflags : {flags}\n".encode(),
        "sys/fs/resctrl/schemata": b"    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n",
    }
    for group in GROUPS:
        for cache in range(2):
            base = f"sys/fs/resctrl/{group}/mon_data/mon_L3_{cache:02d}"
            tree |= {f"{base}/llc_occupancy": b"1000\n", f"{base}/mbm_local_bytes": b"20\n", f"{base}/mbm_total_bytes": b"Unavailable\n"}
    return tree


EXTRA_RESCTRL = [
    "sys/fs/resctrl/LS/mon_data/mon_L3_", "sys/fs/resctrl/LS/mon_data/mon_L3_x_y/llc_occupancy",
    "sys/fs/resctrl/BE/mon_data/mon_L3_02/llc_occupancy",
    "sys/fs/resctrl/BE/mon_data/mon_MB_00/mbm_total_bytes", "sys/fs/resctrl/LSR/mon_data/mon_L3_\u0663",
]  # fmt: skip


@pytest.mark.feature("KLO-COL-12")
@thorough
@given(damaged(resctrl_tree(), EXTRA_RESCTRL))
def test_fuzz_a_tree_of_resctrl_groups(tree: Tree) -> None:
    with machine(tree) as root:
        sensed = context(root, "ResctrlCollector=true")
        collector = ResctrlCollector(sensed)
        if not collector.enabled:
            return
        try:
            collector.collect(Round(1.0, 1.0))
        except (HostError, ValueError) as error:
            assert names_a_file(error, root)  # noqa: PT017
            return
        shown = {values for _, _, values, _ in sensed.metrics.resctrl_llc.samples()}
        kept = {(cache, group) for group, cache in sensed.store.keys(kinds.RESCTRL_LLC)}
        assert kept <= shown
        assert {group for _, group in shown} <= set(GROUPS)
