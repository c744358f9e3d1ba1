"""Content negotiation: what the client wants to read, and in which shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from koord.apiserver.errors import not_acceptable

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


PLAIN = Shape()


@lru_cache(maxsize=256)
def shape(accept: str) -> Shape:
    """The first alternative of an Accept header that this server can write. Raises 406 when there is none.

    Protobuf and CBOR are not offered; clients list JSON behind them.
    """
    if not accept:
        return PLAIN
    for alternative in accept.split(","):
        media, *params = (p.strip() for p in alternative.split(";"))
        options = dict(p.split("=", 1) for p in params if "=" in p)
        if media not in (JSON, "*/*", "application/*", "application/yaml"):
            continue
        if options.get("as"):
            if options["as"] in _VERSIONS and options.get("v", "v1") in _VERSIONS[options["as"]]:
                return Shape(options["as"], options.get("v", ""))
            continue
        return Shape(yaml=media == "application/yaml")
    raise not_acceptable(_OFFERED)
