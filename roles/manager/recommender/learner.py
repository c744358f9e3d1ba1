"""What containers are known to use, and what follows from it; the controller and the back-test share it (MGR-REC-01). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from roles.manager.recommender.estimate import Amount, Estimate, estimates, targets
from roles.manager.recommender.group import ContainerGroup
from roles.manager.recommender.policy import Policy
from roles.manager.recommender.samples import Kill, Sample


class Learner:
    """All containers of one Recommendation. Times are seconds since the epoch."""

    def __init__(self, policy: Policy, groups: dict[str, ContainerGroup] | None = None) -> None:
        self.policy = policy
        self.groups = groups if groups is not None else {}

    def feed(self, samples: Iterable[Sample], kills: Iterable[Kill] = (), now: float = inf) -> bool:
        """What one pod used since the last time, and then its kills. Whether anything was new. `now`: no clock may be ahead of it."""
        new = False
        for sample in samples:
            group = self._group(sample.container)
            used = {"cpu": sample.cpu, "memory": sample.memory, "cpu_request": sample.cpu_request}
            fed = group.add(sample.replica, sample.time, now=now, **used)
            new = new or fed
        for kill in kills:
            fed = self._group(kill.container).out_of_memory(kill.replica, kill.time, request=kill.request, now=now)
            new = new or fed
        return new

    def forget_replicas(self, present: Collection[str]) -> None:
        """Drop what is kept of each replica that is gone."""
        kept = frozenset(present)
        for group in self.groups.values():
            group.forget_replicas(kept)

    def expire(self, now: float) -> bool:
        """Drop the containers without a sample for eight days. Whether there were any."""
        gone = [name for name, group in self.groups.items() if group.expired(now)]
        for name in gone:
            del self.groups[name]
        return bool(gone)

    def estimates(self, *, in_place: bool = False) -> dict[str, Estimate]:
        """What each container should request, by name; `in_place`: of running pods, which follow at any time."""
        return estimates(self.groups, self.policy, in_place=in_place)

    def targets(self) -> dict[str, Amount]:
        """What containers of running pods should request now, by name."""
        return targets(self.groups, self.policy)

    def _group(self, container: str) -> ContainerGroup:
        if container not in self.groups:
            self.groups[container] = ContainerGroup(self.policy.half_life, self.policy)
        return self.groups[container]
