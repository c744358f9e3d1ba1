"""The pressure path: stall counters and CPU use in, ticks out of turn out (BEY-PSI-01)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.koordlet.host.errors import ParseError
from roles.koordlet.qos.urgency import BURST, EARNED, NODE_CPU, NODE_MEMORY, Look, Urgency, looked, ticked
from roles.koordlet.sensing.pressure import PERIOD, PressureWatch, total_of
from tests.support import patience

pytestmark = pytest.mark.feature("BEY-PSI-01")

LINE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={0}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
CPUS = 2


class Machine:
    """Counters that are moved by hand, and a watch that looks at them every 0.1 s."""

    def __init__(self, agent: Any, version: int = 1) -> None:
        self.agent = agent(version=version)
        self.tree = self.agent.tree
        self.stalls: dict[str, int] = {}
        self.used = {"all": 0, "be": 0}
        self.mono = 1000.0
        self.woken: list[str] = []
        cgroups = self.agent.host.cgroups
        self.kubepods, self.besteffort, self.burstable = cgroups.kubepods, cgroups.qos_dir("BestEffort"), cgroups.qos_dir("Burstable")
        for directory in (self.kubepods, self.besteffort, self.burstable):
            self.tree.cgroup(directory)
        self.paths = {source: f"proc/pressure/{source}" for source in (NODE_CPU, NODE_MEMORY)}
        self.write()
        self.watch = PressureWatch(self.agent.host, lambda: self.agent.pod_cache.pods, CPUS, self.woken.append)

    def write(self) -> None:
        for source, path in self.paths.items():
            self.tree.write(path, LINE.format(self.stalls.get(source, 0)))
        for directory, key in ((self.kubepods, "all"), (self.besteffort, "be")):
            name = "cpuacct.usage"
            path = self.agent.host.cgroups.file(name, directory).removeprefix(str(self.tree.root) + "/")
            text = f"usage_usec {self.used[key] // 1000}\n" if self.agent.host.cgroups.v2 else f"{self.used[key]}\n"
            self.tree.write(path, text)

    def tick(self) -> None:
        self.agent.files.begin_tick()
        self.watch.ticked(self.mono)

    def run(self, seconds: float, *, others: float = 0.0, be: float = 0.0, **stalls: float) -> list[str]:
        """So many cores are used and such shares of the time are stalled; a tick a second. What was said, look by look."""
        said = []
        shares = {key.replace("_", " ", 1): value for key, value in stalls.items()}
        for _ in range(round(seconds / PERIOD)):
            self.mono += PERIOD
            for source, share in shares.items():
                self.stalls[source] = self.stalls.get(source, 0) + int(share * PERIOD * 1e6)
            self.used["all"] += int((others + be) * PERIOD * 1e9)
            self.used["be"] += int(be * PERIOD * 1e9)
            self.write()
            said.append(self.watch.look(self.mono))
            if round(self.mono / PERIOD) % 10 == 0:
                self.tick()
        return said


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(agent, request) -> Machine:
    return Machine(agent, request.param)


def count(said: list[str]) -> int:
    return sum(bool(word) for word in said)


class TestWhatCannotWait:
    def test_a_load_step_while_somebody_waits_is_seen_within_two_looks(self, node) -> None:
        assert count(node.run(5, others=0.2, be=1.0, cpu=1.0)) == 0, "best-effort work that waits is no news"
        assert "rise" in node.run(0.2, others=1.0, be=1.0, cpu=1.0)

    def test_nothing_is_urgent_while_there_is_room(self, node) -> None:
        node.run(5, others=0.2, be=0.2)
        assert count(node.run(1, others=1.5, be=0.2)) == 0

    def test_more_best_effort_work_is_not_urgent(self, node) -> None:
        node.run(5, others=0.2, be=0.2, cpu=1.0)
        assert count(node.run(1, others=0.2, be=1.8, cpu=1.0)) == 0

    def test_what_a_tick_has_seen_is_no_news(self, node) -> None:
        node.run(3, others=0.2, be=1.0, cpu=1.0)
        node.run(3, others=1.2, be=0.8, cpu=1.0)
        assert count(node.run(5, others=1.2, be=0.8, cpu=1.0)) == 0

    def test_memory(self, node) -> None:
        node.run(3)
        assert "memory" in node.run(0.3, memory=0.3)
        assert count(node.run(20, memory=0.3)) <= BURST + 20 * EARNED
        assert count(node.run(5, memory=0.3)) == 0, "it has become the usual"

    def test_a_latency_sensitive_group_that_waits_more_than_usual(self, agent) -> None:
        node = Machine(agent, 2)
        name = f"cpu {node.burstable}"
        node.paths[name] = f"sys/fs/cgroup/{node.burstable}/cpu.pressure"
        node.write()
        said = node.run(3, cpu=1.0)
        assert count(said) == 0
        said = []
        for _ in range(5):
            node.stalls[name] = node.stalls.get(name, 0) + 40_000
            said += node.run(PERIOD, cpu=1.0)
        assert "group" in said

    def test_groups_of_a_hybrid_machine(self, agent) -> None:
        node = Machine(agent, 1)
        name = f"cpu {node.burstable}"
        node.paths[name] = f"sys/fs/cgroup/unified/{node.burstable}/cpu.pressure"
        node.write()
        node.run(1, cpu=1.0)
        said = []
        for _ in range(5):
            node.stalls[name] = node.stalls.get(name, 0) + 50_000
            said += node.run(PERIOD, cpu=1.0)
        assert "group" in said


class TestRateLimit:
    def test_steady_pressure_gives_one_tick_a_second_after_the_first_ones(self) -> None:
        state, said = Urgency(known=0.0), 0
        for step in range(600):
            used = int(step * PERIOD * 2e9)
            state, reason = looked(state, Look(step * PERIOD, {NODE_CPU: int(step * PERIOD * 1e6)}, used), CPUS)
            said += bool(reason)
        assert 55 <= said <= 60 * EARNED + BURST

    @given(st.lists(st.tuples(st.floats(0.01, 3), st.integers(-(10**9), 10**9), st.integers(-(10**12), 10**12)), max_size=60))
    def test_never_more_than_earned_whatever_the_counters_do(self, moves: list[tuple[float, int, int]]) -> None:
        state, mono, stall, used, said = ticked(Urgency(), Look(0.0, others_ns=0)), 0.0, 0, 0, 0
        for distance, more_stall, more_use in moves:
            mono, stall, used = mono + distance, stall + more_stall, used + more_use
            state, reason = looked(state, Look(mono, {NODE_CPU: stall, NODE_MEMORY: stall}, used), CPUS)
            said += bool(reason)
            if reason:
                state = ticked(state, Look(mono, others_ns=used))
        assert said <= BURST + EARNED * mono


class TestFiles:
    @pytest.mark.parametrize("text", ["", "some", "some total=x\n", "full avg10=0.00 total=1\n", "some avg10=0.00 avg60=0.00\n"])
    def test_what_is_no_pressure_file_is_named(self, text: str) -> None:
        with pytest.raises(ParseError, match=r"cpu\.pressure"):
            total_of("/x/cpu.pressure", text.encode())

    def test_a_kernel_without_pressure_files_is_told_once_and_ticks_go_on(self, agent, caplog) -> None:
        caplog.set_level("INFO")
        a = agent()
        watch = PressureWatch(a.host, lambda: a.pod_cache.pods, CPUS, lambda reason: None)
        loop = asyncio.new_event_loop()
        try:
            assert watch.start(loop) is False
        finally:
            loop.close()
        watch.ticked(1.0)
        watch.close()
        assert len([r for r in caplog.records if "no pressure path" in r.getMessage()]) == 1
        a.tick()

    def test_a_file_that_goes_away_is_left_out(self, node) -> None:
        node.run(1, cpu=1.0)
        del node.paths[NODE_MEMORY]
        (node.tree.root / "proc/pressure/memory").unlink()
        node.run(3, others=0.1, be=1.0, cpu=1.0)
        assert "rise" in node.run(0.3, others=1.0, be=1.0, cpu=1.0)

    def test_the_counters_are_read_where_the_kernel_gives_no_short_window(self, agent) -> None:
        """Plain files raise no events, like the kernel's for a process without CAP_SYS_RESOURCE."""
        node = Machine(agent)

        async def wait() -> None:
            assert node.watch.start(asyncio.get_running_loop())
            for _ in patience.tries(400):
                node.stalls[NODE_MEMORY] = node.stalls.get(NODE_MEMORY, 0) + 50_000
                node.write()
                await asyncio.sleep(0.05)
                if node.woken:
                    break
            node.watch.close()

        # what is usual has been learnt on a machine at rest
        node.mono = time.monotonic() - 1.0
        node.run(0.9)
        asyncio.run(wait())
        assert node.woken == ["memory"]
