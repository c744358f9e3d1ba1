"""Memory offloading: steps by a pod's own pressure, back-off on pages read back (BEY-OFF-01). The kernel's own reclaim: tests/vm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.koordlet.actuation.restore import restore
from roles.koordlet.options import Options
from roles.koordlet.qos.offload import MemoryOffloading
from roles.koordlet.qos.offload_steps import FIRST_PAUSE, LEAST, SMALLEST, Counted, Offload, step
from roles.koordlet.states.slo import OffloadStrategy, effective_slo

pytestmark = pytest.mark.feature("BEY-OFF-01")

MIB = 1 << 20
CONFIG = OffloadStrategy(enable=True)


@pytest.fixture
def strategy(gates):
    return MemoryOffloading(Options(), gates("MemoryOffloading"))


def counted(at: float, usage: int = 1000 * MIB, stall: int = 0, refaults: int = 0) -> Counted:
    return Counted(usage, stall, refaults, at)


# -- steps -------------------------------------------------------------------------------------------------------------------


def test_steps_grow_while_they_do_no_harm_and_never_take_more_than_half() -> None:
    state, usage, asked = Offload(), 1000 * MIB, []
    for turn in range(400):
        state = step(state, counted(5.0 * turn, usage), CONFIG)
        asked.append(state.asked)
        usage -= state.asked
    assert asked[0] == 0, "first it is only looked at"
    assert 0 < asked[1] < asked[4] <= CONFIG.step_bytes
    assert 500 * MIB <= usage < 500 * MIB + 2 * LEAST


def test_a_pod_that_waits_is_asked_for_less_and_above_the_target_for_nothing() -> None:
    calm = step(Offload(share=1.0, last=counted(0)), counted(10), CONFIG)
    waiting = step(Offload(share=1.0, last=counted(0)), counted(10, stall=8_000), CONFIG)  # 0.08 %
    stalled = step(Offload(share=1.0, last=counted(0)), counted(10, stall=20_000), CONFIG)  # 0.2 %
    assert 0 < waiting.asked < calm.asked / 2
    assert (stalled.asked, stalled.until, stalled.share) == (0, 10 + FIRST_PAUSE, 0.5)


def test_pages_that_are_read_back_double_the_pause_each_time() -> None:
    state, refaults, now, pauses = Offload(last=counted(0)), 0, 0.0, []
    for _ in range(4):
        now = max(now + 5, state.until)
        state = step(state, counted(now, refaults=refaults), CONFIG)
        assert state.asked
        refaults += 5000
        now += 5
        state = step(state, counted(now, refaults=refaults), CONFIG)
        assert (state.asked, state.why[-9:]) == (0, "read back")
        pauses.append(state.pause)
        assert step(state, counted(now + 1, refaults=refaults), CONFIG).asked == 0, "left alone meanwhile"
    assert pauses == sorted(pauses)
    assert pauses[-1] > 5 * pauses[0]
    assert state.share == SMALLEST


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 10**9), st.integers(0, 10**6), st.floats(0.0, 100.0)), max_size=40))
def test_property_whatever_is_counted_a_step_is_small_and_leaves_half(rows: list[tuple[int, int, int, float]]) -> None:
    state, now = Offload(), 0.0
    for usage, stall, refaults, passed in rows:
        now += passed
        state = step(state, Counted(usage, stall, refaults, now), CONFIG)
        assert 0 <= state.asked <= CONFIG.step_bytes
        assert not state.asked or usage - state.asked >= state.peak // 2
        assert SMALLEST <= state.share <= 1.0


# -- whom, and how -----------------------------------------------------------------------------------------------------------


def pod(world: Any, name: str, qos: str, kube_qos: str) -> Any:
    made = world.pod(name, qos=qos, kube_qos=kube_qos)
    put(world, made, 800 * MIB)
    return made


def put(world: Any, made: Any, usage: int, stall: int = 0, refaults: int = 0) -> None:
    machine = world.machine
    machine.put("memory.usage_in_bytes", made.cgroup_dir, str(usage))
    machine.put("memory.stat", made.cgroup_dir, f"anon 1\nworkingset_refault_anon 0\nworkingset_refault_file {refaults}")
    machine.put(
        "memory.pressure",
        made.cgroup_dir,
        f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stall}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0",
    )
    path = Path(machine.host.cgroups.file("memory.reclaim", made.cgroup_dir))
    path.write_text("")


def asked(world: Any, strategy: Any, rounds: int = 3) -> dict[str, int]:
    """Bytes by pod that were written to memory.reclaim."""
    state, out = None, {p.name: 0 for p in world.pods}
    for _ in range(rounds):
        state = world.run(strategy, state)
        world.now += 5
        for p in world.pods:
            path = Path(world.machine.host.cgroups.file("memory.reclaim", p.cgroup_dir))
            out[p.name] += int(path.read_text() or 0)
            path.write_text("")
    return out


def everybody(world: Any) -> None:
    for name, qos, kube_qos in (
        ("lse", "LSE", "Guaranteed"),
        ("lsr", "LSR", "Guaranteed"),
        ("ls", "LS", "Burstable"),
        ("be", "BE", "BestEffort"),
    ):
        pod(world, name, qos, kube_qos)


@pytest.mark.parametrize(
    ("spec", "wanted"), [({}, set()), ({"enable": True}, {"be"}), ({"enable": True, "latencySensitive": True}, {"ls", "be"})]
)
def test_off_by_default_and_never_of_lse_and_lsr(world_v2, strategy, spec, wanted) -> None:
    world_v2.spec = {"extensions": {"memoryOffloading": spec}}
    everybody(world_v2)
    found = asked(world_v2, strategy)
    assert {name for name, count in found.items() if count} == wanted


def test_cgroup_v1_has_no_such_file(world, strategy) -> None:
    world.spec = {"extensions": {"memoryOffloading": {"enable": True}}}
    world.pod("be", qos="BE", kube_qos="BestEffort")
    assert world.decide(strategy).batches == ()


def test_a_back_off_is_recorded_and_nothing_is_put_on_record_to_be_put_back(world_v2, strategy) -> None:
    world_v2.spec = {"extensions": {"memoryOffloading": {"enable": True}}}
    made = pod(world_v2, "be", "BE", "BestEffort")
    state = world_v2.run(strategy, world_v2.run(strategy, None) if False else None)
    world_v2.now += 5
    state = world_v2.run(strategy, state)
    put(world_v2, made, 780 * MIB, refaults=100_000)
    world_v2.now += 5
    outcome = world_v2.decide(strategy, state)
    (record,) = outcome.records
    assert (record.verdict, outcome.batches) == ("BackedOff", ())
    assert "read back" in record.message
    assert len(world_v2.machine.journal) == 0
    assert restore(world_v2.machine.root).failed == []


def test_all_pods_get_their_turn(world_v2, strategy) -> None:
    """What is asked in one look is bounded: the kernel works while koordlet waits."""
    world_v2.spec = {"extensions": {"memoryOffloading": {"enable": True, "stepPercent": 10}}}
    for number in range(12):
        put(world_v2, pod(world_v2, f"be{number:02}", "BE", "BestEffort"), 4000 * MIB)
    found = asked(world_v2, strategy, rounds=10)
    assert min(found.values()) > 0


def test_settings_that_cannot_be_leave_the_last_good_ones() -> None:
    good, _ = effective_slo({"extensions": {"memoryOffloading": {"enable": True}}})
    bad, errors = effective_slo({"extensions": {"memoryOffloading": {"stepPercent": 90}}}, good)
    assert bad.offload == good.offload
    assert "stepPercent" in str(errors[0])
