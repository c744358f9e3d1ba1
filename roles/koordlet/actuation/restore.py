"""Putting everything back that the agent changed on this machine (BEY-JRN-01, ``koord koordlet --restore``).

The journal says what each file held before the agent wrote it and what the agent wrote last. Only what holds our value is put back; what
others set since stays theirs. Values grow from parent to child and shrink from child to parent; what the kernel refuses because of
another file that is still to be put back is tried again while that helps.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from koord import seams
from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.checkpoint import CHECKPOINT, followed
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.journal import NAME, Journal, JournalError
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.memsw import LIMIT, MEMSW, swap_limit
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.actuation.threeway import put_back as compared
from roles.koordlet.actuation.values import MERGE_OF, merged, number
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.root import HostRoot

log = logging.getLogger(__name__)

#: Undo what no file can say, and tell what stood against it, "" for nothing: the shaping of a NIC (name, what its root qdisc was), the
#: cookies of the processes that a file lists (its path).
UndoNetwork = Callable[[str, str], str]
UndoCookies = Callable[[str], str]

#: The two files of a group's CPU quota on cgroup v1.
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"
_PASSES = 5
_NO_FILES = (Undo.NETWORK, Undo.COOKIES)
_OWN = (Undo.REMOVE, Undo.REMOVE_DIRECTORY, Undo.UNMOUNT)


@dataclass(slots=True)
class Restored:
    """What became of a journal's entries; paths."""

    restored: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    failed: list[WriteError] = field(default_factory=list)
    theirs: list[WriteError] = field(default_factory=list)
    """Others set them since; they stay."""
    lost: list[WriteError] = field(default_factory=list)
    """Not found, and not known to be gone: this is another machine, or its files are mounted elsewhere."""
    not_understood: int = 0
    """Lines of the journal that are damaged or of a newer version."""

    def __str__(self) -> str:
        counts = f"{len(self.restored)} files put back, {len(self.unchanged)} as they were, {len(self.gone)} gone"
        more = [(len(self.theirs), "changed by others since and left"), (len(self.lost), "not found")]
        return ", ".join([counts, *(f"{count} {what}" for count, what in more if count), f"{len(self.failed)} failed"])

    def refused(self, error: WriteError) -> None:
        """A file that could not be read or written."""
        if error.trouble is Trouble.GONE:
            self.gone.append(error.path)
        else:
            self.failed.append(error)

    @property
    def lines(self) -> list[str]:
        """What an operator should know of single files, worst first."""
        unread = [f"{self.not_understood} lines of the journal are damaged or of a newer version: use that version"]
        return [
            *(f"not found: {error}" for error in self.lost),
            *(f"not put back: {error}" for error in self.failed),
            *(unread if self.not_understood else ()),
            *(f"left unchanged: {error}" for error in self.theirs),
        ]

    @property
    def missed(self) -> bool:
        """Whether nothing of what is on record was found."""
        return bool(self.lost) and not (self.restored or self.unchanged or self.gone or self.theirs)


def journal_path(root: HostRoot) -> str:
    """Where this machine's journal is."""
    return os.path.join(root.var_run, "koordlet", NAME)


def holds_path(root: HostRoot) -> str:
    """Where the record of held files is; all of them are in the journal too."""
    return f"{journal_path(root)}.holds"


def restore(root: HostRoot, network: UndoNetwork | None = None, cookies: UndoCookies | None = None) -> Restored:
    """Put back what the journal of this machine says; what could not be put back stays in it. Raises JournalError."""
    seams.files().because("restore")
    journal = Journal(journal_path(root), root)
    if not os.path.exists(journal.path):
        return Restored()
    journal.load()
    entries = following_kubelet(journal, root)
    result = put_back(entries, allowed=root.machine_directories, journal=journal, network=network, cookies=cookies)
    left = {error.path for error in (*result.failed, *result.lost)}
    journal.keep_only(e for e in entries if e.path in left)
    result.not_understood = len(journal.not_understood)
    journal.close()
    if not left:
        with contextlib.suppress(FileNotFoundError):
            seams.files().unlink(holds_path(root))
    return result


def abandoned(journal: Journal, keepers: Container[str]) -> list[Entry]:
    """What was written by none of those who keep their own in order: by strategies and hooks that are off or only observe, by extensions
    that are gone. Lines of a version that noted no owner are nobody's."""
    return [entry for entry in journal if entry.owner and entry.owner not in keepers]


def give_back(
    journal: Journal, mine: Sequence[Entry], root: HostRoot, network: UndoNetwork | None = None, cookies: UndoCookies | None = None
) -> Restored:
    """Put these entries back; what could not be, stays on record. Raises JournalError."""
    if not mine:
        return Restored()
    seams.files().because("give back")
    entries = following_kubelet(mine, root)
    result = put_back(entries, allowed=root.machine_directories, journal=journal, network=network, cookies=cookies)
    left = {error.path for error in (*result.failed, *result.lost)}
    handled = {entry.path for entry in mine} - left
    journal.keep_only([entry for entry in journal if entry.path not in handled])
    return result


def give_back_unwanted(
    journal: Journal,
    mine: Sequence[Entry],
    root: HostRoot,
    why: str,
    network: UndoNetwork | None = None,
    cookies: UndoCookies | None = None,
) -> None:
    """Put these entries back while the agent runs, and log what became of them; `why` nobody wants them any more."""
    try:
        result = give_back(journal, mine, root, network, cookies)
    except JournalError as error:
        log.error("%s", error)
        return
    if result.restored:
        log.info("given back, for %s: %s", why, ", ".join(result.restored))
    for failed in (*result.failed, *result.lost):
        log.error("cannot be given back, though %s: %s", why, failed)


def following_kubelet(entries: Iterable[Entry], root: HostRoot) -> list[Entry]:
    """Entries with what the kubelet's CPU manager gives containers now in the place of what it gave them when they were written."""
    entries = list(entries)
    if not any(entry.kubelet for entry in entries):
        return entries
    try:
        text = kernel.read(root.kubelet_path(CHECKPOINT))
    except (WriteError, HostError) as error:
        log.debug("containers get the CPUs back that the kubelet gave them once: %s", error)
        return entries
    return list(followed(entries, text.encode()))


def put_back(
    entries: Iterable[Entry],
    *,
    allowed: Iterable[str] = ("/",),
    journal: Journal | None = None,
    network: UndoNetwork | None = None,
    cookies: UndoCookies | None = None,
) -> Restored:
    """Put the old values of ``entries`` back; only files below one of the ``allowed`` directories are touched. ``journal`` knows which
    files are still the same, and is told what is written; ``network`` and ``cookies`` undo what is no file."""
    result = Restored()
    journal = Journal("") if journal is None else journal
    roots = tuple(a.rstrip("/") + "/" for a in allowed)
    values: list[Entry] = []
    others: list[Entry] = []
    for entry in entries:
        if not os.path.normpath(entry.path).startswith(roots):
            result.failed.append(WriteError(Trouble.OTHER, entry.path, "lies outside this machine's directories"))
        elif not journal.found(entry):
            if entry.place is None or journal.gone(entry):
                result.gone.append(entry.path)
            else:
                seen = f" (koordlet saw it as {entry.foreign})" if entry.foreign not in ("", entry.path) else ""
                result.lost.append(WriteError(Trouble.GONE, entry.path, f"is not the file that koordlet changed{seen}"))
        elif entry.undo in (Undo.WRITE, Undo.REPLACE):
            values.append(entry)
        else:
            others.append(entry)
    _values(values, result, journal)
    for entry in sorted(others, key=lambda e: (_OWN.index(e.undo) if e.undo in _OWN else -1, -e.path.count("/"))):
        if entry.undo not in _NO_FILES:
            _other(entry, result, journal)
            continue
        why = "needs koord koordlet --restore"
        if entry.undo is Undo.NETWORK and network is not None:
            why = network(os.path.basename(entry.path), entry.value)
        elif entry.undo is Undo.COOKIES and cookies is not None:
            why = cookies(entry.path)
        if why:
            result.failed.append(WriteError(Trouble.OTHER, entry.path, why))
        else:
            result.restored.append(entry.path)
    return result


def _values(entries: list[Entry], result: Restored, journal: Journal) -> None:
    """Whole values, in passes: down with what grows, up with the rest, again while something still gets through."""
    ours = [entry for entry in entries if _is_ours(entry, result)]
    # the limit of memory and swap together may never be the lesser one: on the way down it comes first, on the way up last
    open_entries = {e.path: e for e in sorted(ours, key=lambda e: (e.path.count("/"), os.path.dirname(e.path), e.resource != MEMSW))}
    errors: dict[str, WriteError] = {}
    for _ in range(_PASSES):
        before = len(open_entries)
        for entry in list(open_entries.values()):
            _grow(entry, journal)
        for entry in reversed(list(open_entries.values())):
            try:
                _finish(entry, journal)
            except WriteError as error:
                errors[entry.path] = error
                continue
            errors.pop(entry.path, None)
            del open_entries[entry.path]
            result.restored.append(entry.path)
        if not open_entries or len(open_entries) == before:
            break
    for path, entry in open_entries.items():
        if errors[path].trouble is Trouble.GONE:
            result.gone.append(path)
        elif (nearest := _nearest_quota(entry, journal)) is not None:
            said = f"holds {nearest}, the nearest to be had beside what others set around it; before koordlet it held {entry.value[:80]!r}"
            result.theirs.append(WriteError(Trouble.OTHER, path, said))
        elif os.path.join(os.path.dirname(path), LIMIT) not in open_entries and (least := _least_with_swap(entry, journal)) is not None:
            said = f"holds {least}, the memory limit that was put back; others set {entry.value[:80]!r} beside koordlet's lower one"
            result.theirs.append(WriteError(Trouble.OTHER, path, said))
        else:
            result.failed.append(errors[path])


def _nearest_quota(entry: Entry, journal: Journal) -> int | None:
    """Write the quota (µs) that comes nearest to the one before where the kernel refuses that one: a group of cgroup v1 may not have more
    than the one above it, and somebody has changed one of them meanwhile. None where that is not the reason, or fails too."""
    if entry.resource != QUOTA:
        return None
    directory = os.path.dirname(entry.path)
    try:
        wanted, period = int(entry.value), _number(directory, PERIOD)
        inner = [os.path.join(directory, name) for name in os.listdir(directory) if os.path.isdir(os.path.join(directory, name))]
        least = max((_number(group, QUOTA) * period // _number(group, PERIOD) for group in inner), default=-1)
        above = os.path.dirname(directory)
        most = _number(above, QUOTA) * period // _number(above, PERIOD)
        nearest = max(wanted, least) if wanted > 0 else least
        nearest = min(nearest, most) if most > 0 else nearest
        if nearest <= 0 or nearest == wanted:
            return None
        _write(entry, str(nearest), journal)
    except (WriteError, OSError, ValueError, ZeroDivisionError) as error:
        log.debug("%s: no quota comes near: %s", entry.path, error)
        return None
    return nearest


def _least_with_swap(entry: Entry, journal: Journal) -> str | None:
    """Write the least limit of memory and swap together that the kernel takes, where the one before is below the memory limit: a runtime
    set it to the lower limit that koordlet had given. None where that is not the reason, or fails too."""
    if entry.resource != MEMSW:
        return None
    try:
        limit = kernel.read(os.path.join(os.path.dirname(entry.path), LIMIT)).strip()
        if number(entry.value) >= number(limit):
            return None
        if kernel.read(entry.path).strip() != limit:
            _write(entry, limit, journal)
    except (WriteError, ValueError) as error:
        log.debug("%s: the memory limit is refused, too: %s", entry.path, error)
        return None
    return limit


def _number(directory: str, name: str) -> int:
    return int(kernel.read(os.path.join(directory, name)))


def _is_ours(entry: Entry, result: Restored) -> bool:
    """Whether a file holds what the agent wrote; if not, what it is is told."""
    try:
        back = compared(entry.undo, entry.resource, entry.value, entry.ours, kernel.read(entry.path))
    except WriteError as error:
        result.refused(error)
        return False
    _tell_theirs(entry, back.theirs, result)
    if not back.texts and not back.theirs:
        result.unchanged.append(entry.path)
    return bool(back.texts)


def _tell_theirs(entry: Entry, theirs: list[str], result: Restored) -> None:
    for text in theirs:
        last = entry.ours[-1] if entry.ours else ""
        said = f"holds {text[:80]!r}, set by others after koordlet wrote {last[:80]!r}; before koordlet it held {entry.value[:80]!r}"
        result.theirs.append(WriteError(Trouble.OTHER, entry.path, said))


def _grow(entry: Entry, journal: Journal) -> None:
    rule = MERGE_OF.get(entry.resource)
    if rule is None or not entry.value.strip():
        return
    try:
        text = merged(rule, kernel.read(entry.path), entry.value)
        if text is not None:
            _write(entry, text, journal)
    except (WriteError, ValueError) as error:
        # the way up says whether it matters
        log.debug("%s cannot grow yet: %s", entry.path, error)


def _finish(entry: Entry, journal: Journal) -> None:
    if compared(entry.undo, entry.resource, entry.value, None, kernel.read(entry.path)).texts:
        _write(entry, entry.value, journal)


def _write(entry: Entry, text: str, journal: Journal) -> None:
    """Raises WriteError."""
    journal.writing(entry.path, text)
    if entry.undo is Undo.REPLACE:
        kernel.replace_file(entry.path, text)
        return
    if entry.resource == LIMIT:
        other = swap_limit(entry.path, text)
        if other is not None and other.first:
            kernel.write(other.path, other.text)
    kernel.write(entry.path, text)


def _a_group(entry: Entry) -> bool:
    """Whether the kernel fills a directory with files and removes it with them (resctrl)."""
    return os.path.exists(os.path.join(entry.path, "schemata"))


def _other(entry: Entry, result: Restored, journal: Journal) -> None:
    try:
        if entry.undo is Undo.UNMOUNT:
            kernel.unmount(entry.path)
        elif entry.undo is Undo.REMOVE_DIRECTORY and not _a_group(entry) and (left := kernel.others_in(entry.path)):
            result.theirs.append(WriteError(Trouble.OTHER, entry.path, f"holds what is not koordlet's: {', '.join(left)[:80]}"))
            return
        elif entry.undo is Undo.REMOVE_DIRECTORY:
            kernel.change_own(entry.path, False, directory=True)
        elif entry.undo is Undo.REMOVE:
            current = kernel.read(entry.path)
            if entry.ours and current not in [text.rstrip("\n") for text in entry.ours]:
                _tell_theirs(entry, [current], result)
                return
            kernel.change_own(entry.path, False, directory=False)
        else:
            back = compared(entry.undo, entry.resource, entry.value, entry.ours, kernel.read(entry.path))
            for line in back.texts:
                journal.writing(entry.path, line)
                kernel.append_line(entry.path, line)
            _tell_theirs(entry, back.theirs, result)
            if not back.texts:
                if not back.theirs:
                    result.unchanged.append(entry.path)
                return
    except WriteError as error:
        result.refused(error)
        return
    result.restored.append(entry.path)
