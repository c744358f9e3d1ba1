"""Pods that are moved by a migration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roles.sandbox.world.invariants.base import RESERVATION, Invariant, role_of

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry


class MoveHasAPlace(Invariant):
    """A pod is moved only when a place for it is held (reservation first), or the job says that it needs none."""

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or role_of(entry.author) != "descheduler" or "/eviction" not in entry.request:
            return
        uid = entry.obj["metadata"]["uid"]
        for job in self.history.of("podmigrationjob.scheduling.koordinator.sh").values():
            spec, status = job.get("spec") or {}, job.get("status") or {}
            if (spec.get("podRef") or {}).get("uid") != uid or spec.get("mode") == "EvictDirectly":
                continue
            name = (spec.get("reservationOptions") or {}).get("reservationRef", {}).get("name") or status.get("reservationName")
            held = self.history.of(RESERVATION).get(str(name))
            if held is None or (held.get("status") or {}).get("phase") not in ("Available", "Succeeded"):
                yield f"{entry.key} was evicted and its reservation {name} is {(held or {}).get('status', {}).get('phase', 'not there')}"
