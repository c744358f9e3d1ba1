"""Files of decisions with what they were made on: one JSON array a line, each file readable without the others (BEY-REPLAY-01)."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from koord.decisions.sinks import LineFile
from koord.version import VERSION

FORMAT = 1
_TOGETHER = 64  # items between two looks at the size


class ReplayFile(LineFile):
    """A file for one role. What `parts` tells may lean on what it told before; `begin` forgets all of that."""

    role = ""

    def __init__(self, path: str, **limits: Any) -> None:
        super().__init__(path, **limits)
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._begun = self._continues = False
        self._lost = 0

    def begin(self) -> dict[str, Any]:
        """Nothing has been told yet. What the head says beside format, version and role."""
        raise NotImplementedError

    def parts(self, item: Any) -> list[Any]:
        """The lines of an item."""
        raise NotImplementedError

    def _write(self, items: list[Any]) -> None:
        self._open()
        try:
            for start in range(0, len(items), _TOGETHER):
                if self._begun and (self._size or 0) > self.max_bytes:
                    self._rotate()
                    self._begun = False
                if self.dropped != self._lost:
                    self._begun = self._continues = False
                self._append(b"".join(self._encode(part) + b"\n" for part in self._chunk(items[start : start + _TOGETHER])))
        except BaseException:
            self._begun = self._continues = False  # nobody knows how much of it is in the file
            raise

    def _chunk(self, items: list[Any]) -> Iterator[Any]:
        if not self._begun:
            head = {"format": FORMAT, "koord": VERSION, "role": self.role, "continues": self._continues}
            yield ["head", head | self.begin()]
            self._begun = self._continues = True
            self._lost = self.dropped
        for item in items:
            yield from self.parts(item)


def read_lines(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """Number and content of each line. A last line without an end, which a crash leaves, is none. Raises OSError and ValueError."""
    decode = msgspec.json.Decoder(list[Any]).decode
    with cast("IO[bytes]", gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb")) as file:
        for number, line in enumerate(file, 1):
            try:
                found = decode(line)
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):
                    return
                raise ValueError(f"{path}, line {number}: {error!s:.200}: not a line of a replay log") from error
            yield number, found
