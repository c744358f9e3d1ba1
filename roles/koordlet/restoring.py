"""``koord koordlet --restore``: find this machine's journal, put back what it says, tell what became of every file (BEY-JRN-01)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial

from koord.process.errors import ConfigurationError
from roles.koordlet import undoing
from roles.koordlet.actuation.journal import JournalError
from roles.koordlet.actuation.restore import Restored, journal_path, restore
from roles.koordlet.host.root import PATH_FLAGS, HostRoot
from roles.koordlet.lock import NodeLock

#: Names a file that takes the report. The kubelet shows it as the message of a container that ended, and a single file that cannot be put
#: back is then told there and not by the exit status, which would only run the container again.
REPORT = "KOORD_RESTORE_REPORT"
_REPORT_BYTES = 4000


class NoMachineError(Exception):
    """Nothing of a machine is below the given directories, or its journal is elsewhere."""


def _layouts(root: HostRoot) -> list[tuple[str, HostRoot]]:
    """Where the machine may be by how koordlet is run, with the flags that say so."""
    bases = dict.fromkeys((root.root.rstrip("/"), ""))
    found = [(f"--host-root={base or '/'}", HostRoot.at(base or "/")) for base in bases]
    found += [(f"--host-root={base}/host", HostRoot.at(f"{base}/host")) for base in bases]
    for base in bases:
        mounts = {flag: f"{base}{mounted}" for flag, _, _, mounted in PATH_FLAGS if mounted.startswith("/host-")}
        flags = f"--cgroup-root-dir={base}/host-cgroup --var-run-root-dir={base}/host-var-run and so on"
        found.append((flags, HostRoot.at(base or "/", mounts)))
    return [(flags, other) for flags, other in found if os.path.realpath(other.var_run) != os.path.realpath(root.var_run)]


def choose(root: HostRoot, *, asked: bool) -> HostRoot:
    """The layout to restore by: ``root``, or where nobody ``asked`` for one, the machine's own directories if the journal is there.

    Raises NoMachineError where no journal was found and koordlet or the machine is seen under other paths.
    """
    wanted = journal_path(root)
    if os.path.exists(wanted):
        return root
    layouts = _layouts(root)
    for flags, other in layouts:
        journal = journal_path(other)
        if os.path.exists(journal) and root.root == other.root != "/" and flags.startswith("--host-root="):
            return root.with_dirs(var_run=other.var_run)  # the same machine: /var/run is no link to /run there
        if os.path.exists(journal) and not asked and flags == "--host-root=/":
            return other
        if os.path.exists(journal) and os.path.getsize(journal):
            raise NoMachineError(f"there is no journal at {wanted}, but there is one at {journal}: use {flags}")
    for flags, other in layouts:
        directory = os.path.dirname(journal_path(other))
        if os.path.isdir(directory) and not os.path.isdir(os.path.dirname(wanted)):
            raise NoMachineError(f"there is no journal at {wanted}; koordlet's directory is {directory}: use {flags}")
    if not os.path.isdir(root.cgroup):
        machines = [flags for flags, other in layouts if os.path.isdir(other.cgroup)]
        hint = f"; cgroups are seen with {machines[0]}" if machines else ""
        raise NoMachineError(f"there is no machine: neither a journal at {wanted} nor cgroups at {root.cgroup}{hint}")
    return root


def run(root: HostRoot, *, asked: bool, lock_file: str = "", clean: Callable[[HostRoot], list[str]] | None = None) -> int:
    """Put back and report on standard output; the exit status: 0 when everything that is on record is as it was or belongs to others.

    ``clean`` removes koordlet's own files once nothing is left to put back, and says which it could not remove.
    """
    try:
        root = choose(root, asked=asked)
    except NoMachineError as error:
        return _error(str(error))
    if not os.path.exists(journal_path(root)):
        print(f"no journal at {journal_path(root)}: koordlet changed nothing on this machine since it was started")
        print(Restored())
        return _cleaned(clean(root) if clean is not None else [])
    lock = NodeLock(lock_file or os.path.join(root.var_run, "koordlet", "koordlet.lock"))
    left: list[str] = []
    try:
        lock.acquire()
        result = restore(root, partial(_network, root), partial(undoing.cookies, root))
        if clean is not None and not (result.failed or result.lost or result.not_understood):
            left = clean(root)
    except (ConfigurationError, JournalError) as error:
        return _error(str(error))
    finally:
        lock.release()
    for path in result.restored:
        print(f"put back: {path}")
    for line in result.lines:
        print(f"koord koordlet: {line}", file=sys.stderr)
    print(result)
    if result.missed:
        return _error(f"nothing of what the journal {journal_path(root)} names was found; it stays. Is this the right --host-root?")
    reported = _report("\n".join([str(result), *result.lines, *left]))
    incomplete = bool(result.failed or result.lost or result.not_understood)
    return int(incomplete and not reported) or _cleaned(left)


def _cleaned(left: list[str]) -> int:
    """The exit status: a file of koordlet's own that stays is told and holds nobody up."""
    for line in left:
        print(f"koord koordlet: {line}", file=sys.stderr)
    return 0


def _network(root: HostRoot, device: str, before: str) -> str:
    return asyncio.run(undoing.network(root, device, before))


def _error(text: str) -> int:
    print(f"koord koordlet: error: {text}", file=sys.stderr)
    _report(text)
    return 1


def _report(text: str) -> bool:
    """Whether somebody reads the report."""
    path = os.environ.get(REPORT, "")
    if not path:
        return False
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.encode()[:_REPORT_BYTES].decode(errors="ignore"))
    except OSError as error:
        print(f"koord koordlet: {REPORT}: {path}: {error.strerror}", file=sys.stderr)
        return False
    return True
