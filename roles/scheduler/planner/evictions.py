"""Evictions as assumptions, and the machine that carries them out; without I/O (SCH-KS-12).

From the decision on the victims count as leaving, for whoever decides next: they are asked to leave once, they cost nothing as victims of
others, and the preemptor keeps its node and asks nobody else. A plan is *issued* when every victim was asked and has answered; until then
its preemptor is not decided again. It is over when the victims are gone, when the preemptor is placed, gone or outbid, or when a victim is
overdue: one that should have been gone long ago holds nobody up, and nobody counts on its room. A pod that is gone and still has devices
by its claims is waited for until they are given back.

Invariants, which a model checker explores in all orders of small worlds (tests/roles/scheduler/planner):

* A victim is asked by one request at a time, and by none once a request was acknowledged or the API server shows it leaving.
* While a victim of a plan is on its way, its preemptor has no other plan with other victims but those that the first one failed to remove.
* Nobody is asked twice for one decision, and nobody any more once somebody of the plan could not be asked: the preemptor decides anew.
* Every plan is issued, and every plan is over in the end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

PARALLEL = 16  # requests of one plan at a time
SLACK = 60.0  # seconds beyond its grace period after which a victim that is still there is overdue, and beyond its end its claims
GRACE = 30.0  # seconds that a pod has where it does not say


class Leaving(Enum):
    """How far a victim is."""

    CHOSEN = "chosen"  # nobody has asked it yet
    ASKED = "asked"  # a request is under way
    UNKNOWN = "answer unknown"  # is being read
    LEAVING = "leaving"  # acknowledged, or the API server shows it
    STAYS = "stays"  # asked in vain, or not at all after another one was; the preemptor decides anew with what is left
    OVERDUE = "overdue"


_ANSWERED = frozenset((Leaving.LEAVING, Leaving.STAYS, Leaving.OVERDUE))


class Do(Enum):
    """Effects."""

    EVICT = "evict"  # answer with `answered`
    READ = "read"  # answer with `found`
    CLEARED = "cleared"  # the plan is over: its victims are gone, or not to be counted on; the preemptor may be decided at once
    ISSUED = "issued"  # the plan's requests are through: the preemptor may be queued; `failed` tells whether some victims stay


class Answer(Enum):
    """What came of asking a victim to leave."""

    DONE = "done"  # acknowledged, or it was gone
    FAILED = "failed"
    LOST = "lost"


class Effect(NamedTuple):
    """One thing to do: about a victim on behalf of a preemptor, or about the preemptor."""

    do: Do
    preemptor: str
    victim: str = ""
    failed: bool = False


@dataclass(slots=True)
class Victim:
    """A pod that was chosen to leave. `grace` and `deadline` in seconds, `plans` the preemptors that count on it, the first one asks;
    `gone` when only its claims are left."""

    uid: str
    grace: float
    stage: Leaving = Leaving.CHOSEN
    deadline: float = 0.0
    gone: bool = False
    plans: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """Who leaves for a preemptor. `members` are the UIDs of its job, itself among them; `victims` those that are not gone, `open` those of
    them that have not answered, in the order in which they are asked."""

    preemptor: str
    members: frozenset[str]
    victims: dict[str, None]
    open: dict[str, None]
    begun: bool = False  # somebody has left for it, or is leaving
    failed: bool = False  # somebody could not be asked
    issued: bool = False


class Evictions:
    """All evictions under way. Each input returns the effects that follow from it."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}
        self._plan_of: dict[str, str] = {}  # members: their preemptor
        self._victims: dict[str, Victim] = {}
        self._dates: list[tuple[float, str]] = []  # a heap of when victims are overdue; those that hold no more are passed over
        self.leading = True
        self.holding: Callable[[str], bool] = lambda uid: False  # whether a pod that is gone still has devices
        self.held: Callable[[int, float], bool] = lambda slot, since: False  # whether pods have that went from a slot since then

    # ---------------------------------------------------------------- what decisions look at

    def leaving(self, uid: str) -> bool:
        """Whether a pod was chosen as a victim and its room is counted on."""
        victim = self._victims.get(uid)
        return victim is not None and victim.stage not in (Leaving.STAYS, Leaving.OVERDUE)

    def all_leaving(self) -> list[str]:
        """UIDs of all pods that were chosen to leave and are not overdue."""
        return [uid for uid in self._victims if self.leaving(uid)]

    def unreleased(self, slot: int, now: float) -> bool:
        """Whether pods that went from a slot a moment ago, under whichever leader, have devices there still."""
        return self.held(slot, now - SLACK)

    def overdue(self, uid: str) -> bool:
        """Whether a victim should be gone and is not: its room is not to be counted on."""
        victim = self._victims.get(uid)
        return victim is not None and victim.stage is Leaving.OVERDUE

    def awaited(self, uid: str) -> tuple[str, ...]:
        """UIDs of the pods whose leaving a pod (or its job) waits for; () when it may look for other victims."""
        plan = self._plan(uid)
        if plan is None or any(self._victims[victim].stage is Leaving.STAYS for victim in plan.victims):
            return ()
        return tuple(victim for victim in plan.victims if self.leaving(victim))

    def leaving_for(self, uid: str) -> bool:
        """Whether anybody is to leave for a pod (or its job), or does, though others may stay: what they leave is still its own."""
        plan = self._plan(uid)
        return plan is not None and any(map(self.leaving, plan.victims))

    def begun(self, uid: str) -> bool:
        """Whether pods have left for a pod (or its job) or are leaving, and others are still to go: it keeps to where they were."""
        plan = self._plan(uid)
        return plan is not None and plan.begun

    def asking(self, uid: str) -> bool:
        """Whether victims of a pod (or its job) are still being asked: it is not to be decided."""
        plan = self._plan(uid)
        return plan is not None and not plan.issued

    def __iter__(self) -> Iterator[Plan]:
        return iter(list(self._plans.values()))

    def __len__(self) -> int:
        return len(self._plans)

    def victim(self, uid: str) -> Victim | None:
        """A victim."""
        return self._victims.get(uid)

    @property
    def victim_count(self) -> int:
        """How many victims are known."""
        return len(self._victims)

    def next_time(self) -> float | None:
        """When something is due, None when nothing is."""
        dates = self._dates
        while dates and not self._holds(*dates[0]):
            heapq.heappop(dates)
        return dates[0][0] if dates else None

    def _holds(self, time: float, uid: str) -> bool:
        """Whether a date is still that of a victim."""
        victim = self._victims.get(uid)
        return victim is not None and victim.stage is Leaving.LEAVING and time == victim.deadline

    # ---------------------------------------------------------------- deciding

    def plan(
        self, preemptor: str, victims: Mapping[str, float], members: Iterable[str], leaving: Iterable[str], now: float
    ) -> list[Effect]:  # fmt: skip
        """Victims were chosen, with their grace periods in seconds; those in `leaving` are on their way out already. A plan of before is
        replaced; a preemptor whose plan it was need not wait for the answers any more."""
        before = self._plan(preemptor)
        begun = before is not None and before.begun and not before.victims.keys().isdisjoint(victims)
        self._forget_plan(preemptor)
        on_their_way = frozenset(leaving)
        plan = Plan(preemptor, frozenset((preemptor, *members)), dict.fromkeys(victims), {}, begun)
        effects: list[Effect] = []
        for member in plan.members:
            former = self._plan_of.get(member)
            if former is not None:
                if not self._plans[former].issued:
                    effects.append(Effect(Do.ISSUED, former, failed=True))
                self._forget_plan(former)
            self._plan_of[member] = preemptor
        self._plans[preemptor] = plan
        for uid, grace in victims.items():
            known = self._victims.get(uid)
            if known is None or known.stage in (Leaving.STAYS, Leaving.OVERDUE):
                plans = known.plans if known is not None else {}
                known = self._victims[uid] = Victim(uid, grace, plans=plans)
            known.plans[preemptor] = None
            if uid in on_their_way and known.stage is Leaving.CHOSEN:
                self._leaves(known, now)
            if known.stage is Leaving.LEAVING:
                plan.begun = True
            else:
                plan.open[uid] = None
        return effects + self._ask(plan)

    # ---------------------------------------------------------------- at the API server

    def answered(self, uid: str, answer: Answer, now: float) -> list[Effect]:
        """What came of asking a victim."""
        victim = self._victims.get(uid)
        if victim is None or victim.stage is not Leaving.ASKED:
            return []
        if answer is Answer.DONE:
            self._leaves(victim, now)
        elif answer is Answer.LOST:
            victim.stage = Leaving.UNKNOWN
            return [Effect(Do.READ, next(iter(victim.plans), ""), uid)]
        else:
            self._failed(victim)
        return self._go_on(victim)

    def found(self, uid: str, leaving: bool | None, now: float) -> list[Effect]:
        """Whether a victim whose answer was lost is leaving or gone; None when it could not be read."""
        victim = self._victims.get(uid)
        if victim is None or victim.stage is not Leaving.UNKNOWN:
            return []
        if leaving:
            self._leaves(victim, now)
        else:
            self._failed(victim)
        return self._go_on(victim)

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        effects: list[Effect] = []
        while (time := self.next_time()) is not None and time <= now:
            victim = self._victims[heapq.heappop(self._dates)[1]]
            victim.stage = Leaving.OVERDUE
            effects += self.left(victim.uid) if victim.gone else self._go_on(victim)
        return effects

    # ---------------------------------------------------------------- watch events

    def seen_leaving(self, uid: str, now: float) -> list[Effect]:
        """The API server shows that a pod is on its way out."""
        victim = self._victims.get(uid)
        if victim is None or victim.stage in (Leaving.LEAVING, Leaving.OVERDUE):
            return []
        self._leaves(victim, now)
        return self._go_on(victim)

    def vanished(self, uid: str, now: float) -> list[Effect]:
        """A pod is gone: a victim whose room is there now, or will be with its claims, or a preemptor that needs none any more."""
        victim = self._victims.get(uid)
        if victim is None or victim.stage is Leaving.OVERDUE or not self.holding(uid):
            return [*self.left(uid), *self.over(uid)]
        victim.gone, victim.grace = True, 0.0
        self._leaves(victim, now)
        return [*self._go_on(victim), *self.over(uid)]

    def released(self, uid: str) -> list[Effect]:
        """A pod has no devices any more."""
        victim = self._victims.get(uid)
        return self.left(uid) if victim is not None and victim.gone else []

    def left(self, uid: str) -> list[Effect]:
        """A victim is on its node no more."""
        victim = self._victims.pop(uid, None)
        if victim is None:
            return []
        victim.stage = Leaving.LEAVING
        for preemptor in victim.plans:
            plan = self._plans[preemptor]
            plan.begun = True
            plan.victims.pop(uid, None)
            plan.open.pop(uid, None)
        return self._go_on(victim)

    def over(self, uid: str) -> list[Effect]:
        """A preemptor is placed, gone, or outbid: who was not asked for it yet may stay. Its job's plan goes on while others need it."""
        preemptor = self._plan_of.get(uid)
        if preemptor is None:
            return []
        if uid != preemptor and self._plan_of.get(preemptor) == preemptor:
            del self._plan_of[uid]
            return []
        plan = self._plans[preemptor]
        issued = plan.issued
        self._forget_plan(preemptor)
        return [] if issued else [Effect(Do.ISSUED, preemptor)]

    def lease_lost(self) -> list[Effect]:
        """Nobody is asked any more. Requests under way come to their end."""
        self.leading = False
        effects: list[Effect] = []
        for plan in list(self._plans.values()):
            effects += self._ask(plan)
        return effects

    # ---------------------------------------------------------------- inside

    def _plan(self, uid: str) -> Plan | None:
        preemptor = self._plan_of.get(uid)
        return self._plans.get(preemptor) if preemptor is not None else None

    def _leaves(self, victim: Victim, now: float) -> None:
        victim.stage, victim.deadline = Leaving.LEAVING, now + victim.grace + SLACK
        heapq.heappush(self._dates, (victim.deadline, victim.uid))
        for preemptor in victim.plans:
            self._plans[preemptor].begun = True

    def _failed(self, victim: Victim) -> None:
        """What was decided some time ago is not sent again as it was: there may be room by now that nobody has to leave for."""
        victim.stage = Leaving.STAYS
        for preemptor in victim.plans:
            self._plans[preemptor].failed = True
        if not victim.plans:
            del self._victims[victim.uid]  # nobody counts on it any more

    def _go_on(self, victim: Victim) -> list[Effect]:
        """A victim got further: the plans that count on it ask the next ones, are issued, or are over."""
        effects: list[Effect] = []
        for preemptor in list(victim.plans):
            plan = self._plans[preemptor]
            effects += self._ask(plan)
            if plan.issued and victim.stage in (Leaving.LEAVING, Leaving.OVERDUE):
                effects += self._close(plan)
        return effects

    def _close(self, plan: Plan) -> list[Effect]:
        """A plan is over once all its victims are gone or overdue."""
        if any(self._victims[uid].stage is not Leaving.OVERDUE for uid in plan.victims):
            return []
        self._forget_plan(plan.preemptor)
        return [Effect(Do.CLEARED, plan.preemptor)]

    def _ask(self, plan: Plan) -> list[Effect]:
        """Ask as many as may be asked at a time; a plan that has asked all is issued."""
        if plan.issued:
            return []
        effects: list[Effect] = []
        answered: list[str] = []
        busy = 0
        for uid in plan.open:
            victim = self._victims[uid]
            if victim.stage is Leaving.CHOSEN and (not self.leading or (plan.failed and len(victim.plans) == 1)):
                victim.stage = Leaving.STAYS
            if victim.stage in _ANSWERED or (victim.stage is Leaving.CHOSEN and plan.failed):  # another plan may still ask it
                answered.append(uid)
                continue
            if victim.stage is Leaving.CHOSEN:
                victim.stage = Leaving.ASKED
                effects.append(Effect(Do.EVICT, plan.preemptor, uid))
            busy += victim.stage in (Leaving.ASKED, Leaving.UNKNOWN)
            if busy >= PARALLEL:
                break
        for uid in answered:
            del plan.open[uid]
        if not plan.open:
            plan.issued = True
            failed = any(self._victims[uid].stage is Leaving.STAYS for uid in plan.victims)
            effects.append(Effect(Do.ISSUED, plan.preemptor, failed=failed))
        return effects

    def _forget_plan(self, preemptor: str) -> None:
        """Victims that nobody counts on any more are forgotten, but for those that are leaving: they do, whoever asked."""
        plan = self._plans.pop(preemptor, None)
        if plan is None:
            return
        for member in plan.members:
            if self._plan_of.get(member) == preemptor:
                del self._plan_of[member]
        for uid in plan.victims:
            victim = self._victims[uid]
            victim.plans.pop(preemptor, None)
            if not victim.plans and victim.stage in (Leaving.CHOSEN, Leaving.STAYS):
                del self._victims[uid]
