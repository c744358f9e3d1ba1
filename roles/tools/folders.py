"""Which files of a folder nobody means, for the commands that read folders. Pure."""

from __future__ import annotations

from pathlib import Path


def meant(file: Path) -> bool:
    """Whether a file was put there to be read. Emacs marks one that is being edited by a link beside it, which leads nowhere."""
    return not file.name.startswith(".#")
