"""How much a pod waits for what others hold: pressure and cycles per instruction, in `podsMetric[].extensions` of the NodeMetric.

Only what is collected is reported (gates PSICollector, CPICollector), so the report is upstream's where they are off. The manager
finds abnormal nodes by it (BEY-ABN-01).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roles.koordlet.states.model import PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.view import MetricsView

# resource -> the degree that hurts a service: any task waiting for a CPU, all tasks waiting for memory or a disk
_DEGREES = {"cpu": "some", "mem": "full", "io": "full"}
#: Snapshot of the store with what strategies have to say of pods, by uid (interference, requests to migrate).
FINDINGS = "pod findings"
#: Snapshot of the store with the conditions of the NodeMetric.
CONDITIONS = "conditions"
_FIELDS = ("cycle", "instruction")
_PRECISION = "10"  # of avg10, as the collector keeps it


def extensions(view: MetricsView, pod: PodState, window: float, said: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """`{"psi": {"cpu": percent, ...}, "cpi": ratio}`, means over `window` seconds, and what strategies `said`; None for nothing."""
    found: dict[str, Any] = dict(said or {})
    pressure = {}
    for resource, degree in _DEGREES.items():
        value = view.avg(kinds.POD_PSI, window, pod_uid=pod.uid, psi_resource=resource, psi_precision=_PRECISION, psi_degree=degree)
        if value is not None:
            pressure[resource] = round(value, 2)
    if pressure:
        found["psi"] = pressure
    cycles = instructions = 0.0
    for container in pod.containers:
        each = [view.avg(kinds.CONTAINER_CPI, window, pod_uid=pod.uid, container_id=container.id, cpi_resource=field) for field in _FIELDS]
        if each[0] is not None and each[1] is not None:
            cycles, instructions = cycles + each[0], instructions + each[1]
    if instructions > 0:
        found["cpi"] = round(cycles / instructions, 3)
    return found or None
