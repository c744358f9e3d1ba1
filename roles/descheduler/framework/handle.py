"""What a plugin may ask in its turn, and the records of what it found (DS-FW-02). Holds no connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from koord import seams
from koord.api.objects import Pod
from koord.decisions.record import Number, Record, Subject, Term
from roles.descheduler.framework.evicting import Evicting, Explains
from roles.descheduler.reading import Reading
from roles.descheduler.snapshot import NodeView

T = TypeVar("T")
ROLE = "descheduler"
STEPS = 64  # pods or nodes that a plugin looks at before it lets others have their turn
AT_LEAST = 32  # after which it looks at the clock
AGAIN = 8  # after which it looks again
SLICE = 0.005  # seconds of work after which it does not wait for the others


class Answers(Protocol):
    """Stands between a plugin and the filters: takes down what they say, or says what they said then."""

    def ask(self, profile: str, what: str, about: str, find: Callable[[], T]) -> T:
        """The answer about a pod (its uid); `find` asks."""


@dataclass(slots=True)
class Handle:
    """One plugin's turn in one round of its profile. `now` is in seconds since the epoch."""

    profile: str
    plugin: str
    now: float
    filters: Sequence[Evicting]
    records: list[Record] = field(default_factory=list)
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """What sources beside koordlet told of nodes, by the plugin's `reads`."""
    waiting: Sequence[Pod] = ()
    """Pods that the scheduler has found no node for."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why the round did not let pods go that the plugin wanted to leave, by their uids."""
    listed: set[str] = field(default_factory=set)
    """The uids of pods that nobody has told to leave though the round let them go: a dry run."""
    clock: Callable[[], float] = seams.monotonic
    answers: Answers | None = None
    _steps: int = 0
    _look: int = AT_LEAST
    _due: float = 0.0

    def pause(self, steps: int = 1) -> bool:
        """Whether it is time to yield PAUSE, after looking at so many pods or nodes more: a plugin that searches for long without
        yielding keeps everything else in the process waiting. Sooner when steps take long."""
        self._steps += steps
        if self._steps < self._look:
            return False
        now = self.clock()
        if self._steps < STEPS and now < (self._due or now + SLICE):
            self._due, self._look = self._due or now + SLICE, min(self._steps + AGAIN, STEPS)
            return False
        self._steps, self._look, self._due = 0, AT_LEAST, now + SLICE
        return True

    def filter(self, pod: Pod) -> str:
        """Why the pod may not leave, "" when every filter lets it."""
        return self._filter(pod) if self.answers is None else self._asked("filter", pod, self._filter)

    def _asked(self, what: str, pod: Pod, find: Callable[[Pod], T]) -> T:
        assert self.answers is not None
        return self.answers.ask(self.profile, what, pod.metadata.uid, lambda: find(pod))

    def _filter(self, pod: Pod) -> str:
        for evictor in self.filters:
            if reason := evictor.filter(pod):
                return reason
        return ""

    def pre_eviction_filter(self, pod: Pod) -> str:
        """Why the pod may not leave right now, "" when every filter lets it. Costlier than `filter`: ask of the chosen pod only."""
        return self._pre_eviction_filter(pod) if self.answers is None else self._asked("pre", pod, self._pre_eviction_filter)

    def _pre_eviction_filter(self, pod: Pod) -> str:
        return next((why for evictor in self.filters if (why := evictor.pre_eviction_filter(pod))), "")

    def reasons(self, pod: Pod) -> list[str]:
        """Everything that keeps the pod from leaving, each once; what `filter` tells comes first."""
        return self._reasons(pod) if self.answers is None else self._asked("reasons", pod, self._reasons)

    def _reasons(self, pod: Pod) -> list[str]:
        found: dict[str, None] = {}
        for evictor in self.filters:
            found |= dict.fromkeys(evictor.reasons(pod) if isinstance(evictor, Explains) else filter(None, [evictor.filter(pod)]))
        return list(found)

    def waits_for(self, pod: Pod) -> str:
        """What the eviction of the pod, which is under way, waits for; "" when nobody knows."""
        return self._waits_for(pod) if self.answers is None else self._asked("waits", pod, self._waits_for)

    def _waits_for(self, pod: Pod) -> str:
        return next((why for evictor in self.filters if isinstance(evictor, Explains) and (why := evictor.waits_for(pod))), "")

    def record(
        self, subject: Subject, verdict: str, message: str, numbers: dict[str, Number] | None = None, terms: tuple[Term, ...] = ()
    ) -> None:
        """Leave a record of something that was decided or found."""
        told: dict[str, Number] = {"profile": self.profile, **(numbers or {})}
        self.records.append(Record(ROLE, subject, self.now, verdict, self.plugin, message, told, terms))

    def note(self, message: str) -> None:
        """Something about the round of this profile, such as why nothing was done."""
        self.record(Subject("Profile", "", self.profile, ""), "Round", message)


def node_subject(view: NodeView) -> Subject:
    """The node, as records know it."""
    return Subject("Node", "", view.name, view.node.metadata.uid)


def pod_subject(pod: Pod) -> Subject:
    """The pod, as records know it."""
    return Subject("Pod", pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)


Filter = Callable[[Pod], str]
