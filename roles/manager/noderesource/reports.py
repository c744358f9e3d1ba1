"""NodeMetrics as the manager keeps them: what pods use as columns, two numbers and a key each, read once when the report comes. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from koord.api.objects import NodeMetric, PodMetricInfo, ResourceMap
from koord.api.priority import PriorityClass, parse_class
from koord.api.quantity import QuantityError, format_binary, format_milli, parse_milli, parse_value

Known = Callable[[str], str | None]
"""A pod's key -> the equal one that is kept elsewhere."""
Sort = tuple[str, str, str]
"""(namespace, priority, QoS) of a pod."""
_KEPT = 65_536


class PodUsages:
    """Usage of the pods of a node. Reads like the tuple of PodMetricInfo that it stands for; cpu in milli, memory in bytes.

    Only cpu and memory are kept of what a pod uses, as 0 where a report says less.
    """

    __slots__ = ("_keys", "_kinds", "_tables", "cpu", "extensions", "memory")

    def __init__(self, entries: tuple[PodMetricInfo, ...], known: Known, shared: Callable[[Sort], Sort]) -> None:
        """`shared` gives one object for equal sorts, so that nodes do not keep one each. Raises QuantityError."""
        keys = [f"{entry.namespace}/{entry.name}" for entry in entries]
        self._keys = tuple([known(key) or key for key in keys])
        kinds = [(entry.namespace, entry.priority, entry.qos) for entry in entries]
        self._tables = tuple(map(shared, dict.fromkeys(kinds)))
        place = {kind: number for number, kind in enumerate(self._tables)}
        self._kinds = array("H", (place[kind] for kind in kinds))
        self.cpu = array("q", (max(parse_milli(entry.pod_usage.resources.get("cpu", 0)), 0) for entry in entries))
        self.memory = array("q", (max(parse_value(entry.pod_usage.resources.get("memory", 0)), 0) for entry in entries))
        self.extensions: dict[int, dict[str, Any]] = {n: entry.extensions for n, entry in enumerate(entries) if entry.extensions}

    def __len__(self) -> int:
        return len(self._keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PodUsages) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    @property
    def pods(self) -> tuple[tuple[str, ...], list[Sort]]:
        """Key and sort of each pod, as the columns stand."""
        return self._keys, [self._tables[kind] for kind in self._kinds]

    @classmethod
    def of_columns(cls, keys: Sequence[str], sorts: Sequence[Sort], cpu: Iterable[int], memory: Iterable[int]) -> PodUsages:
        """From what `pods` and the columns said."""
        made = cls((), lambda key: None, lambda sort: sort)
        made._keys, made._tables = tuple(keys), tuple(dict.fromkeys(sorts))
        place = {sort: number for number, sort in enumerate(made._tables)}
        made._kinds = array("H", (place[sort] for sort in sorts))
        made.cpu, made.memory = array("q", cpu), array("q", memory)
        return made

    def amounts(self) -> Iterator[tuple[str, PriorityClass, int, int]]:
        """(key, class, milli-cores, bytes) of each pod."""
        classes = [parse_class(priority) for _, priority, _ in self._tables]
        return zip(self._keys, [classes[kind] for kind in self._kinds], self.cpu, self.memory, strict=True)

    def of(self, namespace: str, name: str) -> tuple[int, int] | None:
        """What one pod uses; None when it is not in the report."""
        key = f"{namespace}/{name}"
        if key not in self._keys:
            return None
        number = self._keys.index(key)
        return self.cpu[number], self.memory[number]

    def __iter__(self) -> Iterator[PodMetricInfo]:
        return map(self._entry, range(len(self._keys)))

    def extended(self) -> Iterator[PodMetricInfo]:
        """The pods that report more than what they use."""
        return map(self._entry, self.extensions)

    def _entry(self, number: int) -> PodMetricInfo:
        namespace, priority, qos = self._tables[self._kinds[number]]
        resources: dict[str, str | int | float] = {
            "cpu": format_milli(self.cpu[number]),
            "memory": format_binary(self.memory[number]),
        }
        return PodMetricInfo(
            name=self._keys[number].partition("/")[2],
            namespace=namespace,
            pod_usage=ResourceMap(resources=resources),
            priority=priority,
            qos=qos,
            extensions=self.extensions.get(number),
        )


def extended(entries: Sequence[PodMetricInfo]) -> Iterable[PodMetricInfo]:
    """The pods of a report that tell more than what they use; the others are not put together for it."""
    return entries.extended() if isinstance(entries, PodUsages) else (entry for entry in entries if entry.extensions)


class ReportKeeper:
    """`keeper(metric)` is the NodeMetric with its pods as columns, without percentiles of the node; one that cannot be read stays."""

    def __init__(self, known: Known = lambda key: None, times: Callable[[NodeMetric], NodeMetric] = lambda metric: metric) -> None:
        self._known, self._times = known, times
        self._sorts: dict[Sort, Sort] = {}

    def _shared(self, sort: Sort) -> Sort:
        if len(self._sorts) >= _KEPT:
            self._sorts.clear()  # those in use are kept again when they come
        return self._sorts.setdefault(sort, sort)

    def __call__(self, metric: NodeMetric) -> NodeMetric:
        metric = self._times(metric)
        status = metric.status
        try:
            pods = PodUsages(status.pods_metric, self._known, self._shared)
        except (QuantityError, OverflowError):
            return metric  # whoever needs the amounts says what is wrong with them
        info = status.node_metric
        if info is not None:
            info = msgspec.structs.replace(info, aggregated_node_usages=())
        kept = msgspec.structs.replace(status, node_metric=info, pods_metric=cast(tuple[PodMetricInfo, ...], pods))
        return msgspec.structs.replace(metric, status=kept)
