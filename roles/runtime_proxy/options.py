"""What the runtime proxy can be told (RP-CLI-01)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koord.process.unixsocket import path_of

SKIP_LABEL = "runtimeproxy.koordinator.sh/skip-hookserver"
HOOK_DIRECTORY = Path("/etc/runtime/hookserver.d")
LISTEN = Path("/var/run/koord-runtimeproxy/runtimeproxy.sock")
ENGINE = Path("/var/run/containerd/containerd.sock")
CONTAINERD = "Containerd"  # any engine that speaks CRI v1
DOCKER = "Docker"


@dataclass(frozen=True, slots=True)
class Options:
    """Paths are absolute; times are seconds."""

    endpoint: Path = LISTEN
    engine: Path = ENGINE
    mode: str = CONTAINERD
    hook_directory: Path = HOOK_DIRECTORY
    skip_key: str = SKIP_LABEL
    skip_value: str = "true"
    hook_timeout: float = 2.0
    hook_annotations: tuple[str, ...] = ("*",)  # patterns of annotations that hooks may set
    concurrency: int = 4096  # calls under way (Docker: connections), long streams included
    drain: float = 120.0  # how long calls under way may take to end when the process does
    rescan: float = 0.5  # how often registrations are looked at
    patience: float = 5.0  # how long an engine that answers may fail to list what it runs before kubelet is served
    relist: float = 60.0  # how often the store is compared with the engine


def socket_path(text: str) -> Path:
    """A socket path with or without `unix:` or `unix://`. Raises ValueError for what is no path."""
    path = path_of(text)
    if not path or "://" in path or "\0" in path:
        raise ValueError(f"{text!r} is no unix socket; accepted: a path, with or without unix://")
    return Path(path)
