"""Serves the page on the loopback, to whoever has the key in the address that the command printed; nothing can be changed by it."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import orjson

from koord import seams
from koord.kube.errors import ApiError
from koord.process.errors import ConfigurationError
from koord.process.listener import Limits, Listener
from koord.process.requests import Handler, Request, Response
from koord.process.routes import Routes
from roles.tools.ui.studies import Studies

if TYPE_CHECKING:
    from roles.tools.ui.watching import Watching

ADDRESS = "127.0.0.1"
STATIC = {"": ("index.html", "text/html"), "app.js": ("app.js", "text/javascript"), "draw.js": ("draw.js", "text/javascript"),
          "app.css": ("app.css", "text/css")}  # fmt: skip
KINDS = ("Pod", "Node", "PodGroup")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class UiServer:
    """The page of one cluster."""

    def __init__(self, watching: Watching, port: int = 0, key: str | None = None, studies: Studies | None = None) -> None:
        self.watching = watching
        self.studies = studies or Studies(watching)
        watching.offered = self.studies.offered()
        self.key = key or secrets.token_urlsafe(24)
        self.port = port
        routes = Routes([self._guard])
        routes.add("GET", "/api/state", self._state)
        routes.add("GET", "/api/why", self._why)
        for name, study in self._studies().items():
            routes.add("GET", f"/api/{name}", partial(self._studied, study))
        routes.add("GET", "/favicon.ico", self._nothing)
        for path in STATIC:
            routes.add("GET", f"/{path}", self._static)
        self._listener = Listener(routes, tls=None, plain=True, limits=Limits())

    @property
    def url(self) -> str:
        """The address to open, with the key."""
        return f"http://{ADDRESS}:{self.port}/?key={self.key}"

    async def start(self) -> None:
        """Listen. Raises ConfigurationError if the port cannot be had."""
        try:
            await self._listener.listen(ADDRESS, self.port)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"cannot listen on {ADDRESS}:{self.port}: {error}") from error
        await self._listener.serve()
        self.port = self._listener.port

    async def stop(self) -> None:
        """Stop listening."""
        await self._listener.stop()

    async def _guard(self, request: Request, handler: Handler) -> Response:
        response = self._refusal(request) or await handler(request)
        response.headers.update(HEADERS)
        return response

    def _refusal(self, request: Request) -> Response | None:
        """Other users of this machine have no key, and pages of other sites no name of ours: none of them sees anything."""
        if request.host not in (f"{ADDRESS}:{self.port}", f"localhost:{self.port}"):
            return Response(status=421, text="this page is served for the loopback only\n")
        given = request.query.get("key", "")
        if given and self._is_key(given) and request.path == "/":
            cookie = f"{self._cookie}={self.key}; HttpOnly; Path=/; SameSite=Strict"
            return Response(status=303, headers={"Location": "/", "Set-Cookie": cookie})
        if request.path != "/favicon.ico" and not self._is_key(request.cookies.get(self._cookie, "")):
            return Response(status=403, text="open the address that `koord ui` printed: it has the key\n")
        return None

    @property
    def _cookie(self) -> str:
        """A browser keeps cookies by host, whatever the port: the pages of two clusters must not take each other's key."""
        return f"koord-ui-{self.port}"

    def _is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.key.encode())

    async def _static(self, request: Request) -> Response:
        name, kind = STATIC[request.path.strip("/")]
        body = files("roles.tools.ui").joinpath("static", name).read_bytes()
        return Response(body=body, content_type=kind, charset="utf-8")

    async def _nothing(self, request: Request) -> Response:
        return Response(status=204)

    async def _state(self, request: Request) -> Response:
        text = request.query.get("since", "0")
        if not (text.isascii() and text.isdigit()):
            return Response(status=400, text=f"since: {text!r} must be a whole number\n")
        return Response(body=self.watching.state(int(text)), content_type="application/json")

    async def _why(self, request: Request) -> Response:
        kind, name = request.query.get("kind", ""), request.query.get("name", "")
        if kind not in KINDS or not name:
            return Response(status=400, text=f"kind must be one of {', '.join(KINDS)}, and name not empty\n")
        try:
            told = await self.watching.why(kind, request.query.get("namespace", ""), name)
        except (ApiError, OSError, TimeoutError) as error:
            return Response(status=502, text=f"cannot query the API server: {error}\n")
        return Response(body=orjson.dumps(told), content_type="application/json")

    def _studies(self) -> dict[str, Callable[[Request], Awaitable[Any]]]:
        """What takes a while, by its path."""
        return {
            "cost": lambda request: seams.to_thread(self.studies.cost),
            "replay": lambda request: self.studies.replay(),
            "test": lambda request: self.studies.test(),
            "help": lambda request: self.studies.helps(request.query.get("namespace", ""), request.query.get("name", "")),
        }

    async def _studied(self, study: Callable[[Request], Awaitable[Any]], request: Request) -> Response:
        try:
            return Response(body=orjson.dumps(await study(request)), content_type="application/json")
        except (ApiError, ConfigurationError, OSError, TimeoutError) as error:
            return Response(status=502, text=f"{error}\n")
