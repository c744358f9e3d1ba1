"""resctrl groups by class, and the node's kernel knobs (KA-RDT-01, KA-SYS-01)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koord.api.objects import ContainerStatus
from roles.koordlet.actuation.restore import restore
from roles.koordlet.actuation.writes import Kind
from roles.koordlet.options import Options
from roles.koordlet.qos.resctrl import RdtResctrl
from roles.koordlet.qos.resctrl_units import ResctrlError, Scale, Units, cache_ids, l3_mask, schemata_line, ways
from roles.koordlet.qos.sysconfig import SystemConfig
from roles.koordlet.states.pods import pod_state

FLAGS = "processor\t: 0\nvendor_id\t: {}\nflags\t\t: fpu cat_l3 mba\n"


@pytest.fixture
def strategy(gates):
    return RdtResctrl(Options(), gates("RdtResctrl"))


def hardware(world, *, vendor="GenuineIntel", cbm="fff", caches=(0, 1)):
    file = world.machine.file
    file("proc/cpuinfo", FLAGS.format(vendor))
    file("sys/fs/resctrl/info/L3/cbm_mask", cbm + "\n")
    full = ";".join(f"{c}={cbm}" for c in caches)
    schemata = f"    L3:{full}\n    MB:{';'.join(f'{c}=100' for c in caches)}\n"
    for group in ("", "LSR/", "LS/", "BE/"):
        file(f"sys/fs/resctrl/{group}schemata", schemata)
        file(f"sys/fs/resctrl/{group}tasks", "")


def classes(world, **bodies):
    world.spec = {"resourceQOSStrategy": {f"{n}Class": {"resctrlQOS": {"enable": True, **b}} for n, b in bodies.items()}}


def written(world, group):
    """Lines added to the group's schemata."""
    return (world.machine.base / "sys/fs/resctrl" / group / "schemata").read_text().splitlines()[2:]


def tasks(world, group):
    return [int(t) for t in (world.machine.base / "sys/fs/resctrl" / group / "tasks").read_text().split()]


# -- arithmetic --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "start", "end", "mask"),
    [
        (12, 25, 75, 0x1F8),
        (12, 0, 35, 0x1F),
        (12, 0, 100, 0xFFF),
        (11, 60, 60, None),
        (4, 10, 20, None),
        (12, 50, 40, None),
        (12, 0, 101, None),
    ],
)
def test_l3_masks(total, start, end, mask):
    assert l3_mask(total, start, end) == mask


@given(st.integers(1, 64), st.integers(0, 100), st.integers(0, 100))
def test_masks_are_contiguous_and_within_the_cache(total, start, end):
    mask = l3_mask(total, start, end)
    if mask is not None:
        assert mask < 1 << total
        low = mask & -mask
        assert (mask // low) & (mask // low + 1) == 0


@pytest.mark.parametrize(
    ("vendor", "percent", "value"),
    [("GenuineIntel", 71, 80), ("GenuineIntel", 12, 20), ("GenuineIntel", 100, 100), ("AuthenticAMD", 100, 2048), ("AuthenticAMD", 33, 52),
     ("GenuineIntel", 0, None), ("GenuineIntel", 101, None)],
)  # fmt: skip
def test_bandwidth(vendor, percent, value):
    scale, whole = (Scale.EIGHTHS, 2048) if vendor == "AuthenticAMD" else (Scale.PERCENT, 100)
    assert Units(scale=scale, whole=whole, mb_ids=(0,)).bandwidth(percent) == value


def test_what_the_kernel_says(tmp_path):
    assert ways("7ff\n") == 11
    for bad in ("", "0", "f0", "zz"):
        with pytest.raises(ResctrlError):
            ways(bad)
    assert cache_ids("    L3:2=f;0=f\nMB:0=100\n", "L3") == [0, 2]
    assert cache_ids("L2:0=f\n", "L3") == []
    assert schemata_line("L3", {1: 15, 0: 255}) == "L3:0=ff;1=f;"


# -- groups ------------------------------------------------------------------------------------------------------------------


def test_lines_of_enabled_and_disabled_classes(world, strategy):
    hardware(world)
    classes(world, ls={"catRangeStartPercent": 25, "catRangeEndPercent": 75, "mbaPercent": 71}, be={"mbaPercent": 12})
    world.run(strategy)
    assert written(world, "LS") == ["L3:0=1f8;1=1f8;", "MB:0=80;1=80;"]
    assert written(world, "BE") == ["L3:0=f;1=f;", "MB:0=20;1=20;"]
    assert written(world, "LSR") == [], "all of it is what the group has"


def test_megabytes_a_second_are_no_percent(world, strategy):
    hardware(world)
    for group in ("", "LSR/", "LS/", "BE/"):
        world.machine.file(f"sys/fs/resctrl/{group}schemata", "    L3:0=fff;1=fff\n    MB:0=4294967295;1=4294967295\n")
    classes(world, ls={"mbaPercent": 100}, be={"catRangeEndPercent": 30, "mbaPercent": 40})
    outcome = world.decide(strategy)
    assert [r.message for r in outcome.records] == [
        "group BE: memory bandwidth is set in MB/s here, and the kernel tells no total: 40 % of it is left unlimited"
    ]
    assert world.decide(strategy, outcome.state).records == (), "once"
    world.run(strategy)
    assert written(world, "LS") == [], "services keep the kernel's own maximum"
    assert written(world, "BE") == ["L3:0=f;1=f;"]


def test_the_mount_says_that_lines_are_megabytes(world, strategy):
    hardware(world)
    world.machine.file("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw,relatime,mba_MBps 0 0\n")
    classes(world, be={"mbaPercent": 40})
    assert "MB/s" in world.decide(strategy).records[0].message
    world.run(strategy)
    assert not [line for line in written(world, "BE") if line.startswith("MB")]


def test_steps_and_the_least_are_the_kernels(world, strategy):
    hardware(world)
    world.machine.file("sys/fs/resctrl/info/MB/bandwidth_gran", "5\n")
    world.machine.file("sys/fs/resctrl/info/MB/min_bandwidth", "20\n")
    classes(world, ls={"mbaPercent": 71}, be={"mbaPercent": 3})
    world.run(strategy)
    assert written(world, "LS")[-1] == "MB:0=75;1=75;"
    assert written(world, "BE")[-1] == "MB:0=20;1=20;"


def test_code_and_data_get_the_same_ways(world, strategy):
    hardware(world)
    (world.machine.base / "sys/fs/resctrl/info/L3/cbm_mask").unlink()
    world.machine.file("sys/fs/resctrl/info/L3CODE/cbm_mask", "fff\n")
    for group in ("", "LSR/", "LS/", "BE/"):
        world.machine.file(f"sys/fs/resctrl/{group}schemata", "    L3CODE:0=fff\n    L3DATA:0=fff\n    MB:0=100\n")
    classes(world, be={"catRangeEndPercent": 30})
    world.run(strategy)
    assert (world.machine.base / "sys/fs/resctrl/BE/schemata").read_text().splitlines()[3:] == ["L3CODE:0=f;", "L3DATA:0=f;"]


def test_too_few_groups_are_told(world, strategy):
    hardware(world)
    world.machine.file("sys/fs/resctrl/info/L3/num_closids", "3\n")
    assert "the hardware has 3 groups, and 4 are needed" in [r.message for r in world.decide(strategy).records]


@pytest.mark.feature("BEY-SEC-03")
@pytest.mark.parametrize("text", ['{"llc":{"schemata":{"range":[0,100]}}}', "{", "{}", "x"])
def test_an_annotation_does_not_take_a_best_effort_pod_out_of_its_class(world, strategy, text):
    hardware(world)
    classes(world, be={"catRangeEndPercent": 30})
    pod = world.pod("be", qos="BE", kube_qos="BestEffort", annotations={"node.koordinator.sh/resctrl": text})
    service = world.pod("ls", qos="LS", annotations={"node.koordinator.sh/resctrl": text})
    world.machine.put("tasks", pod.containers[0].cgroup_dir, "7")
    world.machine.put("tasks", service.containers[0].cgroup_dir, "8")
    world.run(strategy)
    assert (tasks(world, "BE"), tasks(world, "LS")) == ([7], [])


def test_settings_out_of_range_leave_the_line_alone(world, strategy):
    hardware(world)
    classes(world, ls={"catRangeStartPercent": 60, "catRangeEndPercent": 60, "mbaPercent": 0})
    world.run(strategy)
    assert written(world, "LS") == []


def test_cache_ids_need_not_start_at_zero(world, strategy):
    hardware(world, caches=(3, 7), vendor="AuthenticAMD")
    classes(world, be={"mbaPercent": 50})
    world.run(strategy)
    assert written(world, "BE") == ["L3:3=f;7=f;", "MB:3=80;7=80;"]


def test_threads_move_once_each_in_order(world, strategy):
    hardware(world)
    classes(world, ls={}, be={})
    ls, be = world.pod("ls", qos="LS"), world.pod("be", qos="BE", kube_qos="BestEffort")
    lse = world.pod("lse", qos="LSE", kube_qos="Guaranteed")
    own = world.pod("own", qos="LS", annotations={"node.koordinator.sh/resctrl": "{}"})
    system = world.pod("system", qos="SYSTEM")
    for n, pod in enumerate((ls, be, lse, own, system)):
        world.machine.put("tasks", pod.containers[0].cgroup_dir, f"{n}9\n{n}1")
        sandbox = f"{pod.cgroup_dir}/sandbox"
        world.machine.put("cpuset.cpus", sandbox, "0")
        world.machine.put("cpuset.cpus", pod.containers[0].cgroup_dir, "0")
        world.machine.put("tasks", sandbox, f"{n}5")
    state = world.run(strategy)
    assert (tasks(world, "LS"), tasks(world, "BE"), tasks(world, "LSR")) == ([1, 5, 9], [11, 15, 19], [])
    world.run(strategy, state)
    assert tasks(world, "LS") == [1, 5, 9], "threads that are in the group are left alone"


def test_threads_in_cgroups_that_a_container_made_move_too(world, strategy):
    hardware(world)
    classes(world, ls={}, be={})
    pod = world.pod("be", qos="BE", kube_qos="BestEffort")
    box = pod.containers[0].cgroup_dir
    for directory, tid in ((box, "1"), (f"{box}/system.slice", ""), (f"{box}/system.slice/job.service", "7"), (f"{box}/init.scope", "5")):
        world.machine.put("cpu.cfs_quota_us", directory, "-1")
        world.machine.put("tasks", directory, tid)
    world.run(strategy)
    assert tasks(world, "BE") == [1, 5, 7]


def test_threads_of_a_debug_container_move_and_the_sandbox_is_still_told(world, strategy):
    hardware(world)
    classes(world, ls={}, be={})
    pod = world.pod("be", qos="BE", kube_qos="BestEffort").pod
    debug = ContainerStatus(name="debugger", container_id="containerd://be-debug")
    world.pods[:] = [pod_state(replace(pod, status=replace(pod.status, ephemeral_container_statuses=(debug,))), world.machine.host.cgroups)]
    (state,) = world.pods
    assert len(state.all_containers()) == 2
    for n, directory in enumerate((*(c.cgroup_dir for c in state.all_containers()), f"{state.cgroup_dir}/sandbox"), 1):
        world.machine.put("cpuset.cpus", directory, "0")
        world.machine.put("tasks", directory, str(n))
    world.run(strategy)
    assert tasks(world, "BE") == [1, 2, 3]


def test_groups_are_made_and_removed_again(world, strategy):
    hardware(world)
    for group in ("LSR", "LS", "BE"):
        for name in ("schemata", "tasks"):
            (world.machine.base / "sys/fs/resctrl" / group / name).unlink()
        (world.machine.base / "sys/fs/resctrl" / group).rmdir()
    world.run(strategy)
    assert (world.machine.base / "sys/fs/resctrl/LSR").is_dir()
    assert restore(world.machine.root).failed == []
    assert not (world.machine.base / "sys/fs/resctrl/LSR").exists()


def test_a_mount_that_is_taken_away_is_made_again_and_read_anew(world, strategy):
    hardware(world)
    first = world.decide(strategy)
    mounted = world.machine.base / "sys/fs/resctrl"
    mounted.rename(world.machine.base / "elsewhere")
    second = world.decide(strategy, first.state)
    assert [w.kind for batch in second.batches for w in batch] == [Kind.MOUNT]
    hardware(world, cbm="f", caches=(0,))
    third = world.decide(strategy, second.state)
    assert {w.value for batch in third.batches for w in batch if w.resource == "schemata"} >= {"L3:0=f;", "MB:0=100;"}


def test_unsupported_hardware_and_a_missing_mount(world, strategy):
    assert world.decide(strategy).batches == (), "cpuinfo cannot be read yet"
    world.machine.file("proc/cpuinfo", "flags\t: fpu cat_l3\n")
    assert world.decide(strategy).state.supported is False
    world.machine.file("proc/cpuinfo", FLAGS.format("GenuineIntel"))
    world.run(strategy)  # a mount in a tree that is no sysfs is unsupported, not a failure
    assert not (world.machine.base / "sys/fs/resctrl").exists()


# -- kernel knobs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def system(gates):
    return SystemConfig(Options(), gates("SystemConfig"))


def test_knobs(world, system):
    file, base = world.machine.file, world.machine.base
    paths = {
        "minFreeKbytesFactor": (file("proc/sys/vm/min_free_kbytes", "67584\n"), 100, str(64 * 1024 * 1024 * 100 // 10_000)),
        "watermarkScaleFactor": (file("proc/sys/vm/watermark_scale_factor", "10"), 150, "150"),
        "memcgReapBackGround": (file("sys/kernel/mm/memcg_reaper/reap_background", "0"), 1, "1"),
        "schedIdleSaverWmark": (file("proc/sys/kernel/sched_idle_saver_wmark", "0"), 5000, "5000"),
        "pageCacheLimitEnabled": (file("sys/kernel/mm/pagecache_limit/enabled", "0"), 1, "1"),
        "schedGroupIdentityEnabled": (base / "proc/sys/kernel/sched_group_identity_enabled", 1, None),
    }
    world.spec = {"systemStrategy": {name: value for name, (_, value, _) in paths.items()}}
    world.run(system)
    assert [p.read_text() if p.exists() else None for p, _, _ in paths.values()] == [text for _, _, text in paths.values()]
    world.spec = {}
    world.run(system)
    assert paths["watermarkScaleFactor"][0].read_text() == "150", "unset is not reset"
    assert restore(world.machine.root).failed == []
    assert [paths[n][0].read_text().strip() for n in ("minFreeKbytesFactor", "watermarkScaleFactor")] == ["67584", "10"]


def test_knobs_out_of_range_are_not_written_and_told_once(world, system):
    path = world.machine.file("proc/sys/vm/min_free_kbytes", "67584")
    world.spec = {"systemStrategy": {"minFreeKbytesFactor": 1}}
    outcome = world.decide(system)
    assert outcome.batches == ()
    assert "min_free_kbytes" in outcome.records[0].message
    assert world.decide(system, outcome.state).records == ()
    assert path.read_text() == "67584"


def test_knobs_that_this_kernel_does_not_have_are_told_once(world, system):
    world.spec = {"systemStrategy": {"memcgReapBackGround": 1, "schedFeatures": {"HRTICK": True}}}
    outcome = world.decide(system)
    assert outcome.batches == ()
    assert [r.message.partition(f"{world.machine.base}/")[::2] for r in outcome.records] == [
        ("not written: reap_background: this kernel has no ", "sys/kernel/mm/memcg_reaper/reap_background"),
        ("not written: sched_features: ", "sys/kernel/debug/sched_features cannot be read"),
    ]
    assert world.decide(system, outcome.state).records == ()


def test_what_is_to_be_off_may_be_missing(world, system):
    world.spec = {"systemStrategy": {"memcgReapBackGround": 0, "schedGroupIdentityEnabled": 0, "pageCacheLimitEnabled": 0}}
    outcome = world.decide(system)
    assert (outcome.batches, outcome.records) == ((), ())


def test_sched_features_of_newer_kernels(world, system):
    path = world.machine.file("sys/kernel/debug/sched/features", "GENTLE NO_HRTICK\n")
    world.spec = {"systemStrategy": {"schedFeatures": {"HRTICK": True}}}
    world.run(system)
    assert path.read_text() == "HRTICK\n"
    assert restore(world.machine.root).failed == []
    assert path.read_text().splitlines()[-1] == "NO_HRTICK"


def test_sched_features_one_write_each(world, system, monkeypatch):
    path = world.machine.file("sys/kernel/debug/sched_features", "GENTLE NO_HRTICK WAKEUP\n")
    world.spec = {"systemStrategy": {"schedFeatures": {"GENTLE": True, "HRTICK": True, "WAKEUP": False, "NEW": False}}}
    (batch,) = world.decide(system).batches
    assert [w.value for w in batch] == ["HRTICK", "NO_NEW", "NO_WAKEUP"]
    world.run(system)
    assert path.read_text() == "NO_WAKEUP\n"
    path.write_text("A NO_A\n")
    outcome = world.decide(system)
    assert outcome.batches == ()
    assert "both" in outcome.records[0].message
