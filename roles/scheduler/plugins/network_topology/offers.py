"""How many pods of a job each node takes, found on the columns (SCH-NT-02).

Where every filter can tell at once how many pods of a shape it lets in, one look is enough. Else pods are laid on every node at once, one
more on each in every round, until a node refuses. Pods with resource claims are laid on one node after another: a claim has its devices on
one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.changes import NODE
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.cycle import Cycle, Survey
from roles.scheduler.framework.context import State
from roles.scheduler.framework.steps import Steps

Counts = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Offers:
    """Slots by node slot, at most as many as there are pods, and how the first pod was judged. `further` are plugins that let in no more
    of them."""

    counts: Counts
    first: Survey
    further: set[str] = field(default_factory=set)

    def refusing(self) -> frozenset[str]:
        """Plugins without whom nodes would take more."""
        return self.first.failure().plugins() | self.further


def offers(cycle: Cycle, state: State, pods: Sequence[PodInfo], allowed: Mask, without: str) -> Steps[Offers]:
    """What nodes take. `without` names a plugin whose own steps around preFilter are left out."""
    first = cycle.survey(pods[0], without=without)
    mask = first.mask & allowed
    rooms = _rooms(first, pods)
    if rooms:
        room = np.minimum.reduce([*rooms.values()])
        further = {name for name, column in rooms.items() if (column < len(pods)).any()}
        return Offers(np.where(mask, np.minimum(room, len(pods)), 0).astype(np.intp), first, further)
    found = Offers(np.zeros(state.cluster.capacity, dtype=np.intp), first)
    yield from (_one_by_one if _apart(pods) else _at_once)(cycle, state, pods, mask, without, found)
    return found


def _apart(pods: Sequence[PodInfo]) -> bool:
    """Whether pods are laid on one node after another. A spread is not: it lets many on a node only while others fill as well."""
    shapes = {pod.shape for pod in pods}
    return any(shape.template.spec.resource_claims for shape in shapes) and not any(term.hard for shape in shapes for term in shape.spread)


def _one_by_one(cycle: Cycle, state: State, pods: Sequence[PodInfo], mask: Mask, without: str, found: Offers) -> Steps[None]:
    surveys = [found.first]  # of pods by themselves, as far as some node takes the ones before
    for slot in np.flatnonzero(mask).tolist():
        count = _laid(cycle, state, pods, surveys, slot, without, found)
        while count == len(surveys) < len(pods):
            surveys.append(cycle.survey(pods[count], without=without))
            found.further.update(surveys[-1].refusing())
            count = _laid(cycle, state, pods, surveys, slot, without, found)
        found.counts[slot] = count
        yield


def _laid(
    cycle: Cycle, state: State, pods: Sequence[PodInfo], surveys: Sequence[Survey], slot: int, without: str, found: Offers
) -> int:  # fmt: skip
    """How many of the pods that have surveys a node takes."""
    nominated = state.nominations.any_on(state.cluster.name_of(slot))
    with state.suppose() as supposed:
        for count, (pod, survey) in enumerate(zip(pods, surveys, strict=False)):
            if count and nominated and not cycle.survey(pod, without=without).mask[slot]:
                return count
            if count and not nominated and (refusing := survey.refuses_now(slot)):
                found.further.add(refusing)
                return count
            supposed.add(pod, slot)
    return len(surveys)


def _at_once(cycle: Cycle, state: State, pods: Sequence[PodInfo], mask: Mask, without: str, found: Offers) -> Steps[None]:
    with state.suppose() as supposed:
        for number, pod in enumerate(pods):
            if number:
                survey = cycle.survey(pod, without=without)
                found.further.update(survey.refusing())
                mask = mask & survey.mask
            slots = np.flatnonzero(mask)
            if not len(slots):
                break
            found.counts[slots] += 1
            for slot in slots.tolist():
                supposed.add(twin(pod, f"{pod.uid}@{slot}"), slot)
                yield
        yield from supposed.undo()


def twin(pod: PodInfo, uid: str) -> PodInfo:
    """The pod once more under another UID."""
    copy = PodInfo.__new__(PodInfo)
    for name in PodInfo.__slots__:
        setattr(copy, name, getattr(pod, name))
    copy.uid = uid
    return copy


def _rooms(survey: Survey, pods: Sequence[PodInfo]) -> dict[str, NDArray[np.float64]]:
    """Pods that each filter lets in, by node slot; nothing where only trying tells (different pods, constraints over several pods, filters
    that cannot say)."""
    shape, evaluation = pods[0].shape, survey.evaluation
    if evaluation is None or evaluation.restored or any(pod.shape is not shape for pod in pods):
        return {}
    if shape.affinity or shape.anti_affinity or shape.spread or shape.ports or shape.claims:
        return {}
    found: dict[str, NDArray[np.float64]] = {}
    for vector in (*evaluation.filters, *evaluation.row_filters):
        if not vector.plugin.reads & ~NODE:
            continue
        room = vector.plugin.room(survey.ctx)
        if room is None:
            return {}
        found[vector.plugin.name] = room
    return found
