"""When two texts of a kernel file mean the same, and which values may be written before the children are (KA-EXE-01). Pure."""

from __future__ import annotations

from koord.accounting.cpuset import CPUSet, CPUSetError
from roles.koordlet.actuation.writes import Merge
from roles.koordlet.host.cgroup_files import MAX_INT64, V1_MEMORY_UNLIMITED

INFINITE = float("inf")
_PAGE = 4096
_CPUSETS = frozenset({"cpuset.cpus"})
_QUOTAS = frozenset({"cpu.cfs_quota_us"})


def number(text: str) -> float:
    """A limit as a number; ``max``, ``-1`` and 2^63-1 are infinite. Raises ValueError."""
    token, *_ = text.split() or [""]
    if token in {"max", "-1"}:
        return INFINITE
    value = int(token)
    return INFINITE if value >= V1_MEMORY_UNLIMITED else value


def same(resource: str, current: str, wanted: str) -> bool:
    """Whether a file that holds ``current`` already means ``wanted`` (both in the file's own spelling)."""
    current, wanted = current.strip(), wanted.strip()
    if current == wanted:
        return True
    if resource in _CPUSETS:
        try:
            return CPUSet.parse(current) == CPUSet.parse(wanted)
        except CPUSetError:
            return False
    if resource == "cpu.cfs_period_us" and len(current.split()) == 2:
        return current.split()[1] == wanted
    if resource in _QUOTAS or resource.startswith("memory."):
        return _same_limit(resource, current, wanted)
    return {current, wanted} == {str(MAX_INT64), "max"}


def _same_limit(resource: str, current: str, wanted: str) -> bool:
    try:
        have, want = number(current), number(wanted)
    except ValueError:
        return False
    if have == want:
        return not resource.startswith("memory.wmark")  # -1 is a value of its own there
    # the kernel keeps memory limits in whole pages: what it made of the wanted value counts as the wanted value
    byte_sized = resource in {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.min", "memory.low", "memory.high"}
    return byte_sized and INFINITE not in {have, want} and have > 0 and have == want // _PAGE * _PAGE


def other_words(resource: str, current: str, wanted: str) -> bool:
    """Whether two memory limits that are the same are no limit in different words: the kernel's own (v1) is a large number that depends
    on its page size, so that a number may also have come from elsewhere."""
    return (
        resource.startswith("memory.") and current.strip().isdecimal() and current.strip() != wanted.strip() and number(current) == INFINITE
    )


def merged(rule: Merge, current: str, wanted: str) -> str | None:
    """The value to write on the way down; None when the wanted one is to wait for the children.

    Raises ValueError when the current value cannot be read, which is an error of this file only.
    """
    if rule is Merge.LOOSER_CPUSET:
        have, want = CPUSet.parse(current), CPUSet.parse(wanted)
        return None if want <= have else str(have | want)
    return wanted if number(wanted) > number(current) else None


#: How values grow and shrink, for putting files back in an order that the kernel accepts; by v1 resource name.
MERGE_OF = {
    "cpuset.cpus": Merge.LOOSER_CPUSET,
    "cpu.cfs_quota_us": Merge.LARGER_QUOTA,
    "memory.min": Merge.LARGER,
    "memory.low": Merge.LARGER,
    "memory.high": Merge.LARGER,
    "memory.limit_in_bytes": Merge.LARGER,
    "memory.memsw.limit_in_bytes": Merge.LARGER,
}
