"""`/debug/decisions`: the query of recent records, as a plain function that any HTTP server can call."""

from __future__ import annotations

from collections.abc import Mapping

from koord.decisions.record import encode_many
from koord.decisions.ring import RingSink

PARAMETERS = ("kind", "namespace", "name", "verdict", "limit")
MAX_ANSWER = 1000  # records in one answer


def answer(ring: RingSink, query: Mapping[str, str]) -> tuple[int, bytes]:
    """HTTP status and JSON body for a query: a list of records, oldest first; the newest `limit` (at most 1000) of them.

    An unknown parameter or a bad limit is 400 with one line of text.
    """
    unknown = sorted(set(query) - set(PARAMETERS))
    if unknown:
        return 400, f"unknown parameter {unknown[0]!r}; accepted: {', '.join(PARAMETERS)}\n".encode()
    text = query.get("limit") or str(MAX_ANSWER)
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        return 400, f"limit {text!r} must be a whole number of at least 1\n".encode()
    found = ring.find(query.get("kind", ""), query.get("namespace", ""), query.get("name", ""))
    verdict = query.get("verdict", "")
    if verdict:
        found = [record for record in found if record.verdict.lower() == verdict.lower()]
    return 200, encode_many(found[-min(int(text), MAX_ANSWER) :])
