"""Putting everything back that the agent changed on this machine (BEY-JRN-01, ``koord koordlet --restore``).

The journal says what each file held before the agent first wrote it. Values grow from parent to child and shrink from child to
parent; what the kernel refuses because of another file that is still to be put back is tried again while that helps.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from roles.koordlet.actuation import disklines, kernel
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.journal import NAME, Entry, Journal, JournalError, Undo, identity
from roles.koordlet.actuation.values import MERGE_OF, merged, same
from roles.koordlet.host.root import HostRoot

log = logging.getLogger(__name__)

_PASSES = 5


@dataclass(slots=True)
class Restored:
    """What became of a journal's entries; paths."""

    restored: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    failed: list[WriteError] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{len(self.restored)} files put back, {len(self.unchanged)} as they were, {len(self.gone)} gone"
        return f"{counts}, {len(self.failed)} failed"


def journal_path(root: HostRoot) -> str:
    """Where this machine's journal is."""
    return os.path.join(root.var_run, "koordlet", NAME)


def holds_path(root: HostRoot) -> str:
    """Where the record of held files is; all of them are in the journal too."""
    return f"{journal_path(root)}.holds"


def restore(root: HostRoot) -> Restored:
    """Put back what the journal of this machine says and empty it. No journal: nothing to do. Raises JournalError."""
    journal = Journal(journal_path(root))
    if not os.path.exists(journal.path):
        return Restored()
    journal.load()
    entries = list(journal)
    result = put_back(entries, allowed=root.machine_directories)
    failed = {error.path for error in result.failed}
    journal.keep_only(e for e in entries if e.path in failed)
    journal.close()
    if not failed:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(holds_path(root))
    return result


def put_back(entries: Iterable[Entry], *, allowed: Iterable[str] = ("/",)) -> Restored:
    """Write the old values of ``entries``; only files below one of the ``allowed`` directories are touched."""
    result = Restored()
    roots = tuple(a.rstrip("/") + "/" for a in allowed)
    values: list[Entry] = []
    others: list[Entry] = []
    for entry in entries:
        if not os.path.normpath(entry.path).startswith(roots):
            result.failed.append(WriteError(Trouble.OTHER, entry.path, "lies outside this machine's directories"))
        elif not os.path.lexists(entry.path) or (entry.inode and identity(entry.path) != entry.inode):
            result.gone.append(entry.path)
        elif entry.undo in (Undo.WRITE, Undo.REPLACE):
            values.append(entry)
        else:
            others.append(entry)
    _values(values, result)
    last = (Undo.REMOVE, Undo.REMOVE_DIRECTORY, Undo.UNMOUNT)
    for entry in sorted(others, key=lambda e: (last.index(e.undo) if e.undo in last else -1, -e.path.count("/"))):
        _other(entry, result)
    return result


def _values(entries: list[Entry], result: Restored) -> None:
    """Whole values, in passes: down with what grows, up with the rest, again while something still gets through."""
    open_entries = {e.path: e for e in sorted(entries, key=lambda e: (e.path.count("/"), e.path))}
    changed: set[str] = set()
    errors: dict[str, WriteError] = {}
    for _ in range(_PASSES):
        before = len(open_entries)
        for entry in list(open_entries.values()):
            _grow(entry, changed)
        for entry in reversed(list(open_entries.values())):
            try:
                if _finish(entry):
                    changed.add(entry.path)
            except WriteError as error:
                errors[entry.path] = error
                continue
            errors.pop(entry.path, None)
            del open_entries[entry.path]
            (result.restored if entry.path in changed else result.unchanged).append(entry.path)
        if not open_entries or len(open_entries) == before:
            break
    for path in open_entries:
        if errors[path].trouble is Trouble.GONE:
            result.gone.append(path)
        else:
            result.failed.append(errors[path])


def _grow(entry: Entry, changed: set[str]) -> None:
    rule = MERGE_OF.get(entry.resource)
    if rule is None or not entry.value.strip():
        return
    try:
        text = merged(rule, kernel.read(entry.path), entry.value)
        if text is not None:
            kernel.write(entry.path, text)
            changed.add(entry.path)
    except (WriteError, ValueError) as error:
        # the way up says whether it matters
        log.debug("%s cannot grow yet: %s", entry.path, error)


def _finish(entry: Entry) -> bool:
    """Whether the file had to be written."""
    current = kernel.read(entry.path)
    resource = entry.resource if len(entry.value.split()) == 1 else ""
    if current == entry.value or (entry.value.strip() and same(resource, current, entry.value)):
        return False
    if entry.undo is Undo.REPLACE:
        kernel.replace_file(entry.path, entry.value)
    else:
        kernel.write(entry.path, entry.value)
    return True


def _other(entry: Entry, result: Restored) -> None:
    try:
        if entry.undo is Undo.UNMOUNT:
            kernel.unmount(entry.path)
        elif entry.undo is Undo.REMOVE:
            kernel.change_own(entry.path, False, directory=False)
        elif entry.undo is Undo.REMOVE_DIRECTORY:
            kernel.change_own(entry.path, False, directory=True)
        else:
            current = kernel.read(entry.path)
            lines = _missing(entry, current)
            for line in lines:
                kernel.append_line(entry.path, line)
            if not lines:
                result.unchanged.append(entry.path)
                return
    except WriteError as error:
        if error.trouble is Trouble.GONE:
            result.gone.append(entry.path)
        else:
            result.failed.append(error)
        return
    result.restored.append(entry.path)


def _missing(entry: Entry, current: str) -> list[str]:
    """The lines or words to write so that the file says again what it said."""
    if entry.undo is Undo.WORDS:
        return [w for w in entry.value.split() if w not in current.split()]
    if entry.undo is Undo.LINES:
        # the last line of a label is the one in force
        now = {line.partition(":")[0].strip(): line.strip() for line in current.splitlines()}
        old_lines = [line.strip() for line in entry.value.splitlines() if line.strip()]
        return [line for line in old_lines if now.get(line.partition(":")[0].strip()) != line]
    if entry.undo is Undo.DEVICES:
        return _disk_lines(entry, current)
    have = {line.strip() for line in current.splitlines()}
    return [line.strip() for line in entry.value.splitlines() if line.strip() and line.strip() not in have]


def _disk_lines(entry: Entry, current: str) -> list[str]:
    """Old lines of disks that say something else now, and nothing for disks that had no line."""
    old = disklines.by_disk(entry.value)
    lines = [f"{disk} {rest}" for disk, rest in old.items() if not disklines.says(entry.resource, current, f"{disk} {rest}")]
    return lines + [disklines.without(entry.resource, disk) for disk in disklines.by_disk(current) if disk not in old]


__all__ = ["JournalError", "Restored", "journal_path", "put_back", "restore"]
