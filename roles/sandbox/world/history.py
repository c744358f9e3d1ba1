"""What happened in a world: every write to the API server with its author, and what the world itself did."""

from __future__ import annotations

import contextvars
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from koord.apiserver.store import Event
    from koord.decisions.record import Record

Obj = dict[str, Any]

AUTHOR: contextvars.ContextVar[tuple[str, str]] = contextvars.ContextVar("koord.world.author", default=("apiserver", ""))
"""Who sent the request that is being served, and the request ("PATCH /api/v1/…")."""
HEADER = "X-Koord-World"
FILE = "file"
"""The bucket of writes to files of hosts."""
LEASE = "lease.coordination.k8s.io"

_NOISE = ("managedFields",)
# keys and certificates are made by a library with randomness of its own
_KEYS = frozenset(
    {
        "secret",
        "mutatingwebhookconfiguration.admissionregistration.k8s.io",
        "validatingwebhookconfiguration.admissionregistration.k8s.io",
    }
)


@dataclass(slots=True)
class Entry:
    """One thing that happened. `bucket` is a stored resource ("pods"), or "" for what the world did.

    `old` and `new` are the object before and after; None where there is none.
    """

    number: int
    time: float
    author: str
    request: str
    bucket: str
    verb: str  # ADDED, MODIFIED, DELETED; or what the world did
    key: str  # namespace/name
    old: Obj | None = None
    new: Obj | None = None
    text: str = ""

    @property
    def obj(self) -> Obj:
        """The object as it is now, or as it was last."""
        return self.new if self.new is not None else (self.old or {})


class Request(NamedTuple):
    """One request that reached the API server."""

    time: float
    author: str
    method: str
    path: str


@dataclass(slots=True)
class History:
    """The entries in order, and the objects as they are now by bucket and key."""

    clock: Callable[[], float]
    entries: list[Entry] | deque[Entry] = field(default_factory=list)
    objects: dict[str, dict[str, Obj]] = field(default_factory=dict)
    watchers: list[Callable[[Entry], None]] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)  # names of the programs that were started
    requests: list[Request] | deque[Request] = field(default_factory=list)
    records: list[tuple[float, str, Record]] | deque[tuple[float, str, Record]] = field(default_factory=list)  # when, whose, which
    ailments: Callable[[], list[tuple[str, str]]] = list  # what is wrong inside the processes now: whose, what
    heard: dict[tuple[str, str], float] = field(default_factory=dict)  # when a process was told of a collection last
    behind: dict[tuple[str, str], float] = field(default_factory=dict)  # when more of a collection waited for a slow process last
    version: int = 0  # the last one that was given out
    led: dict[str, float] = field(default_factory=dict)  # by the name of a lease: when its holder took it
    wiped: float = float("-inf")  # when the API server lost all that it knew
    pace: float = 1.0  # how many times as long as usual it takes until a node reports its use again
    profiles: str = "load"  # what deschedulers run (configuration.PROFILES)
    count: int = 0  # of entries so far
    asked: int = 0  # of requests so far
    placed: dict[str, dict[str, Obj]] = field(default_factory=dict)  # pods that hold something of a node: by node and key
    _digest: Any = field(default_factory=hashlib.sha256)

    def thin(self, entries: int) -> None:
        """Keep so many entries and no more, and four times as many requests and records: an entry holds two objects."""
        self.entries, self.requests, self.records = deque(maxlen=entries), deque(maxlen=entries * 4), deque(maxlen=entries * 4)

    def of(self, bucket: str) -> dict[str, Obj]:
        """Objects of a stored resource by "namespace/name"."""
        return self.objects.setdefault(bucket, {})

    def on_store(self, event: Event) -> None:
        """One write to the store, as a listener of it."""
        author, request = AUTHOR.get()
        entry = event.entry
        bucket = entry_bucket(entry.obj)
        key = f"{entry.namespace}/{entry.name}" if entry.namespace else entry.name
        table = self.of(bucket)
        old = table.get(key)
        new = None if event.type == "DELETED" else entry.obj
        if new is None:
            table.pop(key, None)
        else:
            table[key] = new
        if bucket == "pod":
            self._place(key, old, new)
        elif bucket == LEASE and _holder(new) not in ("", _holder(old)):
            self.led[entry.name] = self.clock()
        self.version = max(self.version, event.rv)
        self._add(Entry(self.count, self.clock(), author, request, bucket, event.type, key, old, new))

    def _place(self, key: str, old: Obj | None, new: Obj | None) -> None:
        before, after = holds(old), holds(new)
        if before and before != after:
            self.placed[before].pop(key, None)
        if after:
            self.placed.setdefault(after, {})[key] = new or {}

    def requested(self, author: str, method: str, path: str) -> None:
        """A request has reached the API server."""
        self.asked += 1
        self.requests.append(Request(self.clock(), author, method, path))

    def wipe(self) -> None:
        """The API server has lost everything."""
        self.objects.clear()
        self.placed.clear()
        self.version, self.wiped = 0, self.clock()
        self.tell("wiped", "apiserver", "everything that was stored is gone")

    def tell(self, verb: str, key: str, text: str = "", body: Obj | None = None) -> None:
        """What the world does: faults, crashes, phases, how hosts are."""
        self._add(Entry(self.count, self.clock(), "world", "", "", verb, key, None, body, text))

    def file(
        self, node: str, path: str, author: str, cause: str, before: str, after: str, *, age: float, full: bool, refused: str = ""
    ) -> None:
        """A write to a file of a host's kernel, which may be `refused`; `cause` is the rule that asked for it.

        `age`: seconds since the agent last read how busy the node is; `full`: the disk of the host is.
        """
        verb, key = "REFUSED" if refused else "WRITTEN", f"{node}/{path}"
        old, new = {"value": before}, {"value": after, "age": age, "full": full}
        self._add(Entry(self.count, self.clock(), author, cause, FILE, verb, key, old, new, refused))

    def gone(self, node: str, group: str) -> None:
        """A cgroup of a host with all its files is no more."""
        self._add(Entry(self.count, self.clock(), f"kubelet-{node}", "", FILE, "GONE", f"{node}/{group}"))

    def _add(self, entry: Entry) -> None:
        self.count += 1
        self.entries.append(entry)
        self._digest.update(self.line(entry))
        for watcher in self.watchers:
            watcher(entry)

    @staticmethod
    def line(entry: Entry) -> bytes:
        """An entry as a line of the history: the same bytes for the same seed."""
        body: Any = None
        if entry.new is not None and entry.bucket not in _KEYS:
            meta = {k: v for k, v in entry.new.get("metadata", {}).items() if k not in _NOISE}
            body = {**entry.new, "metadata": meta}
        return orjson.dumps(
            [entry.number, round(entry.time, 6), entry.author, entry.request, entry.bucket, entry.verb, entry.key, body, entry.text],
            option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all lines so far."""
        return str(self._digest.hexdigest())


def holds(pod: Obj | None) -> str:
    """The node of which a pod holds a part; "" when it has none, or has ended."""
    if pod is None or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return ""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _holder(lease: Obj | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def entry_bucket(obj: Obj) -> str:
    """`pods`, `nodes`, `nodemetrics.slo.koordinator.sh` …: the kind in small letters with its group."""
    group, _, _version = str(obj.get("apiVersion", "v1")).rpartition("/")
    kind = str(obj.get("kind", "")).lower()
    return f"{kind}.{group}" if group else kind
