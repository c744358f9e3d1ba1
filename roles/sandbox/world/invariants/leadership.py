"""Leader election: one writes, and somebody does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roles.sandbox.world.history import LEASE
from roles.sandbox.world.invariants.base import ANYBODYS, LEASES, WORLD, Invariant, role_of

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History

RENEW_DEADLINE = 10.0  # seconds for which a leader may believe in its lease


class OneLeaderWrites(Invariant):
    """A process writes nothing for its role once another one holds the lease."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._holder: dict[str, str] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        role = role_of(entry.author)
        if entry.bucket == LEASE and entry.new is not None:
            name = entry.new["metadata"]["name"]
            if name in LEASES.values():
                holder = (entry.new.get("spec") or {}).get("holderIdentity") or ""
                self._holder[name] = entry.author if holder else ""
            return
        lease = LEASES.get(role)
        if lease is None or entry.bucket in ANYBODYS:
            return
        holder = self._holder.get(lease)
        if entry.time < self.history.wiped + RENEW_DEADLINE:
            return  # with its store the API server lost the leases: who led believes so until its own time is up
        if holder and holder != entry.author:
            yield f"{entry.author} wrote {entry.request} while {holder} leads"


class LeadersLead(Invariant):
    """When all is calm each role has a leader."""

    def end(self) -> Iterator[str]:
        for role, name in LEASES.items():
            if not any(role_of(program) == role for program in self.history.programs):
                continue
            lease = self.history.of(LEASE).get(f"koordinator-system/{name}")
            renewals = [e.time for e in self.history.entries if e.bucket == LEASE and e.key.endswith(f"/{name}")]
            holder = ((lease or {}).get("spec") or {}).get("holderIdentity")
            if not holder or not renewals or self.history.clock() - renewals[-1] > 20:
                yield f"nobody renews {name}; the holder is {holder!r}"


class LeadersHandOver(Invariant):
    """A leader that is told to end gives its lease back before it is gone, if nothing else is wrong meanwhile."""

    hears = frozenset({WORLD, LEASE})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._told: dict[str, tuple[float, str]] = {}  # lease: when its holder was told to end, and who
        self._holder: dict[str, str] = {}
        self._hurt = float("-inf")

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == LEASE and entry.new is not None and entry.new["metadata"]["name"] in LEASES.values():
            holder = (entry.new.get("spec") or {}).get("holderIdentity") or ""
            self._holder[entry.new["metadata"]["name"]] = entry.author if holder else ""
        elif entry.verb == "fault":
            told = entry.text.partition(" of ")[2].partition(" ")[0]
            lease = LEASES.get(role_of(told), "")
            if entry.key == "terminate" and self._holder.get(lease) == told and entry.time - self._hurt > 100:
                self._told[lease] = (entry.time, told)
            elif entry.key not in ("silence", "clock", "terminate"):
                self._hurt = entry.time
                self._told.clear()
        elif entry.verb == "ended":
            lease = LEASES.get(role_of(entry.key), "")
            at, told = self._told.pop(lease, (0.0, ""))
            if told == entry.key and self._holder.get(lease) == told:
                yield f"{told} was told to end at {at:.1f}, is gone and still holds the lease"
