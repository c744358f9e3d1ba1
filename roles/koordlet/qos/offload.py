"""Memory offloading: idle memory of pods is asked back in small steps (``memory.reclaim``), steered by their own pressure (BEY-OFF-01).

Off by default. Never of LSE and LSR pods; of LS pods only where the NodeSLO says so. What is used again comes back by itself, from disk or
swap, so nothing has to be put back when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from koord.api.qos import QoSClass
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.writes import About, Kind, Write, sequence
from roles.koordlet.host import parse
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.psi import parse_psi
from roles.koordlet.qos.offload_steps import Counted, Offload, step
from roles.koordlet.qos.outcome import Outcome, Sample, Strategy
from roles.koordlet.qos.tuning_memory import refaults
from roles.koordlet.states.model import HostState, PodState, Snapshot
from roles.koordlet.states.slo import SLO, OffloadStrategy

NAME = "MemoryOffloading"
RECLAIM = "memory.reclaim"
#: Bytes that are asked back in one look, of all pods together: the kernel does it while koordlet waits.
AT_ONCE = 32 << 20


@dataclass(frozen=True, slots=True)
class OffloadState:
    """By pod uid. ``turn``: the pod that was served last, so that all get their turn."""

    pods: dict[str, Offload] = field(default_factory=dict)
    turn: str = ""
    backed_off: frozenset[str] = frozenset()


class MemoryOffloading(Strategy[OffloadState]):
    """See the module."""

    name: ClassVar[str] = NAME
    features: ClassVar[tuple[str, ...]] = ("BEY-OFF-01",)

    @property
    def interval(self) -> float:
        return float(self.options.memory_offload_interval_seconds)

    def initial(self) -> OffloadState:
        return OffloadState()

    def decide(self, snapshot: Snapshot, slo: SLO, state: OffloadState, now: float) -> Outcome[OffloadState]:
        config, host = slo.offload, snapshot.host
        if not config.enable or not host.cgroups.v2:
            return Outcome(OffloadState(), cleared=("memory_offloaded",))
        pods = {p.uid: p for p in snapshot.pods if p.phase == "Running" and p.cgroup_dir and eligible(p, config)}
        seen = {uid: step(state.pods.get(uid, Offload()), counted, config) for uid, p in pods.items() if (counted := look(host, p, now))}
        writes, left, turn = [], AT_ONCE, state.turn
        for uid in _in_turn(list(seen), state.turn):
            one, pod = seen[uid], pods[uid]
            if not one.asked:
                continue
            if one.asked > left:
                seen[uid] = replace(one, asked=0, why="other pods' turn")
                continue
            left, turn = left - one.asked, uid
            about = About.of(pod)
            writes.append(
                Write(RECLAIM, pod.cgroup_dir, str(one.asked), kind=Kind.TRIGGER, cached=False, about=about, reason="MemoryOffloading")
            )
        backed = frozenset(uid for uid, one in seen.items() if now < one.until)
        return Outcome(
            OffloadState(seen, turn, backed),
            batches=(sequence(*writes),) if writes else (),
            records=tuple(self._record(snapshot, pods[uid], seen[uid], "BackedOff") for uid in sorted(backed - state.backed_off)),
            samples=tuple(
                Sample("memory_offloaded", max(one.peak - one.last.usage, 0) if one.last else 0, (pods[uid].namespace, pods[uid].name))
                for uid, one in seen.items()
            ),
            cleared=("memory_offloaded",),
        )

    def _record(self, snapshot: Snapshot, pod: PodState, one: Offload, verdict: str) -> Record:
        numbers: dict[str, float | int | str] = {
            "usage_bytes": one.last.usage if one.last else 0,
            "peak_bytes": one.peak,
            "stall_percent": round(one.stalled, 3),
            "refaults_per_second": round(one.read_back, 1),
            "pause_seconds": one.pause,
        }
        text = f"no memory is asked back for {one.pause:.0f} s: {one.why}"
        subject = Subject("Pod", pod.namespace, pod.name, pod.uid)
        return Record("koordlet", subject, snapshot.time, verdict, NAME, text, numbers=numbers, features=self.features)


def eligible(pod: PodState, config: OffloadStrategy) -> bool:
    """Best-effort pods, and latency-sensitive ones (LS, and pods without a class on the burstable level) where that is asked for."""
    if pod.best_effort:
        return True
    return config.latency_sensitive and pod.qos is QoSClass.LS


def look(host: HostState, pod: PodState, now: float) -> Counted | None:
    """What a pod has and how it fares; None where the kernel does not tell all of it."""
    cgroups, files, directory = host.cgroups, host.files, pod.cgroup_dir
    try:
        usage = parse.memory_limit("usage", files.read(cgroups.file("memory.usage_in_bytes", directory)))
        path = cgroups.pressure_file("memory.pressure", directory)
        stall = parse_psi(path, files.read(path)).some.total
        again = refaults(parse.key_values(files.read(cgroups.file("memory.stat", directory))), v2=True)
    except (HostError, ValueError):
        return None
    return Counted(usage, stall, again, now) if usage is not None and usage >= 0 and again >= 0 else None


def _in_turn(uids: list[str], last: str) -> list[str]:
    ordered = sorted(uids)
    after = [uid for uid in ordered if uid > last]
    return after + ordered[: len(ordered) - len(after)]
