"""The cgroup driver by the kubelet's process (KLO-SYS-01)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roles.koordlet.host.root import HostRoot
from roles.koordlet.states.driver import kubelet_driver, kubelet_pid

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
