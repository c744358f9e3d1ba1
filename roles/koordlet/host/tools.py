"""The machine's programs: found on PATH, or in the machine's own root where the container has none (KA-HK-09, KLO-SYS-07).

An image need not carry tc, ipset, iptables or LVM: the machine's own fit its kernel, and in its root they see its mounts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from roles.koordlet.host.namespaces import runs
from roles.koordlet.host.root import HostRoot, rooted

_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")

#: Where a frozen program keeps what was set before it started.
_ORIGINAL = "LD_LIBRARY_PATH_ORIG"


def locate(name: str, root: HostRoot | None = None) -> tuple[str, ...] | None:
    """How a program is started: the machine's in its own root where that is a mount, else the one on PATH; None: there is none."""
    if root is not None and root.root != "/" and os.geteuid() == 0 and runs(root) and (chroot := shutil.which("chroot")) is not None:
        for directory in _DIRECTORIES:
            if os.access(rooted(root.root, f"{directory}/{name}"), os.X_OK):
                return (chroot, root.root, f"{directory}/{name}")
    found = shutil.which(name)
    return (found,) if found is not None else None


def lacking(names: Iterable[str], root: HostRoot | None = None) -> list[str]:
    """Those of the programs that are nowhere."""
    return [name for name in names if locate(name, root) is None]


def environment() -> dict[str, str]:
    """What programs of the machine are started with: not with the libraries of a frozen koord."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LD_LIBRARY_PATH")}
    original = os.environ.get(_ORIGINAL)
    return clean if not original else {**clean, "LD_LIBRARY_PATH": original}
