"""ClusterColocationProfile: what the pod webhook writes into which pods."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import AGE, AnyValue, Column, Empty, Int32, IntOrString, LabelSelector, Model, Resource


class ClusterColocationProfileSpec(Model):
    """Selection and changes."""

    namespace_selector: LabelSelector | None = Field(None, description="Namespaces whose pods may match; absent or empty matches all.")
    selector: LabelSelector | None = Field(None, description="Labels of the pods that match; absent or empty matches all.")
    probability: IntOrString | None = Field(
        None, description='Share of the matching pods that are changed: an integer in percent or text such as "30%". Absent means all.'
    )
    qos_class: Literal["LSE", "LSR", "LS", "BE", "SYSTEM"] | None = Field(
        None, description="QoS class, written to the label koordinator.sh/qosClass."
    )
    priority_class_name: str | None = Field(
        None, description="PriorityClass of the pod: its name, value and preemption policy are written to the spec."
    )
    koordinator_priority: Int32 | None = Field(None, description="Sub-priority, written to the label koordinator.sh/priority.")
    labels: dict[str, str] | None = Field(None, description="Labels to set.")
    annotations: dict[str, str] | None = Field(None, description="Annotations to set.")
    label_keys_mapping: dict[str, str] | None = Field(None, description="Labels to copy: old key to new key.")
    annotation_keys_mapping: dict[str, str] | None = Field(None, description="Annotations to copy: old key to new key.")
    label_suffixes: dict[str, str] | None = Field(None, description="Suffixes to append to the values of existing labels, by key.")
    scheduler_name: str | None = Field(None, description="Scheduler of the pod.")
    patch: AnyValue | None = Field(None, description="A strategic merge patch of the pod.")


class ClusterColocationProfile(Resource):
    """Turns matching pods into co-located ones when they are created."""

    resource: ClassVar[kinds.Kind] = kinds.CLUSTERCOLOCATIONPROFILES
    columns: ClassVar[tuple[Column, ...]] = (
        Column("QoS", ".spec.qosClass"),
        Column("Priority Class", ".spec.priorityClassName"),
        Column("Probability", ".spec.probability"),
        AGE,
    )

    spec: ClusterColocationProfileSpec | None = Field(None, description="Selection and changes.")
    status: Empty | None = Field(None, description="Empty.")
