"""Follows the JSON lines that the demo's pods print, by reading what was appended to their logs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson


class JsonTail:
    """New JSON objects of a growing file on each call of `read`; an unfinished last line waits for its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = 0
        """For the reader's own use: the last count seen."""
        self._offset = 0
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Objects appended since the last call. Lines that are no JSON objects (a traceback) are passed over."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(line)
                if isinstance(value, dict):
                    found.append(value)
        return found
