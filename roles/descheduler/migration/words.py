"""The vocabulary of a migration: phases, modes, condition types and reasons of a PodMigrationJob (DS-MC-02)."""

from __future__ import annotations

from enum import StrEnum

CREATED_BY = "koord-descheduler"  # value of the label app.kubernetes.io/created-by on reservations made here
COMPLETE = "Complete"  # status.status of a job that succeeded


class Phase(StrEnum):
    """status.phase; an empty one means Pending."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    ABORTED = "Aborted"


class Mode(StrEnum):
    """spec.mode; an empty one means the default of the arguments."""

    RESERVATION_FIRST = "ReservationFirst"
    EVICT_DIRECTLY = "EvictDirectly"


class Kind(StrEnum):
    """Types of conditions. The one that changed last is also status.status."""

    RESERVATION_CREATED = "ReservationCreated"
    RESERVATION_SCHEDULED = "ReservationScheduled"
    RELIEVED = "Relieved"  # koord's own: whether the node that the pod left got cooler
    ARBITRATION = "Arbitration"  # koord's own: which limit a job waits for, or waited
    EVICTION = "Eviction"
    POD_SCHEDULED = "PodScheduled"
    POD_BOUND_RESERVATION = "PodBoundReservation"
    BOUND_POD_READY = "BoundPodReady"
    RESERVATION_BOUND = "ReservationBound"


class Reason(StrEnum):
    """Reasons of conditions and of failures."""

    NONE = ""
    TIMEOUT = "Timeout"
    FAILED_CREATE_RESERVATION = "FailedCreateReservation"
    RESERVATION_EXPIRED = "ReservationExpired"
    UNSCHEDULABLE = "Unschedulable"
    FORBIDDEN = "ForbiddenMigratePod"
    MISSING_POD = "MissingPod"
    MISSING_RESERVATION = "MissingReservation"
    EVICTING = "Evicting"
    FAILED_EVICT = "FailedEvict"
    EVICT_COMPLETE = "EvictComplete"
    WAIT_FOR_BIND = "WaitForPodBindReservation"
    WAIT_FOR_READY = "WaitForBoundPodReady"
    WAIT_FOR_NODE = "WaitForNode"
    OBJECT_LIMITER = "ObjectLimiter"
    INVALID_POD_REF = "InvalidPodRef"
    INVALID_SPEC = "InvalidSpec"  # koord's own: a mode or a ttl that nobody can read
    POD_ENDED = "PodEnded"  # koord's own: no limit counts the pod of the job
    POD_LEAVING = "PodLeaving"  # koord's own: somebody else told the pod of the job to leave, so no limiter counts it
