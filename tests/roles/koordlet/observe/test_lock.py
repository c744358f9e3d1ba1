"""One agent a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koord import seams
from koord.process.errors import ConfigurationError
from roles.koordlet.lock import NodeLock


class _Full(seams.Files):
    def write(self, fd: int, data: bytes | memoryview) -> int:
        raise OSError(28, os.strerror(28))


@pytest.mark.feature("KLO-LIFE-01")
def test_a_full_disk_keeps_no_agent_from_starting(tmp_path: Path) -> None:
    """Only the number of the holder cannot be noted; that there is one can be told all the same."""
    surroundings = seams.System()
    surroundings.files = _Full()
    token = seams.use(surroundings)
    try:
        first, second = NodeLock(str(tmp_path / "lock")), NodeLock(str(tmp_path / "lock"))
        first.acquire()
        with pytest.raises(ConfigurationError, match="another koordlet"):
            second.acquire()
        first.release()
        second.acquire()
        second.release()
    finally:
        seams.leave(token)
