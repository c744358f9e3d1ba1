"""``GET /events`` (KLO-AUD-02)."""

from __future__ import annotations

import orjson

from koord import seams
from koord.process.requests import Request, Response
from roles.koordlet.audit.reader import BadRequestError, Readers, TokenGoneError


def _wants_json(accept: str) -> bool:
    """Whether JSON is among the accepted types; ``*/*`` alone gets text lines, as a terminal expects them."""
    return any(part.split(";")[0].strip() == "application/json" for part in accept.split(","))


class EventsHandler:
    """Serves events newest first; ``readers`` None means that auditing is off: an empty 200."""

    def __init__(self, readers: Readers | None) -> None:
        self._readers = readers

    async def __call__(self, request: Request) -> Response:
        if self._readers is None:
            return Response(text="")
        query = request.query
        try:
            size = self._readers.size_of(query.get("size"))
            events, token = self._readers.page(query.get("pageToken"), size, seams.monotonic())
        except BadRequestError as error:
            return Response(status=400, text=f"{error}\n")
        except TokenGoneError as error:
            return Response(status=409, text=f"{error}\n")
        if _wants_json(request.headers.get("Accept", "")):
            body = orjson.dumps({"NextPageToken": token, "Events": events})
            return Response(body=body, content_type="application/json")
        headers = {"Next-Page-Token": token} if token else {}
        text = b"".join(orjson.dumps(e) + b"\n" for e in events)
        return Response(body=text, content_type="text/plain", charset="utf-8", headers=headers)
