"""/validate-pod: allocations are the scheduler's to write, and owners keep to the bounds of what is theirs."""

from __future__ import annotations

import json

import pytest

from koord.api import trust

P = "scheduling.koordinator.sh/"
ALLOCATIONS = {
    P + "device-allocated": '{"gpu":[{"minor":0}]}',
    P + "resource-status": '{"cpuset":"0-127"}',
    P + "reservation-allocated": '{"name":"other","uid":"u"}',
    P + "gpu-minors": "0,1",
}
SCHEDULER = {"username": "system:serviceaccount:koordinator-system:koord-scheduler", "groups": ["system:serviceaccounts"]}
TENANT = {"username": "tenant", "groups": ["system:authenticated"]}


def pod(annotations=None, requests=None):
    container = {"name": "main", "image": "x", "resources": {"requests": requests or {"cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "w", "annotations": annotations or {}},
        "spec": {"containers": [container]},
    }


@pytest.mark.feature("BEY-SEC-03")
def test_allocations_are_written_by_the_scheduler(bed):
    async def test(bed):
        manager = await bed.start()

        async def allowed(annotations, old=None, **user):
            operation = "CREATE" if old is None else "UPDATE"
            return (
                await manager.review(
                    "/validate-pod",
                    pod(annotations),
                    operation=operation,
                    old=None if old is None else pod(old),
                    namespace="lab",
                    userInfo=user or TENANT,
                )
            )["allowed"]

        for key, text in ALLOCATIONS.items():
            assert not await allowed({key: text}), key
            assert not await allowed({key: ""}), f"{key}: an empty one is one too"
            assert not await allowed({key: text}, {}), f"{key}: added later"
            assert not await allowed({key: "{}"}, {key: text}), f"{key}: changed"
            assert not await allowed({}, {key: text}), f"{key}: taken off, while the scheduler counts with it"
            assert await allowed({key: text, "other": "x"}, {key: text}), f"{key}: left as it is"
            assert await allowed({key: text}, {}, **SCHEDULER), key
        assert await allowed(ALLOCATIONS, {}, username="kubernetes-admin", groups=["system:masters"])
        assert not await allowed(ALLOCATIONS, {}, username="system:serviceaccount:default:koord-scheduler", groups=[])
        refused = await manager.review("/validate-pod", pod(ALLOCATIONS), namespace="lab", userInfo=TENANT)
        assert refused["status"]["code"] == 403
        for words in ("device-allocated", "resource-status", "'tenant'", "--allocation-writers"):
            assert words in refused["status"]["message"]

        other = await bed.start(allocation_writers=("volcano", "group:schedulers"))
        for user, good in (({"username": "volcano"}, True), ({"username": "x", "groups": ["schedulers"]}, True), (SCHEDULER, False)):
            answer = await other.review("/validate-pod", pod(ALLOCATIONS), namespace="lab", userInfo=user)
            assert answer["allowed"] is good, user

    bed(test)


@pytest.mark.feature("BEY-SEC-03")
def test_marks_of_reserve_pods_are_nobodys(bed):
    async def test(bed):
        manager = await bed.start()
        for key in trust.FORBIDDEN:
            answer = await manager.review("/validate-pod", pod({key: "x"}), namespace="lab", userInfo=SCHEDULER)
            assert not answer["allowed"]
            assert key in answer["status"]["message"]

    bed(test)


@pytest.mark.feature("BEY-SEC-03")
def test_owners_keep_to_the_bounds(bed):
    beyond = [
        ("koordinator.sh/cpuBurst", {"cfsQuotaBurstPercent": 1000000}, "100..10000"),
        ("koordinator.sh/cpuBurst", {"cpuBurstPercent": -1}, "0..10000"),
        ("koordinator.sh/cpuBurst", {"policy": "everything"}, "accepted: none"),
        ("koordinator.sh/memoryQOS", {"minLimitPercent": 100000}, "0..100"),
        ("koordinator.sh/memoryQOS", {"wmarkMinAdj": -26}, "-25..50"),
        ("koordinator.sh/memoryQOS", {"policy": "all"}, "accepted: default"),
        ("koordinator.sh/blkioQOS", {"blocks": [{"name": "sda", "ioCfg": {"ioWeightPercent": 1000}}]}, "1..100"),
        ("koordinator.sh/blkioQOS", {"blocks": [{"name": "sda", "ioCfg": {"readIOPS": -5}}]}, "readIOPS"),
    ]
    good = [
        {"koordinator.sh/cpuBurst": '{"policy":"auto","cpuBurstPercent":1000,"cfsQuotaBurstPercent":300}'},
        {"koordinator.sh/memoryQOS": '{"policy":"auto","minLimitPercent":100,"priority":null}'},
        {"koordinator.sh/eviction-policy": '["MemoryEvict"]'},
        {"koordinator.sh/core-sched-group-id": "not the label"},
    ]

    async def test(bed):
        manager = await bed.start()
        for key, value, words in beyond:
            answer = await manager.review("/validate-pod", pod({key: json.dumps(value)}), namespace="lab")
            assert not answer["allowed"], value
            assert key in answer["status"]["message"]
            assert words in answer["status"]["message"]
        for given in good:
            assert (await manager.review("/validate-pod", pod(given), namespace="lab"))["allowed"], given
        old = pod({"koordinator.sh/memoryQOS": '{"minLimitPercent":1000}'})
        kept = pod({"koordinator.sh/memoryQOS": '{"minLimitPercent":1000}', "more": "x"})
        answer = await manager.review("/validate-pod", kept, operation="UPDATE", old=old, namespace="lab")
        assert answer["allowed"], "a pod from before may still be labelled"
        unread = await manager.review("/validate-pod", pod({"koordinator.sh/cpuBurst": "{"}), namespace="lab")
        assert unread["allowed"]
        assert "cpuBurst" in "".join(unread["warnings"]), "it counts as absent, and its author is told"

    bed(test)


@pytest.mark.feature("BEY-SEC-03")
def test_batch_resources_are_those_of_the_spec(bed):
    def said(amount):
        entry = {"requests": {"kubernetes.io/batch-cpu": amount}}
        return {"node.koordinator.sh/extended-resource-spec": json.dumps({"containers": {"main": entry}})}

    async def test(bed):
        manager = await bed.start()
        for amount, allowed in (("1000", True), ("64000", False)):
            given = pod(said(amount), {"kubernetes.io/batch-cpu": "1000"})
            given["metadata"]["labels"] = {"koordinator.sh/qosClass": "BE", "koordinator.sh/priority-class": "koord-batch"}
            answer = await manager.review("/validate-pod", given, namespace="lab")
            assert answer["allowed"] is allowed, answer
            changed = await manager.review("/validate-pod", given, operation="UPDATE", old=pod(), namespace="lab")
            assert not changed["allowed"] or allowed

    bed(test)
