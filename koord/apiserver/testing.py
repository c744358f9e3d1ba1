"""The embedded server in tests: `async with running_server() as s`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from koord.apiserver import kubeconfig, manifests
from koord.apiserver.config import ServerConfig
from koord.apiserver.server import ApiServer
from koord.apiserver.store import Obj
from koord.kube.client import Client
from koord.kube.config import load

_CRDS = Path(__file__).resolve().parents[2] / "configs" / "crds"


class RunningServer:
    """A server that listens on a free port of 127.0.0.1, without TLS."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.server = server
        self.core = server.core
        self.url = server.url
        self.token = server.config.token
        self.kubeconfig_path = directory / "kubeconfig"
        kubeconfig.write(self.kubeconfig_path, kubeconfig.build(self.url, self.token))

    def client(self, **options: Any) -> Client:
        """A koord client for this server; use it with `async with`."""
        return Client(load(str(self.kubeconfig_path)), **options)


@contextlib.asynccontextmanager
async def running_server(
    *, crds: bool | Path | Iterable[Obj] = False, config: ServerConfig | None = None, port: int = 0
) -> AsyncIterator[RunningServer]:
    """A server for the length of a block.

    `crds`: True installs koord's own (`configs/crds`), a path those under it, else definitions as dicts.
    """
    server = ApiServer(config)
    with tempfile.TemporaryDirectory(prefix="koord-apiserver-") as directory:
        await server.start(port=port)
        try:
            if crds:
                path = _CRDS if crds is True else crds
                await manifests.install(server.core, manifests.read(path) if isinstance(path, Path) else list(path))
            yield RunningServer(server, Path(directory))
        finally:
            await server.stop()
