"""The host layer: one root, cgroup names and files, parsers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.koordlet.host import parse, proc
from roles.koordlet.host.cgroup import CgroupDriver, Cgroups, CgroupVersion, detect_version, split_container_id
from roles.koordlet.host.cgroup_files import ROWS, shares_to_weight, weight_to_shares
from roles.koordlet.host.errors import CgroupGoneError, FileMissingError, HostError, ParseError
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.numa import NumaReader
from roles.koordlet.host.psi import parse_psi
from roles.koordlet.host.root import HostRoot, PathEscapeError, confine
from roles.koordlet.host.topology import read_basic_info, read_topology
from roles.koordlet.observing import on_host
from roles.koordlet.options import Options

UID = "1a-2b"


class TestRoot:
    @pytest.mark.feature("KLO-CFG-01")
    def test_defaults_and_overrides(self) -> None:
        assert HostRoot.at("/").cgroup == "/sys/fs/cgroup"
        assert HostRoot.at("/", daemonset=True).cgroup == "/host-cgroup"
        made = HostRoot.at("/m", {"proc-root-dir": "/elsewhere/proc/"})
        assert (made.proc, made.cgroup, made.var_run) == ("/elsewhere/proc", "/m/sys/fs/cgroup", "/m/var/run")

    def test_never_leaves_the_root(self, tmp_path: Path) -> None:
        (tmp_path / "in" / "deep").mkdir(parents=True)
        os.symlink("/etc", tmp_path / "in" / "out")
        os.symlink("deep", tmp_path / "in" / "inside")
        base = str(tmp_path / "in")
        with pytest.raises(PathEscapeError):
            confine(base, "../x")
        with pytest.raises(PathEscapeError):
            confine(base, "out/passwd")
        assert confine(base, "inside/f").endswith("inside/f")
        assert confine(base, "/deep", "not/yet/there") == f"{base}/deep/not/yet/there"

    @given(st.lists(st.text(alphabet="./ab", max_size=8), max_size=4))
    def test_any_parts_stay_below(self, parts: list[str]) -> None:
        try:
            path = confine("/base/dir", *parts)
        except PathEscapeError:
            return
        assert os.path.normpath(path).startswith("/base/dir")


class TestCgroupNames:
    @pytest.mark.feature("KLO-SYS-01")
    def test_version_and_driver_are_told_by_the_tree(self, host) -> None:
        tree = host(version=2, driver="cgroupfs")
        cgroups = Cgroups.detect(HostRoot.at(str(tree.root)))
        assert (cgroups.version, cgroups.driver) == (CgroupVersion.V2, CgroupDriver.CGROUPFS)
        with pytest.raises(HostError, match="does not exist"):
            detect_version(HostRoot.at("/nowhere-at-all"))

    @pytest.mark.parametrize(
        ("driver", "qos", "pod", "container"),
        [
            ("systemd", "Guaranteed", "kubepods.slice/kubepods-pod1a_2b.slice", "cri-containerd-c1.scope"),
            (
                "systemd",
                "BestEffort",
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1a_2b.slice",
                "cri-containerd-c1.scope",
            ),
            ("cgroupfs", "Burstable", "kubepods/burstable/pod1a-2b", "c1"),
            ("cgroupfs", "Guaranteed", "kubepods/pod1a-2b", "c1"),
        ],
    )
    def test_pod_and_container_directories(self, driver: str, qos: str, pod: str, container: str) -> None:
        cgroups = Cgroups(HostRoot.at("/m"), CgroupVersion.V1, CgroupDriver(driver))
        made = cgroups.pod_dir(qos, UID)
        assert made == pod
        assert cgroups.container_dir(made, "containerd://c1") == f"{pod}/{container}"
        assert cgroups.container_id_of(container) == "c1"
        assert cgroups.pod_uid_of(pod.rsplit("/", 1)[1]) == (UID if driver == "cgroupfs" else "1a_2b")

    @pytest.mark.parametrize("bad", ["c1", "rkt://c1", "docker://", "docker://../x", "docker://.."])
    def test_container_ids_that_name_no_directory(self, bad: str) -> None:
        with pytest.raises(HostError, match="container id"):
            split_container_id(bad)

    @pytest.mark.parametrize("uid", ["", "a/b", ".."])
    def test_uids_that_name_no_directory(self, uid: str) -> None:
        cgroups = Cgroups(HostRoot.at("/m"), CgroupVersion.V1, CgroupDriver.CGROUPFS)
        with pytest.raises(HostError, match="uid"):
            cgroups.pod_dir("Burstable", uid)

    def test_sandbox_is_the_directory_that_no_container_owns(self, host) -> None:
        tree = host()
        cgroups = Cgroups.detect(HostRoot.at(str(tree.root)))
        pod = cgroups.pod_dir("Burstable", UID)
        for name in ("cri-containerd-c1.scope", "cri-containerd-box.scope", "crio-left.scope"):
            tree.cgroup(f"{pod}/{name}")
        known = {f"{pod}/cri-containerd-c1.scope"}
        assert cgroups.sandbox_dir(pod, known) == f"{pod}/cri-containerd-box.scope"
        with pytest.raises(HostError, match="exactly one"):
            cgroups.sandbox_dir(pod, set())

    @pytest.mark.feature("KLO-SYS-01")
    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize(("made", "wanted"), [("crio-c1", "crio-c1"), ("c1", "c1"), ("", "crio-c1")])
    def test_containers_of_crio_beside_cgroupfs(self, host, version: int, made: str, wanted: str) -> None:
        tree = host(version=version, driver="cgroupfs")
        cgroups = Cgroups.detect(HostRoot.at(str(tree.root)))
        pod = cgroups.pod_dir("Burstable", UID)
        for name in filter(None, (made, "crio-box", "crio-conmon-c1", "crio-conmon-box")):
            tree.cgroup(f"{pod}/{name}")
        container = cgroups.container_dir(pod, "cri-o://c1")
        assert container == f"{pod}/{wanted}"
        assert cgroups.container_id_of(wanted) == "c1"
        assert cgroups.sandbox_dir(pod, {container}) == f"{pod}/crio-box"

    @pytest.mark.parametrize(
        ("qos", "base", "wanted"),
        [
            ("LS", None, "host-latency-sensitive/nginx"),
            ("BE", None, "host-best-effort/nginx"),
            ("", None, "nginx"),
            ("LS", "CgroupRoot", "p/r"),
            ("LS", "", "p/r"),
            ("BE", "KubepodsBesteffort", "kubepods.slice/kubepods-besteffort.slice/p/r"),
            ("BE", "Kubepods", "kubepods.slice/p/r"),
        ],
    )
    def test_host_application_directories(self, qos: str, base: str | None, wanted: str) -> None:
        cgroups = Cgroups(HostRoot.at("/m"), CgroupVersion.V1)
        assert cgroups.host_app_dir("nginx", qos, base, "/p/", "r/") == wanted

    def test_file_paths_and_support(self, host) -> None:
        tree = host()
        one = Cgroups.detect(HostRoot.at(str(tree.root)))
        assert one.file("cpu.cfs_quota_us", "kubepods.slice").endswith("/sys/fs/cgroup/cpu/kubepods.slice/cpu.cfs_quota_us")
        assert not one.supported("cpu.idle", "kubepods.slice")
        tree.write("sys/fs/cgroup/cpu/kubepods.slice/cpu.idle", "0\n")
        assert one.supported("cpu.idle", "kubepods.slice"), "kubepods may get the file later"
        two = Cgroups(HostRoot.at("/m"), CgroupVersion.V2)
        assert two.file("cpu.cfs_quota_us", "kubepods.slice") == "/m/sys/fs/cgroup/kubepods.slice/cpu.max"
        assert not two.supported("blkio.cost.weight", "kubepods.slice")


class TestFileTable:
    @pytest.mark.feature("KA-FS-01")
    def test_values_are_converted_and_judged(self) -> None:
        v2 = Cgroups(HostRoot.at("/m"), CgroupVersion.V2)
        assert v2.spec("cpu.shares").encode("1024") == "39"
        assert v2.spec("memory.limit_in_bytes").encode("-1") == "max"
        with pytest.raises(ValueError, match="outside"):
            Cgroups(HostRoot.at("/m"), CgroupVersion.V1).spec("cpu.shares").encode("1")
        with pytest.raises(ValueError, match="CPU list"):
            v2.spec("cpuset.cpus").encode("3-1")

    @given(st.integers(2, 262_144))
    def test_shares_and_weight_stay_in_range_and_order(self, shares: int) -> None:
        weight = shares_to_weight(shares)
        assert 1 <= weight <= 10_000
        assert shares_to_weight(min(shares + 1, 262_144)) >= weight
        assert 2 <= weight_to_shares(weight) <= 262_144

    def test_every_row_has_a_file(self) -> None:
        assert all(row.v1 or row.v2 for row in ROWS)
        assert len({row.name for row in ROWS}) == len(ROWS)


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


class TestFiles:
    @pytest.mark.feature("KLO-SYS-02")
    def test_one_read_a_tick_and_kept_descriptors(self, tmp_path: Path) -> None:
        path = tmp_path / "f"
        path.write_text("1\n")
        files = HostFiles()
        assert files.text(str(path)) == "1"
        path.write_text("2\n")
        assert files.text(str(path)) == "1", "all readers of a tick see the same"
        files.begin_tick()
        assert files.text(str(path)) == "2"
        assert (files.reads, files.opens, files.open_count) == (2, 1, 1)

    def test_a_replaced_or_removed_file_does_not_live_on(self, tmp_path: Path) -> None:
        path = tmp_path / "f"
        path.write_text("old")
        files = HostFiles()
        files.read(str(path))
        (tmp_path / "g").write_text("new")
        os.replace(tmp_path / "g", path)
        files.begin_tick()
        assert files.text(str(path)) == "new"
        path.unlink()
        files.begin_tick()
        with pytest.raises(FileMissingError, match="does not exist"):
            files.read(str(path))
        assert files.open_count == 0
        with pytest.raises(CgroupGoneError, match="directory"):
            files.read(str(tmp_path / "gone" / "f"))

    def test_big_files_are_read_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "f"
        path.write_bytes(b"x" * 300_000)
        assert len(HostFiles().read(str(path))) == 300_000

    def test_descriptors_are_bounded_and_closed(self, tmp_path: Path) -> None:
        files = HostFiles(max_open=3)
        (tmp_path / "d").mkdir()
        for i in range(6):
            (tmp_path / "d" / str(i)).write_text(str(i))
            assert files.text(str(tmp_path / "d" / str(i))) == str(i)
        assert files.open_count == 3
        assert files.forget_dir(str(tmp_path / "d")) == 3
        assert files.open_count == 0

    def test_a_dropped_reader_leaves_no_descriptor_behind(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("1")
        files = HostFiles()
        files.read(str(tmp_path / "f"))
        (kept,) = [fd for fd in os.listdir("/proc/self/fd") if _target(fd) == str(tmp_path / "f")]
        del files
        assert _target(kept) != str(tmp_path / "f")


class TestParse:
    def test_numbers(self) -> None:
        assert parse.signed("f", b"max\n") == -1
        assert parse.unsigned("f", b"max\n") == (1 << 63) - 1
        with pytest.raises(ParseError, match=r"f: 'x' is not a number"):
            parse.signed("f", b"x\n")

    def test_cpu_and_throttling(self) -> None:
        v2 = b"usage_usec 12\nuser_usec 3\nnr_periods 4\nnr_throttled 2\nthrottled_usec 7\n"
        assert parse.cpu_usage_ns("f", v2, v2=True) == 12_000
        assert parse.throttling("f", v2, v2=True) == (4, 2)
        with pytest.raises(ParseError, match="throttled_time"):
            parse.throttling("f", b"nr_periods 4\nnr_throttled 2\n", v2=False)

    @given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.booleans(), st.sampled_from(["", "nr_bursts", "nr_throttled", "first"]))
    def test_the_quick_look_at_throttling_agrees_with_the_thorough_one(self, periods, throttled, v2, odd) -> None:
        name = "throttled_usec" if v2 else "throttled_time"
        lines = [f"nr_periods {periods}", f"nr_throttled {throttled}", f"{name} 7"]
        if odd == "first":
            lines.reverse()
        elif odd == "nr_throttled":
            lines[1] = "nr_throttled x"
        elif odd:
            lines.insert(2, f"{odd} 5")
        data = ("usage_usec 12\nuser_usec 3\n" * v2 + "\n".join(lines) + "\n").encode()
        if odd == "nr_throttled":
            with pytest.raises(ParseError, match="nr_throttled"):
                parse.throttled_periods("f", data, v2=v2)
            return
        assert parse.throttled_periods("f", data, v2=v2) == parse.throttling("f", data, v2=v2) == (periods, throttled)

    def test_cpu_max_has_two_fields(self) -> None:
        assert parse.cpu_max("f", b"max 100000\n") == (-1, 100_000)
        for bad in (b"max\n", b"1 2 3\n"):
            with pytest.raises(ParseError, match="fields"):
                parse.cpu_max("f", bad)

    def test_shares_of_weight(self) -> None:
        assert parse.cpu_shares("f", b"100\n", v2=True) == 99 * 262_142 // 9999 + 2
        with pytest.raises(ParseError, match="outside"):
            parse.cpu_shares("f", b"0\n", v2=True)

    def test_memory(self) -> None:
        v1 = b"inactive_anon 9\n" + b"".join(
            b"total_%s %d\n" % (k, i)
            for i, k in enumerate((b"cache", b"rss", b"inactive_file", b"active_file", b"inactive_anon", b"active_anon", b"unevictable"), 1)
        )
        stat = parse.memory_stat("f", v1, v2=False)
        assert (stat.without_page_cache, stat.with_page_cache) == (5 + 6 + 7, 3 + 4 + 5 + 6 + 7)
        with pytest.raises(ParseError, match="total_unevictable"):
            parse.memory_stat("f", v1.replace(b"total_unevictable", b"x"), v2=False)
        assert parse.memory_limit("f", b"9223372036854771712\n") == -1

    @given(st.lists(st.integers(0, 1 << 50), min_size=7, max_size=7), st.booleans(), st.permutations(range(7)), st.booleans())
    def test_the_quick_look_at_memory_agrees_with_the_thorough_one(self, values, v2, order, shuffled) -> None:
        names = ["cache", "rss", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"]
        rows = [*zip(["anon", "file", *names[2:]] if v2 else ["total_" + n for n in names], values, strict=True)]
        if shuffled:
            rows = [rows[i] for i in order]
        data = ("" if v2 else "cache 1\ninactive_anon 3\n").encode() + "".join(f"{n} {v}\n" for n, v in rows).encode()
        whole = parse.memory_stat("f", data, v2=v2)
        assert parse.memory_usage("f", data, v2=v2) == (whole.without_page_cache, whole.with_page_cache)
        for name in (rows[0][0], rows[3][0]):
            with pytest.raises(ParseError, match="missing"):
                parse.memory_usage("f", data.replace(f"{name} ".encode(), b"x "), v2=v2)

    def test_numa_memory_leaves_page_cache_out(self) -> None:
        v2 = b"anon N0=100 N1=200\nfile N0=7 N1=9\nunevictable N0=1 N1=0\n"
        assert parse.numa_memory("f", v2, v2=True, page_size=4096) == {0: 101, 1: 200}
        v1 = b"total=0 N0=0\nanon=0 N0=0\nhierarchical_total=9 N0=9\nhierarchical_anon=5 N0=5\nhierarchical_unevictable=1 N0=1\n"
        assert parse.numa_memory("f", v1, v2=False, page_size=4096) == {0: 6 * 4096}

    @given(st.binary(max_size=200))
    def test_rubbish_is_an_error_that_names_the_file(self, data: bytes) -> None:
        readers = (
            lambda: parse.memory_stat("the-file", data, v2=True),
            lambda: parse.throttling("the-file", data, v2=False),
            lambda: parse.cpu_usage_ns("the-file", data, v2=True),
            lambda: parse.numa_memory("the-file", data, v2=True, page_size=4096),
            lambda: parse.cpu_max("the-file", data),
            lambda: parse_psi("the-file", data),
            lambda: proc.cpu_ticks("the-file", data),
            lambda: proc.per_cpu_ticks("the-file", data),
            lambda: proc.meminfo("the-file", data),
        )
        for read in readers:
            said = "the-file"
            try:
                read()
            except ParseError as error:
                said = str(error)
            assert "the-file" in said


class TestProc:
    @pytest.mark.feature("KLO-SYS-03")
    def test_stat_counts_what_is_used(self) -> None:
        text = b"cpu  1 2 4 8 16 32 64 128 256 512\ncpu0 1 0 0 0 0 0 0 0\ncpu7 2 0 0 9 9 1 1 9\nintr 5\n"
        assert proc.cpu_ticks("f", text) == 1 + 2 + 4 + 32 + 64
        assert proc.per_cpu_ticks("f", text) == {0: 1, 7: 4}
        with pytest.raises(ParseError, match="at least 8"):
            proc.cpu_ticks("f", b"cpu 1 2 3\n")

    def test_meminfo(self) -> None:
        info = proc.meminfo("f", b"MemTotal: 100 kB\nMemFree: 30 kB\nMemAvailable: 60 kB\n")
        assert (info.used, info.used_with_page_cache) == (40 * 1024, 70 * 1024)


class TestNuma:
    @pytest.mark.feature("KLO-SYS-04")
    def test_memory_estimate_and_hugepages(self, host) -> None:
        tree = host(sockets=2, cores=2)
        tree.numa(0, total_kb=1000, free_kb=100, file_kb=200, slab_kb=50)
        tree.numa(1, total_kb=1000, free_kb=900, file_kb=200)
        tree.write("sys/bus/node/devices/node1/hugepages/hugepages-2048kB/nr_hugepages", "3\n")
        tree.write("sys/bus/node/devices/junk/meminfo", "x")
        nodes = NumaReader(HostRoot.at(str(tree.root)), HostFiles()).read(hugepages=True)
        assert [(n.id, n.memory.numa_used) for n in nodes] == [(0, 650 * 1024), (1, 0)]
        assert [n.hugepages["hugepages-2Mi"] for n in nodes] == [0, 3 * 2048 * 1024]

    def test_generic_initiators_and_unreadable_nodes_are_left_out(self, host) -> None:
        tree = host(sockets=3, cores=1)
        tree.write("sys/devices/system/node/has_generic_initiator", "1\n")
        tree.write("sys/bus/node/devices/node2/meminfo", "garbage\n")
        assert [n.id for n in NumaReader(HostRoot.at(str(tree.root)), HostFiles()).read()] == [0]


class TestTopology:
    @pytest.mark.feature("KLO-SYS-05")
    def test_cores_are_unique_across_sockets(self, host) -> None:
        topology = read_topology(HostRoot.at(str(host(sockets=2, cores=4, threads=2).root)))
        assert len(topology) == 16
        assert sorted(topology.cores) == list(range(8))
        assert topology.cores[0] == (0, 8)
        assert topology.cores[4] == (4, 12)
        assert topology.by_id[12].socket == 1
        assert topology.nodes[1] == (4, 5, 6, 7, 12, 13, 14, 15)
        assert [c.id for c in topology][:4] == [0, 8, 1, 9]

    def test_offline_cpus_and_missing_caches(self, host) -> None:
        tree = host(cores=4)
        tree.write("sys/devices/system/cpu/cpu2/online", "0\n")
        for cpu in range(4):
            (tree.root / f"sys/devices/system/cpu/cpu{cpu}/cache/index3/level").unlink()
        topology = read_topology(HostRoot.at(str(tree.root)))
        assert topology.ids == (0, 1, 3)
        assert [c.core for c in topology] == [0, 1, 2], "numbered by first appearance"
        assert {c.l3 for c in topology} == {0}

    def test_cpuinfo_where_sysfs_is_missing(self, tmp_path: Path) -> None:
        (tmp_path / "proc").mkdir()
        blocks = "".join(f"processor : {i}\nphysical id : {i // 2}\ncore id : 0\n\n" for i in range(4))
        (tmp_path / "proc/cpuinfo").write_text(blocks)
        topology = read_topology(HostRoot.at(str(tmp_path)))
        assert [(c.id, c.socket, c.core) for c in topology] == [(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 1, 1)]
        with pytest.raises(HostError, match="no usable CPU"):
            read_topology(HostRoot.at(str(tmp_path / "empty")))

    def test_basic_info(self, host) -> None:
        tree = host(cores=2, threads=2)
        tree.write("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n")
        tree.write("sys/fs/resctrl/info/L3/cbm_mask", "fff\n")
        root = HostRoot.at(str(tree.root))
        wanted = {
            "cpuModel": "Test CPU",
            "hyperThreadEnabled": True,
            "turboEnabled": True,
            "catL3CbmMask": "fff",
            "vendorID": "GenuineIntel",
        }
        assert read_basic_info(root, read_topology(root)).wire() == wanted


class TestPsi:
    @pytest.mark.feature("KLO-SYS-06")
    def test_full_line_may_be_missing(self) -> None:
        psi = parse_psi("f", b"some avg10=1.50 avg60=2.00 avg300=3.00 total=44\n")
        assert (psi.some.avg10, psi.some.total, psi.full_supported, psi.full.avg10) == (1.5, 44, False, 0)
        assert parse_psi("f", b"some avg10=0 avg60=0 avg300=0 total=0\nfull avg10=7 avg60=0 avg300=0 total=1\n").full.avg10 == 7

    @pytest.mark.parametrize("bad", [b"", b"most avg10=1\n", b"some avg10=1 avg60=1 total=1\n", b"some avg10=x avg60=1 avg300=1 total=1\n"])
    def test_other_lines_are_errors(self, bad: bytes) -> None:
        with pytest.raises(ParseError, match="f: "):
            parse_psi("f", bad)


@pytest.mark.feature("KLO-CFG-01")
class TestLinksOfAMachine:
    """A machine's root mounted somewhere: its own links must not lead to the container's directories."""

    @pytest.mark.parametrize(
        ("link", "found"),
        [("/run", "run"), ("../run", "run"), ("/run/../run/./", "run"), ("/nowhere", "nowhere"), ("../../../../run", "run")],
    )
    def test_var_run_is_a_link(self, tmp_path, link, found) -> None:
        (tmp_path / "var").mkdir()
        (tmp_path / "run").mkdir()
        (tmp_path / "var/run").symlink_to(link)
        root = HostRoot.at(str(tmp_path))
        assert root.var_run == str(tmp_path / found)
        assert root.var_run_path("koordlet", "journal") == str(tmp_path / found / "koordlet/journal")

    def test_links_in_a_circle_end(self, tmp_path) -> None:
        (tmp_path / "var").mkdir()
        (tmp_path / "var/run").symlink_to("/var/other")
        (tmp_path / "var/other").symlink_to("/var/run")
        assert HostRoot.at(str(tmp_path)).var_run.startswith(str(tmp_path))

    def test_directories_that_others_use_too(self, tmp_path) -> None:
        (tmp_path / "var").mkdir()
        (tmp_path / "var/run").symlink_to("/run")
        root = HostRoot.at(str(tmp_path))
        assert on_host(Options(), "xpu_device_infos_dir", root) == str(tmp_path / "run/koordlet/xpu-device-infos")
        assert on_host(Options(xpu_device_infos_dir="/mine"), "xpu_device_infos_dir", root) == "/mine"
        assert on_host(Options(), "pod_resources_proxy_path", HostRoot.at("/")) == "/var/run/koordlet/pod-resources"
