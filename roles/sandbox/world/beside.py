"""Another release of koord beside the running one: its modules in a registry of their own, its processes on the world's clock.

What a world asks of a release is the contract:

* `koord.seams`: the surroundings of the world fit the methods of its `System` and `Files`, and `use` takes them;
* `koord.process.life.Life`: a life that begins its end by `begin_end`;
* `roles.sandbox.world.programs`: how its roles are composed in a world, with the number of this contract (`CONTRACT`; none is 1), and the
  context variable that says which process they are (`PROCESS`).
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import inspect
import random
import sys
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from roles.sandbox.world.faults import ROLES, Fault
from roles.sandbox.world.host.files import ProcessFiles
from roles.sandbox.world.process import Surroundings

if TYPE_CHECKING:
    from roles.sandbox.world.process import Process

PACKAGES = ("koord", "roles")
_NAME = "koord_beside"
"""The package in which the other release's modules are: `koord_beside.koord.seams`."""
_PROGRAMS = "roles.sandbox.world.programs"
_COMPOSED = ("scheduler", "manager", "descheduler", "koordlet")
_APPS = ("roles.scheduler.app", "roles.manager.app", "roles.descheduler.app", "roles.koordlet.app")
OUT = 26.0
"""Seconds for which the replicas of one release are out of the way: longer than a lease and a look at it take."""


class Unfit(ValueError):
    """A tree that cannot live in a world of this release."""


# -- modules of another tree ---------------------------------------------------------------------------------------------------


class _Beside(Loader):
    """Gives a module the import statement of its own release before it runs."""

    def __init__(self, loader: Any, own: dict[str, Any]) -> None:
        self._loader = loader
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # resources and source code are found by the loader that knows where

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._own
        self._loader.exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules below `_NAME` in a tree. All else is shared with the running release."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._own = {**vars(builtins), "__import__": self._import}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname == _NAME:
            spec = ModuleSpec(_NAME, None, is_package=True)
            spec.submodule_search_locations = [str(self.tree)]
            return spec
        if not fullname.startswith(f"{_NAME}."):
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.loader is not None:
            found.loader = _Beside(found.loader, self._own)
        return found

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """What an import statement of the other release does: koord and roles are its own."""
        if level == 0 and name.partition(".")[0] in PACKAGES:
            found = __import__(f"{_NAME}.{name}", globals, locals, fromlist, 0)
            return found if fromlist else getattr(found, name.partition(".")[0])
        found = __import__(name, globals, locals, fromlist, level)
        return self._importlib() if found is importlib else found

    @staticmethod
    def _importlib() -> ModuleType:
        """importlib, whose import_module knows the other release's names."""
        module = ModuleType("importlib")
        vars(module).update(vars(importlib))
        module.import_module = _module  # type: ignore[attr-defined]
        return module


def _module(name: str, package: str | None = None) -> ModuleType:
    """A module of the other release, or one that is shared."""
    return importlib.import_module(f"{_NAME}.{name}" if name.partition(".")[0] in PACKAGES else name, package)


# -- releases ------------------------------------------------------------------------------------------------------------------


class Release:
    """One release as a world needs it. `programs`: how its roles are composed; `life`: makes a life of a process."""

    def __init__(self, module: Callable[[str], ModuleType]) -> None:
        self.seams = module("koord.seams")
        self.programs: Any = module(_PROGRAMS)
        self.life: Callable[[], Any] = module("koord.process.life").Life

    def compose(self, role: str, *given: Any) -> Callable[[], Awaitable[None]]:
        """What a process runs in its role, of what the world gives it."""
        main: Callable[[], Awaitable[None]] = getattr(self.programs, role)(*given)
        return main

    def enter(self, process: Process) -> None:
        """Its modules live by the surroundings of this process, in its context."""
        process.context.run(self.seams.use, process.surroundings)
        process.context.run(self.programs.PROCESS.set, process)


@cache
def running() -> Release:
    """The release that runs this world."""
    return Release(importlib.import_module)


@cache
def load(tree: str) -> Release:
    """The release of a directory with `koord/` and `roles/`; one in a process. Raises Unfit."""
    missing = [name for name in PACKAGES if not Path(tree, name, "__init__.py").is_file()]
    if missing:
        raise Unfit(f"{tree}: no release of koord: it has no package {' and '.join(missing)}")
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        raise Unfit(f"{tree}: another release is loaded already")
    sys.meta_path.insert(0, _Finder(Path(tree).resolve()))
    try:
        release = Release(_module)
        for name in _APPS:
            _module(name)
    except Exception as error:  # whatever its modules raise
        raise Unfit(f"{tree}: cannot be loaded: {type(error).__name__}: {error}") from error
    if wrong := misfits(release):
        raise Unfit(f"{tree}: does not fit the worlds of this release: {'; '.join(wrong)}")
    return release


@contextlib.contextmanager
def opened(path: str) -> Iterator[str]:
    """The directory of a release: a directory itself, or a zip file (a wheel, an archive of the sources) that is unpacked for a while.
    Raises Unfit."""
    if Path(path).is_dir():
        yield path
        return
    if not zipfile.is_zipfile(path):
        raise Unfit(f"{path}: neither a directory nor a zip file")
    with tempfile.TemporaryDirectory(prefix="koord-beside-") as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)  # names that lead out of the directory are put into it
        inside = list(Path(folder).iterdir())
        yield str(inside[0]) if len(inside) == 1 and inside[0].is_dir() else folder


def misfits(release: Release) -> list[str]:
    """In what a release breaks the contract; nothing where it fits."""
    ours, number = running().programs, getattr(release.programs, "CONTRACT", 1)
    if number != ours.CONTRACT:
        return [f"its programs have contract {number}, this release has {ours.CONTRACT}"]
    wrong = []
    for theirs, here in ((release.seams.System, Surroundings), (release.seams.Files, ProcessFiles)):
        for name, function in inspect.getmembers(theirs, inspect.isfunction):
            if not name.startswith("_") and not _takes(getattr(here, name, None), function):
                wrong.append(f"koord.seams: {theirs.__name__}.{name}{inspect.signature(function)}")
    wrong += [] if hasattr(release.programs, "PROCESS") else [f"{_PROGRAMS}: PROCESS"]
    return wrong + [f"{_PROGRAMS}: {name}" for name in _COMPOSED if not _takes(getattr(release.programs, name, None), getattr(ours, name))]


def _takes(function: Any, other: Callable[..., Any]) -> bool:
    """Whether a function can be called as the other one."""
    if not callable(function):
        return False
    ours, theirs = (list(inspect.signature(one).parameters.values()) for one in (function, other))
    same = [(one.name, one.kind) for one in ours[: len(theirs)]] == [(one.name, one.kind) for one in theirs]
    return same and all(one.default is not one.empty for one in ours[len(theirs) :])


# -- who is which --------------------------------------------------------------------------------------------------------------


class Mixture:
    """Which release each process of a world is of: one of two replicas is the other one's; each life of a node agent is of either, as it is
    upgraded and rolled back. `alone`: all are the other one's."""

    def __init__(self, seed: str, tree: str, *, alone: bool = False) -> None:
        self.former = load(tree) if tree else running()
        self._seed = seed
        self._mixed = bool(tree)
        self._alone = alone
        self._letters = {role: random.Random(f"{seed}/beside/{role}").choice("ab") for role in ROLES}

    def is_former(self, name: str, number: int) -> bool:
        """Whether the life of this number of a program is of the other release."""
        role, _, letter = name.partition("-")
        if not self._mixed or role not in _COMPOSED:
            return False
        if self._alone:
            return True
        if role in self._letters:
            return self._letters[role] == letter
        return random.Random(f"{self._seed}/beside/{name}/{number}").random() < 0.5

    def of(self, name: str, number: int) -> Release:
        """The release of a life of a program."""
        return self.former if self.is_former(name, number) else running()

    def turns(self, seconds: float) -> list[Fault]:
        """What makes both lead: within the first `seconds` first one replica of each role is killed or frozen, later the other one."""
        if not self._mixed:
            return []
        rng = random.Random(f"{self._seed}/beside/turns")
        made = []
        for role in ROLES:
            for part, letter in enumerate(rng.sample("ab", 2)):
                at = round(seconds * (part * 0.5 + rng.uniform(0.1, 0.2)), 2)
                made.append(Fault(at, rng.choice(("kill", "freeze")), f"{role}-{letter}", OUT))
        return made
