"""ElasticQuota, Node and ConfigMap webhooks through the HTTPS endpoint."""

import json

import pytest

from koord.api.kinds import ELASTICQUOTAS

QUOTA = "quota.scheduling.koordinator.sh/"
MUTATE, VALIDATE = "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota", "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"


def quota(name, minimum=None, maximum=None, labels=None, annotations=None, namespace="default"):
    labels = {f"{QUOTA}{key}": value for key, value in (labels or {}).items()}
    annotations = {f"{QUOTA}{key}": value for key, value in (annotations or {}).items()}
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {"min": minimum or {}, "max": maximum or {"cpu": "30", "memory": "60Gi"}},
    }


TOP = quota("top", {"cpu": "10", "memory": "20Gi"}, labels={"is-parent": "true", "parent": "koordinator-root-quota", "tree-id": "t"})
KID = quota("kid", {"cpu": "6"}, labels={"parent": "top", "tree-id": "t"}, annotations={"namespaces": '["ns-a"]'})


@pytest.mark.feature("MGR-EQ-M-01")
@pytest.mark.feature("SCH-EQ-14")
def test_quota_defaults(bed):
    async def test(bed):
        await bed.create(TOP)
        manager = await bed.start()
        found = (await manager.review(MUTATE, quota("k", labels={"parent": "top"})))["object"]["metadata"]
        assert found["labels"] == {f"{QUOTA}parent": "top", f"{QUOTA}tree-id": "t"}
        assert json.loads(found["annotations"][f"{QUOTA}shared-weight"]) == {"cpu": "30", "memory": "60Gi"}
        weight = quota("k", annotations={"shared-weight": '{"cpu":"1","gpu":"2"}'})
        found = (await manager.review(MUTATE, weight))["object"]["metadata"]
        assert found["labels"] == {f"{QUOTA}parent": "koordinator-root-quota"}
        assert json.loads(found["annotations"][f"{QUOTA}shared-weight"]) == {"cpu": "1", "memory": "60Gi"}
        for given in (quota("k", labels={"parent": "nobody"}), quota("k", annotations={"shared-weight": "{"})):
            assert not (await manager.review(MUTATE, given))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-EQ-V-01")
@pytest.mark.feature("SCH-EQ-14")
def test_quota_rules(bed, make):
    tree = {"parent": "top", "tree-id": "t"}
    refused = [
        (quota("top", labels={"tree-id": "t"}), "exists already"),
        (quota("k", annotations={"namespaces": '["ns-a"]'}, labels=tree), "already bound to quota kid"),
        (quota("k", {"gpu": "1"}, labels=tree), "spec.max does not"),
        (quota("k", {"cpu": "31"}, labels=tree), "greater than spec.max[cpu]"),
        (quota("k", {"cpu": "-1"}, labels=tree), "must not be negative"),
        (quota("k", annotations={"shared-weight": '{"cpu":"-1"}'}, labels=tree), "shared weight of cpu"),
        (quota("k", {"cpu": "5"}, labels=tree), "parent top would be 11000"),
        (quota("k", maximum={"cpu": "30"}, labels=tree), "memory differ"),
        (quota("k", labels={"parent": "top", "tree-id": "other"}), "must equal that of its parent top"),
        (quota("k", labels={"parent": "nobody", "tree-id": "t"}), "parent nobody does not exist"),
        (quota("k", labels={"parent": "kid", "tree-id": "t"}), "kid is not a parent quota"),
        (quota("k", maximum={"cpu": "what"}, labels=tree), "cannot be read"),
    ]

    async def test(bed):
        await bed.create(TOP, KID, make.pod("p", labels={f"{QUOTA}name": "kid"}))
        manager = await bed.start()
        for given, words in refused:
            answer = await manager.review(VALIDATE, given, namespace="default")
            assert answer["allowed"] is False, words
            assert words in answer["status"]["message"], answer["status"]["message"]
        forced = quota("k1", {"cpu": "9"}, labels={**tree, "allow-force-update": "true"})
        assert (await manager.review(VALIDATE, forced, namespace="default"))["allowed"]
        assert "exists already" in (await manager.review(VALIDATE, forced, namespace="default"))["status"]["message"]
        await bed.client.create(ELASTICQUOTAS, forced, "default")
        orphan = json.loads(json.dumps(TOP))
        orphan["metadata"]["labels"][f"{QUOTA}is-parent"] = "false"
        parent = json.loads(json.dumps(KID))
        parent["metadata"]["labels"][f"{QUOTA}is-parent"] = "true"
        for given, old, words in ((orphan, TOP, "has children"), (parent, KID, "pods are bound")):
            answer = await manager.review(VALIDATE, given, old=old, operation="UPDATE", namespace="default")
            assert words in answer["status"]["message"]
        status = {**KID, "status": {"used": {"cpu": "1"}}}
        assert (await manager.review(VALIDATE, status, old=KID, operation="UPDATE", namespace="default"))["allowed"]
        for name, words in (
            ("top", "2 children"),
            ("kid", "1 pods, among them default/p"),
            ("koordinator-default-quota", "managed"),
            ("x", "not known"),
        ):
            answer = await manager.review(VALIDATE, None, old=quota(name), operation="DELETE", name=name, namespace="default")
            assert words in answer["status"]["message"]

    bed(test)


@pytest.mark.feature("MGR-EQ-V-01")
@pytest.mark.feature("SCH-EQ-14")
def test_key_subsets_with_the_gate(bed):
    async def test(bed):
        await bed.create(TOP)
        manager = await bed.start(gates="ElasticQuotaEnableUpdateResourceKey=true")
        less = quota("k", maximum={"cpu": "30"}, labels={"parent": "top", "tree-id": "t"})
        assert (await manager.review(VALIDATE, less, namespace="default"))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-EQ-M-01")
def test_defaults_are_for_new_quotas_and_any_weight_is_answered(bed):
    async def test(bed):
        manager = await bed.start()
        plain = quota("k", maximum={"cpu": "4"})
        assert "patch" not in await manager.review(MUTATE, plain, old=plain, operation="UPDATE")
        empty = (await manager.review(MUTATE, quota("k", maximum={"cpu": "4"}, annotations={"shared-weight": "null"})))["object"]
        assert json.loads(empty["metadata"]["annotations"][f"{QUOTA}shared-weight"]) == {"cpu": "4"}
        for text in ("[]", "5", '"cpu"', '{"cpu":{}}'):
            answer = await manager.review(MUTATE, quota("k", annotations={"shared-weight": text}))
            assert "must be a JSON ResourceList" in answer["status"]["message"]

    bed(test)


@pytest.mark.feature("MGR-EQ-V-01")
def test_pods_bound_by_namespace_and_edits_of_weights_count(bed, make):
    async def test(bed):
        spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("own", "listed", "free")]
        quotas = (quota("own", namespace="own"), quota("far", annotations={"namespaces": '["listed"]'}), quota("free", namespace="free"))
        other = make.pod("labelled", namespace="free", labels={f"{QUOTA}name": "far"})
        await bed.create(*spaces, *quotas, make.pod("p", namespace="own"), make.pod("q", namespace="listed"), other)
        manager = await bed.start()
        for name, words in (("own", "1 pods, among them own/p"), ("far", "2 pods, among them free/labelled, listed/q")):
            answer = await manager.review(VALIDATE, None, old=quota(name), operation="DELETE", name=name, namespace="default")
            assert words in answer["status"]["message"]
        free = {"old": quotas[2], "namespace": "free"}
        assert (await manager.review(VALIDATE, None, operation="DELETE", name="free", **free))["allowed"]
        for text, allowed in (('{"cpu":"-1"}', False), ("[", False), ('{"cpu":"1"}', True)):
            edited = quota("free", namespace="free", annotations={"shared-weight": text})
            assert (await manager.review(VALIDATE, edited, operation="UPDATE", **free))["allowed"] is allowed

    bed(test)


RATIO, RAW = "node.koordinator.sh/resource-amplification-ratio", "node.koordinator.sh/raw-allocatable"


@pytest.mark.feature("MGR-NODE-M-01")
def test_node_status_is_amplified_once(bed, make):
    async def test(bed):
        manager = await bed.start(gates="NodeMutatingWebhook=true")
        old = make.node("n", cpu="10", memory="10Gi", annotations={RATIO: '{"cpu":1.5,"memory":0.9,"pods":2}'})
        first = await manager.review("/mutate-node-status", old, operation="UPDATE", old=old, sub_resource="status")
        node = first["object"]
        assert node["status"]["allocatable"] == {"cpu": "15", "memory": "10Gi", "pods": "110"}
        assert node["status"]["capacity"]["cpu"] == "10"
        assert json.loads(node["metadata"]["annotations"][RAW]) == {"cpu": "10", "memory": "10Gi"}
        again = await manager.review("/mutate-node-status", node, operation="UPDATE", old=node, sub_resource="status")
        assert "patch" not in again
        kubelet = json.loads(json.dumps(node))
        kubelet["status"]["allocatable"]["cpu"] = "9"
        found = (await manager.review("/mutate-node-status", kubelet, operation="UPDATE", old=node, sub_resource="status"))["object"]
        assert found["status"]["allocatable"]["cpu"] == "13500m"
        gone = json.loads(json.dumps(node))
        del gone["metadata"]["annotations"][RATIO]
        found = (await manager.review("/mutate-node-status", gone, operation="UPDATE", old=node, sub_resource="status"))["object"]
        assert RAW not in found["metadata"]["annotations"]
        gone["metadata"]["annotations"] = {RATIO: "{"}
        assert not (await manager.review("/mutate-node-status", gone, operation="UPDATE", old=node, sub_resource="status"))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-NODE-V-01")
def test_node_labels_may_not_match_two_entries(bed, make):
    entries = [{"name": key, "nodeSelector": {"matchLabels": {key: "1"}}} for key in ("a", "b")]

    async def test(bed):
        await bed.create(make.config(colocation_config={"nodeConfigs": entries}, cpu_burst_config="{"))
        manager = await bed.start(gates="NodeValidatingWebhook=true")
        one, two = make.node("n", labels={"a": "1"}), make.node("n", labels={"a": "1", "b": "1"})
        answer = await manager.review("/validate-node", two, operation="UPDATE", old=one)
        assert "colocation-config: a, b" in answer["status"]["message"]
        for given in ({"operation": "UPDATE", "old": two}, {"operation": "CREATE"}):
            assert (await manager.review("/validate-node", two, **given))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-CM-V-01")
def test_configmap_rules(bed, make):
    def nodes(*entries):
        return [{"name": f"e{i}", "nodeSelector": selector, **fields} for i, (selector, fields) in enumerate(entries)]

    a, b = {"matchLabels": {"a": "1"}}, {"matchLabels": {"b": "1"}}
    within = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["0", "1"]}]}
    net = [{"networkQOS": {"ingressRequest": amount}} for amount in (60, 41, "10M")]

    def threshold(**fields):
        return {"resource_threshold_config": {"clusterStrategy": fields}}

    def qos(**classes):
        return {"resource_qos_config": {"clusterStrategy": classes}}

    invalid = "ConfigParamInvalid"
    refused = [
        ({"colocation_config": "{"}, "ParseConfigFail", "not valid JSON"),
        ({"colocation_config": {"degradeTimeMinutes": "5"}}, "ParseConfigFail", "degradeTimeMinutes"),
        (threshold(evictEnabledPriorityThreshold=3_000_000_000), "ParseConfigFail", "signed 32-bit"),
        ({"colocation_config": {"resourceDiffThreshold": 1.5}}, invalid, "at most 1"),
        ({"colocation_config": {"nodeConfigs": [{"nodeSelector": {}}]}}, invalid, "nodeConfigs[0].nodeSelector"),
        (threshold(memoryEvictLowerPercent=70), invalid, "memoryEvictThresholdPercent beside it"),
        (threshold(cpuEvictThresholdPercent=60, cpuEvictLowerPercent=60), invalid, "less than"),
        ({"cpu_burst_config": {"clusterStrategy": {"cpuBurstPercent": 0}}}, invalid, "between 1 and 10000"),
        ({"system_config": {"clusterStrategy": {"watermarkScaleFactor": 401}}}, invalid, "400"),
        (qos(beClass={"memoryQOS": {"priority": 13}}), invalid, "memoryQOS.priority"),
        (qos(lsClass=net[0], beClass=net[1]), invalid, "more than 100"),
        (qos(lsClass=net[0], beClass=net[2]), invalid, "all percents"),
        ({"cpu_burst_config": {"nodeStrategies": nodes((a, {}), (within, {}))}}, "NodeStrategiesOverlap", "e0, e1"),
        ({"cpu_burst_config": {"nodeStrategies": nodes((a, {}), (b, {}))}}, "ExistNodeConfict", "node both"),
        ({"host_application_config": {"applications": [{"qos": "what"}]}}, invalid, "qos"),
    ]

    async def test(bed):
        await bed.create(make.node("both", labels={"a": "1", "b": "1"}))
        manager = await bed.start(gates="ConfigMapValidatingWebhook=true")

        async def ask(given, old=None, **extra):
            options = {"namespace": "koordinator-system", "operation": "UPDATE" if old else "CREATE", **extra}
            return await manager.review("/validate-configmap", given, old=old, **options)

        for keys, reason, words in refused:
            answer = await ask(make.config(**keys))
            assert answer["allowed"] is False, keys
            message = answer["status"]["message"]
            body = json.loads(message.removeprefix("___").removesuffix("___"))
            assert body["reason"] == reason, body
            assert words in body["message"], body
        bad = make.config(colocation_config="{")
        assert (await ask(bad, old=bad))["allowed"]
        assert (await ask(bad, namespace="default"))["allowed"]
        assert (await ask(None, old=None, operation="DELETE", name="slo-controller-config"))["allowed"]
        named = await bed.start(gates="ConfigMapValidatingWebhook=true", node_strategy_name_need_check=True)
        twice = make.config(cpu_burst_config={"nodeStrategies": [{"name": "x", "nodeSelector": {"matchLabels": {"q": v}}} for v in "12"]})
        assert "already the name" in (await named.review("/validate-configmap", twice, namespace="koordinator-system"))["status"]["message"]
        assert (await ask(twice))["allowed"]

    bed(test)


@pytest.mark.feature("API-CM-01")
def test_every_key_of_the_configmap_is_known_and_a_misspelt_field_is_not(bed, make):
    good = {
        "colocation_config": {"enable": True, "cpuReclaimThresholdPercent": 70},
        "resource_threshold_config": {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60}},
        "resource_qos_config": {"clusterStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}},
        "cpu_burst_config": {"clusterStrategy": {"policy": "auto", "cfsQuotaBurstPercent": 250}},
        "system_config": {"clusterStrategy": {"minFreeKbytesFactor": 100, "totalNetworkBandwidth": "10G"}},
        "host_application_config": {"applications": [{"name": "nginx", "qos": "LS", "priority": "koord-prod"}]},
        "cpu_normalization_config": {"enable": True},
        "resource_amplification_config": {"enable": True, "resourceAmplificationRatio": {"cpu": 1.5}},
    }

    async def test(bed):
        manager = await bed.start(gates="ConfigMapValidatingWebhook=true")

        async def ask(config):
            return await manager.review("/validate-configmap", config, namespace="koordinator-system")

        whole = await ask(make.config(**good))
        assert whole["allowed"], whole
        for key, value in good.items():
            assert (await ask(make.config(**{key: value})))["allowed"], key
            assert not (await ask(make.config(**{key: "["})))["allowed"], key

    bed(test)


@pytest.mark.feature("MGR-WH-01")
def test_objects_of_a_wrong_shape_are_refused_with_the_place(bed, make):
    """Custom resources come to mutating webhooks before their schema is looked at; a Reservation's template has none at all."""

    async def test(bed):
        await bed.create(
            {
                "apiVersion": "config.koordinator.sh/v1alpha1",
                "kind": "ClusterColocationProfile",
                "metadata": {"name": "all"},
                "spec": {"schedulerName": "s"},
            }
        )
        manager = await bed.start(gates="ReservationMutatingWebhook=true,NodeMutatingWebhook=true")
        node = make.node("n", annotations={RATIO: '{"cpu":1.5}'})
        wrong = [
            ("/mutate-reservation", {"spec": {"template": "x"}}, "$.spec.template", {}),
            ("/mutate-reservation", {"spec": {"template": {"spec": ["x"]}}}, "$.spec.template.spec", {}),
            (
                "/mutate-pod",
                {"spec": {"containers": [{"name": "a", "resources": {"requests": "1"}}]}},
                "$.spec.containers[0].resources",
                {},
            ),
            (MUTATE, {"metadata": {"name": "k"}, "spec": "x"}, "$.spec", {}),
            (MUTATE, quota("k", maximum={"cpu": "x"}), "'x' is not a quantity", {}),
            ("/mutate-node-status", {**node, "status": 5}, "$.status", {"operation": "UPDATE", "old": node, "sub_resource": "status"}),
        ]
        for path, given, words, extra in wrong:
            answer = await manager.review(path, given, **extra)
            assert answer["allowed"] is False
            assert answer["status"]["code"] == 400
            assert "cannot be read" in answer["status"]["message"]
            assert words in answer["status"]["message"]
        assert (await manager.review(MUTATE, {"metadata": None, "spec": {"max": {"cpu": "1"}}}))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-WH-01")
@pytest.mark.parametrize(
    ("spec", "place"),
    [({"containers": [None]}, "spec.containers[0]"), ({"containers": [{"name": "c", "resources": []}]}, "spec.containers[0].resources")],
)
def test_a_pod_of_a_wrong_shape_is_refused_with_the_place(bed, caplog, spec, place):
    async def test(bed):
        manager = await bed.start()
        for path in ("/mutate-pod", "/validate-pod"):
            answer = await manager.review(path, {"metadata": {"name": "w"}, "spec": spec})
            assert answer["allowed"] is False
            assert answer["status"]["code"] == 400
            assert place in answer["status"]["message"]
        assert not [record for record in caplog.records if record.exc_info]

    bed(test)
