"""The invariants there are, in the order in which they are asked."""

from __future__ import annotations

from roles.sandbox.world.invariants.base import Invariant
from roles.sandbox.world.invariants.claims import ClaimedOnce
from roles.sandbox.world.invariants.community import (
    EvictedForWhatIsWrong,
    EvictedWithAPlace,
    NotEvictedInVain,
    RoundsKeepLimits,
    WhatIsWrongLeaves,
)
from roles.sandbox.world.invariants.durability import AcknowledgedIsKept, AuthorityStays
from roles.sandbox.world.invariants.evictions import BudgetsAreKept, EvictedOnce, OneNodeMakesRoom, RoomIsUsed, VictimsAreLower
from roles.sandbox.world.invariants.gangs import GangWhole
from roles.sandbox.world.invariants.hosts import HOST_INVARIANTS
from roles.sandbox.world.invariants.kubelets import KUBELET_INVARIANTS
from roles.sandbox.world.invariants.leadership import LeadersHandOver, LeadersLead, OneLeaderWrites
from roles.sandbox.world.invariants.liveness import ItSettles, NobodyCrashes, NobodySpins, NothingIsDeadInside, WhatFitsIsBound
from roles.sandbox.world.invariants.migrations import (
    HotIsRelieved,
    MoveHasAPlace,
    MovesLoseNothing,
    OnlyHotNodesAreRelieved,
    TargetsStayCool,
)
from roles.sandbox.world.invariants.overcommit import BatchWithinPromise, NoPromiseFromSilence, PromisesAreBacked, WhatIsLeftIsOffered
from roles.sandbox.world.invariants.placement import BoundIsScheduled, BoundOnce, DeviceOnce, ExclusiveCpuOnce, NodeNotOvercommitted
from roles.sandbox.world.invariants.quotas import MinimumIsReturned, QuotaWithinMax
from roles.sandbox.world.invariants.staleness import BookmarksSpareLists, NothingForGhosts, OldCachesAreNotActedOn
from roles.sandbox.world.invariants.suitability import BoundWhereItMay, ReservedIsHeld, TargetsAreOpen
from roles.sandbox.world.invariants.trust import AllocatedByScheduler, TrustedByAdmission

INVARIANTS: tuple[type[Invariant], ...] = (
    NodeNotOvercommitted,
    DeviceOnce,
    ClaimedOnce,
    ExclusiveCpuOnce,
    BatchWithinPromise,
    PromisesAreBacked,
    NoPromiseFromSilence,
    WhatIsLeftIsOffered,
    QuotaWithinMax,
    MinimumIsReturned,
    BoundOnce,
    BoundIsScheduled,
    BoundWhereItMay,
    ReservedIsHeld,
    TrustedByAdmission,
    AllocatedByScheduler,
    GangWhole,
    OneLeaderWrites,
    LeadersLead,
    LeadersHandOver,
    OldCachesAreNotActedOn,
    NothingForGhosts,
    BookmarksSpareLists,
    AcknowledgedIsKept,
    AuthorityStays,
    EvictedOnce,
    BudgetsAreKept,
    VictimsAreLower,
    OneNodeMakesRoom,
    RoomIsUsed,
    MoveHasAPlace,
    OnlyHotNodesAreRelieved,
    TargetsStayCool,
    TargetsAreOpen,
    MovesLoseNothing,
    HotIsRelieved,
    EvictedForWhatIsWrong,
    EvictedWithAPlace,
    NotEvictedInVain,
    WhatIsWrongLeaves,
    RoundsKeepLimits,
    WhatFitsIsBound,
    NobodyCrashes,
    NothingIsDeadInside,
    NobodySpins,
    ItSettles,
    *HOST_INVARIANTS,
    *KUBELET_INVARIANTS,
)
