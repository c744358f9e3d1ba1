"""Interference detection: how often it is right, on series whose truth is known.

A service with noise of its own (lognormal, bursts, Student's t with 2.5 degrees of freedom, a day's course) and eight batch pods
that work in turns; one of them begins to disturb. The strategy itself decides, from samples as the collectors make them.
usage: bench_interference.py [--quick] [--injections=N] [--days=N] [--known=SECONDS] [--interval=SECONDS] [--seed=N]
`--known` is how long koordlet has seen the service before the ten minutes of quiet that each injection begins with.
"""

from __future__ import annotations

import bisect
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from koord.api.objects import Pod
from koord.api.objects_meta import decoder
from roles.koordlet.host.cgroup import CgroupDriver, Cgroups, CgroupVersion
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.options import Options
from roles.koordlet.qos.baseline import APART
from roles.koordlet.qos.interference import SLOWER, InterferenceDetection, InterferenceState, Watched
from roles.koordlet.states.model import HostState, PodState, Snapshot
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import effective_slo
from roles.koordlet.store import kinds
from roles.koordlet.store.series import Series
from tests.benchmarks.bench_koordlet import option
from tests.benchmarks.table import Row, script

#: A service that is known for a day; ten minutes of all pods, then five minutes of disturbance (seconds).
NEIGHBOURS, KNOWN, QUIET, LASTS = 8, 86_400.0, 600.0, 300.0
NOISES = ("lognormal", "bursts", "heavy tail", "day")
GROUPS = Cgroups(HostRoot.at("/nowhere"), CgroupVersion.V1, CgroupDriver.SYSTEMD)


@dataclass
class Memory:
    """The store's queries over lists. What is older than ten minutes is let go."""

    now: float = 0.0
    series: dict[tuple[str, str], tuple[list[int], list[float]]] = field(default_factory=dict)

    def add(self, kind: str, uid: str, at: float, value: float) -> None:
        times, values = self.series.setdefault((kind, uid), ([], []))
        times.append(int(at * 1000))
        values.append(value)
        if len(times) > 4000:
            del times[:2000], values[:2000]

    def query(self, kind: str, window: float, **properties: str) -> Series:
        if properties.get("psi_resource", "cpu") != "cpu" or "network_counter" in properties:
            return Series([], [], 0)
        times, values = self.series.get((kind, properties.get("pod_uid", "")), ([], []))
        first = bisect.bisect_right(times, int((self.now - window) * 1000))
        found = times[first:]
        return Series(found, values[first:], found[-1] - found[0] if found else 0)

    def last(self, kind: str, *, within: float | None = None, **properties: str) -> float | None:
        found = self.query(kind, within or 20.0, **properties).values
        return found[-1] if found else None


def own_noise(kind: str, rng: random.Random) -> Iterator[float]:
    """What a service waits for CPU by itself, percent of each second."""
    level, left, day = 0.0, 0.0, rng.random()
    for second in range(10**9):
        level = 0.9 * level + math.sqrt(1 - 0.81) * rng.gauss(0, 1)
        now = 4 * math.exp(0.5 * level - 0.125)
        if kind == "bursts":
            if left <= 0 and rng.random() < 2 / 3600:
                left = rng.uniform(20, 60)
            if left > 0:
                now, left = now + 15, left - 1
        elif kind == "heavy tail":
            spread = rng.gauss(0, 1) / math.sqrt(
                rng.gammavariate(1.25, 0.8)
            )  # Student's t, 2.5 degrees of freedom: its variance barely exists
            now += 3 * abs(spread)
        elif kind == "day":
            now *= 1.5 + math.sin(2 * math.pi * (second / 86400 + day))
        yield min(now, 100.0)


def batch_work(rng: random.Random) -> Iterator[float]:
    """Cores of a batch pod that works in turns."""
    on, left, level = True, rng.expovariate(1 / 60), rng.uniform(0.5, 4)
    while True:
        left -= 1
        if left <= 0:
            on, left, level = not on, rng.expovariate(1 / 60), rng.uniform(0.5, 4)
        yield (level if on else 0.05) * rng.uniform(0.95, 1.05)


def make(name: str, qos: str, kube_qos: str) -> PodState:
    wire = {
        "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"koordinator.sh/qosClass": qos}},
        "spec": {"nodeName": "n", "containers": []},
        "status": {"phase": "Running", "qosClass": kube_qos},
    }
    return pod_state(decoder(Pod)(msgspec.json.encode(wire)), GROUPS)


@dataclass
class Found:
    """``alarms``: (seconds, culprit named at once or later, and when)."""

    alarms: list[tuple[float, str, float]] = field(default_factory=list)


class Scene:
    """A service and its neighbours; ``disturbance`` is what culprit number 0 adds to the service's waiting, by second."""

    def __init__(self, noise: str, seed: int, interval: float, disturbance: Callable[[float], float]) -> None:
        self.rng = random.Random(seed)
        self.memory = Memory()
        self.pods = (make("web", "LS", "Burstable"), *(make(f"batch{n}", "BE", "BestEffort") for n in range(NEIGHBOURS)))
        self.noise, self.disturbance, self.interval = own_noise(noise, self.rng), disturbance, interval
        self.work = [batch_work(self.rng) for _ in range(NEIGHBOURS)]
        self.strategy = InterferenceDetection(Options(psi_collector_interval=interval), lambda _: True)
        self.state: Any = self.strategy.initial()
        self.waited = 0.0
        self.host = HostState(GROUPS.root, GROUPS, HostFiles())
        self.slo = effective_slo({})[0]

    def known(self, seconds: float) -> None:
        """Let the strategy's own baseline learn the service alone."""
        watched = slower = Watched()
        last: list[float] = []
        for second in range(int(seconds)):
            self._wait(0.0)
            if not (second + 1) % self.interval:
                at = second + 1.0 - seconds
                last.append(self._sampled())
                watched = watched.taken(last[-1], at, 5.0)
                if not (second + 1) % APART:
                    slower = slower.taken(sum(last) / len(last), at, 5.0)
                    last.clear()
        self.state = InterferenceState(watched={("web", "cpu"): watched, ("web", "cpu" + SLOWER): slower})

    def _wait(self, extra: float) -> None:
        """The kernel's total, a second on."""
        self.waited += min(next(self.noise) + extra, 100.0)

    def _sampled(self) -> float:
        """What a collector makes of it: percent of the time since its last round."""
        waited, self.waited = self.waited, 0.0
        return round(waited / self.interval, 2)

    def run(self, seconds: float, *, neighbours: bool = True) -> Found:
        found = Found()
        named: float | None = None
        for second in range(int(seconds)):
            now = self.memory.now = second + 1.0
            extra = self.disturbance(now)
            self._wait(extra)
            for number, work in enumerate(self.work if neighbours else ()):
                own = next(work)
                if not number:  # who disturbs waits for its input, then works
                    own = (4.0 if extra else 0.05) * self.rng.uniform(0.9, 1.1)
                self.memory.add(kinds.POD_CPU, f"batch{number}", now, own)
            if now % self.interval:
                continue
            self.memory.add(kinds.POD_PSI, "web", now, self._sampled())
            outcome = self.strategy.decide(self._snapshot(now), self.slo, self.state, now)
            self.state = outcome.state
            for record in outcome.records:
                if record.verdict == "Interfered":
                    named = None
                    who = str(record.numbers.get("antagonist", ""))
                    found.alarms.append((now, who, now if who else 0.0))
                    named = now if who else None
            for look in ("cpu", "cpu" + SLOWER):
                watched = self.state.watched.get(("web", look))
                if watched is not None and watched.since and watched.culprit and named is None and found.alarms:
                    at, _, _ = found.alarms[-1]
                    found.alarms[-1] = (at, f"d/{watched.culprit}", now)
                    named = now
        return found

    def _snapshot(self, now: float) -> Snapshot:
        return Snapshot(
            time=now, node_name="n", host=self.host, node=None, slo=self.slo, pods=self.pods, topology=None, nrt=None,
            metrics=self.memory, collect_interval=1.0, pods_synced=True,
        )  # fmt: skip


def injected(count: int, known: float, interval: float, seed: int) -> tuple[int, int, int, list[float], list[float]]:
    """(injections, alarms with a culprit, right ones, seconds until the alarm, seconds from there to the name)"""
    named = right = 0
    until, naming = [], []
    for number in range(count):
        rng = random.Random(seed + number)
        rise, noise = rng.uniform(20, 60), NOISES[number % len(NOISES)]
        scene = Scene(noise, seed + number, interval, lambda now, rise=rise: rise if QUIET <= now < QUIET + LASTS else 0.0)
        if known:
            scene.known(known)
        found = scene.run(QUIET + LASTS)
        alarms = [alarm for alarm in found.alarms if alarm[0] >= QUIET]
        named += sum(1 for _, who, _ in alarms if who)
        hits = [alarm for alarm in alarms if alarm[1] == "d/batch0"]
        if hits:
            right += 1
            until.append(hits[0][0] - QUIET)
            naming.append(hits[0][2] - hits[0][0])
    return count, named, right, until, naming


def rows(quick: bool) -> list[Row]:
    count, days = int(option("injections", "40" if quick else "240")), float(option("days", "1" if quick else "8"))
    interval, seed, known = float(option("interval", "10")), int(option("seed", "1")), float(option("known", "7200"))
    total, named, right, until, naming = injected(count, known, interval, seed)
    out = [
        Row("interference: precision", right / max(named, 1), "", 0.9, note=f"{right} of {named} named pods were the one; at least"),
        Row("interference: recall", right / total, "", 0.8, note=f"{right} of {total} injections of 20 to 60 points; at least"),
        Row("interference: injection to alarm, p50", statistics.median(until or [math.nan]), "s", note=f"a sample every {interval:g} s"),
        Row("interference: alarm to name, p99", sorted(naming or [math.nan])[int(len(naming) * 0.99)], "s", 5.0),
    ]
    for noise in NOISES if days else ():
        scene = Scene(noise, seed + 10_000, interval, lambda now: 0.0)
        scene.known(KNOWN)
        alarms = scene.run(days * 86400, neighbours=False).alarms
        note = f"{days:g} pod-days without a disturber"
        out.append(Row(f"interference: false alarms, {noise}", len(alarms) / days, "a pod-day", 0.5, note=note))
    return out


if __name__ == "__main__":
    sys.exit(script(rows))
