"""Evictions in all orders: answers, lost answers, requests that land late, refusals, victims that go first or never or come back under
their name, preemptors that vanish, the lease lost, the process killed and the next leader after it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import partial

import pytest

from roles.scheduler.planner.evictions import PARALLEL, SLACK, Answer, Do, Effect, Evictions, Leaving
from tests.support.explorer import Step, explore

HERE, DELETING, GONE = "here", "deleting", "gone"


class World:
    """Preemptors that each want one node emptied. `nodes` names the victims on each; a preemptor takes the first node that it finds. With
    "job" they are members of one job: whoever was in the queue before another one's plan may still be decided and plan anew."""

    def __init__(self, preemptors: int, nodes: dict[str, tuple[str, ...]], faults: dict[str, int]) -> None:
        self.nodes = nodes
        self.holding = {victim for victims in nodes.values() for victim in victims} if faults.get("claims") else set()
        self.machine = self._made()
        self.truth = {victim: HERE for victims in nodes.values() for victim in victims}
        self.shown = dict(self.truth)
        self.waiting = {f"high{number}" for number in range(preemptors)}  # queued; the others are in flight or gone
        self.chose: dict[str, set[str]] = {}
        self.nominated: dict[str, str] = {}
        self.asked: set[str] = set()  # by the plan that was made last for whoever wants them
        self.deletes: dict[str, int] = dict.fromkeys(self.truth, 0)
        self.requests: list[str] = []
        self.reads: list[str] = []
        self.issued: dict[str, bool] = {}
        self.now = 0.0
        self.faults = dict(faults)
        self.members = tuple(sorted(self.waiting)) if faults.get("job") else ()
        self.stayed: set[str] = set()
        self.air: list[str] = []  # requests that were given up and may still take place
        self.dead = False

    def _made(self) -> Evictions:
        machine = Evictions()
        machine.holding = self._holds
        return machine

    def _holds(self, victim: str) -> bool:
        return victim in self.holding

    # ---------------------------------------------------------------- what may happen

    def steps(self) -> Iterable[Step]:
        for index, victim in enumerate(self.air):
            yield f"the request about {victim} lands late", partial(self._land, index, True)
            yield f"the late request about {victim} comes to nothing", partial(self._land, index, False)
        if self.dead:
            if not self.air:  # what a killed leader sent is over by then: that is what the lease's duration is for
                yield "the next leader begins", self._restart
            return
        for uid in sorted(self.waiting) if self.machine.leading else ():
            if any(all(self.shown[v] == GONE and v not in self.holding for v in self.nodes[node]) for node in self.chose.get(uid, ())):
                yield f"{uid} is placed", partial(self._place, uid)
                continue
            for node in self.nodes:
                if self._may_choose(uid, node):
                    yield f"{uid} preempts on {node}", partial(self._preempt, uid, node)
        for index, victim in enumerate(self.requests):
            yield f"{victim} is deleted", partial(self._answer, index, Answer.DONE)
            for fault, how, answer in (
                ("fails", "fails", Answer.FAILED), ("lost", "is lost, and was done", Answer.LOST), ("undone", "is lost", Answer.LOST),
            ):  # fmt: skip
                if self.faults.get(fault):
                    yield f"deleting {victim} {how}", partial(self._answer, index, answer, fault)
            if self.faults.get("air") and not self.air:
                yield f"deleting {victim} is lost, and may be done yet", partial(self._answer, index, Answer.LOST, "air")
            if self.faults.get("recreate") and self.truth[victim] == GONE:
                yield f"deleting {victim} meets another pod of the name", partial(self._answer, index, Answer.LOST, "recreate")
        for index, victim in enumerate(self.reads):
            yield f"{victim} is read", partial(self._read, index)
            if self.faults.get("unreadable"):
                yield f"{victim} cannot be read", partial(self._unreadable, index)
        for victim, state in self.truth.items():
            if state == DELETING:
                yield f"{victim} ends", partial(self._end, victim)
            if state == GONE and victim in self.holding:
                yield f"the claims of {victim} are given back", partial(self._release, victim)
            if self.shown[victim] != state:
                yield f"watch shows {victim} {state}", partial(self._show, victim)
        for uid in sorted({*self.waiting, *self.chose}):
            if self.faults.get("vanishes") and uid not in self.stayed:
                yield f"{uid} is deleted", partial(self._vanish, uid)
        due = self.machine.next_time()
        if due is not None and (self.faults.get("late") or due < SLACK):
            yield "time passes", partial(self._wait, due)
        if self.faults.get("lease") and self.machine.leading:
            yield "the lease is lost", self._lose_lease
        if self.faults.get("kill"):
            yield "the process is killed", self._kill

    def _may_choose(self, uid: str, node: str) -> bool:
        """What DefaultPreemption asks: nobody waits for victims, there are some, and room is not made elsewhere already."""
        if self.machine.awaited(uid) or (self.machine.asking(uid) and not self.members):
            return False
        mates = self.members or (uid,)
        nominated = [v for mate in mates for chosen in self.chose.get(mate, ()) for v in self.nodes[chosen] if self.shown[v] == DELETING]
        if any(not self.machine.overdue(v) for v in nominated):  # told by the pods themselves, also to the next leader
            return False
        there = [v for v in self.nodes[node] if self.shown[v] != GONE]
        elsewhere = self.machine.begun(uid) and node != self.nominated.get(uid, node)
        return bool(there) and not elsewhere and not any(self.machine.overdue(v) for v in there)

    def _preempt(self, uid: str, node: str) -> None:
        victims = [v for v in self.nodes[node] if self.shown[v] != GONE]
        leaving = [v for v in victims if self.shown[v] == DELETING]
        self.waiting.discard(uid)
        self.issued.pop(uid, None)
        self.chose.setdefault(uid, set()).add(node)
        self.nominated[uid] = node
        self.asked.difference_update(victims)
        self._run(self.machine.plan(uid, dict.fromkeys(victims, 0.0), self.members, leaving, self.now))

    def _place(self, uid: str) -> None:
        self.waiting.discard(uid)
        self.stayed.add(uid)
        self._run(self.machine.over(uid))

    def _answer(self, index: int, answer: Answer, fault: str = "") -> None:
        victim = self.requests.pop(index)
        if fault:
            self.faults[fault] -= 1
        if answer is Answer.DONE or fault == "lost":
            self._delete(victim)
        if fault == "air":
            self.air.append(victim)
        self._run(self.machine.answered(victim, answer, self.now))

    def _delete(self, victim: str) -> None:
        if self.truth[victim] == HERE:
            self.truth[victim] = DELETING
            self.deletes[victim] += 1

    def _land(self, index: int, done: bool) -> None:
        victim = self.air.pop(index)
        if done:
            self._delete(victim)

    def _unreadable(self, index: int) -> None:
        self.faults["unreadable"] -= 1
        self._run(self.machine.found(self.reads.pop(index), None, self.now))

    def _kill(self) -> None:
        self.faults["kill"] -= 1
        self.dead = True
        self.air += self.requests
        self.requests, self.reads = [], []

    def _restart(self) -> None:
        self.dead = False
        self.machine = self._made()
        self.shown = dict(self.truth)
        self.waiting = {uid for uid in (*self.waiting, *self.chose) if uid not in self.stayed}
        self.now = 0.0

    def _read(self, index: int) -> None:
        victim = self.reads.pop(index)
        self._run(self.machine.found(victim, self.truth[victim] != HERE, self.now))

    def _end(self, victim: str) -> None:
        self.truth[victim] = GONE

    def _release(self, victim: str) -> None:
        self.holding.discard(victim)
        self._run(self.machine.released(victim))

    def _show(self, victim: str) -> None:
        self.shown[victim] = self.truth[victim]
        if self.truth[victim] == DELETING:
            self._run(self.machine.seen_leaving(victim, self.now))
        else:
            self._run(self.machine.vanished(victim, self.now))

    def _vanish(self, uid: str) -> None:
        self.faults["vanishes"] -= 1
        self.waiting.discard(uid)
        self.stayed.add(uid)
        self._run(self.machine.vanished(uid, self.now))

    def _wait(self, due: float) -> None:
        if due >= SLACK:
            self.faults["late"] -= 1
        self.now = due
        self._run(self.machine.tick(due))

    def _lose_lease(self) -> None:
        self.faults["lease"] -= 1
        self._run(self.machine.lease_lost())

    # ---------------------------------------------------------------- effects and invariants

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if effect.do is Do.EVICT:
                assert self.machine.leading, "asked to leave without the lease"
                assert self.shown[effect.victim] == HERE, "asked to leave though it does already"
                assert effect.victim not in self.requests, "asked by two requests at a time"
                assert effect.victim not in self.asked, "asked again as it was decided some time ago"
                self.asked.add(effect.victim)
                assert effect.preemptor not in self.stayed, "asked to leave for a pod that is gone"
                self.requests.append(effect.victim)
            elif effect.do is Do.READ:
                self.reads.append(effect.victim)
            elif effect.do is Do.CLEARED:
                assert not self.machine.awaited(effect.preemptor)
            else:
                assert all(plan.issued for plan in self.machine if plan.preemptor == effect.preemptor)
                self.issued[effect.preemptor] = effect.failed
                if effect.preemptor not in self.stayed:
                    self.waiting.add(effect.preemptor)

    def check(self) -> None:
        assert all(count <= 1 for count in self.deletes.values()), f"deleted more than once: {self.deletes}"
        if not {"late", "fails", "undone", "air", "unreadable", "kill"} & self.faults.keys():
            assert all(len(nodes) <= 1 for nodes in self.chose.values()), f"one preemptor empties {self.chose}"
        if len({*self.waiting, *self.chose}) == 1 and not {"late", "air", "unreadable", "kill", "vanishes"} & self.faults.keys():
            left = {node for node, victims in self.nodes.items() if any(self.truth[v] != HERE for v in victims)}
            assert len(left) <= 1, f"one preemptor empties {left}"
        for plan in self.machine if not self.dead else ():
            if not plan.issued:
                assert plan.preemptor not in self.waiting, "decided while its victims are being asked"

    def check_end(self) -> None:
        assert all(plan.issued for plan in self.machine), "never issued"
        for uid in self.chose:
            assert uid in self.waiting or uid in self.stayed, f"{uid} is nowhere"
        assert not [v for v in self.truth if self.shown[v] == GONE and self.machine.victim(v) is not None]

    def key(self) -> Hashable:
        machine = self.machine
        victims = [(v, machine.victim(v)) for v in self.truth]
        return (
            tuple((v, w and (w.stage, tuple(sorted(w.plans)))) for v, w in victims),
            tuple(sorted((p.preemptor, p.issued, p.failed, p.begun, tuple(p.victims), tuple(p.open)) for p in machine)),
            tuple(sorted(self.requests)), tuple((uid, self.nominated[uid]) for uid in self.nominated if machine.begun(uid)),
            tuple(self.reads), frozenset(self.truth.items()), frozenset(self.holding), frozenset(self.shown.items()),
            frozenset(self.waiting),
            frozenset((u, frozenset(n)) for u, n in self.chose.items()), frozenset(self.faults.items()), frozenset(self.stayed),
            machine.leading, tuple(self.deletes.items()), tuple(self.air), self.dead,
            tuple((machine.asking(uid), machine.awaited(uid)) for uid in self.members),
        )  # fmt: skip


TWO = {"n0": ("a", "b"), "n1": ("c",)}
WORLDS = [
    (1, TWO, {}),
    (2, TWO, {}),
    (1, TWO, {"lost": 1, "undone": 1}),
    (1, TWO, {"fails": 4}),
    (2, TWO, {"lost": 1, "vanishes": 1}),
    (2, {"n0": ("a",)}, {"fails": 3, "vanishes": 1}),
    (1, TWO, {"late": 2, "vanishes": 1}),
    (2, {"n0": ("a", "b")}, {"lease": 1, "lost": 1}),
    (1, TWO, {"lost": 1, "unreadable": 2}),
    (1, TWO, {"air": 1, "unreadable": 1}),
    (2, {"n0": ("a",)}, {"air": 1, "lost": 1}),
    (2, {"n0": ("a",)}, {"recreate": 1, "lost": 1, "vanishes": 1}),
    (1, TWO, {"kill": 1, "lost": 1}),
    (2, {"n0": ("a", "b")}, {"kill": 1}),
    (1, TWO, {"claims": 1, "lost": 1}),
    (2, {"n0": ("a", "b")}, {"claims": 1, "late": 1}),
    (1, TWO, {"claims": 1, "kill": 1}),
    (2, TWO, {"job": 1, "fails": 1}),
    (2, {"n0": ("a", "b")}, {"job": 1, "fails": 1, "vanishes": 1}),
]


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.parametrize(("preemptors", "nodes", "faults"), WORLDS, ids=["-".join((str(p), *n, *f)) for p, n, f in WORLDS])
def test_no_order_asks_twice_or_empties_a_second_node(preemptors: int, nodes: dict[str, tuple[str, ...]], faults: dict[str, int]) -> None:
    assert explore(World(preemptors, nodes, faults)) > 10


@pytest.mark.feature("SCH-KS-12")
def test_deciding_again_while_victims_are_asked_is_found_out() -> None:
    """The checker finds what it is there for."""

    class Forgetful(Evictions):
        def awaited(self, uid: str) -> tuple[str, ...]:
            return ()

        def begun(self, uid: str) -> bool:
            return False

    world = World(1, TWO, {})
    world.machine = Forgetful()
    with pytest.raises(AssertionError, match="one preemptor empties"):
        explore(world)


@pytest.mark.feature("SCH-KS-12")
def test_sixteen_at_a_time_and_the_rest_as_they_answer() -> None:
    machine = Evictions()
    asked = [e.victim for e in machine.plan("high", {f"v{n}": 30.0 for n in range(40)}, ("mate",), (), 0.0)]
    assert len(asked) == PARALLEL
    assert machine.leaving("v39")  # from the decision on, though nobody has asked it yet
    assert machine.asking("mate")
    issued: list[Effect] = []
    while asked:
        following = machine.answered(asked.pop(0), Answer.DONE, 1.0)
        asked += [e.victim for e in following if e.do is Do.EVICT]
        issued += [e for e in following if e.do is Do.ISSUED]
        assert len(asked) <= PARALLEL
    assert issued == [Effect(Do.ISSUED, "high")]
    assert len(machine.awaited("mate")) == 40


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.parametrize("answer", [Answer.FAILED, Answer.LOST])
def test_once_a_victim_could_not_be_asked_nobody_is_before_it_is_decided_anew(answer: Answer) -> None:
    machine = Evictions()
    asked = [e.victim for e in machine.plan("high", {f"v{n}": 30.0 for n in range(40)}, (), (), 0.0)]
    effects = machine.answered(asked[0], answer, 4.0)
    if answer is Answer.LOST:
        effects = machine.found(asked[0], False, 5.0)
    for victim in asked[1:]:
        effects += machine.answered(victim, Answer.DONE, 6.0)
    assert effects == [Effect(Do.ISSUED, "high", failed=True)]
    assert machine.tick(60.0) == []
    assert not machine.awaited("high")  # it may decide what to do about the others
    assert machine.begun("high")
    assert machine.leaving_for("high")  # the others' room is still its own
    assert not machine.leaving("v0")
    assert not machine.leaving("v39")


@pytest.mark.feature("SCH-KS-12")
def test_who_is_wanted_by_another_plan_too_is_asked_though_the_first_one_failed() -> None:
    machine = Evictions()
    many = {f"v{n}": 30.0 for n in range(PARALLEL)}
    asked = [e.victim for e in machine.plan("first", {**many, "both": 30.0}, (), (), 0.0)]
    others = [e.victim for e in machine.plan("second", {**{f"w{n}": 30.0 for n in range(PARALLEL)}, "both": 30.0}, (), (), 0.0)]
    machine.answered(asked[0], Answer.FAILED, 1.0)
    effects = [e for victim in asked[1:] for e in machine.answered(victim, Answer.DONE, 1.0)]
    assert effects == [Effect(Do.ISSUED, "first", failed=True)]
    assert machine.leaving("both")
    assert machine.answered(others[0], Answer.DONE, 1.0) == [Effect(Do.EVICT, "second", "both")]


@pytest.mark.feature("SCH-KS-12")
def test_a_victim_that_should_be_gone_is_no_longer_counted_on() -> None:
    machine = Evictions()
    machine.plan("high", {"v": 10.0}, (), (), 0.0)
    machine.answered("v", Answer.DONE, 1.0)
    assert machine.awaited("high") == ("v",)
    due = machine.next_time()
    assert due == 1.0 + 10.0 + SLACK
    assert machine.tick(due) == [Effect(Do.CLEARED, "high")]
    assert machine.overdue("v")
    assert not machine.leaving("v")
    assert machine.awaited("high") == ()
    assert len(machine) == 0
    machine.vanished("v", due)
    assert not machine.overdue("v")


@pytest.mark.feature("SCH-KS-12")
def test_what_was_not_asked_yet_may_stay_when_the_preemptor_is_gone() -> None:
    machine = Evictions()
    machine.plan("high", {f"v{n}": 30.0 for n in range(20)}, (), (), 0.0)
    assert machine.vanished("high", 1.0) == [Effect(Do.ISSUED, "high")]
    assert not machine.leaving("v19")
    victim = machine.victim("v0")
    assert victim is not None
    assert victim.stage is Leaving.ASKED
    assert machine.answered("v0", Answer.DONE, 1.0) == []
    assert machine.leaving("v0")
