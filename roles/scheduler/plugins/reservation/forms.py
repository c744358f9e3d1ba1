"""One thing under several names: what a pod requests, in the names in which a reservation holds it. Pure.

The pod webhook rewrites `koordinator.sh/gpu`, and cpu and memory of batch and mid pods; templates of Reservations are left as they were
written, and there are clusters without webhooks. So either side may have either form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koord.api import names
from koord.api.priority import TRANSLATION

_PARTS: Final = (names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY_RATIO)
_SHARED: Final = names.RESOURCE_GPU_SHARED
_GPU: Final = names.RESOURCE_GPU
_WHOLE: Final = 100
_NATIVE: Final = {extended: native for table in TRANSLATION.values() for native, extended in table.items()}
_FORMS: Final = frozenset((_GPU, *_PARTS, *_NATIVE))


def as_held(amounts: Mapping[str, int], holds: Mapping[str, int]) -> Mapping[str, int]:
    """The amounts (base units) with those names exchanged that the reservation knows by another one. A batch or mid amount counts as the
    cpu or memory that was reserved for it."""
    if _FORMS.isdisjoint(amounts):
        return amounts
    found = dict(amounts)
    if _GPU in found and _GPU not in holds:
        percent = found[_GPU]
        given: dict[str, int] = {**dict.fromkeys(_PARTS, percent), _SHARED: percent // _WHOLE if percent > _WHOLE else 1}
        if any(name in holds for name in _PARTS):
            del found[_GPU]
            found.update({name: amount for name, amount in given.items() if name in holds})
    elif _GPU in holds and _GPU not in found and not any(name in holds for name in _PARTS):
        percent = max(found.pop(name, 0) for name in _PARTS)
        if percent:
            found[_GPU] = percent
            found.pop(_SHARED, None)
    for extended, native in _NATIVE.items():
        if extended in found and extended not in holds and native in holds and native not in found:
            found[native] = found.pop(extended)
    return found
