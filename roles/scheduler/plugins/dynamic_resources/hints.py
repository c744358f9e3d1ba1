"""Whom changes of claims help (SCH-DRA-10), and which pods' going may (SCH-DRA-18). Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.events import ClusterEvent
from roles.scheduler.framework.interfaces import Codes
from roles.scheduler.framework.tally import Mask, Slots, Tally
from roles.scheduler.plugins.device_share.amounts import DEVICE_RESOURCES
from roles.scheduler.plugins.dynamic_resources.inventory import DeviceColumns


class Devices(Tally):
    """Which pods have devices is no matter of sums: nodes of which devices are in use have to be tried."""

    def __init__(self, judge: Callable[[Slots], Codes | None], columns: DeviceColumns) -> None:
        self._judge, self._columns = judge, columns

    def unknown(self, slots: Slots) -> Mask | None:
        busy: Mask = self._columns.busy[slots] > 0
        return busy

    def passes(self, slots: Slots, freed: Vector) -> Mask:
        fit: Mask = self.codes(slots, freed) == 0
        return fit

    def codes(self, slots: Slots, freed: Vector) -> NDArray[np.integer]:
        found = self._judge(slots)
        return np.zeros(len(slots), dtype=np.int32) if found is None else found


def claim_helps(pod: PodInfo, event: ClusterEvent) -> bool:
    """Devices that were given back help everybody, and so does the end of a claim: something of it may have been assumed, and the pod of
    one for extended resources waits for it; other changes help only pods that name the claim."""
    old, new = event.old, event.new
    shown = new or old
    if shown is None:
        return True
    named = {reference.resource_claim_name for reference in pod.shape.template.spec.resource_claims}
    if shown.metadata.namespace == pod.shape.namespace and shown.metadata.name in named:
        return True
    if new is None:
        return True  # what was about to be allocated of it, and shown nowhere, is free as well
    had = old is not None and old.status.allocation is not None
    return had and new.status.allocation is None


def pod_helps(pod: PodInfo, event: ClusterEvent) -> bool:
    """A pod that lost its place has given back what it was about to get. (Without claims of its own it may have had extended resources, or
    devices that claims may have too.)"""
    claims = pod.shape.template.spec.resource_claims
    if event.old is None or not claims:
        return True
    return bool(event.old.shape.template.spec.resource_claims) or not DEVICE_RESOURCES.isdisjoint(event.old.shape.amounts)
