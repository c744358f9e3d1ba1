"""Trouble that comes to all nodes at once takes little of the cluster's batch away, and a clock that jumps makes no report old."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import EVENTS, NODEMETRICS, NODES
from koord.process.steady import SteadyClock
from roles.manager.noderesource.brake import ALWAYS, SHARE, WINDOW, Brake
from tests.support.counting import counting

BATCH = "kubernetes.io/batch-cpu"


@pytest.mark.feature("MGR-NR-BATCH-01")
def test_reports_that_stop_on_all_nodes_leave_most_of_the_batch(bed, make):
    async def test(bed):
        count = 20
        await bed.create(make.config(colocation_config={"enable": True, "degradeTimeMinutes": 5}))
        for number in range(count):
            await bed.create(make.node(f"n{number}"), make.metric(f"n{number}", system=("1", "1Gi")))
        manager = await bed.start(qps=0.0)

        async def offering():
            found = [(await bed.get("Node", f"n{number}"))["status"]["allocatable"] for number in range(count)]
            return [number for number, amounts in enumerate(found) if BATCH in amounts]

        async def all_offer():
            return len(await offering()) == count

        await bed.until(all_offer)
        for number in range(count):
            await bed.client.patch(NODEMETRICS, f"n{number}", {"status": {"updateTime": make.now(60)}}, subresource="status")

        async def told():
            return any(event["reason"] == "OvercommitHeld" for event in (await bed.client.list(EVENTS, "koordinator-system")).items)

        async def settled():
            left = count * (1 - SHARE)
            return len(await offering()) == left and f"held_nodes {left}" in (await manager.get("/metrics"))[1]

        await bed.until(told)
        await bed.until(settled)
        # what is measured counts at once, brake or not
        busy = next(iter(await offering()))
        hot = make.metric(f"n{busy}", system=("30", "100Gi"))["status"]
        await bed.client.patch(NODEMETRICS, f"n{busy}", {"status": hot}, subresource="status")

        async def shrunk():
            return (await bed.get("Node", f"n{busy}"))["status"]["allocatable"][BATCH] == "0"

        await bed.until(shrunk)
        for number in set(range(count)) - {busy}:
            await bed.client.delete(NODES, f"n{number}")

        async def nobody():
            return "held_nodes 0.0" in (await manager.get("/metrics"))[1]

        await bed.until(nobody)

    bed(test)


@pytest.mark.feature("MGR-CFG-01")
def test_a_config_that_is_gone_resets_little(bed, make):
    async def test(bed):
        stands = {BATCH: "5000", "kubernetes.io/batch-memory": "1Gi"}
        for number in range(10):
            await bed.create(make.node(f"n{number}", allocatable=stands, extra=stands))
        await bed.start(qps=0.0)

        async def told():
            return any(event["reason"] == "OvercommitHeld" for event in (await bed.client.list(EVENTS, "koordinator-system")).items)

        await bed.until(told)
        found = [(await bed.get("Node", f"n{number}"))["status"]["allocatable"] for number in range(10)]
        assert sum(BATCH in amounts for amounts in found) >= 10 - ALWAYS

    bed(test)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 120)), max_size=120))
def test_property_no_window_loses_more_than_the_share(lost):
    brake, now, gone = Brake(), 0.0, []
    for number in range(31):
        brake.promise(f"n{number}", 1000)
    for number, passed in lost:
        now += passed
        if not brake.holds(f"n{number}", 1000, now, take=True) and f"n{number}" not in {name for at, name in gone if at > now - WINDOW}:
            gone.append((now, f"n{number}"))
    for begin, _ in gone:
        assert len({name for at, name in gone if begin <= at < begin + WINDOW}) <= max(ALWAYS, SHARE * 31)


class Reference:
    """The same rule without sums."""

    def __init__(self):
        self.promised, self.taken, self.without = {}, {}, set()

    def promise(self, node, amount):
        self.promised[node] = amount
        if amount and node in self.without:
            self.taken.pop(node, None)
        (self.without.discard if amount else self.without.add)(node)

    def forget(self, node):
        self.promised.pop(node, None)
        self.without.discard(node)

    def holds(self, node, amount, now, take):
        self.taken = {name: entry for name, entry in self.taken.items() if entry[0] > now - WINDOW}
        if node in self.taken:
            return False
        lost = sum(entry[1] for entry in self.taken.values())
        everything = lost + sum(amount for name, amount in self.promised.items() if name not in self.taken)
        if len(self.taken) >= ALWAYS and lost + amount > SHARE * everything:
            return True
        if take:
            self.taken[node] = (now, amount)
        return False


STEP = st.tuples(st.sampled_from(["promise", "forget", "ask", "take"]), st.integers(0, 7), st.integers(0, 3), st.floats(0, 400))


@given(st.lists(STEP, max_size=80))
def test_property_the_sums_are_those_of_the_nodes(steps):
    brake, reference, now = Brake(), Reference(), 0.0
    for what, number, amount, passed in steps:
        now, node = now + passed, f"n{number}"
        if what == "promise":
            brake.promise(node, amount)
            reference.promise(node, amount)
        elif what == "forget":
            brake.forget(node)
            reference.forget(node)
        else:
            took = what == "take"
            assert brake.holds(node, amount, now, take=took) == reference.holds(node, amount, now, took)


def test_all_nodes_at_once_cost_no_more_than_each():
    def work(count):
        brake = Brake()
        with counting() as calls:
            for number in range(count):
                brake.promise(f"n{number}", 1000)
            for number in range(count):
                brake.holds(f"n{number}", 1000, 0.0, take=True)
        return calls.number

    assert work(2000) < 2.2 * work(1000)


def test_a_clock_that_is_set_is_followed_slowly():
    class Clocks:
        wall, mono = 1000.0, 0.0

    clock = SteadyClock(lambda: Clocks.wall, lambda: Clocks.mono)
    for _ in range(10):
        Clocks.wall, Clocks.mono = Clocks.wall + 60, Clocks.mono + 60
        assert clock() == Clocks.wall
    before = clock()
    Clocks.wall += 3600  # an hour forward
    Clocks.mono += 60
    assert before + 60 <= clock() <= before + 66.1
    Clocks.wall -= 7200  # two hours back: never backwards
    Clocks.mono += 60
    assert before + 60 < clock()
    for _ in range(2000):
        Clocks.wall, Clocks.mono = Clocks.wall + 60, Clocks.mono + 60
        clock()
    assert clock() == pytest.approx(Clocks.wall)


@pytest.mark.feature("MGR-NR-BATCH-01")
def test_nodes_that_report_again_let_the_next_silent_one_be_taken() -> None:
    """After the API server has lost its data no node has a report for a moment; the one that stays silent offers nothing in the end."""
    brake = Brake()
    nodes = [f"n{number}" for number in range(ALWAYS + 1)]
    for node in nodes:
        brake.promise(node, 4000)
    assert [brake.holds(node, 4000, 0.0, take=True) for node in nodes] == [False] * ALWAYS + [True]
    for amount, held in ((4000, True), (0, True), (4000, False)):  # as the picture shows it: still there, taken away, measured again
        for node in nodes[:ALWAYS]:
            brake.promise(node, amount)
        assert brake.holds(nodes[-1], 4000, 30.0, take=False) is held
