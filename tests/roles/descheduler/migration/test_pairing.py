"""Pods of one workload that move at once may come into each other's places: nobody leaves without one, and every job ends as it should."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from koord.api import objects
from roles.descheduler.migration import pairing, status
from tests.roles.descheduler.migration.poolmodel import NODES, Model
from tests.support.examples import examples

T = TypeVar("T")
PICK = st.integers(0, 20)


def pick(number: int, choices: list[T]) -> T:
    return choices[number % len(choices)]


class Moving(RuleBasedStateMachine):
    """Every order of writes of the jobs, the scheduler, the controller and the kubelet, and deaths of the descheduler in between."""

    model: Model

    @initialize(replicas=st.integers(2, 6), moving=st.integers(2, 4))
    def begin(self, replicas: int, moving: int) -> None:
        self.model = Model(replicas, min(replicas, moving))

    @rule(number=PICK)
    def work(self, number: int) -> None:
        self.model.now += 1
        self.model.step(pick(number, list(self.model.jobs)))

    @rule(number=PICK, times=st.integers(2, 12))
    def work_long(self, number: int, times: int) -> None:
        for _ in range(times):
            self.work(number)

    @precondition(lambda self: self.model.work)
    @rule()
    def crash(self) -> None:
        self.model.crash()

    @precondition(lambda self: any(not each.status.node_name for each in self.model.reservations.values()))
    @rule(number=PICK, node=PICK)
    def place(self, number: int, node: int) -> None:
        waiting = [uid for uid, each in self.model.reservations.items() if not each.status.node_name]
        uid = pick(number, waiting)
        job = self.model.jobs[uid.removeprefix("r-")]
        pod = self.model.pods.get(status.pod_uid(job))
        self.model.place(uid, pick(node, [each for each in NODES if pod is None or each != pod.spec.node_name]))

    @precondition(lambda self: self.model.missing())
    @rule()
    def create(self) -> None:
        self.model.create()

    @precondition(lambda self: self.model.unbound() and self.model.places())
    @rule(number=PICK, where=PICK)
    def bind(self, number: int, where: int) -> None:
        self.model.bind(pick(number, self.model.unbound()), pick(where, self.model.places()))

    @precondition(lambda self: self.model.reservations)
    @rule(number=PICK)
    def sync(self, number: int) -> None:
        self.model.sync(pick(number, list(self.model.reservations)))

    @rule(number=PICK)
    def ready(self, number: int) -> None:
        if bound := [uid for uid, pod in self.model.pods.items() if pod.spec.node_name]:
            self.model.ready(pick(number, bound))

    @invariant()
    def one_place_each(self) -> None:
        """No two jobs whose pods have left or may leave count on one place, except while it changes hands."""
        if not hasattr(self, "model") or self.model.work:
            return
        named = [ref.name for job in self.model.jobs.values() if not status.finished(job) and (ref := status.reservation_ref(job))]
        free = [name for name in named if name in self.model.places()]
        if len(free) != len(set(free)):  # cut short: the next life goes on with it
            assert any(each.startswith("r-") for each in set(self.model.reservations) - set(named))

    def settle(self) -> None:
        """Everybody does their work until nothing changes."""
        for _ in range(12):
            self.model.now += 1
            for uid in list(self.model.jobs):
                while self.model.step(uid):
                    pass
            for uid, each in list(self.model.reservations.items()):
                if not each.status.node_name:
                    self.model.place(uid, "n3")
            while self.model.missing():
                self.model.create()
            for pod in self.model.unbound():
                if self.model.places():
                    self.model.bind(pod, self.model.places()[-1])
                elif self.model.strangers:
                    self.model.bind(pod, None, "n2")
            for uid in list(self.model.reservations):
                self.model.sync(uid)
            for uid, pod in self.model.pods.items():
                if pod.spec.node_name:
                    self.model.ready(uid)

    def check_end(self) -> None:
        ended = {uid: (job.status.phase, job.status.reason, job.status.message) for uid, job in self.model.jobs.items()}
        assert all(phase in ("Succeeded", "Failed") for phase, _, _ in ended.values()), ended
        assert not any(pairing.free(each) and not self.model.users(each) for each in self.model.reservations.values()), (
            "a place is still held"
        )
        assert not self.model.unbound()
        assert not self.model.missing()
        if not self.model.strangers:
            for uid, end in ended.items():
                job = self.model.jobs[uid]
                assert end[0] == "Succeeded" or (end[1] == "ForbiddenMigratePod" and status.pod_uid(job) in self.model.pods), ended
            came = [job.status.pod_ref.uid for job in self.model.jobs.values() if job.status.pod_ref is not None]
            assert not set(came) & set(self.model.evicted)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.settle()
            self.check_end()


class MovingAmongStrangers(Moving):
    """The same while the workload grows, and while the scheduler puts pods elsewhere than into the places that were made for them."""

    @rule()
    def grow(self) -> None:
        self.model.strangers = True
        self.model.replicas += 1

    @precondition(lambda self: self.model.unbound())
    @rule(number=PICK, node=PICK)
    def bind_elsewhere(self, number: int, node: int) -> None:
        self.model.strangers = True
        self.model.bind(pick(number, self.model.unbound()), None, pick(node, list(NODES)))

    def settle(self) -> None:
        super().settle()
        self.model.now += 60  # by now it is believed that a successor went elsewhere
        super().settle()

    def check_end(self) -> None:
        super().check_end()
        assert not any(job.status.reason == "Timeout" for job in self.model.jobs.values())
        came = [job.status.pod_ref.uid for job in self.model.jobs.values() if job.status.pod_ref is not None]
        assert len(came) == len(set(came)), "a pod stands for two jobs"


QUICK = examples(  # without shrinking, which takes minutes here: what fails is printed as it was found
    60,
    phases=(Phase.reuse, Phase.explicit, Phase.generate),
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.feature("DS-MC-03")
@pytest.mark.feature("DS-ARB-03")
def test_property_pods_of_one_workload_that_move_at_once_always_have_a_place() -> None:
    run_state_machine_as_test(Moving, settings=QUICK)


@pytest.mark.feature("DS-MC-03")
def test_property_nothing_is_left_behind_while_strangers_take_places() -> None:
    run_state_machine_as_test(MovingAmongStrangers, settings=QUICK)


@pytest.mark.feature("DS-MC-03")
def test_a_pod_stays_while_an_exchange_that_was_cut_short_gives_it_a_place() -> None:
    """Both jobs name one place: the pod that left has its successor in the other one, and its job is to say so first."""
    model = Model(2, 2)

    def rest(uid: str) -> None:
        while model.step(uid):
            pass

    for uid, node in (("j-p0", "n2"), ("j-p1", "n3")):
        while f"r-{uid}" not in model.reservations:
            model.step(uid)
        model.place(f"r-{uid}", node)
    model.crash()
    rest("j-p0")
    assert model.evicted == ["p0"]
    model.create()
    model.bind(model.unbound()[0], "r-j-p1")
    model.sync("r-j-p1")
    while place(model, "j-p1") != "r-j-p0":
        model.step("j-p1") or model.step("j-p0")
    model.crash()
    assert place(model, "j-p0") == "r-j-p0"
    rest("j-p1")
    assert model.evicted == ["p0"]
    rest("j-p0")
    assert place(model, "j-p0") == "r-j-p1"
    rest("j-p1")
    assert model.evicted == ["p0", "p1"]


def leave(model: Model, job: str, node: str) -> None:
    """The job's pod leaves, with a place on a node."""
    while f"r-{job}" not in model.reservations:
        model.step(job)
    model.place(f"r-{job}", node)
    while model.step(job):
        pass


@pytest.mark.feature("DS-MC-03")
def test_a_place_is_kept_until_the_controller_has_made_the_successor() -> None:
    model = Model(2, 1)
    leave(model, "j-p0", "n2")
    model.now += 60
    while model.step("j-p0"):
        pass
    assert status.running(model.jobs["j-p0"])
    assert model.places() == ["r-j-p0"]


@pytest.mark.feature("DS-MC-03")
def test_a_place_is_kept_for_whom_a_leaving_pod_s_place_was_taken() -> None:
    """The successor of p1 comes into the place of p0 while the eviction of p0 is under way: p0's successor needs that of p1."""
    model = Model(2, 2)
    leave(model, "j-p1", "n3")
    model.create()
    while "r-j-p0" not in model.reservations:
        model.step("j-p0")
    model.place("r-j-p0", "n3")
    while not status.eviction_begun(model.jobs["j-p0"]):
        model.step("j-p0")
    model.bind("p2", "r-j-p0")
    model.now += 60
    while model.step("j-p1"):
        pass
    assert model.places() == ["r-j-p1"]
    model.step("j-p0")
    assert model.evicted == ["p1", "p0"]
    model.create()
    model.bind("p3", "r-j-p1")
    for pod in ("p2", "p3"):
        model.ready(pod)
    for job in ("j-p0", "j-p1"):
        model.sync(f"r-{job}")
        while model.step(job):
            pass
        assert model.jobs[job].status.phase == "Succeeded"


def place(model: Model, job: str) -> str:
    ref = status.reservation_ref(model.jobs[job])
    return ref.name if ref is not None else ""


@pytest.mark.feature("DS-MC-03")
def test_a_look_at_a_job_costs_as_many_steps_as_its_workload_has_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    begun = status.eviction_begun

    def counted(job: Any) -> bool:
        nonlocal asked
        asked += 1
        return begun(job)

    monkeypatch.setattr(status, "eviction_begun", counted)
    compared = 0
    same = pairing._same

    def comparing(one: Any, other: Any) -> bool:
        nonlocal compared
        compared += 1
        return same(one, other)

    monkeypatch.setattr(pairing, "_same", comparing)
    peers = [_peer(number) for number in range(120)]  # the pod of one has left, and all other places are taken
    found = pairing.Pool(peers, [peer.reservation for peer in peers], nodes={f"n{number}" for number in range(120)})
    assert found.pairing(peers[-1].job).unsettled
    assert asked + compared < 120 * 10


def _peer(number: int) -> pairing.Peer:
    left = number == 119
    meta = {"uid": f"r{number}", "name": f"r{number}", "ownerReferences": [{"kind": "PodMigrationJob", "name": "j", "uid": f"j{number}"}]}
    users = [] if left else [{"namespace": "d", "name": f"u{number}", "uid": f"u{number}"}]
    state = {"phase": "Available" if left else "Succeeded", "nodeName": f"n{number}", "currentOwners": users}
    place = objects.convert({"metadata": meta, "status": state}, objects.Reservation)
    gone = [{"type": "Eviction", "status": "True", "reason": "EvictComplete", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    job = {"metadata": {"uid": f"j{number}", "name": f"j{number}"}, "status": {"phase": "Running", "conditions": gone if left else []}}
    return pairing.Peer(objects.convert(job, objects.PodMigrationJob), place, "" if left else "old")
