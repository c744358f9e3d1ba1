"""How many may migrate: worked examples, and limits that hold at every instant in random clusters."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from koord.api import kinds, objects
from koord.config.errors import InvalidConfig
from koord.config.loader import validate_model
from roles.descheduler.migration.args import GATES, MigrationControllerArgs
from roles.descheduler.migration.limits import Migrating, Migration, Owner, expected_replicas, maximum, reached, unavailable
from roles.descheduler.migration.objectlimiter import ObjectLimiters
from tests.support.examples import examples
from tests.support.migration import NS
from tests.support.wholecluster import Workers, at_work, whole


@pytest.mark.feature("DS-ARB-03")
@pytest.mark.parametrize(
    ("replicas", "value", "wanted"),
    [(23, None, 2), (10, None, 2), (11, None, 1), (7, None, 2), (4, None, 2), (3, None, 1), (1, None, 1), (0, None, 0), (9, "5%", 1),
     (5, "90%", 4), (2, 5, 2), (8, 0, 1), (8, "0%", 1), (0, 3, 0), (200, None, 20), (6, "100%", 6)],
)  # fmt: skip
def test_the_share_of_a_workload(replicas: int, value: int | str | None, wanted: int) -> None:
    assert maximum(replicas, value) == wanted


def pod(name: str, node: str = "n1", *, ready: bool = True, deleting: bool = False, phase: str = "Running") -> objects.Pod:
    meta: dict[str, Any] = {"name": name, "namespace": NS, "uid": f"uid-{name}"}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return objects.convert({"metadata": meta, "spec": {"nodeName": node}, "status": status}, objects.Pod)


def migration(name: str, *, node: str = "n1", workload: str = "w", gone: bool = False) -> Migration:
    return Migration(f"j-{name}", NS, name, f"uid-{name}", "" if gone else node, workload, gone)


def owner(replicas: int, *pods: objects.Pod, watched: bool = False) -> Owner:
    return Owner.of("ReplicaSet", "w", "w", replicas, pods, watched=watched)


def args(**fields: Any) -> MigrationControllerArgs:
    return MigrationControllerArgs.model_validate({"maxMigratingPerNode": 0, **fields}).effective()


@pytest.mark.feature("DS-ARB-03")
def test_each_limit_counts_others_and_never_the_pod_itself() -> None:
    migrating = Migrating.of([migration("a"), migration("b", node="n2"), migration("c", workload="v")])
    mine, other = pod("a"), pod("x")
    for gate, field, count in (
        ("MaxMigratingGlobally", "maxMigratingGlobally", 3),
        ("MaxMigratingPerNode", "maxMigratingPerNode", 2),
        ("MaxMigratingPerNamespace", "maxMigratingPerNamespace", 3),
    ):
        refusal = reached(args(**{field: count}), migrating, other, None)
        assert refusal is not None
        assert (refusal.gate, refusal.count, refusal.limit) == (gate, count, count)
        assert reached(args(**{field: count}), migrating, mine, None) is None
        assert reached(args(**{field: count + 1}), migrating, other, None) is None
        assert reached(args(**{field: count}, skipEvictionGates=[gate]), migrating, other, None) is None
    assert reached(args(maxMigratingPerNode=1), migrating, pod("y", ""), None) is None  # a pod without a node


@pytest.mark.feature("DS-ARB-03")
@pytest.mark.feature("DS-ARB-04")
def test_limits_of_a_workload() -> None:
    migrating = Migrating.of([migration("a"), migration("b"), migration("z", workload="v")])
    healthy = owner(20, *(pod(f"p{n}") for n in range(18)), pod("a"), pod("b"))
    refusal = reached(args(), migrating, pod("p1"), healthy)
    assert refusal is not None
    assert (refusal.gate, refusal.count, refusal.limit) == ("MaxMigratingPerWorkload", 2, 2)
    refusal = reached(args(maxMigratingPerWorkload=3), migrating, pod("p1"), healthy)
    assert refusal is not None
    assert refusal.gate == "MaxUnavailablePerWorkload"
    skipped = args(skipEvictionGates=["MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"])
    assert reached(skipped, migrating, pod("p1"), healthy) is None
    assert reached(args(maxMigratingPerWorkload=3, maxUnavailablePerWorkload="15%"), migrating, pod("p1"), healthy) is None


@pytest.mark.feature("DS-ARB-03")
def test_what_counts_as_unavailable() -> None:
    pods = [pod("ok"), pod("not-ready", ready=False), pod("going", deleting=True), pod("done", phase="Succeeded"), pod("moving")]
    moving = {"uid-moving": migration("moving")}
    assert unavailable(owner(9, *pods), {}) == 3
    assert unavailable(owner(9, *pods), moving) == 4
    assert unavailable(owner(9, *pods), {"uid-going": migration("going")}) == 3  # the union
    left = {"uid-left": migration("left", gone=True)}
    assert unavailable(owner(9, *pods), left) == 3  # the pod that is not ready may be its replacement
    assert unavailable(owner(9, pod("ok")), left) == 1  # nobody has come yet
    assert unavailable(owner(9, *pods, watched=True), {}) == 9 - 3 + 3  # six are on their way, as a controller is at work


@pytest.mark.feature("DS-ARB-03")
@pytest.mark.parametrize(
    ("replicas", "fields", "refused"),
    [(1, {}, True), (2, {"maxMigratingPerWorkload": 5}, True), (4, {"maxUnavailablePerWorkload": "100%"}, True), (0, {}, True),
     (8, {}, False), (1, {"skipCheckExpectedReplicas": True}, False), (1, {"skipEvictionGates": ["ExpectedReplicas"]}, False)],
)  # fmt: skip
def test_workloads_that_are_too_small(replicas: int, fields: dict[str, Any], refused: bool) -> None:
    assert (expected_replicas(args(**fields), owner(replicas)) is not None) == refused
    assert expected_replicas(args(**fields), None) is None


@pytest.mark.feature("DS-ARB-04")
def test_each_gate_overrides_its_argument() -> None:
    given = {
        "maxMigratingGlobally": 1, "maxMigratingPerNode": 1, "maxMigratingPerNamespace": 1, "ignorePvcPods": True, "nodeFit": True,
        "priorityThreshold": {"value": 5}, "labelSelector": {"matchLabels": {"a": "b"}}, "namespaces": {"include": ["x"]},
    }  # fmt: skip
    open_ = MigrationControllerArgs.model_validate(given | {"skipEvictionGates": list(GATES)}).effective()
    assert (open_.max_migrating_globally, open_.max_migrating_per_node, open_.max_migrating_per_namespace) == (None, None, None)
    assert (open_.ignore_pvc_pods, open_.node_fit, open_.priority_threshold) == (False, False, None)
    assert (open_.label_selector, open_.namespaces) == (None, None)
    assert (open_.evict_all_bare_pods, open_.evict_local_storage_pods, open_.evict_system_critical_pods) == (True, True, True)
    assert open_.skip_check_expected_replicas is True
    closed = MigrationControllerArgs.model_validate(given).effective()
    assert (closed.max_migrating_globally, closed.node_fit, closed.evict_all_bare_pods) == (1, True, False)


@pytest.mark.feature("DS-CFG-01")
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"skipEvictionGates": ["pvc"]}, "skipEvictionGates[0]: 'pvc' is not known; did you mean 'PVC'?"),
        ({"maxMigratingPerWorkload": "ten"}, "maxMigratingPerWorkload: 'ten' must be a whole number or a percentage"),
        ({"maxUnavailablePerWorkload": -1}, "maxUnavailablePerWorkload"),
        ({"objectLimiters": {"node": {"duration": "1m"}}}, "objectLimiters.node: is not known; accepted: workload, namespace"),
        ({"objectLimiters": {"workload": {"duration": "-1m"}}}, "objectLimiters.workload.duration: must be 0 or more"),
        ({"evictQPS": "many"}, "evictQPS: must be a number above 0"),
        ({"evictBurst": 0}, "evictBurst"),
        ({"maxConcurrentReconciles": 0}, "maxConcurrentReconciles"),
        ({"defaultJobMode": "Later"}, "defaultJobMode: 'Later' is not known"),
        ({"evictionPolicy": "Nuke"}, "evictionPolicy: 'Nuke' is not known"),
        ({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}, "labelSelector"),
        ({"nodeSelector": "a in"}, "nodeSelector"),
        ({"namespaces": {"include": ["a"], "exclude": ["b"]}}, "only one of include and exclude"),
        ({"priorityThreshold": {"value": 2000000001}}, "priorityThreshold.value: must be at most 2000000000"),
    ],
)
def test_bad_arguments_are_told_with_their_path(given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        validate_model(given, MigrationControllerArgs)
    assert wanted in str(caught.value)


@pytest.mark.feature("DS-MC-09")
def test_object_limiters_by_the_book() -> None:
    one = ObjectLimiters(args(objectLimiters={"workload": {"duration": "5m", "maxMigrating": 1, "burst": 1}}))
    assert one.hold("w", NS, 0.0) is None
    one.take("w", 20, NS, 0.0)
    hold = one.hold("w", NS, 0.0)
    assert hold is not None
    assert hold.seconds == pytest.approx(300.0)
    assert one.hold("w", NS, 299.0) is not None
    assert one.hold("w", NS, 300.0) is None
    assert one.hold("other", NS, 0.0) is None
    by_size = ObjectLimiters(args())  # the default: 5 minutes, as many as may migrate
    by_size.take("w", 20, NS, 0.0)
    hold = by_size.hold("w", NS, 0.0)
    assert hold is not None
    assert hold.seconds == pytest.approx(150.0)
    by_size.take("unknown", None, NS, 0.0)
    assert by_size.hold("unknown", NS, 0.0) is None
    burst = ObjectLimiters(args(objectLimiters={"namespace": {"duration": "60s", "maxMigrating": 6, "burst": 2}}))
    burst.take("", 1, NS, 0.0)
    assert burst.hold("", NS, 0.0) is None
    burst.take("", 1, NS, 0.0)
    hold = burst.hold("", NS, 0.0)
    assert hold is not None
    assert hold.seconds == pytest.approx(10.0)
    burst.give_back("", NS)
    assert burst.hold("", NS, 0.0) is None
    off = ObjectLimiters(args(objectLimiters={"namespace": {"duration": "60s", "maxMigrating": "50%"}, "workload": {"duration": "0s"}}))
    off.take("w", 20, NS, 0.0)
    assert off.hold("w", NS, 0.0) is None


# ---------------------------------------------------------------- random clusters


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "maxMigratingGlobally": st.integers(1, 4),
        "maxMigratingPerNode": st.integers(1, 3),
        "maxMigratingPerNamespace": st.integers(1, 4),
        "maxMigratingPerWorkload": st.one_of(st.integers(1, 3), st.sampled_from(["20%", "50%"])),
        "maxUnavailablePerWorkload": st.one_of(st.integers(1, 4), st.sampled_from(["25%", "60%"])),
    },
)
PODS = st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.booleans()), min_size=5, max_size=9)


class Watcher:
    """Looks at every state that the API server has been in, and compares it with the limits."""

    def __init__(self, limits: dict[str, Any], replicas: int, nodes: dict[str, str]) -> None:
        self.args = MigrationControllerArgs.model_validate(limits)
        self.replicas, self.nodes = replicas, nodes
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.worst: Counter[str] = Counter()
        self.away_at_start = 0

    def look(self) -> None:
        started = [
            job["spec"]["podRef"]["name"]
            for job in self.jobs.values()
            if job.get("status", {}).get("phase") == "Running"
            or ("annotations" in job["metadata"] and not job.get("status", {}).get("phase") and _passed(job))
        ]
        per_node = Counter(self.nodes[name] for name in started if name in self.pods)
        down = {name for name, each in self.pods.items() if not _available(each)}
        away = len(down | {name for name in started if name in self.pods}) + max(0, self.replicas - len(self.pods))
        for name, value in (("global", len(started)), ("node", max(per_node.values(), default=0)), ("away", away)):
            self.worst[name] = max(self.worst[name], value)

    def check(self) -> None:
        arguments, worst = self.args, self.worst
        if arguments.max_migrating_globally:
            assert worst["global"] <= arguments.max_migrating_globally
        if arguments.max_migrating_per_namespace:
            assert worst["global"] <= arguments.max_migrating_per_namespace
        if arguments.max_migrating_per_node:
            assert worst["node"] <= arguments.max_migrating_per_node
        assert worst["global"] <= maximum(self.replicas, arguments.max_migrating_per_workload)
        allowed = maximum(self.replicas, arguments.max_unavailable_per_workload)
        assert worst["away"] <= max(allowed, self.away_at_start), (worst, allowed)


def _passed(job: dict[str, Any]) -> bool:
    return bool(job["metadata"]["annotations"].get("descheduler.koordinator.sh/passed-arbitration"))


def _available(each: dict[str, Any]) -> bool:
    if "deletionTimestamp" in each["metadata"]:
        return False
    return any(item["type"] == "Ready" and item["status"] == "True" for item in each["status"].get("conditions", ()))


async def _crowd(limits: dict[str, Any], pods: list[tuple[str, bool]], directly: bool) -> Watcher:
    async with whole() as plan:
        world = plan.world
        replicas = len(pods)
        uid = await world.replicaset(replicas=replicas)
        await world.client.patch(
            kinds.REPLICASETS, "web", {"status": {"replicas": replicas, "observedGeneration": 1}}, NS, subresource="status"
        )
        nodes = {f"p{number}": node for number, (node, _) in enumerate(pods)}
        watcher = Watcher(limits, replicas, nodes)
        down = 0
        for number, (node, ready) in enumerate(pods):
            down += not ready
            await world.pod(f"p{number}", node, uid, ready=ready)
        watcher.away_at_start = down
        skip = {"skipEvictionGates": ["ExpectedReplicas"], "defaultJobMode": "EvictDirectly" if directly else "ReservationFirst"}
        life = await world.live(**({"maxMigratingPerNode": 0} | limits | skip), maxConcurrentReconciles=3)
        seen = life.setup.informers
        for kind, store in ((kinds.PODMIGRATIONJOBS, watcher.jobs), (kinds.PODS, watcher.pods)):
            informer = seen.informer(kind)
            _follow(informer, store, watcher)
            await informer.wait_synced()
        watcher.worst.clear()
        everybody = Workers(world, uid, replicas)
        await everybody.turn()  # it has seen everybody before anybody leaves
        for number in range(replicas):
            await world.job(f"j{number}", f"p{number}", mode="")
        async with at_work(everybody) as workers:
            await plan.until_ended(replicas)

            async def replaced() -> bool:
                return len(workers.left) <= len(workers.born)

            await world.until(replaced)  # a job without a reservation ends when its pod has gone
        assert len(workers.left) == len(workers.born) <= replicas  # everybody who left was replaced, nobody twice
        return watcher


def _follow(informer: Any, store: dict[str, Any], watcher: Watcher) -> None:
    def put(item: dict[str, Any]) -> None:
        store[item["metadata"]["name"]] = item
        watcher.look()

    def drop(item: dict[str, Any]) -> None:
        store.pop(item["metadata"]["name"], None)
        watcher.look()

    informer.add_handler(put, lambda _, item: put(item), drop)


@pytest.mark.feature("DS-ARB-03")
@examples(3, phases=[Phase.explicit, Phase.generate])  # a cluster is too dear to shrink
@given(limits=LIMITS, pods=PODS, directly=st.booleans())
def test_limits_hold_at_every_instant(limits: dict[str, Any], pods: list[tuple[str, bool]], directly: bool) -> None:
    watcher = asyncio.run(_crowd(limits, pods, directly))
    watcher.check()
