"""The deterministic world: small histories an hour, and what an hour of a large cluster costs. `--all` lives the large one whole."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.benchmarks.table import Row, script
from tests.support.processes import KOORD, ROOT

WORLD = (KOORD, "sandbox", "world")


def _tell(*flags: str) -> str:
    """What a world prints; a broken rule is printed, too, and no failure of the bench."""
    done = subprocess.run([*WORLD, *flags], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"koord sandbox world {' '.join(flags)}: status {done.returncode}")
    return done.stdout


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"no {pattern!r} in:\n{text[-500:]}")
    return float(found.group(1))


def rows(quick: bool) -> list[Row]:
    seeds = 6 if quick else 40
    text = _tell("--seed=100", f"--seeds={seeds}", "--jobs=2")
    each, broken = _number(r"([\d.]+) CPU seconds each", text), _number(r"; (\d+) broke a rule", text)
    found = [
        Row("world, 3 nodes and 26 pods with faults, CPU a history", each, "s", 0.72, note=f"{seeds} seeds, {broken:.0f} broke a rule"),
        Row("world, 3 nodes and 26 pods with faults, histories an hour on two cores", 7200 / each, "/h", 10_000, "higher"),
    ]
    nodes, pods, minutes = (1000, 10_000, 60) if "--all" in sys.argv else (100, 500, 5)
    text = _tell("--seed=1", f"--nodes={nodes}", f"--pods={pods}", f"--minutes={minutes}", "--koordlets=0")
    whole = "--all" in sys.argv
    what = f"world, {nodes} nodes, {pods} pods, {minutes} virtual minutes with faults"
    found.append(Row(f"{what}, CPU", _number(r"(\d+) CPU seconds", text), "s", 300 if whole else None))
    found.append(Row(f"{what}, memory", _number(r"CPU seconds, (\d+) MiB", text), "MiB", 2048 if whole else None))
    return found


if __name__ == "__main__":
    script(rows)
