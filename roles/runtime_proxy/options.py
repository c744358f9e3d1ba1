"""What the runtime proxy can be told (RP-CLI-01)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from koord.process.flags import Duration, FlagError, flag
from koord.process.unixsocket import path_of

SKIP_LABEL = "runtimeproxy.koordinator.sh/skip-hookserver"
HOOK_DIRECTORY = Path("/etc/runtime/hookserver.d")
LISTEN = Path("/var/run/koord-runtimeproxy/runtimeproxy.sock")
ENGINE = Path("/var/run/containerd/containerd.sock")
CONTAINERD = "Containerd"  # any engine that speaks CRI v1
DOCKER = "Docker"


def socket_path(text: str) -> Path:
    """A socket path with or without `unix:` or `unix://`. Raises ValueError for what is no path."""
    path = path_of(text)
    if not path or "://" in path or "\0" in path:
        raise ValueError(f"{text!r} is no unix socket; accepted: a path, with or without unix://")
    return Path(path)


class _SocketType(click.ParamType[Path]):
    """A unix socket, with or without `unix:`."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path."""
        try:
            return socket_path(str(value))
        except ValueError as error:
            raise FlagError(f"{param.opts[0] if param is not None else 'the socket'}: {error}", ctx) from None


@dataclass(frozen=True, slots=True)
class Options:
    """Paths are absolute; times are seconds."""

    endpoint: Path = flag(LISTEN, "Socket to listen on.", "koord-runtimeproxy-endpoint", type=_SocketType())
    engine: Path = flag(ENGINE, "Socket of the container runtime.", "remote-runtime-service-endpoint", type=_SocketType())
    mode: str = flag(CONTAINERD, "Containerd (any CRI runtime) or Docker.", "backend-runtime-mode")
    hook_directory: Path = flag(HOOK_DIRECTORY, "Directory of hook registrations.", "runtime-hooks-config-path", type=Path, metavar="TEXT")
    skip_key: str = flag(SKIP_LABEL, "Pods with this label are not offered to hooks,", "runtime-hook-server-key")
    skip_value: str = flag("true", "if it has this value.", "runtime-hook-server-val")
    hook_timeout: float = flag(2.0, "How long one hook call may take.", "runtime-hook-timeout", type=Duration)
    hook_annotations: tuple[str, ...] = flag(
        ("*",),
        "Annotations that hooks may set: names or patterns like koordinator.sh/*, separated by commas.",
        "runtime-hook-annotations",
        metavar="TEXT",
    )
    concurrency: int = flag(
        4096, "Calls in flight at once (Docker: connections), long streams included.", "max-requests", type=click.IntRange(min=1)
    )
    drain: float = flag(
        120.0,
        "How long calls under way have to end when the proxy does; below its unit's TimeoutStopSec=.",
        "drain-timeout",
        type=Duration,
        shown="120s",
    )
    rescan: float = 0.5  # how often registrations are looked at
    patience: float = 5.0  # how long an engine that answers may fail to list what it runs before kubelet is served
    relist: float = 60.0  # how often the store is compared with the engine
