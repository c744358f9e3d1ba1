"""Series across a restart: one file in ``--tsdb-path``, written at the end and read at the start (KLO-TSDB-01)."""

from __future__ import annotations

import logging
import math
import os

import msgspec

from koord import seams
from roles.koordlet.host.ownfiles import replace
from roles.koordlet.store.store import MetricStore

log = logging.getLogger(__name__)

FILE = "series.msgpack"
_VERSION = 1


class _Dump(msgspec.Struct, array_like=True):
    version: int
    byte_order: str
    saved: float
    rows: list[tuple[str, tuple[str, ...], bytes, bytes]]
    windows: tuple[int, int] | None = None
    """Seconds of node-level series and of all others: nobody asks for them again before the objects of the node are there."""


def save(store: MetricStore, directory: str, now: float) -> None:
    """Write all series; a directory that cannot be written is reported, an empty store is a normal start."""
    import sys

    path = os.path.join(directory, FILE)
    node_window, window = store.windows
    body = msgspec.msgpack.encode(_Dump(_VERSION, sys.byteorder, now, store.dump(), (math.ceil(node_window), math.ceil(window))))
    try:
        seams.files().make_directory(directory)
        replace(path, body)
    except OSError as error:
        log.warning("series are not kept over the restart: %s: %s", path, error.strerror)


def load(store: MetricStore, directory: str, now: float) -> int:
    """Read what :func:`save` wrote; returns the number of series. A file that cannot be used is ignored and reported."""
    import sys

    path = os.path.join(directory, FILE)
    try:
        with open(path, "rb") as file:
            dump = msgspec.msgpack.decode(file.read(), type=_Dump)
        if dump.version != _VERSION or dump.byte_order != sys.byteorder or dump.saved > now:
            log.warning("%s is of another kind or of the future and is ignored", path)
            return 0
        if dump.windows is not None:
            store.want(node_window=dump.windows[0], window=dump.windows[1])
        return store.load(dump.rows, now)
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.warning("%s cannot be used and is ignored: %s", path, error)
        return 0
