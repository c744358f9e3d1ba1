"""The metric of DeviceShare under upstream's name."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from koord.api import names
from koord.api.objects import Device


class PlanMetric:
    """1 for each node whose Device says that its secondary devices are not well planned; no series for others."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "1 while a Device says that its secondary devices are not well planned."
        self._gauge = Gauge("scheduler_secondary_device_not_well_planned", text, ["node_name"], registry=registry)
        self._shown: set[str] = set()

    def follow(self, old: Device | None, new: Device | None) -> None:
        """A Device appeared, changed or went."""
        present = new or old
        assert present is not None
        name = present.metadata.name
        labels = (new.metadata.labels or {}) if new is not None else {}
        if labels.get(names.LABEL_SECONDARY_DEVICE_WELL_PLANNED) == "false":
            self._gauge.labels(name).set(1)
            self._shown.add(name)
        elif name in self._shown:
            self._gauge.remove(name)
            self._shown.discard(name)
