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
_WHOLE: Final = 100
# Names that stand for core and memory of cards at once, with the percent that one of them is.
_CARDS: Final = {
    names.RESOURCE_GPU: 1,
    names.RESOURCE_NVIDIA_GPU: _WHOLE,
    names.RESOURCE_AMD_GPU: _WHOLE,
    names.RESOURCE_HYGON_DCU: _WHOLE,
}
_NATIVE: Final = {extended: native for table in TRANSLATION.values() for native, extended in table.items()}
_FORMS: Final = frozenset((*_CARDS, *_PARTS, *_NATIVE))


def as_held(amounts: Mapping[str, int], holds: Mapping[str, int]) -> Mapping[str, int]:
    """The amounts (base units) with those names exchanged that the reservation knows by another one. A batch or mid amount counts as the
    cpu or memory that was reserved for it, a part of a card as a whole one where only those are counted."""
    if _FORMS.isdisjoint(amounts):
        return amounts
    found = dict(amounts)
    _exchange_cards(found, holds)
    for extended, native in _NATIVE.items():
        if extended in found and extended not in holds and native in holds and native not in found:
            found[native] = found.pop(extended)
    return found


def _exchange_cards(found: dict[str, int], holds: Mapping[str, int]) -> None:
    asked = next((name for name in _CARDS if name in found), None)
    if asked is not None and asked in holds:
        return
    percent = found[asked] * _CARDS[asked] if asked is not None else max(found.get(name, 0) for name in _PARTS)
    parts = [name for name in _PARTS if name in holds]
    card = next((name for name in _CARDS if name in holds), None)
    if not percent or not (parts or card) or (asked is None and parts):
        return
    for name in (*_CARDS, *_PARTS, _SHARED):
        found.pop(name, None)
    if card is None or parts:
        cards = {_SHARED: percent // _WHOLE if percent > _WHOLE else 1} if _SHARED in holds else {}
        found.update(dict.fromkeys(parts, percent) | cards)
    else:
        found[card] = -(-percent // _CARDS[card])
