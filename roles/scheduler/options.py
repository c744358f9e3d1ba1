"""What the scheduler is started with: a field is a flag (SCH-FW-02)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import click

from koord.process.flags import Duration, bool_option, flag

if TYPE_CHECKING:
    from koord.config.scheduler import KubeSchedulerConfiguration


_SCORES = partial(click.option, "--debug-scores", "-s", type=click.IntRange(0), default=0)


@dataclass(slots=True)
class Debug:
    """What is logged about cycles; may change while the scheduler runs. `scores` is for how many nodes, 0 for none."""

    scores: int = flag(0, "Log the scores of the top N nodes.", "debug-scores", option=_SCORES)
    filters: bool = flag(False, "Log what filters refuse.", "debug-filters", option=partial(bool_option, "--debug-filters", "-f"))
    diagnosis: bool = flag(
        False, "Dump a diagnosis of each failed cycle as JSON.", "debug-diagnosis", option=partial(bool_option, "--debug-diagnosis", "-d")
    )


@dataclass(frozen=True, slots=True)
class Barrier:
    """The pod that marks the sync barrier (gate SyncBarrier), and how long to wait at most (seconds)."""

    namespace: str = flag("kube-system", "Namespace of the barrier pod.", "sync-barrier-pod-namespace")
    name: str = flag("koord-scheduler-sync-barrier", "Name of the barrier pod.", "sync-barrier-pod-name")
    timeout: float = flag(60.0, "Longest wait at the barrier.", "sync-hard-timeout", type=Duration)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Beyond these the workload auditor logs an alert. Seconds but for `deleting_retries`. `labels` are (metric label, pod label) pairs."""

    enabled: bool = flag(False, "Follow each workload until it is scheduled.", "enable-workload-auditor")
    reschedule: float = flag(10.0, "Alert: from victims gone to scheduled.", "workload-auditor-victim-reschedule-duration", type=Duration)
    deletion: float = flag(30.0, "Alert: victims take longer to go.", "workload-auditor-victim-deletion-duration", type=Duration)
    deleting_retries: int = flag(3, "Alert: so many attempts.", "workload-auditor-victim-deleting-retries", type=click.IntRange(0))
    interval: float = flag(300.0, "Alert: nothing happened for so long.", "workload-auditor-scheduling-event-interval", type=Duration)
    labels: tuple[tuple[str, str], ...] = flag((), "Metric labels: name=pod label key,…", "workload-auditor-metric-labels")


@dataclass(slots=True)
class Options:
    """What the command line and the file say. `source` names the file in errors; times in seconds; `diagnosis_blocking` and the like are
    of the dump that `debug` switches on."""

    config: KubeSchedulerConfiguration
    source: str = "config"
    plugin_paths: tuple[str, ...] = ()
    gates: dict[str, bool] = field(default_factory=dict)
    max_unschedulable: float = flag(
        300.0, "After this a pod is tried again without an event.", "pod-max-in-unschedulable-pods-duration", type=Duration
    )
    binders: int = flag(64, "Bindings at a time.", type=click.IntRange(1, 1000))
    controller_plugins: tuple[str, ...] = flag(("*",), "Plugins whose controllers run: Name, -Name, * for all others.")
    network_topology: bool = flag(False, "Build the network topology tree.", "enable-network-topology-manager")
    verify: int = flag(
        1000,
        "Every N decisions, compare all plugins with their cached results; one that differs is evaluated per pod. 0: never.",
        "verify-plugins",
        type=click.IntRange(0),
    )
    monitor_period: float = flag(10.0, "How often slow pods are looked for.", "scheduler-monitor-period", type=Duration)
    scheduling_timeout: float = flag(30.0, "A pod that takes longer to place is reported.", type=Duration)
    diagnosis_blocking: bool = flag(False, "Dump the diagnosis inside the cycle.", "debug-diagnosis-blocking")
    diagnosis_queue: int = flag(1000, "Diagnoses that may wait.", "debug-diagnosis-queue-size", type=click.IntRange(1))
    diagnosis_workers: int = flag(10, "Writers of diagnoses.", "debug-diagnosis-worker-count", type=click.IntRange(1))
    debug: Debug = field(default_factory=Debug)
    barrier: Barrier = field(default_factory=Barrier)
    audit: Thresholds = field(default_factory=Thresholds)
    seed: int | None = None
