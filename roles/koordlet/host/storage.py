"""Which disk a device, a volume group or a mount point is on (KLO-SYS-07). Pure: output of the tools in, maps out."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from roles.koordlet.host.errors import ParseError

#: Minor numbers that a disk takes for itself and its partitions where the kernel numbers them in a row.
_MINORS_A_DISK = 16

LSBLK = ("lsblk", "-P", "-o", "NAME,TYPE,MAJ:MIN")
VGS = ("vgs", "--readonly", "--noheadings", "--options", "vg_name,pv_count,pv_name")
LVS = ("lvs", "--readonly", "--noheadings", "--options", "lv_name,vg_name")
FINDMNT = ("findmnt", "-P", "-o", "TARGET,SOURCE")
COMMANDS = (LSBLK, VGS, LVS, FINDMNT)

_PAIR = re.compile(r'([A-Z:_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")
_OCTAL = re.compile(r"\\([0-7]{3})")
_NUMBER = re.compile(r"(\d+):(\d+)\Z")
#: What lsblk of util-linux 2.37 calls a column with --pairs.
_SHELL_NAMES = {"MAJ_MIN": "MAJ:MIN"}


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """Disks and what lies on them; devices are paths (``/dev/sda``), numbers ``major:minor``."""

    disks: dict[str, str] = field(default_factory=dict)
    """Disk -> number."""
    partitions: dict[str, str] = field(default_factory=dict)
    """Partition -> its disk."""
    groups: dict[str, str] = field(default_factory=dict)
    """Volume group -> its disk; only groups of one physical volume have one."""
    volumes: dict[str, str] = field(default_factory=dict)
    """Logical volume (``/dev/mapper/<vg>-<lv>``) -> its volume group."""
    mounts: dict[str, str] = field(default_factory=dict)
    """Mount point -> source device."""

    def number_of_device(self, device: str) -> str | None:
        """Number of the disk that a disk or a partition is on."""
        path = device if device.startswith("/") else f"/dev/{device}"
        return self.disks.get(self.partitions.get(path, path))

    def number_of_group(self, group: str) -> str | None:
        """Number of the disk that a volume group is on."""
        disk = self.groups.get(group)
        return self.disks.get(disk) if disk is not None else None

    def number_of_mount(self, point: str) -> str | None:
        """Number of the disk that what is mounted there is on: a disk, a partition or a logical volume."""
        source = self.mounts.get(os.path.normpath(point))
        if source is None:
            return None
        group = self.volumes.get(source)
        return self.number_of_group(group) if group is not None else self.number_of_device(source)


def _pairs(tool: str, text: str, wanted: tuple[str, ...]) -> list[list[str]]:
    """Lines of ``KEY="value"`` pairs as values in the wanted order. Raises ParseError."""
    out: list[list[str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found = {_SHELL_NAMES.get(key, key): value for key, value in _PAIR.findall(line)}
        if set(found) != set(wanted):
            raise ParseError(tool, f"line {number} {line[:80]!r} does not have the columns {', '.join(wanted)}")
        out.append([_ESCAPED.sub(lambda m: chr(int(m.group(1), 16)), found[key]) for key in wanted])
    return out


def _columns(tool: str, text: str, count: int) -> list[list[str]]:
    """Lines of blank-separated columns. Raises ParseError."""
    out: list[list[str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if fields and len(fields) != count:
            raise ParseError(tool, f"line {number} {line[:80]!r} has {len(fields)} columns, wanted {count}")
        if fields:
            out.append(fields)
    return out


def _block_devices(text: str) -> tuple[dict[str, str], dict[str, str]]:
    disks: dict[str, str] = {}
    parts: dict[str, str] = {}
    for name, kind, number in _pairs("lsblk", text, ("NAME", "TYPE", "MAJ:MIN")):
        if _NUMBER.match(number.strip()) is None:
            raise ParseError("lsblk", f"MAJ:MIN of {name} is {number!r}, wanted major:minor")
        # device mapper names may hold a slash as '!'
        device = f"/dev/{name.replace('!', '/')}"
        if kind == "disk":
            disks[device] = number.strip()
        elif kind == "part":
            parts[device] = number.strip()
    by_number = {number: disk for disk, number in disks.items()}
    found = {part: disk for part, number in parts.items() if (disk := _disk_of(part, number, disks, by_number)) is not None}
    return disks, found


def _disk_of(part: str, number: str, disks: dict[str, str], by_number: dict[str, str]) -> str | None:
    """The disk whose name the partition's name starts with; else the one whose number its number belongs to."""
    stem = re.sub(r"(?<=\d)p\d+\Z|(?<=\D)\d+\Z", "", part)
    if stem != part and stem in disks:
        return stem
    major, minor = (int(x) for x in number.split(":"))
    return by_number.get(f"{major}:{minor - minor % _MINORS_A_DISK}")


def parse_mounts(table: str) -> dict[str, str]:
    """Mount points and their sources in ``/proc/<pid>/mounts``; lines that cannot be read are left out."""
    rows = [[_OCTAL.sub(lambda m: chr(int(m.group(1), 8)), word) for word in line.split(" ")[:2]] for line in table.splitlines()]
    return {os.path.normpath(row[1]): row[0] for row in rows if len(row) == 2}


def parse_storage(lsblk: str, vgs: str, lvs: str, findmnt: str) -> LocalStorage:
    """The maps of a machine from what the four tools print. Raises ParseError that names the tool."""
    disks, partitions = _block_devices(lsblk)
    groups: dict[str, str] = {}
    for group, count, device in _columns("vgs", vgs, 3):
        disk = partitions.get(device, device)
        if count == "1" and disk in disks:
            groups[group] = disk
    volumes = {f"/dev/mapper/{group.replace('-', '--')}-{name.replace('-', '--')}": group for name, group in _columns("lvs", lvs, 2)}
    mounts: dict[str, str] = {}
    for target, source in _pairs("findmnt", findmnt, ("TARGET", "SOURCE")):
        # a bind mount of a directory is shown as device[/directory]
        mounts[os.path.normpath(target)] = source.partition("[")[0]
    return LocalStorage(disks, partitions, groups, volumes, mounts)
