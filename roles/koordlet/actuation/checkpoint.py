"""Which CPUs a kubelet with the static policy gives a container, by the checkpoint of its CPU manager. Pure.

The checkpoint holds ahead of the files: the kubelet changes it first, and writes a container's file only where it has not done so before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import orjson

from roles.koordlet.actuation.journal_lines import Entry

#: Where it is, below the kubelet's directory.
CHECKPOINT = "cpu_manager_state"


def given(checkpoint: bytes, uid: str, container: str) -> str | None:
    """The CPUs of a container, by its pod's uid and its name; None where the policy is not the static one, "" where it is not said."""
    try:
        state = orjson.loads(checkpoint)
        if state.get("policyName") != "static":
            return None
        return str(((state.get("entries") or {}).get(uid) or {}).get(container) or state.get("defaultCpuSet") or "")
    except (ValueError, AttributeError):
        return ""


def followed(entries: Iterable[Entry], checkpoint: bytes) -> Iterator[Entry]:
    """The entries of a journal; where the kubelet has come to another mind since, that is what goes back.

    Nobody may have written the file meanwhile: it may have held the kubelet's new CPUs already, as those that the agent had set.
    """
    for entry in entries:
        now = given(checkpoint, *entry.container) if entry.kubelet and entry.container else None
        yield entry if not now or now == entry.kubelet else replace(entry, value=now, kubelet=now)
