"""How the recommender counts: one field a flag."""

from __future__ import annotations

from dataclasses import dataclass

from koord.config.errors import ConfigError

DAY = 86400.0
EXPIRES_AFTER = 8 * DAY
"""A container without a sample for so long is dropped; also how far back history is fetched."""

MEMORY_MODELS = ("auto", "trend", "peak", "cautious", "season", "percentile")
"""How memory targets are found (`memory.py`); `auto` takes the one whose own replay is cheapest."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Shares are 0..1, durations seconds, `min_memory` bytes a pod, `min_cpu` milli-CPU a pod."""

    interval: float = 60.0
    cpu_percentile: float = 0.90
    memory_percentile: float = 0.90
    margin: float = 0.15
    half_life: float = DAY
    min_cpu: int = 25
    min_memory: int = 250 << 20
    lower_percentile: float = 0.50
    upper_percentile: float = 0.95
    prometheus: str = ""
    memory_model: str = "auto"
    """`auto`: the model whose own replay is cheapest; or one by name."""
    resize_cpu_percentile: float = 0.97
    """Of the last hours' CPU samples, for pods that are resized in place; no margin is put on top."""
    kill_price: float = 10.0
    """What a day with a kill for lack of memory costs, in days of the container's memory."""


def checked(policy: Policy) -> Policy:
    """The policy itself. Raises ConfigError naming the flag whose value cannot be used."""
    for flag, share in (
        ("cpu-percentile", policy.cpu_percentile),
        ("memory-percentile", policy.memory_percentile),
        ("resize-cpu-percentile", policy.resize_cpu_percentile),
    ):
        if not 0 < share <= 1:
            raise ConfigError(f"--recommender-{flag}", f"{share} is no share; more than 0 and at most 1 is accepted")
    for flag, seconds in (("--recommender-interval", policy.interval), ("--recommender-half-life", policy.half_life)):
        if not seconds > 0:
            raise ConfigError(flag, "must be more than 0")
    for flag, least in (
        ("--recommendation-margin-fraction", policy.margin),
        ("--recommender-min-cpu-millicores", policy.min_cpu),
        ("--recommender-min-memory-mb", policy.min_memory),
        ("--recommender-kill-price", policy.kill_price),
    ):
        if not least >= 0:
            raise ConfigError(flag, "must not be negative")
    if policy.memory_model not in MEMORY_MODELS:
        raise ConfigError("--recommender-memory-model", f"{policy.memory_model!r} is not known; accepted: {', '.join(MEMORY_MODELS)}")
    if policy.prometheus and not policy.prometheus.startswith(("http://", "https://")):
        raise ConfigError("--recommender-prometheus-address", f"{policy.prometheus!r} is no http:// or https:// address")
    return policy
