"""The HTTP port of a role: health, metrics, decisions, and what the role adds."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from koord import seams
from koord.decisions import query
from koord.decisions.recorder import Recorder
from koord.process import logs, metrics
from koord.process.errors import ConfigurationError
from koord.process.flags import HostPort
from koord.process.health import Health
from koord.process.listener import Limits, Listener, TlsSource, whole_body
from koord.process.requests import Handler, Middleware, Refused, Request, Response
from koord.process.routes import Routes
from koord.process.serving import HEALTH_PATHS, Gate, Serving
from koord.process.slis import Slis
from koord.version import VERSION

log = logging.getLogger("koord.process")

FlagSetter = Callable[[str], None]
_MANY_SAMPLES = 2000  # that take 10 ms to write: nothing for the event loop


class OpsServer:
    """Serves `/healthz /livez /readyz /metrics /metrics/slis /debug/decisions /version` and the routes that a role adds.

    Several servers (health on one port, metrics on another) share one `health`, `registry` and `recorder`. Port 0 takes a free
    port; `port` and `url` then say which. Routes may be added until `start`, and checks at any time.

    On the loopback everything is open. On any other address only health is, without details, unless `gate` lets the caller pass; there
    `tls` serves HTTPS on the same port, and credentials are not read from plain HTTP. With `ssl_context` HTTPS alone is spoken;
    `middlewares`, where there are any, say who may ask instead, on the loopback too.
    """

    def __init__(
        self,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        health: Health | None = None,
        registry: CollectorRegistry | None = None,
        recorder: Recorder | None = None,
        role: str = "koord",
        ssl_context: ssl.SSLContext | TlsSource | None = None,
        middlewares: Sequence[Middleware] = (),
        tls: TlsSource | None = None,
        gate: Gate | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.address = address
        self.port = port
        self.role = role
        self.health = health or Health()
        self.registry = registry if registry is not None else metrics.registry(role)
        self.recorder = recorder
        self.slis = Slis(self.health)
        self._ssl: TlsSource | None = (lambda: ssl_context) if isinstance(ssl_context, ssl.SSLContext) else ssl_context
        self.tls = tls
        self.gate = gate or Gate(Serving())
        self._judged = bool(middlewares)
        self._public = self._gated = False
        self._limits = limits or Limits()
        self._listener: Listener | None = None
        self._routes = Routes([self._guard, *middlewares, whole_body])
        self._flags: dict[str, FlagSetter] = {"v": _set_verbosity}
        for path in ("healthz", "livez", "readyz"):
            self.route("GET", f"/{path}", self._health)
            self.route("GET", f"/{path}/{{check}}", self._health)
        self.expose("/metrics", self.registry)
        self.expose("/metrics/slis", self.slis.registry)
        self.route("GET", "/version", self._version)
        self.route("GET", "/debug/decisions", self._decisions)

    @classmethod
    def at(cls, address: HostPort, **options: Any) -> OpsServer:
        """A server at a parsed listen address."""
        return cls(address.host, address.port, **options)

    @property
    def url(self) -> str:
        """Base URL once started."""
        host = self.address if self.address not in ("", "0.0.0.0", "::") else "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self._ssl else 'http'}://{host}:{self.port}"

    def route(self, method: str, path: str, handler: Handler) -> None:
        """Serve `path`, in which `{name}` stands for a segment; `method` may be `*`. Raises ValueError where somebody serves it already."""
        self._routes.add(method, path, _guarded(handler))

    def expose(self, path: str, registry: CollectorRegistry, prepare: Callable[[], None] = lambda: None) -> None:
        """Serve a registry's metrics; `prepare` is called before they are read."""

        async def answer(request: Request) -> Response:
            prepare()
            scraped, accept = metrics.Scraped(registry), request.headers.get("Accept", "")
            if len(scraped) > _MANY_SAMPLES:
                body, kind = await seams.to_thread(metrics.expose, scraped, accept)
            else:
                body, kind = metrics.expose(scraped, accept)
            return Response(body=body, headers={"Content-Type": kind})

        self.route("GET", path, answer)

    def json(self, path: str, produce: Callable[[], Any]) -> None:
        """Serve what `produce()` returns as JSON, for `/configz` and the like."""

        async def answer(request: Request) -> Response:
            return Response(body=orjson.dumps(produce(), default=str, option=orjson.OPT_NON_STR_KEYS), content_type="application/json")

        self.route("GET", path, answer)

    def flag(self, name: str, setter: FlagSetter) -> None:
        """A switch at `/debug/flags/<name>` (see `enable_profiling`): `setter(text)` raises ValueError for what it does not accept."""
        self._flags[name] = setter

    def enable_profiling(self) -> None:
        """Serve `/debug/tasks` (what every asyncio task waits for) and `PUT /debug/flags/<name>` (`v`: log verbosity)."""
        self.route("GET", "/debug/tasks", _tasks)
        self.route("PUT", "/debug/flags/{name}", self._put_flag)

    async def start(self) -> None:
        """Listen. Raises ConfigurationError if the address cannot be had."""
        listener = Listener(self._routes, tls=self._ssl, plain=self._ssl is None, limits=self._limits)
        try:
            local = await listener.listen(self.address, self.port)
        except (OSError, OverflowError) as error:
            detail = (getattr(error, "strerror", None) or str(error)).lower()
            raise ConfigurationError(f"cannot listen on {HostPort(self.address, self.port)}: {detail}") from error
        self._public = not local
        self._gated = self._public and not self._judged
        if self._gated:
            listener.use_tls(self._ssl or self.tls, plain=True)
        await listener.serve()
        self._listener, self.port = listener, listener.port
        log.info("serving %s on %s", self.role, HostPort(self.address, self.port))

    async def stop(self) -> None:
        """Stop listening; requests in flight have a second."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    async def _guard(self, request: Request, handler: Handler) -> Response:
        """Middleware: on an address that others reach, who may ask what."""
        if request.path not in HEALTH_PATHS and request.spare:
            return Response(status=503, text="too many connections: only health is answered\n", headers={"Retry-After": "1"})
        if self._gated and not self.gate.is_open(request.path):
            if not request.secure:
                return Response(status=403, text="Forbidden: this is answered by HTTPS only, with credentials\n")
            refusal = await self.gate.refusal(request)
            if refusal is not None:
                return refusal
        return await handler(request)

    # -- handlers --

    async def _health(self, request: Request) -> Response:
        path = request.path.split("/")[1]
        only = request.match_info.get("check")
        ok, rows = self.health.report(path, excluded=frozenset(request.query_all("exclude")))
        self.slis.looked(path, rows)
        if only is not None:
            rows = [row for row in rows if row[0] == only]
            if not rows:
                return Response(status=404, text=f"{path}: no check {only!r}\n")
            ok = rows[0][1]
        if ok and "verbose" not in request.query:
            return Response(text="ok")
        if self._public and only is None:  # everybody may ask this; the reasons are for those who may ask for a check by its name
            rows = [(name, well, "" if well else "reason withheld") for name, well, _ in rows]
        lines = [
            f"[{'+' if well else '-'}]{name} {'ok' if well else 'failed'}{f': {detail}' if detail else ''}" for name, well, detail in rows
        ]
        lines.append(f"{path} check {'passed' if ok else 'failed'}")
        return Response(status=200 if ok else 503, text="\n".join(lines) + "\n")

    async def _version(self, request: Request) -> Response:
        text = json.dumps({"role": self.role, "gitVersion": f"v{VERSION}", "version": VERSION})
        return Response(text=text, content_type="application/json")

    async def _decisions(self, request: Request) -> Response:
        if self.recorder is None:
            return Response(status=404, text=f"{self.role} records no decisions\n")
        status, body = query.answer(self.recorder.ring, request.query)
        return Response(status=status, body=body, content_type="application/json" if status == 200 else "text/plain")

    async def _put_flag(self, request: Request) -> Response:
        name, value = request.match_info["name"], (await request.text()).strip()
        setter = self._flags.get(name)
        if setter is None:
            return Response(status=404, text=f"no flag {name!r}; accepted: {', '.join(sorted(self._flags))}\n")
        try:
            setter(value)
        except ValueError as error:
            return Response(status=400, text=f"{name}: {error}\n")
        return Response(text=f"successfully set {name} to {value}\n")


def _set_verbosity(text: str) -> None:
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise ValueError(f"{text!r:.99} must be a whole number of up to 8 digits")
    logs.set_verbosity(int(text))


def _guarded(handler: Handler) -> Handler:
    """A handler whose mistake is logged and answered 500 with a line, not a dropped connection."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except Refused:
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.raw_path)
            return Response(status=500, text=f"{type(error).__name__}: {error}\n")

    return guarded


async def _tasks(request: Request) -> Response:
    blocks = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        frames = [f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}" for frame in task.get_stack()]
        blocks.append("\n".join([task.get_name(), *frames]))
    return Response(text="\n\n".join(blocks) + "\n")
