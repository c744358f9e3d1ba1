"""A history told for people: what went wrong, what the roles decided, what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from roles.sandbox.world.history import FILE
from roles.sandbox.world.invariants.base import node_of, role_of

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry
    from roles.sandbox.world.invariants.base import Violation
    from roles.sandbox.world.world import World


def tell(world: World, violations: Sequence[Violation]) -> Iterator[str]:
    """The lines of the story in the order of time."""
    lines = [(e.time, 0, e.number, text) for e in world.history.entries if (text := _entry(e))]
    scratch = f"{world.scratch}/hosts/"
    records = [(time, 1, index, f"  {name}: {record}".replace(scratch, "")) for index, (time, name, record) in enumerate(world.records)]
    lines += records
    lines += [(v.time, 2, v.entry, f"! {v.invariant}: {v.text}") for v in violations]
    for time, _, _, text in sorted(lines, key=lambda line: line[:3]):
        yield f"{time:9.3f}  {text}"


def _entry(entry: Entry) -> str:
    if entry.bucket == FILE or entry.verb == "host":
        return _host(entry)
    if not entry.bucket:
        return f"* {entry.verb} {entry.key} {entry.text}".rstrip() if entry.verb != "phase" else f"= {entry.key}"
    who = entry.author
    if entry.bucket == "pod":
        return _pod(entry, who)
    if entry.bucket.startswith("lease"):
        old = ((entry.old or {}).get("spec") or {}).get("holderIdentity")
        new = ((entry.new or {}).get("spec") or {}).get("holderIdentity")
        return f"{who} takes {entry.key}" if new and new != old else (f"{who} gives {entry.key} back" if old and not new else "")
    if entry.bucket.startswith(("reservation", "podmigrationjob")):
        phase = (entry.obj.get("status") or {}).get("phase", "")
        return f"{who} {entry.verb.lower()} {entry.bucket.split('.')[0]} {entry.key} {phase}".rstrip()
    if entry.bucket == "node" and role_of(entry.author) == "manager":
        return f"{who} updates {entry.key}: batch-cpu {_batch(entry.new)}" if _batch(entry.new) != _batch(entry.old) else ""
    return ""


def _host(entry: Entry) -> str:
    """Changes of files; what changes nothing, a new pod's first values and how full a host is are no story."""
    if entry.verb == "REFUSED":
        return f"{entry.author} ({entry.request}) {entry.key}: {entry.text}"
    old, new = (entry.old or {}).get("value"), (entry.new or {}).get("value")
    if entry.verb != "WRITTEN" or old == new or entry.request in ("pod", "container"):
        return ""
    return f"{entry.author} ({entry.request}) sets {entry.key} from {old!r} to {new!r}"


def _batch(node: dict[str, object] | None) -> str:
    status = (node or {}).get("status") or {}
    allocatable = status.get("allocatable") if isinstance(status, dict) else None
    return str((allocatable or {}).get("kubernetes.io/batch-cpu", "none"))


def _pod(entry: Entry, who: str) -> str:
    old, new = entry.old, entry.new
    if old is None:
        return f"{who} creates {entry.key}"
    if new is None:
        return f"{entry.key} is gone ({who})"
    if node_of(new) and not node_of(old):
        return f"{who} binds {entry.key} to {node_of(new)}"
    if new["metadata"].get("deletionTimestamp") and not old["metadata"].get("deletionTimestamp"):
        return f"{who} asks {entry.key} to leave {node_of(new)}".rstrip()
    phase, before = (new.get("status") or {}).get("phase"), (old.get("status") or {}).get("phase")
    return f"{entry.key} is {phase}" if phase != before else ""
