"""Undo what no file can say: cookies of processes and the shaping of NICs (BEY-JRN-01). Both tell why it was not possible, "" for done."""

from __future__ import annotations

from functools import partial

from roles.koordlet.hooks.cookies import Prctl
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.namespaces import NETWORK, PROCESSES, foreign
from roles.koordlet.host.parse import ids
from roles.koordlet.host.root import HostRoot


def cookies(root: HostRoot, path: str) -> str:
    """Take the cookies of a group's processes away; ``path`` is the file that lists them."""
    if why := foreign(root, PROCESSES):
        return why
    try:
        with open(path, "rb") as file:
            pids = ids(path, file.read())
        kernel = Prctl()
        if kernel.get(0):
            return "koord itself carries a cookie, and cannot take another one away"
        kernel.clear([pid for pid in pids if _carries(kernel, pid)])
    except (OSError, HostError) as error:
        return str(error)
    return ""


def _carries(kernel: Prctl, pid: int) -> bool:
    try:
        return kernel.get(pid) != 0
    except OSError:
        return False  # it has ended


async def network(root: HostRoot, device: str, before: str) -> str:
    """Take the shaping of a NIC down; ``before`` is what its root qdisc was."""
    from roles.koordlet.hooks.tcapply import CommandError, Commands, run_command

    if why := foreign(root, NETWORK):
        return why
    try:
        await Commands(partial(run_command, root=root)).undo(device, before)
    except CommandError as error:
        return str(error)
    return ""
