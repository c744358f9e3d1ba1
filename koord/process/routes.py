"""Which handler answers which path."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from koord.process.requests import Handler, Middleware, Request, Response


class Routes:
    """Paths with `{name}` for a segment of any text. `middlewares` are asked in their order, for paths that do not exist as well."""

    def __init__(self, middlewares: Sequence[Middleware] = ()) -> None:
        self._exact: dict[str, dict[str, Handler]] = {}
        self._patterns: dict[tuple[str, ...], dict[str, Handler]] = {}
        self._answer: Handler = self._find
        for middleware in reversed(middlewares):
            self._answer = _behind(middleware, self._answer)

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Answer `path` by `handler`; `method` may be `*`. Raises ValueError where somebody answers already."""
        table = self._patterns.setdefault(tuple(path.split("/")), {}) if "{" in path else self._exact.setdefault(path, {})
        if method in table:
            raise ValueError(f"{method} {path} has a handler already")
        table[method] = handler

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        return await self._answer(request)

    async def _find(self, request: Request) -> Response:
        table = self._exact.get(request.path) or self._match(request)
        if table is None:
            return Response(status=404, text="404: Not Found\n")
        method = "GET" if request.method == "HEAD" and "HEAD" not in table else request.method
        handler = table.get(method) or table.get("*")
        if handler is None:
            allowed = ", ".join(sorted({*table, *(("HEAD",) if "GET" in table else ())}))
            return Response(status=405, text="405: Method Not Allowed\n", headers={"Allow": allowed})
        return await handler(request)

    def _match(self, request: Request) -> dict[str, Handler] | None:
        segments = [unquote(segment) for segment in request.raw_path.split("/")]
        for pattern, table in self._patterns.items():
            if len(pattern) != len(segments):
                continue
            found: dict[str, str] = {}
            for wanted, segment in zip(pattern, segments, strict=True):
                if wanted.startswith("{") and segment:
                    found[wanted[1:-1]] = segment
                elif wanted != segment:
                    break
            else:
                request.match_info = found
                return table
        return None


def _behind(middleware: Middleware, handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        return await middleware(request, handler)

    return answer
