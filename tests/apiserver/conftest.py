"""A small JSON client for the embedded server: tests speak HTTP, as every other client does."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import orjson
import pytest

from koord.apiserver.testing import running_server

Obj = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


WIDGET: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wg"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 1},
                                    "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    "parts": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["name"],
                                        "items": {
                                            "type": "object",
                                            "required": ["name"],
                                            "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
                                        },
                                    },
                                },
                            },
                            "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
                        },
                    }
                },
            }
        ],
    },
}


class Api:
    """Requests that return (status, decoded body)."""

    def __init__(self, session: aiohttp.ClientSession, server: Any = None) -> None:
        self.session = session
        self.server = server
        self.headers: dict[str, str] = {}

    async def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json", accept: str = "") -> tuple[int, Any]:
        headers = {"Content-Type": kind} if body is not None else {}
        if accept:
            headers["Accept"] = accept
        data: Any = None if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        if data is not None and len(data) > 1024 * 1024:  # aiohttp warns of long bytes
            data = io.BytesIO(data)
        async with self.session.request(method, path, data=data, headers=headers) as response:
            raw = await response.read()
            self.headers = dict(response.headers)
            self.warnings = response.headers.getall("Warning", [])
            return response.status, orjson.loads(raw) if response.content_type == "application/json" and raw else raw

    async def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        status, out = await self.call(method, path, body, **options)
        assert status < 300, (status, out)
        return out

    async def get(self, path: str) -> Any:
        return await self.ok("GET", path)

    async def post(self, path: str, body: Any) -> Any:
        return await self.ok("POST", path, body)

    async def merge(self, path: str, body: Any) -> Any:
        return await self.ok("PATCH", path, body, kind=MERGE)

    async def watch(self, path: str, *, seconds: float = 1) -> list[Obj]:
        """All events of a watch that the server ends after `seconds`."""
        joint = "&" if "?" in path else "?"
        async with self.session.get(f"{path}{joint}watch=1&timeoutSeconds={max(1, round(seconds))}") as response:
            assert response.status == 200, await response.read()
            return [orjson.loads(line) for line in (await response.read()).splitlines() if line]


@contextlib.asynccontextmanager
async def api_for(**options: Any) -> AsyncIterator[Api]:
    async with running_server(**options) as server, aiohttp.ClientSession(server.url) as session:
        yield Api(session, server)


@pytest.fixture
def widget_crd() -> Obj:
    """A small custom resource with a status, defaults, an enumeration and an associative list."""
    return copy.deepcopy(WIDGET)


Run = Callable[..., None]


@pytest.fixture
def with_api() -> Run:
    """Run a coroutine function with an `Api` on a fresh server."""

    def run(body: Callable[[Api], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            async with api_for(**options) as api:
                await body(api)

        asyncio.run(main())

    return run
