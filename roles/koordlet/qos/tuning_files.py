"""The files that resource tuning holds: what each is without tuning, and the writes that bring about what is wanted (BEY-TUNE-01). Pure.

What a container gets is added to what its files say without tuning, and to the files of the groups that it lies in: a quota or a
protection is worth nothing below a parent without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roles.koordlet.actuation.writes import NODE, About, Batch, Hold, Merge, Write
from roles.koordlet.host import parse
from roles.koordlet.host.cgroup_files import V1_MEMORY_UNLIMITED
from roles.koordlet.host.errors import HostError
from roles.koordlet.qos import view
from roles.koordlet.states.model import HostState

QUOTA, BURST, MIN, LOW = "cpu.cfs_quota_us", "cpu.cfs_burst_us", "memory.min", "memory.low"
_MERGE = {QUOTA: Merge.LARGER_QUOTA, BURST: Merge.NONE, MIN: Merge.LARGER, LOW: Merge.LARGER}

#: (resource, cgroup directory)
Key = tuple[str, str]
#: What is to be added to files, µs or bytes.
Deltas = dict[Key, int]


@dataclass(frozen=True, slots=True)
class Files:
    """``bases``: what held files say without tuning; ``values``: what they are to say."""

    bases: Mapping[Key, int] = field(default_factory=dict)
    values: Mapping[Key, int] = field(default_factory=dict)

    def base(self, host: HostState, resource: str, directory: str) -> int | None:
        """What a file says without tuning; None where it cannot be read."""
        known = self.bases.get((resource, directory))
        return known if known is not None else _read(host, resource, directory)

    def value(self, resource: str, directory: str) -> int | None:
        return self.values.get((resource, directory))

    def changed(
        self, host: HostState, deltas: Deltas, rebased: Mapping[Key, int], abouts: Mapping[str, About], reason: str
    ) -> tuple[Files, Batch]:
        """The files with other amounts added, and the writes: by level, so that no child is ever above its parent.

        ``rebased`` are bases that changed under tuning (a container was resized).
        """
        bases: dict[Key, int] = {}
        values: dict[Key, int] = {}
        for key, amount in deltas.items():
            base = rebased.get(key, self.base(host, *key))
            if base is None or base < 0 or (base == 0 and key[0] == QUOTA) or base >= V1_MEMORY_UNLIMITED:
                continue  # cannot be read, or has no bound that could be widened
            bases[key], values[key] = base, base + amount
        for (resource, directory), value in values.items():
            quota = values.get((QUOTA, directory), _read(host, QUOTA, directory)) if resource == BURST else None
            if quota is not None and 0 < quota < value:
                values[resource, directory] = quota  # the kernel takes no burst above the quota
        writes = [_write(key, value, Hold.TAKE, abouts, reason) for key, value in values.items()]
        given_back = {key: rebased.get(key, base) for key, base in self.bases.items() if key not in bases}
        writes += [_write(key, base, Hold.RELEASE, abouts, reason) for key, base in given_back.items()]
        levels: dict[int, list[Write]] = {}
        for write in writes:
            levels.setdefault(write.target.count("/"), []).append(write)
        return Files(bases, values), Batch(tuple(tuple(levels[depth]) for depth in sorted(levels)))


def _write(key: Key, value: int, hold: Hold, abouts: Mapping[str, About], reason: str) -> Write:
    resource, directory = key
    about = abouts.get(directory, NODE)
    return Write(resource, directory, str(value), merge=_MERGE[resource], about=about, reason=reason, hold=hold)


def _read(host: HostState, resource: str, directory: str) -> int | None:
    if resource == QUOTA:
        return view.cpu_quota(host, directory)
    try:
        path = host.cgroups.file(resource, directory)
        return parse.unsigned(path, host.files.read(path))
    except (HostError, ValueError):
        return None
