"""The state on disk: an SQLite database that has every write before the client hears of it.

A write is there after kill -9 of the server; a version is given out once in the life of a directory. After a failure of the whole machine
the last seconds may be missing (the log is synchronised by checkpoints only), never a write in the middle.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import orjson

from koord import seams
from koord.apiserver.store import Entry, Store, make_key
from koord.apiserver.tokens import kept_key

log = logging.getLogger(__name__)

FORMAT = 1
BIRTH = 1000  # versions that are skipped at each start, so that none is given out again whatever the last life had in hand
CHECKPOINT_EVERY = 2.0  # seconds
_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (bucket TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (bucket, key)) WITHOUT ROWID;
"""
_VERSION = "INSERT INTO facts VALUES ('version', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


def _spelt(key: str) -> str:
    """A key as the table has it: there, as ever, a NUL ends the namespace."""
    return key.replace("/", "\0")


class DiskError(Exception):
    """A data directory that cannot be used; the text says which and why."""


class Disk:
    """The database of one data directory, which no other process may use meanwhile. Raises DiskError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "state.db"
        # why the last write was not kept; "" when it was
        self.failure = ""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = self._take()
        try:
            self._database = self._open()
        except (sqlite3.Error, DiskError) as error:
            os.close(self._lock)
            raise DiskError(f"{self.path}: {error}; move it away to start empty") from error

    def _take(self) -> int:
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise DiskError(f"{self.directory} is in use by process {holder or 'unknown'}") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        return descriptor

    def _open(self) -> sqlite3.Connection:
        fresh = not self.path.exists()
        database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        if fresh:
            self.path.chmod(0o600)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("PRAGMA wal_autocheckpoint=0")  # checkpoints wait for the disk: they have a thread
        known = database.execute("PRAGMA user_version").fetchone()[0]
        if known not in (0, FORMAT):
            database.close()
            raise DiskError(f"format {known} is not known; accepted: {FORMAT}")
        database.executescript(_TABLES)
        database.execute(f"PRAGMA user_version={FORMAT}")
        return database

    def load(self) -> Store:
        """The stored state, or an empty store. Raises DiskError."""
        self._import()
        try:
            found = self._database.execute("SELECT value FROM facts WHERE name = 'version'").fetchone()
            if found is None:
                store = Store()
            else:
                store = Store(int(found[0]) + BIRTH)
                self._database.execute(_VERSION, (store.rv,))
            rows = self._database.execute("SELECT bucket, version, body FROM objects")
            for name, version, body in rows:
                obj = orjson.loads(body)
                meta = obj["metadata"]
                namespace, own = meta.get("namespace", ""), meta["name"]
                key = make_key(namespace, own)
                store.bucket(name).entries[key] = Entry(key, namespace, own, obj, int(version), bytes(body))
        except (sqlite3.Error, orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise DiskError(f"{self.path}: {type(error).__name__}: {error}; move it away to start empty") from error
        store.disk = self
        return store

    def signing_key(self) -> bytes:
        """What signs the tokens of service accounts, in this life of the directory and the next. Raises DiskError."""
        try:
            return kept_key(self.directory / "service-accounts.key")
        except (OSError, ValueError) as error:
            raise DiskError(str(error)) from error

    def _import(self) -> None:
        """Take over what a release before the database left. Raises DiskError."""
        former = self.directory / "snapshot.json"
        if not former.exists() or self._database.execute("SELECT 1 FROM facts").fetchone():
            return
        try:
            data = orjson.loads(former.read_bytes())
            self._database.execute("BEGIN")
            for name, objs in data["buckets"].items():
                for obj in objs:
                    meta = obj["metadata"]
                    key = make_key(meta.get("namespace", ""), meta["name"])
                    values = (name, key, int(meta["resourceVersion"]), orjson.dumps(obj))
                    self._database.execute("INSERT INTO objects VALUES (?, ?, ?, ?)", values)
            self._database.execute(_VERSION, (int(data["resourceVersion"]),))
            self._database.execute("COMMIT")
        except (OSError, sqlite3.Error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise DiskError(f"{former}: {type(error).__name__}: {error}; move it away to start empty") from error
        former.rename(former.with_suffix(".json.imported"))
        log.info("took over %s", former)

    def put(self, bucket: str, key: str, version: int, body: bytes) -> None:
        """Keep an object. It is on disk when this returns. Raises sqlite3.Error; then nothing has changed."""
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (bucket, _spelt(key), version, body))
            database.execute(_VERSION, (version,))

    def remove(self, bucket: str, key: str, version: int) -> None:
        """Forget an object. Raises sqlite3.Error; then nothing has changed."""
        with self._transaction() as database:
            database.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", (bucket, _spelt(key)))
            database.execute(_VERSION, (version,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")
        except BaseException as error:
            why = str(error) or type(error).__name__
            if why != self.failure:
                log.error("%s: a write was not kept: %s", self.path, why)
            self.failure = why
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        if self.failure:
            log.info("%s: writes are kept again", self.path)
            self.failure = ""

    def _try(self) -> None:
        """Write what is there already: whether that is kept decides whether others ask us to write again."""
        with contextlib.suppress(sqlite3.Error), self._transaction() as database:
            database.execute("UPDATE facts SET value = value WHERE name = 'version'")

    async def keep(self) -> None:
        """Move the log into the database now and then, off the loop, until cancelled; and see whether writes that failed are kept again."""
        while True:
            await seams.sleep(CHECKPOINT_EVERY)
            if self.failure:
                self._try()
            try:
                await asyncio.shield(asyncio.ensure_future(seams.to_thread(self._checkpoint)))
            except sqlite3.Error as error:
                log.error("%s: %s", self.path, error)

    def _checkpoint(self) -> None:
        with contextlib.closing(sqlite3.connect(self.path, timeout=0.0)) as own:
            own.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Move the log into the database and let the directory go."""
        try:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            log.warning("%s: %s", self.path, error)
        self._database.close()
        os.close(self._lock)
