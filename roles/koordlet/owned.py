"""Files of koordlet's own on a machine, and their end when it is taken off for good (``--restore --clean``).

The audit log stays: it is the account of what was done.
"""

from __future__ import annotations

import contextlib
import glob
import os

import orjson

from roles.koordlet.actuation.restore import holds_path, journal_path
from roles.koordlet.claims import cdi
from roles.koordlet.host.root import HostRoot
from roles.koordlet.options import Options
from roles.koordlet.prediction.models import FIXED_KEYS
from roles.koordlet.qos import carryover
from roles.koordlet.store import persist

#: Set where the program that asks cannot know whether this version has ``--clean``.
CLEAN = "KOORD_RESTORE_CLEAN"
REGISTRATION = "koordlet.json"
_LARGEST = 1 << 20


def files(options: Options, root: HostRoot) -> list[str]:
    """What is there of them: the lock comes last."""
    run = os.path.dirname(journal_path(root))
    named = [
        os.path.join(root.hooks_config, REGISTRATION),
        os.path.join(run, "koordlet.sock"),
        *glob.glob(os.path.join(glob.escape(run), ".koordlet.*")),
        os.path.join(run, "pod-resources", "kubelet.sock"),
        root.kubelet_path(cdi.SOCKET),  # the kubelet would try it again and again
        *_kept(options.tsdb_path),
        *_checkpoints(options.prediction_checkpoint_filepath),
        f"{journal_path(root)}.new",
        holds_path(root),
        journal_path(root),
        options.lock_file or os.path.join(run, "koordlet.lock"),
    ]
    return [path for path in named if path and os.path.lexists(path)]


def _kept(directory: str) -> list[str]:
    """What series and strategies take over a restart, also half written."""
    names = (persist.FILE, carryover.FILE) if directory else ()
    return [os.path.join(directory, f"{name}{half}") for name in names for half in ("", ".tmp")]


def _checkpoints(directory: str) -> list[str]:
    """Those that say themselves that they are ours."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory)) if directory else ():
            path = os.path.join(directory, name)
            if name.removesuffix(".tmp") in FIXED_KEYS or _is_checkpoint(path, name):
                found.append(path)
    return found


def _is_checkpoint(path: str, name: str) -> bool:
    if not os.path.isfile(path):
        return False  # a pipe would never end
    try:
        with open(path, "rb") as file:
            data = orjson.loads(file.read(_LARGEST))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and data.get("UID") == name and {"CPU", "Memory", "LastUpdated"} <= data.keys()


def remove(options: Options, root: HostRoot) -> list[str]:
    """Remove them, and the directories that they leave empty; one line for each that stays. The caller holds the node's lock."""
    left = []
    directories = set()
    for path in files(options, root):
        directories.add(os.path.dirname(path))
        try:
            os.unlink(path)
        except OSError as error:
            left.append(f"{path} is not removed: {error.strerror}")
    run = os.path.dirname(journal_path(root))
    directories |= {os.path.join(run, "pod-resources"), os.path.join(run, "xpu-device-infos"), run}
    directories |= {path.rstrip("/") for path in (options.tsdb_path, options.prediction_checkpoint_filepath) if path}
    for directory in sorted(directories, key=lambda path: -path.count("/")):
        with contextlib.suppress(OSError):  # mounted here, or others have something in it
            os.rmdir(directory)
    return left
