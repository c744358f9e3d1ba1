"""Resource tuning: burst, quota, memory protection and OOM scores of services follow what their containers really suffer (BEY-TUNE-01).

Unlike CPU burst, which gives every pod of a class the same, this looks at each container: only one that is throttled gets more, only
one that is killed or reads its pages back near its limit is protected, and what was given is taken back step by step when it has been
calm. Files that others keep in order too (CPU burst, memory QoS) are held while they are tuned, and given back to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from koord.api.annotations import AnnotationError, parse_cpu_burst, parse_memory_qos
from koord.api.names import ANNOTATION_OOM_SCORE_ADJ, ANNOTATION_OOM_SCORE_ADJ_SPEC
from koord.api.qos import QoSClass
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.writes import About, Write, sequence
from roles.koordlet.host.cgroup_files import MAX_INT64, milli_to_quota
from roles.koordlet.qos import view
from roles.koordlet.qos.burst_limits import NodeState, node_state
from roles.koordlet.qos.memoryqos_config import PAGE, container_request
from roles.koordlet.qos.outcome import Outcome, Sample, Strategy
from roles.koordlet.qos.picker import allocated_cpus
from roles.koordlet.qos.restarts import limit_milli
from roles.koordlet.qos.tuning_files import BURST, LOW, MIN, QUOTA, Deltas, Files, Key
from roles.koordlet.qos.tuning_memory import Counters, look, score_writes, scores
from roles.koordlet.qos.tuning_steps import CPUStep, MemorySigns, MemoryStep, next_cpu, next_memory, protection, score
from roles.koordlet.states.model import ContainerState, PodState, Snapshot
from roles.koordlet.states.nodecpus import NodeCPUs
from roles.koordlet.states.slo import SLO, TuningStrategy
from roles.koordlet.store import kinds

_SENSITIVE = frozenset({QoSClass.LSE, QoSClass.LSR, QoSClass.LS})
NO_CPU, NO_MEMORY, NOT_COUNTED = CPUStep(), MemoryStep(), Counters()


@dataclass(frozen=True, slots=True)
class Tuned:
    """One container: its steps, what it counts, and its CPU limit (milli-cores) and process score as they are without tuning."""

    cpu: CPUStep = NO_CPU
    memory: MemoryStep = NO_MEMORY
    counters: Counters = NOT_COUNTED
    limit: int = 0
    base_score: int | None = None
    score: int = 0


@dataclass(frozen=True, slots=True)
class TuningState:
    """By container id; ``files`` is what is held with its base values."""

    containers: dict[str, Tuned] = field(default_factory=dict)
    files: Files = field(default_factory=Files)


class ResourceTuning(Strategy[TuningState]):
    """See the module."""

    name: ClassVar[str] = "ResourceTuning"
    features: ClassVar[tuple[str, ...]] = ("BEY-TUNE-01",)

    @property
    def interval(self) -> float:
        return self.options.resource_tuning_interval_seconds

    def initial(self) -> TuningState:
        return TuningState()

    def decide(self, snapshot: Snapshot, slo: SLO, state: TuningState, now: float) -> Outcome[TuningState]:
        round_ = _Round(self, snapshot, slo, state, now)
        for pod in snapshot.pods:
            tuned = pod.active and pod.qos in _SENSITIVE and not pod.best_effort
            for container in pod.containers:
                if container.cgroup_dir and container.running:
                    (round_.look if tuned else round_.leave)(pod, container)
        # while another strategy holds a file, it does not say what it is without tuning
        free = {key: amount for key, amount in round_.deltas.items() if snapshot.holder(*key) in ("", self.name)}
        files, batch = state.files.changed(snapshot.host, free, round_.rebased, round_.abouts, self.name)
        batches = (batch, sequence(*round_.scores)) if round_.scores else (batch,)
        return Outcome(
            TuningState(round_.containers, files),
            batches=tuple(b for b in batches if b),
            records=tuple(round_.records),
            samples=tuple(round_.samples(files)),
            cleared=("tuning",),
        )

    def leaves_cpu_to_others(self, slo: SLO, pod: PodState, cpus: NodeCPUs) -> bool:
        """Whether somebody else decides on the pod's quota: its own annotation, CPU burst, the CPU set allocator."""
        if pod.qos is not QoSClass.LS or allocated_cpus(pod, cpus):
            return True
        try:
            own = parse_cpu_burst(pod.annotations)
        except AnnotationError:
            own = None
        return bool(own and "policy" in own) or (self.gate("CPUBurst") and slo.cpu_burst.policy != "none")

    def leaves_memory_to_others(self, pod: PodState) -> bool:
        """Whether the pod wants no memory protection."""
        try:
            own = parse_memory_qos(pod.annotations)
        except AnnotationError:
            return False
        return own is not None and own.get("policy") == "none"

    def leaves_score_to_others(self, pod: PodState) -> bool:
        """Whether the hook OOMScoreAdj keeps the scores of the pod's processes."""
        return self.gate("OOMScoreAdj") and (
            ANNOTATION_OOM_SCORE_ADJ in pod.annotations or ANNOTATION_OOM_SCORE_ADJ_SPEC in pod.annotations
        )


class _Round:
    """What one look over all containers decides."""

    def __init__(self, strategy: ResourceTuning, snapshot: Snapshot, slo: SLO, state: TuningState, now: float) -> None:
        self.strategy, self.snapshot, self.slo, self.state, self.now = strategy, snapshot, slo, state, now
        self.config: TuningStrategy = slo.tuning
        self.containers: dict[str, Tuned] = {}
        self.deltas: Deltas = {}
        self.rebased: dict[Key, int] = {}
        self.abouts: dict[str, About] = {}
        self.scores: list[Write] = []
        self.records: list[Record] = []
        self._shown: list[tuple[PodState, ContainerState, Tuned]] = []
        self._node: NodeState | None = None
        self.cpus = snapshot.cpus

    def look(self, pod: PodState, container: ContainerState) -> None:
        before = self.state.containers.get(container.id, Tuned())
        about = About.of(pod, container.name)
        after = self._cpu(pod, container, before)
        after = self._memory(pod, container, after, about)
        if after != Tuned():
            self.containers[container.id] = after
        if after.cpu.active or after.memory.level or before.cpu.active or before.memory.level:
            self.abouts[container.cgroup_dir] = about
            self.abouts[pod.cgroup_dir] = replace(about, container="")
            self._shown.append((pod, container, after))

    def leave(self, pod: PodState, container: ContainerState) -> None:
        """Scores of a container that is tuned no more. Its files are given back because nobody adds to them."""
        before = self.state.containers.get(container.id)
        if before is not None:
            self._give_back(container, before, About.of(pod, container.name))

    # -- CPU -----------------------------------------------------------------------------------------------------------------

    def _cpu(self, pod: PodState, container: ContainerState, before: Tuned) -> Tuned:
        limit = limit_milli(container)
        if not self.config.cpu.enable or limit <= 0 or self.strategy.leaves_cpu_to_others(self.slo, pod, self.cpus):
            return replace(before, cpu=NO_CPU, limit=0)
        host, directory = self.snapshot.host, container.cgroup_dir
        # tuning starts from what the file says: normalization may have scaled it
        base = self.state.files.base(host, QUOTA, directory)
        if base is None or base <= 0:
            return replace(before, cpu=NO_CPU, limit=0)
        if before.limit not in (0, limit):
            # resized in place: the quota without tuning is another one
            period = view.cpu_period(host, directory)
            base = max(base + milli_to_quota(limit, period) - milli_to_quota(before.limit, period), 1)
            self.rebased[QUOTA, directory] = base
            self._rebase_pod(pod, limit - before.limit)
        throttled = self.snapshot.metrics.avg(
            kinds.CONTAINER_CPU_THROTTLED, 3 * max(self.strategy.interval, 1.0), container_id=container.id
        )
        step = next_cpu(before.cpu, throttled, self.node, self.config.cpu, can_burst=host.cgroups.supported(BURST, directory), now=self.now)
        self._add(pod, BURST, directory, base * step.burst // 100)
        self._add(pod, QUOTA, directory, base * (step.quota - 100) // 100)
        if (step.burst, step.quota) != (before.cpu.burst, before.cpu.quota):
            grows = (step.burst, step.quota) > (before.cpu.burst, before.cpu.quota)
            text = f"burst {before.cpu.burst} → {step.burst} %, quota {before.cpu.quota} → {step.quota} % of {base} µs"
            numbers = {"base_us": base, "burst_percent": step.burst, "quota_percent": step.quota, "node_state": str(self.node)}
            self._record(pod, container, "cpu", grows, text, numbers | {"throttled_ratio": round(throttled or 0.0, 4)})
        return replace(before, cpu=step, limit=limit)

    def _rebase_pod(self, pod: PodState, grown_milli: int) -> None:
        key = (QUOTA, pod.cgroup_dir)
        base = self.rebased.get(key, self.state.files.bases.get(key))
        if base is not None and base > 0:
            period = view.cpu_period(self.snapshot.host, pod.cgroup_dir)
            grown = milli_to_quota(abs(grown_milli), period)
            self.rebased[key] = max(base + (grown if grown_milli > 0 else -grown), 1)

    @property
    def node(self) -> NodeState:
        """How busy the CPUs are that services share; looked up once."""
        if self._node is None:
            threshold = self.config.cpu.share_pool_threshold_percent
            config = type(self.slo.cpu_burst)(share_pool_threshold_percent=threshold)
            self._node = node_state(self.snapshot, config, self.strategy.interval)
        return self._node

    # -- memory --------------------------------------------------------------------------------------------------------------

    def _memory(self, pod: PodState, container: ContainerState, before: Tuned, about: About) -> Tuned:
        config = self.config.memory
        seen = None
        if config.enable and not self.strategy.leaves_memory_to_others(pod):
            seen = look(self.snapshot, pod, container, before.counters, self.now)
        if seen is None:
            after = replace(before, memory=NO_MEMORY, counters=NOT_COUNTED)
            return self._score(pod, container, before, after, about)
        signs, counters = seen
        step = next_memory(before.memory, signs, config, self.now)
        least, low = protection(step.level, signs, container_request(pod, container), PAGE)
        self._add(pod, MIN, container.cgroup_dir, least)
        self._add(pod, LOW, container.cgroup_dir, low)
        after = self._score(pod, container, before, replace(before, memory=step, counters=counters), about)
        if step.level != before.memory.level:
            text = f"memory protection {before.memory.level} → {step.level}: min {least}, low {low} bytes"
            self._record(pod, container, "memory", step.level > before.memory.level, text, _numbers(signs, step.level, least, low, after))
        return after

    def _score(self, pod: PodState, container: ContainerState, before: Tuned, after: Tuned, about: About) -> Tuned:
        """The scores of the container's processes; looked at only while there is something to set or to give back."""
        level = after.memory.level
        if level == 0 and before.base_score is None:
            return after
        if self.strategy.leaves_score_to_others(pod):
            self._give_back(container, before, about)
            return replace(after, base_score=None, score=0)
        found = scores(self.snapshot, container)
        base = before.base_score if before.base_score is not None else found[min(found)] if found else None
        if base is None:
            return after
        target = score(base, level, self.config.memory)
        last = before.score if before.base_score is not None else base
        if target != base or last != base:
            self.scores += score_writes(self.snapshot, found, base, last, target, about)
        return replace(after, base_score=base, score=target) if level else replace(after, base_score=None, score=0)

    def _give_back(self, container: ContainerState, before: Tuned, about: About) -> None:
        base = before.base_score
        if base is not None:
            self.scores += score_writes(self.snapshot, scores(self.snapshot, container), base, before.score, base, about)

    # -- records -------------------------------------------------------------------------------------------------------------

    def _add(self, pod: PodState, resource: str, directory: str, amount: int) -> None:
        """More for a container, and for what it lies in."""
        cgroups = self.snapshot.host.cgroups
        if amount <= 0 or not cgroups.supported(resource, directory):
            return
        above: Iterable[str] = (pod.cgroup_dir,)
        if resource in (MIN, LOW):
            above = dict.fromkeys((pod.cgroup_dir, cgroups.qos_dir(pod.kube_qos), cgroups.kubepods))
        for where in (directory, *above):
            key = (resource, where)
            self.deltas[key] = min(self.deltas.get(key, 0) + amount, MAX_INT64)

    def _record(self, pod: PodState, container: ContainerState, what: str, grows: bool, text: str, numbers: dict[str, Any]) -> None:
        subject = Subject("Pod", pod.namespace, pod.name, pod.uid)
        verdict = "Tuned" if grows else "Untuned"
        numbers = {"container": container.name, "what": what, **numbers}
        features = self.strategy.features
        message = f"container {container.name}: {text}"
        self.records.append(Record("koordlet", subject, self.now, verdict, self.strategy.name, message, numbers=numbers, features=features))

    def samples(self, files: Files) -> Iterable[Sample]:
        """What each tuned container has now."""
        for pod, container, tuned in self._shown:
            labels = (pod.namespace, pod.name, container.id, container.name)
            for resource, kind in ((QUOTA, "cfs_quota_us"), (BURST, "cfs_burst_us"), (MIN, "memory_min_bytes"), (LOW, "memory_low_bytes")):
                value = files.value(resource, container.cgroup_dir)
                if value is not None:
                    yield Sample("tuning", value, (*labels, kind))
            if tuned.base_score is not None:
                yield Sample("tuning", tuned.score, (*labels, "oom_score_adj"))


def _numbers(signs: MemorySigns, level: int, least: int, low: int, after: Tuned) -> dict[str, Any]:
    numbers: dict[str, Any] = {"level": level, "usage": signs.usage, "limit": signs.limit, "kills": signs.kills, "min": least, "low": low}
    if signs.stall is not None:
        numbers["stall_percent"] = round(signs.stall, 2)
    if signs.refaults is not None:
        numbers["refaults_per_second"] = round(signs.refaults, 1)
    if after.base_score is not None:
        numbers |= {"oom_score_adj": after.score, "base_oom_score_adj": after.base_score}
    return numbers
