"""NUMA nodes: memory and huge pages (KLO-SYS-04)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from roles.koordlet.host.errors import HostError, HostFileError
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.proc import MemInfo, meminfo
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.topology import NODE, parse_cpu_list

#: size in kB as sysfs spells it -> resource name
HUGEPAGE_SIZES = {2048: "hugepages-2Mi", 1_048_576: "hugepages-1Gi"}


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node; ``hugepages`` maps resource names to bytes and is empty unless they were asked for."""

    id: int
    memory: MemInfo
    hugepages: dict[str, int] = field(default_factory=dict)


class NumaReader:
    """Reads all NUMA nodes through kept descriptors; the directory listing is repeated only by :meth:`rescan`."""

    def __init__(self, root: HostRoot, files: HostFiles) -> None:
        self._root = root
        self._files = files
        self._nodes: list[tuple[int, str]] | None = None

    def rescan(self) -> None:
        """Look for nodes again: memory may have been added or taken away."""
        self._nodes = None

    def _list(self) -> list[tuple[int, str]]:
        if self._nodes is None:
            base = self._root.sys_path("bus/node/devices")
            if not os.path.isdir(base):
                base = self._root.sys_path("devices/system/node")
            try:
                names = os.listdir(base)
            except OSError as error:
                raise HostFileError(base, f"cannot be listed: {error.strerror}") from error
            skipped = self._generic_initiators()
            numbers = sorted(int(n[4:]) for n in names if NODE.fullmatch(n))
            self._nodes = [(n, os.path.join(base, f"node{n}")) for n in numbers if n not in skipped]
        return self._nodes

    def _generic_initiators(self) -> set[int]:
        path = self._root.sys_path("devices/system/node/has_generic_initiator")
        try:
            return set(parse_cpu_list(path, self._files.text(path)))
        except HostError:
            return set()

    def read(self, *, hugepages: bool = False) -> tuple[NumaNode, ...]:
        """All nodes with readable meminfo, ascending. None at all is a :class:`HostError`.

        Ids need not be gapless: a node that was taken offline, or one of CXL or HBM memory, must not hide the others.
        """
        out: list[NumaNode] = []
        for number, directory in self._list():
            path = os.path.join(directory, "meminfo")
            try:
                memory = meminfo(path, self._files.read(path), prefix=b"Node %d " % number)
            except HostFileError:
                continue
            out.append(NumaNode(number, memory, self._hugepages(directory) if hugepages else {}))
        if not out:
            raise HostError(f"no NUMA node with a readable meminfo below {self._root.sys}")
        return tuple(out)

    def _hugepages(self, directory: str) -> dict[str, int]:
        out: dict[str, int] = {}
        for size_kb, name in HUGEPAGE_SIZES.items():
            path = os.path.join(directory, "hugepages", f"hugepages-{size_kb}kB", "nr_hugepages")
            try:
                out[name] = int(self._files.text(path)) * size_kb * 1024
            except (HostFileError, ValueError):
                out[name] = 0
        return out
