"""Every metric of the manager as it is scraped: names, labels and values that upstream's dashboards know."""

import re

import pytest

from koord.api.kinds import ELASTICQUOTAS

WEIGHT = "koord_manager_webhook_quota_shared_weight"
EXTENDED = "slo_controller_node_extended_resource_allocatable_internal"


def series(text):
    """Value by (name, labels) of everything scraped."""
    found = {}
    for name, labels, value in re.findall(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
        found[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))] = float(value)
    return found


def one(metric, /, **labels):
    return metric, frozenset(labels.items())


@pytest.mark.feature("MGR-MET-01")
def test_writes_parses_plugins_and_what_nodes_offer(bed, make):
    async def test(bed):
        await bed.create(make.config(colocation_config={"enable": True}), make.node("n1"), make.metric("n1", system=("9", "1Gi")))
        manager = await bed.start()

        async def written():
            found = series((await manager.get("/metrics"))[1])
            wanted = one("slo_controller_node_resource_reconcile_count", status="succeeded", reason="updateNodeStatus")
            return (
                found
                if found.get(wanted) and one("slo_controller_nodeslo_reconcile_count", status="succeeded", reason="createNodeSLO") in found
                else None
            )

        found = await bed.until(written)
        assert found[one("koordinator_manager_is_leader")] == 1
        assert found[one("koord_manager_config_errors")] == 0
        assert found[one("slo_controller_nodemetric_spec_parse_count", status="succeeded", reason="getNodeMetricCollectPolicy")] >= 1
        for reason in (
            "getResourceThresholdSpec", "getResourceQOSSpec", "getCPUBurstConfigSpec", "getSystemConfigSpec", "getHostApplicationConfig",
            "getNodeSLOExtension",
        ):  # fmt: skip
            assert found[one("slo_controller_nodeslo_spec_parse_count", status="succeeded", reason=reason)] >= 1
        for plugin in ("BatchResource", "MidResource"):
            run = one("slo_controller_node_resource_run_plugin_status", plugin=plugin, status="succeeded", reason="ResourceCalculate")
            assert found[run] >= 1
        steps = {
            "BatchResource": "Setup NodePreUpdate NodePrepare NodeStatusCheck",
            "ResourceAmplification": "Setup NodePrepare NodeStatusCheckMeta",
        }
        for plugin, reasons in steps.items():
            for reason in reasons.split():
                step = one("slo_controller_node_resource_run_plugin_status", plugin=plugin, status="succeeded", reason=reason)
                assert found[step] >= 1, reason
        # 32 cores and 60 % of them, less 9 for the system; in cores, as upstream shows batch-cpu
        assert found[one(EXTENDED, node="n1", resource="kubernetes.io/batch-cpu", unit="integer")] == 10.2
        assert found[one(EXTENDED, node="n1", resource="kubernetes.io/batch-memory", unit="byte")] > 2**30
        for name in ("workqueue_adds_total", "workqueue_queue_duration_seconds_count", "workqueue_work_duration_seconds_count"):
            assert found[one(name, name="noderesource")] >= 1
        assert one("workqueue_depth", name="nodeslo") in found

    bed(test)


@pytest.mark.feature("MGR-MET-01")
def test_a_mistake_in_the_configuration_and_the_time_of_webhooks(bed, make):
    async def test(bed):
        await bed.create(make.config(colocation_config="{"))
        manager = await bed.start()
        answer = await manager.review("/validate-pod", make.pod("p", labels={"koordinator.sh/qosClass": "LSR"}))
        assert answer["allowed"] is False
        found = series((await manager.get("/metrics"))[1])
        assert found[one("koord_manager_config_errors")] == 1
        assert found[one("slo_controller_nodemetric_spec_parse_count", status="failed", reason="getNodeMetricCollectPolicy")] >= 1
        timed = [dict(labels) for name, labels in found if name == "koord_manager_webhook_webhook_duration_milliseconds_count"]
        assert {"webhook_type", "object_type", "operation", "plugin_name", "status"} == set(timed[0])
        assert any((row["webhook_type"], row["operation"], row["status"]) == ("validate", "CREATE", "rejected") for row in timed)

    bed(test)


@pytest.mark.feature("MGR-MET-01")
def test_what_is_gone_has_no_series(bed, make):
    from koord.api.kinds import ELASTICQUOTAS, NODES

    quota = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"max": {"cpu": "2"}},
    }

    async def test(bed):
        await bed.create(make.config(colocation_config={"enable": True}), make.node("n1"), make.metric("n1", system=("2", "1Gi")))
        manager = await bed.start()
        made = await manager.review("/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota", quota, namespace="default")
        await bed.create(made["object"])

        async def told():
            text = (await manager.get("/metrics"))[1]
            return 'node="n1"' in text, 'elasticquota_name="q"' in text

        async def both():
            return await told() == (True, True)

        async def none():
            return await told() == (False, False)

        await bed.until(both)
        await bed.client.delete(NODES, "n1")
        await bed.client.delete(ELASTICQUOTAS, "q", "default")
        await bed.until(none)

    bed(test)


@pytest.mark.feature("MGR-MET-01")
@pytest.mark.feature("MGR-EQ-M-01")
def test_shared_weights_are_shown_of_quotas_that_come_to_be(bed):
    """Not of dry runs, nor of what another webhook or the API server refuses: nobody would ever delete those."""

    def quota(name):
        meta = {"name": name, "namespace": "default"}
        return {"apiVersion": ELASTICQUOTAS.api_version, "kind": "ElasticQuota", "metadata": meta, "spec": {"max": {"cpu": "4"}}}

    async def test(bed):
        manager = await bed.start()

        async def shown():
            found = series((await manager.get("/metrics"))[1])
            return {dict(labels)["elasticquota_name"]: value for (name, labels), value in found.items() if name == WEIGHT}

        path = "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"
        for name in ("dry", "refused", "kept"):
            assert (await manager.review(path, quota(name), namespace="default", dryRun=name == "dry"))["allowed"]
        assert await shown() == {}
        await bed.create(quota("dry"), quota("kept"))
        await bed.until(shown)
        assert await shown() == {"kept": 4000}
        await bed.client.delete(ELASTICQUOTAS, "kept", "default")

        async def gone():
            return await shown() == {}

        await bed.until(gone)

    bed(test)
