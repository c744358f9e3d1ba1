"""Answers in the shape that the client asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from koord import seams
from koord.apiserver.errors import StatusError, bad_request, not_acceptable
from koord.apiserver.store import Entry, Obj

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.read import Page


JSON = "application/json"
_OFFERED = (JSON, "application/yaml")
_META_VERSIONS = ("v1", "v1beta1")
_VERSIONS = {
    "Table": _META_VERSIONS,
    "PartialObjectMetadata": _META_VERSIONS,
    "PartialObjectMetadataList": _META_VERSIONS,
    "APIGroupDiscoveryList": ("v2", "v2beta1", "v1"),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """`as_` is "" for plain objects, else Table, PartialObjectMetadata, … of meta.k8s.io."""

    as_: str = ""
    version: str = ""
    yaml: bool = False

    @property
    def meta_version(self) -> str:
        """The version of meta.k8s.io; v1 unless said."""
        return self.version or "v1"


PLAIN = Shape()


@lru_cache(maxsize=256)
def shape(accept: str, *, stream: bool = False) -> Shape:
    """The first alternative of an Accept header that this server can write. Raises 406 when there is none.

    Protobuf and CBOR are not offered; clients list JSON behind them. A `stream` of events is not written as YAML.
    """
    if not accept:
        return PLAIN
    for alternative in accept.split(","):
        media, *params = (p.strip() for p in alternative.split(";"))
        options = dict(p.split("=", 1) for p in params if "=" in p)
        if media not in (JSON, "*/*", "application/*", "application/yaml") or (stream and media == "application/yaml"):
            continue
        if options.get("as"):
            if options["as"] in _VERSIONS and options.get("v", "v1") in _VERSIONS[options["as"]]:
                return Shape(options["as"], options.get("v", ""))
            continue
        return Shape(yaml=media == "application/yaml")
    raise not_acceptable(_OFFERED[:1] if stream else _OFFERED)


_HEADERS = {"Content-Type": JSON, "Cache-Control": "no-cache, private"}
_META = "meta.k8s.io"
_INCLUDED = ("", "None", "Metadata", "Object")
_QUICK_YAML = 16 * 1024  # bytes of JSON, some 10 ms
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# characters of all warnings of an answer; if there are more, so many of each
_MOST_WARNED, _LONGEST_WARNING = 4096, 256


def warn(response: web.StreamResponse, texts: list[str]) -> None:
    """Add `Warning` headers (RFC 7234, code 299), each text once.

    As kube-apiserver, none for a text that no header can carry, and none that makes the answer unreadable: what is warned of is done.
    """
    said = [text for text in dict.fromkeys(texts) if text and _CONTROL.search(text) is None]
    if sum(map(len, said)) > _MOST_WARNED:
        cut = [text[:_LONGEST_WARNING] for text in said]
        said = [text for text, before in zip(cut, accumulate(map(len, cut), initial=0), strict=False) if before < _MOST_WARNED]
    for text in said:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')


def respond(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(body=body, status=status, headers={**_HEADERS, **headers} if headers else _HEADERS)


def plain(obj: Obj, status: int) -> web.Response:
    """An object that does not come from the store."""
    return respond(orjson.dumps(obj), status)


def one(resource: Resource, entry: Entry, wanted: Shape, status: int, query: dict[str, str]) -> web.Response:
    """One object."""
    if wanted is PLAIN:
        return respond(resource.raw(entry), status)
    return respond(body(resource, entry, wanted, _included(wanted, query)), status)


def _included(wanted: Shape, query: dict[str, str]) -> str:
    """What the rows of a Table carry along. Raises 400."""
    include = query.get("includeObject", "") if wanted.as_ == "Table" else ""
    if include not in _INCLUDED:
        raise bad_request(f"unrecognized includeObject value: {include!r}; accepted: None, Metadata, Object")
    return include


async def in_yaml(answer: web.Response) -> web.Response:
    """A JSON answer as YAML; a long one is written in a thread, and leaves the loop to others."""
    from koord.config import plainyaml

    def write(content: bytes) -> bytes:
        return plainyaml.dump(orjson.loads(content)).encode()

    content = answer.body
    assert isinstance(content, bytes)
    answer.body = write(content) if len(content) <= _QUICK_YAML else await seams.to_thread(write, content)
    answer.headers["Content-Type"] = "application/yaml"
    return answer


def body(resource: Resource, entry: Entry, wanted: Shape, include: str) -> bytes:
    """One object, serialised in the wanted shape."""
    if wanted.as_ == "Table":
        return orjson.dumps(_table(resource, [entry], wanted, {"resourceVersion": str(entry.rv)}, include))
    _refuse_list(resource, wanted)
    return orjson.dumps(_partial(wanted, entry.obj["metadata"])) if wanted.as_ == "PartialObjectMetadata" else resource.raw(entry)


def _table(resource: Resource, entries: list[Entry], wanted: Shape, meta: Obj, include: str) -> Obj:
    from koord.apiserver.tables.table import table

    return table(resource, [resource.obj(entry) for entry in entries], wanted.meta_version, meta, include)


def _partial(wanted: Shape, meta: Obj) -> Obj:
    """An object of which only the metadata are shown."""
    return {"kind": "PartialObjectMetadata", "apiVersion": f"{_META}/{wanted.meta_version}", "metadata": meta}


class Stream:
    """The objects of one watch in a shape that is not their own, bookmarks too. Raises 406 for a shape that one object cannot have, 400
    for rows that carry what they cannot.
    """

    def __init__(self, resource: Resource, wanted: Shape, query: dict[str, str]) -> None:
        _refuse_list(resource, wanted)
        self._resource, self._wanted, self._include = resource, wanted, _included(wanted, query)
        self._columns_told = False

    def object(self, entry: Entry) -> bytes:
        """An object of an event."""
        if self._wanted.as_ != "Table":
            return body(self._resource, entry, self._wanted, "")
        return self._once(_table(self._resource, [entry], self._wanted, {"resourceVersion": str(entry.rv)}, self._include))

    def bookmark(self, meta: Obj) -> bytes:
        """What a bookmark shows: an object of which nothing but these metadata is known."""
        if self._wanted.as_ != "Table":
            return orjson.dumps(_partial(self._wanted, meta))
        from koord.apiserver.tables.table import blank

        return self._once(blank(self._resource, self._wanted.meta_version, meta, self._include))

    def _once(self, table: Obj) -> bytes:
        """A Table; the columns stand in the first only."""
        if self._columns_told:
            table["columnDefinitions"] = None
        self._columns_told = True
        return orjson.dumps(table)


def page(resource: Resource, page: Page, wanted: Shape, query: dict[str, str]) -> web.Response:
    """A list."""
    meta: Obj = {"resourceVersion": str(page.rv)}
    if page.continue_:
        meta["continue"] = page.continue_
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    if wanted.as_ == "Table":
        return respond(orjson.dumps(_table(resource, page.entries, wanted, meta, _included(wanted, query))))
    if wanted.as_ == "PartialObjectMetadata":
        raise _unlike(wanted, f"a list ({resource.list_kind})")
    if wanted.as_ == "PartialObjectMetadataList":
        items = [_partial(wanted, entry.obj["metadata"]) for entry in page.entries]
        return respond(orjson.dumps({**_partial(wanted, meta), "kind": "PartialObjectMetadataList", "items": items}))
    return respond(resource.listed([resource.raw(e) for e in page.entries], meta))


def _refuse_list(resource: Resource, wanted: Shape) -> None:
    """Raise 406 where one object is to look like a list."""
    if wanted.as_ == "PartialObjectMetadataList":
        raise _unlike(wanted, f"not a list ({resource.kind})")


def _unlike(wanted: Shape, found: str) -> StatusError:
    return StatusError(406, "NotAcceptable", f"you requested {wanted.as_}, but the requested object is {found}")
