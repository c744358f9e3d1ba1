"""Interference detection on real cgroups (root): a service with noise of its own, three batch pods in turns, one of which disturbs.

All of them share one CPU, and nothing else protects the service: the best-effort tier weighs what its jobs asked for. koordlet's own
collectors read the kernel's pressure once a second, and its strategy decides; nobody is squeezed. A block of injections has one culprit
and starts with empty series. The baseline learns the quiet between injections and not these: they follow one another by seconds here.
usage: bench_interference_real.py [--quick] [--injections=N] [--minutes=LIMIT] [--seed=N] [--log=FILE]
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from koord.api.objects import Pod
from koord.api.objects_meta import decoder
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.options import Options, host_root
from roles.koordlet.qos.interference import InterferenceDetection, InterferenceState, Watched
from roles.koordlet.sensing.base import Round, SensingContext
from roles.koordlet.sensing.pods import PodsCollector
from roles.koordlet.sensing.psi import PsiCollector
from roles.koordlet.states.model import HostState, Snapshot
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import effective_slo
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView
from tests.benchmarks.bench_koordlet import option
from tests.benchmarks.koordlet_node import V1, Machine, container_directory, machine, pod, qos_directory, real_cgroups
from tests.benchmarks.table import Row, script

SERVICE, BATCH = 1, (2, 5, 8)
#: Seconds: the service alone at first; quiet before the first injection of a block, and before each other one; an injection at most.
LEARN, FILL, QUIET, LASTS = 90, 14, (3, 8), 8
BLOCK = 5
#: Weight of the machine beside what else runs there, so that its own pods are what a service waits for.
WEIGHT = 16_384
#: What each level weighs in it: the batch jobs asked for sixteen times as much CPU as the service, and nobody holds them.
LEVELS = {"Guaranteed": 1024, "Burstable": 1024, "BestEffort": 16384}
#: Requests of 1 to about 15 ms, lognormal, 40 a second at most.
_SERVICE = (
    "import random, time\n"
    "while True:\n"
    " end = time.perf_counter() + min(0.004 * random.lognormvariate(0, 0.5), 0.02)\n"
    " while time.perf_counter() < end: pass\n"
    " time.sleep(random.expovariate(40))\n"
)
#: Works for a share of each tenth of a second, which it reads from its input.
_BATCH = (
    "import os, select, sys, time\n"
    "share = 0.02\n"
    "while True:\n"
    " if select.select([0], [], [], 0)[0]:\n"
    "  words = os.read(0, 4096).split()\n"
    "  if not words: sys.exit()\n"
    "  share = float(words[-1])\n"
    " end = time.perf_counter() + 0.1 * share\n"
    " while time.perf_counter() < end: pass\n"
    " if share < 1: time.sleep(0.1 * (1 - share))\n"
)


@dataclass
class Counted:
    injections: int = 0
    named: int = 0
    right: int = 0
    until: list[float] = field(default_factory=list)
    """Seconds from the injection to the name, of those that were right."""
    false: int = 0
    quiet: float = 0.0


class Scene:
    def __init__(self, node: Machine, seed: int) -> None:
        self.random = random.Random(seed)
        cpu = max(os.sched_getaffinity(0))
        self.batch = {n: [self._start(node, cpu, n, _BATCH) for _ in range(2)] for n in BATCH}
        self._start(node, cpu, SERVICE, _SERVICE)
        for directory, weight in {"": WEIGHT, **{qos_directory(qos): weight for qos, weight in LEVELS.items()}}.items():
            (V1 / "cpu" / node.top / directory / "cpu.shares").write_text(str(weight))
        root = host_root(Options(cgroup_root_dir=str(node.scratch / "cgroup"), var_run_root_dir=str(node.scratch / "run")))
        self.host = HostState(root, Cgroups.detect(root), HostFiles())
        self.pods = tuple(pod_state(decoder(Pod)(msgspec.json.encode(pod(n))), self.host.cgroups) for n in (SERVICE, *BATCH))
        self.strategy = InterferenceDetection(Options(psi_collector_interval=1.0), lambda _: True)
        self.slo = effective_slo({})[0]
        self.state = self.strategy.initial()
        self.next = time.monotonic()
        self.forget()

    def _start(self, node: Machine, cpu: int, number: int, program: str) -> subprocess.Popen[bytes]:
        child = node.start([sys.executable, "-S", "-c", program], container_directory(number, 0))
        os.sched_setaffinity(child.pid, {cpu})
        return child

    def forget(self) -> None:
        """Empty series, and nobody is called out; what is usual stays known."""
        self.store = MetricStore()
        context = SensingContext(
            self.host, self.store, Metrics("n"), lambda: self.pods, lambda: self.slo, lambda: "", lambda _: True
        )  # fmt: skip
        self.collectors = (PodsCollector(context), PsiCollector(context, 1.0))
        self.calm()

    def calm(self) -> None:
        watched = {key: Watched(one.baseline) for key, one in self.state.watched.items()}
        self.state = InterferenceState(watched=watched)

    def work(self, number: int, share: float) -> None:
        for child in self.batch[number]:
            assert child.stdin is not None
            child.stdin.write(f"{share} ".encode())
            child.stdin.flush()

    def second(self) -> tuple[bool, str]:
        """One more second: whether the service was called out in it, and who is blamed since whenever."""
        self.next = max(self.next + 1.0, time.monotonic())
        time.sleep(self.next - time.monotonic())
        now, mono = time.time(), time.monotonic()
        self.host.files.begin_tick()
        for collector in self.collectors:
            collector.run(Round(now, mono))
        snapshot = Snapshot(
            time=now, node_name="n", host=self.host, node=None, slo=self.slo, pods=self.pods, topology=None, nrt=None,
            metrics=MetricsView(self.store, now), collect_interval=1.0, pods_synced=True,
        )  # fmt: skip
        assert self.slo is not None
        outcome = self.strategy.decide(snapshot, self.slo, self.state, now)
        self.state = outcome.state
        watched = self.state.watched.get((self.pods[0].uid, "cpu"), Watched())
        called = any(record.verdict == "Interfered" and record.numbers["signal"] == "cpu" for record in outcome.records)
        return called, watched.culprit if watched.since else ""

    def waits(self) -> float:
        """What the service waited in the last second, percent."""
        watched = self.state.watched.get((self.pods[0].uid, "cpu"))
        return watched.baseline.mean if watched is not None else 0.0

    def rest(self, seconds: int, counted: Counted | None, culprit: int = 0) -> None:
        """The neighbours work a little, in turns; the culprit of this block does not."""
        for _ in range(seconds):
            for number in BATCH:
                if number != culprit and self.random.random() < 0.15:
                    self.work(number, self.random.choice((0.02, 0.05, 0.1)))
            called, _ = self.second()
            if counted is not None:
                counted.quiet += 1
                counted.false += called
            if called:
                self.calm()


def inject(scene: Scene, culprit: int, counted: Counted, log: Path | None) -> None:
    uid = next(p.uid for p in scene.pods if p.name == f"app-{culprit}")
    counted.injections += 1
    known = scene.state
    began, blamed = time.monotonic(), ""
    scene.work(culprit, 1.0)
    for _ in range(LASTS):
        _, blamed = scene.second()
        if blamed:
            break
    took = time.monotonic() - began
    scene.work(culprit, 0.02)
    counted.named += bool(blamed)
    if blamed == uid:
        counted.right += 1
        counted.until.append(took)
    if log is not None:
        with log.open("a") as file:
            file.write(f"{counted.injections} {'right' if blamed == uid else 'wrong' if blamed else 'missed'} {took:.1f} s\n")
    for _ in range(2):  # the rest of the disturbance is nobody's
        scene.second()
    scene.state = known
    scene.calm()


def rows(quick: bool) -> list[Row]:
    if not real_cgroups() or not (V1 / "unified/cpu.pressure").exists():
        return []
    count, minutes = int(option("injections", "10" if quick else "200")), float(option("minutes", "90"))
    log = Path(option("log", "")) if option("log", "") else None
    counted, end = Counted(), time.monotonic() + minutes * 60
    with machine(max(BATCH) + 1) as node:
        scene = Scene(node, int(option("seed", "1")))
        scene.rest(20 if quick else LEARN, None)
        while counted.injections < count and time.monotonic() < end:
            culprit = scene.random.choice(BATCH)
            scene.forget()
            scene.rest(FILL, counted, culprit)
            for _ in range(min(BLOCK, count - counted.injections)):
                scene.rest(scene.random.randint(*QUIET), counted, culprit)
                inject(scene, culprit, counted, log)
        usual = scene.waits()
    until = sorted(counted.until) or [float("nan")]
    precision, recall = counted.right / max(counted.named, 1), counted.right / max(counted.injections, 1)
    return [
        Row("interference, real cgroups: precision", precision, "", 0.9, "higher", note=f"{counted.right} of {counted.named} named pods"),
        Row("interference, real cgroups: recall", recall, "", 0.8, "higher", note=f"{counted.right} of {counted.injections} injections"),
        Row("interference, real cgroups: injection to name, p50", statistics.median(until), "s", note="a sample every second"),
        Row("interference, real cgroups: injection to name, p95", until[int(len(until) * 0.95)], "s", 5.0),
        Row(
            "interference, real cgroups: false alarms",
            counted.false,
            "",
            note=f"in {counted.quiet / 60:.0f} minutes of quiet; the service usually waits {usual:.1f} %",
        ),
    ]


if __name__ == "__main__":
    sys.exit(script(rows))
