"""Prod reclaimable and Prod peak (KLO-PRED-03). Pure: the models answer, this module sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from koord.accounting.pods import pod_requests
from koord.api.priority import PriorityClass
from koord.api.times import parse_time
from roles.koordlet.states.model import PodState

PROD_CLASSES = (PriorityClass.PROD, PriorityClass.NONE)


@dataclass(frozen=True, slots=True)
class Amount:
    """CPU in milli-cores, memory in bytes."""

    cpu: int = 0
    memory: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.cpu - other.cpu, self.memory - other.memory)

    def floor(self) -> Amount:
        """Never negative."""
        return Amount(max(self.cpu, 0), max(self.memory, 0))

    def least(self, other: Amount) -> Amount:
        return Amount(min(self.cpu, other.cpu), min(self.memory, other.memory))

    def most(self, other: Amount) -> Amount:
        return Amount(max(self.cpu, other.cpu), max(self.memory, other.memory))

    def scaled(self, percent: int) -> Amount:
        """Times percent/100, truncated."""
        return Amount(self.cpu * percent // 100, self.memory * percent // 100)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one predictor says."""

    reclaimable: Amount
    peak: Amount


class UnknownModelError(KeyError):
    """There is no model of that key yet."""


#: The peak by the model of a key. Raises UnknownModelError.
Predict = Callable[[str], Amount]


def request_of(pod: PodState) -> Amount:
    """Kubernetes effective request of a pod."""
    vector = pod_requests(pod.pod)
    return Amount(vector.get("cpu", 0), vector.get("memory", 0))


def _gone(pod: PodState) -> bool:
    return pod.pod.metadata.deletion_timestamp is not None or pod.terminated


def _age(pod: PodState, now: float) -> float:
    """Static pods have no creation in the kubelet's list, only the start of their present run."""
    created = pod.pod.metadata.creation_timestamp or pod.pod.status.start_time
    if not created:
        return 0.0
    try:
        return now - parse_time(created)
    except ValueError:
        return 0.0


def prod_pods(pods: Sequence[PodState]) -> list[PodState]:
    """Pods of class prod or of none, each uid once."""
    seen: dict[str, PodState] = {}
    for pod in pods:
        if pod.priority_class in PROD_CLASSES:
            seen.setdefault(pod.uid, pod)
    return list(seen.values())


@dataclass(frozen=True, slots=True)
class PeakInput:
    now: float
    allocatable: Amount
    safety_margin: int
    """Percent on top of a prediction."""
    cold_start: float
    """Seconds for which a pod counts with its request."""


def by_pods(data: PeakInput, pods: Sequence[PodState], predict: Predict) -> tuple[Outcome, list[PodState]]:
    """Sum of the pods' own models. Also gives the pods to pass on: those with a prediction, and cold ones."""
    percent = 100 + data.safety_margin
    predicted, unpredicted, reclaimable = Amount(), Amount(), Amount()
    passed: list[PodState] = []
    for pod in prod_pods(pods):
        request = request_of(pod)
        if _gone(pod):
            continue
        if _age(pod, data.now) <= data.cold_start:
            unpredicted += request
            passed.append(pod)
            continue
        try:
            peak = predict(pod.uid).scaled(percent)
        except UnknownModelError:
            unpredicted += request
            continue
        passed.append(pod)
        predicted += peak
        reclaimable += (request - peak).floor()
    outcome = Outcome((data.allocatable - predicted).floor().least(reclaimable), predicted + unpredicted)
    return outcome, passed


def by_priority(data: PeakInput, pods: Sequence[PodState], predict: Predict, keys: Sequence[str]) -> Outcome:
    """Models of the node's classes and of the system (``keys``). A missing model is an :class:`UnknownModelError`."""
    requests = Amount()
    for pod in prod_pods(pods):
        if not _gone(pod):
            requests += request_of(pod)
    total = Amount()
    for key in keys:
        total += predict(key)
    peak = total.scaled(100 + data.safety_margin)
    return Outcome((data.allocatable - peak).floor().least((requests - peak).floor()), peak)


def combine(first: Outcome, second: Outcome) -> Outcome:
    """The careful one of both: less reclaimable, higher peak, each resource for itself."""
    return Outcome(first.reclaimable.least(second.reclaimable), first.peak.most(second.peak))
