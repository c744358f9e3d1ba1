"""What the API server acknowledged, it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roles.sandbox.world.invariants.base import WORLD, Invariant

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry


class AcknowledgedIsKept(Invariant):
    """After kill -9 the API server finds on its disk all that was written, and gives no version out twice."""

    hears = frozenset({WORLD})

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "lost":
            yield f"{entry.key}: {entry.text}"


class AuthorityStays(Invariant):
    """Nobody replaces certificates that are good by the cluster's time, whatever a replica's own clock says."""

    hears = frozenset({"secret"})

    def see(self, entry: Entry) -> Iterator[str]:
        written = entry.bucket == "secret" and entry.verb == "MODIFIED" and entry.author.startswith("manager")
        if written and (entry.old or {}).get("data") != entry.obj.get("data"):
            yield f"{entry.author} replaced the certificates in {entry.key}"
