"""/healthz, /livez and /readyz."""

from __future__ import annotations

from aiohttp import web

CHECKS = ("ping", "store", "admission", "controllers")


def answer(path: str, rest: list[str], query: dict[str, str], *, ready: bool) -> web.Response:
    """`ok`, or the list of checks with ?verbose; 500 on /readyz while the server starts or stops."""
    good = ready or path == "livez"
    if rest and rest[0] not in CHECKS:
        return web.Response(status=404, text="404 page not found\n")
    if "verbose" in query or not good:
        lines = [f"[+]{check} ok" for check in CHECKS]
        if not good:
            lines.append("[-]shutdown failed: reason withheld")
        lines.append(f"{path} check {'passed' if good else 'failed'}")
        return web.Response(status=200 if good else 500, text="\n".join(lines) + "\n")
    return web.Response(text="ok")
