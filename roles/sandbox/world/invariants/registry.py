"""The invariants there are, in the order in which they are asked."""

from __future__ import annotations

from roles.sandbox.world.invariants.base import Invariant
from roles.sandbox.world.invariants.evictions import EvictedOnce, OneNodeMakesRoom
from roles.sandbox.world.invariants.gangs import GangWhole
from roles.sandbox.world.invariants.hosts import HOST_INVARIANTS
from roles.sandbox.world.invariants.leadership import LeadersLead, OneLeaderWrites
from roles.sandbox.world.invariants.liveness import ItSettles, NobodyCrashes, WhatFitsIsBound
from roles.sandbox.world.invariants.migrations import MoveHasAPlace
from roles.sandbox.world.invariants.overcommit import NoPromiseFromSilence
from roles.sandbox.world.invariants.placement import BoundIsScheduled, BoundOnce, DeviceOnce, ExclusiveCpuOnce, NodeNotOvercommitted
from roles.sandbox.world.invariants.quotas import QuotaWithinMax
from roles.sandbox.world.invariants.trust import AllocatedByScheduler, TrustedByAdmission

INVARIANTS: tuple[type[Invariant], ...] = (
    NodeNotOvercommitted,
    DeviceOnce,
    ExclusiveCpuOnce,
    QuotaWithinMax,
    BoundOnce,
    BoundIsScheduled,
    OneLeaderWrites,
    EvictedOnce,
    OneNodeMakesRoom,
    MoveHasAPlace,
    TrustedByAdmission,
    AllocatedByScheduler,
    NoPromiseFromSilence,
    GangWhole,
    WhatFitsIsBound,
    LeadersLead,
    NobodyCrashes,
    ItSettles,
    *HOST_INVARIANTS,
)
