"""Before, ours, now: what of a file is the agent's to put back, and what others changed since (BEY-JRN-01). Pure.

A file is one value, or one value a line, word or disk (`resctrl`, `sched_features`, `blkio`); each is judged by itself. What is neither
the value before nor one of ours was set by somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from koord.accounting.cpuset import CPUSet, CPUSetError
from roles.koordlet.actuation import disklines
from roles.koordlet.actuation.values import same


class Undo(StrEnum):
    """How a file is put back."""

    WRITE = "write"
    LINES = "lines"
    """Line by line, as resctrl takes it."""
    WORDS = "words"
    """Word by word (sched_features)."""
    DEVICES = "devices"
    """A line a disk (blkio); disks that had no line are set to 0."""
    REPLACE = "replace"
    """The agent replaced a whole file of its own kind."""
    UNMOUNT = "unmount"
    """The agent mounted it."""
    REMOVE = "remove"
    """The agent made the file."""
    REMOVE_DIRECTORY = "rmdir"
    """The agent made the directory (a resctrl group: its tasks fall back to the root group)."""
    NETWORK = "network"
    """The agent shapes a NIC; the value is what its root qdisc was."""
    COOKIES = "cookies"
    """The agent gave the processes of a group a core scheduling cookie."""


@dataclass(slots=True)
class Back:
    """What to write, in order, so that a file says again what it said before; and what others changed since, which stays."""

    texts: list[str] = field(default_factory=list)
    theirs: list[str] = field(default_factory=list)


def means(resource: str, current: str, wanted: str) -> bool:
    """Whether two texts of a file that holds one value mean the same. Several fields (cpu.max) are compared as they stand."""
    have, want = current.split(), wanted.split()
    return have == want or (len(have) == len(want) == 1 and same(resource, have[0], want[0]))


def put_back(undo: Undo, resource: str, before: str, ours: tuple[str, ...] | None, now: str) -> Back:
    """``ours`` is what the agent may have written last; None where nobody noted it: then everything that differs is put back."""
    if undo is Undo.LINES:
        return _lines(before, ours, now)
    if undo is Undo.WORDS:
        had, have = before.split(), now.split()
        return Back([w for w in had if w not in have and (ours is None or any(_feature(w) == _feature(o) for o in ours))])
    if undo is Undo.DEVICES:
        return _disks(resource, before, ours, now)
    if means(resource, now, before):
        return Back()
    if ours is None or _half_written(resource, now) or any(means(resource, now, o) for o in ours):
        return Back([before])
    return Back(theirs=[now])


def before_by_now(undo: Undo, resource: str, before: str, ours: tuple[str, ...] | None, now: str) -> str:
    """What a file is to get back one day, given what it holds at this moment: a value from outside is the new value before."""
    if ours is None:
        return before
    if undo is Undo.LINES:
        return _lines_before(before, ours, now)
    if undo is Undo.WORDS:
        mine, had = {_feature(o) for o in ours}, {_feature(w): w for w in before.split()}
        return " ".join(had.get(_feature(w), w) if _feature(w) in mine else w for w in now.split())
    if undo is Undo.DEVICES:
        had = disklines.by_disk(before)
        kept = {disk: had.get(disk) for disk in map(_disk, ours) if _says_ours(resource, ours, now, disk)}
        lines = {**disklines.by_disk(now), **kept}
        return "\n".join(f"{disk} {rest}" for disk, rest in lines.items() if rest is not None)
    still = _half_written(resource, now) or means(resource, now, before) or any(means(resource, now, o) for o in ours)
    return before if still or (undo is Undo.WRITE and not _held(resource, now)) else now


def _held(resource: str, text: str) -> bool:
    """Whether a kernel file of one value can hold a text: what it cannot hold was never there to be put back."""
    if resource == "cpuset.cpus":
        try:
            CPUSet.parse(text.strip())
        except CPUSetError:
            return False
        return True
    return all(word == "max" or (word.removeprefix("-").isdecimal() and abs(int(word)) < 1 << 64) for word in text.split())


def _half_written(resource: str, now: str) -> bool:
    """Whether a file is empty that never is: a writer was killed between emptying and writing a plain file."""
    return not now.strip() and resource != "cpuset.cpus"


def assumed_ours(undo: Undo, now: str) -> tuple[str, ...]:
    """What to take for ours where an earlier version noted nothing: what stands there."""
    if undo is Undo.WORDS:
        return tuple(now.split())
    return tuple(line.strip() for line in now.splitlines()) if undo in (Undo.LINES, Undo.DEVICES) else (now,)


def with_ours(undo: Undo, ours: tuple[str, ...] | None, text: str, *, done: bool) -> tuple[str, ...]:
    """What may stand there once ``text`` is being written (or, ``done``, was written). Bounded by the lines of the file."""
    key = _key(undo, text)
    others = tuple(o for o in ours or () if _key(undo, o) != key)
    if done:
        return (*others, text)
    return (*others, *[o for o in ours or () if _key(undo, o) == key and o != text][-2:], text)


def _key(undo: Undo, text: str) -> object:
    if undo is Undo.LINES:
        return tuple(sorted(schemata(text)))
    if undo is Undo.WORDS:
        return _feature(text.strip())
    if undo is Undo.DEVICES:
        disk, _, rest = text.strip().partition(" ")
        return disk, tuple(sorted(part.partition("=")[0] for part in rest.split())) if "=" in rest else ()
    return ""


# -- resctrl -----------------------------------------------------------------------------------------------------------------

_Cell = tuple[str, str]
"""Resource and cache id."""


def schemata(text: str) -> dict[_Cell, str]:
    """Values by resource and cache id, in one spelling."""
    out: dict[_Cell, str] = {}
    for line in text.splitlines():
        label, colon, domains = line.strip().partition(":")
        for part in domains.split(";") if colon else ():
            domain, equals, value = part.partition("=")
            if equals:
                out[label.strip(), domain.strip()] = value.strip().lower().lstrip("0") or "0"
    return out


def _ours_of(ours: tuple[str, ...]) -> dict[_Cell, set[str]]:
    out: dict[_Cell, set[str]] = {}
    for line in ours:
        for cell, value in schemata(line).items():
            out.setdefault(cell, set()).add(value)
    return out


def _lines(before: str, ours: tuple[str, ...] | None, now: str) -> Back:
    had, have = schemata(before), schemata(now)
    if ours is None:
        # the last line of a label is the one in force
        current = {line.partition(":")[0].strip(): line.strip() for line in now.splitlines()}
        lines = [line.strip() for line in before.splitlines() if line.strip()]
        return Back([line for line in lines if current.get(line.partition(":")[0].strip()) != line])
    back = Back()
    wanted: dict[str, list[str]] = {}
    for (label, domain), values in _ours_of(ours).items():
        value, old = have.get((label, domain)), had.get((label, domain))
        if old is None or value is None or value == old:
            continue
        if value in values:
            wanted.setdefault(label, []).append(f"{domain}={old}")
        else:
            back.theirs.append(f"{label}:{domain}={value}")
    back.texts = [f"{label}:{';'.join(parts)}" for label, parts in wanted.items()]
    return back


def _lines_before(before: str, ours: tuple[str, ...], now: str) -> str:
    had, mine = schemata(before), _ours_of(ours)
    out: dict[str, list[str]] = {}
    for cell, value in schemata(now).items():
        old = had.get(cell, value) if value in mine.get(cell, ()) else value
        out.setdefault(cell[0], []).append(f"{cell[1]}={old}")
    return "\n".join(f"{label}:{';'.join(parts)}" for label, parts in out.items())


# -- words and disks ---------------------------------------------------------------------------------------------------------


def _feature(word: str) -> str:
    return word.removeprefix("NO_")


def _disk(line: str) -> str:
    return line.strip().partition(" ")[0]


def _says_ours(resource: str, ours: tuple[str, ...], now: str, disk: str) -> bool:
    return any(_disk(o) == disk and disklines.says(resource, now, o) for o in ours)


def _disks(resource: str, before: str, ours: tuple[str, ...] | None, now: str) -> Back:
    old, current = disklines.by_disk(before), disklines.by_disk(now)
    if ours is None:
        lines = [f"{disk} {rest}" for disk, rest in old.items() if not disklines.says(resource, now, f"{disk} {rest}")]
        return Back(lines + [disklines.without(resource, disk) for disk in current if disk not in old])
    back = Back()
    for disk in dict.fromkeys(map(_disk, ours)):
        line = f"{disk} {old[disk]}" if disk in old else disklines.without(resource, disk)
        if disklines.says(resource, now, line) or (disk not in old and disk not in current):
            continue
        if _says_ours(resource, ours, now, disk):
            back.texts.append(line)
        else:
            back.theirs.append(f"{disk} {current.get(disk, '')}".strip())
    return back
