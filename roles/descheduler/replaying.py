"""The descheduler's rounds made again from its replay log, by the configuration of then or another (BEY-REPLAY-01).

Filters and the API server answer as they did then. Pods about which nobody asked then are judged by the arguments of DefaultEvictor and
MigrationController, without limits and budgets.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from koord.api.objects import Node, NodeMetric, Pod, convert
from koord.api.quantity import QuantityError
from koord.decisions.deltas import applied, leaf_applied
from koord.decisions.replayfile import FORMAT
from roles.descheduler.build import Options, rounds_with
from roles.descheduler.config import parse_data
from roles.descheduler.evictability import evictability
from roles.descheduler.framework.effects import Outcome
from roles.descheduler.framework.evicting import Evicting, EvictOptions, EvictResult, NoController
from roles.descheduler.framework.round import Rounds
from roles.descheduler.journal import METRIC, NODE, POD, Key, Seen, check_of
from roles.descheduler.migration.args import MigrationControllerArgs
from roles.descheduler.plugins.defaultevictor.args import DefaultEvictorArgs
from roles.descheduler.plugins.defaultevictor.protections import Protections, Surroundings
from roles.descheduler.reading import Reading
from roles.descheduler.snapshot import NodeView, Snapshots, Vector

T = TypeVar("T")
_KINDS: dict[str, Any] = {NODE: Node, POD: Pod, METRIC: NodeMetric}
GRANTED = EvictResult(True, "nobody asked then")


@dataclass(slots=True)
class Round:
    """A round of the log. `checks` are those of its records (`journal.check_of`)."""

    now: float
    seen: list[Seen]
    answers: Mapping[Key, list[Any]]
    readings: dict[str, Reading]
    checks: list[bytes]
    waiting: list[Pod] = field(default_factory=list)


@dataclass(slots=True)
class Head:
    """What a log, or a file of it, begins with."""

    version: str
    options: Options
    continues: bool


@dataclass(slots=True)
class Decoder:
    """Lines to rounds. Raises ValueError, LookupError, TypeError or StopIteration for what is no line."""

    _plain: dict[int, Any] = field(default_factory=dict)
    _made: dict[int, Any] = field(default_factory=dict)
    _channel: dict[int, str] = field(default_factory=dict)
    _orders: dict[int, list[int]] = field(default_factory=dict)
    _answers: dict[Key, list[Any]] = field(default_factory=dict)

    def take(self, line: list[Any]) -> Head | Round | None:
        """What a line completes."""
        match line:
            case ["head", head]:
                return self._head(head)
            case ["*", channel, ref, obj]:
                self._put(channel, ref, obj)
            case ["+", channel, ref, change, base]:
                self._put(channel, ref, applied(self._plain[base], change))
            case ["~", channel, ref, change]:
                before = self._plain[ref]
                self._put(channel, ref, leaf_applied(before, change) if isinstance(change, list) else applied(before, change))
            case ["-", _, ref]:
                self._gone(ref)
            case ["o", ref, order]:
                self._orders[ref] = order
            case ["r", now, extra, answers, readings, checks, *more]:
                made = self._round(now, extra, answers, readings, checks)
                made.waiting = [self._made[ref] for ref in (more[0] if more else ())]
                return made
            case _:
                raise ValueError(f"{line[0] if line else line!r} is not known")
        return None

    def _head(self, head: dict[str, Any]) -> Head:
        if head["format"] != FORMAT or head["role"] != "descheduler":
            raise ValueError(f"format {head['format']} of role {head['role']} is not known here")
        for memory in (self._plain, self._made, self._channel, self._orders, self._answers):
            memory.clear()
        options = Options(parse_data(head["config"], "the configuration of then"), "the configuration of then", head["featureGates"])
        return Head(str(head["koord"]), options, bool(head["continues"]))

    def _put(self, channel: str, ref: int, plain: Any) -> None:
        self._plain[ref], self._channel[ref] = plain, channel
        self._made[ref] = convert(plain, _KINDS[channel])

    def _gone(self, ref: int) -> None:
        obj = self._made.pop(ref)
        self._plain.pop(ref)
        self._orders.pop(ref, None)
        if self._channel.pop(ref) == POD:
            uid = obj.metadata.uid
            for key in [key for key in self._answers if key[2] == uid]:
                del self._answers[key]

    def _round(self, now: float, extra: dict[str, Any], answers: list[Any], readings: dict[str, Any], checks: str) -> Round:
        for profile, what, about, told in answers:
            self._answers[profile, what, self._uid(about)] = told
        metrics = {self._made[ref].metadata.name: self._made[ref] for ref, channel in self._channel.items() if channel == METRIC}
        seen = []
        for ref, channel in self._channel.items():
            if channel == NODE:
                node: Node = self._made[ref]
                pods = [self._made[pod] for pod in self._orders.get(ref, ())]
                leaving, accepted, *more = extra.get(str(ref)) or ((), (), {}, {}, {})
                expected = cast(tuple[Vector, Vector, Vector], tuple(more))
                uids = frozenset(map(self._uid, leaving)), frozenset(map(self._uid, accepted))
                seen.append(Seen(node, pods, metrics.get(node.metadata.name), *uids, expected))
        seen.sort(key=lambda one: one.node.metadata.name)
        read = {
            key: Reading(at, nodes, {(namespace, name): usage for namespace, name, usage in pods})
            for key, (at, nodes, pods) in readings.items()
        }
        found = base64.b64decode(checks)
        return Round(now, seen, dict(self._answers), read, [found[at : at + 2] for at in range(0, len(found), 2)])

    def _uid(self, about: int | str) -> str:
        return str(self._made[about].metadata.uid) if isinstance(about, int) else about


class Rerun:
    """Rounds of one configuration; plugins remember from round to round."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._evictors: list[_Evictor] = []
        self._rounds: Rounds = rounds_with(options, self._evictor)
        self._leaving: Collection[str] = ()
        self._accepted: Collection[str] = ()
        self._snapshots = Snapshots(lambda pod: pod.metadata.uid in self._leaving, lambda pod: pod.metadata.uid in self._accepted)

    def _evictor(self, profile: str, name: str, args: Any) -> Evicting:
        made = _Evictor(name, args)
        self._evictors.append(made)
        return made

    async def make(self, made: Round, acting: Then | None = None) -> Outcome:
        """A round again; `acting` answers in place of the log."""
        self._snapshots.begin()
        views = [view for one in made.seen if (view := self._view(one, made.now)) is not None]
        around = _Around(made)
        for evictor in self._evictors:
            evictor.around = around.surroundings
        then = acting or Then(made.answers)
        return await self._rounds.run(views, made.now, then, made.readings, made.waiting, then)

    def _view(self, one: Seen, now: float) -> NodeView | None:
        self._leaving, self._accepted = one.leaving, one.accepted
        try:
            view = self._snapshots.node(one.node, one.pods, one.metric, now=now)
        except (QuantityError, ValueError):
            return None
        view.arriving, view.prod_arriving, view.reserved = (dict(each) for each in one.expected)
        return view


def known(outcome: Outcome, made: Round) -> list[bool]:
    """Of each record whether the log has it at this place."""
    checks = map(check_of, outcome.records)
    return [number < len(made.checks) and check == made.checks[number] for number, check in enumerate(checks)]


class Then:
    """Answers and acts as it was then."""

    def __init__(self, answers: Mapping[Key, list[Any]]) -> None:
        self._answers: Mapping[Key, list[Any]] = answers
        self._asked: dict[Key, int] = {}

    def ask(self, profile: str, what: str, about: str, find: Callable[[], T]) -> T:
        """What was said then; asked anew where nobody asked."""
        key = (profile, what, about)
        told = self._answers.get(key)
        if told is None:
            return find()
        number = self._asked[key] = self._asked.get(key, -1) + 1
        return cast(T, told[min(number, len(told) - 1)])

    def may_write(self) -> bool:
        """Nothing is written."""
        return True

    async def evict(self, evictor: Evicting, pod: Pod, options: EvictOptions) -> EvictResult:
        """What became of it then."""
        return self._result("evict", pod.metadata.uid)

    async def cordon(self, node: Node, on: bool) -> EvictResult:
        """What became of it then."""
        return self._result("cordon", node.metadata.name)

    async def annotate(self, pod: Pod, key: str, value: str) -> EvictResult:
        """What became of it then."""
        return self._result("annotate", pod.metadata.uid)

    async def where(self, pod: Pod) -> str:
        """What the scheduler said then."""
        return self.ask("", "where", pod.metadata.uid, str)

    def waited(self, seconds: float) -> None:
        """Nothing is waited for."""

    async def rehearse(self, pod: Pod, leaving: Sequence[Pod]) -> bool:
        """What the scheduler said then; of what nobody asked, that it would."""
        return self.ask("", "rehearse", pod.metadata.uid, lambda: True)

    def _result(self, what: str, about: str) -> EvictResult:
        told = self.ask("", what, about, lambda: None)
        return EvictResult(*told) if told is not None else GRANTED


class _Around:
    """What DefaultEvictor judges a pod by, as far as the snapshot holds it: no priority classes, budgets, claims and namespaces."""

    def __init__(self, made: Round) -> None:
        owners: dict[tuple[str, str], list[Pod]] = {}
        for one in made.seen:
            for pod in one.pods:
                for owner in pod.metadata.owner_references:
                    owners.setdefault((owner.uid, pod.metadata.namespace), []).append(pod)
        nothing: Sequence[Any] = ()
        self.surroundings = Surroundings(
            made.now, lambda name: None, lambda uid, namespace: owners.get((uid, namespace), []), lambda namespace: nothing,
            lambda key: None, lambda name: None,
        )  # fmt: skip


class _Evictor(NoController):
    """A filter about whose answers nothing is told: those of the log stand before it."""

    def __init__(self, name: str, args: Any) -> None:
        self.name = name
        self._protections = Protections(args) if isinstance(args, DefaultEvictorArgs) else None
        known = isinstance(args, MigrationControllerArgs)
        self._evictable = evictability(args.effective(), self._priority) if known else None
        self.around: Surroundings | None = None

    def _priority(self, name: str) -> int | None:
        return self.around.priority_of_class(name) if self.around is not None else None

    def filter(self, pod: Pod) -> str:
        """What the plugin's arguments say of the pod as it is; limits and budgets are not asked."""
        if self._protections is not None and self.around is not None:
            return self._protections.refuse(pod, self.around)
        return self._evictable(pod) if self._evictable is not None else ""

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        """Never asked: `Then` answers."""
        return GRANTED
