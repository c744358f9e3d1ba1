"""Runs inside the virtual machine as its only program: the agent's own code on a real cgroup v2 tree. Prints one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from koord.api.objects import Pod
from koord.api.objects_meta import decoder
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import journal_path, restore
from roles.koordlet.actuation.writes import Batch, Hold, Merge, Write, sequence
from roles.koordlet.host import parse, proc, psi
from roles.koordlet.host.cgroup import BESTEFFORT, Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.options import Options
from roles.koordlet.qos import tuning_memory
from roles.koordlet.qos.offload import MemoryOffloading
from roles.koordlet.sensing.pressure import PressureWatch
from roles.koordlet.states.model import HostState, PodState, Snapshot
from roles.koordlet.states.pods import pod_state
from roles.koordlet.states.slo import SLO, effective_slo
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView

ROOT = Path("/sys/fs/cgroup")
KUBEPODS = "kubepods.slice"
TIER = f"{KUBEPODS}/kubepods-besteffort.slice"
POD = f"{TIER}/kubepods-besteffort-podu1.slice"
CONTAINER = f"{POD}/cri-containerd-c1.scope"
CONTROLLERS = "+cpu +cpuset +memory +io +pids"
MIB = 1 << 20
OFFLOADED = {"extensions": {"memoryOffloading": {"enable": True, "stepPercent": 5}}}


def tree() -> None:
    (ROOT / "cgroup.subtree_control").write_text(CONTROLLERS)
    for directory in (KUBEPODS, TIER, POD, CONTAINER):
        (ROOT / directory).mkdir()
        if directory != CONTAINER:
            (ROOT / directory / "cgroup.subtree_control").write_text(CONTROLLERS)


def read(directory: str, name: str) -> str:
    return (ROOT / directory / name).read_text().strip()


class Guest:
    def __init__(self) -> None:
        self.root = HostRoot.at("/")
        self.host = HostState(self.root, Cgroups.detect(self.root), HostFiles())
        os.makedirs("/var/run/koordlet", exist_ok=True)
        self.journal = Journal(journal_path(self.root))
        self.journal.open()
        self.executor = Executor(self.host, self.journal)
        self.burner: subprocess.Popen[bytes] | None = None

    def apply(self, *batches: Batch) -> dict[str, Any]:
        applied = self.executor.apply(batches, rule="test", now=time.time())
        return {"written": len(applied.written), "skipped": applied.skipped, "failed": [str(e) for e in applied.failed]}

    def level(self, resource: str, *values: tuple[str, str], merge: Merge = Merge.NONE) -> dict[str, Any]:
        """One value a directory, each a level."""
        return self.apply(Batch(tuple((Write(resource, directory, value, merge=merge, cached=False),) for directory, value in values)))

    # -- checks: name -> what was found; the host compares -------------------------------------------------------------------

    def version(self) -> Any:
        cgroups = self.host.cgroups
        return [int(cgroups.version), str(cgroups.driver), cgroups.qos_dir(BESTEFFORT)]

    def quota(self) -> Any:
        quota = Merge.LARGER_QUOTA
        grown = self.level("cpu.cfs_quota_us", (POD, "80000"), (CONTAINER, "50000"), merge=quota)
        shrunk = self.level("cpu.cfs_quota_us", (POD, "20000"), (CONTAINER, "20000"), merge=quota)
        again = self.level("cpu.cfs_quota_us", (POD, "20000"), (CONTAINER, "20000"), merge=quota)
        return [grown, shrunk, again, read(POD, "cpu.max"), read(CONTAINER, "cpu.max")]

    def quota_works(self) -> Any:
        """CPU that a busy process of the container gets in two seconds, cores."""
        self.burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        (ROOT / CONTAINER / "cgroup.procs").write_text(str(self.burner.pid))
        path = f"{ROOT}/{CONTAINER}/cpu.stat"
        first, began = parse.cpu_usage_ns(path, Path(path).read_bytes(), v2=True), time.monotonic()
        time.sleep(2.0)
        second, took = parse.cpu_usage_ns(path, Path(path).read_bytes(), v2=True), time.monotonic() - began
        periods, throttled = parse.throttled_periods(path, Path(path).read_bytes(), v2=True)
        return {"cores": (second - first) / 1e9 / took, "periods": periods, "throttled": throttled}

    def burst(self) -> Any:
        """A burst as large as the quota is taken, a larger one refused by the kernel and told."""
        fits = self.apply(sequence(Write("cpu.cfs_burst_us", CONTAINER, "20000", cached=False)))
        above = self.apply(sequence(Write("cpu.cfs_burst_us", CONTAINER, "90000", cached=False)))
        fallback = self.apply(sequence(Write("cpu.cfs_burst_us", CONTAINER, "90000", cached=False, fallback="10000")))
        return [fits["failed"], above["failed"], fallback["failed"], read(CONTAINER, "cpu.max.burst")]

    def weight(self) -> Any:
        first = self.apply(sequence(Write("cpu.shares", POD, "512", cached=False)))
        again = self.apply(sequence(Write("cpu.shares", POD, "512", cached=False)))
        return [first["written"], again["skipped"], read(POD, "cpu.weight")]

    def idle(self) -> Any:
        (ROOT / TIER / "cpu.weight").write_text("1")
        done = self.apply(sequence(Write("cpu.idle", TIER, "1", cached=False)))
        found = read(TIER, "cpu.idle")
        self.apply(sequence(Write("cpu.idle", TIER, "0", cached=False)))
        return [done["failed"], found, read(TIER, "cpu.weight")]

    def cpusets(self) -> Any:
        looser = Merge.LOOSER_CPUSET
        narrow = self.level("cpuset.cpus", (TIER, "0"), (POD, "0"), (CONTAINER, "0"), merge=looser)
        moved = self.level("cpuset.cpus", (TIER, "1"), (POD, "1"), (CONTAINER, "1"), merge=looser)
        wide = self.level("cpuset.cpus", (TIER, "0-1"), (POD, "0-1"), (CONTAINER, "0-1"), merge=looser)
        return [narrow["failed"], moved["failed"], wide["failed"], read(CONTAINER, "cpuset.cpus.effective")]

    def memory(self) -> Any:
        out = []
        for resource, outer, inner in (
            ("memory.min", 64 * MIB, 32 * MIB),
            ("memory.low", 96 * MIB, 48 * MIB),
            ("memory.high", 256 * MIB, 128 * MIB),
            ("memory.limit_in_bytes", 300 * MIB, 200 * MIB),
        ):
            done = self.level(resource, (TIER, str(outer)), (POD, str(outer)), (CONTAINER, str(inner)), merge=Merge.LARGER)
            out.append([resource, done["failed"]])
        self.level("memory.high", (CONTAINER, str((1 << 63) - 1)))
        return [out, {name: read(CONTAINER, name) for name in ("memory.min", "memory.low", "memory.high", "memory.max")}]

    def disks(self) -> Any:
        numbers = [p.read_text().strip() for p in Path("/sys/block").glob("nullb*/dev")]
        if not numbers:
            return None
        disk = numbers[0]
        line = f"{disk} riops=max rbps=1048576 wiops=100 wbps=max"
        done = self.apply(sequence(Write("io.max", POD, line, cached=False, device=disk)))
        again = self.apply(sequence(Write("io.max", POD, line, cached=False, device=disk)))
        return [done["failed"], again["skipped"], read(POD, "io.max").replace(disk, "DISK")]

    def pressure(self) -> Any:
        """Whether the kernel takes triggers, what it says of a machine at rest, and of a load beside best-effort work."""
        level = f"{KUBEPODS}/kubepods-burstable.slice"
        (ROOT / level).mkdir()
        woken: list[str] = []
        burners: list[subprocess.Popen[bytes]] = []
        watch = PressureWatch(self.host, lambda: (), os.cpu_count() or 1, woken.append)

        async def watched() -> bool:
            loop = asyncio.get_running_loop()
            by_kernel = watch.start(loop) and bool(watch._triggers)
            for _ in range(2):
                await asyncio.sleep(0.5)
                self.host.files.begin_tick()
                watch.ticked(loop.time())
            for directory in (CONTAINER, CONTAINER, level, level):
                burners.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
                (ROOT / directory / "cgroup.procs").write_text(str(burners[-1].pid))
            for _ in range(200):
                await asyncio.sleep(0.1)
                if woken:
                    break
            return by_kernel

        try:
            by_kernel = asyncio.run(watched())
        finally:
            watch.close()
            for burner in burners:
                burner.kill()
                burner.wait()
            (ROOT / level).rmdir()
        return [by_kernel, woken[:1]]

    def held(self) -> Any:
        """Files that a rule has for itself and lets go: what tuning and the actions against interference hold."""
        wanted = (
            ("cpu.cfs_quota_us", CONTAINER, "30000"),
            ("cpu.cfs_burst_us", CONTAINER, "10000"),
            ("cpu.shares", POD, "2"),
            ("memory.low", CONTAINER, str(16 * MIB)),
            ("memory.min", CONTAINER, str(8 * MIB)),
        )
        files = ("cpu.max", "cpu.max.burst", "memory.low", "memory.min")

        def found() -> dict[str, str]:
            return {**{name: read(CONTAINER, name) for name in files}, "cpu.weight": read(POD, "cpu.weight")}

        before = found()
        applied = self.executor.apply([sequence(*(Write(r, d, v, hold=Hold.TAKE) for r, d, v in wanted))], rule="mine", now=time.time())
        held = found()
        waiting = self.apply(sequence(Write("cpu.shares", POD, "1024", cached=False)))
        released = self.executor.apply(
            [sequence(*(Write(r, d, "", hold=Hold.RELEASE) for r, d, _ in wanted))], rule="mine", now=time.time()
        )
        after = found()
        self.apply(sequence(Write("cpu.shares", POD, "512", cached=False)))
        failed = [str(e) for e in (*applied.failed, *released.failed)]
        weight, same = after.pop("cpu.weight"), {name: value for name, value in before.items() if name != "cpu.weight"} == after
        return {"failed": failed, "held": held, "waited": waiting["written"] == 0, "weight": weight, "same": same}

    def parsers(self) -> Any:
        """What the kernel really writes can be read."""
        base = ROOT / CONTAINER
        stat = parse.memory_stat("memory.stat", (base / "memory.stat").read_bytes(), v2=True)
        numa = parse.numa_memory("numa", (base / "memory.numa_stat").read_bytes(), v2=True, page_size=4096)
        pressure = {n: psi.parse_psi(n, (base / f"{n}.pressure").read_bytes()).full_supported for n in ("cpu", "memory", "io")}
        ids = parse.ids("procs", (base / "cgroup.procs").read_bytes())
        return {
            "memory": stat.with_page_cache > 0,
            "numa": sorted(numa),
            "pressure": pressure,
            "burner": self.burner is not None and self.burner.pid in ids,
            "limit": parse.memory_limit("max", (base / "memory.max").read_bytes()),
            "refaults": tuning_memory.refaults(parse.key_values((base / "memory.stat").read_bytes()), v2=True) >= 0,
            "kills": tuning_memory.kills((base / "memory.events").read_bytes()),
            "ticks": proc.cpu_ticks("stat", Path("/proc/stat").read_bytes()) > 0,
        }

    def vanished(self) -> Any:
        """A container that goes away between decision and write is nothing to do."""
        (ROOT / POD / "cri-containerd-gone.scope").mkdir()
        os.rmdir(ROOT / POD / "cri-containerd-gone.scope")
        return self.apply(sequence(Write("cpu.shares", f"{POD}/cri-containerd-gone.scope", "100", cached=False)))

    def offload(self) -> Any:
        """A pod that has read 160 MiB once and uses 16: bytes before and after, and how long it waited, in thousandths."""
        disks = sorted(Path("/dev").glob("nullb*"))
        if not disks:
            return None
        wire = {
            "metadata": {"name": "idle", "namespace": "d", "uid": "u2"},
            "spec": {"containers": []},
            "status": {"phase": "Running", "qosClass": "BestEffort"},
        }
        pod = pod_state(decoder(Pod)(json.dumps(wire).encode()), self.host.cgroups)
        (ROOT / pod.cgroup_dir).mkdir()
        program = (
            "import sys, time; sys.stdin.readline()\n"
            f"disk = open({str(disks[0])!r}, 'rb', buffering=0)\n"
            "for _ in range(160): disk.read(1 << 20)\n"
            "hot = bytearray(16 << 20); print('read', flush=True)\n"
            "while True:\n"
            "    for at in range(0, len(hot), 4096): hot[at] = 1\n"
            "    time.sleep(0.1)\n"
        )
        idler = subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            (ROOT / pod.cgroup_dir / "cgroup.procs").write_text(str(idler.pid))
            assert idler.stdin is not None
            assert idler.stdout is not None
            idler.stdin.write(b"\n")
            idler.stdin.flush()
            idler.stdout.readline()
            strategy, slo = MemoryOffloading(Options(), lambda _: True), effective_slo(OFFLOADED)[0]
            state, failed, began = strategy.initial(), [], time.monotonic()
            before, stalled = int(read(pod.cgroup_dir, "memory.current")), self._stalled(pod.cgroup_dir)
            for _ in range(45):
                self.host.files.begin_tick()
                now = time.monotonic()
                outcome = strategy.decide(self._snapshot(pod, slo, now), slo, state, now)
                state = outcome.state
                failed += [str(e) for e in self.executor.apply(outcome.batches, rule="offload", now=now).failed]
                time.sleep(0.5)
            waited = (self._stalled(pod.cgroup_dir) - stalled) / (time.monotonic() - began) / 1e3
            return {"before": before, "after": int(read(pod.cgroup_dir, "memory.current")), "per_mille": waited, "failed": failed}
        finally:
            idler.kill()
            idler.wait()

    def _stalled(self, directory: str) -> int:
        return psi.parse_psi("memory", (ROOT / directory / "memory.pressure").read_bytes()).some.total

    def _snapshot(self, pod: PodState, slo: SLO, now: float) -> Snapshot:
        return Snapshot(
            time=now, node_name="n", host=self.host, node=None, slo=slo, pods=(pod,), topology=None, nrt=None,
            metrics=MetricsView(MetricStore(), now), collect_interval=1.0, pods_synced=True,
        )  # fmt: skip

    def restored(self) -> Any:
        if self.burner is not None:
            self.burner.kill()
            self.burner.wait()
        self.journal.close()
        result = restore(self.root)
        files = ("cpu.max", "cpu.weight", "cpu.max.burst", "cpuset.cpus", "memory.min", "memory.low", "memory.high", "memory.max")
        return [[str(e) for e in result.failed], {name: read(CONTAINER, name) for name in files}]


def checks(guest: Guest) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in (
        "version", "quota", "quota_works", "burst", "weight", "idle", "cpusets", "memory", "held", "disks", "pressure",
        "parsers", "vanished", "offload", "restored",
    ):  # fmt: skip
        yield name, getattr(guest, name)


def main() -> None:
    found: dict[str, Any] = {}
    try:
        tree()
        guest = Guest()
        for name, check in checks(guest):
            try:
                found[name] = check()
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    except Exception as error:
        found["setup"] = f"{type(error).__name__}: {error}"
    print(f"RESULT {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
