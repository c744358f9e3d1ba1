"""Reservations as every plugin sees them: what a pod may use of them, what they hold, and the view of a node without them.

A Reservation is scheduled and counted as a *reserve pod*: a PodInfo whose `reservation` is the Reservation's name and whose UID is the
Reservation's. On the node it counts with what its owners have not taken yet, so that every amount counts once. Its labels and
annotations are those of the template overlaid by the Reservation's own, so results of plugins (CPU sets, devices) are read from it
like from any pod.

When a pod may use reservations on a node (`ctx.restored[slot]`), the node is judged inside `ctx.restoring(slot)`: their reserve pods are
taken off, their owners stay. Columns see that as an ordinary removal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from koord.accounting.resources import ResourceVector
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.hypothesis import Hypothesis
from roles.scheduler.cluster.podinfo import PodInfo

ALIGNED = "Aligned"
RESTRICTED = "Restricted"
DEFAULT = "Default"

TAKEN_OVER = "Reservation/taken"
"""Key in `CycleContext.data` of the pods, by slot, that a pre-allocating reserve pod takes over there, once the Reservation filter has
decided."""


@dataclass(frozen=True, slots=True, eq=False)
class RestoredReservation:
    """A reservation as it stands. Amounts are in base units (milli-CPU, bytes, counts).

    `pod` is the reserve pod with all that is reserved; `owners` are UIDs of pods that use it; `allocated` is what they take of the names
    that count in it; `restricted` are the names of which a Restricted one gives no more than it holds. `ignored`: the pod is
    reservation-ignored and may use what is left in it without becoming an owner. A new object stands for every new state.
    """

    name: str
    uid: str
    pod: PodInfo
    owners: tuple[str, ...]
    policy: str
    allocatable: ResourceVector
    allocated: ResourceVector
    restricted: frozenset[str]
    ignored: bool = False


Restored = Mapping[int, tuple[RestoredReservation, ...]]
NOTHING: Restored = MappingProxyType({})


class Holdings(Protocol):
    """What all reservations hold, whether the pod of this cycle may use them or not."""

    def on(self, slot: int) -> tuple[RestoredReservation, ...]:
        """Reservations that count on a slot."""

    def reservation_of(self, pod_uid: str) -> str:
        """UID of the reservation that a pod on a node uses, "" for none."""


class NoHoldings:
    """A scheduler without reservations."""

    def on(self, slot: int) -> tuple[RestoredReservation, ...]:
        """None anywhere."""
        return ()

    def reservation_of(self, pod_uid: str) -> str:
        """No pod uses any."""
        return ""


class RestoredNode(Hypothesis):
    """A node without the reserve pods of some reservations, within the `with` block. Nobody counts the row as changed afterwards."""

    def __init__(self, cluster: Cluster, reservations: tuple[RestoredReservation, ...]) -> None:
        super().__init__(cluster, quiet=True)
        self._reservations = reservations

    def __enter__(self) -> RestoredNode:
        super().__enter__()
        for reservation in self._reservations:
            self.remove(reservation.uid)
        return self
