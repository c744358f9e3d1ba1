"""Extended resources through the API: objects in, Node status out."""

import asyncio
import json

import pytest

from koord.api.kinds import NODES
from koord.api.objects import Node, convert
from koord.config.colocation import DEFAULT_STRATEGY
from koord.kube.client import Client
from koord.kube.errors import ApiError
from roles.manager.noderesource import amplification, zones
from roles.manager.noderesource.inputs import reserved
from roles.manager.noderesource.model import Inputs

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
MID_CPU, MID_MEMORY = "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"
RATIO = "node.koordinator.sh/cpu-normalization-ratio"
AMPLIFICATION = "node.koordinator.sh/resource-amplification-ratio"
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"
GI = 1 << 30


def amounts(obj, section="allocatable"):
    from koord.api.quantity import parse_value

    return {name: parse_value(quantity) for name, quantity in obj["status"][section].items()}


async def settled(bed, name, resource, wanted, seconds=10.0):
    async def look():
        return amounts(await bed.get("Node", name)).get(resource) == wanted

    try:
        await bed.until(look, seconds)
    except BaseException:
        print("node:", json.dumps(await bed.get("Node", name), indent=1))
        raise
    return await bed.get("Node", name)


@pytest.mark.feature("MGR-NR-BATCH-01")
@pytest.mark.feature("MGR-NR-01")
def test_worked_example_with_every_term_in_the_record(bed, make):
    async def test(bed):
        await bed.create(
            make.config(colocation_config={"enable": True}),
            make.node("n1", allocatable={"cpu": "30", "memory": "120Gi"}),
            make.pod("a", "n1", requests={"cpu": "8", "memory": "8Gi"}, labels={"koordinator.sh/qosClass": "LS"}, priority="koord-prod"),
            make.pod("b", "n1", requests={"cpu": "4", "memory": "4Gi"}, labels={"koordinator.sh/qosClass": "LS"}, priority="koord-prod"),
            make.pod("c", "n1", requests={BATCH_CPU: "4000"}, labels={"koordinator.sh/qosClass": "BE"}, priority="koord-batch"),
            make.metric(
                "n1",
                system=("1200m", "2Gi"),
                pods=[("default", "a", "koord-prod", ("3", "6Gi")), ("default", "c", "koord-batch", ("2", "1Gi"))],
            ),
        )
        manager = await bed.start()
        found = await settled(bed, "n1", BATCH_CPU, 10200)
        assert amounts(found, "capacity")[BATCH_CPU] == 10200
        # 128 − 35 % − max(2, 8) − (6 used by a + 4 requested by b without metric)
        assert amounts(found)[BATCH_MEMORY] == 128 * GI - int(128 * GI * 0.35) - 8 * GI - 10 * GI
        _, text = await manager.get("/debug/decisions?kind=Node&name=n1")
        record = json.loads(text)[-1]
        terms = {term["name"]: term.get("value", 0) for term in record["terms"]}
        assert record["verdict"] == "Allocatable"
        assert (terms["cpu.total"], terms["cpu.margin"], terms["cpu.reserved"], terms["cpu.hpUsed"]) == (32000, 12800, 2000, 7000)
        assert record["numbers"][BATCH_CPU] == 10200

    bed(test)


@pytest.mark.feature("MGR-NR-01")
def test_missing_or_stale_metrics_degrade_and_fresh_ones_bring_it_back(bed, make):
    async def test(bed):
        given = {BATCH_CPU: "5000", BATCH_MEMORY: "1Gi", MID_CPU: "1000"}
        await bed.create(
            make.config(colocation_config={"enable": True, "degradeTimeMinutes": 5}),
            make.node("stale", extra=given),
            make.node("silent", extra=given),
            make.node("fresh", extra=given),
            make.metric("stale", minutes_ago=5.2),
            make.metric("fresh", minutes_ago=4.5, system=("2", "1Gi")),
        )
        await bed.start()
        await settled(bed, "fresh", BATCH_CPU, 19200 - 2000)
        for name in ("stale", "silent"):
            found = await settled(bed, name, BATCH_CPU, None)
            assert not {BATCH_MEMORY, MID_CPU} & set(found["status"]["capacity"])
            assert found["status"]["allocatable"]["cpu"] == "32"
        from koord.api.kinds import NODEMETRICS

        status = make.metric("stale", system=("1", "1Gi"))["status"]
        await bed.client.patch(NODEMETRICS, "stale", {"status": status}, subresource="status")
        await settled(bed, "stale", BATCH_CPU, 18200)

    bed(test)


@pytest.mark.feature("MGR-NR-01")
def test_metric_without_a_body_is_degraded_not_a_crash(bed, make):
    async def test(bed):
        broken = make.metric("n1")
        del broken["status"]["nodeMetric"]
        await bed.create(make.config(colocation_config={"enable": True}), make.node("n1", extra={BATCH_CPU: "7"}), broken)
        await bed.create(make.node("n2"), make.metric("n2", system=("1", "1Gi")))
        await bed.start()
        await settled(bed, "n1", BATCH_CPU, None)
        await settled(bed, "n2", BATCH_CPU, 18200)

    bed(test)


@pytest.mark.feature("MGR-NR-BATCH-01")
def test_policies_reservations_hosts_and_thresholds(bed, make):
    async def test(bed):
        pools = {
            "max": {"cpuCalculatePolicy": "maxUsageRequest", "memoryCalculatePolicy": "maxUsageRequest"},
            "req": {"memoryCalculatePolicy": "request"},
            "cap": {"batchCPUThresholdPercent": 10, "batchMemoryThresholdPercent": 5},
            "over": {"cpuReclaimThresholdPercent": 110},
        }
        entries = [{"name": pool, "nodeSelector": {"matchLabels": {"pool": pool}}, **fields} for pool, fields in pools.items()]
        await bed.create(make.config(colocation_config={"enable": True, "cpuReclaimThresholdPercent": 100, "nodeConfigs": entries}))
        for pool in pools:
            await bed.create(
                make.node(
                    pool,
                    labels={"pool": pool},
                    allocatable={"cpu": "31"},
                    annotations={"node.koordinator.sh/reservation": '{"reservedCPUs":"0-2"}'},
                ),
                make.pod(
                    f"lse-{pool}",
                    pool,
                    requests={"cpu": "4", "memory": "4Gi"},
                    labels={"koordinator.sh/qosClass": "LSE"},
                    priority="koord-prod",
                ),
                make.pod(
                    f"idle-{pool}",
                    pool,
                    requests={"cpu": "6", "memory": "6Gi"},
                    labels={"koordinator.sh/qosClass": "LS"},
                    priority="koord-prod",
                ),
                make.pod(f"done-{pool}", pool, requests={"cpu": "9"}, phase="Succeeded", priority="koord-prod"),
                make.metric(
                    pool,
                    system=("1", "1Gi"),
                    hosts=[("nginx", "koord-prod", ("3", "1Gi")), ("spark", "koord-batch", ("5", "5Gi"))],
                    pods=[
                        ("default", f"lse-{pool}", "koord-prod", ("1", "1Gi")),
                        ("default", f"idle-{pool}", "koord-prod", ("500m", "1Gi")),
                        ("default", f"done-{pool}", "koord-prod", ("2", "2Gi")),
                        ("default", "gone-batch", "koord-batch", ("3", "3Gi")),
                    ],
                ),
            )
        await bed.start()
        margin = int(128 * GI * 0.35)
        # sys = max(1 + 3 of the prod host application, reserved 3) = 4; LSE keeps its cpu request; the finished pod's usage counts
        found = await settled(bed, "max", BATCH_CPU, 32000 - 4000 - (4000 + 6000 + 2000))
        assert amounts(found)[BATCH_MEMORY] == 128 * GI - margin - 2 * GI - (4 + 6 + 2) * GI
        found = await settled(bed, "req", BATCH_CPU, 32000 - 4000 - (4000 + 500 + 2000))
        assert amounts(found)[BATCH_MEMORY] == 128 * GI - margin - 10 * GI
        found = await settled(bed, "cap", BATCH_CPU, 3200)
        assert amounts(found)[BATCH_MEMORY] == int(128 * GI * 0.05)
        await settled(bed, "over", BATCH_CPU, 32000 + 3200 - 4000 - 6500)

    bed(test)


@pytest.mark.feature("MGR-NR-01")
def test_small_differences_wait_and_hand_made_changes_are_mended(bed, make):
    from koord.api.kinds import NODEMETRICS, NODES

    async def test(bed):
        await bed.create(
            make.config(colocation_config={"enable": True, "resourceDiffThreshold": 0.1}),
            make.node("n1"),
            make.metric("n1", system=("2", "1Gi")),
        )
        await bed.start()
        await settled(bed, "n1", BATCH_CPU, 17200)
        await bed.client.patch(NODEMETRICS, "n1", {"status": make.metric("n1", system=("2500m", "1Gi"))["status"]}, subresource="status")
        await bed.client.patch(NODEMETRICS, "n1", {"metadata": {"labels": {"seen": "1"}}})
        import asyncio

        await asyncio.sleep(0.6)
        assert amounts(await bed.get("Node", "n1"))[BATCH_CPU] == 17200
        await bed.client.patch(NODES, "n1", {"status": {"allocatable": {BATCH_CPU: "99k"}}}, subresource="status")
        await settled(bed, "n1", BATCH_CPU, 16700)

    bed(test)


@pytest.mark.feature("MGR-NR-01")
def test_switching_off_resets_and_leaves_devices(bed, make):
    from koord.api.kinds import CONFIGMAPS

    async def test(bed):
        await bed.create(
            make.config(
                colocation_config={"enable": True},
                resource_amplification_config={"enable": True, "resourceAmplificationRatio": {"cpu": 1.5}},
            ),
            make.node("n1", annotations={RATIO: "1.20"}),
            make.metric("n1", system=("2", "1Gi")),
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "Device",
                "metadata": {"name": "n1", "labels": {"node.koordinator.sh/gpu-model": "A100"}},
                "spec": {
                    "devices": [
                        {
                            "type": "gpu",
                            "minor": 0,
                            "health": True,
                            "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "80Gi"},
                        },
                        {"type": "gpu", "minor": 1, "health": False, "resources": {"koordinator.sh/gpu-core": "100"}},
                        {"type": "rdma", "minor": 0, "health": True},
                        {"type": "rdma", "minor": 1, "health": True},
                    ]
                },
            },
        )
        await bed.start()
        found = await settled(bed, "n1", BATCH_CPU, 17200)
        assert amounts(found)["koordinator.sh/gpu"] == 100
        assert amounts(found)["koordinator.sh/rdma"] == 200

        async def annotated():
            meta = (await bed.get("Node", "n1"))["metadata"]
            return (
                meta["annotations"].get(RATIO) == "1.00"
                and meta["annotations"].get(AMPLIFICATION) == '{"cpu":1.50}'
                and meta["labels"].get("node.koordinator.sh/gpu-model")
            )

        await bed.until(annotated)
        await bed.client.patch(
            CONFIGMAPS, "slo-controller-config", {"data": {"colocation-config": '{"enable":false}'}}, "koordinator-system"
        )
        found = await settled(bed, "n1", BATCH_CPU, None)
        assert amounts(found)["koordinator.sh/gpu-memory"] == 80 * GI

        async def unamplified():
            annotations = (await bed.get("Node", "n1"))["metadata"]["annotations"]
            return AMPLIFICATION not in annotations and annotations[RATIO] == "1.00"

        await bed.until(unamplified)

    bed(test)


@pytest.mark.feature("MGR-NR-NORM-01")
@pytest.mark.feature("MGR-NR-AMP-01")
@pytest.mark.feature("MGR-NR-BATCH-02")
@pytest.mark.feature("MGR-NR-BATCH-03")
def test_normalization_zones_third_parties_and_amplification(bed, make):
    async def test(bed):
        zone = {
            "type": "Node",
            "resources": [{"name": n, "capacity": q, "allocatable": q, "available": q} for n, q in (("cpu", "16"), ("memory", "64Gi"))],
        }
        third = {
            "allocations": [
                {"name": "hadoop", "priority": "koord-batch", "resources": {BATCH_CPU: "1k"}},
                {"name": "x", "priority": "koord-mid", "resources": {BATCH_CPU: "5k"}},
            ]
        }
        await bed.create(
            make.config(
                colocation_config={"enable": True},
                cpu_normalization_config={"enable": True, "ratioModel": {"M": {"turboEnabledRatio": 1.1}}, "defaultRatio": 1.2},
                resource_amplification_config={"enable": True, "resourceAmplificationRatio": {"cpu": 1.5, "memory": 1.25}},
            ),
            {
                "apiVersion": "topology.node.k8s.io/v1alpha1",
                "kind": "NodeResourceTopology",
                "metadata": {"name": "n1", "annotations": {"node.koordinator.sh/cpu-basic-info": '{"cpuModel":"M","turboEnabled":true}'}},
                "topologyPolicies": ["None"],
                "zones": [{"name": "node-0", **zone}, {"name": "node-1", **zone}],
            },
            make.node("n1", annotations={"node.koordinator.sh/thirdPartyAllocations": json.dumps(third)}),
            make.pod("ls", "n1", requests={"cpu": "2", "memory": "2Gi"}, labels={"koordinator.sh/qosClass": "LS"}, priority="koord-prod"),
            make.metric("n1", system=("1001m", "1Gi"), pods=[("default", "ls", "koord-prod", ("1", "1Gi"))]),
        )
        await bed.start()
        batch = 19200 - 1001 - 1000
        scaled = -(-batch * 1100 // 1000)
        found = await settled(bed, "n1", BATCH_CPU, scaled - 1000)
        assert amounts(found, "capacity")[BATCH_CPU] == scaled - 1000

        async def annotated():
            annotations = (await bed.get("Node", "n1"))["metadata"]["annotations"]
            return annotations.get(AMPLIFICATION) == '{"cpu":1.65,"memory":1.25}' and annotations

        annotations = await bed.until(annotated)
        assert annotations[RATIO] == "1.10"
        assert json.loads(annotations[ORIGIN])["resources"][BATCH_CPU] == str(scaled)

        async def zoned():
            zones = (await bed.get("NodeResourceTopology", "n1"))["zones"]
            return all(len(z["resources"]) == 4 for z in zones) and zones

        zones = await bed.until(zoned)
        assert [r["name"] for r in zones[0]["resources"]] == sorted(r["name"] for r in zones[0]["resources"])
        per_zone = 16000 - int(16000 * 0.4) - 501 - 500
        cpu = next(r for r in zones[1]["resources"] if r["name"] == BATCH_CPU)
        assert cpu["allocatable"] == cpu["capacity"] == cpu["available"] == str(-(-per_zone * 1100 // 1000))

    bed(test)


@pytest.mark.feature("MGR-NR-BATCH-02")
def test_percents_of_a_zone_are_truncated_to_bytes(bed, make):
    def zone(name, memory):
        given = (("cpu", "16"), ("memory", memory))
        resources = [{"name": resource, "capacity": q, "allocatable": q, "available": q} for resource, q in given]
        return {"name": name, "type": "Node", "resources": resources}

    async def test(bed):
        # The margin of zone 0 is a whole number and 0.85 bytes: those must not add up with its half byte of the odd system usage.
        total, system = 68719476751, 3000000001
        await bed.create(
            make.config(colocation_config={"enable": True, "batchMemoryThresholdPercent": 90}),
            {
                "apiVersion": "topology.node.k8s.io/v1alpha1",
                "kind": "NodeResourceTopology",
                "metadata": {"name": "n1"},
                "topologyPolicies": ["None"],
                "zones": [zone("node-0", str(total)), zone("node-1", "1000000007")],
            },
            make.node("n1"),
            make.metric("n1", system=("0", str(system))),
        )
        await bed.start()

        async def zoned():
            zones = (await bed.get("NodeResourceTopology", "n1"))["zones"]
            return [next(item["allocatable"] for item in zone["resources"] if item["name"] == BATCH_MEMORY) for zone in zones]

        left = total - int(total * 0.35) - system / 2
        assert left % 1 == 0.5
        assert await bed.until(zoned) == [str(int(left) + 1), "0"]

    bed(test)


@pytest.mark.feature("MGR-NR-BATCH-02")
def test_what_stands_in_a_zone_and_is_no_amount_is_written_anew():
    present = {"name": BATCH_CPU, "capacity": "many", "allocatable": None, "available": "1k"}
    (written,) = zones.write([{"name": "node-0", "resources": [present]}], {"node-0": {BATCH_CPU: 1000}}, None, 0.1)
    assert written["resources"] == [{"name": BATCH_CPU, "capacity": "1k", "allocatable": "1k", "available": "1k"}]


@pytest.mark.feature("MGR-NR-NORM-01")
def test_unknown_cpu_keeps_the_ratio_that_stands_and_counts_it(bed, make):
    """Pods are divided by the ratio that the node shows: Batch of another one would take away a part of the node."""

    async def test(bed):
        await bed.create(
            make.config(colocation_config={"enable": True}, cpu_normalization_config={"enable": True}),
            make.node("n1", annotations={RATIO: "1.37"}),
            make.metric("n1", system=("2", "1Gi")),
        )
        manager = await bed.start()
        await settled(bed, "n1", BATCH_CPU, 23564)  # 17200 × 1.37
        assert (await bed.get("Node", "n1"))["metadata"]["annotations"][RATIO] == "1.37"
        _, text = await manager.get("/debug/decisions?kind=Node&name=n1")
        assert "NodeResourceTopology of the node is missing" in text

    bed(test)


@pytest.mark.feature("MGR-NR-GPU-01")
@pytest.mark.feature("MGR-NR-NORM-01")
@pytest.mark.parametrize(
    ("basic_info", "wrong"),
    [
        ('{"cpuModel":["M"]}', "cpuModel must be a string"),
        ('{"cpuModel":"M","turboEnabled":"yes"}', "turboEnabled must be true or false"),
    ],
)
def test_what_agents_report_wrongly_costs_only_its_own_plugin(bed, make, basic_info, wrong):
    async def test(bed):
        await bed.create(
            make.config(
                colocation_config={"enable": True}, cpu_normalization_config={"enable": True, "ratioModel": {"M": {"baseRatio": 2}}}
            ),
            {
                "apiVersion": "topology.node.k8s.io/v1alpha1",
                "kind": "NodeResourceTopology",
                "metadata": {"name": "n1", "annotations": {"node.koordinator.sh/cpu-basic-info": basic_info}},
                "topologyPolicies": ["None"],
                "zones": [],
            },
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "Device",
                "metadata": {"name": "n1"},
                "spec": {"devices": [{"type": "gpu", "minor": 0, "health": True, "resources": {"koordinator.sh/gpu-core": "-5"}}]},
            },
            make.node("n1"),
            make.metric("n1", system=("2", "1Gi")),
        )
        manager = await bed.start()
        found = await settled(bed, "n1", BATCH_CPU, 17200)
        assert "koordinator.sh/gpu-core" not in found["status"]["allocatable"]
        _, text = await manager.get("/debug/decisions?kind=Node&name=n1")
        assert wrong in text
        assert "sum up to less than 0" in text

    bed(test)


@pytest.mark.feature("MGR-NR-MID-01")
def test_mid_dynamic_and_static(bed, make):
    async def test(bed):
        entries = [
            {
                "name": "s",
                "nodeSelector": {"matchLabels": {"mid": "static"}},
                "midReclaimMode": "static",
                "midStaticCPUReservedPercent": 25,
                "midMemoryThresholdPercent": 10,
                "midStaticMemoryReservedPercent": 50,
            }
        ]
        await bed.create(
            make.config(
                colocation_config={"enable": True, "midUnallocatedPercent": 50, "midCPUThresholdPercent": 45, "nodeConfigs": entries}
            )
        )
        for name, labels in (("dyn", {}), ("sta", {"mid": "static"})):
            await bed.create(
                make.node(name, labels=labels),
                make.pod(
                    f"p-{name}",
                    name,
                    requests={"cpu": "10", "memory": "10Gi"},
                    labels={"koordinator.sh/qosClass": "LS"},
                    priority="koord-prod",
                ),
                make.metric(
                    name,
                    system=("2", "2Gi"),
                    usage=("25", "20Gi"),
                    reclaimable=("9", "9Gi"),
                    pods=[(("default"), f"p-{name}", "koord-prod", ("1", "1Gi"))],
                ),
            )
        await bed.start()
        # base min(9, 32 − 25) = 7, unallocated 32 − 2 − 10 = 20 → 17, capped at 45 % of 32
        found = await settled(bed, "dyn", MID_CPU, 14400)
        assert amounts(found)[MID_MEMORY] == 9 * GI + 58 * GI
        found = await settled(bed, "sta", MID_CPU, 8000)
        assert amounts(found)[MID_MEMORY] == int(128 * GI * 0.1)

    bed(test)


@pytest.mark.feature("API-RES-01")
@pytest.mark.feature("MGR-NR-GPU-01")
def test_devices_with_names_of_former_releases_count(bed, make):
    async def test(bed):
        old = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory": "80Gi", "koordinator.sh/gpu-memory-ratio": "100"}
        device = {"type": "gpu", "minor": 0, "health": True, "resources": {**old, "kubernetes.io/gpu-memory-ratio": "7"}}
        await bed.create(
            make.config(colocation_config={"enable": True}),
            make.node("n1"),
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "Device",
                "metadata": {"name": "n1"},
                "spec": {"devices": [device]},
            },
        )
        await bed.start()
        found = amounts(await settled(bed, "n1", "koordinator.sh/gpu-core", 100))
        assert (found["koordinator.sh/gpu"], found["koordinator.sh/gpu-memory"]) == (100, 80 * GI)
        assert found["koordinator.sh/gpu-memory-ratio"] == 100
        assert not [name for name in found if name.startswith("kubernetes.io/gpu")]

    bed(test)


@pytest.mark.feature("MGR-NR-GPU-01")
@pytest.mark.feature("MGR-NR-RDMA-01")
def test_devices_come_change_and_go(bed, make):
    from koord.api.kinds import DEVICES

    def device(*devices, vendor="nvidia"):
        labels = {"node.koordinator.sh/gpu-vendor": vendor, "node.koordinator.sh/gpu-model": "A100"}
        meta = {"name": "n1", "labels": labels}
        return {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": meta, "spec": {"devices": list(devices)}}

    def gpu(minor, health=True):
        resources = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "80Gi", "koordinator.sh/gpu-memory-ratio": "100"}
        return {"type": "gpu", "minor": minor, "health": health, "resources": resources}

    async def test(bed):
        both = (gpu(0), gpu(1), gpu(2, health=False), {"type": "rdma", "minor": 0, "health": True})
        await bed.create(make.config(colocation_config={"enable": True}), make.node("n1"), device(*both))
        await bed.start(gates="EnableSyncGPUSharedResource=true")
        found = amounts(await settled(bed, "n1", "koordinator.sh/gpu", 200))
        assert (found["koordinator.sh/gpu.shared"], found["koordinator.sh/gpu-memory"], found["koordinator.sh/rdma"]) == (
            200,
            160 * GI,
            100,
        )

        async def labelled():
            return (await bed.get("Node", "n1"))["metadata"]["labels"].get("node.koordinator.sh/gpu-vendor") == "nvidia"

        await bed.until(labelled)
        await bed.client.patch(DEVICES, "n1", {"spec": {"devices": [gpu(0), {"type": "rdma", "minor": 0, "health": False}]}})
        await settled(bed, "n1", "koordinator.sh/gpu-core", 100)
        await settled(bed, "n1", "koordinator.sh/rdma", None)
        await bed.client.delete(DEVICES, "n1")
        found = await settled(bed, "n1", "koordinator.sh/gpu", None)
        assert not [name for name in amounts(found) if name.startswith("koordinator.sh/")]
        # labels of what once was there are not taken away
        assert found["metadata"]["labels"]["node.koordinator.sh/gpu-model"] == "A100"

    bed(test)


@pytest.mark.feature("MGR-NR-GPU-01")
def test_devices_are_offered_while_colocation_is_off(bed, make):
    from koord.api.kinds import DEVICES

    def cards(count):
        resources = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
        return [{"type": "gpu", "minor": minor, "health": True, "resources": resources} for minor in range(count)]

    async def test(bed):
        foreign = {"koordinator.sh/gpu-core": "300"}
        device = {"apiVersion": DEVICES.api_version, "kind": "Device", "metadata": {"name": "n1"}, "spec": {"devices": cards(2)}}
        await bed.create(make.node("n1"), make.node("n2", allocatable=foreign, extra=foreign), device)
        await bed.start()
        await settled(bed, "n1", "koordinator.sh/gpu", 200)
        await bed.client.patch(DEVICES, "n1", {"spec": {"devices": cards(1)}})
        await settled(bed, "n1", "koordinator.sh/gpu-core", 100)
        await bed.client.delete(DEVICES, "n1")
        await settled(bed, "n1", "koordinator.sh/gpu-core", None)
        # nobody has ever reported a Device of the other node: what stands there is somebody else's
        assert amounts(await bed.get("Node", "n2"))["koordinator.sh/gpu-core"] == 300

    bed(test)


@pytest.mark.feature("MGR-NR-AMP-01")
@pytest.mark.parametrize(
    ("annotation", "ratio", "kept"),
    [("1.20", 1.5, True), ("1e308", 1.5, False), ("1e308", 1e308, False), ("6", 1.5, False), ("5", 1e308, False), ("inf", 1.5, False)],
)
def test_nobody_amplifies_without_end(make, annotation, ratio, kept):
    """`inf` is no JSON: the node webhook would refuse every status of the kubelet."""
    node = convert(make.node("n1", annotations={"node.koordinator.sh/cpu-normalization-ratio": annotation}), Node)
    configured = {"enable": True, "resourceAmplificationRatio": {"cpu": ratio, 'a"b': 2}}
    inputs = Inputs(node=node, strategy=DEFAULT_STRATEGY, now=0.0, amplification=configured)
    text = amplification.calculate(inputs).annotations[AMPLIFICATION]
    assert text is None if not kept else json.loads(text) == {"cpu": 1.8, 'a"b': 2}


@pytest.mark.feature("MGR-NR-GPU-01")
def test_a_device_that_goes_after_its_node_is_not_remembered(bed, make):
    from koord.api.kinds import DEVICES, NODES

    async def test(bed):
        device = {"apiVersion": DEVICES.api_version, "kind": "Device", "metadata": {"name": "n1"}, "spec": {"devices": []}}
        await bed.create(make.node("n1"), make.node("n2"), device, {**device, "metadata": {"name": "n2"}})
        manager = await bed.start()
        (controller,) = (one for one in manager.app.controllers if one.name == "noderesource")
        await bed.client.delete(NODES, "n1")

        async def gone(store):
            return len(store) == 1

        await bed.until(lambda: gone(manager.app.state.nodes))
        await bed.client.delete(DEVICES, "n1")
        await bed.until(lambda: gone(manager.app.state.devices))
        assert controller._without_device == set()
        await bed.client.delete(DEVICES, "n2")
        await bed.until(lambda: gone(controller._without_device))
        await bed.client.delete(NODES, "n2")

        async def forgotten():
            return not controller._without_device

        await bed.until(forgotten)

    bed(test)


@pytest.mark.feature("MGR-NR-BATCH-01")
@pytest.mark.feature("MGR-NR-AMP-01")
def test_what_the_kubelet_keeps_back_of_an_amplified_node_stays_reserved(make):
    def kept(allocatable, raw=None):
        annotations = {} if raw is None else {"node.koordinator.sh/raw-allocatable": raw}
        return reserved(convert(make.node("n1", cpu="32", memory="128Gi", allocatable=allocatable, annotations=annotations), Node))[0]

    plain = kept({"cpu": "30", "memory": "120Gi"})
    assert plain == (2000, 8 << 30)
    assert kept({"cpu": "60", "memory": "120Gi"}, '{"cpu":"30","memory":"120Gi"}') == plain
    assert kept({"cpu": "60", "memory": "120Gi"}, '{"cpu":"30"}') == plain
    assert kept({"cpu": "60", "memory": "120Gi"}, '{"cpu":"many"}') == (0, 8 << 30)


@pytest.mark.feature("MGR-NR-AMP-01")
@pytest.mark.parametrize("off", [False, True], ids=["", "with co-location"])
def test_raw_amounts_that_no_webhook_keeps_do_not_outlive_the_amplification(bed, make, off):
    """The node webhook was on once; since then the kubelet reserves more than the annotation says."""
    raw = "node.koordinator.sh/raw-allocatable"

    async def test(bed):
        annotations = {raw: '{"cpu":"32","memory":"128Gi"}', AMPLIFICATION: '{"cpu":1.50}'}
        node = make.node("n1", allocatable={"cpu": "20", "memory": "100Gi"}, annotations=annotations)
        await bed.create(make.config(colocation_config={"enable": not off}), node, make.metric("n1", system=("1", "1Gi")))
        await bed.start()

        async def bare():
            return raw not in ((await bed.get("Node", "n1"))["metadata"].get("annotations") or {})

        await bed.until(bare)
        if not off:
            await settled(bed, "n1", BATCH_CPU, 32000 - 12800 - 12000)

    bed(test)


@pytest.mark.feature("MGR-NR-AMP-01")
def test_raw_amounts_stay_while_a_webhook_keeps_them_or_the_node_is_amplified(make):
    raw, ratio = "node.koordinator.sh/raw-allocatable", {"enable": True, "resourceAmplificationRatio": {"cpu": 1.5}}

    def removed(kept, configured=None, **annotations):
        node = convert(make.node("n1", annotations={raw: '{"cpu":"32"}', **annotations}), Node)
        inputs = Inputs(node=node, strategy=DEFAULT_STRATEGY, now=0.0, raw_is_kept=kept, amplification=configured or {})
        return raw in amplification.calculate(inputs).annotations

    assert removed(kept=False)
    assert not removed(kept=True)
    assert not removed(False, ratio)
    assert not removed(False, **{AMPLIFICATION: '{"cpu":1.50}'}), "not before the ratio is gone"


@pytest.mark.feature("MGR-NR-GPU-01")
def test_devices_that_went_while_no_manager_ran_are_not_offered_any_more(bed, make):
    from koord.api.kinds import DEVICES

    async def test(bed):
        card = {"type": "gpu", "minor": 0, "health": True, "resources": {"koordinator.sh/gpu-core": "100"}}
        device = {"apiVersion": DEVICES.api_version, "kind": "Device", "metadata": {"name": "n1"}, "spec": {"devices": [card]}}
        foreign = {"koordinator.sh/gpu-core": "300"}
        await bed.create(make.node("n1"), make.node("n2", allocatable=foreign, extra=foreign), device)
        first = await bed.start()
        await settled(bed, "n1", "koordinator.sh/gpu-core", 100)
        first.life.stop()
        await first.life.finish()
        await bed.client.delete(DEVICES, "n1")
        await bed.start()
        await settled(bed, "n1", "koordinator.sh/gpu-core", None)
        assert amounts(await bed.get("Node", "n2"))["koordinator.sh/gpu-core"] == 300, "what others wrote stays"

    bed(test)


@pytest.mark.feature("MGR-NR-GPU-01")
def test_a_node_that_goes_while_its_devices_are_asked_for_is_not_remembered(bed, make, monkeypatch):
    async def test(bed):
        offered = {"koordinator.sh/gpu-core": "100"}
        await bed.create(make.node("n1"))
        manager = await bed.start()
        (controller,) = (one for one in manager.app.controllers if one.name == "noderesource")
        client, state = controller.writer.client, manager.app.state
        ask, asked = client.get, []

        async def slow(kind, name, *args, **kwargs):
            answer = await ask(kind, name, *args, **kwargs)
            if kind is NODES and name == "n2" and not asked:
                asked.append(answer)
                await bed.client.delete(NODES, "n2")
                while state.nodes.get("n2") is not None:
                    await asyncio.sleep(0.01)
            return answer

        monkeypatch.setattr(client, "get", slow)
        await bed.client.create(NODES, make.node("n2"))
        await bed.client.patch(NODES, "n2", {"status": {"capacity": offered, "allocatable": offered}}, subresource="status")

        async def through():
            return asked and state.nodes.get("n2") is None and not controller.queue._working

        await bed.until(through)
        assert (controller._without_device, controller._asked) == (set(), set())

    bed(test)


@pytest.mark.feature("MGR-NR-01")
def test_a_node_that_has_the_name_of_one_that_is_gone_gets_nothing_of_it(bed, make, monkeypatch):
    """A large machine is set up anew as a small one, and the watch is late."""
    patch, refused = Client.patch, []

    async def late(self, kind, name, *args, **kwargs):
        if kind is NODES and not refused:
            refused.append(None)
            await self.delete(NODES, name)
            await self.create(NODES, make.node(name, cpu="2", memory="4Gi"))
            try:
                return await patch(self, kind, name, *args, **kwargs)
            except ApiError as error:
                refused.append(error)
                raise
        return await patch(self, kind, name, *args, **kwargs)

    async def test(bed):
        await bed.create(make.config(colocation_config={"enable": True}), make.node("n1"), make.metric("n1", system=("1", "1Gi")))
        monkeypatch.setattr(Client, "patch", late)
        await bed.start()
        await settled(bed, "n1", BATCH_CPU, 2000 - 800 - 1000)
        assert refused[1:], "what was decided for the old node"

    bed(test)


@pytest.mark.feature("MGR-NR-01")
def test_an_answer_with_an_image_without_names_is_read(bed, make, monkeypatch, caplog):
    """kube-apiserver writes the names of such an image as null."""
    patch = Client.patch

    async def patched(self, kind, *args, **kwargs):
        answer = await patch(self, kind, *args, **kwargs)
        if kind.kind == "Node":
            answer["status"]["images"] = [{"names": None, "sizeBytes": 1}]
        return answer

    monkeypatch.setattr(Client, "patch", patched)

    async def test(bed):
        await bed.create(make.config(colocation_config={"enable": True}), make.node("n1"), make.metric("n1", system=("1", "1Gi")))
        manager = await bed.start()
        await settled(bed, "n1", BATCH_CPU, 32000 - 12800 - 1000)
        (controller,) = (one for one in manager.app.controllers if one.name == "noderesource")

        async def done():
            return not controller.queue._working

        await bed.until(done)
        assert [record.getMessage() for record in caplog.records if record.exc_info] == []

    bed(test)


@pytest.mark.feature("MGR-CFG-01")
@pytest.mark.feature("MGR-NR-NORM-01")
@pytest.mark.parametrize("text", ["", None, "null", "{}"], ids=["emptied", "taken out", "null", "empty object"])
@pytest.mark.parametrize("off", [False, True], ids=["", "with co-location"])
def test_emptying_a_key_takes_back_what_its_feature_wrote(bed, make, text, off):
    from koord.api.kinds import CONFIGMAPS

    async def test(bed):
        await bed.create(
            make.config(
                colocation_config={"enable": True},
                cpu_normalization_config={"enable": True, "defaultRatio": 1.2},
                cpu_burst_config={"clusterStrategy": {"policy": "auto"}},
                interference_config={"clusterStrategy": {"actions": ["squeeze"]}},
            ),
            {
                "apiVersion": "topology.node.k8s.io/v1alpha1",
                "kind": "NodeResourceTopology",
                "metadata": {"name": "n1", "annotations": {"node.koordinator.sh/cpu-basic-info": '{"cpuModel":"M"}'}},
                "topologyPolicies": ["None"],
                "zones": [],
            },
            make.node("n1"),
            make.metric("n1", system=("1", "1Gi")),
        )
        manager = await bed.start()
        batch = 19200 - 1000
        await settled(bed, "n1", BATCH_CPU, batch * 12 // 10)
        keys = ("cpu-normalization-config", "cpu-burst-config", "interference-config", *(("colocation-config",) if off else ()))
        await bed.client.patch(CONFIGMAPS, "slo-controller-config", {"data": dict.fromkeys(keys, text)}, "koordinator-system")

        async def taken_back():
            node, slo = await bed.get("Node", "n1"), await bed.get("NodeSLO", "n1")
            assert node["metadata"]["annotations"][RATIO] == "1.00"
            assert slo["spec"]["cpuBurstStrategy"]["policy"] == "none"
            assert slo["spec"]["extensions"]["interference"] == {}
            return True

        await bed.until(taken_back)
        if not off:
            await settled(bed, "n1", BATCH_CPU, batch)
        assert "koord_manager_config_errors 0.0" in (await manager.get("/metrics"))[1]

    bed(test)
