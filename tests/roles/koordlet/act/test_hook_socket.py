"""The socket at which the runtime proxy asks stays koordlet's own, whatever others do to its file."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from roles.koordlet.hooks.server import HookServer
from tests.support import patience


def given_away(path: Path) -> None:
    path.chmod(0o666)


def replaced(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))


def without_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.feature("KA-RH-01")
@pytest.mark.parametrize("hurt", [Path.unlink, given_away, replaced, without_directory], ids=lambda hurt: hurt.__name__)
def test_the_socket_is_made_again(tmp_path: Path, hurt: Callable[[Path], None]) -> None:
    path = tmp_path / "hooks" / "koordlet.sock"

    async def story() -> None:
        made_again = asyncio.Event()
        server = HookServer("unix", str(path), lambda: pytest.fail("nobody asks"), lost=made_again.set, look=0.01)
        await server.start()
        hurt(path)
        await asyncio.wait_for(made_again.wait(), patience.seconds(30))
        found = os.stat(path)
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, os.geteuid())
        await server.stop()
        assert not path.exists()

    asyncio.run(story())
