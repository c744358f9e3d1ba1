"""What the scheduler is started with."""

from __future__ import annotations

from dataclasses import dataclass, field

from koord.config.scheduler import KubeSchedulerConfiguration
from roles.scheduler.auditor import Thresholds
from roles.scheduler.diagnosis import Debug
from roles.scheduler.observing.barrier import Barrier


@dataclass(slots=True)
class Options:
    """What the command line and the file say. `source` names the file in errors; times in seconds."""

    config: KubeSchedulerConfiguration
    source: str = "config"
    plugin_paths: tuple[str, ...] = ()
    gates: dict[str, bool] = field(default_factory=dict)
    max_unschedulable: float = 300.0
    binders: int = 64
    verify: int = 1000  # every so many decisions all plugins are asked anew and compared; 0 for never
    debug: Debug = field(default_factory=Debug)
    diagnosis_blocking: bool = False
    diagnosis_queue: int = 1000
    diagnosis_workers: int = 10
    monitor_period: float = 10.0
    scheduling_timeout: float = 30.0
    controller_plugins: tuple[str, ...] = ("*",)
    network_topology: bool = False
    barrier: Barrier = field(default_factory=Barrier)
    audit: Thresholds = field(default_factory=Thresholds)
    seed: int | None = None
