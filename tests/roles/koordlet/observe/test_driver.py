"""The cgroup driver by the kubelet's process (KLO-SYS-01)."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from koord.api.kinds import NODES
from roles.koordlet import app as app_module
from roles.koordlet.host.cgroup import CgroupDriver, Layout
from roles.koordlet.host.root import HostRoot
from roles.koordlet.states.driver import kubelet_driver, kubelet_pid
from tests.support.koordlet import Cluster, agent, run, until

HEADER = "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n"


def machine(root: Path, *arguments: str, config: str | None = None) -> HostRoot:
    """A kubelet with pid 42 that listens on 10250."""
    (root / "proc/net").mkdir(parents=True)
    rows = "   0: 00000000:280A 00000000:0000 0A 0:0 0:0 0 0 0 777 1\n   1: 0100007F:280A 0:0 01 0:0 0:0 0 0 0 888 1\n"
    (root / "proc/net/tcp").write_text(HEADER + rows)
    for pid, inode in ((7, 888), (42, 777)):
        (root / f"proc/{pid}/fd").mkdir(parents=True)
        os.symlink(f"socket:[{inode}]", root / f"proc/{pid}/fd/3")
    (root / "proc/42/cmdline").write_bytes(b"\0".join(a.encode() for a in ("/usr/bin/kubelet", *arguments)) + b"\0")
    os.symlink("/srv/kubelet", root / "proc/42/cwd")
    if config is not None:
        (root / "srv/kubelet").mkdir(parents=True)
        (root / "srv/kubelet/config.yaml").write_text(config)
    return HostRoot.at(str(root))


@pytest.mark.feature("KLO-SYS-01")
@pytest.mark.parametrize(
    ("arguments", "config", "driver"),
    [
        (("--cgroup-driver=systemd",), None, "systemd"),
        (("--cgroup-driver", "cgroupfs", "--config=config.yaml"), "cgroupDriver: systemd\n", "cgroupfs"),
        (("--config=/srv/kubelet/config.yaml",), "cgroupDriver: systemd\n", "systemd"),
        (("--config", "config.yaml"), "cgroupDriver: systemd\n", "systemd"),
        (("--config=config.yaml",), "kind: KubeletConfiguration\n", "cgroupfs"),
        ((), None, "cgroupfs"),
        (("--config=missing.yaml",), None, None),
        (("--config=../../../../etc/passwd",), None, None),
        (("--config=config.yaml",), "{broken", None),
        (("--cgroup-driver=weird",), None, None),
    ],
)
def test_by_command_line_and_configuration(tmp_path, arguments, config, driver) -> None:
    root = machine(tmp_path, *arguments, config=config)
    assert kubelet_pid(root, 10250) == 42
    assert kubelet_driver(root, 10250) == driver
    assert kubelet_driver(root, 10251) is None


@pytest.mark.parametrize("said", [None, CgroupDriver.SYSTEMD], ids=["nothing", "its configuration"])
def test_directories_have_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: CgroupDriver | None) -> None:
    """A kubelet that starts late, or follows its runtime and not its configuration. New pods are seen at once."""
    monkeypatch.setattr(app_module, "_DRIVER_ATTEMPTS", 1)
    monkeypatch.setattr(app_module, "_DRIVER_PAUSE", 0.05)
    monkeypatch.setattr(app_module, "kubelet_layout", lambda *_: None if said is None else Layout(said))

    async def story(c: Cluster) -> None:
        await c.node({})
        await c.client.patch(NODES, "n1", {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}}, subresource="status")
        cpu = c.base / "sys/fs/cgroup/cpu"
        shutil.rmtree(cpu / "kubepods.slice")
        async with agent(c) as app:
            await asyncio.sleep(0.5)
            assert app.host.cgroups.driver is CgroupDriver.SYSTEMD
            (cpu / "kubepods/besteffort").mkdir(parents=True)
            await until(lambda: app.host.cgroups.driver is CgroupDriver.CGROUPFS, "the driver")
            seen: list[int] = []
            app.pleg._on_pod = lambda: seen.append(1)
            (cpu / "kubepods/besteffort/pod1").mkdir()
            await until(lambda: seen, "the pod")

    run(tmp_path, story)
