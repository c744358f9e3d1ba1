"""NodeSLO: the QoS strategies of a node (API-NSLO-01). Its fields are in ``koord.api.strategies``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.schema import openapi
from koord.api.strategies import NODE_SLO
from koord.api.v1alpha1.common import AGE, Column, Empty, Resource, Wire


class NodeSLO(Resource):
    """The QoS strategies of a node, made by the manager from slo-controller-config."""

    resource: ClassVar[kinds.Kind] = kinds.NODESLOS
    columns: ClassVar[tuple[Column, ...]] = (
        Column("Suppression", ".spec.resourceUsedThresholdWithBE.enable", "boolean"),
        Column("Threshold", ".spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent", "integer"),
        Column("Policy", ".spec.resourceUsedThresholdWithBE.cpuSuppressPolicy"),
        AGE,
    )

    spec: Annotated[dict[str, Any], Wire(openapi(NODE_SLO), replace=True)] | None = Field(None, description=NODE_SLO.text)
    status: Empty | None = Field(None, description="Empty.")
