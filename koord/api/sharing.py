"""Pods of one template share their parts: labels, containers, tolerations, affinity and the like are kept once.

Projections are immutable, so that a part which equals one that is known can be replaced by it. A store of many pods then needs
a fraction of the memory; the price is a few microseconds when a pod is read.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from cachetools import LRUCache

from koord.api.objects import Pod

__all__ = ["PodSharer"]

_KEPT: Final = 65_536  # parts that are known at once; an old one that is forgotten is kept again when it comes
_METADATA: Final = ("labels", "annotations", "owner_references", "finalizers")
_encode: Final = msgspec.msgpack.Encoder().encode


class PodSharer:
    """`sharer(pod)` is the pod with the parts of pods that came before wherever they are equal."""

    def __init__(self) -> None:
        self._parts: LRUCache[tuple[str, bytes], Any] = LRUCache(_KEPT)

    def __call__(self, pod: Pod) -> Pod:
        metadata, spec, status = pod.metadata, pod.spec, pod.status
        return msgspec.structs.replace(
            pod,
            metadata=self._shared(metadata, _METADATA),
            spec=self._shared(spec, type(spec).__struct_fields__),
            status=self._shared(status, ("conditions",)),
        )

    def _shared(self, part: Any, fields: tuple[str, ...]) -> Any:
        changes = {}
        for field in fields:
            value = getattr(part, field)
            if value and not isinstance(value, str | int | float):
                key = (field, _encode(value))
                known = self._parts.get(key)
                if known is None:
                    self._parts[key] = value
                elif known is not value:
                    changes[field] = known
        return msgspec.structs.replace(part, **changes) if changes else part
