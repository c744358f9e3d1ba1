"""Quota trees: what it costs to keep the shares right, and to let a pod in. Ten trees of 300 quotas on three levels, 50,000 pods."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import msgspec

from koord.api.objects import ElasticQuota
from koord.process import tuning
from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext
from tests.benchmarks.table import Row, script

PREFIX = "quota.scheduling.koordinator.sh/"
_CPU, _MEMORY = 5_000, 20_000  # of a tree, in CPUs and GiB


class Trees:
    """Trees of quotas in a scheduler's books. A tree has 6 quotas below its root, 42 below those and 251 leaves."""

    def __init__(self, trees: int, quotas: int) -> None:
        points: dict[str, Any] = {point: {"enabled": [{"name": "ElasticQuota"}]} for point in ("preFilter", "reserve")}
        self.world = testing.World({"plugins": points}, gates={"MultiQuotaTree": True})
        self.plugin: Any = self.world.framework.plugins["ElasticQuota"]
        self.leaves: list[str] = []
        self.world.add_nodes(testing.node("n", cpu=str(_CPU * trees), memory=f"{_MEMORY * trees}Gi", pods="1000000"))
        for tree in range(trees):
            self._tree(f"t{tree}", quotas - 1)

    def _tree(self, tree: str, quotas: int) -> None:
        first, second = max(1, quotas // 50), max(1, quotas // 7)
        total = {"cpu": str(_CPU), "memory": f"{_MEMORY}Gi"}
        notes = {PREFIX + "total-resource": msgspec.json.encode(total).decode()}
        self._quota(f"{tree}-root", tree, "", 1, is_parent=True, labels={PREFIX + "is-root": "true"}, notes=notes)
        for number in range(quotas):
            if number < first:
                self._quota(f"{tree}-a{number}", tree, f"{tree}-root", first, is_parent=True)
            elif number < first + second:
                self._quota(f"{tree}-b{number - first}", tree, f"{tree}-a{number % first}", second, is_parent=True)
            else:
                name = f"{tree}-c{number}"
                self._quota(name, tree, f"{tree}-b{number % second}", quotas - first - second, is_parent=False)
                self.leaves.append(name)

    def _quota(self, name: str, tree: str, parent: str, share: int, *, is_parent: bool, labels: Any = None, notes: Any = None) -> None:
        named = {PREFIX + "tree-id": tree, PREFIX + "is-parent": str(is_parent).lower(), **(labels or {})}
        if parent:
            named[PREFIX + "parent"] = parent
        content = {
            "metadata": {"name": name, "namespace": "q", "uid": name, "labels": named, "annotations": notes or {}},
            "spec": {
                "min": {"cpu": f"{_CPU * 500 // share}m", "memory": f"{_MEMORY * 512 // share}Mi"},
                "max": {"cpu": str(_CPU), "memory": f"{_MEMORY}Gi"},
            },
        }
        self.world.feed("ElasticQuota", msgspec.convert(content, ElasticQuota))

    def pods(self, count: int) -> list[PodInfo]:
        """Pods of all leaves in turn, of some sizes."""
        return [
            self.world.parser.parse(
                testing.pod(
                    cpu=f"{1000 + 100 * (number % 7)}m", memory="2Gi", labels={PREFIX + "name": self.leaves[number % len(self.leaves)]}
                )
            )
            for number in range(count)
        ]

    def refresh(self) -> float:
        """Seconds to bring all shares up to date."""
        started = time.perf_counter()
        for tree in self.plugin.cache.trees.values():
            tree.refresh_all()
        return time.perf_counter() - started

    def admit(self, pod: PodInfo) -> float:
        """Seconds to decide whether the quota lets a pod in."""
        ctx = CycleContext(self.world.state, pod)
        started = time.perf_counter()
        status = self.plugin.pre_filter(ctx)
        spent = time.perf_counter() - started
        assert status.ok, status.message
        return spent


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    trees, quotas, count = (3, 60, 3_000) if quick else (10, 300, 50_000)
    made = Trees(trees, quotas)
    infos = made.pods(count + 2_000)
    crowd, later = infos[:count], infos[count:]
    gc.collect()
    gc.freeze()
    size = f"{trees} quota trees x 3 levels x {quotas} quotas, {count} pods"
    started = time.perf_counter()
    for info in crowd:
        made.plugin.pod_seen(info)
    seen = (time.perf_counter() - started) / count
    whole = made.refresh()
    for info in crowd[: count // 2]:  # they ask for a third more than there is; half of them run
        made.world.cluster.place(info, 0)
    once: list[float] = []
    arrived: list[float] = []
    for number, info in enumerate(later):
        made.plugin.pod_seen(info)
        (once if number % 2 else arrived).append(made.refresh() if number % 2 else made.admit(info))
    still = [made.admit(info) for info in later]
    started = time.perf_counter()
    for info in later:
        made.world.cluster.place(info, 0)
    used = (time.perf_counter() - started) / len(later)
    for info in crowd[: count // 10]:
        made.plugin.pod_gone(info.uid)
        made.world.cluster.remove_pod(info.uid)
    tenth = made.refresh()
    note = f"p99 {statistics.quantiles(arrived, n=100)[98] * 1e6:.0f} µs; a pod seen {seen * 1e6:.1f} µs, placed {used * 1e6:.0f} µs"
    return [
        Row(f"quota refresh, all shares, {size}", whole * 1e3, "ms", 100.0, note=f"after a tenth of the pods went {tenth * 1e3:.1f} ms"),
        Row(f"quota refresh after one pod more, {size}, mean", statistics.fmean(once) * 1e6, "µs", 1000.0),
        Row(f"quota admission of a pod that just came, {size}, mean", statistics.fmean(arrived) * 1e6, "µs", 300.0, note=note),
        Row(f"quota admission while nothing changes, {size}, mean", statistics.fmean(still) * 1e6, "µs", 50.0),
    ]


if __name__ == "__main__":
    script(rows)
