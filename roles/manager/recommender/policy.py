"""How the recommender counts: one field a flag."""

from __future__ import annotations

from dataclasses import dataclass

import click

from koord.config.errors import ConfigError
from koord.config.urls import is_http_url
from koord.process.flags import Duration, flag

DAY = 86400.0
EXPIRES_AFTER = 8 * DAY
"""A container without a sample for so long is dropped; also how far back history is fetched."""

MEMORY_MODELS = ("auto", "trend", "peak", "cautious", "season", "percentile")
"""How memory targets are found (`memory.py`); `auto` takes the one whose own replay is cheapest."""


def _mebibytes(context: click.Context, param: click.Parameter, value: int) -> int:
    return value << 20


@dataclass(frozen=True, slots=True)
class Policy:
    """Shares are 0..1, durations seconds, `min_memory` bytes a pod, `min_cpu` milli-CPU a pod."""

    interval: float = flag(60.0, "How often usage is looked at.", "recommender-interval", type=Duration)
    cpu_percentile: float = flag(0.9, "Share of CPU samples that the target covers.", "recommender-cpu-percentile")
    memory_percentile: float = flag(0.9, "Share of daily memory peaks it covers.", "recommender-memory-percentile")
    margin: float = flag(0.15, "What is put on top, as a share.", "recommendation-margin-fraction")
    half_life: float = flag(DAY, "After how long a sample counts half.", "recommender-half-life", type=Duration)
    min_cpu: int = flag(25, "Least CPU of a pod.", "recommender-min-cpu-millicores")
    min_memory: int = flag(250 << 20, "Least memory of a pod, MiB.", "recommender-min-memory-mb", shown=250, callback=_mebibytes)
    memory_model: str = flag("auto", "How memory targets are found.", "recommender-memory-model", type=click.Choice(MEMORY_MODELS))
    kill_price: float = flag(10.0, "Cost of a kill, in days of the memory.", "recommender-kill-price")
    resize_cpu_percentile: float = flag(0.97, "Share of recent CPU, of pods resized in place.", "recommender-resize-cpu-percentile")
    prometheus: str = flag("", "Prometheus that provides eight days of history, http(s)://...", "recommender-prometheus-address")
    lower_percentile: float = 0.50
    upper_percentile: float = 0.95


def checked(policy: Policy) -> Policy:
    """The policy itself. Raises ConfigError naming the flag whose value cannot be used."""
    for name, share in (
        ("cpu-percentile", policy.cpu_percentile),
        ("memory-percentile", policy.memory_percentile),
        ("resize-cpu-percentile", policy.resize_cpu_percentile),
    ):
        if not 0 < share <= 1:
            raise ConfigError(f"--recommender-{name}", f"{share} is no share; more than 0 and at most 1 is accepted")
    for name, seconds in (("--recommender-interval", policy.interval), ("--recommender-half-life", policy.half_life)):
        if not seconds > 0:
            raise ConfigError(name, "must be more than 0")
    for name, least in (
        ("--recommendation-margin-fraction", policy.margin),
        ("--recommender-min-cpu-millicores", policy.min_cpu),
        ("--recommender-min-memory-mb", policy.min_memory),
        ("--recommender-kill-price", policy.kill_price),
    ):
        if not least >= 0:
            raise ConfigError(name, "must not be negative")
    if policy.memory_model not in MEMORY_MODELS:
        raise ConfigError("--recommender-memory-model", f"{policy.memory_model!r} is not known; accepted: {', '.join(MEMORY_MODELS)}")
    if policy.prometheus and not is_http_url(policy.prometheus):
        raise ConfigError("--recommender-prometheus-address", f"{policy.prometheus!r} is no http:// or https:// address")
    return policy
