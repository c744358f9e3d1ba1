"""The effective collect policy of a NodeMetric (KLO-SI-04). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from koord.api.times import parse_duration

MEMORY_POLICIES = ("usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache")
MIN_AGGREGATE, MIN_INTERVAL = 60, 30


class PolicyError(ValueError):
    """A field of ``spec.metricCollectPolicy`` cannot be used."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"NodeMetric spec.metricCollectPolicy.{field}: {detail}")


@dataclass(frozen=True, slots=True)
class CollectPolicy:
    """Seconds; ``durations`` are the windows of aggregated usage."""

    aggregate: int
    interval: int
    durations: tuple[float, ...]
    memory: str


def _seconds(policy: dict[str, Any], field: str, default: int, least: int) -> int:
    value = policy.get(field)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise PolicyError(field, f"{value!r} is not a number of seconds")
    return max(value, least)


def _durations(policy: dict[str, Any]) -> tuple[float, ...]:
    aggregate = policy.get("nodeAggregatePolicy")
    listed = aggregate.get("durations") if isinstance(aggregate, dict) else None
    if not listed:
        return DEFAULT_POLICY.durations
    if not isinstance(listed, list):
        raise PolicyError("nodeAggregatePolicy.durations", f"{listed!r} is not a list of durations such as 5m")
    out: list[float] = []
    for text in listed:
        try:
            seconds = parse_duration(str(text))
        except ValueError as error:
            raise PolicyError("nodeAggregatePolicy.durations", str(error)) from None
        if seconds <= 0:
            raise PolicyError("nodeAggregatePolicy.durations", f"{text!r} is not a positive duration such as 5m")
        out.append(seconds)
    return tuple(out)


DEFAULT_POLICY = CollectPolicy(aggregate=300, interval=60, durations=(300.0, 600.0, 1800.0), memory="usageWithoutPageCache")


def effective_policy(spec: dict[str, Any] | None) -> CollectPolicy:
    """Received policy over the defaults, values below the minimum lifted to it. Raises :class:`PolicyError`."""
    policy = (spec or {}).get("metricCollectPolicy") or {}
    if not isinstance(policy, dict):
        raise PolicyError("", "is not an object")
    memory = policy.get("nodeMemoryCollectPolicy") or DEFAULT_POLICY.memory
    if not isinstance(memory, str) or memory not in MEMORY_POLICIES:
        raise PolicyError("nodeMemoryCollectPolicy", f"{memory!r} is not one of {', '.join(MEMORY_POLICIES)}")
    return CollectPolicy(
        aggregate=_seconds(policy, "aggregateDurationSeconds", DEFAULT_POLICY.aggregate, MIN_AGGREGATE),
        interval=_seconds(policy, "reportIntervalSeconds", DEFAULT_POLICY.interval, MIN_INTERVAL),
        durations=_durations(policy),
        memory=str(memory),
    )
