"""The gangs: which pods belong to which gang, and how far they are (SCH-GANG-01, 03, 04).

Kept from events alone, without I/O and without a clock. A child of a gang is pending, waiting (it has a place and waits for the others),
released (let go, not seen on its node yet) or bound.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from koord.api import names
from koord.api.gangs import GROUP
from koord.api.objects import Pod, PodGroup, SchedulingPodGroup
from koord.decisions.record import Term
from roles.scheduler.cluster.columns import Columns
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.status import JOB_REJECT
from roles.scheduler.framework.steps import Steps
from roles.scheduler.plugins.coscheduling import spec as specs
from roles.scheduler.plugins.coscheduling.metrics import GangMetrics

_FEW_TRIES = 16  # after which a reason that was not met any more is no reason; more where there are many members to come first
_LISTED = 20  # gangs that a message names: a group may have thousands
_NAMED = re.compile(r"\b(pod|by) \S+/\S+")  # pods in a message, which may be others at the next try


def unnamed(message: str) -> str:
    """A message without the pods that it names."""
    return _NAMED.sub("pod", message)


def some_of(texts: Sequence[str]) -> str:
    """Texts as a list; of very many the first ones, and how many more there are."""
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {more} more" if more > 0 else "")


class Stage(StrEnum):
    """How far a child of a gang is."""

    PENDING = "pending"
    WAITING = "waiting"
    RELEASED = "released"
    BOUND = "bound"


PENDING, WAITING, RELEASED, BOUND = Stage.PENDING, Stage.WAITING, Stage.RELEASED, Stage.BOUND


@dataclass(slots=True, eq=False)
class Said:
    """What one of a group shows of its refusals. Which of several reasons is met depends on who comes first, so one that was met lately is
    no news; what is shown gives way when it was not met for as long."""

    shown: str = ""
    why: str = ""
    _met: dict[str, int] = field(default_factory=dict)  # by reason, at which try last

    def tell(self, message: str, why: str, turn: int, window: int) -> str:
        """A try failed for a reason; returns what is shown from now on."""
        self._met = {reason: last for reason, last in self._met.items() if turn - last <= window}
        if why not in self._met or self.why not in self._met:
            self.shown, self.why = message, why
        self._met[why] = turn
        return self.shown


@dataclass(slots=True, eq=False)
class Group:
    """What gangs that are scheduled together share: whether it came about once, the pod that stands for it in the queue, who was let go."""

    id: str
    once_satisfied: bool = False
    representative: str = ""  # UID of the one pending pod that may be in the queue
    told: float = 0.0  # when members that were not tried were last told why, seconds since the epoch
    refusal: str = ""  # why its last try failed
    terms: tuple[Term, ...] = ()  # the numbers of that
    missing: str = ""  # UID of the member that found no node then
    gist: str = ""  # the refusal without what differs from try to try: who came first, and how far the others got
    said: dict[str, Said] = field(default_factory=dict)  # what members show of refusals, by UID; under "" the group
    tries: int = 0  # that failed, since it last came about
    unplanned: bool = False  # the last plan failed: any node or pod that changes may help
    partial: bool = False  # its last batch was not bound whole at once
    # UIDs of pods that were let go, until all of them are bound; each with those that were let go together with it.
    binding: dict[str, frozenset[str]] = field(default_factory=dict)
    released: bool = False  # this scheduler has let several of them go together, or all are bound that one before it let go
    rejoined: dict[str, int] = field(default_factory=dict)  # pods whose release one before it began, with how many were let go then

    def refused(self, why: str, missing: str = "", gist: str = "") -> None:
        """Its try failed, or it came about (no reason)."""
        self.refusal, self.missing, self.gist = why, missing, gist
        self.tries += 1
        if not why:
            self.said.clear()
            self.tries = 0
        elif gist:
            self._tell("", why, gist)

    @property
    def shown(self) -> str:
        """What is shown of the refusal."""
        return self.said[""].shown if "" in self.said else self.refusal

    def _tell(self, uid: str, message: str, why: str) -> str:
        return self.said.setdefault(uid, Said()).tell(message, why, self.tries, _FEW_TRIES + 2 * len(self.said))

    def wording(self, uid: str, message: str) -> str:
        """What a member shows of a message. It keeps what it was told of the same refusal, whoever the member is this time that found no
        node, so that trying again is no reason to write to everybody."""
        if not self.gist:
            return message
        of_group = message == self.refusal or uid == self.missing
        return self._tell(uid, message, self.gist if of_group else unnamed(message))

    def stands_no_more(self, uid: str) -> None:
        """A pod does not stand for the group any more, if it did."""
        if self.representative == uid:
            self.representative = ""


class Gang:
    """One gang. `spec` is None until a PodGroup or a pod says what it is."""

    __slots__ = ("_held", "children", "group", "id", "name", "namespace", "native", "pod_group", "spec", "stages")

    def __init__(self, identity: str) -> None:
        self.id = identity
        self.namespace, _, name = identity.partition("/")
        self.name = name.removeprefix(GROUP)
        self.spec: specs.GangSpec | None = None
        self.group = Group(identity)
        self.pod_group: PodGroup | None = None
        self.native: SchedulingPodGroup | None = None
        self.children: dict[str, PodInfo] = {}
        self._held: set[str] = set()  # children that cannot be placed: scheduling gates, or on their way out
        self.stages: dict[Stage, dict[str, None]] = {stage: {} for stage in Stage}

    def at(self, stage: Stage) -> list[PodInfo]:
        """Children at a stage, in the order they came there."""
        return [self.children[uid] for uid in self.stages[stage]]

    def count(self, *stages: Stage) -> int:
        """How many children are at the stages."""
        return sum(len(self.stages[stage]) for stage in stages)

    def stage_of(self, uid: str) -> Stage | None:
        """Where a child stands."""
        return next((stage for stage, members in self.stages.items() if uid in members), None)

    def move(self, uid: str, stage: Stage) -> None:
        """A child is at another stage now; a pod that is no child (any more) is passed over."""
        if uid not in self.children:
            return
        for members in self.stages.values():
            members.pop(uid, None)
        self.stages[stage][uid] = None

    def take(self, pod: PodInfo) -> None:
        """A child appeared or changed."""
        self.children[pod.uid] = pod
        if pod.shape.gates or pod.deleting:
            self._held.add(pod.uid)
        else:
            self._held.discard(pod.uid)

    def drop(self, uid: str) -> None:
        """A child is gone."""
        del self.children[uid]
        self._held.discard(uid)
        for members in self.stages.values():
            members.pop(uid, None)

    def ready(self) -> list[PodInfo]:
        """Pending children that could be placed: not held by scheduling gates and not on their way out."""
        return [pod for pod in self.at(PENDING) if pod.uid not in self._held]

    def size(self) -> int:
        """Children that count for the minimum: those that have a place, and those that could get one."""
        pending = self.stages[PENDING]
        return self.count(WAITING, RELEASED, BOUND) + len(pending) - sum(1 for uid in self._held if uid in pending)

    def completes_release(self, pod: PodInfo, bound: Iterable[PodInfo]) -> int:
        """With how many a pod was let go in a release of which not everybody was bound, because the scheduler ended meanwhile; 0 for none.
        The bound pods of its group tell with how many they were let go, and it was there before they got their nodes."""
        siblings = [other for other in bound if _notes(other).get(names.ANNOTATION_BIND_GANG_GROUP_ID) == self.group.id]
        together = max((_released_with(other) for other in siblings), default=0)
        if len({*(other.uid for other in siblings), *self.group.rejoined}) >= together:
            self.group.released = True
            return 0
        created = pod.pod.metadata.creation_timestamp or ""
        return together if any(created <= bound_at(other.pod) for other in siblings) else 0

    def valid(self) -> bool:
        """Whether so many have a place that they may go (SCH-GANG-04)."""
        spec = self.spec
        if spec is None:
            return False
        waiting = self.count(WAITING, RELEASED)
        if spec.match_policy == names.GANG_MATCH_WAITING_AND_RUNNING:
            return waiting + self.count(BOUND) >= spec.min_number
        return waiting >= spec.min_number or (spec.once_satisfied and self.group.once_satisfied)

    def lacking(self, spec: specs.GangSpec) -> int:
        """How many more have to be placed before any goes. Bound ones count where the policy says so, and to their own release."""
        if spec.once_satisfied and self.group.once_satisfied:
            return 0
        every = spec.match_policy == names.GANG_MATCH_WAITING_AND_RUNNING
        bound = sum(1 for uid in self.stages[BOUND] if every or uid in self.group.binding)
        return spec.min_number - self.count(WAITING, RELEASED) - bound


def _notes(pod: PodInfo) -> dict[str, str]:
    return pod.pod.metadata.annotations or {}


def _released_with(pod: PodInfo) -> int:
    text = _notes(pod).get(names.ANNOTATION_BIND_GANG_MEMBER_COUNT, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def bound_at(pod: Pod) -> str:
    """When a pod got its node, RFC 3339 in UTC, which sorts as text; "" when it does not tell."""
    return next((c.last_transition_time or "" for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "True"), "")


@dataclass(slots=True)
class Round:
    """One try of a gang group. `gang` is the gang of the pod that began, `group` its group's id, `started` in seconds since the epoch.

    `failure` is why the first pod that found no node found none; `plan` maps pod UIDs to nodes where the whole group was planned.
    """

    gang: str
    group: str
    first: str
    started: float
    attempted: set[str] = field(default_factory=set)
    todo: deque[str] = field(default_factory=deque)
    failure: str = ""
    rejector: str = JOB_REJECT  # who sends members back that have places when the round fails: says what becomes of their nominations
    room_for: dict[str, str] = field(default_factory=dict)  # by plugin, the pod for which it looked for room
    doomed: PodInfo | None = None  # the member that found no node and for whose sake everybody gives his place back
    plan: dict[str, str] | None = None
    batch: bool = False  # the plan is carried out as one batch: whole, or not at all and without preemption
    offered: dict[str, int] = field(default_factory=dict)  # pods of the job that each node takes, as planned
    places: tuple[tuple[str, int], ...] = ()  # where the plan failed, how many pods each place in the network takes together
    unplanned: bool | None = None  # whether the plan failed, None before one is made

    def follow(self, plan: dict[str, str]) -> None:
        """From now on only pods of a plan are tried, each on its node."""
        self.plan = plan
        self.todo = deque(uid for uid in plan if uid not in self.attempted)

    def next(self, ready: Callable[[], Iterable[PodInfo]]) -> str:
        """UID of a pod that was not tried yet, "" when all were. `ready` lists the pending pods; it is asked when the list is used up, so
        that pods that came meanwhile are tried too."""
        for fresh in (False, True):
            if fresh and self.plan is None:
                self.todo.extend(pod.uid for pod in ready() if pod.uid not in self.attempted)
            while self.todo:
                uid = self.todo.popleft()
                if uid not in self.attempted:
                    self.attempted.add(uid)
                    return uid
        return ""


class GangCache(Columns):
    """All gangs. `activate` puts pods into the active queue, `send_back` tells pods why they wait for others no more, `enough` lets all
    of a gang that wait go."""

    def __init__(self, defaults: specs.Defaults) -> None:
        self.defaults = defaults
        self.gangs: dict[str, Gang] = {}
        self.activate: Callable[[Iterable[PodInfo]], None] = lambda pods: None
        self.send_back: Callable[[Iterable[PodInfo], str], None] = lambda pods, why: None
        self.enough: Callable[[Gang], None] = lambda gang: None
        self.listeners: list[Callable[[Gang], None]] = []  # told of every change of a gang
        self.metrics = GangMetrics()
        self.round: Round | None = None  # the group that is being tried now
        self.todo: deque[Steps[None]] = deque()  # what many members have yet to be told, of whatever profile
        self.lost: list[PodInfo] = []  # pods of batches that were let go but not bound
        self.describe: Callable[[Gang], specs.GangSpec | None] = lambda gang: None  # what objects say of a gang that pods began
        self._groups: dict[str, Group] = {}
        self._gang_of: dict[str, Gang] = {}  # by pod UID

    def changed(self, gang: Gang) -> None:
        """A gang is not what it was."""
        for listener in self.listeners:
            listener(gang)

    # ---------------------------------------------------------------- looking up

    def pod(self, uid: str) -> PodInfo | None:
        """A child of whatever gang."""
        gang = self._gang_of.get(uid)
        return gang.children[uid] if gang is not None else None

    def gang_of(self, pod: PodInfo) -> Gang | None:
        """The gang that a pod is a child of."""
        return self._gang_of.get(pod.uid)

    def group_gangs(self, gang: Gang) -> Iterator[tuple[str, Gang | None]]:
        """The gangs that are scheduled together with a gang, by id; None for one that does not exist."""
        for identity in gang.spec.groups if gang.spec is not None else (gang.id,):
            yield identity, self.gangs.get(identity)

    def peers(self, gang: Gang) -> list[Gang]:
        """Those of them that exist."""
        return [other for _, other in self.group_gangs(gang) if other is not None]

    def gangs_of_group(self, group: str) -> list[Gang]:
        """The gangs that share their state under this group id."""
        return [gang for identity in group.split(",") if (gang := self.gangs.get(identity)) is not None and gang.group.id == group]

    def members(self, gang: Gang, stage: Stage) -> list[PodInfo]:
        """Children of all gangs of the group at a stage."""
        return [pod for other in self.peers(gang) for pod in other.at(stage)]

    def ready(self, gang: Gang) -> list[PodInfo]:
        """Pending children of all gangs of the group that could be placed."""
        return [pod for other in self.peers(gang) for pod in other.ready()]

    def satisfied(self, gang: Gang) -> bool:
        """Whether the gang's pods are scheduled each by itself: it came about once and asks for no more, or never asked for it."""
        return gang.spec is not None and (gang.spec.basic or (gang.spec.once_satisfied and gang.group.once_satisfied))

    def priority_of(self, pod: PodInfo) -> int:
        """What a pod of a group that goes as a whole is worth, to the group as to those that would preempt it."""
        gang = self._gang_of.get(pod.uid)
        spec = gang.spec if gang is not None else None
        own = spec is None or spec.priority is None or spec.whole is not specs.Whole.ALWAYS
        return pod.priority if own or spec is None or spec.priority is None else spec.priority

    def valid(self, gang: Gang) -> bool:
        """Whether all gangs of the group have so many pods with a place that they may go."""
        return all(other is not None and other.valid() for _, other in self.group_gangs(gang))

    def shortage(self, gang: Gang) -> str:
        """Why the group cannot be tried yet, naming the gangs at fault; "" when it can (SCH-GANG-05)."""
        gangs = list(self.group_gangs(gang))
        missing = [identity for identity, other in gangs if other is None]
        vague = [identity for identity, other in gangs if other is not None and other.spec is None]
        sizes = [(other.id, other.size(), other.spec.min_number) for _, other in gangs if other is not None and other.spec is not None]
        short = [f"{identity} has {size} of {minimum} pods" for identity, size, minimum in sizes if size < minimum]
        parts = (
            ("gang(s) {} of the group do not exist", missing),
            ("gang(s) {} have no PodGroup and no pod with a valid minimum", vague),
            ("not enough pods: {}", short),
        )
        return "; ".join(text.format(some_of(gangs_at_fault)) for text, gangs_at_fault in parts if gangs_at_fault)

    # ---------------------------------------------------------------- PodGroups

    def pod_group_event(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """A PodGroup appeared, changed or went."""
        present = new or old
        assert present is not None
        identity = f"{present.metadata.namespace}/{present.metadata.name}"
        if new is None:
            self.withdrawn(identity)
            return
        known = self.gangs.get(identity)
        if known is not None and known.pod_group is not None and known.pod_group.metadata.uid != new.metadata.uid:
            self.withdrawn(identity)  # nobody told that the one before went
        gang = self.gang(identity)
        gang.pod_group = new
        self.declare(gang, specs.from_pod_group(new, self.defaults))

    def declare(self, gang: Gang, spec: specs.GangSpec) -> None:
        """An object says what a gang is."""
        before, short = gang.spec, bool(self.shortage(gang))
        self._initialise(gang, spec)
        self.changed(gang)
        if gang.spec != before and self.members(gang, WAITING):
            if self.valid(gang):
                self.enough(gang)
            elif spec.strict and before is not None and not before.strict:
                self.send_back(self.withdraw(gang), f"gang {gang.id} is strict now: nobody keeps a place before all have one")
        if (short or gang.spec != before) and (self.satisfied(gang) or not self.shortage(gang)):
            self.wake(gang)

    def withdrawn(self, identity: str) -> None:
        """The gang is no more: its children find none until it is created anew, and nobody waits for it."""
        gang = self.gangs.get(identity)
        if gang is None:
            return
        waiting = self.withdraw(gang)
        gang.pod_group = gang.native = None
        gang.spec = None
        gang.group = Group(identity)
        if not gang.children:
            del self.gangs[identity]
        self._drop_groups()
        self.changed(gang)
        self.send_back(waiting, f"gang {identity} is no more")

    # ---------------------------------------------------------------- pods

    def pod_seen(self, pod: PodInfo) -> None:
        """A running pod appeared or changed."""
        identity = specs.gang_id(pod)
        known = self._gang_of.get(pod.uid)
        if known is not None and known.id != identity:
            waited = known.stage_of(pod.uid) is WAITING
            self.pod_gone(pod.uid)
            if waited:
                self.send_back((pod,), f"pod {pod.key} has left gang {known.id}")
            else:
                self.activate((pod,))  # what its gang was refused for does not concern it any more
            known = None
        if not identity:
            return
        gang = known or self.gang(identity)
        stage = gang.stage_of(pod.uid)
        before = gang.size() if stage is not None else -1
        gang.take(pod)
        self._gang_of[pod.uid] = gang
        if gang.spec is None:
            spec = self.describe(gang) if specs.needs_pod_group(pod) else specs.from_pod(pod, self.defaults)
            if spec is not None:
                self._initialise(gang, spec)
        if pod.node_name:
            gang.group.rejoined.pop(pod.uid, None)  # it shows by itself with how many
            if stage != BOUND:
                gang.move(pod.uid, BOUND)
            if not pod.deleting:
                self.came_about(gang)
            if stage is None and not self.satisfied(gang) and not self.shortage(gang):
                self.wake(gang)  # with this one there may be enough of them
        elif stage is None:
            gang.move(pod.uid, PENDING)
        self.changed(gang)
        if before >= 0 and gang.size() != before and not self.shortage(gang):
            self.wake(gang)  # a pod was let through its scheduling gates

    def pod_gone(self, uid: str) -> None:
        """A pod was deleted or has ended."""
        gang = self._gang_of.pop(uid, None)
        if gang is None:
            return
        gang.drop(uid)
        gang.group.said.pop(uid, None)
        gang.group.rejoined.pop(uid, None)
        gang.group.stands_no_more(uid)
        if not self.satisfied(gang) and not self.shortage(gang):
            self.wake(gang)  # what failed with this pod may do without it
        if not gang.children and gang.pod_group is None and gang.native is None:
            self.gangs.pop(gang.id, None)
            self._drop_groups()
        self.changed(gang)

    # ---------------------------------------------------------------- what scheduling does

    def came_about(self, gang: Gang) -> None:
        """A member is bound: the group came about. Whoever was held back is scheduled by itself from now on."""
        group = gang.group
        if group.once_satisfied:
            return
        group.once_satisfied = True
        rest = [pod for other in self.peers(gang) if self.satisfied(other) for pod in other.at(PENDING)]
        if rest:
            self.activate(rest)

    def rejoins(self, gang: Gang, pod: PodInfo) -> bool:
        """Whether a pod is one of a release that a scheduler before this one began; it is noted as such."""
        group, spec = gang.group, gang.spec
        alone = spec is not None and spec.min_number <= 1 and len(spec.groups) == 1  # each of its pods was let go by itself
        known = alone or (group.released and spec is not None and spec.once_satisfied)
        if pod.uid not in group.rejoined and not known:
            together = gang.completes_release(pod, self.members(gang, BOUND))
            if together:
                group.rejoined[pod.uid] = together
        return pod.uid in group.rejoined

    def release(self, gang: Gang) -> list[PodInfo]:
        """Let all waiting pods of the group go; returns them. One that was let go before stays with those of that time."""
        waiting, binding = self.members(gang, WAITING), gang.group.binding
        for pod in waiting:
            self._gang_of[pod.uid].move(pod.uid, RELEASED)
        together = frozenset(pod.uid for pod in waiting if pod.uid not in binding)
        binding.update(dict.fromkeys(together, together))
        gang.group.released |= len(together) > 1
        return waiting

    def withdraw(self, gang: Gang) -> list[PodInfo]:
        """All waiting pods of the group are pending again; returns them."""
        waiting = self.members(gang, WAITING)
        for pod in waiting:
            self._gang_of[pod.uid].move(pod.uid, PENDING)
        return waiting

    # ---------------------------------------------------------------- inside

    def gang(self, identity: str) -> Gang:
        """A gang, known or new."""
        gang = self.gangs.get(identity)
        if gang is None:
            gang = self.gangs[identity] = Gang(identity)
        return gang

    def _initialise(self, gang: Gang, spec: specs.GangSpec) -> None:
        """Take over what a gang is. Which group it shares its state with is settled the first time."""
        first = gang.spec is None or (gang.spec.origin == specs.FROM_POD and spec.origin != specs.FROM_POD)
        gang.spec = spec
        if first:
            gang.group = self._groups.setdefault(spec.group_id, Group(spec.group_id))
            # Those that are on their way out may be of an earlier PodGroup of its name.
            if not all(pod.deleting for pod in gang.at(BOUND)):
                self.came_about(gang)

    def _drop_groups(self) -> None:
        used = {id(gang.group) for gang in self.gangs.values()}
        self._groups = {key: group for key, group in self._groups.items() if id(group) in used}

    def wake(self, gang: Gang) -> None:
        """Let one pending pod of the group stand for it in the queue, if none does and it is not being tried now. Where each pod stands for
        itself, let all in."""
        if self.satisfied(gang):
            self.activate(gang.ready())
        if gang.group.representative or (self.round is not None and self.round.group == gang.group.id):
            return
        ready = [pod for other in self.peers(gang) if not self.satisfied(other) for pod in other.ready()]
        if ready:
            self.activate(ready[:1])
