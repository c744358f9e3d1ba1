"""Room for pods and reservations by preemption (SCH-RSV-13)."""

from __future__ import annotations

from typing import ClassVar

from roles.scheduler.config.args import DefaultPreemptionArgs
from roles.scheduler.framework.handle import Handle
from roles.scheduler.plugins.default_preemption import DefaultPreemption
from roles.scheduler.plugins.reservation.args import ReservationArgs


class ReservationPreemption(DefaultPreemption):
    """The default preemption, for reserve pods too. Reservations themselves are never victims. A victim that uses a reservation gives
    its share back to that reservation: the ledger follows the pods of the what-if."""

    name = "Reservation"
    for_reservations: ClassVar[bool] = True

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        limits = DefaultPreemptionArgs(
            min_candidate_nodes_percentage=args.min_candidate_nodes_percentage,
            min_candidate_nodes_absolute=args.min_candidate_nodes_absolute,
        )
        super().__init__(limits, handle)
