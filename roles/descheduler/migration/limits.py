"""How many pods may migrate at once (DS-ARB-03). Pure: what migrates now in, the first limit that is reached out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from koord.api.objects import Pod, find_condition
from roles.descheduler.migration.args import MigrationControllerArgs
from roles.descheduler.snapshot import FINISHED


def maximum(replicas: int, value: int | str | None) -> int:
    """Of `replicas` pods, how many may be away: a number, a percentage (rounded down), or by the size of the workload if None.

    At least one and at most all of them; 0 only for 0 replicas. Source: DS-ARB-03.
    """
    if value is None:
        wanted = replicas // 10 if replicas > 10 else 2 if replicas >= 4 else 1
    elif isinstance(value, str):
        wanted = replicas * int(value.rstrip("%")) // 100 if value.endswith("%") else int(value)
    else:
        wanted = value
    return min(max(wanted, 1), replicas)


def dead(pod: Pod) -> bool:
    """Whether the pod has ended: nobody misses it when it is deleted, and its successor, if it has one, is there already."""
    return pod.status.phase in FINISHED


def leaves_no_place(pod: Pod) -> bool:
    """Whether a place that is reserved for the pod's successor would wait for nobody: the pod has ended, or has no controller that
    would make one (one that waits for a node itself comes into the place that is reserved for it)."""
    if dead(pod):
        return True
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    waits = pod.status.phase == "Pending" and scheduled is not None and scheduled.status == "False"
    return pod.metadata.controller is None and not waits


@dataclass(frozen=True, slots=True)
class Owner:
    """The workload that a pod belongs to, for a ReplicaSet of a Deployment the Deployment.

    `down` are the uids of its pods that are not available, `coming` those of them that may become so. `missing` is how many of its pods
    its own controller has yet to make; known only where a controller reports.
    """

    kind: str
    name: str
    uid: str
    replicas: int
    down: frozenset[str] = frozenset()
    coming: frozenset[str] = frozenset()
    missing: int = 0
    lost: str = ""  # why there is no such workload (any more); it then has 0 replicas

    @classmethod
    def of(cls, kind: str, name: str, uid: str, replicas: int, pods: Sequence[Pod], *, watched: bool) -> Owner:
        """The workload with these pods. `watched`: its controller is at work, so pods that do not exist are on their way."""
        alive = [each for each in pods if not dead(each)]
        down = frozenset(each.metadata.uid for each in alive if not available(each))
        ended = sorted(each.metadata.uid for each in pods if dead(each))  # they are missed as long as nobody is there in their stead
        down |= frozenset(ended[: max(0, replicas - len(alive))])
        coming = frozenset(each.metadata.uid for each in pods if each.metadata.uid in down and not leaving(each))
        missing = max(0, replicas - sum(1 for each in pods if not leaving(each))) if watched else 0
        return cls(kind, name, uid, replicas, down, coming, missing)


@dataclass(frozen=True, slots=True)
class Migration:
    """A job that counts. `pod` is where its pod is now: node and workload are "" when it has left and nothing is remembered of it."""

    job: str
    namespace: str
    pod_name: str
    pod_uid: str
    node: str = ""
    workload: str = ""
    gone: bool = False  # the pod has left, its replacement is not ready yet
    counts: bool = True  # toward limits

    @property
    def pod(self) -> str:
        return self.pod_uid or f"{self.namespace}/{self.pod_name}"


@dataclass(slots=True)
class Migrating:
    """What migrates, by what limits count. Lookups do not grow with the number of jobs elsewhere."""

    jobs: dict[str, Migration] = field(default_factory=dict)
    nodes: dict[str, set[str]] = field(default_factory=dict)
    namespaces: dict[str, set[str]] = field(default_factory=dict)
    workloads: dict[str, dict[str, Migration]] = field(default_factory=dict)
    by_pod: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, migrations: Iterable[Migration]) -> Migrating:
        migrating = cls()
        for migration in migrations:
            migrating.add(migration)
        return migrating

    def add(self, migration: Migration) -> None:
        """One more job."""
        self.by_pod.setdefault(migration.pod, set()).add(migration.job)
        if not migration.counts:
            return
        self.jobs[migration.job] = migration
        self.namespaces.setdefault(migration.namespace, set()).add(migration.job)
        if migration.node:
            self.nodes.setdefault(migration.node, set()).add(migration.pod)
        if migration.workload:
            self.workloads.setdefault(migration.workload, {})[migration.pod] = migration

    def has(self, pod: Pod) -> bool:
        """Whether a job is about this pod."""
        return bool(self.of_pod(pod))

    def takes(self, pod: Pod) -> bool:
        """Whether a job that counts is about this pod."""
        return any(job in self.jobs for job in self.of_pod(pod))

    def of_pod(self, pod: Pod) -> set[str]:
        """Names of the jobs about this pod."""
        meta = pod.metadata
        return self.by_pod.get(meta.uid, set()) | self.by_pod.get(f"{meta.namespace}/{meta.name}", set())

    def globally(self, pod: Pod) -> int:
        return len(self.jobs) - sum(job in self.jobs for job in self.of_pod(pod))

    def on_node(self, pod: Pod) -> int:
        return len(self.nodes.get(pod.spec.node_name, set()) - _identities(pod))

    def in_namespace(self, pod: Pod) -> int:
        return len(self.namespaces.get(pod.metadata.namespace, set()) - self.of_pod(pod))

    def of_workload(self, pod: Pod, workload: str) -> dict[str, Migration]:
        """Migrations of the workload's other pods."""
        own = _identities(pod)
        return {key: each for key, each in self.workloads.get(workload, {}).items() if key not in own}


def _identities(pod: Pod) -> set[str]:
    return {pod.metadata.uid, f"{pod.metadata.namespace}/{pod.metadata.name}"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which limit is reached, in words and numbers. `gate` is its name in skipEvictionGates."""

    gate: str
    message: str
    count: int
    limit: int


def unavailable(owner: Owner, migrating: dict[str, Migration]) -> int:
    """|pods of the workload that are not available ∪ pods that migrate|.

    A migration whose pod has left already stands for a replacement that is not ready or does not exist yet.
    """
    here = {key for key, each in migrating.items() if not each.gone}
    left = sum(1 for each in migrating.values() if each.gone)
    return len(owner.down | here) + max(owner.missing, left - len(owner.coming - here), 0)


def leaving(pod: Pod) -> bool:
    return pod.status.phase in FINISHED or pod.metadata.deletion_timestamp is not None


def available(pod: Pod) -> bool:
    """Neither finished nor terminating, and Ready."""
    return not leaving(pod) and ready(pod)


def ready(pod: Pod) -> bool:
    """Whether its condition Ready holds."""
    found = find_condition(pod.status.conditions, "Ready")
    return found is not None and found.status == "True"


def asks_about_workloads(args: MigrationControllerArgs) -> bool:
    """Whether a limit needs to know the workload; if none does, one that cannot be looked up stands in nobody's way."""
    limited = {"MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"} - set(args.skip_eviction_gates)
    return bool(limited) or _spares_small_ones(args)


def asks_for_successors(args: MigrationControllerArgs) -> bool:
    """Whether a pod stays that no controller would replace."""
    return "MaxUnavailablePerWorkload" not in args.skip_eviction_gates or _spares_small_ones(args)


def _spares_small_ones(args: MigrationControllerArgs) -> bool:
    return not args.skip_check_expected_replicas and "ExpectedReplicas" not in args.skip_eviction_gates


def expected_replicas(args: MigrationControllerArgs, owner: Owner | None) -> Refusal | None:
    """Whether a workload is too small to lose a pod at all. `owner` None: the pod has no controller."""
    if owner is None or not _spares_small_ones(args):
        return None
    replicas = owner.replicas
    migrating = maximum(replicas, args.max_migrating_per_workload)
    away = maximum(replicas, args.max_unavailable_per_workload)
    if replicas == 1 or replicas in (migrating, away):
        about = f"{owner.kind} {owner.name} has {replicas} replicas, of which {migrating} may migrate and {away} may be unavailable"
        return Refusal("ExpectedReplicas", nobody_replaces(owner.lost) or about, replicas, min(migrating, away))
    return None


def unreplaced(args: MigrationControllerArgs, owner: Owner | None) -> Refusal | None:
    """Whether a workload is lost, so that none of its pods would be replaced."""
    if owner is None or not owner.lost or not asks_for_successors(args):
        return None
    return Refusal("MaxUnavailablePerWorkload", nobody_replaces(owner.lost), 0, 0)


def nobody_replaces(lost: str) -> str:
    """What is said of a pod whose workload is lost, "" if it is not."""
    return f"{lost}: no controller would replace the pod" if lost else ""


def reached(args: MigrationControllerArgs, migrating: Migrating, pod: Pod, owner: Owner | None, *, together: int = 1) -> Refusal | None:
    """The first limit that does not let one more pod go now. A pod that has ended counts in none of them.

    `together`: so many pods go as one; a node then counts those that are not of them."""
    if dead(pod):
        return None
    skipped = args.skip_eviction_gates
    where = pod.spec.node_name
    simple = (
        ("MaxMigratingGlobally", args.max_migrating_globally, migrating.globally, "in the cluster"),
        ("MaxMigratingPerNode", args.max_migrating_per_node if where else None, migrating.on_node, f"from node {where}"),
        ("MaxMigratingPerNamespace", args.max_migrating_per_namespace, migrating.in_namespace, f"in namespace {pod.metadata.namespace}"),
    )
    for gate, limit, count_of, place in simple:
        more = 0 if gate == "MaxMigratingPerNode" else together - 1
        if limit and gate not in skipped and (count := count_of(pod)) + more >= limit:
            and_more = f", and {together} go together" if together > 1 else ""
            return Refusal(gate, f"{count} pods {place} migrate already{and_more}, {limit} may", count, limit)
    return _reached_by_workload(args, migrating, pod, owner) if owner is not None else None


def _reached_by_workload(args: MigrationControllerArgs, migrating: Migrating, pod: Pod, owner: Owner) -> Refusal | None:
    skipped = args.skip_eviction_gates
    if (found := unreplaced(args, owner)) is not None:
        return found
    others = migrating.of_workload(pod, owner.uid)
    about = f"of {owner.kind} {owner.name} ({owner.replicas} replicas)"
    limit = maximum(owner.replicas, args.max_migrating_per_workload)
    if "MaxMigratingPerWorkload" not in skipped and others and len(others) >= limit:
        return Refusal("MaxMigratingPerWorkload", f"{len(others)} pods {about} migrate already, {limit} may", len(others), limit)
    return too_many_unavailable(args, owner, others)


def too_many_unavailable(args: MigrationControllerArgs, owner: Owner, others: dict[str, Migration]) -> Refusal | None:
    """Whether a workload has no more pods to spare. `others` are the migrations of its other pods that count."""
    if owner.lost or "MaxUnavailablePerWorkload" in args.skip_eviction_gates:
        return None
    limit = maximum(owner.replicas, args.max_unavailable_per_workload)
    count = unavailable(owner, others)
    if count < limit:
        return None
    about = f"of {owner.kind} {owner.name} ({owner.replicas} replicas)"
    return Refusal("MaxUnavailablePerWorkload", f"{count} pods {about} are unavailable or migrate, {limit} may", count, limit)
