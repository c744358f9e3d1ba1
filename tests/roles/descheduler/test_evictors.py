"""Which pods may leave, and how: the filters of MigrationController and DefaultEvictor, workloads, events and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api import kinds, names
from koord.api.objects import Pod, convert
from koord.api.times import format_time
from koord.kube.client import Client
from koord.kube.informers import InformerFactory
from roles.descheduler.cluster import ClusterState
from roles.descheduler.workloads import WorkloadError, Workloads
from tests.roles.descheduler.support import Obj, after_rounds, configuration, descheduling, eventually, node, pod, put

ANY = {"PodLifeTime": {"states": ["Running", "Failed", "Pending"]}}
LOOSE = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1"}]  # an owner that is no controller has no limits


def loose(name: str, where: str = "n1", *, owners: list[Obj] | None = None, meta: Obj | None = None, **more: Any) -> Obj:
    return pod(name, where, meta={"ownerReferences": LOOSE if owners is None else owners, **(meta or {})}, **more)


def annotated(key: str, value: str) -> Obj:
    return {"annotations": {key: value}}


def listed(evictor: str, args: Obj, *pods: Obj, more: list[Obj] | None = None) -> set[str]:
    """Pods that a dry run would evict when every pod is asked for."""
    base = {"objectLimiters": {"workload": {"duration": "0s"}}, "maxMigratingPerNode": 0} if evictor == "MigrationController" else {}
    sets: dict[str, list[str]] = {"deschedule": ["PodLifeTime"]}
    text = configuration(sets, {**ANY, evictor: {**base, **args}}, dryRun=True).replace("name: DefaultEvictor", f"name: {evictor}")
    done = after_rounds([node("n1"), node("n2", labels={"disk": "ssd"}), *(more or []), *pods], text)
    return set(done.subjects("WouldEvict"))


PODS = [
    loose("plain"),
    loose("daemon", owners=[{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "2"}]),
    loose("mirror", meta=annotated("kubernetes.io/config.mirror", "x")),
    loose("static", meta=annotated("kubernetes.io/config.source", "file")),
    loose("bare", owners=[]),
    loose("bare-failed", owners=[], status={"phase": "Failed"}),
    loose("scratch", volumes=[{"name": "v", "emptyDir": {}}]),
    loose("claim", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
    loose(
        "made",
        volumes=[
            {
                "name": "v",
                "ephemeral": {
                    "volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
                },
            }
        ],
    ),
    loose("critical", priority=2_000_000_000, priorityClassName="system-cluster-critical"),
    loose("important", priority=500, priorityClassName="important"),
    loose("labelled", meta={"labels": {"app": "web"}}),
    loose("elsewhere", namespace="other"),
    loose("never", meta=annotated("scheduling.koordinator.sh/eviction-cost", "2147483647")),
    loose("forced", owners=[], meta=annotated("descheduler.alpha.kubernetes.io/evict", "")),
]
IMPORTANT = [{"kind": "PriorityClass", "metadata": {"name": "important"}, "value": 500}]
USUAL = {"plain", "claim", "made", "important", "labelled", "elsewhere", "forced"}


@pytest.mark.feature("DS-FLT-01")
@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ({}, USUAL),
        ({"evictAllBarePods": True}, USUAL | {"bare", "bare-failed"}),
        ({"evictFailedBarePods": True}, USUAL | {"bare-failed"}),
        ({"evictLocalStoragePods": True}, USUAL | {"scratch"}),
        ({"ignorePvcPods": True}, USUAL - {"claim", "made"}),
        ({"evictSystemCriticalPods": True, "priorityThreshold": {"value": 100}}, USUAL | {"critical"}),
        ({"priorityThreshold": {"value": 500}}, USUAL - {"important"}),
        ({"priorityThreshold": {"name": "important"}}, USUAL - {"important"}),
        ({"priorityThreshold": {"value": 501}}, USUAL),
        ({"priorityThreshold": {"value": 501, "name": "important"}}, USUAL - {"important"}),
        ({"priorityThreshold": {"value": 501, "name": "imporant"}}, {"forced"}),
        ({"labelSelector": {"matchLabels": {"app": "web"}}}, {"labelled", "forced"}),
        ({"namespaces": {"include": ["other"]}}, {"elsewhere", "forced"}),
        ({"namespaces": {"exclude": ["other"]}}, USUAL - {"elsewhere"}),
    ],
)
def test_which_pods_migration_controller_lets_leave(args: Obj, wanted: set[str]) -> None:
    assert listed("MigrationController", args, *PODS, more=IMPORTANT) == wanted


@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ({}, USUAL),
        ({"evictFailedBarePods": True}, USUAL | {"bare-failed"}),
        ({"evictDaemonSetPods": True}, USUAL | {"daemon"}),
        ({"ignorePvcPods": True}, USUAL - {"claim", "made"}),
        ({"priorityThreshold": {"name": "important"}}, USUAL - {"important"}),
        ({"labelSelector": {"matchLabels": {"app": "web"}}}, {"labelled", "forced"}),
        ({"minReplicas": 2}, USUAL - {"elsewhere"}),  # in its namespace the owner has one pod only
        ({"podProtections": {"defaultDisabled": ["PodsWithLocalStorage", "SystemCriticalPods"]}}, USUAL | {"scratch", "critical"}),
        ({"podProtections": {"extraEnabled": ["PodsWithPVC", "PodsWithoutPDB"]}}, {"forced", "labelled"}),
        (
            {
                "podProtections": {
                    "extraEnabled": ["PodsWithPVC"],
                    "config": {"PodsWithPVC": {"protectedStorageClasses": [{"name": "precious"}]}},
                }
            },
            USUAL - {"made"},  # its claim does not exist, so nothing says that it may go
        ),
        ({"namespaceLabelSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, {"elsewhere"}),
        ({"minPodAge": "1h"}, {"forced"}),
    ],
)
def test_which_pods_default_evictor_lets_leave(args: Obj, wanted: set[str]) -> None:
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 0},
    }
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"storageClassName": "cheap", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    assert listed("DefaultEvictor", args, *PODS, more=[*IMPORTANT, budget, claim]) == wanted


@pytest.mark.feature("DS-K8S-11")
def test_policies_ages_and_node_fit_of_default_evictor() -> None:
    rather_not = loose("rather-not", meta=annotated(names.ANNOTATION_DESCHEDULER_PREFER_NO_EVICTION, ""))
    assert listed("DefaultEvictor", {}, rather_not) == {"rather-not"}
    assert listed("DefaultEvictor", {"noEvictionPolicy": "Mandatory"}, rather_not) == set()
    old = loose("old", status={"startTime": format_time(0)})
    assert listed("DefaultEvictor", {"minPodAge": "1h"}, old) == {"old"}
    ssd = loose("ssd", nodeSelector={"disk": "ssd"})
    nvme = loose("nvme", nodeSelector={"disk": "nvme"})
    assert listed("DefaultEvictor", {"nodeFit": True}, ssd, nvme) == {"ssd"}
    assert listed("DefaultEvictor", {"nodeFit": True, "nodeSelector": "disk!=ssd"}, ssd, nvme) == set()


@pytest.mark.feature("DS-FIT-01")
@pytest.mark.parametrize(
    ("fields", "target", "fits"),
    [
        ({}, {}, True),
        ({"nodeSelector": {"disk": "ssd"}}, {}, False),
        ({"nodeSelector": {"disk": "ssd"}}, {"labels": {"disk": "ssd"}}, True),
        ({}, {"unschedulable": True}, False),
        ({}, {"taints": [{"key": "a", "value": "1", "effect": "NoSchedule"}]}, False),
        ({}, {"taints": [{"key": "a", "value": "1", "effect": "NoExecute"}]}, False),
        ({}, {"taints": [{"key": "a", "value": "1", "effect": "PreferNoSchedule"}]}, True),
        ({"tolerations": [{"key": "a", "value": "1"}]}, {"taints": [{"key": "a", "value": "1", "effect": "NoSchedule"}]}, True),
        ({"cpu": "4"}, {"cpu": "4"}, False),  # one core is taken there
        ({"cpu": "3"}, {"cpu": "4"}, True),
        ({}, {"pods": "1"}, True),  # the number of pods is not looked at
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["y"]}]}]}}}}, {}, True,
        ),
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["y"]}]}]}}}}, {}, False,
        ),
        ({"initContainers": [{"name": "i", "image": "i", "resources": {"requests": {"cpu": "9"}}}]}, {"cpu": "4"}, False),
    ],
)  # fmt: skip
def test_node_fit_of_the_plugins(fields: Obj, target: Obj, fits: bool) -> None:
    levels = [{"name": name, "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": name}}} for name in ("x", "y")]
    text = configuration({"balance": ["CustomPriority"]}, {"CustomPriority": {"evictionOrder": levels}})
    done = after_rounds([node("x"), node("y", **target), pod("p", "x", **fields), pod("there", "y")], text)
    assert ("p" not in done.pods) is fits


@pytest.mark.feature("DS-OBS-01")
def test_an_eviction_is_counted_and_told_to_the_pod() -> None:
    async def scenario() -> None:
        text = configuration({"deschedule": ["PodLifeTime"]}, ANY)
        async with descheduling([node("n1"), node("n2"), pod("p", "n1")], text) as running:
            await running.wait_rounds(1)
            labels = {"result": "success", "strategy": "PodLifeTime", "namespace": "default", "node": "n1"}
            assert running.app.metrics.registry.get_sample_value("descheduler_pods_evicted", labels) == 1

            async def told() -> list[Obj]:
                items = (await running.client.list(kinds.EVENTS, "default")).items
                return [item for item in items if item["reason"] == "Descheduled"]

            (event,) = await eventually(told)
            assert (event["type"], event["action"], event["reportingController"]) == ("Normal", "Migrating", "test")
            assert event["regarding"]["name"] == "p"

    asyncio.run(scenario())


ROLLOUT = {
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "rollouts.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"kind": "Rollout", "plural": "rollouts", "singular": "rollout", "listKind": "RolloutList"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                "subresources": {"scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            }
        ],
    },
}


@pytest.mark.feature("DS-WL-01")
def test_the_workload_behind_a_pod() -> None:
    async def scenario() -> None:
        from koord.apiserver.testing import running_server

        async with running_server(crds=True) as server, server.client() as client:
            await put(client, ROLLOUT)
            template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
            spec = {"replicas": 7, "selector": {"matchLabels": {"a": "b"}}, "template": template}

            async def make(kind: kinds.Kind, name: str, spec: Obj, owner: Obj | None = None) -> Obj:
                meta = {"name": name, **({"ownerReferences": [reference(owner)]} if owner else {})}
                body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec}
                return await client.create(kind, body, "default")

            deployment = await make(kinds.DEPLOYMENTS, "web", spec)
            sets = [await make(kinds.REPLICASETS, f"web-{i}", {**spec, "replicas": i}, deployment) for i in (3, 4)]
            alone = await make(kinds.STATEFULSETS, "db", {**spec, "replicas": 2, "serviceName": "db"})
            rollouts = kinds.Kind("example.com", "v1", "Rollout", "rollouts", True, (), frozenset({"scale"}))
            rollout = await eventually(lambda: _made(make, rollouts))
            informers = InformerFactory(client)
            cluster = ClusterState(informers)
            workloads = Workloads(client, informers, cluster)
            await put(client, node("n1"), *(pod(f"w{i}", "n1", meta={"ownerReferences": [reference(sets[i])]}) for i in range(2)))
            informers.start()
            await cluster.wait_synced()
            await workloads.wait_synced()
            found = workloads.of(of(sets[0]))
            assert found is not None
            assert (found.kind, found.name, found.replicas) == ("Deployment", "web", 7)
            assert {item.metadata.name for item in workloads.pods_of(found)} == {"w0", "w1"}
            plain = workloads.of(of(alone))
            assert plain is not None
            assert plain.replicas == 2
            assert workloads.of(convert(pod("bare", "n1", owned=False), Pod)) is None
            with pytest.raises(WorkloadError, match="has another uid"):
                workloads.of(of({**alone, "metadata": {**alone["metadata"], "uid": "another"}}))
            scaled = of(rollout)
            with pytest.raises(WorkloadError, match="no known scale"):
                workloads.of(scaled)
            await workloads.refresh([scaled])
            by_scale = workloads.of(scaled)
            assert by_scale is not None
            assert (by_scale.kind, by_scale.replicas) == ("Rollout", 5)
            await informers.stop()

    async def _made(make: Any, kind: kinds.Kind) -> Any:
        from koord.kube import errors

        try:
            return await make(kind, "r", {"replicas": 5})
        except errors.NotFound:
            return None  # the new kind is not served yet

    def reference(obj: Obj) -> Obj:
        meta = obj["metadata"]
        return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": meta["name"], "uid": meta["uid"], "controller": True}

    def of(obj: Obj) -> Pod:
        return convert(pod("p", "n1", meta={"ownerReferences": [reference(obj)]}), Pod)

    asyncio.run(scenario())


@pytest.mark.feature("DS-FW-03")
@pytest.mark.parametrize("args", [{"maxMigratingPerNode": 1}, {"maxMigratingPerNamespace": 1}, {"maxMigratingGlobally": 1}])
def test_a_dry_run_lists_no_more_than_migrations_would_be_let_through(args: Obj) -> None:
    assert len(listed("MigrationController", args, loose("a"), loose("b"), loose("c"))) == 1


@pytest.mark.feature("DS-FW-03")
def test_the_dry_run_of_migration_controller_counts_too() -> None:
    text = configuration({"deschedule": ["PodLifeTime"]}, {**ANY, "MigrationController": {"dryRun": True, "maxMigratingPerNode": 1}})
    done = after_rounds([node("n1"), node("n2"), loose("a"), loose("b")], text.replace("name: DefaultEvictor", "name: MigrationController"))
    assert done.pods == {"a", "b"}
    (record,) = done.records("WouldEvict")
    assert "a PodMigrationJob would be made" in record.message
    assert "the scheduler would put it on n2" in record.message


SHARED: list[tuple[Obj, Obj]] = [  # the same question in the words of each evictor
    ({}, {}),
    ({"priorityThreshold": {"value": 500}}, {"priorityThreshold": {"value": 500}}),
    ({"priorityThreshold": {"name": "important"}}, {"priorityThreshold": {"name": "important"}}),
    ({"priorityThreshold": {"name": "imporant"}}, {"priorityThreshold": {"name": "imporant"}}),
    ({"evictSystemCriticalPods": True}, {"evictSystemCriticalPods": True}),
    (
        {"evictSystemCriticalPods": True, "priorityThreshold": {"name": "imporant"}},
        {"evictSystemCriticalPods": True, "priorityThreshold": {"name": "imporant"}},
    ),
    ({"evictLocalStoragePods": True}, {"evictLocalStoragePods": True}),
    ({"evictFailedBarePods": True}, {"evictFailedBarePods": True}),
    ({"ignorePvcPods": True}, {"ignorePvcPods": True}),
]


@pytest.mark.feature("DS-FLT-01")
@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize(("migration", "default"), SHARED)
def test_both_evictors_protect_the_same_pods(migration: Obj, default: Obj) -> None:
    pods = [each for each in PODS if each["metadata"]["name"] != "never"]  # MigrationController's own annotation
    left = listed("MigrationController", migration, *pods, more=IMPORTANT)
    assert left == listed("DefaultEvictor", default, *pods, more=IMPORTANT)
    if migration.get("priorityThreshold") == {"name": "imporant"} and not migration.get("evictSystemCriticalPods"):
        assert left == {"forced"}  # a class that does not exist must not open the gate


@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize("plugin", ["RemovePodsViolatingNodeTaints", "LowNodeUtilization"])
def test_a_pod_whose_leaving_the_cache_has_not_heard_of_has_left(monkeypatch: pytest.MonkeyPatch, plugin: str) -> None:
    """Its watch has stalled, or it has ended within its grace period: a second eviction would delete it at once. What it used counts no
    more: nobody else leaves in its stead."""
    asked: list[str] = []

    async def evict(self: Client, namespace: str, name: str, **more: Any) -> None:
        asked.append(name)

    monkeypatch.setattr(Client, "evict", evict)
    balances = plugin == "LowNodeUtilization"
    args = {plugin: {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 70}}} if balances else {}
    text = configuration({"balance" if balances else "deschedule": [plugin]}, args, deschedulingInterval="50ms")
    taints = [] if balances else [{"key": "leave", "effect": "NoSchedule"}]
    pods = [pod(f"p{number}", "n1") for number in range(9 if balances else 2)]

    async def scenario() -> None:
        async with descheduling([node("n1", taints=taints), node("n2"), *pods], text) as running:
            await running.wait_rounds(4)
            assert (len(asked), len(set(asked))) == (2, 2)

    asyncio.run(scenario())
