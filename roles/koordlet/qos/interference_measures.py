"""How far one goes with a best-effort pod that slows services down: more the longer they suffer (BEY-INT-01). Pure.

Squeezing and throttling are undone when they do not help; only who was proven so is asked to move or evicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from koord.api import names
from koord.api.times import format_time
from koord.decisions.record import Record, Subject
from roles.koordlet.eviction.tasks import USED, EvictionTask
from roles.koordlet.eviction.victims import may_evict, victim
from roles.koordlet.qos.interference_files import SQUEEZE, THROTTLE, Held, squeezed, throttled
from roles.koordlet.qos.outcome import Sample
from roles.koordlet.states.model import PodState, Snapshot
from roles.koordlet.states.slo import SLO

NAME, FEATURES = "InterferenceDetection", ("BEY-INT-01",)
MIGRATE, EVICT = "migrate", "evict"
#: The signal whose culprits are throttled rather than squeezed.
IO = "io"
#: Pause after an eviction (seconds).
COOL_DOWN = 300.0
_VERDICTS = {SQUEEZE: "Squeezed", THROTTLE: "Throttled"}


@dataclass(frozen=True, slots=True)
class Ongoing:
    """A pod that waits, and who is squeezed for it; ``since`` in Unix seconds."""

    victim: PodState
    signal: str
    culprit: PodState
    since: float
    proven: bool = False
    """Squeezing the culprit helped the victim."""


class Measures:
    """What is done about culprits: more the longer their victims suffer."""

    def __init__(
        self, snapshot: Snapshot, slo: SLO, held: Mapping[str, Held], asked: frozenset[str], ongoing: Sequence[Ongoing], now: float
    ) -> None:
        """``held`` and ``asked`` are what the last look did, by the culprit's uid."""
        self.snapshot, self.slo, self.ongoing, self.now = snapshot, slo, ongoing, now
        self._held, self._asked = held, asked
        self.config = slo.interference
        self.held: dict[str, Held] = {}
        self.asked: dict[str, dict[str, Any]] = {}
        self.records: list[Record] = []
        self.samples: list[Sample] = []
        for case in ongoing:
            self._take(case)
        for uid in {*self._held, *self._asked} - {*self.held, *self.asked}:
            self._set_free(uid)

    def _lasts(self, case: Ongoing, seconds: float) -> bool:
        return not 0 <= self.now - case.since < seconds

    def _take(self, case: Ongoing) -> None:
        culprit, config = case.culprit, self.config
        before = self._held.get(culprit.uid, Held(culprit.namespace, culprit.name, culprit.uid))
        held = self.held.get(culprit.uid, replace(before, files={}))
        action = THROTTLE if case.signal == IO else SQUEEZE
        if action in config.actions:
            if action == SQUEEZE:
                held = replace(held, files=held.files | squeezed(self.snapshot, self.slo, culprit, before, config))
            else:
                files, disks = throttled(self.snapshot, culprit, before, config, self.now)
                held = replace(held, files=held.files | files, disks=disks)
            self.held[culprit.uid] = held
            if action in held.actions and action not in before.actions:
                self._record(
                    case, _VERDICTS[action], {f"{resource} {disk}".strip(): value for (resource, _, disk), value in held.files.items()}
                )
            if action in held.actions:
                self.samples.append(Sample("interference_action", 1, (culprit.namespace, culprit.name, action)))
        if MIGRATE in config.actions and case.proven and self._lasts(case, config.migrate_after_seconds):
            request = {"reason": "Interference", "signal": case.signal, "victim": case.victim.key, "since": format_time(case.since)}
            self.asked.setdefault(culprit.uid, {"migrateOut": request})
            self.samples.append(Sample("interference_action", 1, (culprit.namespace, culprit.name, MIGRATE)))
            if culprit.uid not in self._asked:
                self._record(case, "MigrationAsked", {})

    def _record(self, case: Ongoing, verdict: str, numbers: dict[str, Any]) -> None:
        culprit = case.culprit
        text = f"pod {case.victim.key} waits for {case.signal} more than usual, and this pod moves with it"
        said = {"signal": case.signal, "victim": case.victim.key, **numbers}
        self._tell(Subject("Pod", culprit.namespace, culprit.name, culprit.uid), verdict, text, said)

    def _set_free(self, uid: str) -> None:
        held, pod = self._held.get(uid), self.snapshot.pod(uid)
        if pod is None and held is None:
            return
        namespace, name = (pod.namespace, pod.name) if pod is not None else (held.namespace, held.name) if held is not None else ("", "")
        if (held is not None and held.files) or uid in self._asked:
            self._tell(Subject("Pod", namespace, name, uid), "SetFree", "no service waits because of this pod (any more)", {})

    def _tell(self, subject: Subject, verdict: str, text: str, numbers: dict[str, Any]) -> None:
        self.records.append(Record("koordlet", subject, self.now, verdict, NAME, text, numbers=numbers, features=FEATURES))

    def tasks(self, cooling: float | None) -> Iterator[EvictionTask]:
        """One culprit a look, when it made others wait for long; ``cooling`` is when the last one was evicted."""
        if EVICT not in self.config.actions or (cooling is not None and 0 <= self.now - cooling < COOL_DOWN):
            return
        for case in self.ongoing:
            if case.proven and self._lasts(case, self.config.evict_after_seconds) and may_evict(case.culprit, NAME):
                text = f"pod {case.victim.key} waits for {case.signal} more than usual, and this pod moves with it"
                one = (victim(self.snapshot, case.culprit),)
                numbers = {"signal": case.signal, "victim": case.victim.key}
                yield EvictionTask(NAME, USED, {names.RESOURCE_CPU: 1}, one, text, numbers)
                return
