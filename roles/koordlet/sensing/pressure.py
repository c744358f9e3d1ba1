"""The pressure path's eyes: looks at stall counters between ticks and wakes the loop when something cannot wait (BEY-PSI-01).

Where the kernel lets this process have a trigger with a short window, nothing runs until the kernel reports a stall; elsewhere (a
container without CAP_SYS_RESOURCE only gets windows of whole two seconds, which are too late) the counter is read ten times a
second. While the node does not stall its groups are not asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from roles.koordlet.host import parse
from roles.koordlet.host.cgroup import BESTEFFORT, BURSTABLE, GUARANTEED
from roles.koordlet.host.errors import HostError, ParseError
from roles.koordlet.host.psitrigger import PressureTrigger
from roles.koordlet.qos.urgency import NODE_CPU, NODE_MEMORY, Look, Urgency, looked, ticked
from roles.koordlet.states.model import HostState, PodState

log = logging.getLogger(__name__)

#: Time between looks, and how long they go on after the kernel last reported a stall (seconds).
PERIOD, LINGER = 0.1, 2.0
#: Guaranteed pods are looked at one by one; this many at most.
MOST_GROUPS = 16


def total_of(path: str, data: bytes) -> int:
    """Stall time of the line ``some`` in µs. Raises ParseError."""
    line = data[: data.find(b"\n")] if b"\n" in data else data
    head, found, number = line.rpartition(b"total=")
    if not head.startswith(b"some ") or not found or not number.isdigit():
        raise ParseError(path, f"{line[:60].decode('utf-8', 'replace')!r} is no line 'some … total=N'")
    return int(number)


class PressureWatch:
    """``wake`` is called with a reason, at most as often as :mod:`roles.koordlet.qos.urgency` allows."""

    def __init__(self, host: HostState, pods: Callable[[], Sequence[PodState]], cpus: int, wake: Callable[[str], None]) -> None:
        self._host = host
        self._pods = pods
        self._cpus = cpus
        self._wake = wake
        self._state = Urgency()
        self._files = {NODE_CPU: host.root.proc_path("pressure", "cpu"), NODE_MEMORY: host.root.proc_path("pressure", "memory")}
        self._triggers: list[PressureTrigger] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self._stalled: frozenset[str] = frozenset()
        self._known: tuple[Sequence[PodState] | None, tuple[tuple[str, str], ...]] = (None, ())

    def start(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Begin; False, with a line in the log, on a kernel without pressure files: strategies then run at their intervals only."""
        try:
            for path in self._files.values():
                total_of(path, self._host.files.read_fresh(path))
        except HostError as error:
            log.info("no pressure path (%s): strategies run at their intervals only", error)
            return False
        self._loop = loop
        armed = [trigger for trigger in map(PressureTrigger, self._files.values()) if trigger.arm()]
        self._triggers = armed
        if len(armed) == len(self._files):
            for trigger in armed:
                trigger.watch(loop, self._stall)
        else:
            for trigger in armed:
                trigger.close()
            self._triggers = []
            self._until = float("inf")
            self._timer = loop.call_later(PERIOD, self._again)
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for trigger in self._triggers:
            trigger.close(self._loop)
        self._triggers = []

    def ticked(self, mono: float) -> None:
        """A tick has run at that moment, its readings are still fresh."""
        self._state = ticked(self._state, Look(mono, others_ns=self._others()))

    @property
    def others_cpu(self) -> float | None:
        """CPU of all pods that are not on the best-effort level over the last tenths of a second, cores."""
        return self._state.now

    def look(self, mono: float) -> str:
        """Read the counters and judge them; the reason to tick now, or nothing."""
        look = Look(mono, dict(self._stalls()), self._others(fresh=True))
        before = self._state.looks[-1].stalls if self._state.looks else {}
        # a group only waits for what the node waits for
        self._stalled = frozenset(source for source in self._files if look.stalls.get(source) != before.get(source))
        self._state, reason = looked(self._state, look, self._cpus)
        return reason

    # -- the clock -----------------------------------------------------------------------------------------------------------

    def _stall(self) -> None:
        """The kernel reports a stall: look now, and go on looking for a while."""
        assert self._loop is not None
        self._until = self._loop.time() + LINGER
        if self._timer is None:
            self._stalled = frozenset(self._files)
            self._again()

    def _again(self) -> None:
        loop = self._loop
        assert loop is not None
        reason = self.look(loop.time())
        if reason:
            self._wake(reason)
        self._timer = loop.call_later(PERIOD, self._again) if loop.time() < self._until else None

    # -- reading -------------------------------------------------------------------------------------------------------------

    def _stalls(self) -> Iterable[tuple[str, int]]:
        files = self._host.files
        wanted = [*self._files.items(), *(item for item in self._groups() if item[0].split()[0] in self._stalled)]
        for source, path in wanted:
            try:
                yield source, total_of(path, files.read_fresh(path))
            except HostError as error:
                log.debug("%s: %s", source, error)

    def _groups(self) -> tuple[tuple[str, str], ...]:
        """Pressure files of the burstable level and of guaranteed pods, where the kernel has them. Found anew with each list of pods."""
        pods = self._pods()
        if self._known[0] is not pods:
            self._known = (pods, tuple(self._find_groups(pods)))
        return self._known[1]

    def _find_groups(self, pods: Sequence[PodState]) -> Iterator[tuple[str, str]]:
        guaranteed = [p.cgroup_dir for p in pods if p.kube_qos == GUARANTEED and p.active][:MOST_GROUPS]
        for directory in (self._host.cgroups.qos_dir(BURSTABLE), *guaranteed):
            for kind in (NODE_CPU, NODE_MEMORY):
                path = self._group_file(f"{kind}.pressure", directory)
                if path is not None:
                    yield f"{kind} {directory}", path

    def _group_file(self, resource: str, directory: str) -> str | None:
        """None where the kernel has none."""
        path = self._host.cgroups.pressure_file(resource, directory)
        return path if self._host.files.exists(path) else None

    def _others(self, *, fresh: bool = False) -> int | None:
        """CPU time of all pods that are not on the best-effort level, in ns."""
        cgroups, files = self._host.cgroups, self._host.files
        read = files.read_fresh if fresh else files.read
        out = []
        try:
            for directory in (cgroups.kubepods, cgroups.qos_dir(BESTEFFORT)):
                path = cgroups.file("cpuacct.usage", directory)
                out.append(parse.cpu_usage_ns(path, read(path), v2=cgroups.v2))
        except HostError:
            return None
        return out[0] - out[1]
