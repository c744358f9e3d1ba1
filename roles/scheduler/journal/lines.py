"""The lines of a journal. One JSON array a line; the first item says what it is (BEY-REPLAY-01).

    head {...}                          the configuration, random numbers, nominations and assumed pods that all below begins with
    * t channel ref object slot        an object appeared; it is the model of that slot from now on
    + t channel ref change slot        an object appeared, told as its difference from a slot's model
    ~ t channel ref change             it changed
    - t channel ref                    it went
    s                                   what stood there before is told: from here on changes
    a t pod                             a pod's turn; "u t" where its long decision went on
    d verdict node nominated victims rule score message
                                        what was decided
    others                              see `Operation`

`t` is Unix time in seconds, 0 for the time of the line before. `ref` numbers objects; pods are told by it, or by their UID.
"""

from __future__ import annotations

import gzip
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec

from koord.decisions.deltas import Obj, applied, difference
from koord.decisions.record import Record
from roles.scheduler.cluster.podinfo import PodInfo

FORMAT = 1
_MODELS = 4096


class Operation(StrEnum):
    """What happened beside changes of objects."""

    ATTEMPT = "a"  # a pod's turn
    WENT_ON = "u"  # a long decision goes on with what has happened meanwhile
    NOTHING = "n"  # nobody was next
    WORK = "w"  # long work before the next pod was done
    TICK = "t"  # time has passed: leading or not
    FLUSH = "f"  # pods that lay for too long were let in
    BOUND = "b"  # a binding ended: pod, outcome, code, plugin, message
    FOUND = "r"  # a pod was read back: what was found
    ANSWERED = "e"  # a victim was asked to leave: answer
    SEEN = "l"  # a victim was read back: leaving or not, null for unknown
    RESIZES = "z"  # room was looked for, for resizes that wait
    PLACES = "p"  # lasting placements were shown on their pods
    OUTSIDE = "x"  # a pod's turn, decided with extenders: cannot be decided again


class Change(msgspec.Struct, frozen=True, gc=False):
    """An object appeared, changed or went; both None are not told."""

    now: float
    channel: str
    old: Any
    new: Any


class Happening(msgspec.Struct, frozen=True, gc=False):
    """An operation. `uid` is the pod's, "" where there is none."""

    now: float
    what: Operation
    uid: str = ""
    more: tuple[Any, ...] = ()


class Made(NamedTuple):
    """A decision, before anything came of it. `victims` are UIDs; `nominated` None leaves the pod's nomination."""

    verdict: str
    node: str = ""
    nominated: str | None = None
    victims: tuple[str, ...] = ()


class Decided(msgspec.Struct, frozen=True, gc=False):
    """What was decided at a pod's turn, and by what. `message` is a checksum; 0 where rule, score and message are not known, because
    Reserve or Permit spoke before they were recorded."""

    made: Made
    rule: str = ""
    score: float = 0.0
    message: int = 0

    @classmethod
    def of(cls, made: Made, record: Record) -> Decided:
        """From a decision and its record."""
        if record.verdict != made.verdict:
            return cls(made)
        return cls(made, record.rule, float(record.numbers.get("score", 0.0)), zlib.crc32(record.message.encode()) or 1)


class Beginning(msgspec.Struct, frozen=True, gc=False):
    """A journal begins here, and so does a file: the head, and every object that stands there."""

    head: Obj
    objects: tuple[tuple[str, Any], ...] = ()


Item = Change | Happening | Decided | Beginning


def key_of(obj: Any) -> tuple[str, str]:
    """Namespace and name of a projection, or of a dict."""
    if isinstance(obj, dict):
        meta = obj.get("metadata") or {}
        return meta.get("namespace", ""), meta.get("name", "")
    return obj.metadata.namespace, obj.metadata.name


def _plain(obj: Any) -> Any:
    return obj.pod if isinstance(obj, PodInfo) else obj


def _owner(obj: Any) -> str:
    owners = () if isinstance(obj, dict) else obj.metadata.owner_references
    return owners[0].uid if owners else ""


class Encoder:
    """Items to lines, in order. A beginning forgets everything before it."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._reset()

    def _reset(self) -> None:
        self._refs: dict[tuple[str, tuple[str, str]], int] = {}
        self._pods: dict[str, int] = {}
        self._models: OrderedDict[tuple[str, str, str], tuple[int, Any]] = OrderedDict()
        self._next = 0
        self._time = 0.0

    def lines(self, items: list[Any]) -> bytes:
        """The lines of some items."""
        parts: list[Any] = []
        for item in items:
            parts += self._of(item)
        return b"".join(self._encode(part) + b"\n" for part in parts)

    def _of(self, item: Item) -> list[Any]:
        if isinstance(item, Change):
            found = self._change(item)
            return [found] if found is not None else []
        if isinstance(item, Happening):
            now = self._at(item.now)
            return [(item.what, now, self._pods.get(item.uid, item.uid), *item.more) if item.uid or item.more else (item.what, now)]
        if isinstance(item, Decided):
            made = item.made
            victims = [self._pods.get(uid, uid) for uid in made.victims]
            return [["d", made.verdict, made.node, made.nominated, victims, item.rule, item.score, item.message]]
        self._reset()
        now = item.head["time"]
        assumed = [change for channel, obj in item.objects if (change := self._change(Change(now, channel, None, obj))) is not None]
        return [["head", item.head], *assumed, ["s"]]

    def _at(self, now: float) -> float | int:
        if now == self._time:
            return 0
        self._time = now
        return now

    def _change(self, change: Change) -> list[Any] | None:
        old, new, channel = _plain(change.old), _plain(change.new), change.channel
        known = new if new is not None else old
        name = (channel, key_of(known))
        now = self._at(change.now)
        if new is None:
            ref = self._refs.pop(name, None)
            if isinstance(change.old, PodInfo):
                self._pods.pop(change.old.uid, None)
            return None if ref is None else ["-", now, channel, ref]
        ref = self._refs.get(name)
        if isinstance(change.old, PodInfo) and ref is not None and change.old.uid != change.new.uid:
            self._pods.pop(change.old.uid, None)
        changed = ref is not None and old is not None and type(old) is type(new)
        if ref is None:
            ref = self._refs[name] = self._next
            self._next += 1
        if isinstance(change.new, PodInfo):
            self._pods[change.new.uid] = ref
        return ["~", now, channel, ref, difference(old, new)] if changed else self._appeared(now, channel, ref, new)

    def _appeared(self, now: float, channel: str, ref: int, new: Any) -> list[Any]:
        kind = (channel, key_of(new)[0], _owner(new))
        model = self._models.get(kind)
        if model is not None:
            return ["+", now, channel, ref, difference(model[1], new), model[0]]
        slot = len(self._models) if len(self._models) < _MODELS else self._models.popitem(last=False)[1][0]
        self._models[kind] = (slot, new)
        return ["*", now, channel, ref, new, slot]


@dataclass(slots=True)
class Told:
    """An object's change as read: `obj` is plain data, None where it went."""

    now: float
    channel: str
    key: tuple[str, str]
    obj: Obj | None


@dataclass(slots=True)
class Decoder:
    """Lines to items. Keeps every object that stands."""

    objects: dict[tuple[str, int], Obj] = field(default_factory=dict)
    _models: dict[int, Obj] = field(default_factory=dict)
    _time: float = 0.0

    def item(self, line: list[Any]) -> Obj | Told | Happening | Decided | None:
        """The item of a line: a head as plain data, None for the end of what stood there. Raises ValueError."""
        what = line[0]
        if what == "head":
            self.objects.clear()
            self._models.clear()
            self._time = 0.0
            return cast(Obj, line[1])
        if what == "s":
            return None
        if what == "d":
            _, verdict, node, nominated, victims, rule, score, message = line
            return Decided(Made(verdict, node, nominated, tuple(map(self.uid, victims))), rule, score, message)
        self._time = line[1] or self._time
        if what in ("*", "+", "~", "-"):
            return self._told(what, *line[2:])
        operation = Operation(what)
        return Happening(self._time, operation, self.uid(line[2]) if len(line) > 2 else "", tuple(line[3:]))

    def uid(self, pod: int | str) -> str:
        """The UID that a line tells."""
        return pod if isinstance(pod, str) else str(self.objects["Pod", pod]["metadata"].get("uid", ""))

    def _told(self, what: str, channel: str, ref: int, body: Obj | None = None, slot: int = 0) -> Told:
        where = (channel, ref)
        if what == "-":
            return Told(self._time, channel, key_of(self.objects.pop(where)), None)
        assert body is not None
        if what == "*":
            self._models[slot] = body
        elif what == "+":
            body = applied(self._models[slot], body)
        else:
            body = applied(self.objects[where], body)
        self.objects[where] = body
        return Told(self._time, channel, key_of(body), body)


def read(path: Path) -> Iterator[Obj | Told | Happening | Decided | None]:
    """The items of a file of a journal. Raises ValueError with file and line for a line that is none, OSError.

    A last line without an end, which a crash leaves, is none and no mistake.
    """
    decoder, decode = Decoder(), msgspec.json.Decoder(list[Any]).decode
    with cast("IO[bytes]", gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb")) as file:
        for number, line in enumerate(file, 1):
            try:
                yield decoder.item(decode(line))
            except (msgspec.DecodeError, LookupError, TypeError, ValueError, AssertionError) as error:
                if not line.endswith(b"\n"):
                    return
                raise ValueError(f"{path}, line {number}: {error!s:.200}: not a line of a scheduler's journal") from error
