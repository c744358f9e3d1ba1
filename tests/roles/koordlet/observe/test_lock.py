"""One agent a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koord import seams
from koord.process.errors import ConfigurationError
from roles.koordlet import app as app_module
from roles.koordlet.lock import NodeLock
from tests.support.koordlet import Cluster, agent, run, until


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


@pytest.mark.feature("KLO-LIFE-01")
def test_a_lock_whose_file_others_removed_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard would take this koordlet for gone, and another koordlet would start beside it."""
    monkeypatch.setattr(app_module, "LOCK_LOOK", 0.05)

    async def story(c: Cluster) -> None:
        await c.node({})
        path = c.base / "var/run/koordlet/koordlet.lock"
        async with agent(c):
            await until(path.exists, "the lock")
            path.unlink()
            await until(path.exists, "the lock, again")
            with pytest.raises(ConfigurationError, match=f"pid {os.getpid()}"):
                NodeLock(str(path)).acquire(patience=0.0)
        NodeLock(str(path)).acquire(patience=0.0)

    run(tmp_path, story)


@pytest.mark.feature("KLO-LIFE-01")
def test_a_lock_that_another_one_has_by_now_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roles.koordlet.lock.select.select", lambda *_: pytest.fail("the event loop is held up"))
    first, second = NodeLock(str(tmp_path / "lock")), NodeLock(str(tmp_path / "lock"))
    first.acquire()
    assert first.stay() == ""
    (tmp_path / "lock").unlink()
    second.acquire()
    assert "another koordlet" in first.stay()
    second.release()
    assert first.stay() == ""
    with pytest.raises(ConfigurationError):
        second.acquire(patience=0.0)
    first.release()
