"""The topology manager: asks the providers for hints, merges them and lets each check the result (SCH-NUMA-07).

One per profile. NodeNUMAResource says which policy applies where; NodeNUMAResource and DeviceShare give hints. What comes out is kept
with the pod's shape for as long as no provider's state of the node moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.restoring import RestoredReservation
from roles.scheduler.framework.status import SUCCESS, Status, unschedulable
from roles.scheduler.plugins.topology_manager.hints import Hints, NodeUse, Policy, merge

_KEY = "TopologyManager"


class Wanted(NamedTuple):
    """What applies to a pod on a node: the policy (never NONE), the mask of the node's NUMA nodes, and how CPU-bound pods use them
    where the pod requires exclusive use (None where it does not)."""

    policy: Policy
    nodes: int
    use: Mapping[int, NodeUse] | None = None


class Admission(NamedTuple):
    """The outcome on a node. `affinity` is the mask of NUMA nodes to stay on, None where nothing restricts the pod."""

    affinity: int | None = None
    status: Status = SUCCESS


NO_RESTRICTION = Admission()


class HintProvider(ABC):
    """A plugin that hands out what is tied to NUMA nodes. Nothing here changes any state."""

    @abstractmethod
    def hints(self, ctx: CycleContext, slot: int) -> Hints | Status:
        """By resource the masks on which the pod's request can be had; {} for a provider that does not care. A refusing status
        refuses the node with its reasons."""

    @abstractmethod
    def allocate_check(self, ctx: CycleContext, slot: int, affinity: int | None) -> Status:
        """Whether everything of this provider can be had within the affinity. The provider's own `reserve` takes it, on the affinity
        that `TopologyManager.at_reserve` gives."""

    @abstractmethod
    def version(self, slot: int) -> Hashable:
        """Moves whenever what the provider knows of the node moves."""

    def indifferent(self, ctx: CycleContext) -> bool:
        """Whether this provider has no hint for the pod on any node: then columns of the others may decide without asking it."""
        return False


class PolicySource(ABC):
    """Who knows the policies of nodes and pods."""

    @abstractmethod
    def numa_policy(self, ctx: CycleContext, slot: int) -> Wanted | Status | None:
        """The policy of a pod on a node; None for none, a refusing status where node and pod contradict each other."""

    def aligned_rows(self, ctx: CycleContext, rows: Rows) -> NDArray[np.bool_] | None:
        """Rows on which `at_filter` may restrict the pod to some NUMA nodes; None where it does on no row."""
        return None

    def strict_rows(self, rows: Rows) -> NDArray[np.int8] | None:
        """How a node's own policy binds whoever comes: 2 to one NUMA node, 1 to as few as can be, 0 not; None where none does."""
        return None


class Asker(Protocol):
    """A plugin whose filter and score ask for agreements."""

    reads: int
    score_reads: int


class TopologyManager:
    """Agreements by pod shape and node. Get the profile's with `TopologyManager.of(handle)`. `subscriptions` are the providers' events on
    which a pod that was refused for want of an agreement is worth another try. A provider moves `version` when its hints about any node may
    be others."""

    def __init__(self) -> None:
        self.source: PolicySource | None = None
        self.reserving = False  # while an agreement is made as for Reserve: only the nominated reservation may be used
        self.subscriptions: tuple[Subscription, ...] = ()
        self.version = 0
        self._providers: dict[str, HintProvider] = {}
        self._kinds = 0
        self._askers: list[Asker] = []

    @classmethod
    def of(cls, handle: Handle) -> TopologyManager:
        """The one of a profile."""
        found: TopologyManager = handle.shared.setdefault(_KEY, cls())
        return found

    def add_provider(self, name: str, provider: HintProvider, kind: int, subscriptions: Iterable[Subscription] = ()) -> None:
        """Take part in every agreement from now on; the order of names decides the order of asking. `kind` is noted in the change log
        whenever the provider's version moves."""
        self._providers[name] = provider
        self._providers = dict(sorted(self._providers.items(), reverse=True))  # NodeNUMAResource before DeviceShare
        self.subscriptions += tuple(subscriptions)
        self._kinds |= kind
        self._share()

    def add_asker(self, plugin: Asker) -> None:
        """The plugin's kept answers follow all providers from now on."""
        self._askers.append(plugin)
        self._share()

    def concerns_only(self, name: str, ctx: CycleContext) -> bool:
        """Whether one provider alone has to do with the pod."""
        return all(other == name or provider.indifferent(ctx) for other, provider in self._providers.items())

    def at_filter(self, ctx: CycleContext, slot: int) -> Admission:
        """The agreement as filters and scores see it: BestEffort is evaluated at reserve only and restricts nothing before."""
        wanted = self._wanted(ctx, slot)
        return wanted if isinstance(wanted, Admission) else self._kept(ctx, slot, wanted)

    def with_only(self, ctx: CycleContext, slot: int, reservation: RestoredReservation | None) -> Admission:
        """As at the filter, for the pod with one of its reservations or without any: what Reserve agrees to if that is nominated."""
        wanted = self._wanted(ctx, slot)
        if isinstance(wanted, Admission):
            return wanted
        before, ctx.reservation, self.reserving = ctx.reservation, reservation, True
        try:
            return self._agree(ctx, slot, wanted)
        finally:
            ctx.reservation, self.reserving = before, False

    def at_reserve(self, ctx: CycleContext, slot: int) -> Admission:
        """The agreement on the node that was chosen; whichever provider asks first has it worked out."""
        wanted = self._wanted(ctx, slot, loose=True)
        if isinstance(wanted, Admission):
            return wanted
        self.reserving = True
        try:
            with ctx.restoring(slot):
                return self._kept(ctx, slot, wanted, reserving=True)
        finally:
            self.reserving = False

    def aligned_rows(self, ctx: CycleContext, rows: Rows) -> NDArray[np.bool_] | None:
        """See PolicySource; None where nobody knows of policies."""
        return None if self.source is None else self.source.aligned_rows(ctx, rows)

    def strict_rows(self, rows: Rows) -> NDArray[np.int8] | None:
        """See PolicySource."""
        return None if self.source is None else self.source.strict_rows(rows)

    # ---------------------------------------------------------------- inside

    def _share(self) -> None:
        for plugin in self._askers:
            plugin.reads |= self._kinds
            plugin.score_reads |= self._kinds

    def _wanted(self, ctx: CycleContext, slot: int, *, loose: bool = False) -> Wanted | Admission:
        """What is to be agreed on, or the outcome where nothing is; `loose`: under BestEffort, too."""
        wanted = None if self.source is None else self.source.numa_policy(ctx, slot)
        if isinstance(wanted, Status):
            return Admission(None, wanted)
        return NO_RESTRICTION if wanted is None or (wanted.policy is Policy.BEST_EFFORT and not loose) else wanted

    def _kept(self, ctx: CycleContext, slot: int, wanted: Wanted, *, reserving: bool = False) -> Admission:
        kept: dict[int, tuple[Hashable, str, Admission]] = ctx.data.setdefault(_KEY, {})
        before = kept.get(slot)
        if reserving and before is not None and before[1] == ctx.pod.uid:
            # Reserving has begun: a provider that has taken its part must not change what the others agreed to.
            return before[2]
        versions = (provider.version(slot) for provider in self._providers.values())
        stamp = (reserving, wanted.policy, self.version, *versions, ctx.restored.get(slot))
        if before is None or before[0] != stamp:
            before = kept[slot] = (stamp, ctx.pod.uid if reserving else "", self._agree(ctx, slot, wanted))
        elif reserving:
            kept[slot] = (stamp, ctx.pod.uid, before[2])
        return before[2]

    def forget(self, ctx: CycleContext, slot: int) -> None:
        """The pod's reservation on the node was made or taken back: the next asks anew."""
        kept = ctx.data.get(_KEY)
        if kept is None:
            return
        if slot < 0:  # the node is gone; another one may get its slot
            kept.clear()
        else:
            kept.pop(slot, None)

    def _agree(self, ctx: CycleContext, slot: int, wanted: Wanted) -> Admission:
        found: list[Hints] = []
        for provider in self._providers.values():
            hints = provider.hints(ctx, slot)
            if isinstance(hints, Status):
                return Admission(None, hints)
            found.append(hints)
        merged = merge(wanted.policy, wanted.nodes, found, wanted.use)
        if not merged.admitted:
            return Admission(None, unschedulable(*merged.reasons))
        for provider in self._providers.values():
            status = provider.allocate_check(ctx, slot, merged.affinity)
            if not status.ok:
                return Admission(None, status)
        return Admission(merged.affinity)
