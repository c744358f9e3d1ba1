"""Who may write what of a pod, and what is heeded of it (BEY-SEC-03)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.api import trust
from koord.kube.informers import MAX_CACHE_AGE
from roles.sandbox.world.invariants.base import POD, WORLD, Invariant, annotations_of, bound_by, node_of, role_of

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History


class TrustedByAdmission(Invariant):
    """While the webhooks answer, nobody but their writer stores what the table of trust keeps for him, nor an owner what is out of bounds.

    Pods' webhooks fail open: from the first fault that may hit a manager on this cannot be asked any more.
    """

    hears = frozenset({WORLD, POD})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._open = False

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "fault" and (" of manager" in entry.text or " of " not in entry.text.partition(" for ")[0]):
            self._open = True
        if self._open or entry.bucket != "pod" or entry.new is None or entry.author != "tenant":
            return
        after, before = annotations_of(entry.new), annotations_of(entry.old)
        for key in trust.changed((*trust.RESERVED, *trust.FORBIDDEN), after, before):
            yield f"{entry.key}: {entry.author} wrote {key} ({entry.request})"
        for key in trust.changed(trust.OWNED, after, before):
            for text in trust.out_of_bounds(key, after) if trust.readable(key, after) else ():
                yield f"{entry.key}: {entry.author} wrote {text}"


class AllocatedByScheduler(Invariant):
    """A pod that a scheduler binds carries no allocation but the scheduler's own, whatever its author had written there.

    What somebody adds so late that no scheduler can have heard of it does not count: it might as well come a moment after the binding.
    """

    hears = frozenset({POD})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._written: dict[str, dict[str, str]] = defaultdict(dict)
        self._added: dict[str, dict[str, float]] = defaultdict(dict)

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or entry.new is None:
            return
        uid, after = entry.new["metadata"]["uid"], annotations_of(entry.new)
        changed = trust.changed(trust.RESERVED, after, annotations_of(entry.old))
        if role_of(entry.author) != "scheduler":
            if entry.old is not None:
                self._added[uid] |= dict.fromkeys(changed, entry.time)
            return
        own, added = self._written[uid], self._added[uid]
        own |= {key: after.get(key, "") for key in changed}
        if bound_by(entry):
            for key in trust.RESERVED:
                if key in after and own.get(key) != after[key] and entry.time - added.get(key, float("-inf")) > MAX_CACHE_AGE:
                    yield f"{entry.key} is on {node_of(entry.new)} with {key}: {after[key][:80]}, which no scheduler wrote"
