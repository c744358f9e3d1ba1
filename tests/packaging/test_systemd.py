"""The units: systemd takes them, they are hardened, and koordlet's command works with the rights that its unit leaves."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from roles.koordlet.cli import command as koordlet
from tests.support import patience
from tests.support.processes import KOORD, ROOT, free_port

UNITS = sorted((ROOT / "packaging" / "systemd").glob("*.service"))
#: Highest exposure that `systemd-analyze security` may find, in tenths.
EXPOSURE = {"koord-runtime-proxy.service": 20, "koordlet.service": 36, "koordlet-guard.service": 18}

#: The kernel's numbers of the capabilities that a unit may ask for.
NUMBERS = {"CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19, "CAP_SYS_RESOURCE": 24, "CAP_PERFMON": 38}

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze on PATH")


def settings(unit: Path) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if found := re.match(r"(\w+)=(.*)", line):
            out.setdefault(found[1], []).append(found[2])
    return out


def test_every_unit_is_judged() -> None:
    assert {unit.name for unit in UNITS} == set(EXPOSURE)


@needs_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_it(unit: Path, tmp_path: Path) -> None:
    for other in unit.parent.glob("*.socket"):
        (tmp_path / other.name).write_text(other.read_text())
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/usr/local/bin/koord", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(here)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


@needs_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_it_is_hardened(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE[unit.name]}", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is too old to judge a unit offline")
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_what_every_unit_has(unit: Path) -> None:
    values = {key: rows[-1] for key, rows in settings(unit).items()}
    assert (values["Type"], values["Restart"], values["NoNewPrivileges"]) == ("notify", "always", "yes")
    assert values["ProtectSystem"] == "strict"
    assert values["ProtectKernelModules"] == "yes"
    assert int(values["WatchdogSec"]) > 0
    assert "CAP_SYS_ADMIN" not in values["CapabilityBoundingSet"]


def test_koordlets_journal_outlives_a_restart_of_its_unit() -> None:
    values = {key: rows[-1] for key, rows in settings(ROOT / "packaging/systemd/koordlet.service").items()}
    assert values["RuntimeDirectory"] == "koordlet"
    assert values["RuntimeDirectoryPreserve"] == "yes"
    assert "ExecStopPost" not in values, "values would come and go with every restart"


def test_koordlets_command_is_taken(tmp_path: Path) -> None:
    """Each flag exists, and each directory that it names is one that the unit makes writable."""
    values = settings(ROOT / "packaging/systemd/koordlet.service")
    _, role, *flags = shlex.split(values["ExecStart"][-1])
    assert role == "koordlet"
    known = {option for parameter in koordlet.params for option in parameter.opts}
    assert {flag.partition("=")[0] for flag in flags if flag.startswith("--")} <= known
    for flag in flags:
        path = flag.partition("=")[2]
        assert not path.startswith("/var") or path.startswith(("/var/log/koordlet", "/var/lib/koordlet"))


@pytest.mark.root
def test_koordlet_becomes_ready_with_the_rights_of_its_unit(tmp_path: Path) -> None:
    """READY=1 under the unit's capabilities and no_new_privs, on this machine's own cgroups, observing only."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv on PATH")
    capabilities = settings(ROOT / "packaging/systemd/koordlet.service")["CapabilityBoundingSet"][-1].split()
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    dropped = ",".join(f"-cap_{number}" for number in range(last + 1) if number not in {NUMBERS[name] for name in capabilities})
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "users: [{name: u, user: {}}]\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(patience.seconds(60))
        words = ["setpriv", "--no-new-privs", f"--bounding-set={dropped}", f"--inh-caps={dropped}", KOORD, "koordlet", "--observe-only"]
        words += ["--node-name=unit", "--host-root=/", f"--kubeconfig={kubeconfig}", f"--addr=127.0.0.1:{free_port()}"]
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        environment.pop("WATCHDOG_PID", None)
        with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as child:
            try:
                assert manager.recv(100) == b"READY=1"
                assert manager.recv(100) == b"WATCHDOG=1"
                facts = dict(line.split(":", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if ":" in line)
                assert int(facts["CapEff"], 16) >> 21 & 1 == 0, "CAP_SYS_ADMIN"
                child.terminate()
                while (said := manager.recv(100)) == b"WATCHDOG=1":
                    pass
                assert said == b"STOPPING=1"
                assert child.wait(patience.seconds(40)) == 0
            finally:
                child.kill()
                child.communicate()


@pytest.mark.root
def test_cgroup_files_need_no_capability() -> None:
    """What docs/host.md says of the rights of most strategies: being root is enough."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv on PATH")
    group = Path("/sys/fs/cgroup/cpu") / f"koord-rights-{os.getpid()}"
    group.mkdir()
    try:
        script = "grep CapEff /proc/self/status; echo 512 >$0/cpu.shares; echo 50000 >$0/cpu.cfs_quota_us; echo $$ >$0/tasks"
        words = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "sh", "-ec", script, str(group)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=patience.seconds(30), check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout.split()[1], 16) == 0
        assert (group / "cpu.shares").read_text().strip() == "512"
        assert (group / "cpu.cfs_quota_us").read_text().strip() == "50000"
    finally:
        group.rmdir()
