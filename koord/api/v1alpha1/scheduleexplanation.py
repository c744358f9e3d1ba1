"""ScheduleExplanation: why a pod, job or gang is not placed."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import AGE, AnyValue, Column, Duration, Model, Resource, Timestamp


class ScheduleExplanationSpec(Model):
    """The question."""

    question_object_key: str | None = Field(
        None, description="Whom the question is about: namespace/name of a pod, namespace/jobName, or a gang group id."
    )
    question_object_template: AnyValue | None = Field(None, description="A pod template to ask about; not used yet.")
    ttl: Duration | None = Field("24h", description="How long the object is kept; 0 keeps it for ever.")


class PossibleVictim(Model):
    """A pod that could make room."""

    namespace: str | None = Field(None, description="Namespace of the pod.")
    name: str | None = Field(None, description="Name of the pod.")
    uid: str | None = Field(None, description="UID of the pod.")
    is_nominated_pod: bool | None = Field(None, description="Whether the pod is only nominated to the node.")


class NodePossibleVictim(Model):
    """Pods of a node that could make room."""

    node_name: str | None = Field(None, description="Name of the node.")
    possible_victims: list[PossibleVictim] | None = Field(None, description="The pods.")


class FeasibleSchedulingResult(Model):
    """A pod with the node it fits on."""

    namespace: str | None = Field(None, description="Namespace of the pod.")
    name: str | None = Field(None, description="Name of the pod.")
    uid: str | None = Field(None, description="UID of the pod.")
    node_name: str | None = Field(None, description="Name of the node.")


class NodeFailedDetail(Model):
    """A reason with the nodes that were refused for it."""

    failed_plugin: str | None = Field(None, description="The plugin that refused.")
    reason: str | None = Field(None, description="Its reason.")
    preempt_might_help: bool | None = Field(None, description="Whether preemption could help.")
    failed_nodes: list[str] | None = Field(None, description="The nodes, sorted.")


class ExplanationResult(Model):
    """Outcome of an attempt."""

    schedulable: bool | None = Field(None, description="Whether it would be placed.")
    failed_message: str | None = Field(None, description="Why not.")
    feasible_scheduling_result: list[FeasibleSchedulingResult] | None = Field(None, description="Placements found.")
    node_failed_details: list[NodeFailedDetail] | None = Field(None, description="Nodes refused, by plugin and reason.")


class DetailedExplanation(Model):
    """Outcome within a part of the network tree."""

    topology_domain: str | None = Field(None, description="The part of the tree.")
    schedulable: bool | None = Field(None, description="Whether it can be placed there.")
    schedulable_after_preemption: bool | None = Field(None, description="Whether it can after preemption.")
    failed_message: str | None = Field(None, description="Why not.")
    schedule_explanation: ExplanationResult | None = Field(None, description="The plain attempt.")
    node_possible_victims: list[NodePossibleVictim] | None = Field(None, description="Pods that could make room.")
    preempt_explanation: ExplanationResult | None = Field(None, description="The attempt with preemption.")


class ScheduleExplanationStatus(Model):
    """The answer."""

    schedulable: bool | None = Field(None, description="Whether it can be placed.")
    schedulable_after_preemption: bool | None = Field(None, description="Whether it can after preemption.")
    failed_message: str | None = Field(None, description="Why not.")
    last_update_time: Timestamp | None = Field(None, description="When the answer was last written.")
    detailed_explanation: list[DetailedExplanation] | None = Field(None, description="The answer by part of the network tree.")


class ScheduleExplanation(Resource):
    """Why a pod, job or gang is not placed."""

    resource: ClassVar[kinds.Kind] = kinds.SCHEDULEEXPLANATIONS
    columns: ClassVar[tuple[Column, ...]] = (
        Column("Schedulable", ".status.schedulable", "boolean"),
        Column("Message", ".status.failedMessage"),
        Column("Updated", ".status.lastUpdateTime", "date"),
        AGE,
    )

    spec: ScheduleExplanationSpec | None = Field(None, description="The question.")
    status: ScheduleExplanationStatus | None = Field(None, description="The answer.")
