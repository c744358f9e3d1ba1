"""The descheduler's rounds made again, and what another configuration would have moved (BEY-REPLAY-01)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from koord import seams
from koord.decisions.record import Record
from roles.descheduler.build import Options
from roles.descheduler.framework.effects import Outcome
from roles.descheduler.replaying import Decoder, Head, Rerun, Round, known
from roles.tools.replay.files import readable, taken
from roles.tools.replay.found import Difference, Each, Found

Key = tuple[str, str, str, str, int]
"""Profile, plugin, kind and name of whom it is about, and a number where there are several."""


def run(files: list[Path], options: Options | None = None, each: Each | None = None) -> Found:
    """All rounds of the log. Raises ConfigurationError."""
    again = _Again(options, each)
    began = seams.current().cpu_time()
    asyncio.run(again.read(files))
    return again.found.ended(files, seams.current().cpu_time() - began)


class _Again:
    def __init__(self, options: Options | None, each: Each | None) -> None:
        self.found = Found("descheduler", config=options is not None)
        self._options, self._each = options, each
        self._then: Rerun | None = None
        self._other: Rerun | None = None

    async def read(self, files: list[Path]) -> None:
        for file, item in taken(files, "descheduler", Decoder().take):
            with readable(file):
                if isinstance(item, Head):
                    self._begin(item)
                elif item is not None:
                    await self._round(item)

    def _begin(self, head: Head) -> None:
        self.found.versions[head.version] += 1
        if self._then is None or not head.continues:
            self._then = Rerun(head.options)
            self._other = Rerun(self._options) if self._options is not None else None

    async def _round(self, made: Round) -> None:
        if self._then is None:
            raise ValueError("a round before any head")
        then = await self._then.make(made)
        alike = known(then, made)
        now = await self._other.make(made) if self._other is not None else then
        before, after = _by_key(then), _by_key(now)
        repeated = {id(record): same for record, same in zip(then.records, alike, strict=True)}
        for key in dict.fromkeys((*before, *after)):
            one, other = before.get(key), after.get(key)
            there = one is not None and repeated[id(one)]
            same = there if self._other is None else one is not None and other is not None and _sense(one) == _sense(other)
            self.found.count(made.now, repeated=there or (one is None and self._other is not None), same=same)
            if not same:
                self.found.differences.append(_difference(key, made.now, one, other, self._other is None))
            if self._each is not None:
                self._each(_line(key, made.now, one, other, same))
        missing = len(made.checks) - len(then.records)
        for _ in range(missing):  # records of the log that nothing makes again
            self.found.count(made.now, repeated=False, same=False)
            self.found.differences.append(Difference("", made.now, "not decided now", "this version", "a record of the log", "none", ""))


def _by_key(outcome: Outcome) -> dict[Key, Record]:
    found: dict[Key, Record] = {}
    for record in outcome.records:
        about = record.subject
        name = f"{about.namespace}/{about.name}" if about.namespace else about.name
        number = 0
        kind = about.kind if about.kind == "Pod" else f"{about.kind} {record.verdict}"  # of a node several things are said
        while (key := (str(record.numbers.get("profile", "")), record.rule, kind, name, number)) in found:
            number += 1
        found[key] = record
    return found


def _sense(record: Record) -> tuple[Any, ...]:
    """What a record decides, without the words and the numbers."""
    return record.verdict, record.numbers.get("class"), record.numbers.get("hot"), record.numbers.get("helped")


def _told(record: Record | None) -> str:
    if record is None:
        return "nothing"
    hot = {"true": "stays hot", "false": "gets cool"}.get(str(record.numbers.get("hot")))
    return str(record.numbers.get("class") or hot or record.verdict)


def _difference(key: Key, now: float, then: Record | None, other: Record | None, log: bool) -> Difference:
    _profile, plugin, kind, name, _ = key
    if log:
        return Difference(
            name, now, "decided otherwise than in the log", plugin, "another record", _told(then), then.message if then else ""
        )
    told = [_told(then), _told(other)]
    record = other or then
    assert record is not None
    if kind == "Pod":
        what = f"pods: {told[0]} -> {told[1]}"
    else:
        what = f"{kind.partition(' ')[0].lower()}s: {told[0]} -> {told[1]}"
    numbers = record.message if then is None or other is None else f"{then.message} -> {other.message}"
    return Difference(name, now, what, plugin, told[0], told[1], numbers)


def _line(key: Key, now: float, then: Record | None, other: Record | None, same: bool) -> dict[str, Any]:
    return {"pod": key[3], "time": now, "rule": key[1], "node": _told(other), "then": _told(then), "same": same}
