"""A journal decided again by another version of koord: its executable is asked, and what it says is compared with the log."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import orjson

from koord.process.errors import ConfigurationError
from koord.version import VERSION
from roles.tools.replay.found import Difference, Found

_VERSION = re.compile(r"v?\d+(\.\d+)+\S*")


def executable_of(other: str) -> str | None:
    """The executable that `--with` names; None for a configuration. This koord's own version is itself. Raises ConfigurationError."""
    path = Path(other)
    if path.is_file():
        return str(path.resolve()) if os.access(path, os.X_OK) else None
    if _VERSION.fullmatch(other):
        if other.removeprefix("v") == VERSION:
            return shutil.which("koord") or os.sys.argv[0]  # type: ignore[attr-defined]
        for name in (f"koord-{other}", f"koord-{other.removeprefix('v')}"):
            found = shutil.which(name)
            if found is not None:
                return found
        raise ConfigurationError(f"--with {other}: no koord-{other} on the PATH; give the path of that version's executable")
    raise ConfigurationError(f"--with {other}: neither a file nor a version")


def other_version(program: str, files: list[Path], role: str = "scheduler") -> Found:
    """What the koord at `program` decides, file by file. Raises ConfigurationError."""
    found = Found(role, config=True)
    for file in files:
        try:
            done = subprocess.run([program, "replay", str(file), "-o", "decisions"], capture_output=True, check=False)
        except OSError as error:
            raise ConfigurationError(f"--with {program}: {error.strerror}") from error
        if done.returncode not in (0, 2) or (done.returncode == 2 and not done.stdout):
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise ConfigurationError(f"{program} replay ended with {done.returncode}: {said[-1] if said else 'it said nothing'}")
        for text in done.stdout.splitlines():
            _count(found, orjson.loads(text))
    return found


def _count(found: Found, line: dict[str, object]) -> None:
    found.count(float(str(line["time"])), repeated=True, same=bool(line["same"]))
    if not line["same"]:
        now = str(line["node"] or line["nominated"] or line["verdict"])
        difference = Difference(str(line["pod"]), found.last, "otherwise", str(line["rule"]), str(line.get("then") or "?"), now, "")
        found.differences.append(difference)
