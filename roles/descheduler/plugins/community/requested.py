"""Node utilisation by requests, and how pods leave nodes until a limit is met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from koord.api.objects import Pod, Taint
from koord.config.errors import ConfigError
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.nodefit import tolerates
from roles.descheduler.plugins.community.common import LenientModel, least_important_first
from roles.descheduler.plugins.firstfit import FirstFit
from roles.descheduler.relief import Relief
from roles.descheduler.snapshot import NodeView, PodView, Vector

BASIC = ("cpu", "memory", "pods")
Percentages = dict[str, float | int]


class ExcludedNamespaces(LenientModel):
    """Namespaces whose pods stay."""

    exclude: list[str] = []
    """Namespaces whose pods stay."""
    include: list[str] = []
    """Refused here: only exclude is accepted."""

    def check(self, path: str) -> None:
        """Raises ConfigError when namespaces are included by name."""
        if self.include:
            raise ConfigError(f"{path}.include", "only exclude may be set")


def check_percentages(path: str, thresholds: Percentages) -> None:
    """Raises ConfigError unless there is a threshold and each is 0..100."""
    if not thresholds:
        raise ConfigError(path, "must name at least one resource")
    for name, percent in thresholds.items():
        if not 0 <= percent <= 100:
            raise ConfigError(f"{path}.{name}", f"{percent} must be from 0 to 100")


def why_not(below: int, total: int, more_than: int) -> str:
    """Why so many underutilized nodes of so many are too few, or too many; "" when they are not."""
    if not below:
        return "no node is underutilized"
    if below <= more_than:
        return f"{below} nodes are underutilized, more than {more_than} are asked for"
    return "all nodes are underutilized" if below == total else ""


@dataclass(slots=True)
class Requested:
    """A node with what its active pods request, their number being one more resource. Lowered as pods leave. `coming`: what is held there
    for pods that are still to come, which leaves less for others."""

    view: NodeView
    usage: Vector
    capacity: Vector
    coming: Vector = field(default_factory=dict)

    @classmethod
    def of(cls, view: NodeView, resources: Iterable[str]) -> Requested:
        """The resources that count, and always cpu, memory and pods, without the pods that are on their way out."""
        staying = {**view.staying, "pods": sum(not pod.leaving for pod in view.pods)}
        usage = {name: staying.get(name, 0) for name in {*resources, *BASIC}}
        return cls(view, usage, view.allocatable, {**view.reserved, "pods": view.arriving.get("pods", 0)})

    @classmethod
    def used(cls, view: NodeView, resources: Iterable[str], told: Vector, taken: Callable[[PodView], Vector]) -> Requested:
        """The same by what the node and (`taken`) its pods are told to use, without the pods that are on their way out."""
        usage = {name: len(view.pods) if name == "pods" else told.get(name, 0) for name in {*resources, *BASIC}}
        made = cls(view, usage, view.allocatable, view.arriving)
        for pod in view.pods:
            if pod.leaving:
                made.give({} if pod.accepted and told is view.usage else taken(pod))
        return made

    def percent(self, name: str) -> float:
        """Usage in percent of allocatable; a resource that the node does not have is not used."""
        capacity = self.capacity.get(name, 0)
        return 100.0 * self.usage.get(name, 0) / capacity if capacity else 0.0

    def under(self, thresholds: Mapping[str, float]) -> bool:
        """Whether no resource is above its threshold."""
        return all(self.percent(name) <= limit for name, limit in thresholds.items())

    def over(self, thresholds: Mapping[str, float]) -> list[str]:
        """The resources above their threshold."""
        return sorted(name for name, limit in thresholds.items() if self.percent(name) > limit)

    @property
    def weight(self) -> float:
        """What nodes are sorted by: the plain sum of cores, bytes and pods, as upstream adds them."""
        return sum(value / 1000 if name == "cpu" else float(value) for name, value in self.usage.items())

    def give(self, requests: Vector) -> Vector:
        """Lower the usage by a pod that left; what it took."""
        gone = {name: 1 if name == "pods" else requests.get(name, 0) for name in self.usage}
        for name, value in gone.items():
            self.usage[name] -= value
        return gone


def headroom(targets: Iterable[Requested], limits: Mapping[str, float]) -> Vector:
    """What the targets can still take, per resource: up to the limit in percent, or all of it where there is none. What one has too
    much of takes nothing from the others."""
    total: Vector = {}
    for target in targets:
        for name, used in target.usage.items():
            capacity = target.capacity.get(name, 0)
            room = int(limits.get(name, 100.0) * 0.01 * capacity) - used - target.coming.get(name, 0)
            total[name] = total.get(name, 0) + max(room, 0)
    return total


@dataclass(slots=True)
class Leaving:
    """How pods leave: from which nodes, onto which, and while what holds."""

    sources: list[Requested]
    targets: list[Requested]
    budget: Vector
    still: Callable[[Requested], bool]
    allowed: Callable[[PodView], bool]
    reason: Callable[[Requested], str]
    now: float
    per_node: Callable[[NodeView], int | None] = lambda _: None
    pause: Callable[[int], bool] = lambda _: False
    taken: Callable[[PodView], Vector] = lambda view: view.requests
    places: FirstFit | None = None  # only targets, where one would take the pod; None: the scheduler decides

    def turn(self) -> Turn:
        """Source by source, the least important pod first."""
        if self.pause(len(self.targets)):
            yield PAUSE
        taints = distinct_taints(self.targets)
        if self.pause(len(self.targets)):
            yield PAUSE
        for source in self.sources:
            evicted, most = 0, self.per_node(source.view)
            if self.pause(1 + len(source.view.pods)):
                yield PAUSE
            allowed = [view for view in source.view.pods if not view.leaving and self.allowed(view)]
            for view in least_important_first(allowed, self.now):
                if not self._goes_on(source) or (most is not None and evicted >= most):
                    break
                if not tolerates_a_target(view.pod, taints):
                    continue
                first, relief = self._place(view)
                if (yield Evict(view.pod, self.reason(source), relief=relief)):
                    evicted += 1
                    if self.places is not None and first:
                        self.places.take(first, view.requests)
                    for name, value in source.give(self.taken(view)).items():
                        self.budget[name] = self.budget.get(name, 0) - value

    def _place(self, view: PodView) -> tuple[str, Relief | None]:
        """The first target that would take the pod, and that its migration may end on targets only; "" and None: the scheduler decides."""
        if self.places is None:
            return "", None
        wanted = {**view.requests, "pods": 1}
        first = self.places.of(view, wanted)
        return first, self.places.relief(view, wanted, first) if first else None

    def _goes_on(self, source: Requested) -> bool:
        return self.still(source) and all(left > 0 for left in self.budget.values())


def distinct_taints(targets: Sequence[Requested]) -> list[tuple[Taint, ...]]:
    """The sets of taints that targets have, each once."""
    found: dict[bytes, tuple[Taint, ...]] = {b"": ()} if any(not target.view.node.spec.taints for target in targets) else {}
    tainted = (tuple(target.view.node.spec.taints) for target in targets if target.view.node.spec.taints)
    found |= {msgspec.json.encode(taints): taints for taints in tainted}
    return list(found.values())


def tolerates_a_target(pod: Pod, targets: Iterable[tuple[Taint, ...]]) -> bool:
    """Whether the pod tolerates every taint of one target, with no fewer tolerations than that has taints."""
    for taints in targets:
        if len(pod.spec.tolerations) >= len(taints) and all(tolerates(pod.spec.tolerations, taint) for taint in taints):
            return True
    return False
