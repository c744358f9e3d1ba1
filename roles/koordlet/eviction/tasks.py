"""What is to be released by evicting pods, and whom to take first (KA-EVX-01, spec 5.4). Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.decisions.record import Term
from roles.koordlet.states.model import PodState

#: What a victim counts: what it uses, or what it requests.
USED, REQUEST = "used", "request"


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod with what its eviction releases, by accounting key and resource (CPU in milli, memory in bytes)."""

    pod: PodState
    releases: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EvictionTask:
    """One reason to evict: release ``targets`` (resource → amount) by walking ``victims`` in order."""

    gate: str
    key: str
    targets: Mapping[str, int]
    victims: tuple[Victim, ...]
    message: str
    """What the numbers say, one sentence."""
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)
    terms: tuple[Term, ...] = ()
