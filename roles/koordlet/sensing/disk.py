"""Bytes that best-effort pods read and write on disks, for interference detection (BEY-INT-01)."""

from __future__ import annotations

from typing import ClassVar

from roles.koordlet.host import parse
from roles.koordlet.qos import view
from roles.koordlet.sensing.base import FORGET_AFTER_INTERVALS, Collector, Rate, Round, SensingContext
from roles.koordlet.states.model import PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

_FILE = "blkio.throttle.io_service_bytes"


class DiskCollector(Collector):
    """Bytes a second of each best-effort pod, over all disks.

    Newer kernels count on cgroup v1 only where a limit is set: a pod of which nothing was ever counted has no series there.
    """

    name: ClassVar[str] = "disk"
    gate: ClassVar[str] = "InterferenceDetection"

    def __init__(self, context: SensingContext, interval: float = 10.0) -> None:
        super().__init__(context, interval)
        self._rates: dict[str, Rate] = {}

    def collect(self, at: Round) -> None:
        samples: list[Sample] = []
        before, self._rates = self._rates, {}
        for pod in self.context.sensed_pods():
            if not pod.best_effort:
                continue
            moved = self.attempt(pod.key, self._moved, pod, quiet=True)
            if moved is None:
                continue
            rate = self._rates[pod.uid] = before.get(pod.uid) or Rate(FORGET_AFTER_INTERVALS * self._interval)
            speed = rate.update(at.mono, moved)
            if speed is not None:
                samples.append((kinds.POD_DISK, (pod.uid,), speed))
        self.context.store.append(at.now, samples)

    def _moved(self, pod: PodState) -> int | None:
        """Bytes so far; None where nothing is counted. On cgroup v1 a directory counts its own processes alone: what containers made in
        theirs (systemd, Docker) is added."""
        host = self.context.host
        v2 = host.cgroups.v2
        directories = [pod.cgroup_dir] if v2 else [c.cgroup_dir for c in pod.all_containers() if c.cgroup_dir and c.running]
        texts = [self.read(_FILE, directory)[1] for directory in directories]
        if not v2:
            texts += [view.raw(host, _FILE, inner) or b"" for directory in directories for inner in view.within(host, directory)[1:]]
        total, counted = 0, v2
        for text in texts:
            read, written = parse.disk_bytes(text, v2=v2)
            counted = counted or bool(read or written)
            total += sum(read.values()) + sum(written.values())
        return total if counted else None
