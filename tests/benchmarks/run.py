"""`make bench`: run every bench script in a process of its own, one after another, and print one table.

usage: run.py [--quick] [--all] [NAME ...]   NAME is a script without `bench_` and `.py`; `--all` has the sizes that take long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.benchmarks.table import Row, render

#: Have tables of their own, and take minutes.
APART = ("colocation", "colocation_vm", "tier", "koordlet_churn", "interference", "interference_real")
HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    sizes = [word for word in arguments if word in ("--quick", "--all")]
    wanted = [word for word in arguments if not word.startswith("-")]
    scripts = sorted(
        path
        for path in HERE.glob("bench_*.py")
        if path.stem.removeprefix("bench_") not in APART and (not wanted or path.stem.removeprefix("bench_") in wanted)
    )
    if not scripts:
        print(
            f"no such benchmark; known: {', '.join(p.stem.removeprefix('bench_') for p in sorted(HERE.glob('bench_*.py')))}",
            file=sys.stderr,
        )
        return 2
    rows: list[Row] = []
    failed = []
    for path in scripts:
        print(f"-- {path.stem.removeprefix('bench_')}", file=sys.stderr, flush=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as collected:
            environment = {**os.environ, "KOORD_BENCH_JSON": collected.name, "PYTHONPATH": str(HERE.parent.parent)}
            done = subprocess.run([sys.executable, str(path), *sizes], env=environment, stdout=subprocess.DEVNULL, check=False)
            if done.returncode:
                failed.append(path.stem)
                continue
            rows += [Row(**entry) for entry in json.loads(Path(collected.name).read_text() or "[]")]
    print(render(rows))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
