"""What-ifs on the real columns: pods are taken away or added, looked at, and put back."""

from __future__ import annotations

from types import TracebackType

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.podinfo import PodInfo


class Hypothesis:
    """Within the `with` block the cluster is as if; on leaving it is as before. Rows that were touched count as changed, unless it is
    `quiet`: then no kept vector may be brought up to date inside.

    One thread, no waiting inside: nobody else sees the hypothetical state.
    """

    def __init__(self, cluster: Cluster, *, quiet: bool = False) -> None:
        self._cluster = cluster
        self._quiet = quiet
        self._position = 0
        self._undo: list[tuple[PodInfo, int | None]] = []

    def remove(self, uid: str) -> PodInfo | None:
        """As if a pod were gone."""
        slot = self._cluster.slot_of_pod(uid)
        pod = self._cluster.remove_pod(uid)
        if pod is not None:
            self._undo.append((pod, slot))
        return pod

    def add(self, pod: PodInfo, slot: int) -> None:
        """As if a pod were on the slot."""
        self._cluster.place(pod, slot)
        self._undo.append((pod, None))

    def __enter__(self) -> Hypothesis:
        if self._quiet:
            self._position = self._cluster.begin_quiet()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        while self._undo:
            pod, slot = self._undo.pop()
            if slot is None:
                self._cluster.remove_pod(pod.uid)
            else:
                self._cluster.place(pod, slot)
        if self._quiet:
            self._cluster.end_quiet(self._position)
