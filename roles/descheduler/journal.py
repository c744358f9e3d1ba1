"""The descheduler's replay log: each round with what it looked at, what others answered, and what it decided (BEY-REPLAY-01).

    head {...}                  the configuration; plugins remember nothing before it unless it `continues`
    * channel ref object        an object appeared
    + channel ref change base   an object appeared, told as its difference from another one
    ~ channel ref change        it changed; a list holds the leaves of a report (`deltas.leaf_changes`)
    - channel ref               it went
    o ref [ref, ...]            the pods of a node, in order
    r now extra answers readings checks waiting
                                a round on all of that

`extra` says of a node which pods leave and what is expected there, by its ref. `answers` are what filters said of pods, and what became
of evictions: only those that differ from the round before. `checks` are two bytes for each record of the round, base64. `waiting` are the
pods that the scheduler has found no node for.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from koord import seams
from koord.api.objects import Node, NodeMetric, Pod
from koord.config.model import wire
from koord.decisions.deltas import difference, leaf_changes
from koord.decisions.record import Record, encode
from koord.decisions.replayfile import ReplayFile
from roles.descheduler.build import Options
from roles.descheduler.framework.evicting import Evicting, EvictOptions, EvictResult
from roles.descheduler.framework.round import Acting
from roles.descheduler.reading import Reading
from roles.descheduler.snapshot import NodeView, Vector

T = TypeVar("T")
Key = tuple[str, str, str]
"""Profile, what was asked, and the uid (or name) of whom it was about."""
NODE, POD, METRIC = "n", "p", "m"
_AT_ONCE = 200  # nodes that are taken down before others get their turn


class Seen(NamedTuple):
    """A node as the round saw it. `pods` of all phases; `leaving` and `accepted` are uids."""

    node: Node
    pods: Sequence[Pod]
    metric: NodeMetric | None
    leaving: Collection[str] = ()
    accepted: Collection[str] = ()
    expected: tuple[Vector, Vector, Vector] = ({}, {}, {})


class Round(NamedTuple):
    """A round that was made."""

    now: float
    seen: list[Seen]
    waiting: Sequence[Pod]
    readings: Mapping[str, Reading]
    answers: dict[Key, list[Any]]
    records: list[Record]


class Heard:
    """What filters said in a round, and what became of what was asked for; each key's answers in order."""

    def __init__(self) -> None:
        self.answers: dict[Key, list[Any]] = {}

    def ask(self, profile: str, what: str, about: str, find: Callable[[], T]) -> T:
        """Ask, and take the answer down."""
        found = find()
        self.took(profile, what, about, found)
        return found

    def took(self, profile: str, what: str, about: str, answer: Any) -> None:
        """One more answer."""
        self.answers.setdefault((profile, what, about), []).append(answer)


class HeardActing:
    """Acts, and takes down what came of it."""

    def __init__(self, acting: Acting, heard: Heard) -> None:
        self._acting, self._heard = acting, heard

    def may_write(self) -> bool:
        """Whether this process still leads."""
        return self._acting.may_write()

    async def evict(self, evictor: Evicting, pod: Pod, options: EvictOptions) -> EvictResult:
        """By the evictor."""
        return await self._result("evict", pod.metadata.uid, self._acting.evict(evictor, pod, options))

    async def cordon(self, node: Node, on: bool) -> EvictResult:
        """Through the API server."""
        return await self._result("cordon", node.metadata.name, self._acting.cordon(node, on))

    async def annotate(self, pod: Pod, key: str, value: str) -> EvictResult:
        """Through the API server."""
        return await self._result("annotate", pod.metadata.uid, self._acting.annotate(pod, key, value))

    async def where(self, pod: Pod) -> str:
        """Where the scheduler would put it."""
        found = await self._acting.where(pod)
        self._heard.took("", "where", pod.metadata.uid, found)
        return found

    async def rehearse(self, pod: Pod, leaving: Sequence[Pod]) -> bool:
        """Whether the scheduler would place them."""
        found = await self._acting.rehearse(pod, leaving)
        self._heard.took("", "rehearse", pod.metadata.uid, found)
        return found

    def waited(self, seconds: float) -> None:
        """For somebody else's answer."""
        self._acting.waited(seconds)

    async def _result(self, what: str, about: str, work: Awaitable[EvictResult]) -> EvictResult:
        result = await work
        self._heard.took("", what, about, [result.accepted, result.message, result.listed])
        return result


async def seen(views: Sequence[NodeView]) -> list[Seen]:
    """The snapshot as it is before the round changes it."""
    found = []
    for number, view in enumerate(views, 1):
        if number % _AT_ONCE == 0:
            await seams.sleep(0)
        leaving = tuple(own.pod.metadata.uid for own in view.pods if own.leaving and own.pod.metadata.deletion_timestamp is None)
        accepted = tuple(own.pod.metadata.uid for own in view.pods if own.accepted and own.pod.metadata.deletion_timestamp is None)
        expected = (dict(view.arriving), dict(view.prod_arriving), dict(view.reserved))
        found.append(Seen(view.node, view.everyone, view.metric, leaving, accepted, expected))
    return found


def check_of(record: Record) -> bytes:
    """Two bytes by which a record is known again."""
    return (zlib.crc32(encode(record)) & 0xFFFF).to_bytes(2, "big")


class DeschedulerFile(ReplayFile):
    """`descheduler.replay.jsonl`. `options` are set by who decides."""

    role = "descheduler"

    def __init__(self, path: str, **limits: Any) -> None:
        super().__init__(path, **limits)
        self.options: Options | None = None
        self._forget()

    def begin(self) -> dict[str, Any]:
        self._forget()
        assert self.options is not None
        return {"config": wire(self.options.config), "featureGates": self.options.gates}

    def _forget(self) -> None:
        self._refs: dict[tuple[str, str], int] = {}
        self._last: dict[int, Any] = {}
        self._plain: dict[int, Any] = {}  # reports as data
        self._bases: dict[tuple[str, str], int] = {}
        self._orders: dict[int, list[int]] = {}
        self._answers: dict[Key, list[Any]] = {}
        self._next = 0

    def parts(self, item: Round) -> list[Any]:
        lines: list[Any] = []
        there: set[tuple[str, str]] = set()
        extra: dict[int, Any] = {}
        for node in item.seen:
            name = node.node.metadata.name
            ref = self._tell(NODE, name, node.node, lines, there)
            order = [self._tell(POD, pod.metadata.uid, pod, lines, there) for pod in node.pods]
            if node.metric is not None:
                self._tell(METRIC, name, node.metric, lines, there)
            if self._orders.get(ref, []) != order:
                self._orders[ref] = order
                lines.append(["o", ref, order])
            if node.leaving or node.accepted or any(node.expected):
                uids = [[self._refs[POD, uid] for uid in uids] for uids in (node.leaving, node.accepted)]
                extra[ref] = [*uids, *node.expected]
        waiting = [self._tell(POD, pod.metadata.uid, pod, lines, there) for pod in item.waiting]
        self._forget_gone(sorted(self._refs.keys() - there), lines)
        answers = []
        for (profile, what, about), said in item.answers.items():
            told = _trimmed(said)
            if self._answers.get((profile, what, about), [""]) != told:
                self._answers[profile, what, about] = told
                answers.append([profile, what, self._refs.get((POD, about), about), told])
        readings = {key: [each.at, each.nodes, [[*who, usage] for who, usage in each.pods.items()]] for key, each in item.readings.items()}
        checks = base64.b64encode(b"".join(map(check_of, item.records))).decode()
        lines.append(["r", item.now, extra, answers, readings, checks, waiting])
        return lines

    def _forget_gone(self, gone: list[tuple[str, str]], lines: list[Any]) -> None:
        for key in gone:
            ref = self._refs.pop(key)
            lines.append(["-", key[0], ref])
            for memory in (self._last, self._plain, self._orders):
                memory.pop(ref, None)
        pods = {name for channel, name in gone if channel == POD}
        if pods:
            self._answers = {key: told for key, told in self._answers.items() if key[2] not in pods}

    def _tell(self, channel: str, name: str, obj: Any, lines: list[Any], there: set[tuple[str, str]]) -> int:
        key = (channel, name)
        there.add(key)
        ref = self._refs.get(key)
        if ref is None:
            ref = self._refs[key] = self._next
            self._next += 1
            self._appeared(channel, ref, obj, lines)
        elif self._last[ref] is not obj:
            if channel == METRIC:
                plain = msgspec.to_builtins(obj)
                change: Any = leaf_changes(self._plain[ref], plain)
                self._plain[ref] = plain
                lines.append(["~", channel, ref, change] if change is not None else ["*", channel, ref, plain])
            elif change := difference(self._last[ref], obj):
                lines.append(["~", channel, ref, change])
        self._last[ref] = obj
        return ref

    def _appeared(self, channel: str, ref: int, obj: Any, lines: list[Any]) -> None:
        if channel == METRIC:
            self._plain[ref] = msgspec.to_builtins(obj)
            lines.append(["*", channel, ref, self._plain[ref]])
            return
        kind = (channel, _owner(obj))
        base = self._bases.get(kind)
        self._bases[kind] = ref
        if base is None or base not in self._last:
            lines.append(["*", channel, ref, obj])
        else:
            lines.append(["+", channel, ref, difference(self._last[base], obj), base])


def _trimmed(said: list[Any]) -> list[Any]:
    """Answers without those at the end that repeat the one before them: the last one holds for whoever asks again."""
    while len(said) > 1 and said[-1] == said[-2]:
        said.pop()
    return said


def _owner(obj: Any) -> str:
    owners: Iterable[Any] = obj.metadata.owner_references
    return next((owner.uid for owner in owners), "")
