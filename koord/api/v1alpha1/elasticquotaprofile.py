"""ElasticQuotaProfile: a quota tree over the nodes that a selector finds."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import AGE, Column, Empty, LabelSelector, Model, Resource


class ElasticQuotaProfileSpec(Model):
    """The tree and its nodes."""

    quota_name: str = Field(description="Name of the ElasticQuota that is the root of the tree.")
    node_selector: LabelSelector = Field(description="Nodes whose resources the tree shares.")
    quota_labels: dict[str, str] | None = Field(None, description="Labels to set on the ElasticQuota.")
    resource_ratio: str | None = Field(None, description="Part of the nodes' resources that the tree gets: a number in (0, 1].")


class ElasticQuotaProfile(Resource):
    """A quota tree over the nodes that a selector finds."""

    resource: ClassVar[kinds.Kind] = kinds.ELASTICQUOTAPROFILES
    columns: ClassVar[tuple[Column, ...]] = (
        Column("Quota", ".spec.quotaName"),
        Column("Ratio", ".spec.resourceRatio"),
        AGE,
    )

    spec: ElasticQuotaProfileSpec | None = Field(None, description="The tree and its nodes.")
    status: Empty | None = Field(None, description="Empty.")
