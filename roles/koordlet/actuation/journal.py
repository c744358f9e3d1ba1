"""The write journal: what every file held before this agent first touched it, and what the agent wrote last (BEY-JRN-01).

Append-only lines, one a file, written *before* the file is: an agent that is killed at any moment leaves a journal from which
everything can be put back. What is appended is with the kernel, so that a kill of the process cannot lose it; a kernel that ends takes
the values of its own files along. First values of other files, which outlast it, are synced. A torn last line means that its file was
not touched yet. A journal that cannot be written makes the executor leave files alone whose value is
not on record; one that cannot be read is not replaced, and lines that are not understood stay in it.

The journal lies below ``/var/run``, which lives exactly as long as what it describes: a reboot resets both.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from koord import seams
from roles.koordlet.actuation.journal_lines import Entry, Ours, decode, encode, encode_ours
from roles.koordlet.actuation.places import NOTHING, PROCESS_FILE, Base, FileId, Place, Places, identity
from roles.koordlet.actuation.places import directory_inode as directory_inode  # noqa: PLC0414 (entries are made with it)
from roles.koordlet.actuation.threeway import Undo, assumed_ours, before_by_now, means, with_ours
from roles.koordlet.host.root import HostRoot, PathEscapeError

log = logging.getLogger(__name__)

NAME = "journal"
#: Compact when there are this many entries and twice as many as the last time.
_COMPACT_AT = 1024
_PAUSE = 1.0  # seconds between tries to write a journal anew that could not be written
#: So many different CPU sets that a group was given are remembered, for groups that are made under it.
_GIVEN = 64
#: Compact when the file has this many bytes and four times as many as the last time.
_COMPACT_BYTES = 1 << 20


class JournalError(Exception):
    """The journal cannot be read or written."""


class Journal:
    """What is known of written files, by place. Belongs to one process (the node lock sees to that).

    Without ``root`` paths are taken as they are; :meth:`see` says later where the machine is.
    """

    def __init__(self, path: str, root: HostRoot | None = None) -> None:
        self.path = path
        self.failure = ""
        """Why the last attempt to put something on record failed; empty when it worked."""
        self.not_understood: list[bytes] = []
        """Lines that are damaged or of a newer version; every journal that replaces this one has them."""
        self.places = Places(root)
        self._entries: dict[Place, Entry] = {}
        self._by_path: dict[str, Place] = {}
        self._unwritten: set[Place] = set()
        self._changed: set[Place] = set()
        """Of the unwritten ones those whose value before is another one, too."""
        self._given: dict[Place, tuple[str, ...]] = {}
        """The CPU sets that this process gave a group, the newest last."""
        self._trusted: set[FileId] = set()
        """Trees in which files of an earlier version's journal were found again, by their inode."""
        self._fd: int | None = None
        self._unread = True
        self._bytes = 0
        self._compact_at = _COMPACT_AT
        self._compact_bytes = _COMPACT_BYTES
        self._again = 0.0  # when a journal that could not be written is tried anew

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, path: str) -> Entry | None:
        place = self._by_path.get(path)
        return self._entries.get(place) if place is not None else None

    def see(self, root: HostRoot) -> None:
        """Where the machine is. What is known already is found again there."""
        if self.places.root is None:
            known = list(self)
            self.places = Places(root)
            self._replace(known)

    # -- opening -------------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read what an earlier run left. Raises JournalError when it cannot be read; it is then never written either."""
        try:
            with open(self.path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            self._unread = False
            return
        except OSError as error:
            raise JournalError(f"journal {self.path} cannot be read: {error.strerror}") from error
        self._unread = False
        self.not_understood = []
        body, _, torn = data.rpartition(b"\n")
        for line in body.split(b"\n") if body else []:
            self._read(line)
        if torn and decode(torn) is not None:
            self._read(torn)
        elif torn:
            log.warning("journal %s ends in an unfinished line, as after a kill; its file was not touched", self.path)
        self._trusted = {self.places.tree(e.place) for e in self if e.place is not None and e.tree == NOTHING and e.inode and self.found(e)}
        if self.not_understood:
            log.error(
                "journal %s: %d damaged lines, or lines of a newer version, are kept; this version cannot put back what they say",
                self.path,
                len(self.not_understood),
            )

    def _read(self, line: bytes) -> None:
        found = decode(line)
        if found is None:
            self.not_understood.append(line)
        elif isinstance(found, Ours):
            place = self.places.of_foreign(found.place.path) if found.place.base is Base.ABSOLUTE else found.place
            known = self._entries.get(place)
            if known is not None:
                self._entries[place] = replace(known, ours=found.ours)
        else:
            self._take(self._placed(found))

    def _placed(self, entry: Entry) -> Entry:
        """An entry by its place on this machine, and the path that it has there."""
        place, foreign, tree = entry.place, entry.foreign, entry.tree
        if foreign or place is None or place.base is Base.ABSOLUTE:
            foreign = foreign or entry.path
            place = self.places.of_foreign(foreign)
            # where the machine was not known, nothing is known of its trees
            tree = NOTHING if place.base is not Base.ABSOLUTE and entry.place != place else tree
        try:
            path = self.places.path(place)
        except PathEscapeError:
            path = f"/../{place}"  # lies outside, which whoever would write it says
        return replace(entry, place=place, path=path, foreign=foreign, tree=tree)

    def _settled(self, entry: Entry) -> Entry:
        """An entry of an earlier version whose file was found: from now on it is known by its place."""
        if entry.place is None or entry.tree != NOTHING or self._same_tree(entry) is not True:
            return entry
        device = _device(entry.path) if entry.inode and not entry.path.endswith(f"/{PROCESS_FILE}") else 0
        return replace(entry, device=device, tree=self.places.tree(entry.place), boot=self.places.boot, foreign="")

    def open(self) -> None:
        """Load, drop what no longer exists, and be ready to append. Raises JournalError."""
        self.load()
        self.compact()

    def compact(self) -> None:
        """Write the journal anew, atomically, without the entries that are known to be gone. Raises JournalError.

        The disk is waited for only where a file outlasts the kernel, as in :meth:`remember`: a journal that a power cut spoils says
        nothing then that would have been put back.
        """
        if self._unread:
            self.load()
        self._close()
        kept = [self._settled(entry) for entry in self if not self.gone(entry)]
        data = b"".join([*map(encode, kept), *(line + b"\n" for line in self.not_understood)])
        lasting = bool(self.not_understood) or not all(map(self._passing, kept))
        temporary = f"{self.path}.new"
        files = seams.files()
        try:
            files.make_directory(os.path.dirname(self.path))
            fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, data)
                if lasting:
                    files.sync(fd)
            finally:
                files.close(fd)
            files.rename(temporary, self.path)
            if lasting:
                _sync_directory(os.path.dirname(self.path))
            self._fd = files.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"journal {self.path} cannot be written: {error.strerror}") from error
        self._replace(kept)
        self._unwritten.clear()
        self._changed.clear()
        self._bytes = len(data)
        self._compact_at = max(_COMPACT_AT, 2 * len(kept))
        self._compact_bytes = max(_COMPACT_BYTES, 4 * len(data))

    # -- what is there -------------------------------------------------------------------------------------------------------

    def found(self, entry: Entry) -> bool:
        """Whether the very file that an entry is about is there."""
        if entry.place is not None and self.places.rebooted(entry.place, entry.boot):
            return False
        if not os.path.lexists(entry.path):
            return False
        if not entry.inode:
            return self._same_tree(entry) is not False
        if identity(entry.path) != entry.inode:
            return False
        # an inode by itself means little in another tree
        return not entry.device or entry.device == _device(entry.path) or self._same_tree(entry) is True

    def gone(self, entry: Entry) -> bool:
        """Whether a file is known to be no more: missing, or made anew, in the very tree that it was in, or of an earlier boot."""
        if entry.place is not None and self.places.rebooted(entry.place, entry.boot):
            return True
        return not self.found(entry) and self._same_tree(entry) is True

    def _same_tree(self, entry: Entry) -> bool | None:
        """None: not known, because an earlier version noted no tree and the machine is seen under another path now."""
        if entry.place is None:
            return None
        if entry.tree == NOTHING:
            literally = entry.foreign == entry.path and os.path.isdir(self.places.top(entry.place))
            return True if literally or self.places.tree(entry.place) in self._trusted else None
        return self.places.same_tree(entry.place, entry.tree, entry.boot)

    # -- recording -----------------------------------------------------------------------------------------------------------

    def known(self, path: str, inode: int) -> bool:
        """Whether the first value of this very file is on record."""
        entry = self.get(path)
        return entry is not None and (not inode or not entry.inode or entry.inode == inode)

    def without_us(self, entries: list[Entry]) -> list[Entry]:
        """What files hold before they are written for the first time, as it would be without this agent.

        A group that was made under one whose CPUs this agent had narrowed was given the narrow set, by nobody's choice: it would hold
        what the group above held before. That may have been a former set: a group is first written a while after it was made.
        """
        found: dict[str, Entry] = {}
        for entry in sorted((e for e in entries if e.resource == "cpuset.cpus"), key=lambda e: e.path.count("/")):
            found[entry.path] = self._made_under(entry, found)
        return [found.get(entry.path, entry) for entry in entries]

    def _made_under(self, entry: Entry, fresh: dict[str, Entry]) -> Entry:
        """``fresh``: the entries of groups further up that are not on record yet."""
        if entry.undo is not Undo.WRITE or entry.ours or self.known(entry.path, entry.inode):
            return entry
        directory, name = os.path.split(entry.path)
        path = os.path.join(os.path.dirname(directory), name)
        above = self.get(path)
        if above is None or not self.found(above):
            above = fresh.get(path)
        if above is None or not above.value.strip():
            return entry
        given = (*(above.ours or ()), *(self._given.get(above.place, ()) if above.place is not None else ()))
        narrowed = any(means(entry.resource, ours, entry.value) for ours in given)
        return replace(entry, value=above.value, ours=(entry.value,)) if narrowed else entry

    def remember(self, entries: Iterable[Entry], *, owner: str = "", time: float = 0.0) -> bool:
        """Put on record what files hold before they are written, with one append for all. False: it is not there.

        The disk is waited for only where a file outlasts the kernel: the waiting is done on the event loop, and a slow disk under
        /var/run would hold up suppression and evictions.

        Of a file that is known, a value from outside (``Entry.now`` is neither what was before nor ours) becomes the one before; so does
        what a kubelet with the static policy gives a container from now on.
        """
        fresh: list[Entry] = []
        try:
            if self._unread:
                self.load()
            fresh = [e for entry in entries if (e := self._news(entry, owner, time)) is not None]
            if not fresh and self._fd is not None:
                return True
            if self._fd is None or len(self._entries) >= self._compact_at or self._bytes >= self._compact_bytes:
                self.compact()
            self._append(b"".join(map(encode, fresh)), sync=not all(map(self._passing, fresh)))
        except (OSError, JournalError) as error:
            self._failed(error)
            # files that are on record are written all the same: what others made of them since is not to be forgotten
            for entry in fresh:
                if self.known(entry.path, entry.inode) and entry.place is not None:
                    self._take(entry, newest=True)
                    self._changed.add(entry.place)
                    self._unwritten.add(entry.place)
            return False
        self._works()
        for entry in fresh:
            self._take(entry, newest=True)
        return True

    def _news(self, entry: Entry, owner: str, time: float) -> Entry | None:
        """The line that an entry is worth; None when all of it is known."""
        known = self.get(entry.path)
        if known is None or not self.known(entry.path, entry.inode):
            place = self.places.of(entry.path)
            device = _device(entry.path) if entry.inode and not entry.path.endswith(f"/{PROCESS_FILE}") else 0
            tree, boot = self.places.tree(place), self.places.boot
            return replace(entry, place=place, device=device, tree=tree, boot=boot, owner=owner, time=time, now=None)
        if entry.now is None:
            return None
        if known.ours is None:
            return replace(known, ours=assumed_ours(known.undo, entry.now))
        before = before_by_now(known.undo, known.resource, known.value, known.ours, entry.now)
        if before == known.value:
            if entry.kubelet in ("", known.kubelet):
                return None
            if means(known.resource, entry.now, known.value) and not any(means(known.resource, entry.now, o) for o in known.ours):
                # others have set the value of before, whatever the kubelet gives meanwhile
                return replace(known, kubelet=entry.kubelet, container=entry.container)
            if known.kubelet:
                if not means(known.resource, entry.now, entry.kubelet):
                    return None  # the kubelet has not set it yet: the file would hold it
                before = entry.kubelet  # what the kubelet sets now is what the agent has set already: nobody sees then that it did
        kubelet, container = (entry.kubelet, entry.container) if entry.kubelet else (known.kubelet, known.container)
        undo = Undo.REPLACE if known.undo is Undo.REMOVE else known.undo  # the agent's own file is somebody else's now
        # nothing of this agent's stands in a file of one value that others have set
        ours = () if known.undo in (Undo.WRITE, Undo.REPLACE) and means(known.resource, entry.now, before) else known.ours
        return replace(known, value=before, undo=undo, ours=ours, owner=owner, time=time, kubelet=kubelet, container=container)

    def writing(self, path: str, text: str) -> tuple[str, ...] | None:
        """Say what is about to be written to a known file; what was noted of it, for :meth:`refused`."""
        entry = self.get(path)
        if entry is not None:
            self._ours(entry, with_ours(entry.undo, entry.ours, text, done=False))
        return entry.ours if entry is not None else None

    def wrote(self, path: str, text: str) -> None:
        """Say what a known file holds by our hand."""
        entry = self.get(path)
        if entry is not None:
            self._ours(entry, with_ours(entry.undo, entry.ours, text, done=True))

    def refused(self, path: str, ours: tuple[str, ...] | None) -> None:
        """Say that the kernel did not take what was about to be written."""
        entry = self.get(path)
        if entry is not None and ours is not None:
            self._ours(entry, ours)

    def _ours(self, entry: Entry, ours: tuple[str, ...]) -> None:
        if ours == entry.ours or entry.place is None:
            return
        if entry.resource == "cpuset.cpus":
            given = dict.fromkeys((*self._given.get(entry.place, ()), *(entry.ours or ()), *ours))
            self._given[entry.place] = tuple(given)[-_GIVEN:]
        self._entries[entry.place] = replace(entry, ours=ours)
        self._unwritten.add(entry.place)
        if self._fd is not None:
            self.settle()

    def settle(self, *, at_last: bool = False) -> None:
        """Say what was written and could not be said then, as on a full disk: a restore would take those values for others'.

        A journal that could not be opened, or written anew, is tried once a second, and in any case ``at_last``.
        """
        if not self._unwritten:
            return
        try:
            if self._fd is not None:
                self._say_unwritten()
            elif at_last or seams.monotonic() >= self._again:
                self._again = seams.monotonic() + _PAUSE
                self.compact()
            else:
                return
        except (OSError, JournalError) as error:
            self._failed(error)  # the first value is on record; the rest follows as soon as it can be written
            return
        self._works()

    def _say_unwritten(self) -> None:
        known = [self._entries[place] for place in sorted(self._unwritten, key=str) if place in self._entries]
        self._append(b"".join(map(self._line, known)), sync=False)
        self._unwritten.clear()
        self._changed.clear()

    def _line(self, entry: Entry) -> bytes:
        """What is worth saying of an entry that is on record already."""
        if entry.place is None or (entry.place not in self._changed and entry.ours is None):
            return b""
        return encode(entry) if entry.place in self._changed or entry.ours is None else encode_ours(entry.place, entry.ours)

    def _failed(self, error: OSError | JournalError) -> None:
        text = str(error) if isinstance(error, JournalError) else f"journal {self.path} cannot be written: {error.strerror}"
        if text != self.failure:
            log.error("%s; values that are not recorded are not changed", text)
        self.failure = text

    def _works(self) -> None:
        if self.failure:
            log.info("journal %s can be written again", self.path)
            self.failure = ""

    def _passing(self, entry: Entry) -> bool:
        return entry.place is not None and self.places.passing(entry.place, entry.boot)

    def _append(self, data: bytes, *, sync: bool) -> None:
        """All or nothing: what a full disk took of the lines is cut off again, or the next line would join a torn one."""
        self.stay()
        if self._fd is None:
            raise JournalError(f"journal {self.path} is closed")
        before = os.fstat(self._fd).st_size
        try:
            _write_all(self._fd, data)
            if sync:
                seams.files().sync(self._fd)
        except OSError:
            seams.files().truncate(self._fd, before)
            raise
        self._bytes = before + len(data)

    def stay(self) -> None:
        """Write a journal anew whose file others removed: nobody could put back what it says. Raises JournalError, OSError."""
        if self._fd is not None and not os.fstat(self._fd).st_nlink:
            log.error("journal %s was removed; it is written again", self.path)
            self.compact()

    def _take(self, entry: Entry, *, newest: bool = False) -> None:
        place = entry.place
        assert place is not None
        known = self._entries.get(place)
        # of the first version's lines the first one of a file counts; a cgroup made anew under the same name starts over
        if known is not None and entry.ours is None and not newest and not (entry.inode and known.inode and entry.inode != known.inode):
            return
        if known is None or known.inode != entry.inode:
            self._given.pop(place, None)
        self._entries[place] = entry
        self._by_path[entry.path] = place

    def _replace(self, entries: Iterable[Entry]) -> None:
        given, self._given = self._given, {}
        self._entries, self._by_path = {}, {}
        for entry in entries:
            self._take(self._placed(entry), newest=True)
        self._given = {place: sets for place, sets in given.items() if place in self._entries}

    def keep_only(self, entries: Iterable[Entry]) -> None:
        """Keep what could not be put back. Raises JournalError."""
        self._replace(list(entries))
        self.compact()

    def close(self) -> None:
        self.settle(at_last=True)
        self._close()

    def _close(self) -> None:
        if self._fd is not None:
            seams.files().close(self._fd)
            self._fd = None


def _device(path: str) -> int:
    try:
        return os.stat(os.path.dirname(path)).st_dev
    except OSError:
        return 0


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[seams.files().write(fd, view) :]


def _sync_directory(path: str) -> None:
    files = seams.files()
    fd = files.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        files.sync(fd)
    finally:
        files.close(fd)
