"""What strategies know across a restart: one file beside the series, written at the end and read at the start (BEY-INT-01)."""

from __future__ import annotations

import logging
import os

import msgspec

from koord import seams
from roles.koordlet.host.ownfiles import replace
from roles.koordlet.qos.manager import QOSManager

log = logging.getLogger(__name__)

FILE = "strategies.msgpack"
#: No more than this is read (bytes).
_LARGEST = 4 << 20


def save(manager: QOSManager, directory: str) -> None:
    """Write what strategies want to keep; a directory that cannot be written is reported."""
    kept = manager.kept()
    if not kept:
        return
    path = os.path.join(directory, FILE)
    try:
        seams.files().make_directory(directory)
        replace(path, msgspec.msgpack.encode(kept))
    except OSError as error:
        log.warning("what strategies learned is not kept over the restart: %s: %s", path, error.strerror)


def load(manager: QOSManager, directory: str) -> None:
    """Hand strategies what :func:`save` wrote. A file that cannot be used is ignored and reported."""
    path = os.path.join(directory, FILE)
    try:
        with open(path, "rb") as file:
            manager.resume(msgspec.msgpack.decode(file.read(_LARGEST), type=dict[str, bytes]))
    except FileNotFoundError:
        return
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.warning("%s cannot be used and is ignored: %s", path, error)
