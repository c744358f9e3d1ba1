"""Whether this process lives in the machine's own namespaces: asked of the kernel, by those of process 1 (KLO-CFG-01).

A DaemonSet sees the machine's files below a mount; whether process ids and the network are the machine's too is another question.
"""

from __future__ import annotations

import os
import socket

from roles.koordlet.host.root import HostRoot

PROCESSES, NETWORK = "pid", "net"
_WANTED = {PROCESSES: "hostPID", NETWORK: "hostNetwork"}


def runs(root: HostRoot) -> bool:
    """Whether a machine that runs is below the root, and not a model of one."""
    return os.path.lexists(f"{root.proc}/1/ns/pid")


def foreign(root: HostRoot, kind: str) -> str:
    """Why this process does not share a namespace (``pid``, ``net``) with process 1 of the machine; "" where it does."""
    own = f"this process has a {kind} namespace of its own, not the machine's: the pod needs {_WANTED[kind]}"
    try:
        machine, mine = os.stat(f"{root.proc}/1/ns/{kind}"), os.stat(f"/proc/self/ns/{kind}")
    except PermissionError:
        # without the right to look at process 1: what the machine's own file systems say of this process
        same = _same_processes(root) if kind == PROCESSES else _same_network(root)
        return "" if same else own
    except OSError as error:
        return f"the {kind} namespace of the machine's process 1 cannot be read below {root.proc}: {error.strerror}"
    return "" if (machine.st_dev, machine.st_ino) == (mine.st_dev, mine.st_ino) else own


def _same_processes(root: HostRoot) -> bool:
    """Whether the machine's /proc knows this process by one number only: it has another one in each namespace below."""
    try:
        with open(f"{root.proc}/self/status", encoding="utf-8", errors="replace") as file:
            numbers = next((line.split()[1:] for line in file if line.startswith("NSpid:")), [])
    except OSError:
        return False
    return numbers == [str(os.getpid())]


def _same_network(root: HostRoot) -> bool:
    """Whether this process has the interfaces, by name and number, that the machine's /sys shows."""
    found: set[tuple[int, str]] = set()
    try:
        for name in os.listdir(f"{root.sys}/class/net"):
            if os.path.islink(f"{root.sys}/class/net/{name}"):
                with open(f"{root.sys}/class/net/{name}/ifindex", encoding="ascii") as file:
                    found.add((int(file.read()), name))
        return found == set(socket.if_nameindex())
    except (OSError, ValueError):
        return False
