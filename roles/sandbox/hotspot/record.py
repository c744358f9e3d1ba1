"""What was seen while a hot spot went away: utilisation of each node over time, and every migration (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roles.sandbox.view.frame import SimulatedNode

ENDED = ("Succeeded", "Failed")


@dataclass(slots=True)
class Migration:
    """A PodMigrationJob: who left where, who came instead, and each phase with the second at which it was first seen."""

    job: str
    pod: str
    source: str
    replacement: str = ""
    target: str = ""
    phases: list[tuple[str, float]] = field(default_factory=list)
    reason: str = ""

    @property
    def phase(self) -> str:
        return self.phases[-1][0] if self.phases else ""

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    def __str__(self) -> str:
        came = f", {self.replacement} came instead" if self.replacement else ""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.job}: {self.pod} from {self.source} to {self.target or 'a node that is still to be chosen'}: {self.phase}{why}{came}"


class Recording:
    """Samples and migrations of one run. Times are seconds since its start, utilisation is percent of the node's CPU."""

    def __init__(self, high: float) -> None:
        self.high = high
        self.utilisation: dict[str, list[tuple[float, float]]] = {}
        self.migrations: dict[str, Migration] = {}

    def sample(self, time: float, nodes: Iterable[SimulatedNode]) -> None:
        """Take what the nodes have reported; a node without a report is left out."""
        for node in nodes:
            if node.used is not None:
                self.utilisation.setdefault(node.name, []).append((time, 100 * node.used / node.cpus))

    def job(self, time: float, job: Mapping[str, Any], node_of: Callable[[str], str]) -> Migration | None:
        """Take a job as it is now; `node_of` tells where a pod is ("": not known). Returns the migration when its phase has changed."""
        spec, status = job.get("spec") or {}, job.get("status") or {}
        name, pod = job["metadata"]["name"], (spec.get("podRef") or {}).get("name", "")
        one = self.migrations.get(name)
        if one is None:
            one = self.migrations[name] = Migration(name, pod, node_of(pod))
        one.target = status.get("nodeName") or one.target
        one.replacement = (status.get("podRef") or {}).get("name") or one.replacement
        one.reason = status.get("reason") or ""
        phase = status.get("phase") or "Pending"
        if phase == one.phase:
            return None
        one.phases.append((phase, time))
        return one

    def before(self, node: str) -> float:
        """The highest report before the first migration: the first reports come while pods still start."""
        began = min((one.phases[0][1] for one in self.migrations.values() if one.phases), default=float("inf"))
        points = self.utilisation[node]
        return max((value for time, value in points if time <= began), default=points[0][1])

    def last(self, node: str) -> float:
        return self.utilisation[node][-1][1]

    def hot_at_start(self) -> list[str]:
        """Nodes that were above the high threshold before the first migration."""
        return sorted(node for node in self.utilisation if self.before(node) > self.high)

    def hot_now(self) -> list[str]:
        """Nodes whose newest report is above the high threshold."""
        return sorted(node for node in self.utilisation if self.last(node) > self.high)

    def moved_again(self) -> list[str]:
        """Pods that were moved more than once, or that came for one that left and had to leave too. A failed migration moved nobody."""
        left = [one.pod for one in self.migrations.values() if one.phase == "Succeeded"]
        came = {one.replacement for one in self.migrations.values() if one.replacement}
        return sorted({pod for pod in left if left.count(pod) > 1 or pod in came})

    def relieved(self) -> bool:
        """Whether a hot spot was there, no node is hot any more, and every migration has ended."""
        return bool(self.hot_at_start() and self.migrations) and not self.hot_now() and all(one.ended for one in self.migrations.values())
