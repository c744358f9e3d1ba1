"""A case, run: koord's own code on what is given, and each expectation compared with what came of it (BEY-POL-01)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koord import seams
from koord.accounting.resources import format_value, parse_quantity
from koord.api.quantity import QuantityError
from koord.api.times import format_time, parse_duration
from koord.process.errors import ConfigurationError
from roles.scheduler.whatif import Scheduler
from roles.tools.policytest.cases import Case, Expectation, Given, Loaded
from roles.tools.simulate import changes
from roles.tools.simulate.answer import Answer, Simulator
from roles.tools.simulate.changes import Changes
from roles.tools.simulate.cluster import Cluster, Obj, normalized, read, taken_at
from roles.tools.simulate.setup import scheduler_of


@dataclass(frozen=True, slots=True)
class Failure:
    """What was expected in which line, and what was found."""

    line: int
    expected: str
    found: str


@dataclass(slots=True)
class Result:
    """The end of a case; `seconds` is how long it took."""

    path: Path
    name: str
    line: int
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the case did not try, though it says so."""


class Runner:
    """Runs files. Schedulers and files of objects are read once."""

    def __init__(self) -> None:
        self._schedulers: dict[tuple[str, str], Scheduler] = {}
        self._objects: dict[Path, tuple[Obj, ...]] = {}

    def run(self, loaded: Loaded) -> Iterator[Result]:
        """Every case of a file, in order. Raises ConfigurationError for what is no case."""
        for number, case in enumerate(loaded.content.cases):
            result = Result(loaded.path, case.name, loaded.line(f"cases[{number}]"))
            started = seams.perf_counter()
            answer = self._answer(loaded.path, loaded.content.given, case)
            result.notes = [f"not simulated, as it is not known which pods it makes: {name}" for name in answer.not_simulated]
            for index, expectation in enumerate(case.then):
                told = check(expectation, answer)
                if told is not None:
                    result.failures.append(Failure(loaded.line(f"cases[{number}].then[{index}]"), *told))
            result.seconds = seams.perf_counter() - started
            yield result

    def _answer(self, path: Path, shared: Given, case: Case) -> Answer:
        where = f"{path}: case {case.name!r}"
        cluster = Cluster()
        for given in (shared, case.given):
            for obj in (*self._read(path, given.files), *normalized(given.objects, where)):
                cluster.put(obj)
        when = case.when
        wanted = Changes(
            (*self._read(path, when.files), *normalized(when.add, where)),
            tuple(when.drain),
            changes.counts(when.more, f"{where}: more"),
            changes.counts(when.fewer, f"{where}: fewer"),
            when.usage,
            tuple(when.faults.down),
            tuple(when.faults.silent),
            tuple((node, {name: str(amount) for name, amount in wanted.items()}) for node, wanted in when.pressure.items()),
        )
        try:
            now = taken_at(cluster, 0.0) + parse_duration(when.after)
        except ValueError as error:
            raise ConfigurationError(f"{where}: after: {error}") from error
        agent_gates = case.given.agent_feature_gates or shared.agent_feature_gates
        config = case.given.scheduler_config or shared.scheduler_config
        gates = case.given.feature_gates or shared.feature_gates
        try:
            simulator = Simulator(self._scheduler(path, config, gates), now=now, agent_gates=agent_gates)
            return simulator.ask(cluster, changes.apply(cluster, wanted, format_time(now)), helping=False)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error

    def _scheduler(self, path: Path, config: str, gates: str) -> Scheduler:
        key = (str(path.parent / config) if config else "", gates)
        if key not in self._schedulers:
            self._schedulers[key] = scheduler_of(key[0], gates, ())
        return self._schedulers[key]

    def _read(self, path: Path, names: list[str]) -> Iterator[Obj]:
        for name in names:
            file = path.parent / name
            if file not in self._objects:
                self._objects[file] = tuple(read([str(file)]))
            yield from self._objects[file]


# ---------------------------------------------------------------- comparing


def check(expectation: Expectation, answer: Answer) -> tuple[str, str] | None:
    """What was expected and what was found where that differs, else None."""
    differs: tuple[str, str] | None = _CHECKS[expectation.kind](getattr(expectation, expectation.kind), answer)
    return differs


def _placed(wanted: Any, answer: Answer) -> tuple[str, str] | None:
    accepted = [wanted.node] if isinstance(wanted.node, str) else wanted.node
    expected = f"{wanted.pod} on {' or '.join(filter(None, accepted)) or 'a node'}"
    fate = answer.fate(wanted.pod)
    if fate is None or not fate.node:
        return expected, answer.told(wanted.pod)
    return None if accepted == [""] or fate.node in accepted else (expected, f"it goes to {fate.node}")


def _pending(wanted: Any, answer: Answer) -> tuple[str, str] | None:
    expected = f"{wanted.pod} without a node" + (f", because {wanted.because!r}" if wanted.because else "")
    fate = answer.fate(wanted.pod)
    good = fate is not None and not fate.node and wanted.because in fate.message
    return None if good else (expected, answer.told(wanted.pod))


def _refused(wanted: Any, answer: Answer) -> tuple[str, str] | None:
    expected = f"{wanted.pod} refused at admission" + (f", because {wanted.because!r}" if wanted.because else "")
    message = answer.refused.get(wanted.pod)
    return None if message is not None and wanted.because in message else (expected, answer.told(wanted.pod))


def _admitted(wanted: Any, answer: Answer) -> tuple[str, str] | None:
    pod = answer.admitted.get(wanted.pod)
    if pod is None:
        return f"{wanted.pod} admitted", answer.told(wanted.pod)
    differs = _lacks(wanted.has, pod, "")
    return None if differs is None else (f"{wanted.pod} admitted with {differs[0]}", differs[1])


def _lacks(wanted: Any, found: Any, path: str) -> tuple[str, str] | None:
    """The first place where what is found does not hold what is wanted."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        parts = ((f"{path}.{key}" if path else key, value, found.get(key)) for key, value in wanted.items())
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        parts = ((f"{path}[{index}]", *pair) for index, pair in enumerate(zip(wanted, found, strict=True)))
    else:
        return None if wanted == found else (f"{path} = {wanted!r}", "it is not there" if found is None else f"it is {found!r}")
    return next((differs for place, one, other in parts if (differs := _lacks(one, other, place)) is not None), None)


def _offers(wanted: Any, answer: Answer) -> tuple[str, str] | None:
    there = answer.offers.get(wanted.node)
    if there is None:
        return f"node {wanted.node}", "there is no such node"
    for name, amount in wanted.amounts.items():
        try:
            expected = parse_quantity(name, amount)
        except QuantityError as error:
            raise ConfigurationError(f"offers of {wanted.node}: {name}: {error}") from error
        found = there.get(name, 0)
        if found != expected:
            return f"{wanted.node} with {name} {format_value(name, expected)}", f"it has {format_value(name, found)}"
    return None


def _fits(wanted: bool, answer: Answer) -> tuple[str, str] | None:
    stuck = [*(fate.pod for fate in answer.pending if not fate.waited), *answer.refused, *answer.lost, *answer.worse]
    found = f"these do not: {', '.join(stuck)}" if stuck else "everybody has a node"
    return None if wanted == answer.fits else ("that everything fits" if wanted else "that not everything fits", found)


def _names(title: str, wanted: list[str], found: list[str]) -> tuple[str, str] | None:
    return None if sorted(wanted) == sorted(found) else (f"{title}: {', '.join(wanted) or 'none'}", ", ".join(found) or "none")


def _suppressed(wanted: Any, answer: Answer) -> tuple[str, str] | None:
    try:
        expected = parse_quantity("cpu", wanted.to)
    except QuantityError as error:
        raise ConfigurationError(f"suppressed of {wanted.node}: {error}") from error
    found = next((each.allowed for each in answer.suppressed if each.node == wanted.node), None)
    if found == expected:
        return None
    told = "they are not suppressed" if found is None else f"to {format_value('cpu', found)}"
    return f"best-effort pods of {wanted.node} suppressed to {format_value('cpu', expected)} cores", told


def _unsuppressed(wanted: list[str], answer: Answer) -> tuple[str, str] | None:
    found = [each.node for each in answer.suppressed if each.node in wanted]
    return (f"best-effort pods not suppressed on {', '.join(wanted)}", f"they are on {', '.join(found)}") if found else None


def _files(wanted: Any, answer: Answer) -> tuple[str, str] | None:
    whose = " ".join(filter(None, (wanted.pod, wanted.container, wanted.node, wanted.level)))
    node = wanted.node or answer.node_of(wanted.pod)
    agent = answer.agents(node) if node else None
    if agent is None:
        return f"files of {whose}", answer.told(wanted.pod) if wanted.pod else "there is no such node"
    found = agent.files(wanted.pod, wanted.container, wanted.level)
    for name, value in wanted.values.items():
        if found.get(name) != str(value):
            others = ", ".join(f"{each} {found[each]}" for each in sorted(found)) or "nothing"
            return f"{whose} with {name} {value}", f"it is {found[name]}" if name in found else f"it is left alone; written: {others}"
    return None


_CHECKS: dict[str, Any] = {
    "placed": _placed,
    "pending": _pending,
    "admitted": _admitted,
    "refused": _refused,
    "offers": _offers,
    "fits": _fits,
    "victims": lambda wanted, answer: _names("victims", wanted, [pod for fate in answer.fates for pod in fate.victims]),
    "lost": lambda wanted, answer: _names("lost", wanted, answer.lost),
    "hot": lambda wanted, answer: _names("hot nodes", wanted, [name for name, _, _ in answer.hot]),
    "suppressed": _suppressed,
    "unsuppressed": _unsuppressed,
    "evicted": lambda wanted, answer: _names("evicted", wanted, [each.pod for each in answer.evicted]),
    "files": _files,
    "free": lambda wanted, answer: _names("free nodes", wanted, answer.free),
}
