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
        self._cluster.place(pod, slot)
        self._before.setdefault(pod.uid, (pod, -1))

    def __enter__(self) -> Hypothesis:
        if self._quiet:
            self._position = self._cluster.begin_quiet()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        cluster = self._cluster
        for uid, (pod, slot) in reversed(self._before.items()):
            now = cluster.slot_of_pod(uid)
            if now == slot:  # it came back of itself
                continue
            if now >= 0:
                cluster.remove_pod(uid)
            if slot >= 0:
                cluster.place(pod, slot)
        self._before.clear()
        if self._quiet:
            cluster.end_quiet(self._position)
