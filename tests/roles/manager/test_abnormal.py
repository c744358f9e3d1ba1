"""Abnormal nodes: signs, steadiness, and what follows through the API (BEY-ABN-01)."""

from __future__ import annotations

import dataclasses
import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import EVENTS, NODEMETRICS, NODES, PODS
from koord.api.objects import Node, NodeMetric, NodeResourceTopology, convert
from koord.api.quantity import parse_value
from koord.api.times import format_time
from koord.config.slo import SLOConfig
from koord.kube.errors import Forbidden
from koord.kube.informers import InformerFactory
from roles.manager.abnormal.signs import FALL, MAX_PENALTY, RISE, WINDOW, Level, cpi_outliers, judge, moved
from roles.manager.controllers.abnormalnode import AbnormalNodeController
from roles.manager.controllers.state import ClusterState
from roles.manager.noderesource.model import Inputs
from roles.manager.noderesource.plan import PLUGIN_NAMES, decide
from roles.manager.noderesource.trust import smoothed
from roles.manager.options import Options

pytestmark = pytest.mark.feature("BEY-ABN-01")

NOW = 1_700_000_000.0
ABNORMAL = "node.koordinator.sh/abnormal"
BATCH_CPU = "kubernetes.io/batch-cpu"
EVICTED = {"phase": "Failed", "reason": "Evicted"}
ASKED = {"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]}


def raw(obj):
    return msgspec.Raw(json.dumps(obj).encode())


def reported(name="n1", *, age=0.0, interval=60, **pods):
    entries = [{"namespace": "d", "name": pod, **entry} for pod, entry in pods.items()]
    body = {
        "metadata": {"name": name},
        "spec": {"metricCollectPolicy": {"reportIntervalSeconds": interval}},
        "status": {"updateTime": format_time(NOW - age), "podsMetric": entries},
    }
    return convert(body, NodeMetric)


def test_reports_that_do_not_come():
    assert judge(None, now=NOW).score == 0
    assert judge(reported(age=170), now=NOW).score == 0
    assert judge(reported(age=390), now=NOW).score == pytest.approx(0.5)
    found = judge(reported(age=3600), now=NOW)
    assert found.stale == 1
    assert found.terms[0].note == "seconds since the last NodeMetric; one is due every 60s"


def test_pressure_counts_for_services_and_only_while_reports_come():
    waiting = {"psi": {"cpu": 40.0, "mem": 1.0}}
    found = judge(reported(web={"priority": "koord-prod", "extensions": waiting}), now=NOW)
    assert found.pressure == pytest.approx(0.5)
    assert judge(reported(web={"priority": "koord-batch", "extensions": waiting}), now=NOW).score == 0
    assert judge(reported(age=600, web={"priority": "koord-prod", "extensions": waiting}), now=NOW).pressure == 0
    for rubbish in ({"psi": []}, {"psi": {"cpu": "x"}}, {"psi": {"cpu": True}}, {"psi": {"cpu": -1}}):
        assert judge(reported(web={"priority": "koord-prod", "extensions": rubbish}), now=NOW).score == 0


def test_replicas_are_compared_with_their_like():
    def replica(cpi):
        return {"extensions": {"cpi": cpi}}

    metrics = [reported(f"n{i}", **{f"web-{i}": replica(1.0 + 0.02 * i)}) for i in range(5)] + [reported("bad", **{"web-9": replica(2.2)})]
    owners = {f"d/web-{i}": "rs" for i in (*range(5), 9)}
    assert cpi_outliers(metrics, owners) == {"bad": ["d/web-9"]}
    assert cpi_outliers(metrics[3:], owners) == {}, "too few to tell"
    assert cpi_outliers(metrics, {}) == {}, "pods of nobody are not compared"
    assert judge(reported("bad"), now=NOW, outliers=["d/web-9"]).score == pytest.approx(1 / 3)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3600)), max_size=30))
def test_property_a_level_stays_between_and_moves_towards_the_signs(steps):
    level = Level()
    for score, seconds in steps:
        after = moved(level, score, seconds)
        assert min(level.value, score) - 1e-9 <= after.value <= max(level.value, score) + 1e-9
        assert 0 <= after.penalty <= MAX_PENALTY
        assert after.penalty % 10 == 0
        assert (after.penalty > 0) == after.abnormal
        level = after


def test_trouble_must_last_and_passes_by_itself():
    level = moved(Level(), 1.0, 15)
    assert not level.abnormal, "a quarter of a minute is no judgement"
    level = moved(level, 1.0, 2 * RISE)
    assert level.penalty == 80
    level = moved(level, 0.0, FALL)
    assert level.abnormal
    assert level.penalty < 50
    assert moved(level, 0.0, 3 * FALL).penalty == 0


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 10_000), st.one_of(st.none(), st.floats(0, 10_000)))
def test_property_smoothing_goes_from_what_stands_to_what_was_calculated(before, after, half_life, seconds):
    found = smoothed({BATCH_CPU: after, "gpu": 3}, {BATCH_CPU: str(before), "gpu": "9"}, half_life, seconds)
    assert found["gpu"] == 3
    assert min(before, after) <= found[BATCH_CPU] <= max(before, after)
    assert found[BATCH_CPU] == after or after > before, "down at once, up slowly"
    assert smoothed({BATCH_CPU: after}, {}, half_life, seconds) == {BATCH_CPU: after}
    assert smoothed({BATCH_CPU: after}, {BATCH_CPU: before}, 0, seconds) == {BATCH_CPU: after}


def test_an_abnormal_node_is_trusted_less_until_it_recovers(bed, make):
    async def test(bed):
        await bed.create(make.config(colocation_config={"enable": True}), make.node("n1"), make.metric("n1"))
        manager = await bed.start(gates="AbnormalNodes=true", abnormal_node_interval=0.1)

        async def batch_cpu():
            return parse_value((await bed.get("Node", "n1"))["status"]["allocatable"].get(BATCH_CPU, 0))

        whole = await bed.until(batch_cpu)
        controller = next(c for c in manager.app.controllers if c.name == "abnormalnode")
        real = controller.clock
        # Reported from the future, and taken for it: it does not look old to a clock that runs ahead.
        manager.app.state.clock = lambda: real() + 10**6
        await bed.client.patch(NODEMETRICS, "n1", {"status": {"updateTime": format_time(real() + 10**6)}}, subresource="status")
        evicted = [make.pod(f"e{i}", "n1") for i in range(20)]
        for pod in evicted:
            pod["status"] = EVICTED
        await bed.create(*evicted)
        for i in range(20):
            await bed.client.delete(PODS, f"e{i}", "default", grace_period_seconds=0)

        ahead = 0.0

        async def penalised():
            nonlocal ahead
            ahead += 60.0  # the judgement takes minutes; the test does not
            controller.clock = lambda: real() + ahead
            node = await bed.get("Node", "n1")
            found = json.loads(node["metadata"]["annotations"].get(ABNORMAL) or "null")
            return found if found and found["penalty"] >= 50 else None

        found = await bed.until(penalised)
        assert "pods evicted within" in found["reasons"][0]

        async def lowered():
            return await batch_cpu() <= whole // 2 or None

        await bed.until(lowered)
        _, text = await manager.get("/debug/decisions?kind=Node&name=n1")
        records = json.loads(text)
        assert any(record["verdict"] == "Abnormal" and record["terms"] for record in records)
        assert any(term["name"] == "BatchResource.penalty" for record in records for term in record.get("terms", ()))
        ahead += 4000.0  # the evictions are long ago now

        async def recovered():
            nonlocal ahead
            ahead += 1200.0
            controller.clock = lambda: real() + ahead
            return ABNORMAL not in (await bed.get("Node", "n1"))["metadata"]["annotations"]

        await bed.until(recovered)

        async def whole_again():
            return await batch_cpu() == whole

        await bed.until(whole_again)

        async def told():
            reasons = {event["reason"] for event in (await bed.client.list(EVENTS)).items}
            return {"NodeAbnormal", "NodeRecovered"} <= reasons

        await bed.until(told)

    bed(test)


def test_a_judgement_survives_the_manager_and_a_bad_one_is_no_judgement(bed, make):
    async def test(bed):
        stands = {ABNORMAL: '{"penalty": 50, "reasons": ["before the restart"]}'}
        await bed.create(
            make.config(colocation_config={"enable": True}),
            make.node("n1", annotations=stands),
            make.node("n2", annotations={ABNORMAL: '{"penalty": "much"}'}),
            make.metric("n1"),
            make.metric("n2"),
        )
        await bed.start(gates="AbnormalNodes=true", abnormal_node_interval=0.1)

        async def amounts():
            nodes = [await bed.get("Node", name) for name in ("n1", "n2")]
            found = [parse_value(node["status"]["allocatable"].get(BATCH_CPU, 0)) for node in nodes]
            return found if all(found) else None

        half, whole = await bed.until(amounts)
        assert half == whole // 2
        assert json.loads((await bed.client.get(NODES, "n1"))["metadata"]["annotations"][ABNORMAL])["penalty"] == 50

    bed(test)


def test_without_the_gate_no_judgement_stays(bed, make):
    async def test(bed):
        stands = {ABNORMAL: '{"penalty": 50, "reasons": ["while the gate was on"]}', "other": "stays"}
        await bed.create(make.node("n1", annotations=stands), make.node("n2"))
        await bed.start()

        async def annotations():
            found = (await bed.client.get(NODES, "n1"))["metadata"]["annotations"]
            return ABNORMAL not in found and found

        assert (await bed.until(annotations))["other"] == "stays"

    bed(test)


def test_a_node_that_cannot_be_written_keeps_no_other_from_its_judgement(bed, make):
    async def test(bed):
        stands = {ABNORMAL: '{"penalty": 50, "reasons": ["before the restart"]}'}
        await bed.create(*(make.node(name, annotations=stands) for name in ("n1", "n2")))
        manager = await bed.start(gates="AbnormalNodes=true", abnormal_node_interval=0.1)
        controller = next(c for c in manager.app.controllers if c.name == "abnormalnode")
        real, patch, ahead, refused = controller.clock, controller.writer.patch, 0.0, True

        async def guarded(kind, name, *rest, **options):
            if refused and name == "n1":
                raise Forbidden(403, "Forbidden", "an admission policy guards n1")
            return await patch(kind, name, *rest, **options)

        controller.writer.patch = guarded

        async def recovered(name):
            nonlocal ahead
            ahead += 60.0
            controller.clock = lambda: real() + ahead
            return ABNORMAL not in (await bed.get("Node", name))["metadata"].get("annotations", {})

        await bed.until(lambda: recovered("n2"), 10)
        assert not await recovered("n1")
        refused = False
        await bed.until(lambda: recovered("n1"))

    bed(test)


def test_evictions_are_forgotten_where_nobody_judges_too(make):
    """A standby hears of them for months; and a pod that goes after its node leaves nothing behind."""
    now = NOW
    state = ClusterState(InformerFactory(None), Options())
    controller = AbnormalNodeController(state, None, None, None, clock=lambda: now)
    controller.attach()

    def evict(name, node):
        state.pods.receive(f"default/{name}", "1", raw(make.pod(name, node)))
        state.pods.receive(f"default/{name}", "2", raw({**make.pod(name, node), "status": EVICTED}))
        state.pods.forget(f"default/{name}")

    state.nodes.receive("n1", "1", raw(make.node("n1")))
    for number in range(100):
        evict(f"p{number}", "n1")
        now += WINDOW / 10
    assert len(controller._evictions["n1"]) <= 11
    state.nodes.forget("n1")
    evict("late", "n1")
    assert (controller._evictions, controller._shown) == ({}, set())


@pytest.mark.parametrize("status", [EVICTED, ASKED], ids=["kubelet", "eviction API"])
def test_an_eviction_counts_when_it_happens_and_not_when_the_pod_is_cleared_away(make, status):
    """What the kubelet evicts stays as a failed pod until somebody deletes it, perhaps days later."""
    now = NOW
    state = ClusterState(InformerFactory(None), Options())
    controller = AbnormalNodeController(state, None, None, None, clock=lambda: now)
    controller.attach()
    state.nodes.receive("n1", "1", raw(make.node("n1")))
    running, evicted = make.pod("p", "n1"), {**make.pod("p", "n1"), "status": status}
    for number in range(20):
        state.pods.receive(f"default/listed{number}", "1", raw({**make.pod(f"listed{number}", "n1"), "status": status}))
        state.pods.receive(f"default/p{number}", "1", raw(make.pod(f"p{number}", "n1")))
    assert controller._evicted_lately("n1", now) == 0, "who knows when that was"
    for number in range(20):
        for version in "23":
            state.pods.receive(f"default/p{number}", version, raw({**make.pod(f"p{number}", "n1"), "status": status}))
    assert controller._evicted_lately("n1", now) == 20
    now += 3 * 86400
    for number in range(20):
        for name in ("listed", "p"):
            state.pods.forget(f"default/{name}{number}")
    assert controller._evicted_lately("n1", now) == 0
    state.pods.receive("default/p", "1", raw(running))
    state.pods.forget("default/p", raw(evicted))
    assert controller._evicted_lately("n1", now) == 1, "its last state was the first to show it"


@pytest.mark.feature("MGR-NR-BATCH-02")
@pytest.mark.feature("MGR-NR-BATCH-03")
def test_smoothing_is_one_amount_on_the_node_in_its_zones_and_its_origin(make):
    def zone(name):
        resources = [{"name": n, "capacity": q, "allocatable": q, "available": q} for n, q in (("cpu", "16"), ("memory", "64Gi"))]
        return {"name": name, "type": "Node", "resources": resources}

    held = {"allocations": [{"name": "hadoop", "priority": "koord-batch", "resources": {BATCH_CPU: "200"}}]}
    annotations = {"node.koordinator.sh/thirdPartyAllocations": json.dumps(held)}
    node = make.node("n1", extra={BATCH_CPU: "1000", "kubernetes.io/batch-memory": "900Gi"}, annotations=annotations)
    topology = {"metadata": {"name": "n1"}, "zones": [zone("node-0"), zone("node-1")]}
    inputs = Inputs(
        node=convert(node, Node),
        strategy=SLOConfig().colocation_for(convert(node, Node)),
        now=time.time(),
        metric=convert(make.metric("n1"), NodeMetric),
        topology=convert(topology, NodeResourceTopology),
        smoothing=60.0,
    )
    inputs = dataclasses.replace(inputs, strategy=dataclasses.replace(inputs.strategy, enable=True))
    plan = decide(inputs, cluster_enabled=True, plugins=PLUGIN_NAMES, last_write=inputs.now - 60)
    eased = (19200 + 1200) // 2  # what stands and what others hold, half of the way up
    assert plan.resources[BATCH_CPU] == eased - 200
    origin = json.loads(plan.metadata_patch["metadata"]["annotations"]["node.koordinator.sh/originExtendedAllocatable"])["resources"]
    assert origin[BATCH_CPU] == str(eased)
    zones = next(item.zones for item in plan.contributions if item.plugin == "BatchResource")
    assert sum(amounts[BATCH_CPU] for amounts in zones.values()) == eased
    assert plan.resources["kubernetes.io/batch-memory"] < 128 << 30, "what shrinks is taken over at once"


@pytest.mark.feature("MGR-NR-BATCH-01")
def test_smoothing_on_request(bed, make):
    async def test(bed):
        await bed.create(
            make.config(colocation_config={"enable": True, "resourceDiffThreshold": 0.01}),
            make.node("n1", extra={BATCH_CPU: "1000"}),
            make.metric("n1"),
        )
        await bed.start(overcommit_smoothing=60.0)

        async def written():
            found = parse_value((await bed.get("Node", "n1"))["status"]["allocatable"][BATCH_CPU])
            return found if found != 1000 else None

        # 32 cores less 40 %: 19200, and half of the way there at most: less where a pass came before all was known
        assert 1000 < await bed.until(written) <= (19200 + 1000) // 2

    bed(test)
