"""`koord sandbox world`: tell one history, or live many and say which broke a rule."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roles.sandbox.world import beside, faults, hunting, runner
from roles.sandbox.world.mutants.planting import USUAL
from roles.sandbox.world.mutants.registry import MUTANTS
from roles.sandbox.world.runner import Result
from roles.sandbox.world.spec import LARGE, Spec, drawn, sized


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags."""

    seed: int
    seeds: int | None
    forever: bool
    shrink: bool
    nodes: int | None
    pods: int | None
    minutes: float
    faults: int | None
    koordlets: int | None
    profiles: str | None
    kinds: str
    beside: str
    mutant: str
    list_mutants: bool
    hunt: bool
    table: str
    jobs: int
    verbosity: int
    tree: str = ""  # the directory of --beside

    @property
    def mutants(self) -> list[str]:
        """The names of --mutant."""
        return list(filter(None, self.mutant.split(",")))

    def spec(self, seed: int) -> Spec:
        """The world of a seed: what is not asked for is drawn, or the mutant's. A large one has standbys and whatever else there is."""
        asked: dict[str, Any] = {name: getattr(self, name) for name in ("nodes", "pods", "faults", "koordlets", "profiles", "minutes")}
        asked["kinds"] = tuple(filter(None, self.kinds.split(",")))
        usual = self.hunt or self.mutant or (self.nodes or 0) > LARGE
        whole = replace(USUAL, seed=seed) if usual else drawn(seed)
        if self.tree:
            asked |= {"schedulers": 2, "managers": 2, "deschedulers": 2, "beside": self.tree}
            asked["claims"] = False  # a release of before may know nothing of devices that are had by claims as well
        spec = sized(replace(whole, **{name: value for name, value in asked.items() if value is not None}))
        return hunting.aim(spec, MUTANTS[self.mutant]) if self.mutant in MUTANTS else spec

    def line(self, seed: int) -> str:
        """The command that lives this seed again."""
        flags = [f"--seed={seed}"]
        for name in ("nodes", "pods", "minutes", "faults", "koordlets", "profiles", "kinds", "mutant", "beside"):
            value = getattr(self, name)
            if value not in (None, "") and (name, value) != ("minutes", USUAL.minutes):
                flags.append(f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}")
        return f"koord sandbox world {' '.join(flags)}"


def run(settings: Settings) -> int:
    """The exit status: 0 when every rule held, 1 when one was broken, 2 for flags that make no sense."""
    if settings.list_mutants:
        for mutant in MUTANTS.values():
            print(f"{mutant.name:40} {mutant.text}")
        return 0
    unknown = sorted(set(filter(None, settings.kinds.split(","))) - set(faults.KINDS))
    if unknown:
        accepted = ", ".join(faults.KINDS)
        return _wrong(f"--kinds: {', '.join(unknown)}: accepted are {accepted}")
    strangers = sorted(set(settings.mutants) - set(MUTANTS)) or (
        [settings.mutant] if len(settings.mutants) > 1 and not settings.hunt else []
    )
    if strangers:
        return _wrong(f"--mutant: {', '.join(strangers)}: see --list-mutants (several: with --hunt)")
    if settings.table and not (settings.hunt and _has_place(Path(settings.table))):
        return _wrong(f"--table: for --hunt, and a file with a line {hunting.BEGIN!r}")
    if settings.beside and (settings.hunt or settings.mutant):
        return _wrong("--beside: not with --hunt or --mutant, which change the running release")
    with contextlib.ExitStack() as stack:
        if settings.beside:
            try:
                settings = replace(settings, tree=stack.enter_context(beside.opened(settings.beside)))
                beside.load(settings.tree)
            except beside.Unfit as error:
                return _wrong(f"--beside: {error}")
        runner.prepare()
        if settings.hunt:
            return _hunt(settings)
        if settings.seeds or settings.forever:
            return _many(settings)
        return _one(settings)


def _wrong(text: str) -> int:
    print(f"koord sandbox world: error: {text}", file=sys.stderr)
    return 2


def _has_place(path: Path) -> bool:
    """Whether a table can be written there."""
    return path.is_file() and hunting.BEGIN in path.read_text() and hunting.END in path.read_text()


def _mutation(settings: Settings) -> Callable[[], None] | None:
    return MUTANTS[settings.mutant].plant if settings.mutant else None


def _one(settings: Settings) -> int:
    spec = settings.spec(settings.seed)
    if settings.shrink:
        try:
            spec, _ = runner.shrink(spec, _mutation(settings), print)
        except ValueError as error:
            print(error)
            return 0
    result = runner.run(spec, mutate=_mutation(settings), story=not spec.keep, verbose=settings.verbosity > 0)
    for line in result.story:
        print(line)
    print(f"history {result.digest} ({result.entries} entries, {result.virtual:.0f} s)")
    if spec.keep:
        print(f"{result.cpu:.0f} CPU seconds, {result.memory} MiB")
    _tell(result, settings)
    return 0 if result.held else 1


def _tell(result: Result, settings: Settings) -> None:
    if result.failure:
        print(f"seed {result.seed}: the world stopped: {result.failure}")
    for at, name, text in result.violations:
        print(f"seed {result.seed}: {at:.3f}s {name}: {text}")
    if not result.held and settings.tree:
        alone = runner.run(replace(settings.spec(result.seed), alone=True))
        rules = sorted({name for _, name, _ in alone.violations}) or [alone.failure or "nothing"]
        print(f"seed {result.seed}: with the other release alone: {', '.join(rules)}")
    if not result.held:
        print(f"again: {settings.line(result.seed)}")


def _many(settings: Settings) -> int:
    count = itertools.count(settings.seed) if settings.forever else iter(range(settings.seed, settings.seed + (settings.seeds or 1)))
    began, lived, cpu = time.monotonic(), 0, 0.0
    broken: Counter[str] = Counter()
    seeds: list[int] = []

    def specs() -> Iterator[Spec]:
        for seed in count:
            if settings.forever and seeds:
                return
            yield settings.spec(seed)

    try:
        for result in runner.many(specs(), settings.jobs, _mutation(settings), settings.tree):
            lived += 1
            cpu += result.cpu
            if not result.held:
                seeds.append(result.seed)
                broken.update({name for _, name, _ in result.violations} or {"failure"})
                _tell(result, settings)
    except KeyboardInterrupt:
        print()
    took = time.monotonic() - began
    rate = lived / took * 3600 if took else 0.0
    print(f"{lived} histories in {took:.0f} s ({rate:.0f} an hour, {cpu / max(lived, 1):.2f} CPU seconds each); {len(seeds)} broke a rule")
    for name, times in broken.most_common():
        print(f"  {times:5} {name}")
    return 1 if seeds else 0


def _hunt(settings: Settings) -> int:
    """Each planted defect must be betrayed by some history."""
    chosen = [MUTANTS[name] for name in settings.mutants or MUTANTS]
    seeds = range(settings.seed, settings.seed + (settings.seeds or 40))

    def say(text: str) -> None:
        print(text, flush=True)

    return 0 if hunting.hunt(chosen, lambda: (settings.spec(seed) for seed in seeds), settings.jobs, say, settings.table) else 1
