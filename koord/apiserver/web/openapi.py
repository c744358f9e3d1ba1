"""/openapi/v2 and /openapi/v3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from aiohttp import web

if TYPE_CHECKING:
    from koord.apiserver.core import Core


def answer(core: Core, rest: list[str], request: web.BaseRequest) -> web.Response:
    return web.Response(
        body=orjson.dumps({"swagger": "2.0", "info": {"title": "Kubernetes", "version": ""}, "paths": {}, "definitions": {}}),
        content_type="application/json",
    )
