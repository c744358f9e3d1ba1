"""Pages that were not touched for a while, as kidled counts them (KLO-COL-09). Pure."""

from __future__ import annotations

from roles.koordlet.host.errors import ParseError

_LINES = 31
_HEADER = (b"# version", b"# page_scans", b"# slab_scans", b"# scan_period_in_seconds", b"# use_hierarchy", b"# buckets")
_FIRST_ROW = 14
#: Inactive file pages, clean and dirty, evictable and not: what can be given back without hurting anybody.
_ROWS = frozenset({b"cfei", b"dfei", b"cfui", b"dfui"})
#: Columns are ages; from this one on a page counts as cold.
_FIRST_COLUMN = 5


def cold_bytes(path: str, data: bytes) -> int:
    """Bytes of cold inactive file pages of ``memory.idle_page_stats``. Anything but its 31 lines is a ParseError."""
    lines = data.strip(b"\n").split(b"\n")
    if len(lines) != _LINES:
        raise ParseError(path, f"{len(lines)} lines, wanted {_LINES}")
    for line, name in zip(lines, _HEADER, strict=False):
        if not line.startswith(name):
            raise ParseError(path, f"line {line[:40].decode('utf-8', 'replace')!r} does not start with {name.decode()!r}")
    total = 0
    seen: set[bytes] = set()
    for line in lines[_FIRST_ROW:]:
        fields = line.split()
        if not fields or fields[0] not in _ROWS:
            continue
        seen.add(fields[0])
        try:
            total += sum(int(v) for v in fields[1 + _FIRST_COLUMN :])
        except ValueError:
            raise ParseError(path, f"row {fields[0].decode()!r} holds a field that is not a number") from None
    if seen != _ROWS:
        raise ParseError(path, f"rows {', '.join(sorted(n.decode() for n in _ROWS - seen))} are missing")
    return total
