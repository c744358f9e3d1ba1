"""What the state machine looks at and what it answers: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from koord.api.objects import Pod, PodMigrationJob, PodMigrationJobStatus, Reservation
from roles.descheduler.migration import status
from roles.descheduler.migration.pairing import ALONE, Pairing
from roles.descheduler.migration.words import Kind, Mode, Reason
from roles.descheduler.spreading import Domains


@dataclass(frozen=True, slots=True)
class Hold:
    """Why an eviction has to wait, and for how many seconds at least. `gate` is the limit's name."""

    reason: str
    seconds: float
    gate: str = Reason.OBJECT_LIMITER

    @property
    def message(self) -> str:
        """With the time that is left, where it is known; `reason` says the same at each look."""
        return f"{self.reason}; the next one may leave in {self.seconds:.0f} s" if self.gate == Reason.OBJECT_LIMITER else self.reason


@dataclass(frozen=True, slots=True)
class Unit:
    """What the job of a gang's member knows of the jobs of the others. `placed` of `count` members have a place; `begun`: the eviction
    of one was accepted; `first`: this one is to leave before the others; `lost`: why the gang stays where it is, "" as long as it may
    move."""

    gang: str
    count: int
    placed: int
    begun: bool
    first: bool
    lost: str = ""

    def waits(self) -> str:
        """Why this member must not leave yet, "" when it may."""
        if self.begun:
            return ""
        if self.placed < self.count:
            return f"{self.placed} of the {self.count} members of gang {self.gang} have a place"
        return "" if self.first else f"another member of gang {self.gang} leaves first"


@dataclass(frozen=True, slots=True)
class View:
    """Everything that one step is decided on. `now` is in seconds since the epoch.

    `pod` is the pod that has the name of spec.podRef now, whoever it is. `bound` is the first owner of the reservation. `target_gone`: the
    reservation lies on a node that does not exist. `unfit`: why the pod must not go there any more. `targets`: the only nodes where the
    pod may go, None for any; `spread`: what its topology spread leaves of them. `hold`: a limit does not allow the eviction yet.
    `unit`: the gang that moves as one. `pairing`: what the reservations of the workload's other jobs mean for this one.
    """

    job: PodMigrationJob
    now: float
    pod: Pod | None = None
    reservation: Reservation | None = None
    bound: Pod | None = None
    target_gone: bool = False
    hold: Hold | None = None
    default_mode: str = Mode.RESERVATION_FIRST
    pairing: Pairing = ALONE
    unfit: str = ""
    targets: tuple[str, ...] | None = None
    spread: tuple[Domains, ...] = ()
    unit: Unit | None = None

    @property
    def replaced(self) -> bool:
        """Whether the pod is gone, or another pod has its name."""
        uid = status.pod_uid(self.job)
        return self.pod is None or (bool(uid) and self.pod.metadata.uid != uid)

    @property
    def about_pod(self) -> str:
        """How messages name the pod."""
        return f'Pod "{status.pod_key(self.job)}"'

    @property
    def about_reservation(self) -> str:
        """How messages name the reservation."""
        ref = status.reservation_ref(self.job)
        return f'Reservation "{ref.name if ref is not None else ""}"'


class Act(Enum):
    """What is to be done besides writing the status."""

    NONE = "none"
    BEGIN = "begin"  # write the pod's uid into spec.podRef, before the status says Running
    RESERVE = "reserve"  # make (or adopt) the reservation and name it in the job
    STAMP = "stamp"  # give the reservation its place in the scheduler's order
    EVICT = "evict"
    GIVE_BACK = "give back"  # delete the reservation, and ask for a place on another node
    RELEASE = "release"  # delete the reservation
    TAKE_OVER = "take over"  # name the reservation that the successor used, and leave this job's own to the job that named that one
    RELEASE_SPARE = "release spare"  # delete a reservation that was made for the job and that no job needs
    TAKE_BACK = "take back"  # the pod need not leave after all (soft evictions)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. A new `status` is written, then `act` is done; with either the job is looked at again at once.

    With neither, the job waits for an event, or for `wait` seconds if that is given. `verdict` and `message` are its record; `event` is the
    reason of the Kubernetes event about the job ("" for none).
    """

    verdict: str
    message: str
    status: PodMigrationJobStatus | None = None
    act: Act = Act.NONE
    wait: float | None = None
    event: str = ""
    warning: bool = False

    @property
    def rests(self) -> bool:
        """Whether there is nothing to do now."""
        return self.status is None and self.act is Act.NONE


def fail(view: View, reason: Reason, message: str) -> Step:
    """End the job. What it held is released by the next step."""
    return Step("Failed", message, status.ended(view.job.status, reason, message), event=reason, warning=True)


def set_condition(
    view: View, kind: Kind, state: str, reason: Reason, message: str, *, event: str = "", warning: bool = False
) -> Step | None:
    """The step that writes a condition, None if the job has it."""
    changed = status.with_condition(view.job.status, kind, state, reason, message, view.now)
    return None if changed is None else Step(reason or str(kind), message, changed, event=event, warning=warning)


def change(view: View, kind: Kind, state: str, reason: Reason, message: str, *, event: str = "") -> Step:
    """The step that writes a condition that the job is known not to have."""
    changed = status.with_condition(view.job.status, kind, state, reason, message, view.now)
    return Step(reason or str(kind), message, changed, event=event)
