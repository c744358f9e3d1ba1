"""What a run leaves on disk while it lives: endpoints for users and tools, and enough to clean up after a run that was killed.

Each run keeps its files in `run-<id>`; `current` is a link to one of them, the oldest, so that runs do not disturb each other.
The directory is `$XDG_RUNTIME_DIR/koord-sandbox`, or `/tmp/koord-sandbox-<uid>`; it must be ours alone, because what is read here decides
which processes get killed.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from roles.sandbox.process_kubelet import layout
from roles.sandbox.process_kubelet.cgroups import RunGroups

RUN_FILE = re.compile(r"run-([0-9a-f]{8})\.json")
ENDPOINTS = "endpoints.json"
KUBECONFIG = "kubeconfig"
CURRENT = "current"
"""The run whose files tools find when nobody names one."""


class StateError(Exception):
    """The state directory cannot be used; the text says why."""


def directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where the state lies for this user."""
    runtime = (os.environ if environ is None else environ).get("XDG_RUNTIME_DIR")
    return Path(runtime) / "koord-sandbox" if runtime else Path(f"/tmp/koord-sandbox-{os.getuid()}")


def secure(path: Path) -> Path:
    """Make the directory with mode 0700, or prove that it is ours and closed to others. Raises `StateError`."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode):
        raise StateError(f"{path} is not a directory")
    if facts.st_uid != os.getuid():
        raise StateError(f"{path} belongs to user {facts.st_uid}, not to {os.getuid()}; remove it or set XDG_RUNTIME_DIR")
    if facts.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def process_start(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Start time of a process in clock ticks since boot: tells a process from a later one with its pid.

    None when there is none, or when it has ended and only waits for its parent to take note.
    """
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    words = text.rpartition(")")[2].split()
    return None if words[0] in "ZX" else int(words[19])


def boot_id(proc: Path = Path("/proc")) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def new_id() -> str:
    """A fresh run id: eight hexadecimal digits."""
    return secrets.token_hex(4)


@dataclass(frozen=True, slots=True)
class Run:
    """A run on disk: its id and the process that owns it."""

    id: str
    pid: int
    started: int
    boot: str

    @classmethod
    def new(cls, run_id: str | None = None) -> Run:
        """A run of this process."""
        return cls(run_id or new_id(), os.getpid(), process_start(os.getpid()) or 0, boot_id())

    @property
    def alive(self) -> bool:
        """Whether the owning process still runs: same boot, same pid, same start time."""
        return self.boot == boot_id() and process_start(self.pid) == self.started


class State:
    """The state directory of this user."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = secure(path or directory())

    def register(self, run: Run) -> Path:
        """Write the run's file, before its first cgroup is made. Returns the run's scratch directory."""
        _write(self.path / f"run-{run.id}.json", asdict(run))
        scratch = self.scratch(run.id)
        scratch.mkdir(mode=0o700, exist_ok=True)
        return scratch

    def scratch(self, run_id: str) -> Path:
        """Directory for logs, the API server's data and the agent's files of one run."""
        return self.path / f"run-{run_id}"

    def forget(self, run_id: str) -> None:
        """Remove all traces of a run that has been cleaned."""
        shutil.rmtree(self.scratch(run_id), ignore_errors=True)
        (self.path / f"run-{run_id}.json").unlink(missing_ok=True)

    def runs(self) -> list[Run]:
        """All registered runs; a file that does not parse is passed over (its groups then stay, and `strangers` names them)."""
        found = []
        for file in sorted(self.path.iterdir()):
            match = RUN_FILE.fullmatch(file.name)
            if match is None:
                continue
            # one that ends meanwhile takes its file along
            with suppress(FileNotFoundError, orjson.JSONDecodeError, TypeError, KeyError, ValueError):
                data = orjson.loads(file.read_bytes())
                found.append(Run(match.group(1), int(data["pid"]), int(data["started"]), str(data["boot"])))
        return found

    def publish(self, run: Run, endpoints: Mapping[str, str]) -> None:
        """Tell tools where each role's debug address is: `endpoints.json` of the run, role to URL."""
        _write(self.register(run) / ENDPOINTS, {"run": run.id, "pid": run.pid, **endpoints})
        self._point()

    def unpublish(self, run: Run) -> None:
        """Take the run's endpoints and kubeconfig away; the oldest of the others is what tools find then."""
        for name in (ENDPOINTS, KUBECONFIG):
            (self.scratch(run.id) / name).unlink(missing_ok=True)
        self._point()

    def reachable(self) -> list[Run]:
        """Runs that live and have said how they are reached, the oldest first."""
        found = [one for one in self.runs() if one.alive and (self.scratch(one.id) / ENDPOINTS).exists()]
        return sorted(found, key=lambda one: (one.started, one.pid, one.id))

    def _point(self) -> None:
        """Let `current` be the run that it is while that can be reached, else the oldest that can; without one, nothing is left."""
        links = {name: f"{CURRENT}/{name}" for name in (KUBECONFIG, ENDPOINTS)}
        lock = os.open(self.path, os.O_RDONLY)  # two runs may start or end at once
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            reachable = [self.scratch(one.id).name for one in self.reachable()]
            if not reachable:
                for name in (*links, CURRENT):
                    (self.path / name).unlink(missing_ok=True)
                return
            now = os.readlink(self.path / CURRENT) if (self.path / CURRENT).is_symlink() else ""
            _link(self.path / CURRENT, now if now in reachable else reachable[0])
            for name, target in links.items():
                _link(self.path / name, target)
        finally:
            os.close(lock)

    def clean(self, hierarchies: layout.Hierarchies | None) -> tuple[list[str], list[Path]]:
        """Remove what dead runs left. Returns (ids cleaned, directories that would not go).

        Only groups named after a run that is registered here and whose owner is dead are touched; a run of an earlier boot has none.
        """
        cleaned: list[str] = []
        stuck: list[Path] = []
        for run in self.runs():
            if run.alive:
                continue
            left = RunGroups(hierarchies, run.id).remove_all() if hierarchies is not None else []
            if left:
                stuck += left
                continue
            self.unpublish(run)
            self.forget(run.id)
            cleaned.append(run.id)
        return cleaned, stuck


def strangers(hierarchies: layout.Hierarchies, known: set[str]) -> list[Path]:
    """Directories that look like a run's but belong to none that is registered: named, never touched."""
    found = []
    for mount in {mount for _, mount in hierarchies.mounts}:
        for path in sorted(mount.glob(layout.PREFIX + "*")):
            if path.name.removeprefix(layout.PREFIX) not in known:
                found.append(path)
    return found


def _link(path: Path, target: str) -> None:
    """A symbolic link, in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, path)


def _write(path: Path, value: Any) -> None:
    """Replace a file in one step, readable by its owner only."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, orjson.dumps(value, option=orjson.OPT_INDENT_2))
    finally:
        os.close(fd)
    os.replace(temporary, path)


def beside(store: State, run: Run) -> list[str]:
    """What a run says of those that run already, and how to reach each and itself; nothing when it is alone."""
    already = [one for one in store.reachable() if one.id != run.id]
    lines = [f"a sandbox runs already (pid {one.pid}): --kubeconfig {store.scratch(one.id) / KUBECONFIG}" for one in already]
    return [*lines, f"this one (pid {run.pid}): --kubeconfig {store.scratch(run.id) / KUBECONFIG}"] if lines else []
