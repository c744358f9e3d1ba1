"""ElasticQuota: guarantee and ceiling of a group of pods."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import AGE, Column, Model, Resource, ResourceList

# annotation that a CRD of a *.k8s.io group needs to be accepted
APPROVED = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/52"}


class ElasticQuotaSpec(Model):
    """Bounds of the quota."""

    min: ResourceList | None = Field(None, description="What the quota is guaranteed.")
    max: ResourceList | None = Field(None, description="What the quota may use at most.")


class ElasticQuotaStatus(Model):
    """Usage of the quota."""

    used: ResourceList | None = Field(None, description="What its pods use.")


class ElasticQuota(Resource):
    """Guarantee and ceiling of a group of pods; quotas form trees by labels."""

    resource: ClassVar[kinds.Kind] = kinds.ELASTICQUOTAS
    crd_annotations: ClassVar[dict[str, str]] = APPROVED
    columns: ClassVar[tuple[Column, ...]] = (
        Column("Parent", ".metadata.labels.quota\\.scheduling\\.koordinator\\.sh/parent"),
        Column("Min CPU", ".spec.min.cpu"),
        Column("Max CPU", ".spec.max.cpu"),
        Column("Used CPU", ".status.used.cpu"),
        Column("Used Memory", ".status.used.memory"),
        AGE,
    )

    spec: ElasticQuotaSpec | None = Field(None, description="Bounds of the quota.")
    status: ElasticQuotaStatus | None = Field(None, description="Usage of the quota.")
