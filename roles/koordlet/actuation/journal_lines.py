"""Lines of the journal: ``<crc32> <json>``. Pure.

Version 2 is an object. A line with ``before`` is all that is known of a place, one with ``ours`` alone says what is being written there.
Version 1 was a list ``[path, value, undo, resource, inode]`` with the path as its process saw it. Lines of other versions are not
understood and are kept as they are.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import orjson

from roles.koordlet.actuation.places import NOTHING, Base, FileId, Place
from roles.koordlet.actuation.threeway import Undo

VERSION = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One file that the agent writes. ``path`` is where this process sees it; ``value`` is what it held before.

    ``inode`` is its identity (:func:`~roles.koordlet.actuation.places.identity`), 0 when it says nothing (sysctl). ``ours`` is what the
    agent may have written last, None where nobody noted it.
    """

    path: str
    value: str
    undo: Undo = Undo.WRITE
    resource: str = ""
    inode: int = 0
    ours: tuple[str, ...] | None = None
    device: int = 0
    tree: FileId = NOTHING
    """Of the mount that the file is in."""
    boot: str = ""
    owner: str = ""
    """The strategy or hook that wrote it first."""
    time: float = 0.0
    """When that was (Unix seconds)."""
    place: Place | None = None
    foreign: str = ""
    """The path as the process saw it that wrote a line without a place."""
    now: str | None = None
    """What the file holds at this moment; not on disk."""
    kubelet: str = ""
    """The CPUs that a kubelet with the static policy gave the container, whatever the file held."""
    container: tuple[str, str] | None = None
    """The pod's uid and the container's name, where ``kubelet`` is known."""


@dataclass(frozen=True, slots=True)
class Ours:
    """What may stand at a place from now on."""

    place: Place
    ours: tuple[str, ...]


def encode(entry: Entry) -> bytes:
    place = entry.place or Place(Base.ABSOLUTE, entry.path)
    if entry.foreign and entry.tree == NOTHING:
        place = Place(Base.ABSOLUTE, entry.foreign)  # not found yet: whoever reads it under other mounts looks again
    static = {"kubelet": [entry.kubelet, *entry.container]} if entry.kubelet and entry.container else {}
    return _line(
        {
            "v": VERSION,
            "at": [place.base, place.path],
            **static,
            "before": entry.value,
            "ours": entry.ours,
            "undo": entry.undo,
            "resource": entry.resource,
            "file": [entry.device, entry.inode],
            "tree": entry.tree,
            "boot": entry.boot,
            "owner": entry.owner,
            "time": round(entry.time, 3),
        }
    )


def encode_ours(place: Place, ours: tuple[str, ...]) -> bytes:
    return _line({"v": VERSION, "at": [place.base, place.path], "ours": ours})


def _line(body: Any) -> bytes:
    data = orjson.dumps(body)
    return b"%08x %s\n" % (zlib.crc32(data), data)


def decode(line: bytes) -> Entry | Ours | None:
    """None: damaged, or of a version that is not known."""
    crc, _, body = line.partition(b" ")
    try:
        if int(crc, 16) != zlib.crc32(body):
            return None
        found = orjson.loads(body)
        if isinstance(found, list):
            return _first_version(*found)
        return _second_version(found) if found["v"] == VERSION else None
    except (ValueError, TypeError, KeyError):
        return None


def _first_version(path: Any, value: Any, undo: Any, resource: Any, inode: Any) -> Entry | None:
    if not _is((path, value, resource), str) or not _is((inode,), int) or not path:
        return None
    return Entry(path, value, Undo(undo), resource, inode, ours=None, foreign=path)


def _second_version(found: dict[str, Any]) -> Entry | Ours | None:
    base, path = found["at"]
    place, ours = Place(Base(base), path), found["ours"]
    texts = ours if isinstance(ours, list) else ()
    if not _is((path, *texts), str) or not (ours is None or isinstance(ours, list)):
        return None
    if "before" not in found:
        return None if ours is None else Ours(place, tuple(ours))
    (device, inode), tree = found["file"], found["tree"]
    kubelet, uid, container = found.get("kubelet") or ("", "", "")
    strings = (found["before"], found["resource"], found["boot"], found["owner"], kubelet, uid, container)
    if not _is(strings, str) or not _is((device, inode, *tree), int) or len(tree) != 2 or not _is((found["time"],), (int, float)):
        return None
    return Entry(
        path,
        found["before"],
        Undo(found["undo"]),
        found["resource"],
        inode,
        ours=None if ours is None else tuple(ours),
        device=device,
        tree=(tree[0], tree[1]),
        boot=found["boot"],
        owner=found["owner"],
        time=float(found["time"]),
        place=place,
        foreign=path if place.base is Base.ABSOLUTE else "",
        kubelet=kubelet,
        container=(uid, container) if kubelet else None,
    )


def _is(values: tuple[Any, ...], kind: type | tuple[type, ...]) -> bool:
    return all(isinstance(value, kind) for value in values)
