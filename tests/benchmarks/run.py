"""`make bench`: run every bench script in a process of its own, one after another, and print one table."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.benchmarks.table import Row, render

#: Have tables of their own, and take minutes.
APART = ("colocation", "colocation_vm", "tier", "koordlet_churn", "interference", "interference_real", "openb", "scarce", "gpu_room")
HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    known = {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}
    known = {name: path for name, path in known.items() if name not in APART}
    parser = argparse.ArgumentParser("make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--all", action="store_true", help="also the sizes that take long")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(known)}")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.names) - known.keys()):
        parser.error(f"no such benchmark: {', '.join(unknown)}; known: {', '.join(known)}")
    sizes = [option for option in ("--quick", "--all") if getattr(chosen, option[2:])]
    scripts = [path for name, path in known.items() if not chosen.names or name in chosen.names]
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
