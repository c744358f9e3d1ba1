"""The state on disk: one JSON file with every object, replaced atomically, so that a restarted server goes on where it was."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import orjson

from koord import seams
from koord.apiserver.store import Entry, Store, make_key

log = logging.getLogger(__name__)

Obj = dict[str, Any]

_FORMAT = 1
_EVERY = 5.0


class SnapshotError(Exception):
    """A snapshot that cannot be read; the text says which file and why."""


class Snapshots:
    """Writes `snapshot.json` under a directory when something changed, at most every five seconds and at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "snapshot.json"
        self._saved = 0

    def load(self) -> Store:
        """The stored state, or an empty store. Raises SnapshotError for a file that is no snapshot."""
        if not self.path.exists():
            return Store()
        try:
            data = orjson.loads(self.path.read_bytes())
            if data["format"] != _FORMAT:
                raise SnapshotError(f"{self.path}: format {data['format']} is not known; accepted: {_FORMAT}")
            store = Store(int(data["resourceVersion"]))
            for name, objs in data["buckets"].items():
                bucket = store.bucket(name)
                for obj in objs:
                    meta = obj["metadata"]
                    namespace, own = meta.get("namespace", ""), meta["name"]
                    key = make_key(namespace, own)
                    bucket.entries[key] = Entry(key, namespace, own, obj, int(meta["resourceVersion"]), orjson.dumps(obj))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as err:
            raise SnapshotError(f"{self.path}: not a snapshot ({type(err).__name__}: {err}); move it away to start empty") from err
        self._saved = store.rv
        return store

    def save(self, store: Store) -> None:
        """Write the state, if it changed since the last time."""
        if store.rv == self._saved:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        parts: list[bytes] = []
        for name, bucket in store.buckets.items():
            if bucket.entries:
                parts.append(orjson.dumps(name) + b":[" + b",".join(e.raw for e in bucket.entries.values()) + b"]")
        body = b'{"format":%d,"resourceVersion":%d,"buckets":{%s}}' % (_FORMAT, store.rv, b",".join(parts))
        temporary = self.path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        self._saved = store.rv

    async def keep(self, store: Store) -> None:
        """Save now and then, until cancelled."""
        while True:
            await seams.sleep(_EVERY)
            with contextlib.suppress(OSError):
                self._try(store)

    def _try(self, store: Store) -> None:
        try:
            self.save(store)
        except OSError as err:
            log.error("cannot write the snapshot %s: %s", self.path, err)
            raise
