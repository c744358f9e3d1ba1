"""Cluster events that may make a rejected pod schedulable, and how plugins subscribe to them (SCH-FW-05)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from enum import IntFlag
from typing import Any, NamedTuple

from roles.scheduler.cluster.defects import DEFECTS
from roles.scheduler.cluster.podinfo import PodInfo

log = logging.getLogger(__name__)

ASSIGNED_POD = "AssignedPod"
UNSCHEDULED_POD = "UnscheduledPod"
NODE = "Node"
WILDCARD = "*"


class Action(IntFlag):
    """What happened to an object."""

    ADD = 1
    DELETE = 2
    UPDATE = 4  # anything else that changed
    UPDATE_ALLOCATABLE = 8
    UPDATE_LABELS = 16
    UPDATE_TAINTS = 32
    UPDATE_CONDITIONS = 64
    UPDATE_ANNOTATIONS = 128
    SCALE_DOWN = 256
    UPDATE_TOLERATIONS = 512
    UPDATE_GATES = 1024
    UPDATE_DECLARED_FEATURES = 2048
    UPDATE_GENERATED_CLAIMS = 4096  # of a pod, in its status
    ALL = 8191


class ClusterEvent(NamedTuple):
    """Something happened to an object of `resource` (ASSIGNED_POD, UNSCHEDULED_POD, NODE or an API kind)."""

    resource: str
    action: Action
    old: Any = None
    new: Any = None
    job: Hashable = None  # pods of this job gave room back themselves: the event is of no use to them

    @property
    def label(self) -> str:
        """Name for metrics and logs, as kube-scheduler spells it ("NodeAdd")."""
        return self.resource + "".join(part.capitalize() for part in str(self.action.name or self.action.value).split("_"))


Hint = Callable[[PodInfo, ClusterEvent], bool]


class Subscription(NamedTuple):
    """Events a plugin wants its rejected pods retried on. `hint` returns False for an event that cannot help; None means always retry.

    A hint may look at the pod's shape, its gang and the event only, not at the single pod: pods alike in these share its answer. Events are
    kept for pods in flight, and those of one object merged: `keep` cuts an event down to what the hint reads of it. `nobody` is asked once
    about an event, before the hint is about each shape: whether it helps no pod that waits.
    """

    resource: str
    actions: Action
    hint: Hint | None = None
    keep: Callable[[ClusterEvent], ClusterEvent] | None = None
    nobody: Callable[[ClusterEvent], bool] | None = None

    def helps_nobody(self, event: ClusterEvent) -> bool:
        """Whether no pod that waits is worth another try after such an event. A test that fails rules nothing out."""
        try:
            return self.nobody is not None and self.nobody(event)
        except DEFECTS:
            log.exception("the test of %s for everybody failed: each pod is looked at", event.label)
            return False

    def cut(self, event: ClusterEvent) -> ClusterEvent:
        """What the hint reads of an event; all of it where `keep` fails."""
        try:
            return self.keep(event) if self.keep is not None else event
        except DEFECTS:
            log.exception("%s could not be cut down: it is kept whole", event.label)
            return event

    def covers(self, event: ClusterEvent) -> bool:
        """Whether the event is one of those."""
        # int's own: the enum's takes ten times as long, and this is asked about every shape at every event
        return self.resource in (event.resource, WILDCARD) and int.__and__(self.actions, event.action) != 0

    def helps(self, pod: PodInfo, event: ClusterEvent) -> bool:
        """Whether the pod is worth another try after such an event. A hint that fails rules nothing out."""
        try:
            return self.hint is None or self.hint(pod, event)
        except DEFECTS:
            log.exception("queueing hint for %s failed on pod %s: it is tried again", event.label, pod.key)
            return True
