"""Core scheduling cookies: threads of one group share a cookie, and only they share a core (KA-HK-05).

Which processes carry which cookie is decided here; the kernel is asked through :class:`Prctl`, which tests replace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

_PR_SCHED_CORE = 62
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = range(4)
_THREAD, _THREAD_GROUP = 0, 1
#: A group that no container renewed for so long (seconds) is forgotten.
EXPIRY = 300.0


class Prctl:
    """The running kernel's prctl(PR_SCHED_CORE). Methods raise OSError; ESRCH: the process is gone."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def _call(self, operation: int, pid: int, scope: int, out: object = 0) -> None:
        if self._libc.prctl(_PR_SCHED_CORE, operation, pid, scope, out) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl(PR_SCHED_CORE, {operation}, {pid}): {os.strerror(number)}")

    def get(self, pid: int) -> int:
        """A process's cookie, 0 for none; pid 0 is the caller."""
        cookie = ctypes.c_ulong()
        self._call(_GET, pid, _THREAD, ctypes.byref(cookie))
        return int(cookie.value)

    def create(self, pid: int) -> None:
        """Give a process a new cookie."""
        self._call(_CREATE, pid, _THREAD_GROUP)

    def clear(self, pids: Sequence[int]) -> list[int]:
        """Take processes' cookies; those that are gone."""
        # the caller's own cookie is 0: sharing it is how one is taken away
        return self._share_to(pids)

    def assign(self, sibling: int, pids: Sequence[int]) -> list[int]:
        """Give processes the cookie of another one; those that are gone.

        In a thread of its own: it takes the cookie before it can pass it on, and must not keep it.
        """
        gone: list[int] = []
        failed: list[OSError] = []

        def work() -> None:
            try:
                self._call(_SHARE_FROM, sibling, _THREAD)
                gone.extend(self._share_to(pids))
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=work, name="core scheduling")
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return gone

    def _share_to(self, pids: Sequence[int]) -> list[int]:
        gone: list[int] = []
        for pid in pids:
            try:
                self._call(_SHARE_TO, pid, _THREAD_GROUP)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    raise
                gone.append(pid)
        return gone


@dataclass(slots=True)
class Group:
    """A cookie and the processes that were last seen with it, by container."""

    cookie: int
    pids: dict[str, set[int]] = field(default_factory=dict)
    renewed: float = 0.0


@dataclass(slots=True)
class CookieStore:
    """Cookies of all groups. ``tell`` gets (group, worked) for each change."""

    kernel: Prctl
    tell: Callable[[str, bool], None]
    groups: dict[str, Group] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    """Container directory -> group."""

    def rebuild(self, containers: Iterable[tuple[str, str, Sequence[int]]], now: float) -> None:
        """Learn (container, group, pids) from live cookies after a start; the first cookie of a group wins."""
        for container, name, pids in containers:
            for pid in pids:
                cookie = self._cookie(pid)
                if not cookie:
                    continue
                group = self.groups.setdefault(name, Group(cookie))
                if group.cookie == cookie:
                    group.pids.setdefault(container, set()).add(pid)
                    group.renewed = now
                    self.members[container] = name

    def adopt(self, container: str) -> None:
        """Take a container for one that had a group, whose name nobody knows any more."""
        self.members.setdefault(container, "")

    def join(self, container: str, name: str, pids: Sequence[int], now: float) -> int:
        """See that a container's processes carry its group's cookie; the cookie, 0 when there is none. Raises OSError."""
        if not pids:
            return 0
        before = self.members.get(container)
        if before is not None and before != name:
            self.leave(container, pids)
        group = self.groups.get(name)
        if group is not None:
            known = self._extend(container, name, group, pids, now)
            if known is not None:
                self.members[container] = name
                return known
            del self.groups[name]
        return self._create(container, name, pids, now)

    def _extend(self, container: str, name: str, group: Group, pids: Sequence[int], now: float) -> int | None:
        """Renew a known group; None when nobody alive carries its cookie any more."""
        # by container: elsewhere the number of a process that ended may be that of a new one, without a cookie
        if set(pids) <= group.pids.get(container, set()):
            group.pids[container] = set(pids)
            group.renewed = now
            return group.cookie
        sibling = self._sibling(group)
        if sibling is None:
            return None
        cookies = {pid: self._cookie(pid) for pid in pids}
        alive = [pid for pid, cookie in cookies.items() if cookie is not None]
        if not alive:
            return group.cookie
        strangers = [pid for pid in alive if cookies[pid] != group.cookie]
        gone: list[int] = []
        if strangers:
            gone = self._told(name, lambda: self.kernel.assign(sibling, strangers))
        group.pids[container] = {pid for pid in alive if pid not in gone}
        group.renewed = now
        return group.cookie

    def _sibling(self, group: Group) -> int | None:
        for pids in group.pids.values():
            for pid in sorted(pids):
                if self._cookie(pid) == group.cookie:
                    return pid
                pids.discard(pid)
        return None

    def _create(self, container: str, name: str, pids: Sequence[int], now: float) -> int:
        first, *others = pids

        def work() -> int:
            self.kernel.create(first)
            return self.kernel.get(first)

        cookie = self._told(name, work)
        gone = self._told(name, lambda: self.kernel.assign(first, others)) if others else []
        self.groups[name] = Group(cookie, {container: {pid for pid in pids if pid not in gone}}, now)
        self.members[container] = name
        return cookie

    def leave(self, container: str, pids: Sequence[int]) -> None:
        """Take the cookies of a container that had a group. Raises OSError."""
        name = self.members.get(container)
        if name is None:
            return
        carrying = [pid for pid in pids if self._cookie(pid)]
        if carrying:
            self._told(name, lambda: self.kernel.clear(carrying))
        del self.members[container]
        group = self.groups.get(name)
        if group is not None:
            group.pids.pop(container, None)

    def sweep(self, now: float, containers: Set[str]) -> None:
        """Forget groups that nobody renewed, and what is known of containers that are not among these any more."""
        for group in self.groups.values():
            for gone in group.pids.keys() - containers:
                del group.pids[gone]
        stale = {name for name, group in self.groups.items() if now - group.renewed > EXPIRY}
        for name in stale:
            del self.groups[name]
        self.members = {c: name for c, name in self.members.items() if c in containers and name not in stale}

    def _cookie(self, pid: int) -> int | None:
        """A process's cookie; None when it is gone."""
        try:
            return self.kernel.get(pid)
        except OSError:
            return None

    def _told(self, name: str, work: Callable[[], T]) -> T:
        try:
            result = work()
        except OSError:
            self.tell(name, False)
            raise
        self.tell(name, True)
        return result
