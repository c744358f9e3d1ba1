"""Files of the agent's own: replaced as a whole, so that a reader sees the old or the new content and never half."""

from __future__ import annotations

import contextlib
import os

from koord import seams


def replace(path: str, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write a file by way of another one beside it; ``sync`` waits for the disk. Raises OSError. A disk that was too full for it is left as
    full as it was."""
    files = seams.files()
    temporary = f"{path}.tmp"
    fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[files.write(fd, view) :]
        if sync:
            files.sync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise
    finally:
        files.close(fd)
    files.rename(temporary, path)
