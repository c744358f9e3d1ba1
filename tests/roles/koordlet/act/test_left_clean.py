"""A node that koord is taken off is as it would have been without it (BEY-JRN-01)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from roles.koordlet import acting, undoing
from roles.koordlet.actuation import journal as journal_module
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.holds import Holds
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.places import identity
from roles.koordlet.actuation.restore import abandoned, give_back, holds_path, journal_path, restore
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.actuation.writes import About, Hold, Write, sequence
from roles.koordlet.app import restore as restore_command
from roles.koordlet.guard import RELEASE, Guard
from roles.koordlet.hooks import tcapply
from roles.koordlet.hooks.tcapply import Result
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.options import OptionError, Options, check
from roles.koordlet.prediction.models import Models, PredictionOptions
from roles.koordlet.qos.suppress import BECPUSuppress
from roles.koordlet.states.model import HostState
from tests.support.koordlet import BE_TIER, Cluster, agent, run, until

pytestmark = pytest.mark.feature("BEY-JRN-01")

CONTAINER = "kubepods.slice/pod/c"

EXTENSION = """
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.host.cgroup import BESTEFFORT
from roles.koordlet.qos.outcome import Outcome, Strategy


class Mine(Strategy[None]):
    name = "Mine"
    enabled = True
    interval = 1.0

    def initial(self):
        return None

    def decide(self, snapshot, slo, state, now):
        return Outcome(None, batches=(sequence(Write("cpu.cfs_quota_us", snapshot.host.cgroups.qos_dir(BESTEFFORT), "2000")),))


def register(extensions):
    extensions.strategy(Mine)
"""


# -- values that a hook's answer gave a container when it was made ------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "held", "native", "before"),
    [
        ("cpu.shares", "512", "2", "2"),
        ("cpu.cfs_quota_us", "50000", "-1", "-1"),
        ("memory.limit_in_bytes", "1073741824", "-1", "-1"),
        ("cpuset.cpus", "4-7", "", "0-15"),
    ],
)
def test_what_a_hook_gave_at_creation_goes_back_to_the_runtimes_own(machine, resource: str, held: str, native: str, before: str) -> None:
    machine.put(resource, "kubepods.slice/pod", before)
    machine.put(resource, CONTAINER, held)
    batch = sequence(Write(resource, CONTAINER, held, native=native))
    assert machine.executor.apply([batch], rule="hook", now=1.0).written == []
    machine.journal.close()
    assert restore(machine.root).failed == []
    assert machine.get(resource, CONTAINER) == before


def test_what_a_hook_gave_at_creation_and_wants_no_more_goes_back_to_the_runtimes_own(machine) -> None:
    """As when the policy of suppression changes before the container is first looked at."""
    machine.put("cpu.cfs_quota_us", CONTAINER, "20000")
    write = Write("cpu.cfs_quota_us", CONTAINER, "30000", native="-1", answered="20000")
    machine.executor.apply([sequence(write)], rule="hook", now=1.0)
    assert machine.get("cpu.cfs_quota_us", CONTAINER) == "30000"
    machine.journal.close()
    assert restore(machine.root).failed == []
    assert machine.get("cpu.cfs_quota_us", CONTAINER) == "-1"


def test_on_cgroup_v2_too(machine_v2) -> None:
    rows = (("cpu.cfs_quota_us", "50000 100000", "50000", "-1", "max 100000"), ("cpuset.cpus", "4-7", "4-7", "", ""))
    for resource, held, wanted, native, _ in rows:
        machine_v2.put(resource, CONTAINER, held)
        machine_v2.executor.apply([sequence(Write(resource, CONTAINER, wanted, native=native))], rule="hook", now=1.0)
    machine_v2.journal.close()
    assert restore(machine_v2.root).failed == []
    assert [machine_v2.get(resource, CONTAINER) for resource, *_ in rows] == [before for *_, before in rows]


@pytest.mark.parametrize(("container", "kubelets"), [("main", "4-7"), ("other", "0-3,8-15")])
def test_the_cpus_of_a_static_kubelet_are_its_own(machine_v2, container: str, kubelets: str) -> None:
    """Its checkpoint says what it gave to each container, if it gives out CPUs: the hook that wants the same has given nothing."""
    state = {"policyName": "static", "defaultCpuSet": "0-3,8-15", "entries": {"u": {"main": "4-7"}}}
    checkpoint = Path(machine_v2.root.kubelet_path("cpu_manager_state"))
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_bytes(orjson.dumps(state))
    machine_v2.put("cpuset.cpus", CONTAINER, kubelets)
    about = About("pod", "default", "p", container, "u")
    for wanted in (kubelets, "2-3"):
        machine_v2.executor.apply([sequence(Write("cpuset.cpus", CONTAINER, wanted, about=about, native=""))], rule="hook", now=1.0)
    machine_v2.journal.close()
    restore(machine_v2.root)
    assert machine_v2.get("cpuset.cpus", CONTAINER) == kubelets


def test_cpus_that_the_kubelet_has_pinned_since_are_not_given_back(machine_v2) -> None:
    """It narrows its shared set, the hook follows at once, and what the kubelet sets then is there already."""
    checkpoint = Path(machine_v2.root.kubelet_path("cpu_manager_state"))
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    about = About("pod", "default", "p", "main", "u")
    machine_v2.put("cpuset.cpus", CONTAINER, "0-15")
    for shared in ("0-15", "0-7"):
        checkpoint.write_bytes(orjson.dumps({"policyName": "static", "defaultCpuSet": shared, "entries": {}}))
        machine_v2.host.files.begin_tick()
        wanted = shared.replace("0-15", "0-11")
        machine_v2.executor.apply([sequence(Write("cpuset.cpus", CONTAINER, wanted, about=about, native=""))], rule="hook", now=1.0)
    machine_v2.put("cpuset.cpus", CONTAINER, "0-7")
    machine_v2.journal.close()
    restore(machine_v2.root)
    assert machine_v2.get("cpuset.cpus", CONTAINER) == "0-7"


def test_what_people_set_is_theirs_though_it_is_what_the_kubelet_gave_once(machine_v2) -> None:
    """Others overwrite what the hook has set with the value of before, when the kubelet gives something else since."""
    checkpoint = Path(machine_v2.root.kubelet_path("cpu_manager_state"))
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    about = About("pod", "default", "p", "main", "u")
    for shared, wanted in (("0-1", "0-5"), ("0,2-3", "0-4")):
        checkpoint.write_bytes(orjson.dumps({"policyName": "static", "defaultCpuSet": shared, "entries": {}}))
        machine_v2.put("cpuset.cpus", CONTAINER, "0-1")
        machine_v2.host.files.begin_tick()
        machine_v2.executor.apply([sequence(Write("cpuset.cpus", CONTAINER, wanted, about=about, native=""))], rule="hook", now=1.0)
    machine_v2.journal.close()
    restore(machine_v2.root)
    assert machine_v2.get("cpuset.cpus", CONTAINER) == "0-1"


def test_what_people_set_is_theirs_until_the_kubelet_sets_something_else(machine_v2) -> None:
    """It gives out more for a moment, and has not set that when it takes it back."""
    checkpoint = Path(machine_v2.root.kubelet_path("cpu_manager_state"))
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    about = About("pod", "default", "p", "main", "u")
    machine_v2.put("cpuset.cpus", CONTAINER, "0,2-3")
    for shared, wanted, then in (("0,2-3", "0,2-5", "0-1"), ("0,2-3", "0-4", ""), ("0-3", "0-5", ""), ("0,2-3", "0-4", "")):
        checkpoint.write_bytes(orjson.dumps({"policyName": "static", "defaultCpuSet": shared, "entries": {}}))
        machine_v2.host.files.begin_tick()
        machine_v2.executor.apply([sequence(Write("cpuset.cpus", CONTAINER, wanted, about=about, native=""))], rule="hook", now=1.0)
        if then:
            machine_v2.put("cpuset.cpus", CONTAINER, then)
    machine_v2.journal.close()
    restore(machine_v2.root)
    assert machine_v2.get("cpuset.cpus", CONTAINER) == "0-1"


@pytest.mark.parametrize("action", ["restore", "guard"])
def test_cpus_that_the_kubelet_has_let_go_since_are_given_back(machine_v2, action: str) -> None:
    """Nobody writes the file when they come back: it holds them already, as what koordlet has set."""
    checkpoint = Path(machine_v2.root.kubelet_path("cpu_manager_state"))
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    about = About("pod", "default", "p", "main", "u")
    machine_v2.put("cpuset.cpus", CONTAINER, "0-1,4-5")
    checkpoint.write_bytes(orjson.dumps({"policyName": "static", "defaultCpuSet": "0-3", "entries": {}}))
    machine_v2.executor.apply([sequence(Write("cpuset.cpus", CONTAINER, "0-5", about=about, native=""))], rule=BECPUSuppress.name, now=1.0)
    checkpoint.write_bytes(orjson.dumps({"policyName": "static", "defaultCpuSet": "0-7", "entries": {}}))
    machine_v2.journal.close()
    if action == "restore":
        restore(machine_v2.root)
    else:
        assert Guard(machine_v2.root, str(machine_v2.base / "lock"), action=RELEASE, percent=25, cpus=4).act()
    assert machine_v2.get("cpuset.cpus", CONTAINER) == "0-7"


def test_a_value_that_is_neither_ours_nor_the_runtimes_is_the_one_before(machine) -> None:
    machine.put("cpu.shares", CONTAINER, "700")
    machine.executor.apply([sequence(Write("cpu.shares", CONTAINER, "512", native="2"))], rule="hook", now=1.0)
    machine.journal.close()
    restore(machine.root)
    assert machine.get("cpu.shares", CONTAINER) == "700"


def test_what_is_the_runtimes_own_value_is_no_news(machine) -> None:
    machine.put("cpu.shares", CONTAINER, "512")
    machine.executor.apply([sequence(Write("cpu.shares", CONTAINER, "512", native="512"))], rule="hook", now=1.0)
    assert len(machine.journal) == 0


# -- what is off by now -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "kept", "options"),
    [
        ("BECPUSuppress", False, {}),
        ("BatchResource", False, {}),
        ("Guard", False, {}),
        ("CPUBurst", True, {}),
        ("an extension that is gone", False, {}),
        ("runtime hooks", False, {}),
        ("DRAPlugin", True, {}),  # claims that the kubelet has prepared need it
        ("", True, {}),  # of a version that noted no owner
        ("CPUBurst", False, {"mode": "observe"}),
        ("CPUBurst", False, {"strategy_modes": "CPUBurst=observe"}),
        ("CPUBurst", True, {"mode": "observe", "strategy_modes": "CPUBurst=enforce"}),
    ],
)
def test_what_a_gate_wrote_is_given_back_at_the_start_without_it(tmp_path, owner: str, kept: bool, options: dict[str, str]) -> None:
    """With it, too, where it only observes by now."""
    files = (("cpu.cfs_quota_us", BE_TIER, "2000", "-1"), ("cpuset.cpus", BE_TIER, "0-1", "0-15"))

    async def story(c: Cluster) -> None:
        await c.node({})
        root = HostRoot.at(str(c.base))
        journal = Journal(journal_path(root), root)
        journal.open()
        batch = sequence(*(Write(resource, directory, ours) for resource, directory, ours, _ in files))
        before = Executor(HostState(root, Cgroups.detect(root), HostFiles()), journal)
        assert len(before.apply([batch], rule=owner, now=1.0).written) == 2
        journal.close()
        async with agent(c, "CPUBurst", **options) as app:
            await until(lambda: hasattr(app, "acting"), "the acting half")
        held = [c.read(resource.partition(".")[0], directory, resource) for resource, directory, *_ in files]
        assert held == [ours if kept else before for _, _, ours, before in files]
        journal = Journal(journal_path(root), root)
        journal.load()
        assert len(journal) == (2 if kept else 0)

    run(tmp_path, story)


def test_what_a_full_disk_does_not_allow_at_the_start_is_given_back_later(tmp_path, monkeypatch) -> None:
    """What a killed run held, and what is off by now: files and NICs."""
    monkeypatch.setattr(acting, "AGAIN", 0.1)
    full = True
    unshaped: list[tuple[str, str]] = []

    async def unshape(_: HostRoot, device: str, before: str) -> str:
        unshaped.append((device, before))
        return ""

    write_all = journal_module._write_all

    def on_disk(fd: int, data: bytes) -> None:
        if full:
            raise OSError(28, "No space left on device")
        write_all(fd, data)

    async def story(c: Cluster) -> None:
        nonlocal full
        await c.node({})
        root = HostRoot.at(str(c.base))
        full = False
        journal = Journal(journal_path(root), root)
        journal.open()
        killed = Executor(HostState(root, Cgroups.detect(root), HostFiles()), journal, holds=Holds(Journal(holds_path(root), root)))
        killed.apply([sequence(Write("cpu.cfs_quota_us", BE_TIER, "2000"))], rule="BECPUSuppress", now=1.0)
        killed.apply([sequence(Write("cpuset.cpus", BE_TIER, "0-1", hold=Hold.TAKE))], rule="BEInterference", now=1.0)
        nic = Path(root.sys, "class/net/eth0")
        nic.mkdir(parents=True)
        assert killed.note(Entry(str(nic), "fq", Undo.NETWORK, "qdisc"), "NetworkQoS")
        full = True

        def there() -> tuple[str, str]:
            return c.read("cpu", BE_TIER, "cpu.cfs_quota_us"), c.read("cpuset", BE_TIER, "cpuset.cpus")

        assert there() == ("2000", "0-1")
        async with agent(c, "CPUBurst") as app:
            await until(lambda: hasattr(app, "acting") and app.acting._overdue is not None, "the acting half")
            await asyncio.sleep(0.2)
            assert there() == ("2000", "0-1")
            assert not unshaped
            full = False
            await until(lambda: there() == ("-1", "0-15"), "what was left is given back")
            assert app.acting._overdue is None
            await until(lambda: len(app.acting.journal) == 0, "nothing is left on record")
            assert unshaped == [("eth0", "fq")]

    monkeypatch.setattr(undoing, "network", unshape)
    monkeypatch.setattr(journal_module, "_write_all", on_disk)
    run(tmp_path, story)


@pytest.mark.parametrize("owner", ["BECPUSuppress", "GroupIdentity", "Guard", "collectors"])
def test_what_only_observes_by_now_holds_nothing(tmp_path, owner: str) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        root = HostRoot.at(str(c.base))
        journal = Journal(journal_path(root), root)
        journal.open()
        before = Executor(HostState(root, Cgroups.detect(root), HostFiles()), journal)
        before.apply([sequence(Write("cpu.cfs_quota_us", BE_TIER, "2000"))], rule=owner, now=1.0)
        journal.close()
        gates = ("BECPUSuppress", "GroupIdentity", "ColdPageCollector")
        async with agent(c, *gates, mode="observe") as app:
            await until(lambda: hasattr(app, "acting"), "the acting half")
            assert {"BECPUSuppress"} <= set(app.acting.manager.names)
            assert {"GroupIdentity"} <= set(app.acting.hooks.names)
        assert c.read("cpu", BE_TIER, "cpu.cfs_quota_us") == "-1"

    run(tmp_path, story)


def test_quotas_that_are_not_to_be_taken_off_come_back(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        root = HostRoot.at(str(c.base))
        quota = Path(Cgroups.detect(root).file("cpu.cfs_quota_us", CONTAINER))
        cpus = Path(Cgroups.detect(root).file("cpuset.cpus", CONTAINER))
        for file, text in ((quota, "200000"), (cpus, "0-15")):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        journal = journal_of(root)
        before = Executor(HostState(root, Cgroups.detect(root), HostFiles()), journal)
        writes = Write("cpu.cfs_quota_us", CONTAINER, "-1"), Write("cpuset.cpus", CONTAINER, "2-3")
        before.apply([sequence(*writes)], rule="CPUSetAllocator", now=1.0)
        journal.close()
        for unset, expected in ((False, "-1"), (True, "200000")):
            async with agent(c, "CPUSetAllocator", disable_unset_cpu_quota=unset) as app:
                await until(lambda: hasattr(app, "acting"), "the acting half")
            assert (quota.read_text().strip(), cpus.read_text().strip()) == (expected, "2-3")

    run(tmp_path, story)


def test_an_extension_that_is_loaded_and_off_holds_nothing(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        c.file("mine.py", EXTENSION)
        root = HostRoot.at(str(c.base))
        for switch in ("true", "false"):
            path, name = str(c.base / "mine.py"), "Mine"
            async with agent(c, "CPUBurst", plugin_path=path, qos_extension_plugins=f"{name}={switch}") as app:
                await until(lambda: hasattr(app, "acting"), "the acting half")
                if switch == "true":
                    await until(lambda: c.read("cpu", BE_TIER, "cpu.cfs_quota_us") == "2000", "its value")
        assert c.read("cpu", BE_TIER, "cpu.cfs_quota_us") == "-1"
        assert not list(journal_of(root))

    run(tmp_path, story)


class Kernel:
    """Process 7 carries a cookie until it is taken."""

    def __init__(self) -> None:
        self.cookies = {0: 0, 7: 5}

    def get(self, pid: int) -> int:
        return self.cookies[pid]

    def clear(self, pids: Sequence[int]) -> list[int]:
        self.cookies.update(dict.fromkeys(pids, 0))
        return []


@pytest.mark.parametrize("gates", [(), ("CoreSched",)])
def test_cookies_go_with_the_gate(tmp_path, monkeypatch: pytest.MonkeyPatch, gates: tuple[str, ...]) -> None:
    kernel = Kernel()
    monkeypatch.setattr(undoing, "Prctl", lambda: kernel)
    monkeypatch.setattr(undoing, "foreign", lambda root, kind: "")

    async def story(c: Cluster) -> None:
        await c.node({})
        root = HostRoot.at(str(c.base))
        journal = journal_of(root)
        procs = Path(Cgroups.detect(root).file("cgroup.procs", BE_TIER))
        procs.write_text("7\n")
        assert journal.remember([Entry(str(procs), "", Undo.COOKIES, "cgroup.procs", identity(str(procs)))], owner="CoreSched")
        journal.close()
        async with agent(c, *gates) as app:
            await until(lambda: hasattr(app, "acting"), "the acting half")
        assert kernel.cookies[7] == (5 if gates else 0)
        assert len(journal_of(root)) == len(gates)

    run(tmp_path, story)


@pytest.mark.parametrize("works", [True, False])
def test_the_shaping_of_a_nic_goes_with_the_gate(tmp_path, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    asked: list[str] = []

    async def tools(command: tuple[str, ...], root: HostRoot) -> Result:
        asked.append(" ".join(command))
        if command[:3] == ("tc", "qdisc", "show"):
            deleted = "tc qdisc del dev eth7 root" in asked
            return Result(0, "qdisc fq_codel 0: root" if deleted else "qdisc htb 1: root refcnt 2 r2q 10 default 0x2", "")
        return Result(0 if works and command[0] == "tc" else 1, "", "it must not be")

    monkeypatch.setattr(tcapply, "run_command", tools)
    monkeypatch.setattr(undoing, "foreign", lambda root, kind: "")

    async def story(c: Cluster) -> None:
        await c.node({})
        root = HostRoot.at(str(c.base))
        journal = journal_of(root)
        for device in ("eth7", "eth8"):
            nic = c.base / "sys/class/net" / device
            nic.mkdir(parents=True)
            assert journal.remember([Entry(str(nic), "qdisc sfq 8001: root", Undo.NETWORK, "qdisc")], owner="TCNetworkQoS")
        nic.rmdir()  # a NIC that is gone took its rules along
        journal.close()
        async with agent(c) as app:
            await until(lambda: hasattr(app, "acting"), "the acting half")
            await until(lambda: len(app.acting.journal) == (0 if works else 1), "the journal")
        assert ("tc qdisc replace dev eth7 root handle 8001: sfq" in asked) is works
        assert not any("eth8" in each for each in asked)
        assert [Path(each.path).name for each in journal_of(root)] == ([] if works else ["eth7"])

    run(tmp_path, story)


def journal_of(root: HostRoot) -> Journal:
    journal = Journal(journal_path(root), root)
    journal.open()
    return journal


def test_what_is_off_and_cannot_be_given_back_stays_on_record(machine) -> None:
    procs = machine.put("cpu.shares", CONTAINER, "2").parent / "cgroup.procs"
    procs.write_text("7\n")
    assert machine.executor.note(Entry(str(procs), "", Undo.COOKIES, "cgroup.procs", identity(str(procs))), "CoreSched")
    machine.executor.apply([sequence(Write("cpu.shares", CONTAINER, "512"))], rule="CoreSched", now=1.0)
    result = give_back(machine.journal, abandoned(machine.journal, {"CPUBurst"}), machine.root)
    assert (len(result.restored), len(result.failed)) == (1, 1)
    assert [entry.undo for entry in machine.journal] == [Undo.COOKIES]


# -- what is no file ---------------------------------------------------------------------------------------------------------


def test_cookies_are_undone_by_who_can(machine) -> None:
    procs = machine.put("cpu.shares", CONTAINER, "2").parent / "cgroup.procs"
    procs.write_text("7\n8\n")
    entry = Entry(str(procs), "", Undo.COOKIES, "cgroup.procs", identity(str(procs)))
    assert machine.executor.note(entry, "CoreSched")
    machine.journal.close()
    (failed,) = restore(machine.root).failed
    assert "koord koordlet --restore" in str(failed), "without the right program it stays on record"
    undone: list[str] = []
    assert restore(machine.root, cookies=lambda path: undone.append(path) or "").restored == [str(procs)]
    assert undone == [str(procs)]


# -- files of its own --------------------------------------------------------------------------------------------------------


@pytest.fixture
def options(machine) -> Options:
    base = str(machine.base)
    return Options(
        host_root=base, restore=True, clean=True, tsdb_path=f"{base}/var/lib/koordlet/series", prediction_checkpoint_filepath=f"{base}/pred"
    )


def test_nothing_of_koordlets_own_is_left(machine, options: Options) -> None:
    machine.put("cpu.shares", CONTAINER, "2")
    before = {str(p) for p in machine.base.rglob("*")}
    machine.executor.apply([sequence(Write("cpu.shares", CONTAINER, "512"))], rule="r", now=1.0)
    machine.journal.close()
    models = Models(PredictionOptions(directory=options.prediction_checkpoint_filepath))
    models.update("uid-1", 1.0, 1.0, 1000.0)
    assert models.write(models.due(1e6)) == ["uid-1"]
    kept = [
        f"{options.tsdb_path}/{name}" for name in ("series.msgpack", "series.msgpack.tmp", "strategies.msgpack", "strategies.msgpack.tmp")
    ]
    for path in (*kept, f"{machine.root.hooks_config}/koordlet.json"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(orjson.dumps({}))
    Path(machine.root.hooks_config, "mine.json").write_text("{}")
    assert restore_command(options) == 0
    left = {str(p) for p in machine.base.rglob("*")} - before
    assert sorted(p.rpartition("/")[2] for p in left if Path(p).is_file()) == ["mine.json"]
    assert not Path(journal_path(machine.root)).parent.exists()
    assert not Path(options.tsdb_path).exists()


def test_files_of_others_stay(machine, options: Options) -> None:
    directory = Path(options.prediction_checkpoint_filepath)
    directory.mkdir()
    (directory / "passwd").write_text("root:x:0:0")
    (directory / "other").write_bytes(orjson.dumps({"UID": "somebody"}))
    assert restore_command(options) == 0
    assert sorted(p.name for p in directory.iterdir()) == ["other", "passwd"]


def test_while_a_file_is_not_put_back_its_journal_stays(machine, options: Options) -> None:
    path = machine.put("cpu.shares", CONTAINER, "2")
    machine.executor.apply([sequence(Write("cpu.shares", CONTAINER, "512"))], rule="r", now=1.0)
    machine.journal.close()
    path.unlink()
    path.mkdir()  # nothing can be read or written there
    assert restore_command(options) == 1
    assert Path(journal_path(machine.root)).read_bytes()


def test_cleaning_goes_with_restoring() -> None:
    with pytest.raises(OptionError, match="--restore"):
        check(Options(node_name="n", clean=True))
