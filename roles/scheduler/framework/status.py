"""What an extension point answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.steps import Steps


class Code(IntEnum):
    """Status codes of the scheduling framework."""

    SUCCESS = 0
    ERROR = 1  # internal; the pod goes to backoff with reason SchedulerError
    UNSCHEDULABLE = 2  # preemption may help
    UNRESOLVABLE = 3  # preemption cannot help
    WAIT = 4  # permit only
    SKIP = 5  # the plugin has nothing to say
    PENDING = 6  # waits for an event from outside; skips backoff


# Rejectors of a held pod that are no plugins: what becomes of its nomination.
JOB_REJECT = "JobRejectPlugin"  # its job was let go of: the nomination stays as it was
JOB_PREEMPTION_SUCCESS = "JobPreemptionSuccessPlugin"  # room is made for its job: nominated to the node it was held on
JOB_PREEMPTION_FAILURE = "JobPreemptionFailurePlugin"  # no room can be made for its job: cleared
JOB_REJECTORS = frozenset((JOB_REJECT, JOB_PREEMPTION_SUCCESS, JOB_PREEMPTION_FAILURE))

REJECTIONS = frozenset((Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING))


@dataclass(frozen=True, slots=True)
class Status:
    """A code with its reasons. `plugin` is filled in by the framework. `timeout` in seconds goes with WAIT. `also` are further plugins
    whose events may help: those on whose refusals this one rests."""

    code: Code = Code.SUCCESS
    reasons: tuple[str, ...] = ()
    plugin: str = ""
    timeout: float = 0.0
    also: frozenset[str] = frozenset()

    @property
    def ok(self) -> bool:
        """Whether the answer lets the pod pass."""
        return self.code is Code.SUCCESS

    @property
    def rejected(self) -> bool:
        """Whether the pod is refused (rather than an error)."""
        return self.code in REJECTIONS

    @property
    def message(self) -> str:
        """The reasons as one text."""
        return ", ".join(self.reasons)

    def by(self, plugin: str) -> Status:
        """The same answer, naming the plugin that gave it."""
        return self if self.plugin else replace(self, plugin=plugin)


SUCCESS = Status()
SKIP = Status(Code.SKIP)


def unschedulable(*reasons: str) -> Status:
    """Refused; preemption may help."""
    return Status(Code.UNSCHEDULABLE, reasons)


def unresolvable(*reasons: str) -> Status:
    """Refused; preemption cannot help."""
    return Status(Code.UNRESOLVABLE, reasons)


def pending(*reasons: str) -> Status:
    """Not yet: something that is under way decides."""
    return Status(Code.PENDING, reasons)


def error(*reasons: str) -> Status:
    """An internal error."""
    return Status(Code.ERROR, reasons)


def wait(timeout: float) -> Status:
    """Permit: hold the pod for at most `timeout` seconds."""
    return Status(Code.WAIT, (), "", timeout)


class Candidate(NamedTuple):
    """A node on which the pod would fit without the victims, most important victim first; `violations` counts broken budgets. `leaving`
    are the UIDs of those that are on their way out anyway: waiting for them hurts nobody."""

    node: str
    victims: tuple[PodInfo, ...]
    violations: int
    leaving: frozenset[str] = frozenset()


class PostFilterResult(NamedTuple):
    """A status, and the node nominated for the pod with the victims to remove first.

    Node None leaves the pod's nomination as it is, "" clears it. `candidates` are all nodes that were found, what hurts least first:
    extenders may rule some out. `others` are nominations of pods of its job, "" to clear. `recheck` asks, of a proposal that took long to
    make, whether it still holds now that these slots have changed.
    """

    status: Status
    node: str | None = None
    victims: tuple[PodInfo, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    others: tuple[tuple[PodInfo, str], ...] = ()
    recheck: Callable[[frozenset[int]], Steps[bool]] | None = None
