"""The walks of the architecture page can be followed with a debugger: what they name is called, and in that order."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from tests.support import patience
from tests.support.docs import ROOT, without_fences

_CALL = re.compile(r"`((?:[A-Z]\w*\.)?\w+)\([^`]*\)(?: -> [^`]*)?`")
#: Sections, and where functions without a class are to be.
SECTIONS = {"A pod's way": "", "A cgroup value's way": "/koordlet/"}
#: Kernels that tell of pressure between ticks are not modelled.
NOT_IN_WORLDS = {"QOSManager.run_now"}
#: What runs on its own account, for many pods, or for some only: it is met, but not first met, in the order of the walk.
WHENEVER = {
    *("Reflector._event", "Scheduler._next", "Turns.take", "Evictions.plan"),
    *("SensingLoop.tick", "Rounds.run", "App.snapshot", "Executor.apply"),
}
SEEDS = (4, 9, 3)


def walks() -> list[tuple[str, list[str]]]:
    text = without_fences((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    return [(part, [name for name in _CALL.findall(sections[title]) if name not in NOT_IN_WORLDS]) for title, part in SECTIONS.items()]


def missing(names: Sequence[str], told: list[str]) -> list[str]:
    """The names that do not come after those before them; of what is done for one pod or batch also what was first called earlier."""
    at, out = 0, []
    for name in names:
        if name in told[at:]:
            at = told.index(name, at) + 1
        else:
            out.append(name)
    if out:
        return out
    wanted = [name for name in names if name not in WHENEVER]
    first = [name for name in dict.fromkeys(told) if name in wanted]
    return [] if first == wanted else [f"first met: {', '.join(first)}"]


def test_a_breakpoint_on_each_function_is_met_in_the_order_of_the_walk() -> None:
    """In some world each walk can be followed from its first function to its last."""
    asked = walks()
    assert [len(names) for _, names in asked] == [15, 5]
    lacking: dict[int, list[list[str]]] = {}
    for seed in SEEDS:
        done = subprocess.run(
            [sys.executable, "-m", "tests.docs.walked"],
            cwd=ROOT,
            input=json.dumps({"seed": seed, "walks": asked}),
            capture_output=True,
            text=True,
            timeout=patience.seconds(100),
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        told = json.loads(done.stdout)
        lacking[seed] = [missing(names, calls) for (_, names), calls in zip(asked, told, strict=True)]
        if not any(lacking[seed]):
            return
    raise AssertionError(lacking)
