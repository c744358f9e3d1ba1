"""Defects of the shared library: leases, informers, requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from roles.sandbox.world.mutants.planting import Mutants, nothing, replace, wrap

MUTANTS = Mutants()


@MUTANTS.add("standby-binds", "a scheduler that lost its lease goes on")
def _standby_binds() -> None:
    replace("roles.scheduler.app:App.may_write", lambda self: True)
    replace("koord.kube.leases:Leadership.held", property(lambda self: True))
    replace("koord.kube.leases:Leadership.remaining", property(lambda self: 1e9))
    wrap("koord.kube.leases:LeaderElector._renew", lambda old: _renew_for_ever)


async def _renew_for_ever(self: Any, leadership: Any) -> None:
    await asyncio.Event().wait()


@MUTANTS.add("deletions-are-missed", "an informer does not hear of deletions")
def _no_deletions() -> None:
    wrap("koord.kube.store:Informer.forget", nothing())


@MUTANTS.add("a-stalled-watch-is-believed", "nobody looks whether a silent watch is alive")
def _stalled() -> None:
    replace("koord.kube.reflector:QUIET", (1e9, 1e9))


@MUTANTS.add("expired-versions-are-kept", "410 Gone does not lead to a new list")
def _no_relist() -> None:
    replace("koord.kube.reflector:must_list", lambda error: False)


def _observed_at(moment: float) -> Callable[[Any], Any]:
    def make(old: Any) -> Any:
        def observe(self: Any, lease: Any) -> None:
            old(self, lease)
            if self._holder(lease) != self.who.name:
                self._observed_at = self._clock() + moment

        return observe

    return make


MUTANTS.wrap(
    "a-lease-is-taken-at-once", "a standby does not wait for the lease to run out", "koord.kube.leases:_Lease._observe", _observed_at(-1e9)
)
MUTANTS.wrap("a-lease-is-never-taken-over", "a standby waits for ever", "koord.kube.leases:_Lease._observe", _observed_at(1e9))
