"""What-ifs on the real columns: pods are taken away or added, looked at, and put back."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.podinfo import PodInfo


class Hypothesis:
    """Within the `with` block the cluster is as if; on leaving it is as before. Rows that were touched count as changed, unless it is
    `quiet`: then no kept vector may be brought up to date inside.

    Nobody else may see the hypothetical state: no waiting inside, but for the slices of long work (framework/steps.py).
    """

    def __init__(self, cluster: Cluster, *, quiet: bool = False) -> None:
        self._cluster = cluster
        self._quiet = quiet
        self._position = 0
        self._before: dict[str, tuple[PodInfo, int]] = {}  # pods that were touched: where they counted at first, -1 for nowhere

    def remove(self, uid: str) -> PodInfo | None:
        """As if a pod were gone."""
        slot = self._cluster.slot_of_pod(uid)
        pod = self._cluster.remove_pod(uid)
        if pod is not None:
            self._before.setdefault(uid, (pod, slot))
        return pod

    def add(self, pod: PodInfo, slot: int) -> None:
        """As if a pod were on the slot."""
        self._place(pod, slot, returns=self._before.setdefault(pod.uid, (pod, -1))[1] >= 0)

    def undo(self) -> Iterator[None]:
        """Put back what was touched, a pod a step: where that is much, before the block is left."""
        while self._before:
            uid, (pod, slot) = self._before.popitem()
            self._put_back(uid, pod, slot)
            yield

    def _put_back(self, uid: str, pod: PodInfo, slot: int) -> None:
        now = self._cluster.slot_of_pod(uid)
        if now == slot:  # it came back of itself
            return
        if now >= 0:
            self._cluster.remove_pod(uid)
        if slot >= 0:
            self._place(pod, slot, returns=True)

    def _place(self, pod: PodInfo, slot: int, *, returns: bool) -> None:
        self._cluster.returning = returns
        try:
            self._cluster.place(pod, slot)
        finally:
            self._cluster.returning = False

    def __enter__(self) -> Hypothesis:
        if not self._cluster.supposing:
            self._cluster.supposing_since = self._cluster.changes.position
        self._cluster.supposing += 1
        if self._quiet:
            self._position = self._cluster.begin_quiet()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            for _ in self.undo():
                pass
        finally:
            self._cluster.supposing -= 1
            if self._quiet:
                self._cluster.end_quiet(self._position)
            if not self._cluster.supposing:
                self._cluster.supposed += self._cluster.changes.position - self._cluster.supposing_since
                self._cluster.release_vacated()
