"""Decaying histograms with exponential buckets (KLO-PRED-01, KLO-PRED-02; MGR-REC-01 with its own options).

Only buckets that hold weight are stored, so an idle pod costs a few dozen bytes. Times are seconds since the Unix epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koord.api.times import TimeError, format_time, parse_time

EPSILON: Final = 0.0001  # a bucket lighter than this counts as empty at the edges
MAX_CHECKPOINT_WEIGHT: Final = 10_000
_MAX_EXPONENT: Final = 100  # half-lives between the reference time and a sample before the reference moves
_HEAVIEST: Final = 1e100  # more than samples can weigh, and little enough to be moved to any reference
#: So many samples in a row that are older than a half-life: not they are late, the newest was early.
_LATE = 100
_ZERO_TIME: Final = -62_135_596_800.0  # year 1, where reference times start and from where they are rounded


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message says what is wrong with it."""


@dataclass(frozen=True)
class BucketOptions:
    """Exponential buckets: bucket 0 is [0, first), each next one ``ratio`` times as wide, until ``maximum`` is covered."""

    first: float
    maximum: float
    ratio: float = 1.05

    def __post_init__(self) -> None:
        if not (self.first > 0 and self.ratio > 1 and self.maximum >= self.first):
            raise ValueError(f"no buckets: first {self.first}, ratio {self.ratio}, maximum {self.maximum}")

    def _log(self, value: float) -> float:
        return math.log(value * (self.ratio - 1) / self.first + 1) / math.log(self.ratio)

    @property
    def count(self) -> int:
        """Number of buckets."""
        return math.ceil(self._log(self.maximum)) + 1

    def index(self, value: float) -> int:
        """Bucket of a value; what is too large goes into the last one."""
        if value < self.first:
            return 0
        last = self.count - 1
        if value >= self.maximum * self.ratio:
            return last
        return min(math.floor(self._log(value)), last)

    def start(self, bucket: int) -> float:
        """Lower bound of a bucket."""
        return self.first * (self.ratio**bucket - 1) / (self.ratio - 1) if bucket else 0.0

    def end(self, bucket: int) -> float:
        """What a percentile inside the bucket answers: its upper bound, or the lower bound of the very last bucket."""
        return self.start(bucket + 1) if bucket < self.count - 1 else self.start(bucket)


AGENT_CPU: Final = BucketOptions(first=0.025, maximum=1024.0)  # cores
AGENT_MEMORY: Final = BucketOptions(first=5 * 2.0**20, maximum=2.0**41)  # bytes
RECOMMENDER_CPU: Final = BucketOptions(first=0.01, maximum=1000.0)  # cores
RECOMMENDER_MEMORY: Final = BucketOptions(first=1e7, maximum=1e12)  # bytes


class DecayingHistogram:
    """A histogram in which a sample's weight halves every ``half_life`` seconds.

    Instead of making old weights lighter, new ones are made heavier: a sample at time t weighs 2^((t - reference) / half-life). The
    reference moves when that exponent would pass 100.
    """

    __slots__ = ("_behind", "_newest", "_total", "_weights", "half_life", "options", "reference")

    def __init__(self, options: BucketOptions, half_life: float) -> None:
        """Empty. ``half_life`` in seconds must be positive."""
        if not half_life > 0:
            raise ValueError(f"half-life must be positive, not {half_life}")
        self.options = options
        self.half_life = half_life
        self.reference = _ZERO_TIME
        self._weights: dict[int, float] = {}
        self._total = 0.0
        self._newest = _ZERO_TIME
        self._behind = 0

    def add(self, value: float, weight: float, time: float) -> None:
        """Add a sample. Raises ValueError for a weight or value that is negative or no number."""
        decayed = self._decayed(value, weight, time)
        self._behind = self._behind + 1 if self._newest - time > self.half_life else 0
        if self._behind > _LATE:
            self._clock_was_ahead(time)
            decayed = self._decayed(value, weight, time)
        self._newest = max(self._newest, time)
        bucket = self.options.index(value)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + decayed
        self._total += decayed

    def subtract(self, value: float, weight: float, time: float) -> None:
        """Take a sample back that was added with the same arguments; no weight goes below zero."""
        decayed = self._decayed(value, weight, time)
        bucket = self.options.index(value)
        left = self._weights.get(bucket, 0.0) - decayed
        if left > 0:
            self._weights[bucket] = left
        else:
            self._weights.pop(bucket, None)
        self._total = max(self._total - decayed, 0.0)

    def _decayed(self, value: float, weight: float, time: float) -> float:
        if not (value >= 0 and math.isfinite(value) and weight >= 0 and math.isfinite(weight) and math.isfinite(time)):
            raise ValueError(f"no sample: value {value}, weight {weight}, time {time}")
        if time > self.reference + self.half_life * _MAX_EXPONENT:
            self._move_reference(time)
        return float(weight * 2.0 ** ((time - self.reference) / self.half_life))

    def _clock_was_ahead(self, time: float) -> None:
        """Count what there is as of now: some of it was stamped by a clock that was ahead, and would outweigh all later samples."""
        self._behind = 0
        steps = math.floor((self._newest - time) / self.half_life + 0.5)
        self.reference -= steps * self.half_life
        self._newest = time

    def _move_reference(self, time: float) -> None:
        """Move the reference to ``time``, rounded to a multiple of the half-life since year 1, and rescale."""
        moved = _ZERO_TIME + math.floor((time - _ZERO_TIME) / self.half_life + 0.5) * self.half_life
        self._scale(round((self.reference - moved) / self.half_life))
        self.reference = moved

    def _scale(self, exponent: int) -> None:
        """Every weight × 2^exponent."""
        scaled = {bucket: math.ldexp(weight, exponent) for bucket, weight in self._weights.items()}
        self._weights = {bucket: weight for bucket, weight in scaled.items() if weight > 0}
        self._total = math.ldexp(self._total, exponent)

    def merge(self, other: DecayingHistogram) -> None:
        """Add all of another histogram. Raises ValueError unless options and half-life are equal."""
        if other.options != self.options or other.half_life != self.half_life:
            raise ValueError("histograms with different buckets or half-lives cannot be merged")
        if other.reference > self.reference:
            self._scale(round((self.reference - other.reference) / self.half_life))
            self.reference = other.reference
        exponent = round((other.reference - self.reference) / self.half_life)
        for bucket, weight in other._weights.items():
            self._weights[bucket] = self._weights.get(bucket, 0.0) + math.ldexp(weight, exponent)
        self._total += math.ldexp(other._total, exponent)

    @property
    def total_weight(self) -> float:
        """Sum of the weights, relative to the reference time."""
        return self._total

    @property
    def empty(self) -> bool:
        """Whether no bucket holds noticeable weight."""
        return not any(weight >= EPSILON for weight in self._weights.values())

    def percentile(self, p: float) -> float:
        """The value that a share ``p`` (0..1) of the weight does not exceed: the end of its bucket; 0 when empty."""
        return self.percentiles((p,))[0]

    def percentiles(self, shares: Iterable[float]) -> list[float]:
        """Several percentiles at the cost of one walk."""
        heavy = [bucket for bucket, weight in self._weights.items() if weight >= EPSILON]
        wanted = list(shares)
        if not heavy:
            return [0.0] * len(wanted)
        first, last = min(heavy), max(heavy)
        found = [self.options.end(last)] * len(wanted)
        open_shares = sorted(range(len(wanted)), key=lambda i: wanted[i])
        position, cumulative = 0, 0.0
        for bucket in sorted(bucket for bucket in self._weights if first <= bucket < last):
            cumulative += self._weights[bucket]
            while position < len(open_shares) and cumulative >= wanted[open_shares[position]] * self._total:
                found[open_shares[position]] = self.options.end(bucket)
                position += 1
        return found

    def to_checkpoint(self) -> dict[str, Any]:
        """A JSON-able copy: weights as integers of which the heaviest is 10000, zeros dropped."""
        heaviest = max(self._weights.values(), default=0.0)
        weights: dict[str, int] = {}
        if heaviest > 0:
            for bucket in sorted(self._weights):
                scaled = math.floor(self._weights[bucket] / heaviest * MAX_CHECKPOINT_WEIGHT + 0.5)
                if scaled:
                    weights[str(bucket)] = scaled
        return {"referenceTimestamp": format_time(self.reference), "bucketWeights": weights, "totalWeight": self._total}

    @classmethod
    def from_checkpoint(cls, options: BucketOptions, half_life: float, checkpoint: Mapping[str, Any]) -> DecayingHistogram:
        """The histogram of a checkpoint. Raises CheckpointError for buckets out of range, negative weights or wrong types."""
        total = checkpoint.get("totalWeight", 0.0)
        if isinstance(total, bool) or not isinstance(total, int | float) or not 0 <= total <= _HEAVIEST:
            raise CheckpointError(f"totalWeight: {total!r} is not a number between 0 and {_HEAVIEST:g}")
        weights = _checkpoint_weights(options, checkpoint.get("bucketWeights") or {})
        made = cls(options, half_life)
        stamp = checkpoint.get("referenceTimestamp")
        if stamp is not None:
            try:
                made.reference = parse_time(stamp)
            except (TimeError, TypeError) as error:
                raise CheckpointError(f"referenceTimestamp: {error}") from None
        whole = sum(weights.values())
        if whole:
            made._weights = {bucket: weight * total / whole for bucket, weight in weights.items() if weight and total}
            made._total = float(total)
        return made


def _checkpoint_weights(options: BucketOptions, weights: Any) -> dict[int, int]:
    if not isinstance(weights, Mapping):
        raise CheckpointError(f"bucketWeights: a map is wanted, not {type(weights).__name__}")
    found = {}
    for name, weight in weights.items():
        bucket = (
            int(name) if isinstance(name, int) or (isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 9) else -1
        )
        if not 0 <= bucket < options.count:
            raise CheckpointError(f"bucketWeights: bucket {name!r} is not in 0..{options.count - 1}")
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 0:
            raise CheckpointError(f"bucketWeights[{bucket}]: {weight!r} is not an integer of at least 0")
        found[bucket] = weight
    return found
