"""The kubelet's read-only HTTP face on a local port: /pods, /configz, /healthz and container logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from aiohttp import web

CONFIG: dict[str, Any] = {
    "kubeletconfig": {
        "cgroupDriver": "cgroupfs",
        "cpuManagerPolicy": "none",
        "topologyManagerPolicy": "none",
        "topologyManagerScope": "container",
        "cpuCFSQuota": True,
        "cpuCFSQuotaPeriod": "100ms",
        "maxPods": 110,
    }
}


class KubeletServer:
    """Serves the pods this kubelet runs. `pods` returns current objects; `log_path` finds the log of (namespace, pod, container)."""

    def __init__(
        self,
        pods: Callable[[], list[dict[str, Any]]],
        log_path: Callable[[str, str, str], Path | None],
        *,
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._pods = pods
        self._log_path = log_path
        self.address = address
        self.port = port
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; `port` is the real one afterwards. Raises OSError when the address is taken."""
        from aiohttp import web

        app = web.Application()
        for path in ("/pods", "/pods/"):
            app.router.add_get(path, self._serve_pods)
        app.router.add_get("/configz", self._serve_config)
        app.router.add_get("/healthz", self._serve_health)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve_log)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.address, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_pods(self, request: web.Request) -> web.Response:
        return _json({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self._pods()})

    async def _serve_config(self, request: web.Request) -> web.Response:
        return _json(CONFIG)

    async def _serve_health(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(text="ok")

    async def _serve_log(self, request: web.Request) -> web.Response:
        from aiohttp import web

        match = request.match_info
        path = self._log_path(match["namespace"], match["pod"], match["container"])
        if path is None or not path.exists():
            return web.Response(status=404, text=f"no log of container {match['container']} in {match['namespace']}/{match['pod']}\n")
        lines = request.query.get("tailLines")
        if lines is not None and not (lines.isascii() and lines.isdigit() and len(lines) < 10):
            return web.Response(status=400, text=f"tailLines must be a whole number, not {lines!r}\n")
        content = path.read_bytes()
        if lines is not None:
            content = b"".join(content.splitlines(keepends=True)[-int(lines) :]) if int(lines) else b""
        return web.Response(body=content, content_type="text/plain")


def _json(value: object) -> web.Response:
    from aiohttp import web

    return web.Response(body=orjson.dumps(value), content_type="application/json")
