"""The first process of a machine of its own (`tests/support/machine.py`): makes its root, its mounts and its network, then reaps.

Everything that is written goes into a tmpfs, over the outer machine's files. As lxcfs does, it also shows in /proc/stat (and in the file
of lxcfs, for containers) the CPU time of this machine alone: what others use outside is not its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ADDRESS = "192.0.2.10"
STAT = Path("/var/lib/lxcfs/proc/stat")
#: Where the machine shows what it has written, and nothing of the outer one's.
WRITTEN = "mnt/written"
#: Left by nodes that this machine has been; a new one has none of it.
FORGOTTEN = (
    "etc/cni etc/runtime etc/containerd var/lib/containerd var/lib/kubelet var/lib/koordlet var/lib/cni var/lib/etcd var/lib/lxcfs"
    " var/log/koordlet var/log/pods var/log/containers"
)
TICKS = os.sysconf("SC_CLK_TCK")


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def make_root(space: Path) -> None:
    """An overlay over / whose upper side is in memory, with the mounts of a booted machine."""
    run("mount", "-t", "tmpfs", "tmpfs", str(space))
    upper, work, root = (space / name for name in ("upper", "work", "root"))
    for path in (upper, work, root):
        path.mkdir()
    run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", str(root))
    run("rm", "-rf", *(str(root / path) for path in FORGOTTEN.split()))
    for kind, path in (("proc", "proc"), ("sysfs", "sys"), ("tmpfs", "run"), ("tmpfs", "var/lib/containerd")):
        (root / path).mkdir(exist_ok=True)
        run("mount", "-t", kind, kind, str(root / path))
    run("mount", "--rbind", "/dev", str(root / "dev"))
    written = root / WRITTEN
    written.mkdir(parents=True)
    run("mount", "--bind", str(upper), str(written))
    # the namespace of cgroups makes the machine's own groups the top of every hierarchy
    top = root / "sys/fs/cgroup"
    run("mount", "-t", "tmpfs", "tmpfs", str(top))
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, _ = line.split(":", 2)
        name, kind, options = (
            (controllers.removeprefix("name="), "cgroup", ["-o", controllers]) if number != "0" else ("unified", "cgroup2", [])
        )
        (top / name).mkdir()
        run("mount", "-t", kind, *options, "cgroup", str(top / name))
    old = root / "mnt/old"
    old.mkdir(parents=True)
    os.chdir(root)
    run("pivot_root", ".", "mnt/old")
    os.chdir("/")
    run("umount", "-l", "/mnt/old")
    run("mount", "--make-rshared", "/")


def make_network(addresses: list[str]) -> None:
    """The machine's address on a bridge with nothing behind it, and further ones of its own."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "eth0", "type", "bridge")
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("ip", "route", "add", "default", "dev", "eth0")
    for address in addresses:
        run("ip", "address", "add", f"{address}/32", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def set_kernel(settings: list[str]) -> None:
    """What a program would set for the whole kernel is shown to it as set already."""
    for number, setting in enumerate(settings):
        path, value = setting.split("=")
        file = Path(f"/run/kernel-{number}")
        file.write_text(value + "\n")
        run("mount", "--bind", str(file), f"/proc/sys/{path}")


def stat(outer: int) -> bytes:
    """`outer`, /proc/stat, with the CPU time of this machine's groups."""
    groups = Path("/sys/fs/cgroup/cpuacct")
    used = [int(text) * TICKS // 10**9 for text in (groups / "cpuacct.usage_percpu").read_text().split()]
    up = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
    lines = [f"cpu{number} {busy} 0 0 {max(up - busy, 0)} 0 0 0 0 0 0" for number, busy in enumerate(used)]
    total = sum(used)
    others = [line for line in os.pread(outer, 1 << 20, 0).decode().splitlines() if not line.startswith("cpu")]
    return "\n".join([f"cpu  {total} 0 0 {max(up * len(used) - total, 0)} 0 0 0 0 0 0", *lines, *others, ""]).encode()


def main() -> None:
    space, addresses, *settings = sys.argv[1:]
    make_root(Path(space))
    make_network(addresses.split(","))
    set_kernel(settings)
    STAT.parent.mkdir(parents=True)
    file = os.open(STAT, os.O_RDWR | os.O_CREAT, 0o644)
    outer = os.open("/proc/stat", os.O_RDONLY)
    os.pwrite(file, stat(outer), 0)
    run("mount", "--bind", str(STAT), "/proc/stat")
    print("ready", flush=True)
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        content = stat(outer)
        os.pwrite(file, content, 0)
        os.ftruncate(file, len(content))
        time.sleep(0.1)


if __name__ == "__main__":
    main()
