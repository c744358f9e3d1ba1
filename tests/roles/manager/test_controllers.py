"""NodeMetric, NodeSLO, profile and quota-profile controllers through the API."""

import asyncio
import json

import pytest

from koord.api.kinds import CONFIGMAPS, ELASTICQUOTAS, EVENTS, NODEMETRICS, NODES, NODESLOS, PODS
from koord.api.objects import ClusterColocationProfile, Pod, convert
from koord.kube.errors import NotFound
from koord.kube.informers import InformerFactory
from roles.manager.controllers.colocationprofile import ColocationProfileController
from roles.manager.controllers.quotaprofile import fnv1a_64
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer
from roles.manager.options import Options
from roles.manager.webhooks.profiles import compile_profile

DEFAULT_POLICY = {
    "aggregateDurationSeconds": 300,
    "reportIntervalSeconds": 60,
    "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
    "nodeMemoryCollectPolicy": "usageWithoutPageCache",
}


async def policy(bed, name):
    return (await bed.get("NodeMetric", name))["spec"].get("metricCollectPolicy")


async def slo(bed, name, part):
    return (await bed.get("NodeSLO", name))["spec"].get(part)


async def configure(bed, **keys):
    data = {key.replace("_", "-"): value if isinstance(value, str) or value is None else json.dumps(value) for key, value in keys.items()}
    await bed.client.patch(CONFIGMAPS, "slo-controller-config", {"data": data}, "koordinator-system")


@pytest.mark.feature("MGR-NM-01")
def test_node_metric_follows_node_and_strategy(bed, make):
    async def test(bed):
        pools = [
            {
                "nodeSelector": {"matchLabels": {"pool": "a"}},
                "metricReportIntervalSeconds": 30,
                "metricAggregatePolicy": {"durations": ["2m"]},
            }
        ]
        await bed.create(
            make.config(colocation_config={"enable": True, "nodeConfigs": pools}), make.node("n1"), make.node("n2", labels={"pool": "a"})
        )
        await bed.start()
        await bed.until(lambda: policy(bed, "n1"))
        assert await policy(bed, "n1") == DEFAULT_POLICY

        async def pooled():
            found = await policy(bed, "n2")
            return found["reportIntervalSeconds"] == 30 and found["nodeAggregatePolicy"] == {"durations": ["2m0s"]}

        await bed.until(pooled)
        # status stays when the spec changes; a spec that somebody else changed is mended
        await bed.client.patch(NODEMETRICS, "n2", {"status": {"updateTime": make.now()}}, subresource="status")
        await bed.client.patch(NODEMETRICS, "n2", {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 1}}})
        await bed.until(pooled)
        assert (await bed.get("NodeMetric", "n2"))["status"]["updateTime"]
        await bed.client.patch(NODES, "n2", {"metadata": {"labels": {"pool": None}}})

        async def default():
            return await policy(bed, "n2") == DEFAULT_POLICY

        await bed.until(default)
        # a refused configuration changes nothing, a good one does
        await configure(bed, colocation_config='{"enable":tru')
        await bed.client.patch(NODEMETRICS, "n2", {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 7}}})
        await asyncio.sleep(0.3)
        assert (await policy(bed, "n2"))["reportIntervalSeconds"] == 7
        await configure(bed, colocation_config={"enable": False, "metricReportIntervalSeconds": 20})
        await bed.until(default)
        await bed.client.delete(NODEMETRICS, "n1")
        await bed.until(lambda: policy(bed, "n1"))
        await bed.client.delete(NODES, "n1")

        async def gone():
            try:
                await bed.get("NodeMetric", "n1")
            except NotFound:
                return True

        await bed.until(gone)

    bed(test)


@pytest.mark.feature("MGR-NM-01")
@pytest.mark.feature("MGR-CFG-01")
def test_node_metrics_follow_once_the_configuration_is_good_again(bed, make):
    async def test(bed):
        good = {
            "enable": True,
            "nodeConfigs": [{"nodeSelector": {"matchLabels": {"pool": "fast"}}, "metricReportIntervalSeconds": 7}],
        }
        metric = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": "n1"}}
        await bed.create(make.node("n1"), {**metric, "spec": {"metricCollectPolicy": {**DEFAULT_POLICY, "reportIntervalSeconds": 7}}})
        manager = await bed.start()
        state = manager.app.state

        def stale(wanted):
            async def look():
                return state.config.stale("colocation-config") is wanted

            return look

        def every(seconds):
            async def look():
                return (await policy(bed, "n1"))["reportIntervalSeconds"] == seconds

            return look

        # there was no ConfigMap, and the one that comes does not speak of co-location
        await bed.until(stale(True))
        await bed.create(make.config(cpu_burst_config={}))
        await bed.until(every(60))
        # a slip of the keyboard, and meanwhile the node changes its pool
        await configure(bed, colocation_config=good)
        await bed.until(stale(False))
        await configure(bed, colocation_config="{")
        await bed.until(stale(True))
        await bed.client.patch(NODES, "n1", {"metadata": {"labels": {"pool": "fast"}}})

        async def looked_at():
            (controller,) = (one for one in manager.app.controllers if one.name == "nodemetric")
            return state.nodes.get("n1").metadata.labels.get("pool") and not controller.queue._working

        await bed.until(looked_at)
        await configure(bed, colocation_config=good)
        await bed.until(every(7))

    bed(test)


@pytest.mark.feature("BEY-INT-01")
@pytest.mark.feature("BEY-TUNE-01")
def test_what_koordlet_adds_is_configured_like_the_rest(bed, make):
    pools = [{"nodeSelector": {"matchLabels": {"pool": "a"}}, "evictAfterSeconds": 600}]

    async def test(bed):
        await bed.create(
            make.config(interference_config={"clusterStrategy": {"actions": ["squeeze"], "color": "red"}, "nodeStrategies": pools}),
            make.node("n1", labels={"pool": "a"}),
            make.node("n2"),
        )
        await bed.start()
        await bed.until(lambda: slo(bed, "n1", "extensions"))
        await bed.until(lambda: slo(bed, "n2", "extensions"))
        assert await slo(bed, "n1", "extensions") == {"interference": {"actions": ["squeeze"], "evictAfterSeconds": 600}}
        assert await slo(bed, "n2", "extensions") == {"interference": {"actions": ["squeeze"]}}
        await bed.client.patch(NODESLOS, "n2", {"spec": {"extensions": {"mine": {"a": 1}}}})
        await configure(
            bed,
            interference_config={"clusterStrategy": {"evictAfterSeconds": 0}},
            resource_tuning_config={"clusterStrategy": {"memory": {"calmSeconds": 30}}},
        )

        async def tuned():
            return (await slo(bed, "n2", "extensions")).get("resourceTuning") == {"memory": {"calmSeconds": 30}}

        await bed.until(tuned)
        assert (await slo(bed, "n2", "extensions"))["interference"] == {"actions": ["squeeze"]}, "the last good one"
        assert (await slo(bed, "n2", "extensions"))["mine"] == {"a": 1}
        await configure(bed, interference_config={})

        async def back():
            return (await slo(bed, "n2", "extensions"))["interference"] == {}

        await bed.until(back)
        assert (await slo(bed, "n1", "extensions"))["resourceTuning"], "what the ConfigMap is silent about stays"

    bed(test)


@pytest.mark.feature("MGR-NSLO-01")
@pytest.mark.feature("MGR-CFG-01")
def test_node_slo_merges_keeps_and_reloads(bed, make):
    async def test(bed):
        await bed.create(
            make.config(
                resource_threshold_config={
                    "clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60},
                    "nodeStrategies": [{"nodeSelector": {"matchLabels": {"pool": "a"}}, "cpuSuppressThresholdPercent": 40}],
                },
                resource_qos_config={"clusterStrategy": {"beClass": {"networkQOS": {"enable": True, "ingressRequest": 10}}}},
                system_config={"clusterStrategy": {"totalNetworkBandwidth": "1G"}},
                host_application_config={"applications": [{"name": "nginx", "qos": "LS", "cgroupPath": {"relativePath": "nginx/"}}]},
            ),
            make.node("n1", labels={"pool": "a"}),
            make.node("n2", annotations={"node.koordinator.sh/network-bandwidth": "2000M"}),
            make.node("n3", annotations={"node.koordinator.sh/network-bandwidth": "fast"}),
        )
        manager = await bed.start()
        await bed.until(lambda: slo(bed, "n3", "resourceUsedThresholdWithBE"))
        await bed.until(lambda: slo(bed, "n1", "resourceUsedThresholdWithBE"))
        assert (await slo(bed, "n1", "resourceUsedThresholdWithBE"))["cpuSuppressThresholdPercent"] == 40
        assert (await slo(bed, "n1", "cpuBurstStrategy"))["policy"] == "none"
        assert (await slo(bed, "n1", "hostApplications"))[0]["name"] == "nginx"
        assert (await slo(bed, "n1", "resourceQOSStrategy"))["beClass"]["networkQOS"]["ingressRequest"] == 10
        assert await slo(bed, "n2", "systemStrategy") == {"totalNetworkBandwidth": "2G"}
        assert "totalNetworkBandwidth" not in (await slo(bed, "n3", "systemStrategy")) or (await slo(bed, "n3", "systemStrategy")) == {
            "totalNetworkBandwidth": "0"
        }
        await bed.client.patch(NODESLOS, "n1", {"spec": {"extensions": {"mine": {"a": 1}}}})
        # one key good, one key bad: the good one takes effect, the bad one keeps what was in force
        await configure(
            bed, cpu_burst_config={"clusterStrategy": {"policy": "auto"}}, resource_threshold_config='{"clusterStrategy":{"enable":1}}'
        )

        async def half():
            return (await slo(bed, "n1", "cpuBurstStrategy"))["policy"] == "auto"

        await bed.until(half)
        assert (await slo(bed, "n1", "resourceUsedThresholdWithBE"))["cpuSuppressThresholdPercent"] == 40
        assert (await slo(bed, "n1", "extensions")) == {"mine": {"a": 1}}
        _, text = await manager.get("/metrics")
        assert "koord_manager_config_errors 1.0" in text

        async def told():
            events = (await bed.client.list(EVENTS, "koordinator-system")).items
            return [e for e in events if e["reason"] == "SLOCfgUnmarshalFailed" and "clusterStrategy.enable" in e.get("note", "")]

        await bed.until(told)
        await bed.client.patch(NODES, "n2", {"metadata": {"annotations": {"node.koordinator.sh/network-bandwidth": "3G"}}})

        async def faster():
            return (await slo(bed, "n2", "systemStrategy"))["totalNetworkBandwidth"] == "3G"

        await bed.until(faster)
        # deleting the ConfigMap changes nothing
        await bed.client.delete(CONFIGMAPS, "slo-controller-config", "koordinator-system")
        await bed.client.patch(NODES, "n1", {"metadata": {"labels": {"x": "y"}}})
        await asyncio.sleep(0.3)
        assert (await slo(bed, "n1", "cpuBurstStrategy"))["policy"] == "auto"

    bed(test)


@pytest.mark.feature("MGR-NSLO-01")
def test_quiet_once_everything_is_right(bed, make):
    async def test(bed):
        await bed.create(
            make.config(
                colocation_config={"enable": True},
                resource_qos_config={
                    "clusterStrategy": {
                        "lsClass": {"networkQOS": {"enable": True}, "blkioQOS": {"blocks": [{"name": "sda", "ioCfg": {"readIOPS": 9}}]}}
                    }
                },
            ),
            make.node("n1"),
            make.metric("n1", system=("1", "1Gi")),
        )
        await bed.start()

        async def versions():
            return [(await bed.get(kind, "n1"))["metadata"]["resourceVersion"] for kind in ("Node", "NodeSLO", "NodeMetric")]

        async def rested():
            before = await versions()
            await asyncio.sleep(0.5)
            return before if before == await versions() else None

        await bed.until(lambda: slo(bed, "n1", "cpuBurstStrategy"))
        before = await bed.until(rested)
        await bed.start()
        await asyncio.sleep(0.7)
        assert before == await versions()

    bed(test)


@pytest.mark.feature("MGR-CP-01")
def test_profiles_reach_pods_that_wait(bed, make):
    def profile(name, managed, **spec):
        labels = {"config.koordinator.sh/controller-managed": "true"} if managed else {}
        return {
            "apiVersion": "config.koordinator.sh/v1alpha1",
            "kind": "ClusterColocationProfile",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
        }

    async def test(bed):
        on = {"matchLabels": {"q": "on"}}
        await bed.create(
            profile(
                "marked",
                True,
                selector=on,
                labels={"added": "1"},
                labelSuffixes={"team": "-be"},
                koordinatorPriority=9,
                schedulerName="other",
                patch={"metadata": {"annotations": {"p": "1"}}},
            ),
            profile("unmarked", False, selector=on, labels={"off": "1"}),
            profile("nil", True, labels={"all": "1"}),
            profile("elsewhere", True, selector=on, namespaceSelector={"matchLabels": {"no": "where"}}, labels={"else": "1"}),
            profile("unreadable", True, selector={"matchExpressions": [{"key": "q", "operator": "Like"}]}, labels={"all": "2"}),
            profile(
                "lost", True, selector=on, namespaceSelector={"matchExpressions": [{"key": "q", "operator": "Like"}]}, labels={"x": "1"}
            ),
            make.pod("waits", labels={"q": "on", "team": "a"}, phase="Pending"),
            make.pod("runs", "n1", labels={"q": "on"}),
        )
        often = {"profile_reconcile_interval": 0.1, "profile_force_update_duration": 0.1}
        await bed.start(gates="ColocationProfileController=true", **often)

        async def labelled():
            return (await bed.get("Pod", "waits", "default"))["metadata"]["labels"].get("added")

        await bed.until(labelled)
        await asyncio.sleep(0.5)
        found = await bed.get("Pod", "waits", "default")
        assert found["metadata"]["labels"] == {"q": "on", "team": "a-be", "added": "1", "koordinator.sh/priority": "9"}
        assert found["metadata"]["annotations"] == {"p": "1"}
        assert found["spec"]["schedulerName"] == "default-scheduler"
        assert (await bed.get("Pod", "runs", "default"))["metadata"]["labels"] == {"q": "on"}

    bed(test)


@pytest.mark.feature("MGR-CP-01")
def test_a_pod_that_probability_does_not_pick_is_not_picked_in_a_later_round(bed, make):
    meta = {"name": "some", "labels": {"config.koordinator.sh/controller-managed": "true"}}
    spec = {"selector": {"matchLabels": {"q": "on"}}, "probability": "20%", "labels": {"picked": "yes"}}
    profile = {"apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile", "metadata": meta, "spec": spec}

    async def test(bed):
        await bed.create(profile, *(make.pod(f"w-{number}", labels={"q": "on"}, phase="Pending") for number in range(30)))
        manager = await bed.start(gates="ColocationProfileController=true", profile_reconcile_interval=0.02)
        controller = next(one for one in manager.app.controllers if isinstance(one, ColocationProfileController))
        rounds, reconcile = 0, controller.reconcile

        async def counted(key):
            nonlocal rounds
            again = await reconcile(key)
            rounds += 1
            return again

        controller.reconcile = counted

        async def many_rounds():
            return rounds > 40

        await bed.until(many_rounds)
        pods = (await bed.client.list(PODS)).items
        assert 0 < sum("picked" in pod["metadata"]["labels"] for pod in pods) < 20

    bed(test)


@pytest.mark.feature("MGR-QP-01")
@pytest.mark.feature("SCH-EQ-15")
def test_quota_profile_makes_a_tree(bed, make):
    profile = {
        "apiVersion": "quota.koordinator.sh/v1alpha1",
        "kind": "ElasticQuotaProfile",
        "metadata": {
            "name": "p",
            "namespace": "default",
            "annotations": {"quota.scheduling.koordinator.sh/resource-keys": '["cpu","memory","gpu"]'},
        },
        "spec": {
            "quotaName": "root-a",
            "quotaLabels": {"team": "a"},
            "resourceRatio": "0.5",
            "nodeSelector": {"matchLabels": {"pool": "a"}},
        },
    }

    async def test(bed):
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        for name, labels in (("n1", {"pool": "a"}), ("n2", {"pool": "a"}), ("n3", {})):
            made = make.node(name, cpu="9", memory="10Gi", labels=labels)
            made["status"] |= ready
            made["spec"]["unschedulable"] = name == "n2"
            await bed.create(made)
        await bed.create(profile)
        await bed.start()
        await bed.until(lambda: bed.get("ElasticQuota", "root-a", "default"))
        quota = await bed.get("ElasticQuota", "root-a", "default")
        labels, annotations = quota["metadata"]["labels"], quota["metadata"]["annotations"]
        tree = str(fnv1a_64("default/p"))
        assert labels == {
            "team": "a",
            **{f"quota.scheduling.koordinator.sh/{k}": v for k, v in (("profile", "p"), ("tree-id", tree), ("is-root", "true"))},
        }
        assert quota["spec"]["min"] == {"cpu": "9", "memory": "10Gi", "gpu": "0"}
        assert set(quota["spec"]["max"].values()) == {"4611686018427387"}
        assert json.loads(annotations["quota.scheduling.koordinator.sh/unschedulable-resource"])["cpu"] == "4500m"
        assert (await bed.get("ElasticQuotaProfile", "p", "default"))["metadata"]["labels"][
            "quota.scheduling.koordinator.sh/tree-id"
        ] == tree
        await bed.client.delete(ELASTICQUOTAS, "root-a", "default")

    bed(test)


def test_fnv_hash_is_the_standard_one():
    assert fnv1a_64("") == 0xCBF29CE484222325
    assert fnv1a_64("a") == 0xAF63DC4C8601EC8C


@pytest.mark.feature("MGR-NM-01")
def test_a_duration_that_cannot_be_read_is_written_anew(bed, make):
    from koord.api.kinds import NODEMETRICS

    async def test(bed):
        await bed.create(make.config(colocation_config={"enable": True}), make.node("n1"))
        await bed.start()

        async def policy():
            return (await bed.get("NodeMetric", "n1"))["spec"]["metricCollectPolicy"]

        right = await bed.until(policy)
        wrong = {"spec": {"metricCollectPolicy": {"nodeAggregatePolicy": {"durations": ["five minutes"]}}}}
        await bed.client.patch(NODEMETRICS, "n1", wrong)

        async def repaired():
            return await policy() == right

        await bed.until(repaired)

    bed(test)


ADDING = {
    "apiVersion": "config.koordinator.sh/v1alpha1",
    "kind": "ClusterColocationProfile",
    "metadata": {"name": "p", "labels": {"config.koordinator.sh/controller-managed": "true"}},
    "spec": {"selector": {"matchLabels": {"q": "on"}}, "labels": {"added": "1"}},
}
"""A profile that the controller applies to waiting pods."""


@pytest.mark.feature("MGR-CP-01")
def test_every_waiting_pod_has_its_turn_although_the_first_ones_are_due_again_before(bed, make):
    """Five at once, none later, and all may be handled anew in every round."""

    async def test(bed):
        await bed.create(ADDING, *(make.pod(f"waits-{number}", labels={"q": "on"}, phase="Pending") for number in range(20)))
        slow = {"profile_update_qps": 20.0, "profile_update_burst": 5}
        often = {"profile_reconcile_interval": 0.1, "profile_force_update_duration": 0.001}
        await bed.start(gates="ColocationProfileController=true", **slow, **often)

        async def labelled():
            pods = [await bed.get("Pod", f"waits-{number}", "default") for number in range(20)]
            return all(pod["metadata"]["labels"].get("added") for pod in pods)

        await bed.until(labelled)

    bed(test)


@pytest.mark.feature("MGR-CP-01")
def test_a_profile_looks_at_the_pods_that_wait_and_no_others(bed, make, monkeypatch):
    """A round costs what waits, not what runs."""
    looked, matches = set(), ColocationProfileController._matches

    def counting(self, profile, pod):
        looked.add(pod.metadata.name)
        return matches(self, profile, pod)

    monkeypatch.setattr(ColocationProfileController, "_matches", counting)

    async def test(bed):
        running = [make.pod(f"runs-{number}", "n1", labels={"q": "on"}) for number in range(20)]
        await bed.create(ADDING, make.pod("waits", labels={"q": "on"}, phase="Pending"), *running)
        await bed.start(gates="ColocationProfileController=true", profile_reconcile_interval=0.1)

        async def labelled():
            return (await bed.get("Pod", "waits", "default"))["metadata"]["labels"].get("added")

        await bed.until(labelled)
        assert looked == {"waits"}

    bed(test)


@pytest.mark.feature("MGR-CP-01")
@pytest.mark.parametrize("meanwhile", ["bound", "made anew", "relabelled", "deleted"])
def test_a_profile_leaves_a_pod_alone_that_waits_no_more(meanwhile, make):
    """Between the cache and the write a pod may be bound, or another one may have its name."""
    seen = make.pod("p", labels={"q": "on"}, phase="Pending")
    seen["metadata"] |= {"uid": "u-1", "resourceVersion": "1"}
    now = json.loads(json.dumps(seen))
    now["metadata"]["resourceVersion"] = "2"
    if meanwhile == "bound":
        now["spec"]["nodeName"] = "n1"
    elif meanwhile == "made anew":
        now["metadata"]["uid"] = "u-2"
    elif meanwhile == "relabelled":
        now["metadata"]["labels"] = {"q": "off"}
    else:
        now["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    patches = []

    class Client:
        async def get(self, kind, name, namespace):
            return now

        async def patch(self, kind, name, body, namespace, *, type):
            patches.append(body)

    obj = {"metadata": {"name": "p", "resourceVersion": "7"}, "spec": {"selector": {"matchLabels": {"q": "on"}}, "labels": {"added": "1"}}}
    profile = compile_profile(convert(obj, ClusterColocationProfile))
    informers = InformerFactory(Client())
    controller = ColocationProfileController(ClusterState(informers, Options()), informers, Writer(Client()), Options())

    async def run():
        assert await controller._update(profile, convert(seen, Pod))

    asyncio.run(run())
    assert patches == []
    now = json.loads(json.dumps(seen))
    now["metadata"]["resourceVersion"] = "3"
    asyncio.run(run())
    (body,) = patches
    assert body["metadata"] == {"labels": {"added": "1"}, "resourceVersion": "3"}, "whoever writes meanwhile is not overtaken"
