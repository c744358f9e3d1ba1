"""Placements in all orders: answers, lost answers, the watch first, pods deleted, made again under their name or bound by others, plugins
that raise, the lease lost, the process killed and the next leader after it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import partial

import pytest

from roles.scheduler.planner.placements import Answer, Do, Effect, Found, Placement, Placements, Stage
from tests.support.explorer import Step, explore

GONE, NEW = "gone", "new"


class World:
    """An API server, a watch that lags, requests under way, and nodes with one device each.

    A request whose answer was lost may still take place for a while. How long that is nobody knows; here it is over before the machine has
    given up sending it again.
    """

    def __init__(self, pods: int, nodes: int, faults: dict[str, int]) -> None:
        self.machine = Placements()
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.truth = {f"p{number}": "" for number in range(pods)}  # the API server: node, "" for pending, GONE
        self.ours = dict.fromkeys(self.truth, True)  # whether it was bound by us, if it is
        self.watch: dict[str, list[str]] = {uid: [] for uid in self.truth}
        self.shown: dict[str, str] = {}
        self.queue = set(self.truth)
        self.devices: dict[str, str] = {}  # what Reserve took: node by pod
        self.held: list[str] = []
        self.requests: list[Placement] = []
        self.reads: list[Placement] = []
        self.air: list[tuple[str, str]] = []  # bindings that were given up and may still take place
        self.settled: set[str] = set()
        self.dead = False
        self.script = ""
        self.faults = dict(faults)

    # ---------------------------------------------------------------- what may happen

    def steps(self) -> Iterable[Step]:
        if self.dead:
            yield from self._while_dead()
            return
        for uid in sorted(self.queue) if self.machine.leading else ():
            if self.machine.get(uid) is None and uid not in self.settled:
                taken = {*self.devices.values(), *self.shown.values()}
                for node in self.nodes:
                    if node not in taken:
                        for script in self._scripts():
                            yield f"{uid} to {node}{script and ' ' + script}", partial(self._pop, uid, node, script)
        for uid in self.held:
            yield f"{uid} is let go", partial(self._release, uid, True)
            if self.faults.get("permit"):
                yield f"{uid} is refused by permit", partial(self._release, uid, False)
        for index, placement in enumerate(self.requests):
            yield f"{placement.uid} is answered", partial(self._answer, index)
            if self.faults.get("lost"):
                for how in ("and was done", "and was not done", "and may be done yet"):
                    yield f"{placement.uid}'s answer is lost {how}", partial(self._lose, index, how)
            if self.faults.get("error"):
                yield f"{placement.uid} is refused", partial(self._refuse, index)
        for index, placement in enumerate(self.reads):
            if placement.sent < 3 or not any(uid == placement.uid for uid, _ in self.air):
                yield f"{placement.uid} is read", partial(self._read, index)
            if self.faults.get("unreadable"):
                yield f"{placement.uid} cannot be read", partial(self._unreadable, index)
        for index, (uid, node) in enumerate(self.air):
            yield f"{uid} lands late on {node}", partial(self._land, index, True)
            yield f"{uid}'s late binding comes to nothing", partial(self._land, index, False)
        for uid, events in self.watch.items():
            if events and not (events == [NEW] and self.watch.get(uid[:-1])):  # of one name the watch tells in order
                yield f"watch shows {uid} {events[0]}", partial(self._show, uid)
            if events == [GONE] and self.watch.get(_next(uid)) == [NEW]:
                yield f"watch shows {uid} as another pod", partial(self._replaced, uid)
        for uid, node in self.truth.items():
            if node == GONE and self.faults.get("recreate") and _next(uid) not in self.truth:
                yield f"{uid} is made again", partial(self._recreate, uid)
            if node != GONE and self.faults.get("delete"):
                yield f"{uid} is deleted", partial(self._delete, uid)
            if not node and self.faults.get("other"):
                yield f"{uid} is bound to {self.nodes[-1]} by somebody else", partial(self._other, uid)
        if self.machine.next_time() is not None:
            yield "time passes", self._wait
        if self.faults.get("lease") and self.machine.leading:
            yield "the lease is lost", self._lose_lease
        if self.faults.get("kill"):
            yield "the process is killed", self._kill

    def _while_dead(self) -> Iterable[Step]:
        """What was sent may take place yet; the next leader begins when that is over, which is what the lease's duration is for."""
        for index, (uid, node) in enumerate(self.air):
            yield f"{uid} lands late on {node}", partial(self._land, index, True)
            yield f"{uid}'s late binding comes to nothing", partial(self._land, index, False)
        if not self.air:
            yield "the next leader begins", self._restart

    def _kill(self) -> None:
        self._spend("kill")
        self.dead = True
        self.air += [(p.uid, p.node) for p in self.requests]
        self.requests, self.reads, self.held, self.devices = [], [], [], {}

    def _restart(self) -> None:
        self.dead = False
        self.machine = Placements()
        self.watch = {uid: [] for uid in self.truth}
        self.shown = {uid: node for uid, node in self.truth.items() if node not in ("", GONE)}
        self.queue = {uid for uid, node in self.truth.items() if not node}

    def _scripts(self) -> list[str]:
        return ["", *(word for word in ("reserve raises", "permit waits", "reserve refuses") if self.faults.get(word))]

    def _spend(self, fault: str) -> None:
        self.faults[fault] -= 1

    def _pop(self, uid: str, node: str, script: str) -> None:
        if script:
            self._spend(script)
        self.script = script
        self._run(self.machine.decided(self.machine.begin(uid, 0.0), node))

    def _release(self, uid: str, ok: bool) -> None:
        if not ok:
            self._spend("permit")
        self.held.remove(uid)
        placement = self.machine.get(uid)
        assert placement is not None
        self._run(self.machine.released(placement, ok, 0.0))

    def _commit(self, uid: str, node: str, *, ours: bool = True) -> bool:
        if self.truth[uid]:
            return False
        self.truth[uid] = node
        self.ours[uid] = ours
        self.watch[uid].append(node)
        return True

    def _answer(self, index: int) -> None:
        placement = self.requests.pop(index)
        uid = placement.uid
        if self.truth[uid] == GONE or not self.machine.leading:
            answer = Answer.REFUSED
        else:
            answer = Answer.BOUND if self._commit(uid, placement.node) else Answer.OPEN
        self._run(self.machine.answered(placement, answer))

    def _lose(self, index: int, how: str) -> None:
        self._spend("lost")
        placement = self.requests.pop(index)
        if how == "and was done":
            self._commit(placement.uid, placement.node)
        elif how == "and may be done yet":
            self.air.append((placement.uid, placement.node))
        self._run(self.machine.answered(placement, Answer.LOST))

    def _refuse(self, index: int) -> None:
        self._spend("error")
        self._run(self.machine.answered(self.requests.pop(index), Answer.REFUSED))

    def _land(self, index: int, done: bool) -> None:
        uid, node = self.air.pop(index)
        if done:
            self._commit(uid, node)

    def _read(self, index: int) -> None:
        placement = self.reads.pop(index)
        node = self.truth[placement.uid]
        found = Found.GONE if node == GONE else Found.PENDING if not node else Found.HERE if node == placement.node else Found.ELSEWHERE
        self._run(self.machine.found(placement, found, 0.0))

    def _unreadable(self, index: int) -> None:
        self._spend("unreadable")
        self._run(self.machine.found(self.reads.pop(index), Found.UNREADABLE, 0.0))

    def _show(self, uid: str) -> None:
        what = self.watch[uid].pop(0)
        if what == NEW:
            self.queue.add(uid)
            return
        self.queue.discard(uid)
        if what == GONE:
            self.shown.pop(uid, None)
            self._run(self.machine.vanished(uid))
            self.devices.pop(uid, None)
        else:
            self.shown[uid] = what  # from now on its annotation says what it holds
            self.devices.pop(uid, None)
            self._run(self.machine.seen(uid, what))

    def _delete(self, uid: str) -> None:
        self._spend("delete")
        self.truth[uid] = GONE
        self.watch[uid].append(GONE)

    def _recreate(self, uid: str) -> None:
        """Another pod of the name: requests about the first one name its UID, so they do not touch this one."""
        self._spend("recreate")
        self.truth[_next(uid)], self.ours[_next(uid)], self.watch[_next(uid)] = "", True, [NEW]

    def _replaced(self, uid: str) -> None:
        """The watch lost the deletion: it shows a pod of another UID."""
        self._show(uid)
        self._show(_next(uid))

    def _other(self, uid: str) -> None:
        self._spend("other")
        self._commit(uid, self.nodes[-1], ours=False)

    def _wait(self) -> None:
        due = self.machine.next_time()
        assert due is not None
        self._run(self.machine.tick(due))

    def _lose_lease(self) -> None:
        self._spend("lease")
        self._run(self.machine.lease_lost())

    # ---------------------------------------------------------------- effects

    def _run(self, effects: list[Effect]) -> None:
        for do, placement in effects:
            uid = placement.uid
            if do is Do.ASSUME:
                self.devices[uid] = placement.node
            elif do is Do.RESERVE:
                if self.script == "reserve raises":
                    self._run(self.machine.raised(placement))
                else:
                    self._run(self.machine.reserved(placement, self.script != "reserve refuses"))
            elif do is Do.PERMIT:
                waits = self.script == "permit waits"
                self._run(self.machine.permitted(placement, not waits, waits=waits))
            elif do is Do.HOLD:
                self.held.append(uid)
            elif do is Do.LET_GO:
                self.held.remove(uid)
            elif do is Do.BIND:
                assert self.machine.leading, "bound without the lease"
                self.requests.append(placement)
            elif do is Do.READ:
                self.reads.append(placement)
            elif do is Do.TAKE_BACK:
                self.devices.pop(uid, None)
            elif do is Do.SETTLE:
                assert self.truth[uid] in (placement.node, GONE), "told that it is bound where it is not"
                self.settled.add(uid)
            elif do is Do.FAIL:
                assert self.truth[uid] in ("", GONE) or not self.ours[uid], "a bound pod is told that it was not scheduled"

    # ---------------------------------------------------------------- invariants

    def check(self) -> None:
        owners: dict[str, set[str]] = {}
        for uid, node in (*self.devices.items(), *self.air, *((p.uid, p.node) for p in self.requests)):
            if self.truth[uid] in ("", node):
                owners.setdefault(node, set()).add(uid)
        for uid, node in self.truth.items():
            if node not in ("", GONE) and self.ours[uid]:
                owners.setdefault(node, set()).add(uid)
        for node, uids in owners.items():
            uids -= {uid for uid in uids if not self.ours[uid]}
            assert len(uids) <= 1, f"the device of {node} belongs to {sorted(uids)}"
        for uid in self.truth:
            known = self.dead or uid in self.queue or self.machine.get(uid) is not None or uid in self.settled or uid in self.shown
            assert known or self.truth[uid] or self.watch[uid], f"{uid} is pending and nobody knows it"
        assert all(p.stage is Stage.BINDING for p in self.requests if self.machine.get(p.uid) is p)

    def check_end(self) -> None:
        assert not len(self.machine), f"never ends: {[(p.uid, p.stage) for p in self.machine]}"
        for uid, node in self.truth.items():
            if not node:
                assert uid in self.queue, f"{uid} is pending and not queued"
            else:
                assert uid not in self.devices, f"{uid} is {node}, and {self.devices[uid]} is kept for it"

    def key(self) -> Hashable:
        def of(p: Placement) -> Hashable:
            return p.uid, p.stage, p.node, p.seen, p.gone, p.again, p.sent, p.unread, p.at is not None, self.machine.get(p.uid) is p

        return (
            frozenset(of(p) for p in self.machine), tuple(sorted(map(repr, map(of, self.requests)))), tuple(map(of, self.reads)),
            frozenset(self.truth.items()), frozenset(self.shown.items()), frozenset(self.queue), frozenset(self.devices.items()),
            frozenset((uid, tuple(events)) for uid, events in self.watch.items()), frozenset(self.faults.items()), tuple(sorted(self.air)),
            frozenset(self.held), frozenset(self.settled), self.machine.leading, self.dead,
        )  # fmt: skip


def _next(uid: str) -> str:
    """The UID of the pod that comes after one of the same name."""
    return f"{uid}'"


WORLDS = [
    (2, 1, {"lost": 1}),
    (2, 1, {"lost": 2, "unreadable": 1}),
    (2, 2, {"lost": 1, "other": 1}),
    (2, 1, {"lost": 1, "delete": 1, "error": 1}),
    (2, 1, {"permit waits": 1, "permit": 1, "lost": 1, "delete": 1}),
    (2, 2, {"permit waits": 1, "other": 1, "delete": 1}),
    (2, 1, {"reserve raises": 1, "reserve refuses": 1, "lost": 1}),
    (2, 1, {"lease": 1, "lost": 1, "permit waits": 1}),
    (1, 1, {"lost": 4, "unreadable": 2, "delete": 1}),
    (2, 2, {"kill": 1, "lost": 1}),
    (1, 2, {"delete": 1, "recreate": 1, "lost": 2}),
    (1, 1, {"delete": 2, "recreate": 2, "lost": 1}),
    (1, 1, {"delete": 1, "recreate": 1, "permit waits": 1, "lost": 1, "kill": 1}),
    (1, 1, {"delete": 1, "recreate": 1, "lease": 1, "lost": 1}),
    (3, 2, {"lost": 1}),
]


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize(("pods", "nodes", "faults"), WORLDS, ids=[f"{p}-pods-{n}-nodes-{'-'.join(f)}" for p, n, f in WORLDS])
def test_no_order_gives_a_device_to_two_or_loses_a_pod(pods: int, nodes: int, faults: dict[str, int]) -> None:
    assert explore(World(pods, nodes, faults)) > 20


@pytest.mark.feature("SCH-FW-06")
def test_giving_back_without_looking_is_found_out() -> None:
    """The checker finds what it is there for."""

    class Hasty(Placements):
        def answered(self, p: Placement, answer: Answer) -> list[Effect]:
            return super().answered(p, Answer.BOUND if answer is Answer.BOUND else Answer.REFUSED)

    world = World(2, 1, {"lost": 1})
    world.machine = Hasty()
    with pytest.raises(AssertionError, match=r"belongs to \['p0', 'p1'\]|bound pod is told"):
        explore(world)


@pytest.mark.feature("SCH-FW-06")
def test_a_placement_that_takes_too_long_is_stuck_one_on_permit_is_not() -> None:
    machine = Placements()
    slow, held = machine.begin("slow", 0.0), machine.begin("held", 0.0)
    for placement in (slow, held):
        machine.decided(placement, "n")
        machine.reserved(placement, True)
    machine.permitted(slow, True)
    machine.permitted(held, False, waits=True)
    assert machine.stuck(slow.limit) is None
    assert machine.stuck(slow.limit + 1) is slow
    machine.answered(slow, Answer.BOUND)
    assert machine.stuck(1e9) is None


@pytest.mark.feature("SCH-FW-06")
def test_only_who_has_waited_for_long_shows_its_node() -> None:
    """Members of a job that does not come about have nodes for moments, at each of its tries."""
    machine = Placements()
    held = machine.begin("held", 10.0)
    machine.decided(held, "n")
    machine.reserved(held, True)
    machine.permitted(held, True, waits=True)
    assert not list(machine.lasting(9.9))
    assert list(machine.lasting(10.0)) == [held]
    machine.released(held, True, 12.0)
    assert not list(machine.lasting(12.0)), "a binding is quick unless it waits for something"
    held.limit = 3600.0
    assert not list(machine.lasting(11.0))
    assert list(machine.lasting(12.0)) == [held]
