"""Defects of koordlet: what it does to the files of its host."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

from roles.sandbox.world.faults import Fault
from roles.sandbox.world.host.layout import BURST, Drawn
from roles.sandbox.world.mutants.planting import Mutants, nothing, replace, wrap
from roles.sandbox.world.spec import Workload

MUTANTS = Mutants(minutes=1.0, nodes=1, pods=8, schedulers=1, managers=1, deschedulers=0, hostile=0)
BATCH = Workload("batch", 2, 1000, 256, qos="BE", priority="koord-batch", usage=90, batch=True, prefers="sim-000", at=2.0)
BUSY = (Workload("web", 3, 1000, 256, usage=80, curve="bursty"), BATCH)
JOURNAL = "roles.koordlet.actuation.journal:Journal"
RESTORE = "roles.koordlet.actuation.restore"
SUPPRESS = "roles.koordlet.qos.suppress"

# -- the journal -------------------------------------------------------------------------------------------------------------


@MUTANTS.add(
    "the-journal-comes-after-the-write",
    "what a file held is put on record when it has been written already",
    rule="FilesArePutBack",
    kinds=("crash",),
    faults=18,
)
def _late_journal() -> None:
    late: dict[int, list[tuple[Any, dict[str, Any]]]] = {}

    def remember(old: Any) -> Any:
        def later(self: Any, entries: Any, **about: Any) -> bool:
            late.setdefault(id(self), []).append(([changed(entry, ours=None) for entry in entries], about))
            return True

        def settle(self: Any, *, at_last: bool = False) -> None:
            for entries, about in late.pop(id(self), []):
                old(self, entries, **about)

        replace(f"{JOURNAL}.settle", settle)
        return later

    wrap(f"{JOURNAL}.remember", remember)


@MUTANTS.add(
    "every-life-begins-anew",
    "a koordlet that starts again takes what it wrote in its life before for the machine's own",
    kinds=("crash", "kill"),
    faults=12,
)
def _no_memory() -> None:
    def load(self: Any) -> None:
        self._unread = False

    replace(f"{JOURNAL}.load", load)


MUTANTS.wrap(
    "what-could-not-be-said-is-forgotten",
    "what was written while the disk was full is not put on record afterwards",
    f"{JOURNAL}.settle",
    nothing(),
    kinds=("disk-full",),
    faults=12,
)
MUTANTS.wrap(
    "writes-are-not-told-as-ours",
    "the journal does not learn what koordlet writes",
    f"{JOURNAL}._ours",
    nothing(),
    kinds=("meddle",),
    faults=12,
)


@MUTANTS.add(
    "a-full-disk-ends-the-agent",
    "koordlet does not start while it cannot note its number in the lock",
    crash=True,
    kinds=("disk-full", "kill"),
    faults=18,
)
def _full() -> None:
    import os

    from koord import seams

    def make(old: Any) -> Any:
        def acquire(self: Any, patience: float = 0.5) -> None:
            old(self, patience)
            seams.files().write(self._fd, f"{os.getpid()}\n".encode())

        return acquire

    wrap("roles.koordlet.lock:NodeLock.acquire", make)


# -- putting back ------------------------------------------------------------------------------------------------------------


@MUTANTS.add("restore-overwrites-others", "a restore puts the old value back whatever others set since", kinds=("meddle",), faults=18)
def _overwrite() -> None:
    wrap(f"{RESTORE}:compared", lambda old: lambda undo, resource, before, ours, now: old(undo, resource, before, None, now))


@MUTANTS.add(
    "others-values-are-not-noticed", "what others set before koordlet wrote again is not what is put back", kinds=("meddle",), faults=18
)
def _unnoticed() -> None:
    wrap("roles.koordlet.actuation.journal:before_by_now", lambda old: lambda undo, resource, before, ours, now: before)


@MUTANTS.add(
    "children-are-put-back-first",
    "a restore does not let the groups above grow before those below, and passes over what the kernel refuses",
    rule="FilesArePutBack",
    workloads=BUSY,
)
def _children_first() -> None:
    def silently(old: Any) -> Any:
        def values(entries: Any, result: Any, journal: Any) -> None:
            old(entries, result, journal)
            result.failed.clear()

        return values

    replace(f"{RESTORE}:_grow", lambda entry, journal: None)
    replace(f"{RESTORE}:_PASSES", 1)
    wrap(f"{RESTORE}:_values", silently)


@MUTANTS.add(
    "what-is-gone-could-not-be-put-back",
    "a restore fails for groups that went with their pods",
    rule="RestoreSucceeds",
    workloads=(changed(BUSY[0], until=25.0), BATCH),
)
def _gone_is_failed() -> None:
    def put_back(old: Any) -> Any:
        def failing(*args: Any, **options: Any) -> Any:
            from roles.koordlet.actuation.errors import Trouble, WriteError

            result = old(*args, **options)
            result.failed += [WriteError(Trouble.GONE, path, "is gone") for path in result.gone]
            return result

        return failing

    wrap(f"{RESTORE}:put_back", put_back)


# -- best-effort CPU ---------------------------------------------------------------------------------------------------------


@MUTANTS.add(
    "exclusive-cpus-are-shared",
    "best-effort pods are put on the CPUs of pods of class LSE",
    rule="ExclusiveFromBestEffort",
    workloads=(Workload("alone", 1, 2000, 256, qos="LSE", prefers="sim-000"), BATCH),
)
def _shared() -> None:
    from koord.accounting.cpuset import EMPTY

    wrap(f"{SUPPRESS}:pools", lambda old: lambda *args: changed(old(*args), lse=EMPTY))


@MUTANTS.add(
    "no-cpu-is-left", "where little is left for best-effort pods they get an empty set of CPUs", rule="NoEmptyCpuSet", workloads=BUSY
)
def _empty() -> None:
    from koord.accounting.cpuset import EMPTY
    from roles.koordlet.actuation.writes import Batch, Merge, Write

    wrap(
        f"{SUPPRESS}:divide",
        lambda old: lambda topology, held, milli, before: EMPTY if milli < 1000 else old(topology, held, milli, before),
    )
    replace("roles.koordlet.qos.picker:Pools.minimal", lambda self, topology: EMPTY)

    def batch(levels: Any, sets: Any, *, cached: bool) -> Any:
        rows = zip(levels, sets, strict=True)
        return Batch(tuple(tuple(Write("cpuset.cpus", d, str(c), merge=Merge.NONE, cached=cached) for d in level) for level, c in rows))

    replace(f"{SUPPRESS}:cpuset_batch", batch)


@MUTANTS.add("services-count-half", "best-effort pods may use half of what services use", rule="SuppressedInTime", workloads=BUSY)
def _half() -> None:
    def make(old: Any) -> Any:
        def allowance(*args: Any) -> Any:
            found = old(*args)
            return found and changed(found, milli=found.milli + (found.non_be_pods + found.system) // 2 + 800)

        return allowance

    wrap(f"{SUPPRESS}:allowance", make)


MUTANTS.wrap(
    "nothing-is-given-back",
    "what was taken from best-effort pods is never given back",
    f"{SUPPRESS}:BECPUSuppress._may_grow",
    nothing(False),
    workloads=BUSY,
)


@MUTANTS.add(
    "best-effort-pods-swing", "best-effort pods get a quarter of the node more at every second look", rule="HostsSettle", workloads=BUSY
)
def _swing() -> None:
    looks = 0

    def make(old: Any) -> Any:
        def allowance(*args: Any) -> Any:
            nonlocal looks
            looks += 1
            found = old(*args)
            return found and changed(found, milli=found.milli + looks % 2 * 1500)

        return allowance

    wrap(f"{SUPPRESS}:allowance", make)


@MUTANTS.add(
    "starts-wait-for-their-turn",
    "nothing is kept for best-effort pods that start, however little their tier is left",
    rule="StartsEnd",
    workloads=(
        Workload("web", 2, 1900, 256, usage=110, limit=120, prefers="sim-000"),
        changed(BATCH, replicas=1),
        Workload("late", 1, 0, 0, qos="BE", priority="koord-batch", usage=90, prefers="sim-000", at=20.0),
    ),
    host=Drawn(suppress="cfsQuota"),
)
def _starts() -> None:
    replace(f"{SUPPRESS}:starting", lambda snapshot, came, now: [])


@MUTANTS.add(
    "services-are-suppressed-too",
    "the quota of best-effort pods is set for the level of Burstable pods as well",
    rule="ServicesAreNotHeldUp",
    workloads=(Workload("web", 3, 500, 256, usage=170, limit=200, prefers="sim-000"), BATCH),
    host=Drawn(version=2, suppress="cfsQuota"),
)
def _services_too() -> None:
    def batches(old: Any) -> Any:
        def both(self: Any, snapshot: Any, *args: Any) -> Any:
            from roles.koordlet.actuation.writes import sequence
            from roles.koordlet.host.cgroup import BURSTABLE

            outcome = old(self, snapshot, *args)
            level = snapshot.host.cgroups.qos_dir(BURSTABLE)
            writes = [changed(write, target=level, cached=False) for batch in outcome.batches for write in batch]
            return changed(outcome, batches=(*outcome.batches, sequence(*writes))) if writes else outcome

        return both

    wrap(f"{SUPPRESS}:BECPUSuppress._by_quota", batches)


@MUTANTS.add(
    "pinned-cpus-are-not-seen",
    "nobody looks which CPUs the kubelet has given to containers alone",
    rule="PinnedIsLeftAlone",
    workloads=(Workload("alone", 1, 2000, 256, qos="", usage=50, prefers="sim-000"), BATCH),
    host=Drawn(static=True, suppress="cpuset"),
)
def _unseen() -> None:
    replace("roles.koordlet.states.nodecpus:_pinned", lambda annotations: {})


# -- what pods are held to ---------------------------------------------------------------------------------------------------


@MUTANTS.add(
    "a-restart-lifts-the-limits",
    "a batch container that was started again is not held to what it requests",
    rule="BatchIsHeld",
    workloads=(Workload("web", 1, 500, 256, usage=50, prefers="sim-000"), BATCH),
    plan=(Fault(40.0, "container-exit", "koordlet-sim-000"), Fault(43.0, "container-exit", "koordlet-sim-000")),
)
def _first_life() -> None:
    first: dict[tuple[str, str], str] = {}

    def container(old: Any) -> Any:
        def once(self: Any, container: Any, rule: Any) -> Any:
            known = first.setdefault((container.pod.uid, container.name), container.cgroup_dir)
            return old(self, container, rule) if known == container.cgroup_dir else None

        return once

    wrap("roles.koordlet.hooks.batchresource:BatchResource.container", container)


@MUTANTS.add(
    "memory-is-counted-twice",
    "a batch container is limited to half of the memory that it requests",
    rule="NobodyIsKilledByLimits",
    workloads=(Workload("web", 1, 500, 256, usage=50, prefers="sim-000"), BATCH),
    host=Drawn(version=2),
)
def _half_memory() -> None:
    def answer(old: Any) -> Any:
        return lambda self, request, cpu, memory, rule: old(self, request, cpu, memory // 2 if memory > 0 else memory, rule)

    wrap("roles.koordlet.hooks.batchresource:BatchResource._answer", answer)


@MUTANTS.add(
    "bursts-stand-in-the-way",
    "a burst is as large as the quota that stands there, and the kernel refuses a smaller quota",
    rule="ResizesTakeEffect",
    workloads=(Workload("web", 2, 500, 256, usage=60, limit=200, prefers="sim-000", resizes=((25.0, 120),)),),
    host=Drawn(knobs=frozenset((BURST,)), burst="auto", static=False),
)
def _bursting() -> None:
    replace("roles.koordlet.qos.burst:_lesser", lambda quota, limit: quota)


# -- evictions ---------------------------------------------------------------------------------------------------------------


@MUTANTS.add(
    "evicted-without-need",
    "pods are evicted when the node uses a third of the memory at which it should",
    rule="EvictedForAReason",
    workloads=(changed(BATCH, memory=3072, usage=95),),
    host=Drawn(memory=70, evicts=True),
)
def _needless() -> None:
    wrap("roles.koordlet.qos.memevict:capacity_bytes", lambda old: lambda snapshot: old(snapshot) // 3)


@MUTANTS.add(
    "refused-evictions-are-killed",
    "containers are stopped although the API server refused to evict their pod",
    rule="StoppedOnlyWhenAgreed",
    workloads=(changed(BATCH, cpu=1000, memory=2048, usage=95, min_available=2),),
)
def _killed() -> None:
    from roles.koordlet.eviction.evictor import Answer

    def make(old: Any) -> Any:
        async def by_api(self: Any, pod: Any) -> Any:
            why, answer = await old(self, pod)
            return why, Answer.AGREED if why and answer is Answer.REFUSED else answer

        return by_api

    wrap("roles.koordlet.eviction.evictor:PodEvictor._by_api", make)


# -- time --------------------------------------------------------------------------------------------------------------------


@MUTANTS.add(
    "old-readings-are-believed",
    "the last reading counts, however old it is",
    rule="NothingFromOldReadings",
    workloads=(Workload("web", 3, 1000, 256, usage=70, curve="bursty", prefers="sim-000"), BATCH),
    plan=(Fault(15.0, "read-error", "koordlet-sim-000", 25.0, method="/stat"),),
)
def _old_readings() -> None:
    def make(old: Any) -> Any:
        def last(self: Any, kind: str, *, within: float | None = None, **properties: str) -> float | None:
            found: float | None = old(self, kind, within=1e9, **properties)
            return found

        return last

    wrap("roles.koordlet.store.view:MetricsView.last", make)


@MUTANTS.add("ages-by-the-wall-clock", "what is due is told by the wall clock, which may be set back", kinds=("clock",), faults=12)
def _wall() -> None:
    wrap("roles.koordlet.sensing.loop:SensingLoop.tick", lambda old: lambda self, now, mono, clock=None: old(self, now, now, clock))
