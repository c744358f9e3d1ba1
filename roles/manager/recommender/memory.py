"""Which target memory needs: several models beside each other, and the one whose own replay was cheapest (MGR-REC-02). Pure.

Kept of a container are the highest values of the last hours and of each day, for all its replicas together. At the end of a day every
model is asked for its target; at the end of the next one it is known what that would have cost: memory that was not used, and kills.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koord.accounting.histogram import CheckpointError
from roles.manager.recommender.policy import DAY, MEMORY_MODELS

HOUR = 3600.0
AUTO, *_NAMES = MEMORY_MODELS
MODELS = tuple(_NAMES)
MOVING_MAXIMUM = "moving-maximum"
"""A rule to compare with: the highest day of seven and ten percent on top."""

WINDOW = 8  # days whose highest value counts, the present one included
REMEMBERED = 22  # days
_FULL = 20  # hours that make a day
_FIRST_MARGIN = 0.10  # on top, until enough is known of how days differ
_DAYS_WANTED = 4  # that show how days differ
_SURPRISE = 0.15  # a day that is higher by more is a change, and no measure of how days differ
_LEAST, _MOST = 0.04, 0.15  # margins
_DEVIATIONS = 3.0
_GROWTH, _GROWTH_MARGIN = 0.01, 0.04
_HIGH = 1.15  # how much higher than the days before a day of a weekly pattern is
_FORGET = 0.97  # a day: what a model did weeks ago counts less
_SLACK_UNKNOWN = 0.3
_DOUBT = {"trend": 0.0, "peak": 0.03, "cautious": 0.0, "season": 0.05, "percentile": 0.5}
"""Kills that are assumed of a model before it has shown anything."""
OOM_FACTOR, OOM_BUMP = 1.2, 100e6
"""What a container needs that was killed at a limit: the larger of so many times, and so many bytes more."""
_FLOOR_LEFT = 0.97  # of what a kill taught, after each day


@dataclass(slots=True)
class Trial:
    """What a model would have cost so far, old days counting less; `target` is what it said for today."""

    target: float = 0.0
    days: float = 0.0
    waste: float = 0.0
    kills: float = 0.0

    def close(self, mean: float, peak: float) -> None:
        """The day is over."""
        if self.target > 0:
            self.days = self.days * _FORGET + 1
            self.waste = self.waste * _FORGET + max(self.target - mean, 0.0) / self.target
            self.kills = self.kills * _FORGET + (peak > self.target)
            self.target = 0.0

    def cost(self, name: str, price: float) -> float:
        """Expected cost of a day, in parts of a container's memory; `price` is that of a kill."""
        slack = self.waste / self.days if self.days else _SLACK_UNKNOWN
        return slack + price * (self.kills + _DOUBT[name]) / (self.days + 1)


_UNTRIED = Trial()


@dataclass(slots=True)
class _Today:
    number: int = 0
    peak: float = 0.0
    total: float = 0.0
    count: int = 0


@dataclass(slots=True)
class MemoryHistory:
    """Hours, days, and trials of one container. Times are seconds since the epoch, values bytes."""

    origin: float | None = None
    hours: dict[int, float] = field(default_factory=dict)
    days: dict[int, float] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)
    floor: float = 0.0
    _today: _Today = field(default_factory=_Today)

    def feed(self, time: float, value: float, percentile: Callable[[], float]) -> None:
        """A sample; `percentile()` is what the histogram would ask for, needed at the end of a day."""
        if self.origin is None:
            self.origin = time
        day, hour = int((time - self.origin) // DAY), int((time - self.origin) // HOUR)
        if day > self._today.number:
            self._close(day, percentile())
        if hour > max(self.hours, default=-1):
            self.hours = {known: high for known, high in self.hours.items() if known > hour - 27}
        self.hours[hour] = max(self.hours.get(hour, 0.0), value)
        today = self._today
        today.peak, today.total, today.count = max(today.peak, value), today.total + value, today.count + 1

    def killed(self, limit: float) -> None:
        """It needed more than `limit`: a target up to that would have been a kill today."""
        self.floor = max(self.floor, limit * OOM_FACTOR, limit + OOM_BUMP)
        self._today.peak = max(self._today.peak, limit * (1 + 1e-9))

    def _close(self, day: int, percentile: float) -> None:
        today = self._today
        if today.count:
            mean = today.total / today.count
            for trial in self.trials.values():
                trial.close(mean, today.peak)
            found = self._forecasts()
            if found:
                found["percentile"] = percentile
            self.days[today.number] = today.peak
            self.days = {known: peak for known, peak in self.days.items() if known > day - REMEMBERED}
            for name, target in found.items():
                self.trials.setdefault(name, Trial()).target = target
        self.floor *= _FLOOR_LEFT ** (day - today.number)
        self._today = _Today(day)

    # ---------------------------------------------------------------- targets

    def target(self, percentile: Callable[[], float], price: float, model: str = AUTO) -> tuple[str, float]:
        """The model that is followed, and its target. `percentile()` is what the histogram says, margin included."""
        if model == MOVING_MAXIMUM:
            highest = max(self._peaks(7), default=0.0) * 1.1
            return (model, max(highest, self.floor)) if highest else ("percentile", percentile())
        found = self._forecasts() if model != "percentile" else {}
        names = [*found, "percentile"] if found else []
        if model in names:
            name = model
        elif model == AUTO and names:
            name = min(names, key=lambda one: (self.trials.get(one, _UNTRIED).cost(one, price), MODELS.index(one)))
        else:
            return "percentile", percentile()
        return (name, percentile()) if name == "percentile" else (name, max(found[name], self.floor))

    def _forecasts(self) -> dict[str, float]:
        """What each model that can say something asks for; nothing before a day is full."""
        peaks = self._complete()
        if not peaks:
            return {}
        highest = max((*self._peaks(WINDOW), *peaks[-1:]))
        margin, growth = _margin(peaks), self._growth()
        ahead = self._last() * math.exp(growth + _GROWTH_MARGIN) if growth > _GROWTH else 0.0
        found = {
            "trend": max(highest * (1 + margin), ahead),
            "peak": highest * (1 + margin),
            "cautious": max(highest * (1 + _FIRST_MARGIN), ahead),
        }
        if _is_weekly(peaks, margin):
            found["season"] = max(max(*peaks[-2:], peaks[-7], self._today.peak) * (1 + margin), ahead)
        return found

    def growth(self) -> float:
        """Share by which the days' peaks grew lately, a day, if they did on each of the last days; else 0."""
        peaks = self._complete()[-5:]
        if len(peaks) < 4 or not peaks[0] > 0 or any(after < before * (1 + _GROWTH) for before, after in itertools.pairwise(peaks)):
            return 0.0
        return float((peaks[-1] / peaks[0]) ** (1 / (len(peaks) - 1)) - 1)

    def _peaks(self, days: int) -> list[float]:
        """Of the last days, the present one included."""
        return [
            peak for day, peak in {**self.days, self._today.number: self._today.peak}.items() if day > self._today.number - days and peak
        ]

    def _complete(self) -> list[float]:
        """Peaks of the days that are over, and of the present one if it is about over."""
        first_hour = self._today.number * 24
        about_over = sum(hour >= first_hour for hour in self.hours) >= _FULL
        return [*self.days.values(), *([self._today.peak] if about_over else [])]

    def _last(self) -> float:
        newest = max(self.hours)
        return max(high for hour, high in self.hours.items() if hour > newest - 3)

    def _growth(self) -> float:
        """Natural logarithm of a day's growth where memory climbs all day long, and is above the hour of the day before; else 0."""
        newest = max(self.hours)
        highs = [self.hours.get(hour, 0.0) for hour in range(newest - 26, newest + 1)]
        quarters = [max(highs[3 + 6 * n : 9 + 6 * n]) for n in range(4)]
        before = max(highs[:3]) or max(highs[3:6])
        if not 0 < quarters[0] < quarters[1] < quarters[2] < quarters[3] or not before:
            return 0.0
        return max(min(math.log(max(highs[-3:]) / before), math.log(quarters[3] / quarters[0]) * 4 / 3), 0.0)

    # ---------------------------------------------------------------- checkpoints

    def to_checkpoint(self) -> dict[str, Any]:
        """A JSON-able copy."""
        today = self._today
        return {
            "origin": self.origin,
            "hours": {str(hour): high for hour, high in self.hours.items()},
            "days": {str(day): peak for day, peak in self.days.items()},
            "trials": {name: [t.target, t.days, t.waste, t.kills] for name, t in self.trials.items()},
            "floor": self.floor,
            "today": [today.number, today.peak, today.total, today.count],
        }

    @classmethod
    def from_checkpoint(cls, data: Mapping[str, Any]) -> MemoryHistory:
        """Raises CheckpointError. An empty one is an empty history: earlier versions kept none."""
        if not data:
            return cls()
        try:
            origin = None if data["origin"] is None else _number(data["origin"])
            hours = {int(hour): _number(high) for hour, high in data["hours"].items()}
            days = {int(day): _number(peak) for day, peak in data["days"].items()}
            trials = {name: Trial(*map(_number, numbers)) for name, numbers in data["trials"].items() if name in MODELS}
            number, peak, total, count = map(_number, data["today"])
            floor = _number(data["floor"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"history: {error!r}") from None
        return cls(origin, hours, days, trials, floor, _Today(int(number), peak, total, int(count)))


def _margin(peaks: list[float]) -> float:
    """What days differ by, upwards: the largest step above the days before it, and some deviations more."""
    steps = []
    for n in range(max(len(peaks) - 14, 1), len(peaks)):
        before = max(peaks[max(n - 7, 0) : n])
        if before > 0 and peaks[n] > 0:
            steps.append(math.log(peaks[n] / before))
    steps = [step for step in steps if -_SURPRISE < step <= _SURPRISE]
    if len(steps) < _DAYS_WANTED:
        return _FIRST_MARGIN
    mean = sum(steps) / len(steps)
    spread = math.sqrt(sum((step - mean) ** 2 for step in steps) / len(steps)) + 0.02 / len(steps)
    return min(max(math.exp(max(steps) + _DEVIATIONS * spread) - 1, _LEAST), _MOST)


def _is_weekly(peaks: list[float], margin: float) -> bool:
    """Whether each high day of the last week had been one a week before, and there was one."""
    if len(peaks) < 9:
        return False
    high = [n for n in range(max(7, len(peaks) - 7), len(peaks)) if peaks[n] > _HIGH * max(peaks[n - 1], peaks[n - 2])]
    return bool(high) and all(peaks[n - 7] * (1 + margin) >= peaks[n] for n in high)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a number from 0 to 2^63")
    return value
