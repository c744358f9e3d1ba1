"""DeviceShare in the engine: what is kept equals judging afresh; profiles share the devices; what-ifs know them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.objects import Device
from koord.config.scheduler import KubeSchedulerConfiguration
from roles.scheduler import testing
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.whatif import Simulation, Snapshot
from tests.support.devices import (
    CORE,
    HINT,
    JOINT,
    MEMORY,
    POINTS,
    RATIO,
    RDMA,
    add,
    bare,
    card,
    device,
    entry,
    gpu,
    gpus,
    holder,
    pod,
    world,
)  # fmt: skip

ASKED: list[dict[str, Any]] = [
    {"requests": {CORE: 100, RATIO: 100}},
    {"requests": {CORE: 40, RATIO: 40}},
    {"requests": {MEMORY: "30Gi"}},
    {"requests": {CORE: 200, RATIO: 200}, "partition": {}},
    {"requests": {RDMA: 30}, "hint": {"rdma": {"allocateStrategy": "ApplyForAll"}}},
    {"requests": {CORE: 100, RATIO: 100, RDMA: 100}, "joint": {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}},
]
HEALTH = st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans())
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(0, len(ASKED) - 1)),
        st.tuples(st.just("gone"), st.integers(0, 20)),
        st.tuples(st.just("health"), HEALTH),
        st.tuples(st.just("node"), st.sampled_from("abc")),
    ),
    min_size=1,
    max_size=14,
)


def cards(sick: set[int]) -> list[Any]:
    found = [card("gpu", n, numa=n // 2, pcie=f"p{n // 2}", health=n not in sick) for n in range(4)]
    return [*found, *(card("rdma", n, numa=n, pcie=f"p{n}") for n in range(2))]


@pytest.mark.feature("SCH-DEV-01")
@pytest.mark.feature("SCH-DEV-13")
@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_what_is_kept_equals_judging_afresh(steps: list[Any]) -> None:
    found = world()
    sick: dict[str, set[int]] = {name: set() for name in "abc"}
    honors = {name: {"node.koordinator.sh/gpu-partition-policy": "Honor", "node.koordinator.sh/gpu-model": "H100"} for name in "a"}
    for name in "abc":
        add(found, name, cards(set()), node=honors.get(name))
    uids: list[str] = []
    for kind, what in steps:
        if kind == "pod":
            decision = found.schedule(pod(**ASKED[what]))
            uids += [decision.pod.uid] if decision.scheduled else []
        elif kind == "gone" and what < len(uids):
            uid = uids.pop(what)
            found.cluster.remove_pod(uid)
        elif kind == "health":
            name, minor, well = what
            (sick[name].discard if well else sick[name].add)(minor)
            found.feed("Device", device(name, cards(sick[name])))
        elif kind == "node":
            labels = {} if honors.pop(what, None) else {"node.koordinator.sh/gpu-partition-policy": "Honor"}
            honors |= {what: labels} if labels else {}
            found.add_nodes(bare(what, labels))
        fresh = Cycle({testing.SCHEDULER: found.framework}, found.state)
        for asked in ASKED:
            kept, anew = found.decide(pod(**asked)).evaluation, fresh.decide(found.parser.parse(pod(**asked))).evaluation
            assert kept is not None
            assert anew is not None
            assert kept.feasible.tolist() == anew.feasible.tolist()
            if anew.count:
                assert np.array_equal(kept.totals[kept.feasible], anew.totals[anew.feasible])


def config(*names: str) -> KubeSchedulerConfiguration:
    on = {"enabled": [{"name": "DeviceShare"}]}
    return KubeSchedulerConfiguration.model_validate(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": name, "plugins": {**dict.fromkeys(POINTS, on), "score": on}} for name in names],
        }
    )


@pytest.mark.feature("SCH-DEV-01")
@pytest.mark.feature("SCH-DEV-16")
def test_what_ifs_over_a_snapshot_know_devices_and_profiles_share_them() -> None:
    held = holder("x", "n", {"gpu": [entry(0)]})
    devices = [msgspec.convert(device("n", gpus(2)), Device)]
    simulation = Simulation(Snapshot([bare("n")], [held], objects={"Device": devices}), config=config("first", "second"), now=0.0)
    assert simulation.fits(gpu(100, scheduler="first")).node == "n"
    assert [placement.node for placement in simulation.place([gpu(100, scheduler="first")])] == ["n"]
    refused = simulation.fits(gpu(100, scheduler="second"))
    assert "1 Insufficient GPU Devices" in refused.message
    simulation.remove([held.metadata.uid])
    assert simulation.fits(gpu(100, scheduler="second")).node == "n"


@pytest.mark.feature("SCH-DEV-10")
def test_hints_are_told_apart_by_their_text() -> None:
    found = world()
    add(found, "n", [card("rdma", n, labels={"speed": "fast" if n else "slow"}) for n in range(2)])
    for speed, minor in (("fast", 1), ("slow", 0)):
        item = pod({RDMA: 1}, annotations={HINT: json.dumps({"rdma": {"selector": {"matchLabels": {"speed": speed}}}}), JOINT: "{}"})
        decision = found.schedule(item)
        share: Any = found.framework.plugins["DeviceShare"]
        assert [part.minor for part in share.columns.taken(decision.pod.uid).allocation] == [minor]
