"""BE CPU suppress: the best-effort tier gets what the others leave below the threshold (KA-SUP-01, KA-SUP-02, KA-SUP-03).

``allowance = capacity × cpuSuppressThresholdPercent − non-BE pods − non-BE host applications − system``, carried out as a set of
CPUs (policy ``cpuset``) or as a CFS quota of the BestEffort level (policy ``cfsQuota``). When it is off, or the other policy is in
force, what was taken is given back.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar

from koord.accounting.cpuset import EMPTY, CPUSet
from koord.api.annotations import AnnotationError, parse_kubelet_cpu_manager_policy, parse_resource_status
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.writes import Batch, Merge, Write, sequence
from roles.koordlet.host.cgroup import BESTEFFORT
from roles.koordlet.host.cgroup_files import quota_of
from roles.koordlet.qos import view
from roles.koordlet.qos.allowance import Allowance, allowance
from roles.koordlet.qos.outcome import Notice, Outcome, Sample, Strategy
from roles.koordlet.qos.picker import divide, pools
from roles.koordlet.qos.starting import MIN_QUOTA_US, lifts, pending, starting, starting_quota
from roles.koordlet.states.model import Snapshot, TopologyState
from roles.koordlet.states.slo import SLO

REASON = "AdjustBEByNodeCPUUsage"
SECTION = "resourceUsedThresholdWithBE"
#: Percent of the node: with the level at ``cpu.idle`` nothing is held back from best-effort pods.
WHOLE_NODE = 100
CFS_QUOTA, CPUSET = "cfsQuota", "cpuset"
#: Percent of the node below which a difference is noise of the readings.
NOISE = 1
#: Seconds after a CPU was taken in which noise does not give it back.
REST = 10.0


#: So often CPUs are given back to a directory that does not keep them: 1, 2, 4 … seconds apart, a quarter of an hour in all.
MOST_TRIES = 10


@dataclass(frozen=True, slots=True)
class Widening:
    """How often a directory's CPUs were given back; with :data:`MOST_TRIES` it has them, or is somebody else's."""

    tries: int = 0
    next_at: float = 0.0

    @property
    def over(self) -> bool:
        return self.tries >= MOST_TRIES

    def due(self, now: float) -> bool:
        return not self.over and now >= self.next_at

    def tried(self, now: float) -> Widening:
        return Widening(self.tries + 1, now + 2**self.tries)


OVER = Widening(MOST_TRIES)


@dataclass(frozen=True, slots=True)
class SuppressState:
    """``quota_free``: the quota of the BestEffort level was seen to be unlimited since the quota policy was last used."""

    quota_free: bool = False
    widened: Mapping[str, Widening] = field(default_factory=dict)
    """Directories of the tier whose CPUs were given back since the cpuset policy was last used."""
    unbarred: CPUSet = EMPTY
    """The CPUs that nobody but the kubelet kept from the tier when that was judged."""
    grew_at: float = 0.0
    """When the tier was last given more: growth is so much an interval, however often pressure asks."""
    shrank_at: float = -REST
    """When a CPU was last taken from the tier."""
    lifted: tuple[str, ...] = ()
    """Directories of pods that start and have more weight meanwhile."""
    came: dict[str, float] = field(default_factory=dict)
    """Pods that run nothing yet, by uid, and when they were first seen."""
    told: str = ""
    """Verdict and target of the last record, so that only changes are recorded."""


def _static(nrt: TopologyState) -> bool:
    """Whether the kubelet's CPU manager hands out CPUs itself."""
    try:
        policy = parse_kubelet_cpu_manager_policy(nrt.annotations)
    except AnnotationError:
        return False
    return policy is not None and policy.policy == "static"


def cpuset_batch(levels: list[list[str]], sets: list[CPUSet], *, cached: bool) -> Batch:
    """One set a level; levels whose set is empty are left out."""
    return Batch(
        tuple(
            tuple(
                Write("cpuset.cpus", directory, str(cpus), merge=Merge.LOOSER_CPUSET, cached=cached, reason=REASON) for directory in level
            )
            for level, cpus in zip(levels, sets, strict=True)
            if cpus
        )
    )


class BECPUSuppress(Strategy[SuppressState]):
    """See the module."""

    name: ClassVar[str] = "BECPUSuppress"
    features: ClassVar[tuple[str, ...]] = ("KA-SUP-01", "KA-SUP-02", "KA-SUP-03")
    urgent: ClassVar[bool] = True

    @property
    def interval(self) -> float:
        return self.options.cpu_suppress_interval_seconds

    def initial(self) -> SuppressState:
        return SuppressState()

    def decide(self, snapshot: Snapshot, slo: SLO, state: SuppressState, now: float) -> Outcome[SuppressState]:
        state = replace(state, came=pending(snapshot, state.came, now))
        outcome = self._decide(snapshot, slo, state, now)
        squeezed = slo.threshold.enable and slo.threshold.cpu_suppress_policy == CFS_QUOTA and not self.gate("BECPUManager")
        batches, lifted = lifts(snapshot.host, starting(snapshot, state.came, now) if squeezed else (), state.lifted)
        return replace(outcome, batches=outcome.batches + batches, state=replace(outcome.state, lifted=lifted))

    def _decide(self, snapshot: Snapshot, slo: SLO, state: SuppressState, now: float) -> Outcome[SuppressState]:
        if self.gate("BECPUManager"):
            return self._released(snapshot, state, now, "the BE CPU manager places BE pods", manager=True)
        if not slo.threshold.enable:
            # an agent before this one, without our journal, may have left the tier narrow: who says that it is off wants it wide
            said = SECTION in slo.received_sections
            return self._released(snapshot, state, now, f"{SECTION}.enable is false", used=said)
        if not snapshot.pods:
            return Outcome(state)
        level = snapshot.host.cgroups.qos_dir(BESTEFFORT)
        if slo.threshold.cpu_suppress_threshold_percent >= WHOLE_NODE and view.idle(snapshot.host, level):
            # a quota would only leave CPUs idle, which the next request has to wake
            return self._released(snapshot, state, now, "their level runs at cpu.idle, and may fill the node (threshold 100)")
        if snapshot.topology is None:
            return Outcome(state)
        allow = allowance(snapshot, slo.host_applications, slo.threshold)
        if allow is None:
            return Outcome(state)
        samples = (Sample("be_suppress_ls_used", (allow.non_be_pods + allow.non_be_host_apps) / 1000),)
        if slo.threshold.cpu_suppress_policy == CFS_QUOTA:
            outcome = self._by_quota(snapshot, allow, replace(state, quota_free=False), now)
            recovered, kept = self._free_cpuset(snapshot, outcome.state, now, used=True)
            return replace(outcome, state=kept, batches=outcome.batches + recovered, samples=samples + outcome.samples)
        outcome = self._by_cpuset(snapshot, allow, state, now)
        quota, free = self._free_quota(snapshot, state)
        kept = replace(outcome.state, quota_free=free, widened={})
        return replace(outcome, state=kept, batches=outcome.batches + quota, samples=samples + outcome.samples)

    # -- quota ---------------------------------------------------------------------------------------------------------------

    def _by_quota(self, snapshot: Snapshot, allow: Allowance, state: SuppressState, now: float) -> Outcome[SuppressState]:
        host = snapshot.host
        directory = host.cgroups.qos_dir(BESTEFFORT)
        current = view.usual_quota(host, directory)
        if current is None:
            return Outcome(state)
        cores = -(-allow.capacity // 1000)
        new = starting(snapshot, state.came, now)
        least = starting_quota(allow.capacity, len(new)) if new else MIN_QUOTA_US
        quota = max(allow.milli * 100, least)
        # unless it is the least there is
        if current != -1 and abs(quota - current) < cores * 1000 * NOISE and quota != least:
            return Outcome(state, samples=_allowed(current / 100_000, CFS_QUOTA))
        if current != -1 and quota > current:
            if not self._may_grow(state, now):
                return Outcome(state)
            quota = max(min(quota, current + cores * 10_000), min(quota, least))
            state = replace(state, grew_at=now)
        # no cache: whatever else changed the quota, the allowance of this second holds
        text = str(quota_of(quota, view.cpu_period(host, directory)))
        write = Write("cpu.cfs_quota_us", directory, text, cached=False, reason=REASON)
        before = self._looser_children(snapshot, quota)
        told, records = self._record(
            snapshot, state, now, "Suppressed", f"CFS quota {quota} µs", allow, {"quota_us": quota, "old_quota_us": current}
        )
        notices: tuple[Notice, ...] = ()
        if quota == least and told != state.told:
            kept = f"; it is kept there while {len(new)} of them start" if new else ""
            notices = (
                Notice("Warning", "BECPUExhausted", f"best-effort pods get the least quota there is, {quota / 100_000:g} cores{kept}"),
            )
        return Outcome(
            replace(state, told=told),
            batches=(sequence(*before, write),),
            records=records,
            samples=_allowed(quota / 100_000, CFS_QUOTA),
            notices=notices,
        )

    def _may_grow(self, state: SuppressState, now: float) -> bool:
        return not 0 <= now - state.grew_at < 0.9 * self.interval

    def _looser_children(self, snapshot: Snapshot, quota: int) -> list[Write]:
        """cgroup v1 refuses a quota below that of a child: children with a larger one lose theirs first."""
        host = snapshot.host
        if host.cgroups.v2:
            return []
        return [
            Write("cpu.cfs_quota_us", child, "-1", cached=False, reason=REASON)
            for child in chain(*view.tier(host, "cpu")[1:])
            if (own := view.usual_quota(host, child)) is not None and own > quota
        ]

    def _free_quota(self, snapshot: Snapshot, state: SuppressState, *, used: bool = True) -> tuple[tuple[Batch, ...], bool]:
        """No limit, until it is seen to have taken effect; after that the quota is somebody else's again. While nothing is ``used`` a quota
        that others set is so from the start."""
        if state.quota_free:
            return (), True
        directory = snapshot.host.cgroups.qos_dir(BESTEFFORT)
        if not used and not snapshot.holds_ours("cpu.cfs_quota_us", directory):
            return (), False
        if view.cpu_quota(snapshot.host, directory) in (-1, None):
            return (), view.cpu_quota(snapshot.host, directory) is not None
        return (sequence(Write("cpu.cfs_quota_us", directory, "-1", cached=False, reason=REASON)),), False

    # -- cpuset --------------------------------------------------------------------------------------------------------------

    def _by_cpuset(self, snapshot: Snapshot, allow: Allowance, state: SuppressState, now: float) -> Outcome[SuppressState]:
        host, topology, nrt = snapshot.host, snapshot.topology, snapshot.nrt
        directory = host.cgroups.qos_dir(BESTEFFORT)
        old = view.cpuset(host, directory)
        if topology is None or nrt is None or old is None:
            return Outcome(state)
        held = pools(snapshot.pods, nrt, snapshot.cpus)
        levels, static = view.tier(host, "cpuset"), _static(nrt)
        if static:  # what the tier has is what its containers have
            old = min(filter(None, (view.cpuset(host, container) for container in levels[2])), key=len, default=old)
        new = divide(topology, held, allow.milli, len(old))
        if len(new) > len(old) and now - state.shrank_at < REST:
            # an allowance beside a whole number of CPUs would take one and give it back with each reading
            certain = divide(topology, held, allow.milli - allow.capacity * NOISE // 100, len(old))
            new = certain if len(certain) > len(old) else divide(topology, held, len(old) * 1000, len(old))
        if len(new) > len(old):
            if not self._may_grow(state, now):
                return Outcome(state)
            state = replace(state, grew_at=now)
        elif len(new) < len(old):
            state = replace(state, shrank_at=now)
        notices: tuple[Notice, ...] = ()
        if not new:
            new = held.minimal(topology)
            text = (
                f"no CPU is left for best-effort pods (exclusive {held.lse or 'none'}, reserved {held.reserved or 'none'}); they get {new}"
            )
            notices = (Notice("Warning", "BECPUExhausted", text),)
        full = held.full(topology) or new
        # with kubelet's static policy containers are placed one by one, and their parents must not stand in the way
        sets = [full if static and level < 2 else new for level in range(len(levels))]
        verdict = "Suppressed" if new != full else "Unrestricted"
        told, records = self._record(
            snapshot, state, now, verdict, f"CPUs {new}", allow, {"cpuset": str(new), "old_cpuset": str(old), "cpus": len(new)}
        )
        return Outcome(
            replace(state, told=told),
            batches=(cpuset_batch(levels, sets, cached=False),),
            records=records,
            samples=_allowed(len(new), CPUSET),
            notices=notices if told != state.told else (),
        )

    def _free_cpuset(
        self, snapshot: Snapshot, state: SuppressState, now: float, *, used: bool, placed: Container[str] = ()
    ) -> tuple[tuple[Batch, ...], SuppressState]:
        """The whole set of the tier for the level, its pods and their containers (but those of ``placed`` pods), until each is seen to
        have it; after that its CPUs are somebody else's again. While nothing is ``used``, only where that takes something back that
        koordlet took. CPUs that others have for themselves by now are taken from whoever has them, at any time; whoever has all that was
        left gets them back afterwards."""
        if snapshot.topology is None or snapshot.nrt is None:
            return (), state
        held = pools(snapshot.pods, snapshot.nrt, snapshot.cpus)
        full = held.full(snapshot.topology)
        levels = view.tier(snapshot.host, "cpuset", placed)
        # the kubelet itself keeps containers off the CPUs that it gave away, and their parents as they are
        pinned = snapshot.cpus.pinned_to_others("")
        barred = (held.lse | held.reserved | held.system) - pinned
        unbarred = CPUSet(snapshot.topology.ids) - barred
        have = {directory: view.cpuset(snapshot.host, directory) or EMPTY for level in levels for directory in level}
        ours = used or any(snapshot.changed("cpuset.cpus", directory) for directory in have)
        before = dict(state.widened)
        if not unbarred <= state.unbarred:
            left = state.unbarred - pinned
            before.update((directory, Widening()) for directory, cpus in have.items() if directory in before and left <= cpus)
        widened: dict[str, Widening] = {}
        wanted: set[str] = set()
        wide = {directory for directory, known in before.items() if known.over}
        for directory, cpus in have.items():
            known = before.get(directory)
            if known is None and os.path.dirname(directory) in wide:
                # made in a group that had its CPUs back: it was not koordlet that narrowed it, nor what is in it
                wide.add(directory)
                known = OVER
            known = known or Widening()
            if cpus & barred:
                wanted.add(directory)
            elif ours and full <= cpus:
                known = OVER
            elif ours and known.due(now):
                wanted.add(directory)
                known = known.tried(now)
            widened[directory] = known
        after = replace(state, widened=widened, unbarred=unbarred or state.unbarred)
        if not full or not wanted:
            return (), after
        sets = [[directory for directory in level if directory in wanted] for level in levels]
        return (cpuset_batch(sets, [full] * len(sets), cached=False),), after

    # -- off -----------------------------------------------------------------------------------------------------------------

    def _released(
        self, snapshot: Snapshot, state: SuppressState, now: float, why: str, *, used: bool = True, manager: bool = False
    ) -> Outcome[SuppressState]:
        quota, free = self._free_quota(snapshot, state, used=used)
        # containers that the BE CPU manager placed keep their CPUs
        placed = {pod.cgroup_dir for pod in snapshot.pods if _placed(pod.annotations)} if manager else ()
        cpusets, state = self._free_cpuset(snapshot, state, now, used=used, placed=placed)
        told, records = self._record(snapshot, state, now, "Unrestricted", why, None, {})
        return Outcome(
            replace(state, quota_free=free, told=told),
            batches=quota + cpusets,
            records=records,
            samples=_allowed(None, CPUSET),
        )

    # -- why -----------------------------------------------------------------------------------------------------------------

    def _record(
        self,
        snapshot: Snapshot,
        state: SuppressState,
        now: float,
        verdict: str,
        target: str,
        allow: Allowance | None,
        numbers: dict[str, float | int | str],
    ) -> tuple[str, tuple[Record, ...]]:
        """A record for the node at each change of the target, and for each BE pod when it becomes or stops being suppressed."""
        told = f"{verdict}: {target}"
        if told == state.told:
            return told, ()
        message = f"best-effort pods get {target}" if allow is not None else f"best-effort pods are not suppressed: {target}"
        common = {**(allow.numbers() if allow is not None else {}), **numbers}
        terms = allow.terms() if allow is not None else ()
        subjects = [Subject("Node", name=snapshot.node_name)]
        if state.told.partition(":")[0] != verdict:
            subjects += [Subject("Pod", p.namespace, p.name, p.uid) for p in snapshot.pods if p.best_effort and p.active]
        return told, tuple(
            Record("koordlet", subject, now, verdict, rule=self.name, message=message, numbers=common, terms=terms, features=self.features)
            for subject in subjects
        )


def _allowed(cores: float | None, by: str) -> tuple[Sample, Sample]:
    """What the tier is allowed (None: whatever it likes), and nothing of the other type, which is not in use."""
    other = CPUSET if by == CFS_QUOTA else CFS_QUOTA
    return Sample("be_suppress_cpu", cores, (by,)), Sample("be_suppress_cpu", None, (other,))


def _placed(annotations: dict[str, str]) -> bool:
    try:
        status = parse_resource_status(annotations)
    except AnnotationError:
        return True  # rather leave it where it is
    return status is not None and bool(status.numa_node_resources)
