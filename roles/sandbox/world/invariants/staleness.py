"""Caches and their age: nothing is done with an old one, and nothing for what is no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from koord.kube.informers import MAX_CACHE_AGE
from roles.sandbox.world.invariants.base import POD, RESERVATION, WORLD, Invariant, bound_by, deaf_until, leaves, role_of

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History

JOB = "podmigrationjob.scheduling.koordinator.sh"


class OldCachesAreNotActedOn(Invariant):
    """A scheduler binds and evicts, a descheduler evicts only while it hears of pods: not when nothing came for longer than the limit."""

    hears = frozenset({POD})
    slack = 15.0  # seconds for what was decided in time and written late

    def see(self, entry: Entry) -> Iterator[str]:
        if role_of(entry.author) not in ("scheduler", "descheduler") or not (bound_by(entry) or leaves(entry)):
            return
        heard = self.history.heard.get((entry.author, "pods"))
        if heard is not None and entry.time - heard > MAX_CACHE_AGE + self.slack:
            yield f"{entry.author} wrote {entry.request} and had heard of pods {entry.time - heard:.0f} s before"


class NothingForGhosts(Invariant):
    """Half a minute after the API server has lost everything nobody makes anything for pods that were lost; later where a watch may have
    stood still."""

    seconds = 30.0
    stalled, after = 130.0, 150.0  # seconds for who may not have heard, and for how long after a stall began that may be so

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._pods: set[str] = set()
        self._ghosts: set[str] = set()
        self._stall = float("-inf")
        self._deaf: dict[str, float] = {}  # until when somebody's watches are refused

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "wiped":
            self._ghosts |= self._pods
        elif deaf := deaf_until(entry):
            self._deaf[deaf[0]] = max(self._deaf.get(deaf[0], 0.0), deaf[1])
        elif entry.verb == "fault" and entry.key == "stall":
            self._stall = entry.time
        elif entry.bucket == "pod" and entry.verb == "ADDED":
            self._pods.add(entry.obj["metadata"]["uid"])
        elif entry.verb == "ADDED" and self._ghosts and about(entry) & self._ghosts:
            since = entry.time - self.history.wiped
            limit = self.stalled if entry.time - self._stall < self.after else self.seconds
            if since > limit and entry.time > self._deaf.get(entry.author, 0.0) + self.seconds:
                yield f"{entry.author} made {entry.bucket} {entry.key} for a pod that was lost {since:.0f} s before"


def about(entry: Entry) -> set[str]:
    """UIDs of the pods that a migration job, a reservation or an event is about."""
    obj = entry.obj
    spec = obj.get("spec") or {}
    if entry.bucket == JOB:
        return {str((spec.get("podRef") or {}).get("uid"))}
    if entry.bucket == RESERVATION:
        return {str((owner.get("object") or {}).get("uid")) for owner in spec.get("owners") or ()}
    if entry.bucket in ("event", "event.events.k8s.io"):
        return {str((obj.get("regarding") or obj.get("involvedObject") or {}).get("uid"))}
    return set()


def relisted(asked: Sequence[str]) -> bool:
    """Whether somebody who went on with a watch then listed all and watched from there."""
    steps = ""
    for path in asked:
        if "sendInitialEvents" in path:
            steps += "lw"
        elif "limit=500" in path:
            steps += "l"
        elif "watch=true" in path and "timeoutSeconds=1&" not in path:  # a look whether a watch has stalled
            steps += "w"
    return "wlw" in steps


class BookmarksSpareLists(Invariant):
    """Who was told by a bookmark how far a watch has come goes on from there when it is cut, though all before was forgotten. Others
    may list meanwhile: who asks once, and caches that are begun just then."""

    hears = frozenset({WORLD})
    seconds = 3.0

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._cuts: list[tuple[float, int]] = []
        self._started: dict[str, float] = {}
        self._hurt = float("-inf")  # when another fault began or ended last

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "started":
            self._started[entry.key] = entry.time
        elif entry.verb == "fault" and entry.key not in ("bookmark", "silence", "clock"):
            self._hurt = entry.time
        elif entry.verb == "cut after a bookmark" and entry.time - self._hurt > 60:
            self._cuts.append((entry.time, self.history.asked))
        return iter(())

    def end(self) -> Iterator[str]:
        for at, first in self._cuts:
            again: dict[str, set[str]] = defaultdict(set)
            last: dict[tuple[str, str], list[str]] = defaultdict(list)  # what somebody has asked of a collection since
            gone = self.history.asked - len(self.history.requests)  # a large world keeps the last ones
            for request in islice(self.history.requests, max(0, first - gone), None):
                if request.time > at + self.seconds:
                    break
                path = request.path.partition("?")[0]
                if request.method == "GET" and self._started.get(request.author, 0.0) < at - 30:
                    last[request.author, path].append(request.path)
            for (author, path), asked in last.items():
                if relisted(asked):
                    again[author].add(path)
            for author, paths in sorted(again.items()):
                yield f"{author} listed {', '.join(sorted(paths))} again after a bookmark at {at:.1f}"
