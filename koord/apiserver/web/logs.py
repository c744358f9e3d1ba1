"""`pods/log`: what a container wrote, where the server was told in which file that is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

from aiohttp import web

from koord import seams
from koord.apiserver.errors import StatusError, bad_request
from koord.apiserver.facts import ended as is_over

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource

_HONOURED = ("container", "follow", "limitBytes", "tailLines")
_TRUE = ("true", "1")
_LOOK_EVERY = 0.2
_CHUNK = 1 << 20


def _whole(query: dict[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f"{name}: Invalid value: {text!r}: a whole number from 0 is wanted")
    return int(text)


def _container(pod: dict[str, Any], asked: str | None) -> str:
    spec = pod.get("spec") or {}
    names = [c["name"] for c in (*(spec.get("initContainers") or []), *(spec.get("containers") or []))]
    if asked:
        if asked not in names:
            raise bad_request(f"container {asked} is not valid for pod {pod['metadata']['name']}")
        return asked
    if len(names) != 1:
        raise bad_request(f"a container name must be specified for pod {pod['metadata']['name']}, choose one of: [{' '.join(names)}]")
    return str(names[0])


async def serve(
    core: Core, request: web.BaseRequest, resource: Resource, place: tuple[str, str], query: dict[str, str]
) -> web.StreamResponse:
    """The log so far, and with `follow` what is added until the container ends or the client goes. Raises StatusError."""
    pods, (namespace, name) = core.store.bucket(resource.bucket), place
    entry = core.entry(resource, namespace, name)
    find = core.config.pod_log
    if find is None:
        raise StatusError(501, "NotImplemented", "the embedded API server has no kubelet to read logs from", {})
    # kubectl writes switches that are off as well
    strange = sorted(n for n, v in query.items() if n not in _HONOURED and v.lower() not in ("", "false", "0"))
    if strange:
        raise bad_request(f"{', '.join(strange)}: not supported by the embedded API server: {', '.join(_HONOURED)} are")
    container = _container(entry.obj, query.get("container"))
    lines, limit = _whole(query, "tailLines"), _whole(query, "limitBytes")
    path = find(namespace, name, container)
    if path is None or not path.exists():
        raise bad_request(f'container "{container}" in pod "{name}" has no log: it has not started, or its node is a simulated one')
    uid = entry.obj["metadata"]["uid"]

    def ended() -> bool:
        """Whether no more can come, or nobody is there to read it."""
        now = pods.get(namespace, name)
        gone = now is None or now.obj["metadata"]["uid"] != uid or not path.exists()
        left = request.transport is None or request.transport.is_closing()
        return gone or left or (now is not None and is_over(now.obj))

    with path.open("rb") as file:
        start, end = await seams.to_thread(_span, file, lines)
        if query.get("follow", "").lower() in _TRUE:
            return await _stream(request, file, limit, ended)
        left = end - start if limit is None else min(limit, end - start)
        if left > _CHUNK:
            return await _stream(request, file, left, lambda: True)
        return web.Response(body=await seams.to_thread(file.read, left), content_type="text/plain")


def _span(file: BinaryIO, lines: int | None) -> tuple[int, int]:
    """Where the last `lines` of a file begin (None: all of it), to where it is set, and where it ends. Reads no more than these lines."""
    end = at = file.seek(0, os.SEEK_END)
    start = 0
    if lines == 0:
        start, at = end, 0
    elif lines is None:
        at = 0
    else:
        file.seek(max(0, end - 1))
        breaks = lines + (file.read(1) == b"\n")  # the one that ends the last line begins no other
        while at and breaks:
            size = min(_CHUNK, at)
            at -= size
            file.seek(at)
            block, place = file.read(size), size
            while breaks and (place := block.rfind(b"\n", 0, place)) >= 0:
                breaks -= 1
                start = at + place + 1
        if breaks:
            start = 0
    file.seek(start)
    return start, end


async def _stream(request: web.BaseRequest, file: BinaryIO, left: int | None, ended: Callable[[], bool]) -> web.StreamResponse:
    """What follows in a file, `left` bytes at most, until it has ended and all is read."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    while left != 0:
        over = ended()
        piece = await seams.to_thread(file.read, _CHUNK if left is None else min(left, _CHUNK))
        if piece:
            await response.write(piece)
            left = None if left is None else left - len(piece)
        elif over:
            break
        else:
            await seams.sleep(_LOOK_EVERY)
    await response.write_eof()
    return response
